/* Text without control characters. Oracle: Unicode's lists of them, and texts that hold none and
 * must stay as they are. */

#include "base/printable.h"
#include "tests/test.h"

static void expect(const char *given, const char *line, const char *page)
{
  char made[64], *put = NULL;
  size_t bytes = 0;
  strcpy(made, given);
  for (int i = 0; i < 2; i++) { /* it stays the same */
    printable_make(made, sizeof made);
    assert_string_equal(made, line);
  }
  assert_int_equal(printable_is(given), strpbrk(given, "\t\n") == NULL && !strcmp(given, page));
  assert_true(printable_is(made));
  FILE *stream = open_memstream(&put, &bytes);
  assert_non_null(stream);
  printable_put(given, strlen(given), stream);
  assert_int_equal(fclose(stream), 0);
  assert_string_equal(put, page);
  free(put);
  stream = open_memstream(&put, &bytes);
  assert_non_null(stream);
  printable_print(stream, "\n%s: %d\n", given, 7);
  printable_print(stream, "%s", given);
  assert_int_equal(fclose(stream), 0);
  char printed[160];
  snprintf(printed, sizeof printed, "\n%s: 7\n%s", line, line);
  assert_string_equal(put, printed);
  free(put);
}

TEST(test_texts)
{
  expect("", "", "");
  expect("plain ~", "plain ~", "plain ~");
  static const char letters[] = "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xc4\x9b";
  expect(letters, letters, letters); /* continuation bytes are no controls */
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

/* Unicode's general category Cc and property Bidi_Control, and the separators Zl and Zp. */
static bool is_control(unsigned code)
{
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x61c || code == 0x200e ||
         code == 0x200f || (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

static void encode(unsigned code, char *to)
{
  const int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  static const unsigned char leads[] = {0, 0xc0, 0xe0, 0xf0};
  *to++ = (char)(leads[more] | code >> (6 * more));
  for (int i = more - 1; i >= 0; i--)
    *to++ = (char)(0x80 | (code >> (6 * i) & 0x3f));
  *to = '\0';
}

TEST(test_every_character)
{
  char text[8], shown[16];
  for (unsigned code = 1; code < 0x110000; code++) {
    if (code >= 0xd800 && code < 0xe000)
      continue; /* no characters */
    encode(code, text);
    assert_int_equal(printable_is(text), !is_control(code));
    assert_int_equal(printable_is_control(code), is_control(code));
    snprintf(shown, sizeof shown, "<U+%04X>", code);
    if (is_control(code) && code >= 0xa0)
      expect(text, shown, shown);
  }
}

/* Characters that cannot be seen are shown in a line, and stay in a page. */
TEST(test_unseen)
{
  static const unsigned codes[] = {0xa0,   0xad,   0x2003, 0x200b, 0x200c,
                                   0x202f, 0x2060, 0x3000, 0xfeff, 0xe0041};
  for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
    char text[8], shown[16];
    encode(codes[i], text);
    snprintf(shown, sizeof shown, "<U+%04X>", codes[i]);
    expect(text, shown, text);
  }
}

/* A line that gets too long ends with a whole character. */
TEST(test_cut)
{
  char text[12] = "ab\xe2\x80\xae\xc3\xa9z";
  printable_make(text, sizeof text);
  assert_string_equal(text, "ab<U+202E>");
  char other[11] = "abc\xe2\x80\xae";
  printable_make(other, sizeof other);
  assert_string_equal(other, "abc");
}

/* A page may hold NUL bytes. */
TEST(test_nul)
{
  char *put = NULL;
  size_t bytes = 0;
  FILE *stream = open_memstream(&put, &bytes);
  printable_put("a\0b", 3, stream);
  assert_int_equal(fclose(stream), 0);
  assert_string_equal(put, "a?b");
  free(put);
}

TEST_MAIN(NULL, NULL)
