/* Rows of the embedding by token, and their gradient. For the gradient tokens are sorted (stable, so that rows of one token keep their order); a run of equal tokens is cut
 * into pieces of RUN rows, each summed by one block column, and the pieces of a run are added in their order: no atomics, one order of additions. */
#include <cub/device/device_radix_sort.cuh>

#include "gpu/common.cuh"
#include "gpu/kernels.h"

namespace {

template <typename T, int W>
__global__ void look_up(int64_t rows, int64_t T_, int64_t C, int64_t V, const int32_t *token, const T *wte, const T *wpe, T *x, unsigned long long *bad)
{
  const int64_t packs = C / W, item = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (item >= rows * packs)
    return;
  const int64_t row = item / packs, c = item % packs * W;
  const int32_t id = token[row];
  if (id < 0 || id >= V) {
    if (c == 0)
      atomicMax(bad, (unsigned long long)row + 1); /* which one of several is told does not matter, but it is the last */
    return;
  }
  pack<T, W> value = load<T, W>(wte + id * C + c);
  if (wpe) {
    const pack<T, W> position = load<T, W>(wpe + row % T_ * C + c);
    for (int k = 0; k < W; k++)
      value.at[k] = from_float<T>(to_float(value.at[k]) + to_float(position.at[k]));
  }
  store<T, W>(x + row * C + c, value);
}

constexpr int THREADS = 256;

__global__ void number(int64_t rows, const int32_t *token, int32_t *key, int32_t *row)
{
  const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < rows) {
    key[i] = token[i];
    row[i] = (int32_t)i;
  }
}

/* Each block whose sorted place begins a run sums it over all columns, one row after the other; the others leave at once. */
template <typename T> __global__ void add_runs(int64_t rows, int64_t C, const int32_t *key, const int32_t *row, const T *dx, float *dwte)
{
  const int64_t first = blockIdx.x;
  const int32_t id = key[first];
  if (first > 0 && key[first - 1] == id)
    return;
  const int64_t column = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * 2;
  if (column >= C)
    return;
  const bool two = column + 1 < C;
  float a = 0, b = 0;
  for (int64_t i = first; i < rows && key[i] == id; i++) {
    const T *from = dx + (int64_t)row[i] * C + column;
    a += to_float(from[0]);
    if (two)
      b += to_float(from[1]);
  }
  float *to = dwte + id * C + column;
  to[0] += a;
  if (two)
    to[1] += b;
}

template <typename T> __global__ void add_positions(int64_t rows, int64_t T_, int64_t C, const T *dx, bool accumulate, float *dwpe)
{
  const int64_t item = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (item >= T_ * C)
    return;
  const int64_t t = item / C, c = item % C;
  float sum = accumulate ? dwpe[item] : 0;
  for (int64_t r = t; r < rows; r += T_)
    sum += to_float(dx[r * C + c]);
  dwpe[item] = sum;
}

size_t aligned(size_t bytes)
{
  return (bytes + 255) / 256 * 256;
}

size_t sort_bytes(int64_t rows)
{
  size_t bytes = 0;
  cub::DeviceRadixSort::SortPairs(nullptr, bytes, (const int32_t *)nullptr, (int32_t *)nullptr, (const int32_t *)nullptr, (int32_t *)nullptr, (int)rows);
  return aligned(bytes);
}

template <typename T, int W> void launch_look_up(const gpu_launch *launch, int64_t rows, int64_t T_, int64_t C, int64_t V, const int32_t *token,
                                                 const void *wte, const void *wpe, void *x, unsigned long long *bad)
{
  const unsigned grid = (unsigned)pieces_of(rows * (C / W), THREADS);
  look_up<T, W><<<grid, THREADS, 0, launch->stream>>>(rows, T_, C, V, token, (const T *)wte, (const T *)wpe, (T *)x, bad);
}

} // namespace

void gpu_embedding(const gpu_launch *launch, int64_t rows, int64_t T, int64_t C, int64_t V, const int32_t *token, const void *wte, const void *wpe, void *x,
                   unsigned long long *bad)
{
  if (rows == 0)
    return;
  if (launch->bf16) {
    if (rows_pack(8, 2, C, C, wte, wpe, x, NULL))
      launch_look_up<bf16, 8>(launch, rows, T, C, V, token, wte, wpe, x, bad);
    else
      launch_look_up<bf16, 1>(launch, rows, T, C, V, token, wte, wpe, x, bad);
  } else if (rows_pack(4, 4, C, C, wte, wpe, x, NULL)) {
    launch_look_up<float, 4>(launch, rows, T, C, V, token, wte, wpe, x, bad);
  } else {
    launch_look_up<float, 1>(launch, rows, T, C, V, token, wte, wpe, x, bad);
  }
}

size_t gpu_embedding_workspace(int64_t rows)
{
  return sort_bytes(rows) + 4 * aligned((size_t)rows * sizeof(int32_t));
}

void gpu_embedding_backward(const gpu_launch *launch, int64_t rows, int64_t T, int64_t C, const int32_t *token, const void *dx, float *dwte,
                            bool wpe_accumulate, float *dwpe, void *work)
{
  if (rows == 0)
    return;
  cudaStream_t s = launch->stream;
  if (dwte) {
    size_t bytes = sort_bytes(rows), column = aligned((size_t)rows * sizeof(int32_t));
    char *at = (char *)work + bytes;
    int32_t *key = (int32_t *)at, *row = (int32_t *)(at + column), *sorted = (int32_t *)(at + 2 * column), *order = (int32_t *)(at + 3 * column);
    number<<<(unsigned)pieces_of(rows, THREADS), THREADS, 0, s>>>(rows, token, key, row);
    cub::DeviceRadixSort::SortPairs(work, bytes, key, sorted, row, order, (int)rows, 0, 32, s);
    const dim3 grid((unsigned)rows, (unsigned)pieces_of(C, 2 * THREADS));
    if (launch->bf16)
      add_runs<bf16><<<grid, THREADS, 0, s>>>(rows, C, sorted, order, (const bf16 *)dx, dwte);
    else
      add_runs<float><<<grid, THREADS, 0, s>>>(rows, C, sorted, order, (const float *)dx, dwte);
  }
  if (dwpe) {
    const unsigned grid = (unsigned)pieces_of(T * C, THREADS);
    if (launch->bf16)
      add_positions<bf16><<<grid, THREADS, 0, s>>>(rows, T, C, (const bf16 *)dx, wpe_accumulate, dwpe);
    else
      add_positions<float><<<grid, THREADS, 0, s>>>(rows, T, C, (const float *)dx, wpe_accumulate, dwpe);
  }
}
