/* The choice of an algorithm for a shape, and of how much of the epilogue is part of it. It is
 * measured at the first product of the shape. If nothing is read from c, it is measured on c
 * itself, which the product overwrites afterwards. Algorithms that add up parts in no fixed order,
 * or in less than fp32, are left out. */
#include "gpu/matmul_private.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/log.h"

enum { CANDIDATES = 64, FEWEST = 8, RUNS = 5 };
static const float FIRST_MS = 180, FINAL_MS = 120; /* time limits for the first look at the
                                                      candidates, and for comparing the best */

/* --- the candidates ------------------------------------------------------ */

static cublasStatus_t prefer(cublasLtMatmulPreference_t preference, const struct matmul_key *key)
{
  const uint64_t workspace = CUDA_WORKSPACE;
  const uint32_t a = key->align[1], b = key->align[0], c = key->align[2];
  uint32_t schemes =
      CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE; /* and none; in place is in no fixed order */
  if (key->trans_a || (key->operands != OPERANDS_BF16 && key->operands != OPERANDS_FP8 &&
                       key->operands != OPERANDS_FP8_TENSOR))
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
    error = cublasLtMatmulPreferenceSetAttribute(preference, wishes[i].what, wishes[i].value,
                                                 wishes[i].bytes);
  return error;
}

/* Returns the number found. */
static int candidates(struct lane *lane, const struct matmul_key *key,
                      const struct matmul_product *p, cublasLtMatmulHeuristicResult_t *found)
{
  cublasLtMatmulPreference_t preference = NULL;
  int n = 0;
  const cublasStatus_t error =
      cublasLtMatmulPreferenceCreate(&preference)
      ?: prefer(preference, key)
      ?: cublasLtMatmulAlgoGetHeuristic(cuda_device(lane->device)->blas, p->desc, p->a, p->b, p->c,
                                        p->c, preference, CANDIDATES, found, &n);
  if (preference)
    (void)cublasLtMatmulPreferenceDestroy(preference);
  return error ? 0 : n;
}

/* --- measuring ----------------------------------------------------------- */

/* A shape's first product, one way of doing it at a time. */
struct trial {
  struct lane *lane;
  const struct matmul *op;
  const struct matmul_product *product;
  enum matmul_way way;
  void *c;         /* op->c, or memory in its place */
  bool to_the_end; /* the rest of the epilogue is measured too */
  cudaEvent_t event[CANDIDATES + 1];
};

static bool try_once(const struct trial *trial, const cublasLtMatmulAlgo_t *algo)
{
  void *d = matmul_target(trial->op, trial->way) == trial->op->c ? trial->c : trial->op->aux;
  return !matmul_run(trial->lane, trial->op, trial->product, algo, d) &&
         (!trial->to_the_end || !matmul_finish(trial->lane, trial->op, trial->way, trial->c));
}

static bool mark(const struct trial *trial, int i)
{
  return !cudaEventRecord(trial->event[i], cuda_lane(trial->lane)->stream);
}

static bool elapsed(const struct trial *trial, int i, float *ms)
{
  return !cudaEventSynchronize(trial->event[i + 1]) &&
         !cudaEventElapsedTime(ms, trial->event[i], trial->event[i + 1]);
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

/* Fills `out` with the candidates that run, fastest first, as far as time permits. Each is timed
 * after one run, which loads what it needs. Returns their number. */
static int look_at_all(const struct trial *trial, const cublasLtMatmulHeuristicResult_t *found,
                       int n, struct candidate *out)
{
  int good = 0;
  float spent = 0;
  for (int i = 0; i < n && (good < FEWEST || spent < FIRST_MS); i++) {
    const cublasLtMatmulAlgo_t *algo = &found[i].algo;
    float ms = 0;
    if (!try_once(trial, algo) || !mark(trial, 0) || !try_once(trial, algo) || !mark(trial, 1) ||
        !elapsed(trial, 0, &ms))
      continue;
    out[good++] = (struct candidate){.algo = *algo, .ms = ms};
    spent += 2 * ms;
  }
  qsort(out, (size_t)good, sizeof *out, compare_candidates);
  return good;
}

/* Runs the candidates alternately, so that a change of the clock rate affects all of them.
 * Candidate i is of trial[i]. */
static bool compare(const struct trial *const *trial, struct candidate *candidate, int n)
{
  for (int r = 0; r < RUNS; r++) {
    bool good = try_once(trial[0], &candidate[0].algo) &&
                mark(trial[0], 0); /* so that the first one does not wait for the host either */
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

/* Candidates close to the best are measured again. */
static bool fastest(const struct trial *trial, const cublasLtMatmulHeuristicResult_t *found, int n,
                    cublasLtMatmulAlgo_t *out)
{
  struct candidate candidate[CANDIDATES];
  const struct trial *trials[CANDIDATES];
  const int good = look_at_all(trial, found, n, candidate);
  int close = 0;
  if (good == 0)
    return false;
  while (close < good && candidate[close].ms <= 1.1f * candidate[0].ms &&
         (close < 2 || RUNS * (float)(close + 1) * candidate[0].ms < FINAL_MS))
    trials[close++] = trial;
  if (close > 1 && compare(trials, candidate, close))
    qsort(candidate, (size_t)close, sizeof *candidate, compare_candidates);
  *out = candidate[0].algo;
  return true;
}

/* --- choosing ------------------------------------------------------------ */

static struct trial trial_of(const struct trial *any, const struct matmul_entry *entry)
{
  struct trial trial = *any;
  trial.way = (enum matmul_way)entry->record.way;
  trial.product = &entry->product;
  return trial;
}

/* The best algorithm for one way of doing it. If nothing can be measured, it is the library's first
 * one. */
static enum status choose_algorithm(const struct trial *any, const struct matmul_key *key,
                                    bool measured, enum matmul_way way, struct matmul_entry *out)
{
  cublasLtMatmulHeuristicResult_t found[CANDIDATES];
  *out = (struct matmul_entry){.record = {.key = *key, .way = (int32_t)way, .measured = measured},
                               .used = true};
  enum status status = matmul_product_create(any->lane->device, any->op, way, &out->product);
  if (status)
    return status;
  const struct trial trial = trial_of(any, out);
  const int n = candidates(any->lane, key, &out->product, found);
  if (measured) {
    out->known = fastest(&trial, found, n, &out->record.algo);
  } else if (n > 0) {
    out->record.algo = found[0].algo;
    out->known = true;
  }
  if (!out->known)
    matmul_product_destroy(&out->product);
  return STATUS_OK;
}

/* Whether b is faster than a, including the rest of the epilogue. */
static bool better(const struct trial *any, const struct matmul_entry *b,
                   const struct matmul_entry *a)
{
  struct trial trial[2] = {trial_of(any, a), trial_of(any, b)};
  struct candidate candidate[2] = {{.algo = a->record.algo}, {.algo = b->record.algo}};
  trial[0].to_the_end = trial[1].to_the_end = true;
  return compare((const struct trial *[]){&trial[0], &trial[1]}, candidate, 2) &&
         candidate[1].ms < candidate[0].ms;
}

/* The whole epilogue in the product, or as much of it as the library supports. A bias is free
 * there. A GELU may not be, so a separate pass competes with it. */
static enum status choose_way(const struct trial *any, const struct matmul_key *key, bool measured,
                              struct matmul_entry *best)
{
  const enum epilogue epilogue = any->op->epilogue;
  const enum matmul_way rival = epilogue == EPILOGUE_BIAS_GELU ? MATMUL_WAY_BIAS
                                : epilogue == EPILOGUE_DGELU   ? MATMUL_WAY_NONE
                                                               : MATMUL_WAY_ALL;
  *best = (struct matmul_entry){0};
  for (enum matmul_way way = MATMUL_WAY_ALL; way <= MATMUL_WAY_NONE; way++) {
    struct matmul_entry next;
    if ((way == MATMUL_WAY_BIAS && epilogue != EPILOGUE_BIAS_GELU) ||
        (best->known && (!measured || way != rival)))
      continue;
    enum status status = choose_algorithm(any, key, measured, way, &next);
    if (status) {
      matmul_product_destroy(&best->product);
      return status;
    }
    if (!next.known)
      continue;
    if (best->known && !better(any, &next, best)) {
      matmul_product_destroy(&next.product);
      continue;
    }
    matmul_product_destroy(&best->product);
    *best = next;
  }
  return STATUS_OK;
}

/* Needs of a trial besides the operands. Where c is read, outputs go to scratch memory, so that
 * nothing is added twice. */
static bool prepare(struct trial *trial, void **scratch)
{
  const struct matmul *op = trial->op;
  const size_t element =
      op->trans_a || op->gradient ? sizeof(float) : dtype_size(trial->lane->device->model.compute);
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

enum status matmul_choose(struct lane *lane, const struct matmul *op, const struct matmul_key *key,
                          struct matmul_entry *out)
{
  struct trial any = {.lane = lane, .op = op, .c = op->c};
  struct matmul_entry best;
  void *scratch = NULL;
  const bool measured = prepare(&any, &scratch);
  if (!measured)
    log_warn("no memory of the GPU is left to try algorithms for a product of %" PRId64
             " x %" PRId64 " x %" PRId64 ": cuBLAS' first guess computes it, which may be slow",
             op->m, op->n, op->k);
  enum status status = choose_way(&any, key, measured, &best);
  (void)cudaFree(scratch);
  for (int i = 0; i <= CANDIDATES; i++)
    if (any.event[i])
      (void)cudaEventDestroy(any.event[i]);
  (void)cudaGetLastError();
  if (status)
    return status;
  if (!best.known)
    return status_set(STATUS_UNSUPPORTED,
                      "cuBLAS has no algorithm for a product of %" PRId64 " x %" PRId64
                      " x %" PRId64,
                      op->m, op->n, op->k);
  *out = best;
  return STATUS_OK;
}
