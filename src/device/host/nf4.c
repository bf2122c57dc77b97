/* Vectors in NormalFloat4 (compress/rule/nf4.h). */
#include "device/host/host.h"

enum { GRAIN = 1 << 10 }; /* blocks */

struct nf4_job {
  const struct kernels *kernels;
  int64_t n, stride;
  const float *x;
  float *magnitude;
  char *messages, *out;
  enum dtype type;
};

static int64_t length_of(const struct nf4_job *job, int64_t block)
{
  const int64_t left = job->n - block * NF4_BLOCK;
  return left < NF4_BLOCK ? left : NF4_BLOCK;
}

static void code_blocks(void *arg, int64_t begin, int64_t end)
{
  const struct nf4_job *job = arg;
  for (int64_t block = begin; block < end; block++) {
    float x[NF4_BLOCK] = {0};
    uint8_t code[NF4_BLOCK], *const to = (uint8_t *)job->messages + block * (NF4_BLOCK / 2);
    uint32_t largest = 0;
    memcpy(x, job->x + block * NF4_BLOCK, (size_t)length_of(job, block) * sizeof *x);
    for (int i = 0; i < NF4_BLOCK; i++)
      largest = (f32_bits(x[i]) & 0x7fffffff) > largest ? f32_bits(x[i]) & 0x7fffffff : largest;
    job->magnitude[block] = nf4_magnitude(largest);
    const float inverse = nf4_inverse(job->magnitude[block]);
    for (int i = 0; i < NF4_BLOCK; i++)
      code[i] = (uint8_t)nf4_code(x[i], inverse);
    for (int i = 0; i < NF4_BLOCK; i += 2)
      to[i / 2] = (uint8_t)(code[i] << 4 | code[i + 1]);
  }
}

static float magnitude_of(const struct nf4_job *job, const char *message, int64_t block)
{
  static const float steps[] = {NF4_STEPS};
  const uint8_t *code = (const uint8_t *)message + nf4_code_bytes(job->n);
  const struct nf4_segment *segment = (const void *)(message + nf4_segments_at(job->n));
  int64_t n;
  memcpy(&n, (const char *)segment - sizeof n, sizeof n);
  const float *scales = (const float *)(const void *)(segment + n);
  const struct nf4_segment *own = nf4_segment_of(segment, n, block);
  return nf4_decoded_magnitude(nf4_fraction(code[block], steps), scales[nf4_scale_of(own, block)],
                               own->mean);
}

static void decode_block(void *arg, int64_t part, int64_t block)
{
  static const float value[] = {NF4_VALUES};
  const struct nf4_job *job = arg;
  const char *message = job->messages + part * job->stride;
  const uint8_t *code = (const uint8_t *)message + block * (NF4_BLOCK / 2);
  const float magnitude = magnitude_of(job, message, block);
  float x[NF4_BLOCK];
  for (int i = 0; i < NF4_BLOCK; i += 2) {
    x[i] = value[code[i / 2] >> 4] * magnitude;
    x[i + 1] = value[code[i / 2] & 15] * magnitude;
  }
  job->kernels->convert(length_of(job, block), DTYPE_F32, x, job->type,
                        job->out +
                            (part * job->n + block * NF4_BLOCK) * (int64_t)dtype_size(job->type));
}

enum status host_nf4_code(struct lane *lane, int64_t n, const float *x, void *codes,
                          float *magnitudes)
{
  struct nf4_job job = {.n = n, .x = x, .magnitude = magnitudes, .messages = codes};
  const int64_t coded = nf4_blocks(n) * (NF4_BLOCK / 2);
  memset(job.messages + coded, 0, (size_t)(nf4_code_bytes(n) - coded));
  host_run_ranges(lane, nf4_blocks(n), GRAIN, code_blocks, &job);
  return STATUS_OK;
}

enum status host_nf4_decode(struct lane *lane, int64_t n, int parts, const void *messages,
                            int64_t stride, enum dtype type, void *out)
{
  struct nf4_job job = {.kernels = host_kernels(lane),
                        .n = n,
                        .stride = stride,
                        .messages = (char *)messages,
                        .out = out,
                        .type = type};
  host_run_blocks(lane, parts, nf4_blocks(n), GRAIN, decode_block, &job);
  return STATUS_OK;
}
