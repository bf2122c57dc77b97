/* Texts put together in a fixed room. Oracle: the whole text, cut by snprintf(). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/append.h"

static void long_text_is_cut(void **state)
{
  (void)state;
  enum { MOST = 16 };
  for (size_t size = 1; size <= MOST; size++) {
    char text[MOST + 1] = "", expected[MOST];
    text[size] = '#'; /* after the room */
    for (int i = 0; i < 5; i++)
      append_text(text, size, "%s%d", i ? ", " : "", i);
    snprintf(expected, size, "0, 1, 2, 3, 4");
    assert_string_equal(text, expected);
    assert_int_equal(text[size], '#');
  }
}

static void words_are_quoted_for_a_shell(void **state)
{
  (void)state;
  char text[64] = "";
  append_word(text, sizeof text, "a=1");
  append_word(text, sizeof text, "b c");
  append_word(text, sizeof text, "it's");
  append_word(text, sizeof text, "");
  assert_string_equal(text, "a=1 'b c' 'it'\\''s' ''");
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(long_text_is_cut),
                                     cmocka_unit_test(words_are_quoted_for_a_shell)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
