/* Matrix products of all sizes.
 *
 * OpenBLAS (used for attention's small products) cannot keep this device's promise. Its choice of
 * kernel for an element, and so the element's last bits, depends on the shape of the call and on
 * the element's place in it. So results would depend on the cut of a batch and on the number of
 * threads. Here an element is always the sum over blocks of k, in order, of a chain of
 * multiply-adds over the block. Blocks have K_BLOCK terms and start again with each sequence of a
 * weight gradient. Threads, rows and columns of the call, and the tiling have no influence. Workers
 * share the packed operands of the whole product. */
#include <string.h>

#include "base/clock.h"
#include "device/host/host.h"

enum {
  K_BLOCK = 256, /* a panel of b stays in the first-level cache */
  LEAST_BLOCKS =
      3, /* packed at a time, so that c is not read and written too often; more if there is room */
  ROWS = 96, /* of a task: with K_BLOCK terms they stay in the second-level cache */
  LEAST_COLUMNS = 32,
  MOST_COLUMNS = 512,
  TASKS = 8,      /* wanted for each worker */
  PACK_LANES = 64 /* rows or columns of a block that a worker packs at once */
};

/* The packed part: rows [row, row + rows) of a, columns [column, column + columns) of b, blocks
 * [block, block + blocks) of k. */
struct chunk {
  int64_t row, rows, column, columns, block, blocks;
};

struct matmul_job {
  const struct matmul *op;
  const struct kernels *kernels;
  struct gemm_tally tally;
  const float *add;
  int64_t add_ld;
  float *a, *b; /* packed: [block][panel][k][lane], blocks K_BLOCK or `sequence` terms apart */
  int64_t sequence, depth; /* terms after which blocks start again; terms of a full block */
  int64_t sequence_blocks, all_blocks; /* of a sequence, of k */
  struct chunk chunk;
  int64_t tasks_a, tasks_b; /* of packing; 0 if the panels of the previous chunk are used again */
  int64_t task_rows, task_columns;
};

static int64_t most(int64_t a, int64_t b)
{
  return a > b ? a : b;
}

static int64_t round_up(int64_t n, int64_t to)
{
  return host_pieces(n, to) * to;
}

/* Terms [*from, *from + return) of k. */
static int64_t block_terms(const struct matmul_job *job, int64_t block, int64_t *from)
{
  int64_t sequence = block / job->sequence_blocks * job->sequence,
          inside = block % job->sequence_blocks * K_BLOCK;
  *from = sequence + inside;
  return host_least(host_least(K_BLOCK, job->sequence - inside), job->op->k - *from);
}

/* Packing is handed out by groups of lanes and blocks of k. */
static int64_t pack_group(int64_t width)
{
  return round_up(PACK_LANES, width);
}

static int64_t pack_tasks(const struct matmul_job *job, int64_t lanes, int64_t width)
{
  return host_pieces(lanes, pack_group(width)) * job->chunk.blocks;
}

/* Lanes of b (`columns`), or of a. */
static void pack_lanes(const struct matmul_job *job, int64_t task, bool columns)
{
  const struct matmul *op = job->op;
  const struct kernels *kernels = job->kernels;
  const struct chunk *chunk = &job->chunk;
  const bool along = columns ? !op->trans_b : op->trans_a;
  const int64_t width = columns ? kernels->tile_columns : kernels->tile_rows,
                lanes = columns ? chunk->columns : chunk->rows, ld = columns ? op->ldb : op->lda,
                block = task % chunk->blocks, first = task / chunk->blocks * pack_group(width);
  int64_t from, k = block_terms(job, chunk->block + block, &from);
  float *to = (columns ? job->b : job->a) + block * job->depth * round_up(lanes, width);
  for (int64_t i = first; i < host_least(first + pack_group(width), lanes); i += width) {
    const int64_t lane = (columns ? chunk->column : chunk->row) + i;
    const float *x =
        (const float *)(columns ? op->b : op->a) + (along ? from * ld + lane : lane * ld + from);
    (columns ? kernels->pack_columns : kernels->pack_rows)(along, lanes - i, k, x, ld, to + i * k);
  }
}

static void run_pack(void *arg, int64_t task, int worker)
{
  struct matmul_job *job = arg;
  int64_t start = clock_ns();
  (void)worker;
  if (task < job->tasks_a)
    pack_lanes(job, task, false);
  else
    pack_lanes(job, task - job->tasks_a, true);
  atomic_fetch_add_explicit(&job->tally.ns, clock_ns() - start, memory_order_relaxed);
}

static void run_epilogue(const struct matmul_job *job, int64_t row, int64_t column, int64_t rows,
                         int64_t columns)
{
  const struct matmul *op = job->op;
  const bool activates =
      op->epilogue == EPILOGUE_BIAS_GELU || op->epilogue == EPILOGUE_DGELU; /* what is added, too */
  const float share = job->add && op->add_scale ? op->add_scale : 1;
  const float scale = (op->scale ? op->scale : 1) / share; /* before the sum is scaled by share */
  if (op->epilogue == EPILOGUE_NONE && !job->add && scale == 1)
    return;
  for (int64_t r = row; r < row + rows; r++) {
    float *c = (float *)op->c + r * op->ldc + column,
          *aux = op->aux ? (float *)op->aux + r * op->ldc + column : NULL;
    const float *bias = op->bias ? (const float *)op->bias + column : NULL,
                *add = job->add ? job->add + r * job->add_ld + column : NULL;
    if (scale != 1)
      job->kernels->scale(columns, scale, c);
    if (add && activates)
      job->kernels->add(columns, c, add, c);
    if (op->epilogue == EPILOGUE_BIAS)
      job->kernels->add(columns, c, bias, c);
    else if (op->epilogue == EPILOGUE_BIAS_GELU)
      job->kernels->bias_gelu(columns, bias, aux, c);
    else if (op->epilogue == EPILOGUE_DGELU)
      job->kernels->dgelu(columns, aux, c);
    if (add && !activates)
      job->kernels->add(columns, c, add, c);
    if (share != 1)
      job->kernels->scale(columns, share, c);
  }
}

static void multiply_block(const struct matmul_job *job, int64_t block, int64_t i0, int64_t j0,
                           int64_t rows, int64_t columns)
{
  const struct kernels *kernels = job->kernels;
  const struct chunk *chunk = &job->chunk;
  int64_t from, k = block_terms(job, chunk->block + block, &from), ldc = job->op->ldc;
  const float *a = job->a + block * job->depth * round_up(chunk->rows, kernels->tile_rows);
  const float *b = job->b + block * job->depth * round_up(chunk->columns, kernels->tile_columns);
  float *c = (float *)job->op->c + chunk->row * ldc + chunk->column;
  bool accumulate = job->op->accumulate || chunk->block + block > 0;
  for (int64_t j = j0; j < j0 + columns; j += kernels->tile_columns)
    for (int64_t i = i0; i < i0 + rows; i += kernels->tile_rows)
      kernels->multiply(k, a + i * k, b + j * k, i0 + rows - i, j0 + columns - j, accumulate,
                        (struct target){c + i * ldc + j, ldc});
}

static void run_multiply(void *arg, int64_t task, int worker)
{
  struct matmul_job *job = arg;
  const struct chunk *chunk = &job->chunk;
  int64_t start = clock_ns(), across = host_pieces(chunk->columns, job->task_columns);
  int64_t i = task / across * job->task_rows, j = task % across * job->task_columns;
  int64_t rows = host_least(job->task_rows, chunk->rows - i),
          columns = host_least(job->task_columns, chunk->columns - j);
  (void)worker;
  for (int64_t block = 0; block < chunk->blocks; block++)
    multiply_block(job, block, i, j, rows, columns);
  atomic_fetch_add_explicit(&job->tally.ns, clock_ns() - start, memory_order_relaxed);
  if (chunk->block + chunk->blocks == job->all_blocks)
    run_epilogue(job, chunk->row + i, chunk->column + j, rows, columns);
}

/* Tasks that fit the caches, or smaller ones if workers would be idle. */
static void choose_tasks(struct matmul_job *job, int workers)
{
  const struct chunk *chunk = &job->chunk;
  job->task_rows = round_up(ROWS, job->kernels->tile_rows);
  int64_t down = host_pieces(chunk->rows, job->task_rows),
          across = host_pieces(TASKS * workers, down);
  job->task_columns =
      host_least(MOST_COLUMNS, most(LEAST_COLUMNS, round_up(host_pieces(chunk->columns, across),
                                                            job->kernels->tile_columns)));
}

static void run_chunk(struct lane *lane, struct matmul_job *job)
{
  const struct chunk *chunk = &job->chunk;
  choose_tasks(job, team_size(lane->team));
  host_run_tasks(lane, job->tasks_a + job->tasks_b, run_pack, job);
  host_run_tasks(lane,
                 host_pieces(chunk->rows, job->task_rows) *
                     host_pieces(chunk->columns, job->task_columns),
                 run_multiply, job);
}

/* The largest numbers of rows, columns and blocks of k whose panels fit into the room together. */
static struct chunk largest_chunk(const struct matmul_job *job, int64_t floats)
{
  const struct matmul *op = job->op;
  int64_t row_step = job->kernels->tile_rows, column_step = job->kernels->tile_columns,
          room = floats - LANES;
  int64_t all_lanes = round_up(op->m, row_step) + round_up(op->n, column_step);
  struct chunk chunk = {
      .blocks = host_least(job->all_blocks,
                           most(most(LEAST_BLOCKS * K_BLOCK, room / all_lanes) / job->depth, 1))};
  int64_t lanes = room / (chunk.blocks * job->depth);
  chunk.columns = host_least(op->n, most(lanes / 2, lanes - round_up(op->m, row_step)) /
                                        column_step * column_step);
  chunk.rows =
      host_least(op->m, (lanes - round_up(chunk.columns, column_step)) / row_step * row_step);
  return chunk;
}

/* k outermost, so that c is read as seldom as possible. */
static void run_chunks(struct lane *lane, struct matmul_job *job, float *room, int64_t floats)
{
  const struct matmul *op = job->op;
  const struct chunk largest = largest_chunk(job, floats);
  int64_t row_step = job->kernels->tile_rows, column_step = job->kernels->tile_columns;
  struct chunk last = {.row = -1, .column = -1, .block = -1};
  job->a = room;
  job->b = room + round_up(round_up(largest.rows, row_step) * largest.blocks * job->depth,
                           LANES); /* whole cache lines */
  for (int64_t block = 0; block < job->all_blocks; block += largest.blocks)
    for (int64_t row = 0; row < op->m; row += largest.rows)
      for (int64_t column = 0; column < op->n; column += largest.columns) {
        struct chunk *chunk = &job->chunk;
        *chunk = (struct chunk){.row = row, .column = column, .block = block};
        chunk->rows = host_least(largest.rows, op->m - row);
        chunk->columns = host_least(largest.columns, op->n - column);
        chunk->blocks = host_least(largest.blocks, job->all_blocks - block);
        job->tasks_a =
            last.row == row && last.block == block ? 0 : pack_tasks(job, chunk->rows, row_step);
        job->tasks_b = last.column == column && last.block == block
                           ? 0
                           : pack_tasks(job, chunk->columns, column_step);
        run_chunk(lane, job);
        last = *chunk;
      }
}

/* With few rows most of the work is to read b, in runs as long as possible. Nothing is packed. A
 * task is a range of columns over all of k. */
static void run_narrow(void *arg, int64_t task, int worker)
{
  struct matmul_job *job = arg;
  const struct matmul *op = job->op;
  int64_t start = clock_ns(), column = task * job->task_columns,
          end = host_least(column + job->task_columns, op->n),
          step = op->trans_b ? LANES : end - column;
  (void)worker;
  for (int64_t j = column; j < end; j += step)
    for (int64_t block = 0, from; block < job->all_blocks; block++) {
      const int64_t k = block_terms(job, block, &from),
                    at = op->trans_b ? j * op->ldb + from : from * op->ldb + j;
      job->kernels->multiply_narrow(&(struct gemm){.trans_b = op->trans_b,
                                                   .accumulate = op->accumulate || block > 0,
                                                   .m = op->m,
                                                   .n = host_least(step, end - j),
                                                   .k = k,
                                                   .a = {(const float *)op->a + from, op->lda},
                                                   .b = {(const float *)op->b + at, op->ldb},
                                                   .c = {(float *)op->c + j, op->ldc}});
    }
  atomic_fetch_add_explicit(&job->tally.ns, clock_ns() - start, memory_order_relaxed);
  run_epilogue(job, 0, column, op->m, end - column);
}

/* Rows of a that are a power of two apart would compete with rows of b for the same cache lines. So
 * a is copied if there is room. */
static void run_all_narrow(struct lane *lane, struct matmul_job *job, float *room, int64_t floats)
{
  const struct matmul *op = job->op;
  struct matmul spread = *op;
  if (op->m > 1 && op->m * (op->k + LANES) <= floats) {
    spread.a = room;
    spread.lda = op->k + LANES;
    for (int64_t i = 0; i < op->m; i++)
      memcpy(room + i * spread.lda, (const float *)op->a + i * op->lda,
             (size_t)op->k * sizeof *room);
    job->op = &spread;
  }
  job->task_columns = host_least(
      MOST_COLUMNS, round_up(host_pieces(op->n, TASKS * team_size(lane->team)), LEAST_COLUMNS));
  host_run_tasks(lane, host_pieces(op->n, job->task_columns), run_narrow, job);
}

static void run_product(struct lane *lane, const struct matmul *op, const float *add,
                        int64_t add_ld, float *room, int64_t floats)
{
  struct matmul_job job = {.op = op, .kernels = host_kernels(lane), .add = add, .add_ld = add_ld};
  job.sequence = op->trans_a && op->tile ? host_least(op->tile, op->k) : op->k;
  job.depth = host_least(K_BLOCK, job.sequence);
  job.sequence_blocks = host_pieces(job.sequence, K_BLOCK);
  job.all_blocks =
      op->k / job.sequence * job.sequence_blocks + host_pieces(op->k % job.sequence, K_BLOCK);
  if (!op->trans_a && op->m <= NARROW)
    run_all_narrow(lane, &job, room, floats);
  else
    run_chunks(lane, &job, room, floats);
  atomic_fetch_add_explicit(&job.tally.flops, 2 * op->m * op->n * op->k, memory_order_relaxed);
  host_tally(lane, &job.tally);
}

/* The addend is in the memory of the product. So it is copied, piece by piece, to half of the
 * room. */
static void run_onto_itself(struct lane *lane, const struct matmul *op, float *room, int64_t floats)
{
  const int64_t half = floats / 2, columns = host_least(op->n, half),
                rows = host_least(op->m, half / columns);
  for (int64_t row = 0; row < op->m; row += rows)
    for (int64_t column = 0; column < op->n; column += columns) {
      struct matmul part = *op;
      part.m = host_least(rows, op->m - row);
      part.n = host_least(columns, op->n - column);
      part.a = (const float *)op->a + (op->trans_a ? row : row * op->lda);
      part.b = (const float *)op->b + (op->trans_b ? column * op->ldb : column);
      part.c = (float *)op->c + row * op->ldc + column;
      part.bias = op->bias ? (const float *)op->bias + column : NULL;
      part.aux = op->aux ? (float *)op->aux + row * op->ldc + column : NULL;
      for (int64_t r = 0; r < part.m; r++)
        memcpy(room + r * part.n, (const float *)part.c + r * op->ldc,
               (size_t)part.n * sizeof *room);
      run_product(lane, &part, room, part.n, room + half, half);
    }
}

enum status host_matmul(struct lane *lane, const struct matmul *op)
{
  const struct host_lane *host = (struct host_lane *)lane;
  enum status status = op->a_scale ? host_check_fp8(lane) : STATUS_OK;
  status = status ?: device_check_matmul(op);
  if (status || op->m == 0 || op->n == 0)
    return status;
  status = host_lane_reserve(lane);
  if (status)
    return status;
  if (op->add && op->add == op->c)
    run_onto_itself(lane, op, host->pack, host->pack_floats);
  else
    run_product(lane, op, op->add, op->ldc, host->pack, host->pack_floats);
  return STATUS_OK;
}
