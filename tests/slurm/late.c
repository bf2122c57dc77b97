/* No test, but a library that two_nodes.sh has ranks load before all others (LD_PRELOAD). Rank 0
 * learns two seconds late that its first PMIx fence is over, in which MPI_Init exchanges addresses.
 * Meanwhile the other ranks reach the next fence, which is the barrier of MPI_Init. PMIx is known
 * here by its standard: a header of it need not be there. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void over_fn(int status, void *arg);
typedef int fence_fn(const void *procs, size_t n_procs, const void *info, size_t n_info,
                     over_fn *over, void *arg);
fence_fn PMIx_Fence_nb;

static struct {
  over_fn *over;
  void *arg;
  int status;
} delayed;

static void *tell(void *unused)
{
  (void)sleep(2);
  fprintf(stderr, "late.so: rank 0 was told late\n");
  delayed.over(delayed.status, delayed.arg);
  return unused;
}

/* In PMIx' own thread, which MPI needs for the messages of the others. */
static void tell_late(int status, void *unused)
{
  pthread_t thread;
  (void)unused;
  delayed.status = status;
  if (pthread_create(&thread, NULL, tell, NULL) || pthread_detach(thread))
    abort();
}

static fence_fn *find_fence(void)
{
  void *library = dlopen("libpmix.so.2", RTLD_NOW);
  void *symbol = library ? dlsym(library, "PMIx_Fence_nb") : NULL;
  fence_fn *fence;
  if (!symbol)
    abort();
  memcpy(&fence, &symbol,
         sizeof fence); /* ISO C has no cast from an object's pointer to a function's */
  return fence;
}

int PMIx_Fence_nb(const void *procs, size_t n_procs, const void *info, size_t n_info, over_fn *over,
                  void *arg)
{
  static bool called;
  const char *rank = getenv("PMIX_RANK");
  const bool late = !called && rank && !strcmp(rank, "0");
  called = true;
  if (!late)
    return find_fence()(procs, n_procs, info, n_info, over, arg);
  delayed.over = over;
  delayed.arg = arg;
  return find_fence()(procs, n_procs, info, n_info, tell_late, NULL);
}
