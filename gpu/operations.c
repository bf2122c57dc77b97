/* The math for which there are kernels of our own, except attention. Shapes that the kernels cannot
 * handle are refused, scratch memory comes from the lane, and the kernels are launched. */
#include "gpu/cuda.h"

/* The plan refuses wider norms and heads. */
static enum status check_norm(int64_t C)
{
  return C <= DEVICE_CUDA_MOST_NORM
             ? STATUS_OK
             : status_set(STATUS_INTERNAL,
                          "a norm over %lld elements: the GPU's kernels take up to %d",
                          (long long)C, DEVICE_CUDA_MOST_NORM);
}

static enum status check_fp8(const struct lane *lane)
{
  return lane->device->model.fp8
             ? STATUS_OK
             : status_set(STATUS_UNSUPPORTED, "%s has no products in fp8", lane->device->product);
}

enum status cuda_fp8_quantise(struct lane *lane, const struct fp8_quantise *op)
{
  const struct gpu_launch launch = cuda_launch(lane);
  const uintptr_t bits = (uintptr_t)op->x | (uintptr_t)op->code | (uintptr_t)op->scale |
                         (uintptr_t)op->turned | (uintptr_t)op->turned_scale |
                         (uintptr_t)(op->ld * (int64_t)sizeof(uint16_t));
  enum status status = check_fp8(lane);
  if (!status)
    status = device_check_quantise(op);
  if (status)
    return status;
  if (bits % 16)
    return status_set(STATUS_INTERNAL,
                      "an operand in fp8 of %lld x %lld elements: rows must be aligned to 16 bytes",
                      (long long)op->rows, (long long)op->columns);
  gpu_fp8_quantise(&launch, op);
  return cuda_check_launch("an operand in fp8");
}

/* The largest scale is a word of the lane's workspace, from one kernel to the next. */
enum status cuda_fp8_unify(struct lane *lane, const struct fp8_unify *op)
{
  const struct gpu_launch launch = cuda_launch(lane);
  void *most = NULL;
  enum status status = check_fp8(lane);
  if (!status)
    status = device_check_unify(op);
  if (!status && ((uintptr_t)op->code | (uintptr_t)op->scale) % 16)
    status = status_set(STATUS_INTERNAL,
                        "one scale for an operand in fp8 that is not aligned to 16 bytes");
  if (!status)
    status = cuda_lane_room(lane, &most);
  if (!status)
    status = cuda_zero(lane, most, sizeof(uint32_t));
  if (status)
    return status;
  gpu_fp8_unify(&launch, op, most);
  return cuda_check_launch("one scale per operand");
}

static enum status check_part(struct lane *lane, const struct fp8_part *op)
{
  const uintptr_t bits = (uintptr_t)op->x | (uintptr_t)op->code * 4;
  const bool typed = op->type == DTYPE_F32 || op->type == DTYPE_BF16;
  const enum status status = check_fp8(lane);
  if (status)
    return status;
  if (op->begin >= op->end || op->begin % 4 || op->end % 4 || op->columns % FP8_TILE || bits % 16 ||
      !typed)
    return status_set(STATUS_INTERNAL,
                      "elements %lld to %lld, in %s, of a weight in fp8 with rows of %lld: rows "
                      "must be multiples of %d, and parts of 4",
                      (long long)op->begin, (long long)op->end, dtype_name(op->type),
                      (long long)op->columns, FP8_TILE);
  return STATUS_OK;
}

enum status cuda_fp8_largest(struct lane *lane, const struct fp8_part *op)
{
  const struct gpu_launch launch = cuda_launch(lane);
  const enum status status = check_part(lane, op);
  if (status)
    return status;
  gpu_fp8_largest(&launch, op);
  return cuda_check_launch("magnitudes of a weight");
}

enum status cuda_fp8_code(struct lane *lane, const struct fp8_part *op)
{
  const struct gpu_launch launch = cuda_launch(lane);
  const enum status status = check_part(lane, op);
  if (status)
    return status;
  gpu_fp8_code(&launch, op);
  return cuda_check_launch("codes of a weight");
}

enum status cuda_fp8_merge(struct lane *lane, int64_t n, int parts, const uint32_t *received,
                           uint32_t *out)
{
  const struct gpu_launch launch = cuda_launch(lane);
  gpu_fp8_merge(&launch, n, parts, received, out);
  return cuda_check_launch("magnitudes of all ranks");
}

enum status cuda_fp8_scales(struct lane *lane, int64_t rows, int64_t columns, float *scale)
{
  const struct gpu_launch launch = cuda_launch(lane);
  gpu_fp8_scales(&launch, rows, columns, lane->device->fp8_tensor, scale);
  return cuda_check_launch("scales of a weight");
}

enum status cuda_fp8_turn(struct lane *lane, const struct fp8_turn *op)
{
  const struct gpu_launch launch = cuda_launch(lane);
  const uintptr_t bits = (uintptr_t)op->code | (uintptr_t)op->turned | (uintptr_t)op->ld;
  const enum status status = device_check_turn(op);
  if (status)
    return status;
  if (bits % 8)
    return status_set(STATUS_INTERNAL, "codes of a weight that are not aligned to 8 bytes");
  gpu_fp8_turn(&launch, op);
  return cuda_check_launch("codes of a transposed weight");
}

/* The columns are summed in passes, so that the lane's workspace suffices for any number of them.
 */
enum status cuda_bias_gradient(struct lane *lane, int64_t rows, int64_t n, int64_t tile, int64_t ld,
                               const void *d, bool accumulate, void *db)
{
  const struct gpu_launch launch = cuda_launch(lane);
  const int64_t most = CUDA_WORKSPACE / (int64_t)sizeof(float);
  void *work = NULL;
  (void)tile;
  enum status status = cuda_lane_room(lane, &work);
  for (int64_t first = 0; first < n && !status; first += most) {
    const char *from = (const char *)d + first * (int64_t)(launch.bf16 ? 2 : sizeof(float));
    gpu_bias_gradient(&launch, rows, n - first < most ? n - first : most, ld, from, accumulate,
                      (float *)db + first, work);
    status = cuda_check_launch("a bias gradient");
  }
  return status;
}

/* An output in fp8, in tiles, from operands whose addresses and distances of rows in bytes are in
 * `bits`. */
static enum status check_coded(struct lane *lane, int64_t rows, int64_t columns, uintptr_t bits)
{
  const enum status status = check_fp8(lane);
  if (status)
    return status;
  if (columns % FP8_TILE || bits % 16)
    return status_set(STATUS_INTERNAL,
                      "an output in fp8 of %lld x %lld elements: rows must be multiples of %d, and "
                      "aligned to 16 bytes",
                      (long long)rows, (long long)columns, FP8_TILE);
  return STATUS_OK;
}

static uintptr_t bits_of_norm(const struct row_norm *op)
{
  return (uintptr_t)op->x | (uintptr_t)op->add | (uintptr_t)op->sum | (uintptr_t)op->gamma |
         (uintptr_t)op->beta | (uintptr_t)op->code | (uintptr_t)(op->x_stride * 2) |
         (uintptr_t)(op->y_stride * 2);
}

enum status cuda_norm(struct lane *lane, const struct row_norm *op)
{
  const struct gpu_launch launch = cuda_launch(lane);
  enum status status = check_norm(op->C);
  if (!status && op->code)
    status = check_coded(lane, op->rows, op->C, bits_of_norm(op));
  if (status)
    return status;
  if (op->code && op->groups != 1)
    return status_set(STATUS_INTERNAL, "a norm of %lld groups in fp8", (long long)op->groups);
  gpu_norm_forward(&launch, op);
  return cuda_check_launch("a norm");
}

enum status cuda_norm_backward(struct lane *lane, const struct row_norm_backward *op)
{
  const struct gpu_launch launch = cuda_launch(lane);
  enum status status = check_norm(op->C);
  if (status)
    return status;
  gpu_norm_gradient(&launch, op);
  return cuda_check_launch("a norm's gradient");
}

enum status cuda_rope(struct lane *lane, const struct rope *op)
{
  const struct gpu_launch launch = cuda_launch(lane);
  if (op->D % 2 != 0 || op->D > DEVICE_CUDA_MOST_HEAD)
    return status_set(STATUS_INTERNAL,
                      "rotary positions of heads of %lld elements: even, and at most %d",
                      (long long)op->D, DEVICE_CUDA_MOST_HEAD);
  gpu_rope(&launch, op);
  return cuda_check_launch("rotary positions");
}

enum status cuda_swiglu(struct lane *lane, int64_t rows, int64_t F, const void *gu, void *y)
{
  const struct gpu_launch launch = cuda_launch(lane);
  gpu_swiglu(&launch, rows, F, gu, y);
  return cuda_check_launch("SwiGLU");
}

enum status cuda_swiglu_coded(struct lane *lane, int64_t rows, int64_t F, const void *gu,
                              uint8_t *code, float *scale)
{
  const struct gpu_launch launch = cuda_launch(lane);
  const enum status status = check_coded(lane, rows, F, (uintptr_t)gu | (uintptr_t)code);
  if (status)
    return status;
  gpu_swiglu_coded(&launch, rows, F, gu, code, scale);
  return cuda_check_launch("SwiGLU in fp8");
}

enum status cuda_swiglu_backward(struct lane *lane, int64_t rows, int64_t F, const void *gu,
                                 const void *dy, void *dgu, void *y)
{
  const struct gpu_launch launch = cuda_launch(lane);
  gpu_swiglu_backward(&launch, rows, F, gu, dy, dgu, y);
  return cuda_check_launch("SwiGLU's gradient");
}

enum status cuda_swiglu_backward_coded(struct lane *lane, const struct fp8_swiglu *op)
{
  const struct gpu_launch launch = cuda_launch(lane);
  enum status status =
      check_coded(lane, op->rows, op->F,
                  (uintptr_t)op->gu | (uintptr_t)op->dy | (uintptr_t)op->code |
                      (uintptr_t)op->scale | (uintptr_t)op->turned | (uintptr_t)op->turned_scale |
                      (uintptr_t)op->y_turned | (uintptr_t)op->y_turned_scale);
  if (!status)
    status = device_check_swiglu(op);
  if (status)
    return status;
  gpu_swiglu_backward_coded(&launch, op);
  return cuda_check_launch("SwiGLU's gradient in fp8");
}

enum status cuda_embedding(struct lane *lane, int64_t rows, int64_t T, int64_t C, int64_t V,
                           const int32_t *token, const void *wte, const void *wpe, void *x)
{
  const struct gpu_launch launch = cuda_launch(lane);
  atomic_store(&cuda_lane(lane)->vocabulary, V);
  gpu_embedding(&launch, rows, T, C, V, token, wte, wpe, x, cuda_lane(lane)->fault_there);
  return cuda_check_launch("an embedding");
}

enum status cuda_embedding_backward(struct lane *lane, int64_t rows, int64_t T, int64_t C,
                                    int64_t V, const int32_t *token, const void *dx, void *dwte,
                                    bool wpe_accumulate, void *dwpe)
{
  const struct gpu_launch launch = cuda_launch(lane);
  void *work = NULL;
  const enum status status = dwte ? cuda_lane_room(lane, &work) : STATUS_OK;
  if (status)
    return status;
  return cuda_check(gpu_embedding_backward(&launch, rows, T, C, V, token, dx, dwte, wpe_accumulate,
                                           dwpe, work, CUDA_WORKSPACE),
                    "an embedding's gradient");
}

enum status cuda_cross_entropy(struct lane *lane, int64_t rows, int64_t V, int64_t ld, void *logits,
                               const int32_t *target, float scale, bool gradient, double *loss)
{
  const struct gpu_launch launch = cuda_launch(lane);
  atomic_store(&cuda_lane(lane)->vocabulary, V);
  gpu_cross_entropy(&launch, rows, V, ld, logits, target, scale, gradient, loss,
                    cuda_lane(lane)->fault_there);
  return cuda_check_launch("the classifier");
}

enum status cuda_add(struct lane *lane, int64_t n, const void *a, const void *b, void *out)
{
  const struct gpu_launch launch = cuda_launch(lane);
  gpu_add(&launch, n, a, b, out);
  return cuda_check_launch("an addition");
}

static bool is_narrow(enum dtype type)
{
  return type == DTYPE_BF16 || type == DTYPE_F16;
}

enum status cuda_cast(struct lane *lane, int64_t n, enum dtype from, const void *src, enum dtype to,
                      void *dst)
{
  const struct gpu_launch launch = cuda_launch(lane);
  if (from == to)
    return cuda_copy(lane, dst, src, (size_t)n * dtype_size(from));
  if (from == DTYPE_F32 && is_narrow(to))
    gpu_narrow(&launch, n, src, to, dst);
  else if (is_narrow(from) && to == DTYPE_F32)
    gpu_widen(&launch, n, from, src, dst);
  else
    return status_set(STATUS_UNSUPPORTED,
                      "a device converts between fp32 and bf16 or fp16, not from %s to %s",
                      dtype_name(from), dtype_name(to));
  return cuda_check_launch("a conversion");
}

enum status cuda_sum_parts(struct lane *lane, int64_t n, int parts, enum dtype type,
                           const void *base, int64_t stride, bool accumulate, void *dst)
{
  const struct gpu_launch launch = cuda_launch(lane);
  if (parts < 1)
    return status_set(STATUS_INTERNAL, "a sum over %d parts", parts);
  if (type != DTYPE_F32 && !is_narrow(type))
    return status_set(STATUS_UNSUPPORTED, "a device sums parts of fp32, bf16 or fp16, not of %s",
                      dtype_name(type));
  gpu_sum_parts(&launch, n, parts, type, base, stride, accumulate, dst);
  return cuda_check_launch("a sum over ranks");
}

enum status cuda_subtract(struct lane *lane, int64_t n, enum dtype type, const void *from, float *x)
{
  const struct gpu_launch launch = cuda_launch(lane);
  if (type != DTYPE_F32 && !is_narrow(type))
    return status_set(STATUS_UNSUPPORTED, "a device subtracts fp32, bf16 or fp16, not %s",
                      dtype_name(type));
  gpu_subtract(&launch, n, type, from, x);
  return cuda_check_launch("a subtraction");
}

enum status cuda_max_magnitude(struct lane *lane, int64_t n, const float *x, float *out)
{
  const struct gpu_launch launch = cuda_launch(lane);
  const enum status status = lane->device->ops->zero(lane, out, sizeof *out);
  if (status)
    return status;
  gpu_max_magnitude(&launch, n, x, out);
  return cuda_check_launch("a largest magnitude");
}

enum status cuda_quantise(struct lane *lane, const struct quantise *op, int64_t n, int parts,
                          const float *x, void *messages)
{
  const struct gpu_launch launch = cuda_launch(lane);
  if (device_check_blocks(op))
    return STATUS_INTERNAL;
  gpu_quantise(&launch, op, n, parts, x, messages);
  return cuda_check_launch("quantisation");
}

enum status cuda_dequantise(struct lane *lane, const struct quantise *op, int64_t n, int parts,
                            const void *messages, int64_t stride, enum quant_mode mode,
                            enum dtype type, void *out)
{
  const struct gpu_launch launch = cuda_launch(lane);
  if (device_check_blocks(op))
    return STATUS_INTERNAL;
  gpu_dequantise(&launch, op, n, parts, messages, stride, mode, type, out);
  return cuda_check_launch("a sum of quantised messages");
}

enum status cuda_sum_exact(struct lane *lane, int64_t n, const double *term, struct exactsum *sum)
{
  const struct gpu_launch launch = cuda_launch(lane);
  gpu_sum_exact(&launch, n, term, sum);
  return cuda_check_launch("an exact sum");
}

enum status cuda_merge_exact(struct lane *lane, const struct exactsum *other, struct exactsum *sum)
{
  const struct gpu_launch launch = cuda_launch(lane);
  gpu_merge_exact(&launch, other, sum);
  return cuda_check_launch("a merge of exact sums");
}

enum status cuda_conclude(struct lane *lane, const struct exactsum *loss,
                          const struct exactsum *squares, double clip, struct outcome *out)
{
  const struct gpu_launch launch = cuda_launch(lane);
  gpu_conclude(&launch, loss, squares, clip, out);
  return cuda_check_launch("the end of a step");
}

enum status cuda_pack_exponents(struct lane *lane, int64_t n, int parts, const float *x,
                                void *messages)
{
  const struct gpu_launch launch = cuda_launch(lane);
  gpu_pack_exponents(&launch, n, parts, x, messages);
  return cuda_check_launch("a message with short exponents");
}

enum status cuda_unpack_exponents(struct lane *lane, int64_t n, int parts, const void *messages,
                                  int64_t stride, float *out)
{
  const struct gpu_launch launch = cuda_launch(lane);
  gpu_unpack_exponents(&launch, n, parts, messages, stride, out);
  return cuda_check_launch("vectors with short exponents");
}

enum status cuda_sum_squares(struct lane *lane, int64_t n, const void *x, struct exactsum *sum)
{
  const struct gpu_launch launch = cuda_launch(lane);
  gpu_sum_squares(&launch, n, x, sum);
  return cuda_check_launch("a sum of squares");
}

static enum status check_selection(const struct selection *op, int64_t n)
{
  if (select_is_valid(op) && n >= 0)
    return STATUS_OK;
  return status_set(STATUS_INTERNAL, "a message with %lld of %lld elements per block",
                    (long long)op->keep, (long long)op->block);
}

enum status cuda_select(struct lane *lane, const struct selection *op, int64_t n, int parts,
                        const float *x, const struct slots *slots)
{
  const struct gpu_launch launch = cuda_launch(lane);
  enum status status = check_selection(op, n);
  if (status)
    return status;
  gpu_select(&launch, op, n, parts, x, slots);
  return cuda_check_launch("a selection");
}

enum status cuda_scatter(struct lane *lane, const struct selection *op, int64_t n, int parts,
                         const struct slots *slots, enum scatter_mode mode, enum dtype type,
                         void *out)
{
  const struct gpu_launch launch = cuda_launch(lane);
  enum status status = check_selection(op, n);
  if (status)
    return status;
  gpu_scatter(&launch, op, n, parts, slots, mode, type, out);
  return cuda_check_launch("a sparse sum");
}

static enum status check_sketch(const struct sketch *op, int64_t n)
{
  if (sketch_is_valid(op) && n >= 0)
    return STATUS_OK;
  return status_set(STATUS_INTERNAL, "a sketch of %lld of %lld elements per block",
                    (long long)op->keep, (long long)op->block);
}

enum status cuda_sketch(struct lane *lane, const struct sketch *op, int64_t n, int parts,
                        const float *x, void *messages)
{
  const struct gpu_launch launch = cuda_launch(lane);
  enum status status = check_sketch(op, n);
  if (status)
    return status;
  gpu_sketch(&launch, op, n, parts, x, messages);
  return cuda_check_launch("a sketch");
}

enum status cuda_unsketch(struct lane *lane, const struct sketch *op, int64_t n, int parts,
                          const void *messages, int64_t stride, enum scatter_mode mode, float *out)
{
  const struct gpu_launch launch = cuda_launch(lane);
  enum status status = check_sketch(op, n);
  if (status)
    return status;
  gpu_unsketch(&launch, op, n, parts, messages, stride, mode, out);
  return cuda_check_launch("a sum of sketches");
}

static enum status check_lowrank(const struct lowrank *op, int64_t n)
{
  if (lowrank_is_valid(op) && n >= 0)
    return STATUS_OK;
  return status_set(STATUS_INTERNAL, "a message of rank %d with rows of %lld elements", op->rank,
                    (long long)op->block);
}

enum status cuda_factorise(struct lane *lane, const struct lowrank *op, int64_t n, int parts,
                           const float *x, const struct factors *factors, float *work)
{
  const struct gpu_launch launch = cuda_launch(lane);
  enum status status = check_lowrank(op, n);
  if (status)
    return status;
  gpu_factorise(&launch, op, n, parts, x, factors, work);
  return cuda_check_launch("a factorisation");
}

enum status cuda_expand(struct lane *lane, const struct lowrank *op, int64_t n, int parts,
                        const struct factors *factors, enum quant_mode mode, float *out)
{
  const struct gpu_launch launch = cuda_launch(lane);
  enum status status = check_lowrank(op, n);
  if (status)
    return status;
  gpu_expand(&launch, op, n, parts, factors, mode, out);
  return cuda_check_launch("a sum of products");
}

static enum status check_update(const struct update *op, bool copies)
{
  if (op->master != DTYPE_F32)
    return status_set(STATUS_UNSUPPORTED, "the CUDA device updates masters of fp32, not of %s",
                      dtype_name(op->master));
  if (op->grad != DTYPE_F32 && op->grad != DTYPE_BF16)
    return status_set(STATUS_UNSUPPORTED,
                      "the CUDA device updates by gradients of fp32 or bf16, not of %s",
                      dtype_name(op->grad));
  if (op->states != DTYPE_F32 && op->states != DTYPE_BF16 && op->states != DTYPE_F16)
    return status_set(STATUS_UNSUPPORTED,
                      "the CUDA device keeps states in fp32, bf16 or fp16, not in %s",
                      dtype_name(op->states));
  if (copies && op->copy != DTYPE_F32 && op->copy != DTYPE_BF16)
    return status_set(STATUS_UNSUPPORTED,
                      "the CUDA device makes working copies in fp32 or bf16, not in %s",
                      dtype_name(op->copy));
  if (optim_states(op->rule) == 0)
    return status_set(STATUS_INTERNAL, "optimizer %d has no elementwise update", (int)op->rule);
  return STATUS_OK;
}

enum status cuda_update(struct lane *lane, int64_t n, const struct update *op, void *master,
                        const void *grad, void *const *state, void *working)
{
  const struct gpu_launch launch = cuda_launch(lane);
  enum status status = check_update(op, working);
  if (status)
    return status;
  gpu_update(&launch, n, op, master, grad, state, working);
  return cuda_check_launch("an optimizer's update");
}

/* Masters on a GPU are updated after the norm, which takes little time. */
enum status cuda_speculate(struct lane *lane, int64_t n, const struct update *known,
                           const void *pending, const struct update *next, const void *grad,
                           void *master, void *const *state, void *copy)
{
  (void)lane, (void)n, (void)known, (void)pending, (void)next, (void)grad, (void)master,
      (void)state, (void)copy;
  return status_set(STATUS_UNSUPPORTED, "only the host updates before the norm is known");
}
