/* GPT-2's byte-level BPE. A text is split into words by GPT-2's pattern; in each word, of bytes at first, the adjacent pair that stands highest in merges.txt is
 * joined wherever it occurs, from the left, and again until no pair is left that can be joined. */
#include <stdbool.h>
#include <string.h>
#include <zlib.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/mem.h"
#include "io/file.h"
#include "io/json.h"
#include "io/tokenizer_ops.h"

enum {
  ALPHABET = 324, /* characters 33 .. 323 stand for the 256 bytes in the files */
  FILE_MOST = 256 << 20,
  VOCAB_MOST = 1 << 24,
  CACHED_BYTES = 30, /* longest word and most tokens of a cached word: a slot is a cache line */
  CACHED_TOKENS = 8,
  CACHE_SLOTS = 1 << 16
};
#define NO_RANK UINT32_MAX

static const char end_of_text[] = "<|endoftext|>";

/* GPT-2's is   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+   where \s has Unicode's White_Space; PCRE2's own \s takes
 * U+180E for a space, so the characters are spelled out. */
#define SPACE "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
static const char pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+";

struct pair {
  uint64_t key;
  uint32_t rank;
  bool used;
}; /* key: left id, right id */
struct symbol {
  int32_t id, previous, next;
  uint32_t rank;
}; /* of a word; rank of the pair that begins here */
struct cached {
  uint8_t bytes, tokens;
  char word[CACHED_BYTES];
  int32_t token[CACHED_TOKENS];
};

struct gpt2 {
  struct tokenizer base;
  char *pool;               /* the bytes of all tokens */
  uint32_t *begin, *length; /* [vocab] in the pool */
  int32_t of_byte[256];
  struct pair *pairs;  /* a hash table */
  uint64_t pair_slots; /* a power of two */
  int32_t *merged;     /* [rank] */
  pcre2_code *code;
  pcre2_match_data *match;
  struct cached *cache;   /* [CACHE_SLOTS] */
  struct symbol *symbols; /* of the word at hand */
  uint64_t *heap;         /* 3 a symbol: rank << 32 | position; pairs that wait for the end of a round are kept at its far end */
  size_t word_room;
};

/* What loading needs on top. */
struct loader {
  struct gpt2 *gpt2;
  const char *vocab_path, *merges_path;
  struct text_input *input;
  struct text_buffer pool, key;
  int16_t byte_of[ALPHABET]; /* of a character, -1 for none */
  int32_t *slots;            /* hash table of ids by token */
  uint64_t slot_count;
  bool *made; /* [vocab] a byte, or joined by a merge read so far */
};

/* ---- the files' alphabet */

static bool is_printable(int byte)
{
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* Printable bytes of Latin-1 stand for themselves, the others in turn for U+0100 and up. */
static void fill_alphabet(int16_t byte_of[ALPHABET])
{
  int next = 256;
  memset(byte_of, 0xFF, ALPHABET * sizeof *byte_of);
  for (int byte = 0; byte < 256; byte++)
    byte_of[is_printable(byte) ? byte : next++] = (int16_t)byte;
}

/* Append to `out` the bytes that valid UTF-8 text stands for. False where a character is not of the alphabet. */
static enum status append_bytes(const struct loader *loader, const char *text, size_t bytes, struct text_buffer *out, bool *known)
{
  *known = true;
  for (size_t i = 0; i < bytes;) {
    unsigned lead = (unsigned char)text[i], code = lead < 0x80   ? lead
                                                   : lead < 0xE0 ? (lead & 0x1F) << 6 | ((unsigned char)text[i + 1] & 0x3F)
                                                                 : ALPHABET;
    *known = code < ALPHABET && loader->byte_of[code] >= 0;
    if (!*known)
      return STATUS_OK;
    char byte = (char)loader->byte_of[code];
    enum status status = text_buffer_append(out, &byte, 1);
    if (status)
      return status;
    i += lead < 0x80 ? 1 : 2;
  }
  return STATUS_OK;
}

/* ---- hash tables */

static uint64_t hash_bytes(const char *bytes, size_t n)
{
  uint64_t hash = 0x9E3779B97F4A7C15 ^ n;
  for (; n >= 8; n -= 8, bytes += 8) {
    uint64_t word;
    memcpy(&word, bytes, 8);
    hash = (hash ^ word) * 0xFF51AFD7ED558CCD;
    hash ^= hash >> 32;
  }
  uint64_t word = 0;
  memcpy(&word, bytes, n);
  hash = (hash ^ word) * 0xFF51AFD7ED558CCD;
  return hash ^ hash >> 32;
}

/* A power of two that is at least twice n. */
static uint64_t slots_for(int64_t n)
{
  uint64_t slots = 16;
  while (slots < 2 * (uint64_t)n)
    slots *= 2;
  return slots;
}

/* The slot that holds the token, or the empty one where it belongs. */
static int32_t *token_slot(const struct loader *loader, const char *bytes, size_t n)
{
  const struct gpt2 *gpt2 = loader->gpt2;
  for (uint64_t i = hash_bytes(bytes, n);; i++) {
    int32_t *slot = &loader->slots[i & (loader->slot_count - 1)];
    if (*slot < 0 || (gpt2->length[*slot] == n && memcmp(gpt2->pool + gpt2->begin[*slot], bytes, n) == 0))
      return slot;
  }
}

static uint64_t pair_key(int32_t left, int32_t right)
{
  return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static struct pair *pair_slot(const struct gpt2 *gpt2, uint64_t key)
{
  uint64_t hash = key * 0x9E3779B97F4A7C15;
  for (uint64_t i = hash >> 32;; i++) {
    struct pair *pair = &gpt2->pairs[i & (gpt2->pair_slots - 1)];
    if (!pair->used || pair->key == key)
      return pair;
  }
}

static uint32_t pair_rank(const struct gpt2 *gpt2, int32_t left, int32_t right)
{
  const struct pair *pair = pair_slot(gpt2, pair_key(left, right));
  return pair->used ? pair->rank : NO_RANK;
}

/* ---- vocab.json */

struct entry {
  uint32_t begin, length;
  int32_t id;
  int64_t byte;
};

static enum status read_entry(struct loader *loader, struct entry *out)
{
  struct text_input *input = loader->input;
  int found;
  bool known;
  int64_t id;
  enum status status = json_peek(input, &found);
  out->byte = text_input_offset(input);
  out->begin = (uint32_t)loader->pool.bytes;
  loader->key.bytes = 0;
  if (status == STATUS_OK)
    status = json_string(input, &loader->key);
  if (status == STATUS_OK)
    status = json_expect(input, ':', "':'");
  if (status == STATUS_OK)
    status = json_whole(input, VOCAB_MOST - 1, &id);
  if (status)
    return status;
  status = append_bytes(loader, loader->key.data, loader->key.bytes, &loader->pool, &known);
  if (status)
    return status;
  out->length = (uint32_t)loader->pool.bytes - out->begin;
  out->id = (int32_t)id;
  if (!known)
    return text_input_fail(input, out->byte, "a token with a character that stands for no byte; GPT-2's vocab.json spells bytes as U+0021 to U+0143");
  return out->length ? STATUS_OK : text_input_fail(input, out->byte, "a token of no bytes");
}

/* The object up to its closing brace. */
static enum status read_entries(struct loader *loader, struct entry **entries, int64_t *n)
{
  struct text_input *input = loader->input;
  int64_t room = 0;
  int byte = ',';
  enum status status = json_expect(input, '{', "an object, '{',");
  while (status == STATUS_OK && byte == ',') {
    if (*n == room) {
      room = 2 * room + 1024;
      status = mem_resize(MEM_DATA, (size_t)room * sizeof **entries, (void **)entries);
    }
    if (status == STATUS_OK)
      status = read_entry(loader, &(*entries)[*n]);
    if (status == STATUS_OK)
      status = json_peek(input, &byte);
    if (status)
      return status;
    if (byte != ',' && byte != '}')
      return json_unexpected(input, "',' or '}'");
    input->at++;
    ++*n;
  }
  if (status == STATUS_OK)
    status = json_peek(input, &byte);
  return status == STATUS_OK && byte >= 0 ? json_unexpected(input, "the end of the file") : status;
}

/* Into tables by id: every id of 0 .. n - 1 once, no token twice. */
static enum status place_entries(struct loader *loader, const struct entry *entries, int64_t n)
{
  struct gpt2 *gpt2 = loader->gpt2;
  loader->slot_count = slots_for(n);
  enum status status = mem_alloc(MEM_DATA, (size_t)n * sizeof *gpt2->begin, (void **)&gpt2->begin);
  if (status == STATUS_OK)
    status = mem_alloc(MEM_DATA, (size_t)n * sizeof *gpt2->length, (void **)&gpt2->length);
  if (status == STATUS_OK)
    status = mem_alloc(MEM_DATA, loader->slot_count * sizeof *loader->slots, (void **)&loader->slots);
  if (status)
    return status;
  memset(loader->slots, 0xFF, loader->slot_count * sizeof *loader->slots);
  gpt2->pool = loader->pool.data;
  loader->pool = (struct text_buffer){0};

  for (int64_t i = 0; i < n; i++) {
    const struct entry *entry = &entries[i];
    if (entry->id >= n || gpt2->length[entry->id])
      return text_input_fail(loader->input, entry->byte, "the id %d %s; %lld tokens have the ids 0 to %lld, each once", entry->id,
                             entry->id >= n ? "is too big" : "is given twice", (long long)n, (long long)n - 1);
    int32_t *slot = token_slot(loader, gpt2->pool + entry->begin, entry->length);
    if (*slot >= 0)
      return text_input_fail(loader->input, entry->byte, "a token that was given before");
    gpt2->begin[entry->id] = entry->begin;
    gpt2->length[entry->id] = entry->length;
    *slot = entry->id;
  }
  gpt2->base.vocab = n;
  return STATUS_OK;
}

static enum status find_known_tokens(struct loader *loader)
{
  struct gpt2 *gpt2 = loader->gpt2;
  enum status status = mem_alloc(MEM_DATA, (size_t)gpt2->base.vocab * sizeof *loader->made, (void **)&loader->made);
  if (status)
    return status;
  for (int byte = 0; byte < 256; byte++) {
    int32_t id = *token_slot(loader, &(char){(char)byte}, 1);
    if (id < 0)
      return status_set(STATUS_INPUT, "%s has no token for the single byte 0x%02X; it is not a byte-level vocabulary", loader->vocab_path, byte);
    gpt2->of_byte[byte] = id;
    loader->made[id] = true;
  }
  gpt2->base.end_of_text = *token_slot(loader, end_of_text, sizeof end_of_text - 1);
  if (gpt2->base.end_of_text < 0)
    return status_set(STATUS_INPUT, "%s has no token %s", loader->vocab_path, end_of_text);
  return STATUS_OK;
}

static enum status load_vocab(struct loader *loader)
{
  struct entry *entries = NULL;
  int64_t n = 0;
  enum status status = text_input_open(loader->vocab_path, &loader->input);
  if (status == STATUS_OK)
    status = read_entries(loader, &entries, &n);
  if (status == STATUS_OK)
    status = place_entries(loader, entries, n);
  if (status == STATUS_OK)
    status = find_known_tokens(loader);
  mem_free(entries);
  return status;
}

/* ---- merges.txt */

static enum status line_fail(const struct loader *loader, int64_t line, const char *problem)
{
  return status_set(STATUS_INPUT, "%s, line %lld: %s", loader->merges_path, (long long)line, problem);
}

/* "LEFT RIGHT" */
static enum status read_merge(struct loader *loader, const char *text, size_t bytes, int64_t line, uint32_t rank)
{
  struct gpt2 *gpt2 = loader->gpt2;
  bool known = false, known_right = false;
  const char *space = memchr(text, ' ', bytes);
  size_t left = space ? (size_t)(space - text) : 0;
  if (left == 0 || left + 1 == bytes || memchr(space + 1, ' ', bytes - left - 1))
    return line_fail(loader, line, "not two pieces with one space between them");
  loader->key.bytes = 0;
  enum status status = append_bytes(loader, text, left, &loader->key, &known);
  left = loader->key.bytes;
  if (status == STATUS_OK)
    status = append_bytes(loader, space + 1, (size_t)(text + bytes - space - 1), &loader->key, &known_right);
  if (status)
    return status;
  if (!known || !known_right)
    return line_fail(loader, line, "a character that stands for no byte");

  const char *joined = loader->key.data;
  int32_t a = *token_slot(loader, joined, left), b = *token_slot(loader, joined + left, loader->key.bytes - left);
  int32_t ab = *token_slot(loader, joined, loader->key.bytes);
  if (a < 0 || b < 0 || ab < 0)
    return line_fail(loader, line, ab < 0 ? "the joined piece is not in vocab.json" : "a piece is not in vocab.json");
  if (!loader->made[a] || !loader->made[b])
    return line_fail(loader, line, "a piece that is neither a byte nor made by an earlier line");
  if (ab == gpt2->base.end_of_text)
    return line_fail(loader, line, "the end of text cannot be made from text");
  struct pair *pair = pair_slot(gpt2, pair_key(a, b));
  if (pair->used)
    return line_fail(loader, line, "a pair that was given before");
  *pair = (struct pair){.key = pair_key(a, b), .rank = rank, .used = true};
  gpt2->merged[rank] = ab;
  loader->made[ab] = true;
  return STATUS_OK;
}

static enum status read_merges(struct loader *loader, const char *text, size_t bytes)
{
  struct gpt2 *gpt2 = loader->gpt2;
  int64_t lines = 1, line = 1;
  for (size_t i = 0; i < bytes; i++)
    lines += text[i] == '\n';
  gpt2->pair_slots = slots_for(lines);
  enum status status = mem_alloc(MEM_DATA, gpt2->pair_slots * sizeof *gpt2->pairs, (void **)&gpt2->pairs);
  if (status == STATUS_OK)
    status = mem_alloc(MEM_DATA, (size_t)lines * sizeof *gpt2->merged, (void **)&gpt2->merged);

  uint32_t rank = 0;
  for (const char *at = text, *end = text + bytes; status == STATUS_OK && at < end; line++) {
    const char *stop = memchr(at, '\n', (size_t)(end - at));
    if (!stop)
      stop = end;
    size_t length = (size_t)(stop - at);
    if (length && at[length - 1] == '\r')
      length--;
    if (line > 1 || length < 8 || memcmp(at, "#version", 8) != 0)
      status = read_merge(loader, at, length, line, rank++);
    at = stop + (stop < end);
  }
  return status;
}

static enum status load_merges(struct loader *loader)
{
  char *text = NULL;
  size_t bytes = 0;
  enum status status = file_read_all(loader->merges_path, FILE_MOST, &text, &bytes);
  if (status)
    return status;
  int64_t invalid = utf8_find_invalid(text, bytes);
  if (invalid >= 0)
    status = status_set(STATUS_INPUT, "%s, byte %lld: not valid UTF-8", loader->merges_path, (long long)invalid);
  else
    status = read_merges(loader, text, bytes);
  loader->gpt2->base.checksum = (uint32_t)crc32_z(loader->gpt2->base.checksum, (const Bytef *)text, bytes);
  mem_free(text);
  return status;
}

/* ---- creation */

static enum status checksum_of(const char *path, uint32_t *out)
{
  char *text = NULL;
  size_t bytes = 0;
  enum status status = file_read_all(path, FILE_MOST, &text, &bytes);
  if (status)
    return status;
  *out = (uint32_t)crc32_z(*out, (const Bytef *)text, bytes);
  mem_free(text);
  return STATUS_OK;
}

static enum status compile_pattern(struct gpt2 *gpt2)
{
  int error;
  PCRE2_SIZE where;
  gpt2->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_ANCHORED, &error, &where, NULL);
  if (!gpt2->code)
    return status_set(STATUS_LIBRARY, "PCRE2 cannot compile the splitting pattern: error %d at %zu", error, (size_t)where);
  error = pcre2_jit_compile(gpt2->code, PCRE2_JIT_COMPLETE);
  if (error != 0 && error != PCRE2_ERROR_JIT_BADOPTION && error != PCRE2_ERROR_NOMEMORY) /* no JIT here, or not allowed: slower, the same words */
    return status_set(STATUS_LIBRARY, "PCRE2 cannot translate the splitting pattern: error %d", error);
  gpt2->match = pcre2_match_data_create(1, NULL);
  return gpt2->match ? STATUS_OK : status_set(STATUS_MEMORY, "no memory for PCRE2's match data");
}

static void gpt2_destroy(struct tokenizer *tokenizer)
{
  struct gpt2 *gpt2 = (struct gpt2 *)tokenizer;
  pcre2_match_data_free(gpt2->match);
  pcre2_code_free(gpt2->code);
  mem_free(gpt2->pool);
  mem_free(gpt2->begin);
  mem_free(gpt2->length);
  mem_free(gpt2->pairs);
  mem_free(gpt2->merged);
  mem_free(gpt2->cache);
  mem_free(gpt2->symbols);
  mem_free(gpt2->heap);
  mem_free(gpt2);
}

static enum status load(struct loader *loader)
{
  fill_alphabet(loader->byte_of);
  enum status status = checksum_of(loader->vocab_path, &loader->gpt2->base.checksum);
  if (status == STATUS_OK)
    status = load_vocab(loader);
  if (status == STATUS_OK)
    status = load_merges(loader);
  text_input_close(loader->input);
  text_buffer_free(&loader->pool);
  text_buffer_free(&loader->key);
  mem_free(loader->slots);
  mem_free(loader->made);
  return status;
}

static enum status gpt2_create(const char *folder, struct tokenizer **out)
{
  if (!folder || !folder[0])
    return status_set(STATUS_USAGE, "the tokenizer gpt2 needs the folder that holds vocab.json and merges.txt");
  struct gpt2 *gpt2 = NULL;
  enum status status = mem_alloc(MEM_DATA, sizeof *gpt2, (void **)&gpt2);
  if (status)
    return status;
  gpt2->base.ops = &tokenizer_gpt2;
  char *vocab = mem_printf("%s/vocab.json", folder), *merges = mem_printf("%s/merges.txt", folder);
  status = vocab && merges ? load(&(struct loader){.gpt2 = gpt2, .vocab_path = vocab, .merges_path = merges}) : STATUS_MEMORY;
  mem_free(vocab);
  mem_free(merges);
  if (status == STATUS_OK)
    status = mem_alloc(MEM_DATA, CACHE_SLOTS * sizeof *gpt2->cache, (void **)&gpt2->cache);
  if (status == STATUS_OK)
    status = compile_pattern(gpt2);
  if (status) {
    gpt2_destroy(&gpt2->base);
    return status;
  }
  *out = &gpt2->base;
  return STATUS_OK;
}

/* ---- encoding */

static void heap_push(uint64_t *heap, size_t *n, uint64_t item)
{
  size_t i = (*n)++;
  while (i > 0 && heap[(i - 1) / 2] > item) {
    heap[i] = heap[(i - 1) / 2];
    i = (i - 1) / 2;
  }
  heap[i] = item;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n)
{
  uint64_t top = heap[0], item = heap[--*n];
  size_t i = 0;
  for (size_t child; (child = 2 * i + 1) < *n; i = child) {
    if (child + 1 < *n && heap[child + 1] < heap[child])
      child++;
    if (heap[child] >= item)
      break;
    heap[i] = heap[child];
  }
  heap[i] = item;
  return top;
}

static enum status reserve_word(struct gpt2 *gpt2, size_t bytes)
{
  if (bytes <= gpt2->word_room)
    return STATUS_OK;
  size_t room = 2 * bytes + 64;
  enum status status = mem_resize(MEM_DATA, room * sizeof *gpt2->symbols, (void **)&gpt2->symbols);
  if (status == STATUS_OK)
    status = mem_resize(MEM_DATA, room * 3 * sizeof *gpt2->heap, (void **)&gpt2->heap);
  if (status == STATUS_OK)
    gpt2->word_room = room;
  return status;
}

/* Rank the pair at `position` anew; if it can be joined, put it down among the waiting ones, which grow downwards from `waiting`. */
static void rank_pair(struct gpt2 *gpt2, int32_t position, uint64_t **waiting)
{
  struct symbol *symbol = &gpt2->symbols[position];
  symbol->rank = symbol->next < 0 ? NO_RANK : pair_rank(gpt2, symbol->id, gpt2->symbols[symbol->next].id);
  if (symbol->rank != NO_RANK)
    *--*waiting = (uint64_t)symbol->rank << 32 | (uint32_t)position;
}

static void join_pair(struct gpt2 *gpt2, int32_t position, uint64_t **waiting)
{
  struct symbol *left = &gpt2->symbols[position], *right = &gpt2->symbols[left->next];
  left->id = gpt2->merged[left->rank];
  left->next = right->next;
  right->rank = NO_RANK;
  if (left->next >= 0)
    gpt2->symbols[left->next].previous = position;
  rank_pair(gpt2, position, waiting);
  if (left->previous >= 0)
    rank_pair(gpt2, left->previous, waiting);
}

/* Leaves the tokens as a list that begins at symbol 0. A pair is put down at most three times a symbol: once at first, twice for a join. An entry of the heap is
 * out of date when the pair at its position has another rank by now. Pairs that come up during a round wait for its end: a round joins one pair wherever it occurs. */
static void join_all(struct gpt2 *gpt2, size_t bytes)
{
  uint64_t *heap = gpt2->heap, *end = heap + 3 * bytes, *waiting = end;
  size_t n = 0;
  for (size_t i = 0; i + 1 < bytes; i++)
    rank_pair(gpt2, (int32_t)i, &waiting);
  for (;;) {
    for (; waiting < end; waiting++)
      heap_push(heap, &n, *waiting);
    if (n == 0)
      return;
    uint32_t rank = (uint32_t)(heap[0] >> 32);
    while (n > 0 && heap[0] >> 32 == rank) {
      int32_t position = (int32_t)(uint32_t)heap_pop(heap, &n);
      if (gpt2->symbols[position].rank == rank)
        join_pair(gpt2, position, &waiting);
    }
  }
}

static enum status encode_word(struct gpt2 *gpt2, const char *word, size_t bytes, int32_t *tokens, int64_t *n)
{
  enum status status = reserve_word(gpt2, bytes);
  if (status)
    return status;
  for (size_t i = 0; i < bytes; i++)
    gpt2->symbols[i] = (struct symbol){
        .id = gpt2->of_byte[(unsigned char)word[i]], .previous = (int32_t)i - 1, .next = i + 1 < bytes ? (int32_t)i + 1 : -1, .rank = NO_RANK};
  join_all(gpt2, bytes);
  for (int32_t i = 0; i >= 0; i = gpt2->symbols[i].next)
    tokens[(*n)++] = gpt2->symbols[i].id;
  return STATUS_OK;
}

/* `tokens` has room for a token a byte. */
static enum status encode_cached(struct gpt2 *gpt2, const char *word, size_t bytes, int32_t *tokens, int64_t *n)
{
  if (bytes > CACHED_BYTES)
    return encode_word(gpt2, word, bytes, tokens, n);
  struct cached *cached = &gpt2->cache[hash_bytes(word, bytes) & (CACHE_SLOTS - 1)];
  if (cached->bytes == bytes && memcmp(cached->word, word, bytes) == 0) {
    for (int i = 0; i < cached->tokens; i++)
      tokens[(*n)++] = cached->token[i];
    return STATUS_OK;
  }
  int64_t first = *n;
  enum status status = encode_word(gpt2, word, bytes, tokens, n);
  if (status || *n - first > CACHED_TOKENS)
    return status;
  cached->bytes = (uint8_t)bytes;
  cached->tokens = (uint8_t)(*n - first);
  memcpy(cached->word, word, bytes);
  memcpy(cached->token, tokens + first, (size_t)(*n - first) * sizeof *tokens);
  return STATUS_OK;
}

enum status tokenizer_gpt2_split(struct tokenizer *tokenizer, const char *text, size_t bytes, size_t at, size_t *end)
{
  struct gpt2 *gpt2 = (struct gpt2 *)tokenizer;
  int matched = pcre2_match(gpt2->code, (PCRE2_SPTR)text, bytes, at, PCRE2_NO_UTF_CHECK, gpt2->match, NULL);
  if (matched < 1)
    return status_set(STATUS_LIBRARY, "PCRE2 cannot split the text at its byte %zu: error %d", at, matched);
  *end = pcre2_get_ovector_pointer(gpt2->match)[1];
  return STATUS_OK;
}

static enum status gpt2_encode(struct tokenizer *tokenizer, const char *text, size_t bytes, int32_t **tokens, int64_t *n, int64_t *room)
{
  struct gpt2 *gpt2 = (struct gpt2 *)tokenizer;
  if (bytes > INT32_MAX / 4)
    return status_set(STATUS_INPUT, "a text of %zu bytes is too long to encode in one piece; split it into texts of at most %d", bytes,
                      INT32_MAX / 4);
  for (size_t at = 0, end = 0; at < bytes;) {
    enum status status = tokenizer_gpt2_split(tokenizer, text, bytes, at, &end);
    if (status == STATUS_OK)
      status = tokenizer_reserve_tokens(tokens, *n, (int64_t)(end - at), room);
    if (status == STATUS_OK)
      status = encode_cached(gpt2, text + at, end - at, *tokens, n);
    if (status)
      return status;
    at = end;
  }
  return STATUS_OK;
}

static enum status gpt2_decode(const struct tokenizer *tokenizer, const int32_t *tokens, int64_t n, char **text, int64_t *bytes, int64_t *room)
{
  const struct gpt2 *gpt2 = (const struct gpt2 *)tokenizer;
  for (int64_t i = 0; i < n; i++) {
    if (tokens[i] == tokenizer->end_of_text)
      continue;
    int64_t length = gpt2->length[tokens[i]];
    enum status status = tokenizer_reserve_text(text, *bytes, length, room);
    if (status)
      return status;
    memcpy(*text + *bytes, gpt2->pool + gpt2->begin[tokens[i]], (size_t)length);
    *bytes += length;
  }
  return STATUS_OK;
}

const struct tokenizer_ops tokenizer_gpt2 = {
    .name = "gpt2", .create = gpt2_create, .destroy = gpt2_destroy, .encode = gpt2_encode, .decode = gpt2_decode};
