/* Damage of files of versions 1 and 2. A rank that held more than 16 MiB of a tensor wrote the
 * first 16 MiB repeatedly, in place of the rest. Checksums were made from the same bytes, so only
 * the contents show it: elements repeat at a distance of 16 MiB. Reading had the same fault. A run
 * that an older version resumed may have saved wrong parameters that do not repeat. */
#include <string.h>

#include "base/mem.h"
#include "base/progress.h"
#include "io/checkpoint/private.h"

enum {
  DISTANCE = (16 << 20) / sizeof(float),
  ROW_LEAST = 1024 /* trained weights never agree for so many elements in a row */
};

/* A row of equal elements of a[] and b[], which goes on from part to part of a tensor. */
struct row {
  int64_t equal, changes; /* elements, and those that differ from the one before */
};

/* Zeros, and other constants, may repeat. */
static bool is_damage(const struct row *row)
{
  return row->equal >= ROW_LEAST && row->changes >= ROW_LEAST / 2;
}

static bool repeats(const uint32_t *a, const uint32_t *b, int64_t n, struct row *row)
{
  for (int64_t i = 1; i < n && !is_damage(row); i++)
    if (a[i] == b[i])
      *row = (struct row){row->equal + 1, row->changes + (a[i] != a[i - 1])};
    else
      *row = (struct row){0, 0};
  return is_damage(row);
}

/* `room`: two parts of DISTANCE elements. */
static enum status check_tensor(const struct hdf5_dataset *dataset, uint32_t *const room[2],
                                bool *damaged)
{
  struct row row = {0, 0};
  struct layout_range part = {0, DISTANCE};
  enum status status = hdf5_read(dataset, part, room[0]);
  for (int k = 1; part.end < dataset->elements && !status && !*damaged; k++) {
    const int64_t left = dataset->elements - part.end;
    part = (struct layout_range){part.end, part.end + (left < DISTANCE ? left : DISTANCE)};
    status = hdf5_read(dataset, part, room[k % 2]);
    progress_add();
    if (!status)
      *damaged = repeats(room[(k + 1) % 2], room[k % 2], part.end - part.begin, &row);
  }
  return status;
}

static enum status check_named(hid_t file, const char *name, uint32_t *const room[2])
{
  struct hdf5_dataset dataset = {.id = H5I_INVALID_HID};
  bool damaged = false;
  enum status status = hdf5_open_dataset(file, name, &dataset);
  if (!status)
    status = check_tensor(&dataset, room, &damaged);
  status = hdf5_close(dataset.id, status);
  if (!status && damaged)
    status = status_set(STATUS_INPUT,
                        "its elements repeat after 16 MiB, because an older version of Sluice "
                        "wrote the file wrongly; use another checkpoint");
  return status ? status_prefix(status, "dataset %s", name) : STATUS_OK;
}

static bool may_repeat(const struct checkpoint_table *table, int64_t t)
{
  const struct checkpoint_entry *entry = &table->entry[t];
  return entry->type == DTYPE_F32 && entry->elements > DISTANCE &&
         strncmp(checkpoint_table_name(table, t), "model/", 6) == 0;
}

enum status checkpoint_find_repeats(struct comm *comm, hid_t file,
                                    const struct checkpoint_table *table)
{
  uint32_t *room[2] = {NULL, NULL};
  enum status status = mem_new(MEM_IO, DISTANCE, &room[0]);
  if (!status)
    status = mem_new(MEM_IO, DISTANCE, &room[1]);
  for (int64_t t = comm_rank(comm); t < table->n && !status; t += comm_ranks(comm))
    if (may_repeat(table, t))
      status = check_named(file, checkpoint_table_name(table, t), room);
  mem_free(room[0]);
  mem_free(room[1]);
  return comm_agree(comm, status);
}
