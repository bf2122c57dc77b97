/* Documents of a file. Oracles: documents written by hand. The blocks of a plain text, joined, are
 * the text. A stream that continues from any position gives the same documents as the whole stream.
 * The byte of each kind of damage is known by construction. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "io/text/file.h"
#include "io/text/input.h"
#include "io/text/text.h"
#include "io/text/utf8.h"

#define OK(call) assert_status(STATUS_OK, (call))

static void assert_status(enum status want, enum status got)
{
  if (got != want)
    fail_msg("status %s instead of %s: %s", status_name(got), status_name(want), status_text());
}

static char folder[] = "/tmp/sluice-text-XXXXXX";

static const char *put(const char *name, const void *content, size_t bytes)
{
  static char path[256];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_int_equal(fwrite(content, 1, bytes, file), bytes);
  assert_int_equal(fclose(file), 0);
  return path;
}

enum { MOST = 4096 };
struct got {
  char *text;
  size_t bytes;
  int64_t number;
  struct text_position after;
};

static int read_from(const char *path, struct text_position from, struct got *out)
{
  struct text *text = NULL;
  int n = 0;
  OK(text_open(path, from, &text));
  for (;;) {
    struct text_document document;
    bool found = false;
    OK(text_next(text, &document, &found));
    if (!found)
      break;
    assert_true(n < MOST);
    out[n] =
        (struct got){.bytes = document.bytes, .number = document.number, .after = document.after};
    OK(mem_alloc(MEM_META, document.bytes + 1, (void **)&out[n].text));
    memcpy(out[n].text, document.text, document.bytes);
    n++;
  }
  struct text_document document;
  bool found = true;
  OK(text_next(text, &document, &found)); /* the end stays the end */
  assert_false(found);
  text_close(text);
  return n;
}

static void free_all(struct got *got, int n)
{
  for (int i = 0; i < n; i++)
    mem_free(got[i].text);
}

/* Any position gives the rest of the stream. */
static void check_positions(const char *path)
{
  static struct got all[MOST], rest[MOST];
  int n = read_from(path, (struct text_position){0, 0}, all), step = 1 + n / 40;
  for (int from = 0; from < n; from += step) {
    int m = read_from(path, all[from].after, rest);
    assert_int_equal(m, n - from - 1);
    for (int i = 0; i < m; i++) {
      const struct got *a = &rest[i], *b = &all[from + 1 + i];
      assert_true(a->number == b->number && a->bytes == b->bytes &&
                  a->after.byte == b->after.byte && a->after.number == b->after.number);
      assert_memory_equal(a->text, b->text, a->bytes);
    }
    free_all(rest, m);
  }
  free_all(all, n);
}

/* Documents separated by '|'. */
static void check_documents(const char *name, const char *content, const char *expected)
{
  static struct got got[MOST];
  char found[4096] = "";
  const char *path = put(name, content, strlen(content));
  int n = read_from(path, (struct text_position){0, 0}, got);
  for (int i = 0; i < n; i++)
    sprintf(found + strlen(found), "%s%.*s", i ? "|" : "", (int)got[i].bytes, got[i].text);
  assert_string_equal(found, expected);
  free_all(got, n);
  check_positions(path);
  unlink(path);
}

/* Invalid UTF-8 becomes U+FFFD, also at the end of a block. A file without blank or space is cut
 * between characters, and between stray bytes. */
static void check_replaced(const char *name, const char *content, size_t bytes,
                           const char *expected, size_t expected_bytes)
{
  struct text *text = NULL;
  struct text_document document;
  const char *path = put(name, content, bytes);
  bool found = true;
  size_t at = 0;
  OK(text_open_replacing(path, (struct text_position){0, 0}, &text));
  for (;;) {
    OK(text_next(text, &document, &found));
    if (!found)
      break;
    assert_true(at + document.bytes <= expected_bytes);
    assert_memory_equal(document.text, expected + at, document.bytes);
    at += document.bytes;
    assert_true(document.begins == (document.number == 0));
    assert_true(document.ends == (at == expected_bytes));
  }
  assert_int_equal(at, expected_bytes);
  text_close(text);
  unlink(path);
}

static void test_replacing(void **state)
{
  (void)state;
  static const char *const cases[][3] = {
      {"a.txt", "caf\xE9 \xF0\x9F\x99", "caf\uFFFD \uFFFD"},
      {"a.jsonl", "{\"text\": \"caf\xE9\xC3\"}", "caf\uFFFD\uFFFD"},
      {"a.json", "[{\"title\": \"\xFF\", \"text\": \"b\\u00e9\"}]", "\uFFFD\nb\u00e9"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    check_replaced(cases[i][0], cases[i][1], strlen(cases[i][1]), cases[i][2], strlen(cases[i][2]));
  enum { BYTES = 3 * TEXT_BLOCK_MOST + 7 };
  static const char *const fills[] = {"\x80", "\xF0\x9F\x99", "\xF0\x9F\x99\x82",
                                      "\xF0\x9F\x99\x82\x80", "a\xC3\xA9\xE2\x82"};
  char *raw = NULL, *fixed = NULL;
  OK(mem_alloc(MEM_META, BYTES, (void **)&raw));
  for (size_t f = 0; f < sizeof fills / sizeof *fills; f++) {
    int64_t n = 0, room = 0;
    for (size_t i = 0; i < BYTES; i++)
      raw[i] = fills[f][i % strlen(fills[f])];
    fixed = NULL;
    OK(utf8_replace(raw, BYTES, &fixed, &n, &room));
    check_replaced("a.txt", raw, BYTES, fixed, (size_t)n);
    mem_free(fixed);
  }
  mem_free(raw);
  struct text *text = NULL;
  assert_status(STATUS_INPUT,
                text_open_replacing(put("a.txt", "a\0b", 3), (struct text_position){0, 0},
                                    &text)); /* no text at all */
}

static void test_documents(void **state)
{
  (void)state;
  check_documents("a.txt", "One.\n\nTwo.\n", "One.\n\nTwo.\n");
  check_documents("a.txt", "", "");
  check_documents("a.txt", " \n\t\r\n", "");
  check_documents("a.txt", "\xEF\xBB\xBFwith a mark", "with a mark");
  check_documents("a.txt", "\xEF\xBB\xBF", "");
  check_documents("a.txt", "{\"text\": \"no JSON by its name\"}",
                  "{\"text\": \"no JSON by its name\"}");
  check_documents("a.jsonl", "{\"text\":\"one\"}\n{\"title\":\"T\",\"text\":\"two\"}\n",
                  "one|T\ntwo");
  check_documents("a.jsonl", "{\"text\":\"one\"}\r\n\n \n{\"text\":\"two\"}", "one|two");
  check_documents("a.ndjson", "\n\n", "");
  check_documents(
      "a.jsonl",
      "{\"text\":\"\"}\n{\"text\":\" \\n\"}\n{\"text\":\"x\"}\n{\"title\":\"\",\"text\":\"y\"}",
      "x|y");
  check_documents("a.jsonl",
                  "{\"text\":\"t\",\"id\":[1,{\"a\":[null,true,false,-0.5e+7,0,\"\\u00e9\"]},{}],"
                  "\"title\":\"T\"}",
                  "T\nt");
  check_documents(
      "a.jsonl",
      "{\"te\\u0078t\":\"\\u0041\\u00e9\\u4e00\\ud83d\\ude42\\\"\\\\\\/\\b\\f\\n\\r\\t\"}",
      "A\xC3\xA9\xE4\xB8\x80\xF0\x9F\x99\x82\"\\/\b\f\n\r\t");
  check_documents("a.json", "", "");
  check_documents("a.json", "[]", "");
  check_documents("a.json", " [ ] \n", "");
  check_documents("a.json",
                  "\xEF\xBB\xBF[{\"id\":1,\"title\":\"A\",\"text\":\"b\"} , {\"text\":\"c\"}\n]\n",
                  "A\nb|c");
  check_documents("a.json", "{\"text\":\"lines under another name\"}\n{\"text\":\"x\"}\n",
                  "lines under another name|x");
  check_documents("noname", "[ {\"text\":\"a\"}]", "a");
  check_documents("noname", "{ \"text\":\"a\"}", "a");
  check_documents("noname", "[1] is where the notes begin", "[1] is where the notes begin");
  check_documents("noname", "{x} is a set", "{x} is a set");
  check_documents(".txt", "a name that is only an ending", "a name that is only an ending");
}

static void test_numbers(void **state)
{
  (void)state;
  struct got got[8];
  static const char content[] =
      "[{\"text\":\" \"},{\"text\":\"b\"},{\"text\":\"\"},{\"text\":\"d\"}]";
  const char *path = put("a.json", content, sizeof content - 1);
  assert_int_equal(read_from(path, (struct text_position){0, 0}, got), 2);
  assert_int_equal(got[0].number, 1); /* white space is skipped, but counted */
  assert_int_equal(got[1].number, 3);
  assert_int_equal(got[0].after.byte, 26);
  assert_int_equal(got[0].after.number, 2);
  free_all(got, 2);
  unlink(path);
}

/* ---- plain text in blocks */

static void check_blocks(const char *content, size_t bytes)
{
  static struct got got[MOST];
  const char *path = put("a.txt", content, bytes);
  int n = read_from(path, (struct text_position){0, 0}, got);
  size_t at = 0;
  for (int i = 0; i < n; i++) {
    assert_true(at + got[i].bytes <= bytes);
    assert_memory_equal(got[i].text, content + at, got[i].bytes);
    at += got[i].bytes;
    assert_int_equal(got[i].after.byte, at);
    assert_true(got[i].bytes <= TEXT_BLOCK_MOST);
    assert_true(i == n - 1 || got[i].bytes > TEXT_BLOCK_LEAST);
  }
  assert_int_equal(at, bytes);
  free_all(got, n);
  check_positions(path);
  unlink(path);
}

static void test_blocks(void **state)
{
  (void)state;
  enum { BYTES = 3 << 20 };
  struct rng_key key = rng_key_make(3, "test blocks");
  char *text = NULL;
  OK(mem_alloc(MEM_META, BYTES + 8, (void **)&text));
  for (size_t i = 0; i < BYTES; i++) {
    uint32_t draw[4];
    rng_block(key, 0, i, draw);
    text[i] = draw[0] % 7 == 0 ? ' ' : draw[0] % 61 == 0 ? '\n' : (char)('a' + draw[1] % 26);
  }
  check_blocks(text, BYTES);
  check_blocks(text, TEXT_BLOCK_LEAST);
  check_blocks(text, TEXT_BLOCK_MOST);
  check_blocks(text, TEXT_BLOCK_MOST + 1);
  memset(text, 'x', BYTES); /* no place to cut but between characters */
  check_blocks(text, BYTES);
  for (size_t i = 0; i + 3 <= BYTES; i += 3)
    memcpy(text + i, "\xE6\xB0\xB4", 3);
  check_blocks(text, BYTES / 3 * 3);
  for (size_t i = 0; i + 4 <= BYTES; i += 4)
    memcpy(text + i, "\xF0\x9F\x99\x82", 4);
  text[0] = 'x', text[1] = 'x', text[2] = 'x',
  text[3] = 'x'; /* characters across every border of the buffer */
  memmove(text + 1, text, BYTES - 1);
  check_blocks(text, BYTES - 3);
  mem_free(text);
}

static void check_first_block(size_t filler, const char *cut, const char *rest, size_t expected)
{
  struct got got[64];
  size_t bytes = filler + strlen(cut) + strlen(rest);
  char *text = NULL;
  OK(mem_alloc(MEM_META, bytes + 1, (void **)&text));
  memset(text, 'x', filler);
  sprintf(text + filler, "%s%s", cut, rest);
  const char *path = put("a.txt", text, bytes);
  int n = read_from(path, (struct text_position){0, 0}, got);
  assert_int_equal(got[0].bytes, expected);
  free_all(got, n);
  mem_free(text);
  unlink(path);
}

static void test_where_blocks_end(void **state)
{
  (void)state;
  static char filling[TEXT_BLOCK_MOST + 1];
  memset(filling, 'y', TEXT_BLOCK_MOST);
  check_first_block(TEXT_BLOCK_LEAST, "\n\n", "rest", TEXT_BLOCK_LEAST + 2);
  check_first_block(TEXT_BLOCK_LEAST, "\r\n \t\r\n", "rest", TEXT_BLOCK_LEAST + 6);
  check_first_block(TEXT_BLOCK_LEAST, "\n", "rest\n\nmore", TEXT_BLOCK_LEAST + 7);
  check_first_block(TEXT_BLOCK_LEAST - 2, "\n\n", "rest", TEXT_BLOCK_LEAST + 4); /* too early */
  check_first_block(TEXT_BLOCK_LEAST + 5, "\n", filling,
                    TEXT_BLOCK_LEAST + 6); /* no blank line in reach */
  check_first_block(TEXT_BLOCK_LEAST + 5, " ", filling,
                    TEXT_BLOCK_LEAST + 6); /* no line end either */
  check_first_block(TEXT_BLOCK_LEAST + 5, "", filling, TEXT_BLOCK_MOST - 1); /* nothing */
}

/* ---- JSON across the borders of the buffer */

static void test_big_json(void **state)
{
  (void)state;
  static struct got got[MOST];
  enum { DOCUMENTS = 60 };
  char path[256];
  struct rng_key key = rng_key_make(4, "test JSON");
  snprintf(path, sizeof path, "%s/big.json", folder);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputc('[', file);
  for (uint64_t i = 0; i < DOCUMENTS; i++) {
    uint32_t draw[4];
    rng_block(key, 0, i, draw);
    fprintf(file, "%s{\"id\": \"%d\", \"title\": \"T%d\", \"text\": \"", i ? ",\n" : "", (int)i,
            (int)i);
    for (uint32_t k = 0; k < draw[0] % 30000; k++)
      fputs(k % 3 == 0 ? "\xE6\xB0\xB4" : k % 3 == 1 ? "\\u6c34\\n" : "a", file);
    fputs("\"}", file);
  }
  fputs("]", file);
  assert_int_equal(fclose(file), 0);
  assert_int_equal(read_from(path, (struct text_position){0, 0}, got), DOCUMENTS);
  for (uint64_t i = 0; i < DOCUMENTS; i++) {
    uint32_t draw[4], n;
    rng_block(key, 0, i, draw);
    n = draw[0] % 30000;
    const char *at = got[i].text + (i < 10 ? 3 : 4);
    assert_int_equal(got[i].bytes, (i < 10 ? 3 : 4) + (n + 2) / 3 * 3 + (n + 1) / 3 * 4 + n / 3);
    for (uint32_t k = 0; k < n; k++) {
      const char *piece = k % 3 == 0 ? "\xE6\xB0\xB4" : k % 3 == 1 ? "\xE6\xB0\xB4\n" : "a";
      assert_memory_equal(at, piece, strlen(piece));
      at += strlen(piece);
    }
  }
  free_all(got, DOCUMENTS);
  check_positions(path);
  unlink(path);
}

/* ---- damage */

static void check_refused(const char *name, const char *content, size_t bytes, int64_t byte,
                          const char *says)
{
  struct text *text = NULL;
  struct text_document document;
  bool found = true;
  char where[300];
  const char *path = put(name, content, bytes);
  enum status status = text_open(path, (struct text_position){0, 0}, &text);
  while (status == STATUS_OK && found)
    status = text_next(text, &document, &found);
  snprintf(where, sizeof where, "%s, byte %" PRId64 ": ", path, byte);
  if (status != STATUS_INPUT || strncmp(status_text(), where, strlen(where)) != 0 ||
      !strstr(status_text() + strlen(where), says))
    fail_msg("%s: %s '%s' instead of '%s%s'", content, status_name(status),
             status == STATUS_OK ? "" : status_text(), where, says);
  text_close(text);
  unlink(path);
}

static void test_damage(void **state)
{
  (void)state;
  static const struct {
    const char *name, *content;
    int64_t byte;
    const char *says;
  } cases[] = {{"a.txt", "abc\x80", 3, "not valid UTF-8 (0x80)"},
               {"a.txt", "abc\xE2\x82", 3, "not valid UTF-8 (0xE2)"},
               {"a.txt", "\xFF\xFEh", 0, "UTF-16"},
               {"a.txt", "ab\xC0\x80", 2, "not valid UTF-8"},
               {"a.txt", "ab\xED\xA0\x80", 2, "not valid UTF-8"},
               {"a.txt", "ab\xF4\x90\x80\x80", 2, "not valid UTF-8"},
               {"a.json", "[{\"text\":\"a\xFF\"}]", 11, "not valid UTF-8"},
               {"a.json", "[{\"text\":\"a\"},", 14, "an object, '{', is expected"},
               {"a.json", "[{\"text\":\"a\"}", 13, "truncated"},
               {"a.json", "[", 1, "truncated"},
               {"a.json", "x", 0, "an object, '{', is expected, found 'x'"},
               {"a.json", "[1]", 1, "an object"},
               {"a.json", "[{\"text\":\"a\"}] x", 15, "the end of the file after the array"},
               {"a.json", "[{\"text\":\"a\"}{\"text\":\"a\"}]", 13, "',' or ']'"},
               {"a.json", "[{\"text\":\"a\"},]", 14, "an object"},
               {"a.json", "[{\"text\":\"a\",}]", 13, "a string"},
               {"a.json", "[{\"text\":\"a\" \"b\"}]", 13, "',' or '}'"},
               {"a.json", "[{\"text\" \"a\"}]", 9, "':'"},
               {"a.json", "[{text:\"a\"}]", 2, "a string"},
               {"a.json", "[{'text':\"a\"}]", 2, "a string"},
               {"a.json", "[{\"title\":\"a\"}]", 1, "an object without \"text\""},
               {"a.json", "[{}]", 1, "an object without \"text\""},
               {"a.json", "[{\"text\":1}]", 9, "a string as \"text\""},
               {"a.json", "[{\"text\":null}]", 9, "a string as \"text\""},
               {"a.json", "[{\"title\":[],\"text\":\"a\"}]", 10, "a string as \"title\""},
               {"a.json", "[{\"text\":\"a\",\"text\":\"b\"}]", 13, "a second \"text\""},
               {"a.json", "[{\"text\":\"a\",\"title\":\"b\",\"ti\\u0074le\":\"c\"}]", 25,
                "a second \"title\""},
               {"a.json", "[{\"text\":\"a\\u0000\"}]", 11, "\\u0000"},
               {"a.json", "[{\"text\":\"a\\ud83dx\"}]", 11, "half a surrogate pair"},
               {"a.json", "[{\"text\":\"a\\ude42\"}]", 11, "half a surrogate pair"},
               {"a.json", "[{\"text\":\"a\\ud83d\\u0041\"}]", 11, "half a surrogate pair"},
               {"a.json", "[{\"text\":\"a\\u12x4\"}]", 15, "a hexadecimal digit"},
               {"a.json", "[{\"text\":\"a\\x\"}]", 12, "an escape"},
               {"a.json", "[{\"text\":\"a\nb\"}]", 11, "control character 0x0A"},
               {"a.json", "[{\"text\":\"abc", 13, "inside the string that begins at byte 9"},
               {"a.json", "[{\"text\":\"a\\", 12, "an escape"},
               {"a.json", "[{\"n\":01,\"text\":\"a\"}]", 7, "',' or '}'"},
               {"a.json", "[{\"n\":1.,\"text\":\"a\"}]", 8, "a digit"},
               {"a.json", "[{\"n\":.5,\"text\":\"a\"}]", 6, "a value"},
               {"a.json", "[{\"n\":-,\"text\":\"a\"}]", 7, "a digit"},
               {"a.json", "[{\"n\":1e,\"text\":\"a\"}]", 8, "a digit"},
               {"a.json", "[{\"n\":+1,\"text\":\"a\"}]", 6, "a value"},
               {"a.json", "[{\"n\":NaN,\"text\":\"a\"}]", 6, "a value"},
               {"a.json", "[{\"n\":nul,\"text\":\"a\"}]", 9, "null"},
               {"a.json", "[{\"n\":[1,],\"text\":\"a\"}]", 9, "a value"},
               {"a.json", "[{\"n\":{\"a\":1,},\"text\":\"a\"}]", 13, "a string"},
               {"a.json", "[{\"n\":[1}],\"text\":\"a\"}]", 8, "',' or ']'"},
               {"a.json", "[{\"n\":\"\xC3\x28\",\"text\":\"a\"}]", 7, "not valid UTF-8"},
               {"a.json", "[/*c*/{\"text\":\"a\"}]", 1, "an object"},
               {"a.jsonl", "{\"text\":\"a\"} {\"text\":\"b\"}", 13, "the end of the line"},
               {"a.jsonl", "{\"text\":\"a\"}\n{\"text\":\"b\"", 24, "truncated"},
               {"a.jsonl", "{\"text\":\"a\"}\n[{\"text\":\"b\"}]", 13, "an object"},
               {"a.jsonl", "{\"text\":\"a\"}\n\"b\"", 13, "an object"},
               {"a.jsonl", "{\"text\":\"a\"},\n", 12, "the end of the line"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    check_refused(cases[i].name, cases[i].content, strlen(cases[i].content), cases[i].byte,
                  cases[i].says);
  check_refused("a.txt", "ab\0c", 4, 2, "NUL");
  check_refused("a.jsonl", "{\"text\":\"a\0b\"}", 14, 10, "NUL");
}

/* A damaged byte far into a file, at any place around the borders of the buffer. */
static void test_damage_far_in(void **state)
{
  (void)state;
  enum { BYTES = 3 << 20 };
  char *text = NULL;
  OK(mem_alloc(MEM_META, BYTES, (void **)&text));
  for (int64_t i = 0; i < 24; i++) {
    for (size_t k = 0; k + 3 <= BYTES; k += 3)
      memcpy(text + k, "\xE6\xB0\xB4", 3);
    int64_t at = (i < 12 ? (256 << 10) : (1 << 20)) - 6 + i % 12;
    text[at] = (char)0xFF;
    check_refused("a.txt", text, BYTES / 3 * 3, at % 3 ? at - at % 3 : at, "not valid UTF-8");
  }
  mem_free(text);
}

static void test_deep(void **state)
{
  (void)state;
  char content[2048] = "[{\"n\":";
  size_t n = strlen(content);
  memset(content + n, '[', 1000);
  check_refused("a.json", content, n + 1000, 6 + 128, "nested more than 128 deep");
  memset(content + n, '[', 128);
  memset(content + n + 128, ']', 128);
  strcpy(content + n + 256, ",\"text\":\"a\"}]");
  check_documents("a.json", content, "a");
}

static void test_limit(void **state)
{
  (void)state;
  size_t before = text_document_most;
  text_document_most = 10;
  check_documents("a.jsonl", "{\"text\":\"0123456789\"}\n{\"title\":\"0123\",\"text\":\"56789\"}",
                  "0123456789|0123\n56789");
  check_refused("a.jsonl", "{\"text\":\"0123456789a\"}", 22, 8, "more than 0 MiB in one document");
  check_refused("a.jsonl", "{\"text\":\"a\"}\n{\"title\":\"0123\",\"text\":\"567890\"}", 45, 13,
                "in one document");
  check_documents("a.jsonl", "{\"n\":\"strings that nobody keeps may be longer\",\"text\":\"a\"}",
                  "a");
  text_document_most = before;
}

static void test_no_file(void **state)
{
  (void)state;
  struct text *text = NULL;
  assert_status(STATUS_INPUT, text_open("/no/such/file.txt", (struct text_position){0, 0}, &text));
  assert_non_null(strstr(status_text(), "/no/such/file.txt"));
  assert_status(STATUS_IO, text_open(folder, (struct text_position){0, 0}, &text));
  text_close(NULL);
}

static int remove_folder(void **state)
{
  (void)state;
  return rmdir(folder);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_documents),
                                     cmocka_unit_test(test_replacing),
                                     cmocka_unit_test(test_numbers),
                                     cmocka_unit_test(test_blocks),
                                     cmocka_unit_test(test_where_blocks_end),
                                     cmocka_unit_test(test_big_json),
                                     cmocka_unit_test(test_damage),
                                     cmocka_unit_test(test_damage_far_in),
                                     cmocka_unit_test(test_deep),
                                     cmocka_unit_test(test_limit),
                                     cmocka_unit_test(test_no_file)};
  if (!mkdtemp(folder))
    return 1;
  return cmocka_run_group_tests(tests, NULL, remove_folder);
}
