/* Residuals as tensors: a row of bytes per rank and unit. The ranks that resume may be others than
 * those that saved. */
#include <string.h>

#include "base/mem.h"
#include "compress/compress.h"
#include "device/device.h"
#include "job/state_private.h"
#include "layout/layout.h"

/* Converts the messages of one unit to this rank's message. */
struct job_state_merge {
  struct codec codec; /* of the messages that were saved */
  struct device *device;
  struct lane *lane;
  void *work;
  char *message;    /* one that was saved */
  float *row;       /* the decoded message */
  float *sum, *own; /* sums, in the layout of the ranks that saved, and in this rank's layout */
  int64_t room;     /* of `message`, bytes. It has room for this rank's message, too. */
};

void job_state_merge_destroy(struct job_state_merge *merge)
{
  if (!merge)
    return;
  if (merge->lane)
    merge->device->ops->lane_destroy(merge->lane);
  device_destroy(merge->device);
  mem_free(merge->work);
  mem_free(merge->message);
  mem_free(merge->row);
  mem_free(merge->sum);
  mem_free(merge->own);
  mem_free(merge);
}

static enum status pack(const struct job_state *state, int u, int ranks, struct layout_unit *out)
{
  const struct layout_unit *unit = &state->plan->input.model->unit[u].layout;
  return layout_unit_pack(unit->params, unit->elements, unit->room, unit->frozen, ranks, out);
}

/* The flat element that is element `e` of a rank's residual. */
static int64_t flat_element(const struct encoded *encoded, int64_t trained, int rank, int64_t e)
{
  const int64_t length = trained / encoded->parts / encoded->blocks;
  return (e / length * encoded->parts + rank % encoded->parts) * length + e % length;
}

static struct encoded encoded_here(const struct job_state *state)
{
  return unit_policy_encoded(&state->plan->input);
}

/* Whether each rank's residual covers the same parts as that of the saved rank with its number. */
static bool is_same_part(const struct job_state *state)
{
  const struct encoded here = encoded_here(state), saved = state->saved->encoded;
  return state->saved->ranks == state->plan->input.ranks && here.parts == saved.parts &&
         here.blocks == saved.blocks;
}

static int64_t larger(int64_t a, int64_t b)
{
  return a > b ? a : b;
}

/* Room for the largest unit of all. */
static enum status alloc_merge(const struct job_state *state, struct job_state_merge *merge)
{
  int64_t before = 0, now = 0, row = 0, work = 0, mine = 0;
  enum status status = STATUS_OK;
  for (int u = 0; u < state->plan->input.model->units && !status; u++) {
    struct layout_unit saved = {0};
    status = pack(state, u, state->saved->ranks, &saved);
    const struct codec *own = &state->plan->unit[u].policy.residual;
    const int64_t trained = state->plan->unit[u].layout.trained;
    const int64_t lost = saved.trained / state->saved->encoded.parts,
                  loses = trained / encoded_here(state).parts;
    before = larger(before, saved.trained);
    now = larger(now, trained);
    row = larger(row, larger(lost, loses));
    mine = larger(mine, state->plan->unit[u].residual >= 0 ? own->ops->bytes(own, loses) : 0);
    work = larger(work, codec_work(&merge->codec, lost, 1));
    work = larger(work, own->ops ? codec_work(own, loses, 1) : 0);
    layout_unit_free(&saved);
  }
  merge->room = merge->codec.ops->bytes(&merge->codec, row);
  return status ?: mem_alloc(MEM_IO, (size_t)larger(merge->room, mine), (void **)&merge->message)
                ?: mem_alloc(MEM_IO, (size_t)work, &merge->work)
                ?: mem_new(MEM_IO, row, &merge->row)
                ?: mem_new(MEM_IO, before, &merge->sum)
                ?: mem_new(MEM_IO, now, &merge->own);
}

static enum status create_merge(struct job_state *state)
{
  struct job_state_merge *merge = NULL;
  enum status status = mem_new(MEM_IO, 1, &merge);
  if (status)
    return status;
  state->merge = merge;
  return unit_policy_residual(state->saved->policy.feedback, &merge->codec)
         ?: device_create("host", 0, DTYPE_F32, &merge->device)
         ?: merge->device->ops->lane_create(merge->device, "residual", LANE_ROLE_BACKGROUND, 1,
                                            &merge->lane)
         ?: alloc_merge(state, merge);
}

/* Adds the row of one rank. `first`: it begins the sum. */
static void add_row(const struct job_state *state, int64_t trained, int rank, bool first)
{
  const struct job_state_merge *merge = state->merge;
  const struct encoded *encoded = &state->saved->encoded;
  if (first)
    memset(merge->sum, 0, (size_t)trained * sizeof *merge->sum);
  for (int64_t e = 0; e < trained / encoded->parts; e++)
    merge->sum[flat_element(encoded, trained, rank, e)] += merge->row[e];
}

/* Moves parameters of the sum to their places in this rank's layout, and selects the elements that
 * this rank encodes. All ranks that encode an element have equal shares. */
static void share_out(const struct job_state *state, int u, const struct layout_unit *saved)
{
  const struct job_state_merge *merge = state->merge;
  const struct layout_unit *layout = &state->plan->unit[u].layout;
  const struct plan_input *input = &state->plan->input;
  const struct encoded encoded = encoded_here(state);
  const float share = is_same_part(state) ? 1 : 1 / (float)(input->ranks / encoded.parts);
  memset(merge->own, 0, (size_t)layout->trained * sizeof *merge->own);
  for (int p = 0; p < layout->params; p++)
    for (int64_t e = 0; e < layout->elements[p] && !layout->frozen[p]; e++)
      merge->own[layout->offset[p] + e] = merge->sum[saved->offset[p] + e] * share;
  for (int64_t e = 0; e < layout->trained / encoded.parts; e++)
    merge->row[e] = merge->own[flat_element(&encoded, layout->trained, input->rank, e)];
}

/* Encodes the sum as this rank's message, in the plan's buffer. */
static enum status put_message(const struct job_state_part *part)
{
  const struct job_state *state = part->state;
  const struct job_state_piece *piece = part->piece;
  struct job_state_merge *merge = state->merge;
  const struct codec *own = &state->plan->unit[part->unit].policy.residual;
  const struct codec_pass pass = {.lane = merge->lane,
                                  .n = state->plan->unit[part->unit].layout.trained /
                                       encoded_here(state).parts,
                                  .parts = 1,
                                  .work = merge->work};
  const enum status status =
      own->ops->encode(own, &pass, merge->row, piece->host ? piece->host : merge->message);
  return status || piece->host ? status
                               : exec_memory_write(&state->job->memory, state->plan, piece->buffer,
                                                   0, piece->elements, merge->message);
}

/* Handles a complete message of a rank. After the last one it makes this rank's message. */
static enum status take_message(const struct job_state_part *part, int rank, bool first, bool last)
{
  const struct job_state *state = part->state;
  const struct job_state_merge *merge = state->merge;
  const struct codec *codec = &merge->codec;
  struct layout_unit saved = {0};
  enum status status = pack(state, part->unit, state->saved->ranks, &saved);
  const struct codec_pass pass = {.lane = merge->lane,
                                  .n = saved.trained / state->saved->encoded.parts,
                                  .parts = 1,
                                  .work = merge->work};
  if (!status)
    status = codec->ops->decode(codec, &pass, merge->message, merge->room, QUANT_SET, DTYPE_F32,
                                merge->row);
  if (!status)
    add_row(state, saved.trained, rank, first);
  if (!status && last) {
    share_out(state, part->unit, &saved);
    status = put_message(part);
  }
  layout_unit_free(&saved);
  return status;
}

/* io_tensor's move: rows come in rising pieces, one unit after the other. */
static enum status take_rows(const struct io_tensor *tensor, struct layout_range range, void *data)
{
  const struct job_state_part *part = tensor->arg;
  const int64_t bytes = tensor->shape[1];
  const char *from = data;
  enum status status = STATUS_OK;
  while (range.begin < range.end && !status) {
    const int64_t at = range.begin % bytes, left = range.end - range.begin,
                  n = left < bytes - at ? left : bytes - at;
    memcpy(part->state->merge->message + at, from, (size_t)n);
    if (at + n == bytes)
      status =
          take_message(part, (int)(range.begin / bytes), range.begin - at == tensor->range.begin,
                       range.begin + n == tensor->range.end);
    range.begin += n;
    from += n;
  }
  return status;
}

/* io_tensor's move: this rank's row, as it is, between the file and the disk. */
static enum status move_row(const struct io_tensor *tensor, struct layout_range range, void *data)
{
  const struct job_state_part *part = tensor->arg;
  const struct job_state *state = part->state;
  const struct exec_memory *memory = &state->job->memory;
  const int64_t at = range.begin - tensor->range.begin, n = range.end - range.begin;
  return state->loads ? exec_memory_write(memory, state->plan, part->piece->buffer, at, n, data)
                      : exec_memory_read(memory, state->plan, part->piece->buffer, at, n, data);
}

/* Rows that were saved: this rank's, or all if the ranks are not the same. */
static enum status describe_saved(struct job_state *state, int u, struct io_tensor *tensor)
{
  struct layout_unit saved = {0};
  const int ranks = state->saved->ranks, rank = state->plan->input.rank;
  enum status status =
      (state->merge ? STATUS_OK : create_merge(state)) ?: pack(state, u, ranks, &saved);
  if (status)
    return status;
  const struct codec *codec = &state->merge->codec;
  const int64_t bytes = codec->ops->bytes(codec, saved.trained / state->saved->encoded.parts);
  const bool same = is_same_part(state);
  tensor->shape[0] = ranks;
  tensor->shape[1] = bytes;
  tensor->range = same ? (struct layout_range){rank * bytes, (rank + 1) * bytes}
                       : (struct layout_range){0, ranks * bytes};
  tensor->data = NULL;
  tensor->move = take_rows;
  layout_unit_free(&saved);
  return STATUS_OK;
}

/* Whether the saved state has the form that this job would save. */
static bool is_same(const struct job_state *state, int u)
{
  const struct job_state_saved *saved = state->saved;
  struct codec codec;
  return !saved || (is_same_part(state) &&
                    unit_policy_residual(saved->policy.feedback, &codec) == STATUS_OK &&
                    codec_equal(&codec, &state->plan->unit[u].policy.residual));
}

static bool was_saved(const struct job_state_saved *saved, const char *unit)
{
  struct codec codec;
  return saved->ranks > 1 && saved->policy.feedback &&
         unit_policy_codec(&saved->policy, unit, &codec) == STATUS_OK &&
         !(codec.ops->traits & CODEC_IDENTITY);
}

enum status job_state_describe_residual(struct job_state *state, int u)
{
  const struct plan *plan = state->plan;
  const struct job_state_piece *piece =
      &state->piece[job_state_piece_index(plan, job_state_kinds(plan, true) - 1, u, false)];
  const int64_t bytes = piece->elements, rank = plan->input.rank;
  if (state->saved && !was_saved(state->saved, plan->input.model->unit[u].name))
    return STATUS_OK;
  struct job_state_part *part = &state->part[state->n];
  struct io_tensor *tensor = &state->tensor[state->n++];
  *part = (struct job_state_part){.state = state, .piece = piece, .unit = u};
  *tensor = (struct io_tensor){.group = "residual",
                               .name = plan->input.model->unit[u].name,
                               .type = DTYPE_U8,
                               .ndim = 2,
                               .shape = {plan->input.ranks, bytes},
                               .range = {rank * bytes, (rank + 1) * bytes},
                               .writer = true,
                               .data = piece->host,
                               .move = piece->host ? NULL : move_row,
                               .arg = part};
  return is_same(state, u) ? STATUS_OK : describe_saved(state, u, tensor);
}
