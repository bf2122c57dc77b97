/* Hugging Face's safetensors files (https://github.com/huggingface/safetensors, format 0.x): 8
 * bytes of header length, a JSON header {name: {dtype, shape, data_offsets}}, data. A rank reads
 * only the ranges that it asks for. Header, offsets and sizes are checked before use: overlaps,
 * holes, offsets beyond the file, shapes whose product overflows or does not match their bytes,
 * names that occur twice. STATUS_INPUT names file and tensor. */
#pragma once

#include "base/dtype.h"
#include "comm/comm.h"
#include "layout/layout.h"

struct st_tensor {
  const char *name;
  enum dtype type; /* F32, BF16 or F16 if `known`. Other types (`type_name`) are refused when their
                      elements are read, not when the file is opened */
  bool known;
  const char *type_name; /* "F32", "I64" */
  int ndim;
  int64_t shape[LAYOUT_MAX_DIMS]; /* `known` is false for tensors with more dimensions */
  int64_t elements;
  int64_t bytes;
  int64_t at;       /* its first byte in the file */
  int fd;           /* of the file, open until safetensors_close() */
  const char *file; /* path, for messages */
};

/* A model folder: model.safetensors, or the files that model.safetensors.index.json names.
 * Local. */
struct safetensors_folder;
enum status safetensors_folder_open(const char *dir, struct safetensors_folder **out);
/* PEFT's adapter_model.safetensors, with names without its prefix "base_model.model.". Local. */
enum status safetensors_folder_open_adapters(const char *dir, struct safetensors_folder **out);
void safetensors_folder_close(struct safetensors_folder *folder); /* takes NULL */
int64_t safetensors_folder_count(const struct safetensors_folder *folder);
const struct st_tensor *safetensors_folder_at(const struct safetensors_folder *folder, int64_t i);
const struct st_tensor *safetensors_folder_find(const struct safetensors_folder *folder,
                                                const char *name);

/* Removes the words of wrappers such as torch.compile ("_orig_mod.") from the names of tensors.
 * Also removes the prefix, such as "module.", that all names share before one of the two names of
 * the embedding. `left_out`, an array of `size` bytes, lists the removed words; "" if there are
 * none. STATUS_INPUT if two tensors then have the same name. Local. */
enum status safetensors_folder_unwrap(struct safetensors_folder *folder, const char *embedding,
                                      const char *base, char *left_out, size_t size);
/* For a folder that cannot be opened as a model's. STATUS_INPUT says which part it lacks, or what
 * it holds instead, by the names of its files. STATUS_OK: they tell nothing. Local. */
enum status safetensors_folder_refuse(const char *dir);

/* Elements [range) as fp32, exactly. STATUS_INPUT if the type is not one of the three, or if the
 * file was cut since it was opened. Local. */
enum status safetensors_read(const struct st_tensor *tensor, struct layout_range range, float *out);

/* Writing a model folder: NAME.safetensors, or NAME-00001-of-0000N.safetensors and so on with an
 * index where one file would hold more than `most_bytes` of data. NAME is "model" or, of adapters,
 * "adapter_model". All ranks write into files of
 * temporary names; the folder holds the weights completely or not at all. */
struct safetensors_writer;
struct st_shape {
  const char *name;
  int ndim;
  int64_t shape[LAYOUT_MAX_DIMS];
};
/* `n` tensors, the same on all ranks, stored as `type` (F32, BF16, F16). The folder is made if it
 * is not there. Collective. */
enum status safetensors_writer_open(struct comm *comm, const char *dir, const char *name,
                                    enum dtype type, int n, const struct st_shape *tensors,
                                    int64_t most_bytes, struct safetensors_writer **out);
/* Elements [range) of tensor t, rounded to nearest even; ranks write each element once. A number
 * that `type` cannot hold: STATUS_INPUT naming the tensor. Local. */
enum status safetensors_writer_put(struct safetensors_writer *writer, int t,
                                   struct layout_range range, const float *data);
/* Flush and rename, or remove the files if so_far is not STATUS_OK (the same on all ranks). Frees
 * the writer. Returns so_far, or the failure. Collective. */
enum status safetensors_writer_close(struct safetensors_writer *writer, enum status so_far);
