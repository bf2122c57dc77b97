/* Where every buffer lies. Persistent buffers follow one another in order, so that plans that start
 * with the same ones agree on them. Transient buffers are packed by lifetime, each at the lowest
 * free place (as in Pisarchyk and Lee 2020, arXiv:2001.03288). Several orders are tried: longest
 * lifetime first, largest first, largest product of the two first, in order of use, and from the
 * end of the step back. Longest lifetime first stacks activations in the order in which the
 * backward pass releases them. The tightest result is kept, the first one of equals. The search
 * stops when a result is as tight as possible. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "plan/free_space.h"
#include "plan/internal.h"

struct block {
  int64_t bytes, begin;
  int first, last, buffer;
  double key, size; /* by which it is sorted */
};

struct packer {
  struct block *block; /* [buffers] */
  uint64_t *moment;    /* [n + 1] */
  struct free_space *space;
};

static enum status round_up(enum plan_tier tier, int64_t bytes, int64_t *out)
{
  return layout_round_up(bytes, tier == TIER_DEVICE ? PLAN_ALIGN : PLAN_PAGE, out);
}

/* From the uses, or longer if the builder requested it. A buffer that nothing uses gets an empty
 * lifetime and no bytes. */
void plan_lifetimes(struct plan *plan)
{
  for (int i = 0; i < plan->n; i++)
    for (int k = 0; k < PLAN_MAX_USE; k++) {
      if (plan->instr[i].use[k].buffer < 0)
        continue;
      struct plan_buffer *buffer =
          &plan->buffer[plan_root(plan, plan->instr[i].use[k].buffer, NULL)];
      if (i < buffer->first)
        buffer->first = i;
      if (i > buffer->last)
        buffer->last = i;
    }
  for (int b = 0; b < plan->buffers; b++)
    if (plan->buffer[b].last >= plan->n)
      plan->buffer[b].last = plan->n - 1;
}

static void place_views(struct plan *plan)
{
  for (int b = 0; b < plan->buffers; b++) {
    struct plan_buffer *view = &plan->buffer[b];
    if (view->parent < 0)
      continue;
    int64_t offset;
    const struct plan_buffer *root = &plan->buffer[plan_root(plan, b, &offset)];
    view->offset = root->offset + offset;
    view->first = root->first;
    view->last = root->last;
  }
}

static enum status place_persistent(struct plan *plan)
{
  for (int tier = 0; tier < TIER_COUNT; tier++)
    plan->persistent_bytes[tier] = 0;
  for (int b = 0; b < plan->buffers; b++) {
    struct plan_buffer *buffer = &plan->buffer[b];
    if (!buffer->persistent || buffer->parent >= 0)
      continue;
    int64_t *end = &plan->persistent_bytes[buffer->tier], bytes;
    buffer->offset = *end;
    enum status status = round_up(buffer->tier, buffer->bytes, &bytes);
    status = status ?: layout_add(*end, bytes, end);
    if (status)
      return status;
  }
  return STATUS_OK;
}

enum order { LONGEST, LARGEST, LARGEST_PRODUCT, EARLIEST, LATEST, ORDERS };

/* The block with the larger key is first. If keys are equal, the larger block is first, except in
 * order of use. */
static void set_keys(struct block *block, int n, enum order order)
{
  for (int i = 0; i < n; i++) {
    const double bytes = (double)block[i].bytes, duration = block[i].last - block[i].first,
                 key[ORDERS] = {[LONGEST] = duration,
                                [LARGEST_PRODUCT] = bytes * (1 + duration),
                                [LATEST] = block[i].last};
    block[i].key = key[order];
    block[i].size = order == EARLIEST ? 0 : bytes;
  }
}

static int by_key(const void *left, const void *right)
{
  const struct block *a = left, *b = right;
  if (a->key != b->key)
    return a->key > b->key ? -1 : 1;
  if (a->size != b->size)
    return a->size > b->size ? -1 : 1;
  return a->first != b->first ? a->first - b->first : a->buffer - b->buffer;
}

static enum status list_transient(const struct plan *plan, enum plan_tier tier, struct block *block,
                                  int *n)
{
  *n = 0;
  for (int b = 0; b < plan->buffers; b++) {
    const struct plan_buffer *buffer = &plan->buffer[b];
    if (buffer->persistent || buffer->parent >= 0 || buffer->tier != tier ||
        buffer->first > buffer->last || buffer->bytes == 0)
      continue;
    block[*n] = (struct block){.first = buffer->first, .last = buffer->last, .buffer = b};
    enum status status = round_up(tier, buffer->bytes, &block[(*n)++].bytes);
    if (status)
      return status;
  }
  return STATUS_OK;
}

/* No layout can go below the bytes that are needed at one moment. The sum overflows if no layout
 * exists, which packing detects. `rounded`: of blocks, or else of the buffers in them. *when: the
 * first such moment. */
static uint64_t peak_of(const struct plan *plan, const struct packer *p, int n, bool rounded,
                        int *when)
{
  uint64_t bytes = 0, peak = 0;
  memset(p->moment, 0, ((size_t)plan->n + 1) * sizeof *p->moment);
  for (int i = 0; i < n; i++) {
    const struct block *block = &p->block[i];
    const int64_t size = rounded ? block->bytes : plan->buffer[block->buffer].bytes;
    p->moment[block->first] += (uint64_t)size;
    p->moment[block->last + 1] -= (uint64_t)size;
  }
  *when = 0;
  for (int i = 0; i < plan->n; i++) {
    bytes += p->moment[i];
    if (bytes <= peak)
      continue;
    peak = bytes;
    *when = i;
  }
  return peak;
}

/* Places one block after the other, each at the lowest place without a conflict in time. It stops
 * at a block that makes the result no tighter than `*best`. */
static enum status pack(struct plan *plan, struct free_space *space, struct block *block, int n,
                        int64_t *best)
{
  int64_t bytes = 0;
  free_space_clear(space);
  for (int i = 0; i < n; i++) {
    int64_t end;
    block[i].begin = free_space_find(space, block[i].first, block[i].last, block[i].bytes);
    enum status status = layout_add(block[i].begin, block[i].bytes, &end);
    if (!status && end >= *best)
      return STATUS_OK;
    status = status ?: free_space_take(space, block[i].first, block[i].last, block[i].begin, end);
    if (status)
      return status;
    if (end > bytes)
      bytes = end;
  }
  for (int i = 0; i < n; i++)
    plan->buffer[block[i].buffer].offset = block[i].begin;
  *best = bytes;
  return STATUS_OK;
}

static enum status pack_tier(struct plan *plan, enum plan_tier tier, struct packer *p)
{
  int n, when;
  int64_t bytes = INT64_MAX;
  enum status status = list_transient(plan, tier, p->block, &n);
  if (!status)
    peak_of(plan, p, n, false, &plan->fullest[tier]);
  const uint64_t peak = status ? 0 : peak_of(plan, p, n, true, &when);
  for (int o = 0; !status && (uint64_t)bytes != peak && o < ORDERS; o++) {
    set_keys(p->block, n, (enum order)o);
    qsort(p->block, (size_t)n, sizeof *p->block, by_key);
    status = pack(plan, p->space, p->block, n, &bytes);
  }
  if (!status)
    plan->transient_bytes[tier] = bytes;
  return status;
}

enum status plan_pack(struct plan *plan)
{
  struct packer p = {.block = NULL};
  enum status status = mem_new(MEM_META, plan->buffers, &p.block);
  status = status ?: mem_new(MEM_META, plan->n + 1, &p.moment);
  status = status ?: free_space_create(plan->n, &p.space) ?: place_persistent(plan);
  for (int tier = 0; tier < TIER_COUNT && !status; tier++)
    status = pack_tier(plan, (enum plan_tier)tier, &p);
  free_space_destroy(p.space);
  mem_free(p.moment);
  mem_free(p.block);
  if (!status)
    place_views(plan);
  return status;
}

enum status plan_place(struct plan *plan)
{
  plan_lifetimes(plan);
  return plan_pack(plan);
}
