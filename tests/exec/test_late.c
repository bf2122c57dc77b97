/* Waits between the lanes of the host and those of a device whose copies continue after the call.
 * On the host device these waits do nothing. On the device of late.h the bytes are missing without
 * the right wait. Oracle: the same setup on the host device, bit for bit. For the device itself,
 * bytes before and after a wait. */
/* ranks: 1 2 */

#include "device/lane.h"
#include "job.h"
#include "late.h"
#include "tests/test.h"

/* ---- the device ---- */

static struct lane *make_lane(struct device *device, const char *name)
{
  struct lane *lane;
  must(device->ops->lane_create(device, name, LANE_ROLE_COMPUTE, 1, &lane));
  return lane;
}

static struct mark *make_mark(struct device *device)
{
  struct mark *mark;
  must(device->ops->mark_create(device, &mark));
  return mark;
}

TEST(a_copy_is_there_when_it_is_waited_for)
{
  struct device *late, *host;
  must(late_device_create(DTYPE_F32, &late));
  must(device_create("host", 0, DTYPE_F32, &host));
  struct lane *d2h = make_lane(late, "d2h"), *compute = make_lane(late, "compute"),
              *disk = make_lane(late, "disk"), *beside = make_lane(host, "host");
  struct mark *first = make_mark(late), *second = make_mark(late), *never = make_mark(late);
  const int from[] = {1, 2, 3};
  int to[3] = {0};
  must(late->ops->copy(compute, &to[2], &from[2], sizeof(int)));
  assert_int_equal(to[2], 3); /* on another lane */
  must(late->ops->copy(d2h, &to[0], &from[0], sizeof(int)));
  must(late->ops->mark_set(d2h, first));
  must(late->ops->copy(d2h, &to[1], &from[1], sizeof(int)));
  must(late->ops->mark_set(d2h, second));
  must(late->ops->mark_follow(disk, second));
  must(late->ops->mark_follow(beside, second));
  must(late->ops->mark_wait(never));
  assert_true(late->ops->mark_reached(never));
  assert_false(late->ops->mark_reached(first));
  assert_int_equal(to[0], 0);
  must(late->ops->mark_wait(first));
  assert_true(late->ops->mark_reached(first));
  assert_false(late->ops->mark_reached(second));
  assert_int_equal(to[0], 1);
  assert_int_equal(to[1], 0);
  must(late->ops->mark_follow(compute, second));
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

static void same(const char *setup)
{
  struct job_record expected = job_run(job_comm, "beside each_micro %s", setup);
  job_same(&expected, "beside each_micro late %s", setup);
  job_record_free(&expected);
}

/* All ways of parameters and of gradients: reduced by devices, by hosts, and by hosts in memory
 * that they share. */
TEST(masters_in_host_memory)
{
  static const char *const setups[] = {
      "prefetch=1 keeps=host",
      "prefetch=1 keeps=host nvme_state=1",
      "prefetch=1 keeps=keep_host",
      "prefetch=1 keeps=nvme",
      "prefetch=1 keeps=nvme nvme_state=1",
      "prefetch=0",
      "prefetch=2 micros=3",
      "prefetch=1 keeps=host nvme_state=0.5 micros=3 no_clip immediate",
      "prefetch=1 keeps=host nvme_state=0.5 micros=3 speculative",
      "prefetch=1 bf16 speculative",
      "prefetch=1 bf16 nvme_state=0.5 keeps=nvme",
      "prefetch=1 bf16 frozen=*bias",
  };
  for (size_t s = 0; s < sizeof setups / sizeof *setups; s++)
    for (int way = 0; way < 6; way++) {
      char words[200];
      snprintf(words, sizeof words, "host %s params_full=%d cpu_reduce=%d one_node=%d", setups[s],
               way & 1, way >= 2, way >= 4);
      same(words);
    }
}

/* Squares of both places meet where several micro-batches are added up. The disk's lane belongs to
 * the host with masters on the device too. */
TEST(masters_on_the_device)
{
  static const char *const setups[] = {
      "host prefetch=1 resident=2 keeps=host",
      "host prefetch=1 resident=2 keeps=host micros=3",
      "host prefetch=1 resident=1 no_clip immediate bf16",
      "host prefetch=1 resident=1 no_clip immediate bf16 micros=3",
      "prefetch=0 keeps=host",
      "prefetch=0 keeps=nvme micros=3",
      "prefetch=1 keeps=host",
      "prefetch=1 keeps=nvme micros=3",
  };
  for (size_t s = 0; s < sizeof setups / sizeof *setups; s++)
    same(setups[s]);
}

/* Residuals that move by the device's copies and the disk's lane, compared with residuals on the
 * device. */
TEST(residuals_elsewhere)
{
  static const char *const setups[] = {"", "no_shard", "host"};
  if (comm_ranks(job_comm) == 1)
    return; /* nothing is sent */
  for (int choice = 0; choice < 12; choice++) {
    char words[200];
    snprintf(words, sizeof words, "prefetch=%d micros=%d each_micro codec=bf16 feedback=fp32 %s",
             choice % 3, choice & 1 ? 3 : 1, setups[choice / 4]);
    struct job_record expected = job_run(job_comm, "%s", words);
    job_same(&expected, "%s late residual=host", words);
    job_same(&expected, "%s late residual=nvme", words);
    job_record_free(&expected);
  }
}

TEST_MAIN(job_mpi_start, job_mpi_stop)
