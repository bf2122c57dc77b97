/* The operations with kernels of Sluice, except attention. Each is checked before its launch,
 * because the kernels cannot handle every shape. */
#include "gpu/cuda.h"

#define REQUIRE(holds, ...) ((holds) ? STATUS_OK : status_set(STATUS_INTERNAL, __VA_ARGS__))
#define SUPPORT(holds, ...) ((holds) ? STATUS_OK : status_set(STATUS_UNSUPPORTED, __VA_ARGS__))

/* The plan refuses wider norms and heads. */
static enum status check_norm_width(int64_t C)
{
  return REQUIRE(C <= DEVICE_CUDA_MOST_NORM,
                 "a norm over %lld elements: the GPU's kernels take up to %d", (long long)C,
                 DEVICE_CUDA_MOST_NORM);
}

static enum status check_fp8(const struct lane *lane)
{
  return SUPPORT(lane->device->model.fp8, "%s has no products in fp8", lane->device->product);
}

/* Refuses an operand of products in fp8 that the kernels cannot read. */
static enum status check_operand(const struct lane *lane, const struct fp8_quantise *op)
{
  const uintptr_t bits = (uintptr_t)op->x | (uintptr_t)op->code | (uintptr_t)op->scale |
                         (uintptr_t)op->turned | (uintptr_t)op->turned_scale |
                         (uintptr_t)(op->ld * (int64_t)sizeof(uint16_t));
  return check_fp8(lane)
         ?: device_check_quantise(op)
         ?: REQUIRE(
                bits % 16 == 0,
                "an operand in fp8 of %lld x %lld elements: rows must be aligned to 16 bytes",
                (long long)op->rows, (long long)op->columns);
}

/* The largest scale is a word of the lane's workspace, from one kernel to the next. */
static enum status check_unify(struct lane *lane, const struct fp8_unify *op)
{
  return check_fp8(lane)
         ?: device_check_unify(op)
         ?: REQUIRE(((uintptr_t)op->code | (uintptr_t)op->scale) % 16 == 0,
                    "one scale for an operand in fp8 that is not aligned to 16 bytes")
         ?: cuda_lane_reserve(lane)
         ?: cuda_zero(lane, cuda_lane(lane)->workspace, sizeof(uint32_t));
}

static enum status check_part(const struct lane *lane, const struct fp8_part *op)
{
  const uintptr_t bits = (uintptr_t)op->x | (uintptr_t)op->code * 4;
  const bool typed = op->type == DTYPE_F32 || op->type == DTYPE_BF16,
             good = op->begin < op->end && op->begin % 4 == 0 && op->end % 4 == 0 &&
                    op->columns % FP8_TILE == 0 && bits % 16 == 0 && typed;
  return check_fp8(lane)
             ?: REQUIRE(
                    good,
                    "elements %lld to %lld, in %s, of a weight in fp8 with rows of %lld: rows must "
                    "be multiples of %d, and parts of 4",
                    (long long)op->begin, (long long)op->end, dtype_name(op->type),
                    (long long)op->columns, FP8_TILE);
}

static enum status check_turn(const struct fp8_turn *op)
{
  const uintptr_t bits = (uintptr_t)op->code | (uintptr_t)op->turned | (uintptr_t)op->ld;
  return device_check_turn(op)
             ?: REQUIRE(bits % 8 == 0, "codes of a weight that are not aligned to 8 bytes");
}

/* An output in fp8, in tiles, from operands whose addresses and distances of rows in bytes are in
 * `bits`. */
static enum status check_coded(const struct lane *lane, int64_t rows, int64_t columns,
                               uintptr_t bits)
{
  return check_fp8(lane)
             ?: REQUIRE(
                    columns % FP8_TILE == 0 && bits % 16 == 0,
                    "an output in fp8 of %lld x %lld elements: rows must be multiples of %d, and "
                    "aligned to 16 bytes",
                    (long long)rows, (long long)columns, FP8_TILE);
}

static enum status check_norm(const struct lane *lane, const struct row_norm *op)
{
  const uintptr_t bits = (uintptr_t)op->x | (uintptr_t)op->add | (uintptr_t)op->sum |
                         (uintptr_t)op->gamma | (uintptr_t)op->beta | (uintptr_t)op->code |
                         (uintptr_t)(op->x_stride * 2) | (uintptr_t)(op->y_stride * 2);
  const enum status status = check_norm_width(op->C);
  if (status || !op->code)
    return status;
  return check_coded(lane, op->rows, op->C, bits)
             ?: REQUIRE(op->groups == 1, "a norm of %lld groups in fp8", (long long)op->groups);
}

static enum status check_rope(const struct rope *op)
{
  return REQUIRE(op->D % 2 == 0 && op->D <= DEVICE_CUDA_MOST_HEAD,
                 "rotary positions of heads of %lld elements: even, and at most %d",
                 (long long)op->D, DEVICE_CUDA_MOST_HEAD);
}

static enum status check_swiglu(const struct lane *lane, const struct fp8_swiglu *op)
{
  const uintptr_t bits = (uintptr_t)op->gu | (uintptr_t)op->dy | (uintptr_t)op->code |
                         (uintptr_t)op->scale | (uintptr_t)op->turned |
                         (uintptr_t)op->turned_scale | (uintptr_t)op->y_turned |
                         (uintptr_t)op->y_turned_scale;
  return check_coded(lane, op->rows, op->F, bits) ?: device_check_swiglu(op);
}

/* For the message about an id outside the vocabulary. */
static enum status note_vocabulary(struct lane *lane, int64_t V)
{
  atomic_store(&cuda_lane(lane)->vocabulary, V);
  return STATUS_OK;
}

static bool is_narrow(enum dtype type)
{
  return type == DTYPE_BF16 || type == DTYPE_F16;
}

static enum status check_subtract(enum dtype type)
{
  return SUPPORT(type == DTYPE_F32 || is_narrow(type),
                 "a device sums or subtracts fp32, bf16 or fp16, not %s", dtype_name(type));
}

static enum status check_nf4(int64_t n, int parts, enum dtype type)
{
  return REQUIRE(parts == 1 || n % NF4_WORD == 0, "%d vectors in nf4 of %lld elements", parts,
                 (long long)n)
             ?: SUPPORT(type == DTYPE_F32 || type == DTYPE_BF16,
                        "vectors in nf4 are decoded to fp32 or bf16, not to %s", dtype_name(type));
}

static enum status check_parts(int parts, enum dtype type)
{
  return REQUIRE(parts >= 1, "a sum over %d parts", parts) ?: check_subtract(type);
}

static enum status check_selection(const struct selection *op, int64_t n)
{
  return REQUIRE(select_is_valid(op) && n >= 0, "a message with %lld of %lld elements per block",
                 (long long)op->keep, (long long)op->block);
}

static enum status check_sketch(const struct sketch *op, int64_t n)
{
  return REQUIRE(sketch_is_valid(op) && n >= 0, "a sketch of %lld of %lld elements per block",
                 (long long)op->keep, (long long)op->block);
}

static enum status check_lowrank(const struct lowrank *op, int64_t n)
{
  return REQUIRE(lowrank_is_valid(op) && n >= 0, "a message of rank %d with rows of %lld elements",
                 op->rank, (long long)op->block);
}

static enum status check_update(const struct update *op, bool copies)
{
  return SUPPORT(op->master == DTYPE_F32, "the CUDA device updates masters of fp32, not of %s",
                 dtype_name(op->master))
         ?: SUPPORT(op->grad == DTYPE_F32 || op->grad == DTYPE_BF16,
                    "the CUDA device updates by gradients of fp32 or bf16, not of %s",
                    dtype_name(op->grad))
         ?: SUPPORT(op->states == DTYPE_F32 || op->states == DTYPE_BLOCK8 || is_narrow(op->states),
                    "the CUDA device keeps states in fp32, bf16, fp16 or block8, not in %s",
                    dtype_name(op->states))
         ?: REQUIRE(op->first % dtype_block(op->states) == 0,
                    "an update that begins inside a block, at element %lld", (long long)op->first)
         ?: SUPPORT(!copies || op->copy == DTYPE_F32 || op->copy == DTYPE_BF16,
                    "the CUDA device makes working copies in fp32 or bf16, not in %s",
                    dtype_name(op->copy))
         ?: REQUIRE(optim_states(op->rule) > 0, "optimizer %d has no elementwise update",
                    (int)op->rule);
}

/* It takes any arguments, because it reads none. Masters on a GPU are updated after the norm, which
 * takes little time. Frozen parameters come to a GPU as messages. */
static enum status host_only(struct lane *lane, ...)
{
  (void)lane;
  return status_set(STATUS_UNSUPPORTED,
                    "only the host updates before the norm is known, and codes in nf4");
}

/* A row per operation: LAUNCHED, its check, and the words for its errors; OWN, a function below or
 * in another file; or HOST_ONLY. */
/* clang-format off */
#define KERNEL_cast OWN, ,
#define KERNEL_matmul OWN, ,
#define KERNEL_fp8_quantise LAUNCHED, check_operand(lane, op), "an operand in fp8"
#define KERNEL_fp8_unify LAUNCHED, check_unify(lane, op), "one scale per operand"
#define KERNEL_fp8_largest LAUNCHED, check_part(lane, op), "magnitudes of a weight"
#define KERNEL_fp8_scales LAUNCHED, STATUS_OK, "scales of a weight"
#define KERNEL_fp8_code LAUNCHED, check_part(lane, op), "codes of a weight"
#define KERNEL_fp8_turn LAUNCHED, check_turn(op), "codes of a transposed weight"
#define KERNEL_bias_gradient LAUNCHED, cuda_lane_reserve(lane), "a bias gradient"
#define KERNEL_norm LAUNCHED, check_norm(lane, op), "a norm"
#define KERNEL_norm_backward LAUNCHED, check_norm_width(op->C), "a norm's gradient"
#define KERNEL_rope LAUNCHED, check_rope(op), "rotary positions"
#define KERNEL_swiglu LAUNCHED, STATUS_OK, "SwiGLU"
#define KERNEL_swiglu_coded \
  LAUNCHED, check_coded(lane, rows, F, (uintptr_t)gu | (uintptr_t)code), "SwiGLU in fp8"
#define KERNEL_swiglu_backward LAUNCHED, STATUS_OK, "SwiGLU's gradient"
#define KERNEL_swiglu_backward_coded LAUNCHED, check_swiglu(lane, op), "SwiGLU's gradient in fp8"
#define KERNEL_attention OWN, ,
#define KERNEL_attention_backward OWN, ,
#define KERNEL_embedding LAUNCHED, note_vocabulary(lane, op->V), "an embedding"
#define KERNEL_embedding_backward \
  LAUNCHED, dwte ? cuda_lane_reserve(lane) : STATUS_OK, "an embedding's gradient"
#define KERNEL_cross_entropy LAUNCHED, note_vocabulary(lane, op->V), "the classifier"
#define KERNEL_prefer LAUNCHED, STATUS_OK, "preferences"
#define KERNEL_add LAUNCHED, STATUS_OK, "an addition"
#define KERNEL_sum_parts LAUNCHED, check_parts(parts, type), "a sum over ranks"
#define KERNEL_subtract LAUNCHED, check_subtract(type), "a subtraction"
#define KERNEL_max_magnitude LAUNCHED, cuda_zero(lane, out, sizeof *out), "a largest magnitude"
#define KERNEL_quantise LAUNCHED, device_check_blocks(op), "quantisation"
#define KERNEL_dequantise LAUNCHED, device_check_blocks(op), "a sum of quantised messages"
#define KERNEL_nf4_code HOST_ONLY, ,
#define KERNEL_nf4_decode LAUNCHED, check_nf4(n, parts, type), "vectors in nf4"
#define KERNEL_pack_exponents LAUNCHED, STATUS_OK, "a message with short exponents"
#define KERNEL_unpack_exponents LAUNCHED, STATUS_OK, "vectors with short exponents"
#define KERNEL_sum_exact LAUNCHED, STATUS_OK, "an exact sum"
#define KERNEL_merge_exact LAUNCHED, STATUS_OK, "a merge of exact sums"
#define KERNEL_conclude LAUNCHED, STATUS_OK, "the end of a step"
#define KERNEL_sum_squares LAUNCHED, STATUS_OK, "a sum of squares"
#define KERNEL_select LAUNCHED, check_selection(op, n), "a selection"
#define KERNEL_scatter LAUNCHED, check_selection(op, n), "a sparse sum"
#define KERNEL_sketch LAUNCHED, check_sketch(op, n), "a sketch"
#define KERNEL_unsketch LAUNCHED, check_sketch(op, n), "a sum of sketches"
#define KERNEL_factorise LAUNCHED, check_lowrank(op, n), "a factorisation"
#define KERNEL_expand LAUNCHED, check_lowrank(op, n), "a sum of products"
#define KERNEL_update LAUNCHED, check_update(op, copy), "an optimizer's update"
#define KERNEL_speculate HOST_ONLY, ,
/* clang-format on */

#define OWN(name, parameters, arguments, check, words)
#define HOST_ONLY(name, parameters, arguments, check, words)                                       \
  enum status cuda_##name parameters                                                               \
  {                                                                                                \
    return host_only arguments;                                                                    \
  }
#define LAUNCHED(name, parameters, arguments, check, words)                                        \
  enum status cuda_##name parameters                                                               \
  {                                                                                                \
    const enum status status = check;                                                              \
    cudaError_t error = cudaSuccess;                                                               \
    if (status)                                                                                    \
      return status;                                                                               \
    struct gpu_launch launch = cuda_launch(lane);                                                  \
    launch.error = &error;                                                                         \
    gpu_##name(&launch, GPU_REST arguments);                                                       \
    return error ? cuda_check(error, words) : cuda_check_launch(words);                            \
  }
#define DEFINE(name, parameters, arguments, kernel) DEFINE_AS(name, parameters, arguments, kernel)
#define DEFINE_AS(name, parameters, arguments, how, check, words)                                  \
  how(name, parameters, arguments, check, words)
#define OPERATION(name, parameters, arguments, kind, work)                                         \
  DEFINE(name, parameters, arguments, KERNEL_##name)
#include "device/operations.h"

enum status cuda_cast(struct lane *lane, int64_t n, enum dtype from, const void *src, enum dtype to,
                      void *dst)
{
  const struct gpu_launch launch = cuda_launch(lane);
  if (from == to)
    return cuda_copy(lane, dst, src, (size_t)n * dtype_size(from));
  if (!(from == DTYPE_F32 && is_narrow(to)) && !(is_narrow(from) && to == DTYPE_F32))
    return status_set(STATUS_UNSUPPORTED,
                      "a device converts between fp32 and bf16 or fp16, not from %s to %s",
                      dtype_name(from), dtype_name(to));
  gpu_cast(&launch, n, from, src, to, dst);
  return cuda_check_launch("a conversion");
}
