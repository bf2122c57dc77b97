/* A header before each block has its size and tag, so a release is counted too. */
#include "base/mem.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/open.h"

enum {
  ALIGN = 64,
  PAGE = 65536,
  HUGE_PAGE = 2 << 20
}; /* PAGE: a multiple of every Linux page size in use */

/* Lies right before each block. */
struct header {
  _Alignas(ALIGN) size_t bytes; /* as asked for */
  size_t mapped;                /* bytes after the header that are mmap'ed, 0: from malloc */
  enum mem_tag tag;
};

static struct {
  _Atomic int64_t bytes, peak_bytes, calls;
} usage[MEM_TAG_COUNT];

const char *mem_tag_name(enum mem_tag tag)
{
  static const char *const names[MEM_TAG_COUNT] = {[MEM_ARENA_PERSISTENT] = "persistent arena",
                                                   [MEM_ARENA_TRANSIENT] = "transient arena",
                                                   [MEM_DATA] = "data",
                                                   [MEM_IO] = "i/o",
                                                   [MEM_META] = "meta"};
  return (unsigned)tag < MEM_TAG_COUNT ? names[tag] : "unknown";
}

struct mem_amount mem_amount(double bytes)
{
  static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  struct mem_amount amount;
  int u = 0;
  for (; fabs(bytes) >= (u == 0 ? 1023.5 : 1023.995) && u < 6; u++) /* 1024 after rounding */
    bytes /= 1024;
  const char *format = u == 0 ? "%.0f %s" : fabs(bytes) < 1e6 ? "%.2f %s" : "%.3g %s";
  snprintf(amount.text, sizeof amount.text, format, bytes, unit[u]);
  return amount;
}

static void count(enum mem_tag tag, int64_t bytes)
{
  int64_t now = atomic_fetch_add(&usage[tag].bytes, bytes) + bytes,
          peak = atomic_load(&usage[tag].peak_bytes);
  while (now > peak && !atomic_compare_exchange_weak(&usage[tag].peak_bytes, &peak, now))
    ;
}

void mem_note(enum mem_tag tag, int64_t bytes)
{
  if (bytes > 0)
    atomic_fetch_add(&usage[tag].calls, 1);
  count(tag, bytes);
}

static size_t round_up(size_t bytes, size_t to)
{
  return (bytes + to - 1) / to * to;
}

/* The block starts on a huge page, so that all of it except the tail can use huge pages. The header
 * has its own page before the block. */
static struct header *map_block(size_t bytes)
{
  size_t mapped = round_up(bytes, PAGE), total = mapped + HUGE_PAGE + PAGE;
  char *base = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED)
    return NULL;
  char *block = (char *)round_up((uintptr_t)base + PAGE, HUGE_PAGE), *end = block + mapped;
  size_t head = (size_t)(block - PAGE - base), tail = (size_t)(base + total - end);
  if ((head && munmap(base, head) != 0) || (tail && munmap(end, tail) != 0))
    return NULL;
  (void)madvise(block, mapped,
                MADV_HUGEPAGE); /* advice only: a kernel without huge pages refuses it */
  struct header *header = (struct header *)block - 1;
  header->mapped = mapped;
  return header;
}

static struct header *heap_block(size_t bytes)
{
  size_t total = round_up(sizeof(struct header) + bytes, ALIGN);
  struct header *header = aligned_alloc(ALIGN, total);
  if (header)
    memset(header, 0, total);
  return header;
}

enum status mem_alloc(enum mem_tag tag, size_t bytes, void **out)
{
  if (bytes > PTRDIFF_MAX - HUGE_PAGE - 2 * PAGE)
    return status_set(STATUS_MEMORY, "a block of %zu bytes for %s is larger than the address space",
                      bytes, mem_tag_name(tag));
  struct header *header = bytes >= HUGE_PAGE ? map_block(bytes) : heap_block(bytes);
  if (!header)
    return status_set(STATUS_MEMORY,
                      "no memory for %zu bytes of %s: %s; the process holds %lld MiB", bytes,
                      mem_tag_name(tag), strerror(errno), (long long)(mem_resident_bytes() >> 20));
  header->bytes = bytes;
  header->tag = tag;
  atomic_fetch_add(&usage[tag].calls, 1);
  count(tag, (int64_t)bytes);
  *out = header + 1;
  return STATUS_OK;
}

enum status mem_resize(enum mem_tag tag, size_t bytes, void **ptr)
{
  void *fresh;
  enum status status = mem_alloc(tag, bytes, &fresh);
  if (status)
    return status;
  if (*ptr) {
    const struct header *old = (const struct header *)*ptr - 1;
    memcpy(fresh, *ptr, old->bytes < bytes ? old->bytes : bytes);
    mem_free(*ptr);
  }
  *ptr = fresh;
  return STATUS_OK;
}

enum status mem_grow(enum mem_tag tag, void **array, int64_t *room, int64_t need, int64_t size)
{
  if (need <= *room)
    return STATUS_OK;
  const int64_t fresh = need + need / 2;
  const enum status status = mem_resize(tag, (size_t)(fresh * size), array);
  if (!status)
    *room = fresh;
  return status;
}

void mem_free(void *ptr)
{
  if (!ptr)
    return;
  struct header *header = (struct header *)ptr - 1;
  count(header->tag, -(int64_t)header->bytes);
  if (!header->mapped) {
    free(header);
    return;
  }
  if (munmap((char *)ptr - PAGE, header->mapped + PAGE) != 0)
    abort(); /* only a pointer that is not from mem_alloc(), or was freed before, gets here */
}

char *mem_strdup(const char *text)
{
  const size_t bytes = strlen(text) + 1;
  void *out = NULL;
  if (mem_alloc(MEM_META, bytes, &out) == STATUS_OK)
    memcpy(out, text, bytes);
  return out;
}

char *mem_printf(const char *format, ...)
{
  va_list args, again;
  void *out = NULL;
  va_start(args, format);
  va_copy(again, args);
  int length = vsnprintf(NULL, 0, format, args);
  if (length < 0)
    status_set(STATUS_INTERNAL, "a text cannot be formatted: %s", strerror(errno));
  else if (mem_alloc(MEM_META, (size_t)length + 1, &out) == STATUS_OK)
    vsnprintf(out, (size_t)length + 1, format, again);
  va_end(again);
  va_end(args);
  return out;
}

struct mem_usage mem_usage(enum mem_tag tag)
{
  return (struct mem_usage){.bytes = atomic_load(&usage[tag].bytes),
                            .peak_bytes = atomic_load(&usage[tag].peak_bytes),
                            .calls = atomic_load(&usage[tag].calls)};
}

int64_t mem_calls(void)
{
  int64_t calls = 0;
  for (int tag = 0; tag < MEM_TAG_COUNT; tag++)
    calls += atomic_load(&usage[tag].calls);
  return calls;
}

int64_t mem_resident_bytes(void)
{
  char text[128];
  long long pages;
  if (!open_read_text("/proc/self/statm", text, sizeof text))
    return -1;
  return sscanf(text, "%*d %lld", &pages) == 1 ? pages * sysconf(_SC_PAGESIZE) : -1;
}

/* A line of /proc/meminfo, in bytes. */
static int64_t read_meminfo(const char *name)
{
  char text[1024];
  long long kib;
  const char *line = open_read_text("/proc/meminfo", text, sizeof text) ? strstr(text, name) : NULL;
  return line && sscanf(line + strlen(name), ": %lld", &kib) == 1 ? kib * 1024 : -1;
}

int64_t mem_available_bytes(void)
{
  return read_meminfo("MemAvailable");
}

int64_t mem_total_bytes(void)
{
  return read_meminfo("MemTotal");
}

bool mem_total_grows(const char *proc)
{
  char path[1024];
  snprintf(path, sizeof path, "%s/zoneinfo", proc);
  return access(path, F_OK) != 0;
}

int64_t mem_limit_bytes(void)
{
  return cgroup_limits().bytes;
}

int64_t mem_lock_limit_bytes(void)
{
  struct rlimit limit;
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      limit.rlim_cur > INT64_MAX)
    return -1;
  return (int64_t)limit.rlim_cur;
}
