#include "rounds.h"
#include "tests/test.h"

#include "apart.h"
#include "reduce.h"

enum { COUNT = ROUNDS_COUNT, MAXIMA = 20001 };

static void *take(struct device *device, size_t bytes)
{
  void *ptr;
  must(device->ops->alloc(device, MEM_META, bytes, &ptr));
  return ptr;
}

void worker_open(struct worker *w, struct device *device, struct comm_group *group, int salt)
{
  *w = (struct worker){.group = group, .device = device, .salt = salt, .rank = {0, 1, 2, 3, 4}};
  must(device->ops->lane_create(device, "test", LANE_ROLE_COMPUTE, 1, &w->lane));
  must(device->ops->mark_create(device, &w->end));
  w->full = take(device, (ROUNDS_MEMBERS * COUNT + 1) * sizeof(float));
  w->staging = take(device, 2 * ROUNDS_MEMBERS * COUNT * sizeof(float));
  w->shard = take(device, COUNT * sizeof(float));
  w->sums = take(device, 2 * sizeof(struct exactsum));
  w->maxima = take(device, MAXIMA * sizeof *w->maxima);
}

void worker_close(struct worker *w)
{
  void *const memory[] = {w->full, w->staging, w->shard, w->sums, w->maxima};
  w->device->ops->lane_destroy(w->lane);
  w->device->ops->mark_destroy(w->end);
  for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
    w->device->ops->release(w->device, memory[i]);
}

/* The host reads the device's memory only after it has waited for the lane. */
static enum status settle(struct worker *w)
{
  enum status status = w->device->ops->mark_set(w->lane, w->end);
  return status ? status : w->device->ops->mark_wait(w->end);
}

/* The lane itself makes what is sent, so that it is late: the transport has to wait for it. */
static enum status fill(struct worker *w, void *to, int64_t n)
{
  const int rank = comm_rank(job);
  for (int64_t i = 0; i < n; i++)
    w->mine[i] = data_value(w->salt, rank, i);
  return w->device->ops->copy(w->lane, to, w->mine, (size_t)n * sizeof(float));
}

enum status worker_gather(struct worker *w, bool in_place)
{
  const int index = comm_group_index(w->group), size = comm_group_size(w->group);
  static const float guard = 0.5f;
  static _Thread_local float got[ROUNDS_MEMBERS * COUNT + 1];
  apart_put(w->full + size * COUNT, &guard, sizeof guard);
  float *from = in_place ? w->full + index * COUNT : w->shard;
  enum status status = fill(w, from, COUNT);
  if (!status)
    status = comm_all_gather(w->group, w->lane, from, COUNT * sizeof(float), false, w->full);
  if (!status)
    status = settle(w);
  if (status)
    return status;
  apart_get(w->full, (size_t)(size * COUNT + 1) * sizeof(float), got);
  for (int i = 0; i < size * COUNT; i++)
    if (got[i] != data_value(w->salt, w->rank[i / COUNT], i % COUNT))
      return status_set(STATUS_INTERNAL, "an all-gather of lane %d is wrong at %d", w->salt, i);
  return got[size * COUNT] == guard
             ? STATUS_OK
             : status_set(STATUS_INTERNAL, "an all-gather of lane %d writes behind its end",
                          w->salt);
}

/* Lengths that are no multiple of an element, and of a piece only by chance. */
static enum status exchange_round(struct worker *w, int round)
{
  static const int64_t lengths[ROUNDS] = {1, 99, 611, 1000, 1280, COUNT * sizeof(float) - 1};
  static _Thread_local unsigned char mine[ROUNDS_MEMBERS * COUNT * sizeof(float)],
      got[sizeof mine + 1];
  const int me = comm_rank(job), size = comm_group_size(w->group);
  const int64_t bytes = lengths[round], all = size * bytes;
  for (int64_t i = 0; i < all; i++)
    mine[i] = data_byte(w->salt, me, w->rank[i / bytes], i % bytes);
  const unsigned char guard = 0xee;
  apart_put((char *)w->staging + all, &guard, 1);
  enum status status = w->device->ops->copy(w->lane, w->full, mine, (size_t)all);
  if (!status)
    status = comm_exchange(w->group, w->lane, w->full, bytes, false, w->staging);
  if (!status)
    status = settle(w);
  if (status)
    return status;
  apart_get(w->staging, (size_t)all + 1, got);
  for (int64_t i = 0; i < all; i++)
    if (got[i] != data_byte(w->salt, w->rank[i / bytes], me, i % bytes))
      return status_set(STATUS_INTERNAL, "an exchange of lane %d is wrong at %d", w->salt, (int)i);
  return got[all] == guard
             ? STATUS_OK
             : status_set(STATUS_INTERNAL, "an exchange of lane %d writes after its end", w->salt);
}

const int64_t worker_varying[ROUNDS] = {16, 104, 616, 1000, 1280, COUNT * sizeof(float) - 8};

static enum status varying_round(struct worker *w, int round)
{
  static _Thread_local unsigned char mine[ROUNDS_MEMBERS * COUNT * sizeof(float)], got[sizeof mine],
      expected[COUNT * sizeof(float)];
  const int me = comm_rank(job), size = comm_group_size(w->group);
  const int64_t bytes = worker_varying[round], all = size * bytes;
  memset(got, 0xee, sizeof got);
  apart_put(w->staging, got, (size_t)all);
  memset(mine, 0xee, sizeof mine);
  for (int m = 0; m < size; m++)
    data_message(w->salt, me, w->rank[m], bytes, mine + m * bytes);
  enum status status = w->device->ops->copy(w->lane, w->full, mine, (size_t)all);
  if (!status)
    status = comm_exchange(w->group, w->lane, w->full, bytes, true, w->staging);
  if (!status)
    status = settle(w);
  if (status)
    return status;
  apart_get(w->staging, (size_t)all, got);
  for (int m = 0; m < size; m++) {
    memset(expected, 0xee, sizeof expected);
    data_message(w->salt, w->rank[m], me, bytes, expected);
    if (memcmp(got + m * bytes, expected, (size_t)bytes) != 0)
      return status_set(STATUS_INTERNAL, "a message of lane %d from member %d is wrong", w->salt,
                        m);
  }
  return STATUS_OK;
}

/* Each member has one message for all. A hop between nodes moves no byte after its end. */
enum status worker_gather_varying(struct worker *w, int round)
{
  static _Thread_local unsigned char got[ROUNDS_MEMBERS * COUNT * sizeof(float) + 1],
      expected[COUNT * sizeof(float)];
  const int me = comm_rank(job), size = comm_group_size(w->group);
  const int64_t bytes = worker_varying[round], all = size * bytes;
  char *const full = (char *)w->staging,
              *from = round % 2 ? (char *)w->shard : full + comm_group_index(w->group) * bytes;
  memset(got, 0xee, sizeof got);
  apart_put(full, got, (size_t)all + 1);
  memset(expected, 0xee, sizeof expected);
  data_message(w->salt, me, me, bytes, expected);
  enum status status = w->device->ops->copy(w->lane, from, expected, (size_t)bytes);
  status = status ?: comm_all_gather(w->group, w->lane, from, bytes, true, full) ?: settle(w);
  if (status)
    return status;
  apart_get(full, (size_t)all + 1, got);
  for (int m = 0; m < size; m++) {
    memset(expected, 0xee, sizeof expected);
    data_message(w->salt, w->rank[m], w->rank[m], bytes, expected);
    if (memcmp(got + m * bytes, expected, (size_t)bytes) != 0)
      return status_set(STATUS_INTERNAL, "message %d of lane %d is gathered wrongly", m, w->salt);
  }
  return got[all] == 0xee ? STATUS_OK
                          : status_set(STATUS_INTERNAL, "lane %d gathers too much", w->salt);
}

static enum status check_sum(const struct worker *w, enum dtype wire, const float *before,
                             const float *got)
{
  const int index = comm_group_index(w->group), size = comm_group_size(w->group);
  for (int i = 0; i < COUNT; i++) {
    float terms[ROUNDS_MEMBERS];
    for (int m = 0; m < size; m++)
      terms[m] = data_arrives(size, wire, data_value(w->salt, w->rank[m], index * COUNT + i));
    const float sum = data_tree_sum(terms, size), expected = before ? before[i] + sum : sum;
    if (memcmp(&got[i], &expected, sizeof expected) != 0)
      return status_set(STATUS_INTERNAL, "a reduce-scatter of lane %d by %s is wrong at %d",
                        w->salt, dtype_name(wire), i);
  }
  return STATUS_OK;
}

enum status worker_reduce(struct worker *w, enum dtype wire, bool accumulate, bool in_place)
{
  static const float guard = 0.5f;
  static _Thread_local float got[COUNT], before[COUNT];
  const int size = comm_group_size(w->group);
  float *const shard = in_place ? w->full + comm_group_index(w->group) * COUNT : w->shard;
  float behind;
  apart_put(w->staging + size * COUNT, &guard, sizeof guard);
  enum status status = fill(w, w->full, size * COUNT);
  for (int i = 0; i < COUNT; i++)
    before[i] = 0.25f * (float)i;
  if (!status)
    status = w->device->ops->copy(w->lane, w->shard, before, sizeof before);
  if (!status)
    status = reduce_scatter(w->group, w->lane, w->full, COUNT, wire, w->staging, accumulate, shard);
  if (!status)
    status = settle(w);
  if (status)
    return status;
  apart_get(w->staging + size * COUNT, sizeof behind, &behind);
  apart_get(shard, sizeof got, got);
  return behind == guard ? check_sum(w, wire, accumulate ? before : NULL, got)
                         : status_set(STATUS_INTERNAL, "the staging of lane %d is full", w->salt);
}

enum status worker_sum(struct worker *w)
{
  struct exactsum mine[2], expected[2], got[2];
  data_sum(w->salt, 1, &(int){comm_rank(job)}, mine);
  data_sum(w->salt, comm_group_size(w->group), w->rank, expected);
  enum status status = w->device->ops->copy(w->lane, w->sums, mine, sizeof mine);
  if (!status)
    status = comm_group_sum_exact(w->group, w->lane, w->sums, 2);
  if (!status)
    status = settle(w);
  if (status)
    return status;
  apart_get(w->sums, sizeof got, got);
  return memcmp(got, expected, sizeof got) == 0
             ? STATUS_OK
             : status_set(STATUS_INTERNAL, "an exact sum of lane %d is wrong", w->salt);
}

/* More than a slot of a transport that stages. The most of a third of the words is NaN. */
static enum status worker_max(struct worker *w)
{
  static const uint32_t kinds[3] = {0xbf80bf80, 0x3f800000, 0x7fc00000};
  static _Thread_local uint32_t words[MAXIMA];
  const int size = comm_group_size(w->group), index = comm_group_index(w->group);
  for (int i = 0; i < MAXIMA; i++)
    words[i] = i % size == index ? kinds[(i + w->salt) % 3] : (uint32_t)(i % 7);
  enum status status = w->device->ops->copy(w->lane, w->maxima, words, sizeof words);
  status = status ?: comm_group_max_u32(w->group, w->lane, w->maxima, MAXIMA) ?: settle(w);
  if (status)
    return status;
  apart_get(w->maxima, sizeof words, words);
  for (int i = 0; i < MAXIMA && !status; i++)
    if (words[i] != kinds[(i + w->salt) % 3])
      status = status_set(STATUS_INTERNAL, "maximum %d of lane %d is wrong", i, w->salt);
  return status;
}

enum status worker_run(void *worker)
{
  struct worker *w = worker;
  enum status status = STATUS_OK;
  for (int round = 0; !status && round < ROUNDS; round++) {
    status = worker_gather(w, round % 2);
    if (!status)
      status = exchange_round(w, round);
    if (!status)
      status = varying_round(w, round) ?: worker_gather_varying(w, round);
    if (!status) /* =, +=, = in place */
      status = worker_reduce(w, round < 3 ? DTYPE_F32 : DTYPE_BF16, round % 3 == 1, round % 3 == 2);
    if (!status)
      status = worker_sum(w) ?: worker_max(w);
  }
  return status;
}
