/* Event files for TensorBoard. Oracle: the sizes of files. tests/cli/tensorboard.sh reads
 * files with a reader of its own. */
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/results/events.h"
#include "io/text/file.h"
#include "tests/test.h"

static char folder[256];

/* The event files: how many, and the path of the last one. */
static int list(char *last, size_t size)
{
  struct dirent **entry;
  int files = 0;
  const int n = scandir(folder, &entry, NULL, alphasort);
  for (int i = 0; i < n; i++) {
    if (strstr(entry[i]->d_name, "tfevents")) {
      files++;
      snprintf(last, size, "%s/%s", folder, entry[i]->d_name);
    }
    free(entry[i]);
  }
  free(entry);
  return files;
}

static int64_t size_of_last(void)
{
  char path[600] = "";
  assert_true(list(path, sizeof path) > 0);
  return file_size(path);
}

static void remove_all(void)
{
  char path[600];
  while (list(path, sizeof path) > 0)
    assert_int_equal(unlink(path), 0);
}

static void add_steps(struct events *events, int64_t first, int64_t last)
{
  for (int64_t step = first; step <= last; step++) {
    events_begin(events, step);
    events_add(events, "loss/train", 1.0 / (double)step);
    events_end(events);
  }
}

/* A file per start, also within a second. Events after the point of resume are removed, also whole
 * files. */
TEST(test_rewind)
{
  char first[600], second[600];
  remove_all();
  struct events *events = events_open(folder, 0);
  add_steps(events, 1, 3);
  const int64_t three = size_of_last();
  add_steps(events, 4, 9);
  events_close(events);
  assert_int_equal(list(first, sizeof first), 1);
  events = events_open(folder, 9);
  add_steps(events, 10, 12);
  events_close(events);
  assert_int_equal(list(second, sizeof second), 2);
  assert_true(strcmp(first, second) < 0);

  assert_int_equal(events_rewind(folder, 12), STATUS_OK);
  assert_int_equal(list(second, sizeof second), 2);
  assert_int_equal(events_rewind(folder, 3), STATUS_OK);
  assert_int_equal(list(second, sizeof second), 1);
  assert_string_equal(first, second);
  assert_int_equal(size_of_last(), three);
  assert_int_equal(events_rewind(folder, 0), STATUS_OK);
  assert_int_equal(list(second, sizeof second), 0);
  assert_int_equal(events_rewind("no such folder", 0), STATUS_OK);
}

static void put_byte(const char *path, int64_t at, int value)
{
  FILE *file = fopen(path, "r+");
  assert_non_null(file);
  assert_int_equal(fseek(file, (long)at, SEEK_SET), 0);
  assert_int_equal(fputc(value, file), value);
  assert_int_equal(fclose(file), 0);
}

/* Any byte of the last record: what TensorBoard would not read goes, and what it reads stays. */
TEST(test_damage)
{
  char path[600];
  remove_all();
  struct events *events = events_open(folder, 0);
  add_steps(events, 1, 4);
  const int64_t four = size_of_last();
  add_steps(events, 5, 5);
  events_close(events);
  assert_int_equal(list(path, sizeof path), 1);
  char *good = NULL;
  size_t bytes = 0;
  assert_int_equal(file_read_own(path, 1 << 20, &good, &bytes), STATUS_OK);
  for (int64_t at = four; at < (int64_t)bytes; at++) {
    put_byte(path, at, (good[at] ^ 1) & 255);
    assert_int_equal(events_rewind(folder, 5), STATUS_OK);
    assert_int_equal(size_of_last(), four);
    assert_int_equal(file_write_all(path, good, bytes), STATUS_OK);
  }
  assert_int_equal(events_rewind(folder, 5), STATUS_OK);
  assert_int_equal(size_of_last(), (int64_t)bytes);
  mem_free(good);
}

/* Names that are no times, and a file of 1 TiB, whose records end after the first step. */
TEST(test_forged_files)
{
  static const char *const names[] = {"99999999999999999999", "9223372036854775807", "10000000000"};
  char path[600], fresh[600];
  remove_all();
  for (int i = 0; i < 3; i++) {
    snprintf(path, sizeof path, "%s/events.out.tfevents.%s.sluice", folder, names[i]);
    assert_int_equal(file_write_all(path, "x", 1), STATUS_OK);
  }
  struct events *events = events_open(folder, 0);
  add_steps(events, 1, 1);
  const int64_t now = (int64_t)time(NULL);
  events_close(events);
  int found = 0;
  for (int64_t t = now - 60; t <= now + 60; t++) {
    snprintf(path, sizeof path, "%s/events.out.tfevents.%lld.sluice", folder, (long long)t);
    found += file_exists(path);
    if (file_exists(path))
      snprintf(fresh, sizeof fresh, "%s", path);
  }
  assert_int_equal(found, 1);
  const int64_t whole = file_size(fresh);
  assert_int_equal(truncate(fresh, (off_t)1 << 40), 0);
  assert_int_equal(events_rewind(folder, 1), STATUS_OK);
  assert_int_equal(file_size(fresh), whole);
  for (int i = 0; i < 3; i++) {
    snprintf(path, sizeof path, "%s/events.out.tfevents.%s.sluice", folder, names[i]);
    assert_true(file_exists(path)); /* not ours */
  }
  remove_all();
}

/* A full disk: the file keeps whole records, and later calls do nothing. */
TEST(test_full)
{
  remove_all();
  struct events *events = events_open(folder, 0);
  const int64_t empty = size_of_last();
  add_steps(events, 1, 1);
  const int64_t one = size_of_last();
  const struct rlimit full = {(rlim_t)(one + 5), RLIM_INFINITY},
                      none = {RLIM_INFINITY, RLIM_INFINITY};
  signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &full), 0);
  add_steps(events, 2, 2);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
  assert_int_equal(size_of_last(), one);
  assert_true(one > empty);
  add_steps(events, 3, 3);
  assert_int_equal(size_of_last(), one);
  events_close(events);
  assert_null(events_open("no such folder", 0));
  add_steps(NULL, 1, 2);
  events_close(NULL);
}

/* More numbers than a record holds go into several, and none is lost. */
TEST(test_many)
{
  enum { MANY = 1000 };
  remove_all();
  struct events *events = events_open(folder, 0);
  const int64_t empty = size_of_last();
  events_begin(events, 1);
  for (int i = 0; i < MANY; i++)
    events_add(events, "a name of thirty-two characters.", i);
  events_end(events);
  const int64_t value = 2 + 2 + 32 + 5;
  assert_in_range(size_of_last() - empty, MANY * value, MANY * value * 11 / 10);
  events_close(events);
}

FIXTURE(make_folder)
{
  snprintf(folder, sizeof folder, "test_events.%d", (int)getpid());
  return mkdir(folder, 0777);
}

FIXTURE(remove_folder)
{
  remove_all();
  return rmdir(folder);
}

TEST_MAIN(make_folder, remove_folder)
