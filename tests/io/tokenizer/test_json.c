/* tokenizer.json. Oracles: token ids and texts of Hugging Face's library for an awkward corpus
 * (data/tokenizers, by tests/fixtures/make_tokenizers.py). For a small vocabulary, tokens written
 * by hand. For the normal form C, pairs from the Unicode Standard. Everything that would change
 * tokens and is not followed is refused. */

#include <inttypes.h>
#include <unistd.h>

#include "base/append.h"
#include "base/clock.h"
#include "base/mem.h"
#include "io/text/file.h"
#include "io/text/input.h"
#include "io/text/utf8.h"
#include "io/tokenizer/nfc.h"
#include "io/tokenizer/tokenizer.h"
#include "tests/rows.h"

#define ROWS "tests/io/tokenizer/json.txt"

struct text {
  char *data;
  int64_t n, room;
};
/* ---- the fixtures */

static char *data_path(const char *name, const char *file)
{
  const char *top = getenv("top_srcdir");
  return mem_printf("%s/tests/io/data/tokenizers/%s%s%s", top ? top : ".", name, *file ? "/" : "",
                    file);
}

static struct text read_data(const char *name, const char *file)
{
  struct text text = {0};
  size_t bytes = 0;
  char *path = data_path(name, file);
  must(file_read_all(path, 1 << 24, &text.data, &bytes));
  mem_free(path);
  text.n = (int64_t)bytes;
  return text;
}

static struct tokenizer *open_data(const char *name)
{
  struct tokenizer *tokenizer = NULL;
  char *path = data_path(name, "");
  must(tokenizer_create("json", path, &tokenizer));
  mem_free(path);
  return tokenizer;
}

static void check_ids(const char *name, int64_t document, const char *line,
                      const struct tokenizer_tokens *tokens)
{
  char *at = (char *)line;
  for (int64_t i = 0; i < tokens->n; i++) {
    long id = strtol(at, &at, 10);
    if (id != tokens->id[i])
      fail_msg("%s, document %" PRId64 ": token %" PRId64 " is %d instead of %ld", name, document,
               i, tokens->id[i], id);
  }
  if (*at != '\n')
    fail_msg("%s, document %" PRId64 ": more than %" PRId64 " tokens are expected", name, document,
             tokens->n);
}

/* Flags. All bytes of the template: the tokens of a text without flags. All bytes of others: no
 * special token. `bytes`: the tokens have the bytes of the text, and parts of it are trained. */
static void check_marks(struct tokenizer *tokenizer, const struct text *text, bool bytes,
                        const struct tokenizer_tokens *expected)
{
  struct tokenizer_tokens tokens = {0};
  unsigned char *marks = NULL;
  must(mem_alloc(MEM_DATA, (size_t)text->n + 1, (void **)&marks));
  memset(marks, TOKENIZER_SPECIAL | TOKENIZER_TRAINED, (size_t)text->n);
  for (int64_t i = 0; bytes && i < text->n; i++)
    marks[i] ^= (i * i / 7) % 13 < 2;
  must(tokenizer_encode_marked(tokenizer, text->data, (size_t)text->n, marks, &tokens));
  assert_int_equal(tokens.n, expected->n);
  if (tokens.n > 0)
    assert_memory_equal(tokens.id, expected->id, (size_t)tokens.n * sizeof *tokens.id);
  int64_t at = 0;
  for (int64_t i = 0; i < tokens.n; i++) {
    size_t length;
    bool all = true;
    (void)tokenizer_text_of(tokenizer, tokens.id[i], &length);
    for (size_t k = 0; bytes && k < length; k++)
      all &= marks[at++] & TOKENIZER_TRAINED;
    assert_int_equal(tokens.trained[i], all);
  }
  assert_true(!bytes || at == text->n);
  memset(marks, 0, (size_t)text->n);
  tokens.n = 0;
  must(tokenizer_encode_marked(tokenizer, text->data, (size_t)text->n, marks, &tokens));
  for (int64_t i = 0; i < tokens.n; i++)
    assert_false(tokens.trained[i] || tokenizer_is_special(tokenizer, tokens.id[i]));
  mem_free(tokens.id);
  mem_free(tokens.trained);
  mem_free(marks);
}

/* `decoded`: what the tokens stand for, a document after another; NULL: the document. */
static void check_corpus(const char *name, const struct text *decoded)
{
  struct tokenizer *tokenizer = open_data(name);
  struct text corpus = read_data("corpus.bin", ""), expected = read_data(name, "expected.txt"),
              document = {0}, back = {0};
  struct tokenizer_tokens tokens = {0};
  const char *line = expected.data, *want = decoded ? decoded->data : NULL;
  int64_t documents = 0;
  for (const char *at = corpus.data, *end = corpus.data + corpus.n; at < end;
       at += strlen(at) + 1, documents++) {
    document.n = tokens.n = back.n = 0;
    must(utf8_replace(at, strlen(at), &document.data, &document.n, &document.room));
    must(tokenizer_encode(tokenizer, document.data, (size_t)document.n, false, &tokens));
    check_ids(name, documents, line, &tokens);
    check_marks(tokenizer, &document, !decoded, &tokens);
    line = strchr(line, '\n') + 1;

    document.n = 0; /* end and beginning of text would give nothing */
    must(utf8_replace(at, strlen(at), &document.data, &document.n, &document.room));
    bool hidden = false;
    for (int64_t i = 0; i < tokens.n; i++)
      hidden = hidden || tokens.id[i] == tokenizer_end_of_text(tokenizer) ||
               tokens.id[i] == tokenizer_begin_of_text(tokenizer);
    must(tokenizer_decode(tokenizer, tokens.id, tokens.n, &back.data, &back.n, &back.room));
    const char *text = decoded ? want : document.data;
    int64_t bytes = decoded ? (want ? (int64_t)strlen(want) : -1) : document.n;
    if (!hidden && bytes >= 0 &&
        (back.n != bytes || (bytes && memcmp(back.data, text, (size_t)bytes) != 0)))
      fail_msg("%s, document %" PRId64 " is not what its tokens are decoded to: %.*s", name,
               documents, (int)back.n, back.data);
    if (want)
      want = want + strlen(want) + 1 < decoded->data + decoded->n ? want + strlen(want) + 1 : NULL;
  }
  assert_true(documents > 400 && *line == '\0');
  mem_free(corpus.data);
  mem_free(expected.data);
  mem_free(document.data);
  mem_free(back.data);
  mem_free(tokens.id);
  tokenizer_destroy(tokenizer);
}

TEST(test_gpt2)
{
  struct tokenizer *tokenizer = open_data("gpt2");
  check_corpus("gpt2", NULL);
  assert_string_equal(tokenizer_name(tokenizer), "json");
  assert_int_equal(tokenizer_vocab(tokenizer), 1500);
  assert_int_equal(tokenizer_end_of_text(tokenizer), 1499);
  assert_int_equal(tokenizer_begin_of_text(tokenizer), -1);
  tokenizer_destroy(tokenizer);
}

TEST(test_llama3)
{
  struct tokenizer *tokenizer = open_data("llama3");
  check_corpus("llama3", NULL);
  struct text special = read_data("llama3", "expected_special.txt"),
              plain = read_data("llama3", "expected.txt");
  const int32_t begin = tokenizer_begin_of_text(tokenizer);
  const char *a = special.data, *b = plain.data;
  for (; *a; a = strchr(a, '\n') + 1,
             b = strchr(b, '\n') + 1) { /* the template puts one token in front, and nothing else */
    char *rest;
    assert_int_equal(strtol(a, &rest, 10), begin);
    rest += *rest == ' ';
    assert_int_equal(strcspn(rest, "\n"), strcspn(b, "\n"));
    assert_memory_equal(rest, b, strcspn(b, "\n"));
  }
  assert_int_equal(begin, 1493);
  assert_int_equal(tokenizer_end_of_text(tokenizer), 1494);
  assert_true(tokenizer_is_special(tokenizer, 1493) && tokenizer_is_special(tokenizer, 1499));
  assert_false(tokenizer_is_special(tokenizer, 1492) || tokenizer_is_special(tokenizer, 1500) ||
               tokenizer_is_special(tokenizer, -1));
  mem_free(special.data);
  mem_free(plain.data);
  tokenizer_destroy(tokenizer);
}

TEST(test_qwen2)
{
  struct tokenizer *tokenizer = open_data("qwen2");
  struct text decoded = read_data("qwen2", "decoded.bin");
  check_corpus("qwen2", &decoded);
  assert_int_equal(tokenizer_end_of_text(tokenizer), 1494);
  assert_true(tokenizer_is_special(tokenizer, 1492));
  assert_false(tokenizer_is_special(tokenizer, 1495)); /* <tool_call> is added, and not special */
  mem_free(decoded.data);
  tokenizer_destroy(tokenizer);
}

/* A stranger who writes a special token does not get one. */
TEST(test_plain)
{
  static const char *const names[] = {"gpt2", "llama3", "qwen2"};
  static const char text[] = "a<|endoftext|>b<|eot_id|>c<|im_end|><tool_call>";
  for (int i = 0; i < 3; i++) {
    struct tokenizer *tokenizer = open_data(names[i]);
    struct tokenizer_tokens tokens = {0};
    struct text back = {0};
    must(tokenizer_encode(tokenizer, text, sizeof text - 1, true, &tokens));
    must(tokenizer_decode(tokenizer, tokens.id, tokens.n, &back.data, &back.n, &back.room));
    assert_int_equal(back.n, sizeof text - 1);
    assert_memory_equal(back.data, text, sizeof text - 1);
    for (int64_t k = 0; k < tokens.n; k++)
      assert_false(tokenizer_is_special(tokenizer, tokens.id[k]));
    mem_free(tokens.id);
    mem_free(back.data);
    tokenizer_destroy(tokenizer);
  }
}

/* ---- a small vocabulary: the bytes, and a few tokens */

static char folder[] = "/tmp/sluice-json-XXXXXX";

static void put(const char *name, const char *content)
{
  char path[128];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  if (content)
    must(file_write_all(path, content, strlen(content)));
  else
    unlink(path);
}

/* The small file with the first `from` replaced, and tokenizer_config.json. NULL: as it is. */
static void put_small(const char *from, const char *to, const char *config)
{
  struct text text = read_data("small.json", "");
  char *at = strstr(text.data, from ? from : "");
  if (!at)
    fail_msg("the file has no %s", from);
  char *changed = mem_printf("%.*s%s%s", (int)(at - text.data), text.data, from ? to : "",
                             at + (from ? strlen(from) : 0));
  put("tokenizer.json", changed);
  put("tokenizer_config.json", config);
  mem_free(changed);
  mem_free(text.data);
}

/* The same, with the change of a row, "FROM => TO", or "as it is". */
static void put_row(const char *row, const char *config)
{
  char *from = mem_strdup(row), *mark = strstr(from, " =>");
  if (mark)
    *mark = '\0';
  put_small(mark ? from : NULL, mark ? mark + strlen(" =>") + (mark[strlen(" =>")] == ' ') : "",
            config);
  mem_free(from);
}

static const char ends[] = "{\"eos_token\": \"<e>\"}";

/* The tokens of the text by the file in the folder, as "ab c|<e>": a space between tokens would be
 * ambiguous. */
static void check_tokens(const char *text, const char *expected)
{
  struct tokenizer *tokenizer = NULL;
  struct tokenizer_tokens tokens = {0};
  char found[512] = "";
  must(tokenizer_create("json", folder, &tokenizer));
  must(tokenizer_encode(tokenizer, text, strlen(text), false, &tokens));
  for (int64_t i = 0; i < tokens.n; i++) {
    struct text piece = {0};
    must(tokenizer_decode(tokenizer, &tokens.id[i], 1, &piece.data, &piece.n, &piece.room));
    snprintf(found + strlen(found), sizeof found - strlen(found), "%s%.*s", i ? "|" : "",
             (int)piece.n, piece.data ? piece.data : "");
    mem_free(piece.data);
  }
  assert_string_equal(found, expected);
  mem_free(tokens.id);
  tokenizer_destroy(tokenizer);
}

static void check_refused(const char *says)
{
  struct tokenizer *tokenizer = NULL;
  enum status status = tokenizer_create("json", folder, &tokenizer);
  if (status != STATUS_INPUT || !strstr(status_text(), says))
    fail_msg("%s '%s' instead of '%s'", status_name(status),
             status == STATUS_OK ? "" : status_text(), says);
  must_say(folder);
  assert_null(tokenizer);
}

/* "BEGIN END", the tokens that begin and end a text, or "refused: WHY". */
static void check_ends(const char *expected)
{
  struct tokenizer *tokenizer = NULL;
  int begin, end;
  if (strncmp(expected, "refused: ", strlen("refused: ")) == 0) {
    check_refused(expected + strlen("refused: "));
    return;
  }
  assert_int_equal(sscanf(expected, "%d %d", &begin, &end), 2);
  must(tokenizer_create("json", folder, &tokenizer));
  assert_int_equal(tokenizer_begin_of_text(tokenizer), begin);
  assert_int_equal(tokenizer_end_of_text(tokenizer), end);
  assert_true(tokenizer_is_special(tokenizer, end));
  tokenizer_destroy(tokenizer);
}

/* The same with flags: [ab] is trained, (ab) is what others say. A trained token comes out as
 * *ab. */
static void check_marked(const char *text, const char *expected)
{
  struct tokenizer *tokenizer = NULL;
  struct tokenizer_tokens tokens = {0};
  char found[512] = "", bare[128];
  unsigned char marks[128], mark = TOKENIZER_SPECIAL;
  size_t n = 0;
  for (const char *c = text; *c; c++)
    if (*c == '[' || *c == ']') {
      mark ^= TOKENIZER_TRAINED;
    } else if (*c == '(' || *c == ')') {
      mark ^= TOKENIZER_SPECIAL;
    } else {
      bare[n] = *c;
      marks[n++] = mark;
    }
  must(tokenizer_create("json", folder, &tokenizer));
  must(tokenizer_encode_marked(tokenizer, bare, n, marks, &tokens));
  for (int64_t i = 0; i < tokens.n; i++) {
    size_t bytes;
    const char *piece = tokenizer_text_of(tokenizer, tokens.id[i], &bytes);
    snprintf(found + strlen(found), sizeof found - strlen(found), "%s%s%.*s", i ? "|" : "",
             tokens.trained[i] ? "*" : "", (int)bytes, piece);
  }
  assert_string_equal(found, expected);
  mem_free(tokens.id);
  mem_free(tokens.trained);
  tokenizer_destroy(tokenizer);
}

/* Expected: "TEXT -> TOKENS / TEXT -> TOKENS". */
static void check_pairs(const char *change, const char *expected, rows_check *check)
{
  char *pairs = mem_strdup(expected);
  put_row(change, ends);
  for (char *text = pairs, *next; text; text = next) {
    char *tokens = strstr(text, " -> ");
    next = strstr(text, " / ");
    if (next) {
      *next = '\0';
      next += strlen(" / ");
    }
    *tokens = '\0';
    check(text, tokens + strlen(" -> "));
  }
  mem_free(pairs);
}

static void check_token_row(const char *change, const char *expected)
{
  check_pairs(change, expected, check_tokens);
}

static void check_marked_row(const char *change, const char *expected)
{
  check_pairs(change, expected, check_marked);
}

TEST(test_tokens)
{
  rows_each(ROWS, "tokens", check_token_row);
  rows_each(ROWS, "marked", check_marked_row);
  check_tokens("", "");
}

static const char by_gpt2[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                              "\"trim_offsets\": true, \"use_regex\": true}";

static void check_parts(const char *given, const char *tokens)
{
  const char *mark = strstr(given, " => ");
  char *part =
      mem_printf("{\"type\": \"Sequence\", \"pretokenizers\": [%.*s]}", (int)(mark - given), given);
  put_small(by_gpt2, part, ends);
  check_tokens(mark + strlen(" => "), tokens);
  mem_free(part);
}

TEST(test_patterns)
{
  char parts[2048] = "{\"type\": \"Sequence\", \"pretokenizers\": [";
  rows_each(ROWS, "pre_tokenizer", check_parts);
  for (int i = 0; i < 32; i++)
    strcat(parts, "{\"type\": \"Digits\", \"individual_digits\": true}, ");
  strcat(strcat(parts, by_gpt2), "]}");
  put_small(by_gpt2, parts, ends);
  check_refused("the pre_tokenizer has more than 32 steps");
}

/* Details that change no id. */
static void check_harmless(const char *change, const char *tokens)
{
  put_row(change, ends);
  check_tokens("abcdx<e>cdab<x>y abc", tokens);
}

TEST(test_harmless)
{
  rows_each(ROWS, "harmless", check_harmless);
}

/* A merge whose token is special is never used: the token is found before. */
TEST(test_special_merge)
{
  put_small("\"content\": \"<e>\"", "\"content\": \"bc\"", "{\"eos_token\": \"bc\"}");
  check_tokens("abcd", "a||d");
  struct tokenizer *tokenizer = NULL;
  struct tokenizer_tokens tokens = {0};
  must(tokenizer_create("json", folder, &tokenizer));
  assert_int_equal(tokenizer_end_of_text(tokenizer), 256);
  must(tokenizer_encode(tokenizer, "abcd", 4, true, &tokens));
  assert_int_equal(tokens.n, 2); /* abc, d */
  assert_int_equal(tokens.id[0], 258);
  assert_int_equal(tokens.id[1], 'd');
  mem_free(tokens.id);
  tokenizer_destroy(tokenizer);
}

/* ---- what is put around a text, and what ends it */

static void check_ends_row(const char *given, const char *expected)
{
  char *row = mem_strdup(given), *part[4] = {row, "-", "-", "-"};
  for (int i = 1; i < 4 && (part[i] = strstr(part[i - 1], " | ")) != NULL; i++) {
    *part[i] = '\0';
    part[i] += strlen(" | ");
  }
  for (int i = 1; i < 4; i++)
    part[i] = part[i] && strcmp(part[i], "-") != 0 ? part[i] : NULL;
  put_row(part[0], part[1]);
  put("config.json", part[2]);
  put("generation_config.json", part[3]);
  check_ends(expected);
  put("config.json", NULL);
  put("generation_config.json", NULL);
  mem_free(row);
}

TEST(test_ends_of_texts)
{
  rows_each(ROWS, "ends", check_ends_row);
}

#define TEMPLATE(single)                                                                           \
  "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [" single                    \
  "], \"pair\": [], \"special_tokens\": {\"<x>\": {\"id\": \"<x>\", "                              \
  "\"ids\": [263], \"tokens\": [\"<x>\"]}, \"<e>\": {\"id\": \"<e>\", \"ids\": [262]}, \"two\": "  \
  "{\"id\": \"two\", \"ids\": [1, 2]}}}"
#define SEQUENCE "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}"
#define SPECIAL(name) "{\"SpecialToken\": {\"id\": \"" name "\", \"type_id\": 0}}"

static void check_template(const char *given, const char *expected)
{
  char single[512] = "", *whole;
  for (char *row = mem_strdup(given), *word = strtok(row, " "); word; word = strtok(NULL, " "))
    append_text(single, sizeof single, strcmp(word, "A") == 0 ? "%s" SEQUENCE : "%s" SPECIAL("%s"),
                *single ? ", " : "", word);
  whole = mem_printf(TEMPLATE("%s"), single);
  put_small("\"post_processor\": null", whole, ends);
  check_ends(expected);
  mem_free(whole);
}

TEST(test_template)
{
  rows_each(ROWS, "template", check_template);
  check_template("<x> A", "263 262");
  check_tokens("a<x>b", "a||b"); /* the token, which is decoded to nothing now */
}

/* ---- refusals */

static void check_row_refused(const char *change, const char *says)
{
  put_row(change, ends);
  check_refused(says);
}

TEST(test_refused)
{
  rows_each(ROWS, "refused", check_row_refused);
}

static void check_config(const char *config, const char *says)
{
  put_small(NULL, NULL, config);
  check_refused(says);
}

TEST(test_config_refused)
{
  rows_each(ROWS, "configuration refused", check_config);
  put_small(NULL, NULL,
            "{\"eos_token\": \"<end>\", \"added_tokens_decoder\": {\"264\": {\"content\": "
            "\"<x>y\"}, \"265\": {\"content\": \"<new>\", \"lstrip\": true, \"normalized\": "
            "false}, \"266\": {\"content\": \"<end>\", \"special\": true}}}");
  check_tokens("a <new>b<x>y", "a|<new>|b|<x>y");
  /* Known tokens after new ones, which sort before them */
  put_small(NULL, NULL,
            "{\"eos_token\": \"<e>\", \"added_tokens_decoder\": {\"265\": {\"content\": \"<a>\"}, "
            "\"266\": {\"content\": \"<b>\"}, \"267\": {\"content\": \"<c>\"}, \"262\": "
            "{\"content\": \"<e>\"}}}");
  check_tokens("a<b>b", "a|<b>|b");
}

TEST(test_missing)
{
  struct tokenizer *tokenizer = NULL;
  assert_int_equal(tokenizer_create("json", NULL, &tokenizer), STATUS_USAGE);
  assert_int_equal(tokenizer_create("json", "", &tokenizer), STATUS_USAGE);
  assert_true(tokenizer_create("json", "/no/such/folder", &tokenizer) != STATUS_OK);
  must_say("/no/such/folder/tokenizer.json");
  assert_null(tokenizer);
}

/* ---- size */

/* As many added tokens as no tokenizer has. */
TEST(test_many_added)
{
  enum { COUNT = 200000 };
  char *text = read_data("small.json", "").data, *at = strstr(text, "{\"id\": 262"), *more = NULL;
  size_t n = 0, room = (size_t)COUNT * 64;
  must(mem_alloc(MEM_DATA, room, (void **)&more));
  for (int i = 0; i < COUNT; i++)
    n += (size_t)snprintf(more + n, room - n, ", {\"id\": %d, \"content\": \"<%d>\"}", 265 + i, i);
  char *list = strstr(at, "], \"normalizer\"");
  char *whole = mem_printf("%.*s%.*s%s", (int)(list - text), text, (int)n, more, list);
  put("tokenizer.json", whole);
  put("tokenizer_config.json", ends);
  check_tokens("a<0><199999><200000>b", "a|<0>|<199999>|<|2|0|0|0|0|0|>|b");
  mem_free(text);
  mem_free(more);
  mem_free(whole);
}

TEST(test_deep)
{
  enum { DEPTH = 100000 };
  char *text = NULL;
  must(mem_alloc(MEM_DATA, DEPTH + 1, (void **)&text));
  memset(text, '[', DEPTH);
  put("tokenizer.json", text);
  check_refused("tokenizer.json");
  mem_free(text);
}

TEST(test_no_allocation)
{
  struct text corpus = read_data("corpus.bin", ""), document = {0};
  struct tokenizer *tokenizer = open_data("qwen2");
  struct tokenizer_tokens tokens = {0};
  int64_t calls = 0;
  must(utf8_replace(corpus.data, (size_t)corpus.n, &document.data, &document.n, &document.room));
  for (int i = 0; i < 5; i++) {
    tokens.n = 0;
    must(tokenizer_encode(tokenizer, document.data, (size_t)document.n, false, &tokens));
    if (i > 0)
      assert_int_equal(mem_calls(), calls);
    calls = mem_calls();
  }
  mem_free(tokens.id);
  mem_free(corpus.data);
  mem_free(document.data);
  tokenizer_destroy(tokenizer);
}

/* ---- meaning */

static struct tokenizer_id identify(const char *name)
{
  struct tokenizer *tokenizer = NULL;
  must(tokenizer_create(name, folder, &tokenizer));
  const struct tokenizer_id id = tokenizer_id(tokenizer);
  tokenizer_destroy(tokenizer);
  return id;
}

static void check_meaning(const char *change, const char *match)
{
  put_small(NULL, NULL, ends);
  const struct tokenizer_id first = identify("json");
  put_row(change, ends);
  const struct tokenizer_id id = identify("json");
  assert_int_not_equal(id.crc32, first.crc32);
  if (tokenizer_compare(&first, &id) !=
      (strcmp(match, "same") == 0 ? TOKENIZER_SAME : TOKENIZER_OTHER))
    fail_msg("%s: %s and %s", change, tokenizer_id_text(&first).text, tokenizer_id_text(&id).text);
}

/* Another file of the same meaning is the same tokenizer; a change of one token, merge, added token
 * or step is another one. */
TEST(test_meaning)
{
  rows_each(ROWS, "meaning", check_meaning);
}

/* GPT-2's two files are its tokenizer.json: one vocabulary, one row of merges, one end of text.
 * Oracle: both are written from one list. */
TEST(test_meaning_of_gpt2)
{
  static const char added[] =
      "{\"id\": 258, \"content\": \"<|endoftext|>\", \"normalized\": true, \"special\": true}";
  char *small = read_data("small.json", "").data,
       *bytes = strstr(small, "\"vocab\": {") + strlen("\"vocab\": "),
       *tokens = strstr(small, "\"bc\": 256");
  char *vocab = mem_printf("%.*s\"bc\": 256, \"ab\": 257, \"<|endoftext|>\": 258}",
                           (int)(tokens - bytes), bytes);
  char *json = mem_printf("{\"added_tokens\": [%s], \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
                          "\"add_prefix_space\": false}, \"model\": "
                          "{\"vocab\": %s, \"merges\": [\"b c\", \"a b\"]}}",
                          added, vocab);
  put("tokenizer.json", json);
  put("tokenizer_config.json", NULL);
  put("vocab.json", vocab);
  put("merges.txt", "#version: 0.2\nb c\na b\n");
  const struct tokenizer_id one = identify("json"), two = identify("gpt2");
  assert_int_equal(tokenizer_compare(&one, &two), TOKENIZER_SAME);
  put("merges.txt", "#version: 0.2\na b\nb c\n");
  const struct tokenizer_id other = identify("gpt2");
  assert_int_equal(tokenizer_compare(&one, &other), TOKENIZER_OTHER);
  put("vocab.json", NULL);
  put("merges.txt", NULL);
  mem_free(json);
  mem_free(vocab);
  mem_free(small);
}

/* The files of `bytes` are that tokenizer; another order of the bytes is not. Oracle: the byte's
 * value. */
TEST(test_meaning_of_bytes)
{
  struct tokenizer *tokenizer = NULL;
  struct tokenizer_tokens tokens = {0};
  char text[256];
  size_t n = 0;
  for (int c = 0; c < 128; c++)
    text[n++] = (char)c;
  n += (size_t)snprintf(text + n, sizeof text - n, "\r\n \u00FC\u6771\U0001F642");
  must(tokenizer_write_bytes(folder));
  const struct tokenizer_id id = identify("json"), bytes = identify("bytes");
  assert_int_equal(tokenizer_compare(&id, &bytes), TOKENIZER_SAME);
  must(tokenizer_create("json", folder, &tokenizer));
  must(tokenizer_encode(tokenizer, text, n, false, &tokens));
  assert_int_equal(tokens.n, n);
  for (size_t i = 0; i < n; i++)
    assert_int_equal(tokens.id[i], (unsigned char)text[i]);
  assert_int_equal(tokenizer_end_of_text(tokenizer), TOKENIZER_BYTES_END);
  tokenizer_destroy(tokenizer);
  mem_free(tokens.id);
  char *json = NULL, *a;
  char path[160];
  snprintf(path, sizeof path, "%s/tokenizer.json", folder);
  must(file_read_all(path, 1 << 20, &json, &n));
  a = strstr(json, "\"a\": 97");
  memcpy(a, "\"a\": 98", 7);
  memcpy(strstr(a + 1, "\"b\": 98"), "\"b\": 97", 7);
  put("tokenizer.json", json);
  const struct tokenizer_id other = identify("json");
  assert_int_equal(tokenizer_compare(&other, &bytes), TOKENIZER_OTHER);
  mem_free(json);
}

/* ---- folders */

/* A copy is the same tokenizer, also where the end of text was in the model's configuration. */
TEST(test_copy)
{
  char copy[128];
  snprintf(copy, sizeof copy, "%s/copy", folder);
  for (int i = 0; i < 2; i++) {
    struct tokenizer *tokenizer = NULL, *again = NULL;
    put_small(NULL, NULL, i ? NULL : ends);
    put("config.json", i ? "{\"eos_token_id\": 264}" : NULL);
    must(file_make_folders(copy));
    must(tokenizer_create("json", folder, &tokenizer));
    must(tokenizer_copy(tokenizer, copy));
    must(tokenizer_create("json", copy, &again));
    assert_int_equal(tokenizer_end_of_text(again), i ? 264 : 262);
    assert_int_equal(tokenizer_end_of_text(again), tokenizer_end_of_text(tokenizer));
    assert_int_equal(tokenizer_id(again).crc32, tokenizer_id(tokenizer).crc32);
    assert_int_not_equal(tokenizer_id(again).crc32, 0);
    assert_true(tokenizer_id(again).meaning == tokenizer_id(tokenizer).meaning);
    must(tokenizer_copy(again, copy)); /* over itself */
    tokenizer_destroy(tokenizer);
    tokenizer_destroy(again);
    put("copy/tokenizer.json", NULL);
    put("copy/tokenizer_config.json", NULL);
    put("copy/generation_config.json", NULL);
    assert_int_equal(rmdir(copy), 0);
  }
  put("config.json", NULL);
}

static void check_found(const char *word, const char *want_name, const char *want_folder)
{
  const char *name = NULL;
  char *found = NULL;
  must(tokenizer_find(word, "", &name, &found));
  assert_string_equal(name, want_name);
  if (want_folder)
    assert_string_equal(found, want_folder);
  else
    assert_null(found);
  mem_free(found);
}

TEST(test_find)
{
  char path[128];
  const char *name = NULL;
  char *found = NULL;
  put_small(NULL, NULL, NULL);
  check_found("bytes", "bytes", NULL);
  check_found(folder, "json", folder);
  snprintf(path, sizeof path, "%s/tokenizer.json", folder);
  check_found(path, "json", folder);
  put("tokenizer.json", NULL);
  assert_int_equal(tokenizer_find(path, "", &name, &found), STATUS_USAGE);
  assert_int_equal(tokenizer_find(folder, "", &name, &found), STATUS_USAGE);
  assert_int_equal(tokenizer_find("", "", &name, &found), STATUS_USAGE);
  assert_null(found);
  put("vocab.json", "{}");
  assert_int_equal(tokenizer_find(folder, "", &name, &found), STATUS_USAGE);
  put("merges.txt", "");
  check_found(folder, "gpt2", folder);
  put("vocab.json", NULL);
  put("merges.txt", NULL);
}

/* ---- the normal form C */

static void check_nfc(const char *text, const char *expected)
{
  struct nfc *nfc = NULL;
  const char *out = NULL;
  size_t bytes = 0;
  const size_t most = text_document_most;
  text_document_most = strlen(text); /* the normal form of a document may be longer than that */
  must(nfc_create(&nfc));
  must(nfc_text(nfc, text, strlen(text), &out, &bytes, NULL));
  text_document_most = most;
  char *found = mem_printf("%.*s", (int)bytes, out);
  if (strcmp(expected, "no copy") == 0)
    assert_ptr_equal(out, text);
  else
    assert_string_equal(found, expected);
  mem_free(found);
  nfc_destroy(nfc);
}

TEST(test_nfc)
{
  rows_each(ROWS, "nfc", check_nfc);
  check_nfc("", "no copy");
  nfc_destroy(NULL);
}

/* Marks in the worst order: a plain sort by exchanges would need hours. */
TEST(test_many_marks)
{
  enum { MARKS = 1 << 20 };
  struct nfc *nfc = NULL;
  char *text = NULL;
  const char *out = NULL;
  size_t bytes = 0;
  must(nfc_create(&nfc));
  must(mem_alloc(MEM_DATA, 2 * MARKS + 1, (void **)&text));
  text[0] = 'x';
  for (int i = 0; i < MARKS; i++)
    memcpy(text + 1 + 2 * i, i % 2 ? "\u0316" : "\u0300", 2); /* below, class 220; above, 230 */
  double begin = clock_s();
  must(nfc_text(nfc, text, 2 * MARKS + 1, &out, &bytes, NULL));
  assert_true(clock_s() - begin < 60);
  assert_int_equal(bytes, 2 * MARKS + 1);
  for (size_t i = 0; i < MARKS; i++)
    assert_memory_equal(out + 1 + 2 * i, i < MARKS / 2 ? "\u0316" : "\u0300", 2);
  mem_free(text);
  nfc_destroy(nfc);
}

FIXTURE(set_up)
{
  return mkdtemp(folder) ? 0 : 1;
}

FIXTURE(tear_down)
{
  put("tokenizer.json", NULL);
  put("tokenizer_config.json", NULL);
  return rmdir(folder);
}

TEST_MAIN(set_up, tear_down)
