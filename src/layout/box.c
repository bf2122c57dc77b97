/* Pieces of tensors that are cut along dimensions, as runs of elements.
 *
 *   tensor 4 x 6, dimension 1 cut into 3, piece 1    elements of the box, by themselves
 *        .  .  2  3  .  .                                     0  1
 *        .  .  8  9  .  .         four runs of two            2  3
 *        .  . 14 15  .  .                                     4  5
 *        .  . 20 21  .  .                                     6  7
 *
 * The order of a box's elements is their order in the tensor, so a range of a box and the elements
 * between two places of the tensor have one range in common. */
#include "layout/layout.h"

static int64_t parts_of(const struct layout_cut *cut)
{
  return cut->parts > 1 ? cut->parts : 1;
}

/* Pieces of a dimension are runs of elements if no dimension inside it is cut. */
static bool divides(int64_t length, int64_t inner, int64_t parts, int64_t align)
{
  return length % parts == 0 && (parts == 1 || length / parts * inner % align == 0);
}

static int64_t nearest(int64_t length, int64_t inner, int64_t parts, int64_t align)
{
  for (int64_t apart = 1;; apart++) {
    if (parts > apart && divides(length, inner, parts - apart, align))
      return parts - apart;
    if (divides(length, inner, parts + apart, align))
      return parts + apart;
  }
}

enum status layout_check_cuts(const char *name, int ndim, const int64_t *shape,
                              const struct layout_cut *cut, int64_t align)
{
  int64_t inner = 1;
  for (int d = ndim - 1; d >= 0; inner *= shape[d--]) {
    const int64_t parts = parts_of(&cut[d]);
    if (cut[d].index < 0 || cut[d].index >= parts)
      return status_set(STATUS_INTERNAL, "piece %d of %lld pieces of %s", cut[d].index,
                        (long long)parts, name);
    if (!divides(shape[d], inner, parts, align))
      return status_usage("dimension %d of %s (%s) cannot be cut into %lld equal pieces%s: %lld is "
                          "the nearest number that divides it",
                          d, name, layout_shape_text(ndim, shape).text, (long long)parts,
                          align > 1 ? " of whole blocks" : "",
                          (long long)nearest(shape[d], inner, parts, align));
    if (parts > 1)
      align = 1; /* runs of dimensions outside this one are made of its runs */
  }
  return STATUS_OK;
}

struct layout_box layout_box(int ndim, const int64_t *shape, const struct layout_cut *cut)
{
  struct layout_box box = {.ndim = ndim};
  for (int d = 0; d < ndim; d++) {
    box.shape[d] = shape[d];
    box.size[d] = shape[d] / parts_of(&cut[d]);
    box.begin[d] = cut[d].index * box.size[d];
  }
  return box;
}

int64_t layout_box_elements(const struct layout_box *box)
{
  int64_t elements = 1;
  for (int d = 0; d < box->ndim; d++)
    elements *= box->size[d];
  return elements;
}

struct layout_range layout_box_run(const struct layout_box *box, int64_t at, int64_t end)
{
  int64_t first = 0, rows = at, inner = 1, run = 1, most = end - at;
  for (int d = box->ndim - 1; d >= 0; d--) {
    first += (box->begin[d] + rows % box->size[d]) * inner;
    rows /= box->size[d];
    inner *= box->shape[d];
    run *= box->size[d];
    if (box->size[d] < box->shape[d] && run - at % run < most)
      most = run - at % run;
  }
  return (struct layout_range){first, first + most};
}

int64_t layout_box_before(const struct layout_box *box, int64_t at)
{
  int64_t before = 0, inner = 1, room = layout_box_elements(box);
  for (int d = 0; d < box->ndim; d++)
    inner *= box->shape[d];
  for (int d = 0; d < box->ndim; d++) {
    inner /= box->shape[d];
    room /= box->size[d];
    const int64_t place = at / inner - box->begin[d];
    if (place < 0 || place >= box->size[d])
      return before + (place < 0 ? 0 : box->size[d] * room);
    before += place * room;
    at %= inner;
  }
  return before;
}
