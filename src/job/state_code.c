/* Frozen parts that are kept as messages of a codec. The host decodes them to fp32 for saving, and
 * encodes them after loading. Encoding what a message decodes to gives the same message. */
#include "base/mem.h"
#include "base/progress.h"
#include "compress/compress.h"
#include "device/lane.h"
#include "job/state_private.h"

struct coding {
  const struct plan *plan;
  int unit;
  float *x;      /* all elements of the message */
  char *message; /* in host memory */
  bool encodes;
};

static enum status code(struct lane *lane, const void *arg)
{
  const struct coding *c = arg;
  return c->encodes ? plan_message_encode(c->plan, c->unit, lane, c->x, c->message)
                    : plan_message_decode(c->plan, c->unit, lane, 1, c->message, DTYPE_F32, c->x);
}

static enum status code_on_host(const struct job *job, const struct coding *c)
{
  struct device *device = job->device, *own = NULL;
  enum status status = STATUS_OK;
  if (!device->model.host_memory)
    status = device_create("host", 0, DTYPE_F32, &own);
  status =
      status ?: job_state_on_lane(own ? own : device, job->threads > 0 ? job->threads : 1, code, c);
  device_destroy(own);
  return status;
}

/* A message on a separate device is copied to or from the host. If the piece has only a part of the
 * elements, all of them are decoded to memory of their own. */
static enum status code_piece(const struct job_state *state, const struct job_state_piece *piece,
                              int u, bool to_job)
{
  const struct layout_range held = state->plan->unit[u].frozen_owned;
  const int64_t n = held.end - held.begin, bytes = state->plan->buffer[piece->buffer].bytes;
  struct coding c = {.plan = state->plan,
                     .unit = u,
                     .x = (float *)piece->host,
                     .message = job_state_host_pointer(state->job, piece->buffer),
                     .encodes = to_job};
  char *const there = c.message ? NULL : job_state_pointer(state->job, piece->buffer);
  float *whole = NULL;
  char *message = NULL;
  enum status status = STATUS_OK;
  if (there) {
    status = mem_new(MEM_IO, bytes, &message);
    c.message = message;
  }
  if (!status && piece->elements < n) {
    status = mem_new(MEM_IO, n, &whole);
    c.x = whole;
  }
  if (!status && there && !to_job)
    status = job_state_copy(state->job, message, there, bytes);
  status = status ?: code_on_host(state->job, &c);
  if (!status && there && to_job)
    status = job_state_copy(state->job, there, message, bytes);
  if (!status && whole)
    memcpy(piece->host, whole + (piece->range.begin - held.begin),
           (size_t)job_state_piece_bytes(piece));
  mem_free(whole);
  mem_free(message);
  return status;
}

enum status job_state_code(const struct job_state *state, bool to_job)
{
  enum status status = STATUS_OK;
  for (int u = 0; u < state->plan->input.model->units && !status; u++) {
    const struct job_state_piece *piece =
        &state->piece[job_state_piece_index(state->plan, 0, u, true)];
    progress_add();
    if (piece->codec && job_state_piece_bytes(piece) > 0)
      status = code_piece(state, piece, u, to_job);
  }
  return status;
}
