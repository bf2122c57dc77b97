/* Matches tensors of a file with parameters, and refuses what is missing or superfluous. */
#include "job/weights.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "exec/watchdog.h"
#include "job/base.h"
#include "job/model_source.h"
#include "job/state.h"
#include "model/hf.h"

/* --- matching tensors and parameters ------------------------------------- */

int weights_count(const struct model *model)
{
  int n = 0;
  for (int u = 0; u < model->units; u++)
    n += model->unit[u].params;
  return n;
}

enum status weights_range(const void *tensor, struct layout_range range, float *out)
{
  return safetensors_read(tensor, range, out);
}

/* A layer with an adapter keeps its weight under another name. */
static enum status refuse_missing(const char *name, const char *dir,
                                  const struct safetensors_folder *folder)
{
  const int64_t n = safetensors_folder_count(folder);
  for (int64_t i = 0; i < n; i++) {
    const char *other = safetensors_folder_at(folder, i)->name;
    if (strstr(other, ".lora_") || strstr(other, ".base_layer."))
      return status_set(STATUS_INPUT,
                        "%s holds a LoRA adapter that is not merged (tensor %.200s): merge it with "
                        "merge_and_unload() of PEFT, and save the model again",
                        dir, other);
  }
  if (n == 0)
    return status_set(STATUS_INPUT, "%s: the weights have no tensors", dir);
  return status_set(STATUS_INPUT,
                    "%s: the tensor %s is missing, and the first of %lld is %.200s; is config.json "
                    "that of these weights?",
                    dir, name, (long long)n, safetensors_folder_at(folder, 0)->name);
}

/* Names may lack the prefix of base models. NULL: it is missing. */
static const struct st_tensor *find_tensor(const struct model *model,
                                           const struct safetensors_folder *folder,
                                           const char *name)
{
  const char *base = hf_base_name(model, name);
  const struct st_tensor *tensor = safetensors_folder_find(folder, name);
  return tensor || !base ? tensor : safetensors_folder_find(folder, base);
}

/* shape: of the whole parameter. */
static bool has_shape(const struct st_tensor *tensor, const struct model_param *param,
                      int64_t *shape)
{
  model_whole_shape(param, shape);
  return tensor->ndim == param->ndim &&
         memcmp(tensor->shape, shape, (size_t)param->ndim * sizeof *shape) == 0;
}

static enum status match_param(const struct model *model, const struct model_param *param,
                               const char *dir, const struct safetensors_folder *folder,
                               const struct st_tensor **out)
{
  const bool adapter = param->kind == PARAM_ADAPTER;
  const struct st_tensor *tensor = adapter ? NULL : find_tensor(model, folder, param->name);
  int64_t shape[LAYOUT_MAX_DIMS];
  *out = NULL;
  if (adapter)
    return STATUS_OK;
  if (!tensor)
    return refuse_missing(param->name, dir, folder);
  if (!has_shape(tensor, param, shape))
    return status_set(STATUS_INPUT, "%s: tensor %s has shape %s, and %s in this model",
                      tensor->file, tensor->name,
                      layout_shape_text(tensor->ndim, tensor->shape).text,
                      layout_shape_text(param->ndim, shape).text);
  if (!tensor->known)
    return safetensors_read(tensor, (struct layout_range){0, 0},
                            NULL); /* logs the name of the file */
  *out = tensor;
  return STATUS_OK;
}

static int compare_tensors(const void *a, const void *b)
{
  const struct st_tensor *left = *(const struct st_tensor *const *)a,
                         *right = *(const struct st_tensor *const *)b;
  return (left > right) - (left < right);
}

static enum status compare_bits(const struct st_tensor *head, const struct st_tensor *embedding,
                                struct layout_range range)
{
  enum { PART = 4096 };
  float a[PART], b[PART];
  for (int64_t at = range.begin; at < range.end; at += PART) {
    const struct layout_range part = {at, range.end - at < PART ? range.end : at + PART};
    enum status status = safetensors_read(head, part, a) ?: safetensors_read(embedding, part, b);
    if (status)
      return status;
    if (memcmp(a, b, (size_t)(part.end - part.begin) * sizeof *a) != 0)
      return status_set(
          STATUS_INPUT,
          "%s: %s is not %s, but config.json says that they are tied (tie_word_embeddings)",
          head->file, head->name, embedding->name);
  }
  return STATUS_OK;
}

static enum status check_tied_head(struct comm *comm, const struct model *model,
                                   const struct safetensors_folder *folder,
                                   const struct st_tensor *head)
{
  const struct st_tensor *embedding = find_tensor(model, folder, hf_embedding_name(model));
  if (head->ndim != embedding->ndim ||
      memcmp(head->shape, embedding->shape, sizeof head->shape) != 0)
    return status_set(STATUS_INPUT, "%s: %s has shape %s, but is tied to %s of %s", head->file,
                      head->name, layout_shape_text(head->ndim, head->shape).text, embedding->name,
                      layout_shape_text(embedding->ndim, embedding->shape).text);
  const int64_t rank = comm_rank(comm), ranks = comm_ranks(comm), n = head->elements;
  return compare_bits(
      head, embedding,
      (struct layout_range){n / ranks * rank, rank == ranks - 1 ? n : n / ranks * (rank + 1)});
}

static enum status check_extra(struct comm *comm, const struct model *model,
                               const struct safetensors_folder *folder,
                               const struct st_tensor *tensor)
{
  switch (hf_extra(model, tensor->name)) {
  case HF_EXTRA_BUFFER: return STATUS_OK;
  case HF_EXTRA_TIED_HEAD: return check_tied_head(comm, model, folder, tensor);
  default:
    return status_set(
        STATUS_INPUT,
        "%s: the tensor %.200s is no parameter of this %s; is config.json that of these weights?",
        tensor->file, tensor->name, model->config.arch);
  }
}

/* `taken`: tensors of parameters, sorted by address. */
static enum status check_extras(struct comm *comm, const struct model *model,
                                const struct safetensors_folder *folder,
                                const struct st_tensor *const *taken, int n)
{
  enum status status = STATUS_OK;
  for (int64_t i = 0; i < safetensors_folder_count(folder) && !status; i++) {
    const struct st_tensor *tensor = safetensors_folder_at(folder, i);
    if (!bsearch(&tensor, taken, (size_t)n, sizeof *taken, compare_tensors))
      status = check_extra(comm, model, folder, tensor);
  }
  return status;
}

static enum status unwrap(struct comm *comm, const struct model *model, const char *dir,
                          struct safetensors_folder *folder)
{
  char left_out[256];
  const char *embedding = hf_embedding_name(model);
  const enum status status = safetensors_folder_unwrap(
      folder, embedding, hf_base_name(model, embedding), left_out, sizeof left_out);
  if (!status && *left_out && comm_rank(comm) == 0)
    log_warn("%s: names of tensors are read without %s, which a wrapper of PyTorch left in them",
             dir, left_out);
  return status;
}

static enum status match_all(struct comm *comm, const struct model *model, const char *dir,
                             struct safetensors_folder *folder, const struct st_tensor **out)
{
  const int n = weights_count(model);
  const struct st_tensor **taken = NULL;
  enum status status = unwrap(comm, model, dir, folder) ?: mem_new(MEM_META, n, &taken);
  for (int u = 0, k = 0; u < model->units; u++)
    for (int p = 0; p < model->unit[u].params && !status; p++, k++)
      status = match_param(model, &model->unit[u].param[p], dir, folder, &out[k]);
  if (!status) {
    memcpy(taken, out, (size_t)n * sizeof *taken);
    qsort(taken, (size_t)n, sizeof *taken, compare_tensors);
    status = check_extras(comm, model, folder, taken, n);
  }
  mem_free(taken);
  return status;
}

enum status weights_match(struct comm *comm, const struct model *model, const char *dir,
                          struct safetensors_folder *folder, const struct st_tensor **out)
{
  return comm_agree(comm, match_all(comm, model, dir, folder, out));
}

/* --- of a job ------------------------------------------------------------ */

enum status weights_check_folder(struct comm *comm, const struct deck *deck, const char *dir)
{
  struct safetensors_folder *folder = NULL;
  const struct st_tensor **from = NULL;
  struct model *model = NULL;
  enum status status =
      job_model(deck, DTYPE_F32, comm_ranks(comm), &model)
      ?: safetensors_folder_open(dir, &folder)
      ?: mem_new(MEM_META, weights_count(model), &from);
  status = comm_agree(comm, status) ?: weights_match(comm, model, dir, folder, from);
  mem_free(from);
  safetensors_folder_close(folder);
  model_destroy(model);
  return status;
}

/* --- from a checkpoint --------------------------------------------------- */

static enum status residuals_of(const struct deck *deck, const struct checkpoint_meta *meta,
                                struct job_state_saved *out)
{
  const int ranks = (int)meta->ranks;
  const int local = meta->local_ranks > 0 ? (int)meta->local_ranks : ranks;
  struct plan_input input = {.ranks = ranks, .strategy = deck->shard.strategy};
  *out = (struct job_state_saved){
      .ranks = ranks, .copies = ranks > 1 && deck->compress.difference, .encoded = {1, 1}};
  if (!deck_feedback(deck))
    return STATUS_OK;
  const enum status status = deck_resolve(deck, ranks, local, &input.shape, &input.policy);
  if (status)
    return status;
  out->policy = input.policy;
  out->encoded = unit_policy_encoded(&input);
  return STATUS_OK;
}

static enum status check_saved_deck(const struct job *job, const char *path,
                                    const struct deck *saved)
{
  if (saved->lora.rank > 0 && job->deck->lora.rank == 0)
    return status_usage("%s has adapters, which lora.rank (%s) = 0 would leave out: set the keys "
                        "lora.* of its deck (sluice ckpt show)",
                        path, options_where(job->deck->set, "lora.rank"));
  if (saved->lora.rank > 0 && *job->deck->lora.init && !strcmp(path, job->deck->train.init))
    return status_usage("%s has adapters, and so has lora.init (%s): leave one of them out", path,
                        options_where(job->deck->set, "lora.init"));
  return model_source_check(saved, path, job->deck);
}

static void tell_residuals(const struct job *job, const char *path,
                           const struct job_state_saved *saved)
{
  const struct plan *plan = job_state_plan(job);
  const struct encoded here = unit_policy_encoded(&plan->input);
  const bool same = saved->ranks == plan->input.ranks && saved->encoded.parts == here.parts &&
                    saved->encoded.blocks == here.blocks;
  const bool loses = plan->input.ranks > 1;
  if (saved->ranks > 1 && saved->policy.feedback && deck_feedback(job->deck) && (!same || !loses))
    log_info("residuals: %s has those of %d ranks; %s", path, saved->ranks,
             loses ? "each rank starts with an equal share of their sum"
                   : "one rank sends nothing and leaves them out");
}

/* The job's base is at `path`. It is kept as an absolute path, because checkpoints are read from
 * any folder. */
static enum status read_base(struct job *job, struct job_state *state, const char *path)
{
  const struct base base = {job->comm, job->model, state, 0, state->tensor};
  char place[PATH_MAX];
  char *const name = mem_strdup(*path && realpath(path, place) ? place : path);
  mem_free(job->base);
  job->base = name;
  return comm_agree(job->comm, name ? STATUS_OK : STATUS_MEMORY)
             ?: base_read(&base, path, &job->base_sum);
}

static enum status match_adapter(const struct job_state *state,
                                 const struct safetensors_folder *folder,
                                 const struct model_param *param, const struct st_tensor **out)
{
  const char *dir = state->job->deck->lora.init;
  int64_t shape[LAYOUT_MAX_DIMS];
  *out = find_tensor(state->job->model, folder, param->name);
  if (!*out)
    return status_set(STATUS_INPUT, "%s has no %s: it has adapters of other matrices", dir,
                      param->name);
  if (has_shape(*out, param, shape))
    return STATUS_OK;
  return status_set(STATUS_INPUT,
                    "%s: tensor %s has shape %s, and %s in this model: it is an adapter of another "
                    "base than %s",
                    dir, (*out)->name, layout_shape_text((*out)->ndim, (*out)->shape).text,
                    layout_shape_text(param->ndim, shape).text, state->job->deck->train.init);
}

/* folder NULL: initial values. */
static enum status fill_adapters(const struct job_state *state,
                                 const struct safetensors_folder *folder)
{
  const struct model *model = state->job->model;
  const struct st_tensor *from = NULL;
  int64_t n = 0;
  enum status status = STATUS_OK;
  for (int u = 0, t = 0; u < model->units; u++)
    for (int p = 0; p < model->unit[u].params && !status; p++, t++) {
      const struct io_tensor *to = &state->tensor[t];
      const struct model_param *param = &model->unit[u].param[p];
      if (param->kind != PARAM_ADAPTER)
        continue;
      if (folder)
        status = match_adapter(state, folder, param, &from)
                     ?: job_state_fill(to, to->range, weights_range, from);
      else
        status = job_state_init_param(state, u, p, to, to->range);
      n++;
    }
  if (!status && folder && n != safetensors_folder_count(folder))
    status = status_set(STATUS_INPUT,
                        "%s has %lld tensors, and the adapters of lora.targets are %lld: it has "
                        "adapters of other matrices",
                        state->job->deck->lora.init, (long long)safetensors_folder_count(folder),
                        (long long)n);
  return status;
}

/* Those of lora.init, or new ones. */
static enum status start_adapters(const struct job_state *state)
{
  const char *dir = state->job->deck->lora.init;
  struct safetensors_folder *folder = NULL;
  enum status status = *dir ? safetensors_folder_open_adapters(dir, &folder) : STATUS_OK;
  status = status ?: fill_adapters(state, folder);
  safetensors_folder_close(folder);
  return status;
}

/* From a base. `fresh`: adapters may be new. */
static enum status load_base(struct job *job, const char *path, bool fresh)
{
  struct job_state *state = NULL;
  if (!fresh && job->model->lora_rank > 0 && !*job->deck->lora.init)
    return status_usage("%s has no adapters, and new ones (lora.rank, %s) change nothing: leave "
                        "out the keys lora.*, or name adapters by lora.init",
                        path, options_where(job->deck->set, "lora.rank"));
  enum status status = comm_agree(job->comm, job_state_open(job, false, false, true, &state))
      ?: read_base(job, state, path)
      ?: comm_agree(job->comm, start_adapters(state))
      ?: comm_agree(job->comm, job_state_commit(state))
      ?: job_state_share_copies(job);
  job_state_close(state);
  return status;
}

/* All that a checkpoint has: everything, or everything except the base. */
static enum status load_tensors(const struct job_state *state, const char *path, bool *damaged)
{
  const struct model *model = state->job->model;
  struct io_tensor *tensors = NULL;
  int n = 0, t = 0;
  enum status status = comm_agree(state->job->comm, mem_new(MEM_META, state->n, &tensors));
  for (int u = 0; u < model->units && !status; u++)
    for (int p = 0; p < model->unit[u].params; p++, t++)
      if (model->lora_rank == 0 || model->unit[u].param[p].kind == PARAM_ADAPTER)
        tensors[n++] = state->tensor[t];
  for (; t < state->n && !status; t++)
    tensors[n++] = state->tensor[t];
  status = status ?: checkpoint_load(state->job->comm, path, n, tensors, damaged);
  mem_free(tensors);
  return status;
}

/* The base of the adapters in the checkpoint. */
static enum status load_its_base(struct job *job, struct job_state *state, const char *path,
                                 const struct checkpoint_meta *meta, const char *place)
{
  return base_check_place(job->comm, place, path, "train.init")
             ?: read_base(job, state, place)
             ?: base_check_sum(meta, path, place, "train.init", job->base_sum);
}

static bool same_adapters(const struct model *a, const struct model *b)
{
  for (int u = 0; u < a->units; u++) {
    const struct model_unit *of = &a->unit[u], *other = &b->unit[u];
    if (of->params != other->params)
      return false;
    for (int p = 0; p < of->params; p++)
      if (of->param[p].adapter.a != other->param[p].adapter.a ||
          of->layout.elements[p] != other->layout.elements[p])
        return false;
  }
  return true;
}

/* Another factor makes another model of the same adapters. */
enum status weights_match_adapters(const struct job *job, const char *path,
                                   const struct deck *saved, const struct model *model)
{
  const double before = deck_lora_scale(saved), now = deck_lora_scale(job->deck);
  if (saved->lora.rank == 0 && job->deck->lora.rank == 0)
    return STATUS_OK;
  if (!same_adapters(model, job->model))
    return status_usage("%s has other adapters than lora.rank and lora.targets of this deck "
                        "make: set the keys lora.* of its deck (sluice ckpt show), or begin with "
                        "its base",
                        path);
  if (before != now)
    return status_usage("%s has adapters whose product is multiplied by %g, and lora.rank, "
                        "lora.alpha and lora.rslora of this deck make it %g: set the keys lora.* "
                        "of its deck (sluice ckpt show)",
                        path, before, now);
  return STATUS_OK;
}

static enum status check_adapters(const struct job *job, const char *path, const struct deck *saved)
{
  struct model *model = NULL;
  if (saved->lora.rank == 0)
    return STATUS_OK;
  const enum status status = job_model(saved, job->place.compute, comm_ranks(job->comm), &model)
                                 ?: weights_match_adapters(job, path, saved, model);
  model_destroy(model);
  return status;
}

/* *base: it has adapters, and their base is there. */
static enum status look_at(const struct job *job, const char *path,
                           const struct checkpoint_meta *meta, bool moments,
                           struct job_state_saved *residuals, char **base)
{
  struct deck saved = {0};
  enum status status = deck_load_text(&saved, path, meta->deck, strlen(meta->deck), 0, NULL)
                           ?: check_saved_deck(job, path, &saved)
                           ?: (moments ? STATUS_OK : check_adapters(job, path, &saved));
  if (!status && moments)
    status = residuals_of(&saved, meta, residuals);
  if (!status && meta->base_sum) {
    *base = mem_strdup(base_place(meta, &saved, path, job->deck->train.init));
    status = *base ? STATUS_OK : STATUS_MEMORY;
  }
  deck_destroy(&saved);
  return status;
}

static enum status load_checkpoint(struct job *job, const char *path, bool moments, bool fresh,
                                   bool *damaged)
{
  struct checkpoint_meta meta = {0};
  struct job_state *state = NULL;
  struct job_state_saved saved;
  char *base = NULL;
  enum status status = checkpoint_read_meta(job->comm, path, &meta);
  *damaged = status != STATUS_OK;
  status = status ?: comm_agree(job->comm, look_at(job, path, &meta, moments, &saved, &base));
  if (!status && !base && !moments) {
    status = load_base(job, path, fresh);
  } else if (!status) {
    status = comm_agree(job->comm, moments ? job_state_open_saved(job, &saved, &state)
                                           : job_state_open(job, false, false, true, &state))
           ?: (base ? load_its_base(job, state, path, &meta, base) : STATUS_OK)
           ?: load_tensors(state, path, damaged)
           ?: comm_agree(job->comm, job_state_commit(state))
           ?: job_state_share_copies(job);
    if (!status && moments)
      tell_residuals(job, path, &saved);
  }
  job_state_close(state);
  mem_free(base);
  checkpoint_meta_free(&meta);
  return status;
}

static enum status load(struct job *job, const char *path, bool fresh)
{
  int64_t other = comm_rank(job->comm) == 0 && *path && !model_source_is_folder(path);
  if (*path)
    watchdog_start(job->start, "reading %s", path);
  const enum status status = comm_max_i64(job->comm, &other, 1);
  if (status)
    return status;
  bool damaged;
  return other ? load_checkpoint(job, path, false, fresh, &damaged) : load_base(job, path, fresh);
}

enum status weights_load(struct job *job, const char *path)
{
  return load(job, path, false);
}

enum status weights_resume(struct job *job, const char *path, bool *damaged)
{
  watchdog_start(job->start, "reading %s", path);
  return load_checkpoint(job, path, true, false, damaged);
}

enum status weights_start(struct job *job)
{
  const char *init = job->deck->train.init;
  const enum status status = load(job, init, true);
  if (!status && *init)
    log_info("weights from %s", init);
  return status;
}
