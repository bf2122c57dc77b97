/* Matrix products: OpenBLAS on one thread a call, many calls side by side.
 *
 * Which of OpenBLAS' kernels computes an element, and so its last bits, depends on the shape of the call and on the element's place in it. Therefore c is cut
 * into blocks whose sizes follow from the shape of one sequence's product alone, and every block is one call (for a weight gradient one call a sequence):
 * neither the number of threads nor the number of sequences changes a call. */
#include "device/host/host.h"

enum {
  GRAIN = 16,
  MOST_ROWS = 256, /* a block of 256 x 768 runs at 95 % of the speed of one call for the whole product (measured on Zen 3 and Sapphire Rapids), */
  MOST_COLUMNS = 768,
  LEAST_ROWS = 128, /* one of 128 x 192 at 85 % to 90 %: smaller ones are not cut for the sake of idle cores */
  LEAST_COLUMNS = 192,
  TOKEN_BLOCKS = 8,    /* as many blocks are wanted of a sequence, */
  GRADIENT_BLOCKS = 16 /* and of a weight gradient */
};

struct matmul_job {
  const struct matmul *op;
  const struct kernels *kernels;
  struct gemm_tally tally;
  int64_t tile;                                                 /* rows of a sequence */
  int64_t block_rows, block_columns, row_blocks, column_blocks; /* of what is cut: a sequence's rows, or all of a weight gradient */
};

/* The size of near-equal pieces of n, at most `largest` each, in multiples of the grain. */
static int64_t piece_size(int64_t n, int64_t largest)
{
  int64_t pieces = host_pieces(n, largest);
  return pieces > 1 ? host_pieces(host_pieces(n, pieces), GRAIN) * GRAIN : n;
}

/* `wanted` blocks of a rows x columns matrix, or as many as there are. */
static void choose_blocks(struct matmul_job *job, int64_t rows, int64_t columns, int64_t wanted)
{
  job->block_rows = piece_size(rows, MOST_ROWS);
  job->block_columns = piece_size(columns, MOST_COLUMNS);
  for (;;) {
    job->row_blocks = host_pieces(rows, job->block_rows);
    job->column_blocks = host_pieces(columns, job->block_columns);
    bool cut_rows = job->block_rows > LEAST_ROWS, cut_columns = job->block_columns > LEAST_COLUMNS;
    if (job->row_blocks * job->column_blocks >= wanted || (!cut_rows && !cut_columns))
      return;
    if (cut_columns && (job->block_columns > job->block_rows || !cut_rows))
      job->block_columns = piece_size(columns, job->block_columns / 2);
    else
      job->block_rows = piece_size(rows, job->block_rows / 2);
  }
}

static void run_epilogue(const struct matmul_job *job, int64_t row, int64_t column, int64_t rows, int64_t columns)
{
  const struct matmul *op = job->op;
  if (op->epilogue == EPILOGUE_NONE)
    return;
  for (int64_t r = row; r < row + rows; r++) {
    float *c = (float *)op->c + r * op->ldc + column, *aux = op->aux ? (float *)op->aux + r * op->ldc + column : NULL;
    const float *bias = op->bias ? (const float *)op->bias + column : NULL;
    if (op->epilogue == EPILOGUE_BIAS)
      job->kernels->add(columns, c, bias, c);
    else if (op->epilogue == EPILOGUE_BIAS_GELU)
      job->kernels->bias_gelu(columns, bias, aux, c);
    else
      job->kernels->dgelu(columns, aux, c);
  }
}

static void multiply_block(struct matmul_job *job, int64_t row, int64_t column, int64_t rows, int64_t columns, int64_t from, int64_t depth,
                           bool accumulate)
{
  const struct matmul *op = job->op;
  host_gemm(&(struct gemm){.trans_a = op->trans_a,
                           .trans_b = op->trans_b,
                           .accumulate = accumulate,
                           .m = rows,
                           .n = columns,
                           .k = depth,
                           .lda = op->lda,
                           .ldb = op->ldb,
                           .ldc = op->ldc,
                           .alpha = 1,
                           .a = (const float *)op->a + (op->trans_a ? from * op->lda + row : row * op->lda + from),
                           .b = (const float *)op->b + (op->trans_b ? column * op->ldb + from : from * op->ldb + column),
                           .c = (float *)op->c + row * op->ldc + column},
            &job->tally);
}

static int64_t least(int64_t a, int64_t b)
{
  return a < b ? a : b;
}

/* Rows are tokens: a block lies inside one sequence. */
static void run_token_block(void *arg, int64_t i, int worker)
{
  struct matmul_job *job = arg;
  const struct matmul *op = job->op;
  int64_t column = i % job->column_blocks * job->block_columns, block = i / job->column_blocks;
  int64_t tile = block / job->row_blocks * job->tile, row = tile + block % job->row_blocks * job->block_rows;
  int64_t rows = least(job->block_rows, least(tile + job->tile, op->m) - row), columns = least(job->block_columns, op->n - column);
  (void)worker;
  if (rows <= 0 || columns <= 0) /* rounding up to the grain may leave the last block empty */
    return;
  multiply_block(job, row, column, rows, columns, 0, op->k, op->accumulate);
  run_epilogue(job, row, column, rows, columns);
}

/* The sum runs over tokens: sequence after sequence into one block of the gradient. */
static void run_gradient_block(void *arg, int64_t i, int worker)
{
  struct matmul_job *job = arg;
  const struct matmul *op = job->op;
  int64_t column = i % job->column_blocks * job->block_columns, row = i / job->column_blocks * job->block_rows;
  int64_t rows = least(job->block_rows, op->m - row), columns = least(job->block_columns, op->n - column);
  (void)worker;
  if (rows <= 0 || columns <= 0)
    return;
  for (int64_t from = 0; from < op->k; from += job->tile)
    multiply_block(job, row, column, rows, columns, from, least(job->tile, op->k - from), from > 0 || op->accumulate);
  run_epilogue(job, row, column, rows, columns);
}

static enum status check(const struct matmul *op)
{
  enum status status = STATUS_OK;
  if (op->accumulate && op->epilogue != EPILOGUE_NONE)
    return status_set(STATUS_INTERNAL, "a matrix product that accumulates cannot have an epilogue");
  if ((status = host_check_blas("a sum of length", op->k)) || (status = host_check_blas("leading dimension", op->lda)) ||
      (status = host_check_blas("leading dimension", op->ldb)) || (status = host_check_blas("leading dimension", op->ldc)))
    return status;
  return op->m < 0 || op->n < 0 || op->k < 1 || op->tile < 0
             ? status_set(STATUS_INTERNAL, "a matrix product of shape %lld x %lld x %lld", (long long)op->m, (long long)op->n, (long long)op->k)
             : STATUS_OK;
}

enum status host_matmul(struct lane *lane, const struct matmul *op)
{
  enum status status = check(op);
  if (status || op->m == 0 || op->n == 0)
    return status;
  int64_t length = op->trans_a ? op->k : op->m, tile = op->tile ? op->tile : length;
  struct matmul_job job = {.op = op, .kernels = host_kernels(lane), .tile = tile};
  choose_blocks(&job, op->trans_a ? op->m : tile, op->n, op->trans_a ? GRADIENT_BLOCKS : TOKEN_BLOCKS);
  if (op->trans_a)
    host_run_tasks(lane, job.row_blocks * job.column_blocks, run_gradient_block, &job);
  else
    host_run_tasks(lane, host_pieces(op->m, tile) * job.row_blocks * job.column_blocks, run_token_block, &job);
  host_tally(lane, &job.tally);
  return STATUS_OK;
}
