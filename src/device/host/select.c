/* Sparse messages: elements chosen from vectors, and put back. Work is shared by blocks. */
#include "device/host/host.h"

enum { GRAIN = 1 << 16 }; /* elements */

/* Elements of larger keys are chosen, and the first `ties` of this key. */
struct cut {
  uint32_t key;
  int64_t ties;
};

typedef uint32_t key_of(const struct selection *op, float x);

/* A histogram of the next digit of the keys that may still be the smallest chosen one, among the n
 * elements of `list` (NULL: the first n of x). */
__attribute__((always_inline)) static inline void narrow_cut(const struct selection *op, int64_t n,
                                                             const uint16_t *list, const float *x,
                                                             key_of *key, int pass, struct cut *cut)
{
  uint16_t count[SELECT_BINS] = {0};
  uint32_t top = 0;
  for (int64_t i = 0; i < n; i++) {
    const uint32_t k = key(op, x[list ? list[i] : i]), digit = select_digit(k, pass);
    if ((k ^ cut->key) >> select_known(pass))
      continue;
    count[digit]++;
    top = digit > top ? digit : top;
  }
  for (; top > 0 && count[top] < cut->ties; top--)
    cut->ties -= count[top];
  cut->key |= top << select_shift(pass);
}

/* Elements with keys of at least `least`, without branches that depend on them. Returns their
 * number. */
__attribute__((always_inline)) static inline int64_t list_from(const struct selection *op,
                                                               int64_t n, const float *x,
                                                               key_of *key, uint32_t least,
                                                               uint16_t *list)
{
  int64_t count = 0;
  for (int64_t i = 0; i < n; i++) {
    list[count] = (uint16_t)i;
    count += key(op, x[i]) >= least;
  }
  return count;
}

/* The slots of a block: indices, or (NULL) bits. */
struct slot {
  uint16_t *indices;
  uint32_t *bits;
  float *values;
};

__attribute__((always_inline)) static inline void choose(const struct selection *op, int64_t n,
                                                         const float *x, key_of *key, bool ranked,
                                                         struct slot to)
{
  uint16_t list[SELECT_MOST_BLOCK];
  struct cut cut = {ranked ? 0 : 1, op->keep};
  int64_t chosen = 0;
  if (ranked)
    narrow_cut(op, n, NULL, x, key, 0, &cut);
  const int64_t listed = list_from(op, n, x, key, cut.key > 0 ? cut.key : 1, list);
  for (int pass = 1; ranked && pass < SELECT_PASSES; pass++)
    narrow_cut(op, listed, list, x, key, pass, &cut);
  if (!to.indices)
    memset(to.bits, 0, (size_t)select_words(op) * sizeof *to.bits);
  for (int64_t i = 0; i < listed; i++) {
    const uint32_t k = key(op, x[list[i]]);
    if (k < cut.key || (k == cut.key && cut.ties-- <= 0))
      continue;
    if (to.indices)
      to.indices[chosen] = list[i];
    else
      to.bits[list[i] / 32] |= 1u << list[i] % 32;
    to.values[chosen++] = x[list[i]];
  }
  for (; chosen < op->keep; chosen++) {
    if (to.indices)
      to.indices[chosen] = SELECT_UNUSED;
    to.values[chosen] = 0;
  }
}

#define CHOOSE(name, ...)                                                                          \
  static void choose_##name(const struct selection *op, int64_t n, const float *x, struct slot to) \
  {                                                                                                \
    choose(op, n, x, name##_key, name##_ranked, to);                                               \
  }
CODEC_KEYED(CHOOSE)

static void choose_randomk(const struct selection *op, int64_t block, int64_t n, const float *x,
                           float *values)
{
  const uint32_t bits = rounding_bits(op->seed, block);
  for (int64_t j = 0; j < op->keep; j++) {
    const int64_t i = randomk_index(op, bits, j);
    values[j] = i < n ? x[i] * op->scale : 0;
  }
}

struct job {
  const struct selection *op;
  int64_t n, blocks; /* of a vector */
  int parts;         /* summed by scatter() */
  const struct slots *slots;
  enum scatter_mode mode;
  const float *x;
  enum dtype type; /* of out */
  char *out;
};

static void select_block(void *arg, int64_t part, int64_t block)
{
  const struct job *job = arg;
  const struct selection *op = job->op;
  const int64_t n = select_length(op, job->n, block);
  const float *x = job->x + part * job->n + block * op->block;
  uint32_t *bits = select_bits(op, job->slots, part, block);
  const struct slot to = {bits ? NULL : select_indices(op, job->slots, part, block), bits,
                          select_values(op, job->slots, part, block)};
#define SELECT_CASE(name, ...)                                                                     \
  case SELECT_##name: choose_##name(op, n, x, to); break;
  switch (op->rule) {
    CODEC_KEYED(SELECT_CASE)
  case SELECT_randomk: choose_randomk(op, block, n, x, to.values); break;
  }
}

static void add_to(enum dtype type, char *out, int64_t i, float value)
{
  if (type == DTYPE_F32) {
    ((float *)(void *)out)[i] += value;
    return;
  }
  uint16_t *half = (uint16_t *)(void *)out + i;
  *half = bf16_from_f32(f32_from_bf16(*half) + value);
}

/* Bits that are set without a slot, in a damaged message, are ignored. */
static void scatter_bits(const struct job *job, int64_t n, const uint32_t *bits,
                         const float *values, char *out)
{
  int64_t slot = 0;
  for (int64_t w = 0; w < select_words(job->op); w++)
    for (uint32_t rest = bits[w]; rest && slot < job->op->keep; rest &= rest - 1, slot++) {
      const int64_t i = w * 32 + __builtin_ctz(rest);
      if (i < n)
        add_to(job->type, out, i, job->mode == SCATTER_SUBTRACT ? -values[slot] : values[slot]);
    }
}

static void scatter_block(const struct job *job, int64_t part, int64_t block, char *out)
{
  const struct selection *op = job->op;
  const int64_t n = select_length(op, job->n, block);
  const bool random = op->rule == SELECT_randomk;
  const float *values = select_values(op, job->slots, part, block);
  if (job->slots->bits && !random) {
    scatter_bits(job, n, select_bits(op, job->slots, part, block), values, out);
    return;
  }
  const uint16_t *indices = random ? NULL : select_indices(op, job->slots, part, block);
  const uint32_t bits = random ? rounding_bits(op->seed, block) : 0;
  for (int64_t j = 0; j < op->keep; j++) {
    const int64_t i = random ? randomk_index(op, bits, j) : indices[j];
    if (i < n) /* not so if unused, damaged, or after the vector's end */
      add_to(job->type, out, i, job->mode == SCATTER_SUBTRACT ? -values[j] : values[j]);
  }
}

static void scatter_all(void *arg, int64_t part, int64_t block)
{
  const struct job *job = arg;
  const int64_t size = (int64_t)dtype_size(job->type);
  char *out = job->out + (part * job->n + block * job->op->block) * size;
  if (job->mode == SCATTER_SET)
    memset(out, 0, (size_t)(select_length(job->op, job->n, block) * size));
  for (int i = 0; i < job->parts; i++)
    scatter_block(job, part + i, block, out);
}

/* `vectors` vectors of n elements. */
static enum status run(struct lane *lane, struct job *job, int64_t vectors, host_block *block)
{
  if (!select_is_valid(job->op) || job->n < 0)
    return status_set(STATUS_INTERNAL, "a message with %lld of %lld elements per block",
                      (long long)job->op->keep, (long long)job->op->block);
  job->blocks = select_blocks(job->op, job->n);
  host_run_blocks(lane, vectors, job->blocks, host_pieces(GRAIN, job->op->block), block, job);
  return STATUS_OK;
}

enum status host_select(struct lane *lane, const struct selection *op, int64_t n, int parts,
                        const float *x, const struct slots *slots)
{
  struct job job = {.op = op, .n = n, .slots = slots, .x = x};
  return run(lane, &job, parts, select_block);
}

enum status host_scatter(struct lane *lane, const struct selection *op, int64_t n, int parts,
                         const struct slots *slots, enum scatter_mode mode, enum dtype type,
                         void *out)
{
  const bool sum = !scatter_takes_each(mode);
  struct job job = {op, n, 0, sum ? parts : 1, slots, mode, NULL, type, out};
  return run(lane, &job, sum ? 1 : parts, scatter_all);
}
