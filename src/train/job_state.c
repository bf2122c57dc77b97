#include "train/job_state.h"

#include <string.h>

#include "base/mem.h"
#include "base/team.h"

/* A range of a unit's flat elements, of one kind, trained or frozen, that lies in one buffer of the plan. */
struct job_state_piece {
  int buffer; /* -1: there is none */
  struct layout_range range;
  enum dtype type;
  int64_t offset; /* of range.begin in the buffer, bytes */
  char *host;     /* range.begin, in `type`; NULL: on the disk only */
  bool blocked;   /* in the block */
};

struct job_state_part {
  const struct job_state *state;
  const struct job_state_piece *piece;
  int64_t at; /* of the parameter's element 0 in the piece */
};

enum {
  KINDS = 3,           /* parameters and two moments */
  PARTS = 2,           /* trained and frozen */
  SCRATCH = 1 << 20,   /* elements that are on their way from or to the disk */
  COPY_GRAIN = 1 << 21 /* bytes: whole huge pages */
};

static int kinds_of(bool moments)
{
  return moments ? KINDS : 1;
}

static int piece_index(const struct plan *plan, int kind, int u, bool frozen)
{
  return (kind * plan->input.model->units + u) * PARTS + frozen;
}

/* Of what a rank holds of a part of `all` elements, the piece that it alone writes: what several ranks hold is cut among them. */
static struct layout_range unique_range(const struct plan_input *input, struct layout_range held, int64_t all)
{
  const int64_t size = held.end - held.begin;
  const int holders = size > 0 ? (int)(all / size) : 1; /* ranks that hold different shards */
  const int64_t piece = size / (input->ranks / holders);
  const int index = holders == 1 ? input->rank : input->rank / holders;
  return (struct layout_range){held.begin + index * piece, held.begin + (index + 1) * piece};
}

/* kind 0: the parameters; 1 and 2: the moments, which frozen ones do not have. */
static struct job_state_piece holding_of(const struct plan *plan, int kind, int u, bool frozen)
{
  const int *const trained[KINDS] = {plan->master, plan->moment1, plan->moment2};
  if (frozen)
    return (struct job_state_piece){.buffer = kind == 0 ? plan->frozen[u] : -1, .range = plan->frozen_owned[u], .type = DTYPE_F32};
  return (struct job_state_piece){.buffer = trained[kind][u], .range = plan->owned[u], .type = kind == 0 ? DTYPE_F32 : plan->input.shape.moments};
}

/* The part of a holding that is asked for. */
static struct job_state_piece make_piece(const struct plan *plan, int kind, int u, bool frozen, bool unique)
{
  struct job_state_piece piece = holding_of(plan, kind, u, frozen);
  const struct layout_unit *layout = &plan->layout[u];
  const struct layout_range held = piece.range;
  if (piece.buffer < 0)
    return piece;
  if (unique)
    piece.range = unique_range(&plan->input, held, frozen ? layout->flat - layout->trained : layout->trained);
  piece.offset = (piece.range.begin - held.begin) * (int64_t)dtype_size(piece.type);
  return piece;
}

static int64_t piece_bytes(const struct job_state_piece *piece)
{
  return piece->buffer >= 0 ? (piece->range.end - piece->range.begin) * (int64_t)dtype_size(piece->type) : 0;
}

/* Bytes of all pieces of a plan, or of those on the device alone. */
static int64_t count_bytes(const struct plan *plan, bool moments, bool unique, bool on_device)
{
  int64_t bytes = 0;
  for (int kind = 0; kind < kinds_of(moments); kind++)
    for (int u = 0; u < plan->input.model->units; u++)
      for (int frozen = 0; frozen < PARTS; frozen++) {
        const struct job_state_piece piece = make_piece(plan, kind, u, frozen, unique);
        if (piece.buffer >= 0 && (!on_device || plan->buffer[piece.buffer].tier == TIER_DEVICE))
          bytes += piece_bytes(&piece);
      }
  return bytes;
}

int64_t job_state_bytes(const struct plan *plan, bool moments)
{
  return count_bytes(plan, moments, false, true);
}

int64_t job_state_snapshot_bytes(const struct job *job)
{
  return count_bytes(job_state_plan(job), true, true, false);
}

/* --- where pieces lie ----------------------------------------------------------------------------------------------------------- */

/* NULL: the host cannot reach it. */
static char *host_pointer(const struct job *job, const struct plan *plan, int buffer)
{
  const struct plan_buffer *b = &plan->buffer[buffer];
  if (b->tier == TIER_DISK || (b->tier == TIER_DEVICE && !job->device->host_memory))
    return NULL;
  return (char *)job->memory.persistent[b->tier] + b->offset;
}

/* What of the job the host reads and writes as its own. */
static char *place_of(const struct job_state *state, const struct job_state_piece *piece)
{
  char *buffer = piece->buffer >= 0 ? host_pointer(state->job, state->plan, piece->buffer) : NULL;
  return buffer ? buffer + piece->offset : NULL;
}

/* In the block, and on a device that lies apart. */
static bool is_apart(const struct job_state *state, const struct job_state_piece *piece)
{
  return piece->blocked && state->plan->buffer[piece->buffer].tier == TIER_DEVICE && !state->job->device->host_memory;
}

static bool wants_block(const struct job_state *state, const struct job_state_piece *piece, bool snapshot)
{
  if (piece->buffer < 0 || piece_bytes(piece) == 0)
    return false;
  return snapshot || (!place_of(state, piece) && state->plan->buffer[piece->buffer].tier == TIER_DEVICE);
}

/* Memory that the device copies into without a detour, where the device lies apart. */
static enum status alloc_block(struct job_state *state, bool snapshot)
{
  struct device *device = state->job->device;
  state->pinned = snapshot && !device->host_memory && count_bytes(state->plan, true, true, true) > 0;
  if (state->pinned)
    return device->ops->alloc_host(device, MEM_IO, (size_t)state->block_bytes, &state->block);
  return mem_alloc(MEM_IO, (size_t)state->block_bytes, &state->block);
}

/* Where the host finds the pieces: at their place, or one behind the other in a block. */
static enum status place_pieces(struct job_state *state, bool snapshot)
{
  for (int i = 0; i < state->pieces; i++) {
    struct job_state_piece *piece = &state->piece[i];
    piece->blocked = wants_block(state, piece, snapshot);
    piece->host = piece->blocked ? NULL : place_of(state, piece);
    state->block_bytes += piece->blocked ? piece_bytes(piece) : 0;
  }
  if (state->block_bytes == 0)
    return STATUS_OK;
  const enum status status = alloc_block(state, snapshot);
  char *host = state->block;
  for (int i = 0; i < state->pieces && !status; i++)
    if (state->piece[i].blocked) {
      state->piece[i].host = host;
      host += piece_bytes(&state->piece[i]);
    }
  return status;
}

/* --- copies --------------------------------------------------------------------------------------------------------------------- */

static enum status run_team(const struct job *job, team_task *task, void *arg)
{
  struct team *team = NULL;
  const enum status status = team_create(job->threads > 0 ? job->threads : 1, job->host && job->topo ? topo_cores(job->topo) : NULL, &team);
  if (!status)
    team_run(team, task, arg);
  team_destroy(team);
  return status;
}

/* Each worker copies its part of every piece that the host reaches. */
static void copy_part(void *arg, int worker, int workers)
{
  const struct job_state *state = arg;
  for (int i = 0; i < state->pieces; i++) {
    const struct job_state_piece *piece = &state->piece[i];
    const char *from = piece->blocked ? place_of(state, piece) : NULL;
    int64_t begin, end;
    team_slice(piece_bytes(piece), COPY_GRAIN, worker, workers, &begin, &end);
    if (from && begin < end)
      memcpy(piece->host + begin, from + begin, (size_t)(end - begin));
  }
}

static void *device_pointer(const struct job_state *state, int buffer)
{
  const struct plan_buffer *b = &state->plan->buffer[buffer];
  return (char *)state->job->memory.persistent[b->tier] + b->offset;
}

/* On a lane: copies in the compute type of the masters of a device apart, rounded as a gather rounds what it casts. */
static enum status narrow_there(const struct job_state *state, struct lane *lane)
{
  const struct plan *plan = state->plan;
  const struct device *device = state->job->device;
  enum status status = STATUS_OK;
  for (int u = 0; u < plan->input.model->units && !status; u++)
    if (plan->working[u] >= 0 && plan->buffer[plan->working[u]].tier == TIER_DEVICE)
      status = device->ops->cast(lane, plan->owned[u].end - plan->owned[u].begin, DTYPE_F32, device_pointer(state, plan->master[u]), device->compute,
                                 device_pointer(state, plan->working[u]));
  return status;
}

/* On a lane: what lies on a device apart. */
static enum status copy_pieces(const struct job_state *state, struct lane *lane, bool to_job)
{
  const struct device_ops *ops = state->job->device->ops;
  enum status status = STATUS_OK;
  for (int i = 0; i < state->pieces && !status; i++) {
    const struct job_state_piece *piece = &state->piece[i];
    if (!is_apart(state, piece))
      continue;
    char *device = (char *)device_pointer(state, piece->buffer) + piece->offset;
    const size_t bytes = (size_t)piece_bytes(piece);
    status = to_job ? ops->copy(lane, device, piece->host, bytes) : ops->copy(lane, piece->host, device, bytes);
  }
  return status;
}

/* Between the block and a device apart, and from what is there now to its copies, on a lane of its own; complete on return. */
static enum status transfer(const struct job_state *state, bool to_job)
{
  struct device *device = state->job->device;
  struct lane *lane = NULL;
  struct mark *mark = NULL;
  bool any = false;
  for (int i = 0; i < state->pieces; i++)
    any |= is_apart(state, &state->piece[i]);
  if (!any)
    return STATUS_OK;
  enum status status = device->ops->lane_create(device, "state", 1, &lane);
  if (status)
    return status;
  status = device->ops->mark_create(device, &mark);
  if (!status)
    status = copy_pieces(state, lane, to_job);
  if (!status && to_job)
    status = narrow_there(state, lane);
  if (!status)
    status = device->ops->mark_set(lane, mark);
  if (!status)
    status = device->ops->mark_wait(mark);
  if (!status)
    status = device->ops->lane_check(lane);
  device->ops->mark_destroy(mark);
  device->ops->lane_destroy(lane);
  return status;
}

static enum status read_disk(const struct job_state *state)
{
  enum status status = STATUS_OK;
  for (int i = 0; i < state->pieces && !status; i++) {
    const struct job_state_piece *piece = &state->piece[i];
    if (piece->blocked && state->plan->buffer[piece->buffer].tier == TIER_DISK)
      status = exec_memory_read(&state->job->memory, state->plan, piece->buffer, piece->offset, piece_bytes(piece), piece->host);
  }
  return status;
}

/* Elements of a piece between their own type, wherever they are, and fp32. */
static enum status move_some(const struct job_state_part *part, int64_t begin, int64_t n, float *data)
{
  const struct job_state *state = part->state;
  const struct job_state_piece *piece = part->piece;
  const struct exec_memory *memory = &state->job->memory;
  const int64_t size = (int64_t)dtype_size(piece->type), offset = piece->offset + begin * size;
  void *own = piece->host ? piece->host + begin * size : state->scratch;
  enum status status = STATUS_OK;
  if (state->loads) {
    dtype_convert(own, piece->type, data, DTYPE_F32, (size_t)n);
    return piece->host ? STATUS_OK : exec_memory_write(memory, state->plan, piece->buffer, offset, n * size, own);
  }
  if (!piece->host)
    status = exec_memory_read(memory, state->plan, piece->buffer, offset, n * size, own);
  if (!status)
    dtype_convert(data, DTYPE_F32, own, piece->type, (size_t)n);
  return status;
}

static enum status move(const struct io_tensor *tensor, struct layout_range range, void *data)
{
  const struct job_state_part *part = tensor->arg;
  const int64_t n = range.end - range.begin;
  enum status status = STATUS_OK;
  for (int64_t done = 0; done < n && !status; done += SCRATCH)
    status = move_some(part, part->at + range.begin + done, n - done < SCRATCH ? n - done : SCRATCH, (float *)data + done);
  return status;
}

/* --- zeros on the disk, which begins with any bits ------------------------------------------------------------------------------- */

static enum status zero_range(const struct job_state *state, const struct job_state_piece *piece, int64_t begin, int64_t end)
{
  const int64_t size = (int64_t)dtype_size(piece->type);
  enum status status = STATUS_OK;
  memset(state->scratch, 0, SCRATCH * sizeof(float));
  for (int64_t at = begin; at < end && !status; at += SCRATCH)
    status = exec_memory_write(&state->job->memory, state->plan, piece->buffer, piece->offset + at * size,
                               (end - at < SCRATCH ? end - at : SCRATCH) * size, state->scratch);
  return status;
}

/* What no parameter's elements are going to be written to. */
static enum status zero_gaps(const struct job_state *state, const struct layout_unit *layout, const struct job_state_piece *piece)
{
  int64_t done = 0;
  enum status status = STATUS_OK;
  for (int p = 0; p < layout->params && !status; p++) {
    const struct layout_range part = layout_param_part(layout, p, piece->range);
    if (layout->frozen[p] || part.begin >= part.end)
      continue;
    const int64_t at = layout->offset[p] - piece->range.begin;
    status = zero_range(state, piece, done, at + part.begin);
    done = at + part.end;
  }
  return status ? status : zero_range(state, piece, done, piece->range.end - piece->range.begin);
}

static enum status zero_disk(const struct job_state *state, bool moments)
{
  const struct plan *plan = state->plan;
  enum status status = STATUS_OK;
  for (int kind = 1; kind < KINDS; kind++)
    for (int u = 0; u < plan->input.model->units && !status; u++) {
      const struct job_state_piece piece = make_piece(plan, kind, u, false, false);
      if (piece.buffer < 0 || plan->buffer[piece.buffer].tier != TIER_DISK)
        continue;
      status = moments ? zero_gaps(state, &plan->layout[u], &piece) : zero_range(state, &piece, 0, piece.range.end - piece.range.begin);
    }
  return status;
}

/* --- opening -------------------------------------------------------------------------------------------------------------------- */

static void describe_tensor(struct job_state *state, int kind, int u, int p, const struct job_state_piece *piece)
{
  static const char *const group[KINDS] = {"model", "exp_avg", "exp_avg_sq"};
  const struct model_param *param = &state->plan->input.model->unit[u].param[p];
  const struct layout_unit *layout = &state->plan->layout[u];
  struct job_state_part *part = &state->part[state->n];
  struct io_tensor *out = &state->tensor[state->n++];
  *part = (struct job_state_part){.state = state, .piece = piece, .at = layout->offset[p] - piece->range.begin};
  *out = (struct io_tensor){.group = group[kind],
                            .name = param->name,
                            .type = DTYPE_F32,
                            .ndim = param->ndim,
                            .writer = true,
                            .range = layout_param_part(layout, p, piece->range),
                            .arg = part};
  for (int d = 0; d < param->ndim; d++)
    out->shape[d] = param->shape[d];
  const bool empty = out->range.begin >= out->range.end;
  if (piece->host && piece->type == DTYPE_F32)
    out->data = piece->host + (empty ? 0 : part->at + out->range.begin) * (int64_t)sizeof(float);
  else
    out->move = move;
}

static void describe_tensors(struct job_state *state, int kinds)
{
  const struct plan *plan = state->plan;
  const struct model *model = plan->input.model;
  for (int kind = 0; kind < kinds; kind++)
    for (int u = 0; u < model->units; u++)
      for (int p = 0; p < model->unit[u].params; p++) {
        const struct job_state_piece *piece = &state->piece[piece_index(plan, kind, u, plan->layout[u].frozen[p])];
        if (piece->buffer >= 0)
          describe_tensor(state, kind, u, p, piece);
      }
}

static bool uses_disk(const struct plan *plan)
{
  return plan->persistent_bytes[TIER_DISK] > 0;
}

static enum status alloc_tables(struct job_state *state, int kinds)
{
  const struct model *model = state->plan->input.model;
  size_t params = 0;
  for (int u = 0; u < model->units; u++)
    params += (size_t)model->unit[u].params;
  state->pieces = kinds * model->units * PARTS;
  enum status status = mem_alloc(MEM_IO, (size_t)state->pieces * sizeof *state->piece, (void **)&state->piece);
  if (!status)
    status = mem_alloc(MEM_IO, params * (size_t)kinds * sizeof *state->tensor, (void **)&state->tensor);
  if (!status)
    status = mem_alloc(MEM_IO, params * (size_t)kinds * sizeof *state->part, (void **)&state->part);
  if (!status && uses_disk(state->plan))
    status = mem_alloc(MEM_IO, SCRATCH * sizeof(float), &state->scratch);
  return status;
}

static enum status fill(struct job_state *state, bool moments, bool unique, bool snapshot)
{
  const struct plan *plan = state->plan;
  const int kinds = kinds_of(moments);
  enum status status = alloc_tables(state, kinds);
  for (int kind = 0; kind < kinds && !status; kind++)
    for (int u = 0; u < plan->input.model->units; u++)
      for (int frozen = 0; frozen < PARTS; frozen++)
        state->piece[piece_index(plan, kind, u, frozen)] = make_piece(plan, kind, u, frozen, unique);
  if (!status)
    status = place_pieces(state, snapshot);
  if (!status)
    describe_tensors(state, kinds);
  return status;
}

static enum status create(const struct job *job, bool load, struct job_state **out)
{
  struct job_state *state = NULL;
  const enum status status = mem_alloc(MEM_IO, sizeof *state, (void **)&state);
  if (status)
    return status;
  state->job = job;
  state->plan = job_state_plan(job);
  state->loads = load;
  *out = state;
  return STATUS_OK;
}

enum status job_state_open(const struct job *job, bool moments, bool unique, bool load, struct job_state **out)
{
  struct job_state *state = NULL;
  enum status status = create(job, load, &state);
  if (status)
    return status;
  status = fill(state, moments, unique, false);
  if (!status)
    status = load ? zero_disk(state, moments) : transfer(state, false);
  if (status)
    job_state_close(state);
  else
    *out = state;
  return status;
}

enum status job_state_create_snapshot(const struct job *job, struct job_state **out)
{
  struct job_state *state = NULL;
  enum status status = create(job, false, &state);
  if (status)
    return status;
  status = fill(state, true, true, true);
  if (status)
    job_state_close(state);
  else
    *out = state;
  return status;
}

enum status job_state_take_snapshot(struct job_state *state)
{
  enum status status = run_team(state->job, copy_part, state);
  if (!status)
    status = transfer(state, false);
  return status ? status : read_disk(state);
}

/* --- filled --------------------------------------------------------------------------------------------------------------------- */

/* A worker's part of a copy in the compute type of what this rank holds of a unit; on a device apart narrow_there() has made it. */
static void narrow_part(const struct job_state *state, int master, struct layout_range range, char *copy, int worker, int workers)
{
  const enum dtype compute = state->job->device->compute;
  int64_t begin, end;
  if (master < 0 || !copy)
    return;
  team_slice(range.end - range.begin, LAYOUT_BLOCK, worker, workers, &begin, &end);
  const float *from = (const float *)host_pointer(state->job, state->plan, master);
  if (begin < end)
    dtype_convert(copy + begin * (int64_t)dtype_size(compute), compute, from + begin, DTYPE_F32, (size_t)(end - begin));
}

/* Of what the group shares this rank writes its part, the frozen one too. */
static void publish_part(void *arg, int worker, int workers)
{
  const struct job_state *state = arg;
  const struct plan *plan = state->plan;
  const int64_t size = (int64_t)dtype_size(state->job->device->compute);
  for (int u = 0; u < plan->input.model->units; u++) {
    if (plan->working[u] >= 0)
      narrow_part(state, plan->master[u], plan->owned[u], host_pointer(state->job, plan, plan->working[u]), worker, workers);
    if (plan->shared[u] >= 0)
      narrow_part(state, plan->frozen[u], plan->frozen_owned[u], host_pointer(state->job, plan, plan->shared[u]) + plan->frozen_owned[u].begin * size,
                  worker, workers);
  }
}

enum status job_state_commit(struct job_state *state)
{
  if (!state->loads)
    return status_set(STATUS_INTERNAL, "state that was opened to be saved is written back");
  const enum status status = transfer(state, true);
  return status ? status : run_team(state->job, publish_part, state);
}

void job_state_close(struct job_state *state)
{
  if (!state)
    return;
  if (state->pinned && state->block)
    state->job->device->ops->release_host(state->job->device, state->block);
  else
    mem_free(state->block);
  mem_free(state->scratch);
  mem_free(state->part);
  mem_free(state->tensor);
  mem_free(state->piece);
  mem_free(state);
}

/* --- initialisation ------------------------------------------------------------------------------------------------------------- */

/* Each worker makes its part of every tensor: an element is a function of its place. */
static void init_part(void *arg, int worker, int workers)
{
  enum { GRAIN = 4096 };
  const struct job_state *state = arg;
  const struct model *model = state->job->model;
  const uint64_t seed = (uint64_t)state->job->deck->run.seed;
  for (int u = 0, t = 0; u < model->units; u++)
    for (int p = 0; p < model->unit[u].params; p++, t++) {
      const struct layout_range range = state->tensor[t].range;
      int64_t begin, end;
      team_slice(range.end > range.begin ? range.end - range.begin : 0, GRAIN, worker, workers, &begin, &end);
      if (begin < end)
        model_init_param(model, seed, u, p, (struct layout_range){range.begin + begin, range.begin + end}, (float *)state->tensor[t].data + begin);
    }
}

enum status job_state_init(const struct job *job)
{
  struct job_state *state = NULL;
  enum status status = job_state_open(job, false, false, true, &state);
  if (!status)
    status = run_team(job, init_part, state);
  if (!status)
    status = job_state_commit(state);
  job_state_close(state);
  return status;
}
