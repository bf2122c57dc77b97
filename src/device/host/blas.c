/* OpenBLAS and workarounds for it. It computes the small products of attention. matmul.c says why
 * it does not compute the large ones. */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "device/host/host.h"

#define CORE_VARIABLE "OPENBLAS_CORETYPE"
/* Names the slow kernels, for the restarted program. */
#define RESTARTED_VARIABLE "SLUICE_RESTARTED_FROM"

static char slow[32]; /* empty: not restarted, or already logged */

const char *host_blas_remedy(const char *core, bool avx2, bool avx512)
{
  static const char *const wide[] = {"Haswell", "Zen", "SkylakeX", "Cooperlake", "Sapphirerapids"};
  for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++)
    if (strcasecmp(core, wide[i]) == 0)
      return NULL;
  return avx512 ? "SkylakeX" : avx2 ? "Haswell" : NULL;
}

static const char *remedy_here(void)
{
#if defined __x86_64__
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("avx512cd");
  return host_blas_remedy(openblas_get_corename(), avx2, avx512);
#else
  return NULL;
#endif
}

/* By its own path: pgrep and top name a process after the file that it was started from. */
void host_blas_restart(const char *core, char **argv)
{
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (setenv(CORE_VARIABLE, core, 1) == 0 &&
      setenv(RESTARTED_VARIABLE, openblas_get_corename(), 1) == 0 && length > 0) {
    path[length] = '\0';
    execv(path, argv);
    execv("/proc/self/exe", argv); /* the file has been replaced since */
  }
  unsetenv(RESTARTED_VARIABLE);
  unsetenv(CORE_VARIABLE); /* the restart failed: host_blas_start() will warn */
}

void device_prepare(char **argv)
{
  const char *core = remedy_here(), *from = getenv(RESTARTED_VARIABLE);
  snprintf(slow, sizeof slow, "%s", from ? from : "");
  unsetenv(RESTARTED_VARIABLE);
  if (core && !getenv(CORE_VARIABLE))
    host_blas_restart(core, argv);
}

void host_blas_start(void)
{
  const char *core = remedy_here();
  openblas_set_num_threads(1); /* lanes have their own threads, and call at the same time */
  if (*slow)
    log_info("OpenBLAS chose its slow '%s' kernels, so this program started itself again "
             "with " CORE_VARIABLE "=%s; set " CORE_VARIABLE " yourself to prevent that",
             slow, getenv(CORE_VARIABLE));
  *slow = '\0'; /* logged once */
  if (core)
    log_warn_alike("OpenBLAS does not know this processor and falls back to its slow '%s' kernels: "
                   "set " CORE_VARIABLE "=%s",
                   openblas_get_corename(), core);
}

enum status host_check_blas(const char *what, int64_t value)
{
  if (value < 0 || value != (int64_t)(blasint)value)
    return status_set(STATUS_INTERNAL,
                      "a matrix product has %s %lld, more than this OpenBLAS' %d-bit integers hold",
                      what, (long long)value, (int)(8 * sizeof(blasint)));
  return STATUS_OK;
}

void host_gemm(const struct gemm *g, struct gemm_tally *tally)
{
  int64_t start = clock_ns();
  cblas_sgemm(CblasRowMajor, g->trans_a ? CblasTrans : CblasNoTrans,
              g->trans_b ? CblasTrans : CblasNoTrans, (blasint)g->m, (blasint)g->n, (blasint)g->k,
              g->alpha, g->a.at, (blasint)g->a.ld, g->b.at, (blasint)g->b.ld, g->accumulate ? 1 : 0,
              g->c.at, (blasint)g->c.ld);
  atomic_fetch_add_explicit(&tally->ns, clock_ns() - start, memory_order_relaxed);
  atomic_fetch_add_explicit(&tally->flops, 2 * g->m * g->n * g->k, memory_order_relaxed);
}

void host_narrow(const struct kernels *kernels, const struct gemm *g, struct gemm_tally *tally)
{
  int64_t start = clock_ns();
  kernels->multiply_narrow(g);
  for (int64_t i = 0; i < g->m && g->alpha != 1; i++)
    kernels->scale(g->n, g->alpha, g->c.at + i * g->c.ld);
  atomic_fetch_add_explicit(&tally->ns, clock_ns() - start, memory_order_relaxed);
  atomic_fetch_add_explicit(&tally->flops, 2 * g->m * g->n * g->k, memory_order_relaxed);
}

void host_tally(struct lane *lane, struct gemm_tally *tally)
{
  lane->matmul_ns += atomic_load(&tally->ns) / team_size(lane->team);
  lane->matmul_flops += atomic_load(&tally->flops);
}
