/* Checkpoints for people: `sluice ckpt ls | show | diff`. One rank. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/printable.h"
#include "io/checkpoint/private.h"
#include "io/text/file.h"

enum { PART_ELEMENTS = 1 << 20 };

/* What was being printed is lost without a word unless the stream is asked. */
static enum status check_stream(FILE *to)
{
  if (fflush(to) == 0 && !ferror(to))
    return STATUS_OK;
  return status_set(STATUS_IO, "cannot write the output");
}

/* ls */

static enum status open_checkpoint(const char *path, hid_t *file, struct checkpoint_meta *meta,
                                   int64_t *tensors)
{
  enum status status = hdf5_open(path, false, file);
  if (status == STATUS_OK)
    status = checkpoint_meta_read(*file, meta, tensors);
  return status == STATUS_OK ? STATUS_OK : status_prefix(status, "%s", path);
}

static void list_one(const char *path, const char *name, FILE *to)
{
  hid_t file = H5I_INVALID_HID;
  struct checkpoint_meta meta = {0};
  int64_t tensors = 0;
  enum status status = open_checkpoint(path, &file, &meta, &tensors);
  status = hdf5_close(file, status);
  if (status == STATUS_OK)
    fprintf(to, "%-20s %10" PRId64 " %12" PRId64 " %6" PRId64 " %8" PRId64 " %12.1f  %s\n", name,
            meta.step, meta.samples, meta.ranks, tensors, (double)file_size(path) / 1048576,
            meta.version);
  else
    fprintf(to, "%-20s %s\n", name, status_text());
  checkpoint_meta_free(&meta);
}

enum status checkpoint_list(const char *dir, FILE *to)
{
  int64_t *steps = NULL, n = 0;
  if (!file_exists(dir))
    return status_set(STATUS_INPUT, "there is no folder %s", dir);
  enum status status = checkpoint_folder_scan(dir, false, &steps, &n);
  if (status != STATUS_OK)
    return status;
  if (n == 0)
    fprintf(to, "no checkpoints in %s\n", dir);
  else
    fprintf(to, "%-20s %10s %12s %6s %8s %12s  %s\n", "file", "step", "samples", "ranks", "tensors",
            "MiB", "written by");
  for (int64_t i = 0; i < n && status == STATUS_OK; i++) {
    char *path = checkpoint_folder_path(dir, steps[i]);
    if (path)
      list_one(path, strrchr(path, '/') + 1, to);
    else
      status = STATUS_MEMORY;
    mem_free(path);
  }
  mem_free(steps);
  return status == STATUS_OK ? check_stream(to) : status;
}

/* show */

static void print_table(const struct checkpoint_table *table, FILE *to)
{
  int width = (int)strlen("tensor");
  for (int64_t t = 0; t < table->n; t++) {
    int length = (int)strlen(checkpoint_table_name(table, t));
    width = length > width ? length : width;
  }
  fprintf(to, "\n%-*s  %-8s  %-24s %14s  %s\n", width, "tensor", "type", "shape", "elements",
          "crc32");
  for (int64_t t = 0; t < table->n; t++) {
    char shape[128];
    const struct checkpoint_entry *entry = &table->entry[t];
    checkpoint_shape_text(entry, shape, sizeof shape);
    fprintf(to, "%-*s  %-8s  %-24s %14" PRId64 "  %08" PRIx64 "\n", width,
            checkpoint_table_name(table, t), dtype_name((enum dtype)entry->type), shape,
            entry->elements, (uint64_t)entry->crc);
  }
}

static void print_meta(const char *path, const struct checkpoint_meta *meta,
                       const struct checkpoint_table *table, FILE *to)
{
  fprintf(to, "file      %s\n", path);
  fprintf(to, "format    %s %d\n", CHECKPOINT_FORMAT, CHECKPOINT_VERSION);
  fprintf(to, "program   %s\n", meta->version);
  fprintf(to, "step      %" PRId64 "\n", meta->step);
  fprintf(to, "samples   %" PRId64 "\n", meta->samples);
  fprintf(to, "skipped   %" PRId64 "\n", meta->skipped);
  fprintf(to, "seed      %" PRIu64 "\n", meta->seed);
  fprintf(to, "ranks     %" PRId64 "\n", meta->ranks);
  if (meta->local_ranks > 0)
    fprintf(to, "per node  %" PRId64 "\n", meta->local_ranks);
  if (*meta->data.tokenizer.name)
    fprintf(to, "data      %" PRId64 " tokens of the tokenizer %s\n", meta->data.tokens,
            tokenizer_id_text(&meta->data.tokenizer).text);
  if (*meta->compute)
    fprintf(to, "compute   %s\n", meta->compute);
  fprintf(to, "tensors   %" PRId64 ", %.1f MiB\n", table->n,
          (double)checkpoint_table_bytes(table) / 1048576);
  fprintf(to, "deck\n");
  for (const char *line = meta->deck; *line;) {
    int length = (int)strcspn(line, "\n");
    fputs("  ", to);
    printable_put(line, (size_t)length, to);
    putc('\n', to);
    line += length + (line[length] == '\n');
  }
}

enum status checkpoint_show(const char *path, FILE *to)
{
  hid_t file = H5I_INVALID_HID;
  struct checkpoint_meta meta = {0};
  struct checkpoint_table table = {0};
  int64_t tensors;
  enum status status = open_checkpoint(path, &file, &meta, &tensors);
  if (status == STATUS_OK) {
    status = checkpoint_table_read(file, &table);
    if (status != STATUS_OK)
      status = status_prefix(status, "%s", path);
  }
  if (status == STATUS_OK) {
    print_meta(path, &meta, &table, to);
    print_table(&table, to);
    status = check_stream(to);
  }
  status = hdf5_close(file, status);
  checkpoint_table_free(&table);
  checkpoint_meta_free(&meta);
  return status;
}

/* diff */

struct side {
  const char *path;
  hid_t file;
  struct checkpoint_table table;
  void *part;
};

struct difference {
  int64_t elements; /* whose bits differ */
  double largest;   /* absolute; NaN where one of the two is not a number */
};

static enum status open_side(const char *path, struct side *side)
{
  struct checkpoint_meta meta = {0};
  int64_t tensors;
  *side = (struct side){.path = path, .file = H5I_INVALID_HID};
  enum status status = open_checkpoint(path, &side->file, &meta, &tensors);
  checkpoint_meta_free(&meta);
  if (status != STATUS_OK)
    return status;
  status = checkpoint_table_read(side->file, &side->table);
  if (status == STATUS_OK)
    status = mem_alloc(MEM_IO, (size_t)PART_ELEMENTS * sizeof(double), &side->part);
  return status == STATUS_OK ? STATUS_OK : status_prefix(status, "%s", path);
}

static enum status close_side(struct side *side, enum status status)
{
  mem_free(side->part);
  checkpoint_table_free(&side->table);
  return hdf5_close(side->file, status);
}

static double value_at(const void *data, enum dtype type, int64_t i)
{
  float x;
  switch (type) {
  case DTYPE_F64: return ((const double *)data)[i];
  case DTYPE_U8: return ((const uint8_t *)data)[i];
  case DTYPE_U16: return ((const uint16_t *)data)[i];
  case DTYPE_U32: return ((const uint32_t *)data)[i];
  case DTYPE_I32: return ((const int32_t *)data)[i];
  default:
    dtype_convert(&x, DTYPE_F32, (const char *)data + (size_t)i * dtype_size(type), type, 1);
    return x;
  }
}

/* Of 64-bit integers exactly, which a double cannot hold. */
static double distance(const void *a, const void *b, enum dtype type, int64_t i)
{
  if (type == DTYPE_I64)
    return fabs((double)((__int128)((const int64_t *)a)[i] - ((const int64_t *)b)[i]));
  if (type == DTYPE_U64)
    return fabs((double)((__int128)((const uint64_t *)a)[i] - ((const uint64_t *)b)[i]));
  return fabs(value_at(a, type, i) - value_at(b, type, i));
}

static void compare_part(const char *a, const char *b, enum dtype type, int64_t n,
                         struct difference *difference)
{
  size_t size = dtype_size(type);
  if (memcmp(a, b, (size_t)n * size) == 0)
    return;
  for (int64_t i = 0; i < n; i++) {
    if (memcmp(a + (size_t)i * size, b + (size_t)i * size, size) == 0)
      continue;
    difference->elements++;
    double apart = distance(a, b, type, i);
    if (isnan(apart) || apart > difference->largest) /* a NaN stays: no number is larger */
      difference->largest = apart;
  }
}

static enum status read_part(struct side *side, const char *name, struct layout_range part)
{
  struct hdf5_dataset dataset = {.id = H5I_INVALID_HID};
  enum status status = hdf5_open_dataset(side->file, name, &dataset);
  if (status == STATUS_OK)
    status = hdf5_read(&dataset, part, side->part);
  status = hdf5_close(dataset.id, status);
  return status == STATUS_OK ? STATUS_OK
                             : status_prefix(status, "%s: dataset %s", side->path, name);
}

static enum status compare_values(struct side *a, struct side *b, int64_t t,
                                  struct difference *difference)
{
  const struct checkpoint_entry *entry = &a->table.entry[t];
  const char *name = checkpoint_table_name(&a->table, t);
  for (int64_t at = 0; at < entry->elements; at += PART_ELEMENTS) {
    struct layout_range part = {at, entry->elements - at > PART_ELEMENTS ? at + PART_ELEMENTS
                                                                         : entry->elements};
    enum status status = read_part(a, name, part);
    if (status == STATUS_OK)
      status = read_part(b, name, part);
    if (status != STATUS_OK)
      return status;
    compare_part(a->part, b->part, (enum dtype)entry->type, part.end - part.begin, difference);
  }
  return STATUS_OK;
}

static enum status diff_tensor(struct side *a, struct side *b, int64_t t, int64_t u, FILE *to,
                               bool *same)
{
  const struct checkpoint_entry *left = &a->table.entry[t], *right = &b->table.entry[u];
  const char *name = checkpoint_table_name(&a->table, t);
  char left_shape[128], right_shape[128];
  checkpoint_shape_text(left, left_shape, sizeof left_shape);
  checkpoint_shape_text(right, right_shape, sizeof right_shape);
  if (left->type != right->type || strcmp(left_shape, right_shape) != 0) {
    fprintf(to, "%s: %s %s | %s %s\n", name, dtype_name((enum dtype)left->type), left_shape,
            dtype_name((enum dtype)right->type), right_shape);
    *same = false;
    return STATUS_OK;
  }
  struct difference difference = {0};
  enum status status = compare_values(a, b, t, &difference);
  if (status != STATUS_OK || difference.elements == 0)
    return status;
  fprintf(to, "%s: %" PRId64 " of %" PRId64 " elements differ, ", name, difference.elements,
          left->elements);
  if (isnan(difference.largest))
    fprintf(to, "some are not numbers\n");
  else
    fprintf(to, "by at most %.6g\n", difference.largest);
  *same = false;
  return STATUS_OK;
}

/* Both tables are sorted by name: a merge. */
static enum status diff_tables(struct side *a, struct side *b, FILE *to, bool *same)
{
  enum status status = STATUS_OK;
  for (int64_t t = 0, u = 0; status == STATUS_OK && (t < a->table.n || u < b->table.n);) {
    const char *left = t < a->table.n ? checkpoint_table_name(&a->table, t) : NULL,
               *right = u < b->table.n ? checkpoint_table_name(&b->table, u) : NULL;
    int order = !left ? 1 : !right ? -1 : strcmp(left, right);
    if (order == 0) {
      status = diff_tensor(a, b, t++, u++, to, same);
      continue;
    }
    fprintf(to, "%s: only in %s\n", order < 0 ? left : right, order < 0 ? a->path : b->path);
    *same = false;
    if (order < 0)
      t++;
    else
      u++;
  }
  return status;
}

enum status checkpoint_diff(const char *a, const char *b, FILE *to, bool *same)
{
  struct side left, right = {.file = H5I_INVALID_HID};
  bool equal = true;
  enum status status = open_side(a, &left);
  if (status == STATUS_OK)
    status = open_side(b, &right);
  if (status == STATUS_OK)
    status = diff_tables(&left, &right, to, &equal);
  if (status == STATUS_OK)
    status = check_stream(to);
  status = close_side(&left, status);
  status = close_side(&right, status);
  if (status == STATUS_OK)
    *same = equal;
  return status;
}
