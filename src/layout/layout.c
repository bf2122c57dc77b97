/* Packs parameters into a unit, and intersects ranges of ranks. */
#include "layout/layout.h"

#include "base/append.h"
#include "base/mem.h"

static const int64_t most_elements = INT64_C(1) << 62;

static struct layout_range intersect(struct layout_range a, struct layout_range b)
{
  struct layout_range both = {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
  return both.begin < both.end ? both : (struct layout_range){0, 0};
}

struct layout_text layout_shape_text(int ndim, const int64_t *shape)
{
  struct layout_text out = {""};
  for (int d = 0; d < ndim && d < LAYOUT_MAX_DIMS; d++)
    append_text(out.text, sizeof out.text, d ? " x %lld" : "%lld", (long long)shape[d]);
  return out;
}

enum status layout_mul(int64_t a, int64_t b, int64_t *out)
{
  int64_t product;
  if (__builtin_mul_overflow(a, b, &product) || product > most_elements || product < -most_elements)
    return status_usage("the size %lld x %lld exceeds 2^62: make the model or the batch smaller",
                        (long long)a, (long long)b);
  *out = product;
  return STATUS_OK;
}

enum status layout_add(int64_t a, int64_t b, int64_t *out)
{
  int64_t sum;
  if (__builtin_add_overflow(a, b, &sum) || sum > most_elements || sum < -most_elements)
    return status_usage("the size %lld + %lld exceeds 2^62: make the model or the batch smaller",
                        (long long)a, (long long)b);
  *out = sum;
  return STATUS_OK;
}

enum status layout_round_up(int64_t n, int64_t multiple, int64_t *out)
{
  enum status status = layout_add(n, multiple - 1, &n);
  if (status)
    return status;
  *out = n / multiple * multiple;
  return STATUS_OK;
}

/* The parameters of one part, from `begin`: *used is the end of the last one (or `begin`), *padded
 * the end of the part. */
static enum status pack_part(struct layout_unit *unit, bool frozen, int64_t begin, int64_t *used,
                             int64_t *padded)
{
  int64_t end = begin;
  *used = begin;
  for (int p = 0; p < unit->params; p++) {
    if (unit->frozen[p] != frozen)
      continue;
    const bool blocks = frozen && unit->elements[p] >= LAYOUT_BLOCK;
    enum status status =
        layout_round_up(end, blocks ? LAYOUT_BLOCK : LAYOUT_ALIGN, &unit->offset[p]);
    status = status ?: layout_add(unit->offset[p], unit->room[p], &end);
    if (status)
      return status;
    *used = unit->offset[p] + unit->elements[p];
  }
  return layout_round_up(end, (int64_t)unit->ranks * LAYOUT_BLOCK,
                         padded); /* `begin` is such a multiple, so the part's length is one too */
}

enum status layout_unit_pack(int params, const int64_t *elements, const int64_t *room,
                             const bool *frozen, int ranks, struct layout_unit *out)
{
  if (params < 1 || ranks < 1)
    return status_usage("a unit needs at least one parameter and one rank, not %d and %d", params,
                        ranks);
  for (int p = 0; p < params; p++)
    if (elements[p] < 1)
      return status_usage(
          "parameter %d of a unit has %lld elements: every dimension must be at least 1", p,
          (long long)elements[p]);

  void *block;
  enum status status =
      mem_alloc(MEM_META, (size_t)params * (3 * sizeof(int64_t) + sizeof(bool)), &block);
  if (status)
    return status;
  struct layout_unit unit = {.params = params,
                             .offset = block,
                             .elements = (int64_t *)block + params,
                             .room = (int64_t *)block + 2 * params,
                             .ranks = ranks};
  unit.frozen = (bool *)(unit.room + params);
  for (int p = 0; p < params; p++) {
    unit.elements[p] = elements[p];
    unit.room[p] = room && room[p] > elements[p] ? room[p] : elements[p];
    unit.frozen[p] = frozen && frozen[p];
  }

  status = pack_part(&unit, false, 0, &unit.used, &unit.trained);
  status = status ?: pack_part(&unit, true, unit.trained, &unit.frozen_used, &unit.flat);
  if (status) {
    layout_unit_free(&unit);
    return status;
  }
  *out = unit;
  return STATUS_OK;
}

void layout_unit_free(struct layout_unit *unit)
{
  mem_free(unit->offset); /* `elements` and `frozen` are parts of the same block */
  *unit = (struct layout_unit){0};
}

struct layout_range layout_part(const struct layout_unit *unit, bool frozen)
{
  return frozen ? (struct layout_range){unit->trained, unit->flat}
                : (struct layout_range){0, unit->trained};
}

struct layout_range layout_shard(const struct layout_unit *unit, bool frozen, int group, int index)
{
  const struct layout_range part = layout_part(unit, frozen);
  const int64_t size = (part.end - part.begin) / group;
  return (struct layout_range){part.begin + index * size, part.begin + (index + 1) * size};
}

struct layout_range layout_param_part(const struct layout_unit *unit, int p, struct layout_range r)
{
  int64_t offset = unit->offset[p];
  struct layout_range part =
      intersect(r, (struct layout_range){offset, offset + unit->elements[p]});
  if (part.begin == part.end)
    return part;
  return (struct layout_range){part.begin - offset, part.end - offset};
}
