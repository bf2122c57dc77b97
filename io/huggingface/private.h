/* The structs of an open file and an open folder. Private to io/huggingface. */
#pragma once

#include "io/huggingface/safetensors.h"
#include "io/text/json.h"

enum { ST_NAME_SHOWN = 200 };

struct safetensors {
  char *path;
  int fd;
  int64_t bytes;
  struct json_file header; /* names lie in it */
  int64_t n;
  struct st_tensor *tensor; /* in the order of the header */
  const struct st_tensor **by_name;
};

/* Local. */
enum status safetensors_open(const char *path, struct safetensors **out);
void safetensors_close(struct safetensors *file); /* takes NULL */

struct safetensors_folder {
  struct safetensors **file;
  int64_t files, n;
  const struct st_tensor **by_name;
};

void st_sort_names(const struct st_tensor **tensors, int64_t n);
/* NULL: none. `by_name`: sorted by st_sort_names(). */
const struct st_tensor *st_find(const struct st_tensor *const *by_name, int64_t n,
                                const char *name);
