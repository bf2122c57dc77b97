/* MPI between devices that lie apart: given their memory, and staged through the host's. Oracles:
 * each member's data are a pure function of (member, element). Sums are those of a pairwise tree,
 * written here as recursion. Direct and staged MPI and the transport of host memory are compared
 * with the same values, bit for bit. That the host stays out of the device's memory is held by the
 * device, whose pointers name pages that cannot be read. */
/* ranks: 1 2 3 4 5 */

#include "apart.h"
#include "base/team.h"
#include "comm/ops.h"
#include "rounds.h"
#include "tests/test.h"

enum { LANES = 3 };

/* Accesses of Open MPI are suppressed by the functions on their stacks, which have to be remembered
 * that long. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
  return "history_size=7";
}

/* Messages of as many bytes as they have at most: the whole part, pieces with a rest (the parts are
 * 4948 bytes and 2474), and fewer than an accumulator takes. */
static const int64_t pieces[] = {0, 1000, 612, 4948, 129};
enum { PIECES = sizeof pieces / sizeof pieces[0] };

static void with_device(struct device *device, const char *transport, const char *text,
                        void (*test)(struct device *device))
{
  comm_set_device(job, device);
  must(comm_set_transport(job, transport));
  assert_string_equal(comm_transport(job), transport);
  assert_string_equal(comm_transport_text(job), text);
  test(device);
  must(comm_set_transport(job, "mpi"));
  comm_set_device(job, NULL);
}

/* MPI with device memory, in both ways, and the transport of host memory. */
static void for_every_way(void (*test)(struct device *device))
{
  for (int direct = 0; direct < 2; direct++)
    for (int p = 0; p < PIECES; p++) {
      comm_mpi_force_stage(direct, pieces[p]);
      struct device *device = apart_create(direct);
      with_device(device, "mpi_device",
                  direct ? "mpi, with pointers to device memory"
                         : "mpi, staged through pinned memory of the host",
                  test);
      apart_destroy(device);
    }
  comm_mpi_force_stage(-1, 0);
  struct device *host;
  must(device_create("host", 0, DTYPE_F32, &host));
  with_device(host, "mpi", "mpi", test);
  device_destroy(host);
}

static void open_worker(struct worker *w, struct device *device, int salt)
{
  struct comm_group *group;
  must(comm_group_create(job, comm_evenly(job, comm_ranks(job), 1), true, &group));
  assert_ptr_equal(group->transport,
                   device->model.host_memory ? &comm_mpi_transport : &comm_mpi_device_transport);
  if (salt % 2 == 1 && comm_ranks(job) % 2 == 0)
    must(comm_group_gather_by_nodes(group, comm_evenly(job, 2, 1),
                                    comm_evenly(job, comm_ranks(job) / 2, 2)));
  worker_open(w, device, group, salt);
}

static void close_worker(struct worker *w)
{
  worker_close(w);
  comm_group_destroy(w->group);
}

/* Started in another order on each rank, at the same time as the control plane on this thread. */
static void use_lanes_at_once(struct device *device)
{
  static struct worker workers[LANES];
  struct thread *threads[LANES];
  for (int t = 0; t < LANES; t++)
    open_worker(&workers[t], device, t + 1);
  for (int t = 0; t < LANES; t++) {
    const int which = (t + comm_rank(job)) % LANES;
    must(thread_start("worker", worker_run, &workers[which], &threads[which]));
  }
  for (int round = 0; round < ROUNDS; round++) {
    int64_t sum = round;
    must(comm_sum_i64(job, &sum, 1));
    assert_int_equal(sum, (int64_t)round * comm_ranks(job));
  }
  for (int t = 0; t < LANES; t++)
    must(thread_join(threads[t]));
  for (int t = 0; t < LANES; t++)
    close_worker(&workers[t]);
}

/* A step allocates nothing. */
static void use_one_lane_twice(struct device *device)
{
  static struct worker w;
  open_worker(&w, device, 2);
  must(worker_run(&w));
  const int64_t before = mem_calls();
  must(worker_run(&w));
  assert_int_equal(mem_calls(), before);
  close_worker(&w);
}

TEST(lanes_in_pieces_of_all_sizes)
{
  for_every_way(use_one_lane_twice);
  for_every_way(use_lanes_at_once);
}

/* The host groups of an offloading job exist next to the device's groups, and use host memory only.
 * So do their hops. The transport of other groups stays, also after a failure. */
TEST(groups_of_the_host_have_a_transport_of_their_own)
{
  struct device *device = apart_create(false);
  struct comm_group *group;
  const int ranks = comm_ranks(job);
  comm_set_device(job, device);
  must(comm_set_transport(job, "mpi_device"));
  must(comm_group_create_on_host(job, comm_evenly(job, ranks, 1), true, &group));
  assert_ptr_equal(group->transport, &comm_mpi_transport);
  if (ranks % 2 == 0) {
    must(comm_group_gather_by_nodes(group, comm_evenly(job, 2, 1),
                                    comm_evenly(job, comm_ranks(job) / 2, 2)));
    assert_ptr_equal(comm_group_node(group)->transport, &comm_mpi_transport);
    assert_ptr_equal(comm_group_across(group)->transport, &comm_mpi_transport);
  }
  comm_group_destroy(group);
  assert_int_equal(comm_group_create_on_host(job, comm_evenly(job, ranks + 1, 1), true, &group),
                   STATUS_USAGE);
  assert_string_equal(comm_transport(job), "mpi_device");
  must(comm_set_transport(job, "mpi"));
  comm_set_device(job, NULL);
  apart_destroy(device);
}

/* Memory of the host needs no staging, whatever MPI says of CUDA; a device apart does, where MPI
 * does not take its memory: that of most distributions does not. */
TEST(mpi_is_asked)
{
  struct device *device = apart_create(false);
  const bool aware = strstr(comm_description(job), ", CUDA-aware") != NULL;
  assert_string_equal(comm_mpi_device_way(device),
                      aware ? "mpi, with pointers to device memory"
                            : "mpi, staged through pinned memory of the host");
  device->model.host_memory = true;
  assert_string_equal(comm_mpi_device_way(device), "mpi, with pointers to device memory");
  device->model.host_memory = false;
  apart_destroy(device);
}

TEST(a_device_has_to_be_named)
{
  struct comm_group *group;
  if (comm_ranks(job) == 1)
    return;
  must(comm_set_transport(job, "mpi_device"));
  assert_int_equal(comm_group_create(job, comm_evenly(job, comm_ranks(job), 1), true, &group),
                   STATUS_INTERNAL);
  assert_string_equal(status_text(), "MPI cannot move device memory, because no device is set");
  must(comm_set_transport(job, "mpi"));
}

static enum status no_host_memory(struct device *device, enum mem_tag tag, size_t bytes, void **out)
{
  (void)device, (void)tag, (void)bytes, (void)out;
  return status_set(STATUS_MEMORY, "no pinned memory is left");
}

/* On one rank alone: all of them fail, and nothing is left behind. */
TEST(failing_is_a_collective_decision)
{
  if (comm_ranks(job) == 1)
    return;
  struct device *device = apart_create(false);
  struct device_ops ops = *device->ops;
  const struct device_ops *const usual = device->ops;
  struct comm_group *group;
  ops.alloc_host = no_host_memory;
  if (comm_rank(job) == 1)
    device->ops = &ops;
  comm_set_device(job, device);
  must(comm_set_transport(job, "mpi_device"));
  assert_int_equal(comm_group_create(job, comm_evenly(job, comm_ranks(job), 1), true, &group),
                   STATUS_MEMORY);
  assert_string_equal(status_text(), "rank 1: no pinned memory is left");
  device->ops = usual;
  must(comm_set_transport(job, "mpi"));
  comm_set_device(job, NULL);
  apart_destroy(device);
}

TEST_MAIN(start_job, stop_job)
