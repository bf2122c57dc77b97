/* Moves device memory by MPI. An MPI library that accepts pointers to device memory gets them. For
 * other libraries data are staged through pinned host memory, piece by piece. While one piece is
 * sent between ranks, the next one is copied from the device and the previous one to it.
 *
 * The work of a device's lane runs later than the calls of its thread, and MPI does not know this.
 * So the thread waits for the work issued so far before MPI reads or writes. Received data are put
 * on the lane as a copy. A thread waits for that copy only before it reuses the copy's host
 * memory. */
#include "base/log.h"
#include "base/mem.h"
#include "comm/lengths.h"
#include "comm/messages.h"
#include "device/device.h"
#include "device/lane.h"

enum { SLOTS = 4 };
static const int64_t stage_bytes = 2 << 20, direct_bytes = 1 << 30; /* of a message */

struct slot {
  char *sent, *received;  /* `piece` bytes each */
  struct mark *down, *up; /* the copies that filled `sent`, and that empty `received` */
  MPI_Request request[2];
};

struct stage {
  struct device *device;
  MPI_Comm members;
  int size, index;
  bool direct;
  int64_t piece;
  char *memory;
  struct slot slot[SLOTS];
  struct comm_lengths lengths;
};

/* One message to a member and one from a member. */
struct transfer {
  const char *from;
  char *to;
  int64_t bytes, incoming; /* sent, received */
  int target, source;
};

static struct {
  int direct; /* -1: as MPI says */
  int64_t piece;
} forced = {.direct = -1};

void comm_mpi_force_stage(int direct, int64_t piece)
{
  forced.direct = direct;
  forced.piece = piece;
}

static bool takes_memory_of(const struct device *device)
{
  return forced.direct < 0 ? device->model.host_memory || comm_mpi_cuda_aware() > 0
                           : forced.direct != 0;
}

const char *comm_mpi_device_way(const struct device *device)
{
  return takes_memory_of(device) ? "mpi, with pointers to device memory"
                                 : "mpi, staged through pinned memory of the host";
}

/* --- a group's stage ----------------------------------------------------- */

static void destroy(struct stage *stage)
{
  const struct device_ops *ops = stage->device->ops;
  for (int i = 0; i < SLOTS; i++) {
    if (stage->slot[i].up && ops->mark_wait(stage->slot[i].up))
      log_warn("%s", status_text());
    ops->mark_destroy(stage->slot[i].up);
    ops->mark_destroy(stage->slot[i].down);
  }
  if (stage->memory)
    ops->release_host(stage->device, stage->memory);
  comm_lengths_destroy(stage->device, &stage->lengths);
  mem_free(stage);
}

/* Sums and maxima are always staged. */
static enum status take_slots(struct stage *stage)
{
  enum { LEAST = 1 << 16 };
  _Static_assert(sizeof(struct exactsum) <= LEAST, "a sum is in one piece");
  const struct device_ops *ops = stage->device->ops;
  const int64_t bytes = stage->direct || stage->piece < LEAST ? LEAST : stage->piece;
  void *memory;
  enum status status =
      ops->alloc_host(stage->device, MEM_META, (size_t)(2 * SLOTS * bytes), &memory);
  if (status)
    return status;
  stage->memory = memory;
  for (int i = 0; !status && i < SLOTS; i++) {
    struct slot *slot = &stage->slot[i];
    slot->sent = stage->memory + 2 * i * bytes;
    slot->received = slot->sent + bytes;
    status = ops->mark_create(stage->device, &slot->down);
    status = status ?: ops->mark_create(stage->device, &slot->up);
  }
  return status;
}

/* The part that is local to a member. */
static enum status create(struct comm_group *group, bool direct, struct stage **out)
{
  struct stage *stage;
  enum status status = mem_new(MEM_META, 1, &stage);
  if (status)
    return status;
  *stage = (struct stage){.device = group->comm->device,
                          .members = group->members,
                          .size = group->size,
                          .index = group->index,
                          .direct = direct,
                          .piece = forced.piece ? forced.piece
                                   : direct     ? direct_bytes
                                                : stage_bytes};
  status = take_slots(stage) ?: comm_lengths_create(group, stage->device, &stage->lengths);
  if (status)
    destroy(stage);
  else
    *out = stage;
  return status;
}

/* All members must cut messages in the same way. So if one of them must stage, all do. */
static enum status open_stage(struct comm_group *group)
{
  struct comm *comm = group->comm;
  if (!comm->device)
    return status_set(STATUS_INTERNAL, "MPI cannot move device memory, because no device is set");
  int64_t staged = !takes_memory_of(comm->device);
  enum status status = comm_max_i64(comm, &staged, 1);
  if (status)
    return status;
  struct stage *stage = NULL;
  status = comm_agree(comm, create(group, staged == 0, &stage));
  if (!status)
    group->transport_data = stage;
  else if (stage)
    destroy(stage);
  return status;
}

static void close_stage(struct comm_group *group)
{
  destroy(group->transport_data);
}

/* --- messages ------------------------------------------------------------ */

/* If MPI gets device memory, waits for the work that writes the data, and for the work that reads
 * memory to be overwritten. */
static enum status settle(const struct stage *stage, struct lane *lane)
{
  struct mark *mark = stage->slot[0].down;
  if (!stage->direct)
    return STATUS_OK;
  return stage->device->ops->mark_set(lane, mark) ?: stage->device->ops->mark_wait(mark);
}

static enum status fetch(const struct stage *stage, struct lane *lane, struct slot *slot,
                         const char *from, int64_t bytes)
{
  if (stage->direct)
    return STATUS_OK;
  enum status status = stage->device->ops->copy(lane, slot->sent, from, (size_t)bytes);
  return status ? status : stage->device->ops->mark_set(lane, slot->down);
}

/* Receives are posted first, so that arriving data find their buffer. */
static enum status post(const struct stage *stage, struct slot *slot, const char *sent,
                        char *received, const struct transfer *t)
{
  enum { TAG = 0 };
  const int bytes = (int)t->bytes, incoming = (int)t->incoming; /* at most a piece */
  return COMM_MPI(MPI_Irecv(received, incoming, MPI_BYTE, t->source, TAG, stage->members,
                            &slot->request[0]))
             ?: COMM_MPI(MPI_Isend(sent, bytes, MPI_BYTE, t->target, TAG, stage->members,
                                   &slot->request[1]));
}

static enum status finish(const struct stage *stage, struct lane *lane, struct slot *slot,
                          const struct transfer *t)
{
  enum status status = comm_mpi_wait(MPI_SUCCESS, "MPI_Irecv", &slot->request[0]);
  status = status ?: comm_mpi_wait(MPI_SUCCESS, "MPI_Isend", &slot->request[1]);
  if (status || stage->direct)
    return status;
  status = stage->device->ops->copy(lane, t->to, slot->received, (size_t)t->incoming);
  return status ? status : stage->device->ops->mark_set(lane, slot->up);
}

/* --- all-gather: a ring, in which every part crosses each link once, and is copied from its device
 * once --------------------------------------- */

struct ring {
  struct stage *stage;
  struct lane *lane;
  char *full;
  int64_t part, stride; /* bytes of a part, and from one member's to the next one's */
};

/* The step in which piece `done` of a part is sent on to the right. The part came `step` steps ago,
 * or is this member's own (`own`). */
static enum status pass_on(const struct ring *ring, int64_t turn, int step, int64_t done,
                           const struct slot *own)
{
  struct stage *stage = ring->stage;
  const int size = stage->size, sent = (stage->index - step + size) % size,
            received = (sent - 1 + size) % size;
  const struct transfer t = {.from = ring->full + sent * ring->stride + done,
                             .to = ring->full + received * ring->stride + done,
                             .bytes = comm_smaller(ring->part - done, stage->piece),
                             .incoming = comm_smaller(ring->part - done, stage->piece),
                             .target = (stage->index + 1) % size,
                             .source = (stage->index - 1 + size) % size};
  struct slot *slot = &stage->slot[turn % SLOTS];
  const char *from = stage->direct ? t.from
                     : step == 0   ? own->sent
                                   : stage->slot[(turn - 1) % SLOTS].received;
  enum status status = stage->direct ? STATUS_OK : stage->device->ops->mark_wait(slot->up);
  if (!status && step == 0 && !stage->direct)
    status = stage->device->ops->mark_wait(own->down);
  if (!status)
    status = post(stage, slot, from, stage->direct ? t.to : slot->received, &t);
  return status ? status : finish(stage, ring->lane, slot, &t);
}

static enum status fetch_own(const struct ring *ring, int64_t done, struct slot *own)
{
  const struct stage *stage = ring->stage;
  if (done >= ring->part)
    return STATUS_OK;
  return fetch(stage, ring->lane, own, ring->full + stage->index * ring->stride + done,
               comm_smaller(ring->part - done, stage->piece));
}

static enum status run_ring(struct stage *stage, const struct ring *ring)
{
  enum status status = settle(stage, ring->lane) ?: fetch_own(ring, 0, &stage->slot[0]);
  int64_t turn = 0;
  for (int64_t done = 0, column = 0; !status && done < ring->part; done += stage->piece, column++) {
    status = fetch_own(ring, done + stage->piece, &stage->slot[(column + 1) % 2]);
    for (int step = 0; !status && step < stage->size - 1; step++)
      status = pass_on(ring, turn++, step, done, &stage->slot[column % 2]);
  }
  return status;
}

static enum status all_gather(struct comm_group *group, struct lane *lane,
                              const struct comm_places *places, void *full)
{
  struct ring ring = {group->transport_data, lane, full, places->bytes, places->stride};
  enum status status = STATUS_OK;
  for (int p = 0; p < places->pieces && !status; p++, ring.full += places->apart)
    status = run_ring(group->transport_data, &ring);
  return status;
}

/* --- exchange: with one member after the other, so that pairs are disjoint --- */

/* lengths NULL: all messages have all bytes. */
struct swap {
  const struct comm_messages *m;
  const struct comm_lengths *lengths;
};

static int64_t pieces_of(const struct stage *stage, const struct swap *s)
{
  return (s->m->bytes + stage->piece - 1) / stage->piece;
}

/* Length of the next piece of a message of which `done` bytes are done: a full piece, the rest, or
 * 0. */
static int64_t piece_of(const struct stage *stage, int64_t length, int64_t done)
{
  return length < done ? 0 : comm_smaller(length - done, stage->piece);
}

/* Piece `turn` of all that this member sends. The other members work on the same turn. */
static struct transfer find_transfer(const struct stage *stage, int64_t turn, const struct swap *s)
{
  const struct comm_messages *m = s->m;
  const int64_t pieces = pieces_of(stage, s), done = turn % pieces * stage->piece;
  const int away = 1 + (int)(turn / pieces), target = (stage->index + away) % stage->size,
            source = (stage->index - away + stage->size) % stage->size;
  const int64_t length = s->lengths ? s->lengths->sent[target] : m->bytes,
                incoming = s->lengths ? s->lengths->received[source] : m->bytes;
  return (struct transfer){.from = m->sent + target * m->apart + done,
                           .to = m->received + source * m->stride + done,
                           .bytes = piece_of(stage, length, done),
                           .incoming = piece_of(stage, incoming, done),
                           .target = target,
                           .source = source};
}

static enum status post_turn(const struct stage *stage, struct slot *slot, const struct transfer *t)
{
  if (stage->direct)
    return post(stage, slot, t->from, t->to, t);
  enum status status = stage->device->ops->mark_wait(
      slot->down); /* put on the lane after the copy that empties `received` */
  return status ? status : post(stage, slot, slot->sent, slot->received, t);
}

/* A turn is copied from the device one turn before it is sent. The thread waits for the copy while
 * later turns fill the other slots. */
static enum status exchange_others(struct stage *stage, struct lane *lane, const struct swap *s)
{
  enum { FETCH, POST, FINISH, STEPS };
  static const int behind[STEPS] = {[POST] = 1, [FINISH] = SLOTS - 1};
  const int64_t turns = (stage->size - 1) * pieces_of(stage, s);
  enum status status = STATUS_OK;
  for (int64_t last = 0; !status && last < turns + SLOTS - 1; last++)
    for (int step = FETCH; !status && step < STEPS; step++) {
      const int64_t turn = last - behind[step];
      if (turn < 0 || turn >= turns)
        continue;
      struct slot *slot = &stage->slot[turn % SLOTS];
      const struct transfer t = find_transfer(stage, turn, s);
      status = step == FETCH  ? fetch(stage, lane, slot, t.from, t.bytes)
               : step == POST ? post_turn(stage, slot, &t)
                              : finish(stage, lane, slot, &t);
    }
  return status;
}

static enum status exchange(struct comm_group *group, struct lane *lane,
                            const struct comm_messages *m)
{
  struct stage *stage = group->transport_data;
  const struct swap s = {m, m->varying ? &stage->lengths : NULL};
  enum status status =
      m->varying ? comm_lengths_exchange(group, &stage->lengths, lane, m) : STATUS_OK;
  if (!status && m->apart)
    status = lane->device->ops->copy(
        lane, m->received + stage->index * m->stride, m->sent + stage->index * m->apart,
        (size_t)(m->varying ? stage->lengths.sent[stage->index] : m->bytes));
  status = status ?: settle(stage, lane);
  return status ? status : exchange_others(stage, lane, &s);
}

/* --- sums and maxima: on the host, as Open MPI would do too --------------- */

/* A slot of the host, with bytes of the device that fit. */
static enum status bring(const struct stage *stage, struct lane *lane, const void *from,
                         size_t bytes)
{
  const struct device_ops *ops = stage->device->ops;
  const struct slot *slot = &stage->slot[0];
  enum status status = ops->copy(lane, slot->sent, from, bytes) ?: ops->mark_set(lane, slot->down);
  return status ? status : ops->mark_wait(slot->down);
}

/* The lane reads the slot before it fills that memory again. */
static enum status give(const struct stage *stage, struct lane *lane, void *to, size_t bytes)
{
  const struct device_ops *ops = stage->device->ops;
  const struct slot *slot = &stage->slot[0];
  const enum status status = ops->copy(lane, to, slot->sent, bytes);
  return status ? status : ops->mark_set(lane, slot->up);
}

static enum status sum_exact(struct comm_group *group, struct lane *lane, struct exactsum *sums,
                             int n)
{
  const struct stage *stage = group->transport_data;
  struct exactsum *copy = (struct exactsum *)(void *)stage->slot[0].sent;
  enum status status = STATUS_OK;
  for (int i = 0; !status && i < n; i++) {
    status = bring(stage, lane, &sums[i], sizeof *sums)
                 ?: comm_mpi_fold(stage->members, copy, EXACTSUM_WORDS, MPI_INT64_T, MPI_SUM);
    if (status)
      return status;
    exactsum_normalize(copy);
    status = give(stage, lane, &sums[i], sizeof *sums);
  }
  return status;
}

static enum status max_u32(struct comm_group *group, struct lane *lane, uint32_t *values, int64_t n)
{
  const struct stage *stage = group->transport_data;
  const int64_t room = (stage->slot[0].received - stage->slot[0].sent) / (int64_t)sizeof *values;
  enum status status = STATUS_OK;
  for (int64_t done = 0; !status && done < n; done += room) {
    const int64_t now = comm_smaller(n - done, room);
    const size_t bytes = (size_t)now * sizeof *values;
    status = bring(stage, lane, values + done, bytes)
                 ?: comm_mpi_fold(stage->members, stage->slot[0].sent, now, MPI_UINT32_T, MPI_MAX)
                 ?: give(stage, lane, values + done, bytes);
  }
  return status;
}

const struct comm_transport_ops comm_mpi_device_transport = {
    .open = open_stage,
    .close = close_stage,
    .all_gather = all_gather,
    .exchange = exchange,
    .sum_exact = sum_exact,
    .max_u32 = max_u32,
    .check = comm_transport_check_nothing,
    .register_memory = comm_transport_register_nothing,
};
