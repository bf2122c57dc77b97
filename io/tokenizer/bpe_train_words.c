/* An open hash table of byte strings in one buffer, with their counts. */
#include "io/tokenizer/bpe_train_words.h"

#include <string.h>

#include "base/mem.h"

enum { SLOTS_FIRST = 1 << 10 };

uint64_t bpe_words_most = UINT32_MAX;

void bpe_words_free(struct bpe_words *words)
{
  mem_free(words->word);
  mem_free(words->pool);
  mem_free(words->slot);
  *words = (struct bpe_words){0};
}

static uint64_t mix(uint64_t a, uint64_t b)
{
  unsigned __int128 product =
      (unsigned __int128)(a ^ 0x9E3779B97F4A7C15) * (b ^ 0xD1B54A32D192ED03);
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t load(const char *bytes, size_t n)
{
  uint64_t value = 0;
  memcpy(&value, bytes, n);
  return value;
}

/* Words are short, so their last bytes are read by two overlapping loads of a fixed size. */
static uint32_t hash_of(const char *bytes, size_t n)
{
  uint64_t hash = n, rest = 0;
  for (; n > 8; n -= 8, bytes += 8)
    hash = mix(hash, load(bytes, 8));
  if (n >= 4)
    rest = load(bytes, 4) | load(bytes + n - 4, 4) << 32;
  else if (n > 0)
    rest = (uint64_t)(unsigned char)bytes[0] | (uint64_t)(unsigned char)bytes[n / 2] << 8 |
           (uint64_t)(unsigned char)bytes[n - 1] << 16;
  hash = mix(hash, rest);
  return (uint32_t)(hash ^ hash >> 32);
}

/* The slot that holds the word, or the empty one where it belongs. */
static uint64_t *slot_of(const struct bpe_words *words, const char *text, size_t bytes,
                         uint32_t hash)
{
  for (uint64_t i = hash;; i++) {
    uint64_t *slot = &words->slot[i & (words->slots - 1)];
    if (*slot == 0)
      return slot;
    if (*slot >> 32 != hash)
      continue;
    const struct bpe_word *word = &words->word[(uint32_t)*slot - 1];
    if (word->bytes == bytes && memcmp(words->pool + word->begin, text, bytes) == 0)
      return slot;
  }
}

static enum status grow_slots(struct bpe_words *words)
{
  uint64_t slots = words->slots ? 2 * words->slots : SLOTS_FIRST, *fresh = NULL;
  enum status status = mem_new(MEM_DATA, slots, &fresh);
  if (status)
    return status;
  for (int64_t n = 0; n < words->n; n++) {
    uint64_t i = words->word[n].hash;
    while (fresh[i & (slots - 1)])
      i++;
    fresh[i & (slots - 1)] = (uint64_t)words->word[n].hash << 32 | (uint64_t)(n + 1);
  }
  mem_free(words->slot);
  words->slot = fresh;
  words->slots = slots;
  return STATUS_OK;
}

static enum status reserve(struct bpe_words *words, size_t bytes)
{
  if (bytes >= bpe_words_most || words->bytes + (uint64_t)words->n > bpe_words_most - bytes - 1)
    return status_set(STATUS_UNSUPPORTED,
                      "the distinct words of the corpus take more than %llu bytes; train on a part "
                      "of it, or leave out long words",
                      (unsigned long long)bpe_words_most);
  enum status status =
      mem_grow(MEM_DATA, (void **)&words->word, &words->room, words->n + 1, sizeof *words->word);
  if (!status)
    status = mem_grow(MEM_DATA, (void **)&words->pool, &words->pool_room,
                      (int64_t)(words->bytes + bytes), 1);
  return status || 2 * (uint64_t)words->n < words->slots ? status : grow_slots(words);
}

enum status bpe_words_add(struct bpe_words *words, const char *text, size_t bytes, int64_t count,
                          int64_t *number)
{
  uint32_t hash = hash_of(text, bytes);
  uint64_t *slot = words->slots ? slot_of(words, text, bytes, hash) : NULL;
  if (!slot || *slot == 0) {
    enum status status = reserve(words, bytes);
    if (status)
      return status;
    slot = slot_of(words, text, bytes, hash);
    memcpy(words->pool + words->bytes, text, bytes);
    words->word[words->n] =
        (struct bpe_word){.begin = words->bytes, .bytes = (uint32_t)bytes, .hash = hash};
    words->bytes += bytes;
    *slot = (uint64_t)hash << 32 | (uint64_t)++words->n;
  }
  int64_t found = (int64_t)(uint32_t)*slot - 1;
  words->word[found].count += count;
  if (number)
    *number = found;
  return STATUS_OK;
}

int64_t bpe_words_find(const struct bpe_words *words, const char *text, size_t bytes)
{
  const uint64_t *slot = words->slots ? slot_of(words, text, bytes, hash_of(text, bytes)) : NULL;
  return slot ? (int64_t)(uint32_t)*slot - 1 : -1;
}
