/* The parts of the state that a rank holds, kind by kind and unit by unit, and their place for the
 * host. */
#include "base/mem.h"
#include "job/state_private.h"
#include "layout/mesh.h"
#include "optim/optim.h"

bool job_state_has_copies(const struct plan *plan)
{
  for (int u = 0; u < plan->input.model->units; u++)
    if (plan->unit[u].copy >= 0)
      return true;
  return false;
}

int job_state_kinds(const struct plan *plan, bool moments)
{
  return 1 + (moments ? plan->states + job_state_has_copies(plan) + plan_keeps_residuals(plan) : 0);
}

bool job_state_is_copy(const struct plan *plan, int kind)
{
  return kind == 1 + plan->states && job_state_has_copies(plan);
}

bool job_state_is_residual(const struct plan *plan, int kind)
{
  return kind == 1 + plan->states + job_state_has_copies(plan);
}

int job_state_piece_index(const struct plan *plan, int kind, int u, bool frozen)
{
  return (kind * plan->input.model->units + u) * JOB_STATE_PARTS + frozen;
}

/* The piece that this rank alone writes, of `whole` elements that a shard group holds. Ranks that
 * hold the same elements divide them: all, or the replicas of a shard. */
static struct layout_range unique_range(const struct plan *plan, int64_t whole,
                                        struct layout_range held)
{
  const int64_t n = held.end - held.begin;
  const mesh_set holders = whole > n ? MESH_REPLICA : MESH_DATA;
  const int index = mesh_index(&plan->mesh, holders, plan->input.rank);
  const int64_t piece = n / mesh_ranks(&plan->mesh, holders);
  return (struct layout_range){held.begin + index * piece, held.begin + (index + 1) * piece};
}

/* The whole message, which is cut nowhere. */
static struct job_state_piece residual_of(const struct plan *plan, int u, bool frozen)
{
  const int buffer = frozen ? -1 : plan->unit[u].residual;
  const int64_t bytes = buffer >= 0 ? plan->buffer[buffer].bytes : 0;
  return (struct job_state_piece){
      .buffer = buffer, .range = {0, bytes}, .elements = bytes, .type = DTYPE_U8};
}

/* kind 0: the parameters; from 1 on: the optimizer's state and the copy, which frozen ones do not
 * have. The base of adapters is not saved. */
static struct job_state_piece holding_of(const struct plan *plan, int kind, int u, bool frozen,
                                         bool saves)
{
  const struct plan_unit *unit = &plan->unit[u];
  struct job_state_piece piece = {.buffer = unit->master,
                                  .range = frozen ? plan_message_range(plan, u) : unit->owned,
                                  .code = STATE_LINEAR};
  if (frozen) {
    piece.buffer = kind > 0 || (saves && plan->input.model->lora_rank > 0) ? -1 : unit->frozen;
  } else if (job_state_is_copy(plan, kind)) { /* the shard group is all ranks */
    piece.buffer = unit->copy_mine;
  } else if (kind > 0) {
    piece.buffer = unit->state[kind - 1];
    piece.code = plan->state[kind - 1]->code;
  }
  if (piece.buffer >= 0)
    piece.type = plan->buffer[piece.buffer].dtype;
  if (frozen && piece.buffer >= 0 && plan_keeps_message(plan, u))
    piece.codec = &unit->policy.base;
  return piece;
}

/* The unique range of a unit's trained or frozen part. */
static struct layout_range unique_part(const struct plan *plan, int u, bool frozen)
{
  const struct plan_unit *unit = &plan->unit[u];
  const struct layout_unit *layout = &unit->layout;
  return unique_range(plan, frozen ? layout->flat - layout->trained : layout->trained,
                      frozen ? unit->frozen_owned : unit->owned);
}

struct layout_range job_state_own(const struct job_state *state, int u, int p)
{
  const struct layout_unit *layout = &state->plan->unit[u].layout;
  return layout_param_part(layout, p, unique_part(state->plan, u, layout->frozen[p]));
}

struct job_state_piece job_state_make_piece(const struct plan *plan, int kind, int u, bool frozen,
                                            bool unique)
{
  if (job_state_is_residual(plan, kind))
    return residual_of(plan, u, frozen);
  struct job_state_piece piece = holding_of(plan, kind, u, frozen, unique);
  const struct layout_range held = piece.range;
  if (piece.buffer < 0)
    return piece;
  if (unique)
    piece.range = unique_part(plan, u, frozen);
  if (piece.codec) {
    piece.elements = plan->buffer[piece.buffer].bytes;
    return piece;
  }
  const int64_t begin = job_state_offset(plan, kind, u, piece.range.begin);
  piece.elements = job_state_offset(plan, kind, u, piece.range.end) - begin;
  piece.offset = dtype_bytes(piece.type, begin - job_state_offset(plan, kind, u, held.begin));
  return piece;
}

bool job_state_has(const struct plan *plan, int kind, int u, int p)
{
  const struct optim_ops *ops = optim_ops(plan->input.optim.name);
  if (kind == 0 || plan->unit[u].layout.frozen[p])
    return kind == 0;
  if (job_state_is_copy(plan, kind))
    return true;
  const enum state_of of = plan->state[kind - 1]->of;
  return of == STATE_OF_ALL ||
         (of == STATE_OF_MATRICES) == optim_is_matrix(ops, plan->input.model, u, p);
}

int64_t job_state_offset(const struct plan *plan, int kind, int u, int64_t element)
{
  const bool whole = kind == 0 || job_state_is_copy(plan, kind);
  return whole ? element : optim_state_offset(&plan->unit[u].segments, kind - 1, element);
}

int64_t job_state_piece_bytes(const struct job_state_piece *piece)
{
  return piece->buffer >= 0 ? dtype_bytes(piece->type, piece->elements) : 0;
}

/* Bytes of all pieces of a plan, or only of those that a block holds if the device is separate, and
 * of a message that is decoded. */
static int64_t count_bytes(const struct plan *plan, bool moments, bool unique, bool blocked)
{
  int64_t bytes = 0, message = 0;
  bool coded = false;
  for (int kind = 0; kind < job_state_kinds(plan, moments); kind++)
    for (int u = 0; u < plan->input.model->units; u++)
      for (int frozen = 0; frozen < JOB_STATE_PARTS; frozen++) {
        const struct job_state_piece piece = job_state_make_piece(plan, kind, u, frozen, unique);
        if (piece.buffer >= 0 &&
            (!blocked || (!piece.codec && plan->buffer[piece.buffer].tier == TIER_DEVICE)))
          bytes += job_state_piece_bytes(&piece);
        coded |= piece.codec != NULL;
      }
  const int64_t elements = coded ? job_state_coding_bytes(plan, !unique, &message) : 0;
  return bytes + elements + message;
}

int64_t job_state_bytes(const struct plan *plan, bool moments)
{
  return count_bytes(plan, moments, false, true);
}

int64_t job_state_snapshot_bytes(const struct job *job)
{
  return count_bytes(job_state_plan(job), true, true, false);
}

char *job_state_host_pointer(const struct job *job, int buffer)
{
  const enum plan_tier tier = job_state_plan(job)->buffer[buffer].tier;
  const bool there = tier == TIER_DEVICE && !job->device->model.host_memory;
  return there || tier == TIER_DISK ? NULL : job_state_pointer(job, buffer);
}

char *job_state_place(const struct job_state *state, const struct job_state_piece *piece)
{
  char *buffer = piece->buffer >= 0 ? job_state_host_pointer(state->job, piece->buffer) : NULL;
  return buffer ? buffer + piece->offset : NULL;
}

bool job_state_is_apart(const struct job_state *state, const struct job_state_piece *piece)
{
  return piece->blocked && state->plan->buffer[piece->buffer].tier == TIER_DEVICE &&
         !state->job->device->model.host_memory;
}

static bool wants_block(const struct job_state *state, const struct job_state_piece *piece,
                        bool snapshot)
{
  if (piece->buffer < 0 || job_state_piece_bytes(piece) == 0)
    return false;
  return snapshot || (!piece->codec && !job_state_place(state, piece) &&
                      state->plan->buffer[piece->buffer].tier == TIER_DEVICE);
}

/* Pinned memory, if a separate device holds most of the state. Otherwise pinning would take longer
 * than it saves. */
static enum status alloc_block(struct job_state *state, bool snapshot)
{
  struct device *device = state->job->device;
  int64_t there = 0;
  for (int i = 0; i < state->pieces; i++)
    if (job_state_is_apart(state, &state->piece[i]))
      there += job_state_piece_bytes(&state->piece[i]);
  state->pinned = snapshot && there > 0 && 2 * there >= state->block_bytes;
  if (state->pinned)
    return device->ops->alloc_host(device, MEM_IO, (size_t)state->block_bytes, &state->block);
  return mem_alloc(MEM_IO, (size_t)state->block_bytes, &state->block);
}

enum status job_state_place_pieces(struct job_state *state, bool snapshot)
{
  for (int i = 0; i < state->pieces; i++) {
    struct job_state_piece *piece = &state->piece[i];
    piece->blocked = wants_block(state, piece, snapshot);
    piece->host = piece->blocked ? NULL : job_state_place(state, piece);
    state->block_bytes += piece->blocked ? job_state_piece_bytes(piece) : 0;
  }
  if (state->block_bytes == 0)
    return STATUS_OK;
  const enum status status = alloc_block(state, snapshot);
  char *host = state->block;
  for (int i = 0; i < state->pieces && !status; i++)
    if (state->piece[i].blocked) {
      state->piece[i].host = host;
      host += job_state_piece_bytes(&state->piece[i]);
    }
  return status;
}
