/* Files of the user's cache. Oracles: paths by hand from the environment; the file's content, and
 * the list of the folder's files, after each replacement. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cache.h"
#include "base/mem.h"
#include "tests/test.h"

static char dir[] = "/tmp/sluice-cache-XXXXXX";

static void set(const char *name, const char *value)
{
  assert_int_equal(value ? setenv(name, value, true) : unsetenv(name), 0);
}

TEST(the_environment_names_the_folder)
{
  static const struct {
    const char *xdg, *home, *name, *path; /* path: below `dir`; NULL: none */
  } row[] = {{"/xdg", "/home", "rates-1", "/xdg/sluice-rates-1"},
             {"", "/home", "rates-1", "/home/.cache/sluice-rates-1"},
             {NULL, "/home", "matmul-GH200 480GB/2", "/home/.cache/sluice-matmul-GH200-480GB-2"},
             {"/a b", NULL, "c d", "/a b/sluice-c-d"},
             {"", "", "rates-1", NULL},
             {NULL, NULL, "rates-1", NULL}};
  for (size_t r = 0; r < sizeof row / sizeof *row; r++) {
    char xdg[96], home[96], want[192];
    snprintf(xdg, sizeof xdg, "%s%s", dir, row[r].xdg ? row[r].xdg : "");
    snprintf(home, sizeof home, "%s%s", dir, row[r].home ? row[r].home : "");
    snprintf(want, sizeof want, "%s%s", dir, row[r].path ? row[r].path : "");
    set("XDG_CACHE_HOME", row[r].xdg && !*row[r].xdg ? "" : row[r].xdg ? xdg : NULL);
    set("HOME", row[r].home && !*row[r].home ? "" : row[r].home ? home : NULL);
    assert_true(!row[r].home || !*row[r].home || mkdir(home, 0700) == 0 || errno == EEXIST);
    char *path = cache_path(row[r].name);
    assert_int_equal(path != NULL, row[r].path != NULL);
    if (!path)
      continue;
    assert_string_equal(path, want);
    *strrchr(want, '/') = '\0';
    assert_int_equal(access(want, W_OK), 0); /* the folder was made */
    mem_free(path);
  }
}

static void expect_file(const char *path, const char *content)
{
  char found[64] = "";
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  found[fread(found, 1, sizeof found - 1, file)] = '\0';
  assert_string_equal(found, content);
  assert_int_equal(fclose(file), 0);
}

static int files_in(const char *folder)
{
  int n = 0;
  DIR *open = opendir(folder);
  assert_non_null(open);
  while (readdir(open))
    n++;
  assert_int_equal(closedir(open), 0);
  return n - 2; /* "." and ".." */
}

TEST(a_file_is_replaced_as_a_whole)
{
  char folder[64], path[80], below[96];
  snprintf(folder, sizeof folder, "%s/files", dir);
  assert_int_equal(mkdir(folder, 0700), 0);
  snprintf(path, sizeof path, "%s/sluice-x", folder);
  snprintf(below, sizeof below, "%s/sluice-y", path);
  assert_true(cache_write(path, "a long text", 11));
  assert_true(cache_write(path, "short", 5));
  expect_file(path, "short");
  assert_false(cache_write(below, "below a file", 12));
  assert_int_equal(files_in(folder), 1);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(mkdir(path, 0700), 0);
  assert_false(cache_write(path, "in place of a folder", 20));
  assert_int_equal(files_in(folder), 1); /* the folder, and no temporary file */
}

/* Oracle: the times that the test sets. Neither names nor the order of writing decide. */
TEST(the_newest_files_are_kept)
{
  static const struct {
    const char *name;
    long seconds, ns;
    bool stays;
  } row[] = {{"sluice-rates-b", 9, 0, true},       {"sluice-rates-a", 7, 1, false},
             {"sluice-rates-d", 8, 2, true},       {"sluice-rates-c", 8, 1, false},
             {"sluice-rates-9.XXXX", 6, 0, false}, {"sluice-ratesx", 1, 0, true},
             {"sluice-matmul-a", 1, 0, true},      {"rates-a", 1, 0, true}};
  enum { ROWS = sizeof row / sizeof *row };
  char folder[64], path[ROWS][96];
  snprintf(folder, sizeof folder, "%s/many", dir);
  set("XDG_CACHE_HOME", folder);
  mem_free(cache_path("rates")); /* makes the folder */
  for (int r = 0; r < ROWS; r++) {
    const struct timespec times[2] = {{0, UTIME_OMIT}, {row[r].seconds, row[r].ns}};
    snprintf(path[r], sizeof path[r], "%s/%s", folder, row[r].name);
    assert_true(cache_write(path[r], "x", 1));
    assert_int_equal(utimensat(AT_FDCWD, path[r], times, 0), 0);
  }
  cache_trim("rates", 5);
  assert_int_equal(files_in(folder), ROWS);
  cache_trim("rates", 2);
  for (int r = 0; r < ROWS; r++)
    assert_int_equal(access(path[r], F_OK) == 0, row[r].stays);
  set("XDG_CACHE_HOME", "/proc/nowhere");
  cache_trim("rates", 0);
}

static int start(void **state)
{
  (void)state;
  return mkdtemp(dir) ? 0 : -1;
}

static int stop(void **state)
{
  char command[64];
  (void)state;
  snprintf(command, sizeof command, "rm -rf %s", dir);
  return system(command);
}

TEST_MAIN(start, stop)
