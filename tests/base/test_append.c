/* Texts put together in a fixed room. Oracle: the whole text, cut by snprintf(). */

#include "base/append.h"
#include "tests/test.h"

TEST(long_text_is_cut)
{
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

TEST(words_are_quoted_for_a_shell)
{
  char text[64] = "";
  append_word(text, sizeof text, "a=1");
  append_word(text, sizeof text, "b c");
  append_word(text, sizeof text, "it's");
  append_word(text, sizeof text, "");
  assert_string_equal(text, "a=1 'b c' 'it'\\''s' ''");
}

TEST_MAIN(NULL, NULL)
