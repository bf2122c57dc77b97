/* Norms of rows. Sums of gradients over rows are added tile after tile, which is a sequence.
 *
 * The backward pass of a root mean square norm makes one pass over a block of rows for both dx and
 * the block's part of dgamma. The parts of a sequence are then added, block after block. */
#include <string.h>

#include "device/host/host.h"

enum { PIECES = 64 }; /* pieces of C elements that a worker takes at once */
enum { ROWS = 8 };    /* rows, likewise, of a layer norm */

static int64_t block_rows(int64_t groups)
{
  return groups < PIECES ? PIECES / groups : 1;
}

static enum status check(int64_t rows, int64_t groups, int64_t C, int64_t x_stride,
                         int64_t y_stride)
{
  if (rows < 0 || groups < 1 || C < 1 || x_stride < groups * C || y_stride < groups * C)
    return status_set(
        STATUS_INTERNAL, "a norm of %lld rows of %lld pieces of %lld elements, %lld and %lld apart",
        (long long)rows, (long long)groups, (long long)C, (long long)x_stride, (long long)y_stride);
  return STATUS_OK;
}

struct forward_job {
  const struct row_norm *op;
  const struct kernels *kernels;
};

static void run_forward(void *arg, int64_t begin, int64_t end)
{
  const struct forward_job *job = arg;
  for (int64_t r = begin; r < end; r++)
    for (int64_t g = 0; g < (job->op->mean ? 1 : job->op->groups); g++)
      job->kernels->norm(job->op, r, g);
}

enum status host_norm(struct lane *lane, const struct row_norm *op)
{
  struct forward_job job = {op, host_kernels(lane)};
  const enum status status =
      op->mean ? STATUS_OK : check(op->rows, op->groups, op->C, op->x_stride, op->y_stride);
  if (status)
    return status;
  if (!op->mean && op->add && op->groups != 1)
    return status_set(STATUS_INTERNAL, "a norm of each of %lld pieces cannot add another matrix",
                      (long long)op->groups);
  host_run_ranges(lane, op->rows, op->mean ? ROWS : block_rows(op->groups), run_forward, &job);
  return STATUS_OK;
}

struct backward_job {
  const struct row_norm_backward *op;
  const struct kernels *kernels;
  int64_t tile, block, tile_blocks; /* rows of a sequence and of a block, blocks of a sequence */
  int64_t first;                    /* row that task 0 starts at */
};

static void run_centred(void *arg, int64_t begin, int64_t end)
{
  const struct backward_job *job = arg;
  for (int64_t r = begin; r < end; r++)
    job->kernels->norm_backward(job->op, r, 0, NULL);
}

static void run_sums(void *arg, int64_t begin, int64_t end)
{
  const struct backward_job *job = arg;
  const int64_t rows = job->op->rows, tile = job->op->tile ? job->op->tile : rows;
  for (int64_t r = 0; r < rows; r += tile)
    job->kernels->norm_sums(job->op, r, rows - r < tile ? rows - r : tile, begin, end);
}

static enum status layernorm_backward(struct lane *lane, const struct row_norm_backward *op)
{
  struct backward_job job = {.op = op, .kernels = host_kernels(lane)};
  if (op->dgamma || op->dbeta) /* before dx, which may take dy's place */
    host_run_ranges(lane, op->C, STRIP, run_sums, &job);
  host_run_ranges(lane, op->rows, ROWS, run_centred, &job);
  return STATUS_OK;
}

/* Row blocks never cross the end of a sequence. */
static void run_backward(void *arg, int64_t task, int worker)
{
  const struct backward_job *job = arg;
  const struct row_norm_backward *op = job->op;
  int64_t start = job->first + task / job->tile_blocks * job->tile, stop = start + job->tile;
  int64_t begin = start + task % job->tile_blocks * job->block, end = begin + job->block;
  float *part = op->dgamma ? (float *)op->work + task * op->C : NULL;
  (void)worker;
  stop = stop < op->rows ? stop : op->rows;
  end = end < stop ? end : stop;
  if (part)
    memset(part, 0, (size_t)op->C * sizeof *part);
  for (int64_t r = begin; r < end; r++)
    for (int64_t g = 0; g < op->groups; g++)
      job->kernels->norm_backward(op, r, g, part);
}

static int64_t parts_held(int64_t rows, int64_t groups)
{
  return host_pieces(rows, block_rows(groups));
}

/* In a layer norm each worker sums its own columns, so there are no partial sums to keep. */
size_t host_norm_workspace(const struct device_model *model, bool centred, int64_t rows,
                           int64_t groups, int64_t C)
{
  (void)model;
  return centred ? 0 : (size_t)(parts_held(rows, groups) * C) * sizeof(float);
}

static enum status rmsnorm_backward(struct lane *lane, const struct row_norm_backward *op)
{
  struct backward_job job = {.op = op,
                             .kernels = host_kernels(lane),
                             .block = block_rows(op->groups > 0 ? op->groups : 1)};
  enum status status = check(op->rows, op->groups, op->C, op->x_stride,
                             op->dy_stride < op->dx_stride ? op->dy_stride : op->dx_stride);
  if (status)
    return status;
  if (op->tile < 0)
    return status_set(STATUS_INTERNAL, "a norm's gradient by tiles of %lld rows",
                      (long long)op->tile);
  if (op->rows == 0)
    return STATUS_OK;
  job.tile = op->tile && op->tile < op->rows ? op->tile : op->rows;
  job.tile_blocks = host_pieces(job.tile, job.block);
  int64_t tiles = parts_held(op->rows, op->groups) /
                  job.tile_blocks; /* at a time: as many as have room for their parts */
  for (; job.first < op->rows; job.first += tiles * job.tile) {
    int64_t left = op->rows - job.first, rows = left < tiles * job.tile ? left : tiles * job.tile;
    int64_t tasks = rows / job.tile * job.tile_blocks + host_pieces(rows % job.tile, job.block);
    host_run_tasks(lane, tasks, run_backward, &job);
    for (int64_t part = 0; op->dgamma && part < tasks; part += job.tile_blocks)
      job.kernels->column_sums(tasks - part < job.tile_blocks ? tasks - part : job.tile_blocks,
                               op->C, op->C, (const float *)op->work + part * op->C,
                               op->accumulate || job.first > 0 || part > 0, op->dgamma);
  }
  return STATUS_OK;
}

enum status host_norm_backward(struct lane *lane, const struct row_norm_backward *op)
{
  return op->mean ? layernorm_backward(lane, op) : rmsnorm_backward(lane, op);
}
