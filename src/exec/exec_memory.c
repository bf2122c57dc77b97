/* The arenas of a job's plans in all tiers: sizes, memory, and the addresses of buffers in them. */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "exec/engine.h"
#include "io/store/store.h"
#include "layout/mesh.h"
#include "plan/arenas.h"

static const char *const tier_names[TIER_COUNT] = {[TIER_DEVICE] = "device",
                                                   [TIER_HOST] = "host",
                                                   [TIER_SHARED] = "shared host",
                                                   [TIER_DISK] = "NVMe"};

static enum status alloc_arena(struct device *device, enum plan_tier tier, enum mem_tag tag,
                               int64_t bytes, void **out)
{
  if (bytes == 0 || (tier != TIER_DEVICE && tier != TIER_HOST))
    return STATUS_OK;
  enum status status = tier == TIER_DEVICE
                           ? device->ops->alloc(device, tag, (size_t)bytes, out)
                           : device->ops->alloc_host(device, tag, (size_t)bytes, out);
  if (status != STATUS_MEMORY)
    return status;
  return status_set(STATUS_MEMORY,
                    "cannot allocate %s of %s memory for the %s of this rank (%s); "
                    "shard.strategy=full_shard, a smaller data.micro_batch, "
                    "tiers.activations=recompute or tiers.params=host with tiers.optimizer=host "
                    "need less device memory",
                    mem_amount((double)bytes).text, tier_names[tier], mem_tag_name(tag),
                    status_text());
}

static void free_arena(struct device *device, enum plan_tier tier, void *arena)
{
  if (arena && tier == TIER_DEVICE)
    device->ops->release(device, arena);
  else if (arena)
    device->ops->release_host(device, arena);
}

/* The offset of a buffer in its arena, and its ancestor that has an offset of its own. */
static int64_t offset_of(const struct plan *plan, int buffer, int *root)
{
  int64_t offset = 0;
  for (; plan->buffer[buffer].parent >= 0; buffer = plan->buffer[buffer].parent)
    offset += plan->buffer[buffer].parent_offset;
  *root = buffer;
  return offset + plan->buffer[buffer].offset;
}

static bool same_place(const struct plan *a, int in_a, const struct plan *b, int in_b)
{
  int root_a, root_b;
  if (in_a < 0 || in_b < 0)
    return true;
  int64_t at_a = offset_of(a, in_a, &root_a), at_b = offset_of(b, in_b, &root_b);
  const struct plan_buffer *ra = &a->buffer[root_a], *rb = &b->buffer[root_b];
  return at_a == at_b && ra->tier == rb->tier && ra->persistent == rb->persistent &&
         a->buffer[in_a].bytes == b->buffer[in_b].bytes;
}

/* An evaluation has no optimizer state. */
static bool same_states(const struct plan *a, const struct plan *b, int u)
{
  for (int s = 0; s < a->states && s < b->states; s++)
    if (!same_place(a, a->unit[u].state[s], b, b->unit[u].state[s]))
      return false;
  return true;
}

static enum status check_same_state(const struct plan *a, const struct plan *b)
{
  for (int u = 0; u < a->input.model->units; u++) {
    const struct plan_unit *x = &a->unit[u], *y = &b->unit[u];
    if (!same_place(a, x->master, b, y->master) || !same_place(a, x->frozen, b, y->frozen) ||
        !same_place(a, x->kept, b, y->kept) || !same_place(a, x->working, b, y->working) ||
        !same_place(a, x->shared, b, y->shared) || !same_states(a, b, u))
      return status_set(STATUS_INTERNAL,
                        "two plans of one job place the parameters or moments of %s differently",
                        a->input.model->unit[u].name);
  }
  return STATUS_OK;
}

static enum status size_arenas(struct exec_memory *memory, const struct plan *const plans[], int n)
{
  enum status status = STATUS_OK;
  for (int p = 0; !status && p < n; p++)
    status = check_same_state(plans[0], plans[p]);
  for (int tier = 0; tier < TIER_COUNT; tier++) {
    const struct plan_arenas arenas = plan_arenas(n, plans, tier);
    memory->persistent_bytes[tier] = arenas.persistent;
    memory->transient_bytes[tier] = arenas.transient;
  }
  return status;
}

static enum status alloc_arenas(struct exec_memory *memory)
{
  enum status status = STATUS_OK;
  for (int tier = 0; !status && tier < TIER_COUNT; tier++) {
    status = alloc_arena(memory->device, tier, MEM_ARENA_PERSISTENT, memory->persistent_bytes[tier],
                         &memory->persistent[tier]);
    if (!status)
      status = alloc_arena(memory->device, tier, MEM_ARENA_TRANSIENT, memory->transient_bytes[tier],
                           &memory->transient[tier]);
  }
  return status;
}

static int64_t whole_pages(int64_t bytes)
{
  const int64_t page = sysconf(_SC_PAGESIZE);
  return (bytes + page - 1) / page * page;
}

/* A block of `copies` times `bytes` for each group. This rank's device accesses copy `mine`. A
 * separate block has regions that the members may read, so that each member is the first to touch
 * its own. */
static enum status share(struct exec_memory *memory, struct comm *comm, int group, int copies,
                         int mine, int64_t bytes, struct comm_shared **shared, void **out)
{
  if (bytes == 0)
    return STATUS_OK;
  enum status status = comm_shared_create(comm, group, copies * bytes, shared);
  if (status)
    return status;
  char *const at = (char *)comm_shared_memory(*shared) + mine * bytes;
  status = memory->device->ops->pin(memory->device, at, (size_t)bytes);
  if (!status)
    *out = at; /* must be unpinned, also if another rank's device refuses */
  return comm_agree(comm, status);
}

static enum status create_store(struct exec_memory *memory, struct comm *comm, const char *nvme)
{
  const int64_t bytes = memory->persistent_bytes[TIER_DISK] + memory->transient_bytes[TIER_DISK];
  return bytes > 0 ? store_create(comm, nvme, bytes, &memory->store) : STATUS_OK;
}

enum status exec_memory_create(struct device *device, struct comm *comm, const char *nvme,
                               const struct plan *const plans[], int n, struct exec_memory *out)
{
  struct exec_memory memory = {.device = device};
  const struct mesh *mesh = &plans[0]->mesh;
  const int group = mesh_ranks(mesh, MESH_SHARD);
  enum status status = comm_agree(comm, size_arenas(&memory, plans, n));
  status = status ?: comm_agree(comm, alloc_arenas(&memory));
  if (!status)
    status = share(&memory, comm, group, 1, 0, whole_pages(memory.persistent_bytes[TIER_SHARED]),
                   &memory.shared, &memory.persistent[TIER_SHARED]);
  memory.region_bytes = whole_pages(memory.transient_bytes[TIER_SHARED]);
  if (!status)
    status = share(&memory, comm, group, group, mesh_index(mesh, MESH_SHARD, comm_rank(comm)),
                   memory.region_bytes, &memory.regions, &memory.transient[TIER_SHARED]);
  status = status ?: create_store(&memory, comm, nvme);
  if (status)
    exec_memory_destroy(&memory);
  else
    *out = memory;
  return status;
}

void exec_memory_destroy(struct exec_memory *memory)
{
  void *const pinned[] = {memory->persistent[TIER_SHARED], memory->transient[TIER_SHARED]};
  for (int p = 0; p < 2; p++)
    if (pinned[p])
      memory->device->ops->unpin(memory->device, pinned[p]);
  comm_shared_destroy(memory->shared);
  comm_shared_destroy(memory->regions);
  store_destroy(memory->store);
  for (int tier = TIER_DEVICE; tier <= TIER_HOST; tier++) {
    free_arena(memory->device, tier, memory->persistent[tier]);
    free_arena(memory->device, tier, memory->transient[tier]);
  }
  *memory = (struct exec_memory){0};
}

/* The offset of a buffer in the file of its tier. */
static int64_t offset_on_disk(const struct exec_memory *memory, const struct plan *plan, int buffer)
{
  int root;
  const int64_t offset = offset_of(plan, buffer, &root);
  return offset + (plan->buffer[root].persistent ? 0 : memory->persistent_bytes[TIER_DISK]);
}

static char *address_of(const struct exec_memory *memory, const struct plan *plan, int buffer)
{
  int root;
  const int64_t offset = offset_of(plan, buffer, &root);
  const enum plan_tier tier = plan->buffer[root].tier;
  return (char *)(plan->buffer[root].persistent ? memory->persistent[tier]
                                                : memory->transient[tier]) +
         offset;
}

/* One of `in` and `out` is NULL. */
static enum status move(const struct exec_memory *memory, const struct plan *plan, int buffer,
                        int64_t offset, int64_t bytes, const void *in, void *out)
{
  const struct plan_buffer *b = &plan->buffer[buffer];
  if (offset < 0 || bytes < 0 || offset > b->bytes - bytes)
    return status_set(STATUS_INTERNAL,
                      "%" PRId64 " bytes from %" PRId64 " on were asked of %s, which has %" PRId64,
                      bytes, offset, b->name, b->bytes);
  if (b->tier == TIER_DEVICE && !memory->device->model.host_memory)
    return status_set(STATUS_INTERNAL, "%s lies in memory that the host does not reach", b->name);
  if (b->tier == TIER_DISK) {
    const int64_t at = offset_on_disk(memory, plan, buffer) + offset;
    return in ? store_write(memory->store, at, bytes, in)
              : store_read(memory->store, at, bytes, out);
  }
  char *const at = address_of(memory, plan, buffer) + offset;
  memcpy(in ? at : out, in ? in : at, (size_t)bytes);
  return STATUS_OK;
}

enum status exec_memory_read(const struct exec_memory *memory, const struct plan *plan, int buffer,
                             int64_t offset, int64_t bytes, void *out)
{
  return move(memory, plan, buffer, offset, bytes, NULL, out);
}

enum status exec_memory_write(const struct exec_memory *memory, const struct plan *plan, int buffer,
                              int64_t offset, int64_t bytes, const void *data)
{
  return move(memory, plan, buffer, offset, bytes, data, NULL);
}

/* In odd steps a gradient and its parts have the memory of the pending one, and the reverse. So the
 * gradient of a step is the pending one of the next step without a copy. The waits of the plan
 * suffice, because there UPDATE reads the gradient and changes the pending one. So it has finished
 * with both memories before the next step writes a gradient. */
static void exchange(struct exec *exec, int grads, int pending)
{
  const struct plan *plan = exec->plan;
  const char *const from = exec->pointer[0][grads];
  char *const to = exec->pointer[0][pending];
  for (int b = 0; b < plan->buffers; b++) {
    int root;
    (void)offset_of(plan, b, &root);
    if (root == grads)
      exec->pointer[1][b] = to + ((char *)exec->pointer[0][b] - from);
  }
  exec->pointer[1][pending] = exec->pointer[0][grads];
}

enum status exec_place_buffers(struct exec *exec)
{
  const struct plan *plan = exec->plan;
  const struct exec_memory *memory = exec->config.memory;
  for (int tier = 0; tier < TIER_COUNT; tier++)
    if (plan->persistent_bytes[tier] > memory->persistent_bytes[tier] ||
        plan->transient_bytes[tier] > memory->transient_bytes[tier])
      return status_set(STATUS_INTERNAL,
                        "the arenas in %s memory were made for other plans than this one",
                        tier_names[tier]);
  for (int b = 0; b < plan->buffers; b++)
    exec->pointer[0][b] = exec->pointer[1][b] =
        plan->buffer[b].tier == TIER_DISK ? NULL : address_of(memory, plan, b);
  for (int i = 0; i < plan->n; i++)
    if (plan->instr[i].op == OP_UPDATE && plan->instr[i].use[UPDATE_PENDING].buffer >= 0)
      exchange(exec, plan->instr[i].use[UPDATE_GRADS].buffer,
               plan->instr[i].use[UPDATE_PENDING].buffer);
  return STATUS_OK;
}
