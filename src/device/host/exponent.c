/* Messages with short exponents, block by block (compress/rule/exponent.h). */
#include <stdatomic.h>

#include "device/host/host.h"

enum { GRAIN = 64 }; /* blocks: 64 Ki elements */

struct exponent_job {
  const struct kernels *kernels;
  enum dtype type;   /* of the messages' elements */
  int size;          /* of such an element */
  int64_t n, blocks; /* of a vector */
  int64_t stride;
  char *messages;
  const float *x;
  enum quant_mode mode;
  enum dtype out_type;
  char *out;
  _Atomic int64_t damaged; /* the lowest damaged block of all messages, or their number */
};

static struct exponent_entry *entry_of(const struct exponent_job *job, int64_t part, int64_t block)
{
  struct exponent_header *header = (void *)(job->messages + part * job->stride);
  return (struct exponent_entry *)(header + 1) + block;
}

static char *data_of(const struct exponent_job *job, int64_t part, struct exponent_entry entry)
{
  return job->messages + part * job->stride + (int64_t)entry.at * EXPONENT_ALIGN;
}

/* Elements of a block, in fp32, or rounded to bf16. Returns their number. */
static int64_t load_block(const struct exponent_job *job, int64_t part, int64_t block,
                          uint32_t *word)
{
  const int64_t m = exponent_length(job->n, block);
  const float *x = job->x + part * job->n + block * EXPONENT_BLOCK;
  uint16_t half[EXPONENT_BLOCK];
  if (job->type == DTYPE_F32) {
    memcpy(word, x, (size_t)m * sizeof *word);
    return m;
  }
  job->kernels->convert(m, DTYPE_F32, x, DTYPE_BF16, half);
  for (int64_t i = 0; i < m; i++)
    word[i] = (uint32_t)half[i] << 16;
  return m;
}

static void store_block(const struct exponent_job *job, int64_t part, int64_t block,
                        const uint32_t *word)
{
  const int64_t m = exponent_length(job->n, block);
  void *out =
      job->out + (part * job->n + block * EXPONENT_BLOCK) * (int64_t)dtype_size(job->out_type);
  float x[EXPONENT_BLOCK], sum[EXPONENT_BLOCK];
  memcpy(x, word, (size_t)m * sizeof *x);
  if (job->mode == QUANT_SET_EACH) {
    job->kernels->convert(m, DTYPE_F32, x, job->out_type, out);
    return;
  }
  job->kernels->convert(m, job->out_type, out, DTYPE_F32, sum);
  for (int64_t i = 0; i < m; i++)
    sum[i] = job->mode == QUANT_SUBTRACT ? sum[i] - x[i] : sum[i] + x[i];
  job->kernels->convert(m, DTYPE_F32, sum, job->out_type, out);
}

static void measure_block(void *arg, int64_t part, int64_t block)
{
  const struct exponent_job *job = arg;
  uint32_t word[EXPONENT_BLOCK];
  const int64_t m = load_block(job, part, block, word);
  entry_of(job, part, block)->form = job->kernels->exponent_measure(m, job->size, word);
}

/* The places of all blocks, and the header. */
static void place_blocks(const struct exponent_job *job, int64_t part)
{
  struct exponent_header *header = (void *)(job->messages + part * job->stride);
  struct exponent_entry *entry = entry_of(job, part, 0);
  const int64_t first = exponent_table_bytes(job->n);
  int64_t at = first;
  char *end = (char *)(entry + job->blocks);
  memset(end, 0, (size_t)((char *)header + first - end));
  for (int64_t block = 0; block < job->blocks; block++) {
    entry[block].at = (uint32_t)(at / EXPONENT_ALIGN);
    at += exponent_data_bytes(entry[block].form, exponent_length(job->n, block), job->size);
  }
  *header = (struct exponent_header){.bytes = at, .n = job->n, .magic = EXPONENT_MAGIC};
}

static void pack_block(void *arg, int64_t part, int64_t block)
{
  const struct exponent_job *job = arg;
  const struct exponent_entry entry = *entry_of(job, part, block);
  uint32_t word[EXPONENT_BLOCK];
  const int64_t m = load_block(job, part, block, word);
  job->kernels->exponent_pack(entry.form, m, job->size, word, data_of(job, part, entry));
}

enum status host_pack_exponents(struct lane *lane, enum dtype type, int64_t n, int parts,
                                const float *x, void *messages)
{
  const int size = (int)dtype_size(type);
  struct exponent_job job = {.kernels = host_kernels(lane),
                             .type = type,
                             .size = size,
                             .n = n,
                             .blocks = exponent_blocks(n),
                             .stride = exponent_bytes(n, size),
                             .messages = messages,
                             .x = x};
  host_run_blocks(lane, parts, job.blocks, GRAIN, measure_block, &job);
  for (int part = 0; part < parts; part++)
    place_blocks(&job, part);
  host_run_blocks(lane, parts, job.blocks, GRAIN, pack_block, &job);
  return STATUS_OK;
}

static void note_damage(struct exponent_job *job, int64_t block)
{
  int64_t lowest = atomic_load(&job->damaged);
  while (block < lowest && !atomic_compare_exchange_weak(&job->damaged, &lowest, block))
    ;
}

static void unpack_block(void *arg, int64_t part, int64_t block)
{
  struct exponent_job *job = arg;
  const int64_t m = exponent_length(job->n, block);
  const struct exponent_header *header = (void *)(job->messages + part * job->stride);
  const struct exponent_entry entry = *entry_of(job, part, block);
  uint32_t word[EXPONENT_BLOCK];
  if (exponent_is_valid(entry, m, job->size, exponent_table_bytes(job->n), header->bytes) &&
      job->kernels->exponent_unpack(entry.form, m, job->size, data_of(job, part, entry), word))
    store_block(job, part, block, word);
  else
    note_damage(job, part * job->blocks + block);
}

static enum status check_headers(const struct exponent_job *job, int parts)
{
  for (int part = 0; part < parts; part++) {
    const struct exponent_header *header = (void *)(job->messages + part * job->stride);
    if (!exponent_header_is_valid(header, job->n, job->size))
      return status_set(STATUS_INPUT,
                        "message %d of %d is damaged: its header says %lld elements in %lld bytes, "
                        "of %lld in at most %lld",
                        part, parts, (long long)header->n, (long long)header->bytes,
                        (long long)job->n, (long long)exponent_bytes(job->n, job->size));
  }
  return STATUS_OK;
}

enum status host_unpack_exponents(struct lane *lane, enum dtype type, int64_t n, int parts,
                                  const void *messages, int64_t stride, enum quant_mode mode,
                                  enum dtype out_type, void *out)
{
  struct exponent_job job = {.kernels = host_kernels(lane),
                             .type = type,
                             .size = (int)dtype_size(type),
                             .n = n,
                             .blocks = exponent_blocks(n),
                             .stride = stride,
                             .messages = (char *)messages,
                             .mode = mode,
                             .out_type = out_type,
                             .out = out,
                             .damaged = INT64_MAX};
  enum status status = check_headers(&job, parts);
  if (status)
    return status;
  host_run_blocks(lane, parts, job.blocks, GRAIN, unpack_block, &job);
  const int64_t damaged = atomic_load(&job.damaged);
  if (damaged == INT64_MAX)
    return STATUS_OK;
  return status_set(STATUS_INPUT, "message %lld of %d is damaged: block %lld has no valid data",
                    (long long)(damaged / job.blocks), parts, (long long)(damaged % job.blocks));
}
