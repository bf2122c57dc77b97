/* State after failures of NCCL. This program's own functions of NCCL fail, so no GPU is
 * needed. Oracles: counted calls, and the environment before. */
#include <nccl.h>

#include "gpu/cuda.h"
#include "gpu/nccl.h"
#include "gpu/net.h"
#include "tests/test.h"

static int open_groups, sent;

/* The arguments of the latest start or split. */
static struct {
  int size, index, roots, color;
  char last_id;
  ncclConfig_t config;
} asked;

ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
  (void)comm;
  *count = 3;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
  (void)comm;
  *rank = 1;
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

ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int size, int index, int n,
                                      ncclUniqueId *ids, ncclConfig_t *config)
{
  asked.size = size;
  asked.index = index;
  asked.roots = n;
  asked.last_id = ids[n - 1].internal[NCCL_ID_BYTES - 1];
  asked.config = *config;
  *comm = NULL;
  return ncclSuccess;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out,
                           ncclConfig_t *config)
{
  (void)comm;
  asked.color = color;
  asked.index = key;
  asked.config = *config;
  *out = NULL;
  return color == 9 ? ncclInvalidArgument : ncclSuccess;
}

/* Oracle: a root per 128 ranks. */
TEST(ranks_have_enough_roots)
{
  static const int ranks[] = {1, 2, 128, 129, 1000, 1024, 1025};
  static const int roots[] = {1, 1, 1, 2, 8, 8, 9};
  for (int i = 0; i < 7; i++)
    assert_int_equal(nccl_ids(ranks[i]), roots[i]);
  char ids[8][NCCL_ID_BYTES] = {{0}};
  struct nccl_group *group;
  ids[7][NCCL_ID_BYTES - 1] = 77;
  must(nccl_group_create(&group));
  must(nccl_group_start(group, (struct nccl_member){"sluice", 1024, 1000}, 8, ids));
  assert_int_equal(asked.size, 1024);
  assert_int_equal(asked.index, 1000);
  assert_int_equal(asked.roots, 8);
  assert_int_equal(asked.last_id, 77);
  assert_int_equal(asked.config.maxCTAs, 1); /* it carries no data */
  nccl_group_destroy(group);
}

/* Groups inside a node get few channels, others as many as NCCL wants. None shares the parent's. */
TEST(split_groups_have_settings_of_their_own)
{
  struct nccl_group *all, *group;
  must(nccl_group_create(&all));
  must(nccl_group_create(&group));
  for (int one_node = 0; one_node <= 1; one_node++) {
    must(nccl_group_split(group, all, (struct nccl_member){"part", 4, 3}, 2, one_node));
    assert_int_equal(asked.color, 2);
    assert_int_equal(asked.index, 3);
    assert_string_equal(asked.config.commName, "part");
    assert_int_equal(asked.config.CTAPolicy, NCCL_CTA_POLICY_ZERO);
    assert_int_equal(asked.config.maxCTAs, one_node ? 4 : NCCL_CONFIG_UNDEF_INT);
    assert_int_equal(asked.config.splitShare, NCCL_CONFIG_UNDEF_INT);
  }
  must_fail(nccl_group_split(group, all, (struct nccl_member){"part", 4, 3}, 9, true),
            STATUS_LIBRARY, "part, member 3 of 4: NCCL: splitting a group failed");
  nccl_group_destroy(group);
  nccl_group_destroy(all);
}

TEST(group_of_calls_is_closed_after_a_failure)
{
  char from[3], to[3];
  struct cuda_lane lane = {.stream = NULL};
  struct nccl_group *group;
  must(nccl_group_create(&group));
  const struct nccl_messages messages = {
      .bytes = 1, .sent = from, .apart = 1, .received = to, .stride = 1};
  must_fail(nccl_exchange_messages(group, &lane.lane, &messages), STATUS_LIBRARY,
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
