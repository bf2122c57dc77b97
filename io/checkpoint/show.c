/* Checkpoints as text and as JSON: `sluice ckpt ls | show | diff`. One rank. */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/open.h"
#include "base/printable.h"
#include "io/checkpoint/private.h"
#include "io/text/file.h"
#include "io/text/json_write.h"
#include "io/tokenizer/tokenizer.h"

enum { PART_ELEMENTS = 1 << 20 };

/* Without this check of the stream, lost output would not be noticed. */
static enum status check_stream(FILE *to)
{
  if (fflush(to) == 0 && !ferror(to))
    return STATUS_OK;
  return status_set(STATUS_IO, "cannot write the output");
}

/* ls */

/* json NULL: a line of text. */
static void list_one(const char *path, struct json_writer *json, FILE *to)
{
  const char *name = strrchr(path, '/') + 1;
  struct checkpoint_meta meta = {0};
  int64_t tensors = 0;
  const enum status status = status_prefix(checkpoint_meta_from(path, &meta, &tensors), "%s", path);
  if (!json && status) {
    printable_print(to, "%-20s %s\n", name, status_text());
  } else if (!json) {
    printable_print(to, "%-20s %10" PRId64 " %12" PRId64 " %6" PRId64 " %8" PRId64 " %12.1f  %s\n",
                    name, meta.step, meta.samples, meta.ranks, tensors,
                    (double)file_size(path) / 1048576, meta.version);
  } else {
    json_write_open(json, NULL, '{');
    json_write_text(json, "file", path);
    if (status) {
      json_write_text(json, "error", status_text());
    } else {
      json_write_int(json, "step", meta.step);
      json_write_int(json, "samples", meta.samples);
      json_write_int(json, "ranks", meta.ranks);
      json_write_int(json, "tensors", tensors);
      json_write_int(json, "bytes", file_size(path));
      json_write_text(json, "program", meta.version);
    }
    json_write_close(json, '}');
  }
  checkpoint_meta_free(&meta);
}

static void begin_list(const char *dir, int64_t n, struct json_writer *json, FILE *to)
{
  if (json)
    json_write_open(json, NULL, '[');
  else if (n == 0)
    printable_print(to, "no checkpoints in %s\n", dir);
  else
    fprintf(to, "%-20s %10s %12s %6s %8s %12s  %s\n", "file", "step", "samples", "ranks", "tensors",
            "MiB", "written by");
}

enum status checkpoint_list(const char *dir, bool json, FILE *to)
{
  struct json_writer all = {.to = to}, *writer = json ? &all : NULL;
  int64_t *steps = NULL, n = 0;
  if (!file_exists(dir))
    return status_set(STATUS_INPUT, "there is no folder %s", dir);
  const enum status status = checkpoint_folder_scan(dir, false, &steps, &n);
  if (status)
    return status;
  begin_list(dir, n, writer, to);
  for (int64_t i = 0; i < n; i++)
    list_one(checkpoint_folder_path(dir, steps[i]).text, writer, to);
  if (json)
    json_write_close(&all, ']');
  mem_free(steps);
  return check_stream(to);
}

/* A file with the list of its tensors. */
struct side {
  const char *path;
  int file;
  struct checkpoint_meta meta;
  struct checkpoint_table table;
  void *part; /* PART_ELEMENTS of any type */
};

static enum status open_side(const char *path, struct side *side)
{
  int64_t tensors;
  hid_t file = H5I_INVALID_HID;
  *side = (struct side){.path = path, .file = -1};
  enum status status = hdf5_open(path, false, &file)
                           ?: checkpoint_meta_read(file, &side->meta, &tensors)
                           ?: checkpoint_table_read(file, &side->table);
  status = hdf5_close(file, status) ?: open_regular(path, OPEN_READ, &side->file)
           ?: mem_alloc(MEM_IO, (size_t)PART_ELEMENTS * sizeof(double), &side->part);
  return status_prefix(status, "%s", path);
}

static void close_side(struct side *side)
{
  mem_free(side->part);
  checkpoint_table_free(&side->table);
  checkpoint_meta_free(&side->meta);
  if (side->file >= 0)
    close(side->file); /* was only read */
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
    const struct checkpoint_entry *entry = &table->entry[t];
    printable_print(to, "%-*s  %-8s  %-24s %14" PRId64 "  %08" PRIx64 "\n", width,
                    checkpoint_table_name(table, t), dtype_name((enum dtype)entry->type),
                    layout_shape_text((int)entry->ndim, entry->shape).text, entry->elements,
                    (uint64_t)entry->crc);
  }
}

static void print_meta(const struct side *side, FILE *to)
{
  const struct checkpoint_meta *meta = &side->meta;
  printable_print(to, "file      %s\n", side->path);
  fprintf(to, "format    %s %d\n", CHECKPOINT_FORMAT, CHECKPOINT_VERSION);
  printable_print(to, "program   %s\n", meta->version);
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
    printable_print(to, "compute   %s\n", meta->compute);
  if (meta->base_sum)
    printable_print(to, "base      %s, checksum %016" PRIx64 "\n",
                    *meta->base ? meta->base : "initial values", meta->base_sum);
  fprintf(to, "tensors   %" PRId64 ", %.1f MiB\n", side->table.n,
          (double)checkpoint_table_bytes(&side->table) / 1048576);
  fprintf(to, "deck\n");
  for (const char *line = meta->deck; *line;) {
    int length = (int)strcspn(line, "\n");
    fputs("  ", to);
    printable_put(line, (size_t)length, to);
    putc('\n', to);
    line += length + (line[length] == '\n');
  }
}

static void write_entry(const struct checkpoint_table *table, int64_t t, struct json_writer *json)
{
  const struct checkpoint_entry *entry = &table->entry[t];
  char crc[24];
  snprintf(crc, sizeof crc, "%08" PRIx64, (uint64_t)entry->crc);
  json_write_open(json, NULL, '{');
  json_write_text(json, "name", checkpoint_table_name(table, t));
  json_write_text(json, "type", dtype_name((enum dtype)entry->type));
  json_write_open(json, "shape", '[');
  for (int64_t d = 0; d < entry->ndim; d++)
    json_write_int(json, NULL, entry->shape[d]);
  json_write_close(json, ']');
  json_write_int(json, "elements", entry->elements);
  json_write_text(json, "crc32", crc);
  json_write_close(json, '}');
}

/* Seeds use all 64 bits, which a JSON reader may round, so the seed is a text. */
static void write_show(const struct side *side, FILE *to)
{
  const struct checkpoint_meta *meta = &side->meta;
  struct json_writer json = {.to = to};
  char seed[24], sum[24];
  snprintf(seed, sizeof seed, "%" PRIu64, meta->seed);
  json_write_open(&json, NULL, '{');
  json_write_text(&json, "file", side->path);
  json_write_text(&json, "format", CHECKPOINT_FORMAT);
  json_write_int(&json, "version", CHECKPOINT_VERSION);
  json_write_text(&json, "program", meta->version);
  json_write_int(&json, "step", meta->step);
  json_write_int(&json, "samples", meta->samples);
  json_write_int(&json, "skipped", meta->skipped);
  json_write_text(&json, "seed", seed);
  json_write_int(&json, "ranks", meta->ranks);
  json_write_int(&json, "tokens", meta->data.tokens);
  json_write_text(&json, "tokenizer", meta->data.tokenizer.name);
  json_write_text(&json, "compute", meta->compute);
  if (meta->base_sum) {
    snprintf(sum, sizeof sum, "%016" PRIx64, meta->base_sum);
    json_write_text(&json, "base", meta->base);
    json_write_text(&json, "base_checksum", sum);
  }
  json_write_int(&json, "bytes", checkpoint_table_bytes(&side->table));
  json_write_text(&json, "deck", meta->deck);
  json_write_open(&json, "tensors", '[');
  for (int64_t t = 0; t < side->table.n; t++)
    write_entry(&side->table, t, &json);
  json_write_close(&json, ']');
  json_write_close(&json, '}');
}

enum status checkpoint_show(const char *path, bool json, FILE *to)
{
  struct side side;
  enum status status = open_side(path, &side);
  if (!status && json)
    write_show(&side, to);
  if (!status && !json) {
    print_meta(&side, to);
    print_table(&side.table, to);
  }
  close_side(&side);
  return status ?: check_stream(to);
}

/* diff */

struct difference {
  int64_t elements;         /* whose bits differ */
  double largest;           /* absolute; NaN where one of the two is not a number */
  double left, right, both; /* squares of each, and products; NaN: unknown, or of integers */
};

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

/* Exact for 64-bit integers, which a double cannot hold. */
static double distance(const void *a, const void *b, enum dtype type, int64_t i)
{
  if (type == DTYPE_I64)
    return fabs((double)((__int128)((const int64_t *)a)[i] - ((const int64_t *)b)[i]));
  if (type == DTYPE_U64)
    return fabs((double)((__int128)((const uint64_t *)a)[i] - ((const uint64_t *)b)[i]));
  return fabs(value_at(a, type, i) - value_at(b, type, i));
}

typedef void compare_part(const char *a, const char *b, enum dtype type, int64_t n,
                          struct difference *out);

static void count_different(const char *a, const char *b, enum dtype type, int64_t n,
                            struct difference *out)
{
  size_t size = dtype_size(type);
  if (memcmp(a, b, (size_t)n * size) == 0)
    return;
  for (int64_t i = 0; i < n; i++) {
    if (memcmp(a + (size_t)i * size, b + (size_t)i * size, size) == 0)
      continue;
    out->elements++;
    double apart = distance(a, b, type, i);
    if (isnan(apart) || apart > out->largest) /* a NaN stays: no number is larger */
      out->largest = apart;
  }
}

static void multiply(const char *a, const char *b, enum dtype type, int64_t n,
                     struct difference *out)
{
  for (int64_t i = 0; i < n; i++) {
    const double x = value_at(a, type, i), y = value_at(b, type, i);
    out->left += x * x;
    out->right += y * y;
    out->both += x * y;
  }
}

static bool is_real(enum dtype type)
{
  return type == DTYPE_F64 || type == DTYPE_F32 || type == DTYPE_BF16 || type == DTYPE_F16;
}

static enum status read_part(struct side *side, int64_t t, struct layout_range part)
{
  const struct io_tensor tensor = {
      .type = (enum dtype)side->table.entry[t].type, .range = part, .data = side->part};
  return status_prefix(
      checkpoint_read_tensor(side->file, &side->table, t, &tensor, NULL, NULL, NULL), "%s",
      side->path);
}

static enum status compare_parts(struct side *a, struct side *b, int64_t t, compare_part *compare,
                                 struct difference *out)
{
  const int64_t all = a->table.entry[t].elements,
                u = checkpoint_table_find(&b->table, checkpoint_table_name(&a->table, t));
  const enum dtype type = (enum dtype)a->table.entry[t].type;
  enum status status = STATUS_OK;
  for (struct layout_range part = {0, 0}; part.end < all && !status;) {
    part.begin = part.end;
    part.end = all - part.begin > PART_ELEMENTS ? part.begin + PART_ELEMENTS : all;
    status = read_part(a, t, part) ?: read_part(b, u, part);
    if (!status)
      compare(a->part, b->part, type, part.end - part.begin, out);
  }
  return status;
}

/* Two passes, because files that are alike need no cosine. */
static enum status compare_values(struct side *a, struct side *b, int64_t t, struct difference *out)
{
  const enum status status = compare_parts(a, b, t, count_different, out);
  const bool measures = !status && out->elements > 0 && is_real((enum dtype)a->table.entry[t].type);
  out->left = out->right = out->both = measures ? 0 : NAN;
  return measures ? compare_parts(a, b, t, multiply, out) : status;
}

/* Destination of differences: lines of text, or members of an array. */
struct report {
  FILE *to;
  struct json_writer *json; /* NULL: lines */
  bool same;
};

/* The tensor of a difference; its other members follow. */
static void begin_json(struct report *report, const char *name)
{
  json_write_open(report->json, NULL, '{');
  json_write_text(report->json, "tensor", name);
}

static void say_kind(struct report *report, const char *name, const struct checkpoint_entry *left,
                     const struct checkpoint_entry *right)
{
  char kind[2][128];
  const struct checkpoint_entry *entry[2] = {left, right};
  for (int i = 0; i < 2; i++)
    snprintf(kind[i], sizeof kind[i], "%s %s", dtype_name((enum dtype)entry[i]->type),
             layout_shape_text((int)entry[i]->ndim, entry[i]->shape).text);
  if (!report->json) {
    printable_print(report->to, "%s: %s | %s\n", name, kind[0], kind[1]);
    return;
  }
  begin_json(report, name);
  json_write_text(report->json, "left", kind[0]);
  json_write_text(report->json, "right", kind[1]);
  json_write_close(report->json, '}');
}

static void say_values(struct report *report, const char *name, int64_t elements,
                       const struct difference *difference)
{
  const double left = sqrt(difference->left), right = sqrt(difference->right),
               cosine = difference->both / (left * right); /* of the angle between the two */
  if (report->json) {
    begin_json(report, name);
    json_write_int(report->json, "elements", elements);
    json_write_int(report->json, "differ", difference->elements);
    json_write_real(report->json, "largest", difference->largest);
    json_write_real(report->json, "left_norm", left);
    json_write_real(report->json, "right_norm", right);
    json_write_real(report->json, "cosine", cosine);
    json_write_close(report->json, '}');
    return;
  }
  printable_print(report->to, "%s: %" PRId64 " of %" PRId64 " elements differ, ", name,
                  difference->elements, elements);
  if (isnan(difference->largest))
    fprintf(report->to, "some are not numbers\n");
  else if (isnan(cosine))
    fprintf(report->to, "by at most %.6g\n", difference->largest);
  else
    fprintf(report->to, "by at most %.6g, cosine %.6f\n", difference->largest, cosine);
}

static void say_alone(struct report *report, const char *name, const char *path)
{
  if (!report->json) {
    printable_print(report->to, "%s: only in %s\n", name, path);
    return;
  }
  begin_json(report, name);
  json_write_text(report->json, "only_in", path);
  json_write_close(report->json, '}');
}

static enum status diff_tensor(struct side *a, struct side *b, int64_t t, int64_t u,
                               struct report *report)
{
  const struct checkpoint_entry *left = &a->table.entry[t], *right = &b->table.entry[u];
  const char *name = checkpoint_table_name(&a->table, t);
  struct difference difference = {0};
  if (!checkpoint_entry_alike(left, right)) {
    report->same = false;
    say_kind(report, name, left, right);
    return STATUS_OK;
  }
  const enum status status = compare_values(a, b, t, &difference);
  if (difference.elements == 0)
    return status;
  report->same = false;
  if (!status)
    say_values(report, name, left->elements, &difference);
  return status;
}

/* Both tables are sorted by name: a merge. */
static enum status diff_tables(struct side *a, struct side *b, struct report *report)
{
  enum status status = STATUS_OK;
  for (int64_t t = 0, u = 0; !status && (t < a->table.n || u < b->table.n);) {
    const char *left = t < a->table.n ? checkpoint_table_name(&a->table, t) : NULL,
               *right = u < b->table.n ? checkpoint_table_name(&b->table, u) : NULL;
    const int order = !left ? 1 : !right ? -1 : strcmp(left, right);
    if (order == 0) {
      status = diff_tensor(a, b, t, u, report);
    } else {
      report->same = false;
      say_alone(report, order < 0 ? left : right, order < 0 ? a->path : b->path);
    }
    t += order <= 0;
    u += order >= 0;
  }
  return status;
}

static enum status diff_sides(struct side *a, struct side *b, bool json, FILE *to, bool *same)
{
  struct json_writer writer = {.to = to};
  struct report report = {.to = to, .json = json ? &writer : NULL, .same = true};
  if (json) {
    json_write_open(&writer, NULL, '{');
    json_write_open(&writer, "differences", '[');
  }
  const enum status status = diff_tables(a, b, &report);
  if (json) {
    json_write_close(&writer, ']');
    json_write_bool(&writer, "same", report.same);
    json_write_close(&writer, '}');
  } else if (!status && report.same) {
    printable_print(to,
                    "%s and %s: all %" PRId64 " tensors are identical; metadata are not compared\n",
                    a->path, b->path, a->table.n);
  }
  *same = report.same;
  return status ?: check_stream(to);
}

enum status checkpoint_diff(const char *a, const char *b, bool json, FILE *to, bool *same)
{
  struct side left, right = {.file = -1};
  bool equal = true;
  const enum status status = open_side(a, &left) ?: open_side(b, &right)
                             ?: diff_sides(&left, &right, json, to, &equal);
  close_side(&left);
  close_side(&right);
  if (!status)
    *same = equal;
  return status;
}
