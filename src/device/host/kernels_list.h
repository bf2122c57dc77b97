/* The functions of struct kernels. A file defines KERNEL, then includes this file, which ends the
 * definition. So the members and the table of each instruction set come from one row. */

KERNEL(void, add, (int64_t n, const float *a, const float *b, float *out)) /* out may be a or b */
KERNEL(void, add_around,
       (int64_t n, const float *a, const float *b,
        float *out)) /* stores to `out` bypass the caches if it is aligned to LANES
                        floats, because it is not read soon */
KERNEL(void, scale, (int64_t n, float factor, float *x))
KERNEL(float, dot, (int64_t n, const float *a, const float *b))
KERNEL(double, sum_squares, (int64_t n, const float *x))

KERNEL(void, bias_gelu,
       (int64_t n, const float *bias, float *aux, float *c)) /* aux = c + bias; c = gelu(aux) */
KERNEL(void, dgelu, (int64_t n, const float *aux, float *c)) /* c *= gelu'(aux) */

/* One piece of a row. A layer norm has one per row. dgamma += the row's part of the sum, if not
 * NULL, except in a layer norm. */
KERNEL(void, norm, (const struct row_norm *op, int64_t row, int64_t group))
KERNEL(void, norm_backward,
       (const struct row_norm_backward *op, int64_t row, int64_t group, float *dgamma))
/* The sums of a layer norm, in columns [begin, end). Rows before `row` are in dgamma and dbeta.
 */
KERNEL(void, norm_sums,
       (const struct row_norm_backward *op, int64_t row, int64_t rows, int64_t begin, int64_t end))

/* Sums over rows, row after row, of `n` columns of a matrix with leading dimension ld. */
KERNEL(void, column_sums,
       (int64_t rows, int64_t n, int64_t ld, const float *d, bool accumulate, float *sum))

/* cosine and sine of the fp32 product position * inv_freq[i]; (low[i], high[i]) turned by them */
KERNEL(void, angles, (int64_t n, float position, const float *inv_freq, float *cosine, float *sine))
KERNEL(void, rotate, (int64_t n, const float *cosine, const float *sine, float *low, float *high))

KERNEL(void, swiglu, (int64_t n, const float *g, const float *u, float *y))
/* y may be NULL, or dy; dg and du may be g and u */
KERNEL(void, swiglu_backward,
       (int64_t n, const float *g, const float *u, const float *dy, float *dg, float *du, float *y))

/* max = the largest of s and max; s = exp(s - max); returns the sum. */
KERNEL(float, softmax, (int64_t n, float *s, float *max))
/* s = exp(s - lse), the probabilities p; dp = p * (dp - delta), the gradient by the scores */
KERNEL(void, softmax_backward, (int64_t n, float lse, float delta, float *s, float *dp))
/* logits = factor * softmax(logits) if `gradient`; returns log of the sum of exponentials */
KERNEL(double, log_sum_exp, (int64_t n, bool gradient, float factor, float *logits))

/* Between fp32, bf16 and fp16, to nearest; not in place */
KERNEL(void, convert, (int64_t n, enum dtype from, const void *src, enum dtype to, void *dst))

/* One pass over n elements, at most UPDATE_BLOCKED if states are in blocks. The copy is stored
 * around the caches. */
KERNEL(void, update, (int64_t n, const struct update_pass *pass, const struct update_arrays *a))
/* The loads and stores of update() without its arithmetic, to measure the memory bandwidth. Only
 * the copy changes, to zeros. n is a multiple of 32, arrays begin cache lines, and only copy may
 * be NULL. */
KERNEL(void, update_traffic,
       (int64_t n, const struct update_pass *pass, const struct update_arrays *a))

KERNEL(float, max_magnitude, (int64_t n, const float *x)) /* as device_ops */
/* One frame of a message from m elements. number: of the frame among all frames of all
 * messages. */
KERNEL(void, quantise,
       (const struct quantise *op, int64_t number, int64_t m, const float *x,
        struct quant_frame to))
/* m elements of out from one frame of each of `parts` messages, `stride` bytes apart. */
KERNEL(void, dequantise,
       (const struct quantise *op, int parts, int64_t stride, struct quant_frame from,
        enum quant_mode mode, int64_t m, float *out))

/* One block of a message (compress/rule/exponent.h) of m elements of `size` bytes: its form, its
 * data of that form, and the elements from these. The last one is false, and writes nothing, if
 * the data do not fit the form. */
KERNEL(uint32_t, exponent_measure, (int64_t m, int size, const uint32_t *x))
KERNEL(void, exponent_pack, (uint32_t form, int64_t m, int size, const uint32_t *x, void *to))
KERNEL(bool, exponent_unpack, (uint32_t form, int64_t m, int size, const void *from, uint32_t *out))

/* Low-rank messages (compress/rule/lowrank.h). x has n elements, followed by zeros.
 * sum[rank][block] = C^T M of `rows` rows of x, with coefficients c[rows][rank] */
KERNEL(void, lowrank_collect,
       (const struct lowrank *op, int64_t rows, int64_t n, const float *x, const float *c,
        float *sum))
/* last: no other round follows */
KERNEL(void, lowrank_orthonormalise, (const struct lowrank *op, bool last, float *basis))
/* out[i] = the product of one row x and row i of the basis, i < rank */
KERNEL(void, lowrank_project,
       (const struct lowrank *op, int64_t n, const float *x, const float *basis, int rank,
        float *out))
/* m elements of a row of out from this row of `parts` messages */
KERNEL(void, lowrank_expand,
       (const struct lowrank *op, int parts, const struct lowrank_row *row, enum quant_mode mode,
        int64_t m, float *out))

/* Matrix products (kernels_gemm.h). Panels have tile_rows rows of a, or tile_columns columns of
 * b. A tile of c comes from one panel of each. With `along`, the panel's lanes are adjacent in
 * memory, otherwise they are ld apart. Lanes from n on are zero. */
KERNEL(void, pack_rows,
       (bool along, int64_t n, int64_t k, const float *from, int64_t ld, float *to))
KERNEL(void, pack_columns,
       (bool along, int64_t n, int64_t k, const float *from, int64_t ld, float *to))
/* c[rows, columns], of which one tile is computed, = (accumulate ? c : 0) + a b. */
KERNEL(void, multiply,
       (int64_t k, const float *a, const float *b, int64_t rows, int64_t columns, bool accumulate,
        struct target c))
/* A product of unpacked operands, for 1 <= m <= NARROW. It reads
 * neither trans_a nor alpha. */
KERNEL(void, multiply_narrow, (const struct gemm *g))
#undef KERNEL
