/* The operations of a lane: slot in device_ops, parameters, arguments, class, work as device.h
 * defines it. A file defines OPERATION, then includes this file, which ends the definition. So the
 * prototypes, the table and the timed versions come from one row per operation. A file that also
 * defines TYPED gets there the operations that the host has in fp32 and in bf16. */
#ifndef TYPED
#define TYPED OPERATION
#endif

/* clang-format off */

/* Between fp32, bf16 and fp16 (nearest, ties to even; on CUDA one side is fp32), or a copy. dst
 * may be src only for a copy. */
OPERATION(cast, (struct lane *lane, int64_t n, enum dtype from, const void *src, enum dtype to,
                 void *dst),
          (lane, n, from, src, to, dst),
          CLASS_SUMS, (double)n * (dtype_size(from) + dtype_size(to)))
TYPED(matmul, (struct lane *lane, const struct matmul *op), (lane, op),
      CLASS_PRODUCTS, 2.0 * op->m * op->n * op->k)

/* An operand of products in fp8. Only for devices of model.fp8. */
OPERATION(fp8_quantise, (struct lane *lane, const struct fp8_quantise *op), (lane, op),
          CLASS_ACTIVATIONS, bytes_of(lane, 1.0 * op->rows * op->columns) +
            (op->turned ? 2.0 : 1.0) * op->rows * op->columns)

/* Before a product with the device's fp8_tensor, for each operand in groups. */
OPERATION(fp8_unify, (struct lane *lane, const struct fp8_unify *op), (lane, op),
          CLASS_ACTIVATIONS, 2.0 * op->n * op->k)

/* The same for a weight of which each rank has a part. Until fp8_scales(), the scale of a block
 * holds the bits of the largest magnitude of its elements, an integer.
 * - fp8_largest() raises it to the largest of this part.
 * - fp8_scales() makes the scales of a weight of rows x columns, in place. With the device's
 *   fp8_tensor all blocks get the largest of them.
 * - fp8_code() codes a part. fp8_turn() copies a transpose. */
OPERATION(fp8_largest, (struct lane *lane, const struct fp8_part *op), (lane, op),
          CLASS_SUMS, (double)(op->end - op->begin) * dtype_size(op->type))
OPERATION(fp8_scales, (struct lane *lane, int64_t rows, int64_t columns, float *scale),
          (lane, rows, columns, scale),
          CLASS_SUMS, 8.0 * rows / FP8_TILE * fp8_pitch(columns))
OPERATION(fp8_code, (struct lane *lane, const struct fp8_part *op), (lane, op),
          CLASS_SUMS, (double)(op->end - op->begin) * (dtype_size(op->type) + 1))
OPERATION(fp8_turn, (struct lane *lane, const struct fp8_turn *op), (lane, op),
          CLASS_ACTIVATIONS, 2.0 * op->rows * op->columns)

/* db[n] (= or +=) column sums of d[rows, n], whose rows are ld elements apart. */
TYPED(bias_gradient, (struct lane *lane, int64_t rows, int64_t n, int64_t tile, int64_t ld,
                      const void *d, bool accumulate, void *db),
      (lane, rows, n, tile, ld, d, accumulate, db),
      CLASS_ACTIVATIONS, bytes_of(lane, 1.0 * rows * n))
TYPED(norm, (struct lane *lane, const struct row_norm *op), (lane, op),
      CLASS_NORMS, bytes_of(lane, (op->add ? 4.0 : 2.0) * op->rows * op->groups * op->C))
TYPED(norm_backward, (struct lane *lane, const struct row_norm_backward *op), (lane, op),
      CLASS_NORMS,
      bytes_of(lane, (op->dx_accumulate ? 4.0 : 3.0) * op->rows * op->groups * op->C))
TYPED(rope, (struct lane *lane, const struct rope *op), (lane, op),
      CLASS_ACTIVATIONS, bytes_of(lane, 2.0 * op->rows * op->heads * op->D))

/* SwiGLU (Shazeer 2020, arXiv:2002.05202): y[rows, F] = silu(g) * u, where a row of gu holds g
 * [F], then u [F]. */
TYPED(swiglu, (struct lane *lane, int64_t rows, int64_t F, const void *gu, void *y),
      (lane, rows, F, gu, y),
      CLASS_ACTIVATIONS, bytes_of(lane, 3.0 * rows * F))

/* The same with y in fp8, in tiles along F, if the device has model.fp8. */
OPERATION(swiglu_coded, (struct lane *lane, int64_t rows, int64_t F, const void *gu, uint8_t *code,
                         float *scale),
          (lane, rows, F, gu, code, scale),
          CLASS_ACTIVATIONS, bytes_of(lane, 2.0 * rows * F) + 1.0 * rows * F)

/* dgu = gradients with respect to g and u from dy. y (NULL: not wanted) = the activation again,
 * for the gradient of the next weights. The output y may be dy, and dgu may be gu. */
TYPED(swiglu_backward, (struct lane *lane, int64_t rows, int64_t F, const void *gu,
                        const void *dy, void *dgu, void *y),
      (lane, rows, F, gu, dy, dgu, y),
      CLASS_ACTIVATIONS, bytes_of(lane, (y ? 6.0 : 5.0) * rows * F))

/* The same for a range of columns, with all outputs in fp8, if the device has model.fp8. */
OPERATION(swiglu_backward_coded, (struct lane *lane, const struct fp8_swiglu *op), (lane, op),
          CLASS_ACTIVATIONS, bytes_of(lane, 3.0 * op->rows * op->F) +
            (op->turned ? 4.0 : 2.0) * op->rows * op->F)
TYPED(attention, (struct lane *lane, const struct attention *op), (lane, op),
      CLASS_ATTENTION, attention_flops(op, 2))
TYPED(attention_backward, (struct lane *lane, const struct attention_backward *op), (lane, op),
      CLASS_ATTENTION, attention_flops(&op->forward, 5))

/* x[r] = wte[token] + wpe[position] of each row. wpe may be NULL. */
TYPED(embedding, (struct lane *lane, const struct embedding *op, const void *wte, const void *wpe,
                  void *x),
      (lane, op, wte, wpe, x),
      CLASS_EMBEDDING,
      bytes_of(lane, 2.0 * op->rows * op->C + (wpe ? 1.0 * op->T * op->C : 0)))

/* dwte += (never =, so zero it or let the classifier write it first; NULL: not wanted). dwpe = or
 * += (NULL: not wanted). With op->position it is always +=. Rows are added in order, without
 * atomics. */
TYPED(embedding_backward, (struct lane *lane, const struct embedding *op, const void *dx,
                           void *dwte, bool wpe_accumulate, void *dwpe),
      (lane, op, dx, dwte, wpe_accumulate, dwpe),
      CLASS_EMBEDDING, bytes_of(lane, 1.0 * op->rows * op->C) +
        4.0 * ((dwte ? 2.0 * (op->rows < op->V ? op->rows : op->V) : 0) +
               (dwpe ? (wpe_accumulate ? 2.0 : 1.0) * op->T : 0)) * op->C)
TYPED(cross_entropy, (struct lane *lane, const struct cross_entropy *op), (lane, op),
      CLASS_CLASSIFIER,
      bytes_of(lane, 1.0 * op->rows * (op->gradient ? op->V + op->ld : op->V)))

OPERATION(prefer, (struct lane *lane, const struct preference *op), (lane, op),
          CLASS_CLASSIFIER,
          (double)op->pairs * (2.0 * sizeof *op->score + 8.0 * op->T))

/* out = a + b; out may be a or b */
TYPED(add, (struct lane *lane, int64_t n, const void *a, const void *b, void *out),
      (lane, n, a, b, out),
      CLASS_ACTIVATIONS, bytes_of(lane, 3.0 * n))

/* dst (fp32; = or +=) is the sum of `parts` arrays of n elements of `type`, with parts[i] = base
 * + i * stride (elements). Adjacent pairs are added first, then pairs of pairs (an odd one is
 * carried over). So the sum over a group of 2^k neighbours is a subtree of the sum over all. type
 * is fp32, bf16 or fp16. With fp32, dst may be one of the parts. bf16 and fp16 are widened,
 * because all additions are in fp32. */
OPERATION(sum_parts, (struct lane *lane, int64_t n, int parts, enum dtype type, const void *base,
                      int64_t stride, bool accumulate, void *dst),
          (lane, n, parts, type, base, stride, accumulate, dst),
          CLASS_SUMS, (double)n * (1.0 * parts * dtype_size(type) + (accumulate ? 8 : 4)))

/* x -= from, n elements of `type` (fp32, bf16 or fp16), which are widened. */
OPERATION(subtract, (struct lane *lane, int64_t n, enum dtype type, const void *from, float *x),
          (lane, n, type, from, x),
          CLASS_SUMS, (double)n * (8 + dtype_size(type)))

/* *out = the largest magnitude of n elements, where NaN is larger than infinity; 0 of none. */
OPERATION(max_magnitude, (struct lane *lane, int64_t n, const float *x, float *out),
          (lane, n, x, out),
          CLASS_SUMS, 4.0 * n)

/* messages[i], quant_bytes() apart, = the message of x[i * n .. i * n + n), for i < parts. x and
 * messages are aligned to 4 and 128 bytes. */
OPERATION(quantise, (struct lane *lane, const struct quantise *op, int64_t n, int parts,
                     const float *x, void *messages),
          (lane, op, n, parts, x, messages),
          CLASS_SUMS, (double)parts * (4 * n + quant_bytes(op, n)))

/* The reverse, for messages `stride` bytes apart (a multiple of 128). enum quant_mode says how
 * out changes. The seed of op is not used. The type of out is fp32, or bf16 if the mode takes
 * each message by itself. Elements of bf16 are widened, changed in fp32, and rounded to nearest,
 * ties to even. */
OPERATION(dequantise, (struct lane *lane, const struct quantise *op, int64_t n, int parts,
                       const void *messages, int64_t stride, enum quant_mode mode,
                       enum dtype type, void *out),
          (lane, op, n, parts, messages, stride, mode, type, out),
          CLASS_SUMS, (double)parts * quant_bytes(op, n) +
            (double)n * dtype_size(type) * (quant_takes_each(mode) ? parts : 1) *
              (mode == QUANT_SET || mode == QUANT_SET_EACH ? 1 : 2))

/* codes[nf4_code_bytes(n)], magnitudes[nf4_blocks(n)] = those of x[n] (compress/rule/nf4.h). Frozen
 * parameters are coded before they are on a GPU, so the host device alone does it. */
OPERATION(nf4_code, (struct lane *lane, int64_t n, const float *x, void *codes,
                     float *magnitudes),
          (lane, n, x, codes, magnitudes),
          CLASS_SUMS, 4.0 * n + nf4_code_bytes(n) + 4.0 * nf4_blocks(n))

/* out[i * n ..] = the vector of message i, for i < parts. Messages are `stride` bytes apart, a
 * multiple of 128. Each part of out is aligned to 16 bytes. The type is fp32 or bf16, rounded to
 * nearest, ties to even. */
OPERATION(nf4_decode, (struct lane *lane, int64_t n, int parts, const void *messages,
                       int64_t stride, enum dtype type, void *out),
          (lane, n, parts, messages, stride, type, out),
          CLASS_SUMS, parts * (nf4_bytes(n, 1) + (double)n * dtype_size(type)))

/* messages[i], exponent_bytes() apart, = the message of x[i * n .. i * n + n), for i < parts
 * (compress/rule/exponent.h). type: fp32, or bf16, to which x is rounded as cast() does. Messages
 * are aligned to 16 bytes. */
OPERATION(pack_exponents, (struct lane *lane, enum dtype type, int64_t n, int parts, const float *x,
                           void *messages),
          (lane, type, n, parts, x, messages),
          CLASS_SUMS, (double)parts * (4 * n + exponent_bytes(n, (int)dtype_size(type))))

/* out[parts * n], which mode sets or changes, from messages `stride` bytes apart, a multiple of 16.
 * The mode takes each message by itself. out is in fp32 or bf16, as for dequantise(). For a damaged
 * message the host returns STATUS_INPUT, and out is undefined. CUDA reads nothing outside the
 * message, and damaged elements become NaN. */
OPERATION(unpack_exponents, (struct lane *lane, enum dtype type, int64_t n, int parts,
                             const void *messages, int64_t stride, enum quant_mode mode,
                             enum dtype out_type, void *out),
          (lane, type, n, parts, messages, stride, mode, out_type, out),
          CLASS_SUMS, (double)parts * (exponent_bytes(n, (int)dtype_size(type)) +
            (double)n * dtype_size(out_type) * (mode == QUANT_SET_EACH ? 1 : 2)))

/* Adds n doubles to *sum, exactly, and normalizes it. */
OPERATION(sum_exact, (struct lane *lane, int64_t n, const double *term, struct exactsum *sum),
          (lane, n, term, sum),
          CLASS_SUMS, 8.0 * n)

/* Adds *other to *sum, exactly. Both are normalized, before and after. */
OPERATION(merge_exact, (struct lane *lane, const struct exactsum *other, struct exactsum *sum),
          (lane, other, sum),
          CLASS_SUMS, 3.0 * sizeof *sum)

/* *out from the sums of all ranks (normalized). clip 0: none. */
OPERATION(conclude, (struct lane *lane, const struct exactsum *loss, const struct exactsum *squares,
                     double clip, struct outcome *out),
          (lane, loss, squares, clip, out),
          CLASS_SUMS, 2.0 * sizeof *loss + sizeof *out)

/* Adds the squares of n fp32 elements to *sum and normalizes it. Each block of 256 elements is
 * summed in a fixed order in double. */
OPERATION(sum_squares, (struct lane *lane, int64_t n, const void *x, struct exactsum *sum),
          (lane, n, x, sum),
          CLASS_SUMS, 4.0 * n)

/* Slots of `parts` messages, one per vector of n elements of x: the elements that the rule
 * chooses. */
OPERATION(select, (struct lane *lane, const struct selection *op, int64_t n, int parts,
                   const float *x, const struct slots *slots),
          (lane, op, n, parts, x, slots),
          CLASS_SUMS, 4.0 * parts * n + 6.0 * slots_of(op, n, parts))

/* Puts values of `parts` messages back to their places. SET and ADD: out[n] = or += the sum,
 * message after message. SUBTRACT, ADD_EACH: vector i of out[parts * n] -= or += message i.
 * Indices that are not within the block or the vector are ignored. `type` of out: as of
 * dequantise(). */
OPERATION(scatter, (struct lane *lane, const struct selection *op, int64_t n, int parts,
                    const struct slots *slots, enum scatter_mode mode, enum dtype type,
                    void *out),
          (lane, op, n, parts, slots, mode, type, out),
          CLASS_SUMS, (mode == SCATTER_SET ? 4.0 * n : 0) +
            (6.0 + 2 * dtype_size(type)) * slots_of(op, n, parts))

/* messages[i], sketch_bytes() apart, = the message of x[i * n .. i * n + n), for i < parts
 * (compress/rule/sketch.h). Messages are aligned to 4 bytes. */
OPERATION(sketch, (struct lane *lane, const struct sketch *op, int64_t n, int parts, const float *x,
                   void *messages),
          (lane, op, n, parts, x, messages),
          CLASS_SUMS, (double)parts * (4 * n + sketch_bytes(op, n)))

/* The reverse, of messages `stride` bytes apart: out[n] = or += the sum, message after message.
 * SUBTRACT: vector i of out[parts * n] -= message i. */
OPERATION(unsketch, (struct lane *lane, const struct sketch *op, int64_t n, int parts,
                     const void *messages, int64_t stride, enum scatter_mode mode, float *out),
          (lane, op, n, parts, messages, stride, mode, out),
          CLASS_SUMS, (double)parts * sketch_bytes(op, n) +
            4.0 * n * (mode == SCATTER_SET ? 1 : mode == SCATTER_ADD ? 2 : 2 * parts))

/* Factors of `parts` messages, one per vector of n elements of x. work: lowrank_work() floats. */
OPERATION(factorise, (struct lane *lane, const struct lowrank *op, int64_t n, int parts,
                      const float *x, const struct factors *factors, float *work),
          (lane, op, n, parts, x, factors, work),
          CLASS_SUMS, 8.0 * op->rounds * parts * n)

/* Products of the factors of `parts` messages. enum quant_mode says how out changes. op's seed
 * and rounds are not used. */
OPERATION(expand, (struct lane *lane, const struct lowrank *op, int64_t n, int parts,
                   const struct factors *factors, enum quant_mode mode, float *out),
          (lane, op, n, parts, factors, mode, out),
          CLASS_SUMS, 4.0 * n * (mode == QUANT_SET ? 1 : mode == QUANT_ADD ? 2 : 2 * parts))

/* One pass of an optimizer over n elements, in the types of op (optim/rule/rules.h). `state` has
 * one array per state of the rule. The master or a state may be NULL. Then zeros are read and
 * nothing is stored. copy (NULL: none) = the new master, rounded to nearest. */
OPERATION(update, (struct lane *lane, int64_t n, const struct update *op, void *master,
                   const void *grad, void *const *state, void *copy),
          (lane, n, op, master, grad, state, copy),
          CLASS_UPDATE, (double)update_bytes(n, op, master, state, copy))

/* Two updates, one after another, in one pass over memory. Only on the host.
 * known: changes masters and states by the gradients `pending`. NULL: no such update.
 * next: sets copy alone, to the new master that update() by grad would write there. If its
 * outcome is not finite: to the master, rounded to nearest. */
OPERATION(speculate, (struct lane *lane, int64_t n, const struct update *known,
                      const void *pending, const struct update *next, const void *grad,
                      void *master, void *const *state, void *copy),
          (lane, n, known, pending, next, grad, master, state, copy),
          CLASS_UPDATE, (double)update_bytes(n, next, master, state, copy))
/* clang-format on */
#undef OPERATION
#undef TYPED
