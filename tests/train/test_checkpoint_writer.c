/* Checkpoints in the background. Oracles: the file that a foreground save makes of the same state,
 * byte for byte, while the state is being overwritten. The content of the folder. The message of a
 * failure is the same on every rank. This program sets the free memory. */
/* ranks: 1 2 3 */
#include <errno.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "io/text/file.h"
#include "tests/job/fixture.h"
#include "tests/test.h"
#include "train/checkpoint_writer.h"

int64_t __wrap_mem_available_bytes(void);
bool __wrap_mem_total_grows(const char *proc);
int64_t __wrap_mem_limit_bytes(void);

static struct comm *comm;
static char *root;
static int64_t available = -1, limit = -1;
static bool grows;

int64_t __wrap_mem_available_bytes(void)
{
  return available;
}

bool __wrap_mem_total_grows(const char *proc)
{
  (void)proc;
  return grows;
}

int64_t __wrap_mem_limit_bytes(void)
{
  return limit;
}

struct fixture {
  struct deck deck;
  struct job job;
  struct checkpoint_writer *writer;
  char dir[512];
};

static void open_fixture(struct fixture *f, const char *name, bool apart, const char *key)
{
  *f = (struct fixture){0};
  snprintf(f->dir, sizeof f->dir, "%s/%s", root, name);
  fixture_deck(&f->deck, "gpt2", "full_shard", "world", "[]");
  must(options_assign(f->deck.set, "checkpoint.keep=2"));
  must(options_assign(f->deck.set, key));
  fixture_open(&f->job, &f->deck, comm, comm_rank(comm), comm_ranks(comm), apart);
  must(checkpoint_writer_create(&f->job, f->dir, &f->writer));
}

static void close_fixture(struct fixture *f)
{
  checkpoint_writer_destroy(f->writer);
  fixture_close(&f->job);
  deck_destroy(&f->deck);
}

/* Every element of the state becomes `value`. */
static void set_state(struct fixture *f, float value)
{
  static float values[4096];
  struct job_state *state = NULL;
  for (int i = 0; i < 4096; i++)
    values[i] = value;
  must(job_state_open(&f->job, true, false, true, &state));
  for (int t = 0; t < state->n; t++)
    fixture_put(&state->tensor[t], values);
  must(job_state_commit(state));
  job_state_close(state);
}

static enum status begin_keeping(struct fixture *f, int64_t step, bool behind, bool prune)
{
  struct checkpoint_meta meta = {.step = step,
                                 .samples = 12 * step,
                                 .ranks = comm_ranks(comm),
                                 .seed = 1,
                                 .run = 77,
                                 .deck = (char *)"deck",
                                 .version = (char *)"test"};
  return checkpoint_writer_save(f->writer, &meta, behind, prune, clock_s());
}

static enum status begin(struct fixture *f, int64_t step, bool behind)
{
  return begin_keeping(f, step, behind, true);
}

static enum status finish(struct fixture *f, struct checkpoint_writer_report *out)
{
  return checkpoint_writer_finish(f->writer, out);
}

static char *path_of(const struct fixture *f, int64_t step)
{
  return mem_printf("%s/step-%08lld.h5", f->dir, (long long)step);
}

static bool is_there(const struct fixture *f, int64_t step)
{
  char *path = path_of(f, step);
  const bool there = file_exists(path);
  mem_free(path);
  return there;
}

/* Rank 0 looks, and takes the folder away. */
static void check_and_remove(struct fixture *f, int n, const int64_t *steps)
{
  must(comm_barrier(comm));
  for (int64_t step = 0; step < 10 && comm_rank(comm) == 0; step++) {
    bool expected = false;
    for (int i = 0; i < n; i++)
      expected |= steps[i] == step;
    if (is_there(f, step) != expected)
      fail_msg("step %lld is %s", (long long)step, expected ? "missing" : "there");
    char *path = path_of(f, step);
    if (expected)
      assert_int_equal(unlink(path), 0);
    mem_free(path);
  }
  if (comm_rank(comm) == 0)
    assert_int_equal(rmdir(f->dir), 0);
  must(comm_barrier(comm));
}

static void check_same_file(struct fixture *a, struct fixture *b, int64_t step)
{
  char *path[2] = {path_of(a, step), path_of(b, step)}, *text[2] = {NULL, NULL};
  size_t bytes[2] = {0, 0};
  for (int i = 0; i < 2; i++)
    must(file_read_all(path[i], 1 << 26, &text[i], &bytes[i]));
  assert_int_equal(bytes[0], bytes[1]);
  assert_memory_equal(text[0], text[1], bytes[0]);
  for (int i = 0; i < 2; i++) {
    mem_free(text[i]);
    mem_free(path[i]);
  }
}

static void plenty(void)
{
  available = INT64_C(1) << 40;
  limit = -1;
  grows = false;
}

/* So is the last one, which no step follows. */
TEST(a_file_behind_the_steps_is_that_of_its_step)
{
  enum { LAST = 4 };
  plenty();
  for (int apart = 0; apart < 2; apart++) {
    struct fixture now, behind;
    struct checkpoint_writer_report report;
    open_fixture(&now, "now", apart, "checkpoint.background=false");
    open_fixture(&behind, "behind", apart, "checkpoint.background=true");
    for (int64_t step = 1; step <= LAST; step++) {
      set_state(&now, (float)step);
      must(begin(&now, step, true));
      assert_false(checkpoint_writer_is_writing(now.writer));
      must(finish(&now, &report));
      assert_false(report.behind);

      set_state(&behind, (float)step);
      must(begin(&behind, step, step != LAST));
      assert_true(checkpoint_writer_is_pending(behind.writer));
      set_state(&behind, -1); /* the next steps */
      must(finish(&behind, &report));
      assert_int_equal(report.behind, step != LAST);
      assert_true(report.step == step && report.seconds > 0 && report.held_s > 0 &&
                  report.bytes > 0);
      assert_false(checkpoint_writer_is_pending(behind.writer) ||
                   checkpoint_writer_is_writing(behind.writer));
      check_same_file(&now, &behind, step);
    }
    check_and_remove(&now, 2, (const int64_t[]){3, 4});
    check_and_remove(&behind, 2, (const int64_t[]){3, 4});
    close_fixture(&behind);
    close_fixture(&now);
  }
}

/* A saved file may be damaged. Older files are not removed for it, but for the next undamaged
 * one. */
TEST(without_pruning_older_ones_stay)
{
  plenty();
  for (int background = 0; background < 2; background++) {
    struct fixture f;
    struct checkpoint_writer_report report;
    open_fixture(&f, "kept", false,
                 background ? "checkpoint.background=true" : "checkpoint.background=false");
    for (int64_t step = 1; step <= 4; step++) {
      must(begin_keeping(&f, step, true, step < 3));
      must(finish(&f, &report));
      assert_true(is_there(&f, 1) && is_there(&f, step));
    }
    must(begin(&f, 5, true));
    must(finish(&f, &report));
    check_and_remove(&f, 2, (const int64_t[]){4, 5});
    close_fixture(&f);
  }
}

static char *log_path(void)
{
  return mem_printf("%s/log.txt", root);
}

/* The log of rank 0 from here on. */
static void start_log(void)
{
  char *path = log_path();
  must(comm_barrier(comm));
  if (comm_rank(comm) == 0) {
    must(log_open_file(path)); /* takes what was said before */
    must(log_open_file(NULL));
    assert_int_equal(unlink(path), 0);
    must(log_open_file(path));
  }
  mem_free(path);
}

/* The one line that rank 0 has said since start_log() has these words. */
static void end_log(const char *words, const char *more)
{
  char *path = log_path(), *text = NULL;
  size_t bytes = 0;
  if (comm_rank(comm) == 0) {
    must(log_open_file(NULL));
    must(file_read_all(path, 1 << 20, &text, &bytes));
    if (!strstr(text, words) || !strstr(text, more) || strchr(text, '\n') != text + bytes - 1)
      fail_msg("\"%s\", \"%s\" and nothing else are not in: %s", words, more, text);
    assert_int_equal(unlink(path), 0);
  }
  mem_free(text);
  mem_free(path);
  must(comm_barrier(comm));
}

/* A writer that is destroyed loses nothing, and one at a time is written. */
TEST(pending_write_is_waited_for)
{
  struct fixture f;
  plenty();
  open_fixture(&f, "left", false, "checkpoint.background=true");
  must(begin(&f, 7, true));
  assert_int_equal(begin(&f, 8, true), STATUS_INTERNAL);
  start_log();
  checkpoint_writer_destroy(f.writer);
  end_log("the checkpoint of step 7 was written anyway: ", "/step-00000007.h5");
  f.writer = NULL;
  check_and_remove(&f, 1, (const int64_t[]){7});
  must(checkpoint_writer_create(&f.job, f.dir, &f.writer));
  struct checkpoint_writer_report report;
  assert_int_equal(checkpoint_writer_finish(f.writer, &report), STATUS_INTERNAL);
  close_fixture(&f);
}

/* Free memory, and a limit. The ranks of a node have used a part of the limit, or it is above the
 * free memory. If memory grows with use, only the limit counts. */
TEST(without_room_for_a_copy_it_saves_at_once)
{
  const int64_t resident = mem_resident_bytes() * comm_local_ranks(comm), big = INT64_C(1) << 40;
  const struct {
    int64_t available, limit;
    bool grows, behind;
  } cases[] = {
      {0, -1, false, false},      {big, 4096, false, false},   {big, resident / 2, false, false},
      {0, big / 2, false, false}, {big, big / 2, false, true}, {big, -1, false, true},
      {-1, -1, false, true},      {0, big, false, false},      {0, big, true, true},
      {0, 4096, true, false},     {-1, big, false, true}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    struct fixture f;
    struct checkpoint_writer_report report;
    available = cases[c].available;
    limit = cases[c].limit;
    grows = cases[c].grows;
    open_fixture(&f, "room", false, "checkpoint.background=true");
    for (int64_t step = 1; step <= 2; step++) {
      set_state(&f, (float)step);
      must(begin(&f, step, true));
      must(finish(&f, &report));
      assert_int_equal(report.behind, cases[c].behind);
      plenty(); /* it has made up its mind */
    }
    check_and_remove(&f, 2, (const int64_t[]){1, 2});
    close_fixture(&f);
  }
}

/* The folder's place is taken by a file on its way: the sentence is the same everywhere, and what
 * was there stays. */
TEST(a_failure_is_told_on_every_rank)
{
  struct fixture f;
  struct checkpoint_writer_report report;
  char first[2048] = "", *folder = NULL;
  plenty();
  open_fixture(&f, "failing", false, "checkpoint.background=true");
  must(begin(&f, 1, true));
  must(finish(&f, &report));
  folder = mem_printf("%s/moved", root);
  must(comm_barrier(comm));
  if (comm_rank(comm) == 0) {
    assert_int_equal(rename(f.dir, folder), 0);
    must(file_write_all(f.dir, "x", 1));
  }
  must(comm_barrier(comm));
  must(begin(&f, 2, true)); /* not known yet */
  assert_true(checkpoint_writer_is_pending(f.writer));
  assert_int_equal(finish(&f, &report), STATUS_IO);
  snprintf(first, sizeof first, "%s", status_text());
  assert_non_null(strstr(first, "the checkpoint of step 2 was not written"));
  must(comm_check_same(comm, "the sentence", first, sizeof first));
  assert_false(checkpoint_writer_is_pending(f.writer));
  must(comm_barrier(comm));
  if (comm_rank(comm) == 0)
    assert_true(unlink(f.dir) == 0 && rename(folder, f.dir) == 0);
  must(comm_barrier(comm));
  must(begin(&f, 3, true)); /* and the next one may succeed */
  must(finish(&f, &report));
  check_and_remove(&f, 2, (const int64_t[]){1, 3});
  mem_free(folder);
  close_fixture(&f);
}

/* A run that ends before it asks what became of its save: the log says so, of a save at once, too.
 */
TEST(a_failure_that_nobody_asks_for_is_told)
{
  struct fixture f;
  plenty();
  open_fixture(&f, "unasked", false, "checkpoint.background=true");
  must(comm_barrier(comm));
  if (comm_rank(comm) == 0)
    must(file_write_all(f.dir, "x", 1)); /* where the folder should be */
  must(comm_barrier(comm));
  must(begin(&f, 4, true));
  start_log();
  checkpoint_writer_destroy(f.writer);
  end_log("the checkpoint of step 4 was not written to ", "a file of that name is in the way");
  if (comm_rank(comm) == 0)
    assert_int_equal(unlink(f.dir), 0);
  must(comm_barrier(comm));
  must(checkpoint_writer_create(&f.job, f.dir, &f.writer));
  must(begin(&f, 5, false));
  start_log();
  checkpoint_writer_destroy(f.writer);
  end_log("the checkpoint of step 5 was written anyway: ", "/step-00000005.h5");
  f.writer = NULL;
  check_and_remove(&f, 1, (const int64_t[]){5});
  close_fixture(&f);
}

int __wrap_unlink(const char *path);
int __real_unlink(const char *path);
static bool unwritable;

int __wrap_unlink(const char *path)
{
  errno = EROFS;
  return unwritable ? -1 : __real_unlink(path);
}

TEST(failed_pruning_is_reported)
{
  struct fixture f;
  struct checkpoint_writer_report report;
  plenty();
  open_fixture(&f, "unpruned", false, "checkpoint.background=true");
  for (int64_t step = 1; step <= 2; step++) {
    must(begin(&f, step, true));
    must(finish(&f, &report));
  }
  start_log();
  unwritable = true;
  must(begin(&f, 3, true));
  checkpoint_writer_destroy(f.writer);
  unwritable = false;
  end_log("/step-00000003.h5 was written, but older checkpoints were not removed: ",
          "cannot remove the old checkpoint ");
  f.writer = NULL;
  check_and_remove(&f, 3, (const int64_t[]){1, 2, 3});
  close_fixture(&f);
}

FIXTURE(start)
{
  const char *tmp = getenv("TMPDIR");
  if (comm_rank(comm) == 0) {
    root = mem_printf("%s/sluice-writer-XXXXXX", tmp && tmp[0] ? tmp : "/tmp");
    if (!root || !mkdtemp(root))
      return -1;
  }
  return comm_broadcast_text(comm, &root, 0) != STATUS_OK;
}

FIXTURE(stop)
{
  const int failed = comm_barrier(comm) != STATUS_OK || (comm_rank(comm) == 0 && rmdir(root) != 0);
  mem_free(root);
  return failed;
}

int main(int argc, char **argv)
{
  if (comm_create_mpi(&argc, &argv, &comm))
    return 1;
  const int failed = test_run(start, stop);
  comm_destroy(comm);
  return failed;
}
