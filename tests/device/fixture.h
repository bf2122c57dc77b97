/* Common code of the tests of the host device: a device with lanes of 1 to 4 threads, arrays that
 * are freed with the test, and comparisons. */
#pragma once

#include "device/device.h"
#include "device/lane.h"
#include "tests/test.h"

enum { LANE_SIZES = 4 }; /* lanes[i] has i + 1 threads */

extern struct device *device;
extern const struct device_ops *ops;
extern struct lane *lanes[LANE_SIZES];

/* The same in bf16, with a lane of three threads, between fixture_create_half() and
 * fixture_destroy_half(). */
extern struct device *half;
extern const struct device_ops *half_ops;
extern struct lane *half_lane;

int fixture_create(void **state); /* of a group of tests */
int fixture_destroy(void **state);
int fixture_create_half(void **state);
int fixture_destroy_half(void **state);
int fixture_release(void **state); /* after each test: arrays */

#define DEVICE_TEST(function) TEST_WITH(function, NULL, fixture_release)

/* Arrays that fixture_release() frees. */
void *bytes(size_t size);
float *nans(int64_t n); /* for outputs that are written with `=`: what stays unwritten shows */
float *normals(int64_t n, float std); /* never the same twice */
float *copy_of(const float *x, int64_t n);
double *doubles(int64_t n); /* zero */
double *doubles_of(const float *x, int64_t n);

/* |got[i] - want[i]| <= tolerance * max |want|, and all finite. */
void assert_near(const float *got, const double *want, int64_t n, double tolerance);
/* (loss(x + h) - loss(x - h)) / 2h against the gradient of a twin in fp64, for every `step`-th
 * element of x: within tolerance * the largest one. */
void assert_is_gradient(double (*loss)(void *arg), void *arg, double *x, const double *gradient,
                        int64_t n, int64_t step, double tolerance);
void assert_same_bits(const void *a, const void *b, size_t size);

/* The device with each instruction set that this processor runs, from plain to best: false past the
 * end. fixture_use(-1): the best again. */
bool fixture_use(int variant);

#define assert_ok(call) assert_int_equal(call, STATUS_OK)
