/* The implementation without peers, for dry runs. Oracle: what comm.h promises of it; and the exit
 * of a child process. */
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "comm/comm.h"
#include "device/device.h"
#include "device/lane.h"
#include "reduce.h"
#include "tests/test.h"

static struct comm *make(int rank, int ranks)
{
  struct comm *comm;
  must(comm_create_fake(rank, ranks, 4, &comm));
  return comm;
}

static void expect_rank(const struct comm *comm)
{
  assert_int_equal(comm_rank(comm), 5);
  assert_int_equal(comm_ranks(comm), 8);
  assert_int_equal(comm_local_rank(comm), 1);
  assert_int_equal(comm_local_ranks(comm), 4);
  assert_string_equal(comm_description(comm), "no MPI: rank 5 of 8, alone");
}

TEST(fake_is_rank_r_of_p)
{
  struct comm *comm = make(5, 8);
  expect_rank(comm);
  assert_null(comm_mpi(comm));
  comm_destroy(comm);
  assert_int_equal(comm_create_fake(8, 8, 4, &comm), STATUS_USAGE);
  assert_int_equal(comm_create_fake(-1, 8, 4, &comm), STATUS_USAGE);
}

TEST(groups_are_those_of_a_real_job)
{
  struct comm *comm = make(5, 8);
  const struct {
    int size, apart, index;
  } cases[] = {{8, 1, 5}, {4, 1, 1}, {2, 4, 1}, {2, 1, 1}, {4, 2, 2}, {2, 2, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct comm_group *group;
    must(comm_group_create(comm, comm_evenly(comm, cases[i].size, cases[i].apart), true, &group));
    assert_int_equal(comm_group_index(group), cases[i].index);
    assert_int_equal(comm_group_size(group), cases[i].size);
    comm_group_destroy(group);
  }
  comm_destroy(comm);
}

TEST(the_control_plane_answers_for_the_peers)
{
  struct comm *comm = make(1, 2);
  int64_t value = 7;
  double real = -2;
  char *text = mem_strdup("same");
  must(comm_barrier(comm));
  must(comm_broadcast(comm, &value, sizeof value, 1));
  must(comm_broadcast_text(comm, &text, 1));
  must(comm_max_i64(comm, &value, 1));
  must(comm_max_f64(comm, &real, 1));
  assert_int_equal(value, 7);
  assert_true(real == -2);
  assert_string_equal(text, "same");
  must(comm_agree(comm, STATUS_OK));
  assert_int_equal(comm_agree(comm, status_set(STATUS_IO, "no file")), STATUS_IO);
  assert_string_equal(status_text(), "no file");
  mem_free(text);
  comm_destroy(comm);
}

/* Planning for a machine with GPUs must not need a build for one. */
TEST(any_transport_will_do)
{
  struct comm *comm = make(1, 3);
  struct comm_group *group;
  must(comm_set_transport(comm, "nccl"));
  must(comm_group_create(comm, comm_evenly(comm, comm_ranks(comm), 1), true, &group));
  must(comm_group_register(group, &group, sizeof group));
  must(comm_group_check(group));
  must(comm_set_transport(comm, "mpi"));
  assert_int_equal(comm_set_transport(comm, "gloo"), STATUS_UNSUPPORTED);
  assert_string_equal(status_text(),
                      "this build has no transport 'gloo'; it has: mpi, mpi_device, nccl");
  comm_group_destroy(group);
  comm_destroy(comm);
}

TEST(collectives_move_this_ranks_part)
{
  enum { COUNT = 256 };
  float full[3 * COUNT], staging[3 * COUNT], shard[COUNT], grads[3 * COUNT];
  struct comm *comm = make(1, 3);
  struct comm_group *group;
  struct device *device;
  struct lane *lane;
  must(comm_group_create(comm, comm_evenly(comm, comm_ranks(comm), 1), true, &group));
  must(device_create("host", 0, DTYPE_F32, &device));
  must(device->ops->lane_create(device, "test", LANE_ROLE_COMPUTE, 1, &lane));
  for (int i = 0; i < 3 * COUNT; i++) {
    full[i] = -1;
    grads[i] = (float)i;
  }
  for (int i = 0; i < COUNT; i++)
    shard[i] = 1;
  must(comm_all_gather(group, lane, shard, COUNT * sizeof(float), false, full));
  for (int i = 0; i < 3 * COUNT; i++)
    assert_true(full[i] == (i / COUNT == 1 ? 1 : -1));
  must(reduce_scatter(group, lane, grads, COUNT, DTYPE_F32, staging, true, shard));
  for (int i = 0; i < COUNT; i++)
    assert_true(shard[i] == 1 + grads[COUNT + i]);
  must(reduce_scatter(group, lane, grads, COUNT, DTYPE_F32, staging, false, grads + COUNT));
  for (int i = 0; i < 3 * COUNT; i++)
    assert_true(grads[i] == (float)i);
  must(reduce_scatter(group, lane, grads, COUNT, DTYPE_BF16, staging, false, shard));
  for (int i = 0; i < COUNT; i++)
    assert_true(shard[i] == f32_from_bf16(bf16_from_f32(grads[COUNT + i])));
  unsigned char sent[3 * 7], received[3 * 7 + 1];
  memset(sent, 1, sizeof sent);
  memset(received, 2, sizeof received);
  must(comm_exchange(group, lane, sent, 7, false, received));
  for (int i = 0; i < 3 * 7; i++)
    assert_int_equal(received[i], i / 7 == 1);
  assert_int_equal(received[3 * 7], 2);
  /* Peers send this rank's message. */
  int64_t all[3][2] = {{0}, {16, 5}, {0}};
  must(comm_all_gather(group, lane, all[1], 16, true, all));
  for (int i = 0; i < 3; i++)
    assert_memory_equal(all[i], all[1], 16);
  struct exactsum sum = {0};
  exactsum_add(&sum, 3);
  must(comm_group_sum_exact(group, lane, &sum, 1));
  assert_true(exactsum_value(&sum) == 3);
  device->ops->lane_destroy(lane);
  device_destroy(device);
  comm_group_destroy(group);
  comm_destroy(comm);
}

TEST(a_sibling_is_the_same_rank)
{
  struct comm *comm = make(5, 8), *sibling;
  int64_t value = 7;
  must(comm_create_sibling(comm, &sibling));
  expect_rank(sibling);
  must(comm_sum_i64(sibling, &value, 1));
  assert_int_equal(value, 7);
  comm_destroy(sibling);
  must(comm_barrier(comm));
  comm_destroy(comm);
}

TEST(shared_memory_is_its_own)
{
  struct comm *comm = make(5, 8);
  struct comm_shared *shared;
  struct comm_group *group;
  const int64_t page = sysconf(_SC_PAGESIZE), calls = mem_calls();
  must(comm_shared_create(comm, 4, 3 * page + 1, &shared));
  assert_true(mem_calls() > calls);
  char *memory = comm_shared_memory(shared);
  assert_int_equal((uintptr_t)memory % (uintptr_t)page, 0);
  for (int64_t i = 0; i < 4 * page; i++)
    assert_int_equal(memory[i], 0);
  memset(memory, 1, 4 * (size_t)page);
  must(comm_group_create(comm, comm_evenly(comm, 4, 1), true, &group));
  must(comm_group_barrier(group));
  comm_group_destroy(group);
  comm_shared_destroy(shared);
  /* 8 ranks, 4 on a node. */
  must_fail(comm_shared_create(comm, 8, 1, &shared), STATUS_UNSUPPORTED,
            "8 ranks share one copy of the parameters in host "
            "memory, so all must run on one node");
  assert_int_equal(comm_shared_create(comm, 3, 1, &shared), STATUS_USAGE);
  comm_destroy(comm);
  /* 6 ranks, 4 on a node: this rank's block of 3 lies inside one, the other one does not. */
  must(comm_create_fake(0, 6, 4, &comm));
  assert_int_equal(comm_shared_create(comm, 3, 1, &shared), STATUS_UNSUPPORTED);
  comm_destroy(comm);
}

TEST(abort_prints_one_line_and_exits)
{
  int ends[2], exit_state;
  char line[200];
  assert_int_equal(pipe(ends), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    struct comm *comm = make(2, 3);
    comm_abort(comm, status_set(STATUS_NONFINITE, "the loss of step 7 is not finite"));
  }
  close(ends[1]);
  /* It stays until its line was read, because a launcher may drop the output of a job that ends. */
  assert_int_equal(poll(&(struct pollfd){.fd = ends[0], .events = POLLIN}, 1, -1), 1);
  clock_sleep_until(clock_s() + 0.2);
  assert_int_equal(waitpid(child, &exit_state, WNOHANG), 0);
  size_t length = 0;
  for (ssize_t got; length < sizeof line - 1 &&
                    (got = read(ends[0], line + length, sizeof line - 1 - length)) > 0;)
    length += (size_t)got;
  close(ends[0]);
  line[length] = '\0';
  assert_int_equal(waitpid(child, &exit_state, 0), child);
  assert_true(WIFEXITED(exit_state));
  assert_int_equal(WEXITSTATUS(exit_state), status_exit_code(STATUS_NONFINITE));
  assert_non_null(strstr(line, "sluice: rank 2: the loss of step 7 is not finite\n"));
}

TEST_MAIN(NULL, NULL)
