/* A running step allocates nothing: neither through base/mem.h nor past it. Oracle: mem_calls(),
 * and this program's own malloc(), which counts the calls that come from its text, where all of
 * Sluice is linked in statically (libraries have their own). */
/* ranks: 1 2 3 */
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>

#include "base/mem.h"
#include "job.h"
#include "tests/test.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OWN_MALLOC 0 /* they have theirs */
#elif defined(__GLIBC__)
#define OWN_MALLOC 1
#else
#define OWN_MALLOC 0
#endif

static _Atomic int64_t mallocs;

#if OWN_MALLOC
extern char __executable_start, etext;
extern void *__libc_malloc(size_t bytes), *__libc_calloc(size_t n, size_t bytes),
    *__libc_realloc(void *ptr, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

static void count(const void *caller)
{
  uintptr_t at = (uintptr_t)caller;
  if (at >= (uintptr_t)&__executable_start && at < (uintptr_t)&etext)
    atomic_fetch_add(&mallocs, 1);
}

void *malloc(size_t bytes)
{
  count(__builtin_return_address(0));
  return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
  count(__builtin_return_address(0));
  return __libc_calloc(n, bytes);
}

void *realloc(void *ptr, size_t bytes)
{
  count(__builtin_return_address(0));
  return __libc_realloc(ptr, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
  count(__builtin_return_address(0));
  return __libc_memalign(alignment, bytes);
}
#endif

TEST(allocations_are_counted)
{
  int64_t calls = mem_calls(), own = atomic_load(&mallocs);
  char *text = mem_strdup("text");
  assert_int_equal(mem_calls(), calls + 1);
  assert_int_equal(atomic_load(&mallocs), own + OWN_MALLOC);
  mem_free(text);
}

TEST(a_step_allocates_nothing)
{
  static const char *const setups[] = {
      "prefetch=1 recompute=2 micros=2 each_micro threads=2",
      "no_shard",
      "eval prefetch=1",
      "prefetch=1 llama frozen=*norm*",
      "prefetch=1 codec=topk feedback=int8 sample=2",
  };
  for (size_t i = 0; i < sizeof setups / sizeof setups[0]; i++) {
    struct job job;
    job_open(&job, job_comm, "%s", setups[i]);
    for (int step = 0; step < 2; step++)
      job_step(&job, step);
    must(exec_drain(job.exec));
    int64_t calls = mem_calls(), own = atomic_load(&mallocs);
    for (int step = 2; step < 5; step++) {
      struct plan_sample sample;
      job_step(&job, step);
      exec_read_sample(job.exec, 0, &sample);
    }
    must(exec_drain(job.exec));
    assert_int_equal(mem_calls(), calls);
    assert_int_equal(atomic_load(&mallocs), own);
    job_close(&job);
  }
}

TEST_MAIN(job_mpi_start, job_mpi_stop)
