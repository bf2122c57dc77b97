/* Rows of the embedding by token, and their gradient. For the gradient tokens are sorted (stable,
 * so that rows of one token keep their order) and cut into chunks of CHUNK sorted places, each
 * walked through by one block. A run of equal tokens inside a chunk is added to its row there. For
 * a run that crosses chunks each chunk leaves its part in the workspace, and a second kernel adds
 * the parts in order. There are no atomics, and additions have one order. The columns are cut so
 * that the parts fit into the workspace. Columns do not depend on each other, so no cut changes
 * bits. */
#include <cub/device/device_radix_sort.cuh>

#include "gpu/common.cuh"
#include "gpu/kernels.h"

namespace {

constexpr int THREADS = 256;

template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    look_up(const embedding op, const T *wte, const T *wpe, T *x, unsigned long long *fault)
{
  const int64_t C = op.C;
  int64_t row, c;
  split((int64_t)blockIdx.x * THREADS + threadIdx.x, C / W, &row, &c);
  c *= W;
  if (row >= op.rows)
    return;
  const int32_t id = op.token[row];
  pack<T, W> value;
  if (id < 0 || id >= op.V) {
    if (c == 0)
      report(fault, row, id, false);
    for (int k = 0; k < W; k++)
      value.at[k] = from_float<T>(0);
  } else {
    value = load<T, W>(wte + id * C + c);
  }
  if (wpe) {
    const int64_t at = op.position ? op.position[row] : row % op.T;
    const pack<T, W> position = load<T, W>(wpe + at * C + c);
    for (int k = 0; k < W; k++)
      value.at[k] = from_float<T>(to_float(value.at[k]) + to_float(position.at[k]));
  }
  store<T, W>(x + row * C + c, value);
}

/* Tokens outside the vocabulary, which the forward pass has reported, are sorted to the end. */
__global__ void number(int64_t rows, int64_t V, const int32_t *token, int32_t *key, int32_t *row)
{
  const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows)
    return;
  const int32_t id = token[i];
  key[i] = id < 0 || id >= V ? (int32_t)V : id;
  row[i] = (int32_t)i;
}

constexpr int CHUNK = 64, BATCH = 4,
              COLUMN_THREADS = 128; /* sorted places of a chunk; rows that are read at a time; packs
                                       of columns of a block */

/* Rows that are sorted at a time: a lane's workspace holds them and the parts of 128 columns. */
constexpr int64_t PASS_ROWS = 1 << 20;

struct sorted {
  int64_t rows, V, C;
  const int32_t *key, *row;
  int64_t begin, columns; /* that are added */
};

/* Whether sorted place i is the first (`opens`) or the last (`closes`) of its run. */
DEVICE bool opens(const sorted &s, int64_t i)
{
  return i == 0 || s.key[i - 1] != s.key[i];
}

DEVICE bool closes(const sorted &s, int64_t i)
{
  return i + 1 == s.rows || s.key[i + 1] != s.key[i];
}

template <int W> DEVICE void add_to(float *to, const pack<float, W> &before, const float *sum)
{
  pack<float, W> out;
  for (int k = 0; k < W; k++)
    out.at[k] = before.at[k] + sum[k];
  store<float, W>(to, out);
}

/* part[chunk][2][columns]: the part of the run that came in from the previous chunk, and the part
 * of the run that began here and goes on after this chunk. */
template <typename T, int W>
__global__ void __launch_bounds__(COLUMN_THREADS)
    add_chunk(const sorted s, const T *dx, float *dwte, float *part)
{
  __shared__ int32_t key[CHUNK], row[CHUNK];
  __shared__ bool first[CHUNK], last[CHUNK];
  const int64_t begin = (int64_t)blockIdx.x * CHUNK,
                place = ((int64_t)blockIdx.y * COLUMN_THREADS + threadIdx.x) * W,
                column = s.begin + place;
  const int n = s.rows - begin < CHUNK ? (int)(s.rows - begin) : CHUNK;
  for (int i = threadIdx.x; i < n; i += COLUMN_THREADS) {
    key[i] = s.key[begin + i];
    row[i] = s.row[begin + i];
    first[i] = opens(s, begin + i);
    last[i] = closes(s, begin + i);
  }
  __syncthreads();
  if (place >= s.columns)
    return;
  float sum[W] = {0};
  bool began = false; /* the current run began in this chunk */
  for (int i = 0; i < n; i += BATCH) {
    pack<T, W> x[BATCH];
    pack<float, W> before[BATCH];
    for (int b = 0; b < BATCH; b++)
      if (i + b < n && key[i + b] < s.V) {
        x[b] = load<T, W>(dx + (int64_t)row[i + b] * s.C + column);
        if (last[i + b])
          before[b] = load<float, W>(dwte + (int64_t)key[i + b] * s.C +
                                     column); /* not used if the run began in an earlier chunk */
      }
    for (int b = 0; b < BATCH; b++) {
      if (i + b >= n || key[i + b] >= s.V)
        break;
      began = began || first[i + b];
      for (int k = 0; k < W; k++)
        sum[k] = (first[i + b] ? 0 : sum[k]) + to_float(x[b].at[k]);
      if (last[i + b] && began)
        add_to<W>(dwte + (int64_t)key[i + b] * s.C + column, before[b], sum);
      else if (last[i + b] || i + b + 1 == n)
        for (int k = 0; k < W; k++)
          part[((int64_t)blockIdx.x * 2 + began) * s.columns + place + k] = sum[k];
    }
  }
}

/* Block (chunk, columns): adds the parts of a run that began in this chunk and goes on after it. */
template <int W>
__global__ void __launch_bounds__(COLUMN_THREADS)
    add_parts(const sorted s, const float *part, float *dwte)
{
  const int64_t begin = (int64_t)blockIdx.x * CHUNK, end = begin + CHUNK,
                place = ((int64_t)blockIdx.y * COLUMN_THREADS + threadIdx.x) * W;
  if (end >= s.rows || place >= s.columns)
    return;
  const int32_t id = s.key[end - 1];
  if (id >= s.V || s.key[end] != id || (s.key[begin] == id && !opens(s, begin)))
    return;
  int64_t chunks = 1; /* further chunks that hold the run */
  while (end + chunks * CHUNK < s.rows && s.key[end + chunks * CHUNK] == id)
    chunks++;
  float *to = dwte + (int64_t)id * s.C + s.begin + place;
  const pack<float, W> before = load<float, W>(to);
  float sum[W];
  for (int k = 0; k < W; k++)
    sum[k] = part[((int64_t)blockIdx.x * 2 + 1) * s.columns + place + k];
#pragma unroll 4
  for (int64_t c = 1; c <= chunks; c++)
    for (int k = 0; k < W; k++)
      sum[k] += part[((int64_t)blockIdx.x + c) * 2 * s.columns + place + k];
  add_to<W>(to, before, sum);
}

template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    add_positions(int64_t rows, int64_t T_, int64_t C, const T *dx, bool accumulate, float *dwpe)
{
  int64_t t, c;
  split((int64_t)blockIdx.x * THREADS + threadIdx.x, C / W, &t, &c);
  c *= W;
  if (t >= T_)
    return;
  pack<float, W> sum;
  if (accumulate)
    sum = load<float, W>(dwpe + t * C + c);
  for (int k = 0; k < W && !accumulate; k++)
    sum.at[k] = 0;
#pragma unroll 4
  for (int64_t r = t; r < rows; r += T_) {
    const pack<T, W> x = load<T, W>(dx + r * C + c);
    for (int k = 0; k < W; k++)
      sum.at[k] += to_float(x.at[k]);
  }
  store<float, W>(dwpe + t * C + c, sum);
}

/* Block p adds the rows with position p, in their order. `match`: such rows among THREADS. */
template <typename T, int W>
__global__ void __launch_bounds__(THREADS) add_at(const embedding op, const T *dx, float *dwpe)
{
  __shared__ int match[THREADS], before[THREADS / 32 + 1];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int64_t first = 0; first < op.rows; first += THREADS) {
    const int64_t row = first + threadIdx.x;
    const bool here = row < op.rows && op.position[row] == (int)blockIdx.x;
    const unsigned in_warp = __ballot_sync(~0u, here);
    if (__syncthreads_count(here) == 0) /* `match` of the last round is no longer read */
      continue;
    if (lane == 0)
      before[warp + 1] = __popc(in_warp);
    __syncthreads();
    if (threadIdx.x == 0)
      for (int w = before[0] = 0; w < THREADS / 32; w++)
        before[w + 1] += before[w];
    __syncthreads();
    if (here)
      match[before[warp] + __popc(in_warp & ((1u << lane) - 1))] = (int)threadIdx.x;
    __syncthreads();
    for (int64_t c = (int64_t)threadIdx.x * W; c < op.C; c += THREADS * W) {
      float *to = dwpe + (int64_t)blockIdx.x * op.C + c;
      pack<float, W> sum = load<float, W>(to);
      for (int i = 0; i < before[THREADS / 32]; i++) {
        const pack<T, W> x = load<T, W>(dx + (first + match[i]) * op.C + c);
        for (int k = 0; k < W; k++)
          sum.at[k] += to_float(x.at[k]);
      }
      store<float, W>(to, sum);
    }
  }
}

size_t aligned(size_t bytes)
{
  return (bytes + 255) / 256 * 256;
}

/* Bits of keys in [0, V]. */
int key_bits(int64_t V)
{
  int bits = 1;
  while (V >> bits)
    bits++;
  return bits;
}

cudaError_t sort_bytes(int64_t rows, int bits, size_t *out)
{
  size_t bytes = 0;
  const cudaError_t error = cub::DeviceRadixSort::SortPairs(
      nullptr, bytes, (const int32_t *)nullptr, (int32_t *)nullptr, (const int32_t *)nullptr,
      (int32_t *)nullptr, (int)rows, 0, bits);
  *out = aligned(bytes);
  return error;
}

template <typename T, int W>
void run_words(const gpu_launch *launch, sorted s, const void *dx, float *dwte, float *part,
               int64_t most)
{
  for (; s.begin < s.C; s.begin += s.columns) {
    s.columns = s.C - s.begin < most / W * W ? s.C - s.begin : most / W * W;
    const dim3 grid((unsigned)pieces_of(s.rows, CHUNK),
                    (unsigned)pieces_of(s.columns, COLUMN_THREADS * W));
    add_chunk<T, W><<<grid, COLUMN_THREADS, 0, launch->stream>>>(s, (const T *)dx, dwte, part);
    add_parts<W><<<grid, COLUMN_THREADS, 0, launch->stream>>>(s, part, dwte);
  }
}

/* dwte += the rows of one pass. */
template <typename T, int W>
cudaError_t add_pass(const gpu_launch *launch, int64_t rows, int64_t C, int64_t V,
                     const int32_t *token, const T *dx, float *dwte)
{
  const size_t bytes = launch->bytes;
  char *work = (char *)launch->work;
  const int bits = key_bits(V);
  const size_t column = aligned((size_t)rows * sizeof(int32_t)),
               row_of_parts = (size_t)pieces_of(rows, CHUNK) * 2 * sizeof(float);
  size_t sort = 0;
  cudaError_t error = sort_bytes(rows, bits, &sort);
  if (error)
    return error;
  const size_t before = sort + 4 * column;
  if (bytes < before + W * row_of_parts)
    return cudaErrorMemoryAllocation;
  char *at = work + sort;
  int32_t *key = (int32_t *)at, *row = (int32_t *)(at + column),
          *sorted_key = (int32_t *)(at + 2 * column), *order = (int32_t *)(at + 3 * column);
  for_items(launch, rows, number, rows, V, token, key, row);
  error = cub::DeviceRadixSort::SortPairs(work, sort, key, sorted_key, row, order, (int)rows, 0,
                                          bits, launch->stream);
  if (!error)
    run_words<T, W>(launch, {rows, V, C, sorted_key, order, 0, 0}, dx, dwte,
                    (float *)(work + before), (int64_t)((bytes - before) / row_of_parts));
  return error;
}

} // namespace

void gpu_embedding(const gpu_launch *launch, const embedding *op, const void *wte, const void *wpe,
                   void *x)
{
  with_packs(launch, op->C, op->C, {wte, wpe, x}, [&]<typename E, int W>(packs<E, W>) {
    for_items(launch, op->rows * (op->C / W), look_up<E, W>, *op, wte, wpe, x, launch->fault);
  });
}

void gpu_embedding_backward(const gpu_launch *launch, const embedding *op, const void *dx,
                            void *dwte, bool wpe_accumulate, void *dwpe)
{
  const int64_t rows = op->rows, T = op->T, C = op->C;
  cudaError_t error = cudaSuccess;
  with_packs(launch, C, C, {dx, dwte, dwpe}, [&]<typename E, int W>(packs<E, W>) {
    for (int64_t first = 0; dwte && first < rows && !error; first += PASS_ROWS)
      error = add_pass<E, W>(launch, rows - first < PASS_ROWS ? rows - first : PASS_ROWS, C, op->V,
                             op->token + first, (const E *)dx + first * C, (float *)dwte);
    if (!error && dwpe && op->position)
      add_at<E, W>
          <<<(unsigned)op->P, THREADS, 0, launch->stream>>>(*op, (const E *)dx, (float *)dwpe);
    else if (!error && dwpe && rows > 0)
      for_items(launch, T * (C / W), add_positions<E, W>, rows, T, C, dx, wpe_accumulate, dwpe);
  });
  *launch->error = error;
}
