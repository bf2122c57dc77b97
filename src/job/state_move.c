/* Moves state between a separate device, the disk, and memory that the host reads and writes. */
#include <string.h>

#include "base/progress.h"
#include "base/team.h"
#include "device/lane.h"
#include "device/moments.h"
#include "job/state_private.h"
#include "layout/layout.h"

enum { COPY_GRAIN = 1 << 21 }; /* bytes: whole huge pages */

enum status job_state_run_team(const struct job *job, team_task *task, void *arg)
{
  struct team *team = NULL;
  const enum status status =
      team_create(job->threads > 0 ? job->threads : 1,
                  job->host && job->topo ? topo_own(job->topo)->cores : NULL, &team);
  if (!status)
    team_run(team, task, arg);
  team_destroy(team);
  return status;
}

/* Each worker copies its part of every piece that the host can access. */
static void copy_part(void *arg, int worker, int workers)
{
  const struct job_state *state = arg;
  for (int i = 0; i < state->pieces; i++) {
    const struct job_state_piece *piece = &state->piece[i];
    const char *from = piece->blocked ? job_state_place(state, piece) : NULL;
    int64_t begin, end;
    team_slice(job_state_piece_bytes(piece), COPY_GRAIN, worker, workers, &begin, &end);
    if (from && begin < end)
      memcpy(piece->host + begin, from + begin, (size_t)(end - begin));
  }
}

char *job_state_pointer(const struct job *job, int buffer)
{
  const struct plan_buffer *b = &job_state_plan(job)->buffer[buffer];
  return (char *)job->memory.persistent[b->tier] + b->offset;
}

enum status job_state_on_lane(struct device *device, int threads, job_state_work *work,
                              const void *arg)
{
  struct lane *lane = NULL;
  struct mark *mark = NULL;
  enum status status =
      device->ops->lane_create(device, "state", LANE_ROLE_BACKGROUND, threads, &lane);
  if (status)
    return status;
  status = device->ops->mark_create(device, &mark)
           ?: work(lane, arg)
           ?: device->ops->mark_set(lane, mark)
           ?: device->ops->mark_wait(mark)
           ?: device->ops->lane_check(lane);
  device->ops->mark_destroy(mark);
  device->ops->lane_destroy(lane);
  return status;
}

/* Copies on a separate device, rounded as a gather rounds them. */
static enum status narrow_there(struct lane *lane, const void *arg)
{
  const struct job_state *state = arg;
  const enum dtype compute = state->job->place.compute;
  struct job_state_cast cast[JOB_STATE_CASTS];
  enum status status = STATUS_OK;
  for (int u = 0; u < state->plan->input.model->units; u++)
    for (int i = 0, n = job_state_list_casts(state, u, cast); i < n && !status; i++)
      if (!job_state_host_pointer(state->job, cast[i].copy))
        status = lane->device->ops->cast(lane, cast[i].range.end - cast[i].range.begin, DTYPE_F32,
                                         job_state_pointer(state->job, cast[i].master), compute,
                                         job_state_pointer(state->job, cast[i].copy) +
                                             cast[i].at * (int64_t)dtype_size(compute));
  return status;
}

struct transfer {
  const struct job_state *state;
  bool to_job;
};

static enum status copy_pieces(struct lane *lane, const void *arg)
{
  const struct transfer *transfer = arg;
  const struct job_state *state = transfer->state;
  const struct device_ops *ops = lane->device->ops;
  enum status status = STATUS_OK;
  for (int i = 0; i < state->pieces && !status; i++) {
    const struct job_state_piece *piece = &state->piece[i];
    if (!job_state_is_apart(state, piece))
      continue;
    char *device = job_state_pointer(state->job, piece->buffer) + piece->offset;
    const size_t bytes = (size_t)job_state_piece_bytes(piece);
    status = transfer->to_job ? ops->copy(lane, device, piece->host, bytes)
                              : ops->copy(lane, piece->host, device, bytes);
  }
  return status || !transfer->to_job ? status : narrow_there(lane, state);
}

enum status job_state_transfer(const struct job_state *state, bool to_job)
{
  bool any = false;
  for (int i = 0; i < state->pieces; i++)
    any |= job_state_is_apart(state, &state->piece[i]);
  const struct transfer transfer = {state, to_job};
  return any ? job_state_on_lane(state->job->device, 1, copy_pieces, &transfer) : STATUS_OK;
}

static enum status read_disk(const struct job_state *state)
{
  enum status status = STATUS_OK;
  for (int i = 0; i < state->pieces && !status; i++) {
    const struct job_state_piece *piece = &state->piece[i];
    if (piece->blocked && state->plan->buffer[piece->buffer].tier == TIER_DISK)
      status = exec_memory_read(&state->job->memory, state->plan, piece->buffer, piece->offset,
                                job_state_piece_bytes(piece), piece->host);
  }
  return status;
}

_Static_assert(LAYOUT_ALIGN % JOB_STATE_BLOCK == 0 && JOB_STATE_SCRATCH % JOB_STATE_BLOCK == 0,
               "no parameter, shard or scratch begins inside a block");

/* Converts elements of a piece between their own type, in any tier, and fp32. They are whole
 * blocks, except that the last one may end with the parameter. */
static enum status move_some(const struct job_state_part *part, int64_t begin, int64_t n,
                             float *data)
{
  const struct job_state *state = part->state;
  const struct job_state_piece *piece = part->piece;
  const struct exec_memory *memory = &state->job->memory;
  const int64_t at = dtype_bytes(piece->type, begin), bytes = dtype_bytes(piece->type, n),
                offset = piece->offset + at;
  void *own = piece->host ? piece->host + at : state->scratch;
  enum status status = STATUS_OK;
  if (state->loads) {
    moments_encode(own, piece->type, piece->code, data, (size_t)n);
    return piece->host ? STATUS_OK
                       : exec_memory_write(memory, state->plan, piece->buffer, offset, bytes, own);
  }
  if (!piece->host)
    status = exec_memory_read(memory, state->plan, piece->buffer, offset, bytes, own);
  if (!status)
    moments_decode(data, piece->type, piece->code, own, (size_t)n);
  return status;
}

/* Moves elements [from, from + n) of the block at `begin`. It has `whole` elements, because the
 * tensor may end inside it. A block is encoded when its last element has come. */
static enum status move_within(struct job_state_part *part, int64_t begin, int64_t whole,
                               int64_t from, int64_t n, float *data)
{
  const size_t bytes = (size_t)n * sizeof *data;
  enum status status = STATUS_OK;
  if (part->state->loads)
    memcpy(part->block + from, data, bytes);
  if (!part->state->loads || from + n == whole)
    status = move_some(part, begin, whole, part->block);
  if (!part->state->loads && !status)
    memcpy(data, part->block + from, bytes);
  return status;
}

enum status job_state_move(const struct io_tensor *tensor, struct layout_range range, void *data)
{
  struct job_state_part *part = tensor->arg;
  const int64_t block = dtype_block(part->piece->type), end = part->at + tensor->range.end,
                last = part->at + range.end;
  enum status status = STATUS_OK;
  for (int64_t at = part->at + range.begin, n; at < last && !status; at += n) {
    float *const some = (float *)data + (at - part->at - range.begin);
    const int64_t from = at % block, left = last - at;
    n = left < JOB_STATE_SCRATCH ? left : JOB_STATE_SCRATCH;
    if (at + n < end)
      n -= n % block;
    if (from == 0 && n > 0) {
      status = move_some(part, at, n, some);
    } else {
      const int64_t whole = end - (at - from) < block ? end - (at - from) : block;
      n = left < whole - from ? left : whole - from;
      status = move_within(part, at - from, whole, from, n, some);
    }
  }
  return status;
}

enum status job_state_take_snapshot(struct job_state *state)
{
  return job_state_run_team(state->job, copy_part, state)
         ?: job_state_transfer(state, false)
         ?: read_disk(state);
}

/* --- zeros on the disk, whose initial content is undefined --------------- */

/* If `begin` is inside a block, the block belongs to the range before: zeros begin after it. */
static enum status zero_range(const struct job_state *state, const struct job_state_piece *piece,
                              int64_t begin, int64_t end)
{
  enum { BYTES = JOB_STATE_SCRATCH * sizeof(float) };
  const int64_t last = dtype_bytes(piece->type, end);
  enum status status = STATUS_OK;
  memset(state->scratch, 0, BYTES);
  for (int64_t at = dtype_bytes(piece->type, begin); at < last && !status; at += BYTES) {
    progress_add();
    status = exec_memory_write(&state->job->memory, state->plan, piece->buffer, piece->offset + at,
                               last - at < BYTES ? last - at : BYTES, state->scratch);
  }
  return status;
}

/* Zeros the bytes that are not part of any parameter. */
static enum status zero_gaps(const struct job_state *state, int kind, int u,
                             const struct job_state_piece *piece)
{
  const struct plan *plan = state->plan;
  const struct layout_unit *layout = &plan->unit[u].layout;
  int64_t done = 0;
  enum status status = STATUS_OK;
  for (int p = 0; p < layout->params && !status; p++) {
    const struct layout_range part = layout_param_part(layout, p, piece->range);
    if (part.begin >= part.end || !job_state_has(plan, kind, u, p))
      continue;
    const int64_t at = job_state_offset(plan, kind, u, layout->offset[p]) -
                       job_state_offset(plan, kind, u, piece->range.begin);
    status = zero_range(state, piece, done, at + part.begin);
    done = at + part.end;
  }
  return status ? status : zero_range(state, piece, done, plan->buffer[piece->buffer].elements);
}

enum status job_state_zero_disk(const struct job_state *state, bool moments)
{
  const struct plan *plan = state->plan;
  enum status status = STATUS_OK;
  for (int kind = 1; kind < job_state_kinds(plan, true); kind++)
    for (int u = 0; u < plan->input.model->units && !status; u++) {
      const struct job_state_piece piece = job_state_make_piece(plan, kind, u, false, false);
      if (piece.buffer < 0 || plan->buffer[piece.buffer].tier != TIER_DISK)
        continue;
      status = moments && !job_state_is_residual(plan, kind)
                   ? zero_gaps(state, kind, u, &piece)
                   : zero_range(state, &piece, 0, plan->buffer[piece.buffer].elements);
    }
  return status;
}
