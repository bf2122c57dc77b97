/* Nodes are blocks of consecutive ranks, however the launcher placed them. Oracle: tables by
 * hand, for ranks whose nodes are made up, as `mpirun --map-by node` and `srun -m cyclic` deal
 * them out. */
/* ranks: 1 3 4 5 */
#include <mpi.h>

#include "comm/collect.h"
#include "comm/ops.h"
#include "fixture.h"
#include "tests/test.h"

enum { NODES = 2, MOST_RANKS = 5 };

/* Launched ranks 0, 2, 4 run on the first node, and ranks 1, 3 on the second. */
int MPI_Comm_split_type(MPI_Comm from, int type, int key, MPI_Info info, MPI_Comm *out)
{
  int rank;
  (void)info;
  assert_int_equal(type, MPI_COMM_TYPE_SHARED);
  assert_int_equal(MPI_Comm_rank(from, &rank), MPI_SUCCESS);
  return PMPI_Comm_split(from, rank % NODES, key, out);
}

static int launched(void)
{
  int rank;
  assert_int_equal(MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_SUCCESS);
  return rank;
}

TEST(ranks_are_numbered_node_by_node)
{
  static const int first_node[] = {0, 2, 4}, second_node[] = {1, 3};
  const int on_first = (comm_ranks(job) + 1) / 2, rank = comm_rank(job);
  const bool first = rank < on_first;
  assert_int_equal(launched(), first ? first_node[rank] : second_node[rank - on_first]);
  assert_int_equal(comm_local_rank(job), first ? rank : rank - on_first);
  assert_int_equal(comm_local_ranks(job), first ? on_first : comm_ranks(job) - on_first);
  assert_int_equal(comm_node_leader(job), first ? 0 : on_first);
}

/* And it is said, on all ranks, because the launcher's messages name ranks otherwise. */
TEST(the_numbering_is_told)
{
  const bool told = strstr(comm_description(job), ", ranks renumbered node by node") != NULL;
  assert_int_equal(told, comm_ranks(job) > 2);
}

/* With shard.group=node 4 ranks on 2 nodes are two groups of 2. Their replicas have a rank on
 * each node. */
TEST(a_group_of_a_node_does_not_leave_it)
{
  struct comm_group *group;
  bool one_node;
  if (comm_ranks(job) != 4)
    return;
  must(comm_group_create(job, comm_evenly(job, 2, 1), true, &group));
  must(comm_group_is_on_one_node(group, &one_node));
  assert_true(one_node && group->transport_data != NULL);
  comm_group_destroy(group);
  must(comm_group_create(job, comm_evenly(job, 2, 2), true, &group));
  must(comm_group_is_on_one_node(group, &one_node));
  assert_false(one_node);
  comm_group_destroy(group);
}

/* Ranks of io and of collectives are the same numbers. */
TEST(the_communicator_has_these_ranks)
{
  int rank, all[MOST_RANKS] = {0};
  assert_int_equal(MPI_Comm_rank(*(MPI_Comm *)comm_mpi(job), &rank), MPI_SUCCESS);
  assert_int_equal(rank, comm_rank(job));
  must(comm_collect_bytes(job, &rank, sizeof rank, all));
  for (int r = 0; rank == 0 && r < comm_ranks(job); r++)
    assert_int_equal(all[r], r);
}

TEST_MAIN(start_job, stop_job)
