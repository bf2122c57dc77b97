/* Whether a group lies within one node. Oracles: tables by hand, for ranks with given nodes. The
 * answers of all ranks are compared with each other. One call of MPI is made to fail. */
/* ranks: 1 2 3 4 5 */
#include <mpi.h>

#include "comm/ops.h"
#include "fixture.h"
#include "tests/test.h"

enum { MOST_RANKS = 5 };

static bool broadcast_fails; /* the next one */

int MPI_Ibcast(void *data, int count, MPI_Datatype type, int root, MPI_Comm comm,
               MPI_Request *request)
{
  const int error = PMPI_Ibcast(data, count, type, root, comm, request);
  if (!broadcast_fails || error)
    return error;
  broadcast_fails = false;
  assert_int_equal(MPI_Wait(request, MPI_STATUS_IGNORE), MPI_SUCCESS);
  return MPI_ERR_OTHER;
}

/* Its lowest rank names a node. */
struct where {
  int ranks, node[MOST_RANKS];
  int size, apart;
  bool one_node;
};

/* A rank on the node of member 0 may not see it. The same holds for blocks next to the odd one. */
/* clang-format off */
static const struct where wheres[] = {
    {1, {0}, 1, 1, true}, {2, {0, 0}, 2, 1, true},
    {3, {0, 0, 0}, 3, 1, true}, {4, {0, 0, 0, 0}, 4, 1, true},
    {4, {0, 0, 0, 0}, 2, 1, true}, {4, {0, 0, 0, 0}, 2, 2, true},
    {4, {0, 0, 0, 0}, 4, 1, true}, {5, {0, 0, 0, 0, 0}, 5, 1, true},
    {5, {0, 0, 0, 0, 0}, 5, 1, true}, {2, {0, 1}, 2, 1, false},
    {2, {0, 1}, 1, 1, true}, {2, {0, 1}, 2, 1, false},
    {3, {0, 1, 2}, 3, 1, false}, {3, {0, 1, 2}, 1, 1, true},
    {4, {0, 0, 2, 2}, 4, 1, false}, {4, {0, 0, 2, 2}, 2, 1, true},
    {4, {0, 0, 2, 2}, 2, 2, false}, {4, {0, 1, 0, 1}, 2, 1, false},
    {4, {0, 1, 0, 1}, 2, 2, true}, {4, {0, 1, 2, 3}, 2, 1, false},
    {4, {0, 1, 2, 3}, 1, 1, true}, {3, {0, 0, 2}, 3, 1, false},
    {3, {0, 1, 0}, 3, 1, false}, {3, {0, 1, 1}, 3, 1, false},
    {4, {0, 0, 0, 3}, 4, 1, false}, {4, {0, 0, 0, 3}, 2, 1, false},
    {4, {0, 0, 0, 3}, 2, 2, false}, {4, {0, 1, 1, 1}, 4, 1, false},
    {4, {0, 1, 1, 1}, 2, 1, false}, {4, {0, 0, 2, 0}, 2, 1, false},
    {4, {0, 0, 2, 0}, 2, 2, false}, {4, {0, 0, 0, 3}, 1, 1, true},
    {5, {0, 0, 2, 0, 0}, 5, 1, false},
};
/* clang-format on */

static struct comm_group *group_of(const struct where *where)
{
  struct comm_group *group;
  must(comm_group_create(job, comm_evenly(job, where->size, where->apart), false, &group));
  return group;
}

static void ask(const struct where *where)
{
  const int node = job->node;
  struct comm_group *group = group_of(where);
  bool answer = !where->one_node;
  job->node = where->node[job->rank];
  must(comm_group_is_on_one_node(group, &answer));
  job->node = node;
  int64_t wrong = answer != where->one_node;
  must(comm_sum_i64(job, &wrong, 1));
  if (wrong)
    fail_msg("%d ranks %d apart of %d: %d of them answer otherwise than %d", where->size,
             where->apart, where->ranks, (int)wrong, where->one_node);
  comm_group_destroy(group);
}

TEST(groups_on_one_node_or_several)
{
  for (size_t i = 0; i < sizeof wheres / sizeof *wheres; i++)
    if (wheres[i].ranks == job->ranks)
      ask(&wheres[i]);
}

/* Nobody is left with an answer, nor in a call that the others do not make. */
TEST(a_failure_of_one_is_that_of_all)
{
  const struct where where = {.size = job->ranks, .apart = 1};
  struct comm_group *group = group_of(&where);
  bool answer = false;
  broadcast_fails = job->rank == job->ranks - 1;
  assert_int_equal(comm_group_is_on_one_node(group, &answer), STATUS_LIBRARY);
  assert_false(answer || broadcast_fails);
  must_say(failed("MPI_Ibcast", MPI_ERR_OTHER));
  must(comm_group_is_on_one_node(group, &answer)); /* and the job goes on */
  assert_true(answer);
  comm_group_destroy(group);
}

TEST_MAIN(start_job, stop_job)
