/* Waits between the lanes of the host and those of a device whose copies continue after the call.
 * On the host device these waits do nothing. On the device of late.h the bytes are missing without
 * the right wait. Oracle: the same setup on the host device, bit for bit. For the device itself,
 * bytes before and after a wait. */
/* ranks: 1 2 */
#include <string.h>

#include "device/lane.h"
#include "job.h"
#include "late.h"
#include "tests/test.h"

/* ---- the device ---- */

static struct lane *make_lane(struct device *device, const char *name)
{
  struct lane *lane;
  assert_int_equal(device->ops->lane_create(device, name, LANE_ROLE_COMPUTE, 1, &lane), STATUS_OK);
  return lane;
}

static struct mark *make_mark(struct device *device)
{
  struct mark *mark;
  assert_int_equal(device->ops->mark_create(device, &mark), STATUS_OK);
  return mark;
}

TEST(a_copy_is_there_when_it_is_waited_for)
{
  struct device *late, *host;
  assert_int_equal(late_device_create(DTYPE_F32, &late), STATUS_OK);
  assert_int_equal(device_create("host", 0, DTYPE_F32, &host), STATUS_OK);
  struct lane *d2h = make_lane(late, "d2h"), *compute = make_lane(late, "compute"),
              *disk = make_lane(late, "disk"), *beside = make_lane(host, "host");
  struct mark *first = make_mark(late), *second = make_mark(late), *never = make_mark(late);
  const int from[] = {1, 2, 3};
  int to[3] = {0};
  assert_int_equal(late->ops->copy(compute, &to[2], &from[2], sizeof(int)), STATUS_OK);
  assert_int_equal(to[2], 3); /* on another lane */
  assert_int_equal(late->ops->copy(d2h, &to[0], &from[0], sizeof(int)), STATUS_OK);
  assert_int_equal(late->ops->mark_set(d2h, first), STATUS_OK);
  assert_int_equal(late->ops->copy(d2h, &to[1], &from[1], sizeof(int)), STATUS_OK);
  assert_int_equal(late->ops->mark_set(d2h, second), STATUS_OK);
  assert_int_equal(late->ops->mark_follow(disk, second), STATUS_OK);
  assert_int_equal(late->ops->mark_follow(beside, second), STATUS_OK);
  assert_int_equal(late->ops->mark_wait(never), STATUS_OK);
  assert_true(late->ops->mark_reached(never));
  assert_false(late->ops->mark_reached(first));
  assert_int_equal(to[0], 0);
  assert_int_equal(late->ops->mark_wait(first), STATUS_OK);
  assert_true(late->ops->mark_reached(first));
  assert_false(late->ops->mark_reached(second));
  assert_int_equal(to[0], 1);
  assert_int_equal(to[1], 0);
  assert_int_equal(late->ops->mark_follow(compute, second), STATUS_OK);
  assert_true(late->ops->mark_reached(second));
  assert_int_equal(to[1], 2);
  assert_int_equal(late_device_copies(late), 2);
  late->ops->mark_destroy(first);
  late->ops->mark_destroy(second);
  late->ops->mark_destroy(never);
  host->ops->lane_destroy(beside);
  late->ops->lane_destroy(disk);
  late->ops->lane_destroy(compute);
  late->ops->lane_destroy(d2h);
  device_destroy(late);
  device_destroy(host);
}

/* ---- the executor ---- */

static void same(struct job_setup setup)
{
  setup.beside = true;
  setup.reduce_every_micro = true;
  struct job_record expected = job_run(job_comm, &setup);
  setup.late = true;
  struct job_record record = job_run(job_comm, &setup);
  assert_true(record.copies > 0);
  job_assert_same(&record, &expected);
  job_record_free(&expected);
  job_record_free(&record);
}

static const struct deck_pattern host = {.n = 1, .of = {KEEP_INPUT_HOST}},
                                 nvme = {.n = 1, .of = {KEEP_INPUT_NVME}},
                                 kept = {.n = 1, .of = {KEEP_ACTIVATIONS_HOST}};

/* All ways of parameters and of gradients, reduced by devices, by hosts, and by hosts in memory
 * that they share. */
static void same_all_ways(struct job_setup setup)
{
  setup.host = true;
  for (int way = 0; way < 6; way++) {
    setup.params_full = way & 1;
    setup.cpu_reduce = way >= 2;
    setup.one_node = way >= 4;
    same(setup);
  }
}

TEST(inputs_in_host_memory)
{
  for (int on_nvme = 0; on_nvme <= 1; on_nvme++)
    same_all_ways((struct job_setup){.prefetch = 1, .activations = host, .nvme_state = on_nvme});
}

TEST(activations_in_host_memory)
{
  same_all_ways((struct job_setup){.prefetch = 1, .activations = kept});
}

TEST(inputs_on_nvme)
{
  for (int on_nvme = 0; on_nvme <= 1; on_nvme++)
    same_all_ways((struct job_setup){.prefetch = 1, .activations = nvme, .nvme_state = on_nvme});
}

TEST(prefetch)
{
  for (int ahead = 0; ahead <= 2; ahead += 2)
    same_all_ways((struct job_setup){.prefetch = ahead, .micros = ahead ? 3 : 1});
}

/* Squares of both places meet where several micro-batches are added up. */
TEST(resident_units)
{
  for (int micros = 1; micros <= 3; micros += 2) {
    same((struct job_setup){
        .host = true, .prefetch = 1, .micros = micros, .resident = 2, .activations = host});
    same((struct job_setup){.host = true,
                            .prefetch = 1,
                            .micros = micros,
                            .resident = 1,
                            .no_clip = true,
                            .immediate = true,
                            .half = true});
  }
}

TEST(updates_at_once)
{
  same_all_ways((struct job_setup){.prefetch = 1,
                                   .micros = 3,
                                   .no_clip = true,
                                   .immediate = true,
                                   .nvme_state = 0.5,
                                   .activations = host});
  same_all_ways((struct job_setup){
      .prefetch = 1, .micros = 3, .speculative = true, .nvme_state = 0.5, .activations = host});
  same_all_ways((struct job_setup){.prefetch = 1, .half = true, .speculative = true});
}

TEST(parameters_in_bf16)
{
  static char bias[] = "*bias", *biases[] = {bias};
  same_all_ways(
      (struct job_setup){.prefetch = 1, .half = true, .nvme_state = 0.5, .activations = nvme});
  same_all_ways(
      (struct job_setup){.prefetch = 1, .half = true, .freeze = {.n = 1, .item = biases}});
}

/* The disk's lane belongs to the host there too. */
TEST(masters_on_the_device)
{
  for (int ahead = 0; ahead <= 1; ahead++) {
    same((struct job_setup){.prefetch = ahead, .activations = host});
    same((struct job_setup){.prefetch = ahead, .activations = nvme, .micros = 3});
  }
}

/* Residuals that move by the device's copies and the disk's lane, compared with residuals on the
 * device. */
TEST(residuals_elsewhere)
{
  if (comm_ranks(job_comm) == 1)
    return; /* nothing is sent */
  for (int choice = 0; choice < 12; choice++) {
    struct job_setup setup = {.prefetch = choice % 3,
                              .micros = choice & 1 ? 3 : 1,
                              .reduce_every_micro = true,
                              .strategy = choice & 2 ? STRATEGY_NO_SHARD : STRATEGY_FULL_SHARD,
                              .host = choice >= 8 && !(choice & 2),
                              .codec = "bf16",
                              .feedback = "fp32"};
    struct job_record expected = job_run(job_comm, &setup);
    for (int tier = DECK_RESIDUAL_HOST; tier <= DECK_RESIDUAL_NVME; tier++) {
      setup.residual = (enum deck_residual)tier;
      setup.late = true;
      struct job_record moved = job_run(job_comm, &setup);
      assert_true(moved.copies > 0);
      job_assert_same(&moved, &expected);
      job_record_free(&moved);
    }
    job_record_free(&expected);
  }
}

TEST_MAIN(job_mpi_start, job_mpi_stop)
