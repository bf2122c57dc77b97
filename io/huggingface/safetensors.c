#include "io/huggingface/safetensors.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/open.h"
#include "io/text/file.h"
#include "io/text/json_tree.h"

enum {
  LENGTH_BYTES = 8,
  HEADER_MOST = 100000000 /* as in the reference implementation */,
  INDEX_MOST = 64 << 20,
  NAME_SHOWN = 200
};

struct safetensors {
  char *path;
  int fd;
  int64_t bytes;
  struct json_tree *header; /* names and type names lie in it */
  int64_t n;
  struct st_tensor *tensor;
  const struct st_tensor **by_name;
};

struct safetensors_folder {
  struct safetensors **file;
  int64_t files, n;
  const struct st_tensor **by_name;
};

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

static enum status read_type(const struct json_node *node, struct st_tensor *tensor, int *bits)
{
  const char *name = NULL;
  enum status status = json_get_text(node, &name, NULL);
  if (status)
    return status;
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (!strcmp(name, types[i].name)) {
      tensor->type_name = types[i].name;
      tensor->type = types[i].type;
      tensor->known = types[i].known;
      *bits = types[i].bits;
      return STATUS_OK;
    }
  return json_fail(node, "is \"%.40s\", which is no type of a tensor", name);
}

static enum status read_shape(const struct json_node *node, struct st_tensor *tensor)
{
  if (json_kind(node) != JSON_ARRAY)
    return json_fail(node, "is not an array of lengths");
  tensor->elements = 1;
  for (const struct json_node *item = json_first(node); item; item = json_next(item)) {
    int64_t length = 0;
    enum status status = json_get_whole(item, 0, INT64_MAX, &length);
    if (status)
      return status;
    if (layout_mul(tensor->elements, length, &tensor->elements))
      return json_fail(node, "gives more than 2^62 elements");
    if (tensor->ndim < LAYOUT_MAX_DIMS)
      tensor->shape[tensor->ndim] = length;
    tensor->ndim++;
  }
  if (tensor->ndim > LAYOUT_MAX_DIMS)
    tensor->known = false;
  return STATUS_OK;
}

static enum status read_offsets(const struct json_node *node, const struct safetensors *file,
                                int64_t data_bytes, struct st_tensor *tensor)
{
  int64_t begin = 0, end = 0;
  const struct json_node *first = json_first(node);
  if (json_kind(node) != JSON_ARRAY || json_length(node) != 2)
    return json_fail(node, "is not an array of two offsets");
  enum status status = json_get_whole(first, 0, data_bytes, &begin);
  if (!status)
    status = json_get_whole(json_next(first), begin, data_bytes, &end);
  tensor->bytes = end - begin;
  tensor->at = file->bytes - data_bytes + begin;
  return status;
}

static enum status check_size(const struct json_node *node, const struct st_tensor *tensor,
                              int bits)
{
  int64_t all = 0;
  if (layout_mul(tensor->elements, bits, &all) || all % 8 || all / 8 != tensor->bytes)
    return json_fail(node, "has %lld elements of type %s and %lld bytes, which do not match",
                     (long long)tensor->elements, tensor->type_name, (long long)tensor->bytes);
  return STATUS_OK;
}

static enum status read_tensor(const struct json_node *node, const struct safetensors *file,
                               int64_t data_bytes, struct st_tensor *tensor)
{
  const struct json_node *type = json_find(node, "dtype"), *shape = json_find(node, "shape"),
                         *offsets = json_find(node, "data_offsets");
  int bits = 0;
  *tensor = (struct st_tensor){.name = json_key(node, NULL), .file = file->path, .fd = file->fd};
  if (!type || !shape || !offsets)
    return json_fail(node, "is no object of dtype, shape and data_offsets");
  enum status status = read_type(type, tensor, &bits);
  if (!status)
    status = read_shape(shape, tensor);
  if (!status)
    status = read_offsets(offsets, file, data_bytes, tensor);
  return status ? status : check_size(node, tensor, bits);
}

static enum status check_metadata(const struct json_node *node)
{
  const char *text = NULL;
  enum status status = json_kind(node) == JSON_OBJECT || json_kind(node) == JSON_NULL
                           ? STATUS_OK
                           : json_fail(node, "is not an object");
  for (const struct json_node *item = json_first(node); item && !status; item = json_next(item))
    status = json_get_text(item, &text, NULL);
  return status;
}

static enum status read_tensors(struct safetensors *file, int64_t data_bytes)
{
  const struct json_node *root = json_tree_root(file->header);
  enum status status = mem_new(MEM_META, json_length(root), &file->tensor);
  for (const struct json_node *node = json_first(root); node && !status; node = json_next(node)) {
    if (!strcmp(json_key(node, NULL), "__metadata__"))
      status = check_metadata(node);
    else
      status = read_tensor(node, file, data_bytes, &file->tensor[file->n++]);
  }
  return status;
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

/* The tensors must be contiguous, from the first byte of the data to the last. */
static enum status check_places(struct safetensors *file, int64_t data_bytes)
{
  int64_t at = file->bytes - data_bytes;
  qsort(file->by_name, (size_t)file->n, sizeof *file->by_name, compare_places);
  for (int64_t i = 0; i < file->n; i++) {
    const struct st_tensor *tensor = file->by_name[i];
    if (tensor->at != at)
      return status_set(STATUS_INPUT, "%s: the bytes of tensor %.*s %s", file->path, NAME_SHOWN,
                        tensor->name,
                        tensor->at < at ? "overlap those of another"
                                        : "do not begin where those before them end");
    at += tensor->bytes;
  }
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
  qsort(file->by_name, (size_t)file->n, sizeof *file->by_name, compare_names);
  return status;
}

/* Bytes of the file, which another program may truncate at any time. */
static enum status read_bytes(int fd, const char *path, int64_t at, size_t bytes, void *out)
{
  const int64_t got = file_read_at(fd, out, bytes, at);
  if (got < 0)
    return status_set(STATUS_IO, "cannot read %s: %s", path, strerror(errno));
  if (got < (int64_t)bytes)
    return status_set(STATUS_INPUT, "%s ends at byte %lld: it was truncated after it was opened",
                      path, (long long)(at + got));
  return STATUS_OK;
}

static enum status parse_header(struct safetensors *file, const char *text, size_t length)
{
  if (text[strspn(text, " \t\r\n")] != '{')
    return status_set(STATUS_INPUT,
                      "%s: the header does not begin with '{': this is no safetensors file",
                      file->path);
  const int64_t data_bytes = file->bytes - LENGTH_BYTES - (int64_t)length;
  enum status status = json_tree_parse(file->path, text, length, &file->header);
  if (!status)
    status = read_tensors(file, data_bytes);
  return status ? status : sort_tensors(file, data_bytes);
}

static enum status read_header(struct safetensors *file)
{
  uint64_t length = 0;
  char *text = NULL;
  enum status status = read_bytes(file->fd, file->path, 0, LENGTH_BYTES, &length);
  if (status)
    return status;
  if (length > HEADER_MOST || length > (uint64_t)(file->bytes - LENGTH_BYTES))
    return status_set(STATUS_INPUT,
                      "%s: a header of %llu bytes in a file of %lld: this is no safetensors file, "
                      "or it is truncated",
                      file->path, (unsigned long long)length, (long long)file->bytes);
  status = mem_new(MEM_META, length + 1, &text);
  if (!status)
    status = read_bytes(file->fd, file->path, LENGTH_BYTES, length, text);
  if (!status)
    status = parse_header(file, text, length);
  mem_free(text);
  return status;
}

/* --- one file ------------------------------------------------------------ */

static enum status failed(const char *doing, const char *path)
{
  return status_set(STATUS_IO, "cannot %s %s: %s", doing, path, strerror(errno));
}

static enum status open_file(struct safetensors *file)
{
  struct stat info;
  const enum status status = open_regular(file->path, OPEN_READ, &file->fd);
  if (status)
    return status;
  if (fstat(file->fd, &info) != 0)
    return failed("read", file->path);
  if (info.st_size < LENGTH_BYTES)
    return status_set(STATUS_INPUT,
                      "%s holds %lld bytes: this is no safetensors file, or it is truncated",
                      file->path, (long long)info.st_size);
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
  status = file->path ? open_file(file) : STATUS_MEMORY;
  if (!status)
    status = read_header(file);
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
  json_tree_free(file->header);
  mem_free(file->by_name);
  mem_free(file->tensor);
  mem_free(file->path);
  mem_free(file);
}

int64_t safetensors_count(const struct safetensors *file)
{
  return file->n;
}

const struct st_tensor *safetensors_at(const struct safetensors *file, int64_t i)
{
  return &file->tensor[i];
}

static const struct st_tensor *find(const struct st_tensor *const *by_name, int64_t n,
                                    const char *name)
{
  const struct st_tensor wanted = {.name = name}, *key = &wanted;
  const struct st_tensor *const *found =
      n > 0 ? bsearch(&key, by_name, (size_t)n, sizeof *by_name, compare_names) : NULL;
  return found ? *found : NULL;
}

const struct st_tensor *safetensors_find(const struct safetensors *file, const char *name)
{
  return find(file->by_name, file->n, name);
}

enum status safetensors_read(const struct st_tensor *tensor, struct layout_range range, float *out)
{
  enum { PART = 1 << 15 };
  uint16_t part[PART];
  if (!tensor->known)
    return status_set(STATUS_INPUT,
                      "%s: tensor %.*s has type %s and %d dimensions; F32, BF16 and F16 with at "
                      "most %d dimensions are read",
                      tensor->file, NAME_SHOWN, tensor->name, tensor->type_name, tensor->ndim,
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

/* --- a folder ------------------------------------------------------------ */

static enum status add_file(struct safetensors_folder *folder, const char *dir, const char *name,
                            struct safetensors **out)
{
  char *path = mem_printf("%s/%s", dir, name);
  if (!path)
    return STATUS_MEMORY;
  enum status status = mem_resize(MEM_META, (size_t)(folder->files + 1) * sizeof *folder->file,
                                  (void **)&folder->file);
  if (!status)
    status = safetensors_open(path, &folder->file[folder->files]);
  if (!status) {
    *out = folder->file[folder->files++];
    folder->n += (*out)->n;
  }
  mem_free(path);
  return status;
}

static const char *base_name(const char *path)
{
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

/* An index has far fewer files than tensors, and neighbouring tensors are mostly in one file.
 */
static enum status file_of(struct safetensors_folder *folder, const char *dir,
                           const struct json_node *entry, struct safetensors **out)
{
  const char *name = NULL;
  size_t bytes = 0;
  enum status status = json_get_text(entry, &name, &bytes);
  if (status)
    return status;
  if (bytes == 0 || bytes > 255 || name[0] == '.' || strchr(name, '/'))
    return json_fail(entry, "is no name of a file of this folder");
  for (int64_t i = folder->files - 1; i >= 0; i--)
    if (!strcmp(base_name(folder->file[i]->path), name)) {
      *out = folder->file[i];
      return STATUS_OK;
    }
  status = add_file(folder, dir, name, out);
  if (status == STATUS_IO || status == STATUS_INPUT)
    return json_fail(entry, "names a file that cannot be read: %s", status_text());
  return status;
}

/* Every tensor of the index is in the file that it names, and the files hold no others. */
static enum status check_index(const struct safetensors_folder *folder, const struct json_node *map)
{
  for (int64_t i = 0; i < folder->files; i++) {
    const struct safetensors *file = folder->file[i];
    for (int64_t t = 0; t < file->n; t++) {
      const char *name = NULL;
      const struct json_node *entry = json_find(map, file->tensor[t].name);
      if (!entry)
        return status_set(STATUS_INPUT, "%s: tensor %.*s is not in the folder's index", file->path,
                          NAME_SHOWN, file->tensor[t].name);
      enum status status = json_get_text(entry, &name, NULL);
      if (!status && strcmp(name, base_name(file->path)) != 0)
        status = status_set(STATUS_INPUT,
                            "%s: tensor %.*s is in this file, but the folder's index says %.*s",
                            file->path, NAME_SHOWN, file->tensor[t].name, NAME_SHOWN, name);
      if (status)
        return status;
    }
  }
  return STATUS_OK;
}

static enum status read_index(struct safetensors_folder *folder, const char *dir,
                              const struct json_node *root)
{
  const struct json_node *map = json_find(root, "weight_map");
  if (!map || json_kind(map) != JSON_OBJECT || json_length(map) == 0)
    return json_fail(root, "has no object weight_map that names tensors");
  enum status status = STATUS_OK;
  for (const struct json_node *entry = json_first(map); entry && !status;
       entry = json_next(entry)) {
    struct safetensors *file = NULL;
    status = file_of(folder, dir, entry, &file);
    if (!status && !safetensors_find(file, json_key(entry, NULL)))
      status = json_fail(entry, "is %s, which holds no such tensor", base_name(file->path));
  }
  return status ? status : check_index(folder, map);
}

static enum status open_index(struct safetensors_folder *folder, const char *dir, const char *path)
{
  struct json_tree *index = NULL;
  enum status status = json_tree_read(path, INDEX_MOST, &index);
  if (!status)
    status = read_index(folder, dir, json_tree_root(index));
  json_tree_free(index);
  return status;
}

static enum status open_files(struct safetensors_folder *folder, const char *dir)
{
  struct safetensors *file = NULL;
  enum status status = STATUS_MEMORY;
  char *single = mem_printf("%s/model.safetensors", dir),
       *index = mem_printf("%s/model.safetensors.index.json", dir);
  if (single && index) {
    if (file_exists(single)) /* as the reference implementation prefers it */
      status = add_file(folder, dir, "model.safetensors", &file);
    else if (file_exists(index))
      status = open_index(folder, dir, index);
    else
      status = status_set(STATUS_INPUT,
                          "%s holds neither model.safetensors nor model.safetensors.index.json; "
                          "weights in other formats must be saved as safetensors first",
                          dir);
  }
  mem_free(single);
  mem_free(index);
  return status;
}

static enum status sort_folder(struct safetensors_folder *folder)
{
  int64_t n = 0;
  enum status status = mem_new(MEM_META, folder->n, &folder->by_name);
  if (status)
    return status;
  for (int64_t i = 0; i < folder->files; i++)
    for (int64_t t = 0; t < folder->file[i]->n; t++)
      folder->by_name[n++] = &folder->file[i]->tensor[t];
  qsort(folder->by_name, (size_t)n, sizeof *folder->by_name, compare_names);
  return STATUS_OK;
}

enum status safetensors_folder_open(const char *dir, struct safetensors_folder **out)
{
  struct safetensors_folder *folder = NULL;
  enum status status = mem_new(MEM_META, 1, &folder);
  if (status)
    return status;
  status = open_files(folder, dir);
  if (!status)
    status = sort_folder(folder);
  if (status)
    safetensors_folder_close(folder);
  else
    *out = folder;
  return status;
}

void safetensors_folder_close(struct safetensors_folder *folder)
{
  if (!folder)
    return;
  for (int64_t i = 0; i < folder->files; i++)
    safetensors_close(folder->file[i]);
  mem_free(folder->file);
  mem_free(folder->by_name);
  mem_free(folder);
}

int64_t safetensors_folder_count(const struct safetensors_folder *folder)
{
  return folder->n;
}

const struct st_tensor *safetensors_folder_at(const struct safetensors_folder *folder, int64_t i)
{
  return folder->by_name[i];
}

const struct st_tensor *safetensors_folder_find(const struct safetensors_folder *folder,
                                                const char *name)
{
  return find(folder->by_name, folder->n, name);
}
