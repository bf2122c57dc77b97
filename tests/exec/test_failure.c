/* One rank fails inside a step while its peers wait for it in collectives: comm_abort() ends the
 * whole job. Oracle: the output and the exit code of mpirun, which this program starts on itself.
 */
#include <string.h>

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

/* codec NULL: rank 1 has no tokens for step 2. */
static int train_until_rank_1_fails(const char *codec)
{
  struct comm *comm = job_start_mpi();
  struct job job;
  struct exec_result result;
  if (!comm)
    return 1;
  my_rank = comm_rank(comm);
  struct job_setup setup = {.prefetch = 1, .codec = codec};
  if (!codec)
    setup = (struct job_setup){.prefetch = 1, .fail_on_rank = 1, .fail_on_step = 2};
  job_open(&job, comm, &setup);
  for (int step = 0; step < JOB_STEPS; step++) {
    enum status status = exec_step(job.exec, step, step + 1, 0.01, &result);
    if (status)
      comm_abort(comm, status);
  }
  job_close(&job);
  comm_destroy(comm);
  return 0;
}

TEST(the_job_ends_with_the_sentence)
{
  const struct again *run = again_run(program, 3, "fail");
  assert_int_equal(run->code, status_exit_code(STATUS_INPUT));
  again_says(run, "sluice: rank 1: no tokens for step 2\n");
}

/* The message from rank 1 for rank 0 is damaged. */
TEST(a_damaged_message_ends_the_job)
{
  const struct again *run = again_run(program, 3, "damage");
  assert_int_equal(run->code, status_exit_code(STATUS_INPUT));
  again_says(run, "sluice: rank 0: message 1 of 3 is damaged: its header says -1 elements in");
}

TEST(a_length_beyond_the_capacity_ends_the_job)
{
  const struct again *run = again_run(program, 3, "length");
  assert_int_equal(run->code, status_exit_code(STATUS_INPUT));
  again_says(run, "sluice: rank 1: the message for member 0 of a group is damaged: it says that");
}

int main(int argc, char **argv)
{
  program = argv[0];
  if (argc == 2 && strcmp(argv[1], "fail") == 0)
    return train_until_rank_1_fails(NULL);
  damages_length = argc == 2 && strcmp(argv[1], "length") == 0;
  if (argc == 2)
    return train_until_rank_1_fails("exponent");
  return test_run(NULL, NULL);
}
