/* Every operation of the CUDA device against its twin on the host: the same inputs, rounded to the
 * compute type, through both. Oracle: the host device in fp32; bounds by ||a - b|| / ||b||, 1e-5 in
 * fp32 and 1e-2 in bf16 (whose products, statistics and sums are fp32 on both sides). Outputs are
 * poisoned with NaN before each call. Exact operations of the host (copies, conversions, exact
 * sums, and results of exact sums) must be bitwise identical. Without a GPU the program is
 * skipped. */

#include <errno.h>
#include <glob.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../device/layernorm.h"
#include "../device/workspaces.h"
#include "compress/compress.h"
#include "compress/nf4.h"
#include "device/cuda_work.h"
#include "optim/optim.h"
#include "tests/gpu/twins.h"

/* Further devices that multiply, and what they then tell. They end with the test. */
static struct learner {
  struct device *device;
  struct lane *lane;
  unsigned char *table;
  int64_t bytes;
} learners[8];
static int n_learners;

FIXTURE(start)
{
  open_sides(DTYPE_F32);
  return 0;
}

FIXTURE(stop)
{
  for (; n_learners > 0; n_learners--) {
    struct learner *learner = &learners[n_learners - 1];
    learner->device->ops->lane_destroy(learner->lane);
    device_destroy(learner->device);
    mem_free(learner->table);
    *learner = (struct learner){0};
  }
  close_sides();
  return 0;
}

#define GPU_TEST(function) TEST_WITH(function, start, stop)

/* --- products ------------------------------------------------------------ */

struct product {
  bool trans_a, trans_b;
  enum epilogue epilogue;
  bool accumulate;
  int64_t wider; /* elements between the rows of the result */
};

static void check_matmul(int64_t m, int64_t n, int64_t k, const struct product *p)
{
  const int64_t ld = n + p->wider;
  const bool biased = p->epilogue == EPILOGUE_BIAS || p->epilogue == EPILOGUE_BIAS_GELU;
  struct twin a = input(m * k), b = input(n * k), bias = input(n),
              aux = p->epilogue == EPILOGUE_DGELU ? input(m * ld) : output(m * ld),
              c = p->trans_a ? sums(m * ld, true) : output(m * ld);
  struct matmul op = {.m = m, .n = n, .k = k, .ldc = ld, .epilogue = p->epilogue};
  op.trans_a = p->trans_a, op.trans_b = p->trans_b, op.accumulate = p->accumulate;
  op.lda = p->trans_a ? m : k, op.ldb = p->trans_b ? k : n;
  if (!p->trans_a)
    clear(&c); /* elements between the rows stay as they are */
  if (p->epilogue != EPILOGUE_DGELU)
    clear(&aux);
  for (const struct side *s = sides; s < sides + 2; s++) {
    op.a = AT(a), op.b = AT(b), op.c = AT(c), op.bias = AT_IF(biased, bias);
    op.aux = AT_IF(p->epilogue >= EPILOGUE_BIAS_GELU, aux);
    must(s->ops->matmul(s->lane, &op));
  }
  char what[128];
  snprintf(what, sizeof what, "product %lld x %lld x %lld ta %d tb %d epilogue %d", (long long)m,
           (long long)n, (long long)k, p->trans_a, p->trans_b, p->epilogue);
  expect_same(what,
              (const struct twin *[]){&c, p->epilogue == EPILOGUE_BIAS_GELU ? &aux : NULL, NULL});
  forget();
}

/* c = ab + other and the epilogue, or 2.5 ab - 0.75 other; the other matrix may be c itself. */
static void check_matmul_add(int64_t m, int64_t n, int64_t k, enum epilogue epilogue,
                             bool onto_itself, int64_t wider)
{
  const int64_t all = m * (n + wider);
  const bool gelu = epilogue == EPILOGUE_BIAS_GELU;
  struct twin a = input(m * k), b = input(n * k), bias = input(n), other = input(all),
              aux = epilogue == EPILOGUE_DGELU ? input(all) : output(all), c = output(all);
  struct matmul op = {
      .m = m, .n = n, .k = k, .trans_b = true, .lda = k, .ldb = k, .ldc = n + wider};
  op.epilogue = epilogue;
  if (epilogue == EPILOGUE_NONE)
    op.scale = 2.5f, op.add_scale = -0.75f;
  clear(&c);
  if (epilogue != EPILOGUE_DGELU)
    clear(&aux);
  for (const struct side *s = sides; s < sides + 2; s++) {
    op.a = AT(a), op.b = AT(b), op.bias = AT_IF(gelu || epilogue == EPILOGUE_BIAS, bias);
    op.add = AT(other), op.aux = AT_IF(epilogue >= EPILOGUE_BIAS_GELU, aux);
    op.c = at(s, onto_itself ? &other : &c);
    must(s->ops->matmul(s->lane, &op));
  }
  expect_same("a sum with a product",
              (const struct twin *[]){onto_itself ? &other : &c, gelu ? &aux : NULL, NULL});
  forget();
}

GPU_TEST(test_matmul_add)
{
  for (enum epilogue e = EPILOGUE_NONE; e <= EPILOGUE_DGELU; e++)
    for (int bits = 0; bits < 4; bits++) {
      check_matmul_add(256, 128, 192, e, bits & 1, bits & 2 ? 64 : 0);
      check_matmul_add(64, 101, 33, e, bits & 1, bits & 2 ? 27 : 0);
    }
}

/* The same twin without its first elements. */
static struct twin beyond(const struct twin *twin, int64_t elements)
{
  struct twin rest = *twin;
  rest.n -= elements;
  rest.here += elements;
  rest.there = (char *)twin->there + (size_t)elements * dtype_size(twin->type);
  return rest;
}

/* Products of the second of two adapters of one input. Its rank may align nothing. */
static void check_adapter(int64_t m, int64_t n, int64_t rank)
{
  const int64_t stride = (2 * rank + 7) / 8 * 8;
  struct twin t = input(m * stride), b = input(n * rank), y = input(m * n), dy = input(m * n),
              dt = output(m * stride), db = sums(n * rank, true), own = beyond(&t, rank),
              down = beyond(&dt, rank);
  struct matmul wide = {.m = m, .n = n, .k = rank, .lda = stride, .ldb = rank, .ldc = n},
                narrow = {.m = m, .n = rank, .k = n, .lda = n, .ldb = rank, .ldc = stride},
                sum = {.m = n, .n = rank, .k = m, .lda = n, .ldb = stride, .ldc = rank};
  wide.trans_b = sum.trans_a = sum.accumulate = true, narrow.scale = 0.5f;
  clear(&dt);
  for (const struct side *s = sides; s < sides + 2; s++) {
    wide.a = AT(own), wide.b = AT(b), wide.add = wide.c = AT(y);
    narrow.a = AT(dy), narrow.b = AT(b), narrow.c = AT(down);
    sum.a = AT(dy), sum.b = AT(own), sum.c = AT(db);
    must(s->ops->matmul(s->lane, &wide));
    must(s->ops->matmul(s->lane, &narrow));
    must(s->ops->matmul(s->lane, &sum));
  }
  expect_same("products of an adapter", (const struct twin *[]){&y, &dt, &db, NULL});
  forget();
}

GPU_TEST(test_adapters)
{
  static const int64_t ranks[] = {1, 2, 3, 4, 8, 16, 21};
  for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
    check_adapter(77, 640, ranks[i]);
}

/* m x k by k x n, with rows next to each other, on the GPU. */
static struct matmul product_there(int64_t m, int64_t n, int64_t k, const struct twin *a,
                                   const struct twin *b, const struct twin *c)
{
  struct matmul op = {.m = m, .n = n, .k = k, .lda = k, .ldb = n, .ldc = n};
  op.a = a->there, op.b = b->there, op.c = c->there;
  return op;
}

GPU_TEST(test_matmul_refusals)
{
  struct twin a = input(64 * 64), b = input(64 * 64), c = output(64 * 64);
  struct matmul op = product_there(64, 64, 64, &a, &b, &c);
  op.accumulate = true, op.add = b.there;
  assert_int_equal(gpu->ops->matmul(gpu_lane, &op), STATUS_INTERNAL);
  op.accumulate = false, op.epilogue = EPILOGUE_BIAS_GELU, op.add = NULL, op.scale = 2;
  assert_int_equal(gpu->ops->matmul(gpu_lane, &op), STATUS_INTERNAL);
}

static void product_to(struct device *device, struct lane *lane, const struct twin *a,
                       const struct twin *b, const struct twin *c, float *out)
{
  struct matmul op = product_there(128, 96, 512, a, b, c);
  op.trans_a = true, op.lda = 128;
  must(device->ops->matmul(lane, &op));
  must_cuda(cudaDeviceSynchronize());
  must_cuda(cudaMemcpy(out, c->there, 128 * 96 * sizeof(float), cudaMemcpyDeviceToHost));
}

static struct learner *learner_start(bool keeps)
{
  assert_true(n_learners < (int)(sizeof learners / sizeof *learners));
  struct learner *learner = &learners[n_learners];
  must(cuda_device_create(0, compute, &learner->device));
  n_learners++;
  cuda_device(learner->device)->keeps_cache = keeps;
  must(learner->device->ops->lane_create(learner->device, "compute", LANE_ROLE_COMPUTE, 1,
                                         &learner->lane));
  return learner;
}

static void learner_tell(struct learner *learner)
{
  mem_free(learner->table);
  must(learner->device->ops->learned(learner->device, (void **)&learner->table, &learner->bytes));
}

static void learner_multiply(struct learner *learner, int64_t n)
{
  struct twin a = input(64 * 128), b = input(n * 64), c = output(128 * n);
  struct matmul op = {.m = 128, .n = n, .k = 64, .trans_b = true, .lda = 64, .ldb = 64, .ldc = n};
  const struct side both[] = {sides[0], {gpu, learner->device->ops, learner->lane, 1}};
  for (const struct side *s = both; s < both + 2; s++) {
    op.a = AT(a), op.b = AT(b), op.c = AT(c);
    must(s->ops->matmul(s->lane, &op));
  }
  EXPECT_SAME("a product after learning", &c);
  forget();
  learner_tell(learner);
}

/* A second device that learns from the first one knows what it knows, and multiplies to the same
 * bits; a table of another kind of GPU is refused. */
GPU_TEST(test_learning)
{
  struct twin a = input(128 * 512), b = input(96 * 512), c = sums(128 * 96, false);
  static float first[128 * 96], second[128 * 96];
  struct learner *other = learner_start(false);
  unsigned char *bytes = NULL;
  int64_t n = 0;
  product_to(gpu, gpu_lane, &a, &b, &c, first);
  must(gpu->ops->learned(gpu, (void **)&bytes, &n));
  assert_true(n > 0);
  must(other->device->ops->learn(other->device, bytes, n));
  product_to(other->device, other->lane, &a, &b, &c, second);
  assert_memory_equal(first, second, sizeof first);
  learner_tell(other);
  assert_int_equal(other->bytes, n); /* the bytes that it was given */
  assert_int_equal(other->device->ops->learn(other->device, bytes, n - 1), STATUS_INPUT);
  bytes[8] ^= 1; /* the GPU's name */
  assert_int_equal(other->device->ops->learn(other->device, bytes, n), STATUS_INPUT);
  must(other->device->ops->learn(other->device, NULL, 0));
  mem_free(bytes);
}

/* --- the user's cache of algorithms -------------------------------------- */

/* A folder in place of the user's, and the file in it. */
static struct {
  char folder[64], path[128], before[4096];
  unsigned char data[1 << 20];
  int64_t bytes;
} cache;

/* NULL if the folder is empty. */
static const char *cache_file(void)
{
  glob_t found = {0};
  char pattern[128];
  snprintf(pattern, sizeof pattern, "%s/*", cache.folder);
  const bool there = glob(pattern, 0, NULL, &found) == 0;
  if (there) {
    assert_int_equal(found.gl_pathc, 1); /* no temporary file is left */
    snprintf(cache.path, sizeof cache.path, "%s", found.gl_pathv[0]);
  }
  globfree(&found);
  return there ? cache.path : NULL;
}

FIXTURE(start_cache)
{
  const char *before = getenv("XDG_CACHE_HOME");
  snprintf(cache.before, sizeof cache.before, "%s", before ? before : "");
  snprintf(cache.folder, sizeof cache.folder, "/tmp/sluice-cache-XXXXXX");
  assert_non_null(mkdtemp(cache.folder));
  assert_int_equal(setenv("XDG_CACHE_HOME", cache.folder, true), 0);
  return start(test_state);
}

FIXTURE(stop_cache)
{
  if (cache_file())
    (void)unlink(cache.path);
  (void)rmdir(cache.folder);
  (void)setenv("XDG_CACHE_HOME", cache.before, true); /* empty: as if it was not set */
  return stop(test_state);
}

#define CACHE_TEST(function) TEST_WITH(function, start_cache, stop_cache)

static void cache_load(void)
{
  assert_non_null(cache_file());
  FILE *file = fopen(cache.path, "rb");
  assert_non_null(file);
  cache.bytes = (int64_t)fread(cache.data, 1, sizeof cache.data, file);
  fclose(file);
}

static void cache_store(void)
{
  FILE *file = fopen(cache.path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(cache.data, 1, (size_t)cache.bytes, file), cache.bytes);
  assert_int_equal(fclose(file), 0);
}

/* The table's layout: what it is good for, how many records, their FNV-1a; then records, key first
 * and `measured` last. */
enum {
  TABLE_RECORD_BYTES = 288,
  TABLE_RECORDS = 296,
  TABLE_SUM = 304,
  TABLE_HEADER = 312,
  RECORD_ALGORITHM = 72
};

static int64_t word_at(const unsigned char *data, int64_t at)
{
  int64_t word;
  memcpy(&word, data + at, sizeof word);
  return word;
}

static void seal(unsigned char *table, int64_t bytes)
{
  uint64_t sum = UINT64_C(0xcbf29ce484222325);
  for (int64_t i = TABLE_HEADER; i < bytes; i++)
    sum = (sum ^ table[i]) * UINT64_C(0x100000001b3);
  const int64_t records = (bytes - TABLE_HEADER) / word_at(table, TABLE_RECORD_BYTES);
  memcpy(table + TABLE_RECORDS, &records, sizeof records);
  memcpy(table + TABLE_SUM, &sum, sizeof sum);
}

/* Oracle: the bytes of the table in memory and in the file. */
CACHE_TEST(test_cache_file)
{
  struct learner *other = learner_start(true), *first = learner_start(false);
  learner_multiply(first, 96);
  assert_null(cache_file()); /* was not asked to keep anything */
  cuda_device(first->device)->keeps_cache = true;
  learner_tell(first);
  cache_load();
  assert_int_equal(cache.bytes, first->bytes);
  assert_memory_equal(cache.data, first->table, (size_t)first->bytes);
  const int64_t record = word_at(cache.data, TABLE_RECORD_BYTES);
  assert_int_equal(first->bytes, TABLE_HEADER + record);

  learner_multiply(other, 104); /* began before there was a file: adds to it */
  assert_int_equal(other->bytes, TABLE_HEADER + record);
  cache_load();
  assert_int_equal(cache.bytes, TABLE_HEADER + 2 * record);
  assert_memory_equal(cache.data + TABLE_HEADER, first->table + TABLE_HEADER, (size_t)record);
  assert_memory_equal(cache.data + TABLE_HEADER + record, other->table + TABLE_HEADER,
                      (size_t)record);

  struct learner *reader = learner_start(true);
  learner_multiply(reader, 96); /* tells what it used, of the two in the file */
  assert_int_equal(reader->bytes, first->bytes);
  assert_memory_equal(reader->table, first->table, (size_t)first->bytes);

  struct learner *told = learner_start(true);
  memset(first->table + first->bytes - 4, 0,
         4); /* a record that differs from the file's: not measured */
  seal(first->table, first->bytes);
  must(told->device->ops->learn(told->device, first->table, first->bytes));
  learner_multiply(told, 96);
  assert_int_equal(told->bytes, first->bytes);
  assert_memory_equal(told->table, first->table, (size_t)first->bytes);
}

/* If all products of a run are known, the user's cache is not read. The first unknown shape creates
 * it. */
CACHE_TEST(test_cache_unasked)
{
  struct learner *first = learner_start(false), *told;
  char made[96];
  learner_multiply(first, 96);
  snprintf(made, sizeof made, "%s/home", cache.folder);
  assert_int_equal(setenv("XDG_CACHE_HOME", made, true), 0);
  told = learner_start(false);
  must(told->device->ops->learn(told->device, first->table, first->bytes));
  learner_multiply(told, 96);
  assert_int_equal(rmdir(made), -1);
  assert_int_equal(errno, ENOENT);
  learner_multiply(told, 104);
  assert_int_equal(rmdir(made), 0);
}

/* Files that are cut off, changed, or hold what is no algorithm: measured again, and the file is
 * whole after that. Oracle: the product; the file's length. */
CACHE_TEST(test_cache_damage)
{
  struct learner *first = learner_start(true);
  learner_multiply(first, 96);
  cache_load();
  const int64_t whole = cache.bytes;
  for (int damage = 0; damage < 3; damage++) {
    if (damage == 0)
      cache.bytes--;
    if (damage == 1)
      cache.data[TABLE_HEADER + RECORD_ALGORITHM] ^= 1;
    if (damage == 2) {
      memset(cache.data + TABLE_HEADER + RECORD_ALGORITHM, 0xff, sizeof(cublasLtMatmulAlgo_t));
      seal(cache.data, cache.bytes);
    }
    cache_store();
    struct learner *again = learner_start(true);
    learner_multiply(again, 96);
    cache_load();
    assert_int_equal(cache.bytes, whole);
    assert_memory_equal(cache.data + TABLE_HEADER, first->table + TABLE_HEADER, RECORD_ALGORITHM);
  }
}

/* A file that is full: what is new takes the place of the oldest. Oracle: its records. */
CACHE_TEST(test_cache_full)
{
  enum { MOST = 4096 };
  struct learner *first = learner_start(true);
  learner_multiply(first, 96);
  cache_load();
  const int64_t record = word_at(cache.data, TABLE_RECORD_BYTES),
                whole = TABLE_HEADER + MOST * record;
  assert_true(whole < 1 << 20);
  for (int64_t i = 0; i < MOST; i++) {
    const int64_t m = 100000 + i;
    memmove(cache.data + TABLE_HEADER + i * record, cache.data + TABLE_HEADER, (size_t)record);
    memcpy(cache.data + TABLE_HEADER + i * record, &m, sizeof m);
  }
  cache.bytes = whole;
  seal(cache.data, whole);
  cache_store();

  struct learner *second = learner_start(true);
  learner_multiply(second, 104);
  cache_load();
  assert_int_equal(cache.bytes, whole);
  assert_int_equal(word_at(cache.data, TABLE_HEADER), 100001);
  assert_memory_equal(cache.data + whole - record, second->table + TABLE_HEADER, (size_t)record);
}

/* More shapes than the table has room for at first. Oracles: the host, and the number of learned
 * shapes. */
CACHE_TEST(test_many_shapes)
{
  enum { SHAPES = 160 };
  struct learner *many = learner_start(false);
  for (int64_t i = 1; i <= SHAPES; i++)
    learner_multiply(many, 8 * i);
  assert_int_equal(word_at(many->table, TABLE_RECORDS), SHAPES);
  learner_multiply(many, 8);
  assert_int_equal(word_at(many->table, TABLE_RECORDS), SHAPES);
}

/* All but some 24 MiB of the GPU's memory. */
static void *hog_memory(void)
{
  void *block = NULL;
  size_t unused = 0, all = 0;
  must_cuda(cudaMemGetInfo(&unused, &all));
  for (size_t left = 24 << 20; left < 48 << 20; left += 2 << 20)
    if (unused > left && !cudaMalloc(&block, unused - left))
      return block;
  (void)cudaGetLastError();
  return NULL;
}

/* If there is no memory to try algorithms for an accumulating product, it is computed without a
 * trial, and the file gets no entry. Oracle: the host. */
CACHE_TEST(test_no_scratch)
{
  const int64_t m = 4096, k = 64;
  struct learner *poor = learner_start(true);
  struct twin a = input(m * k), b = input(m * k), c = sums(m * m, true);
  struct matmul op = {
      .m = m, .n = m, .k = k, .trans_a = true, .accumulate = true, .lda = m, .ldb = m, .ldc = m};
  op.a = a.here, op.b = b.here, op.c = c.here;
  must(host->ops->matmul(host_lane, &op));
  must(poor->device->ops->lane_reserve(poor->lane));
  void *hog = hog_memory();
  assert_non_null(hog);
  op.a = a.there, op.b = b.there, op.c = c.there;
  must(poor->device->ops->matmul(poor->lane, &op));
  must_cuda(cudaDeviceSynchronize());
  must_cuda(cudaFree(hog));
  EXPECT_SAME("a product that was not measured", &c);
  learner_tell(poor);
  assert_int_equal(word_at(poor->table, TABLE_RECORDS), 1);
  assert_null(cache_file());
}

GPU_TEST(test_matmul)
{
  static const int64_t sizes[][3] = {{256, 128, 192}, {77, 120, 40}, {64, 101, 33}, {1, 512, 256}};
  static const struct product products[] = {
      {false, false, EPILOGUE_NONE, false, 0},      {false, true, EPILOGUE_NONE, false, 0},
      {false, true, EPILOGUE_BIAS, false, 0},       {false, true, EPILOGUE_NONE, false, 24},
      {true, false, EPILOGUE_NONE, false, 0},       {true, false, EPILOGUE_NONE, true, 0},
      {false, false, EPILOGUE_BIAS_GELU, false, 0}, {false, true, EPILOGUE_DGELU, false, 0}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (size_t p = 0; p < sizeof products / sizeof *products; p++)
      check_matmul(sizes[i][0], sizes[i][1], sizes[i][2], &products[p]);
}

/* An epilogue after the product: a part of it, such as a bias that the product has added, or all of
 * it. The GPU may choose this way. Oracle: the host's epilogue within the product. */
static void check_finish(enum epilogue epilogue, bool bias_before, int64_t m, int64_t n, int64_t ld)
{
  const int64_t k = 64;
  const struct gpu_launch launch = cuda_launch(gpu_lane);
  struct twin a = input(m * k), b = input(n * k), bias = input(n), c = output(m * ld),
              aux = input(m * ld);
  clear(&c);
  struct matmul op = {
      .m = m, .n = n, .k = k, .trans_b = true, .lda = k, .ldb = k, .ldc = ld, .epilogue = epilogue};
  op.a = a.here, op.b = b.here, op.bias = bias.here, op.c = c.here, op.aux = aux.here;
  must(host->ops->matmul(host_lane, &op));
  op.a = a.there, op.b = b.there, op.bias = bias.there,
  op.c = epilogue == EPILOGUE_BIAS_GELU ? aux.there : c.there, op.aux = NULL;
  op.epilogue = bias_before ? EPILOGUE_BIAS : EPILOGUE_NONE;
  must(gpu->ops->matmul(gpu_lane, &op));
  gpu_finish(&launch, m, n, ld, epilogue, bias_before ? NULL : bias.there, aux.there, c.there);
  must(cuda_check_launch("an epilogue"));
  EXPECT_SAME("an epilogue after a product", &c, epilogue == EPILOGUE_BIAS_GELU ? &aux : NULL);
  forget();
}

GPU_TEST(test_finish)
{
  for (int64_t n = 100; n < 105; n += 4)
    for (int64_t ld = n; ld <= 2 * n; ld += n) {
      check_finish(EPILOGUE_BIAS, false, 77, n, ld);
      check_finish(EPILOGUE_BIAS_GELU, false, 77, n, ld);
      check_finish(EPILOGUE_BIAS_GELU, true, 77, n, ld);
      check_finish(EPILOGUE_DGELU, false, 77, n, ld);
    }
}

/* --- norms --------------------------------------------------------------- */

struct norm_shape {
  int64_t rows, groups, C, stride;
  bool with_add, layer; /* layer: a layer norm */
};

static void check_norm(const struct norm_shape *n)
{
  const int64_t all = n->rows * n->stride, C = n->C, pieces = n->rows * n->groups;
  const bool gaps = n->stride != n->groups * C; /* elements there stay as they are */
  struct twin x = input(all), add = input(all), sum = twin_make(all, compute, gaps),
              gamma = input(C), beta = input(C), y = twin_make(all, compute, gaps), dy = input(all),
              dx = input(all), mean = sums(pieces, false), rstd = sums(pieces, false),
              dgamma = sums(C, true), dbeta = sums(C, true);
  struct row_norm op = {.rows = n->rows, .groups = n->groups, .C = C, .eps = 1e-5f};
  struct row_norm_backward back = {
      .rows = n->rows, .groups = n->groups, .C = C, .tile = n->rows, .accumulate = true};
  op.x_stride = op.y_stride = back.x_stride = back.dy_stride = back.dx_stride = n->stride;
  for (const struct side *s = sides; s < sides + 2; s++) {
    op.x = AT(x), op.gamma = AT(gamma), op.y = AT(y), op.rstd = AT(rstd);
    op.add = AT_IF(n->with_add, add), op.sum = AT_IF(n->with_add, sum);
    op.beta = AT_IF(n->layer, beta), op.mean = AT_IF(n->layer, mean);
    must(s->ops->norm(s->lane, &op));
  }
  EXPECT_SAME("a norm", &y, &rstd, n->with_add ? &sum : NULL);
  for (int accumulate = 0; accumulate < 2; accumulate++) {
    back.dx_accumulate = accumulate;
    for (const struct side *s = sides; s < sides + 2; s++) {
      const struct device_model *model = &s->device->model;
      back.dy = AT(dy), back.x = at(s, n->layer ? &sum : &x), back.gamma = AT(gamma);
      back.mean = AT_IF(n->layer, mean), back.rstd = AT(rstd), back.dx = AT(dx);
      back.dgamma = AT(dgamma), back.dbeta = AT_IF(n->layer, dbeta);
      back.work = scratch(s->device, model->norm_workspace(model, n->layer, n->rows, n->groups, C));
      must(s->ops->norm_backward(s->lane, &back));
    }
    EXPECT_SAME("a norm's gradient", &dx, &dgamma, n->layer ? &dbeta : NULL);
  }
  forget();
}

/* Teams of warps take several of 3001 rows, halves of warps several of 6001. */
GPU_TEST(test_norm)
{
  static const struct norm_shape shapes[] = {
      {77, 1, 40, 40, false, false},       {300, 1, 768, 768, true, false},
      {1000, 1, 4096, 4096, true, false},  {64, 1, 101, 101, true, false},
      {200, 6, 128, 1024, false, false},   {33, 3, 40, 200, false, false},
      {9, 1, 10000, 10000, true, false},   {5, 1, 10001, 10001, true, false},
      {3, 1, 32768, 32768, false, false},  {700, 1, 3584, 3584, true, false},
      {3001, 1, 3584, 3584, false, false}, {6001, 6, 128, 768, false, false},
      {40, 1, 5120, 5120, true, false},    {70, 1, 500, 512, false, false},
      {77, 1, 40, 40, true, true},         {500, 1, 768, 768, true, true},
      {64, 1, 101, 101, true, true},       {9, 1, 6000, 6000, true, true},
      {2000, 1, 1536, 1536, true, true},   {7001, 1, 768, 768, true, true},
      {40, 1, 1024, 1024, true, true},     {300, 1, 4096, 4096, true, true},
      {150, 1, 20000, 20000, true, true},  {33, 1, 2001, 2001, true, true}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
    check_norm(&shapes[i]);
}

static void gradients_to(int64_t rows, int64_t C, const struct twin *dy, const struct twin *x,
                         const struct twin *gamma, const float *statistics, void *out)
{
  char *dx = out, *dgamma = dx + (size_t)(rows * C) * 4, *dbeta = dgamma + (size_t)C * 4;
  void *work = scratch(gpu, gpu->model.norm_workspace(&gpu->model, true, rows, 1, C));
  must(layernorm_backward(gpu_lane, rows, C, rows, dy->there, x->there, gamma->there, statistics,
                          statistics + rows, false, dx, false, dgamma, dbeta, work));
  must_cuda(cudaDeviceSynchronize());
}

/* The second time gives the same bits. */
GPU_TEST(test_norm_repeats)
{
  static const int64_t sizes[][2] = {{9000, 768}, {4000, 2048}, {50000, 64}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    const int64_t rows = sizes[i][0], C = sizes[i][1];
    const size_t bytes = (size_t)(rows * C + 2 * C) * 4;
    struct twin dy = input(rows * C), x = input(rows * C), gamma = input(C),
                statistics = sums(2 * rows, true);
    char *first = scratch(gpu, bytes), *second = scratch(gpu, bytes), *want = scratch(host, bytes),
         *got = scratch(host, bytes);
    gradients_to(rows, C, &dy, &x, &gamma, statistics.there, first);
    gradients_to(rows, C, &dy, &x, &gamma, statistics.there, second);
    must_cuda(cudaMemcpy(want, first, bytes, cudaMemcpyDeviceToHost));
    must_cuda(cudaMemcpy(got, second, bytes, cudaMemcpyDeviceToHost));
    assert_memory_equal(got, want, bytes);
    forget();
  }
}

/* --- element by element -------------------------------------------------- */

GPU_TEST(test_elementwise)
{
  for (int64_t n = 1000; n <= 1003; n++) {
    struct twin a = input(n), b = input(n), c = output(n);
    BOTH(add, n, AT(a), AT(b), AT(c));
    EXPECT_SAME("an addition", &c);
    forget();
  }
}

/* At an odd offset, so that no access is aligned, and on a boundary of 16 bytes. */
GPU_TEST(test_cast)
{
  for (int64_t n = 1; n < 3000; n = 2 * n + 1)
    for (int64_t skip = 0; skip < 8; skip += 7) {
      struct twin wide = twin_make(n + skip, DTYPE_F32, true),
                  narrow = twin_make(n + skip, DTYPE_BF16, false),
                  back = twin_make(n + skip, DTYPE_F32, false);
      const float *from = (const float *)wide.there + skip;
      uint16_t *half = (uint16_t *)narrow.there + skip;
      float *to = (float *)back.there + skip;
      must(gpu->ops->cast(gpu_lane, n, DTYPE_F32, from, DTYPE_BF16, half));
      must(gpu->ops->cast(gpu_lane, n, DTYPE_BF16, half, DTYPE_F32, to));
      must_cuda(cudaDeviceSynchronize());
      float *got = scratch(host, (size_t)n * 4), *want = scratch(host, (size_t)n * 4);
      uint16_t *bits = scratch(host, (size_t)n * 2);
      must(host->ops->cast(host_lane, n, DTYPE_F32, wide.here + skip, DTYPE_BF16, bits));
      must(host->ops->cast(host_lane, n, DTYPE_BF16, bits, DTYPE_F32, want));
      must_cuda(cudaMemcpy(got, to, (size_t)n * 4, cudaMemcpyDeviceToHost));
      assert_memory_equal(got, want, (size_t)n * 4);
      forget();
    }
  assert_int_equal(gpu->ops->cast(gpu_lane, 1, DTYPE_BF16, NULL, DTYPE_F16, NULL),
                   STATUS_UNSUPPORTED);
}

GPU_TEST(test_copy_rows)
{
  enum { ROWS = 37, BYTES = 52, FROM = 96, TO = 64 };
  unsigned char from[ROWS * FROM], to[ROWS * TO], want[ROWS * TO];
  void *there = scratch(gpu, sizeof from), *out = scratch(gpu, sizeof to);
  for (size_t i = 0; i < sizeof from; i++)
    from[i] = (unsigned char)(i * 7 + 1);
  memset(want, 0, sizeof want);
  must(host->ops->copy_rows(host_lane, ROWS, BYTES, want, TO, from, FROM));
  must(gpu->ops->copy(gpu_lane, there, from, sizeof from));
  must(gpu->ops->copy_rows(gpu_lane, ROWS, BYTES, out, TO, there, FROM));
  must(gpu->ops->copy(gpu_lane, to, out, sizeof to));
  must_cuda(cudaDeviceSynchronize());
  assert_memory_equal(to, want, sizeof want);
  assert_int_equal(gpu->ops->copy_rows(gpu_lane, ROWS, BYTES, out, BYTES - 1, there, FROM),
                   STATUS_INTERNAL);
}

GPU_TEST(test_swiglu)
{
  static const int64_t shapes[][2] = {{77, 40}, {50, 101}, {64, 1024}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    const int64_t rows = shapes[i][0], F = shapes[i][1];
    struct twin gu = input(rows * 2 * F), y = output(rows * F), dy = input(rows * F),
                dgu = output(rows * 2 * F), again = output(rows * F);
    BOTH(swiglu, rows, F, AT(gu), AT(y));
    BOTH(swiglu_backward, rows, F, AT(gu), AT(dy), AT(dgu), AT(again));
    EXPECT_SAME("SwiGLU", &y, &dgu, &again);
    forget();
  }
}

/* past -1: given positions. */
static void check_rope(int64_t B, int64_t T, int64_t past, int64_t heads, int64_t D, int64_t stride)
{
  float inv_freq[128];
  int32_t *place = scratch(host, (size_t)(B * T) * sizeof *place);
  for (int64_t r = 0; r < B * T; r++)
    place[r] = (int32_t)(r * 37 % 4000);
  const struct twin places = exact_of(place, (size_t)(B * T) * sizeof *place);
  for (int64_t i = 0; i < D / 2; i++)
    inv_freq[i] = (float)pow(10000, -2.0 * (double)i / (double)D);
  struct twin x = input(B * T * stride);
  struct rope op = {.rows = B * T, .T = T, .past = past < 0 ? 0 : past, .heads = heads, .D = D};
  op.stride = stride, op.inv_freq = inv_freq;
  for (int inverse = 0; inverse < 2; inverse++) {
    op.inverse = inverse;
    for (const struct side *s = sides; s < sides + 2; s++) {
      op.x = AT(x);
      op.position = AT_IF(past < 0, places);
      must(s->ops->rope(s->lane, &op));
    }
    EXPECT_SAME("rotary positions", &x);
    op.past += 100;
  }
  forget();
}

GPU_TEST(test_rope)
{
  check_rope(2, 77, 0, 3, 40, 3 * 40);
  check_rope(1, 512, 4000, 40, 128, 48 * 128);
  check_rope(2, 77, -1, 3, 40, 3 * 40);
}

GPU_TEST(test_bias_gradient)
{
  enum { WIDE = CUDA_WORKSPACE / 4 + 40 }; /* two passes */
  static const int64_t sizes[][3] = {{77, 40, 40},      {3000, 101, 120},    {513, 3072, 3072},
                                     {20001, 768, 768}, {3, WIDE, WIDE + 3}, {2, WIDE, WIDE}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (int accumulate = 0; accumulate < 2; accumulate++) {
      const int64_t rows = sizes[i][0], n = sizes[i][1], ld = sizes[i][2];
      struct twin d = input(rows * ld), db = sums(n, true);
      BOTH(bias_gradient, rows, n, rows, ld, AT(d), accumulate, AT(db));
      EXPECT_SAME("a bias gradient", &db);
      forget();
    }
}

/* --- attention ----------------------------------------------------------- */

/* One block's attention: arrays on both sides, and the operations on one of them. */
struct heads {
  struct attention op;
  struct attention_backward back;
  struct twin qkv, out, lse, dout, dqkv;
};

static void heads_bind(struct heads *heads, const struct side *s)
{
  struct attention *op = &heads->op;
  struct attention_backward *back = &heads->back;
  const int64_t element = (int64_t)dtype_size(s->device->model.compute);
  const int64_t k = op->heads * op->head_width * element,
                v = k + op->kv_heads * op->head_width * element;
  char *qkv = at(s, &heads->qkv), *dqkv = at(s, &heads->dqkv);
  op->q = qkv, op->k = qkv + k, op->v = qkv + v;
  op->out = at(s, &heads->out), op->lse = at(s, &heads->lse);
  back->dout = at(s, &heads->dout), back->dq = dqkv, back->dk = dqkv + k, back->dv = dqkv + v;
}

/* On the GPU. */
static struct heads heads_make(int64_t B, int64_t T, int64_t H, int64_t K, int64_t D)
{
  const int64_t stride = (H + 2 * K) * D;
  struct heads heads = {
      .op = {.batch = B, .tokens = T, .heads = H, .kv_heads = K, .head_width = D, .backward = true},
      .qkv = input(B * T * stride),
      .out = output(B * T * H * D),
      .lse = sums(B * H * T, false),
      .dout = input(B * T * H * D),
      .dqkv = output(B * T * stride)};
  heads.op.q_stride = heads.op.k_stride = heads.op.v_stride = stride;
  heads.op.out_stride = H * D;
  heads.back.dq_stride = heads.back.dk_stride = heads.back.dv_stride = stride;
  heads_bind(&heads, &sides[1]);
  return heads;
}

/* A query that sees one key takes its value as it is. */
static void expect_values(const struct heads *heads)
{
  const struct attention *op = &heads->op;
  const int64_t D = op->head_width, stride = op->v_stride;
  void *bits = download(&heads->out);
  const float *out = widened(bits, compute, heads->out.n),
              *v = heads->qkv.here + (op->heads + op->kv_heads) * D;
  for (int64_t i = 0; i < heads->out.n; i++) {
    const int64_t row = i / (op->heads * D), h = i / D % op->heads,
                  kv = h / (op->heads / op->kv_heads);
    if (out[i] != v[row * stride + kv * D + i % D])
      fail_msg("attention to one key, in %s, heads of %lld: element %lld is %g, not %g",
               dtype_name(compute), (long long)D, (long long)i, (double)out[i],
               (double)v[row * stride + kv * D + i % D]);
  }
}

/* Documents begin every `apart` tokens, one token later in each next sequence. 0: no documents.
 * More than T: a table of zeros. */
static void check_documents(int64_t B, int64_t T, int64_t H, int64_t K, int64_t D, int64_t window,
                            int64_t apart)
{
  struct heads heads = heads_make(B, T, H, K, D);
  int32_t *begin = scratch(host, (size_t)(B * T) * sizeof *begin);
  for (int64_t r = 0; apart > 0 && r < B * T; r++) {
    const int64_t b = r / T, t = r % T;
    begin[r] = (int32_t)(apart > T || t <= b ? 0 : (t - b) / apart * apart + b);
  }
  const struct twin first = exact_of(begin, (size_t)(B * T) * sizeof *begin);
  heads.op.window = window;
  for (const struct side *s = sides; s < sides + 2; s++) {
    const struct device_model *model = &s->device->model;
    heads_bind(&heads, s);
    heads.op.first = AT_IF(apart > 0, first);
    heads.op.work = scratch(s->device, model->attention_workspace(model, &heads.op, s->threads));
    must(s->ops->attention(s->lane, &heads.op));
    heads.back.forward = heads.op;
    must(s->ops->attention_backward(s->lane, &heads.back));
  }
  char what[128];
  snprintf(what, sizeof what,
           "attention B %lld T %lld H %lld K %lld D %lld window %lld, documents of %lld",
           (long long)B, (long long)T, (long long)H, (long long)K, (long long)D, (long long)window,
           (long long)apart);
  expect_same(what, (const struct twin *[]){&heads.out, &heads.lse, &heads.dqkv, NULL});
  if (T == 1 || window == 1 || (apart == 1 && B == 1))
    expect_values(&heads);
  forget();
}

static void check_attention(int64_t B, int64_t T, int64_t H, int64_t K, int64_t D, int64_t window)
{
  check_documents(B, T, H, K, D, window, 0);
}

/* Each test has a device of its own. */
static void without_hopper(void)
{
  gpu->model.gpu.hopper = false;
}

/* One block of queries or keys and many, tokens that fill no block, groups of heads, more items
 * than multiprocessors, up and down sets, windows and documents, tiles that see nothing. */
static void check_shapes(int64_t D)
{
  check_attention(5, 1, 12, 4, D, 0); /* many: the bound is on the norm of all scores */
  check_attention(2, 77, 3, 1, D, 0);
  check_attention(1, 128, 4, 4, D, 128);
  check_attention(3, 200, 6, 2, D, 0);
  check_attention(2, 1000, 6, 3, D, 0);
  check_attention(1, 2100, 2, 1, D, 0);
  check_attention(150, 64, 2, 1, D, 0);
  check_attention(20, 130, 12, 12, D, 0);
  check_attention(1, 300, 4, 4, D, 33);
  check_attention(2, 641, 4, 2, D, 300);
  check_attention(1, 200, 2, 1, D, 1);
  check_documents(2, 77, 3, 1, D, 0, 9);
  check_documents(3, 200, 6, 2, D, 0, 64);
  check_documents(2, 1000, 6, 3, D, 0, 300);
  check_documents(1, 2100, 2, 1, D, 0, 700);
  check_documents(1, 70, 2, 2, D, 0, 1);
  check_documents(2, 300, 4, 4, D, 33, 50);
  check_documents(2, 300, 4, 4, D, 0, 301);
  /* three key blocks, sets of 44 of 80 heads: groups on their way down */
  check_attention(40, 260, 4, 2, D, 0);
}

/* Widths that are no tile's, and one that only the plain kernels compute. */
GPU_TEST(test_attention)
{
  const int64_t widths[] = {8, 40, 64, 80, 96, 128, 200, 256, 33};
  without_hopper();
  for (size_t d = 0; d < sizeof widths / sizeof *widths; d++)
    check_shapes(widths[d]);
  gpu->model.gpu.shared = 99 << 10; /* as GPUs have that are not of a data centre */
  for (size_t d = 0; d < sizeof widths / sizeof *widths; d++) {
    check_attention(2, 641, 4, 2, widths[d], 0);
    check_documents(3, 200, 6, 2, widths[d], 33, 64);
  }
}

GPU_TEST(test_hopper_attention)
{
  const int64_t widths[] = {64, 80, 96, 128, 256};
  if (!gpu->model.gpu.hopper || compute != DTYPE_BF16)
    skip();
  for (size_t d = 0; d < sizeof widths / sizeof *widths; d++)
    check_shapes(widths[d]);
}

/* The GPU's answers are the model's. */
GPU_TEST(test_workspaces)
{
  const bool hopper = gpu->model.gpu.hopper;
  for (size_t i = 0; i < sizeof workspace_rows / sizeof *workspace_rows; i++) {
    const struct workspace_row *row = &workspace_rows[i];
    const struct attention op = workspace_shape(row);
    if (row->compute != compute || (row->hopper && !hopper))
      continue;
    gpu->model.gpu.hopper = row->hopper;
    const size_t got = gpu->model.attention_workspace(&gpu->model, &op, 1);
    if (got != row->bytes)
      fail_msg("row %zu, %s: %zu bytes, not %zu", i, row->text, got, row->bytes);
  }
}

GPU_TEST(test_kernels_of_attention)
{
  int32_t first;
  struct device_model model = gpu->model;
  const struct attention usual = {
      .batch = 2, .tokens = 300, .heads = 6, .kv_heads = 3, .head_width = 64};
  struct attention op;
  model.compute = DTYPE_BF16, model.gpu.hopper = true;
#define KERNELS(forward, backward, ...)                                                            \
  (op = usual, __VA_ARGS__,                                                                        \
   assert_int_equal(cuda_work_kernel(&model, &op, false), CUDA_WORK_##forward),                    \
   assert_int_equal(cuda_work_kernel(&model, &op, true), CUDA_WORK_##backward))
  KERNELS(HOPPER, HOPPER, op.head_width = 64);
  KERNELS(HOPPER, HOPPER, op.head_width = 128);
  KERNELS(HOPPER, AMPERE, op.head_width = 80);
  KERNELS(HOPPER, AMPERE, op.head_width = 96);
  KERNELS(HOPPER, AMPERE, op.head_width = 256);
  KERNELS(AMPERE, AMPERE, op.head_width = 40);
  KERNELS(PLAIN, PLAIN, op.head_width = 33);
  KERNELS(HOPPER, HOPPER, op.window = 299);
  KERNELS(HOPPER, HOPPER, op.first = &first);
  KERNELS(PLAIN, PLAIN, op.past = 1);
  KERNELS(PLAIN, PLAIN, op.kv_batch_stride = 1);
  KERNELS(HOPPER, HOPPER, op.batch = 65536 / 6);
  KERNELS(PLAIN, PLAIN, op.batch = 65536 / 6 + 1);
  KERNELS(HOPPER, HOPPER, op.tokens = (1 << 24) - 1);
  KERNELS(PLAIN, PLAIN, op.tokens = 1 << 24);
  /* more query blocks than an index counts */
  KERNELS(PLAIN, PLAIN, op.batch = 10000, op.tokens = 1 << 20);
  model.gpu.hopper = false;
  KERNELS(AMPERE, AMPERE, op.head_width = 64);
  model.gpu.shared = CUDA_WORK_WIDE - 1;
  KERNELS(AMPERE, AMPERE, op.head_width = 128);
  KERNELS(AMPERE, PLAIN, op.head_width = 136);
  model.compute = DTYPE_F32;
  KERNELS(PLAIN, PLAIN, op.head_width = 64);
#undef KERNELS
}

static size_t room_for(struct heads *heads, bool backward)
{
  heads->op.backward = backward;
  const size_t bytes = gpu->model.attention_workspace(&gpu->model, &heads->op, 1);
  heads->op.backward = true;
  return bytes;
}

/* Tables that change nothing: weights of 1, usual positions, one document. Oracle: no tables. */
GPU_TEST(test_trivial_tables)
{
  enum { B = 3, T = 77, R = B * T, C = 64, V = 101, MADE = 7 };
  int32_t token[R], place[R], zero[R] = {0};
  float one[R], inv_freq[C / 2];
  for (int r = 0; r < R; r++)
    token[r] = r * r % V, place[r] = r % T, one[r] = 1,
    inv_freq[r % (C / 2)] = 1.0f / (float)(1 + r);
  const struct twin tokens = exact_of(token, sizeof token), places = exact_of(place, sizeof place),
                    zeros = exact_of(zero, sizeof zero), ones = exact_of(one, sizeof one);
  struct twin x = input(R * C), wte = input(V * C), wpe = input(T * C), dwte = sums(V * C, true),
              dwpe = sums(T * C, true), logits = input(R * V), y = output(R * C);
  struct heads heads = heads_make(B, T, 2, 1, 32);
  double *loss = scratch(gpu, R * sizeof *loss);
  void *made[2][MADE];
  heads.op.work = scratch(gpu, room_for(&heads, true));
  for (int given = 0; given < 2; given++) {
    const struct embedding rows = {R, T, C, V, T, tokens.there, given ? places.there : NULL};
    const struct rope rope = {R,        T,     0,      1, C, C, given ? places.there : NULL,
                              inv_freq, false, x.there};
    const struct cross_entropy losses = {
        R, V, V, logits.there, tokens.there, given ? ones.there : NULL, 0.5f, true, loss};
    const struct twin *const all[MADE] = {&x, &y, &dwte, &dwpe, &logits, &heads.out, &heads.dqkv};
    for (int i = 0; i < MADE; i++)
      upload(all[i]);
    heads.op.first = given ? zeros.there : NULL;
    heads.back.forward = heads.op;
    must(gpu->ops->rope(gpu_lane, &rope));
    must(gpu->ops->embedding(gpu_lane, &rows, wte.there, wpe.there, y.there));
    must(gpu->ops->embedding_backward(gpu_lane, &rows, y.there, dwte.there, true, dwpe.there));
    must(gpu->ops->cross_entropy(gpu_lane, &losses));
    must(gpu->ops->attention(gpu_lane, &heads.op));
    must(gpu->ops->attention_backward(gpu_lane, &heads.back));
    for (int i = 0; i < MADE; i++) {
      made[given][i] = download(all[i]);
      if (given && memcmp(made[0][i], made[1][i], bytes_there(all[i])))
        fail_msg("result %d of %d is another with trivial tables", i, (int)MADE);
    }
  }
}

/* The gradient with `bytes` of workspace. Bytes after the workspace do not change. */
static void gradient_within(struct heads *heads, size_t bytes, unsigned char *out)
{
  enum { BEHIND = 4096 };
  unsigned char got[BEHIND], want[BEHIND];
  char *work = scratch(gpu, bytes + BEHIND);
  memset(want, 0xa5, BEHIND);
  must_cuda(cudaMemset(work + bytes, 0xa5, BEHIND));
  upload(&heads->dqkv);
  must_cuda(cudaDeviceSynchronize());
  heads->back.forward = heads->op;
  heads->back.forward.work = work;
  must(gpu->ops->attention_backward(gpu_lane, &heads->back));
  must_cuda(cudaDeviceSynchronize());
  must_cuda(cudaMemcpy(out, heads->dqkv.there, (size_t)heads->dqkv.n * dtype_size(compute),
                       cudaMemcpyDeviceToHost));
  must_cuda(cudaMemcpy(got, work + bytes, BEHIND, cudaMemcpyDeviceToHost));
  assert_memory_equal(got, want, BEHIND);
  drop(gpu, work);
}

/* Builds have kernels for Hopper, unless they were asked for others'. */
GPU_TEST(test_hopper_compiled)
{
  struct cudaDeviceProp properties;
  must_cuda(cudaGetDeviceProperties(&properties, cuda_device(gpu)->ordinal));
  assert_int_equal(gpu->model.gpu.hopper,
                   properties.major == 9 && strstr(SLUICE_NVCC_ARCH, "sm_90a") != NULL);
}

/* Results have the same bits run to run, and on a few multiprocessors, as where others' kernels
 * have taken the rest. The gradient's room is what it says, and grows with the tokens, not with
 * their square. */
static void check_bits(int64_t B, int64_t T, int64_t H, int64_t K, int64_t D)
{
  struct device_gpu *facts = &gpu->model.gpu;
  const int multiprocessors = facts->multiprocessors,
            some[] = {multiprocessors, 1, 7, multiprocessors - 1, multiprocessors};
  struct heads heads = heads_make(B, T, H, K, D);
  const size_t need = room_for(&heads, true), forward = room_for(&heads, false),
               bytes = (size_t)heads.dqkv.n * dtype_size(compute);
  unsigned char *want = scratch(host, bytes), *got = scratch(host, bytes);
  const int32_t *zeros = scratch(gpu, (size_t)(B * T) * sizeof *zeros);
  heads.op.work = scratch(gpu, forward);
  must(gpu->ops->attention(gpu_lane, &heads.op));
  gradient_within(&heads, need, want);
  for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
    facts->multiprocessors = some[i];
    heads.op.first = i % 2 ? zeros : NULL; /* documents that hide nothing */
    must(gpu->ops->attention(gpu_lane, &heads.op));
    gradient_within(&heads, need, got);
    if (memcmp(got, want, bytes))
      fail_msg("gradients of %lld tokens, heads of %lld, on %d multiprocessors: other bits",
               (long long)T, (long long)D, some[i]);
  }
  facts->multiprocessors = multiprocessors;
  heads.back.dq = (char *)heads.back.dq + 2;
  must_fail(gpu->ops->attention_backward(gpu_lane, &heads.back), STATUS_INTERNAL,
            "must be multiples of 16 bytes");
  forget();
}

GPU_TEST(test_bits_of_attention)
{
  if (compute != DTYPE_BF16)
    skip();
  for (int own = 0; own < 2; own++, without_hopper()) {
    check_bits(2, 1000, 6, 2, 128);
    check_bits(3, 1024, 12, 12, 64);
    check_bits(2, 1500, 6, 2, 64);
    check_bits(1, 4096, 8, 2, 128);
    check_bits(2, 700, 4, 2, 96);
    check_bits(1, 900, 4, 2, 256);
  }
  struct heads one = heads_make(1, 2048, 4, 2, 128), two = heads_make(1, 4096, 4, 2, 128);
  assert_true(room_for(&two, true) < 2 * room_for(&one, true) + 4096);
}

/* --- embedding, classifier, optimizer ------------------------------------ */

enum places { NO_POSITIONS, POSITIONS, GIVEN, USUAL }; /* USUAL: given, but those of POSITIONS */
static void check_embedding(int64_t B, int64_t T, int64_t C, int64_t V, enum places positions)
{
  const int64_t rows = B * T;
  int32_t *token = scratch(host, (size_t)rows * sizeof *token),
          *place = scratch(host, (size_t)rows * sizeof *place);
  for (int64_t r = 0; r < rows; r++) {
    token[r] = (int32_t)((r * r + 3 * r) % (r % 3 ? V : 5));
    place[r] = (int32_t)(positions == USUAL ? r % T : r * r % T);
  }
  const struct twin tokens = exact_of(token, (size_t)rows * sizeof *token),
                    places = exact_of(place, (size_t)rows * sizeof *place);
  struct twin wte = input(V * C), wpe = input(T * C), x = output(rows * C), dx = input(rows * C),
              dwte = sums(V * C, true), dwpe = sums(T * C, true);
#define OP &(struct embedding){rows, T, C, V, T, AT(tokens), AT_IF(positions >= GIVEN, places)}
  BOTH(embedding, OP, AT(wte), AT_IF(positions, wpe), AT(x));
  BOTH(embedding_backward, OP, AT(dx), AT(dwte), true, AT_IF(positions, dwpe));
#undef OP
  EXPECT_SAME("an embedding", &x, &dwte, &dwpe);
  forget();
}

GPU_TEST(test_embedding)
{
  check_embedding(2, 77, 40, 101, POSITIONS);
  check_embedding(3, 200, 768, 500, NO_POSITIONS);
  check_embedding(1, 64, 33, 50, POSITIONS);
  check_embedding(4, 512, 40, 7, POSITIONS); /* runs of equal tokens over many chunks */
  check_embedding(1, 1000, 1032, 6, NO_POSITIONS);
  check_embedding(2, 600001, 8, 50257, NO_POSITIONS); /* sorted in two passes */
  for (int usual = 0; usual < 2; usual++) {
    check_embedding(3, 77, 33, 50, GIVEN + usual);
    check_embedding(5, 300, 2056, 50, GIVEN + usual); /* more columns than a block has threads */
  }
}

/* The gradient of tokens that repeat, 3000 of 40: += to dwte, which begins with the same values. */
enum { REPEATED = 3000, FEW_WORDS = 40 };
static enum status repeated_gradient(int64_t C, size_t bytes, float *out)
{
  cudaError_t error = cudaSuccess;
  struct gpu_launch launch = cuda_launch(gpu_lane); /* which has a workspace */
  int32_t token[REPEATED];
  for (int r = 0; r < REPEATED; r++)
    token[r] = r * r % 77 % FEW_WORDS;
  draws = 1000;
  struct twin tokens = exact_of(token, sizeof token), dx = input(REPEATED * C),
              dwte = sums(FEW_WORDS * C, true);
  launch.error = &error;
  launch.bytes = bytes;
  const struct embedding op = {REPEATED, REPEATED, C, FEW_WORDS, .token = tokens.there};
  gpu_embedding_backward(&launch, &op, dx.there, dwte.there, false, NULL);
  memcpy(out, download(&dwte), bytes_there(&dwte));
  forget();
  return error == cudaErrorMemoryAllocation ? STATUS_MEMORY : cuda_check(error, "a gradient");
}

/* Any workspace gives the same bits, because only columns are cut, and so does a second time. Too
 * small a workspace is refused. */
GPU_TEST(test_embedding_repeats)
{
  static float want[FEW_WORDS * 1000], got[FEW_WORDS * 1000];
  assert_int_equal(repeated_gradient(1000, 1 << 10, got), STATUS_MEMORY);
  for (int wide = 0; wide < 2; wide++) {
    const int64_t C = wide ? 1000 : 256;
    must(repeated_gradient(C, wide ? 256 << 10 : CUDA_WORKSPACE, want));
    must(repeated_gradient(C, CUDA_WORKSPACE, got));
    assert_memory_equal(got, want, (size_t)(FEW_WORDS * C) * sizeof *got);
  }
}

static void expect_fault(const char *what)
{
  must_cuda(cudaDeviceSynchronize());
  must_fail(gpu->ops->lane_check(gpu_lane), STATUS_INPUT, what);
}

GPU_TEST(test_bad_token)
{
  const int32_t token[] = {3, 9, 10, 0};
  struct twin tokens = exact_of(token, sizeof token), wte = input(10 * 16), x = output(4 * 16),
              dwte = sums(10 * 16, true);
  struct embedding op = {2, 2, 16, 10, .token = tokens.there};
  must(gpu->ops->embedding(gpu_lane, &op, wte.there, NULL, x.there));
  must_cuda(cudaDeviceSynchronize());
  must(gpu->ops->lane_check(gpu_lane));
  op.rows = op.T = 4;
  must(gpu->ops->embedding(gpu_lane, &op, wte.there, NULL, x.there));
  must(gpu->ops->embedding_backward(gpu_lane, &op, x.there, dwte.there, false,
                                    NULL)); /* touches no memory of others */
  expect_fault("token 2 of the batch is 10, outside the vocabulary of 10");
}

GPU_TEST(test_bad_target)
{
  const int32_t target[] = {3, -1, -2};
  struct twin targets = exact_of(target, sizeof target), logits = input(3 * 40);
  double *loss = scratch(gpu, 3 * sizeof *loss);
  for (int rows = 2; rows <= 3; rows++) {
    must_cuda(cudaDeviceSynchronize());
    must(gpu->ops->lane_check(gpu_lane));
    must(gpu->ops->cross_entropy(
        gpu_lane,
        &(struct cross_entropy){rows, 40, 40, logits.there, targets.there, NULL, 1, false, loss}));
  }
  expect_fault("target 2 of the batch is -2, outside the vocabulary of 40");
}

static void check_classifier(int64_t rows, int64_t V, int64_t ld, bool weighted)
{
  int32_t *target = scratch(host, (size_t)rows * sizeof *target);
  float *weight = scratch(host, (size_t)rows * sizeof *weight);
  for (int64_t r = 0; r < rows; r++) {
    target[r] = r % 5 == 4 ? -1 : r % 7 == 0 ? (int32_t)(V - 1) : (int32_t)(r * 37 % V);
    weight[r] = (float)(r % 9) / 4;
  }
  const struct twin targets = exact_of(target, (size_t)rows * sizeof *target),
                    weights = exact_of(weight, (size_t)rows * sizeof *weight);
  struct twin logits = input(rows * ld);
  struct twin loss = exact_make(2 * rows, DTYPE_F32, false, false); /* rows doubles */
  const double *want = at(&sides[0], &loss);
  for (int gradient = 0; gradient < 2; gradient++) {
    for (int64_t r = 0; r < rows && gradient; r++)
      for (int64_t i = V; i < ld; i++)
        logits.here[r * ld + i] = NAN; /* must become 0 */
    upload(&logits);
    BOTH(cross_entropy,
         &(struct cross_entropy){rows, V, ld, AT(logits), AT(targets), AT_IF(weighted, weights),
                                 0.25f, gradient, AT(loss)});
    EXPECT_SAME("the classifier's gradient", &logits);
    double *got = download(&loss);
    for (int64_t r = 0; r < rows; r++)
      if (!(fabs(got[r] - want[r]) <= 1e-5 * (1 + fabs(want[r]))))
        fail_msg("loss of row %lld is %.9g, not %.9g", (long long)r, got[r], want[r]);
    drop(host, got);
  }
  forget();
}

GPU_TEST(test_classifier)
{
  check_classifier(77, 101, 101, true);
  check_classifier(4000, 101, 128, true); /* blocks take several rows */
  check_classifier(1000, 2003, 2003, false);
  check_classifier(300, 50257, 50304, false); /* fits in shared memory twice */
  check_classifier(40, 50257, 50257, false);
  check_classifier(33, 32000, 32000, false);
  check_classifier(140, 152064, 152064, true); /* does not fit */
  check_classifier(6, 128003, 128064, false);
  check_classifier(3, 300001, 300032, false);
}

static void expect_near(const char *what, const struct twin *out, int64_t n)
{
  const double *want = at(&sides[0], out);
  double *got = download(out);
  for (int64_t i = 0; i < n; i++)
    if (!(fabs(got[i] - want[i]) <= 1e-12 * fabs(want[i])))
      fail_msg("%s of pair %lld is %.17g, not %.17g", what, (long long)i, got[i], want[i]);
  drop(host, got);
}

/* The first pair has no margin, the last ones have large ones. */
GPU_TEST(test_preferences)
{
  enum { PAIRS = 5, T = 301 };
  struct exactsum score[2 * PAIRS] = {0};
  double reference[2 * PAIRS];
  for (int b = 0; b < 2 * PAIRS; b++) {
    exactsum_add(&score[b], 100 + (b < 2 ? 0 : b % 2 ? 3.7 * b * b * b : 30.1 * b * b));
    exactsum_normalize(&score[b]);
    reference[b] = -120 - 11.1 * (b / 2);
  }
  const struct twin scores = exact_of(score, sizeof score),
                    references = exact_of(reference, sizeof reference);
  struct twin weight = exact_make((int64_t)2 * PAIRS * T, DTYPE_F32, false, false),
              loss = exact_make(2 * PAIRS, DTYPE_F32, false, false),
              margin = exact_make(2 * PAIRS, DTYPE_F32, false, false),
              won = exact_make(2 * PAIRS, DTYPE_F32, false, false);
  BOTH(prefer, &(struct preference){PAIRS, T, 0.1, AT(scores), AT(references), AT(weight), AT(loss),
                                    AT(margin), AT(won)});
  expect_near("loss", &loss, PAIRS);
  expect_near("margin", &margin, PAIRS);
  expect_near("count", &won, PAIRS);
  const float *want = at(&sides[0], &weight);
  float *got = download(&weight);
  for (int64_t i = 0; i < 2 * PAIRS * T; i++)
    if (!(fabsf(got[i] - want[i]) <= 1e-6f * fabsf(want[i])))
      fail_msg("weight %lld is %.9g, not %.9g", (long long)i, (double)got[i], (double)want[i]);
  drop(host, got);
  forget();
}

/* clang-format off */
static const struct update ADAMW = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8,
    .momentum = 0.9, .grad_scale = 0.3f, .bias1 = 0.3, .bias2 = 0.2};
/* clang-format on */

/* Scale and finite come of an outcome, if there is one. If it is not finite, nothing changes. */
static void check_adamw(int64_t n, const struct outcome *outcome)
{
  struct twin master = sums(n, true), grad = sums(n, true), m = sums(n, true), v = sums(n, true),
              copy = output(n);
  struct twin given = exact_of(outcome ? outcome : &(struct outcome){0}, sizeof *outcome);
  struct update op = ADAMW;
  op.decay = 0.1;
  op.grad_scale = outcome ? NAN : 0.5f;
  for (int64_t i = 0; i < n; i++)
    v.here[i] *= v.here[i];
  upload(&v);
  for (const struct side *s = sides; s < sides + 2; s++) {
    op.copy = s->device->model.compute;
    op.outcome = AT_IF(outcome, given);
    must(s->ops->update(s->lane, n, &op, AT(master), AT(grad), (void *[]){AT(m), AT(v)}, AT(copy)));
  }
  EXPECT_SAME("AdamW", &master, &m, &v, &copy);
  if (outcome) {
    const struct outcome bad = {.loss_sum = 1, .grad_norm = 3, .scale = 1.0 / 3};
    copy_there(given.there, &bad, sizeof bad);
    must_cuda(cudaMemcpy(master.here, master.there, (size_t)n * 4, cudaMemcpyDeviceToHost));
    must(gpu->ops->update(gpu_lane, n, &op, master.there, grad.there, (void *[]){m.there, v.there},
                          copy.there));
    EXPECT_BITS("masters of a step that is not finite", &master);
  }
  forget();
}

GPU_TEST(test_adamw)
{
  check_adamw(1000, NULL);
  check_adamw(1001, NULL);
  check_adamw(1003,
              &(struct outcome){.loss_sum = 1, .grad_norm = 3, .scale = 1.0 / 3, .finite = 1});
}

/* Element `skip` of a twin on the side; NULL if it is not wanted. */
static void *later(const struct side *side, bool wanted, const struct twin *twin, int64_t skip)
{
  return wanted ? (char *)at(side, twin) + (size_t)skip * dtype_size(twin->type) : NULL;
}

/* Blocks begin as zeros. */
static struct twin states_make(int64_t n, enum dtype type, bool positive)
{
  static const char zeros[4096];
  const int64_t bytes = dtype_bytes(type, n);
  assert_true(type != DTYPE_BLOCK8 || bytes <= (int64_t)sizeof zeros);
  return type == DTYPE_BLOCK8 ? exact_of(zeros, (size_t)bytes)
                              : exact_make(n, type, true, positive);
}

/* Three steps, the last two with other random bits. `skip`: offset of the range in the arrays, in
 * elements. If it is no multiple of 4, nothing is aligned. */
static void update_as_the_host(struct update op, int64_t n, int64_t skip, bool copies)
{
  struct twin master = exact_make(n + skip, op.master, true, false),
              grad = exact_make(n + skip, op.grad, true, false),
              m = states_make(n + skip, op.states, false),
              v = states_make(n + skip, op.states, true),
              copy = exact_make(n + skip, op.copy, false, false);
  const int64_t states = op.states == DTYPE_BLOCK8 ? dtype_bytes(op.states, skip) : skip;
  for (int step = 0; step < 3; step++, op.seed += 77)
    BOTH(update, n, &op, later(s, true, &master, skip), later(s, true, &grad, skip),
         (void *[]){later(s, true, &m, states), later(s, true, &v, states)},
         later(s, copies, &copy, skip));
  char what[160];
  snprintf(what, sizeof what,
           "optimizer %d of %lld behind %lld, gradients %s, states %s, copy %s%s", (int)op.rule,
           (long long)n, (long long)skip, dtype_name(op.grad), dtype_name(op.states),
           copies ? dtype_name(op.copy) : "none", op.stochastic ? ", stochastic" : "");
  EXPECT_BITS(what, &m, &v, &master, &copy, &grad);
  forget();
}

/* Both devices do the same operations in the same order, and round each by itself: the same bits,
 * in every type, random bits included. */
GPU_TEST(test_update_types)
{
  static const enum dtype grads[] = {DTYPE_F32, DTYPE_BF16},
                          moments[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_BLOCK8},
                          copies[] = {DTYPE_F32, DTYPE_BF16};
  struct update op = ADAMW;
  op.decay = 0.1;
  op.seed = 11;
  for (op.rule = 0; optim_states(op.rule) > 0; op.rule++)
    for (int kind = 0; kind < 48; kind++) {
      const int64_t skip = kind % 3 == 1 ? 1 : 4 * (kind % 3);
      op.nesterov = kind % 5 < 2;
      op.grad = grads[kind % 2];
      op.states = moments[kind / 2 % 4];
      op.stochastic = kind / 8 % 2;
      op.copy = copies[kind / 16 % 2];
      op.first = 64 * kind;
      update_as_the_host(op, 1000 + kind % 4, skip * dtype_block(op.states), kind < 32);
    }
}

/* Without a master and a state, which are then zero: the copy is all that is written. */
GPU_TEST(test_update_of_nothing)
{
  enum { N = 1003 };
  struct update op = ADAMW;
  op.lr = -1;
  for (op.rule = 0; optim_states(op.rule) > 0; op.rule++)
    for (int keeps = 0; keeps < 2; keeps++) {
      struct twin grad = exact_make(N, op.grad, true, false),
                  copy = exact_make(N, op.copy, false, false),
                  m = exact_make(N, op.states, true, false);
      BOTH(update, N, &op, NULL, AT(grad), (void *[]){AT_IF(keeps, m), NULL}, AT(copy));
      EXPECT_BITS("an update without a master", &m, &copy, &grad);
      forget();
    }
}

/* Moments in fp16 (device/moments.h): from every finite code, by gradients from 1e-13 to 1e17,
 * those that a code cannot hold among them. Oracle: the host, bit for bit. */
GPU_TEST(test_adamw_fp16)
{
  enum { CODES = 1 << 16 };
  static uint16_t first[CODES], second[CODES];
  static float gradient[CODES];
  struct update op = ADAMW;
  op.grad_scale = 1, op.states = DTYPE_F16, op.seed = 3;
  rng_fill_normal(rng_key_make(draws++, "same"), 0, 0, CODES, 0, 1, gradient);
  for (int i = 0; i < CODES; i++) {
    first[i] = (i & 0x7c00) == 0x7c00 ? 0 : (uint16_t)i;
    second[i] = (uint16_t)((uint32_t)i * 40503 & 0x7fff); /* by an odd number: in another order */
    second[i] = second[i] < 0x7c00 ? second[i] : 0;
    gradient[i] = ldexpf(gradient[i], 6 * (i % 17) - 42);
  }
  for (int stochastic = 0; stochastic < 2; stochastic++) {
    struct twin master = exact_make(CODES, op.master, true, false),
                grad = exact_of(gradient, sizeof gradient), m = exact_of(first, sizeof first),
                v = exact_of(second, sizeof second);
    op.stochastic = stochastic;
    for (int step = 0; step < 3; step++, op.seed += 77)
      BOTH(update, CODES, &op, AT(master), AT(grad), (void *[]){AT(m), AT(v)}, NULL);
    EXPECT_BITS("AdamW with moments in fp16", &m, &v, &master, &grad);
    forget();
  }
}

/* Random bits belong to an element, wherever a call begins, also around number 2^32, where they get
 * another key. Oracle: the host, whole. */
GPU_TEST(test_adamw_split)
{
  enum { N = 1003, CUT = 402 };
  struct update op = ADAMW;
  op.grad_scale = 1, op.states = DTYPE_BF16, op.stochastic = true, op.seed = 5;
  op.first = (INT64_C(1) << 32) - 501;
  struct twin master = exact_make(N, op.master, true, false),
              grad = exact_make(N, op.grad, true, false), m = exact_make(N, op.states, true, false),
              v = exact_make(N, op.states, true, true);
  must(host->ops->update(host_lane, N, &op, master.here, grad.here, (void *[]){m.here, v.here},
                         NULL));
  for (int64_t first = 0, n = CUT; first < N; first += n, op.first += n, n = N - CUT)
    must(gpu->ops->update(
        gpu_lane, n, &op, later(&sides[1], true, &master, first),
        later(&sides[1], true, &grad, first),
        (void *[]){later(&sides[1], true, &m, first), later(&sides[1], true, &v, first)}, NULL));
  EXPECT_BITS("AdamW in two calls", &master, &m, &v, &grad);
}

/* Muon's iterations. Oracle: the host in fp32. In bf16 a rounding of 2^-9 grows with the slope
 * of the polynomial at the smallest singular values, a quarter of the largest. */
GPU_TEST(test_orthogonalize)
{
  static const int64_t shapes[][2] = {{64, 192}, {192, 64}, {33, 130}, {130, 33}, {1, 8}};
  const struct optim_matrix *muon = optim_ops(OPTIM_muon)->matrix;
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    const int64_t rows = shapes[i][0], cols = shapes[i][1];
    struct twin in = input(rows * cols), out = output(rows * cols);
    for (const struct side *s = sides; s < sides + 2; s++) {
      const enum dtype type = s->device->model.compute;
      void *work = scratch(s->device, muon->workspace(type, rows, cols));
      must(muon->transform(s->lane, type, rows, cols, AT(in), AT(out), work));
    }
    expect_within("an orthogonal matrix", &out, compute == DTYPE_F32 ? 1e-4 : 0.05);
    forget();
  }
}

GPU_TEST(test_adamw_refusals)
{
  const struct update good = {.copy = compute};
  const struct {
    struct update op;
    const char *says;
  } bad[] = {{{.master = DTYPE_BF16}, "masters of fp32, not of bf16"},
             {{.grad = DTYPE_F16}, "gradients of fp32 or bf16, not of fp16"},
             {{.states = DTYPE_F8_E4M3}, "states in fp32, bf16, fp16 or block8, not in fp8_e4m3"},
             {{.copy = DTYPE_F16}, "working copies in fp32 or bf16, not in fp16"}};
  int nothing = 0;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    must_fail(
        gpu->ops->update(gpu_lane, 0, &bad[i].op, NULL, NULL, (void *[]){NULL, NULL}, &nothing),
        STATUS_UNSUPPORTED, bad[i].says);
  }
  must(gpu->ops->update(gpu_lane, 0, &bad[3].op, NULL, NULL, (void *[]){NULL, NULL},
                        NULL)); /* without a copy its type is not asked for */
  must(gpu->ops->update(gpu_lane, 0, &good, NULL, NULL, (void *[]){NULL, NULL}, NULL));
}

/* A twin's elements on the host are fp32, rounded to its type. */
static void sum_parts_as_the_host(int parts, int64_t n, enum dtype type)
{
  struct twin base = twin_make(n * parts, type, true), dst = sums(n, true);
  const bool accumulate = parts % 2 == 0;
  BOTH(sum_parts, n, parts, s->device == gpu ? type : DTYPE_F32, AT(base), n, accumulate, AT(dst));
  EXPECT_BITS("a sum over parts", &dst);
  forget();
}

/* The tree over ranks must agree bit for bit. */
GPU_TEST(test_sum_parts)
{
  static const int counts[] = {1,  2,  3,  4,   5,    6,    7,    8,    9,    15,
                               16, 23, 37, 127, 1023, 1024, 1031, 4096, 4101, 65539};
  for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
    for (int odd = 0; odd < 2; odd++)
      for (int half = 0; half < 2; half++)
        sum_parts_as_the_host(counts[c], (counts[c] < 1000 ? 4096 : 64) + odd,
                              half ? DTYPE_BF16 : DTYPE_F32);
  assert_int_equal(gpu->ops->sum_parts(gpu_lane, 1, 0, DTYPE_F32, NULL, 1, false, NULL),
                   STATUS_INTERNAL);
  assert_int_equal(gpu->ops->sum_parts(gpu_lane, 1, 2, DTYPE_F64, NULL, 1, false, NULL),
                   STATUS_UNSUPPORTED);
  assert_int_equal(gpu->ops->subtract(gpu_lane, 1, DTYPE_F64, NULL, NULL), STATUS_UNSUPPORTED);
}

/* Messages of both devices, the sums of them and their losses are the same bits. */
static void codec_as_the_host(const char *name, int64_t block, int parts, int64_t n)
{
  const bool plain = !strcmp(name, "none") || !strcmp(name, "bf16") || !strcmp(name, "fp16");
  const struct codec_settings set = {.block = block};
  struct codec codec;
  must(codec_make(name, &set, false, &codec));
  const size_t work = (size_t)codec_work(&codec, n, parts);
  const int64_t bytes = codec.ops->bytes(&codec, n);
  struct twin x = sums(n * parts, true), messages = sums((parts * bytes + 3) / 4, false),
              out = sums(n, true), largest = sums(1, false), each[4];
  struct codec_pass passes[2];
  for (int i = 0; i < 4; i++)
    each[i] = sums(n * parts, true);
  BOTH(max_magnitude, n * parts, AT(x), AT(largest));
  for (const struct side *s = sides; s < sides + 2; s++) {
    struct codec_pass *pass = &passes[s - sides];
    *pass = (struct codec_pass){s->lane, n, parts, 0, scratch(s->device, work), AT(largest)};
    pass->seed = draws;
    must(codec.ops->encode(&codec, pass, AT(x), AT(messages)));
  }
  EXPECT_BITS(name, &largest, &messages);
  for (const struct side *s = sides; s < sides + 2; s++) {
    const struct codec_pass *pass = &passes[s - sides];
    must(codec.ops->decode(&codec, pass, AT(messages), bytes, parts % 2 ? QUANT_SET : QUANT_ADD,
                           DTYPE_F32, AT(out)));
    must(codec.ops->decode(&codec, pass, AT(messages), bytes, QUANT_SUBTRACT, DTYPE_F32, AT(x)));
    for (int i = 0; !(codec.ops->traits & CODEC_FOR_SUMS) && i < (plain ? 2 : 4); i++)
      for (int adds = 0; adds <= i % 2; adds++)
        must(codec.ops->decode(&codec, pass, AT(messages), bytes,
                               adds ? QUANT_ADD_EACH : QUANT_SET_EACH,
                               i < 2 ? DTYPE_F32 : DTYPE_BF16, AT(each[i])));
  }
  EXPECT_BITS(name, &out, &x, &each[0], &each[1], &each[2], &each[3]);
  forget();
}

/* A block that a warp reads twice, because it does not keep its elements in registers. */
static int64_t large_block(const char *name)
{
  struct codec codec;
  must(codec_make(name, NULL, false, &codec));
  const int64_t most = codec.ops->most.block;
  return most < 4096 ? most : 4096;
}

GPU_TEST(test_codecs)
{
  static const struct {
    const char *name;
    bool blocks;
  } codecs[] = {
#define CODEC_NAME(name, kind, title, source) {#name, false},
#define QUANTISER_NAME(name, kind, title, source) {#name, true},
      CODEC_PLAIN(CODEC_NAME) CODEC_QUANTISERS(QUANTISER_NAME) CODEC_SPARSIFIERS(QUANTISER_NAME)
          CODEC_LOSSLESS_ROWS(CODEC_NAME) CODEC_SKETCHES(CODEC_NAME){"topk+bf16", true},
      {"topk+int8", true},
      {"randomk+qsgd", true},
      CODEC_LOWRANK(QUANTISER_NAME){"powersgd+bf16", true},
      {"gradiveq+int8", true},
#undef CODEC_NAME
#undef QUANTISER_NAME
  };
  static const int64_t lengths[] = {1, 3, 17, 1025, 65537};
  static const int parts[] = {1, 2, 3, 5, 17};
  for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++)
    for (int l = 0; l < 5; l++)
      for (int p = 0; p < 5; p++) {
        codec_as_the_host(codecs[c].name, 0, parts[p], lengths[l]);
        if (codecs[c].blocks && strcmp(codecs[c].name, "int8_global") != 0)
          codec_as_the_host(codecs[c].name, large_block(codecs[c].name), parts[p], lengths[l]);
      }
}

/* Two vectors of n elements, of which one or two are not finite. Their blocks are sent as zeros,
 * the others are not. */
static void bad_blocks_as_the_host(const char *name, int64_t block, int64_t n, int64_t first,
                                   float bad)
{
  enum { PARTS = 2 };
  const struct codec_settings set = {.block = block};
  struct codec codec;
  must(codec_make(name, &set, false, &codec));
  const int64_t bytes = PARTS * codec.ops->bytes(&codec, n);
  struct twin x = sums(PARTS * n, true), message = sums(bytes / 4, false), largest = sums(1, false);
  x.here[first] = x.here[n - 1] = bad;
  largest.here[0] = fabsf(bad);
  upload(&x);
  upload(&largest);
  for (const struct side *s = sides; s < sides + 2; s++) {
    const struct codec_pass pass = {s->lane, n, PARTS, draws, NULL, AT(largest)};
    must(codec.ops->encode(&codec, &pass, AT(x), AT(message)));
  }
  EXPECT_BITS(name, &message);
  forget();
}

/* The last warp of a vector has all its blocks, or fewer. Each block size of rules whose frames may
 * have several blocks has a kernel of its own. */
GPU_TEST(test_blocks)
{
  static const float bad[] = {INFINITY, -INFINITY, NAN, -NAN};
  static const int64_t lengths[] = {257, 769, 3000};
#define QUANTISER_NAME(name, kind, title, source) #name,
  static const char *const names[] = {CODEC_QUANTISERS(QUANTISER_NAME)};
#undef QUANTISER_NAME
  for (size_t c = 0; c < sizeof names / sizeof *names; c++)
    for (size_t b = 0; b < sizeof bad / sizeof *bad; b++)
      for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
        for (int64_t at = 0; at < lengths[l]; at += 300) {
          bad_blocks_as_the_host(names[c], 0, lengths[l], at, bad[b]);
          if (strcmp(names[c], "int8_global") != 0)
            bad_blocks_as_the_host(names[c], large_block(names[c]), lengths[l], at, bad[b]);
        }
  for (int64_t block = 32; block <= 256; block *= 2)
    for (int64_t n = 1; n < 10000; n = 3 * n + 5) {
      codec_as_the_host("levels7", block, 2, n);
      codec_as_the_host("levels9", block, 3, n);
      codec_as_the_host("int4", block, 5, n);
    }
}

/* Zeros of both signs, subnormals, many ties, infinities and NaN of several bits, by turns. */
static void fill_extremes(int kind, int64_t n, float *x)
{
  static const uint32_t words[][3] = {{0, 0x80000000, 0x80000001},
                                      {0x3f800000, 0xbf800000, 0x3f800000},
                                      {0x7f800000, 0xff800000, 0x3f800000},
                                      {0x7fc00000, 0xffc00001, 0x7f800000}};
  for (int64_t i = 0; kind < 4 && i < n; i++)
    if (i % 7 != kind || kind == 1)
      memcpy(&x[i], &words[kind][i % 3], sizeof x[i]);
}

/* Slots of both devices are the same bits, and so is what they give, if it is not NaN. With marks
 * messages have a bit per element instead of indices. */
static void selection_as_the_host(const struct selection *op, int64_t n, int kind, bool marks)
{
  enum { PARTS = 3 };
  const int64_t each = select_blocks(op, n) * op->keep,
                stride = marks ? 4 * (each + select_blocks(op, n) * select_words(op))
                               : 6 * each + 2 * (each % 2);
  struct twin x = sums(PARTS * n, true), slots = sums(PARTS * stride / 4, false),
              out = sums(PARTS * n, true);
  fill_extremes(kind, PARTS * n, x.here);
  upload(&x);
  struct slots placed[2];
  for (const struct side *s = sides; s < sides + 2; s++) {
    float *values = AT(slots);
    placed[s - sides] = (struct slots){marks ? NULL : (uint16_t *)(values + each), values, stride,
                                       stride, marks ? (uint32_t *)(values + each) : NULL};
  }
  BOTH(select, op, n, PARTS, AT(x), &placed[s - sides]);
  EXPECT_BITS("a selection", &slots);
  for (int mode = SCATTER_SET; mode <= SCATTER_ADD_EACH && kind != 2 && kind != 3; mode++) {
    BOTH(scatter, op, n, PARTS, &placed[s - sides], (enum scatter_mode)mode, DTYPE_F32, AT(out));
    EXPECT_BITS("a sparse sum", &out);
  }
  forget();
}

GPU_TEST(test_select)
{
  static const struct selection rules[] = {
      {.rule = SELECT_topk, .block = 256, .keep = 3},
      {.rule = SELECT_topk, .block = 4096, .keep = 41},
      {.rule = SELECT_topk, .block = 4096, .keep = 4096},
      {.rule = SELECT_topk, .block = SELECT_MOST_BLOCK, .keep = 999},
      {.rule = SELECT_threshold, .block = 512, .keep = 40, .threshold = 1},
      {.rule = SELECT_randomk, .block = 256, .keep = 256, .scale = 1, .seed = 1},
      {.rule = SELECT_randomk, .block = 4096, .keep = 41, .scale = 99.9f, .seed = 2}};
  static const int64_t lengths[] = {1, 31, 256, 4097, 100003};
  for (size_t r = 0; r < sizeof rules / sizeof *rules; r++)
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
      for (int kind = 0; kind < 5; kind++)
        for (int marks = 0; marks < 2; marks++)
          if (rules[r].rule != SELECT_randomk || (kind != 2 && kind != 3 && !marks))
            selection_as_the_host(&rules[r], lengths[l], kind, marks);
  const struct selection bad = {.block = 300, .keep = 1};
  const struct slots none = {NULL, NULL, 0, 0, NULL};
  assert_int_equal(gpu->ops->select(gpu_lane, &bad, 0, 1, NULL, &none), STATUS_INTERNAL);
  assert_int_equal(gpu->ops->scatter(gpu_lane, &bad, 0, 1, &none, SCATTER_SET, DTYPE_F32, NULL),
                   STATUS_INTERNAL);
  must(gpu->ops->select(gpu_lane, &rules[0], 0, 1, NULL, &none));
  must(gpu->ops->scatter(gpu_lane, &rules[0], 0, 1, &none, SCATTER_SET, DTYPE_F32, NULL));
}

/* Messages of `parts` vectors in nf4 that together have three parameters, with blocks of zeros and
 * of subnormal numbers. `bad`: one element is not finite. */
static void nf4_as_the_host(int64_t n, int parts, enum dtype type, float bad)
{
  const int64_t bytes = nf4_bytes(n, 3), all = parts * nf4_blocks(n), third = all / 3;
  struct twin x = sums(parts * n, true), messages = sums(parts * bytes / 4, false),
              out = sums(parts * n, false);
  const struct nf4_param param[] = {{0, third > 0 ? third : all, 0},
                                    {third, third - third / 2, nf4_scales(all)},
                                    {2 * third, all - 2 * third, 2 * nf4_scales(all)}};
  const bool exact[3] = {false};
  struct nf4_cut cut = {third > 0 ? 3 : 1, param, 0, all, NULL};
  float *magnitude = scratch(host, (size_t)all * 4),
        *scales = scratch(host, (size_t)(3 * nf4_scales(all)) * 4);
  struct exactsum sum[3];
  for (int64_t i = 0; i < parts * n; i++)
    x.here[i] *= i / 64 % 7 == 1   ? 0
                 : i / 64 % 7 == 2 ? 1e-39f
                                   : ldexpf(1, (int)(i / 64 % 50) - 25);
  if (bad != 0)
    x.here[parts * n - 1] = bad;
  for (int i = 0; i < parts; i++)
    must(host->ops->nf4_code(host_lane, n, x.here + i * n, (char *)messages.here + i * bytes,
                             magnitude + i * nf4_blocks(n)));
  scales[0] = scales[nf4_scales(all)] = scales[2 * nf4_scales(all)] = NAN;
  cut.magnitude = magnitude;
  nf4_sum(&cut, sum);
  nf4_scale(&cut, sum, scales);
  cut.blocks = nf4_blocks(n);
  for (int i = 0; i < parts; i++, cut.begin += cut.blocks, cut.magnitude += cut.blocks)
    nf4_complete(&cut, scales, exact, n, (char *)messages.here + i * bytes);
  upload(&messages);
  BOTH(nf4_decode, n, parts, AT(messages), bytes, type, AT(out));
  if (bad == 0)
    EXPECT_BITS("vectors in nf4", &out);
  drop(host, magnitude);
  drop(host, scales);
  forget();
}

GPU_TEST(test_nf4)
{
  static const int64_t lengths[] = {1, 8, 63, 64, 65, 256, 1025, 16449, 1 << 20};
  for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
    for (int half = 0; half < 2; half++) {
      nf4_as_the_host(lengths[l], 1, half ? DTYPE_BF16 : DTYPE_F32, 0);
      if (lengths[l] % 256 == 0)
        nf4_as_the_host(lengths[l], 5, half ? DTYPE_BF16 : DTYPE_F32, 0);
      nf4_as_the_host(lengths[l], 1, DTYPE_F32, half ? NAN : INFINITY);
    }
  assert_int_equal(gpu->ops->nf4_code(gpu_lane, 9, NULL, NULL, NULL), STATUS_UNSUPPORTED);
  assert_int_equal(gpu->ops->nf4_decode(gpu_lane, 9, 2, NULL, 128, DTYPE_F32, NULL),
                   STATUS_INTERNAL);
  assert_int_equal(gpu->ops->nf4_decode(gpu_lane, 8, 1, NULL, 128, DTYPE_F16, NULL),
                   STATUS_UNSUPPORTED);
}

/* NaN has other bits in bf16 on the host, so it becomes infinity. */
static void drop_nan(int64_t n, float *x)
{
  for (int64_t i = 0; i < n; i++)
    x[i] = isnan(x[i]) ? INFINITY : x[i];
}

/* Blocks of every form, and of elements that are not finite. A damaged block is NaN on the GPU. */
static void exponents_as_the_host(enum dtype type)
{
  enum { PARTS = 3 };
  static const int64_t lengths[] = {1, 33, 1024, 3001, 2000003};
  for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
    for (int kind = 0; kind < 6; kind++) {
      const int64_t n = lengths[l], bytes = exponent_bytes(n, (int)dtype_size(type));
      struct twin x = sums(PARTS * n, true), messages = sums(PARTS * bytes / 4, false),
                  out = sums(PARTS * n, true);
      fill_extremes(kind, PARTS * n, x.here);
      for (int64_t i = 0; kind == 5 && i < PARTS * n; i++) {
        const uint32_t bits = i / 2048 % 2 ? 0 : (uint32_t)i * 2654435761u;
        memcpy(x.here + i, &bits, sizeof bits);
      }
      if (type == DTYPE_BF16)
        drop_nan(PARTS * n, x.here);
      upload(&x);
      BOTH(pack_exponents, type, n, PARTS, AT(x), AT(messages));
      must(gpu->ops->unpack_exponents(gpu_lane, type, n, PARTS, messages.there, bytes,
                                      QUANT_SET_EACH, DTYPE_F32, out.there));
      for (int64_t i = 0; i < PARTS * n; i++)
        out.here[i] = type == DTYPE_BF16 ? f32_from_bf16(bf16_from_f32(x.here[i])) : x.here[i];
      EXPECT_BITS("short exponents", &messages, &out);
      BOTH(unpack_exponents, type, n, PARTS, AT(messages), bytes, QUANT_SET_EACH, DTYPE_BF16,
           AT(out));
      if (type == DTYPE_BF16 || kind < 3) /* no NaN */
        EXPECT_BITS("short exponents in bf16", &out);
      forget();
    }
}

GPU_TEST(test_exponents)
{
  exponents_as_the_host(DTYPE_F32);
  exponents_as_the_host(DTYPE_BF16);
}

/* As the host's test, any damage: nothing outside is touched, and a bad block is NaN. */
GPU_TEST(test_damaged_exponents)
{
  enum { N = 3000, BLOCKS = 3 };
  struct twin x = sums(N, true), message = sums(exponent_bytes(N, 4) / 4, false),
              out = sums(N, true);
  must(host->ops->pack_exponents(host_lane, DTYPE_F32, N, 1, x.here, message.here));
  struct exponent_header *header = (void *)message.here;
  struct exponent_entry *entry = (struct exponent_entry *)(header + 1);
  const struct exponent_entry good = entry[1];
  const struct exponent_entry bad[] = {{good.form + (1u << 16), good.at},
                                       {good.form + 1, good.at},
                                       {good.form | 0xff, good.at},
                                       {good.form, UINT32_MAX},
                                       {good.form, 0}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    entry[1] = bad[i];
    upload(&message);
    must(gpu->ops->unpack_exponents(gpu_lane, DTYPE_F32, N, 1, message.there, exponent_bytes(N, 4),
                                    QUANT_SET_EACH, DTYPE_F32, out.there));
    memcpy(out.here, x.here, N * sizeof(float));
    for (int64_t e = EXPONENT_BLOCK; e < 2 * EXPONENT_BLOCK; e++) {
      const uint32_t nan = 0x7fc00000;
      memcpy(out.here + e, &nan, sizeof nan);
    }
    EXPECT_BITS("a damaged block", &out);
  }
  forget();
}

/* Factors of both devices are the same bits, and so are sums of their products. */
static void factors_as_the_host(const struct lowrank *op, int64_t n, int kind)
{
  enum { PARTS = 3 };
  const int64_t basis = op->rank * op->block, each = basis + lowrank_rows(op, n) * op->rank,
                stride = 4 * each;
  const size_t work = (size_t)lowrank_work(op, n, PARTS) * 4;
  struct twin x = sums(PARTS * n, true), numbers = sums(PARTS * each, false),
              out = sums(PARTS * n, true);
  struct factors factors[2];
  for (const struct side *s = sides; s < sides + 2; s++)
    factors[s - sides] = (struct factors){AT(numbers), (float *)AT(numbers) + basis, stride};
  fill_extremes(kind, PARTS * n, x.here);
  upload(&x);
  BOTH(factorise, op, n, PARTS, AT(x), &factors[s - sides], scratch(s->device, work));
  EXPECT_BITS("factors", &numbers);
  for (int mode = QUANT_SET; mode <= QUANT_SUBTRACT; mode++) {
    BOTH(expand, op, n, PARTS, &factors[s - sides], (enum quant_mode)mode, AT(out));
    EXPECT_BITS("a sum of products", &out);
  }
  forget();
}

/* One bad element makes all that the message of a vector stands for not finite. */
static void one_bad_element_arrives(float bad)
{
  enum { N = 5000 };
  const struct lowrank op = {64, 3, 2, 1};
  const int64_t basis = op.rank * op.block;
  struct twin x = sums(N, true), out = sums(N, false),
              numbers = sums(basis + lowrank_rows(&op, N) * op.rank, false);
  const struct factors there = {numbers.there, (float *)numbers.there + basis, 0};
  float *work = scratch(gpu, (size_t)lowrank_work(&op, N, 1) * 4);
  x.here[4321] = bad;
  upload(&x);
  must(gpu->ops->factorise(gpu_lane, &op, N, 1, x.there, &there, work));
  must(gpu->ops->expand(gpu_lane, &op, N, 1, &there, QUANT_SET, out.there));
  must_cuda(cudaDeviceSynchronize());
  must_cuda(cudaMemcpy(out.here, out.there, N * 4, cudaMemcpyDeviceToHost));
  for (int i = 0; i < N; i++)
    assert_false(isfinite(out.here[i]));
  forget();
}

/* Ranks of one and of several passes, bands of 64 and of more rows, zeros, subnormals, dependent
 * rows. */
GPU_TEST(test_lowrank)
{
  static const struct lowrank shapes[] = {{32, 1, 1, 1},   {32, 32, 2, 2}, {96, 3, 2, 3},
                                          {128, 16, 3, 4}, {768, 5, 2, 5}, {2048, 9, 1, 6}};
  static const int64_t lengths[] = {1, 31, 4097, 100003, 300007};
  static const int kinds[] = {0, 1, 4};
  for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
      for (int k = 0; k < 3; k++)
        factors_as_the_host(&shapes[s], lengths[l], kinds[k]);
  one_bad_element_arrives(INFINITY);
  one_bad_element_arrives(NAN);
  const struct lowrank bad = {48, 1, 1, 0};
  const struct factors none = {NULL, NULL, 0};
  assert_int_equal(gpu->ops->factorise(gpu_lane, &bad, 0, 1, NULL, &none, NULL), STATUS_INTERNAL);
  assert_int_equal(gpu->ops->expand(gpu_lane, &bad, 0, 1, &none, QUANT_SET, NULL), STATUS_INTERNAL);
  must(gpu->ops->factorise(gpu_lane, &shapes[0], 0, 1, NULL, &none, NULL));
  must(gpu->ops->expand(gpu_lane, &shapes[0], 0, 1, &none, QUANT_SET, NULL));
}

static void expect_normalized(const struct exactsum *sum)
{
  for (int d = 0; d + 1 < EXACTSUM_DIGITS; d++)
    if (sum->digit[d] < 0 || sum->digit[d] >> 32)
      fail_msg("digit %d of a sum is %lld", d, (long long)sum->digit[d]);
}

GPU_TEST(test_sum_squares)
{
  struct exactsum zero;
  exactsum_zero(&zero);
  for (int64_t skip = 0; skip < 2; skip++) {
    struct twin x = sums(100000 + skip, true), sum = exact_of(&zero, sizeof zero);
    for (int time = 0; time < 3; time++)
      BOTH(sum_squares, x.n - skip, (float *)AT(x) + skip, AT(sum));
    expect_normalized(download(&sum));
    EXPECT_BITS("terms of one order, added exactly", &sum);
    forget();
  }
}

/* Terms of either sign and of all sizes, subnormals and zeros among them. */
static void fill_terms(int64_t n, double *term)
{
  uint32_t bits[4];
  for (int64_t i = 0; i < n; i++) {
    rng_block(rng_key_make(draws, "terms"), 0, (uint64_t)i, bits);
    uint64_t word = (uint64_t)bits[0] << 32 | bits[1];
    if ((word >> 52 & 0x7ff) == 0x7ff || i % 11 == 0)
      word &= UINT64_C(0x800fffffffffffff);
    memcpy(&term[i], &word, sizeof word);
  }
  draws++;
}

GPU_TEST(test_sum_exact)
{
  static const int64_t sizes[] = {0, 1, 31, 1000, 70001};
  double *term = scratch(host, 70001 * sizeof *term);
  struct exactsum start;
  exactsum_zero(&start);
  start.digit[3] = -5; /* carries that n = 0 must pass on, too */
  struct twin sum = exact_of(&start, sizeof start);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    fill_terms(sizes[i], term);
    if (sizes[i] == 1000)
      term[500] = INFINITY, term[501] = -INFINITY, term[502] = NAN;
    struct twin terms = exact_of(term, (size_t)sizes[i] * sizeof *term);
    BOTH(sum_exact, sizes[i], AT(terms), AT(sum));
    EXPECT_BITS("an exact sum", &sum);
  }
}

/* Two sums, of n and of m terms, made on the host. */
static struct twin exact_sums(const double *first, int64_t n, const double *second, int64_t m)
{
  struct exactsum sum[2];
  exactsum_zero(&sum[0]);
  exactsum_zero(&sum[1]);
  must(host->ops->sum_exact(host_lane, n, first, &sum[0]));
  must(host->ops->sum_exact(host_lane, m, second, &sum[1]));
  return exact_of(sum, sizeof sum);
}

/* Oracle: the host's merge. The sum that is added stays. */
GPU_TEST(test_merge_exact)
{
  enum { TERMS = 1000 };
  double *term = scratch(host, 2 * TERMS * sizeof *term);
  fill_terms(2 * TERMS, term);
  for (int not_finite = 0; not_finite < 2; not_finite++) {
    if (not_finite)
      term[7] = INFINITY, term[TERMS + 7] = NAN;
    struct twin sum = exact_sums(term, TERMS, term + TERMS, TERMS);
    BOTH(merge_exact, (struct exactsum *)AT(sum) + 1, AT(sum));
    EXPECT_BITS("a merge of exact sums", &sum);
  }
}

static void check_conclusion(const double *loss, int losses, const double *square, int squares,
                             double clip)
{
  struct twin sum = exact_sums(loss, losses, square, squares),
              out = exact_of(&(struct outcome){0}, sizeof(struct outcome));
  BOTH(conclude, AT(sum), (struct exactsum *)AT(sum) + 1, clip, AT(out));
  struct outcome want, got;
  memcpy(&want, out.here, sizeof want);
  memcpy(&got, download(&out), sizeof got);
  if (isnan(want.loss_sum) && isnan(got.loss_sum)) /* of whatever bits */
    got.loss_sum = want.loss_sum;
  if (isnan(want.grad_norm) && isnan(got.grad_norm))
    got.grad_norm = want.grad_norm;
  if (memcmp(&got, &want, sizeof got))
    fail_msg("loss %.17g, norm %.17g, scale %.17g, finite %lld; not %.17g, %.17g, %.17g, %lld",
             got.loss_sum, got.grad_norm, got.scale, (long long)got.finite, want.loss_sum,
             want.grad_norm, want.scale, (long long)want.finite);
  forget();
}

GPU_TEST(test_conclude)
{
  static const double tie[] = {1, 0x1p-53}, above[] = {1, 0x1p-53, 0x1p-1000},
                      odd_tie[] = {1 + 0x1p-52, 0x1p-53},
                      large[] = {0x1.fffffffffffffp1023, 0x1p970}, larger[] = {0x1p1023, 0x1p1023},
                      small[] = {0x1p-1074, 0x1p-1074, 0x1p-1073}, negative[] = {-3.25, 1e-30},
                      infinite[] = {1, INFINITY}, both[] = {INFINITY, -INFINITY}, none[] = {0.0},
                      not_a_number[] = {NAN}, usual[] = {41.5, 1e-9, 2.25e-3};
  static const struct {
    const double *term;
    int n;
  } sums_of[] = {{tie, 2},    {above, 3}, {odd_tie, 2},      {large, 2},
                 {larger, 2}, {small, 3}, {negative, 2},     {infinite, 2},
                 {both, 2},   {none, 1},  {not_a_number, 1}, {usual, 3}};
  enum { SUMS = sizeof sums_of / sizeof *sums_of };
  double term[40];
  for (int i = 0; i < SUMS; i++)
    for (int j = 0; j < SUMS; j++)
      for (int clip = 0; clip < 2; clip++)
        check_conclusion(sums_of[i].term, sums_of[i].n, sums_of[j].term, sums_of[j].n, clip);
  for (int i = 0; i < 50; i++) {
    fill_terms(40, term);
    check_conclusion(term, 40, term + i % 40, 1, 1);
  }
}

/* --- what the kernels do not take ---------------------------------------- */

/* Nothing is touched: pointers are NULL. */
GPU_TEST(test_refusals)
{
  const struct device_ops *ops = gpu->ops;
  const int64_t wide = 32768 + 1;
  const struct row_norm norm = {
      .rows = 1, .groups = 1, .C = wide, .x_stride = wide, .y_stride = wide};
  const struct row_norm_backward back = {.rows = 1, .groups = 1, .C = wide};
  struct rope turn = {.rows = 1, .T = 1, .heads = 1, .D = 258, .stride = 258};
  struct attention heads = {.batch = 1, .tokens = 1, .heads = 1, .kv_heads = 1, .head_width = 257};
  must_fail(ops->norm(gpu_lane, &norm), STATUS_INTERNAL, "32769");
  assert_int_equal(ops->norm_backward(gpu_lane, &back), STATUS_INTERNAL);
  assert_int_equal(ops->rope(gpu_lane, &turn), STATUS_INTERNAL);
  turn.D = 33;
  must_fail(ops->rope(gpu_lane, &turn), STATUS_INTERNAL, "33 elements");
  must_fail(ops->attention(gpu_lane, &heads), STATUS_INTERNAL, "257");
  heads.tokens = CUDA_WORKSPACE / 4 + 1, heads.first = (const int32_t[1]){0};
  must_fail(ops->attention(gpu_lane, &heads), STATUS_UNSUPPORTED, "lower data.micro_batch");
  must(ops->lane_check(gpu_lane));
}

/* --- memory, lanes and marks --------------------------------------------- */

GPU_TEST(test_memory)
{
  int64_t used = 0, all = 0, before = 0;
  unsigned char *pinned = NULL;
  void *block = NULL;
  const struct mem_usage start = mem_usage(MEM_DATA);
  must(gpu->ops->enter(gpu));
  must(gpu->ops->memory(gpu, &before, &all));
  must(gpu->ops->alloc(gpu, MEM_DATA, 256 << 20, &block));
  must(gpu->ops->memory(gpu, &used, &all));
  assert_true(used >= before && used <= all && all > 256 << 20);
  must(gpu->ops->alloc_host(gpu, MEM_DATA, 1 << 20, (void **)&pinned));
  assert_int_equal(mem_usage(MEM_DATA).bytes - start.bytes, (256 << 20) + (1 << 20));
  assert_int_equal(mem_usage(MEM_DATA).calls - start.calls, 2);
  for (int i = 0; i < 1 << 20; i++)
    assert_int_equal(pinned[i], 0);
  memset(pinned, 7, 1 << 20);
  must(gpu->ops->copy(gpu_lane, pinned, block, 1 << 20)); /* zeroed too */
  must_cuda(cudaDeviceSynchronize());
  for (int i = 0; i < 1 << 20; i++)
    assert_int_equal(pinned[i], 0);
  gpu->ops->release_host(gpu, pinned);
  gpu->ops->release(gpu, block);
  assert_int_equal(gpu->ops->alloc(gpu, MEM_DATA, (size_t)1 << 50, &block), STATUS_MEMORY);
  assert_int_equal(mem_usage(MEM_DATA).bytes, start.bytes);
  gpu->ops->release(gpu, NULL);
  gpu->ops->release_host(gpu, NULL);
  must(gpu->ops->lane_check(gpu_lane));
}

/* Memory that processes share, pinned. A copy of it is enqueued after work of many milliseconds,
 * and the caller continues. Oracle: what was written. */
GPU_TEST(test_pin)
{
  enum { BYTES = 64 << 20, WORK = 256 << 20, TURNS = 300 };
  unsigned char *shared =
      mmap(NULL, 2 * BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  char *work = scratch(gpu, WORK), *there = scratch(gpu, BYTES);
  struct mark *begin = NULL, *copied = NULL;
  assert_true(shared != MAP_FAILED);
  must(gpu->ops->pin(gpu, shared, 2 * BYTES));
  assert_int_equal(gpu->ops->pin(gpu, shared, 2 * BYTES), STATUS_LIBRARY); /* it is */
  must_say("pinning memory of the host");
  must(gpu->ops->mark_create(gpu, &begin));
  must(gpu->ops->mark_create(gpu, &copied));
  for (int i = 0; i < BYTES; i++)
    shared[i] = (unsigned char)(i * 31 + i / 251);

  for (int i = 0; i < TURNS; i++)
    must(gpu->ops->zero(gpu_lane, work, WORK));
  must(gpu->ops->mark_set(gpu_lane, begin));
  must(gpu->ops->copy(gpu_lane, there, shared, BYTES));
  must(gpu->ops->copy(gpu_lane, shared + BYTES, there, BYTES));
  must(gpu->ops->mark_set(gpu_lane, copied));
  assert_false(gpu->ops->mark_reached(begin)); /* nothing has waited for the lane */
  assert_false(gpu->ops->mark_reached(copied));
  must(gpu->ops->mark_wait(copied));
  assert_memory_equal(shared + BYTES, shared, BYTES);

  gpu->ops->unpin(gpu, shared);
  must(gpu->ops->lane_check(gpu_lane));
  must(gpu->ops->pin(gpu, shared, 2 * BYTES));
  gpu->ops->unpin(gpu, shared);
  gpu->ops->unpin(gpu, shared); /* warns, and leaves no error behind */
  gpu->ops->unpin(gpu, NULL);
  must(gpu->ops->lane_check(gpu_lane));
  gpu->ops->mark_destroy(begin);
  gpu->ops->mark_destroy(copied);
  assert_int_equal(munmap(shared, 2 * BYTES), 0);
}

/* Lane `other` reads the result that the first lane writes after work of some milliseconds. Oracle:
 * the written values. */
GPU_TEST(test_marks)
{
  enum { BYTES = 256 << 20, TURNS = 20 };
  struct mark *mark[4];
  struct lane *other = NULL;
  char *a = scratch(gpu, BYTES), *b = scratch(gpu, BYTES), *c = scratch(gpu, BYTES);
  unsigned char got[64], want[64];
  double seconds = -1;
  must(gpu->ops->lane_create(gpu, "gather", LANE_ROLE_COMMUNICATE, 1, &other));
  for (int i = 0; i < 4; i++)
    must(gpu->ops->mark_create(gpu, &mark[i]));
  struct mark *begin = mark[0], *written = mark[1], *read = mark[2], *never = mark[3];
  memset(want, 0x5a, sizeof want);
  must_cuda(cudaMemset(a, 0x5a, BYTES));
  must_cuda(cudaDeviceSynchronize());

  must(gpu->ops->mark_set(gpu_lane, begin));
  for (int i = 0; i < TURNS; i++)
    must(gpu->ops->zero(gpu_lane, b, BYTES));
  must(gpu->ops->copy(gpu_lane, b, a, BYTES));
  must(gpu->ops->mark_set(gpu_lane, written));
  must(gpu->ops->mark_follow(other, never));
  must(gpu->ops->mark_follow(other, written));
  must(gpu->ops->copy(other, c, b, BYTES));
  must(gpu->ops->mark_set(other, read));
  must(gpu->ops->mark_wait(never));
  must(gpu->ops->mark_wait(read));
  must_cuda(cudaMemcpy(got, c + BYTES - sizeof got, sizeof got, cudaMemcpyDeviceToHost));
  assert_memory_equal(got, want, sizeof want);
  must(gpu->ops->mark_seconds(begin, read, &seconds));
  if (!(seconds > 1e-4 && seconds < 1))
    fail_msg("%d passes over 256 MiB took %g s", TURNS + 2, seconds);
  assert_int_equal(gpu->ops->mark_seconds(begin, never, &seconds), STATUS_INTERNAL);

  for (int i = 0; i < 4; i++)
    gpu->ops->mark_destroy(mark[i]);
  gpu->ops->mark_destroy(NULL);
  gpu->ops->lane_destroy(other);
}

GPU_TEST(test_devices)
{
  struct device *none = NULL;
  assert_true(cuda_device_count() >= 1);
  assert_int_equal(cuda_device_create(cuda_device_count(), compute, &none), STATUS_UNSUPPORTED);
  assert_int_equal(cuda_device_create(0, DTYPE_F16, &none), STATUS_UNSUPPORTED);
  assert_null(none);
}

/* The oracle is the runtime: it makes handles of blocks that other processes can open, as MPI does,
 * or does not. */
GPU_TEST(test_memory_for_others)
{
  struct device *plain = NULL;
  cudaIpcMemHandle_t handle;
  void *block = NULL;
  must(cuda_device_create(0, compute, &plain));
  plain->plain_memory = true;
  must(plain->ops->alloc(plain, MEM_META, 1 << 20, &block));
  assert_int_equal(cudaIpcGetMemHandle(&handle, block), cudaSuccess);
  plain->ops->release(plain, block);
  device_destroy(plain);
}

/* --- measuring ----------------------------------------------------------- */

static void expect_none(const struct class_total *total, enum device_class but)
{
  for (int c = 0; c < CLASS_COUNT; c++)
    if (c != (int)but && (total[c].calls != 0 || total[c].seconds != 0 || total[c].work != 0))
      fail_msg("class %d: %lld calls, %g s, %g", c, (long long)total[c].calls, total[c].seconds,
               total[c].work);
}

static void expect_calls(const struct class_total *total, enum device_class which, int64_t calls,
                         double work)
{
  expect_none(total, which);
  assert_int_equal(total[which].calls, calls);
  assert_true(total[which].seconds > 0 && total[which].seconds < 1);
  if (total[which].work != work)
    fail_msg("class %d: %.17g, not %.17g", (int)which, total[which].work, work);
}

/* Oracle: operations and bytes worked out here. */
GPU_TEST(test_measure)
{
  enum { N = 256, ROUNDS = 3 };
  struct twin a = input(N * N), b = input(N * N), c = output(N * N);
  struct matmul op = product_there(N, 64, 128, &a, &b, &c);
  struct matmul refused = op;
  struct class_total total[CLASS_COUNT];
  refused.accumulate = true, refused.add = b.there;
  must(gpu->ops->matmul(gpu_lane, &op));
  must(gpu->ops->measured(gpu_lane, total));
  expect_none(total, CLASS_COUNT);

  must(gpu->ops->measure(gpu_lane, true));
  for (int i = 0; i < ROUNDS; i++) {
    must(gpu->ops->matmul(gpu_lane, &op));
    assert_int_equal(gpu->ops->matmul(gpu_lane, &refused), STATUS_INTERNAL); /* is none */
  }
  must(gpu->ops->measure(gpu_lane, false));
  must(gpu->ops->matmul(gpu_lane, &op));
  must(gpu->ops->measured(gpu_lane, total));
  expect_calls(total, CLASS_PRODUCTS, ROUNDS, ROUNDS * 2.0 * N * 64 * 128);
  must(gpu->ops->measured(gpu_lane, total)); /* a look changes nothing */
  expect_calls(total, CLASS_PRODUCTS, ROUNDS, ROUNDS * 2.0 * N * 64 * 128);

  must(gpu->ops->measure(gpu_lane, true)); /* again, in the events from before */
  must(gpu->ops->add(gpu_lane, N * N, a.there, b.there, c.there));
  must(gpu->ops->measured(gpu_lane, total));
  expect_calls(total, CLASS_ACTIVATIONS, 1, 3.0 * N * N * (double)dtype_size(compute));
  must(gpu->ops->measure(gpu_lane, false));
}

/* Oracle: the pairs of a query and a key that it sees, one by one. */
GPU_TEST(test_measure_attention)
{
  enum { B = 2, T = 64, H = 4, D = 64 };
  const int64_t windows[] = {0, 1, 24, T, 2 * T};
  struct heads heads = heads_make(B, T, H, H, D);
  struct class_total total[CLASS_COUNT];
  for (size_t w = 0; w < sizeof windows / sizeof *windows; w++) {
    int64_t pairs = 0;
    heads.op.window = windows[w];
    heads.op.work = scratch(gpu, gpu->model.attention_workspace(&gpu->model, &heads.op, 1));
    for (int64_t query = 0; query < T; query++)
      for (int64_t key = 0; key <= query; key++)
        pairs += windows[w] == 0 || query - key < windows[w];
    must(gpu->ops->measure(gpu_lane, true));
    must(gpu->ops->attention(gpu_lane, &heads.op));
    must(gpu->ops->measure(gpu_lane, false));
    must(gpu->ops->measured(gpu_lane, total));
    expect_calls(total, CLASS_ATTENTION, 1, 2 * 2.0 * D * H * B * (double)pairs);
  }
}

/* A table of pointers, of which none is NULL. */
GPU_TEST(test_table)
{
  enum { SLOTS = sizeof(struct device_ops) / sizeof(uintptr_t) };
  uintptr_t slot[SLOTS];
  memcpy(slot, gpu->ops, sizeof slot);
  for (int i = 0; i < SLOTS; i++)
    if (!slot[i])
      fail_msg("operation %d of the CUDA device is not there", i);
}

/* test_ops [PATTERN]: tests whose names match it, with * and ? for any letters and any one. */
int main(int argc, char **argv)
{
  const int missing = gpu_is_missing();
  int failed = missing;
  if (argc > 1)
    cmocka_set_test_filter(argv[1]);
  for (int type = 0; type < 2 && !missing; type++) {
    compute = type ? DTYPE_BF16 : DTYPE_F32;
    failed += test_run(NULL, NULL);
  }
  return failed;
}
