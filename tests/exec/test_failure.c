/* One rank fails inside a step while its peers wait for it in collectives: comm_abort() ends the
 * whole job. Oracle: the output and the exit code of mpirun, which this program starts on itself.
 */

#include "compress/rule/exponent.h"
#include "job.h"
#include "tests/comm/again.h"
#include "tests/test.h"

static const char *program;

/* ---- a lossless codec, whose messages rank 1 damages ---- */

static struct codec_ops damaging;
static bool damages_length; /* before it sends them; or else their first word after the lengths */
static int my_rank;

static enum status encode_badly(const struct codec *codec, const struct codec_pass *pass,
                                const float *x, void *messages)
{
  const enum status status = codec_exponent.encode(codec, pass, x, messages);
  struct exponent_header *header = messages;
  if (my_rank == 1 && damages_length)
    header->bytes = codec_exponent.bytes(codec, pass->n) + 1;
  else if (my_rank == 1)
    header->n = -1;
  return status;
}

typedef enum status make(const char *name, const struct codec_settings *settings, bool feedback,
                         struct codec *out);
make __real_codec_make, __wrap_codec_make;
enum status __wrap_codec_make(const char *name, const struct codec_settings *settings,
                              bool feedback, struct codec *out)
{
  const enum status status = __real_codec_make(name, settings, feedback, out);
  damaging = codec_exponent;
  damaging.encode = encode_badly;
  if (name && strcmp(name, "exponent") == 0)
    out->ops = &damaging;
  return status;
}

static enum status load_or_fail(void *arg, int64_t step, int micro, const struct model_batch *out)
{
  return step == 2 && my_rank == 1 ? status_set(STATUS_INPUT, "no tokens for step 2")
                                   : job_load(arg, step, micro, out);
}

/* `scene`: "fail": rank 1 has no tokens for step 2. */
static int train_until_rank_1_fails(const char *scene)
{
  struct comm *comm = job_start_mpi();
  struct job job;
  struct exec_result result;
  if (!comm)
    return 1;
  const bool fails = strcmp(scene, "fail") == 0;
  my_rank = comm_rank(comm);
  damages_length = strcmp(scene, "length") == 0;
  job_open(&job, comm, "prefetch=1 codec=%s", fails ? "none" : "exponent");
  if (fails)
    must(job_reopen(&job, &(struct exec_config){.load = load_or_fail, .load_arg = &job}));
  for (int step = 0; step < JOB_STEPS; step++) {
    enum status status = exec_step(job.exec, step, step + 1, 0.01, &result);
    if (status)
      comm_abort(comm, status);
  }
  job_close(&job);
  comm_destroy(comm);
  return 0;
}

/* Message 1 is the one from rank 1 for rank 0, which is damaged. */
TEST(the_job_ends_with_the_sentence)
{
  static const char *const scenes[][2] = {
      {"fail", "sluice: rank 1: no tokens for step 2\n"},
      {"damage", "sluice: rank 0: message 1 of 3 is damaged: its header says -1 elements in"},
      {"length", "sluice: rank 1: the message for member 0 of a group is damaged: it says that"}};
  for (int s = 0; s < 3; s++) {
    const struct again *run = again_run(program, 3, scenes[s][0]);
    assert_int_equal(run->code, status_exit_code(STATUS_INPUT));
    again_says(run, scenes[s][1]);
  }
}

int main(int argc, char **argv)
{
  program = argv[0];
  return argc == 2 ? train_until_rank_1_fails(argv[1]) : test_run(NULL, NULL);
}
