/* The data plane by NCCL, a GPU a rank. Oracles: each member's data are a pure function of (member,
 * element) in data.h, so each rank computes the result on the host, bit for bit. Parts that are
 * sent in bf16 are rounded first. Skipped where there are fewer GPUs than ranks. */
/* ranks: 2 4 */

#include "base/mem.h"
#include "base/team.h"
#include "comm/comm.h"
#include "data.h"
#include "device/device.h"
#include "device/lane.h"
#include "gpu/nccl.h"
#include "reduce.h"
#include "tests/test.h"

enum { COUNT = 4096 + 8, MOST_RANKS = 4, MOST_GROUPS = 12, ROUNDS = 20, MOST_KEPT = 512 };

static struct comm *job;
static struct device *device;
static struct lane *lane;

/* Every way to group the ranks, and the rank that is member i of this rank's group. */
static struct grouping {
  int size, apart;
  struct comm_group *group;
} groupings[MOST_GROUPS];
static int n_groupings;

static int member(const struct grouping *g, int i)
{
  const int rank = comm_rank(job), all = g->size * g->apart;
  return rank / all * all + rank % g->apart + i * g->apart;
}

/* Memory of a test, which its end releases. */
static void *rooms[MOST_KEPT], *heres[MOST_KEPT];
static int n_rooms, n_heres;

static void *room(size_t bytes)
{
  assert_true(n_rooms < MOST_KEPT);
  must(device->ops->alloc(device, MEM_DATA, bytes, &rooms[n_rooms]));
  return rooms[n_rooms++];
}

static void *here(size_t bytes)
{
  assert_true(n_heres < MOST_KEPT);
  must(mem_alloc(MEM_DATA, bytes, &heres[n_heres]));
  return heres[n_heres++];
}

FIXTURE(forget)
{
  while (n_rooms > 0)
    device->ops->release(device, rooms[--n_rooms]);
  while (n_heres > 0)
    mem_free(heres[--n_heres]);
  return 0;
}

#define NCCL_TEST(name) TEST_WITH(name, NULL, forget)

static void finish(struct lane *of)
{
  struct mark *mark = NULL;
  must(device->ops->mark_create(device, &mark));
  must(device->ops->mark_set(of, mark));
  must(device->ops->mark_wait(mark));
  must(device->ops->lane_check(of));
  device->ops->mark_destroy(mark);
}

static void move(void *dst, const void *src, size_t bytes)
{
  must(device->ops->copy(lane, dst, src, bytes));
  finish(lane);
}

/* `type` is 4 or 2 bytes wide. */
static void store(enum dtype type, void *array, int64_t i, float value)
{
  if (type == DTYPE_F32)
    ((float *)array)[i] = value;
  else
    ((uint16_t *)array)[i] = bf16_from_f32(value);
}

static void gather(const struct grouping *g, enum dtype type, bool in_place)
{
  const size_t width = dtype_size(type), part = COUNT * width, bytes = MOST_RANKS * part;
  const int size = comm_group_size(g->group), index = comm_group_index(g->group);
  char *full = room(bytes), *shard = room(part), *mine = here(part), *got = here(bytes),
       *expected = here(bytes);
  memset(expected, 0xee, bytes);
  move(full, expected, bytes);
  for (int64_t i = 0; i < COUNT; i++)
    store(type, mine, i, data_value(0, comm_rank(job), i));
  for (int m = 0; m < size; m++)
    for (int64_t i = 0; i < COUNT; i++)
      store(type, expected, m * COUNT + i, data_value(0, member(g, m), i));
  char *from = in_place ? full + (size_t)index * part : shard;
  move(from, mine, part);
  must(comm_all_gather(g->group, lane, from, (int64_t)part, false, full));
  move(got, full, bytes);
  assert_memory_equal(got, expected, bytes);
}

NCCL_TEST(all_gather_in_every_group)
{
  for (int g = 0; g < n_groupings; g++)
    for (int way = 0; way < 4; way++)
      gather(&groupings[g], way & 1 ? DTYPE_BF16 : DTYPE_F32, way & 2);
}

static void exchange(const struct grouping *g, int64_t bytes)
{
  const int size = comm_group_size(g->group), rank = comm_rank(job);
  const size_t all = (size_t)(size * bytes);
  unsigned char *sent = room(all), *received = room(all + 1), *mine = here(all + 1);
  for (int m = 0; m < size; m++)
    for (int64_t i = 0; i < bytes; i++)
      mine[m * bytes + i] = data_byte(0, rank, member(g, m), i);
  move(sent, mine, all);
  must(comm_exchange(g->group, lane, sent, bytes, false, received));
  move(mine, received, all + 1);
  for (int m = 0; m < size; m++)
    for (int64_t i = 0; i < bytes; i++)
      assert_int_equal(mine[m * bytes + i], data_byte(0, member(g, m), rank, i));
  assert_int_equal(mine[all], 0);
}

NCCL_TEST(bytes_are_exchanged_in_every_group)
{
  static const int64_t lengths[] = {1, 3, 17, 4099};
  for (int g = 0; g < n_groupings; g++)
    for (int l = 0; l < 4; l++)
      exchange(&groupings[g], lengths[l]);
}

/* Where no message ends, nothing is written. */
static void exchange_varying(const struct grouping *g, int64_t most)
{
  const int size = comm_group_size(g->group), rank = comm_rank(job);
  const size_t all = (size_t)(size * most);
  unsigned char *sent = room(all), *received = room(all), *mine = here(2 * all),
                *expected = mine + all;
  for (int m = 0; m < size; m++) {
    data_message(0, rank, member(g, m), most, mine + m * most);
    data_message(0, member(g, m), rank, most, expected + m * most);
  }
  move(sent, mine, all);
  must(comm_exchange(g->group, lane, sent, most, true, received));
  move(mine, received, all);
  assert_memory_equal(mine, expected, all);
}

/* Each member has one message for all. */
static void gather_varying(const struct grouping *g, int64_t most)
{
  const int size = comm_group_size(g->group), index = comm_group_index(g->group);
  const size_t all = (size_t)(size * most);
  unsigned char *full = room(all), *mine = here(2 * all), *expected = mine + all;
  for (int m = 0; m < size; m++)
    data_message(0, member(g, m), member(g, m), most, expected + m * most);
  memcpy(mine + index * most, expected + index * most, (size_t)most);
  move(full, mine, all);
  must(comm_all_gather(g->group, lane, full + index * most, most, true, full));
  move(mine, full, all);
  assert_memory_equal(mine, expected, all);
}

NCCL_TEST(messages_of_varying_length_are_exchanged)
{
  static const int64_t lengths[] = {16, 1024, 100000};
  for (int g = 0; g < n_groupings; g++)
    for (int l = 0; l < 3; l++) {
      exchange_varying(&groupings[g], lengths[l]);
      gather_varying(&groupings[g], lengths[l]);
    }
}

enum way { SET, ADD, IN_PLACE };

/* This member's part of the sum of all values. It began as 0.25 i. */
static void reduce(const struct grouping *g, enum dtype wire, enum way way)
{
  const size_t part = COUNT * sizeof(float);
  const int size = comm_group_size(g->group), index = comm_group_index(g->group);
  const size_t whole = (size_t)size * part;
  float *full = room(whole), *staging = room(whole), *shard = room(part), *mine = here(whole);
  for (int64_t i = 0; i < size * COUNT; i++)
    mine[i] = data_value(0, comm_rank(job), i);
  move(full, mine, whole);
  for (int64_t i = 0; i < COUNT; i++)
    mine[i] = 0.25f * (float)i;
  move(shard, mine, part);
  float *to = way == IN_PLACE ? full + (size_t)index * COUNT : shard;
  must(reduce_scatter(g->group, lane, full, COUNT, wire, staging, way == ADD, to));
  move(mine, to, part);
  for (int64_t i = 0; i < COUNT; i++) {
    float terms[MOST_RANKS];
    for (int m = 0; m < size; m++)
      terms[m] = data_arrives(size, wire, data_value(0, member(g, m), index * COUNT + i));
    const float sum = data_tree_sum(terms, size),
                expected = way == ADD ? 0.25f * (float)i + sum : sum;
    assert_memory_equal(&mine[i], &expected, sizeof expected);
  }
}

NCCL_TEST(reduce_scatter_in_every_group)
{
  for (int g = 0; g < n_groupings; g++)
    for (enum way way = SET; way <= IN_PLACE; way++) {
      reduce(&groupings[g], DTYPE_F32, way);
      reduce(&groupings[g], DTYPE_BF16, way);
    }
}

NCCL_TEST(exact_sums_in_every_group)
{
  struct exactsum mine[2], expected[2], *there = room(sizeof mine);
  for (int g = 0; g < n_groupings; g++) {
    const int size = comm_group_size(groupings[g].group);
    int members[MOST_RANKS];
    for (int m = 0; m < size; m++)
      members[m] = member(&groupings[g], m);
    data_sum(0, 1, &(int){comm_rank(job)}, mine);
    data_sum(0, size, members, expected);
    move(there, mine, sizeof mine);
    must(comm_group_sum_exact(groupings[g].group, lane, there, 2));
    move(mine, there, sizeof mine);
    assert_memory_equal(mine, expected, sizeof mine);
  }
}

/* Bits of magnitudes: NaN is the most. Words with a sign are parameters, which one member has. */
NCCL_TEST(maxima_in_every_group)
{
  enum { N = 10001 };
  uint32_t *mine = here(N * sizeof *mine), *there = room(N * sizeof *there);
  for (int g = 0; g < n_groupings; g++) {
    const int size = comm_group_size(groupings[g].group),
              index = comm_group_index(groupings[g].group);
    for (int i = 0; i < N; i++)
      mine[i] = i % 3 == 0   ? (uint32_t)(i % size == index) * 0xbf80bf80
                : i % 3 == 1 ? 1000 * (uint32_t)((index + i) % size) + (uint32_t)i
                             : (i % size == index ? 0x7fc00000 : 0x7f7f0000);
    move(there, mine, N * sizeof *mine);
    must(comm_group_max_u32(groupings[g].group, lane, there, N));
    move(mine, there, N * sizeof *mine);
    for (int i = 0; i < N; i++)
      assert_int_equal(mine[i], i % 3 == 0   ? 0xbf80bf80
                                : i % 3 == 1 ? 1000 * (uint32_t)(size - 1) + (uint32_t)i
                                             : 0x7fc00000);
  }
}

/* All that a worker enqueues, round after round without waiting, and what should come of it. */
struct worker {
  struct comm_group *group;
  struct lane *lane;
  int salt;
  enum dtype wire;
  float *sent, *full, *gathered, *reduced,
      *staging; /* [ROUNDS][COUNT], [ROUNDS][size * COUNT] twice, [ROUNDS][COUNT], [size * COUNT] */
};

static enum status enqueue(void *arg)
{
  const struct worker *w = arg;
  const int64_t size = comm_group_size(w->group);
  enum status status = device->ops->enter(device);
  for (int64_t round = 0; !status && round < ROUNDS; round++) {
    status = comm_all_gather(w->group, w->lane, w->sent + round * COUNT, COUNT * sizeof(float),
                             false, w->gathered + round * size * COUNT);
    if (!status)
      status = reduce_scatter(w->group, w->lane, w->full + round * size * COUNT, COUNT, w->wire,
                              w->staging, false, w->reduced + round * COUNT);
  }
  return status;
}

static int64_t key(int64_t round, int64_t i)
{
  return round * MOST_RANKS * COUNT + i;
}

static void worker_start(struct worker *w, int salt)
{
  const size_t bytes = ROUNDS * COUNT * sizeof(float);
  must(comm_group_create(job, comm_evenly(job, comm_ranks(job), 1), true, &w->group));
  must(device->ops->lane_create(device, "reduce", LANE_ROLE_COMMUNICATE, 1, &w->lane));
  const int64_t size = comm_group_size(w->group);
  w->salt = salt;
  w->wire = salt ? DTYPE_BF16 : DTYPE_F32;
  w->sent = room(bytes);
  w->full = room((size_t)size * bytes);
  w->gathered = room((size_t)size * bytes);
  w->reduced = room(bytes);
  w->staging = room((size_t)size * COUNT * sizeof(float));
  must(comm_group_register(w->group, w->full, size * (int64_t)bytes));
  must(comm_group_register(w->group, w->gathered, size * (int64_t)bytes));
  must(comm_group_register(w->group, w->staging, size * COUNT * (int64_t)sizeof(float)));
  int64_t calls;
  bool waits;
  comm_calls(job, &calls, &waits);
  assert_false(waits); /* starting and registering have ended for who watches */
  float *mine = here((size_t)size * bytes);
  for (int64_t round = 0; round < ROUNDS; round++)
    for (int64_t i = 0; i < size * COUNT; i++)
      mine[round * size * COUNT + i] = data_value(salt, comm_rank(job), key(round, i));
  move(w->full, mine, (size_t)size * bytes);
  for (int64_t round = 0; round < ROUNDS; round++)
    memcpy(mine + round * COUNT, mine + round * size * COUNT, COUNT * sizeof *mine);
  move(w->sent, mine, bytes);
}

static void worker_check(const struct worker *w)
{
  const int64_t size = comm_group_size(w->group), index = comm_group_index(w->group);
  const size_t bytes = ROUNDS * COUNT * sizeof(float);
  float *gathered = here((size_t)size * bytes), *reduced = here(bytes);
  finish(w->lane);
  must(comm_group_check(w->group));
  move(gathered, w->gathered, (size_t)size * bytes);
  move(reduced, w->reduced, bytes);
  for (int64_t round = 0; round < ROUNDS; round++)
    for (int64_t i = 0; i < COUNT; i++) {
      float terms[MOST_RANKS];
      for (int m = 0; m < size; m++) {
        const float got = gathered[(round * size + m) * COUNT + i];
        assert_true(got == data_value(w->salt, m, key(round, i)));
        terms[m] =
            data_arrives(size, w->wire, data_value(w->salt, m, key(round, index * COUNT + i)));
      }
      assert_true(reduced[round * COUNT + i] == data_tree_sum(terms, size));
    }
}

static void worker_stop(struct worker *w)
{
  comm_group_destroy(w->group);
  device->ops->lane_destroy(w->lane);
}

NCCL_TEST(lanes_do_not_share_an_order)
{
  struct worker workers[2];
  struct thread *threads[2];
  for (int t = 0; t < 2; t++)
    worker_start(&workers[t], t);
  for (int t = 0; t < 2; t++) /* the other way round on odd ranks */
    must(thread_start("worker", enqueue, &workers[t ^ (comm_rank(job) & 1)], &threads[t]));
  for (int t = 0; t < 2; t++)
    must(thread_join(threads[t]));
  for (int t = 0; t < 2; t++)
    worker_check(&workers[t]);
  for (int t = 0; t < 2; t++)
    worker_stop(&workers[t]);
}

NCCL_TEST(refusals_of_nccl_are_reported)
{
  char id[NCCL_ID_BYTES];
  struct nccl_group *group;
  must(nccl_id(id));
  must(nccl_group_create(&group));
  assert_int_equal(nccl_group_start(group, (struct nccl_member){"sluice-test", 1, 1}, 1, id),
                   STATUS_LIBRARY); /* there is no member 1 of 1 */
  must_say("NCCL: starting a group failed: invalid argument");
  nccl_group_abort(group);
  must(nccl_group_create(&group));
  nccl_group_destroy(group); /* never started */
  nccl_group_destroy(NULL);
  nccl_group_abort(NULL);
}

/* All ranks, which meet by two ids, one from either end. */
static struct nccl_group *start_all(void)
{
  char ids[2][NCCL_ID_BYTES] = {{0}};
  struct nccl_group *all;
  for (int i = 0; i < 2; i++) {
    const int root = i * (comm_ranks(job) - 1);
    if (comm_rank(job) == root)
      must(nccl_id(ids[i]));
    must(comm_broadcast(job, ids[i], sizeof ids[i], root));
  }
  must(nccl_group_create(&all));
  must(nccl_group_start(all, (struct nccl_member){"sluice-test", comm_ranks(job), comm_rank(job)},
                        2, ids));
  return all;
}

/* The members of a part are numbered from its highest rank down. */
static struct nccl_group *split_all(struct nccl_group *all, int parts)
{
  const int ranks = comm_ranks(job), rank = comm_rank(job), size = ranks / parts;
  const struct nccl_member member = {"sluice-part", size, (ranks - 1 - rank) / parts};
  struct nccl_group *group;
  must(nccl_group_create(&group));
  must(nccl_group_split(group, all, member, rank % parts, true));
  return group;
}

/* Oracle: the ranks, from the highest down. */
NCCL_TEST(parts_of_all_ranks_have_their_own_members)
{
  const int ranks = comm_ranks(job), rank = comm_rank(job);
  struct nccl_group *all = start_all();
  unsigned char *there = room(MOST_RANKS), own = (unsigned char)rank, mine[MOST_RANKS];
  for (int parts = 1; parts <= ranks; parts++) {
    if (ranks % parts != 0)
      continue;
    struct nccl_group *group = split_all(all, parts);
    move(there + (ranks - parts + rank % parts - rank) / parts, &own, 1);
    must(nccl_all_gather(group, lane, 1, 1, 0, there));
    move(mine, there, (size_t)(ranks / parts));
    for (int m = 0; m < ranks / parts; m++)
      assert_int_equal(mine[m], ranks - parts + rank % parts - m * parts);
    nccl_group_destroy(group);
  }
  nccl_group_destroy(all);
}

/* Oracle: the header's four. */
NCCL_TEST(memory_is_registered_up_to_a_limit)
{
  enum { PIECE = 2 << 20 };
  struct nccl_group *all = start_all(), *group = split_all(all, 1);
  void *piece[5];
  for (int i = 0; i < 5; i++)
    must(nccl_memory_create(PIECE, &piece[i]));
  for (int i = 0; i < 4; i++)
    must(nccl_group_register(group, piece[i], PIECE));
  assert_int_equal(nccl_group_register(group, piece[4], PIECE), STATUS_INTERNAL);
  nccl_group_destroy(group);
  nccl_group_destroy(all);
  for (int i = 0; i < 5; i++)
    nccl_memory_destroy(piece[i]);
}

static void sum_ones(struct nccl_group *group, int64_t *there)
{
  int64_t one = 1;
  move(there, &one, sizeof one);
  must(nccl_sum_i64(group, lane, there, 1));
  move(&one, there, sizeof one);
  assert_int_equal(one, comm_ranks(job));
}

/* Rank 0 waits for a collective that no other rank joins, until it gives up. Oracle: the lane ends,
 * and the others learn nothing before. The other group of the same ranks still works. */
NCCL_TEST(stuck_collective_can_be_aborted)
{
  struct nccl_group *all = start_all(), *group = split_all(all, 1), *other = split_all(all, 1);
  int64_t *there = room(sizeof *there);
  sum_ones(other, there);
  sum_ones(group, there); /* the first one meets the others on the host */
  must(nccl_group_check(group));
  if (comm_rank(job) == 0) {
    must(nccl_sum_i64(group, lane, there, 1));
    nccl_group_abort(group);
    finish(lane);
  }
  must(comm_barrier(job));
  if (comm_rank(job) != 0)
    nccl_group_abort(group);
  sum_ones(other, there);
  must(nccl_group_check(other));
  nccl_group_destroy(other);
  nccl_group_abort(all);
}

/* Meetings of all ranks of the job, of which groups are split. */
static int meetings;
enum status __real_nccl_group_start(struct nccl_group *group, struct nccl_member member, int n,
                                    void *ids);
enum status __wrap_nccl_group_start(struct nccl_group *group, struct nccl_member member, int n,
                                    void *ids);
enum status __wrap_nccl_group_start(struct nccl_group *group, struct nccl_member member, int n,
                                    void *ids)
{
  meetings++;
  return __real_nccl_group_start(group, member, n, ids);
}

static bool fails; /* each group that is asked */
enum status __real_nccl_group_check(struct nccl_group *group);
enum status __wrap_nccl_group_check(struct nccl_group *group);
enum status __wrap_nccl_group_check(struct nccl_group *group)
{
  return fails ? status_set(STATUS_LIBRARY, "it fails here") : __real_nccl_group_check(group);
}

/* node > 0: gathers have two hops. */
static void add_grouping(int size, int apart, int node)
{
  struct grouping *g = &groupings[n_groupings++];
  *g = (struct grouping){.size = size, .apart = apart};
  must(comm_group_create(job, comm_evenly(job, size, apart), true, &g->group));
  if (node > 0)
    must(comm_group_gather_by_nodes(g->group, comm_evenly(job, node, apart),
                                    comm_evenly(job, size / node, node * apart)));
  assert_int_equal(member(g, comm_group_index(g->group)), comm_rank(job));
  must(comm_group_check(g->group));
}

FIXTURE(start)
{
  must(device_create("cuda", comm_local_rank(job) % device_count("cuda"), DTYPE_BF16, &device));
  must(device->ops->lane_create(device, "test", LANE_ROLE_BACKGROUND, 1, &lane));
  comm_set_device(job, device);
  must(comm_set_transport(job, "nccl"));
  for (int turn = 0; turn < 3; turn++) { /* all ranks meet once, and again after a failure */
    add_grouping(comm_ranks(job), 1, 0);
    assert_int_equal(meetings, turn < 2 ? 1 : 2);
    fails = turn == 1;
    comm_group_destroy(groupings[--n_groupings].group);
    fails = false;
  }
  assert_string_equal(getenv("NCCL_P2P_NET_CHUNKSIZE"), "524288");
  for (int size = 1; size <= comm_ranks(job); size++)
    if (comm_ranks(job) % size == 0) {
      add_grouping(size, 1, 0);
      add_grouping(size, comm_ranks(job) / size, 0);
      if (size % 2 == 0)
        add_grouping(size, 1, size > 2 ? 2 : 1);
    }
  return 0;
}

FIXTURE(stop)
{
  for (int g = 0; g < n_groupings; g++)
    comm_group_destroy(groupings[g].group);
  device->ops->lane_destroy(lane);
  device_destroy(device);
  return 0;
}

int main(int argc, char **argv)
{
  if (comm_create_mpi(&argc, &argv, &job))
    return 1;
  const int gpus = device_count("cuda");
  int64_t lacks = gpus < 0 ? INT64_MAX : comm_local_ranks(job) - gpus;
  int failed = 1;
  if (gpus < 0)
    fprintf(stderr, "%s\n", status_text());
  if (!comm_max_i64(job, &lacks, 1) && lacks < INT64_MAX)
    failed = lacks > 0 ? 77 : test_run(start, stop);
  comm_destroy(job);
  return failed;
}
