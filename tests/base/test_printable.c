/* Text without control characters. Oracle: Unicode's list of them, and texts that hold none and
 * must stay as they are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/printable.h"

static void expect(const char *given, const char *line, const char *page)
{
  char made[64], *put = NULL;
  size_t bytes = 0;
  strcpy(made, given);
  printable_make(made);
  assert_string_equal(made, line);
  assert_int_equal(printable_is(given), strcmp(given, line) == 0);
  assert_true(printable_is(made));
  FILE *stream = open_memstream(&put, &bytes);
  assert_non_null(stream);
  printable_put(given, strlen(given), stream);
  assert_int_equal(fclose(stream), 0);
  assert_string_equal(put, page);
  free(put);
}

static void test_texts(void **state)
{
  (void)state;
  expect("", "", "");
  expect("plain ~", "plain ~", "plain ~");
  expect("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xc2\xa0\xc4\x9b",
         "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xc2\xa0\xc4\x9b",
         "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xc2\xa0\xc4\x9b"); /* continuation bytes are no
                                                                     controls */
  expect("\033]0;title\007", "?]0;title?", "?]0;title?");
  expect("a\tb\r\nc\x7f", "a b  c?", "a\tb \nc?");
  expect("\xc2\x9b"
         "2J",
         "?2J", "?2J"); /* CSI as a character */
  expect("\x9b"
         "2J\x80",
         "?2J?", "?2J?"); /* as a byte */
  expect("\xe2\x9b"
         "2J",
         "\xe2?2J", "\xe2?2J"); /* after the first byte of a cut character */
  expect("\xff\xa0\xc2", "\xff\xa0\xc2", "\xff\xa0\xc2");
}

/* Every character below U+0800, in UTF-8. */
static void test_every_control(void **state)
{
  (void)state;
  for (unsigned code = 1; code < 0x800; code++) {
    char text[3] = {(char)(code < 0x80 ? code : 0xc0 | code >> 6),
                    (char)(code < 0x80 ? 0 : 0x80 | (code & 0x3f)), '\0'};
    assert_int_equal(printable_is(text), !(code < 0x20 || (code >= 0x7f && code < 0xa0)));
  }
}

/* A page may hold NUL bytes. */
static void test_nul(void **state)
{
  (void)state;
  char *put = NULL;
  size_t bytes = 0;
  FILE *stream = open_memstream(&put, &bytes);
  printable_put("a\0b", 3, stream);
  assert_int_equal(fclose(stream), 0);
  assert_string_equal(put, "a?b");
  free(put);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_texts),
                                     cmocka_unit_test(test_every_control),
                                     cmocka_unit_test(test_nul)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
