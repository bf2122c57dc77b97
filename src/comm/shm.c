/* Boxes in two halves. A member overwrites a half after all peers have read it. */
#include "comm/shm.h"

#include <stdatomic.h>

#include "base/log.h"
#include "base/mem.h"
#include "comm/ops.h"
#include "device/device.h"
#include "device/lane.h"

enum { LINE = 128 }; /* two cache lines: processors fetch them in pairs */

/* Number of pieces that a member has put into its box so far. */
struct posted {
  _Alignas(LINE) _Atomic int64_t pieces;
};

struct shm {
  struct comm_shared *shared; /* posted [size], then the boxes of 2 * half bytes */
  struct posted *posted;
  char *boxes;
  int64_t half;
  int64_t pieces; /* of this member */
  int size, index;
};

static int64_t half_bytes = 1 << 20;

void shm_set_half(int64_t bytes)
{
  half_bytes = bytes;
}

static int64_t half_for(int size)
{
  const int64_t least = (int64_t)size * LINE;
  return half_bytes > least ? half_bytes : least;
}

int64_t shm_bytes(int size)
{
  return size * ((int64_t)sizeof(struct posted) + 2 * half_for(size));
}

enum status shm_create(struct comm *comm, int size, struct shm **out)
{
  struct shm *box;
  enum status status = comm_agree(comm, mem_new(MEM_META, 1, &box));
  if (status)
    return status;
  *box = (struct shm){.half = half_for(size), .size = size, .index = comm->rank % size};
  status = comm_shared_create_as(comm, MEM_META, size, shm_bytes(size), &box->shared);
  if (status) {
    mem_free(box);
    if (status == STATUS_MEMORY && comm->rank == 0)
      log_warn("ranks of one node exchange data by messages, which is slower: %s", status_text());
    *out = NULL;
    return status == STATUS_UNSUPPORTED || status == STATUS_MEMORY ? STATUS_OK : status;
  }
  box->posted = comm_shared_memory(box->shared);
  box->boxes = (char *)(box->posted + size);
  *out = box;
  return STATUS_OK;
}

void shm_destroy(struct shm *box)
{
  if (!box)
    return;
  comm_shared_destroy(box->shared);
  mem_free(box);
}

static void wait_for(struct posted *posted, int64_t pieces)
{
  enum { LOOKS = 2000 };
  for (int64_t look = 0; atomic_load_explicit(&posted->pieces, memory_order_acquire) < pieces;
       look++)
    comm_rest(look, LOOKS);
}

/* Position of the next or the last piece of `member`. */
static char *half_of(const struct shm *box, int member, int64_t piece)
{
  return box->boxes + (2 * member + piece % 2) * box->half;
}

/* A member posts piece k after it has read piece k - 1 of all others. It fills the half of piece
 * k + 1 after all others have posted piece k. So no member still reads what is overwritten. */
static void post(struct shm *box)
{
  box->pieces++;
  atomic_store_explicit(&box->posted[box->index].pieces, box->pieces, memory_order_release);
}

/* Remaining bytes of a message after `done` bytes, at most `most`. A varying message begins with
 * its length. */
static size_t bytes_of(bool varying, const char *message, int64_t done, int64_t most)
{
  const int64_t left = varying ? comm_varying_length(message) - done : most;
  return left < 0 ? 0 : (size_t)comm_smaller(left, most);
}

/* The messages that a member has, and those that it gets, `bytes` apart. */
struct trade {
  const char *sent;
  char *received;
  int64_t bytes;
  int64_t stride; /* between messages for others; 0: all get the same, and each box has one part */
  int64_t room;   /* of a part in a box */
  bool varying;
};

/* The part for member `to` in the box of member `from`. A box holds no part for its owner. */
static char *part_of(const struct shm *box, const struct trade *t, int from, int to, int64_t piece)
{
  const int place = t->stride ? (to + box->size - from - 1) % box->size : 0;
  return half_of(box, from, piece) + place * t->room;
}

static enum status trade(struct shm *box, struct lane *lane, const struct trade *t)
{
  const struct device_ops *ops = lane->device->ops;
  enum status status = STATUS_OK;
  for (int64_t done = 0, now; !status && done < t->bytes; done += now) {
    const int64_t piece = box->pieces;
    now = comm_smaller(t->bytes - done, t->room);
    for (int away = 1; !status && away < (t->stride ? box->size : 2); away++) {
      const int to = (box->index + away) % box->size;
      const char *message = t->sent + to * t->stride;
      status = ops->copy(lane, part_of(box, t, box->index, to, piece), message + done,
                         bytes_of(t->varying, message, done, now));
    }
    if (!status)
      post(box);
    for (int away = 1; !status && away < box->size; away++) {
      const int from = (box->index + box->size - away) % box->size;
      const char *part = part_of(box, t, from, box->index, piece);
      char *message = t->received + from * t->bytes;
      wait_for(&box->posted[from], box->pieces);
      status = ops->copy(lane, message + done, part,
                         bytes_of(t->varying, done ? message : part, done, now));
    }
  }
  return status;
}

enum status shm_all_gather(struct shm *box, struct lane *lane, int64_t bytes, void *full)
{
  const struct trade t = {.sent = (char *)full + box->index * bytes,
                          .received = full,
                          .bytes = bytes,
                          .room = box->half};
  return trade(box, lane, &t);
}

enum status shm_exchange(struct shm *box, struct lane *lane, const void *sent, int64_t bytes,
                         bool varying, void *received)
{
  const struct trade t = {.sent = sent,
                          .received = received,
                          .bytes = bytes,
                          .stride = bytes,
                          .room = box->half / (box->size - 1) / LINE * LINE,
                          .varying = varying};
  const int64_t own = box->index * bytes;
  enum status status = lane->device->ops->copy(lane, t.received + own, t.sent + own,
                                               bytes_of(varying, t.sent + own, 0, bytes));
  return status ? status : trade(box, lane, &t);
}
