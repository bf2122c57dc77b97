/* The checkpoints of a folder and what is printed of them. Oracles: what was saved, which file was
 * damaged and how, lists written out here. */
/* ranks: 1 3 */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "io/checkpoint/private.h"
#include "io/text/file.h"
#include "job.h"

struct dirent *__wrap_readdir(DIR *folder);
struct dirent *__real_readdir(DIR *folder);
ssize_t __wrap_pread(int fd, void *to, size_t bytes, off_t at);
ssize_t __real_pread(int fd, void *to, size_t bytes, off_t at);
int __wrap_rename(const char *from, const char *to);
int __real_rename(const char *from, const char *to);
int __wrap_unlink(const char *path);
int __real_unlink(const char *path);

static bool unwritable;
static int readable = -1; /* entries of a folder before its disk fails; -1: all */

struct dirent *__wrap_readdir(DIR *folder)
{
  if (readable == 0)
    errno = EIO;
  if (readable == 0)
    return NULL;
  readable -= readable > 0;
  return __real_readdir(folder);
}

int __wrap_rename(const char *from, const char *to)
{
  errno = EROFS;
  return unwritable ? -1 : __real_rename(from, to);
}

int __wrap_unlink(const char *path)
{
  errno = EROFS;
  return unwritable ? -1 : __real_unlink(path);
}

static int64_t bytes_read; /* of tensors by this rank; at the file's begin is its signature */

ssize_t __wrap_pread(int fd, void *to, size_t bytes, off_t at)
{
  bytes_read += at > 0 ? (int64_t)bytes : 0;
  return __real_pread(fd, to, bytes, at);
}

enum { RUN = 77 };

static void save_of(int64_t step, int seed, uint64_t run)
{
  struct sample sample;
  sample_make(&sample, job, SPLIT_EVEN, step, seed, false, true);
  sample.meta.run = run;
  must(checkpoint_save(job, dir, &sample.meta, sample.n, sample.tensor, NULL));
  sample_free(&sample);
}

static void save(int64_t step, int seed)
{
  save_of(step, seed, RUN);
}

static char *path_of(const char *name)
{
  return mem_printf("%s/%s", dir, name);
}

/* Rank 0 acts, then all go on. */
static void make_file(const char *name, const char *text)
{
  char *path = path_of(name);
  if (is_root())
    must(file_write_all(path, text, strlen(text)));
  mem_free(path);
  everybody_waits();
}

/* The folder of a save that was killed. */
static void make_unfinished(const char *name, mode_t mode)
{
  char *path = path_of(name), *file = mem_printf("%s/%s", name, name),
       *other = mem_printf("%s/other", name);
  if (is_root())
    assert_int_equal(mkdir(path, mode), 0);
  make_file(file, "half");
  make_file(other, "of a program that lists it");
  mem_free(other);
  mem_free(file);
  mem_free(path);
}

static bool exists(const char *name)
{
  char *path = path_of(name);
  bool there = file_exists(path);
  mem_free(path);
  return there;
}

/* Cut off the last byte. */
static void damage(const char *name)
{
  char *path = path_of(name);
  if (is_root())
    assert_int_equal(truncate(path, file_size(path) - 1), 0);
  mem_free(path);
  everybody_waits();
}

/* `clean`: as the run that owns the folder. */
static void expect_found(const char *name, bool clean)
{
  char *found = NULL;
  must(checkpoint_find(job, dir, clean, &found));
  if (name)
    assert_string_equal(found ? strrchr(found, '/') + 1 : "", name);
  else
    assert_null(found);
  mem_free(found);
}

static void expect_newest(const char *name)
{
  expect_found(name, true);
}

/* Begin to collect the log of this rank. end_log() returns its text (mem_free). */
static void begin_log(void)
{
  char *log = path_of("log.txt");
  must(log_open_file(log));
  mem_free(log);
}

static char *end_log(void)
{
  char *log = path_of("log.txt"), *text = NULL;
  size_t bytes;
  must(log_open_file(NULL));
  everybody_waits();
  must(file_read_all(log, 1 << 20, &text, &bytes));
  mem_free(log);
  return text;
}

FIXTURE(clear)
{
  sample_folder_remove(job, dir);
  dir = sample_folder(job);
  return 0;
}

TEST_WITH(nothing_is_found_in_nothing, NULL, clear)
{
  char *found = NULL, *missing = path_of("missing");
  expect_newest(NULL);
  must(checkpoint_find(job, missing, true, &found));
  assert_null(found);
  make_file("step-60.h5", "not a name of ours");
  make_file("step-00000070.h5.stale", "set aside");
  expect_newest(NULL);
  mem_free(missing);
}

TEST_WITH(damaged_ones_are_passed_over_and_told, NULL, clear)
{
  static const char *const told[] = {"step-00000030.h5", "truncated",        "step-00000040.h5",
                                     "it is empty",      "step-00000050.h5", "it looks like text",
                                     "step-100000000.h5"};
  save(10, 1);
  save(20, 2);
  save(30, 3);
  make_file("step-00000040.h5", "");
  make_file("step-00000050.h5", "not a checkpoint");
  make_file("step-100000000.h5", "nine digits are a step as well");
  make_file("step-60.h5", "not a name of ours");
  make_file("step-00000070.h5.bak", "neither");
  make_unfinished(".step-00000080.h5.tmp-AbCd12", 0700);
  damage("step-00000030.h5");
  begin_log();
  expect_newest("step-00000020.h5");
  char *text = end_log();
  assert_false(exists(".step-00000080.h5.tmp-AbCd12"));
  assert_true(exists("step-60.h5") && exists("step-00000070.h5.bak"));
  for (size_t i = 0; i < sizeof told / sizeof *told; i++)
    assert_non_null(strstr(text, told[i]));
  assert_null(strstr(text, "step-00000020.h5"));
  assert_null(strstr(text, "step-60.h5"));
  mem_free(text);
}

/* A partial list is not used as the whole list. With it the run would continue from an older
 * checkpoint, or start from the beginning. */
TEST_WITH(a_folder_that_cannot_be_read_is_told, NULL, clear)
{
  save(10, 1);
  for (int n = 0; n < 3; n++) {
    char *found = NULL;
    readable = n;
    const enum status status = checkpoint_find(job, dir, true, &found);
    readable = -1;
    must_fail(status, STATUS_IO, "cannot list the folder ");
    assert_null(found);
    must_say(strerror(EIO));
  }
  expect_newest("step-00000010.h5");
}

/* A number of it is another one. */
static void spoil_data(const char *name)
{
  char *path = path_of(name);
  if (is_root()) {
    hid_t file;
    struct hdf5_dataset dataset;
    int64_t counts[13];
    must(hdf5_open(path, true, &file));
    must(hdf5_open_dataset(file, "exp_avg_sq/counts", &dataset));
    must(hdf5_read(&dataset, counts));
    counts[12] = 77;
    must(hdf5_write(&dataset, counts));
    must(hdf5_finish(file, hdf5_close(dataset.id, STATUS_OK)));
  }
  mem_free(path);
  everybody_waits();
}

TEST_WITH(wrong_checksums_are_passed_over, NULL, clear)
{
  save(1, 1);
  save(2, 2);
  spoil_data("step-00000002.h5");
  expect_newest("step-00000001.h5");
}

/* Loads into `sample`, and notes which it was asked for; `refuses` a step for a reason of its own.
 */
struct resumed {
  struct sample sample;
  char asked[64];
  enum status refuses;
  int64_t refused;
};

static enum status load_into(void *arg, const char *path, bool *damaged)
{
  struct resumed *resumed = arg;
  struct checkpoint_meta meta = {0};
  enum status status = checkpoint_read_meta(job, path, &meta);
  *damaged = status != STATUS_OK;
  if (!status && meta.step == resumed->refused)
    status = status_set(resumed->refuses, "not this one");
  checkpoint_meta_free(&meta);
  snprintf(resumed->asked + strlen(resumed->asked), sizeof resumed->asked - strlen(resumed->asked),
           " %.8s", strrchr(path, '-') + 1);
  return status ? status
                : checkpoint_load(job, path, resumed->sample.n, resumed->sample.tensor, damaged);
}

/* Loading itself detects damage, so a checkpoint is read once. State that was loaded in part is
 * loaded again from the checkpoint before. */
TEST_WITH(the_newest_that_loads_is_read_once, NULL, clear)
{
  struct resumed resumed = {.refused = -1};
  struct sample want;
  char *found = NULL;
  int64_t bytes = 0;
  save(10, 1);
  save(20, 2);
  save(30, 3);
  sample_make(&resumed.sample, job, SPLIT_EVEN, 0, 4, false, true);
  sample_make(&want, job, SPLIT_EVEN, 20, 2, false, true);
  for (int t = 0; t < want.n; t++)
    bytes += (want.tensor[t].range.end - want.tensor[t].range.begin) *
             (int64_t)dtype_size(want.tensor[t].type);
  spoil_data("step-00000030.h5");
  bytes_read = 0;
  must(checkpoint_use_newest(job, dir, true, load_into, &resumed, &found));
  assert_int_equal(bytes_read, 2 * bytes); /* of the damaged one, and of the one before */
  assert_string_equal(resumed.asked, " 00000030 00000020");
  assert_string_equal(strrchr(found, '/') + 1, "step-00000020.h5");
  for (int t = 0; t < want.n; t++) {
    const struct layout_range range = want.tensor[t].range;
    assert_memory_equal(resumed.sample.tensor[t].data, want.tensor[t].data,
                        (size_t)(range.end - range.begin) * dtype_size(want.tensor[t].type));
  }
  mem_free(found);

  for (enum status refuses = STATUS_USAGE; refuses <= STATUS_IO;
       refuses++) { /* nothing is wrong with that file */
    resumed = (struct resumed){.sample = resumed.sample, .refuses = refuses, .refused = 20};
    found = NULL;
    assert_int_equal(checkpoint_use_newest(job, dir, true, load_into, &resumed, &found), refuses);
    assert_null(found);
    assert_string_equal(resumed.asked, " 00000030 00000020");
  }
  resumed.asked[0] = '\0';
  resumed.refused = -1;
  resumed.sample.tensor[0].name = "unknown"; /* as by a deck of another model */
  assert_int_equal(checkpoint_use_newest(job, dir, true, load_into, &resumed, &found),
                   STATUS_INPUT);
  assert_string_equal(resumed.asked, " 00000030");
  assert_null(found);
  sample_free(&resumed.sample);
  sample_free(&want);
}

TEST_WITH(when_all_are_damaged_nothing_starts_anew, NULL, clear)
{
  char *found = dir;
  save(10, 1);
  save(20, 2);
  damage("step-00000010.h5");
  damage("step-00000020.h5");
  make_file("step-00000030.h5", "");
  must_fail(checkpoint_find(job, dir, false, &found), STATUS_INPUT, dir);
  assert_null(found);
  must_say("3 checkpoints");
  must_say("step-00000010.h5"); /* the last one tried */
  must_say("truncated");
  must_say("name a good one from elsewhere");
  must_fail(checkpoint_find(job, dir, true, &found), STATUS_INPUT,
            "--resume FILE"); /* as the run itself does */
  assert_true(exists("step-00000010.h5") && exists("step-00000020.h5") &&
              exists("step-00000030.h5"));
}

/* The folder of an interrupted save; and names that are alike, folders of others, links. */
TEST_WITH(only_what_a_save_leaves_is_cleaned, NULL, clear)
{
  static const struct {
    const char *name;
    mode_t mode;
    bool goes;
  } folders[] = {
      {".step-00000020.h5.tmp-aZ09bY", 0700, true},
      {".step-100000000.h5.tmp-AAAAAA", 0700, true},
      {".step-00000030.h5.tmp-AAAAAA", 0750, false}, /* not made by this program */
      {".step-20.h5.tmp-AAAAAA", 0700, false},
      {"step-00000020.h5.tmp-AAAAAA", 0700, false},
      {".step-00000020.h5-AAAAAA", 0700, false},
      {".step-00000020.h5.tmp-AAAAA", 0700, false},
      {".step-00000020.h5.tmp-AAAAA-", 0700, false},
      {".step-00000020.h5.tmp", 0700, false},
      {".step-00000020.h5.bak.tmp-AAAAAA", 0700, false},
      {".other.h5.tmp-AAAAAA", 0700, false}, /* an import next to the run's files */
  };
  char *link = path_of(".step-00000040.h5.tmp-AAAAAA"), *elsewhere = path_of("elsewhere");
  for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
    make_unfinished(folders[i].name, folders[i].mode);
  make_unfinished("elsewhere", 0700);
  if (is_root())
    assert_int_equal(symlink(elsewhere, link), 0);
  expect_newest(NULL);
  everybody_waits();
  for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
    if (exists(folders[i].name) == folders[i].goes)
      fail_msg("%s is %s", folders[i].name, folders[i].goes ? "there" : "gone");
  assert_true(exists("elsewhere/elsewhere") && exists(".step-00000040.h5.tmp-AAAAAA"));
  everybody_waits();
  make_unfinished(".step-00000020.h5.tmp-AAAAAA", 0700);
  save(10, 1); /* cleans, too */
  assert_false(exists(".step-00000020.h5.tmp-AAAAAA"));
  mem_free(elsewhere);
  mem_free(link);
}

/* A folder's owner may be writing that very file. */
TEST_WITH(only_the_owner_cleans, NULL, clear)
{
  save(10, 1);
  make_unfinished(".step-00000020.h5.tmp-AAAAAA", 0700);
  if (is_root())
    assert_int_equal(chmod(dir, 0500), 0);
  everybody_waits();
  expect_found("step-00000010.h5", false);
  everybody_waits();
  if (is_root())
    assert_int_equal(chmod(dir, 0700), 0);
  assert_true(exists(".step-00000020.h5.tmp-AAAAAA/.step-00000020.h5.tmp-AAAAAA"));
  everybody_waits();
  expect_newest("step-00000010.h5");
  assert_false(exists(".step-00000020.h5.tmp-AAAAAA"));
}

static void expect_content(const char *name, const char *content)
{
  char *path = path_of(name), *text = NULL;
  size_t bytes;
  must(file_read_all(path, 1 << 20, &text, &bytes));
  assert_string_equal(text, content);
  mem_free(text);
  mem_free(path);
}

TEST_WITH(another_history_is_set_aside, NULL, clear)
{
  char *missing = path_of("missing");
  save(10, 1);
  save(20, 2);
  make_file("step-00000030.h5", "30");
  make_file("step-00000040.h5", "40");
  make_file("step-00000040.h5.stale", "older");
  make_file("step-00000040.h5.stale-2", "younger");
  make_file("step-60.h5", "not ours");
  begin_log();
  must(checkpoint_set_aside(job, dir, 20));
  must(checkpoint_set_aside(job, dir, 20)); /* nothing is left to do, and nothing is logged */
  must(checkpoint_set_aside(job, missing, 0));
  char *text = end_log();
  assert_true(exists("step-00000010.h5") && exists("step-00000020.h5") && exists("step-60.h5"));
  assert_false(exists("step-00000030.h5") || exists("step-00000040.h5"));
  expect_content("step-00000030.h5.stale", "30");
  expect_content("step-00000040.h5.stale", "older");
  expect_content("step-00000040.h5.stale-2", "younger");
  expect_content("step-00000040.h5.stale-3", "40");
  const char *told = strstr(text, ".stale");
  assert_non_null(strstr(text, "2 checkpoints of steps after 20"));
  assert_non_null(told);
  assert_null(strstr(told + 1, ".stale")); /* once */
  expect_newest("step-00000020.h5");
  must(checkpoint_prune(job, dir, 1, 0, 20, RUN));
  assert_false(exists("step-00000010.h5"));
  assert_true(exists("step-00000020.h5") && exists("step-00000030.h5.stale") &&
              exists("step-00000040.h5.stale-3"));
  mem_free(text);
  mem_free(missing);
}

TEST_WITH(failed_renaming_is_reported, NULL, clear)
{
  make_file("step-00000002.h5", "x");
  unwritable = true;
  const enum status status = checkpoint_set_aside(job, dir, 1);
  unwritable = false;
  must_fail(status, STATUS_IO, "step-00000002.h5.stale: Read-only file system");
  assert_true(exists("step-00000002.h5"));
}

/* A run whose newest checkpoint is damaged goes on from the one before, saves, and prunes: what it
 * saved survives, the damaged one is not counted. */
TEST_WITH(a_damaged_newest_does_not_displace_good_ones, NULL, clear)
{
  save(10, 1);
  save(30, 3);
  damage("step-00000030.h5");
  expect_newest("step-00000010.h5");
  must(checkpoint_set_aside(job, dir, 10));
  save(20, 2);
  must(checkpoint_prune(job, dir, 1, 0, 20, RUN));
  assert_true(exists("step-00000020.h5") && exists("step-00000030.h5.stale"));
  assert_false(exists("step-00000010.h5") || exists("step-00000030.h5"));
  everybody_waits();
  expect_newest("step-00000020.h5");
}

TEST_WITH(pruning_keeps_what_it_should, NULL, clear)
{
  static const struct {
    int64_t keep, every, saved;
    const char *left;
  } cases[] = {
      {0, 0, 35, "5 10 15 20 25 30 35"},
      {0, 10, 35, "5 10 15 20 25 30 35"},
      {9, 0, 35, "5 10 15 20 25 30 35"},
      {3, 10, 35, "10 20 25 30 35"},
      {2, 0, 35, "30 35"},
      {1, 7, 35, "35"},
      {1, 0, 20, "20"},
      {1, 15, 5, "5 15 30"},
      {2, 0, 15, "15 35"},
      {3, 0, 30, "25 30 35"},
      {6, 0, 5, "5 15 20 25 30 35"},
      {2, 0, -1, "30 35"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char left[256] = "";
    int64_t *steps = NULL, n = 0;
    for (int64_t step = 5; step <= 35; step += 5)
      save(step, 1);
    make_file("step-1.h5", "not ours");
    make_file("step-00000001.h5", "not a checkpoint");
    save_of(12, 1, RUN + 1); /* copied in, or behind a link */
    save_of(40, 1, RUN + 1);
    save_of(41, 1, 0); /* imported */
    must(checkpoint_prune(job, dir, cases[i].keep, cases[i].every, cases[i].saved, RUN));
    must(checkpoint_folder_scan(dir, false, &steps, &n));
    assert_true(n >= 4 && steps[0] == 1 && steps[n - 2] == 40 && steps[n - 1] == 41);
    for (int64_t s = 1; s < n - 2; s++)
      if (steps[s] != 12)
        snprintf(left + strlen(left), sizeof left - strlen(left), *left ? " %lld" : "%lld",
                 (long long)steps[s]);
    assert_true(exists("step-00000012.h5"));
    assert_string_equal(left, cases[i].left);
    assert_true(exists("step-1.h5"));
    mem_free(steps);
    everybody_waits();
  }
  char *missing = path_of("missing");
  must(checkpoint_prune(job, missing, 1, 0, 35, RUN));
  mem_free(missing);
}

TEST_WITH(failed_removal_is_reported, NULL, clear)
{
  save(1, 1);
  save(2, 1);
  unwritable = true;
  const enum status status = checkpoint_prune(job, dir, 1, 0, 2, RUN);
  unwritable = false;
  must_fail(status, STATUS_IO, "cannot remove the old checkpoint");
  must_say("step-00000001.h5: Read-only file system");
}

/* The printed output of one rank. */

static char *printed;
static size_t printed_bytes;

static FILE *start_printing(void)
{
  FILE *to = open_memstream(&printed, &printed_bytes);
  assert_non_null(to);
  return to;
}

/* Is there a line with these words, apart by blanks? */
static bool has_line(const char *words)
{
  char *line = NULL, *text = mem_strdup(printed);
  bool found = false;
  for (char *rest = text; !found && (line = strsep(&rest, "\n"));) {
    char squeezed[1024] = "";
    for (char *word; (word = strsep(&line, " "));)
      if (*word && strlen(squeezed) + strlen(word) + 2 < sizeof squeezed)
        snprintf(squeezed + strlen(squeezed), sizeof squeezed - strlen(squeezed), "%s%s",
                 squeezed[0] ? " " : "", word);
    found = strcmp(squeezed, words) == 0;
  }
  mem_free(text);
  return found;
}

static void expect_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void expect_line(const char *format, ...)
{
  char words[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(words, sizeof words, format, args);
  va_end(args);
  if (!has_line(words))
    fail_msg("no line \"%s\" in:\n%s", words, printed);
}

static void end_printing(FILE *to)
{
  fclose(to);
  free(printed);
  printed = NULL;
}

TEST_WITH(a_list, NULL, clear)
{
  FILE *to = start_printing();
  char *missing = path_of("missing");
  assert_int_equal(checkpoint_list(missing, false, to), STATUS_INPUT);
  must(checkpoint_list(dir, false, to));
  expect_line("no checkpoints in %s", dir);
  everybody_waits();
  save(10, 1);
  make_file("step-00000020.h5", "");
  make_file("step-00000030.h5.stale", "");
  must(checkpoint_list(dir, false, to));
  assert_null(strstr(printed, "stale"));
  expect_line("file step samples ranks tensors MiB written by");
  char *path = path_of("step-00000010.h5");
  expect_line("step-00000010.h5 10 81 %d 12 %.1f sluice test", comm_ranks(job),
              (double)file_size(path) / 1048576);
  assert_non_null(strstr(printed, "it is empty (0 bytes)"));
  end_printing(to);
  mem_free(path);
  mem_free(missing);
}

TEST_WITH(a_table, NULL, clear)
{
  save(10, 1);
  char *path = path_of("step-00000010.h5");
  FILE *to = start_printing();
  must(checkpoint_show(path, false, to));
  expect_line("format sluice-checkpoint 3");
  expect_line("step 10");
  expect_line("seed 18364758544493064720");
  expect_line("model: {arch: gpt2}");
  expect_line("tensor type shape elements crc32");
  struct checkpoint_table table = {0};
  hid_t file;
  must(hdf5_open(path, false, &file));
  must(checkpoint_table_read(file, &table));
  int64_t t = checkpoint_table_find(&table, "model/tesseract");
  expect_line("model/tesseract fp8_e4m3 4 x 1 x 6 x 10 240 %08llx",
              (unsigned long long)table.entry[t].crc);
  assert_int_equal(checkpoint_table_find(&table, "model/none"), -1);
  checkpoint_table_free(&table);
  must(hdf5_close(file, STATUS_OK));
  end_printing(to);
  FILE *full = fopen("/dev/full", "w");
  assert_int_equal(checkpoint_show(path, false, full), STATUS_IO);
  fclose(full);
  mem_free(path);
}

/* The first tensor is a vector e of one element, or e and a vector at a right angle to it. */
static void save_vector(int64_t step, float second)
{
  struct sample sample;
  sample_make(&sample, job, SPLIT_WHOLE, step, 1, false, true);
  float *values = sample.tensor[0].data;
  memset(values, 0, 3007 * sizeof *values);
  values[1] = -3;
  values[2000] = second;
  must(checkpoint_save(job, dir, &sample.meta, sample.n, sample.tensor, NULL));
  sample_free(&sample);
}

TEST_WITH(cosines, NULL, clear)
{
  save_vector(50, 0);
  save_vector(60, 4);
  char *a = path_of("step-00000050.h5"), *b = path_of("step-00000060.h5");
  bool same = true;
  FILE *to = start_printing();
  must(checkpoint_diff(a, b, false, to, &same));
  assert_false(same);
  expect_line("model/transformer.wte.weight: 1 of 3007 elements differ, by at most 4, "
              "cosine 0.600000");
  must(checkpoint_diff(a, b, true, to, &same));
  expect_line("\"left_norm\": 3,");
  expect_line("\"right_norm\": 5,");
  end_printing(to);
  mem_free(a);
  mem_free(b);
}

TEST_WITH(differences, NULL, clear)
{
  struct sample sample;
  save(10, 1);
  sample_make(&sample, job, SPLIT_WHOLE, 20, 1, false, true);
  sample.tensor[1].name = "only_here";
  sample.tensor[4].shape[0] = 5;
  sample.tensor[4].shape[1] = 3;
  sample.tensor[10].type = DTYPE_F8_E4M3;
  ((int64_t *)sample.tensor[9].data)[3] += 5;
  ((int64_t *)sample.tensor[9].data)[7] -= 9;
  float *values = sample.tensor[0].data;
  values[5] = values[5] < 0 ? NAN : -NAN;
  must(checkpoint_save(job, dir, &sample.meta, sample.n, sample.tensor, NULL));
  sample_free(&sample);
  char *a = path_of("step-00000010.h5"), *b = path_of("step-00000020.h5");
  bool same = false;
  FILE *to = start_printing();
  must(checkpoint_diff(a, a, false, to, &same));
  assert_true(same);
  expect_line("%s and %s: all 12 tensors are identical; metadata are not compared", a, a);
  must(checkpoint_diff(a, b, false, to, &same));
  assert_false(same);
  expect_line("exp_avg_sq/counts: 2 of 13 elements differ, by at most 9");
  expect_line("exp_avg_sq/bytes: uint8 2 x 3 | fp8_e4m3 2 x 3");
  expect_line("model/cube: fp16 3 x 5 x 7 | fp16 5 x 3 x 7");
  expect_line("model/only_here: only in %s", b);
  expect_line("model/transformer.h.0.ln_1.bias: only in %s", a);
  expect_line("model/transformer.wte.weight: 1 of 3007 elements differ, some are not numbers");
  int lines = 0;
  for (const char *c = printed; *c; c++)
    lines += *c == '\n';
  assert_int_equal(lines, 7);
  char *missing = path_of("missing.h5");
  assert_int_equal(checkpoint_diff(a, missing, false, to, &same), STATUS_INPUT);
  assert_int_equal(checkpoint_diff(missing, a, false, to, &same), STATUS_INPUT);
  end_printing(to);
  mem_free(missing);
  mem_free(a);
  mem_free(b);
}

TEST_MAIN(start, stop)
