/* sluice bench rates: of the host's memory the best of its rounds is kept, and of copies both ways
 * the round in which they are most together. Oracle: worked out by hand from the times that each
 * measurement is made to take here. */
#include <unistd.h>

#include "base/mem.h"
#include "cmd/bench_frame.h"
#include "compress/compress.h"
#include "io/text/file.h"
#include "tests/test.h"

/* The time of a measurement that warms up. */
#define FIRST 9

/* Seconds of codecs: 0.02 for a call, and 0.1 for 65,536 elements. A short vector has 4,096. */
#define LONG (0.02 + 0.1)
#define LITTLE (0.02 + 0.1 / 16)

/* Seconds of every lane whose time the ranks agree on, in this order; bytes=1Mi and seconds=0, so
 * that each is measured once. */
static const double script[] = {
    FIRST, 0.5,                     /* products */
    FIRST, 0.25,                    /* a copy in the device's memory */
    0,                              /* codecs: LONG each, and LITTLE for a short vector */
    FIRST, FIRST, 1e-3,    10e-3,   /* copies up and down: either is fastest in one round, */
    FIRST, 30e-3,                   /* updates */
    FIRST, FIRST, 1.25e-3, 1.25e-3, /* and both together in another */
    FIRST, 10e-3,                   /* the fastest one */
    FIRST, FIRST, 10e-3,   1e-3,    /* not the last */
    FIRST, 20e-3,
};
enum { CALLS = sizeof script / sizeof *script, ENDS = 2 };
static int calls, coded;

enum status __wrap_comm_max_f64(struct comm *comm, double *values, int n);
enum status __wrap_comm_max_f64(struct comm *comm, double *values, int n)
{
  (void)comm;
  assert_true(n == 1 && calls < CALLS);
  if (script[calls] == 0 && coded < 4 * CODECS * ENDS) {
    const double last = coded / (2 * ENDS) % 2 ? LITTLE : LONG;
    *values = coded++ % ENDS == ENDS - 1 ? last : FIRST;
  } else
    *values = script[script[calls] == 0 ? ++calls : calls], calls++;
  return STATUS_OK;
}

static double rate(const char *text, const char *name)
{
  char key[32];
  snprintf(key, sizeof key, "\n%s: ", name);
  const char *at = strstr(text, key);
  if (!at)
    fail_msg("no %s in\n%s", name, text);
  return strtod(at + strlen(key), NULL);
}

TEST(the_best_round_is_kept)
{
  char out[] = "/tmp/sluice-rates-XXXXXX", assignment[64], *text = NULL;
  char *const assignments[] = {assignment, "device=host", "threads=1", "bytes=1Mi", "seconds=0"};
  const int fd = mkstemp(out);
  struct comm *comm = NULL;
  struct option_set *set = NULL;
  void *values = calloc(1, bench_rates.values_size);
  size_t bytes;
  assert_true(fd >= 0 && close(fd) == 0);
  snprintf(assignment, sizeof assignment, "out=%s", out);
  assert_int_equal(comm_create_fake(0, 1, 1, &comm), STATUS_OK);
  assert_int_equal(options_create(bench_rates.options, values, &set), STATUS_OK);
  for (size_t i = 0; i < sizeof assignments / sizeof *assignments; i++)
    assert_int_equal(options_assign(set, assignments[i]), STATUS_OK);
  if (bench_rates.run(&(struct arguments){.comm = comm, .values = values}))
    fail_msg("%s", status_text());
  options_destroy(set);
  free(values);
  comm_destroy(comm);
  assert_int_equal(calls, CALLS); /* three rounds */
  assert_int_equal(file_read_all(out, 1 << 16, &text, &bytes), STATUS_OK);
  unlink(out);
  const double gb = 1048576e-9;
  assert_float_equal(rate(text, "memory"), 2 * gb / 0.25, 1e-6);
  assert_float_equal(rate(text, "encode_int8"), gb / 4 / 0.1, 1e-6);
  assert_float_equal(rate(text, "decode_randomk"), gb / 4 / 0.1, 1e-6);
  assert_float_equal(rate(text, "encode_exponent"), gb / 4 / 0.1, 1e-6);
  assert_float_equal(rate(text, "decode_exponent"), gb / 4 / 0.1, 1e-6);
  assert_float_equal(rate(text, "decode_countsketch"), gb / 4 / 0.1, 1e-6);
  assert_float_equal(rate(text, "encode_int8_latency"), 0.02e6, 1);
  assert_float_equal(rate(text, "decode_exponent_latency"), 0.02e6, 1);
  assert_float_equal(rate(text, "h2d"), gb / 1.25e-3, 1e-4);
  assert_float_equal(rate(text, "d2h"), gb / 1.25e-3, 1e-4);
  assert_float_equal(rate(text, "host_memory"), 7.5 * gb / 10e-3, 1e-4);
  mem_free(text);
}

/* A vector has a quarter of each piece of memory. The message has all of another piece. The sum and
 * scratch memory share the last one. */
TEST(codecs_fit_the_memory)
{
  static const char *const names[] = {
#define CODEC_NAME(id, kind, title, source) #id,
      CODEC_ROWS(CODEC_NAME)
#undef CODEC_NAME
  };
  for (int c = 0; c < CODECS; c++)
    for (int64_t bytes = 1 << 20; bytes <= 1 << 30; bytes *= 4) {
      const int64_t n = bytes / 4 / (int64_t)sizeof(float);
      struct codec codec;
      assert_int_equal(codec_make(names[c], NULL, false, &codec), STATUS_OK);
      assert_true(codec.ops->bytes(&codec, n) <= bytes);
      assert_true(codec_work(&codec, n, 1) <= bytes - bytes / 4);
    }
}

TEST_MAIN(NULL, NULL)
