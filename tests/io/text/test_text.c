/* Documents of a file. Oracles: documents written by hand. The blocks of a plain text, joined, are
 * the text. A stream that continues from any position gives the same documents as the whole stream.
 * The byte of each kind of damage is known by construction. */

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
#include "tests/test.h"

static char folder[] = "/tmp/sluice-text-XXXXXX";
static const struct text_position start;

static bool next(struct text *text, struct text_document *document)
{
  bool found = false;
  must(text_next(text, document, &found));
  return found;
}

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
  must(text_open(path, from, &text));
  struct text_document document;
  while (next(text, &document)) {
    assert_true(n < MOST);
    out[n] =
        (struct got){.bytes = document.bytes, .number = document.number, .after = document.after};
    must(mem_alloc(MEM_META, document.bytes + 1, (void **)&out[n].text));
    memcpy(out[n].text, document.text, document.bytes);
    n++;
  }
  assert_false(next(text, &document)); /* the end stays the end */
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
  int n = read_from(path, start, all), step = 1 + n / 40;
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
  int n = read_from(path, start, got);
  for (int i = 0; i < n; i++)
    sprintf(found + strlen(found), "%s%.*s", i ? "|" : "", (int)got[i].bytes, got[i].text);
  assert_string_equal(found, expected);
  free_all(got, n);
  check_positions(path);
  unlink(path);
}

static const struct text_options replacing = {.invalid = TEXT_REPLACE};

/* Invalid UTF-8 becomes U+FFFD, also at the end of a block. A file without blank or space is cut
 * between characters, and between stray bytes. */
static void check_replaced(const char *name, const char *content, size_t bytes,
                           const char *expected, size_t expected_bytes)
{
  struct text *text = NULL;
  struct text_document document;
  const char *path = put(name, content, bytes);
  size_t at = 0;
  must(text_open_with(path, start, &replacing, &text));
  while (next(text, &document)) {
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

TEST(test_replacing)
{
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
  must(mem_alloc(MEM_META, BYTES, (void **)&raw));
  for (size_t f = 0; f < sizeof fills / sizeof *fills; f++) {
    int64_t n = 0, room = 0;
    for (size_t i = 0; i < BYTES; i++)
      raw[i] = fills[f][i % strlen(fills[f])];
    fixed = NULL;
    must(utf8_replace(raw, BYTES, &fixed, &n, &room));
    check_replaced("a.txt", raw, BYTES, fixed, (size_t)n);
    mem_free(fixed);
  }
  mem_free(raw);
  struct text *text = NULL;
  assert_int_equal(text_open_with(put("a.txt", "a\0b", 3), start, &replacing, &text),
                   STATUS_INPUT); /* no text at all */
}

/* Documents separated by '|', as options say, and the number of records left out. */
static void check_with(const char *name, const char *content, size_t bytes,
                       const struct text_options *options, const char *expected, int64_t skipped)
{
  struct text *text = NULL;
  struct text_document document;
  char got[4096] = "";
  must(text_open_with(put(name, content, bytes), start, options, &text));
  while (next(text, &document)) {
    sprintf(got + strlen(got), "%s%.*s", *got ? "|" : "", (int)document.bytes, document.text);
  }
  assert_string_equal(got, expected);
  assert_int_equal(text_skipped(text), skipped);
  text_close(text);
}

/* Python's json.loads(...).encode("utf-8", "replace") has one mark for each half of a pair. */
TEST(test_escapes_replaced)
{
  static const char *const cases[][2] = {
      {"a\\ud83db", "a\uFFFDb"},
      {"a\\ude42b", "a\uFFFDb"},
      {"a\\ud83d", "a\uFFFD"},
      {"\\ud83d\\ud83d\\ude42", "\uFFFD\xF0\x9F\x99\x82"},
      {"\\ude42\\ud83d\\ude42", "\uFFFD\xF0\x9F\x99\x82"},
      {"\\ude42\\ud83d", "\uFFFD\uFFFD"},
      {"\\ud83d\\u0041", "\uFFFDA"},
      {"\\ud83d\\n", "\uFFFD\n"},
      {"\\ud83du0041", "\uFFFDu0041"},
      {"\\uD83D\\uDE42", "\xF0\x9F\x99\x82"},
      {"a\\u0000\\u0000b", "a\uFFFD\uFFFDb"},
      {"\\ud83d\\u0000", "\uFFFD\uFFFD"},
      {"\\\\ud83d", "\\ud83d"},
  };
  char content[200];
  for (int64_t room = 8; room <= 40; room++) /* escapes across the borders of the buffer */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
      text_input_room = room == 40 ? 256 << 10 : room;
      sprintf(content, "{\"text\":\"%s\"}", cases[i][0]);
      check_with("a.jsonl", content, strlen(content), &replacing, cases[i][1], 0);
    }
  check_with("a.jsonl", "{\"text\":\"a\0b\"}", 14, &replacing, "a\uFFFDb", 0);
  check_with("a.txt", "a text with\0 a NUL", 18, &replacing, "a text with\uFFFD a NUL", 0);
}

/* Values that nobody reads may be what Python writes. */
TEST(test_unread)
{
  static const char *const values[] = {"NaN",
                                       "Infinity",
                                       "-Infinity",
                                       "[NaN,-Infinity]",
                                       "1e99999",
                                       "-123456789012345678901234567890",
                                       "\"\\ud800\"",
                                       "\"\\udc00x\\u0000\"",
                                       "{\"\\ud800\":1,\"a\":2,\"a\":3}",
                                       "{\"text\":null}"};
  char content[200];
  for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
    sprintf(content, "{\"n\":%s,\"n\":0,\"text\":\"a\",\"\\ud83d\":1}\n", values[i]);
    check_documents("a.jsonl", content, "a");
    check_with("a.jsonl", content, strlen(content), &(struct text_options){.invalid = TEXT_SKIP},
               "a", 0);
  }
}

TEST(test_skipping)
{
  static const struct text_options skipping = {.invalid = TEXT_SKIP},
                                   content = {.key = "content", .invalid = TEXT_SKIP};
  static const char *const bad[] = {"{\"text\":null}",
                                    "{}",
                                    "{\"content\":\"x\"}",
                                    "{\"text\":[\"x\"]}",
                                    "{\"text\":{\"text\":\"x\"}}",
                                    "{\"text\":1}",
                                    "{\"text\":true}",
                                    "{\"text\":\"\"}",
                                    "{\"text\":\"x\",\"text\":\"y\"}",
                                    "{\"text\":\"\\ud83d\"}",
                                    "{\"text\":\"x\\u0000\"}",
                                    "{\"text\":\"x\xFF\"}",
                                    "null",
                                    "[\"x\"]",
                                    "5"};
  static const char *const broken[] = {"{\"text\":\"x",
                                       "{\"text\":\"x\"",
                                       "{\"text\":\"x\",",
                                       "{\"text\":\"x\"} {\"text\":\"y\"}",
                                       "{\"text\":\"x\\",
                                       "{\"text\":\"x\\u12",
                                       "{\"text\":\"x\ty\"}",
                                       "{'text':'x'}",
                                       "x"};
  char lines[200];
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    sprintf(lines, "{\"text\":\"a\"}\n%s\r\n{\"text\":\"b\"}\n", bad[i]);
    check_with("a.jsonl", lines, strlen(lines), &skipping, "a|b", 1);
    sprintf(lines, "[{\"text\":\"a\"},%s,{\"text\":\"b\"}]", bad[i]);
    check_with("a.json", lines, strlen(lines), &skipping, "a|b", 1);
  }
  for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
    sprintf(lines, "{\"text\":\"a\"}\n%s\n{\"text\":\"b\"}\n%s", broken[i], broken[i]);
    check_with("a.jsonl", lines, strlen(lines), &skipping, "a|b", 2);
  }
  check_with("a.jsonl", "{\"content\":\"a\",\"text\":1}\n{\"text\":\"b\"}", 42, &content, "a", 1);
  struct text *text = NULL;
  assert_int_equal(
      text_open_with(put("a.txt", "some text with \xFF in it", 23), start, &skipping, &text),
      STATUS_INPUT);
}

/* ---- compressed files: the documents of the plain file */

static int shell(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int shell(const char *format, ...)
{
  char command[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(command, sizeof command, format, args);
  va_end(args);
  return system(command); // NOLINT: a command of the test
}

TEST(test_compressed)
{
  static const char *const packers[][2] = {
      {"gz", "gzip -c p"},
      {"gz", "{ head -c 100000 p | gzip -c; tail -c +100001 p | gzip -c; }"},
      {"gz", "{ gzip -c p; head -c 700 /dev/zero; }"},
      {"zst", "zstd -qc p"},
      {"zst", "zstd -qc --long=31 --ultra -22 p"},
      {"zst", "{ head -c 100000 p | zstd -qc; tail -c +100001 p | zstd -qc; }"},
      {"zst", "{ printf 'P*M\\030\\004\\0\\0\\0abcd'; zstd -qc p; }"}};
  static struct got plain[MOST], unpacked[MOST];
  char path[300];
  if (shell("gzip --version > /dev/null && zstd --version > /dev/null"))
    skip();
  for (int json = 0; json < 2; json++) {
    const char *ending = json ? "jsonl" : "txt";
    FILE *file = fopen(put("p", "", 0), "w");
    for (int i = 0; i < 4000; i++)
      fprintf(file, json ? "{\"text\":\"%d %x\"}\n" : "%d %x words of a text that goes on\n\n", i,
              (unsigned)i * 2654435761U);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(shell("cd %s && cp p p.%s", folder, ending), 0);
    snprintf(path, sizeof path, "%s/p.%s", folder, ending);
    const int n = read_from(path, start, plain);
    for (size_t k = 0; k < sizeof packers / sizeof *packers; k++) {
      assert_int_equal(shell("cd %s && %s > q.%s.%s", folder, packers[k][1], ending, packers[k][0]),
                       0);
      snprintf(path, sizeof path, "%s/q.%s.%s", folder, ending, packers[k][0]);
      assert_int_equal(read_from(path, start, unpacked), n);
      for (int i = 0; i < n; i++) {
        assert_true(plain[i].bytes == unpacked[i].bytes &&
                    plain[i].after.byte == unpacked[i].after.byte);
        assert_memory_equal(plain[i].text, unpacked[i].text, plain[i].bytes);
      }
      free_all(unpacked, n);
      if (!json)
        check_positions(path);
      unlink(path);
    }
    free_all(plain, n);
  }
  assert_int_equal(shell("cd %s && rm -f p p.*", folder), 0);
}

TEST(test_damaged_compressed)
{
  static const char *const cases[][3] = {
      {"gz", "gzip -c p | head -c 300", "its gzip data end after "},
      {"gz", "gzip -c p | head -c -1", "in the middle: the file is truncated"},
      {"gz", "gzip -c p | head -c 4", "in the middle: the file is truncated"},
      {"gz", "{ gzip -c p | head -c -8; printf 12345678; }", "incorrect data check"},
      {"gz", "{ gzip -c p; cat p; }", "bytes that are no gzip data"},
      {"zst", "zstd -qc p | head -c 300", "its zstd data end after "},
      {"zst", "zstd -qc p | head -c -1", "in the middle: the file is truncated"},
      {"zst", "{ zstd -qc p; cat p; }", "its zstd data are damaged"},
      {"zst", "{ zstd -qc --check p | head -c -4; printf 1234; }", "its zstd data are damaged"},
      {"gz", "gzip -c p | gzip -c", "unpacked, is a file compressed by gzip"},
      {"gz", "{ printf 'PAR1\\025\\004\\025'; cat p; } | gzip -c", "unpacked, is a Parquet file"}};
  if (shell("gzip --version > /dev/null && zstd --version > /dev/null"))
    skip();
  FILE *file = fopen(put("p", "", 0), "w");
  for (int i = 0; i < 4000; i++)
    fprintf(file, "{\"text\":\"%x\"}\n", (unsigned)i * 2654435761U);
  assert_int_equal(fclose(file), 0);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int invalid = TEXT_REFUSE; invalid <= TEXT_SKIP; invalid++) {
      const struct text_options options = {.invalid = (enum text_invalid)invalid};
      struct text *text = NULL;
      struct text_document document;
      bool found = true;
      char path[300];
      snprintf(path, sizeof path, "%s/q.jsonl.%s", folder, cases[i][0]);
      assert_int_equal(shell("cd %s && %s > %s", folder, cases[i][1], path), 0);
      enum status status = text_open_with(path, start, &options, &text);
      while (status == STATUS_OK && found)
        status = text_next(text, &document, &found);
      text_close(text);
      if (status != STATUS_INPUT || !strstr(status_text(), cases[i][2]) ||
          !strstr(status_text(), path))
        fail_msg("%s: %s '%s'", cases[i][1], status_name(status), status_text());
      unlink(path);
    }
  assert_int_equal(shell("cd %s && rm -f p", folder), 0);
}

/* Files that hold no text say what they are and how they become text, and those that only begin
 * like one are read. */
TEST(test_other_kinds)
{
  static const struct {
    const char *start;
    size_t bytes;
    const char *says;
  } kinds[] = {
      {"PAR1\x15\4", 6, "is a Parquet file; convert it to JSON Lines first: python3 -c"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", 56,
       "is a pointer of Git LFS; fetch the file with git lfs pull"},
      {"/annex/objects/SHA256E-s9--0", 28,
       "is a pointer of git-annex; fetch the file with git annex"},
      {"ARROW1\0\0", 8, "is an Arrow file"},
      {"\xFF\xFF\xFF\xFF\x10\1\0\0", 8, "is an Arrow stream"},
      {"BZh91AY&SY\1", 11, "is a file compressed by bzip2; unpack it first: bzcat"},
      {"\xFD\x37zXZ\0", 6, "is a file compressed by xz; unpack it first: xzcat"},
      {"PK\3\4\x14\0", 6, "is a zip archive"},
      {"%PDF-1.7\n", 9, "is a PDF file; convert it first: pdftotext"},
      {"\x89PNG\r\n\x1A\n", 8, "is an image"},
      {"\x80\4\x95", 3, "is a Python pickle"},
      {"SQLite format 3", 16, "is an SQLite database"},
      {"\x89HDF\r\n\x1A\n", 8, "is an HDF5 file"},
      {"\x93NUMPY\1\0", 8, "is a NumPy array"},
      {"\x50\0\0\0\0\0\0\0{\"a\":1}", 15, "is a safetensors file"},
      {"\xFF\xFEh\0i\0", 6, "is UTF-16 text; convert it first: iconv -f UTF-16 -t UTF-8"},
      {"h\0e\0l\0l\0o\0", 10, "looks like UTF-16 text; convert it first: iconv -f UTF-16LE"},
      {"\0h\0e\0l\0l\0o", 10, "iconv -f UTF-16BE"},
      {"\xFF\xFE\0\0h\0\0\0", 8, "is UTF-32 text"}};
  static const char *const texts[] = {"PAR1 of the race", "BZh1 is a magic", "GIF89a is a format",
                                      "ORCs march", "MMIDIDX"};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    for (int invalid = TEXT_REFUSE; invalid <= TEXT_SKIP; invalid++) {
      const struct text_options options = {.invalid = (enum text_invalid)invalid};
      struct text *text = NULL;
      assert_int_equal(
          text_open_with(put("x.txt", kinds[i].start, kinds[i].bytes), start, &options, &text),
          STATUS_INPUT);
      if (!strstr(status_text(), kinds[i].says) || !strstr(status_text(), "x.txt"))
        fail_msg("'%s' does not say '%s'", status_text(), kinds[i].says);
    }
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    check_documents("x.txt", texts[i], texts[i]);
  unlink(put("x.txt", "", 0));
}

TEST(test_documents)
{
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
  check_documents("a.jsonl", "[{\"text\":\"an array\"},\n{\"text\":\"under another name\"}]",
                  "an array|under another name");
  check_documents("a.jsonl", "\xEF\xBB\xBF\r\n{\"title\":null,\"text\":\"a\"}\r\n\r\n", "a");
  check_documents("a.json", "{\"text\":\"lines under another name\"}\n{\"text\":\"x\"}\n",
                  "lines under another name|x");
  check_documents("noname", "[ {\"text\":\"a\"}]", "a");
  check_documents("noname", "{ \"text\":\"a\"}", "a");
  check_documents("noname", "[1] is where the notes begin", "[1] is where the notes begin");
  check_documents("noname", "{x} is a set", "{x} is a set");
  check_documents(".txt", "a name that is only an ending", "a name that is only an ending");
}

TEST(test_numbers)
{
  struct got got[8];
  static const char content[] =
      "[{\"text\":\" \"},{\"text\":\"b\"},{\"text\":\"\"},{\"text\":\"d\"}]";
  const char *path = put("a.json", content, sizeof content - 1);
  assert_int_equal(read_from(path, start, got), 2);
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
  int n = read_from(path, start, got);
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

TEST(test_blocks)
{
  enum { BYTES = 3 << 20 };
  struct rng_key key = rng_key_make(3, "test blocks");
  char *text = NULL;
  must(mem_alloc(MEM_META, BYTES + 8, (void **)&text));
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
  must(mem_alloc(MEM_META, bytes + 1, (void **)&text));
  memset(text, 'x', filler);
  sprintf(text + filler, "%s%s", cut, rest);
  const char *path = put("a.txt", text, bytes);
  int n = read_from(path, start, got);
  assert_int_equal(got[0].bytes, expected);
  free_all(got, n);
  mem_free(text);
  unlink(path);
}

TEST(test_where_blocks_end)
{
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

TEST(test_big_json)
{
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
  assert_int_equal(read_from(path, start, got), DOCUMENTS);
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
  enum status status = text_open(path, start, &text);
  while (status == STATUS_OK && found)
    status = text_next(text, &document, &found);
  int line = 1;
  for (int64_t i = 0; i < byte; i++)
    line += content[i] == '\n';
  if (text_is_json_name(name))
    snprintf(where, sizeof where, "%s, line %d, byte %" PRId64 ": ", path, line, byte);
  else
    snprintf(where, sizeof where, "%s, byte %" PRId64 ": ", path, byte);
  if (status != STATUS_INPUT || strncmp(status_text(), where, strlen(where)) != 0 ||
      !strstr(status_text() + strlen(where), says))
    fail_msg("%s: %s '%s' instead of '%s%s'", content, status_name(status),
             status == STATUS_OK ? "" : status_text(), where, says);
  text_close(text);
  unlink(path);
}

TEST(test_damage)
{
  static const struct {
    const char *name, *content;
    int64_t byte;
    const char *says;
  } cases[] = {
      {"a.txt", "abc\x80", 3, "not valid UTF-8 (0x80)"},
      {"a.txt", "abc\xE2\x82", 3, "not valid UTF-8 (0xE2)"},
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
      {"a.json", "[{\"text\":-1}]", 9, "\"text\" is a number, where a string belongs"},
      {"a.json", "[{\"text\":null}]", 9, "\"text\" is null, where"},
      {"a.json", "[{\"text\":[\"a\"]}]", 9, "\"text\" is an array, where"},
      {"a.json", "[{\"text\":{\"a\":1}}]", 9, "\"text\" is an object, where"},
      {"a.json", "[{\"text\":false}]", 9, "\"text\" is true or false, where"},
      {"a.json", "[{\"text\":x}]", 9, "a string as the text is expected, found 'x'"},
      {"a.json", "[{\"title\":[],\"text\":\"a\"}]", 10, "\"title\" is an array, where"},
      {"a.jsonl", "{\"text\":\"a\"}\r\n\r\n{\"text\":null}\r\n", 24, "\"text\" is null"},
      {"a.jsonl", "{\"text\":\"a\"}\n{\"id\":1,\"content\":\"b\"}", 13,
       "an object without \"text\" that has \"content\": use text=content"},
      {"a.jsonl", "{\"messages\":[{\"content\":\"b\"}]}", 0,
       "has \"messages\": chat data are not supported"},
      {"a.jsonl", "{\"prompt\":\"a\",\"completion\":\"b\"}", 0, "has \"prompt\": chat data"},
      {"a.jsonl", "{\"id\":1,\"said\":\"b\"}", 0,
       "its keys are \"id\", \"said\"; text=KEY names the key of the text"},
      {"a.jsonl", "{\"text\":\"a\"}\n{\"text\":\"\xFF\"}", 22, "not valid UTF-8"},
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
      {"a.json", "[{\"n\":Nan,\"text\":\"a\"}]", 8, "NaN"},
      {"a.json", "[{\"n\":-In,\"text\":\"a\"}]", 9, "-Infinity"},
      {"a.json", "[{\"text\":NaN}]", 9, "\"text\" is a number"},
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
TEST(test_damage_far_in)
{
  enum { BYTES = 3 << 20 };
  char *text = NULL;
  must(mem_alloc(MEM_META, BYTES, (void **)&text));
  for (int64_t i = 0; i < 24; i++) {
    for (size_t k = 0; k + 3 <= BYTES; k += 3)
      memcpy(text + k, "\xE6\xB0\xB4", 3);
    int64_t at = (i < 12 ? (256 << 10) : (1 << 20)) - 6 + i % 12;
    text[at] = (char)0xFF;
    check_refused("a.txt", text, BYTES / 3 * 3, at % 3 ? at - at % 3 : at, "not valid UTF-8");
  }
  mem_free(text);
}

TEST(test_deep)
{
  char content[4096] = "[{\"n\":";
  size_t n = strlen(content);
  memset(content + n, '[', 2000);
  check_refused("a.json", content, n + 2000, 6 + 1000, "nested more than 1000 deep");
  memset(content + n, '[', 1000);
  memset(content + n + 1000, ']', 1000);
  strcpy(content + n + 2000, ",\"text\":\"a\"}]");
  check_documents("a.json", content, "a");
}

TEST(test_limit)
{
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

TEST(test_no_file)
{
  struct text *text = NULL;
  assert_int_equal(text_open("/no/such/file.txt", start, &text), STATUS_INPUT);
  assert_non_null(strstr(status_text(), "/no/such/file.txt"));
  assert_int_equal(text_open(folder, start, &text), STATUS_IO);
  text_close(NULL);
}

FIXTURE(remove_folder)
{
  return rmdir(folder);
}

int main(void)
{
  if (!mkdtemp(folder))
    return 1;
  return test_run(NULL, remove_folder);
}
