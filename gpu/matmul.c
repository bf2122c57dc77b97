/* Matrix products through cuBLASLt. Row-major c = op(a) op(b) is column-major c^T = op(b)^T op(a)^T, so b is cuBLAS' first operand and nothing is ever transposed in
 * memory.
 *
 * Which algorithm serves a shape, and whether a GELU is better part of the product or a pass behind it, is measured at its first product: where nothing is read from c,
 * on c itself, which the product overwrites afterwards. It is the same with and without accumulation, and it is learned(): a table of bytes. The same bytes lie in the user's
 * cache, by GPU and version of the library, which is asked for shapes that nobody has told of. Algorithms that add up parts in no fixed order, or in less than fp32, are left
 * out. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "gpu/cuda.h"

enum { CANDIDATES = 64, FEWEST = 8, RUNS = 5, FIRST_SLOTS = 256, MOST_KEPT = 4096, MOST_ALIGN = 16 };
static const float FIRST_MS = 180, FINAL_MS = 120; /* what the first look at the candidates may take, and the comparison of the best */

/* How much of the epilogue is part of the product; the rest follows it. */
enum way { WAY_ALL, WAY_BIAS, WAY_NONE };

/* No padding: keys are compared and written as bytes. */
struct shape_key {
  int64_t m, n, k, lda, ldb, ldc;
  int32_t trans_a, trans_b, epilogue, add, bf16;
  uint8_t align[4]; /* bytes that a, b, c and the rest are aligned to, up to MOST_ALIGN */
};
_Static_assert(sizeof(struct shape_key) == 6 * sizeof(int64_t) + 5 * sizeof(int32_t) + 4, "keys are compared as bytes");

struct record {
  struct shape_key key;
  cublasLtMatmulAlgo_t algo;
  int32_t way, measured; /* measured 0: cuBLAS' guess, which no file keeps */
};

/* What a table is good for. */
struct kind {
  char magic[8], name[256];
  int64_t version, multiprocessors, workspace, record_bytes;
};

/* Before the records of a table. */
struct header {
  struct kind kind;
  int64_t records;
  uint64_t sum; /* hash_bytes() of the records */
};

/* What a shape's products share. Pointers of bias and aux are set at each call. */
struct product {
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t a, b, c;
};

struct entry {
  struct record record;
  bool known, used; /* used: there is a product of it, and the algorithm was found or checked here */
  struct product product;
};

struct matmul_cache {
  pthread_mutex_t mutex; /* of all that follows, and of a product's pointers until it is enqueued */
  struct kind kind;
  char *path; /* NULL: nowhere */
  bool news;  /* something was measured that the file does not have */
  int64_t entries, slots;
  struct entry *entry; /* [slots], a power of two, at most half of it known */
  int64_t n_kept;
  struct record *kept; /* the file's, oldest first, until a shape of it is met */
};

static uint8_t alignment_of(const void *p)
{
  const uintptr_t bits = (uintptr_t)p | MOST_ALIGN;
  return (uint8_t)(bits & -bits);
}

static struct shape_key key_of(const struct device *device, const struct matmul *op)
{
  const uintptr_t rest = (uintptr_t)op->bias | (uintptr_t)op->aux | (uintptr_t)op->add;
  return (struct shape_key){.m = op->m,
                            .n = op->n,
                            .k = op->k,
                            .lda = op->lda,
                            .ldb = op->ldb,
                            .ldc = op->ldc,
                            .trans_a = op->trans_a,
                            .trans_b = op->trans_b,
                            .epilogue = (int32_t)op->epilogue,
                            .add = op->add != NULL,
                            .bf16 = device->compute == DTYPE_BF16,
                            .align = {alignment_of(op->a), alignment_of(op->b), alignment_of(op->c), alignment_of((const void *)rest)}};
}

/* The key's slot, or the free one that is to be its. */
static struct entry *find_entry(const struct matmul_cache *cache, const struct shape_key *key)
{
  for (uint64_t i = hash_bytes(HASH_START, key, sizeof *key);; i++) {
    struct entry *entry = &cache->entry[i & (uint64_t)(cache->slots - 1)];
    if (!entry->known || memcmp(&entry->record.key, key, sizeof *key) == 0)
      return entry;
  }
}

/* Room for one more. Entries move. */
static enum status make_room(struct matmul_cache *cache)
{
  if (2 * (cache->entries + 1) <= cache->slots)
    return STATUS_OK;
  struct matmul_cache wider = {.slots = cache->slots > 0 ? 2 * cache->slots : FIRST_SLOTS};
  void *block;
  enum status status = mem_alloc(MEM_META, (size_t)wider.slots * sizeof(struct entry), &block);
  if (status)
    return status;
  wider.entry = block;
  for (int64_t i = 0; i < cache->slots; i++)
    if (cache->entry[i].known)
      *find_entry(&wider, &cache->entry[i].record.key) = cache->entry[i];
  mem_free(cache->entry);
  cache->entry = wider.entry;
  cache->slots = wider.slots;
  return STATUS_OK;
}

/* --- one product's descriptors --------------------------------------------------------------------------------------------------------------- */

static void destroy_product(struct product *p)
{
  if (p->desc)
    (void)cublasLtMatmulDescDestroy(p->desc);
  if (p->a)
    (void)cublasLtMatrixLayoutDestroy(p->a);
  if (p->b)
    (void)cublasLtMatrixLayoutDestroy(p->b);
  if (p->c)
    (void)cublasLtMatrixLayoutDestroy(p->c);
  *p = (struct product){0};
}

static cublasStatus_t set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what, const void *value, size_t bytes)
{
  return cublasLtMatmulDescSetAttribute(desc, what, value, bytes);
}

/* What the library is to do of op's epilogue. */
static enum epilogue part_of(const struct matmul *op, enum way way)
{
  return way == WAY_ALL ? op->epilogue : way == WAY_BIAS ? EPILOGUE_BIAS : EPILOGUE_NONE;
}

static cublasStatus_t set_pointers(cublasLtMatmulDesc_t desc, const struct matmul *op, enum way way)
{
  const enum epilogue part = part_of(op, way);
  const bool bias = part == EPILOGUE_BIAS || part == EPILOGUE_BIAS_GELU, aux = part == EPILOGUE_BIAS_GELU || part == EPILOGUE_DGELU;
  cublasStatus_t error = CUBLAS_STATUS_SUCCESS;
  if (bias)
    error = set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &op->bias, sizeof op->bias);
  if (!error && aux)
    error = set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &op->aux, sizeof op->aux);
  return error;
}

static cublasStatus_t set_epilogue(cublasLtMatmulDesc_t desc, const struct matmul *op, enum way way)
{
  static const cublasLtEpilogue_t epilogues[] = {[EPILOGUE_NONE] = CUBLASLT_EPILOGUE_DEFAULT,
                                                 [EPILOGUE_BIAS] = CUBLASLT_EPILOGUE_BIAS,
                                                 [EPILOGUE_BIAS_GELU] = CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                                                 [EPILOGUE_DGELU] = CUBLASLT_EPILOGUE_DGELU};
  const enum epilogue part = part_of(op, way);
  cublasStatus_t error = set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogues[part], sizeof epilogues[part]);
  if (!error && (part == EPILOGUE_BIAS_GELU || part == EPILOGUE_DGELU))
    error = set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &op->ldc, sizeof op->ldc);
  return error ? error : set_pointers(desc, op, way);
}

static enum status describe(const struct device *device, const struct matmul *op, enum way way, struct product *out)
{
  const cudaDataType_t in = device->compute == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_32F, c = op->trans_a ? CUDA_R_32F : in;
  const cublasOperation_t trans_a = op->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N, trans_b = op->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  const uint64_t k = (uint64_t)op->k, m = (uint64_t)op->m, n = (uint64_t)op->n;
  struct product p = {0};
  cublasStatus_t error = cublasLtMatmulDescCreate(&p.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  if (!error)
    error = set(p.desc, CUBLASLT_MATMUL_DESC_TRANSA, &trans_a, sizeof trans_a);
  if (!error)
    error = set(p.desc, CUBLASLT_MATMUL_DESC_TRANSB, &trans_b, sizeof trans_b);
  if (!error)
    error = set_epilogue(p.desc, op, way);
  if (!error)
    error = cublasLtMatrixLayoutCreate(&p.a, in, op->trans_b ? k : n, op->trans_b ? n : k, op->ldb);
  if (!error)
    error = cublasLtMatrixLayoutCreate(&p.b, in, op->trans_a ? m : k, op->trans_a ? k : m, op->lda);
  if (!error)
    error = cublasLtMatrixLayoutCreate(&p.c, c, n, m, op->ldc);
  if (error) {
    destroy_product(&p);
    return cublas_check(error, "describing a matrix product");
  }
  *out = p;
  return STATUS_OK;
}

/* Where the product goes: a GELU that follows is made from aux. */
static void *target_of(const struct matmul *op, enum way way)
{
  return way != WAY_ALL && op->epilogue == EPILOGUE_BIAS_GELU ? op->aux : op->c;
}

static cublasStatus_t run(struct lane *lane, const struct matmul *op, const struct product *p, const cublasLtMatmulAlgo_t *algo, void *d)
{
  struct cuda_lane *cuda = cuda_lane(lane);
  const float one = 1, beta = op->accumulate || op->add ? 1 : 0;
  const void *c = op->add ? op->add : op->accumulate ? op->c : d;
  return cublasLtMatmul(cuda_device(lane->device)->blas, p->desc, &one, op->b, p->a, op->a, p->b, &beta, c, p->c, d, p->c, algo, cuda->workspace,
                        CUDA_WORKSPACE, cuda->stream);
}

/* --- the choice of an algorithm ---------------------------------------------------------------------------------------------------------------- */

static cublasStatus_t prefer(cublasLtMatmulPreference_t preference, const struct shape_key *key)
{
  const uint64_t workspace = CUDA_WORKSPACE;
  const uint32_t a = key->align[1], b = key->align[0], c = key->align[2];
  uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE; /* and none; in place is in no fixed order */
  if (key->trans_a || !key->bf16)
    schemes |= CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE; /* fp32 as well */
  const struct {
    cublasLtMatmulPreferenceAttributes_t what;
    const void *value;
    size_t bytes;
  } wishes[] = {{CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
                {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof a},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof b},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof c},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c, sizeof c}};
  cublasStatus_t error = CUBLAS_STATUS_SUCCESS;
  for (size_t i = 0; !error && i < sizeof wishes / sizeof *wishes; i++)
    error = cublasLtMatmulPreferenceSetAttribute(preference, wishes[i].what, wishes[i].value, wishes[i].bytes);
  return error;
}

/* How many were found. */
static int candidates(struct lane *lane, const struct shape_key *key, const struct product *p, cublasLtMatmulHeuristicResult_t *found)
{
  cublasLtMatmulPreference_t preference = NULL;
  int n = 0;
  cublasStatus_t error = cublasLtMatmulPreferenceCreate(&preference);
  if (!error)
    error = prefer(preference, key);
  if (!error)
    error = cublasLtMatmulAlgoGetHeuristic(cuda_device(lane->device)->blas, p->desc, p->a, p->b, p->c, p->c, preference, CANDIDATES, found, &n);
  if (preference)
    (void)cublasLtMatmulPreferenceDestroy(preference);
  return error ? 0 : n;
}

/* What is left of the epilogue behind the product, `c` in place of op->c. */
static enum status finish(struct lane *lane, const struct matmul *op, enum way way, void *c)
{
  const struct gpu_launch launch = cuda_launch(lane);
  if (way == WAY_ALL || op->epilogue == EPILOGUE_NONE)
    return STATUS_OK;
  gpu_finish(&launch, op->m, op->n, op->ldc, op->epilogue, way == WAY_BIAS ? NULL : op->bias, op->aux, c);
  return cuda_check_launch("the end of a matrix product");
}

/* A shape's first product, one way of doing it at a time. */
struct trial {
  struct lane *lane;
  const struct matmul *op;
  const struct product *product;
  enum way way;
  void *c;         /* op->c, or memory in its place */
  bool to_the_end; /* what follows the product is measured too */
  cudaEvent_t event[CANDIDATES + 1];
};

static bool try_once(const struct trial *trial, const cublasLtMatmulAlgo_t *algo)
{
  void *d = target_of(trial->op, trial->way) == trial->op->c ? trial->c : trial->op->aux;
  return !run(trial->lane, trial->op, trial->product, algo, d) && (!trial->to_the_end || !finish(trial->lane, trial->op, trial->way, trial->c));
}

static bool mark(const struct trial *trial, int i)
{
  return !cudaEventRecord(trial->event[i], cuda_lane(trial->lane)->stream);
}

static bool elapsed(const struct trial *trial, int i, float *ms)
{
  return !cudaEventSynchronize(trial->event[i + 1]) && !cudaEventElapsedTime(ms, trial->event[i], trial->event[i + 1]);
}

/* Milliseconds of one run behind another, which loads what it needs; negative where it does not run. */
static float look(const struct trial *trial, const cublasLtMatmulAlgo_t *algo)
{
  float ms = 0;
  return try_once(trial, algo) && mark(trial, 0) && try_once(trial, algo) && mark(trial, 1) && elapsed(trial, 0, &ms) ? ms : -1;
}

struct candidate {
  cublasLtMatmulAlgo_t algo;
  float ms, run[RUNS];
};

static int compare_floats(const void *a, const void *b)
{
  const float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

static int compare_candidates(const void *a, const void *b)
{
  return compare_floats(&((const struct candidate *)a)->ms, &((const struct candidate *)b)->ms);
}

/* Of n candidates those that run, fastest first, as far as there is time. How many those are. */
static int look_at_all(const struct trial *trial, const cublasLtMatmulHeuristicResult_t *found, int n, struct candidate *out)
{
  int good = 0;
  float spent = 0;
  for (int i = 0; i < n && (good < FEWEST || spent < FIRST_MS); i++) {
    const float ms = look(trial, &found[i].algo);
    if (ms < 0)
      continue;
    out[good++] = (struct candidate){.algo = found[i].algo, .ms = ms};
    spent += 2 * ms;
  }
  qsort(out, (size_t)good, sizeof *out, compare_candidates);
  return good;
}

/* The candidates in turns, so that what the clock does hits all of them; candidate i is of trial[i]. */
static bool compare(const struct trial *const *trial, struct candidate *candidate, int n)
{
  for (int r = 0; r < RUNS; r++) {
    bool good = try_once(trial[0], &candidate[0].algo) && mark(trial[0], 0); /* the first one is not to wait for the host either */
    for (int i = 0; good && i < n; i++)
      good = try_once(trial[i], &candidate[i].algo) && mark(trial[0], i + 1);
    for (int i = 0; good && i < n; i++)
      good = elapsed(trial[0], i, &candidate[i].run[r]);
    if (!good)
      return false;
  }
  for (int i = 0; i < n; i++) {
    qsort(candidate[i].run, RUNS, sizeof(float), compare_floats);
    candidate[i].ms = candidate[i].run[RUNS / 2];
  }
  return true;
}

/* Those that come close to the best, once more. */
static bool fastest(const struct trial *trial, const cublasLtMatmulHeuristicResult_t *found, int n, cublasLtMatmulAlgo_t *out)
{
  struct candidate candidate[CANDIDATES];
  const struct trial *trials[CANDIDATES];
  const int good = look_at_all(trial, found, n, candidate);
  int close = 0;
  if (good == 0)
    return false;
  while (close < good && candidate[close].ms <= 1.1f * candidate[0].ms && (close < 2 || RUNS * (float)(close + 1) * candidate[0].ms < FINAL_MS))
    trials[close++] = trial;
  if (close > 1 && compare(trials, candidate, close))
    qsort(candidate, (size_t)close, sizeof *candidate, compare_candidates);
  *out = candidate[0].algo;
  return true;
}

struct choice {
  bool there;
  enum way way;
  struct product product;
  cublasLtMatmulAlgo_t algo;
};

static struct trial trial_of(const struct trial *any, const struct choice *choice)
{
  struct trial trial = *any;
  trial.way = choice->way;
  trial.product = &choice->product;
  return trial;
}

/* The best algorithm for one way of doing it; where nothing can be measured the library's first one. */
static enum status choose_algorithm(const struct trial *any, const struct shape_key *key, bool measured, enum way way, struct choice *out)
{
  cublasLtMatmulHeuristicResult_t found[CANDIDATES];
  *out = (struct choice){.way = way};
  enum status status = describe(any->lane->device, any->op, way, &out->product);
  if (status)
    return status;
  const struct trial trial = trial_of(any, out);
  const int n = candidates(any->lane, key, &out->product, found);
  if (measured) {
    out->there = fastest(&trial, found, n, &out->algo);
  } else if (n > 0) {
    out->algo = found[0].algo;
    out->there = true;
  }
  if (!out->there)
    destroy_product(&out->product);
  return STATUS_OK;
}

/* Whether b is faster than a, with all that follows. */
static bool better(const struct trial *any, const struct choice *b, const struct choice *a)
{
  struct trial trial[2] = {trial_of(any, a), trial_of(any, b)};
  struct candidate candidate[2] = {{.algo = a->algo}, {.algo = b->algo}};
  trial[0].to_the_end = trial[1].to_the_end = true;
  return compare((const struct trial *[]){&trial[0], &trial[1]}, candidate, 2) && candidate[1].ms < candidate[0].ms;
}

/* All of the epilogue in the product, or less of it where the library has no more. A bias costs nothing there, but a GELU may, so that it has a rival. */
static enum status choose_way(const struct trial *any, const struct shape_key *key, bool measured, struct choice *best)
{
  const enum epilogue epilogue = any->op->epilogue;
  const enum way rival = epilogue == EPILOGUE_BIAS_GELU ? WAY_BIAS : epilogue == EPILOGUE_DGELU ? WAY_NONE : WAY_ALL;
  *best = (struct choice){0};
  for (enum way way = WAY_ALL; way <= WAY_NONE; way++) {
    struct choice next;
    if ((way == WAY_BIAS && epilogue != EPILOGUE_BIAS_GELU) || (best->there && (!measured || way != rival)))
      continue;
    enum status status = choose_algorithm(any, key, measured, way, &next);
    if (status) {
      destroy_product(&best->product);
      return status;
    }
    if (!next.there)
      continue;
    if (best->there && !better(any, &next, best)) {
      destroy_product(&next.product);
      continue;
    }
    destroy_product(&best->product);
    *best = next;
  }
  return STATUS_OK;
}

/* What a trial needs besides the operands. Where c is read, outputs go to scratch memory, so that nothing is added twice. */
static bool prepare(struct trial *trial, void **scratch)
{
  const struct matmul *op = trial->op;
  const size_t element = op->trans_a ? sizeof(float) : dtype_size(trial->lane->device->compute);
  for (int i = 0; i <= CANDIDATES; i++)
    if (cudaEventCreate(&trial->event[i]))
      return false;
  if (!op->accumulate && op->add != op->c)
    return true;
  if (cudaMalloc(scratch, (size_t)op->m * (size_t)op->ldc * element))
    return false;
  trial->c = *scratch;
  return true;
}

static enum status choose(struct lane *lane, const struct matmul *op, const struct shape_key *key, struct entry *out)
{
  struct trial any = {.lane = lane, .op = op, .c = op->c};
  struct choice best;
  void *scratch = NULL;
  const bool measured = prepare(&any, &scratch);
  if (!measured)
    log_warn("no memory of the GPU is left to try algorithms for a product of %" PRId64 " x %" PRId64 " x %" PRId64
             ": cuBLAS' first guess computes it, which may be slow",
             op->m, op->n, op->k);
  enum status status = choose_way(&any, key, measured, &best);
  (void)cudaFree(scratch);
  for (int i = 0; i <= CANDIDATES; i++)
    if (any.event[i])
      (void)cudaEventDestroy(any.event[i]);
  (void)cudaGetLastError();
  if (status)
    return status;
  if (!best.there)
    return status_set(STATUS_UNSUPPORTED, "cuBLAS has no algorithm for a product of %" PRId64 " x %" PRId64 " x %" PRId64, op->m, op->n, op->k);
  const struct record record = {.key = *key, .algo = best.algo, .way = (int32_t)best.way, .measured = measured};
  *out = (struct entry){.record = record, .known = true, .used = true, .product = best.product};
  return STATUS_OK;
}

/* The product of a record that another process has made, which need not run here. */
static enum status adopt(const struct device *device, const struct matmul *op, const struct record *record, struct entry *out)
{
  struct entry entry = {.record = *record, .known = true, .used = true};
  cublasLtMatmulHeuristicResult_t result = {.state = CUBLAS_STATUS_SUCCESS};
  enum status status = describe(device, op, (enum way)record->way, &entry.product);
  if (status)
    return status;
  const struct product *p = &entry.product;
  cublasStatus_t error = cublasLtMatmulAlgoCheck(cuda_device(device)->blas, p->desc, p->a, p->b, p->c, p->c, &record->algo, &result);
  if (!error)
    error = result.state;
  if (!error && result.workspaceSize > CUDA_WORKSPACE)
    error = CUBLAS_STATUS_NOT_SUPPORTED;
  if (error) {
    destroy_product(&entry.product);
    return cublas_check(error, "checking an algorithm that was found before");
  }
  *out = entry;
  return STATUS_OK;
}

/* The file's record of a shape, NULL: it has none. */
static const struct record *find_kept(const struct matmul_cache *cache, const struct shape_key *key)
{
  for (int64_t i = 0; i < cache->n_kept; i++)
    if (memcmp(&cache->kept[i].key, key, sizeof *key) == 0)
      return &cache->kept[i];
  return NULL;
}

/* An entry of a shape that nobody has told of. */
static enum status meet(struct lane *lane, const struct matmul *op, const struct shape_key *key)
{
  struct matmul_cache *cache = cuda_device(lane->device)->algorithms;
  const struct record *kept = find_kept(cache, key);
  struct entry entry;
  enum status status = make_room(cache);
  if (status)
    return status;
  bool there = kept && !adopt(lane->device, op, kept, &entry);
  if (kept && !there)
    log_debug("%s: measured anew", status_text());
  if (!there) {
    status = choose(lane, op, key, &entry);
    if (status)
      return status;
    cache->news = cache->news || entry.record.measured;
  }
  *find_entry(cache, key) = entry;
  cache->entries++;
  return STATUS_OK;
}

static enum status entry_of(struct lane *lane, const struct matmul *op, struct entry **out)
{
  struct matmul_cache *cache = cuda_device(lane->device)->algorithms;
  const struct shape_key key = key_of(lane->device, op);
  struct entry *entry = find_entry(cache, &key);
  enum status status = STATUS_OK;
  if (!entry->known)
    status = meet(lane, op, &key);
  else if (!entry->used)
    status = adopt(lane->device, op, &entry->record, entry);
  else
    status = cublas_check(set_pointers(entry->product.desc, op, (enum way)entry->record.way), "describing a matrix product");
  *out = find_entry(cache, &key);
  return status;
}

static enum status multiply(struct lane *lane, const struct matmul *op)
{
  struct entry *entry = NULL;
  enum status status = entry_of(lane, op, &entry);
  if (status)
    return status;
  const enum way way = (enum way)entry->record.way;
  status = cublas_check(run(lane, op, &entry->product, &entry->record.algo, target_of(op, way)), "a matrix product");
  return status ? status : finish(lane, op, way, op->c);
}

enum status cuda_matmul(struct lane *lane, const struct matmul *op)
{
  pthread_mutex_t *mutex = &cuda_device(lane->device)->algorithms->mutex;
  if (op->accumulate && (op->epilogue != EPILOGUE_NONE || op->add))
    return status_set(STATUS_INTERNAL, "a matrix product that accumulates cannot have an epilogue, nor add another matrix");
  if (op->add && op->epilogue != EPILOGUE_NONE && op->epilogue != EPILOGUE_BIAS)
    return status_set(STATUS_INTERNAL, "a matrix product that goes through an activation cannot add another matrix");
  if (op->trans_a && op->epilogue != EPILOGUE_NONE)
    return status_set(STATUS_INTERNAL, "a weight gradient has no epilogue");
  if (op->m < 0 || op->n < 0 || op->k < 1)
    return status_set(STATUS_INTERNAL, "a matrix product of shape %" PRId64 " x %" PRId64 " x %" PRId64, op->m, op->n, op->k);
  if (op->m == 0 || op->n == 0)
    return STATUS_OK;
  enum status status = cuda_lane_reserve(lane);
  if (status)
    return status;
  pthread_mutex_lock(mutex);
  status = multiply(lane, op);
  pthread_mutex_unlock(mutex);
  return status;
}

/* --- what was learned, as bytes --------------------------------------------------------------------------------------------------------------------- */

static int64_t bytes_of(int64_t records)
{
  return (int64_t)sizeof(struct header) + records * (int64_t)sizeof(struct record);
}

static int64_t count_used(const struct matmul_cache *cache)
{
  int64_t n = 0;
  for (int64_t i = 0; i < cache->slots; i++)
    n += cache->entry[i].used;
  return n;
}

/* What was measured here. How many those are. */
static int64_t put_measured(const struct matmul_cache *cache, struct record *to)
{
  int64_t n = 0;
  for (int64_t i = 0; i < cache->slots; i++)
    if (cache->entry[i].used && cache->entry[i].record.measured)
      to[n++] = cache->entry[i].record;
  return n;
}

/* What was used here, and what was told and not used: a run that goes on with other shapes for a while comes back to it. */
static void put_known(const struct matmul_cache *cache, struct record *to)
{
  for (int64_t i = 0; i < cache->slots; i++)
    if (cache->entry[i].known)
      *to++ = cache->entry[i].record;
}

static void put_header(const struct matmul_cache *cache, int64_t records, void *table)
{
  struct header header = {.kind = cache->kind, .records = records};
  header.sum = hash_bytes(HASH_START, (const char *)table + sizeof header, (size_t)records * sizeof(struct record));
  memcpy(table, &header, sizeof header);
}

/* Of a table, wherever it lies. */
static struct record record_at(const void *table, int64_t i)
{
  struct record record;
  memcpy(&record, (const char *)table + bytes_of(i), sizeof record);
  return record;
}

/* STATUS_INPUT where `data` is no table of this kind of GPU and library, or is not as it was written. */
static enum status check_table(const struct matmul_cache *cache, const void *data, int64_t bytes)
{
  struct header header;
  if (bytes >= (int64_t)sizeof header)
    memcpy(&header, data, sizeof header);
  if (bytes < (int64_t)sizeof header || memcmp(&header.kind, &cache->kind, sizeof header.kind) != 0)
    return status_set(STATUS_INPUT,
                      "what was learned of matrix products is another kind of GPU's, or another version of cuBLAS', than %s with %" PRId64,
                      cache->kind.name, cache->kind.version);
  const int64_t records = (bytes - (int64_t)sizeof header) / (int64_t)sizeof(struct record);
  bool good = header.records == records && bytes == bytes_of(records) &&
              header.sum == hash_bytes(HASH_START, (const char *)data + sizeof header, (size_t)records * sizeof(struct record));
  for (int64_t i = 0; good && i < records; i++) {
    const struct record record = record_at(data, i);
    good = record.way >= WAY_ALL && record.way <= WAY_NONE;
  }
  return good ? STATUS_OK : status_set(STATUS_INPUT, "what was learned of matrix products is damaged");
}

static enum status take(struct matmul_cache *cache, struct record record)
{
  enum status status = make_room(cache);
  if (status)
    return status;
  struct entry *entry = find_entry(cache, &record.key);
  cache->entries += !entry->known;
  destroy_product(&entry->product);
  *entry = (struct entry){.record = record, .known = true};
  return STATUS_OK;
}

static void write_cache(struct matmul_cache *cache);

/* Whoever asks is who found out for all: what is new goes to the file. */
enum status cuda_learned(struct device *device, void **out, int64_t *bytes)
{
  struct matmul_cache *cache = cuda_device(device)->algorithms;
  void *block = NULL;
  enum status status = STATUS_OK;
  pthread_mutex_lock(&cache->mutex);
  const int64_t records = cache->entries, need = records > 0 ? bytes_of(records) : 0;
  if (need > 0)
    status = mem_alloc(MEM_META, (size_t)need, &block);
  if (!status && need > 0) {
    put_known(cache, (void *)((char *)block + sizeof(struct header)));
    put_header(cache, records, block);
  }
  if (!status && cuda_device(device)->keeps_cache)
    write_cache(cache);
  pthread_mutex_unlock(&cache->mutex);
  if (status)
    return status;
  *out = block;
  *bytes = need;
  return STATUS_OK;
}

/* What is there of the same shape gives way, and the file is not asked: everybody is to use what one has found. */
enum status cuda_learn(struct device *device, const void *data, int64_t bytes)
{
  struct matmul_cache *cache = cuda_device(device)->algorithms;
  if (bytes == 0)
    return STATUS_OK;
  enum status status = check_table(cache, data, bytes);
  if (status)
    return status;
  pthread_mutex_lock(&cache->mutex);
  for (int64_t i = 0; !status && bytes_of(i) < bytes; i++)
    status = take(cache, record_at(data, i));
  pthread_mutex_unlock(&cache->mutex);
  return status;
}

/* --- the file ------------------------------------------------------------------------------------------------------------------------------------ */

/* Its records, the caller's to mem_free; *n 0 where there are none. It is a cache: what cannot be read is measured again. */
static struct record *read_cache(const struct matmul_cache *cache, int64_t *n)
{
  const int64_t most = bytes_of(MOST_KEPT);
  FILE *file = fopen(cache->path, "rb");
  void *data = NULL;
  *n = 0;
  if (!file)
    return NULL;
  if (mem_alloc(MEM_META, (size_t)most, &data)) {
    fclose(file);
    return NULL;
  }
  const int64_t bytes = (int64_t)fread(data, 1, (size_t)most, file);
  fclose(file);
  if (check_table(cache, data, bytes)) {
    log_debug("%s is not used: %s", cache->path, status_text());
    mem_free(data);
    return NULL;
  }
  *n = (bytes - (int64_t)sizeof(struct header)) / (int64_t)sizeof(struct record);
  memmove(data, (char *)data + sizeof(struct header), (size_t)*n * sizeof(struct record));
  return data;
}

static bool write_bytes(int file, const char *data, int64_t bytes)
{
  for (ssize_t n = 0; bytes > 0; data += n, bytes -= n) {
    n = write(file, data, (size_t)bytes);
    if (n < 0 && errno == EINTR)
      n = 0;
    else if (n <= 0)
      return false;
  }
  return !fsync(file) || errno == EINVAL; /* EINVAL: this file system has no such thing */
}

static bool sync_folder(const char *path)
{
  const int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0)
    return false;
  const bool good = !fsync(folder) || errno == EINVAL;
  return !close(folder) && good;
}

/* Complete under its name, or not there; other processes may do the same, on other machines too. */
static bool replace_file(const char *path, const void *data, int64_t bytes)
{
  char *temporary = mem_printf("%s.XXXXXX", path), *folder = mem_strdup(path);
  const int file = temporary && folder ? mkstemp(temporary) : -1;
  bool good = file >= 0 && write_bytes(file, data, bytes);
  if (file >= 0) {
    good = !close(file) && good && !rename(temporary, path);
    if (!good)
      (void)unlink(temporary);
  }
  if (good) {
    *strrchr(folder, '/') = '\0';
    good = sync_folder(folder);
  }
  mem_free(temporary);
  mem_free(folder);
  return good;
}

/* To `to`: what the file holds now, without what is known better here. How much that is. */
static int64_t put_others(const struct matmul_cache *cache, const struct record *kept, int64_t n, struct record *to)
{
  int64_t others = 0;
  for (int64_t i = 0; i < n; i++) {
    const struct entry *entry = find_entry(cache, &kept[i].key);
    if (!entry->used || !entry->record.measured)
      to[others++] = kept[i];
  }
  return others;
}

/* What other runs have written meanwhile stays, oldest first, and the oldest go where there is too much. */
static void write_cache(struct matmul_cache *cache)
{
  if (!cache->path || !cache->news)
    return;
  int64_t n = 0;
  struct record *kept = read_cache(cache, &n);
  void *data;
  if (!mem_alloc(MEM_META, (size_t)bytes_of(n + count_used(cache)), &data)) {
    struct record *record = (void *)((char *)data + sizeof(struct header));
    const int64_t others = put_others(cache, kept, n, record), all = others + put_measured(cache, record + others);
    const int64_t written = all < MOST_KEPT ? all : MOST_KEPT;
    memmove(record, record + all - written, (size_t)written * sizeof *record);
    put_header(cache, written, data);
    if (replace_file(cache->path, data, bytes_of(written)))
      cache->news = false;
    else
      log_debug("%s was not written: %s", cache->path, strerror(errno));
    mem_free(data);
  }
  mem_free(kept);
}

/* In $XDG_CACHE_HOME, else in $HOME/.cache; with neither nothing is kept. */
static char *cache_path(const struct kind *kind)
{
  const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  char name[sizeof kind->name];
  snprintf(name, sizeof name, "%s", kind->name);
  for (char *c = name; *c; c++)
    if (*c == ' ' || *c == '/')
      *c = '-';
  char *folder = xdg && *xdg ? mem_strdup(xdg) : home && *home ? mem_printf("%s/.cache", home) : NULL;
  if (!folder)
    return NULL;
  (void)mkdir(folder, 0700);
  char *path = mem_printf("%s/sluice-matmul-%s-%" PRId64, folder, name, kind->version);
  mem_free(folder);
  return path;
}

enum status matmul_cache_create(const struct cuda_device *device, struct matmul_cache **out)
{
  void *block;
  enum status status = mem_alloc(MEM_META, sizeof(struct matmul_cache), &block);
  if (status)
    return status;
  struct matmul_cache *cache = block;
  pthread_mutex_init(&cache->mutex, NULL); /* with default attributes these do not fail on Linux */
  cache->kind = (struct kind){.magic = "sluice3",
                              .version = (int64_t)cublasLtGetVersion(),
                              .multiprocessors = device->multiprocessors,
                              .workspace = CUDA_WORKSPACE,
                              .record_bytes = sizeof(struct record)};
  snprintf(cache->kind.name, sizeof cache->kind.name, "%s", device->name);
  status = make_room(cache);
  if (status) {
    matmul_cache_destroy(cache);
    return status;
  }
  cache->path = cache_path(&cache->kind);
  if (cache->path)
    cache->kept = read_cache(cache, &cache->n_kept);
  *out = cache;
  return STATUS_OK;
}

void matmul_cache_destroy(struct matmul_cache *cache)
{
  if (!cache)
    return;
  for (int64_t i = 0; i < cache->slots; i++)
    destroy_product(&cache->entry[i].product);
  pthread_mutex_destroy(&cache->mutex);
  mem_free(cache->entry);
  mem_free(cache->kept);
  mem_free(cache->path);
  mem_free(cache);
}
