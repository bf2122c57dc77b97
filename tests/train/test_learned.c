/* The measured algorithms of a device belong to the run. They are kept in its folder, and given to
 * the device of a resumed run before a plan starts. Oracles: the bytes that a device saved; it is
 * the host's device with a memory of its own. The number of lanes at the time of the call. And GPUs
 * that cannot be counted. */
/* ranks: 1 2 */

#include "base/mem.h"
#include "io/text/file.h"
#include "io/tokens/index.h"
#include "tests/job/ranks.h"
#include "train/train.h"

/* --- the device ---------------------------------------------------------- */

static struct {
  struct device_ops ops;
  const struct device_ops *host;
  const char *knows;  /* what it has learned */
  enum status answer; /* to what it is given */
  char given[64];
  int lanes, calls, lanes_then; /* made; of learn; made when it was called */
  bool broken;                  /* its GPUs cannot be counted */
} memory;

static enum status tell(struct device *device, void **out, int64_t *bytes)
{
  (void)device;
  *bytes = (int64_t)strlen(memory.knows);
  *out = *bytes > 0 ? mem_strdup(memory.knows) : NULL;
  return STATUS_OK;
}

static enum status take(struct device *device, const void *data, int64_t bytes)
{
  (void)device;
  assert_in_range(bytes, 1, sizeof memory.given - 1);
  memcpy(memory.given, data, (size_t)bytes);
  memory.given[bytes] = '\0';
  memory.calls++;
  memory.lanes_then = memory.lanes;
  return memory.answer ? status_set(memory.answer, "it is another one's") : STATUS_OK;
}

static enum status count_lane(struct device *device, const char *name, enum lane_role role,
                              int threads, struct lane **out)
{
  memory.lanes++;
  return memory.host->lane_create(device, name, role, threads, out);
}

enum status __real_device_create(const char *name, int ordinal, enum dtype compute,
                                 struct device **out);
enum status __wrap_device_create(const char *name, int ordinal, enum dtype compute,
                                 struct device **out);
int __real_device_count(const char *name);
int __wrap_device_count(const char *name);

enum status __wrap_device_create(const char *name, int ordinal, enum dtype compute,
                                 struct device **out)
{
  enum status status = __real_device_create(name, ordinal, compute, out);
  if (status)
    return status;
  memory.host = (*out)->ops;
  memory.ops = *memory.host;
  memory.ops.learned = tell;
  memory.ops.learn = take;
  memory.ops.lane_create = count_lane;
  (*out)->ops = &memory.ops;
  return STATUS_OK;
}

int __wrap_device_count(const char *name)
{
  if (!memory.broken)
    return __real_device_count(name);
  status_set(STATUS_LIBRARY, "the driver is broken");
  return -1;
}

/* --- runs ---------------------------------------------------------------- */

static void make_data(void)
{
  enum { TOKENS = 400 };
  uint16_t token[TOKENS];
  char name[SHARD_NAME], path[512], *to = mem_printf("%s/data", dir);
  struct shard_info info = {.split = SPLIT_TRAIN,
                            .groups = 1,
                            .last = true,
                            .tokenizer = {.name = "bytes", .vocab = 31},
                            .part_tokens = {TOKENS, 0},
                            .documents = 1,
                            .text_bytes = TOKENS};
  for (int i = 0; i < TOKENS; i++)
    token[i] = (uint16_t)(i * i % 31);
  must(file_make_folders(to));
  shard_name(SPLIT_TRAIN, 0, 0, name);
  snprintf(path, sizeof path, "%s/%s", to, name);
  must(shard_write(path, &info, "source", token, &(uint64_t){0}, NULL));
  must(shard_read(path, &info));
  must(shard_index_write(to, 1, &info));
  mem_free(to);
}

static void make_deck(struct deck *deck, int steps)
{
  char text[3][512];
  snprintf(text[0], sizeof text[0], "run.dir=%s/run", dir);
  snprintf(text[1], sizeof text[1], "data.train=%s/data", dir);
  snprintf(text[2], sizeof text[2], "run.steps=%d", steps);
  fixture_deck(deck, "gpt2", "full_shard", "world", "[]");
  for (int i = 0; i < 3; i++)
    must(options_assign(deck->set, text[i]));
  must(options_assign(deck->set, "run.device=host"));
  must(options_assign(deck->set, "eval.every=0"));
}

/* Up to `steps` steps, on a device that knows `knows` at its end. */
static enum status train(int steps, const char *resume, const char *knows, enum status answer)
{
  struct deck deck;
  enum train_end end;
  memory.knows = knows;
  memory.answer = answer;
  memory.lanes = memory.calls = 0;
  memory.lanes_then = -1;
  memory.given[0] = '\0';
  make_deck(&deck, steps);
  const enum status status = train_run(comm, &deck, resume, &end);
  deck_destroy(&deck);
  return status;
}

static void check_file(const char *content)
{
  char *text = NULL;
  size_t bytes = 0;
  must(comm_barrier(comm));
  must(file_read_all(file_path(dir, "run/device.bin").text, 64, &text, &bytes));
  assert_string_equal(text, content);
  must(comm_barrier(comm));
  mem_free(text);
}

/* Rank 0 alone, which tells the others, before there is a lane. */
static void check_given(const char *content)
{
  if (comm_rank(comm) != 0) {
    assert_int_equal(memory.calls, 0);
    return;
  }
  assert_int_equal(memory.calls, 1);
  assert_int_equal(memory.lanes_then, 0);
  assert_string_equal(memory.given, content);
}

TEST(a_run_goes_on_with_what_it_learned)
{
  static const struct {
    int steps;
    const char *knows;
    enum status answer, end;
    const char *given, *file; /* given NULL: nothing */
  } runs[] = {
      {2, "first", STATUS_OK, STATUS_OK, NULL, "first"},
      {3, "first and second", STATUS_OK, STATUS_OK, "first", "first and second"},
      {4, "another one", STATUS_INPUT, STATUS_OK, "first and second", "another one"}, /* warns */
      {5, "never told", STATUS_MEMORY, STATUS_MEMORY, "another one", "another one"},
      /* as the host answers: what is there stays for the device that comes back */
      {5, "", STATUS_INPUT, STATUS_OK, "another one", "another one"}};
  if (comm_rank(comm) == 0)
    make_data();
  must(comm_barrier(comm));
  must(train(1, "none", "", STATUS_OK)); /* nothing to keep */
  assert_false(file_exists(file_path(dir, "run/device.bin").text));
  for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
    assert_int_equal(train(runs[i].steps, "auto", runs[i].knows, runs[i].answer), runs[i].end);
    if (runs[i].given)
      check_given(runs[i].given);
    else
      assert_true(memory.calls == 0 && memory.lanes > 0);
    check_file(runs[i].file);
  }
}

TEST(gpus_that_cannot_be_counted_are_no_host)
{
  struct deck deck;
  struct job *job = NULL;
  int gpus = -7;
  make_deck(&deck, 1);
  memory.broken = true;
  must(job_count_gpus(&deck, &gpus)); /* does not ask */
  assert_int_equal(gpus, 0);
  must(options_assign(deck.set, "run.device=auto"));
  gpus = -7;
  assert_int_equal(job_count_gpus(&deck, &gpus), STATUS_LIBRARY);
  assert_int_equal(gpus, -7);
  must(job_begin(comm, &deck, &job));
  must_fail(job_create(job, JOB_TRAIN), STATUS_LIBRARY, "the driver is broken");
  job_destroy(job);
  memory.broken = false;
  deck_destroy(&deck);
}

int main(int argc, char **argv)
{
  ranks_untidy = true;
  return ranks_main(argc, argv);
}
