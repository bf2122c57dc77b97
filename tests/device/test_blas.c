/* The care that OpenBLAS needs. Oracles: a table of the names that OpenBLAS may report. The program
 * is started again, and reads which kernels OpenBLAS uses. */
#include <strings.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/host/host.h"
#include "tests/test.h"
#include <cblas.h>

TEST(remedy_is_for_kernels_older_than_the_processor)
{
  assert_string_equal(host_blas_remedy("Prescott", true, true), "SkylakeX");
  assert_string_equal(host_blas_remedy("Prescott", true, false), "Haswell");
  assert_string_equal(host_blas_remedy("Sandybridge", true, true), "SkylakeX");
  assert_null(host_blas_remedy("Prescott", false, false));
  static const char *const good[] = {"Haswell",  "Zen",        "ZEN",
                                     "SkylakeX", "Cooperlake", "Sapphirerapids"};
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
    assert_null(host_blas_remedy(good[i], true, true));
}

/* This program, started with the name of some kernels, returns 0 if OpenBLAS uses them. With
 * "forget" it forgets the variable before. It makes a host device, which says that the program
 * was started again. It returns 3 if tools such as pgrep do not find it by its name. */
static int tell_core(int argc, char **argv)
{
  char name[16];
  if (prctl(PR_GET_NAME, name) || strcmp(name, "test_blas") != 0)
    return 3;
  if (argc > 2 && strcasecmp(openblas_get_corename(), "Prescott") == 0)
    unsetenv("OPENBLAS_CORETYPE");
  device_prepare(argv);
  struct device *device;
  if (device_create("host", 0, DTYPE_F32, &device))
    return 2;
  device_destroy(device);
  return strcasecmp(openblas_get_corename(), argv[1]) == 0 ? 0 : 1;
}

static char said[4096]; /* by the child */

/* Start with Prescott's kernels, which every x86-64 processor can run. */
static int status_as_prescott(const char *expected, const char *forget)
{
  FILE *log = tmpfile();
  assert_non_null(log);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    dup2(fileno(log), STDERR_FILENO);
    host_blas_restart("Prescott", (char *[]){"test_blas", (char *)expected, (char *)forget, NULL});
    _exit(9);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  const ssize_t bytes = pread(fileno(log), said, sizeof said - 1, 0);
  assert_true(bytes >= 0);
  said[bytes] = '\0';
  assert_int_equal(fclose(log), 0);
  return WEXITSTATUS(status);
}

/* The variable is set: whatever kernels these are, they were chosen on purpose. */
TEST(kernels_asked_for_are_kept)
{
#if !defined __x86_64__
  skip();
#endif
  assert_int_equal(status_as_prescott("Prescott", NULL), 0);
  assert_int_equal(status_as_prescott("Haswell", NULL), 1);
}

TEST(slow_kernels_are_replaced)
{
  const char *better = NULL;
#if defined __x86_64__
  better = host_blas_remedy("Prescott", __builtin_cpu_supports("avx2"),
                            __builtin_cpu_supports("avx512f"));
#endif
  if (!better)
    skip();
  char line[256];
  snprintf(line, sizeof line,
           "OpenBLAS chose its slow 'Prescott' kernels, so this program started itself again with "
           "OPENBLAS_CORETYPE=%s; set ",
           better);
  assert_int_equal(status_as_prescott(better, "forget"), 0);
  const char *at = strstr(said, line);
  if (!at || strstr(at + strlen(line), "started itself"))
    fail_msg("it does not say once '%s' but: %s", line, said);
}

int main(int argc, char **argv)
{
  return argc > 1 ? tell_core(argc, argv) : test_run(NULL, NULL);
}
