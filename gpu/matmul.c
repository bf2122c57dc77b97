/* Matrix products through cuBLASLt. Row-major c = op(a) op(b) is column-major c^T = op(b)^T op(a)^T, so b is cuBLAS' first operand and nothing is ever transposed in
 * memory. Which algorithm serves a shape is measured once, on scratch memory, and kept in a file by GPU and library version. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "gpu/cuda.h"

enum { CANDIDATES = 12, TRIALS = 4, SLOTS = 1024 };

struct shape_key {
  int64_t m, n, k, lda, ldb, ldc;
  int32_t trans_a, trans_b, accumulate, epilogue, out_gradient, bf16;
};

struct entry {
  struct shape_key key;
  cublasLtMatmulAlgo_t algo;
  bool used;
};

struct matmul_cache {
  char *path; /* NULL: not kept */
  bool changed;
  int entries;
  struct entry entry[SLOTS];
};

static struct shape_key key_of(const struct device *device, const struct matmul *op)
{
  return (struct shape_key){.m = op->m,
                            .n = op->n,
                            .k = op->k,
                            .lda = op->lda,
                            .ldb = op->ldb,
                            .ldc = op->ldc,
                            .trans_a = op->trans_a,
                            .trans_b = op->trans_b,
                            .accumulate = op->accumulate,
                            .epilogue = op->epilogue,
                            .out_gradient = op->trans_a,
                            .bf16 = device->compute == DTYPE_BF16};
}

static uint64_t hash_key(const struct shape_key *key)
{
  const unsigned char *byte = (const unsigned char *)key;
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < sizeof *key; i++)
    hash = (hash ^ byte[i]) * UINT64_C(0x100000001b3);
  return hash;
}

static struct entry *find_entry(struct matmul_cache *cache, const struct shape_key *key)
{
  for (uint64_t i = hash_key(key);; i++) {
    struct entry *entry = &cache->entry[i % SLOTS];
    if (!entry->used || memcmp(&entry->key, key, sizeof *key) == 0)
      return entry;
  }
}

/* --- one product's descriptors --------------------------------------------------------------------------------------------------------------- */

struct product {
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t a, b, c;
};

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
}

static cublasStatus_t set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what, const void *value, size_t bytes)
{
  return cublasLtMatmulDescSetAttribute(desc, what, value, bytes);
}

static cublasStatus_t set_epilogue(cublasLtMatmulDesc_t desc, const struct matmul *op)
{
  static const cublasLtEpilogue_t epilogues[] = {[EPILOGUE_NONE] = CUBLASLT_EPILOGUE_DEFAULT,
                                                 [EPILOGUE_BIAS] = CUBLASLT_EPILOGUE_BIAS,
                                                 [EPILOGUE_BIAS_GELU] = CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                                                 [EPILOGUE_DGELU] = CUBLASLT_EPILOGUE_DGELU};
  const cublasLtEpilogue_t epilogue = epilogues[op->epilogue];
  cublasStatus_t error = set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
  if (!error && op->bias)
    error = set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &op->bias, sizeof op->bias);
  if (!error && op->aux) {
    error = set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &op->aux, sizeof op->aux);
    if (!error)
      error = set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &op->ldc, sizeof op->ldc);
  }
  return error;
}

static enum status describe(const struct device *device, const struct matmul *op, struct product *out)
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
    error = set_epilogue(p.desc, op);
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

static cublasStatus_t run(struct lane *lane, const struct matmul *op, const struct product *p, const cublasLtMatmulAlgo_t *algo, void *d)
{
  struct cuda_lane *cuda = cuda_lane(lane);
  const float one = 1, beta = op->accumulate ? 1 : 0;
  return cublasLtMatmul(cuda_device(lane->device)->blas, p->desc, &one, op->b, p->a, op->a, p->b, &beta, op->c, p->c, d, p->c, algo, cuda->workspace,
                        cuda->workspace_bytes, cuda->stream);
}

/* --- the choice of an algorithm ---------------------------------------------------------------------------------------------------------------- */

static uint32_t alignment_of(const void *p)
{
  const uintptr_t bits = (uintptr_t)p;
  return bits % 256 == 0 ? 256 : (uint32_t)(bits & -bits);
}

static enum status candidates(struct lane *lane, const struct matmul *op, const struct product *p, cublasLtMatmulHeuristicResult_t *found, int *n)
{
  struct cuda_lane *cuda = cuda_lane(lane);
  const uint64_t workspace = cuda->workspace_bytes;
  const uint32_t a = alignment_of(op->b), b = alignment_of(op->a), c = alignment_of(op->c);
  cublasLtMatmulPreference_t preference = NULL;
  cublasStatus_t error = cublasLtMatmulPreferenceCreate(&preference);
  if (!error)
    error = cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
  if (!error)
    error = cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof a);
  if (!error)
    error = cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof b);
  if (!error)
    error = cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof c);
  if (!error)
    error = cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c, sizeof c);
  if (!error)
    error = cublasLtMatmulAlgoGetHeuristic(cuda_device(lane->device)->blas, p->desc, p->a, p->b, p->c, p->c, preference, CANDIDATES, found, n);
  if (preference)
    (void)cublasLtMatmulPreferenceDestroy(preference);
  if (error || *n == 0)
    return status_set(STATUS_UNSUPPORTED, "cuBLAS has no algorithm for a product of %" PRId64 " x %" PRId64 " x %" PRId64 " (%s)", op->m, op->n,
                      op->k, cublasLtGetStatusString(error ? error : CUBLAS_STATUS_NOT_SUPPORTED));
  return STATUS_OK;
}

/* Milliseconds of the fastest of a few runs; negative where it does not run. */
static float time_algorithm(struct lane *lane, const struct matmul *op, const struct product *p, const cublasLtMatmulAlgo_t *algo, void *scratch,
                            cudaEvent_t from, cudaEvent_t to)
{
  cudaStream_t stream = cuda_lane(lane)->stream;
  float best = -1;
  if (run(lane, op, p, algo, scratch))
    return -1;
  for (int i = 0; i < TRIALS; i++) {
    float ms = -1;
    if (cudaEventRecord(from, stream) || run(lane, op, p, algo, scratch) || cudaEventRecord(to, stream) || cudaEventSynchronize(to) ||
        cudaEventElapsedTime(&ms, from, to))
      return -1;
    if (best < 0 || ms < best)
      best = ms;
  }
  return best;
}

/* Outputs go to scratch memory, so that sums are not added twice; the auxiliary output is the same each time. */
static enum status choose(struct lane *lane, const struct matmul *op, const struct product *p, cublasLtMatmulAlgo_t *out)
{
  cublasLtMatmulHeuristicResult_t found[CANDIDATES];
  int n = 0;
  enum status status = candidates(lane, op, p, found, &n);
  if (status)
    return status;
  *out = found[0].algo;
  const size_t element = op->trans_a ? sizeof(float) : dtype_size(lane->device->compute);
  void *scratch = NULL;
  cudaEvent_t event[2] = {NULL, NULL};
  float best = -1;
  const bool room = !cudaMalloc(&scratch, (size_t)op->m * (size_t)op->ldc * element) && !cudaEventCreate(&event[0]) && !cudaEventCreate(&event[1]);
  for (int i = 0; room && n > 1 && i < n; i++) {
    const float ms = time_algorithm(lane, op, p, &found[i].algo, scratch, event[0], event[1]);
    if (ms >= 0 && (best < 0 || ms < best)) {
      best = ms;
      *out = found[i].algo;
    }
  }
  for (int i = 0; i < 2; i++)
    if (event[i])
      (void)cudaEventDestroy(event[i]);
  (void)cudaFree(scratch);
  (void)cudaGetLastError(); /* without room or with one candidate the first one serves */
  return STATUS_OK;
}

static enum status algorithm_of(struct lane *lane, const struct matmul *op, const struct product *p, cublasLtMatmulAlgo_t *out)
{
  struct matmul_cache *cache = cuda_device(lane->device)->algorithms;
  const struct shape_key key = key_of(lane->device, op);
  struct entry *entry = find_entry(cache, &key);
  if (!entry->used) {
    enum status status = choose(lane, op, p, &entry->algo);
    if (status)
      return status;
    if (cache->entries + 1 >= SLOTS)
      return status_set(STATUS_UNSUPPORTED, "more than %d shapes of matrix products in one run", SLOTS - 1);
    entry->key = key;
    entry->used = cache->changed = true;
    cache->entries++;
  }
  *out = entry->algo;
  return STATUS_OK;
}

enum status cuda_matmul(struct lane *lane, const struct matmul *op)
{
  struct product p;
  cublasLtMatmulAlgo_t algo;
  if (op->m == 0 || op->n == 0)
    return STATUS_OK;
  enum status status = describe(lane->device, op, &p);
  if (status)
    return status;
  status = algorithm_of(lane, op, &p, &algo);
  if (!status)
    status = cublas_check(run(lane, op, &p, &algo, op->c), "a matrix product");
  destroy_product(&p);
  return status;
}

/* --- the file ------------------------------------------------------------------------------------------------------------------------------------ */

static void read_cache(struct matmul_cache *cache)
{
  FILE *file = fopen(cache->path, "rb");
  struct entry entry;
  if (!file)
    return;
  while (cache->entries + 1 < SLOTS && fread(&entry, sizeof entry, 1, file) == 1) {
    struct entry *slot = find_entry(cache, &entry.key);
    cache->entries += !slot->used;
    *slot = entry;
    slot->used = true;
  }
  fclose(file);
}

static void write_cache(const struct matmul_cache *cache)
{
  char *temporary = mem_printf("%s.%ld", cache->path, (long)getpid());
  FILE *file = temporary ? fopen(temporary, "wb") : NULL;
  bool good = file != NULL;
  for (int i = 0; good && i < SLOTS; i++)
    if (cache->entry[i].used)
      good = fwrite(&cache->entry[i], sizeof cache->entry[i], 1, file) == 1;
  if (file && fclose(file))
    good = false;
  if (file && (!good || rename(temporary, cache->path)))
    (void)remove(temporary); /* it is a cache: the next run measures again */
  mem_free(temporary);
}

/* $XDG_CACHE_HOME/sluice/..., else $HOME/.cache/sluice/...; with neither nothing is kept. */
static char *cache_path(const struct cuda_device *device)
{
  const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  char name[sizeof device->name];
  snprintf(name, sizeof name, "%s", device->name);
  for (char *c = name; *c; c++)
    if (*c == ' ' || *c == '/')
      *c = '-';
  if (cache && *cache)
    return mem_printf("%s/sluice-matmul-%s-%zu", cache, name, cublasLtGetVersion());
  return home && *home ? mem_printf("%s/.cache/sluice-matmul-%s-%zu", home, name, cublasLtGetVersion()) : NULL;
}

enum status matmul_cache_create(const struct cuda_device *device, struct matmul_cache **out)
{
  void *block;
  enum status status = mem_alloc(MEM_META, sizeof(struct matmul_cache), &block);
  if (status)
    return status;
  struct matmul_cache *cache = block;
  cache->path = cache_path(device);
  if (cache->path)
    read_cache(cache);
  *out = cache;
  return STATUS_OK;
}

void matmul_cache_destroy(struct matmul_cache *cache)
{
  if (!cache)
    return;
  if (cache->path && cache->changed)
    write_cache(cache);
  mem_free(cache->path);
  mem_free(cache);
}
