/* Names the state's tensors, and finds each rank's range of them. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/progress.h"
#include "job/state_private.h"
#include "layout/layout.h"

/* --- opening ------------------------------------------------------------- */

static const char *group_of(const struct plan *plan, int kind)
{
  if (job_state_is_copy(plan, kind))
    return "copy";
  return kind == 0 ? "model" : plan->state[kind - 1]->name;
}

/* Blocks of a type or codec are counted from the begin of each parameter, so cuts must not go
 * through them. Then another number of pieces has the same blocks. */
static enum status describe_tensor(struct job_state *state, int kind, int u, int p,
                                   const struct job_state_piece *piece)
{
  const struct plan *plan = state->plan;
  const struct model_param *param = &plan->input.model->unit[u].param[p];
  const struct layout_unit *layout = &plan->unit[u].layout;
  struct job_state_part *part = &state->part[state->n];
  struct io_tensor *out = &state->tensor[state->n++];
  *part = (struct job_state_part){.state = state,
                                  .piece = piece,
                                  .unit = u,
                                  .at = job_state_offset(plan, kind, u, layout->offset[p]) -
                                        job_state_offset(plan, kind, u, piece->range.begin)};
  *out = (struct io_tensor){.group = group_of(plan, kind),
                            .name = param->name,
                            .type = DTYPE_F32,
                            .ndim = param->ndim,
                            .writer = true,
                            .range = layout_param_part(layout, p, piece->range),
                            .arg = part};
  model_whole_shape(param, out->shape);
  memcpy(out->cut, param->cut, sizeof out->cut);
  const bool empty = out->range.begin >= out->range.end;
  if (piece->host && piece->type == DTYPE_F32)
    out->data = piece->host + (empty ? 0 : part->at + out->range.begin) * (int64_t)sizeof(float);
  else
    out->move = piece->codec ? job_state_move_coded : job_state_move;
  return layout_check_cuts(param->name, param->ndim, out->shape, out->cut,
                           piece->codec ? LAYOUT_BLOCK : dtype_block(piece->type));
}

/* The scales of weights in nf4, without which their values in a checkpoint have no codes. All ranks
 * have them, and one saves them. The base of adapters is not saved. */
static void describe_scales(struct job_state *state, int u, bool unique)
{
  const struct plan *plan = state->plan;
  const struct layout_unit *layout = &plan->unit[u].layout;
  struct nf4_param param[layout->params];
  if (plan_message_scales(plan, u) == 0)
    return;
  plan_message_params(layout, param);
  for (int p = 0, frozen = 0; p < layout->params; p++) {
    if (!layout->frozen[p])
      continue;
    const struct nf4_param *own = &param[frozen++];
    const struct model_param *of = &plan->input.model->unit[u].param[p];
    const struct layout_range saved = job_state_own(state, u, p);
    const int64_t n = nf4_scales(own->blocks);
    float *const scales = job_state_scales(state->job, u) + own->scale;
    if (state->loads)
      *scales = NAN;
    if (of->kind == PARAM_WEIGHT && (!unique || plan->input.model->lora_rank == 0))
      state->tensor[state->n++] =
          (struct io_tensor){.group = codec_nf4.name,
                             .name = of->name,
                             .type = DTYPE_F32,
                             .ndim = 1,
                             .shape = {n},
                             .writer = true,
                             .optional = true,
                             .range = {0, !unique || (saved.begin == 0 && saved.end > 0) ? n : 0},
                             .data = scales};
  }
}

static enum status describe_residuals(struct job_state *state)
{
  enum status status = STATUS_OK;
  for (int u = 0; u < state->plan->input.model->units && !status; u++)
    if (state->plan->unit[u].residual >= 0)
      status = job_state_describe_residual(state, u);
  return status;
}

/* Adds pieces as tensors of parameters. Parts that were not saved cannot be loaded. */
static bool is_described(struct job_state *state, int kind)
{
  if (!job_state_is_copy(state->plan, kind))
    return !job_state_is_residual(state->plan, kind);
  state->copies = !state->saved || state->saved->copies;
  return state->copies;
}

static enum status describe_tensors(struct job_state *state, int kinds, bool unique)
{
  const struct plan *plan = state->plan;
  const struct model *model = plan->input.model;
  enum status status = STATUS_OK;
  for (int kind = 0; kind < kinds; kind++) {
    const bool described = is_described(state, kind);
    for (int u = 0; u < model->units && described; u++)
      for (int p = 0; p < model->unit[u].params && !status; p++) {
        const struct job_state_piece *piece =
            &state->piece[job_state_piece_index(plan, kind, u, plan->unit[u].layout.frozen[p])];
        if (piece->buffer >= 0 && job_state_has(plan, kind, u, p))
          status = describe_tensor(state, kind, u, p, piece);
      }
  }
  for (int u = 0; u < model->units && !status; u++)
    describe_scales(state, u, unique);
  return !status && job_state_is_residual(plan, kinds - 1) ? describe_residuals(state) : status;
}

static enum status alloc_tables(struct job_state *state, int kinds)
{
  const struct model *model = state->plan->input.model;
  size_t params = (size_t)model->units; /* of residuals */
  for (int u = 0; u < model->units; u++)
    params += (size_t)model->unit[u].params;
  state->pieces = kinds * model->units * JOB_STATE_PARTS;
  enum status status =
      mem_new(MEM_IO, state->pieces, &state->piece)
      ?: mem_new(MEM_IO, params * (kinds + 1), &state->tensor)
      ?: mem_new(MEM_IO, params * kinds, &state->part);
  if (!status && state->plan->persistent_bytes[TIER_DISK] > 0)
    status = mem_alloc(MEM_IO, JOB_STATE_SCRATCH * sizeof(float), &state->scratch);
  return status;
}

static enum status fill(struct job_state *state, bool moments, bool unique, bool snapshot)
{
  const struct plan *plan = state->plan;
  const int kinds = job_state_kinds(plan, moments);
  enum status status = alloc_tables(state, kinds);
  for (int kind = 0; kind < kinds && !status; kind++)
    for (int u = 0; u < plan->input.model->units; u++)
      for (int frozen = 0; frozen < JOB_STATE_PARTS; frozen++)
        state->piece[job_state_piece_index(plan, kind, u, frozen)] =
            job_state_make_piece(plan, kind, u, frozen, unique);
  status = status ?: job_state_place_pieces(state, snapshot);
  return status ? status : describe_tensors(state, kinds, unique);
}

static enum status create(const struct job *job, bool moments, bool unique, bool load,
                          bool snapshot, const struct job_state_saved *saved,
                          struct job_state **out)
{
  struct job_state *state = NULL;
  enum status status = mem_new(MEM_IO, 1, &state);
  if (status)
    return status;
  state->job = job;
  state->plan = job_state_plan(job);
  state->loads = load;
  state->saved = saved;
  status = fill(state, moments, unique, snapshot);
  if (!status && !snapshot)
    status = load ? job_state_zero_disk(state, moments) : job_state_transfer(state, false);
  if (status)
    job_state_close(state);
  else
    *out = state;
  return status;
}

enum status job_state_open(const struct job *job, bool moments, bool unique, bool load,
                           struct job_state **out)
{
  return create(job, moments, unique, load, false, NULL, out);
}

enum status job_state_open_saved(const struct job *job, const struct job_state_saved *saved,
                                 struct job_state **out)
{
  return create(job, true, false, true, false, saved, out);
}

enum status job_state_create_snapshot(const struct job *job, struct job_state **out)
{
  return create(job, true, true, false, true, NULL, out);
}

/* --- filled -------------------------------------------------------------- */

int job_state_list_casts(const struct job_state *state, int u, struct job_state_cast out[])
{
  const struct plan_unit *unit = &state->plan->unit[u];
  const struct job_state_cast all[JOB_STATE_CASTS] = {
      {unit->master, unit->owned, unit->working, 0},
      {unit->frozen, unit->frozen_owned, unit->shared, unit->frozen_owned.begin},
      {state->copies ? -1 : unit->master, unit->owned, unit->copy, unit->owned.begin},
      {unit->frozen, unit->frozen_owned, unit->copy, unit->frozen_owned.begin}};
  int n = 0;
  for (int i = 0; i < JOB_STATE_CASTS; i++)
    if (all[i].master >= 0 && all[i].copy >= 0)
      out[n++] = all[i];
  return n;
}

/* Each worker rounds its part of the copies that the host can reach. */
static void publish_part(void *arg, int worker, int workers)
{
  const struct job_state *state = arg;
  const struct plan *plan = state->plan;
  const enum dtype compute = state->job->place.compute;
  struct job_state_cast cast[JOB_STATE_CASTS];
  for (int u = 0; u < plan->input.model->units; u++)
    for (int i = 0, n = job_state_list_casts(state, u, cast); i < n; i++) {
      const struct layout_range range = cast[i].range;
      char *copy = job_state_host_pointer(state->job, cast[i].copy);
      const enum dtype type = plan->buffer[cast[i].master].dtype;
      const char *from = job_state_host_pointer(state->job, cast[i].master);
      int64_t begin, end;
      team_slice(range.end - range.begin, LAYOUT_BLOCK, worker, workers, &begin, &end);
      if (copy && begin < end)
        dtype_convert(copy + (cast[i].at + begin) * (int64_t)dtype_size(compute), compute,
                      from + begin * (int64_t)dtype_size(type), type, (size_t)(end - begin));
    }
}

enum status job_state_commit(struct job_state *state)
{
  if (!state->loads)
    return status_set(STATUS_INTERNAL, "state that was opened to be saved is written back");
  return comm_agree(state->job->comm, job_state_close_units(state))
             ?: job_state_complete(state)
             ?: job_state_transfer(state, true)
             ?: job_state_run_team(state->job, publish_part, state);
}

void job_state_close(struct job_state *state)
{
  if (!state)
    return;
  if (state->pinned && state->block)
    state->job->device->ops->release_host(state->job->device, state->block);
  else
    mem_free(state->block);
  job_state_coding_destroy(state->coding);
  job_state_merge_destroy(state->merge);
  mem_free(state->scratch);
  mem_free(state->part);
  mem_free(state->tensor);
  mem_free(state->piece);
  mem_free(state);
}

/* --- initialisation ------------------------------------------------------ */

static enum status fill_runs(const struct io_tensor *tensor, struct layout_range range,
                             job_state_source *source, const void *arg, float *out)
{
  const struct layout_box box = layout_box(tensor->ndim, tensor->shape, tensor->cut);
  enum status status = STATUS_OK;
  for (int64_t at = range.begin, n; at < range.end && !status; at += n) {
    const struct layout_range run = layout_box_run(&box, at, range.end);
    n = run.end - run.begin;
    status = source(arg, run, out + (at - range.begin));
  }
  return status;
}

enum status job_state_fill(const struct io_tensor *tensor, struct layout_range range,
                           job_state_source *source, const void *arg)
{
  enum { PART = 1 << 14 };
  float values[PART];
  enum status status = STATUS_OK;
  if (tensor->data)
    return fill_runs(tensor, range, source, arg,
                     (float *)tensor->data + (range.begin - tensor->range.begin));
  for (int64_t at = range.begin; at < range.end && !status; at += PART) {
    const struct layout_range part = {at, range.end - at < PART ? range.end : at + PART};
    status = fill_runs(tensor, part, source, arg, values) ?: tensor->move(tensor, part, values);
  }
  return status;
}

struct initial {
  const struct job_state *state;
  const struct io_tensor *tensors;
  int unit, first;    /* its first tensor */
  _Atomic int status; /* of all workers */
};
struct initial_param {
  const struct job_state *state;
  int unit, param;
};

static enum status make_initial(const void *arg, struct layout_range range, float *out)
{
  const struct initial_param *of = arg;
  model_init_param(of->state->job->model, (uint64_t)of->state->job->deck->run.seed, of->unit,
                   of->param, range, out);
  return STATUS_OK;
}

enum status job_state_init_param(const struct job_state *state, int unit, int param,
                                 const struct io_tensor *tensor, struct layout_range range)
{
  const struct initial_param of = {state, unit, param};
  return job_state_fill(tensor, range, make_initial, &of);
}

/* Each worker makes its part of every tensor of the unit, because an element is a function of its
 * place. */
static void init_part(void *arg, int worker, int workers)
{
  enum { GRAIN = 4096 };
  struct initial *all = arg;
  for (int p = 0; p < all->state->job->model->unit[all->unit].params; p++) {
    const struct io_tensor *tensor = &all->tensors[all->first + p];
    const struct layout_range range = tensor->range;
    int64_t begin, end;
    team_slice(range.end > range.begin ? range.end - range.begin : 0, GRAIN, worker, workers,
               &begin, &end);
    const struct layout_range part = {range.begin + begin, range.begin + end};
    const enum status status =
        begin < end ? job_state_init_param(all->state, all->unit, p, tensor, part) : STATUS_OK;
    if (status)
      all->status = (int)status;
    progress_add();
  }
}

enum status job_state_init_tensors(struct job_state *state, const struct io_tensor *tensors)
{
  const struct job *job = state->job;
  struct initial initial = {.state = state, .tensors = tensors};
  enum status status = STATUS_OK;
  for (; initial.unit < job->model->units && !status; initial.unit++) {
    status = job_state_open_unit(state, initial.unit)
             ?: job_state_run_team(job, init_part, &initial)
             ?: (enum status)initial.status;
    initial.first += job->model->unit[initial.unit].params;
  }
  return status;
}

enum status job_state_init(const struct job *job)
{
  struct job_state *state = NULL;
  const enum status status =
      comm_agree(job->comm, job_state_open(job, false, false, true, &state)
                                ?: job_state_init_tensors(state, state->tensor))
          ?: job_state_commit(state);
  job_state_close(state);
  return status;
}
