/* Reads the base of adapters, and counts each of its elements on one rank, on the way to where it
 * is kept. */
#include "job/base.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/progress.h"
#include "io/text/file.h"
#include "job/model_source.h"
#include "job/weights.h"

static bool is_of_base(const struct model *model, int u, int p)
{
  return model->unit[u].param[p].kind != PARAM_ADAPTER;
}

/* --- the checksum -------------------------------------------------------- */

/* A sum over elements, so parts of it may be added in any order. A factor is odd, so no change of
 * one element is lost. */
static uint64_t sum_of(uint64_t name, struct layout_range range, const float *x)
{
  enum { BLOCK = 64 };
  uint32_t odd[BLOCK];
  uint64_t sum = 0;
  for (int i = 0; i < BLOCK; i++)
    odd[i] = (uint32_t)hash_mix(name, (uint64_t)i) | 1;
  for (int64_t at = range.begin, end; at < range.end; at = end) {
    const int64_t block = at / BLOCK;
    uint64_t part = 0;
    end = (block + 1) * BLOCK < range.end ? (block + 1) * BLOCK : range.end;
    for (int64_t i = at; i < end; i++) {
      uint32_t bits;
      memcpy(&bits, &x[i - range.begin], sizeof bits);
      part += (uint64_t)bits * odd[i % BLOCK];
    }
    sum += part * (hash_mix(~name, (uint64_t)block) | 1);
  }
  return sum;
}

/* A tensor on its way to another one. */
struct passage {
  const struct io_tensor *to;
  uint64_t name;
  struct layout_range own; /* counted by this rank */
  _Atomic uint64_t *sum;
};

static enum status pass(const struct io_tensor *tensor, struct layout_range piece, void *data)
{
  const struct passage *passage = tensor->arg;
  const struct io_tensor *to = passage->to;
  const struct layout_range own = {piece.begin > passage->own.begin ? piece.begin
                                                                    : passage->own.begin,
                                   piece.end < passage->own.end ? piece.end : passage->own.end};
  const struct layout_box box = layout_box(tensor->ndim, tensor->shape, tensor->cut);
  for (int64_t at = own.begin, n; at < own.end; at += n) {
    const struct layout_range run = layout_box_run(&box, at, own.end);
    n = run.end - run.begin;
    atomic_fetch_add(passage->sum, sum_of(passage->name, run, (float *)data + (at - piece.begin)));
  }
  if (!to->data)
    return to->move(to, piece, data);
  memcpy((float *)to->data + (piece.begin - to->range.begin), data,
         (size_t)(piece.end - piece.begin) * sizeof(float));
  return STATUS_OK;
}

static void redirect(const struct base *base, struct passage *passages, struct io_tensor *tensors,
                     _Atomic uint64_t *sum)
{
  for (int u = 0, t = 0; u < base->model->units; u++)
    for (int p = 0; p < base->model->unit[u].params; p++, t++) {
      const struct io_tensor *to = &base->tensor[t];
      tensors[t] = *to;
      if (!is_of_base(base->model, u, p))
        continue;
      passages[t] =
          (struct passage){.to = to,
                           .name = hash_text(to->name),
                           .own = base->state ? job_state_own(base->state, u, p) : to->range,
                           .sum = sum};
      tensors[t].data = NULL;
      tensors[t].move = pass;
      tensors[t].arg = &passages[t];
    }
}

/* --- its sources --------------------------------------------------------- */

static enum status read_ranges(const struct base *base, const struct st_tensor *const *from)
{
  enum status status = STATUS_OK;
  for (int t = 0; t < weights_count(base->model) && !status; t++) {
    if (from[t])
      status = job_state_fill(&base->tensor[t], base->tensor[t].range, weights_range, from[t]);
    progress_add();
  }
  return status;
}

static enum status read_folder(const struct base *base, const char *dir)
{
  struct safetensors_folder *folder = NULL;
  const struct st_tensor **from = NULL;
  enum status status =
      safetensors_folder_open(dir, &folder) ?: mem_new(MEM_META, weights_count(base->model), &from);
  status = comm_agree(base->comm, status)
           ?: weights_match(base->comm, base->model, dir, folder, from)
           ?: comm_agree(base->comm, read_ranges(base, from));
  mem_free(from);
  safetensors_folder_close(folder);
  return status;
}

static enum status read_checkpoint(const struct base *base, const char *path)
{
  struct io_tensor *tensors = NULL;
  const int params = weights_count(base->model), all = base->state ? base->state->n : params;
  int n = 0;
  enum status status = comm_agree(base->comm, mem_new(MEM_META, all, &tensors));
  for (int u = 0, t = 0; u < base->model->units && !status; u++)
    for (int p = 0; p < base->model->unit[u].params; p++, t++)
      if (is_of_base(base->model, u, p))
        tensors[n++] = base->tensor[t];
  for (int t = params; t < all && !status; t++)
    if (base->state->tensor[t].optional) /* scales of codes */
      tensors[n++] = base->state->tensor[t];
  status = status ?: checkpoint_load(base->comm, path, n, tensors, NULL);
  mem_free(tensors);
  return status;
}

struct initial {
  const struct base *base;
  int unit, param;
};

static enum status make_range(const void *arg, struct layout_range range, float *out)
{
  const struct initial *of = arg;
  model_init_param(of->base->model, of->base->seed, of->unit, of->param, range, out);
  return STATUS_OK;
}

static enum status make(const struct base *base)
{
  enum status status = STATUS_OK;
  if (base->state)
    return job_state_init_tensors(base->state, base->tensor);
  for (int u = 0, t = 0; u < base->model->units; u++)
    for (int p = 0; p < base->model->unit[u].params && !status; p++, t++) {
      const struct initial of = {base, u, p};
      if (is_of_base(base->model, u, p))
        status = job_state_fill(&base->tensor[t], base->tensor[t].range, make_range, &of);
    }
  return status;
}

static enum status read_any(const struct base *base, const char *path)
{
  int64_t folder = comm_rank(base->comm) == 0 && model_source_is_folder(path);
  const enum status status = comm_max_i64(base->comm, &folder, 1);
  if (status)
    return status;
  if (!*path)
    return comm_agree(base->comm, make(base));
  return folder ? read_folder(base, path) : read_checkpoint(base, path);
}

enum status base_read(const struct base *base, const char *path, uint64_t *sum)
{
  const int n = weights_count(base->model);
  struct base counted = *base;
  struct passage *passages = NULL;
  _Atomic uint64_t own = 0;
  *sum = 0;
  if (base->model->lora_rank == 0)
    return read_any(base, path);
  enum status status = comm_agree(base->comm, mem_new(MEM_META, n, &passages)
                                                  ?: mem_new(MEM_META, n, &counted.tensor));
  if (!status) {
    redirect(base, passages, counted.tensor, &own);
    status = read_any(&counted, path);
  }
  int64_t half[] = {(uint32_t)own, (int64_t)(own >> 32)};
  status = status ?: comm_sum_i64(base->comm, half, 2);
  if (!status)
    *sum = ((uint64_t)half[0] + ((uint64_t)half[1] << 32)) ?: 1;
  mem_free(counted.tensor == base->tensor ? NULL : counted.tensor);
  mem_free(passages);
  return status;
}

/* --- the base of a checkpoint -------------------------------------------- */

/* A project may have moved as a whole, so the words of its deck may still be right. */
static const char *place_of(const struct checkpoint_meta *meta, const struct deck *saved)
{
  const char *typed = saved->train.init;
  const size_t bytes = strlen(typed), all = strlen(meta->base);
  const bool same = bytes > 0 && bytes <= all && !strcmp(meta->base + all - bytes, typed);
  return same && !file_exists(meta->base) && file_exists(typed) ? typed : meta->base;
}

const char *base_place(const struct checkpoint_meta *meta, const struct deck *saved,
                       const char *path, const char *init)
{
  const bool named = *init && strcmp(init, path) != 0 && strcmp(init, saved->train.init) != 0;
  return named ? init : place_of(meta, saved);
}

enum status base_check_place(struct comm *comm, const char *place, const char *path,
                             const char *key)
{
  enum status status = STATUS_OK;
  if (comm_rank(comm) == 0 && *place && !file_exists(place))
    status = status_set(STATUS_INPUT,
                        "%s has adapters of the base %s, which is not there: set %s to its new "
                        "place",
                        path, place, key);
  return comm_agree(comm, status);
}

enum status base_check_sum(const struct checkpoint_meta *meta, const char *path, const char *place,
                           const char *key, uint64_t sum)
{
  if (sum == meta->base_sum)
    return STATUS_OK;
  if (!*place)
    return status_set(STATUS_INPUT,
                      "%s has adapters of a random base of run.seed=%" PRIu64
                      ", which this deck does not make: use the run.seed and the keys model.* of "
                      "its deck (sluice ckpt show)",
                      path, meta->seed);
  return status_set(STATUS_INPUT,
                    "%s is not the base that the adapters of %s were trained on (checksum "
                    "%016" PRIx64 ", not %016" PRIx64 "): set %s to that base",
                    place, path, sum, meta->base_sum, key);
}
