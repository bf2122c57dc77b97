#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "exec/engine.h"
#include "io/store.h"

static const char *const tier_names[TIER_COUNT] = {
    [TIER_DEVICE] = "device", [TIER_HOST] = "host", [TIER_SHARED] = "shared host", [TIER_DISK] = "NVMe"};

struct device *exec_device_of(const struct exec *exec, enum plan_lane lane)
{
  return exec->plan->on_host[lane] && exec->config.host ? exec->config.host : exec->config.device;
}

bool exec_is_beside(const struct exec *exec, enum plan_lane lane)
{
  return exec_device_of(exec, lane) != exec->config.device;
}

static enum status alloc_arena(struct device *device, enum plan_tier tier, enum mem_tag tag, int64_t bytes, void **out)
{
  if (bytes == 0 || (tier != TIER_DEVICE && tier != TIER_HOST))
    return STATUS_OK;
  enum status status =
      tier == TIER_DEVICE ? device->ops->alloc(device, tag, (size_t)bytes, out) : device->ops->alloc_host(device, tag, (size_t)bytes, out);
  if (status != STATUS_MEMORY)
    return status;
  return status_set(STATUS_MEMORY,
                    "%.2f GiB of %s memory are not there for the %s of this rank (%s); shard.strategy=full_shard, a smaller data.micro_batch, "
                    "tiers.activations=recompute or tiers.params=host with tiers.optimizer=host would need less of a device",
                    (double)bytes / (1 << 30), tier_names[tier], mem_tag_name(tag), status_text());
}

static void free_arena(struct device *device, enum plan_tier tier, void *arena)
{
  if (arena && tier == TIER_DEVICE)
    device->ops->release(device, arena);
  else if (arena)
    device->ops->release_host(device, arena);
}

/* Where in its arena a buffer begins, and the one that has an offset of its own. */
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
  return at_a == at_b && ra->tier == rb->tier && ra->persistent == rb->persistent && a->buffer[in_a].bytes == b->buffer[in_b].bytes;
}

static enum status check_same_state(const struct plan *a, const struct plan *b)
{
  for (int u = 0; u < a->input.model->units; u++)
    if (!same_place(a, a->master[u], b, b->master[u]) || !same_place(a, a->frozen[u], b, b->frozen[u]) ||
        !same_place(a, a->moment1[u], b, b->moment1[u]) || !same_place(a, a->moment2[u], b, b->moment2[u]) ||
        !same_place(a, a->working[u], b, b->working[u]) || !same_place(a, a->shared[u], b, b->shared[u]))
      return status_set(STATUS_INTERNAL, "two plans of one job place the parameters or moments of %s differently", a->input.model->unit[u].name);
  return STATUS_OK;
}

static enum status size_arenas(struct exec_memory *memory, const struct plan *const plans[], int n)
{
  enum status status = STATUS_OK;
  for (int p = 0; !status && p < n; p++) {
    status = check_same_state(plans[0], plans[p]);
    for (int tier = 0; tier < TIER_COUNT; tier++) {
      if (plans[p]->persistent_bytes[tier] > memory->persistent_bytes[tier])
        memory->persistent_bytes[tier] = plans[p]->persistent_bytes[tier];
      if (plans[p]->transient_bytes[tier] > memory->transient_bytes[tier])
        memory->transient_bytes[tier] = plans[p]->transient_bytes[tier];
    }
  }
  return status;
}

static enum status alloc_arenas(struct exec_memory *memory)
{
  enum status status = STATUS_OK;
  for (int tier = 0; !status && tier < TIER_COUNT; tier++) {
    status = alloc_arena(memory->device, tier, MEM_ARENA_PERSISTENT, memory->persistent_bytes[tier], &memory->persistent[tier]);
    if (!status)
      status = alloc_arena(memory->device, tier, MEM_ARENA_TRANSIENT, memory->transient_bytes[tier], &memory->transient[tier]);
  }
  return status;
}

static int64_t whole_pages(int64_t bytes)
{
  const int64_t page = sysconf(_SC_PAGESIZE);
  return (bytes + page - 1) / page * page;
}

/* Lets the device of this rank reach whole pages of what is shared. *out: what has to be unpinned. */
static enum status pin_shared(const struct exec_memory *memory, struct comm *comm, void *ptr, int64_t bytes, void **out)
{
  const enum status status = comm_agree(comm, memory->device->ops->pin(memory->device, ptr, (size_t)bytes));
  if (!status)
    *out = ptr;
  return status;
}

/* What the group has one copy of. */
static enum status create_shared(struct exec_memory *memory, struct comm *comm, int group)
{
  const int64_t bytes = whole_pages(memory->persistent_bytes[TIER_SHARED]);
  if (bytes == 0)
    return STATUS_OK;
  const enum status status = comm_shared_create(comm, group, bytes, &memory->shared);
  return status ? status : pin_shared(memory, comm, comm_shared_memory(memory->shared), bytes, &memory->persistent[TIER_SHARED]);
}

/* And what each of its members has for itself, for the others to read: memory apart from the other, so that a member's region is the part that it touches first. */
static enum status create_regions(struct exec_memory *memory, struct comm *comm, int group)
{
  const int64_t bytes = whole_pages(memory->transient_bytes[TIER_SHARED]);
  if (bytes == 0)
    return STATUS_OK;
  const enum status status = comm_shared_create(comm, group, group * bytes, &memory->regions);
  if (status)
    return status;
  memory->region_bytes = bytes;
  char *mine = (char *)comm_shared_memory(memory->regions) + comm_rank(comm) % group * bytes;
  return pin_shared(memory, comm, mine, bytes, &memory->transient[TIER_SHARED]);
}

static enum status create_store(struct exec_memory *memory, struct comm *comm, const char *nvme)
{
  const int64_t bytes = memory->persistent_bytes[TIER_DISK] + memory->transient_bytes[TIER_DISK];
  return bytes > 0 ? store_create(comm, nvme, bytes, &memory->store) : STATUS_OK;
}

enum status exec_memory_create(struct device *device, struct comm *comm, const char *nvme, const struct plan *const plans[], int n,
                               struct exec_memory *out)
{
  struct exec_memory memory = {.device = device};
  enum status status = comm_agree(comm, size_arenas(&memory, plans, n));
  if (!status)
    status = comm_agree(comm, alloc_arenas(&memory));
  if (!status)
    status = create_shared(&memory, comm, plans[0]->input.shape.group);
  if (!status)
    status = create_regions(&memory, comm, plans[0]->input.shape.group);
  if (!status)
    status = create_store(&memory, comm, nvme);
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

/* Where a buffer begins in the file of its tier. */
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
  return (char *)(plan->buffer[root].persistent ? memory->persistent[tier] : memory->transient[tier]) + offset;
}

static enum status check_range(const struct exec_memory *memory, const struct plan *plan, int buffer, int64_t offset, int64_t bytes)
{
  const struct plan_buffer *b = &plan->buffer[buffer];
  if (offset < 0 || bytes < 0 || offset > b->bytes - bytes)
    return status_set(STATUS_INTERNAL, "%" PRId64 " bytes from %" PRId64 " on were asked of %s, which has %" PRId64, bytes, offset, b->name,
                      b->bytes);
  if (b->tier == TIER_DEVICE && !memory->device->host_memory)
    return status_set(STATUS_INTERNAL, "%s lies in memory that the host does not reach", b->name);
  return STATUS_OK;
}

enum status exec_memory_read(const struct exec_memory *memory, const struct plan *plan, int buffer, int64_t offset, int64_t bytes, void *out)
{
  enum status status = check_range(memory, plan, buffer, offset, bytes);
  if (status)
    return status;
  if (plan->buffer[buffer].tier == TIER_DISK)
    return store_read(memory->store, offset_on_disk(memory, plan, buffer) + offset, bytes, out);
  memcpy(out, address_of(memory, plan, buffer) + offset, (size_t)bytes);
  return STATUS_OK;
}

enum status exec_memory_write(const struct exec_memory *memory, const struct plan *plan, int buffer, int64_t offset, int64_t bytes, const void *data)
{
  enum status status = check_range(memory, plan, buffer, offset, bytes);
  if (status)
    return status;
  if (plan->buffer[buffer].tier == TIER_DISK)
    return store_write(memory->store, offset_on_disk(memory, plan, buffer) + offset, bytes, data);
  memcpy(address_of(memory, plan, buffer) + offset, data, (size_t)bytes);
  return STATUS_OK;
}

static enum status place_buffers(struct exec *exec)
{
  const struct plan *plan = exec->plan;
  const struct exec_memory *memory = exec->config.memory;
  for (int tier = 0; tier < TIER_COUNT; tier++)
    if (plan->persistent_bytes[tier] > memory->persistent_bytes[tier] || plan->transient_bytes[tier] > memory->transient_bytes[tier])
      return status_set(STATUS_INTERNAL, "the arenas in %s memory were made for other plans than this one", tier_names[tier]);
  for (int b = 0; b < plan->buffers; b++)
    exec->pointer[b] = plan->buffer[b].tier == TIER_DISK ? NULL : address_of(memory, plan, b);
  return STATUS_OK;
}

static enum status make_segments(struct exec *exec)
{
  unsigned exempt = optim_exempt_kinds(exec->config.deck);
  enum status status = STATUS_OK;
  for (int u = 0; !status && u < exec->config.model->units; u++)
    status = optim_segments_create(exec->config.model, u, exempt, &exec->segments[u]);
  return status;
}

static bool has_op(const struct plan *plan, enum op op)
{
  for (int i = 0; i < plan->n; i++)
    if (plan->instr[i].op == op)
      return true;
  return false;
}

/* Where the masters are whole a window is made by a cast alone. */
static bool gathers_between_ranks(const struct plan *plan)
{
  return has_op(plan, OP_GATHER) && plan->input.strategy != STRATEGY_NO_SHARD;
}

static void sort_by_lane(struct exec *exec)
{
  const struct plan *plan = exec->plan;
  int done = 0;
  for (int lane = 0; lane < LANE_COUNT; lane++) {
    struct driver *driver = &exec->driver[lane];
    driver->exec = exec;
    driver->instr = exec->order + done;
    for (int i = 0; i < plan->n; i++)
      if ((int)plan->instr[i].lane == lane)
        exec->order[done++] = i;
    driver->n = (int)(exec->order + done - driver->instr);
  }
}

/* What is fetched is held by whoever gathers it, or, where nobody does, by the FETCH. */
static void find_windows_and_metrics(struct exec *exec)
{
  const struct plan *plan = exec->plan;
  for (int b = 0; b < plan->buffers; b++)
    atomic_init(&exec->held[b], -1);
  exec->metrics = -1;
  for (int i = 0; i < plan->n; i++) {
    if (plan->instr[i].op == OP_FETCH || plan->instr[i].op == OP_GATHER)
      atomic_init(&exec->held[plan->instr[i].use[1].buffer], 0);
    if (plan->instr[i].op == OP_METRICS)
      exec->metrics = i;
  }
  for (int i = 0; i < plan->n; i++)
    if (plan->instr[i].op == OP_GATHER)
      atomic_init(&exec->held[plan->instr[i].use[0].buffer], -1);
}

static enum status alloc_table(size_t n, size_t size, void *out)
{
  void *block;
  enum status status = mem_alloc(MEM_META, n * size, &block);
  if (!status)
    *(void **)out = block;
  return status;
}

static enum status create_results(struct exec *exec)
{
  struct device *device = exec->config.device;
  void *block;
  enum status status = device->ops->alloc_host(device, MEM_META, 2 * sizeof *exec->results, &block);
  if (!status)
    exec->results = block;
  return status;
}

/* All that needs no other rank. */
static enum status prepare(struct exec *exec)
{
  const struct plan *plan = exec->plan;
  size_t buffers = (size_t)plan->buffers;
  enum status status = alloc_table(buffers, sizeof *exec->pointer, &exec->pointer);
  if (!status)
    status = alloc_table(buffers, sizeof *exec->held, &exec->held);
  if (!status)
    status = alloc_table((size_t)plan->n, sizeof *exec->order, &exec->order);
  if (!status)
    status = alloc_table((size_t)exec->config.model->units, sizeof *exec->segments, &exec->segments);
  if (!status)
    status = place_buffers(exec);
  if (!status && (has_op(plan, OP_ADAM) || has_op(plan, OP_ADAM_NOW)))
    status = make_segments(exec);
  if (!status)
    status = token_board_create(plan->n + 1, &exec->board);
  if (!status)
    status = exec_marks_create(exec);
  if (!status && exec->config.tally && exec->config.trace)
    status = alloc_table(2 * (size_t)plan->n, sizeof *exec->spent, &exec->spent);
  if (!status)
    status = create_results(exec);
  if (status)
    return status;
  find_windows_and_metrics(exec);
  sort_by_lane(exec);
  const struct deck_shape *shape = &plan->input.shape;
  exec->tokens = shape->sequence;
  exec->step_tokens = (double)(shape->ranks * shape->rank_batch * shape->sequence);
  return STATUS_OK;
}

/* Its lane works on the host's memory. */
static bool is_host_group(const struct exec *exec, enum group group)
{
  return exec_is_beside(exec, group == GROUP_GATHER ? LANE_GATHER : LANE_REDUCE);
}

/* MPI carries what lies in the host's memory. */
static enum status make_group(struct exec *exec, enum group group, enum comm_kind kind)
{
  struct comm *comm = exec->config.comm;
  const int size = exec->plan->input.shape.group;
  const char *const carrier = comm_carrier(comm);
  if (!is_host_group(exec, group))
    return comm_group_create(comm, kind, size, &exec->group[group]);
  enum status status = comm_set_carrier(comm, "mpi");
  if (!status)
    status = comm_group_create(comm, kind, size, &exec->group[group]);
  return status ? status : comm_set_carrier(comm, carrier);
}

static enum status make_groups(struct exec *exec)
{
  const struct plan *plan = exec->plan;
  const struct {
    bool wanted;
    enum comm_kind kind;
  } groups[GROUP_COUNT] = {
      [GROUP_GATHER] = {gathers_between_ranks(plan) || has_op(plan, OP_PUBLISH), COMM_SHARD},
      [GROUP_REDUCE] = {has_op(plan, OP_REDUCE) || has_op(plan, OP_SUM_SHARED), COMM_SHARD},
      [GROUP_REPLICAS] = {has_op(plan, OP_REPLICA_REDUCE), COMM_REPLICA},
      [GROUP_WORLD] = {has_op(plan, OP_METRICS), COMM_WORLD},
  };
  enum status status = STATUS_OK;
  for (int g = 0; !status && g < GROUP_COUNT; g++)
    if (groups[g].wanted)
      status = make_group(exec, g, groups[g].kind);
  return status;
}

/* A carrier may want what it moves at the same places on all ranks. */
static enum status check_places(const struct exec *exec)
{
  uint64_t hash = HASH_START;
  for (int b = 0; b < exec->plan->buffers; b++) {
    const struct plan_buffer *buffer = &exec->plan->buffer[b];
    const int64_t word[] = {buffer->offset, buffer->bytes};
    if (buffer->parent < 0) /* its own part of a buffer each rank has elsewhere */
      hash = hash_bytes(hash, word, sizeof word);
  }
  return comm_check_same(exec->config.comm, "the memory layout of the plan", &hash, sizeof hash);
}

/* What collectives read and write lies in the arenas. */
static enum status register_memory(struct exec *exec)
{
  const struct exec_memory *memory = exec->config.memory;
  void *const arena[] = {memory->transient[TIER_DEVICE], memory->persistent[TIER_DEVICE]};
  const int64_t bytes[] = {memory->transient_bytes[TIER_DEVICE], memory->persistent_bytes[TIER_DEVICE]};
  if (exec->config.device->host_memory)
    return STATUS_OK;
  enum status status = check_places(exec);
  for (int g = GROUP_GATHER; g < GROUP_WORLD; g++)
    for (int a = 0; a < 2 && !status && exec->group[g] && !is_host_group(exec, g); a++)
      if (bytes[a] > 0)
        status = comm_agree(exec->config.comm, comm_group_register(exec->group[g], arena[a], bytes[a]));
  return status;
}

/* Sets of up to 8192 CPUs: the kernel refuses one that is smaller than the machine. */
enum { CPU_SETS = 8 };
struct affinity {
  cpu_set_t set[CPU_SETS];
};

static enum status set_affinity(const struct affinity *affinity)
{
  if (sched_setaffinity(0, sizeof affinity->set, affinity->set) != 0)
    return status_set(STATUS_USAGE, "a lane cannot be bound to its cores: %s", strerror(errno));
  return STATUS_OK;
}

/* Threads inherit the CPUs of the thread that starts them: narrow this one's for a while. */
static enum status narrow_affinity(const int *cores, int n, struct affinity *before)
{
  struct affinity narrow;
  if (sched_getaffinity(0, sizeof before->set, before->set) != 0)
    return status_set(STATUS_LIBRARY, "the CPUs of this process cannot be read: %s", strerror(errno));
  CPU_ZERO_S(sizeof narrow.set, narrow.set);
  for (int i = 0; i < n; i++)
    CPU_SET_S((size_t)cores[i], sizeof narrow.set, narrow.set);
  return set_affinity(&narrow);
}

static enum status start_lane(struct exec *exec, enum plan_lane which)
{
  struct driver *driver = &exec->driver[which];
  struct device *device = exec_device_of(exec, which);
  if (driver->n == 0)
    return STATUS_OK;
  bool math = which == LANE_COMPUTE || which == LANE_REDUCE || which == LANE_HOST;
  enum status status = device->ops->lane_create(device, plan_lane_name(which), math ? exec->config.threads : 1, &driver->lane);
  if (!status && exec->config.tally)
    status = tally_lane_create(exec->config.tally, driver->lane->team, &driver->tally);
  return status || which != LANE_COMPUTE ? status : device->ops->lane_reserve(driver->lane);
}

/* The CPUs that a lane computes on, or waits for the disk; 0: wherever this process may run. */
static int cores_of(const struct exec *exec, enum plan_lane lane, const int **out)
{
  const struct exec_config *config = &exec->config;
  const bool math = exec_is_beside(exec, lane) ? lane == LANE_HOST || lane == LANE_REDUCE : lane == LANE_COMPUTE && config->device->host_memory;
  *out = lane == LANE_DISK ? config->io_cores : config->cores;
  if (lane == LANE_DISK)
    return config->io_cpus;
  return math && config->cores ? config->threads : 0;
}

typedef enum status start(struct exec *exec, enum plan_lane lane);

static enum status start_on_cores(struct exec *exec, enum plan_lane lane, start *begin)
{
  const int *cores;
  const int n = cores_of(exec, lane, &cores);
  struct affinity before;
  if (n == 0)
    return begin(exec, lane);
  enum status status = narrow_affinity(cores, n, &before);
  if (status)
    return status;
  status = begin(exec, lane);
  enum status restored = set_affinity(&before);
  return status ? status : restored;
}

static enum status start_thread(struct exec *exec, enum plan_lane lane)
{
  struct driver *driver = &exec->driver[lane];
  return thread_start(plan_lane_name(lane), driver_loop, driver, &driver->thread);
}

/* The host device's compute lane is driven from wherever there is room: its driver is one of the team, which has the cores. */
static enum status start_threads(struct exec *exec)
{
  enum status status = STATUS_OK;
  for (int lane = 0; !status && lane < LANE_COUNT; lane++)
    if (exec->driver[lane].n > 0 && lane != LANE_IO)
      status = lane == LANE_COMPUTE ? start_thread(exec, lane) : start_on_cores(exec, lane, start_thread);
  return status;
}

static enum status start_lanes(struct exec *exec)
{
  enum status status = STATUS_OK;
  for (int lane = 0; !status && lane < LANE_COUNT; lane++)
    status = start_on_cores(exec, lane, start_lane);
  return status ? status : tally_start(exec->driver[LANE_IO].tally); /* the other lanes' threads do it themselves */
}

enum status exec_create(const struct exec_config *config, struct exec **out)
{
  void *block;
  enum status status = comm_agree(config->comm, mem_alloc(MEM_META, sizeof(struct exec), &block));
  if (status)
    return status;
  struct exec *exec = block;
  exec->config = *config;
  exec->plan = config->plan;
  pthread_mutex_init(&exec->mutex, NULL); /* with default attributes it does not fail on Linux */
  uint64_t hash = plan_collective_hash(exec->plan);
  status = comm_check_same(config->comm, "the list of collectives in the plan", &hash, sizeof hash);
  if (!status)
    status = comm_agree(config->comm, prepare(exec));
  if (!status)
    status = make_groups(exec);
  if (!status)
    status = register_memory(exec);
  if (!status)
    status = comm_agree(config->comm, start_lanes(exec));
  if (!status)
    status = exec_learn(exec);
  if (!status)
    status = comm_agree(config->comm, start_threads(exec));
  if (!status && config->timeout_s > 0)
    status = watchdog_create(exec, config->timeout_s, &exec->watchdog);
  if (status)
    exec_destroy(exec);
  else
    *out = exec;
  return status;
}

static void stop_lanes(struct exec *exec)
{
  if (exec->board)
    token_abort(exec->board);
  for (int lane = 0; lane < LANE_COUNT; lane++) {
    struct driver *driver = &exec->driver[lane];
    if (thread_join(driver->thread))
      log_warn("%s", status_text());
    if (lane == LANE_IO)
      tally_stop(driver->tally);
    tally_lane_destroy(driver->tally);
    if (driver->lane)
      driver->lane->device->ops->lane_destroy(driver->lane);
  }
}

void exec_destroy(struct exec *exec)
{
  if (!exec)
    return;
  if (exec->board && exec_drain(exec))
    log_debug("the executor ends after a failure: %s", status_text());
  watchdog_destroy(exec->watchdog);
  stop_lanes(exec);
  exec_marks_destroy(exec);
  if (exec->results)
    exec->config.device->ops->release_host(exec->config.device, exec->results);
  for (int g = 0; g < GROUP_COUNT; g++)
    comm_group_destroy(exec->group[g]);
  for (int u = 0; exec->segments && u < exec->config.model->units; u++)
    optim_segments_destroy(&exec->segments[u]);
  token_board_destroy(exec->board);
  pthread_mutex_destroy(&exec->mutex);
  mem_free(exec->segments);
  mem_free(exec->spent);
  mem_free(exec->order);
  mem_free(exec->held);
  mem_free(exec->pointer);
  mem_free(exec);
}

/* What the model would do to the bytes behind a cache nobody checks later. */
static enum status check_generation(const struct exec *exec, const struct step_args *args)
{
  const struct plan_input *input = &exec->plan->input;
  if (input->mode != PLAN_GENERATE)
    return STATUS_OK;
  if (args->tokens < 1 || args->tokens > input->shape.sequence)
    return status_set(STATUS_INTERNAL, "a step of %" PRId64 " tokens was asked of a plan that takes 1 to %" PRId64, args->tokens,
                      input->shape.sequence);
  if (args->past < 0 || args->past > exec->cached)
    return status_set(STATUS_INTERNAL, "a step behind %" PRId64 " tokens was asked for, but %" PRId64 " are in the cache", args->past, exec->cached);
  if (args->past > input->capacity - args->tokens)
    return status_set(STATUS_INTERNAL, "%" PRId64 " tokens behind %" PRId64 " do not fit into a cache of %" PRId64, args->tokens, args->past,
                      input->capacity);
  return STATUS_OK;
}

/* Step n takes the arguments' and the marks' place of step n - 2. That every lane has issued that step is enough for the waits on its marks; that it is complete, which its times and
 * results need, exec_step() made sure of before it returned from step n - 1. */
static enum status release_step(struct exec *exec, const struct step_args *args)
{
  if (exec->released > 0 && args->step != exec->next_step)
    return status_set(STATUS_INTERNAL, "step %" PRId64 " was released where step %" PRId64 " comes next", args->step, exec->next_step);
  enum status status = check_generation(exec, args);
  if (!status)
    status = exec_wait_issued(exec, exec->released - 1);
  if (status)
    return status;
  const int64_t n = exec->released + 1;
  status = exec_mark_release(exec, n);
  if (status)
    return exec_fail(exec, status);
  exec->cached = args->past + args->tokens;
  exec->next_step = args->step + 1;
  exec->args[n & 1] = *args;
  exec->released = n;
  token_signal(exec->board, exec->plan->n, exec->released);
  return STATUS_OK;
}

static enum status run_io(struct exec *exec)
{
  enum status status = driver_step(&exec->driver[LANE_IO], exec->released);
  if (status == STATUS_ABORTED)
    return exec_failure(exec);
  return status ? exec_fail(exec, status) : STATUS_OK;
}

static enum status check_lanes(struct exec *exec)
{
  enum status status = STATUS_OK;
  for (int lane = 0; !status && lane < LANE_COUNT; lane++)
    if (exec->driver[lane].lane)
      status = exec->driver[lane].lane->device->ops->lane_check(exec->driver[lane].lane);
  return status;
}

/* Of the step released last: its metrics, or all of it where there are none. */
static enum status wait_for_results(struct exec *exec)
{
  const int64_t n = exec->released;
  enum status status;
  if (exec->metrics < 0) {
    status = exec_wait_complete(exec, n);
  } else {
    status = token_wait(exec->board, exec->metrics, n);
    if (!status)
      status = exec_device_of(exec, LANE_REDUCE)->ops->mark_wait(exec->span[exec->metrics].end[n & 1]);
  }
  if (!status)
    status = check_lanes(exec);
  if (status == STATUS_ABORTED)
    return exec_failure(exec);
  return status ? exec_fail(exec, status) : STATUS_OK;
}

static void read_results(const struct exec *exec, struct exec_result *result)
{
  const struct plan_metrics *metrics = &exec->results[exec->released & 1];
  if (exec->metrics < 0)
    return;
  result->loss_exact = &metrics->loss;
  result->loss_sum = metrics->outcome.loss_sum;
  result->loss = result->loss_sum / exec->step_tokens;
  result->grad_norm = metrics->outcome.grad_norm;
  result->finite = metrics->outcome.finite;
}

/* Of the step before the one released last, while that one runs. */
static enum status take_earlier_times(struct exec *exec)
{
  enum status status = exec_wait_complete(exec, exec->released - 1);
  if (!status)
    status = exec_take_times(exec, exec->released - 1);
  return status ? exec_fail(exec, status) : STATUS_OK;
}

enum status exec_step(struct exec *exec, int64_t step, int64_t update, double lr, struct exec_result *result)
{
  struct exec_result mine = {0};
  const struct step_args args = {.step = step, .update = update, .past = exec->past, .tokens = exec->tokens, .lr = lr};
  enum status status = release_step(exec, &args);
  double begin = clock_s();
  if (!status)
    status = run_io(exec);
  if (!status)
    status = take_earlier_times(exec);
  if (!status)
    status = wait_for_results(exec);
  if (status)
    return status;
  read_results(exec, &mine);
  mine.seconds = clock_s() - begin;
  *result = mine;
  return STATUS_OK;
}

enum status exec_drain(struct exec *exec)
{
  enum status status = exec_wait_complete(exec, exec->released);
  if (!status)
    status = exec_take_times(exec, exec->released);
  return status ? exec_fail(exec, status) : STATUS_OK;
}

void exec_set_window(struct exec *exec, int64_t past, int64_t tokens)
{
  exec->past = past;
  exec->tokens = tokens;
}

void *exec_pointer(const struct exec *exec, int buffer)
{
  return exec->pointer[buffer];
}
