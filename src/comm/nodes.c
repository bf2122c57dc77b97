/* Where the members of a group run. */
#include "comm/ops.h"

enum status comm_group_is_on_one_node(struct comm_group *group, bool *out)
{
  struct comm *comm = group->comm;
  int first = comm->node;
  enum status status = comm_agree(comm, comm->ops->group_broadcast(group, &first, sizeof first));
  int64_t apart = first != comm->node;
  if (!status)
    status = comm_max_i64(comm, &apart, 1);
  if (!status)
    *out = apart == 0;
  return status;
}
