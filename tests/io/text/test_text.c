/* Documents of a file. Oracles: documents written by hand. The blocks of a plain text, joined, are
 * the text. A stream that continues from any position gives the same documents as the whole stream.
 * The byte of each kind of damage is known by construction. */

#include <inttypes.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "io/text/file.h"
#include "io/text/input.h"
#include "io/text/text.h"
#include "io/text/utf8.h"
#include "tests/rows.h"

#define ROWS "tests/io/text/text.txt"

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
  must(text_open(path, from, NULL, &text));
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

static void check_document_row(const char *given, const char *expected)
{
  const struct rows_file file = rows_file(given);
  check_documents(file.name, file.content, strcmp(expected, "(none)") == 0 ? "" : expected);
}

static const struct text_options replacing = {.invalid = TEXT_REPLACE},
                                 skipping = {.invalid = TEXT_SKIP};

/* Invalid UTF-8 becomes U+FFFD, also at the end of a block. A file without blank or space is cut
 * between characters, and between stray bytes. */
static void check_replaced(const char *name, const char *content, size_t bytes,
                           const char *expected, size_t expected_bytes)
{
  struct text *text = NULL;
  struct text_document document;
  const char *path = put(name, content, bytes);
  size_t at = 0;
  must(text_open(path, start, &replacing, &text));
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

static void check_replaced_row(const char *given, const char *expected)
{
  const struct rows_file file = rows_file(given);
  check_replaced(file.name, file.content, file.bytes, expected, strlen(expected));
}

TEST(test_replacing)
{
  rows_each(ROWS, "replaced", check_replaced_row);
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
  assert_int_equal(text_open(put("a.txt", "a\0b", 3), start, &replacing, &text),
                   STATUS_INPUT); /* no text at all */
}

/* Documents separated by '|', as options say, and the number of records left out. */
static void check_with(const char *name, const char *content, size_t bytes,
                       const struct text_options *options, const char *expected, int64_t skipped)
{
  struct text *text = NULL;
  struct text_document document;
  char got[4096] = "";
  must(text_open(put(name, content, bytes), start, options, &text));
  while (next(text, &document)) {
    sprintf(got + strlen(got), "%s%.*s", *got ? "|" : "", (int)document.bytes, document.text);
  }
  assert_string_equal(got, expected);
  assert_int_equal(text_skipped(text), skipped);
  text_close(text);
}

static void check_escape(const char *escaped, const char *expected)
{
  char content[200];
  sprintf(content, "{\"text\":\"%s\"}", escaped);
  check_with("a.jsonl", content, strlen(content), &replacing, expected, 0);
}

/* Python's json.loads(...).encode("utf-8", "replace") has one mark for each half of a pair. */
TEST(test_escapes_replaced)
{
  for (int64_t room = 8; room <= 40; room++) { /* escapes across the borders of the buffer */
    text_input_room = room == 40 ? 256 << 10 : room;
    rows_each(ROWS, "escapes", check_escape);
  }
  check_with("a.jsonl", "{\"text\":\"a\0b\"}", 14, &replacing, "a\uFFFDb", 0);
  check_with("a.txt", "a text with\0 a NUL", 18, &replacing, "a text with\uFFFD a NUL", 0);
}

/* Values that nobody reads may be what Python writes. */
static void check_unread(const char *value, const char *expected)
{
  char content[200];
  sprintf(content, "{\"n\":%s,\"n\":0,\"text\":\"a\",\"\\ud83d\":1}\n", value);
  check_documents("a.jsonl", content, expected);
  check_with("a.jsonl", content, strlen(content), &skipping, expected, 0);
}

TEST(test_unread)
{
  rows_each(ROWS, "unread", check_unread);
}

static void check_skipped(const char *record, const char *where)
{
  char lines[200];
  sprintf(lines, "{\"text\":\"a\"}\n%s\r\n{\"text\":\"b\"}\n%s", record, record);
  check_with("a.jsonl", lines, strlen(lines), &skipping, "a|b", 2);
  sprintf(lines, "[{\"text\":\"a\"},%s,{\"text\":\"b\"}]", record);
  if (strcmp(where, "lines") != 0)
    check_with("a.json", lines, strlen(lines), &skipping, "a|b", 1);
}

TEST(test_skipping)
{
  static const struct text_options content = {.key = "content", .invalid = TEXT_SKIP};
  rows_each(ROWS, "skipped", check_skipped);
  check_with("a.jsonl", "{\"content\":\"a\",\"text\":1}\n{\"text\":\"b\"}", 42, &content, "a", 1);
  struct text *text = NULL;
  assert_int_equal(
      text_open(put("a.txt", "some text with \xFF in it", 23), start, &skipping, &text),
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

/* The name of the file of a row, "ENDING COMMAND", after the command. */
static const char *pack(const char *row, const char *ending)
{
  static char path[300];
  const int n = (int)strcspn(row, " ");
  snprintf(path, sizeof path, "%s/q.%s.%.*s", folder, ending, n, row);
  assert_int_equal(shell("cd %s && %s > %s", folder, row + n, path), 0);
  return path;
}

static struct got plain[MOST];
static int documents;
static const char *ending;

static void check_compressed(const char *row, __attribute__((unused)) const char *same)
{
  static struct got unpacked[MOST];
  const char *path = pack(row, ending);
  assert_int_equal(read_from(path, start, unpacked), documents);
  for (int i = 0; i < documents; i++) {
    assert_true(plain[i].bytes == unpacked[i].bytes &&
                plain[i].after.byte == unpacked[i].after.byte);
    assert_memory_equal(plain[i].text, unpacked[i].text, plain[i].bytes);
  }
  free_all(unpacked, documents);
  if (strcmp(ending, "txt") == 0)
    check_positions(path);
  unlink(path);
}

/* Writes a file p of 4000 documents. */
static void put_many(bool json)
{
  FILE *file = fopen(put("p", "", 0), "w");
  for (int i = 0; i < 4000; i++)
    fprintf(file, json ? "{\"text\":\"%d %x\"}\n" : "%d %x words of a text that goes on\n\n", i,
            (unsigned)i * 2654435761U);
  assert_int_equal(fclose(file), 0);
}

TEST(test_compressed)
{
  char path[300];
  if (shell("gzip --version > /dev/null && zstd --version > /dev/null"))
    skip();
  for (int json = 0; json < 2; json++) {
    ending = json ? "jsonl" : "txt";
    put_many(json);
    assert_int_equal(shell("cd %s && cp p p.%s", folder, ending), 0);
    snprintf(path, sizeof path, "%s/p.%s", folder, ending);
    documents = read_from(path, start, plain);
    rows_each(ROWS, "compressed", check_compressed);
    free_all(plain, documents);
  }
  assert_int_equal(shell("cd %s && rm -f p p.*", folder), 0);
}

/* Refused with a sentence that names the file, however invalid text is treated. */
static void check_unreadable(const char *path, const char *says)
{
  for (int invalid = TEXT_REFUSE; invalid <= TEXT_SKIP; invalid++) {
    const struct text_options options = {.invalid = (enum text_invalid)invalid};
    struct text *text = NULL;
    struct text_document document;
    bool found = true;
    enum status status = text_open(path, start, &options, &text);
    while (status == STATUS_OK && found)
      status = text_next(text, &document, &found);
    text_close(text);
    if (status != STATUS_INPUT || !strstr(status_text(), says) || !strstr(status_text(), path))
      fail_msg("%s: %s '%s'", says, status_name(status), status_text());
  }
  unlink(path);
}

static void check_damaged_archive(const char *row, const char *says)
{
  check_unreadable(pack(row, "jsonl"), says);
}

TEST(test_damaged_compressed)
{
  if (shell("gzip --version > /dev/null && zstd --version > /dev/null"))
    skip();
  put_many(true);
  rows_each(ROWS, "damaged archives", check_damaged_archive);
  assert_int_equal(shell("cd %s && rm -f p", folder), 0);
}

/* Files that hold no text say what they are and how they become text, and those that only begin
 * like one are read. */
static void check_kind(const char *given, const char *says)
{
  const struct rows_file file = rows_file(given);
  check_unreadable(put(file.name, file.content, file.bytes), says);
}

TEST(test_other_kinds)
{
  rows_each(ROWS, "other kinds", check_kind);
}

TEST(test_documents)
{
  rows_each(ROWS, "documents", check_document_row);
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
  enum status status = text_open(path, start, NULL, &text);
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

static void check_damage_row(const char *given, const char *expected)
{
  const struct rows_file file = rows_file(given);
  int at = 0;
  long byte = 0;
  assert_int_equal(sscanf(expected, "%ld: %n", &byte, &at), 1);
  check_refused(file.name, file.content, file.bytes, byte, expected + at);
}

TEST(test_damage)
{
  rows_each(ROWS, "damage", check_damage_row);
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
  must_fail(text_open("/no/such/file.txt", start, NULL, &text), STATUS_INPUT, "/no/such/file.txt");
  assert_int_equal(text_open(folder, start, NULL, &text), STATUS_IO);
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
