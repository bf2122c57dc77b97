/* What every test program repeats: headers, tests that register themselves, main().
 *
 *   TEST(name) { ... }                 a test; the tests of a file run in their order there
 *   TEST_WITH(name, make, unmake) ...  likewise, with a setup and a teardown of its own
 *   FIXTURE(start) { ... }             what runs before or after a test, or all of them
 *   TEST_MAIN(start, stop)             runs them all between start and stop, which can be NULL
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"

enum { TEST_MOST = 128 };

/* In the order of lines: constructors run in an order that depends on the compiler. */
static struct test_registry {
  struct CMUnitTest test[TEST_MOST];
  int line[TEST_MOST];
  int n;
} test_registry;

static inline void test_register(int line, struct CMUnitTest test)
{
  struct test_registry *all = &test_registry;
  int at = all->n++;
  if (at == TEST_MOST)
    abort();
  for (; at > 0 && all->line[at - 1] > line; at--) {
    all->line[at] = all->line[at - 1];
    all->test[at] = all->test[at - 1];
  }
  all->line[at] = line;
  all->test[at] = test;
}

#define TEST_WITH(function, setup, teardown)                                                       \
  static void function(void **state);                                                              \
  __attribute__((constructor)) static void register_##function(void)                               \
  {                                                                                                \
    test_register(__LINE__,                                                                        \
                  (struct CMUnitTest)cmocka_unit_test_setup_teardown(function, setup, teardown));  \
  }                                                                                                \
  static void function(__attribute__((unused)) void **test_state)
#define TEST(function) TEST_WITH(function, NULL, NULL)

/* Returns how many tests failed. */
static inline int test_run(CMFixtureFunction start, CMFixtureFunction stop)
{
  return _cmocka_run_group_tests("tests", test_registry.test, (size_t)test_registry.n, start, stop);
}

/* A setup or teardown of a test or of a file. */
#define FIXTURE(function) static int function(__attribute__((unused)) void **test_state)

#define TEST_MAIN(start, stop)                                                                     \
  int main(void)                                                                                   \
  {                                                                                                \
    return test_run(start, stop);                                                                  \
  }

/* Ends the test with the sentence of a status. */
static inline void must(enum status status)
{
  if (status)
    fail_msg("%s: %s", status_name(status), status_text());
}

/* Ends the test unless the sentence of the last failure has these words. */
static inline void must_say(const char *words)
{
  if (!strstr(status_text(), words))
    fail_msg("\"%s\" is not in: %s", words, status_text());
}

/* Likewise, and unless the status is that. */
static inline void must_fail(enum status status, enum status wanted, const char *words)
{
  if (status != wanted)
    fail_msg("%s, not %s: %s", status_name(status), status_name(wanted), status_text());
  must_say(words);
}
