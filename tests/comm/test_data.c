/* The data plane of host memory. Oracles: those of rounds.h in groups of every kind. The arguments
 * of MPI's calls, and counts of calls and bytes. */
/* ranks: 1 2 3 4 5 6 */
#include <limits.h>
#include <mpi.h>

#include "base/mem.h"
#include "comm/ops.h"
#include "comm/shm.h"
#include "device/device.h"
#include "rounds.h"
#include "tests/test.h"

static struct device *device;
static struct lane *lane;

/* The arguments of MPI's last call, which moves nothing while `on`. */
static struct {
  bool on;
  int count;
  MPI_Aint extent;
} note;

static int note_call(int count, MPI_Datatype type, MPI_Comm members, MPI_Request *request)
{
  MPI_Aint least;
  note.count = count;
  const int error = MPI_Type_get_extent(type, &least, &note.extent);
  return error ? error : MPI_Ibarrier(members, request);
}

int MPI_Iallgather(const void *sent, int n, MPI_Datatype type, void *received, int count,
                   MPI_Datatype to, MPI_Comm members, MPI_Request *request)
{
  return note.on ? note_call(count, to, members, request)
                 : PMPI_Iallgather(sent, n, type, received, count, to, members, request);
}

int MPI_Ialltoall(const void *sent, int n, MPI_Datatype type, void *received, int count,
                  MPI_Datatype to, MPI_Comm members, MPI_Request *request)
{
  return note.on ? note_call(count, to, members, request)
                 : PMPI_Ialltoall(sent, n, type, received, count, to, members, request);
}

enum { MOST_RANKS = DATA_MEMBERS };

struct grouping {
  int size, apart;
};

static int groupings(struct grouping *out)
{
  int n = 0;
  for (int size = 1; size <= comm_ranks(job); size++)
    if (comm_ranks(job) % size == 0) {
      out[n++] = (struct grouping){size, 1};
      out[n++] = (struct grouping){size, comm_ranks(job) / size};
    }
  return n;
}

/* The rank that is member i of this rank's group. */
static int member(struct grouping g, int i)
{
  const int rank = comm_rank(job), all = g.size * g.apart;
  return rank / all * all + rank % g.apart + i * g.apart;
}

static struct comm_group *make_group(struct grouping g)
{
  struct comm_group *group;
  must(comm_group_create(job, comm_evenly(job, g.size, g.apart), true, &group));
  assert_int_equal(comm_group_size(group), g.size);
  assert_int_equal(member(g, comm_group_index(group)), comm_rank(job));
  return group;
}

/* The transports between ranks: messages, as if each rank had a node of its own, and the shared
 * boxes of a node. Pieces have their normal size or a small one. */
enum way { MESSAGES, BOXES, SMALL_BOXES, WAYS };

static void choose_way(enum way way)
{
  job->node = way == MESSAGES ? comm_rank(job) : 0;
  shm_set_half(way == SMALL_BOXES ? 1280 : 1 << 20);
}

static void assert_way(enum way way, struct grouping g, const struct comm_group *group)
{
  assert_true((group->transport_data != NULL) == (way != MESSAGES && g.apart == 1 && g.size > 1));
}

static void open_worker(struct worker *w, struct device *of, struct grouping g,
                        struct comm_group *group)
{
  worker_open(w, of, group, 0);
  for (int m = 0; m < comm_group_size(group); m++)
    w->rank[m] = member(g, m);
}

/* Bytes that this rank sends to others in messages of varying length. */
static struct comm_varying sent_varying(const struct worker *w)
{
  const int me = comm_rank(job);
  struct comm_varying bytes = {0};
  for (int m = 0; m < comm_group_size(w->group); m++)
    for (int round = 0; round < ROUNDS && w->rank[m] != me; round++) {
      bytes.exchanged += data_length(me, w->rank[m], worker_varying[round]);
      bytes.gathered += data_length(me, me, worker_varying[round]);
    }
  return bytes;
}

static void run_group(struct grouping g, struct comm_group *group)
{
  static struct worker w;
  const struct comm_varying before = comm_sent_varying(job);
  open_worker(&w, device, g, group);
  must(worker_run(&w));
  const struct comm_varying after = comm_sent_varying(job), sent = sent_varying(&w);
  assert_int_equal(after.exchanged - before.exchanged, sent.exchanged);
  assert_int_equal(after.gathered - before.gathered, sent.gathered);
  worker_close(&w);
}

TEST(collectives_of_every_group)
{
  struct grouping list[2 * MOST_RANKS];
  const int n = groupings(list);
  for (enum way way = MESSAGES; way < WAYS; way++) {
    choose_way(way);
    for (int i = 0; i < n; i++) {
      struct comm_group *group = make_group(list[i]);
      assert_way(way, list[i], group);
      run_group(list[i], group);
      comm_mpi_set_count_limit(100); /* bytes: the path of counts beyond INT_MAX */
      run_group(list[i], group);
      comm_mpi_set_count_limit(INT_MAX);
      comm_group_destroy(group);
    }
  }
  choose_way(BOXES);
}

/* Each rank sees it before it sends, so no rank waits. */
TEST(a_message_of_no_valid_length_is_refused)
{
  static const int64_t lengths[] = {65, 7, 0, -1, INT64_MIN};
  struct comm_group *group = make_group((struct grouping){comm_ranks(job), 1});
  static char received[64 * MOST_RANKS];
  static int64_t sent[8 * MOST_RANKS];
  for (size_t l = 0; comm_ranks(job) > 1 && l < sizeof lengths / sizeof *lengths; l++) {
    for (int m = 0; m < comm_ranks(job); m++)
      sent[8 * m] = m == 1 ? lengths[l] : 64;
    assert_int_equal(comm_exchange(group, lane, sent, 64, true, received), STATUS_INPUT);
    char sentence[160];
    snprintf(sentence, sizeof sentence,
             "the message for member 1 of a group is damaged: it says that it has %lld bytes, of "
             "at most 64",
             (long long)lengths[l]);
    assert_string_equal(status_text(), sentence);
    must_fail(comm_check_varying(group, sent, 64, 64, false), STATUS_INPUT,
              "the message from member 1 of a group is damaged");
  }
  comm_group_destroy(group);
}

/* A second transport and a second device, next to the first ones. They do the same, and count their
 * calls. */
static int carried, summed;

static enum status count_gather(struct comm_group *group, struct lane *on,
                                const struct comm_places *places, void *full)
{
  carried++;
  return comm_mpi_transport.all_gather(group, on, places, full);
}

static enum status count_exchange(struct comm_group *group, struct lane *on,
                                  const struct comm_messages *messages)
{
  carried++;
  return comm_mpi_transport.exchange(group, on, messages);
}

static enum status count_sum(struct comm_group *group, struct lane *on, struct exactsum *sums,
                             int n)
{
  carried++;
  return comm_mpi_transport.sum_exact(group, on, sums, n);
}

static enum status count_sum_parts(struct lane *on, int64_t n, int parts, enum dtype type,
                                   const void *base, int64_t stride, bool accumulate, void *dst)
{
  summed++;
  return device->ops->sum_parts(on, n, parts, type, base, stride, accumulate, dst);
}

/* Collectives of a group on a lane, and how often each of the two was called. */
static void expect_counts(struct worker *w, struct comm_group *group, enum dtype wire,
                          const int transports[3], int sums)
{
  w->group = group;
  carried = summed = 0;
  must(worker_gather(w, false));
  assert_int_equal(carried, transports[0]);
  carried = 0;
  for (int way = 0; way < 3; way++)
    must(worker_reduce(w, wire, way == 1, way == 2));
  assert_int_equal(carried, transports[1]);
  assert_int_equal(summed, sums);
  carried = 0;
  must(worker_sum(w));
  assert_int_equal(carried, transports[2]);
}

/* Gathers run between GPUs while gradients are reduced on the hosts. The behaviour of a group
 * depends on its own transport and on the device of the given lane. */
TEST(transports_live_side_by_side)
{
  const struct grouping everybody = {comm_ranks(job), 1};
  struct comm_transport_ops other_transport = comm_mpi_transport;
  struct device_ops other_ops = *device->ops;
  struct device *other_device;
  static struct worker mine, theirs;
  const bool travels = comm_ranks(job) > 1;
  other_transport.open = comm_transport_open_nothing;
  other_transport.close = comm_transport_close_nothing;
  other_transport.all_gather = count_gather;
  other_transport.exchange = count_exchange;
  other_transport.sum_exact = count_sum;
  other_ops.sum_parts = count_sum_parts;
  must(device_create("host", 0, DTYPE_F32, &other_device));
  other_device->ops = &other_ops;

  job->transport = &other_transport;
  struct comm_group *other = make_group(everybody);
  must(comm_set_transport(job, "mpi"));
  struct comm_group *group = make_group(everybody);
  assert_ptr_equal(other->transport, &other_transport);
  assert_ptr_equal(group->transport, &comm_mpi_transport);

  static const int none[3] = {0, 0, 0};
  const int calls[3] = {travels, travels ? 3 : 0, travels},
            sums = travels ? 3 : 2; /* in place a single member has nothing to do */
  open_worker(&mine, device, everybody, group);
  open_worker(&theirs, other_device, everybody, group);
  expect_counts(&mine, group, DTYPE_F32, none, 0);
  expect_counts(&mine, other, DTYPE_F32, calls, 0);
  expect_counts(&theirs, group, DTYPE_F32, none, sums);
  expect_counts(&theirs, other, DTYPE_BF16, calls, sums);
  carried = 0;
  must(comm_group_barrier(other)); /* has no transport */
  assert_int_equal(carried, 0);
  worker_close(&mine);
  worker_close(&theirs);
  comm_group_destroy(other);
  comm_group_destroy(group);
  other_device->ops = device->ops;
  device_destroy(other_device);
}

static void assert_note(int64_t bytes)
{
  assert_true((int64_t)note.count * comm_ranks(job) <= INT_MAX);
  assert_true((int64_t)note.count * note.extent == bytes);
}

/* Open MPI before 4.1.4 computes member * count in an int, so that product has to fit too.
 * Nothing is moved: these buffers would have up to 32 GiB, and pointers into them are never
 * followed. */
TEST(a_member_s_place_fits_an_int)
{
  const int64_t ranks = comm_ranks(job), counts[] = {INT_MAX / ranks, INT_MAX / ranks + 1, INT_MAX,
                                                     INT64_C(1) << 31, (INT64_C(1) << 32) + 3};
  struct comm_group *world;
  char part, whole;
  must(comm_group_create(job, comm_evenly(job, comm_ranks(job), 1), false,
                         &world)); /* by messages */
  note.on = true;
  for (size_t i = 0; ranks > 1 && i < sizeof counts / sizeof *counts; i++) {
    const struct comm_places places = {counts[i], counts[i], 1, 0};
    must(world->transport->all_gather(world, lane, &places, &whole));
    assert_note(counts[i]);
    const struct comm_messages messages = {counts[i], false, &part, counts[i], &whole, counts[i]};
    must(world->transport->exchange(world, lane, &messages));
    assert_note(counts[i]);
  }
  note.on = false;
  comm_group_destroy(world);
}

/* By nodes of every size, through boxes and by messages. */
TEST(a_gather_in_two_hops_is_one)
{
  struct grouping list[2 * MOST_RANKS];
  const int n = groupings(list);
  static struct worker w;
  for (int i = 0; i < n * WAYS * MOST_RANKS; i++) {
    const struct grouping g = list[i / MOST_RANKS / WAYS];
    const int node = 1 + i % MOST_RANKS;
    if (g.size % node != 0)
      continue;
    choose_way((enum way)(i / MOST_RANKS % WAYS));
    struct comm_group *group = make_group(g);
    must(comm_group_gather_by_nodes(group, comm_evenly(job, node, g.apart),
                                    comm_evenly(job, g.size / node, node * g.apart)));
    assert_int_equal(comm_group_size(group->node), node);
    open_worker(&w, device, g, group);
    for (int how = 0; how < 4; how++) {
      comm_mpi_set_count_limit(how < 2 ? 100 : INT_MAX);
      must(worker_gather(&w, how % 2));
      must(worker_gather_varying(&w, how));
    }
    worker_close(&w);
    must(comm_group_register(group, &w, sizeof w));
    must(comm_group_check(group));
    comm_group_destroy(group);
  }
  choose_way(BOXES);
}

/* The first rank with the last one, and so on: only the pair in the middle is consecutive. */
TEST(groups_have_any_ranks)
{
  static struct worker w;
  const int ranks = comm_ranks(job), rank = comm_rank(job), mirror = ranks - 1 - rank;
  const bool lower = rank < mirror;
  const struct comm_members pair = {
      .size = 2, .index = !lower, .first = lower ? rank : mirror, .last = lower ? mirror : rank};
  for (enum way way = MESSAGES; way < WAYS && ranks % 2 == 0; way++) {
    struct comm_group *group;
    choose_way(way);
    must(comm_group_create(job, pair, true, &group));
    assert_true((group->transport_data != NULL) == (way != MESSAGES && ranks == 2));
    worker_open(&w, device, group, 0);
    w.rank[0] = pair.first;
    w.rank[1] = pair.last;
    must(worker_run(&w));
    worker_close(&w);
    comm_group_destroy(group);
  }
  choose_way(BOXES);
}

TEST(a_node_without_room_sends_messages)
{
  const struct grouping everybody = {comm_ranks(job), 1};
  assert_int_equal(setenv("OMPI_MCA_osc_sm_backing_directory", "/proc", 1), 0);
  struct comm_group *group = make_group(everybody);
  assert_int_equal(unsetenv("OMPI_MCA_osc_sm_backing_directory"), 0);
  assert_null(group->transport_data);
  run_group(everybody, group);
  comm_group_destroy(group);
}

/* Predicted, and counted by the first member of each block. Boxes made for sums alone have none of
 * this memory. They gather and reduce nevertheless. */
TEST(shared_bytes_of_a_node_are_known_before)
{
  struct grouping list[2 * MOST_RANKS];
  const int n = groupings(list);
  const int ranks = comm_ranks(job), local_ranks = comm_local_ranks(job);
  for (int i = 0; i < n; i++) {
    const int64_t told =
        comm_group_shared_bytes(local_ranks, comm_evenly(job, list[i].size, list[i].apart));
    for (int sums = 0; sums < 2; sums++) {
      struct comm_group *group;
      int64_t held = -mem_usage(MEM_META).bytes;
      must(comm_group_create(job, comm_evenly(job, list[i].size, list[i].apart), !sums, &group));
      held += mem_usage(MEM_META).bytes;
      must(comm_sum_i64(job, &held, 1));
      assert_in_range(held - (sums ? 0 : told), 0,
                      comm_ranks(job) *
                          (4096 + 1024)); /* a rest of a page, and what describes it */
      assert_true(!sums || !group->transport_data);
      run_group(list[i], group);
      comm_group_destroy(group);
    }
  }
  assert_int_equal(comm_group_shared_bytes(local_ranks, comm_evenly(job, ranks, 1)) > 0, ranks > 1);
}

static int start(void **state)
{
  if (start_job(state) || device_create("host", 0, DTYPE_F32, &device))
    return -1;
  return device->ops->lane_create(device, "test", LANE_ROLE_COMPUTE, 1, &lane) ? -1 : 0;
}

static int stop(void **state)
{
  device->ops->lane_destroy(lane);
  device_destroy(device);
  return stop_job(state);
}

TEST_MAIN(start, stop)
