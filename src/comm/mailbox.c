#include "comm/mailbox.h"

#include <stdatomic.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "comm/ops.h"
#include "device/device.h"
#include "device/lane.h"

enum { LINE = 128 }; /* two cache lines: processors fetch them in pairs */

/* How many pieces a member has put into its box so far. */
struct posted {
  _Alignas(LINE) _Atomic int64_t pieces;
};

struct mailbox {
  struct comm_shared *shared; /* posted [size], then the boxes of 2 * half bytes */
  struct posted *posted;
  char *boxes;
  int64_t half;
  int64_t pieces; /* of this member */
  int size, index;
};

static int64_t half_bytes = 1 << 20;

void mailbox_set_half(int64_t bytes)
{
  half_bytes = bytes;
}

static int64_t half_for(int size)
{
  const int64_t least = (int64_t)size * LINE;
  return half_bytes > least ? half_bytes : least;
}

int64_t mailbox_bytes(int size)
{
  return size * ((int64_t)sizeof(struct posted) + 2 * half_for(size));
}

enum status mailbox_create(struct comm *comm, int size, struct mailbox **out)
{
  void *block;
  enum status status = comm_agree(comm, mem_alloc(MEM_META, sizeof(struct mailbox), &block));
  if (status)
    return status;
  struct mailbox *box = block;
  *box = (struct mailbox){.half = half_for(size), .size = size, .index = comm->rank % size};
  status = comm_shared_create_as(comm, MEM_META, size, mailbox_bytes(size), &box->shared);
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

void mailbox_destroy(struct mailbox *box)
{
  if (!box)
    return;
  comm_shared_destroy(box->shared);
  mem_free(box);
}

/* Members share cores, and the others may be far behind: a few looks, then sleep, as for MPI's messages. */
static void wait_for(struct posted *posted, int64_t pieces)
{
  enum { LOOKS = 2000, SLEEP_NS = 20000, MOST_SLEEP_NS = 50000 };
  struct timespec pause = {.tv_nsec = SLEEP_NS};
  for (int64_t look = 0; atomic_load_explicit(&posted->pieces, memory_order_acquire) < pieces; look++) {
    if (look < LOOKS)
      continue;
    (void)nanosleep(&pause, NULL); /* waking early only means to look early */
    if (pause.tv_nsec < MOST_SLEEP_NS)
      pause.tv_nsec += pause.tv_nsec / 4;
  }
}

/* Where `member` has the piece that comes next, or has come last. */
static char *half_of(const struct mailbox *box, int member, int64_t piece)
{
  return box->boxes + (2 * member + piece % 2) * box->half;
}

/* Who has posted a piece has read all of the one before, and nobody posts this one before it has that: a half that is written anew is read by nobody. */
static void post_and_wait(struct mailbox *box)
{
  box->pieces++;
  atomic_store_explicit(&box->posted[box->index].pieces, box->pieces, memory_order_release);
  for (int member = 0; member < box->size; member++)
    wait_for(&box->posted[member], box->pieces);
}

static int64_t smaller(int64_t a, int64_t b)
{
  return a < b ? a : b;
}

enum status mailbox_all_gather(struct mailbox *box, struct lane *lane, const void *shard, int64_t count, enum dtype type, void *full)
{
  const struct device_ops *ops = lane->device->ops;
  const int64_t bytes = count * (int64_t)dtype_size(type);
  char *mine = (char *)full + box->index * bytes;
  enum status status = shard == mine ? STATUS_OK : ops->copy(lane, mine, shard, (size_t)bytes);
  for (int64_t done = 0, now; !status && done < bytes; done += now) {
    const int64_t piece = box->pieces;
    now = smaller(bytes - done, box->half);
    status = ops->copy(lane, half_of(box, box->index, piece), mine + done, (size_t)now);
    if (!status)
      post_and_wait(box);
    for (int member = 0; !status && member < box->size; member++)
      if (member != box->index)
        status = ops->copy(lane, (char *)full + member * bytes + done, half_of(box, member, piece), (size_t)now);
  }
  return status;
}

/* `now` elements from `done` on of all parts, in the type in which they travel, `room` elements apart. */
static enum status fill(const struct mailbox *box, struct lane *lane, const char *full, int64_t count, int64_t done, int64_t now, int64_t room,
                        enum dtype type)
{
  const enum dtype gradient = lane->device->model.gradient;
  char *half = half_of(box, box->index, box->pieces);
  enum status status = STATUS_OK;
  for (int member = 0; !status && member < box->size; member++)
    status = lane->device->ops->cast(lane, now, gradient, full + (member * count + done) * (int64_t)dtype_size(gradient), type,
                                     half + member * room * (int64_t)dtype_size(type));
  return status;
}

/* The sum of what arrives is taken where it lies, element by element in the order of any reduce-scatter. */
enum status mailbox_reduce_scatter(struct mailbox *box, struct lane *lane, const void *full, int64_t count, enum dtype type, bool accumulate,
                                   void *shard)
{
  const enum dtype gradient = lane->device->model.gradient;
  const int64_t size = (int64_t)dtype_size(type), room = box->half / box->size / LINE * (LINE / size);
  enum status status = STATUS_OK;
  for (int64_t done = 0, now; !status && done < count; done += now) {
    const int64_t piece = box->pieces;
    now = smaller(count - done, room);
    status = fill(box, lane, full, count, done, now, room, type);
    if (status)
      break;
    post_and_wait(box);
    status = lane->device->ops->sum_parts(lane, now, box->size, type, half_of(box, 0, piece) + box->index * room * size, 2 * box->half / size,
                                          accumulate, (char *)shard + done * (int64_t)dtype_size(gradient));
  }
  return status;
}
