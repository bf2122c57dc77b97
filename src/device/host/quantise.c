/* Quantised messages, frame by frame. */
#include <pthread.h>

#include "device/host/host.h"

enum { GRAIN = 1 << 16 }; /* elements */

struct quantise_job {
  const struct kernels *kernels;
  const struct quantise *op;
  int64_t n, blocks, frame, frames; /* of a vector; frame: elements */
  int parts;
  int64_t stride;
  char *messages;
  enum quant_mode mode;
  const float *x;
  enum dtype type; /* of out */
  char *out;
};

static struct quantise_job job_of(struct lane *lane, const struct quantise *op, int64_t n)
{
  return (struct quantise_job){.kernels = host_kernels(lane),
                               .op = op,
                               .n = n,
                               .blocks = quant_blocks(op, n),
                               .frame = quant_frame(op),
                               .frames = quant_frames(op, n)};
}

/* Elements of a frame of a vector. */
static int64_t length_of(const struct quantise_job *job, int64_t frame)
{
  const int64_t left = job->n - frame * job->frame;
  return left < job->frame ? left : job->frame;
}

static uint32_t *words_of(const struct quantise_job *job, char *message, int64_t frame)
{
  return (uint32_t *)(void *)(message + quant_scale_bytes(job->op, job->n)) +
         frame * quant_words(job->op);
}

/* Where the first scale of a frame is in its message. */
static int64_t scale_at(const struct quantise_job *job, int64_t frame)
{
  return quant_scale_at(job->op, frame * (job->frame / job->op->block));
}

static void quantise_frame(void *arg, int64_t part, int64_t frame)
{
  const struct quantise_job *job = arg;
  char *message = job->messages + part * job->stride;
  uint16_t again[2]; /* scales that frame 0 writes */
  const bool writes = frame == 0 || scale_at(job, frame) > 0;
  const struct quant_frame to = {
      writes ? job->blocks : 1, writes ? (uint16_t *)(void *)message + scale_at(job, frame) : again,
      words_of(job, message, frame)};
  job->kernels->quantise(job->op, part * job->frames + frame, length_of(job, frame),
                         job->x + part * job->n + frame * job->frame, to);
}

static void dequantise_frame(const struct quantise_job *job, int64_t part, int64_t frame,
                             float *out)
{
  char *message = job->messages + part * job->stride;
  const struct quant_frame from = {job->blocks, (uint16_t *)(void *)message + scale_at(job, frame),
                                   words_of(job, message, frame)};
  job->kernels->dequantise(job->op, job->parts, job->stride, from, job->mode, length_of(job, frame),
                           out);
}

static void dequantise_out(void *arg, int64_t part, int64_t frame)
{
  const struct quantise_job *job = arg;
  float wide[QUANT_MOST_BLOCK];
  const int64_t n = length_of(job, frame), at = part * job->n + frame * job->frame;
  char *out = job->out + at * (int64_t)dtype_size(job->type);
  if (job->type == DTYPE_F32) {
    dequantise_frame(job, part, frame, (float *)(void *)out);
    return;
  }
  job->kernels->convert(n, job->type, out, DTYPE_F32, wide);
  dequantise_frame(job, part, frame, wide);
  job->kernels->convert(n, DTYPE_F32, wide, job->type, out);
}

/* Bytes between the scales and the codes are zeros, so that messages are a function of vectors. */
enum status host_quantise(struct lane *lane, const struct quantise *op, int64_t n, int parts,
                          const float *x, void *messages)
{
  if (device_check_blocks(op))
    return STATUS_INTERNAL;
  struct quantise_job job = job_of(lane, op, n);
  const int64_t scales = quant_scale_count(op, n) * (int64_t)sizeof(uint16_t);
  job.stride = quant_bytes(op, n);
  job.messages = messages;
  job.x = x;
  for (int part = 0; part < parts; part++)
    memset(job.messages + part * job.stride + scales, 0,
           (size_t)(quant_scale_bytes(op, n) - scales));
  host_run_blocks(lane, parts, job.frames, GRAIN / job.frame, quantise_frame, &job);
  return STATUS_OK;
}

enum status host_dequantise(struct lane *lane, const struct quantise *op, int64_t n, int parts,
                            const void *messages, int64_t stride, enum quant_mode mode,
                            enum dtype type, void *out)
{
  if (device_check_blocks(op))
    return STATUS_INTERNAL;
  struct quantise_job job = job_of(lane, op, n);
  const bool apart = quant_takes_each(mode);
  job.parts = apart ? 1 : parts;
  job.stride = stride;
  job.messages = (char *)messages;
  job.mode = mode;
  job.type = type;
  job.out = out;
  host_run_blocks(lane, apart ? parts : 1, job.frames, GRAIN / job.frame, dequantise_out, &job);
  return STATUS_OK;
}

struct largest_job {
  const struct kernels *kernels;
  const float *x;
  pthread_mutex_t mutex;
  uint32_t top; /* bits */
};

static void largest_range(void *arg, int64_t begin, int64_t end)
{
  struct largest_job *job = arg;
  const uint32_t mine = f32_bits(job->kernels->max_magnitude(end - begin, job->x + begin));
  pthread_mutex_lock(&job->mutex);
  job->top = mine > job->top ? mine : job->top;
  pthread_mutex_unlock(&job->mutex);
}

enum status host_max_magnitude(struct lane *lane, int64_t n, const float *x, float *out)
{
  struct largest_job job = {
      .kernels = host_kernels(lane), .x = x, .mutex = PTHREAD_MUTEX_INITIALIZER};
  host_run_ranges(lane, n, GRAIN, largest_range, &job);
  *out = f32_from_bits(job.top);
  return STATUS_OK;
}
