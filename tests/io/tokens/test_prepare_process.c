/* `sluice prepare` as a process: killed at any moment and started again it gives the same bytes;
 * its memory does not grow with its input. Oracles: the folder of a process that was left alone;
 * what the kernel says of the process. */
#include "corpus.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "io/text/file.h"

static char folder[] = "/tmp/sluice-prepare-XXXXXX", corpus[128], part[160], out[128], whole[128];
enum { SHARD = 250000 };

/* The reports of a finished child. */
struct report {
  struct prepare_result result;
  int64_t data_peak, resident_before, resident_peak;
};

static int64_t peak_resident(void)
{
  char line[256];
  long long kib = -1;
  FILE *file = fopen("/proc/self/status", "r");
  while (file && fgets(line, sizeof line, file))
    if (sscanf(line, "VmHWM: %lld", &kib) == 1)
      break;
  if (file)
    fclose(file);
  return kib < 0 ? -1 : kib * 1024;
}

static struct prepare_config config_for(const char *input, const char *to, int64_t shard_tokens)
{
  static char *inputs[1];
  inputs[0] = (char *)input;
  return (struct prepare_config){.inputs = 1,
                                 .input = inputs,
                                 .out = to,
                                 .tokenizer = "bytes",
                                 .val = 0.1,
                                 .seed = 3,
                                 .shard_tokens = shard_tokens};
}

/* One rank, without MPI: the parent has called neither MPI nor HDF5. */
static pid_t start(const char *input, const char *to, int64_t shard_tokens, int report_to)
{
  pid_t child = fork();
  assert_true(child >= 0);
  if (child > 0)
    return child;
  const struct prepare_config config = config_for(input, to, shard_tokens);
  struct report report = {.resident_before = mem_resident_bytes()};
  struct comm *comm = NULL;
  log_set_level(LOG_ERROR);
  enum status status = comm_create_fake(0, 1, 1, &comm);
  if (status == STATUS_OK)
    status = prepare_run(comm, &config, &report.result);
  comm_destroy(comm);
  report.data_peak = mem_usage(MEM_DATA).peak_bytes;
  report.resident_peak = peak_resident();
  if (status)
    fprintf(stderr, "%s\n", status_text());
  if (status || write(report_to, &report, sizeof report) != (ssize_t)sizeof report)
    _exit(1);
  _exit(0);
}

static void run(const char *input, const char *to, int64_t shard_tokens, struct report *report)
{
  int pipe_ends[2], code;
  assert_int_equal(pipe(pipe_ends), 0);
  pid_t child = start(input, to, shard_tokens, pipe_ends[1]);
  assert_int_equal(waitpid(child, &code, 0), child);
  assert_int_equal(code, 0);
  assert_int_equal(read(pipe_ends[0], report, sizeof *report), (ssize_t)sizeof *report);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

static int count_shards(const char *dir)
{
  int n = 0;
  if (!file_exists(dir))
    return 0;
  char *list = folder_list(dir);
  for (const char *at = list; (at = strstr(at, ".h5\n")); at++)
    n++;
  mem_free(list);
  return n;
}

/* Kill the process `delay` seconds after it has `shards` of them. False when it was finished
 * before. */
static bool run_and_kill(int shards, double delay)
{
  int null_ends[2], code;
  assert_int_equal(pipe(null_ends), 0);
  pid_t child = start(part, out, SHARD, null_ends[1]);
  pid_t ended = 0;
  while (!ended && count_shards(out) < shards)
    ended = waitpid(child, &code, WNOHANG);
  for (double end = clock_s() + delay; !ended && clock_s() < end;)
    ended = waitpid(child, &code, WNOHANG);
  if (!ended) {
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &code, 0), child);
    ended = WIFSIGNALED(code) ? 0 : child;
  }
  close(null_ends[0]);
  close(null_ends[1]);
  return !ended;
}

TEST(test_kill)
{
  struct report report;
  int kills = 0;
  run(part, whole, SHARD, &report);
  int64_t shards = report.result.shards;
  assert_true(shards > 40);
  for (int have = 0; have < shards; have += (int)shards / 8)
    kills += run_and_kill(have, 0.0013 * (have % 7));
  assert_true(kills > 5);
  run(part, out, SHARD, &report);
  assert_int_equal(report.result.shards, shards);
  assert_true(report.result.reused_shards > shards / 2);
  assert_same_folders(out, whole);
  folder_remove(out);
  folder_remove(whole);
}

/* With one shard size, six times the input, 30 MB more: the same memory to a MiB (buffers grow in
 * steps). */
TEST(test_memory)
{
  const char *sanitizer = getenv("SANITIZER");
  enum { SMALL = 6 << 20, LARGE = 36 << 20, TOKENS = 2 << 20 };
  char in[160], path[200];
  struct report small, large;
  snprintf(in, sizeof in, "%s/arrays", folder);
  must(file_make_folders(in));
  corpus_array(in, "small.json", 1, SMALL);
  corpus_array(in, "large.json", 1, LARGE);
  snprintf(path, sizeof path, "%s/small.json", in);
  run(path, out, TOKENS, &small);
  folder_remove(out);
  snprintf(path, sizeof path, "%s/large.json", in);
  run(path, out, TOKENS, &large);
  assert_true(large.result.train_tokens > LARGE / 2);
  assert_true(large.data_peak <= small.data_peak + (1 << 20));
  assert_true(large.data_peak < 8 * TOKENS);
  if (!sanitizer || strcmp(sanitizer, "no") == 0) /* a sanitizer keeps what is freed */
    assert_true(large.resident_peak - large.resident_before < 24 << 20);
  folder_remove(out);
  folder_remove(in);
}

/* A shard that cannot be written: the sentence names it, and no half of it stays. */
TEST(test_no_space)
{
  int ends[2], code;
  char text[4096];
  assert_int_equal(pipe(ends), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    struct prepare_config config = config_for(part, out, 1 << 20);
    config.val = 0;
    struct prepare_result result;
    struct comm *comm = NULL;
    log_set_level(LOG_ERROR);
    signal(SIGXFSZ, SIG_IGN);
    if (comm_create_fake(0, 1, 1, &comm) != STATUS_OK ||
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){1500000, 1500000}) != 0)
      _exit(1);
    enum status status = prepare_run(comm, &config, &result);
    dprintf(ends[1], "%s", status_text());
    _exit(status == STATUS_IO ? 0 : 2);
  }
  close(ends[1]);
  ssize_t bytes = read(ends[0], text, sizeof text - 1);
  close(ends[0]);
  assert_int_equal(waitpid(child, &code, 0), child);
  assert_int_equal(code, 0);
  assert_true(bytes > 0);
  text[bytes] = '\0';
  assert_non_null(strstr(text, "train-00001-00000.h5")); /* of the larger file */
  assert_non_null(strstr(text, "File too large"));
  assert_false(file_exists(out));
}

FIXTURE(set_up)
{
  if (!mkdtemp(folder))
    return 1;
  snprintf(corpus, sizeof corpus, "%s/corpus", folder);
  snprintf(part, sizeof part, "%s/a", corpus);
  snprintf(out, sizeof out, "%s/out", folder);
  snprintf(whole, sizeof whole, "%s/whole", folder);
  corpus_make(corpus);
  return 0;
}

FIXTURE(tear_down)
{
  folder_remove(folder);
  return 0;
}

TEST_MAIN(set_up, tear_down)
