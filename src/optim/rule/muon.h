/* Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/): the step of a matrix is
 * its momentum made orthogonal. Five Newton-Schulz iterations of a quintic bring all singular
 * values near 1 (0.7 to 1.2 except for values that are tiny relative to the norm). The scale is
 * that of Liu et al. 2025 (arXiv:2502.16982): a step as long as AdamW's, so that its learning
 * rate and decay carry over. */
#pragma once

enum { MUON_ITERATIONS = 5 };

/* Where the pieces of work begin, in bytes. The smaller side is d. */
struct muon_work {
  enum dtype type; /* of matrices */
  int64_t d;
  size_t sums, x, a, b, wide, bytes; /* wide: fp32, if `type` has 16 bits */
};

static struct muon_work muon_work_of(enum dtype type, int64_t rows, int64_t cols)
{
  enum { LINE = 256 };
  const size_t size = dtype_size(type);
  const int64_t d = rows < cols ? rows : cols;
  const size_t sums = 2 * sizeof(struct exactsum) + sizeof(struct outcome);
  const size_t whole = (size_t)(rows * cols), square = (size_t)(d * d);
  const size_t part[] = {sums, whole * size, square * size, square * size,
                         type == DTYPE_F32 ? 0 : whole * sizeof(float)};
  size_t at[6] = {0};
  for (int i = 0; i < 5; i++)
    at[i + 1] = at[i] + (part[i] + LINE - 1) / LINE * LINE;
  return (struct muon_work){type, d, at[0], at[1], at[2], at[3], at[4], at[5]};
}

static size_t muon_workspace(enum dtype type, int64_t rows, int64_t cols)
{
  return muon_work_of(type, rows, cols).bytes;
}

/* x = in / its Frobenius norm. conclude() returns the scale tiny / norm, with norm at least `tiny`.
 * SGD's step of length -1 / tiny from zero multiplies by this scale. */
static enum status muon_normalize(struct lane *lane, int64_t n, const void *in, char *work,
                                  const struct muon_work *at)
{
  const struct device_ops *ops = lane->device->ops;
  const enum dtype type = at->type;
  const double tiny = 0x1p-40;
  struct exactsum *none = (struct exactsum *)(void *)(work + at->sums), *squares = none + 1;
  struct outcome *outcome = (struct outcome *)(void *)(squares + 1);
  const struct update op = {
      .rule = OPTIM_sgd, .lr = -1 / tiny, .outcome = outcome, .grad = type, .copy = type};
  enum status status = ops->zero(lane, none, 2 * sizeof *none);
  if (!status && type != DTYPE_F32)
    status = ops->cast(lane, n, type, in, DTYPE_F32, work + at->wide);
  if (!status)
    status = ops->sum_squares(lane, n, type == DTYPE_F32 ? in : work + at->wide, squares);
  status = status ?: ops->conclude(lane, none, squares, tiny, outcome);
  if (!status)
    status = ops->update(lane, n, &op, NULL, in, (void *[RULE_STATES]){NULL}, work + at->x);
  return status;
}

/* a = x x^T, or x^T x of a tall matrix. The device makes products with a transposed first factor in
 * fp32. */
static enum status muon_square(struct lane *lane, int64_t rows, int64_t cols, const void *x,
                               char *work, const struct muon_work *at)
{
  const struct device_ops *ops = lane->device->ops;
  const enum dtype type = at->type;
  const bool tall = rows > cols, cast = tall && type != DTYPE_F32;
  struct matmul op = {.m = at->d, .n = at->d, .k = tall ? rows : cols, .a = x, .b = x};
  op.trans_a = tall;
  op.trans_b = !tall;
  op.lda = op.ldb = cols;
  op.c = work + (cast ? at->wide : at->a);
  op.ldc = at->d;
  enum status status = ops->matmul(lane, &op);
  if (!status && cast)
    status = ops->cast(lane, at->d * at->d, DTYPE_F32, work + at->wide, type, work + at->a);
  return status;
}

/* to = 3.4445 x - 4.7750 a x + 2.0315 a a x; for a tall matrix a is on the other side of x. */
static enum status muon_iterate(struct lane *lane, int64_t rows, int64_t cols, const void *x,
                                void *to, char *work, const struct muon_work *at)
{
  const struct device_ops *ops = lane->device->ops;
  const bool tall = rows > cols;
  const void *a = work + at->a, *b = work + at->b;
  const int64_t d = at->d;
  struct matmul polynomial = {.m = d, .n = d, .k = d, .a = a, .b = a, .lda = d, .ldb = d, .ldc = d};
  polynomial.c = work + at->b;
  polynomial.add = a;
  polynomial.scale = 2.0315f;
  polynomial.add_scale = -4.7750f;
  struct matmul next = {
      .m = rows, .n = cols, .k = d, .a = tall ? x : b, .b = tall ? b : x, .c = to};
  next.lda = d;               /* cols of a tall matrix */
  next.ldb = next.ldc = cols; /* d of a tall matrix */
  next.add = x;
  next.add_scale = 3.4445f;
  enum status status = muon_square(lane, rows, cols, x, work, at) ?: ops->matmul(lane, &polynomial);
  return status ? status : ops->matmul(lane, &next);
}

static enum status muon_orthogonalize(struct lane *lane, enum dtype type, int64_t rows,
                                      int64_t cols, const void *in, void *out, void *work)
{
  const struct muon_work at = muon_work_of(type, rows, cols);
  void *x = (char *)work + at.x, *to = out;
  enum status status = muon_normalize(lane, rows * cols, in, work, &at);
  for (int i = 0; i < MUON_ITERATIONS && !status; i++) {
    status = muon_iterate(lane, rows, cols, x, to, work, &at);
    void *const last = x;
    x = to;
    to = last;
  }
  return status; /* an odd number of iterations ends in `out` */
}

static double muon_scale(int64_t rows, int64_t cols)
{
  return 0.2 * sqrt((double)(rows > cols ? rows : cols));
}

/* An iteration squares x, squares the square and multiplies it by x. */
static double muon_flops(int64_t rows, int64_t cols)
{
  const double d = (double)(rows < cols ? rows : cols), whole = (double)rows * (double)cols;
  return MUON_ITERATIONS * 2 * d * (whole + d * d + whole);
}

static const struct optim_matrix muon = {muon_workspace, muon_orthogonalize, muon_scale,
                                         muon_flops};
