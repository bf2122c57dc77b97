#include "fixture.h"

#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "device/host/host.h"

struct device *device;
const struct device_ops *ops;
struct lane *lanes[LANE_SIZES];
struct device *half;
const struct device_ops *half_ops;
struct lane *half_lane;

enum { MAX_ARRAYS = 4096 };
static void *array[MAX_ARRAYS];
static int arrays;
static uint64_t draws;

int fixture_create(void **state)
{
  (void)state;
  if (device_create("host", 0, DTYPE_F32, &device))
    return -1;
  ops = device->ops;
  for (int i = 0; i < LANE_SIZES; i++)
    if (ops->lane_create(device, "test", LANE_ROLE_COMPUTE, i + 1, &lanes[i]))
      return -1;
  return 0;
}

int fixture_destroy(void **state)
{
  (void)state;
  for (int i = 0; i < LANE_SIZES; i++)
    ops->lane_destroy(lanes[i]);
  device_destroy(device);
  return 0;
}

int fixture_create_half(void **state)
{
  if (fixture_create(state) || device_create("host", 0, DTYPE_BF16, &half))
    return -1;
  half_ops = half->ops;
  return half_ops->lane_create(half, "half", LANE_ROLE_COMPUTE, 3, &half_lane) ? -1 : 0;
}

int fixture_destroy_half(void **state)
{
  half_ops->lane_destroy(half_lane);
  device_destroy(half);
  return fixture_destroy(state);
}

int fixture_release(void **state)
{
  (void)state;
  while (arrays > 0)
    mem_free(array[--arrays]);
  return 0;
}

void *bytes(size_t size)
{
  assert_in_range(arrays, 0, MAX_ARRAYS - 1);
  assert_ok(mem_alloc(MEM_DATA, size, &array[arrays]));
  return array[arrays++];
}

float *nans(int64_t n)
{
  float *x = bytes((size_t)n * sizeof *x);
  memset(x, 0xff, (size_t)n * sizeof *x);
  return x;
}

float *normals(int64_t n, float std)
{
  float *x = bytes((size_t)n * sizeof *x);
  rng_fill_normal(rng_key_make(1, "test"), draws++, 0, n, 0, std, x);
  return x;
}

float *copy_of(const float *x, int64_t n)
{
  float *copy = bytes((size_t)n * sizeof *x);
  memcpy(copy, x, (size_t)n * sizeof *x);
  return copy;
}

double *doubles(int64_t n)
{
  return bytes((size_t)n * sizeof(double));
}

double *doubles_of(const float *x, int64_t n)
{
  double *wide = doubles(n);
  for (int64_t i = 0; i < n; i++)
    wide[i] = x[i];
  return wide;
}

void assert_is_gradient(double (*loss)(void *), void *arg, double *x, const double *gradient,
                        int64_t n, int64_t step, double tolerance)
{
  const double h = 1e-5;
  double scale = 0;
  for (int64_t i = 0; i < n; i++)
    scale = fmax(scale, fabs(gradient[i]));
  for (int64_t i = 0; i < n; i += step) {
    double at = x[i], above, below;
    x[i] = at + h;
    above = loss(arg);
    x[i] = at - h;
    below = loss(arg);
    x[i] = at;
    if (!(fabs((above - below) / (2 * h) - gradient[i]) <= tolerance * scale))
      fail_msg("element %lld: the slope is %.9g, the twin's gradient %.9g", (long long)i,
               (above - below) / (2 * h), gradient[i]);
  }
}

bool fixture_use(int variant)
{
  struct host_device *host = (struct host_device *)device;
  const struct kernels *kernels = variant < 0 ? kernels_best() : kernels_variant(variant);
  if (kernels)
    host->kernels = kernels;
  return kernels;
}

void assert_near(const float *got, const double *want, int64_t n, double tolerance)
{
  double scale = 0;
  for (int64_t i = 0; i < n; i++)
    scale = fmax(scale, fabs(want[i]));
  for (int64_t i = 0; i < n; i++)
    if (!(fabs(got[i] - want[i]) <= tolerance * scale))
      fail_msg("element %lld of %lld is %.9g, the twin has %.9g (tolerance %.2g)", (long long)i,
               (long long)n, (double)got[i], want[i], tolerance * scale);
}

void assert_same_bits(const void *a, const void *b, size_t size)
{
  const unsigned char *x = a, *y = b;
  size_t i = 0;
  if (memcmp(a, b, size) == 0)
    return;
  while (x[i] == y[i])
    i++;
  fail_msg("byte %zu of %zu differs", i, size);
}
