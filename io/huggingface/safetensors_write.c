/* Writing safetensors. Every rank works out the same headers, so that each knows where its elements
 * belong; rank 0 makes the files, all fill them. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "base/mem.h"
#include "base/open.h"
#include "io/huggingface/safetensors.h"
#include "io/text/file.h"
#include "io/text/input.h"

enum { PART = 1 << 20 /* elements converted at a time */, HEADER_ALIGN = 8, LENGTH_BYTES = 8 };

struct place {
  const struct st_shape *shape;
  int64_t elements;
  int file;
  int64_t offset; /* of the first element, in the file */
};

struct output {
  char *name, *temporary;
  struct text_buffer header; /* with its length in front */
  int64_t data_bytes;
  int fd; /* -1: not open here */
};

struct safetensors_writer {
  struct comm *comm;
  char *dir;
  const char *name;
  enum dtype type;
  int n, files;
  struct place *place;
  struct place **by_name;
  struct output *file;
  void *part;
  int64_t elements, written;
};

/* --- the plan ------------------------------------------------------------ */

static bool is_good_name(const char *name)
{
  for (const char *c = name; *c; c++)
    if (*c <= ' ' || *c > '~' || *c == '"' || *c == '\\')
      return false;
  return *name != '\0' && strlen(name) < 512;
}

static enum status count_elements(const struct st_shape *shape, int64_t *out)
{
  enum status status = STATUS_OK;
  if (!is_good_name(shape->name) || shape->ndim < 0 || shape->ndim > LAYOUT_MAX_DIMS)
    return status_set(STATUS_INTERNAL,
                      "the tensor '%s' of %d dimensions cannot be written to a safetensors file",
                      shape->name, shape->ndim);
  *out = 1;
  for (int d = 0; d < shape->ndim && !status; d++)
    status = layout_mul(*out, shape->shape[d], out);
  return status;
}

/* A file gets tensors in order, until the next one would make it too large. */
static enum status split(struct safetensors_writer *writer, const struct st_shape *tensors,
                         int64_t most_bytes)
{
  int64_t bytes = 0;
  writer->files = writer->n > 0;
  for (int t = 0; t < writer->n; t++) {
    struct place *place = &writer->place[t];
    place->shape = &tensors[t];
    enum status status = count_elements(place->shape, &place->elements);
    if (status)
      return status;
    const int64_t more = place->elements * (int64_t)dtype_size(writer->type);
    if (bytes > 0 && bytes + more > most_bytes) {
      writer->files++;
      bytes = 0;
    }
    bytes += more;
    place->file = writer->files - 1;
    writer->elements += place->elements;
    writer->by_name[t] = place;
  }
  return STATUS_OK;
}

/* As the reference orders a file: by name. */
static int compare_names(const void *a, const void *b)
{
  return strcmp((*(struct place *const *)a)->shape->name, (*(struct place *const *)b)->shape->name);
}

static void put_entry(const struct safetensors_writer *writer, struct output *file,
                      const struct place *place)
{
  const int64_t bytes = place->elements * (int64_t)dtype_size(writer->type);
  text_buffer_print(&file->header, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", place->shape->name,
                    writer->type == DTYPE_F32    ? "F32"
                    : writer->type == DTYPE_BF16 ? "BF16"
                                                 : "F16");
  for (int d = 0; d < place->shape->ndim; d++)
    text_buffer_print(&file->header, d ? ",%lld" : "%lld", (long long)place->shape->shape[d]);
  text_buffer_print(&file->header, "],\"data_offsets\":[%lld,%lld]}", (long long)file->data_bytes,
                    (long long)(file->data_bytes + bytes));
  file->data_bytes += bytes;
}

/* The header ends in blanks so that the data begin at a multiple of 8. Offsets count from there. */
static enum status lay_out_file(struct safetensors_writer *writer, int f)
{
  static const char zeros[LENGTH_BYTES];
  struct output *file = &writer->file[f];
  text_buffer_append(&file->header, zeros, LENGTH_BYTES);
  text_buffer_print(&file->header, "{\"__metadata__\":{\"format\":\"pt\"}");
  for (int t = 0; t < writer->n; t++)
    if (writer->by_name[t]->file == f) {
      writer->by_name[t]->offset = file->data_bytes;
      put_entry(writer, file, writer->by_name[t]);
    }
  text_buffer_append(&file->header, "}", 1);
  text_buffer_append(&file->header, "       ", -file->header.bytes % HEADER_ALIGN);
  const uint64_t length = file->header.bytes - LENGTH_BYTES;
  if (file->header.status)
    return file->header.status;
  memcpy(file->header.data, &length, LENGTH_BYTES);
  for (int t = 0; t < writer->n; t++)
    if (writer->place[t].file == f)
      writer->place[t].offset += (int64_t)file->header.bytes;
  return STATUS_OK;
}

static enum status name_file(const struct safetensors_writer *writer, int f)
{
  struct output *file = &writer->file[f];
  file->fd = -1;
  file->name = writer->files == 1
                   ? mem_printf("%s.safetensors", writer->name)
                   : mem_printf("%s-%05d-of-%05d.safetensors", writer->name, f + 1, writer->files);
  file->temporary = file->name ? mem_printf("%s/%s.tmp", writer->dir, file->name) : NULL;
  return file->temporary ? STATUS_OK : STATUS_MEMORY;
}

static enum status lay_out(struct safetensors_writer *writer, const char *dir,
                           const struct st_shape *tensors, int64_t most_bytes)
{
  writer->dir = mem_strdup(dir);
  if (!writer->dir)
    return STATUS_MEMORY;
  enum status status =
      mem_alloc(MEM_IO, PART * dtype_size(writer->type), &writer->part)
      ?: mem_new(MEM_META, writer->n, &writer->place)
      ?: mem_new(MEM_META, writer->n, &writer->by_name)
      ?: split(writer, tensors, most_bytes)
      ?: mem_new(MEM_META, writer->files, &writer->file);
  if (status) {
    writer->files = 0;
    return status;
  }
  qsort(writer->by_name, (size_t)writer->n, sizeof *writer->by_name, compare_names);
  for (int f = 0; f < writer->files && !status; f++)
    status = name_file(writer, f);
  for (int f = 0; f < writer->files && !status; f++)
    status = lay_out_file(writer, f);
  return status;
}

/* --- the files ----------------------------------------------------------- */

static enum status write_at(const struct output *file, const char *data, size_t bytes,
                            int64_t offset)
{
  while (bytes > 0) {
    const ssize_t done = pwrite(file->fd, data, bytes, (off_t)offset);
    if (done < 0 && errno == EINTR)
      continue;
    if (done < 0)
      return open_failed(errno, "write", file->temporary);
    data += done;
    bytes -= (size_t)done;
    offset += done;
  }
  return STATUS_OK;
}

/* Rank 0: the file in its full length, whose space is there. */
static enum status create_file(struct output *file)
{
  enum status status = open_regular(file->temporary, OPEN_NEW, &file->fd);
  if (status)
    return status;
  const int64_t bytes = (int64_t)file->header.bytes + file->data_bytes;
  status = file_reserve_open(file->fd, file->temporary, bytes);
  if (!status && ftruncate(file->fd, (off_t)bytes) != 0)
    status = open_failed(errno, "set the size of", file->temporary);
  return status ? status : write_at(file, file->header.data, file->header.bytes, 0);
}

static enum status create_files(struct safetensors_writer *writer)
{
  enum status status = file_make_folders(writer->dir);
  for (int f = 0; f < writer->files && !status; f++)
    status = create_file(&writer->file[f]);
  return status;
}

static enum status check_same(const struct safetensors_writer *writer)
{
  uLong sum = 0;
  for (int f = 0; f < writer->files; f++)
    sum = crc32_z(sum, (const unsigned char *)writer->file[f].header.data,
                  writer->file[f].header.bytes);
  const int64_t words[] = {(int64_t)sum, writer->files, writer->type};
  return comm_check_same(writer->comm, "the tensors to be written to a model folder", words,
                         sizeof words);
}

static void free_writer(struct safetensors_writer *writer)
{
  for (int f = 0; f < writer->files; f++) {
    struct output *file = &writer->file[f];
    if (file->fd >= 0)
      close(file->fd); /* where a failure matters, the file was closed before */
    text_buffer_free(&file->header);
    mem_free(file->name);
    mem_free(file->temporary);
  }
  mem_free(writer->file);
  mem_free(writer->by_name);
  mem_free(writer->place);
  mem_free(writer->part);
  mem_free(writer->dir);
  mem_free(writer);
}

enum status safetensors_writer_open(struct comm *comm, const char *dir, const char *name,
                                    enum dtype type, int n, const struct st_shape *tensors,
                                    int64_t most_bytes, struct safetensors_writer **out)
{
  struct safetensors_writer *writer = NULL;
  enum status status = comm_agree(comm, mem_new(MEM_META, 1, &writer));
  if (status) {
    mem_free(writer);
    return status;
  }
  writer->comm = comm;
  writer->name = name;
  writer->type = type;
  writer->n = n;
  status = comm_agree(comm, lay_out(writer, dir, tensors, most_bytes)) ?: check_same(writer);
  if (status) {
    free_writer(writer);
    return status;
  }
  status = comm_agree(comm, comm_rank(comm) == 0 ? create_files(writer) : STATUS_OK);
  if (status)
    return safetensors_writer_close(writer, status);
  *out = writer;
  return STATUS_OK;
}

/* Only finite elements are checked. An infinity stays one. */
static enum status check_range(const struct safetensors_writer *writer, const struct place *place,
                               int64_t first, const float *data, size_t n)
{
  const uint16_t *half = writer->part, infinity = writer->type == DTYPE_F16 ? 0x7c00 : 0x7f80;
  for (size_t i = 0; i < n; i++)
    if ((half[i] & 0x7fff) == infinity && isfinite(data[i]))
      return status_set(STATUS_INPUT,
                        "%s: element %lld is %g, which is too large for %s; choose another dtype",
                        place->shape->name, (long long)(first + (int64_t)i), (double)data[i],
                        writer->type == DTYPE_F16 ? "float16" : "bfloat16");
  return STATUS_OK;
}

enum status safetensors_writer_put(struct safetensors_writer *writer, int t,
                                   struct layout_range range, const float *data)
{
  const struct place *place = &writer->place[t];
  struct output *file = &writer->file[place->file];
  const int64_t size = (int64_t)dtype_size(writer->type);
  if (range.begin >= range.end)
    return STATUS_OK;
  if (range.begin < 0 || range.end > place->elements)
    return status_set(STATUS_INTERNAL, "elements %lld to %lld of tensor %s, which has %lld",
                      (long long)range.begin, (long long)range.end, place->shape->name,
                      (long long)place->elements);
  if (file->fd < 0 && open_regular(file->temporary, OPEN_UPDATE, &file->fd))
    return status_set(
        STATUS_IO,
        "%s: rank 0 made this file; the folder must be on a file system that all nodes share",
        status_text());
  for (int64_t at = range.begin; at < range.end; at += PART) {
    const int64_t n = range.end - at < PART ? range.end - at : PART;
    const float *from = data + (at - range.begin);
    dtype_convert(writer->part, writer->type, from, DTYPE_F32, (size_t)n);
    enum status status =
        writer->type == DTYPE_F32 ? STATUS_OK : check_range(writer, place, at, from, (size_t)n);
    status = status ?: write_at(file, writer->part, (size_t)(n * size), place->offset + at * size);
    if (status)
      return status;
  }
  writer->written += range.end - range.begin;
  return STATUS_OK;
}

/* --- the end ------------------------------------------------------------- */

static enum status close_files(struct safetensors_writer *writer)
{
  enum status status = STATUS_OK;
  for (int f = 0; f < writer->files; f++) {
    struct output *file = &writer->file[f];
    if (file->fd < 0)
      continue;
    if (!status && fsync(file->fd) != 0)
      status = open_failed(errno, "flush to the disk", file->temporary);
    if (close(file->fd) != 0 && !status)
      status = open_failed(errno, "close", file->temporary);
    file->fd = -1;
  }
  return status;
}

static enum status check_written(struct safetensors_writer *writer)
{
  int64_t written = writer->written;
  enum status status = comm_sum_i64(writer->comm, &written, 1);
  if (!status && written != writer->elements)
    status = status_set(STATUS_INTERNAL, "%lld of %lld elements of a model folder were written",
                        (long long)written, (long long)writer->elements);
  return status;
}

static enum status write_index(const struct safetensors_writer *writer)
{
  struct text_buffer text = {0};
  char name[64];
  snprintf(name, sizeof name, "%s.safetensors.index.json", writer->name);
  text_buffer_print(&text,
                    "{\n  \"metadata\": {\n    \"total_parameters\": %lld,\n    "
                    "\"total_size\": %lld\n  },\n  \"weight_map\": {",
                    (long long)writer->elements,
                    (long long)(writer->elements * (int64_t)dtype_size(writer->type)));
  for (int t = 0; t < writer->n; t++)
    text_buffer_print(&text, "%s\n    \"%s\": \"%s\"", t ? "," : "",
                      writer->by_name[t]->shape->name, writer->file[writer->by_name[t]->file].name);
  text_buffer_print(&text, "\n  }\n}\n");
  const enum status status =
      text.status ?: file_write_all(file_path(writer->dir, name).text, text.data, text.bytes);
  text_buffer_free(&text);
  return status;
}

/* Rank 0. Several files are a model only with the index, which comes last. */
static enum status rename_files(const struct safetensors_writer *writer)
{
  enum status status = STATUS_OK;
  for (int f = 0; f < writer->files && !status; f++)
    status = file_sync_rename(writer->file[f].temporary,
                              file_path(writer->dir, writer->file[f].name).text);
  return status || writer->files < 2 ? status : write_index(writer);
}

/* When a rank returns, the folder is as it was. The failure that led here is the one to report. */
static void remove_temporary(struct safetensors_writer *writer)
{
  for (int f = 0; comm_rank(writer->comm) == 0 && f < writer->files; f++)
    (void)unlink(writer->file[f].temporary);
  (void)comm_barrier(writer->comm);
}

enum status safetensors_writer_close(struct safetensors_writer *writer, enum status so_far)
{
  struct comm *comm = writer->comm;
  const bool leads = comm_rank(comm) == 0;
  enum status status =
      so_far
      ?: comm_agree(comm, close_files(writer))
      ?: check_written(writer)
      ?: comm_agree(comm, leads ? rename_files(writer) : STATUS_OK);
  if (status)
    remove_temporary(writer);
  free_writer(writer);
  return status;
}
