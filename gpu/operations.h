/* The operations of a lane: slot in device_ops, parameters, arguments, class, work as device.h
 * defines it. A file defines OPERATION, then includes this file, which ends the definition. So the
 * prototypes, the table and the timed versions come from one row per operation. */

/* clang-format off */
OPERATION(cast, (struct lane *lane, int64_t n, enum dtype from, const void *src, enum dtype to,
                 void *dst),
          (lane, n, from, src, to, dst),
          CLASS_SUMS, (double)n * (dtype_size(from) + dtype_size(to)))
OPERATION(matmul, (struct lane *lane, const struct matmul *op), (lane, op),
          CLASS_PRODUCTS, 2.0 * op->m * op->n * op->k)
OPERATION(fp8_quantise, (struct lane *lane, const struct fp8_quantise *op), (lane, op),
          CLASS_ACTIVATIONS, bytes_of(lane, 1.0 * op->rows * op->columns) +
            (op->turned ? 2.0 : 1.0) * op->rows * op->columns)
OPERATION(fp8_unify, (struct lane *lane, const struct fp8_unify *op), (lane, op),
          CLASS_ACTIVATIONS, 2.0 * op->n * op->k)
OPERATION(fp8_largest, (struct lane *lane, const struct fp8_part *op), (lane, op),
          CLASS_SUMS, (double)(op->end - op->begin) * dtype_size(op->type))
OPERATION(fp8_merge, (struct lane *lane, int64_t n, int parts, const uint32_t *received,
                      uint32_t *out),
          (lane, n, parts, received, out),
          CLASS_SUMS, 4.0 * n * (parts + 1))
OPERATION(fp8_scales, (struct lane *lane, int64_t rows, int64_t columns, float *scale),
          (lane, rows, columns, scale),
          CLASS_SUMS, 8.0 * rows / FP8_TILE * fp8_pitch(columns))
OPERATION(fp8_code, (struct lane *lane, const struct fp8_part *op), (lane, op),
          CLASS_SUMS, (double)(op->end - op->begin) * (dtype_size(op->type) + 1))
OPERATION(fp8_turn, (struct lane *lane, const struct fp8_turn *op), (lane, op),
          CLASS_ACTIVATIONS, 2.0 * op->rows * op->columns)
OPERATION(bias_gradient, (struct lane *lane, int64_t rows, int64_t n, int64_t tile, int64_t ld,
                          const void *d, bool accumulate, void *db),
          (lane, rows, n, tile, ld, d, accumulate, db),
          CLASS_ACTIVATIONS, bytes_of(lane, 1.0 * rows * n))
OPERATION(norm, (struct lane *lane, const struct row_norm *op), (lane, op),
          CLASS_NORMS, bytes_of(lane, (op->add ? 4.0 : 2.0) * op->rows * op->groups * op->C))
OPERATION(norm_backward, (struct lane *lane, const struct row_norm_backward *op), (lane, op),
          CLASS_NORMS,
          bytes_of(lane, (op->dx_accumulate ? 4.0 : 3.0) * op->rows * op->groups * op->C))
OPERATION(rope, (struct lane *lane, const struct rope *op), (lane, op),
          CLASS_ACTIVATIONS, bytes_of(lane, 2.0 * op->rows * op->heads * op->D))
OPERATION(swiglu, (struct lane *lane, int64_t rows, int64_t F, const void *gu, void *y),
          (lane, rows, F, gu, y),
          CLASS_ACTIVATIONS, bytes_of(lane, 3.0 * rows * F))
OPERATION(swiglu_coded, (struct lane *lane, int64_t rows, int64_t F, const void *gu, uint8_t *code,
                         float *scale),
          (lane, rows, F, gu, code, scale),
          CLASS_ACTIVATIONS, bytes_of(lane, 2.0 * rows * F) + 1.0 * rows * F)
OPERATION(swiglu_backward, (struct lane *lane, int64_t rows, int64_t F, const void *gu,
                            const void *dy, void *dgu, void *y),
          (lane, rows, F, gu, dy, dgu, y),
          CLASS_ACTIVATIONS, bytes_of(lane, (y ? 6.0 : 5.0) * rows * F))
OPERATION(swiglu_backward_coded, (struct lane *lane, const struct fp8_swiglu *op), (lane, op),
          CLASS_ACTIVATIONS, bytes_of(lane, 3.0 * op->rows * op->F) +
            (op->turned ? 4.0 : 2.0) * op->rows * op->F)
OPERATION(attention, (struct lane *lane, const struct attention *op), (lane, op),
          CLASS_ATTENTION, attention_flops(op, 2))
OPERATION(attention_backward, (struct lane *lane, const struct attention_backward *op), (lane, op),
          CLASS_ATTENTION, attention_flops(&op->forward, 5))
OPERATION(embedding, (struct lane *lane, int64_t rows, int64_t T, int64_t C, int64_t V,
                      const int32_t *token, const void *wte, const void *wpe, void *x),
          (lane, rows, T, C, V, token, wte, wpe, x),
          CLASS_EMBEDDING, bytes_of(lane, 2.0 * rows * C + (wpe ? 1.0 * T * C : 0)))
OPERATION(embedding_backward, (struct lane *lane, int64_t rows, int64_t T, int64_t C, int64_t V,
                               const int32_t *token, const void *dx, void *dwte,
                               bool wpe_accumulate, void *dwpe),
          (lane, rows, T, C, V, token, dx, dwte, wpe_accumulate, dwpe),
          CLASS_EMBEDDING, bytes_of(lane, 1.0 * rows * C) +
            4.0 * ((dwte ? 2.0 * (rows < V ? rows : V) : 0) +
                   (dwpe ? (wpe_accumulate ? 2.0 : 1.0) * T : 0)) * C)
OPERATION(cross_entropy, (struct lane *lane, int64_t rows, int64_t V, int64_t ld, void *logits,
                          const int32_t *target, float scale, bool gradient, double *loss),
          (lane, rows, V, ld, logits, target, scale, gradient, loss),
          CLASS_CLASSIFIER, bytes_of(lane, 1.0 * rows * (gradient ? V + ld : V)))
OPERATION(add, (struct lane *lane, int64_t n, const void *a, const void *b, void *out),
          (lane, n, a, b, out),
          CLASS_ACTIVATIONS, bytes_of(lane, 3.0 * n))
OPERATION(sum_parts, (struct lane *lane, int64_t n, int parts, enum dtype type, const void *base,
                      int64_t stride, bool accumulate, void *dst),
          (lane, n, parts, type, base, stride, accumulate, dst),
          CLASS_SUMS, (double)n * (1.0 * parts * dtype_size(type) + (accumulate ? 8 : 4)))
OPERATION(subtract, (struct lane *lane, int64_t n, enum dtype type, const void *from, float *x),
          (lane, n, type, from, x),
          CLASS_SUMS, (double)n * (8 + dtype_size(type)))
OPERATION(max_magnitude, (struct lane *lane, int64_t n, const float *x, float *out),
          (lane, n, x, out),
          CLASS_SUMS, 4.0 * n)
OPERATION(quantise, (struct lane *lane, const struct quantise *op, int64_t n, int parts,
                     const float *x, void *messages),
          (lane, op, n, parts, x, messages),
          CLASS_SUMS, (double)parts * (4 * n + quant_bytes(op, n)))
OPERATION(dequantise, (struct lane *lane, const struct quantise *op, int64_t n, int parts,
                       const void *messages, int64_t stride, enum quant_mode mode,
                       enum dtype type, void *out),
          (lane, op, n, parts, messages, stride, mode, type, out),
          CLASS_SUMS, (double)parts * quant_bytes(op, n) +
            (double)n * dtype_size(type) * (quant_takes_each(mode) ? parts : 1) *
              (mode == QUANT_SET || mode == QUANT_SET_EACH ? 1 : 2))
OPERATION(pack_exponents, (struct lane *lane, int64_t n, int parts, const float *x, void *messages),
          (lane, n, parts, x, messages),
          CLASS_SUMS, (double)parts * (4 * n + exponent_bytes(n)))
OPERATION(unpack_exponents, (struct lane *lane, int64_t n, int parts, const void *messages,
                             int64_t stride, float *out),
          (lane, n, parts, messages, stride, out),
          CLASS_SUMS, (double)parts * (4 * n + exponent_bytes(n)))
OPERATION(sum_exact, (struct lane *lane, int64_t n, const double *term, struct exactsum *sum),
          (lane, n, term, sum),
          CLASS_SUMS, 8.0 * n)
OPERATION(merge_exact, (struct lane *lane, const struct exactsum *other, struct exactsum *sum),
          (lane, other, sum),
          CLASS_SUMS, 3.0 * sizeof *sum)
OPERATION(conclude, (struct lane *lane, const struct exactsum *loss, const struct exactsum *squares,
                     double clip, struct outcome *out),
          (lane, loss, squares, clip, out),
          CLASS_SUMS, 2.0 * sizeof *loss + sizeof *out)
OPERATION(sum_squares, (struct lane *lane, int64_t n, const void *x, struct exactsum *sum),
          (lane, n, x, sum),
          CLASS_SUMS, 4.0 * n)
OPERATION(select, (struct lane *lane, const struct selection *op, int64_t n, int parts,
                   const float *x, const struct slots *slots),
          (lane, op, n, parts, x, slots),
          CLASS_SUMS, 4.0 * parts * n + 6.0 * slots_of(op, n, parts))
OPERATION(scatter, (struct lane *lane, const struct selection *op, int64_t n, int parts,
                    const struct slots *slots, enum scatter_mode mode, enum dtype type,
                    void *out),
          (lane, op, n, parts, slots, mode, type, out),
          CLASS_SUMS, (mode == SCATTER_SET ? 4.0 * n : 0) +
            (6.0 + 2 * dtype_size(type)) * slots_of(op, n, parts))
OPERATION(sketch, (struct lane *lane, const struct sketch *op, int64_t n, int parts, const float *x,
                   void *messages),
          (lane, op, n, parts, x, messages),
          CLASS_SUMS, (double)parts * (4 * n + sketch_bytes(op, n)))
OPERATION(unsketch, (struct lane *lane, const struct sketch *op, int64_t n, int parts,
                     const void *messages, int64_t stride, enum scatter_mode mode, float *out),
          (lane, op, n, parts, messages, stride, mode, out),
          CLASS_SUMS, (double)parts * sketch_bytes(op, n) +
            4.0 * n * (mode == SCATTER_SET ? 1 : mode == SCATTER_ADD ? 2 : 2 * parts))
OPERATION(factorise, (struct lane *lane, const struct lowrank *op, int64_t n, int parts,
                      const float *x, const struct factors *factors, float *work),
          (lane, op, n, parts, x, factors, work),
          CLASS_SUMS, 8.0 * op->rounds * parts * n)
OPERATION(expand, (struct lane *lane, const struct lowrank *op, int64_t n, int parts,
                   const struct factors *factors, enum quant_mode mode, float *out),
          (lane, op, n, parts, factors, mode, out),
          CLASS_SUMS, 4.0 * n * (mode == QUANT_SET ? 1 : mode == QUANT_ADD ? 2 : 2 * parts))
OPERATION(update, (struct lane *lane, int64_t n, const struct update *op, void *master,
                   const void *grad, void *const *state, void *copy),
          (lane, n, op, master, grad, state, copy),
          CLASS_UPDATE, (double)n * (double)update_bytes(op, master, state, copy))
OPERATION(speculate, (struct lane *lane, int64_t n, const struct update *known,
                      const void *pending, const struct update *next, const void *grad,
                      void *master, void *const *state, void *copy),
          (lane, n, known, pending, next, grad, master, state, copy),
          CLASS_UPDATE, (double)n * (double)update_bytes(next, master, state, copy))
/* clang-format on */
#undef OPERATION
