/* Tokens and merges in hash tables, and the joining of a word by ranks. */
#include "io/tokenizer/bpe.h"

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "io/text/input.h"

enum {
  CACHED_BYTES = 30, /* longest word and most tokens of a cached word: a slot is a cache line */
  CACHED_TOKENS = 8,
  CACHE_SLOTS = 1 << 16
};
#define NO_RANK UINT32_MAX

struct token {
  uint32_t begin, length; /* in the pool */
  bool made;              /* a byte, or by a merge */
};
struct pair {
  uint64_t key; /* left id, right id */
  uint32_t rank;
  int32_t joined;
};
struct symbol {
  int32_t id, previous, next, joined; /* `joined` and `rank` of the pair that begins here */
  uint32_t rank;
};
struct cached {
  uint8_t bytes, tokens;
  char word[CACHED_BYTES];
  int32_t token[CACHED_TOKENS];
};

struct bpe {
  int64_t vocab;
  uint64_t seed;           /* of the tables */
  struct text_buffer pool; /* the bytes of all tokens */
  struct token *token;     /* [vocab] */
  int32_t *slots;          /* hash table of ids by bytes; -1: free */
  uint64_t slot_count;
  int32_t of_byte[256];
  struct pair *pairs; /* a hash table; rank NO_RANK: free */
  uint64_t pair_slots;
  uint32_t merges;
  bool whole_words;
  struct cached *cache;   /* [CACHE_SLOTS] */
  struct symbol *symbols; /* of the word at hand */
  uint64_t *heap;         /* 3 a symbol: rank << 32 | position */
  size_t word_room;
};

/* ---- the alphabet of byte-level vocabularies */

bool bpe_is_printable(int byte)
{
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* The byte that a character stands for, or -1. Bytes 0 .. 32, 127 .. 160 and 173 are not
 * printable. */
static int byte_of(unsigned code)
{
  if (code < 256)
    return bpe_is_printable((int)code) ? (int)code : -1;
  unsigned n = code - 256;
  return n <= 32 ? (int)n : n <= 66 ? (int)n - 33 + 127 : n == 67 ? 173 : -1;
}

size_t bpe_spell_byte(int byte, char out[BPE_SPELLED_MOST])
{
  const int character = bpe_is_printable(byte) ? byte
                        : byte <= 32           ? 256 + byte
                        : byte <= 160          ? 256 + 33 + byte - 127
                                               : 256 + 67;
  if (character < 0x80) {
    out[0] = (char)character;
    return 1;
  }
  out[0] = (char)(0xC0 | character >> 6);
  out[1] = (char)(0x80 | (character & 0x3F));
  return 2;
}

bool bpe_unspell(const char *text, size_t bytes, char *out, size_t *n)
{
  size_t count = 0;
  for (size_t i = 0; i < bytes;) {
    unsigned lead = (unsigned char)text[i];
    unsigned code = lead < 0x80   ? lead
                    : lead < 0xE0 ? (lead & 0x1F) << 6 | ((unsigned char)text[i + 1] & 0x3F)
                                  : UINT32_MAX;
    int byte = byte_of(code);
    if (byte < 0)
      return false;
    out[count++] = (char)byte;
    i += lead < 0x80 ? 1 : 2;
  }
  *n = count;
  return true;
}

/* ---- tokens */

/* A power of two that is at least twice n. */
static uint64_t slots_for(int64_t n)
{
  uint64_t slots = 16;
  while (slots < 2 * (uint64_t)n)
    slots *= 2;
  return slots;
}

enum status bpe_create(int64_t vocab, struct bpe **out)
{
  struct bpe *bpe = NULL;
  enum status status = mem_new(MEM_DATA, 1, &bpe);
  if (status)
    return status;
  bpe->vocab = vocab;
  bpe->seed = hash_seed();
  bpe->slot_count = slots_for(vocab);
  status = mem_new(MEM_DATA, vocab, &bpe->token)
           ?: mem_new(MEM_DATA, bpe->slot_count, &bpe->slots)
           ?: mem_new(MEM_DATA, CACHE_SLOTS, &bpe->cache);
  if (status) {
    bpe_destroy(bpe);
    return status;
  }
  memset(bpe->slots, 0xFF, bpe->slot_count * sizeof *bpe->slots);
  *out = bpe;
  return STATUS_OK;
}

void bpe_destroy(struct bpe *bpe)
{
  if (!bpe)
    return;
  text_buffer_free(&bpe->pool);
  mem_free(bpe->token);
  mem_free(bpe->slots);
  mem_free(bpe->pairs);
  mem_free(bpe->cache);
  mem_free(bpe->symbols);
  mem_free(bpe->heap);
  mem_free(bpe);
}

/* The slot that holds the token of these bytes, or the free one where it belongs. */
static int32_t *token_slot(const struct bpe *bpe, const char *bytes, size_t n)
{
  for (uint64_t i = hash_seeded(bpe->seed, bytes, n);; i++) {
    int32_t *slot = &bpe->slots[i & (bpe->slot_count - 1)];
    const struct token *token = &bpe->token[*slot < 0 ? 0 : *slot];
    if (*slot < 0 || (token->length == n && memcmp(bpe->pool.data + token->begin, bytes, n) == 0))
      return slot;
  }
}

enum status bpe_set_token(struct bpe *bpe, int32_t id, const char *bytes, size_t n, bool of_text)
{
  size_t begin = bpe->pool.bytes;
  enum status status = text_buffer_append(&bpe->pool, bytes, n);
  if (status)
    return status;
  bpe->token[id] = (struct token){.begin = (uint32_t)begin, .length = (uint32_t)n};
  if (of_text)
    *token_slot(bpe, bytes, n) = id;
  return STATUS_OK;
}

const char *bpe_token(const struct bpe *bpe, int32_t id, size_t *n)
{
  *n = bpe->token[id].length;
  return *n ? bpe->pool.data + bpe->token[id].begin : NULL;
}

int32_t bpe_find(const struct bpe *bpe, const char *bytes, size_t n)
{
  return *token_slot(bpe, bytes, n);
}

bool bpe_find_merge(const struct bpe *bpe, const char *left, size_t left_bytes, const char *right,
                    size_t right_bytes, char *room, int32_t id[3])
{
  size_t a, b;
  if (!bpe_unspell(left, left_bytes, room, &a) || !bpe_unspell(right, right_bytes, room + a, &b))
    return false;
  id[0] = bpe_find(bpe, room, a);
  id[1] = bpe_find(bpe, room + a, b);
  id[2] = bpe_find(bpe, room, a + b);
  return true;
}

bool bpe_find_bytes(struct bpe *bpe, int *missing)
{
  for (int byte = 0; byte < 256; byte++) {
    const bool in_text = byte < 0xC0 || (byte > 0xC1 && byte < 0xF5); /* of UTF-8 */
    bpe->of_byte[byte] = bpe_find(bpe, &(char){(char)byte}, 1);
    *missing = byte;
    if (bpe->of_byte[byte] >= 0)
      bpe->token[bpe->of_byte[byte]].made = true;
    else if (in_text)
      return false;
  }
  return true;
}

/* ---- merges */

static uint64_t pair_key(int32_t left, int32_t right)
{
  return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* The slot of the pair, or the free one where it belongs. */
static struct pair *pair_slot(const struct bpe *bpe, uint64_t key)
{
  for (uint64_t i = hash_mix(key, bpe->seed);; i++) {
    struct pair *pair = &bpe->pairs[i & (bpe->pair_slots - 1)];
    if (pair->rank == NO_RANK || pair->key == key)
      return pair;
  }
}

enum status bpe_reserve_merges(struct bpe *bpe, int64_t merges, bool whole_words)
{
  bpe->whole_words = whole_words;
  bpe->pair_slots = slots_for(merges);
  enum status status = mem_new(MEM_DATA, bpe->pair_slots, &bpe->pairs);
  if (!status)
    for (uint64_t i = 0; i < bpe->pair_slots; i++)
      bpe->pairs[i].rank = NO_RANK;
  return status;
}

bool bpe_add_merge(struct bpe *bpe, int32_t left, int32_t right, int32_t joined)
{
  struct pair *pair = pair_slot(bpe, pair_key(left, right));
  const bool fresh = pair->rank == NO_RANK;
  *pair = (struct pair){.key = pair_key(left, right), .rank = bpe->merges++, .joined = joined};
  bpe->token[joined].made = true;
  return fresh;
}

bool bpe_is_made(const struct bpe *bpe, int32_t id)
{
  size_t n = 0;
  const char *bytes = bpe_token(bpe, id, &n);
  return bpe->token[id].made || (bpe->whole_words && n > 0 && bpe_find(bpe, bytes, n) == id);
}

/* ---- meaning */

/* The table has no order. Each merge's hash holds its rank, so hashes can be added in any order. */
static uint64_t hash_merges(const struct bpe *bpe)
{
  uint64_t sum = 0;
  for (uint64_t i = 0; i < bpe->pair_slots; i++) {
    const struct pair *pair = &bpe->pairs[i];
    if (pair->rank == NO_RANK)
      continue;
    const uint64_t words[] = {pair->key, pair->rank, (uint64_t)pair->joined};
    sum += hash_bytes(HASH_START, words, sizeof words);
  }
  return sum;
}

uint64_t bpe_hash(const struct bpe *bpe, uint64_t hash)
{
  const uint64_t merges = hash_merges(bpe), whole = bpe->whole_words;
  for (int64_t id = 0; id < bpe->vocab; id++) {
    const struct token *token = &bpe->token[id];
    hash = hash_bytes(hash, &token->length, sizeof token->length);
    hash = hash_bytes(hash, bpe->pool.data + token->begin, token->length);
  }
  hash = hash_bytes(hash, &merges, sizeof merges);
  return hash_bytes(hash, &whole, sizeof whole);
}

/* ---- words */

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

static enum status reserve_word(struct bpe *bpe, size_t bytes)
{
  if (bytes <= bpe->word_room)
    return STATUS_OK;
  size_t room = 2 * bytes + 64;
  enum status status =
      mem_resize(MEM_DATA, room * sizeof *bpe->symbols, (void **)&bpe->symbols)
          ?: mem_resize(MEM_DATA, room * 3 * sizeof *bpe->heap, (void **)&bpe->heap);
  if (!status)
    bpe->word_room = room;
  return status;
}

/* Ranks the pair at `position` again. If it can be joined, puts it on the heap. */
static void rank_pair(struct bpe *bpe, int32_t position, size_t *waiting)
{
  struct symbol *symbol = &bpe->symbols[position];
  symbol->rank = NO_RANK;
  if (symbol->next < 0)
    return;
  const struct pair *pair = pair_slot(bpe, pair_key(symbol->id, bpe->symbols[symbol->next].id));
  if (pair->rank == NO_RANK)
    return;
  symbol->rank = pair->rank;
  symbol->joined = pair->joined;
  heap_push(bpe->heap, waiting, (uint64_t)pair->rank << 32 | (uint32_t)position);
}

static void join_pair(struct bpe *bpe, int32_t position, size_t *waiting)
{
  struct symbol *left = &bpe->symbols[position], *right = &bpe->symbols[left->next];
  left->id = left->joined;
  left->next = right->next;
  right->rank = NO_RANK;
  if (left->next >= 0)
    bpe->symbols[left->next].previous = position;
  if (left->previous >= 0)
    rank_pair(bpe, left->previous, waiting);
  rank_pair(bpe, position, waiting);
}

/* Leaves the tokens as a list that begins at symbol 0. A pair is put on the heap at most three
 * times a symbol: once at first, twice for a join. An entry of the heap is out of date if the pair
 * at its position has another rank by now. */
static void join_all(struct bpe *bpe, size_t bytes)
{
  size_t waiting = 0;
  for (size_t i = 0; i + 1 < bytes; i++)
    rank_pair(bpe, (int32_t)i, &waiting);
  while (waiting > 0) {
    uint64_t top = heap_pop(bpe->heap, &waiting);
    int32_t position = (int32_t)(uint32_t)top;
    if (bpe->symbols[position].rank == top >> 32)
      join_pair(bpe, position, &waiting);
  }
}

static enum status encode_word(struct bpe *bpe, const char *word, size_t bytes, int32_t *tokens,
                               int64_t *n)
{
  int32_t whole = bpe->whole_words ? bpe_find(bpe, word, bytes) : -1;
  if (whole >= 0) {
    tokens[(*n)++] = whole;
    return STATUS_OK;
  }
  enum status status = reserve_word(bpe, bytes);
  if (status)
    return status;
  for (size_t i = 0; i < bytes; i++)
    bpe->symbols[i] = (struct symbol){.id = bpe->of_byte[(unsigned char)word[i]],
                                      .previous = (int32_t)i - 1,
                                      .next = i + 1 < bytes ? (int32_t)i + 1 : -1,
                                      .rank = NO_RANK};
  join_all(bpe, bytes);
  for (int32_t i = 0; i >= 0; i = bpe->symbols[i].next)
    tokens[(*n)++] = bpe->symbols[i].id;
  return STATUS_OK;
}

enum status bpe_encode_word(struct bpe *bpe, const char *word, size_t bytes, int32_t *tokens,
                            int64_t *n)
{
  if (bytes > CACHED_BYTES)
    return encode_word(bpe, word, bytes, tokens, n);
  struct cached *cached = &bpe->cache[hash_seeded(bpe->seed, word, bytes) & (CACHE_SLOTS - 1)];
  if (cached->bytes == bytes && memcmp(cached->word, word, bytes) == 0) {
    for (int i = 0; i < cached->tokens; i++)
      tokens[(*n)++] = cached->token[i];
    return STATUS_OK;
  }
  int64_t first = *n;
  enum status status = encode_word(bpe, word, bytes, tokens, n);
  if (status || *n - first > CACHED_TOKENS)
    return status;
  cached->bytes = (uint8_t)bytes;
  cached->tokens = (uint8_t)(*n - first);
  memcpy(cached->word, word, bytes);
  memcpy(cached->token, tokens + first, (size_t)(*n - first) * sizeof *tokens);
  return STATUS_OK;
}
