/* The order of work of attention_hopper.cu's backward pass: which keys a block takes, which queries
 * they meet, and in which order the sums of dQ are made. Pure arithmetic, tested without a GPU
 * (tests/gpu/test_attention_schedule.c).
 *
 * An item is a key block (ATTENTION_KEYS keys) of a head of k and v. It walks over the query blocks
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

enum {
  ATTENTION_QUERIES = CUDA_WORK_QUERIES,
  ATTENTION_KEYS = CUDA_WORK_KEYS,
  ATTENTION_DIAGONAL = ATTENTION_KEYS / ATTENTION_QUERIES
};

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

/* Number of query blocks that see key block n. */
ATTENTION_BOTH int attention_meets(int n, int query_blocks)
{
  return query_blocks - ATTENTION_DIAGONAL * n;
}

/* The first query block on an item's walk. */
ATTENTION_BOTH int attention_begin(const struct attention_item *item, int query_blocks)
{
  return item->up ? ATTENTION_DIAGONAL * item->n : query_blocks - 1;
}

/* Number of key blocks that query block m sees. */
ATTENTION_BOTH int attention_terms(int m)
{
  return m / ATTENTION_DIAGONAL + 1;
}

/* Number of key blocks that are added before the item's. */
ATTENTION_BOTH int attention_place(const struct attention_item *item, int m)
{
  return item->up ? attention_terms(m) - 1 - item->n : item->n;
}
