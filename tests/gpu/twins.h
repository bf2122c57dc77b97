/* Arrays on the host and on a GPU, operations on both, and what their results have in common. A
 * test program defines tests after it, with `host` and `gpu` open. */
#pragma once

#include <cuda_runtime_api.h>
#include <math.h>

#include "base/rng.h"
#include "device/device.h"
#include "device/lane.h"
#include "gpu/cuda.h"
#include "tests/test.h"

static struct device *host, *gpu;
static struct lane *host_lane, *gpu_lane;
static enum dtype compute; /* of the GPU */
static uint64_t draws;
enum { THREADS = 4 };

/* The reference and the device under test. An operation runs on one after the other. */
static struct side {
  struct device *device;
  const struct device_ops *ops;
  struct lane *lane;
  int threads;
} sides[2];

static inline void must_cuda(cudaError_t error)
{
  if (error)
    fail_msg("%s", cudaGetErrorString(error));
}

/* A copy of pageable memory may return before the bytes have arrived, and lanes do not wait for
 * them. */
static inline void copy_there(void *there, const void *from, size_t bytes)
{
  must_cuda(cudaMemcpy(there, from, bytes, cudaMemcpyDefault));
  must_cuda(cudaDeviceSynchronize());
}

/* An array that both devices hold: fp32 here, `type` there; or, if exact, `type` on both. */
struct twin {
  int64_t n;
  enum dtype type;
  bool exact;
  float *here;
  void *there;
};

/* The array on a side; NULL stays NULL. */
static inline void *at(const struct side *side, const struct twin *twin)
{
  return !twin ? NULL : side->device == gpu ? twin->there : twin->here;
}

/* An operation on the host, then on the GPU. AT(x) is twin x on the side of the call. */
#define BOTH(name, ...)                                                                            \
  for (const struct side *s = sides; s < sides + 2; s++)                                           \
  must(s->ops->name(s->lane, __VA_ARGS__))
#define AT(twin) at(s, &(twin))
#define AT_IF(wanted, twin) at(s, (wanted) ? &(twin) : NULL)

/* Memory of a test, which forget() or the end of the test releases. */
static struct {
  int n;
  struct {
    struct device *device;
    void *ptr;
  } block[256];
} kept;

static inline void *keep(struct device *device, void *ptr)
{
  assert_true(kept.n < (int)(sizeof kept.block / sizeof *kept.block));
  kept.block[kept.n].device = device;
  kept.block[kept.n++].ptr = ptr;
  return ptr;
}

static inline void drop(struct device *device, void *ptr)
{
  int i = 0;
  while (kept.block[i].ptr != ptr)
    i++;
  device->ops->release(device, ptr);
  kept.block[i] = kept.block[--kept.n];
}

static inline void forget(void)
{
  while (kept.n > 0)
    drop(kept.block[kept.n - 1].device, kept.block[kept.n - 1].ptr);
}

/* Device memory, until forget(). */
static inline void *scratch(struct device *device, size_t bytes)
{
  void *block = NULL;
  must(device->ops->alloc(device, MEM_DATA, bytes + 256, &block));
  return keep(device, block);
}

static inline size_t bytes_there(const struct twin *twin)
{
  return (size_t)twin->n * dtype_size(twin->type);
}

static inline void upload(const struct twin *twin)
{
  const size_t bytes = bytes_there(twin);
  void *bits = NULL;
  must(mem_alloc(MEM_DATA, bytes + 1, &bits));
  dtype_convert(bits, twin->type, twin->here, twin->exact ? twin->type : DTYPE_F32,
                (size_t)twin->n);
  copy_there(twin->there, bits, bytes);
  mem_free(bits);
}

static inline struct twin twin_make(int64_t n, enum dtype type, bool random)
{
  struct twin twin = {.n = n, .type = type, .here = scratch(host, (size_t)n * sizeof(float))};
  twin.there = scratch(gpu, bytes_there(&twin));
  if (random)
    rng_fill_normal(rng_key_make(draws++, "twin"), 0, 0, n, 0, 1, twin.here);
  for (int64_t i = 0; i < n; i++)
    twin.here[i] = !random              ? NAN
                   : type == DTYPE_BF16 ? f32_from_bf16(bf16_from_f32(twin.here[i]))
                                        : twin.here[i];
  upload(&twin);
  return twin;
}

/* The same bytes on both devices. */
static inline struct twin exact_of(const void *from, size_t bytes)
{
  struct twin twin = {.n = (int64_t)bytes, .type = DTYPE_F8_E4M3, .exact = true};
  twin.here = scratch(host, bytes);
  twin.there = scratch(gpu, bytes);
  memcpy(twin.here, from, bytes);
  copy_there(twin.there, from, bytes);
  return twin;
}

/* random: normal numbers, of which every seventh is small (subnormal in fp16), or their squares;
 * else NaN. The bits of `type` on both devices. */
static inline struct twin exact_make(int64_t n, enum dtype type, bool random, bool squared)
{
  struct twin twin = {.n = n, .type = type, .exact = true};
  float *value = scratch(host, (size_t)n * sizeof *value);
  twin.here = scratch(host, bytes_there(&twin));
  twin.there = scratch(gpu, bytes_there(&twin));
  rng_fill_normal(rng_key_make(draws++, "same"), 0, 0, n, 0, 1, value);
  for (int64_t i = 0; i < n; i++) {
    value[i] *= i % 7 == 3 ? 1e-3f : 1;
    value[i] = !random ? NAN : squared ? value[i] * value[i] : value[i];
  }
  dtype_convert(twin.here, type, value, DTYPE_F32, (size_t)n);
  copy_there(twin.there, twin.here, bytes_there(&twin));
  drop(host, value);
  return twin;
}

static inline void clear(struct twin *twin)
{
  memset(twin->here, 0, (size_t)twin->n * sizeof(float));
  upload(twin);
}

static inline struct twin input(int64_t n)
{
  return twin_make(n, compute, true);
}

static inline struct twin output(int64_t n)
{
  return twin_make(n, compute, false);
}

static inline struct twin sums(int64_t n, bool random)
{
  return twin_make(n, DTYPE_F32, random);
}

static inline void *download(const struct twin *twin)
{
  void *bits = scratch(host, bytes_there(twin));
  must_cuda(cudaDeviceSynchronize());
  must_cuda(cudaMemcpy(bits, twin->there, bytes_there(twin), cudaMemcpyDeviceToHost));
  return bits;
}

/* n floats of the host, from the type of the twin. */
static inline float *widened(const void *from, enum dtype type, int64_t n)
{
  float *out = scratch(host, (size_t)n * sizeof *out);
  dtype_convert(out, DTYPE_F32, from, type, (size_t)n);
  return out;
}

static inline void expect_within(const char *what, const struct twin *twin, double bound)
{
  void *bits = download(twin);
  float *there = widened(bits, twin->type, twin->n),
        *here = widened(twin->here, twin->exact ? twin->type : DTYPE_F32, twin->n);
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < twin->n; i++) {
    const double d = (double)there[i] - (double)here[i];
    difference += d * d;
    norm += (double)here[i] * (double)here[i];
  }
  const double error = sqrt(difference / norm);
  if (!(error <= bound))
    fail_msg("%s in %s: ||a - b|| / ||b|| = %g, more than %g", what, dtype_name(compute), error,
             bound);
  drop(host, here);
  drop(host, there);
  drop(host, bits);
}

/* Twins by name, each within the bound of the compute type. */
#define EXPECT_SAME(what, ...)                                                                     \
  expect_same(what " of " #__VA_ARGS__, (const struct twin *[]){__VA_ARGS__, NULL})
static inline void expect_same(const char *what, const struct twin *const *twin)
{
  for (; *twin; twin++)
    expect_within(what, *twin, compute == DTYPE_F32 ? 1e-5 : 1e-2);
}

/* Twins whose bits are the same on both devices. */
#define EXPECT_BITS(what, ...) expect_bits(what, (const struct twin *[]){__VA_ARGS__, NULL})
static inline void expect_bits(const char *what, const struct twin *const *twin)
{
  for (int i = 0; twin[i]; i++) {
    void *got = download(twin[i]);
    if (memcmp(got, twin[i]->here, bytes_there(twin[i])))
      fail_msg("%s: other bits in operand %d", what, i);
    drop(host, got);
  }
}

/* The host in `reference`, the GPU in `compute`. */
static inline void open_sides(enum dtype reference)
{
  must(device_create("host", 0, reference, &host));
  must(cuda_device_create(0, compute, &gpu));
  cuda_device(gpu)->keeps_cache = false;
  must(host->ops->lane_create(host, "compute", LANE_ROLE_COMPUTE, THREADS, &host_lane));
  must(gpu->ops->lane_create(gpu, "compute", LANE_ROLE_COMPUTE, 1, &gpu_lane));
  must(gpu->ops->lane_reserve(gpu_lane));
  sides[0] = (struct side){host, host->ops, host_lane, THREADS};
  sides[1] = (struct side){gpu, gpu->ops, gpu_lane, 1};
}

static inline void close_sides(void)
{
  forget();
  host->ops->lane_destroy(host_lane);
  gpu->ops->lane_destroy(gpu_lane);
  device_destroy(host);
  device_destroy(gpu);
}

/* 77 if there is no GPU, 1 if they cannot be counted, else 0. */
static inline int gpu_is_missing(void)
{
  const int gpus = cuda_device_count();
  if (gpus <= 0)
    printf("%s\n", gpus ? status_text() : "skipped: no GPU");
  return gpus > 0 ? 0 : gpus ? 1 : 77;
}
