/* What the tests of the host device share: a device with lanes of 1, 2 and 3 threads, arrays that go with the test, and comparisons. */
#ifndef SLUICE_TESTS_DEVICE_FIXTURE_H
#define SLUICE_TESTS_DEVICE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/device.h"
#include "device/lane.h"

enum { LANE_SIZES = 3 }; /* lanes[i] has i + 1 threads */

extern struct device *device;
extern const struct device_ops *ops;
extern struct lane *lanes[LANE_SIZES];

int fixture_create(void **state); /* of a group of tests */
int fixture_destroy(void **state);
int fixture_free(void **state); /* after each test: arrays */

#define DEVICE_TEST(function) cmocka_unit_test_teardown(function, fixture_free)
#define RUN_DEVICE_TESTS(tests) cmocka_run_group_tests(tests, fixture_create, fixture_destroy)

/* Arrays that fixture_free() frees. */
void *bytes(size_t size);
float *nans(int64_t n);               /* for outputs that are written with `=`: what stays unwritten shows */
float *normals(int64_t n, float std); /* never the same twice */
float *copy_of(const float *x, int64_t n);
double *doubles(int64_t n); /* zero */

/* |got[i] - want[i]| <= tolerance * max |want|, and all finite. */
void assert_near(const float *got, const double *want, int64_t n, double tolerance);
void assert_same_bits(const void *a, const void *b, size_t size);

#define assert_ok(call) assert_int_equal(call, STATUS_OK)

#endif
