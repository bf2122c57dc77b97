/* The safetensors files of a model folder: one, or those that an index names. Also the names of its
 * tensors without the words of wrappers, and what the folder lacks. */
#include "io/huggingface/private.h"

#include <dirent.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/append.h"
#include "base/mem.h"
#include "io/text/file.h"

static const char index_name[] = "model.safetensors.index.json",
                  weights_name[] = "model.safetensors";
enum { INDEX_MOST = 64 << 20 };

static enum status add_file(struct safetensors_folder *folder, const char *dir, const char *name,
                            struct safetensors **out)
{
  const enum status status =
      mem_resize(MEM_META, (size_t)(folder->files + 1) * sizeof *folder->file,
                 (void **)&folder->file)
          ?: safetensors_open(file_path(dir, name).text, &folder->file[folder->files]);
  if (!status) {
    *out = folder->file[folder->files++];
    folder->n += (*out)->n;
  }
  return status;
}

/* --- what a folder lacks ------------------------------------------------- */

/* The first name in the folder, in the order of letters, that matches. */
static bool find_name(const char *dir, const char *pattern, char *out, size_t size)
{
  DIR *folder = opendir(dir);
  *out = '\0';
  for (const struct dirent *entry; folder && (entry = readdir(folder));)
    if (!fnmatch(pattern, entry->d_name, FNM_EXTMATCH) && (!*out || strcmp(entry->d_name, out) < 0))
      snprintf(out, size, "%s", entry->d_name);
  if (folder)
    closedir(folder);
  return *out;
}

/* An unfinished download leaves a file next to its target or, with `hf download`, in a folder. */
static bool find_unfinished(const char *dir, char *out, size_t size)
{
  static const char ends[] =
      "*.@(incomplete|part|partial|crdownload|aria2|download|tmp|opdownload)",
                    hidden[] = ".cache/huggingface/download";
  char name[256];
  if (find_name(dir, ends, out, size))
    return true;
  const bool found = find_name(file_path(dir, hidden).text, "*.incomplete", name, sizeof name);
  if (found)
    snprintf(out, size, "%s/%s", hidden, name);
  return found;
}

static bool is_there(const char *dir, const char *name)
{
  return file_exists(file_path(dir, name).text);
}

static bool is_link(const char *dir, const char *name)
{
  char to[1];
  return readlink(file_path(dir, name).text, to, sizeof to) >= 0;
}

/* The error of a file that belongs to the model and is not there. */
static enum status refuse_absent(const char *dir, const char *name)
{
  char part[512];
  if (is_link(dir, name))
    return status_set(STATUS_INPUT,
                      "%s/%s is a link to a file that is not there: download it again, or copy the "
                      "folder with cp -L",
                      dir, name);
  if (find_unfinished(dir, part, sizeof part))
    return status_set(STATUS_INPUT,
                      "%s lacks %s, and its %s is from a download that did not finish: download it "
                      "again",
                      dir, name, part);
  return status_set(STATUS_INPUT, "%s lacks %s, a part of the model: download it", dir, name);
}

#define SAVE "load the model in transformers and save it with save_pretrained()"
#define ADAPTER "name it by lora.init, and its base by train.init"
#define DOWNLOAD "download the model's safetensors files"

/* Names that tell what a folder is, and what to do. The first one that is there counts. */
static const struct {
  const char *name;
  const char *text; /* after "DIR holds NAME, " */
} hints[] = {
    {"model*-of-*.safetensors",
     "but no model.safetensors.index.json, which names the file of each tensor: download it too"},
    {"adapter_model*", "a LoRA adapter: " ADAPTER},
    {"adapter_config.json", "the settings of a LoRA adapter: " ADAPTER},
    {"consolidated*", "weights in the format of Mistral or Meta: download the files for "
                      "transformers, model*.safetensors with config.json"},
    {"*.safetensors", "but no model.safetensors: if the file has all weights, rename it"},
    {"pytorch_model*", "weights of PyTorch: " SAVE},
    {"*.bin", "a file of PyTorch: " SAVE},
    {"*.pt", "a file of PyTorch: " SAVE},
    {"*.pth", "a file of PyTorch: " SAVE},
    {"*.ckpt", "a file of PyTorch: " SAVE},
    {"*.gguf", "a file of llama.cpp: " DOWNLOAD},
    {"tf_model.h5", "weights of TensorFlow: " DOWNLOAD},
    {"*.msgpack", "weights of Flax: " DOWNLOAD},
    {"*.onnx", "a file of ONNX: " DOWNLOAD},
    {"snapshots", "so it is a cache of downloads: name the folder in its snapshots"},
    {"checkpoint-[0-9]*", "so it is a folder of checkpoints: name one of them"},
};

enum status safetensors_folder_refuse(const char *dir)
{
  char name[256];
  const bool config = is_there(dir, "config.json");
  if (is_link(dir, weights_name))
    return refuse_absent(dir, weights_name);
  if (!config && (is_there(dir, weights_name) || is_there(dir, index_name)))
    return refuse_absent(dir, "config.json");
  for (size_t i = 0; i < sizeof hints / sizeof *hints; i++)
    if (find_name(dir, hints[i].name, name, sizeof name))
      return status_set(STATUS_INPUT, "%s holds %s, %s", dir, name, hints[i].text);
  return config || find_unfinished(dir, name, sizeof name) ? refuse_absent(dir, weights_name)
                                                           : STATUS_OK;
}

/* --- the index ----------------------------------------------------------- */

/* An index has far fewer files than tensors, and neighbouring tensors are mostly in one file.
 * NULL after a failure. */
static const struct safetensors *file_of(struct safetensors_folder *folder, const char *dir,
                                         struct json_node entry)
{
  struct safetensors *file = NULL;
  const char *name = json_get_text(entry);
  if (!*name || strlen(name) > 255 || *name == '.' || strchr(name, '/'))
    json_fail(entry, "is no name of a file of this folder");
  if (entry.file->status)
    return NULL;
  for (int64_t i = folder->files - 1; i >= 0; i--)
    if (!strcmp(basename(folder->file[i]->path), name))
      return folder->file[i];
  json_keep(entry.file,
            is_there(dir, name) ? add_file(folder, dir, name, &file) : refuse_absent(dir, name));
  return file;
}

/* Every tensor of a file is in the index, and not in another file. */
static enum status check_tensor(const struct safetensors *file, const char *tensor,
                                struct json_node map)
{
  const char *name = json_string_value(json_find(map, tensor).value);
  if (!name)
    return status_set(STATUS_INPUT, "%s: tensor %.*s is not in the folder's index", file->path,
                      ST_NAME_SHOWN, tensor);
  if (strcmp(name, basename(file->path)) != 0)
    return status_set(STATUS_INPUT,
                      "%s: tensor %.*s is in this file, but the folder's index says %.*s",
                      file->path, ST_NAME_SHOWN, tensor, ST_NAME_SHOWN, name);
  return STATUS_OK;
}

static enum status read_index(struct safetensors_folder *folder, const char *dir,
                              struct json_node root)
{
  const struct json_node map = json_find(root, "weight_map");
  if (!json_is_object(map.value) || json_length(map) == 0)
    return json_fail(root, "has no object weight_map that names tensors");
  for (struct json_node entry = json_first(map); json_more(entry); entry = json_next(entry)) {
    const struct safetensors *file = file_of(folder, dir, entry);
    if (file && !st_find(file->by_name, file->n, entry.key))
      json_fail(entry, "is %s, which holds no such tensor", basename(file->path));
  }
  enum status status = root.file->status;
  for (int64_t i = 0; i < folder->files && !status; i++)
    for (int64_t t = 0; t < folder->file[i]->n && !status; t++)
      status = check_tensor(folder->file[i], folder->file[i]->tensor[t].name, map);
  return status;
}

static enum status open_index(struct safetensors_folder *folder, const char *dir)
{
  struct json_file index = {0};
  const enum status status = json_read(file_path(dir, index_name).text, INDEX_MOST, &index)
                                 ?: read_index(folder, dir, json_root(&index));
  json_close(&index);
  return status;
}

/* The reference implementation, too, prefers the single file. */
static enum status open_files(struct safetensors_folder *folder, const char *dir)
{
  struct safetensors *file = NULL;
  if (is_there(dir, weights_name))
    return add_file(folder, dir, weights_name, &file);
  if (is_there(dir, index_name))
    return open_index(folder, dir);
  return safetensors_folder_refuse(dir) ?: refuse_absent(dir, weights_name);
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
  st_sort_names(folder->by_name, n);
  return STATUS_OK;
}

/* All names have the prefix, so they stay in order without it. */
static enum status open_adapters(struct safetensors_folder *folder, const char *dir)
{
  static const char prefix[] = "base_model.model.", name[] = "adapter_model.safetensors";
  struct safetensors *file = NULL;
  enum status status = is_there(dir, name) ? add_file(folder, dir, name, &file)
                                           : status_set(STATUS_INPUT, "%s has no %s", dir, name);
  for (int64_t t = 0; !status && t < file->n; t++) {
    if (strncmp(file->tensor[t].name, prefix, sizeof prefix - 1) != 0)
      return status_set(STATUS_INPUT, "%s: tensor %.*s is no part of a LoRA adapter", file->path,
                        ST_NAME_SHOWN, file->tensor[t].name);
    file->tensor[t].name += sizeof prefix - 1;
  }
  return status;
}

static enum status open_folder(const char *dir, bool adapters, struct safetensors_folder **out)
{
  struct safetensors_folder *folder = NULL;
  const enum status status = mem_new(MEM_META, 1, &folder)
      ?: (adapters ? open_adapters(folder, dir) : open_files(folder, dir))
      ?: sort_folder(folder);
  if (status)
    safetensors_folder_close(folder);
  else
    *out = folder;
  return status;
}

enum status safetensors_folder_open(const char *dir, struct safetensors_folder **out)
{
  return open_folder(dir, false, out);
}

enum status safetensors_folder_open_adapters(const char *dir, struct safetensors_folder **out)
{
  return open_folder(dir, true, out);
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
  return st_find(folder->by_name, folder->n, name);
}

/* --- names of wrappers --------------------------------------------------- */

/* Words that wrappers of PyTorch put into names: torch.compile, FSDP, DeepSpeed and others. */
static const char *const words[] = {"_orig_mod.", "_fsdp_wrapped_module.",
                                    "_checkpoint_wrapped_module.", "_forward_module.",
                                    "_fpw_module."};

static void tell(char *left_out, size_t size, const char *word, size_t bytes)
{
  if (memmem(left_out, strlen(left_out), word, bytes))
    return;
  append_text(left_out, size, "%s%.*s", *left_out ? ", " : "", (int)bytes, word);
}

/* In place: names lie in the header's tree, which is not read again. */
static void leave_words_out(char *name, char *left_out, size_t size)
{
  char *to = name;
  for (const char *from = name; *from;) {
    const char *next = strchr(from, '.');
    const size_t bytes = next ? (size_t)(next + 1 - from) : strlen(from);
    bool word = false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
      word |= bytes == strlen(words[i]) && !memcmp(from, words[i], bytes);
    if (word)
      tell(left_out, size, from, bytes);
    else
      memmove(to, from, bytes);
    to += word ? 0 : bytes;
    from += bytes;
  }
  *to = '\0';
}

static bool all_begin_with(const struct safetensors_folder *folder, const char *prefix,
                           size_t bytes)
{
  for (int64_t i = 0; i < folder->n; i++)
    if (strncmp(folder->by_name[i]->name, prefix, bytes) != 0)
      return false;
  return true;
}

/* The length of what all names have before the name of the embedding, up to a '.'. */
static size_t find_prefix(const struct safetensors_folder *folder, const char *embedding)
{
  const size_t own = strlen(embedding);
  for (int64_t i = 0; i < folder->n; i++) {
    const char *name = folder->by_name[i]->name;
    const size_t bytes = strlen(name);
    if (bytes > own && name[bytes - own - 1] == '.' && !strcmp(name + bytes - own, embedding) &&
        all_begin_with(folder, name, bytes - own))
      return bytes - own;
  }
  return 0;
}

static enum status check_names(const struct safetensors_folder *folder)
{
  for (int64_t i = 1; i < folder->n; i++)
    if (!strcmp(folder->by_name[i - 1]->name, folder->by_name[i]->name))
      return status_set(STATUS_INPUT,
                        "%s: two tensors are named %.*s, if words of wrappers such as _orig_mod "
                        "are left out of their names",
                        folder->by_name[i]->file, ST_NAME_SHOWN, folder->by_name[i]->name);
  return STATUS_OK;
}

enum status safetensors_folder_unwrap(struct safetensors_folder *folder, const char *embedding,
                                      const char *base, char *left_out, size_t size)
{
  *left_out = '\0';
  for (int64_t i = 0; i < folder->n; i++)
    leave_words_out((char *)folder->by_name[i]->name, left_out, size);
  st_sort_names(folder->by_name, folder->n);
  const enum status status = check_names(folder);
  if (status || safetensors_folder_find(folder, embedding) || safetensors_folder_find(folder, base))
    return status;
  size_t bytes = find_prefix(folder, embedding);
  if (bytes == 0)
    bytes = find_prefix(folder, base);
  if (bytes > 0)
    tell(left_out, size, folder->by_name[0]->name, bytes);
  for (int64_t f = 0; f < folder->files; f++)
    for (int64_t t = 0; t < folder->file[f]->n; t++)
      folder->file[f]->tensor[t].name += bytes;
  return STATUS_OK;
}
