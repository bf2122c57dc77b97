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

/* The part for member `to` in the box of member `from`, with room for so many bytes. A box holds no
 * part for its owner, and one part if all others get the same message. */
static char *part_of(const struct shm *box, bool same, int from, int to, int64_t room,
                     int64_t piece)
{
  const int place = same ? 0 : (to + box->size - from - 1) % box->size;
  return half_of(box, from, piece) + place * room;
}

static enum status trade(struct shm *box, struct lane *lane, const struct comm_messages *m)
{
  const struct device_ops *ops = lane->device->ops;
  const bool same = m->apart == 0;
  const int64_t room = same ? box->half : box->half / (box->size - 1) / LINE * LINE;
  enum status status = STATUS_OK;
  for (int64_t done = 0, now; !status && done < m->bytes; done += now) {
    const int64_t piece = box->pieces;
    now = comm_smaller(m->bytes - done, room);
    for (int away = 1; !status && away < (same ? 2 : box->size); away++) {
      const int to = (box->index + away) % box->size;
      const char *message = m->sent + to * m->apart;
      status = ops->copy(lane, part_of(box, same, box->index, to, room, piece), message + done,
                         bytes_of(m->varying, message, done, now));
    }
    if (!status)
      post(box);
    for (int away = 1; !status && away < box->size; away++) {
      const int from = (box->index + box->size - away) % box->size;
      const char *part = part_of(box, same, from, box->index, room, piece);
      char *message = m->received + from * m->stride;
      wait_for(&box->posted[from], box->pieces);
      status = ops->copy(lane, message + done, part,
                         bytes_of(m->varying, done ? message : part, done, now));
    }
  }
  return status;
}

enum status shm_all_gather(struct shm *box, struct lane *lane, int64_t bytes, void *full)
{
  const struct comm_messages m = {bytes, false, (char *)full + box->index * bytes, 0, full, bytes};
  return trade(box, lane, &m);
}

enum status shm_exchange(struct shm *box, struct lane *lane, const struct comm_messages *m)
{
  const char *own = m->sent + box->index * m->apart;
  enum status status = STATUS_OK;
  if (m->apart)
    status = lane->device->ops->copy(lane, m->received + box->index * m->stride, own,
                                     bytes_of(m->varying, own, 0, m->bytes));
  return status ? status : trade(box, lane, m);
}
