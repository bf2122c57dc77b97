/* State after failures of NCCL. This program's own functions of NCCL fail, so no GPU is
 * needed. Oracles: counted calls, and the environment before. */
#include <nccl.h>

#include "gpu/cuda.h"
#include "gpu/nccl.h"
#include "gpu/net.h"
#include "tests/test.h"

static int open_groups, sent;

ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
  (void)comm;
  *count = 3;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart(void)
{
  open_groups++;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
  open_groups--;
  return ncclSuccess;
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
  (void)from, (void)count, (void)type, (void)peer, (void)comm, (void)stream;
  return sent++ == 0 ? ncclSuccess : ncclInvalidUsage;
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
  (void)to, (void)count, (void)type, (void)peer, (void)comm, (void)stream;
  return ncclSuccess;
}

TEST(group_of_calls_is_closed_after_a_failure)
{
  char from[3], to[3];
  struct cuda_lane lane = {.stream = NULL};
  struct nccl_group *group;
  must(nccl_group_create(&group));
  must_fail(nccl_exchange_varying(group, &lane.lane, from, NULL, 1, to, NULL), STATUS_LIBRARY,
            "sending a message failed: invalid usage");
  assert_int_equal(sent, 2);
  assert_int_equal(open_groups, 0);
  nccl_group_destroy(group);
}

TEST(environment_is_as_before)
{
  struct gpu_net net;
  (void)unsetenv("NCCL_DEBUG");
  (void)unsetenv("NCCL_DEBUG_FILE");
  (void)setenv("NCCL_DEBUG_SUBSYS", "COLL", 1);
  gpu_net_read(true, &net);
  assert_null(getenv("NCCL_DEBUG"));
  assert_null(getenv("NCCL_DEBUG_FILE"));
  assert_string_equal(getenv("NCCL_DEBUG_SUBSYS"), "COLL");
}

TEST_MAIN(NULL, NULL)
