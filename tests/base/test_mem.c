/* Tagged allocation. Oracle: the sums of what was asked for; the kernel's own count of resident
 * pages. */

#include <sys/resource.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/team.h"
#include "tests/test.h"

TEST(test_alignment_and_zeros)
{
  static const size_t sizes[] = {0,      1, 63, 64, 65, 4096, (2 << 20) - 1, 2 << 20, (2 << 20) + 1,
                                 7000000};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    void *block = NULL;
    must(mem_alloc(MEM_DATA, sizes[i], &block));
    assert_non_null(block);
    assert_int_equal((uintptr_t)block % (sizes[i] >= 2 << 20 ? 4096 : 64), 0);
    const char *bytes = block;
    for (size_t b = 0; b < sizes[i]; b++)
      if (bytes[b])
        fail_msg("byte %zu of %zu is not zero", b, sizes[i]);
    memset(block, 0xff, sizes[i]);
    mem_free(block);
  }
  mem_free(NULL);
}

TEST(test_counters)
{
  void *small, *large;
  struct mem_usage start = mem_usage(MEM_IO), now;
  int64_t calls = mem_calls();
  must(mem_alloc(MEM_IO, 1000, &small));
  must(mem_alloc(MEM_IO, 5000000, &large));
  now = mem_usage(MEM_IO);
  assert_int_equal(now.bytes - start.bytes, 5001000);
  assert_int_equal(now.calls - start.calls, 2);
  assert_int_equal(mem_calls() - calls, 2);
  must(mem_resize(MEM_IO, 3000, &small));
  mem_free(large);
  now = mem_usage(MEM_IO);
  assert_int_equal(now.bytes - start.bytes, 3000);
  assert_int_equal(now.peak_bytes, start.bytes + 5004000); /* while it is copied, both are held */
  mem_free(small);
  assert_int_equal(mem_usage(MEM_IO).bytes, start.bytes);
  assert_int_equal(mem_usage(MEM_IO).calls - start.calls, 3);
  assert_string_equal(mem_tag_name(MEM_IO), "i/o");
  assert_string_equal(mem_tag_name(MEM_TAG_COUNT), "unknown");
}

TEST(test_resize_keeps_content)
{
  static const size_t sizes[] = {10, 100000, 3 << 20, 9 << 20, 3 << 20, 500, 3};
  void *block = NULL;
  size_t kept = 0;
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    must(mem_resize(MEM_DATA, sizes[i], &block));
    unsigned char *bytes = block;
    for (size_t b = 0; b < sizes[i]; b++)
      if (bytes[b] != (b < kept ? (unsigned char)(b * 7 + 1) : 0))
        fail_msg("byte %zu after resizing to %zu", b, sizes[i]);
    for (size_t b = 0; b < sizes[i]; b++)
      bytes[b] = (unsigned char)(b * 7 + 1);
    kept = sizes[i];
  }
  mem_free(block);
}

TEST(test_out_of_memory)
{
  void *block = &block, *same = block;
  struct mem_usage start = mem_usage(MEM_ARENA_PERSISTENT), now;
  must_fail(mem_alloc(MEM_ARENA_PERSISTENT, SIZE_MAX, &block), STATUS_MEMORY, "persistent arena");
  must_fail(mem_alloc(MEM_ARENA_PERSISTENT, (size_t)1 << 55, &block), STATUS_MEMORY,
            "36028797018963968 bytes");
  assert_ptr_equal(block, same);
  now = mem_usage(MEM_ARENA_PERSISTENT);
  assert_memory_equal(&now, &start, sizeof now);

  must(mem_alloc(MEM_DATA, 4, &block));
  memcpy(block, "abc", 4);
  assert_int_equal(mem_resize(MEM_DATA, (size_t)1 << 55, &block), STATUS_MEMORY);
  assert_string_equal(block, "abc");
  mem_free(block);
}

/* An arena costs nothing before it is used, and its pages go back when it is freed. */
TEST(test_untouched)
{
  enum { MIB = 1 << 20 };
  void *block;
  int64_t start = mem_resident_bytes();
  assert_true(start > 0);
  must(mem_alloc(MEM_ARENA_TRANSIENT, (size_t)256 * MIB, &block));
  assert_true(mem_resident_bytes() - start < 32 * MIB);
  memset(block, 1, (size_t)64 * MIB);
  int64_t touched = mem_resident_bytes();
  assert_true(touched - start >= 60 * MIB);
  mem_free(block);
  assert_true(touched - mem_resident_bytes() >= 60 * MIB);
}

TEST(test_texts)
{
  char *copy = mem_strdup("a text"), *made = mem_printf("%s %d %05.1f", copy, 7, 2.25),
       *empty = mem_printf("%s", "");
  assert_string_equal(made, "a text 7 002.2");
  assert_string_equal(empty, "");
  mem_free(copy);
  mem_free(made);
  mem_free(empty);
}

static void churn(void *arg, int worker, int workers)
{
  (void)arg, (void)workers;
  for (int i = 0; i < 2000; i++) {
    void *block;
    if (mem_alloc(MEM_DATA, (size_t)(i + worker), &block) == STATUS_OK)
      mem_free(block);
  }
}

TEST(test_threads)
{
  struct team *team;
  struct mem_usage start = mem_usage(MEM_DATA);
  must(team_create(4, NULL, &team));
  team_run(team, churn, NULL);
  team_destroy(team);
  assert_int_equal(mem_usage(MEM_DATA).bytes, start.bytes);
  assert_int_equal(mem_usage(MEM_DATA).calls - start.calls, 4 * 2000);
}

/* Oracle: the machine's physical memory by sysconf(), and that what a process holds is no longer
 * available. */
TEST(test_available)
{
  int64_t physical = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  int64_t available = mem_available_bytes();
  assert_true(available > 0 && available <= physical);
  assert_true(available + mem_resident_bytes() <= physical);
}

static void write_limit(const char *root, const char *folder, const char *file, const char *text)
{
  char path[512];
  snprintf(path, sizeof path, "%s%s/%s", root, folder, file);
  FILE *to = fopen(path, "w");
  assert_non_null(to);
  fputs(text, to);
  fclose(to);
}

/* Oracle: a folder like Linux' /proc, and one like that of a kernel without pages. */
TEST(test_memory_that_grows)
{
  char root[64], command[256];
  snprintf(root, sizeof root, "%s/procXXXXXX",
           getenv("TMPDIR") && strlen(getenv("TMPDIR")) < 40 ? getenv("TMPDIR") : "/tmp");
  assert_non_null(mkdtemp(root));
  write_limit(root, "", "meminfo", "MemTotal:        2097152 kB\n");
  assert_true(mem_total_grows(root));
  write_limit(root, "", "zoneinfo", "Node 0, zone      DMA\n");
  assert_false(mem_total_grows(root));
  snprintf(command, sizeof command, "rm -r %s", root);
  assert_int_equal(system(command), 0);
}

/* Oracle: the kernel's file of the group at the top, than which no group is less bound; sysconf()
 * and getrlimit(). */
TEST(test_limits_of_this_process)
{
  double top = 0;
  FILE *file = fopen("/sys/fs/cgroup/memory.max", "r");
  if (!file)
    file = fopen("/sys/fs/cgroup/memory/memory.limit_in_bytes", "r");
  const int limited = file && fscanf(file, "%lf", &top) == 1 && top < 0x1p60;
  if (file)
    fclose(file);
  const int64_t limit = mem_limit_bytes();
  assert_true(limited ? limit > 0 && (double)limit <= top : limit == -1 || limit > 0);
  assert_int_equal(mem_total_bytes(), (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));

  struct rlimit usual;
  assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &usual), 0);
  struct rlimit low = {.rlim_cur = 65536, .rlim_max = usual.rlim_max};
  if (setrlimit(RLIMIT_MEMLOCK, &low) == 0)
    assert_int_equal(mem_lock_limit_bytes(), 65536);
  assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &usual), 0);
  assert_true(usual.rlim_cur == RLIM_INFINITY ? mem_lock_limit_bytes() == -1
                                              : mem_lock_limit_bytes() == (int64_t)usual.rlim_cur);
}

/* Oracle: the rule in mem.h, and what was written before. */
TEST(test_grow)
{
  int32_t *array = NULL;
  int64_t room = 0;
  for (int32_t n = 0; n < 1000; n++) {
    const int64_t before = room;
    must(mem_grow(MEM_DATA, (void **)&array, &room, n + 1, sizeof *array));
    assert_int_equal(room, n < before ? before : (n + 1) + (n + 1) / 2);
    array[n] = n;
  }
  for (int32_t n = 0; n < 1000; n++)
    assert_int_equal(array[n], n);
  const int32_t *same = array;
  const int64_t before = room;
  assert_int_equal(mem_grow(MEM_DATA, (void **)&array, &room, (int64_t)1 << 50, sizeof *array),
                   STATUS_MEMORY);
  assert_ptr_equal(array, same);
  assert_int_equal(room, before);
  mem_free(array);
}

/* Oracle: the sums of what was noted. */
TEST(test_note)
{
  const struct mem_usage start = mem_usage(MEM_IO);
  const int64_t calls = mem_calls();
  mem_note(MEM_IO, (int64_t)1 << 40);
  mem_note(MEM_IO, 1000);
  assert_int_equal(mem_usage(MEM_IO).bytes - start.bytes, ((int64_t)1 << 40) + 1000);
  assert_int_equal(mem_usage(MEM_IO).peak_bytes, start.bytes + ((int64_t)1 << 40) + 1000);
  mem_note(MEM_IO, -1000);
  mem_note(MEM_IO, -((int64_t)1 << 40));
  assert_int_equal(mem_usage(MEM_IO).bytes, start.bytes);
  assert_int_equal(mem_usage(MEM_IO).calls - start.calls, 2);
  assert_int_equal(mem_calls() - calls, 2);
}

/* Oracle: worked out by hand. */
TEST(test_amounts)
{
  static const struct {
    double bytes;
    const char *text;
  } known[] = {{0, "0 B"},
               {1, "1 B"},
               {1023, "1023 B"},
               {1024, "1.00 KiB"},
               {1536, "1.50 KiB"},
               {1048575, "1.00 MiB"},
               {1048576, "1.00 MiB"},
               {10.5 * 1048576, "10.50 MiB"},
               {0x1p30, "1.00 GiB"},
               {141e9, "131.32 GiB"},
               {0x1p40, "1.00 TiB"},
               {0x1p50, "1.00 PiB"},
               {0x1p60, "1.00 EiB"},
               {0x1p71, "2048.00 EiB"},
               {-0x1p31, "-2.00 GiB"}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    assert_string_equal(mem_amount(known[i].bytes).text, known[i].text);
}

TEST_MAIN(NULL, NULL)
