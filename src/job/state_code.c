/* Frozen parts that are kept as messages of a codec. The host decodes them to fp32 for saving, and
 * encodes them after loading, unit by unit: elements of one unit exist at a time. Encoding what a
 * message decodes to gives the same message. */
#include <math.h>

#include "base/bits.h"
#include "base/mem.h"
#include "base/progress.h"
#include "device/lane.h"
#include "job/state_private.h"

struct job_state_coding {
  struct device *host; /* codes */
  int unit;            /* whose elements are in x; -1: none */
  float *magnitudes;   /* loads: of all units in nf4, one after the other */
  float *x;            /* after them, room for the elements of any unit */
  char *message;       /* the same for messages, if those of the job are on a separate device */
  bool filled[];       /* by unit: its message was made */
};

static const struct job_state_piece *piece_of(const struct job_state *state, int u)
{
  return &state->piece[job_state_piece_index(state->plan, 0, u, true)];
}

static int64_t elements_of(const struct plan *plan, int u)
{
  const struct layout_range range = plan_message_range(plan, u);
  return range.end - range.begin;
}

static int64_t kept_bytes(const struct plan *plan, int u)
{
  return plan->unit[u].kept < 0 ? 0 : plan->buffer[plan->unit[u].kept].bytes;
}

/* The number of magnitudes of a message in nf4 on this rank. */
static int64_t magnitudes_of(const struct plan *plan, int u)
{
  return plan_message_scales(plan, u) > 0 ? nf4_blocks(elements_of(plan, u)) : 0;
}

int64_t job_state_coding_bytes(const struct plan *plan, bool loads, int64_t *messages)
{
  int64_t most = 0, magnitudes = 0;
  *messages = 0;
  for (int u = 0; u < plan->input.model->units; u++) {
    if (!plan_keeps_message(plan, u))
      continue;
    const int64_t bytes = plan->buffer[plan->unit[u].frozen].bytes + kept_bytes(plan, u);
    most = elements_of(plan, u) > most ? elements_of(plan, u) : most;
    *messages = bytes > *messages ? bytes : *messages;
    magnitudes += loads ? magnitudes_of(plan, u) : 0;
  }
  return (most + magnitudes) * (int64_t)sizeof(float);
}

static float *magnitudes_at(const struct job_state *state, int u)
{
  float *at = state->coding->magnitudes;
  for (int i = 0; i < u; i++)
    at += magnitudes_of(state->plan, i);
  return at;
}

static enum status prepare(struct job_state *state)
{
  struct job_state_coding *coding;
  const int units = state->plan->input.model->units;
  int64_t messages;
  const int64_t bytes = job_state_coding_bytes(state->plan, state->loads, &messages);
  enum status status =
      mem_alloc(MEM_IO, sizeof *coding + (size_t)units * sizeof(bool), (void **)&coding);
  if (status)
    return status;
  *coding = (struct job_state_coding){.unit = -1};
  state->coding = coding;
  status = mem_alloc(MEM_IO, (size_t)bytes, (void **)&coding->magnitudes)
               ?: device_create("host", 0, state->job->place.compute, &coding->host);
  coding->x = state->loads ? magnitudes_at(state, units) : coding->magnitudes;
  return status || state->job->device->model.host_memory
             ? status
             : mem_alloc(MEM_IO, (size_t)messages, (void **)&coding->message);
}

void job_state_coding_destroy(struct job_state_coding *coding)
{
  if (coding) {
    device_destroy(coding->host);
    mem_free(coding->message);
    mem_free(coding->magnitudes);
  }
  mem_free(coding);
}

struct work {
  const struct job_state *state;
  char *message, *kept; /* in host memory */
};

static enum status code(struct lane *lane, const void *arg)
{
  const struct work *work = arg;
  const struct plan *plan = work->state->plan;
  const struct job_state_coding *coding = work->state->coding;
  return work->state->loads
             ? plan_message_encode(plan, coding->unit, lane, coding->x, work->message, work->kept)
             : plan_message_decode(plan, coding->unit, lane, 1, work->message, DTYPE_F32,
                                   coding->x);
}

/* Encodes or decodes the unit that is open. A message on a separate device is copied to or from the
 * host. */
static enum status code_unit(const struct job_state *state)
{
  const struct job *job = state->job;
  const struct job_state_piece *piece = piece_of(state, state->coding->unit);
  const int kept = state->plan->unit[state->coding->unit].kept;
  const int64_t bytes = job_state_piece_bytes(piece);
  char *const there = piece->host ? NULL : job_state_pointer(job, piece->buffer),
              *const place = kept < 0 ? NULL : job_state_pointer(job, kept);
  const bool doubly = plan_message_scales(state->plan, state->coding->unit) > 0;
  const struct work work = {state, piece->host ? piece->host : state->coding->message,
                            doubly ? (char *)magnitudes_at(state, state->coding->unit)
                            : job->device->model.host_memory ? place
                                                             : state->coding->message + bytes};
  enum status status = STATUS_OK;
  if (there && !state->loads)
    status = job_state_copy(job, work.message, there, bytes);
  status = status
               ?: job_state_on_lane(state->coding->host, job->threads > 0 ? job->threads : 1, code,
                                    &work);
  if (!status && there && state->loads)
    status = job_state_copy(job, there, work.message, bytes);
  if (!status && place && place != work.kept)
    status = job_state_copy(job, place, work.kept, kept_bytes(state->plan, state->coding->unit));
  progress_add();
  return status;
}

static enum status close_unit(struct job_state *state)
{
  struct job_state_coding *coding = state->coding;
  if (!coding || coding->unit < 0)
    return STATUS_OK;
  const enum status status = state->loads ? code_unit(state) : STATUS_OK;
  coding->filled[coding->unit] = true;
  coding->unit = -1;
  return status;
}

enum status job_state_open_unit(struct job_state *state, int u)
{
  if (!piece_of(state, u)->codec || (state->coding && state->coding->unit == u))
    return STATUS_OK;
  enum status status = state->coding ? close_unit(state) : prepare(state);
  if (status)
    return status;
  struct job_state_coding *coding = state->coding;
  if (state->loads && coding->filled[u])
    return status_set(STATUS_INTERNAL,
                      "frozen parameters of %s are loaded again after those of another unit",
                      state->plan->input.model->unit[u].name);
  coding->unit = u;
  if (!state->loads)
    return code_unit(state);
  memset(coding->x, 0, (size_t)elements_of(state->plan, u) * sizeof *coding->x);
  return STATUS_OK;
}

enum status job_state_close_units(struct job_state *state)
{
  enum status status = STATUS_OK;
  for (int u = 0; u < state->plan->input.model->units && !status; u++)
    if (piece_of(state, u)->codec && !(state->coding && state->coding->filled[u]))
      status = job_state_open_unit(state, u);
  return status ? status : close_unit(state);
}

/* ---- scales of nf4 ---- */

enum status job_state_make_scales(struct job *job)
{
  const struct plan *plan = job_state_plan(job);
  int64_t n = 0;
  for (int u = 0; u < plan->input.model->units; u++)
    n += plan_message_scales(plan, u);
  return mem_new(MEM_IO, n, &job->scales);
}

float *job_state_scales(const struct job *job, int u)
{
  float *scales = job->scales;
  for (int i = 0; i < u; i++)
    scales += plan_message_scales(job_state_plan(job), i);
  return scales;
}

/* Room for what the ranks agree on. */
struct agreement {
  struct nf4_param *param;
  bool *exact;
  struct exactsum *sum; /* of each parameter */
  int64_t *bits;        /* of each scale: not negative, so they rise with it */
};

static void sum_own(const struct job_state *state, int u, const struct nf4_cut *held,
                    struct exactsum *sum)
{
  const struct layout_unit *layout = &state->plan->unit[u].layout;
  for (int p = 0, frozen = 0; p < layout->params; p++) {
    if (!layout->frozen[p])
      continue;
    const struct layout_range own = job_state_own(state, u, p);
    const int64_t begin = held->param[frozen].begin + own.begin / NF4_BLOCK;
    const struct nf4_cut cut = {1, &held->param[frozen], begin,
                                nf4_blocks(own.end) - own.begin / NF4_BLOCK,
                                held->magnitude + (begin - held->begin)};
    nf4_sum(&cut, &sum[frozen++]);
  }
}

/* Collective. */
static enum status agree(const struct job_state *state, int u, const struct nf4_cut *held,
                         const struct agreement *room)
{
  float *const scales = job_state_scales(state->job, u);
  const int n = (int)plan_message_scales(state->plan, u);
  for (int p = 0; p < held->params; p++)
    room->exact[p] = !isnan(scales[held->param[p].scale]);
  sum_own(state, u, held, room->sum);
  enum status status =
      comm_sum_i64(state->job->comm, (int64_t *)(void *)room->sum, held->params * EXACTSUM_WORDS);
  if (status)
    return status;
  nf4_scale(held, room->sum, scales);
  for (int i = 0; i < n; i++)
    room->bits[i] = f32_bits(scales[i]);
  status = comm_max_i64(state->job->comm, room->bits, n);
  for (int i = 0; i < n && !status; i++)
    scales[i] = f32_from_bits((uint32_t)room->bits[i]);
  return status;
}

static enum status complete_unit(const struct job_state *state, int u, const struct agreement *room)
{
  const struct plan_unit *unit = &state->plan->unit[u];
  const struct job_state_piece *piece = piece_of(state, u);
  const int64_t n = elements_of(state->plan, u), codes = nf4_code_bytes(n);
  const struct nf4_cut held = {plan_message_params(&unit->layout, room->param), room->param,
                               (unit->frozen_owned.begin - unit->layout.trained) / NF4_BLOCK,
                               nf4_blocks(n), magnitudes_at(state, u)};
  char *const message = piece->host ? piece->host : state->coding->message;
  const enum status status = agree(state, u, &held, room);
  if (status)
    return status;
  nf4_complete(&held, job_state_scales(state->job, u), room->exact, n, message);
  return piece->host
             ? STATUS_OK
             : job_state_copy(state->job, job_state_pointer(state->job, piece->buffer) + codes,
                              message + codes, nf4_bytes(n, held.params) - codes);
}

enum status job_state_complete(const struct job_state *state)
{
  const struct plan *plan = state->plan;
  const int units = plan->input.model->units;
  struct agreement room = {0};
  int64_t most = 0, params = 0;
  for (int u = 0; u < units; u++) {
    const int64_t n = plan_message_scales(plan, u);
    most = n > most ? n : most;
    params = plan->unit[u].layout.params > params ? plan->unit[u].layout.params : params;
  }
  if (most == 0)
    return STATUS_OK;
  enum status status = comm_agree(state->job->comm, mem_new(MEM_IO, params, &room.param)
                                                        ?: mem_new(MEM_IO, params, &room.exact)
                                                        ?: mem_new(MEM_IO, params, &room.sum)
                                                        ?: mem_new(MEM_IO, most, &room.bits));
  for (int u = 0; u < units && !status; u++)
    if (plan_message_scales(plan, u) > 0)
      status = comm_agree(state->job->comm, complete_unit(state, u, &room));
  mem_free(room.param);
  mem_free(room.exact);
  mem_free(room.sum);
  mem_free(room.bits);
  return status;
}

/* ---- moved ---- */

enum status job_state_move_coded(const struct io_tensor *tensor, struct layout_range range,
                                 void *data)
{
  const struct job_state_part *part = tensor->arg;
  struct job_state *state = (struct job_state *)part->state;
  const enum status status = job_state_open_unit(state, part->unit);
  if (status)
    return status;
  const int64_t begin = part->piece->range.begin -
                        plan_message_range(state->plan, part->unit).begin + part->at + range.begin;
  float *const x = state->coding->x + begin;
  const size_t bytes = (size_t)(range.end - range.begin) * sizeof *x;
  memcpy(state->loads ? (void *)x : data, state->loads ? data : x, bytes);
  return STATUS_OK;
}
