/* The words lie one after another as rows of symbols, one slot a byte. A pair has its exact count,
 * and a list of its places when the list was made; places that have changed since are skipped. The
 * heap holds the count that a pair had when it was put there. Counts only fall after that, so the
 * top is put back with its current count until it is right. The cost of a merge is proportional to
 * the count of the pair, whatever the length of the words. */
#include "io/tokenizer/bpe_train_merge.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

enum {
  BETWEEN = -1, /* in a slot: between words, or inside a symbol; lengths of symbols are below it */
  BLOCK = 64,   /* slots */
  ARITY = 4,    /* of the heap */
  LIST_ROOM = 1 << 10,
  PAIR_SLOTS = 1 << 10
};
static const double ROUND_SECONDS = 1;
static const double PROGRESS_SECONDS = 5;

/* Words are ordered by count, so words of one count fill a run of slots. */
struct run {
  uint64_t begin;
  int64_t count;
};

struct pair {
  uint64_t key; /* left id << 32 | right id; NO_PAIR in an empty slot */
  int64_t count;
};
#define NO_PAIR UINT64_MAX

struct item {
  int64_t count;
  uint64_t key, list; /* list: begin in t->list */
  uint32_t n;
};

/* The effect of one merge on a token at the left of the new one, and at the right: how often, and
 * where. */
struct beside {
  int64_t left, right;
  uint64_t left_list, right_list;
  uint32_t left_n, right_n;
  bool touched;
};

/* A place of a new pair. */
struct place {
  int32_t id; /* of the token next to the new one */
  uint32_t at;
};

struct trainer {
  int32_t *slot; /* a symbol's first slot holds its id, its last one (if another) minus its bytes,
                    those between BETWEEN */
  uint64_t slots;
  struct run *run;
  uint32_t *run_of_block;
  int64_t runs;
  struct pair *pair; /* a hash table */
  uint64_t pair_slots, pairs;
  struct item *heap;
  uint64_t items;
  int64_t item_room;
  uint32_t *list;
  uint64_t listed, list_room;
  struct beside *beside; /* [tokens] */
  int32_t *touched;
  int64_t touched_n;
  struct place *left, *right; /* of the merge at hand */
  uint64_t left_n, right_n;
  int64_t left_room, right_room;
  struct bpe_vocabulary *out;
  int64_t merge_room;
  double shown; /* when progress was, in seconds since the start */
};

/* ---- the alphabet */

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

/* ---- pairs */

static uint64_t key_of(int32_t left, int32_t right)
{
  return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static struct pair *find_pair(const struct trainer *t, uint64_t key)
{
  uint64_t hash = key * 0x9E3779B97F4A7C15;
  for (uint64_t i = hash ^ hash >> 32;; i++) {
    struct pair *pair = &t->pair[i & (t->pair_slots - 1)];
    if (pair->key == key || pair->key == NO_PAIR)
      return pair;
  }
}

static int64_t count_of(const struct trainer *t, uint64_t key)
{
  const struct pair *pair = find_pair(t, key);
  return pair->key == NO_PAIR ? 0 : pair->count;
}

static void change_count(struct trainer *t, uint64_t key, int64_t by)
{
  struct pair *pair = find_pair(t, key);
  if (pair->key == NO_PAIR) {
    *pair = (struct pair){.key = key};
    t->pairs++;
  }
  pair->count += by;
}

static enum status rebuild_pairs(struct trainer *t, uint64_t slots)
{
  struct pair *old = t->pair;
  uint64_t old_slots = t->pair_slots;
  enum status status = mem_new(MEM_DATA, slots, &t->pair);
  if (status) {
    t->pair = old;
    return status;
  }
  t->pair_slots = slots;
  t->pairs = 0;
  memset(t->pair, 0xFF, slots * sizeof *t->pair);
  for (uint64_t i = 0; i < old_slots; i++)
    if (old[i].key != NO_PAIR && old[i].count != 0)
      change_count(t, old[i].key, old[i].count);
  mem_free(old);
  return STATUS_OK;
}

/* Removes pairs that no longer occur, when the table is full. */
static enum status reserve_pairs(struct trainer *t, uint64_t more)
{
  uint64_t live = 0, slots = t->pair_slots ? t->pair_slots : PAIR_SLOTS;
  if (t->pair && 3 * (t->pairs + more) <= 2 * t->pair_slots)
    return STATUS_OK;
  for (uint64_t i = 0; i < t->pair_slots; i++)
    live += t->pair[i].key != NO_PAIR && t->pair[i].count != 0;
  while (2 * (live + more) > slots)
    slots *= 2;
  return rebuild_pairs(t, slots);
}

/* ---- symbols */

static int64_t count_at(const struct trainer *t, uint64_t at)
{
  const struct run *run = &t->run[t->run_of_block[at / BLOCK]];
  while (run[1].begin <= at)
    run++;
  return run->count;
}

static uint32_t bytes_of(const struct trainer *t, int32_t id)
{
  return t->out->tokens.word[id].bytes;
}

static uint64_t before(const struct trainer *t, uint64_t at)
{
  int32_t last = t->slot[at - 1];
  return last >= BETWEEN ? at - 1 : at - (uint64_t)-last;
}

static bool stands_at(const struct trainer *t, uint64_t key, uint64_t at)
{
  int32_t left = (int32_t)(key >> 32), right = (int32_t)(uint32_t)key;
  return t->slot[at] == left && t->slot[at + bytes_of(t, left)] == right;
}

static void join(struct trainer *t, uint64_t at, uint64_t right, uint64_t end, int32_t id)
{
  t->slot[right] = BETWEEN;
  t->slot[at] = id;
  t->slot[end - 1] = -(int32_t)(end - at);
}

/* ---- the heap, highest count first, of equal counts the lower key */

static bool goes_before(const struct item *a, const struct item *b)
{
  return a->count != b->count ? a->count > b->count : a->key < b->key;
}

static void sift_down(struct trainer *t, uint64_t i)
{
  struct item item = t->heap[i];
  for (uint64_t child; (child = ARITY * i + 1) < t->items; i = child) {
    uint64_t end = child + ARITY < t->items ? child + ARITY : t->items;
    for (uint64_t c = child + 1; c < end; c++)
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
  uint64_t i = t->items++;
  for (; i > 0 && goes_before(&item, &t->heap[(i - 1) / ARITY]); i = (i - 1) / ARITY)
    t->heap[i] = t->heap[(i - 1) / ARITY];
  t->heap[i] = item;
}

static void drop_top(struct trainer *t)
{
  t->heap[0] = t->heap[--t->items];
  if (t->items)
    sift_down(t, 0);
}

static enum status reserve_items(struct trainer *t, uint64_t more)
{
  return mem_grow(MEM_DATA, (void **)&t->heap, &t->item_room, (int64_t)(t->items + more),
                  sizeof *t->heap);
}

/* ---- lists of places */

/* Copies the lists of pairs that still occur to `fresh`, one after another, without places that
 * changed. */
static void copy_lists(struct trainer *t, uint32_t *fresh)
{
  uint64_t kept = 0;
  t->listed = 0;
  for (uint64_t i = 0; i < t->items; i++) {
    struct item item = t->heap[i];
    const uint32_t *place = t->list + item.list;
    uint64_t begin = t->listed;
    if (count_of(t, item.key) == 0)
      continue;
    for (uint32_t k = 0; k < item.n; k++)
      if (stands_at(t, item.key, place[k]))
        fresh[t->listed++] = place[k];
    item.list = begin;
    item.n = (uint32_t)(t->listed - begin);
    t->heap[kept++] = item;
  }
  t->items = kept;
  for (uint64_t i = kept / ARITY + 1; i-- > 0;)
    if (i < kept)
      sift_down(t, i);
}

/* Valid places are at most as many as symbols, so the lists stay within a small multiple of
 * that. */
static enum status reserve_lists(struct trainer *t, uint64_t more)
{
  if (t->listed + more <= t->list_room)
    return STATUS_OK;
  uint64_t live = 0;
  for (uint64_t i = 0; i < t->items; i++)
    live += t->heap[i].n;
  uint64_t room = live + more + (live + more) / 2 + LIST_ROOM;
  uint32_t *fresh = NULL;
  enum status status = mem_new(MEM_DATA, room, &fresh);
  if (status)
    return status;
  copy_lists(t, fresh);
  mem_free(t->list);
  t->list = fresh;
  t->list_room = room;
  return STATUS_OK;
}

static uint64_t new_list(struct trainer *t, uint64_t n)
{
  uint64_t begin = t->listed;
  t->listed += n;
  return begin;
}

static void push_pair(struct trainer *t, uint64_t key, uint64_t list, uint32_t n)
{
  int64_t count = count_of(t, key);
  if (n > 0 && count > 0)
    push(t, (struct item){.count = count, .key = key, .list = list, .n = n});
}

/* ---- the start: words to symbols, symbols to pairs */

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

static void find_runs(struct trainer *t)
{
  int64_t run = 0;
  for (uint64_t at = 0; at < t->slots; at += BLOCK) {
    while (t->run[run + 1].begin <= at)
      run++;
    t->run_of_block[at / BLOCK] = (uint32_t)run;
  }
}

static enum status lay_out(struct trainer *t, struct bpe_words *words,
                           const int32_t id_of[BPE_BYTES])
{
  int64_t counts = 1;
  if (words->n)
    qsort(words->word, (size_t)words->n, sizeof *words->word, falling_counts);
  for (int64_t i = 1; i < words->n; i++)
    counts += words->word[i].count != words->word[i - 1].count;
  t->slots = words->bytes + (uint64_t)words->n + 1;
  enum status status = mem_new(MEM_DATA, t->slots, &t->slot);
  if (!status)
    status = mem_new(MEM_DATA, counts + 1, &t->run);
  if (!status)
    status = mem_new(MEM_DATA, t->slots / BLOCK + 1, &t->run_of_block);
  if (status)
    return status;
  spell(t, words, id_of);
  find_runs(t);
  bpe_words_free(words);
  return STATUS_OK;
}

/* Pairs of single bytes, by left * 256 + right. */
struct first {
  int64_t count;
  uint64_t list;
  uint32_t n;
};

/* Returns their number. */
static uint64_t count_first(const struct trainer *t, struct first *first)
{
  const struct run *run = t->run;
  uint64_t pairs = 0;
  for (uint64_t at = 1; at + 1 < t->slots; at++) {
    run += run[1].begin <= at;
    if (t->slot[at] == BETWEEN || t->slot[at + 1] == BETWEEN)
      continue;
    struct first *pair = &first[t->slot[at] * BPE_BYTES + t->slot[at + 1]];
    pair->count += run->count;
    pairs += pair->n++ == 0;
  }
  return pairs;
}

static void list_first(struct trainer *t, struct first *first)
{
  for (int i = 0; i < BPE_BYTES * BPE_BYTES; i++)
    first[i].list = new_list(t, first[i].n);
  for (uint64_t at = 1; at + 1 < t->slots; at++)
    if (t->slot[at] != BETWEEN && t->slot[at + 1] != BETWEEN)
      t->list[first[t->slot[at] * BPE_BYTES + t->slot[at + 1]].list++] = (uint32_t)at;
  for (int i = 0; i < BPE_BYTES * BPE_BYTES; i++) {
    if (first[i].n == 0)
      continue;
    uint64_t key = key_of(i / BPE_BYTES, i % BPE_BYTES);
    change_count(t, key, first[i].count);
    push_pair(t, key, first[i].list - first[i].n, first[i].n);
  }
}

static enum status find_first(struct trainer *t)
{
  struct first *first = NULL;
  enum status status = mem_new(MEM_DATA, BPE_BYTES * BPE_BYTES, &first);
  if (status)
    return status;
  uint64_t pairs = count_first(t, first);
  status = reserve_pairs(t, pairs);
  if (!status)
    status = reserve_items(t, pairs);
  if (!status)
    status = reserve_lists(t, t->slots);
  if (!status)
    list_first(t, first);
  mem_free(first);
  return status;
}

/* ---- one merge */

static struct beside *touch(struct trainer *t, int32_t id)
{
  struct beside *beside = &t->beside[id];
  if (!beside->touched)
    t->touched[t->touched_n++] = id;
  beside->touched = true;
  return beside;
}

/* (x, left) (left, right) (right, y) become (x, id) (id, y). */
static void join_at(struct trainer *t, uint64_t at, uint64_t right, uint64_t end, int32_t id)
{
  uint64_t at_x = before(t, at);
  int32_t x = t->slot[at_x], y = t->slot[end];
  int64_t count = count_at(t, at);
  if (x != BETWEEN) {
    struct beside *beside = touch(t, x);
    beside->left += count;
    beside->left_n++;
    t->left[t->left_n++] = (struct place){.id = x, .at = (uint32_t)at_x};
  }
  if (y != BETWEEN) {
    struct beside *beside = touch(t, y);
    beside->right += count;
    beside->right_n++;
    t->right[t->right_n++] = (struct place){.id = y, .at = (uint32_t)at};
  }
  join(t, at, right, end, id);
}

static void join_all(struct trainer *t, const struct item *item, int32_t id)
{
  int32_t left = (int32_t)(item->key >> 32), right = (int32_t)(uint32_t)item->key;
  uint64_t left_bytes = bytes_of(t, left), bytes = left_bytes + bytes_of(t, right);
  const uint32_t *place = t->list + item->list;
  for (uint32_t k = 0; k < item->n; k++)
    if (t->slot[place[k]] == left && t->slot[place[k] + left_bytes] == right)
      join_at(t, place[k], place[k] + left_bytes, place[k] + bytes, id);
}

static void change_counts(struct trainer *t, uint64_t key, int32_t id)
{
  int32_t left = (int32_t)(key >> 32), right = (int32_t)(uint32_t)key;
  for (int64_t i = 0; i < t->touched_n; i++) {
    const struct beside *beside = &t->beside[t->touched[i]];
    if (beside->left) {
      change_count(t, key_of(t->touched[i], id), beside->left);
      change_count(t, key_of(t->touched[i], left), -beside->left);
    }
    if (beside->right) {
      change_count(t, key_of(id, t->touched[i]), beside->right);
      change_count(t, key_of(right, t->touched[i]), -beside->right);
    }
  }
  find_pair(t, key)->count = 0;
}

static void push_pairs(struct trainer *t, int32_t id)
{
  for (int64_t i = 0; i < t->touched_n; i++) {
    struct beside *beside = &t->beside[t->touched[i]];
    beside->left_list = new_list(t, beside->left_n);
    beside->right_list = new_list(t, beside->right_n);
    push_pair(t, key_of(t->touched[i], id), beside->left_list, beside->left_n);
    push_pair(t, key_of(id, t->touched[i]), beside->right_list, beside->right_n);
  }
  for (uint64_t i = 0; i < t->left_n; i++)
    t->list[t->beside[t->left[i].id].left_list++] = t->left[i].at;
  for (uint64_t i = 0; i < t->right_n; i++)
    t->list[t->beside[t->right[i].id].right_list++] = t->right[i].at;
  for (int64_t i = 0; i < t->touched_n; i++)
    t->beside[t->touched[i]] = (struct beside){0};
  t->touched_n = 0;
  t->left_n = t->right_n = 0;
}

static enum status merge_pair(struct trainer *t, const struct item *item, int32_t id)
{
  enum status status =
      mem_grow(MEM_DATA, (void **)&t->left, &t->left_room, item->n, sizeof *t->left);
  if (!status)
    status = mem_grow(MEM_DATA, (void **)&t->right, &t->right_room, item->n, sizeof *t->right);
  if (status)
    return status;
  join_all(t, item, id);
  status = reserve_pairs(t, 4 * (uint64_t)t->touched_n);
  if (status)
    return status;
  change_counts(t, item->key, id);
  status = reserve_lists(t, t->left_n + t->right_n);
  if (!status)
    status = reserve_items(t, 2 * (uint64_t)t->touched_n);
  if (!status)
    push_pairs(t, id);
  return status;
}

/* The token that a merge makes. -1: a reserved one. It is new: a merge joins a pair at all places.
 * So equal bytes are always split in the same way, if no pair across their ends was joined
 * before. */
static enum status make_token(struct trainer *t, uint64_t key, const struct bpe_words *reserved,
                              int32_t *out)
{
  struct bpe_words *tokens = &t->out->tokens;
  const struct bpe_word *left = &tokens->word[key >> 32], *right = &tokens->word[(uint32_t)key];
  char *text = NULL;
  size_t bytes = (size_t)left->bytes + right->bytes;
  int64_t id = -1;
  enum status status = mem_new(MEM_DATA, bytes, &text);
  if (status)
    return status;
  memcpy(text, tokens->pool + left->begin, left->bytes);
  memcpy(text + left->bytes, tokens->pool + right->begin, right->bytes);
  if (bpe_words_find(reserved, text, bytes) < 0)
    status = bpe_words_add(tokens, text, bytes, 0, &id);
  mem_free(text);
  *out = (int32_t)id;
  return status;
}

static enum status put_down(struct trainer *t, uint64_t key)
{
  struct bpe_vocabulary *out = t->out;
  enum status status =
      mem_grow(MEM_DATA, (void **)&out->merge, &t->merge_room, out->merges + 1, sizeof *out->merge);
  if (status)
    return status;
  out->merge[out->merges++] =
      (struct bpe_merge){.left = (int32_t)(key >> 32), .right = (int32_t)(uint32_t)key};
  return STATUS_OK;
}

static void show_progress(struct trainer *t, int64_t tokens, double start)
{
  double now = clock_s() - start;
  if (now < t->shown + ROUND_SECONDS)
    return;
  t->shown = now;
  log_progress(PROGRESS_SECONDS, "tokenizer: %lld of %lld tokens, %.0f s",
               (long long)t->out->tokens.n, (long long)tokens, now);
}

static enum status merge_all(struct trainer *t, int64_t tokens, int64_t min_count,
                             const struct bpe_words *reserved)
{
  enum status status = STATUS_OK;
  double start = clock_s();
  while (!status && t->out->tokens.n < tokens && t->items > 0) {
    struct item top = t->heap[0];
    int32_t id;
    t->heap[0].count = count_of(t, top.key);
    if (t->heap[0].count != top.count) {
      sift_down(t, 0);
      continue;
    }
    if (top.count < 1 || top.count < min_count)
      break;
    drop_top(t);
    status = make_token(t, top.key, reserved, &id);
    if (status || id < 0)
      continue;
    status = put_down(t, top.key);
    if (!status)
      status = merge_pair(t, &top, id);
    show_progress(t, tokens, start);
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

static void trainer_free(struct trainer *t)
{
  mem_free(t->slot);
  mem_free(t->run);
  mem_free(t->run_of_block);
  mem_free(t->pair);
  mem_free(t->heap);
  mem_free(t->list);
  mem_free(t->beside);
  mem_free(t->touched);
  mem_free(t->left);
  mem_free(t->right);
}

enum status bpe_merge_run(struct bpe_words *words, int64_t tokens, int64_t min_count,
                          const struct bpe_words *reserved, struct bpe_vocabulary *out)
{
  struct bpe_vocabulary made = {0};
  struct trainer t = {.out = &made};
  int32_t id_of[BPE_BYTES];
  enum status status = add_bytes(&made.tokens, id_of);
  if (!status)
    status = lay_out(&t, words, id_of);
  if (!status)
    status = mem_new(MEM_DATA, tokens, &t.beside);
  if (!status)
    status = mem_new(MEM_DATA, tokens, &t.touched);
  if (!status)
    status = find_first(&t);
  if (!status)
    status = merge_all(&t, tokens, min_count, reserved);
  trainer_free(&t);
  if (status)
    bpe_vocabulary_free(&made);
  else
    *out = made;
  return status;
}
