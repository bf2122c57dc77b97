/* Where every buffer lies. Persistent buffers follow one another in order, so that plans that start with the same ones agree on them. Transient ones are
 * packed by lifetime, each at the lowest free place (as in Pisarchyk and Lee 2020, arXiv:2001.03288): longest lifetime first, which stacks the activations that
 * the backward pass takes down again, largest first, largest product of the two first, and in order of use; the tightest result is kept, the first one of equals. */
#include <stdlib.h>

#include "base/mem.h"
#include "plan/internal.h"

struct block {
  int64_t begin, end;
  int first, last, buffer;
};

static enum status round_up(enum plan_tier tier, int64_t bytes, int64_t *out)
{
  const int64_t to = tier == TIER_DEVICE ? PLAN_ALIGN : PLAN_PAGE;
  enum status status = layout_add(bytes, to - 1, &bytes);
  if (!status)
    *out = bytes / to * to;
  return status;
}

/* From the uses, or longer where the builder asked for it. A buffer that nothing uses gets an empty lifetime and no bytes. */
void plan_lifetimes(struct plan *plan)
{
  for (int i = 0; i < plan->n; i++)
    for (int k = 0; k < plan->instr[i].n_use; k++) {
      struct plan_buffer *buffer = &plan->buffer[plan_root(plan, plan->instr[i].use[k].buffer, NULL)];
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
    if (!status)
      status = layout_add(*end, bytes, end);
    if (status)
      return status;
  }
  return STATUS_OK;
}

static int compare(int64_t a, int64_t b)
{
  return (a > b) - (a < b);
}
static int64_t bytes_of(const struct block *block)
{
  return block->end - block->begin;
}
static int64_t duration_of(const struct block *block)
{
  return block->last - block->first;
}

static int in_order(const struct block *a, const struct block *b)
{
  int order = compare(a->first, b->first);
  return order != 0 ? order : compare(a->buffer, b->buffer);
}

static int larger_first(const void *left, const void *right)
{
  int order = compare(bytes_of(right), bytes_of(left));
  return order != 0 ? order : in_order(left, right);
}

static int longer_first(const void *left, const void *right)
{
  int order = compare(duration_of(right), duration_of(left));
  return order != 0 ? order : larger_first(left, right);
}

static int more_first(const void *left, const void *right)
{
  const double a = (double)bytes_of(left) * (double)(1 + duration_of(left)), b = (double)bytes_of(right) * (double)(1 + duration_of(right));
  return a != b ? (a < b) - (a > b) : larger_first(left, right);
}

static int earlier_first(const void *left, const void *right)
{
  return in_order(left, right);
}

/* Put `block` into `placed`, which is sorted by begin, at the lowest place where it meets none that lives at the same time. */
static enum status insert(struct block *placed, int n, struct block block)
{
  int64_t bytes = block.end - block.begin, at = 0;
  for (int i = 0; i < n && placed[i].begin - at < bytes; i++)
    if (placed[i].first <= block.last && block.first <= placed[i].last && placed[i].end > at)
      at = placed[i].end;
  block.begin = at;
  enum status status = layout_add(at, bytes, &block.end);
  if (status)
    return status;
  for (; n > 0 && placed[n - 1].begin > block.begin; n--)
    placed[n] = placed[n - 1];
  placed[n] = block;
  return STATUS_OK;
}

static enum status list_transient(const struct plan *plan, enum plan_tier tier, struct block *block, int *n)
{
  *n = 0;
  for (int b = 0; b < plan->buffers; b++) {
    const struct plan_buffer *buffer = &plan->buffer[b];
    if (buffer->persistent || buffer->parent >= 0 || buffer->tier != tier || buffer->first > buffer->last || buffer->bytes == 0)
      continue;
    block[*n] = (struct block){.first = buffer->first, .last = buffer->last, .buffer = b};
    enum status status = round_up(tier, buffer->bytes, &block[(*n)++].end);
    if (status)
      return status;
  }
  return STATUS_OK;
}

static enum status pack(struct plan *plan, const struct block *block, int n, struct block *placed, int64_t best, int64_t *out)
{
  int64_t bytes = 0;
  for (int i = 0; i < n; i++) {
    enum status status = insert(placed, i, block[i]);
    if (status)
      return status;
  }
  for (int i = 0; i < n; i++)
    if (placed[i].end > bytes)
      bytes = placed[i].end;
  *out = bytes < best ? bytes : best;
  if (bytes >= best)
    return STATUS_OK;
  for (int i = 0; i < n; i++)
    plan->buffer[placed[i].buffer].offset = placed[i].begin;
  return STATUS_OK;
}

static enum status pack_tier(struct plan *plan, enum plan_tier tier, struct block *block, struct block *placed)
{
  int (*const orders[])(const void *, const void *) = {longer_first, larger_first, more_first, earlier_first};
  int n;
  int64_t bytes = INT64_MAX;
  enum status status = list_transient(plan, tier, block, &n);
  for (size_t o = 0; !status && o < sizeof orders / sizeof *orders; o++) {
    qsort(block, (size_t)n, sizeof *block, orders[o]);
    status = pack(plan, block, n, placed, bytes, &bytes);
  }
  if (!status)
    plan->transient_bytes[tier] = bytes;
  return status;
}

enum status plan_pack(struct plan *plan)
{
  void *room;
  enum status status = mem_alloc(MEM_META, 2 * (size_t)plan->buffers * sizeof(struct block), &room);
  if (status)
    return status;
  struct block *block = room;
  status = place_persistent(plan);
  for (int tier = 0; tier < TIER_COUNT && !status; tier++)
    status = pack_tier(plan, (enum plan_tier)tier, block, block + plan->buffers);
  mem_free(room);
  if (!status)
    place_views(plan);
  return status;
}

enum status plan_place(struct plan *plan)
{
  plan_lifetimes(plan);
  return plan_pack(plan);
}
