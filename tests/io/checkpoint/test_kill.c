/* kill -9 of a rank in each phase of a save. Oracle: afterwards another job finds the newest
 * complete checkpoint, with the bytes that were saved, removes what was left lying about, and saves
 * again. This program starts itself under mpirun: `save DIR PHASE RANK` is the job that dies,
 * `check DIR STEP` the one after it. */
#include <dirent.h>
#include <mpi.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "comm/ops.h"
#include "io/checkpoint/private.h"
#include "io/store/store.h"
#include "io/text/file.h"
#include "sample.h"
#include "tests/test.h"

enum { RANKS = 2, OLD = 10, NEW = 20, AFTER = 30, SEED = 5 };

/* The jobs. */

static struct comm *job;
static enum checkpoint_phase phase_to_die;
static int rank_to_die, seen;

static void die(enum checkpoint_phase phase)
{
  if (phase != phase_to_die || comm_rank(job) != rank_to_die)
    return;
  if (phase == CHECKPOINT_WROTE && ++seen < 3)
    return;
  kill(getpid(), SIGKILL);
}

/* A rank can no longer write to any file, not even its first byte. */
static void stop_writing(enum checkpoint_phase phase)
{
  if (phase == CHECKPOINT_OPENED && comm_rank(job) == rank_to_die)
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){0, RLIM_INFINITY});
}

static enum status save(const char *dir, int64_t step, bool big)
{
  struct sample sample;
  sample_make(&sample, job, SPLIT_EVEN, step, SEED + (int)step, big, true);
  enum status status = checkpoint_save(job, dir, &sample.meta, sample.n, sample.tensor, NULL);
  sample_free(&sample);
  return status;
}

static int run_save(char **argv)
{
  phase_to_die = (enum checkpoint_phase)strtol(argv[1], NULL, 10);
  rank_to_die = (int)strtol(argv[2], NULL, 10);
  checkpoint_test_hook = phase_to_die == CHECKPOINT_PHASES ? stop_writing : die;
  signal(SIGXFSZ, SIG_IGN);
  enum status status = save(argv[0], NEW, true);
  fputs("saved or refused\n", stderr);
  int64_t broken = hdf5_is_broken();
  if (status && comm_rank(job) == 0)
    fprintf(stderr, "%s\n", status_text());
  if (comm_max_i64(job, &broken, 1) || broken) /* as the program does */
    comm_quit(job, status_exit_code(status));
  comm_destroy(job);
  return status_exit_code(status);
}

static int failed(const char *what)
{
  fprintf(stderr, "check: %s: %s\n", what, status_text());
  return 1;
}

static int run_check(char **argv)
{
  struct sample sample;
  char *path = NULL;
  int64_t step = strtol(argv[1], NULL, 10);
  if (checkpoint_find(job, argv[0], true, &path) != STATUS_OK || !path)
    return failed("nothing found");
  if (strcmp(path, checkpoint_folder_path(argv[0], step).text) != 0)
    return failed(path);
  sample_make(&sample, job, SPLIT_EVEN, 0, SEED + (int)step, step == NEW, false);
  if (checkpoint_load(job, path, sample.n, sample.tensor, NULL) != STATUS_OK)
    return failed("load");
  if (sample_wrong(&sample, SEED + (int)step) != 0)
    return failed("wrong bytes");
  sample_free(&sample);
  DIR *folder = opendir(argv[0]);
  for (struct dirent *item; (item = readdir(folder));)
    if (strstr(item->d_name, ".tmp"))
      return failed("a temporary file is left");
  closedir(folder);
  if (save(argv[0], AFTER, false) != STATUS_OK)
    return failed("the next save");
  mem_free(path);
  comm_destroy(job);
  return 0;
}

/* A message between ranks of two nodes that MPI refuses. */
static char refused[8]; /* by this call */

int MPI_Isend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm members,
              MPI_Request *request)
{
  return strcmp(refused, "Isend") == 0 ? MPI_ERR_OTHER
                                       : PMPI_Isend(data, n, type, to, tag, members, request);
}

int MPI_Irecv(void *data, int n, MPI_Datatype type, int from, int tag, MPI_Comm members,
              MPI_Request *request)
{
  return strcmp(refused, "Irecv") == 0 ? MPI_ERR_OTHER
                                       : PMPI_Irecv(data, n, type, from, tag, members, request);
}

static const char *call_to_refuse;

static void refuse(enum checkpoint_phase phase)
{
  if (phase == CHECKPOINT_OPENED)
    snprintf(refused, sizeof refused, "%s", call_to_refuse);
}

/* refused DIR CALL */
static int run_refused(char **argv)
{
  call_to_refuse = argv[1];
  checkpoint_piece_bytes = 10007;
  job->local_ranks = 1;
  checkpoint_test_hook = refuse;
  (void)save(argv[0], NEW, true);
  comm_destroy(job);
  return 99; /* has come back */
}

/* A store of which one rank cannot make its part, when the others can. */
hid_t __real_H5Dcreate2(hid_t parent, const char *name, hid_t type, hid_t space, hid_t link,
                        hid_t creation, hid_t access);
hid_t __wrap_H5Dcreate2(hid_t parent, const char *name, hid_t type, hid_t space, hid_t link,
                        hid_t creation, hid_t access);
static bool breaks;

hid_t __wrap_H5Dcreate2(hid_t parent, const char *name, hid_t type, hid_t space, hid_t link,
                        hid_t creation, hid_t access)
{
  return breaks ? H5I_INVALID_HID
                : __real_H5Dcreate2(parent, name, type, space, link, creation, access);
}

static int run_store(char **argv)
{
  struct store *store = NULL;
  breaks = comm_rank(job) == 1;
  enum status status = store_create(job, argv[0], 1000, &store);
  store_destroy(store);
  comm_destroy(job);
  return status == STATUS_OK ? 0 : 99; /* has come back */
}

static int run_job(char **argv)
{
  if (comm_create_mpi(NULL, NULL, &job) != STATUS_OK)
    return failed("start");
  if (strcmp(argv[0], "save") == 0)
    return run_save(argv + 1);
  if (strcmp(argv[0], "check") == 0)
    return run_check(argv + 1);
  if (strcmp(argv[0], "refused") == 0)
    return run_refused(argv + 1);
  if (strcmp(argv[0], "store") == 0)
    return run_store(argv + 1);
  enum status status = save(argv[1], OLD, false); /* first */
  comm_destroy(job);
  return status_exit_code(status);
}

/* The test, which is no MPI job. */

static char self[4096], dir[4096];
static const char *mpirun;

static int shell(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int shell(const char *format, ...)
{
  char command[16384];
  va_list args;
  va_start(args, format);
  vsnprintf(command, sizeof command, format, args);
  va_end(args);
  int status = system(command);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Whether a rank was killed in a phase of a save. MPICH 4.2 sometimes ends with 0 then. */
static bool is_killed(enum checkpoint_phase phase, int rank)
{
  shell("%s -n %d %s save '%s' %d %d >'%s.out' 2>&1", mpirun, RANKS, self, dir, (int)phase, rank,
        dir);
  return shell("grep -q 'saved or refused' '%s.out'", dir) == 1;
}

static void refill(void)
{
  assert_int_equal(shell("rm -rf '%s'/* '%s'/.step*", dir, dir), 0);
  assert_int_equal(shell("cp '%s.first' '%s/step-00000010.h5'", dir, dir), 0);
}

TEST(killed_in_every_phase)
{
  static const struct {
    enum checkpoint_phase phase;
    int rank;
  } cases[] = {
      {CHECKPOINT_BEGUN, 0},     {CHECKPOINT_LAID_OUT, 0}, {CHECKPOINT_OPENED, 1},
      {CHECKPOINT_WROTE, 0},     {CHECKPOINT_WROTE, 1},    {CHECKPOINT_CLOSED, 0},
      {CHECKPOINT_COMPLETED, 0}, {CHECKPOINT_RENAMED, 0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    refill();
    if (!is_killed(cases[i].phase, cases[i].rank))
      fail_msg("case %zu was not killed", i);
    bool renamed = cases[i].phase == CHECKPOINT_RENAMED;
    assert_true(renamed == (shell("test -e '%s/step-00000020.h5'", dir) == 0));
    assert_true(renamed != (shell("test -e '%s'/.step-00000020.h5.tmp-*/.step*", dir) ==
                            0)); /* it did die on the way */
    if (shell("%s -n 1 %s check '%s' %d", mpirun, self, dir, renamed ? NEW : OLD) != 0)
      fail_msg("case %zu", i);
  }
}

/* If a store is laid out on some ranks only, it cannot be closed. The job ends at once and does not
 * wait without end. */
TEST(a_store_that_one_rank_cannot_make)
{
  refill();
  assert_int_equal(shell("timeout 60 %s -n %d %s store '%s/nvme' >/dev/null 2>'%s.errors'", mpirun,
                         RANKS, self, dir, dir),
                   status_exit_code(STATUS_IO));
  assert_int_equal(
      shell("grep -q 'rank 1: %s/nvme/sluice-.*: cannot create the dataset rank-0' '%s.errors'",
            dir, dir),
      0);
  assert_int_equal(shell("rmdir '%s/nvme'", dir), 0); /* it is empty */
}

/* The other rank waits for the message, and does not wait without end. */
TEST(a_message_that_mpi_refuses)
{
  static const struct {
    const char *call;
    int rank;
  } row[] = {{"Isend", 1}, {"Irecv", 0}}; /* the first block that two ranks hold is rank 0's */
  for (int i = 0; i < 2; i++) {
    refill();
    assert_int_equal(shell("timeout 60 %s -n %d %s refused '%s' %s >/dev/null 2>'%s.errors'",
                           mpirun, RANKS, self, dir, row[i].call, dir),
                     status_exit_code(STATUS_LIBRARY));
    assert_int_equal(shell("grep -q 'sluice: rank %d: MPI_%s failed: ' '%s.errors'", row[i].rank,
                           row[i].call, dir),
                     0);
  }
}

/* The job ends with the sentence and the right exit code, and leaves nothing. */
TEST(a_disk_that_fails_under_a_rank)
{
  for (int rank = 0; rank < RANKS; rank++) {
    refill();
    assert_int_equal(shell("%s -n %d %s save '%s' %d %d >/dev/null 2>'%s.errors'", mpirun, RANKS,
                           self, dir, (int)CHECKPOINT_PHASES, rank, dir),
                     status_exit_code(STATUS_IO));
    assert_int_equal(shell("grep -q 'the checkpoint of step 20 was not written to %s, earlier ones "
                           "are untouched: rank %d: dataset .*: cannot write' '%s.errors'",
                           dir, rank, dir),
                     0);
    assert_int_equal(shell("test -e '%s'/.step-00000020.h5.tmp-*", dir), 1);
    assert_int_equal(shell("%s -n 1 %s check '%s' %d", mpirun, self, dir, OLD), 0);
  }
}

FIXTURE(start)
{
  const char *root = getenv("TMPDIR");
  snprintf(dir, sizeof dir, "%s/sluice-io-XXXXXX", root && root[0] ? root : "/tmp");
  if (!mkdtemp(dir))
    return -1;
  return shell("%s -n 1 %s first '%s' && mv '%s/step-00000010.h5' '%s.first'", mpirun, self, dir,
               dir, dir);
}

FIXTURE(stop)
{
  return shell("rm -rf '%s' '%s.first' '%s.errors' '%s.out'", dir, dir, dir, dir);
}

int main(int argc, char **argv)
{
  if (argc > 2)
    return run_job(argv + 1);
  mpirun = getenv("MPIRUN");
  if (!mpirun)
    mpirun = "mpirun --oversubscribe --bind-to none";
  if (mpirun[0] == '\0' || mpirun[0] == ' ' ||
      readlink("/proc/self/exe", self, sizeof self - 1) < 0) {
    puts("skipped: needs mpirun");
    return 77;
  }
  setenv("OMPI_MCA_odls_base_sigkill_timeout", "0",
         1); /* Open MPI gives the other ranks a second; they are killed as well */
  return test_run(start, stop);
}
