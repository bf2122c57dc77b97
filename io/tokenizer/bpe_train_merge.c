/* The words lie one after another as rows of symbols, one slot per byte. A pair has its exact count
 * and a list of its places in ascending order. All places of a pair are found while its newer token
 * is made, and places that have changed after that are skipped. The heap holds the count that a
 * pair had when it was put there. Counts only fall after that, so the top is put back with its
 * current count until it is right. The cost of a merge is proportional to the count of the pair,
 * whatever the length of the words. */
#include "io/tokenizer/bpe_train_merge.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"

enum {
  BETWEEN = -1, /* in a slot: between words, or inside a symbol; lengths of symbols are below it */
  ARITY = 4,    /* of the heap */
  PAIR_SLOTS = 1 << 10
};
static const double PROGRESS_SECONDS = 5;

/* Words are ordered by count, so words of one count fill a run of slots. */
struct run {
  uint64_t begin;
  int64_t count;
};

struct pair {
  uint64_t key; /* left id << 32 | right id; NO_PAIR in an empty slot */
  int64_t count;
  uint32_t first, last; /* places */
};
#define NO_PAIR UINT64_MAX

struct place {
  uint32_t at, next; /* next: 0 ends a list */
};

struct item {
  int64_t count;
  uint64_t key;
};

struct trainer {
  int32_t *slot; /* a symbol's first slot holds its id, its last one (if another) minus its bytes,
                    those between BETWEEN */
  uint64_t slots;
  struct run *run; /* [runs], and one without end */
  int64_t runs;
  struct pair *pair; /* a hash table */
  uint64_t pair_slots, pairs;
  struct place *place; /* place[0].next: those that are free */
  int64_t places, place_room;
  struct item *heap; /* [items], then [fresh] pairs to be put there */
  int64_t items, fresh, item_room;
  struct bpe_vocabulary *out;
  int64_t merge_room;
};

static uint64_t key_of(int32_t left, int32_t right)
{
  return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static int32_t left_of(uint64_t key)
{
  return (int32_t)(key >> 32);
}

static int32_t right_of(uint64_t key)
{
  return (int32_t)(uint32_t)key;
}

/* ---- the heap, highest count first, of equal counts the lower key */

static bool goes_before(const struct item *a, const struct item *b)
{
  return a->count != b->count ? a->count > b->count : a->key < b->key;
}

static void sift_down(struct trainer *t)
{
  struct item item = t->heap[0];
  int64_t i = 0;
  for (int64_t child; (child = ARITY * i + 1) < t->items; i = child) {
    int64_t end = child + ARITY < t->items ? child + ARITY : t->items;
    for (int64_t c = child + 1; c < end; c++)
      if (goes_before(&t->heap[c], &t->heap[child]))
        child = c;
    if (!goes_before(&t->heap[child], &item))
      break;
    t->heap[i] = t->heap[child];
  }
  t->heap[i] = item;
}

static void push(struct trainer *t, struct item item)
{
  int64_t i = t->items++;
  for (; i > 0 && goes_before(&item, &t->heap[(i - 1) / ARITY]); i = (i - 1) / ARITY)
    t->heap[i] = t->heap[(i - 1) / ARITY];
  t->heap[i] = item;
}

/* ---- pairs */

static struct pair *find_pair(const struct trainer *t, uint64_t key)
{
  for (uint64_t i = hash_mix(key, 0);; i++) {
    struct pair *pair = &t->pair[i & (t->pair_slots - 1)];
    if (pair->key == key || pair->key == NO_PAIR)
      return pair;
  }
}

/* A full table loses the pairs that no longer occur. */
static enum status rebuild_pairs(struct trainer *t)
{
  struct pair *old = t->pair, *fresh = NULL;
  const uint64_t old_slots = t->pair_slots;
  uint64_t live = 0, slots = PAIR_SLOTS;
  for (uint64_t i = 0; i < old_slots; i++)
    live += old[i].key != NO_PAIR && old[i].count != 0;
  while (slots < 3 * live)
    slots *= 2;
  enum status status = mem_new(MEM_DATA, slots, &fresh);
  if (status)
    return status;
  memset(fresh, 0xFF, slots * sizeof *fresh);
  t->pair = fresh;
  t->pair_slots = slots;
  t->pairs = live;
  for (uint64_t i = 0; i < old_slots; i++)
    if (old[i].key != NO_PAIR && old[i].count != 0)
      *find_pair(t, old[i].key) = old[i];
  mem_free(old);
  return STATUS_OK;
}

/* Room for the two pairs that a join makes. */
static enum status reserve(struct trainer *t)
{
  enum status status = mem_grow(MEM_DATA, (void **)&t->place, &t->place_room, t->places + 2,
                                (int64_t)sizeof *t->place)
                           ?: mem_grow(MEM_DATA, (void **)&t->heap, &t->item_room,
                                       t->items + t->fresh + 2, (int64_t)sizeof *t->heap);
  return status || 3 * (t->pairs + 2) <= 2 * t->pair_slots ? status : rebuild_pairs(t);
}

/* One more place of a pair, after all places that it has. */
static void add_place(struct trainer *t, uint64_t key, uint64_t at, int64_t count)
{
  struct pair *pair = find_pair(t, key);
  uint32_t place = t->place[0].next;
  if (place)
    t->place[0].next = t->place[place].next;
  else
    place = (uint32_t)t->places++;
  t->place[place] = (struct place){.at = (uint32_t)at};
  if (pair->key == NO_PAIR) {
    *pair = (struct pair){.key = key, .first = place};
    t->pairs++;
    t->heap[t->items + t->fresh++].key = key;
  } else {
    t->place[pair->last].next = place;
  }
  pair->last = place;
  pair->count += count;
}

static void push_fresh(struct trainer *t)
{
  for (; t->fresh > 0; t->fresh--) {
    uint64_t key = t->heap[t->items].key;
    push(t, (struct item){.count = find_pair(t, key)->count, .key = key});
  }
}

/* ---- the start: words to symbols, symbols to pairs */

/* Bytes by their characters: printable ones first. */
static enum status add_bytes(struct bpe_words *tokens, int32_t id_of[BPE_BYTES])
{
  enum status status = STATUS_OK;
  int32_t id = 0;
  for (int printable = 1; printable >= 0; printable--)
    for (int byte = 0; byte < BPE_BYTES && !status; byte++)
      if (bpe_is_printable(byte) == (bool)printable) {
        id_of[byte] = id++;
        status = bpe_words_add(tokens, &(char){(char)byte}, 1, 0, NULL);
      }
  return status;
}

static int falling_counts(const void *a, const void *b)
{
  const struct bpe_word *x = a, *y = b;
  return x->count != y->count ? (x->count < y->count ? 1 : -1)
                              : (x->begin > y->begin) - (x->begin < y->begin);
}

static void spell(struct trainer *t, const struct bpe_words *words, const int32_t id_of[BPE_BYTES])
{
  uint64_t at = 1; /* the slot before it lies between words */
  t->slot[0] = BETWEEN;
  for (int64_t i = 0; i < words->n; i++) {
    const struct bpe_word *word = &words->word[i];
    const unsigned char *text = (const unsigned char *)words->pool + word->begin;
    if (i == 0 || word->count != word[-1].count)
      t->run[t->runs++] = (struct run){.begin = at, .count = word->count};
    for (uint32_t k = 0; k < word->bytes; k++)
      t->slot[at++] = id_of[text[k]];
    t->slot[at++] = BETWEEN;
  }
  t->run[t->runs] = (struct run){.begin = UINT64_MAX};
}

static enum status lay_out(struct trainer *t, struct bpe_words *words)
{
  int32_t id_of[BPE_BYTES];
  int64_t counts = 1;
  if (words->n)
    qsort(words->word, (size_t)words->n, sizeof *words->word, falling_counts);
  for (int64_t i = 1; i < words->n; i++)
    counts += words->word[i].count != words->word[i - 1].count;
  t->slots = words->bytes + (uint64_t)words->n + 1;
  enum status status =
      add_bytes(&t->out->tokens, id_of)
      ?: mem_new(MEM_DATA, t->slots, &t->slot)
      ?: mem_new(MEM_DATA, counts + 1, &t->run);
  if (status)
    return status;
  spell(t, words, id_of);
  bpe_words_free(words);
  return STATUS_OK;
}

static enum status find_pairs(struct trainer *t)
{
  const struct run *run = t->run;
  enum status status = reserve(t);
  for (uint64_t at = 1; at + 1 < t->slots && !status; at++) {
    run += run[1].begin <= at;
    if (t->slot[at] == BETWEEN || t->slot[at + 1] == BETWEEN)
      continue;
    add_place(t, key_of(t->slot[at], t->slot[at + 1]), at, run->count);
    status = reserve(t);
  }
  push_fresh(t);
  return status;
}

/* ---- one merge */

static uint32_t bytes_of(const struct trainer *t, int32_t id)
{
  return t->out->tokens.word[id].bytes;
}

static int64_t count_at(const struct trainer *t, uint64_t at)
{
  int64_t low = 0;
  for (int64_t high = t->runs, middle; high - low > 1;) {
    middle = low + (high - low) / 2;
    if (t->run[middle].begin <= at)
      low = middle;
    else
      high = middle;
  }
  return t->run[low].count;
}

/* (x, left) (left, right) (right, y) become (x, id) (id, y). */
static void join(struct trainer *t, uint64_t key, uint64_t at, uint64_t end, int32_t id)
{
  const int32_t last = t->slot[at - 1], y = t->slot[end];
  const uint64_t at_x = last >= BETWEEN ? at - 1 : at - (uint64_t)-last;
  const int32_t x = t->slot[at_x];
  const int64_t count = count_at(t, at);
  if (x != BETWEEN) {
    find_pair(t, key_of(x, left_of(key)))->count -= count;
    add_place(t, key_of(x, id), at_x, count);
  }
  if (y != BETWEEN) {
    find_pair(t, key_of(right_of(key), y))->count -= count;
    add_place(t, key_of(id, y), at, count);
  }
  t->slot[at + bytes_of(t, left_of(key))] = BETWEEN;
  t->slot[at] = id;
  t->slot[end - 1] = -(int32_t)(end - at);
}

static enum status merge_pair(struct trainer *t, uint64_t key, int32_t id)
{
  const uint64_t left_bytes = bytes_of(t, left_of(key)), bytes = bytes_of(t, id);
  enum status status = STATUS_OK;
  for (uint32_t place = find_pair(t, key)->first, next; place && !status; place = next) {
    const uint64_t at = t->place[place].at;
    next = t->place[place].next;
    t->place[place].next = t->place[0].next;
    t->place[0].next = place;
    if (t->slot[at] != left_of(key) || t->slot[at + left_bytes] != right_of(key))
      continue;
    status = reserve(t);
    if (!status)
      join(t, key, at, at + bytes, id);
  }
  find_pair(t, key)->count = 0;
  push_fresh(t);
  return status;
}

/* The token that a merge makes. -1: a reserved one. It is new: a merge joins a pair at all places.
 * So equal bytes are always split in the same way, if no pair across their ends was joined
 * before. */
static enum status make_token(struct trainer *t, uint64_t key, const struct bpe_words *reserved,
                              int64_t *id)
{
  struct bpe_vocabulary *out = t->out;
  const struct bpe_word *left = &out->tokens.word[left_of(key)],
                        *right = &out->tokens.word[right_of(key)];
  const size_t bytes = (size_t)left->bytes + right->bytes;
  char *text = NULL;
  *id = -1;
  enum status status =
      mem_grow(MEM_DATA, (void **)&out->merge, &t->merge_room, out->merges + 1, sizeof *out->merge);
  status = status ?: mem_new(MEM_DATA, bytes, &text);
  if (status)
    return status;
  memcpy(text, out->tokens.pool + left->begin, left->bytes);
  memcpy(text + left->bytes, out->tokens.pool + right->begin, right->bytes);
  if (bpe_words_find(reserved, text, bytes) < 0) {
    status = bpe_words_add(&out->tokens, text, bytes, 0, id);
    out->merge[out->merges++] = (struct bpe_merge){.left = left_of(key), .right = right_of(key)};
  }
  mem_free(text);
  return status;
}

static enum status merge_all(struct trainer *t, int64_t tokens, int64_t min_count,
                             const struct bpe_words *reserved)
{
  enum status status = STATUS_OK;
  double start = clock_s(), shown = start;
  while (!status && t->out->tokens.n < tokens && t->items > 0) {
    const struct item top = t->heap[0];
    const int64_t count = find_pair(t, top.key)->count;
    int64_t id;
    if (count != top.count) {
      t->heap[0].count = count;
      sift_down(t);
      continue;
    }
    if (count < 1 || count < min_count)
      break;
    t->heap[0] = t->heap[--t->items];
    sift_down(t);
    status = make_token(t, top.key, reserved, &id);
    if (!status && id >= 0)
      status = merge_pair(t, top.key, (int32_t)id);
    if (clock_s() > shown + 1) {
      shown = clock_s();
      log_progress(PROGRESS_SECONDS, "tokenizer: %lld of %lld tokens, %.0f s",
                   (long long)t->out->tokens.n, (long long)tokens, shown - start);
    }
  }
  log_progress_end();
  return status;
}

void bpe_vocabulary_free(struct bpe_vocabulary *vocabulary)
{
  bpe_words_free(&vocabulary->tokens);
  mem_free(vocabulary->merge);
  *vocabulary = (struct bpe_vocabulary){0};
}

enum status bpe_merge_run(struct bpe_words *words, int64_t tokens, int64_t min_count,
                          const struct bpe_words *reserved, struct bpe_vocabulary *out)
{
  struct bpe_vocabulary made = {0};
  struct trainer t = {.out = &made, .places = 1};
  enum status status =
      lay_out(&t, words)
      ?: find_pairs(&t)
      ?: merge_all(&t, tokens, min_count, reserved);
  mem_free(t.slot);
  mem_free(t.run);
  mem_free(t.pair);
  mem_free(t.place);
  mem_free(t.heap);
  if (status)
    bpe_vocabulary_free(&made);
  else
    *out = made;
  return status;
}
