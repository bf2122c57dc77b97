/* Reading safetensors: the header is checked whole when a file is opened, data on demand. */
#include "io/huggingface/private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/open.h"
#include "io/text/file.h"
#include "io/text/file_kind.h"

enum {
  LENGTH_BYTES = 8,
  HEADER_MOST = 100000000 /* as in the reference implementation */
};

static const char again[] = "download it again"; /* the cure of a truncated file */
static const int64_t most_bytes = INT64_MAX / 4; /* of any file: sums do not overflow */

/* The types of the format. */
static const struct st_type {
  const char *name;
  int bits;
  bool known;
  enum dtype type;
} types[] = {
    {"F32", 32, true, DTYPE_F32},       {"BF16", 16, true, DTYPE_BF16},
    {"F16", 16, true, DTYPE_F16},       {.name = "F64", .bits = 64},
    {.name = "C64", .bits = 64},        {.name = "I64", .bits = 64},
    {.name = "U64", .bits = 64},        {.name = "I32", .bits = 32},
    {.name = "U32", .bits = 32},        {.name = "I16", .bits = 16},
    {.name = "U16", .bits = 16},        {.name = "I8", .bits = 8},
    {.name = "U8", .bits = 8},          {.name = "BOOL", .bits = 8},
    {.name = "F8_E4M3", .bits = 8},     {.name = "F8_E5M2", .bits = 8},
    {.name = "F8_E8M0", .bits = 8},     {.name = "F8_E4M3FNUZ", .bits = 8},
    {.name = "F8_E5M2FNUZ", .bits = 8}, {.name = "F6_E2M3", .bits = 6},
    {.name = "F6_E3M2", .bits = 6},     {.name = "F4", .bits = 4},
};

/* --- the header ---------------------------------------------------------- */

static int read_type(struct json_node node, struct st_tensor *tensor)
{
  const char *name = json_get_text(node);
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (!strcmp(name, types[i].name)) {
      tensor->type_name = types[i].name;
      tensor->type = types[i].type;
      tensor->known = types[i].known;
      return types[i].bits;
    }
  json_fail(node, "is \"%.40s\", which is no type of a tensor", name);
  return 0;
}

static void read_shape(struct json_node node, struct st_tensor *tensor)
{
  tensor->elements = 1;
  json_get_array(node);
  for (struct json_node item = json_first(node); json_more(item); item = json_next(item)) {
    const int64_t length = json_get_whole(item, 0, INT64_MAX);
    if (layout_mul(tensor->elements, length, &tensor->elements))
      json_fail(node, "gives more than 2^62 elements");
    if (tensor->ndim < LAYOUT_MAX_DIMS)
      tensor->shape[tensor->ndim] = length;
    tensor->ndim++;
  }
  if (tensor->ndim > LAYOUT_MAX_DIMS)
    tensor->known = false;
}

/* Offsets may lie after the end of the file, which is truncated then: check_places(). */
static void read_offsets(struct json_node node, const struct safetensors *file, int64_t data_bytes,
                         struct st_tensor *tensor)
{
  const struct json_node first = json_first(node);
  if (!json_is_array(node.value) || json_length(node) != 2) {
    json_fail(node, "is not an array of two offsets");
    return;
  }
  const int64_t begin = json_get_whole(first, 0, most_bytes),
                end = json_get_whole(json_next(first), begin, most_bytes);
  tensor->bytes = end - begin;
  tensor->at = file->bytes - data_bytes + begin;
}

static void read_tensor(struct json_node node, const struct safetensors *file, int64_t data_bytes,
                        struct st_tensor *tensor)
{
  const struct json_node type = json_find(node, "dtype"), shape = json_find(node, "shape"),
                         offsets = json_find(node, "data_offsets");
  int64_t all = 0;
  *tensor = (struct st_tensor){.name = node.key, .file = file->path, .fd = file->fd};
  if (!type.value || !shape.value || !offsets.value) {
    json_fail(node, "is no object of dtype, shape and data_offsets");
    return;
  }
  const int bits = read_type(type, tensor);
  read_shape(shape, tensor);
  read_offsets(offsets, file, data_bytes, tensor);
  if (layout_mul(tensor->elements, bits, &all) || all % 8 || all / 8 != tensor->bytes)
    json_fail(node, "has %lld elements of type %s and %lld bytes, which do not match",
              (long long)tensor->elements, tensor->type_name, (long long)tensor->bytes);
}

static void check_metadata(struct json_node node)
{
  if (!json_is_null(node.value))
    json_get_object(node);
  for (struct json_node item = json_first(node); json_more(item); item = json_next(item))
    json_get_text(item);
}

static enum status read_tensors(struct safetensors *file, int64_t data_bytes)
{
  const struct json_node root = json_root(&file->header);
  enum status status = mem_new(MEM_META, json_length(root), &file->tensor);
  if (status)
    return status;
  for (struct json_node node = json_first(root); json_more(node); node = json_next(node)) {
    if (!strcmp(node.key, "__metadata__"))
      check_metadata(node);
    else
      read_tensor(node, file, data_bytes, &file->tensor[file->n++]);
  }
  return file->header.status;
}

static int compare_places(const void *a, const void *b)
{
  const struct st_tensor *left = *(const struct st_tensor *const *)a,
                         *right = *(const struct st_tensor *const *)b;
  if (left->at != right->at)
    return left->at < right->at ? -1 : 1;
  return (left->bytes > right->bytes) - (left->bytes < right->bytes);
}

static int compare_names(const void *a, const void *b)
{
  return strcmp((*(const struct st_tensor *const *)a)->name,
                (*(const struct st_tensor *const *)b)->name);
}

void st_sort_names(const struct st_tensor **tensors, int64_t n)
{
  qsort(tensors, (size_t)n, sizeof *tensors, compare_names);
}

const struct st_tensor *st_find(const struct st_tensor *const *by_name, int64_t n, const char *name)
{
  const struct st_tensor wanted = {.name = name}, *key = &wanted;
  const struct st_tensor *const *found =
      n > 0 ? bsearch(&key, by_name, (size_t)n, sizeof *by_name, compare_names) : NULL;
  return found ? *found : NULL;
}

/* The tensors must be contiguous, from the first byte of the data to the last. */
static enum status check_places(struct safetensors *file, int64_t data_bytes)
{
  int64_t at = file->bytes - data_bytes;
  qsort(file->by_name, (size_t)file->n, sizeof *file->by_name, compare_places);
  for (int64_t i = 0; i < file->n; i++) {
    const struct st_tensor *tensor = file->by_name[i];
    if (tensor->at != at)
      return status_set(STATUS_INPUT, "%s: the bytes of tensor %.*s %s", file->path, ST_NAME_SHOWN,
                        tensor->name,
                        tensor->at < at ? "overlap those of another"
                                        : "do not begin where those before them end");
    at += tensor->bytes;
  }
  if (at > file->bytes)
    return status_set(STATUS_INPUT, "%s is truncated: it has %lld bytes, its header tells %lld; %s",
                      file->path, (long long)file->bytes, (long long)at, again);
  if (at != file->bytes)
    return status_set(STATUS_INPUT, "%s: the last %lld bytes belong to no tensor", file->path,
                      (long long)(file->bytes - at));
  return STATUS_OK;
}

static enum status sort_tensors(struct safetensors *file, int64_t data_bytes)
{
  enum status status = mem_new(MEM_META, file->n, &file->by_name);
  if (status)
    return status;
  for (int64_t i = 0; i < file->n; i++)
    file->by_name[i] = &file->tensor[i];
  if (file->n > 0 || data_bytes > 0)
    status = check_places(file, data_bytes);
  st_sort_names(file->by_name, file->n);
  return status;
}

/* Bytes of the file, which another program may truncate at any time. */
static enum status read_bytes(int fd, const char *path, int64_t at, size_t bytes, void *out)
{
  const int64_t got = file_read_at(fd, out, bytes, at);
  if (got < 0)
    return open_failed(errno, "read", path);
  if (got < (int64_t)bytes)
    return status_set(STATUS_INPUT, "%s ends at byte %lld: it was truncated after it was opened",
                      path, (long long)(at + got));
  return STATUS_OK;
}

/* The error of a file that does not begin as one of safetensors. */
static enum status refuse_other(const struct safetensors *file)
{
  char start[FILE_KIND_BYTES];
  const int64_t got = file_read_at(file->fd, start, sizeof start, 0);
  enum status status = got < 0 ? open_failed(errno, "read", file->path)
                               : file_kind_refuse(file->path, "safetensors", start, (size_t)got);
  if (status)
    return status;
  if (file->bytes < LENGTH_BYTES)
    return status_set(STATUS_INPUT, "%s is truncated: it has %lld bytes; %s", file->path,
                      (long long)file->bytes, again);
  return status_set(STATUS_INPUT,
                    "%s is no safetensors file: it does not begin with the length of a header and "
                    "a '{'",
                    file->path);
}

static bool begins_header(const struct safetensors *file)
{
  char first = '{';
  if (file->bytes > LENGTH_BYTES && file_read_at(file->fd, &first, 1, LENGTH_BYTES) != 1)
    return false;
  return memchr("{ \t\r\n", first, 5);
}

/* The reference implementation takes white space around the object. */
static enum status parse_header(struct safetensors *file, const char *text, size_t length)
{
  if (text[strspn(text, " \t\r\n")] != '{')
    return refuse_other(file);
  const int64_t data_bytes = file->bytes - LENGTH_BYTES - (int64_t)length;
  return json_parse(file->path, text, length, &file->header)
         ?: read_tensors(file, data_bytes)
         ?: sort_tensors(file, data_bytes);
}

static enum status read_header(struct safetensors *file)
{
  uint64_t length = 0;
  char *text = NULL;
  enum status status = file->bytes < LENGTH_BYTES
                           ? refuse_other(file)
                           : read_bytes(file->fd, file->path, 0, LENGTH_BYTES, &length);
  if (status)
    return status;
  if (length > HEADER_MOST || !begins_header(file))
    return refuse_other(file);
  if (length > (uint64_t)(file->bytes - LENGTH_BYTES))
    return status_set(STATUS_INPUT,
                      "%s is truncated: it has %lld bytes, its header ends at byte %lld; %s",
                      file->path, (long long)file->bytes, (long long)length + LENGTH_BYTES, again);
  status = mem_new(MEM_META, length + 1, &text)
           ?: read_bytes(file->fd, file->path, LENGTH_BYTES, length, text)
           ?: parse_header(file, text, length);
  mem_free(text);
  return status;
}

/* --- one file ------------------------------------------------------------ */

static enum status open_file(struct safetensors *file)
{
  struct stat info;
  const enum status status = open_regular(file->path, OPEN_READ, &file->fd);
  if (status)
    return status;
  if (fstat(file->fd, &info) != 0)
    return open_failed(errno, "read", file->path);
  file->bytes = info.st_size;
  return STATUS_OK;
}

enum status safetensors_open(const char *path, struct safetensors **out)
{
  struct safetensors *file = NULL;
  enum status status = mem_new(MEM_META, 1, &file);
  if (status)
    return status;
  file->fd = -1;
  file->path = mem_strdup(path);
  status = (file->path ? open_file(file) : STATUS_MEMORY) ?: read_header(file);
  if (status)
    safetensors_close(file);
  else
    *out = file;
  return status;
}

void safetensors_close(struct safetensors *file)
{
  if (!file)
    return;
  if (file->fd >= 0)
    close(file->fd); /* was only read: nothing can be lost */
  json_close(&file->header);
  mem_free(file->by_name);
  mem_free(file->tensor);
  mem_free(file->path);
  mem_free(file);
}

enum status safetensors_read(const struct st_tensor *tensor, struct layout_range range, float *out)
{
  enum { PART = 1 << 15 };
  uint16_t part[PART];
  if (!tensor->known)
    return status_set(STATUS_INPUT,
                      "%s: tensor %.*s has type %s and %d dimensions; F32, BF16 and F16 with at "
                      "most %d dimensions are read",
                      tensor->file, ST_NAME_SHOWN, tensor->name, tensor->type_name, tensor->ndim,
                      LAYOUT_MAX_DIMS);
  if (range.begin >= range.end)
    return STATUS_OK;
  if (range.begin < 0 || range.end > tensor->elements)
    return status_set(STATUS_INTERNAL, "elements %lld to %lld of tensor %s, which has %lld",
                      (long long)range.begin, (long long)range.end, tensor->name,
                      (long long)tensor->elements);
  if (tensor->type == DTYPE_F32)
    return read_bytes(tensor->fd, tensor->file, tensor->at + range.begin * 4,
                      (size_t)(range.end - range.begin) * 4, out);
  enum status status = STATUS_OK;
  for (int64_t at = range.begin; at < range.end && !status; at += PART) {
    const size_t n = range.end - at < PART ? (size_t)(range.end - at) : PART;
    status = read_bytes(tensor->fd, tensor->file, tensor->at + at * 2, n * 2, part);
    if (!status)
      dtype_convert(out + (at - range.begin), DTYPE_F32, part, tensor->type, n);
  }
  return status;
}
