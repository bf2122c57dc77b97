/* Settings that the program chooses by measured rates change no bit. Each value of each axis of the
 * search is trained with. Oracle: losses, parameters and moments of the defaults, bit for bit. The
 * printed plan shows that it is another one. */
/* ranks: 2 3 */
#include <stdlib.h>

#include "base/hash.h"
#include "base/mem.h"
#include "job/choose.h"
#include "job/search.h"
#include "job/state.h"
#include "ranks.h"
#include "tests/exec/late.h"
#include "train/data.h"

/* --- the device ---------------------------------------------------------- */

static bool apart;

enum status __real_device_create(const char *name, int ordinal, enum dtype compute,
                                 struct device **out);
enum status __wrap_device_create(const char *name, int ordinal, enum dtype compute,
                                 struct device **out);

/* With `apart` the first device of a job has memory of its own. Copies to it and from it continue
 * after the call. */
enum status __wrap_device_create(const char *name, int ordinal, enum dtype compute,
                                 struct device **out)
{
  if (!apart)
    return __real_device_create(name, ordinal, compute, out);
  apart = false;
  const enum status status = late_device_create(compute, out);
  if (!status)
    (*out)->model.host_memory = false;
  apart = true;
  return status;
}

/* --- a run --------------------------------------------------------------- */

/* Each value must change the plan of one of these jobs. */
static const struct setup {
  bool apart;
  const char *keys;
} setups[] =
    {
        {false, "run.compute=fp32"},
        {true, "run.compute=bf16"},
        {true, "run.compute=bf16 data.micro_batch=6"}, /* updates on the host do not wait */
        {true, "run.compute=bf16 optim.moments=bf16 compress.grads.codec=qsgd"}, /* random bits */
        {false, "run.compute=bf16 shard.strategy=no_shard"},
},
  *setup;

enum { STEPS = 3, MOST_AXES = 32, MOST_VALUES = 16 };

struct trained {
  double loss[STEPS], grad_norm[STEPS];
  int64_t state; /* sum of a hash of each element that a checkpoint holds */
};

/* "key=*2" and "key=/2" are not of axes that keep the order of sums. A model of 13 blocks has more
 * units than any value names. */
static enum status make_deck(struct deck *deck, const char *keys)
{
  char text[1024];
  const char *units = strstr(keys, "=units");
  snprintf(text, sizeof text,
           "model.arch=gpt2 model.layers=13 model.width=12 model.heads=2 model.context=10 "
           "model.vocab=31 data.batch=%d data.micro_batch=2 data.sequence=8 run.threads=1 "
           "run.device=host run.seed=3 optim.warmup=0 comm.timeout=0 %s %.*s%s%s",
           6 * comm_ranks(comm), setup->keys, units ? (int)(units - keys) : (int)strlen(keys), keys,
           units ? "=14" : "", units ? units + strlen("=units") : "");
  return fixture_load(deck, text);
}

static int64_t hash_tensor(int t, const struct io_tensor *tensor)
{
  static float values[RANKS_MOST];
  uint64_t sum = 0;
  assert_true(tensor->range.end - tensor->range.begin <= RANKS_MOST);
  fixture_get(tensor, values);
  for (int64_t e = tensor->range.begin; e < tensor->range.end; e++) {
    const struct {
      int64_t tensor, element;
      float value;
      uint32_t zero;
    } one = {t, e, values[e - tensor->range.begin], 0};
    sum += hash_bytes(HASH_START, &one, sizeof one);
  }
  return (int64_t)sum;
}

static int64_t hash_state(const struct job *job)
{
  struct job_state *state = NULL;
  int64_t sum = 0;
  must(job_state_open(job, true, true, false, &state));
  for (int t = 0; t < state->n; t++)
    sum = (int64_t)((uint64_t)sum + (uint64_t)hash_tensor(t, &state->tensor[t]));
  job_state_close(state);
  must(comm_sum_i64(comm, &sum, 1));
  return sum;
}

/* Free keys get their defaults. */
static enum status create(const char *keys, struct deck *deck, struct job **job)
{
  return make_deck(deck, keys)
      ?: choose_apply("", deck)
      ?: job_begin(comm, deck, job)
      ?: job_create(*job, JOB_TRAIN);
}

static struct trained train(const char *keys)
{
  struct trained out = {.state = 0};
  struct data_sources data = {.n = 1};
  struct deck deck;
  struct job *job = NULL;
  must(create(keys, &deck, &job));
  must(job_state_init(job));
  must(job_make_data(&deck, 0, &data.of[0].set));
  must(data_take(comm, &deck, job->shape.sequence, &data));
  struct data_order order = {.data = &data,
                             .seed = 3,
                             .batch = deck.data.batch,
                             .rank = comm_rank(comm),
                             .shape = job->shape};
  must(job_start(job, PLAN_TRAIN, data_load_train, &order));
  job_read_ahead(job, PLAN_TRAIN, 0, STEPS);
  for (int step = 0; step < STEPS; step++) {
    struct exec_result result = {0};
    must(exec_step(job->exec[PLAN_TRAIN], step, step + 1, 0.01, &result));
    out.loss[step] = result.loss;
    out.grad_norm[step] = result.grad_norm;
  }
  must(exec_drain(job->exec[PLAN_TRAIN]));
  out.state = hash_state(job);
  job_destroy(job);
  data_close(&data);
  deck_destroy(&deck);
  return out;
}

/* The plan as text, for free(); NULL: it is impossible. */
static char *plan_text(const char *keys)
{
  struct deck deck = {0};
  struct job *job = NULL;
  char *text = NULL;
  size_t bytes = 0;
  const enum status status = create(keys, &deck, &job);
  if (!status) {
    FILE *to = open_memstream(&text, &bytes);
    plan_print(job->plan[PLAN_TRAIN], to);
    fclose(to);
  }
  assert_true(!status || status == STATUS_USAGE || status == STATUS_UNSUPPORTED);
  job_destroy(job);
  deck_destroy(&deck);
  return text;
}

/* --- values -------------------------------------------------------------- */

/* Whether the value gives another plan than without it, next to `with`. */
static bool changes_plan(const char *value, const char *with)
{
  char keys[512];
  snprintf(keys, sizeof keys, "%s %s", with, value);
  char *before = plan_text(with), *after = before ? plan_text(keys) : NULL;
  const bool changes = after && strcmp(before, after) != 0;
  free(before);
  free(after);
  return changes;
}

static struct trained expected;

static void expect_same(const char *value, const char *with)
{
  char keys[512];
  snprintf(keys, sizeof keys, "%s %s", with, value);
  const struct trained got = train(keys);
  if (memcmp(&got, &expected, sizeof got) != 0)
    fail_msg("'%s' changes bits", keys);
}

/* Alone, or next to a value of another axis without which it has no effect. */
static bool try_value(int axis, const char *value, bool done)
{
  bool sums;
  if (changes_plan(value, "")) {
    expect_same(value, "");
    return true;
  }
  if (done)
    return true;
  for (int a = 0; search_axis_value(a, 0, &sums); a++)
    for (int v = 1; search_axis_value(a, v, &sums) && !sums && a != axis; v++)
      if (changes_plan(value, search_axis_value(a, v, &sums))) {
        expect_same(value, search_axis_value(a, v, &sums));
        return true;
      }
  return false;
}

/* A key of the setup is no choice of the program. */
static bool is_pinned(const char *value)
{
  char key[64];
  snprintf(key, sizeof key, "%.*s=", (int)strcspn(value, "="), value);
  return strstr(setup->keys, key) != NULL;
}

/* done: values that change the plan of a setup. */
static void try_setup(bool done[MOST_AXES][MOST_VALUES])
{
  bool sums;
  apart = setup->apart;
  expected = train("");
  assert_true(expected.loss[0] != expected.loss[1] && expected.grad_norm[0] > 0 &&
              expected.state != 0);
  for (int a = 0; search_axis_value(a, 0, &sums); a++)
    for (int v = 1; search_axis_value(a, v, &sums) && !sums; v++)
      if (!is_pinned(search_axis_value(a, v, &sums)))
        done[a][v] = try_value(a, search_axis_value(a, v, &sums), done[a][v]);
  apart = false;
}

TEST(values_that_keep_the_order_of_sums)
{
  static bool done[MOST_AXES][MOST_VALUES];
  bool sums;
  int values = 0;
  for (setup = setups; setup < setups + sizeof setups / sizeof *setups; setup++)
    try_setup(done);
  for (int a = 0; search_axis_value(a, 0, &sums); a++)
    for (int v = 1; search_axis_value(a, v, &sums) && !sums; v++, values++)
      if (!done[a][v])
        fail_msg("'%s' changes no plan", search_axis_value(a, v, &sums));
  assert_true(values > 10);
}

int main(int argc, char **argv)
{
  return ranks_main(argc, argv);
}
