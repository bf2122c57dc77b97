#include "train/job_state.h"

#include "base/mem.h"
#include "base/team.h"

/* A range of a unit's flat elements, of one kind, trained or frozen, that lies in one buffer of the plan. */
struct job_state_piece {
  int buffer; /* -1: there is none */
  struct layout_range range;
  void *device;
  char *host;
};

enum { KINDS = 3, PARTS = 2 }; /* parameters and two moments; trained and frozen */

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
  if (!frozen)
    return (struct job_state_piece){.buffer = trained[kind][u], .range = plan->owned[u]};
  return (struct job_state_piece){.buffer = kind == 0 ? plan->frozen[u] : -1, .range = plan->frozen_owned[u]};
}

static size_t piece_bytes(const struct job_state_piece *piece)
{
  return piece->buffer >= 0 ? (size_t)(piece->range.end - piece->range.begin) * sizeof(float) : 0;
}

int64_t job_state_bytes(const struct plan *plan, bool moments)
{
  int64_t bytes = 0;
  for (int kind = 0; kind < kinds_of(moments); kind++)
    for (int u = 0; u < plan->input.model->units; u++)
      for (int frozen = 0; frozen < PARTS; frozen++) {
        const struct job_state_piece piece = holding_of(plan, kind, u, frozen);
        bytes += (int64_t)piece_bytes(&piece);
      }
  return bytes;
}

/* The part of a holding that is asked for, and where the device has it. */
static struct job_state_piece make_piece(const struct job *job, const struct plan *plan, int kind, int u, bool frozen, bool unique)
{
  struct job_state_piece piece = holding_of(plan, kind, u, frozen);
  const struct layout_unit *layout = &plan->layout[u];
  const struct layout_range held = piece.range;
  if (piece.buffer < 0)
    return piece;
  if (unique)
    piece.range = unique_range(&plan->input, held, frozen ? layout->flat - layout->trained : layout->trained);
  const struct plan_buffer *buffer = &plan->buffer[piece.buffer];
  piece.device = (char *)job->memory.persistent[buffer->tier] + buffer->offset + (piece.range.begin - held.begin) * (int64_t)sizeof(float);
  return piece;
}

/* Where the host finds the pieces: at their place, or one behind the other in a block. */
static enum status place_pieces(struct job_state *state)
{
  size_t bytes = 0;
  if (state->job->device->host_memory) {
    for (int i = 0; i < state->pieces; i++)
      state->piece[i].host = state->piece[i].device;
    return STATUS_OK;
  }
  for (int i = 0; i < state->pieces; i++)
    bytes += piece_bytes(&state->piece[i]);
  enum status status = mem_alloc(MEM_IO, bytes, &state->block);
  if (status)
    return status;
  char *host = state->block;
  for (int i = 0; i < state->pieces; i++) {
    state->piece[i].host = host;
    host += piece_bytes(&state->piece[i]);
  }
  return STATUS_OK;
}

static enum status copy_pieces(const struct job_state *state, struct lane *lane, bool to_device)
{
  const struct device_ops *ops = state->job->device->ops;
  enum status status = STATUS_OK;
  for (int i = 0; i < state->pieces && !status; i++) {
    const struct job_state_piece *piece = &state->piece[i];
    const size_t bytes = piece_bytes(piece);
    if (bytes > 0)
      status = to_device ? ops->copy(lane, piece->device, piece->host, bytes) : ops->copy(lane, piece->host, piece->device, bytes);
  }
  return status;
}

/* Between the block and the device, on a lane of its own; complete on return. */
static enum status transfer(const struct job_state *state, bool to_device)
{
  struct device *device = state->job->device;
  struct lane *lane = NULL;
  struct mark *mark = NULL;
  if (!state->block)
    return STATUS_OK;
  enum status status = device->ops->lane_create(device, "state", 1, &lane);
  if (status)
    return status;
  status = device->ops->mark_create(device, &mark);
  if (!status)
    status = copy_pieces(state, lane, to_device);
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

static void describe_tensor(const struct plan *plan, int kind, int u, int p, const struct job_state_piece *piece, struct io_tensor *out)
{
  static const char *const group[KINDS] = {"model", "exp_avg", "exp_avg_sq"};
  const struct model_param *param = &plan->input.model->unit[u].param[p];
  const struct layout_unit *layout = &plan->layout[u];
  *out = (struct io_tensor){.group = group[kind],
                            .name = param->name,
                            .type = DTYPE_F32,
                            .ndim = param->ndim,
                            .writer = true,
                            .range = layout_param_part(layout, p, piece->range)};
  for (int d = 0; d < param->ndim; d++)
    out->shape[d] = param->shape[d];
  const bool empty = out->range.begin >= out->range.end;
  out->data = piece->host + (empty ? 0 : layout->offset[p] + out->range.begin - piece->range.begin) * (int64_t)sizeof(float);
}

static void describe_tensors(struct job_state *state, const struct plan *plan, int kinds)
{
  const struct model *model = plan->input.model;
  for (int kind = 0; kind < kinds; kind++)
    for (int u = 0; u < model->units; u++)
      for (int p = 0; p < model->unit[u].params; p++) {
        const struct job_state_piece *piece = &state->piece[piece_index(plan, kind, u, plan->layout[u].frozen[p])];
        if (piece->buffer >= 0)
          describe_tensor(plan, kind, u, p, piece, &state->tensor[state->n++]);
      }
}

static enum status fill(struct job_state *state, const struct plan *plan, bool moments, bool unique)
{
  const struct model *model = plan->input.model;
  const int kinds = kinds_of(moments);
  int params = 0;
  for (int u = 0; u < model->units; u++)
    params += model->unit[u].params;
  state->pieces = kinds * model->units * PARTS;
  enum status status = mem_alloc(MEM_IO, (size_t)state->pieces * sizeof *state->piece, (void **)&state->piece);
  if (!status)
    status = mem_alloc(MEM_IO, (size_t)(params * kinds) * sizeof *state->tensor, (void **)&state->tensor);
  if (status)
    return status;
  for (int kind = 0; kind < kinds; kind++)
    for (int u = 0; u < model->units; u++)
      for (int frozen = 0; frozen < PARTS; frozen++)
        state->piece[piece_index(plan, kind, u, frozen)] = make_piece(state->job, plan, kind, u, frozen, unique);
  status = place_pieces(state);
  if (!status)
    describe_tensors(state, plan, kinds);
  return status;
}

enum status job_state_open(const struct job *job, bool moments, bool unique, bool load, struct job_state **out)
{
  struct job_state *state = NULL;
  enum status status = mem_alloc(MEM_IO, sizeof *state, (void **)&state);
  if (status)
    return status;
  state->job = job;
  state->loads = load;
  status = fill(state, job_state_plan(job), moments, unique);
  if (!status && !load)
    status = transfer(state, false);
  if (status)
    job_state_close(state);
  else
    *out = state;
  return status;
}

enum status job_state_commit(struct job_state *state)
{
  if (!state->loads)
    return status_set(STATUS_INTERNAL, "state that was opened to be saved is written back");
  return transfer(state, true);
}

void job_state_close(struct job_state *state)
{
  if (!state)
    return;
  mem_free(state->block);
  mem_free(state->tensor);
  mem_free(state->piece);
  mem_free(state);
}

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
  struct team *team = NULL;
  enum status status = job_state_open(job, false, false, true, &state);
  if (!status)
    status = team_create(job->threads > 0 ? job->threads : 1, NULL, &team);
  if (!status) {
    team_run(team, init_part, state);
    status = job_state_commit(state);
  }
  team_destroy(team);
  job_state_close(state);
  return status;
}
