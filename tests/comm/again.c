#include "tests/comm/again.h"
#include "tests/test.h"

#include <sys/wait.h>

#include "base/clock.h"

const struct again *again_run(const char *program, int ranks, const char *how)
{
  static struct again run;
  char command[4096];
  const char *mpirun = getenv("MPIRUN");
  assert_non_null(mpirun);
  snprintf(command, sizeof command, "%s -n %d %s %s 2>&1", mpirun, ranks, program, how);
  const double begin = clock_s();
  FILE *pipe = popen(command, "r");
  assert_non_null(pipe);
  const size_t length = fread(run.text, 1, sizeof run.text - 1, pipe);
  run.text[length] = '\0';
  const int ended = pclose(pipe);
  run.seconds = clock_s() - begin;
  assert_true(WIFEXITED(ended));
  run.code = WEXITSTATUS(ended);
  return &run;
}

void again_says(const struct again *run, const char *text)
{
  if (!strstr(run->text, text))
    fail_msg("it does not say '%s', but:\n%s", text, run->text);
}
