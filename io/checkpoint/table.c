/* The list of tensors: from the caller, from a file, from rank 0. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/printable.h"
#include "io/checkpoint/private.h"

int64_t checkpoint_piece_bytes = 4 << 20, checkpoint_flush_bytes = 1 << 30;

const char *checkpoint_table_name(const struct checkpoint_table *table, int64_t i)
{
  return table->names + table->entry[i].name;
}

bool checkpoint_entry_alike(const struct checkpoint_entry *a, const struct checkpoint_entry *b)
{
  return a->type == b->type && a->ndim == b->ndim &&
         memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0;
}

struct layout_box checkpoint_box(const struct checkpoint_entry *entry, const struct layout_cut *cut)
{
  return layout_box((int)entry->ndim, entry->shape, cut);
}

int64_t checkpoint_entry_bytes(const struct checkpoint_entry *entry)
{
  return entry->elements * (int64_t)dtype_size((enum dtype)entry->type);
}

int64_t checkpoint_table_bytes(const struct checkpoint_table *table)
{
  int64_t bytes = 0;
  for (int64_t i = 0; i < table->n; i++)
    bytes += checkpoint_entry_bytes(&table->entry[i]);
  return bytes;
}

void checkpoint_table_free(struct checkpoint_table *table)
{
  mem_free(table->entry);
  mem_free(table->names);
  *table = (struct checkpoint_table){0};
}

/* A growing table. */
struct builder {
  struct checkpoint_table table;
  int64_t entries_room, names_room;
  int64_t bytes;     /* of the tensors of a file */
  const char *group; /* that is being read */
  enum status status;
};

static enum status append(struct builder *builder, const char *group, const char *name,
                          struct checkpoint_entry entry)
{
  struct checkpoint_table *table = &builder->table;
  size_t group_bytes = strlen(group), name_bytes = strlen(name);
  int64_t bytes = (int64_t)(group_bytes + 1 + name_bytes + 1);
  const enum status status = mem_grow(MEM_META, (void **)&table->entry, &builder->entries_room,
                                      table->n + 1, sizeof *table->entry)
                                 ?: mem_grow(MEM_META, (void **)&table->names, &builder->names_room,
                                             table->names_bytes + bytes, 1);
  if (status)
    return status;
  char *text = table->names + table->names_bytes;
  memcpy(text, group, group_bytes);
  text[group_bytes] = '/';
  memcpy(text + group_bytes + 1, name, name_bytes + 1);
  entry.name = table->names_bytes;
  table->names_bytes += bytes;
  table->entry[table->n++] = entry;
  return STATUS_OK;
}

/* From the caller. */

static bool is_good_name(const char *name)
{
  return name && name[0] && !strchr(name, '/') && strcmp(name, ".") != 0;
}

static enum status check_tensor(const struct io_tensor *tensor, int64_t *elements)
{
  if (!is_good_name(tensor->group) || !is_good_name(tensor->name) ||
      strcmp(tensor->group, "deck") == 0)
    return status_set(STATUS_INTERNAL,
                      "a tensor is named %s in group %s; a name is not empty, not '.' and has no "
                      "'/', and no group is called deck",
                      tensor->name ? tensor->name : "NULL", tensor->group ? tensor->group : "NULL");
  int64_t n;
  if (hdf5_count(tensor->name, tensor->type, tensor->ndim, tensor->shape, &n) ||
      layout_check_cuts(tensor->name, tensor->ndim, tensor->shape, tensor->cut, 1))
    return status_prefix(STATUS_INTERNAL, "group %s", tensor->group);
  const struct layout_box box = layout_box(tensor->ndim, tensor->shape, tensor->cut);
  const struct layout_range range = tensor->range;
  *elements = n;
  n = layout_box_elements(&box);
  if (range.begin < range.end && (range.begin < 0 || range.end > n))
    return status_set(
        STATUS_INTERNAL, "the range %lld to %lld of tensor %s/%s lies outside its %lld elements",
        (long long)range.begin, (long long)range.end, tensor->group, tensor->name, (long long)n);
  return STATUS_OK;
}

enum status checkpoint_piece_buffer(int n, const struct io_tensor *tensors, void **out)
{
  for (int t = 0; t < n; t++)
    if (!tensors[t].data)
      return mem_alloc(MEM_IO, (size_t)checkpoint_piece_bytes, out);
  return STATUS_OK;
}

struct layout_range checkpoint_piece_at(const struct io_tensor *tensor, int64_t at)
{
  const int64_t most = checkpoint_piece_bytes / (int64_t)dtype_size(tensor->type);
  return (struct layout_range){at, tensor->range.end - at > most ? at + most : tensor->range.end};
}

void *checkpoint_piece_memory(const struct io_tensor *tensor, struct layout_range piece,
                              void *buffer)
{
  const int64_t before = piece.begin - tensor->range.begin;
  return tensor->data ? (char *)tensor->data + before * (int64_t)dtype_size(tensor->type) : buffer;
}

enum status checkpoint_table_from(int n, const struct io_tensor *tensors,
                                  struct checkpoint_table *out)
{
  struct builder builder = {0};
  enum status status = STATUS_OK;
  for (int i = 0; i < n && !status; i++) {
    struct checkpoint_entry entry = {.type = tensors[i].type, .ndim = tensors[i].ndim};
    status = check_tensor(&tensors[i], &entry.elements);
    for (int d = 0; d < tensors[i].ndim && !status; d++)
      entry.shape[d] = tensors[i].shape[d];
    status = status ?: append(&builder, tensors[i].group, tensors[i].name, entry);
  }
  if (status)
    checkpoint_table_free(&builder.table);
  else
    *out = builder.table;
  return status;
}

/* From a file. */

static enum status check_name(const char *what, const char *name)
{
  if (printable_is(name))
    return STATUS_OK;
  return status_set(STATUS_INPUT, "the name of %s %s holds control characters", what, name);
}

static enum status read_entry(hid_t group, const char *name, struct builder *builder)
{
  struct hdf5_dataset dataset = {.id = H5I_INVALID_HID};
  uint32_t crc = 0;
  int64_t elements = 0, offset = 0;
  enum status status = check_name("dataset", name) ?: hdf5_open_dataset(group, name, &dataset);
  if (status)
    return status;
  status = status_prefix(hdf5_get_number(dataset.id, "crc32", DTYPE_U32, &crc)
                             ?: hdf5_get_number(dataset.id, "elements", DTYPE_I64, &elements)
                             ?: hdf5_locate(&dataset, &offset),
                         "dataset %s", name);
  if (!status && elements != dataset.elements)
    status = status_set(STATUS_INPUT, "dataset %s has %lld elements and says that it has %lld",
                        name, (long long)dataset.elements, (long long)elements);
  status = hdf5_close(dataset.id, status);
  if (status)
    return status;
  struct checkpoint_entry entry = {.type = dataset.type,
                                   .ndim = dataset.ndim,
                                   .elements = elements,
                                   .crc = crc,
                                   .offset = offset};
  memcpy(entry.shape, dataset.shape, sizeof entry.shape);
  if (__builtin_add_overflow(builder->bytes, checkpoint_entry_bytes(&entry), &builder->bytes))
    return status_set(STATUS_INPUT, "with dataset %s its tensors have more than 2^63 bytes", name);
  return append(builder, builder->group, name, entry);
}

/* H5Literate stops at the first callback that returns something negative. */
static herr_t visit_tensor(hid_t group, const char *name, const H5L_info_t *link, void *arg)
{
  (void)link; /* hdf5_open_dataset() looks at it */
  struct builder *builder = arg;
  builder->status = status_prefix(read_entry(group, name, builder), "group %s", builder->group);
  return builder->status ? -1 : 0;
}

/* Native order. For any other order HDF5 1.10 builds a table of the links. If a block of the
 * group's index is damaged, it frees table entries that it has not filled. */
static enum status iterate(hid_t group, H5L_iterate_t visit, struct builder *builder)
{
  hdf5_lock();
  herr_t done = H5Literate(group, H5_INDEX_NAME, H5_ITER_NATIVE, NULL, visit, builder);
  builder->status = builder->status ?: hdf5_check(done, STATUS_INPUT, "list what is in it");
  hdf5_unlock();
  return builder->status;
}

static herr_t visit_group(hid_t root, const char *name, const H5L_info_t *link, void *arg)
{
  (void)link;
  struct builder *builder = arg;
  if (strcmp(name, "deck") == 0)
    return 0;
  hid_t group = H5I_INVALID_HID;
  builder->group = name;
  builder->status = check_name("group", name) ?: hdf5_open_group(root, name, &group);
  builder->status = builder->status ?: hdf5_close(group, iterate(group, visit_tensor, builder));
  return builder->status ? -1 : 0;
}

static int compare_entries(const void *a, const void *b, void *arg)
{
  const char *names = arg;
  return strcmp(names + ((const struct checkpoint_entry *)a)->name,
                names + ((const struct checkpoint_entry *)b)->name);
}

enum status checkpoint_table_read(hid_t file, struct checkpoint_table *out)
{
  struct builder builder = {.status = STATUS_OK};
  const enum status status = iterate(file, visit_group, &builder);
  struct checkpoint_table *table = &builder.table;
  if (status) {
    checkpoint_table_free(table);
    return status;
  }
  if (table->n > 0)
    qsort_r(table->entry, (size_t)table->n, sizeof *table->entry, compare_entries, table->names);
  *out = *table;
  return STATUS_OK;
}

int64_t checkpoint_table_find(const struct checkpoint_table *table, const char *name)
{
  int64_t low = 0, high = table->n;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    int order = strcmp(name, checkpoint_table_name(table, middle));
    if (order == 0)
      return middle;
    if (order < 0)
      high = middle;
    else
      low = middle + 1;
  }
  return -1;
}

enum status checkpoint_table_share(struct comm *comm, struct checkpoint_table *table)
{
  int64_t sizes[2] = {table->n, table->names_bytes};
  enum status status = comm_broadcast(comm, sizes, sizeof sizes, 0);
  if (status)
    return status;
  if (comm_rank(comm) != 0) {
    *table = (struct checkpoint_table){.n = sizes[0], .names_bytes = sizes[1]};
    status =
        mem_new(MEM_META, sizes[0], &table->entry) ?: mem_new(MEM_META, sizes[1], &table->names);
  }
  status = comm_agree(comm, status);
  if (status || sizes[0] == 0)
    return status;
  return checkpoint_table_share_entries(comm, table)
             ?: comm_broadcast(comm, table->names, sizes[1], 0);
}

enum status checkpoint_table_share_entries(struct comm *comm, struct checkpoint_table *table)
{
  return comm_broadcast(comm, table->entry, table->n * (int64_t)sizeof *table->entry, 0);
}
