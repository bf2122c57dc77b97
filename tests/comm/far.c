#include "far.h"
#include "tests/test.h"

#include <sys/mman.h>
#include <unistd.h>

enum { MOST_REGIONS = 64 };

static struct region {
  char *named, *real;
  size_t bytes; /* whole pages */
} region[MOST_REGIONS];
static int regions;

static struct region *region_of(const void *ptr)
{
  for (int i = 0; i < regions; i++)
    if ((const char *)ptr >= region[i].named &&
        (const char *)ptr < region[i].named + region[i].bytes)
      return &region[i];
  return NULL;
}

static void *map(size_t bytes, int access)
{
  void *ptr = mmap(NULL, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(ptr != MAP_FAILED);
  return ptr;
}

void *far_alloc(size_t bytes, bool reached)
{
  const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page) / page * page;
  assert_true(regions < MOST_REGIONS);
  struct region fresh = {.real = map(whole, PROT_READ | PROT_WRITE), .bytes = whole};
  fresh.named = reached ? fresh.real : map(whole, PROT_NONE);
  region[regions++] = fresh;
  return fresh.named;
}

void far_free(void *ptr)
{
  struct region *old = region_of(ptr);
  assert_true(old && old->named == ptr);
  assert_int_equal(munmap(old->real, old->bytes), 0);
  if (old->named != old->real)
    assert_int_equal(munmap(old->named, old->bytes), 0);
  *old = region[--regions];
}

int far_allocations(void)
{
  return regions;
}

bool far_holds(const void *ptr)
{
  return region_of(ptr) != NULL;
}

void *far_real(const void *ptr)
{
  const struct region *in = region_of(ptr);
  return in ? in->real + ((const char *)ptr - in->named) : (void *)(uintptr_t)ptr;
}

void far_check(const void *ptr, size_t bytes)
{
  const struct region *in = region_of(ptr);
  assert_true(!in || (const char *)ptr + bytes <= in->named + in->bytes);
}
