/* The order of work of attention_hopper.cu's backward pass: which keys a block takes, which queries
 * they meet, and in which order the sums of dQ are made. Pure arithmetic, tested without a GPU
 * (tests/gpu/test_attention_schedule.c).
 *
 * An item is a key block (128 or 64 keys) of a head of k and v. It walks over the query blocks
 * (ATTENTION_QUERIES queries) that see it, head after head of the group. A free block takes the
 * item with the lowest index that is left. Heads go in sets of about as many as give each
 * multiprocessor a key block. In even sets ("up") key blocks go from the last one, which meets the
 * fewest queries, to the first, and queries ascend from the diagonal. In odd sets ("down") key
 * blocks go from the first to the last, and queries descend to the diagonal. A query block's dQ is
 * the sum over its key blocks in the order in which these come. So an item waits only for items of
 * lower indices, no matter which block works on them. Each item begins (or ends) later than the one
 * before it by the queries of its diagonal, so the awaited sums are nearly always complete. The
 * short items of a set fill up with the long ones of the next. */
#pragma once

#include "device/cuda_work.h"

#ifdef __CUDACC__
#define ATTENTION_BOTH static __host__ __device__ __forceinline__
#else
#define ATTENTION_BOTH static inline
#endif

enum { ATTENTION_QUERIES = CUDA_WORK_QUERIES };

struct attention_item {
  int head; /* of k and v, counted over the batch */
  int n;    /* key block */
  int up;
};

/* Heads per set. It is a constant of the schedule, because results must not depend on the device.
 * These GPUs have 132 multiprocessors. */
ATTENTION_BOTH int attention_set(int key_blocks)
{
  return key_blocks < 132 ? 132 / key_blocks : 1;
}

/* Item i of heads * key_blocks. */
ATTENTION_BOTH struct attention_item attention_item_at(int i, int heads, int key_blocks)
{
  const int set = attention_set(key_blocks), s = i / (set * key_blocks),
            rest = i - s * set * key_blocks, left = heads - s * set;
  const int width = left < set ? left : set, order = rest / width;
  struct attention_item item;
  item.head = s * set + rest - order * width;
  item.up = s % 2 == 0;
  item.n = item.up ? key_blocks - 1 - order : order;
  return item;
}

/* The keys that the queries of a sequence see: query t those from `first`[t] (NULL: 0) to t, and
 * with a window > 0 only the last `window` of them. `first` does not decrease. `keys` is the size
 * of a key block, one or two query blocks. */
struct attention_seen {
  const int *first;
  int tokens, window, keys;
};

/* First key that query t sees. */
ATTENTION_BOTH int attention_first_key(const struct attention_seen *s, int t)
{
  const int first = s->first ? s->first[t] : 0, near = s->window > 0 ? t - s->window + 1 : 0;
  return first > near ? first : near;
}

/* First and last key block that query block m sees. */
ATTENTION_BOTH int attention_low(const struct attention_seen *s, int m)
{
  return attention_first_key(s, m * ATTENTION_QUERIES) / s->keys;
}

ATTENTION_BOTH int attention_high(const struct attention_seen *s, int m)
{
  return m / (s->keys / ATTENTION_QUERIES);
}

/* First query block that sees key block n. */
ATTENTION_BOTH int attention_diagonal(const struct attention_seen *s, int n)
{
  return n * (s->keys / ATTENTION_QUERIES);
}

/* Number of query blocks that see key block n: from its diagonal on, and found by bisection. */
ATTENTION_BOTH int attention_meets(const struct attention_seen *s, int n)
{
  const int begin = attention_diagonal(s, n),
            all = (s->tokens + ATTENTION_QUERIES - 1) / ATTENTION_QUERIES;
  int seen = begin, end = all; /* `seen` sees n, `end` does not */
  if (!s->first && s->window == 0)
    return all - begin;
  while (end - seen > 1) {
    const int m = (seen + end) / 2;
    if (attention_low(s, m) <= n)
      seen = m;
    else
      end = m;
  }
  return end - begin;
}

/* The first query block on an item's walk over as many as `meets`. */
ATTENTION_BOTH int attention_begin(const struct attention_seen *s,
                                   const struct attention_item *item, int meets)
{
  return attention_diagonal(s, item->n) + (item->up ? 0 : meets - 1);
}

/* Number of key blocks that query block m sees. */
ATTENTION_BOTH int attention_terms(const struct attention_seen *s, int m)
{
  return attention_high(s, m) + 1 - attention_low(s, m);
}

/* Number of key blocks that are added before the item's. */
ATTENTION_BOTH int attention_place(const struct attention_seen *s,
                                   const struct attention_item *item, int m)
{
  return item->up ? attention_high(s, m) - item->n : item->n - attention_low(s, m);
}
