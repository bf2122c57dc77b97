/* The life of an executor: create, step, drain, destroy. It orders steps, and the drivers of
 * drive.c order instructions. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "exec/engine.h"
#include "layout/mesh.h"
#include "plan/ops.h"

struct device *exec_device_of(const struct exec *exec, enum plan_lane lane)
{
  return exec->plan->on_host[lane] && exec->config.host ? exec->config.host : exec->config.device;
}

bool exec_is_beside(const struct exec *exec, enum plan_lane lane)
{
  return exec_device_of(exec, lane) != exec->config.device;
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
    for (int i = 0; i < 2; i++)
      driver->ran[i] = exec->ran + i * plan->n + (driver->instr - exec->order);
  }
}

/* The instruction that gathers a window holds it; if none gathers it, the FETCH does. */
static void find_windows_and_results(struct exec *exec)
{
  const struct plan *plan = exec->plan;
  exec->metrics = exec->tallied = -1;
  for (int i = 0; i < plan->n; i++) {
    const struct instr *instr = &plan->instr[i];
    const int window = exec_window_of(instr);
    if (window >= 0)
      exec->is_window[window] = true;
    if (instr->op == OP_METRICS)
      exec->metrics = i;
    if (instr->attr.fp8 && instr->lane == LANE_COMPUTE)
      exec->tallied = i;
  }
  _Static_assert((int)ENCODE_PARAMS_SHARD == (int)GATHER_SHARD &&
                     (int)GATHER_MESSAGES_MINE == (int)GATHER_SHARD &&
                     (int)DECODE_PARAMS_MESSAGES == (int)GATHER_SHARD,
                 "the operand is a shard in all four");
  for (int i = 0; i < plan->n; i++)
    if (plan->instr[i].op == OP_GATHER || op_rows[plan->instr[i].op].codes_params)
      exec->is_window[plan->instr[i].use[GATHER_SHARD].buffer] = false;
  for (int b = 0; b < plan->buffers; b++)
    if (exec->is_window[b]) {
      exec->parts[b]++;
      if (plan->buffer[b].parent >= 0)
        exec->parts[plan->buffer[b].parent]++;
    }
}

static enum status create_results(struct exec *exec)
{
  const struct plan_input *input = &exec->plan->input;
  struct device *device = exec->config.device;
  const size_t sources = (size_t)plan_sources(input), metrics = (size_t)plan_metrics_bytes(input),
               each = metrics + sources * sizeof(struct exactsum);
  size_t n = 0;
  for (int i = 0; i < exec->plan->n; i++)
    n += exec->plan->instr[i].attr.sample > 0;
  const size_t fixed = sizeof(struct results) + n * sizeof(struct plan_sample);
  enum status status =
      device->ops->alloc_host(device, MEM_META, fixed + KEPT * each, (void **)&exec->results);
  if (!status && sources > 1)
    status =
        mem_new(MEM_META, KEPT * input->shape.micros * input->shape.micro_batch, &exec->sources);
  for (size_t k = 0; k < KEPT && !status; k++) {
    char *const at = (char *)exec->results + fixed + k * each;
    exec->results->metrics[k] = (struct plan_metrics *)at;
    exec->results->targets[k] = (struct exactsum *)(at + metrics);
  }
  for (int i = 0; !status && i < exec->plan->n; i++)
    if (exec->plan->instr[i].attr.sample > 0)
      exec->span[i].sample = &exec->results->sample[--n];
  return status;
}

static enum status create_tables(struct exec *exec)
{
  const size_t buffers = (size_t)exec->plan->buffers, n = (size_t)exec->plan->n;
  enum status status = mem_new(MEM_META, buffers, &exec->pointer[0]);
  status = status ?: mem_new(MEM_META, buffers, &exec->pointer[1]);
  status = status ?: mem_new(MEM_META, buffers, &exec->is_window);
  status = status ?: mem_new(MEM_META, buffers, &exec->parts);
  status = status ?: mem_new(MEM_META, buffers, &exec->held) ?: mem_new(MEM_META, n, &exec->order);
  status = status ?: mem_new(MEM_META, 2 * n, &exec->ran);
  return status || !exec->config.counters ? status : mem_new(MEM_META, 2 * n, &exec->spent);
}

/* The part that needs no other rank. */
static enum status prepare(struct exec *exec)
{
  const struct plan *plan = exec->plan;
  enum status status = create_tables(exec) ?: exec_place_buffers(exec);
  status = status ?: token_board_create(plan->n + 1, &exec->board) ?: exec_marks_create(exec);
  status = status ?: create_results(exec);
  if (status)
    return status;
  find_windows_and_results(exec);
  sort_by_lane(exec);
  const struct deck_shape *shape = &plan->input.shape;
  exec->tokens = shape->sequence;
  exec->targets = shape->ranks * shape->rank_batch * shape->sequence;
  return STATUS_OK;
}

/* In the order of the plan, which is the same on all ranks. */
static int list_groups(const struct plan *plan, struct exec_group *group)
{
  int n = 0;
  for (int i = 0; i < plan->n; i++) {
    const struct instr *instr = &plan->instr[i];
    const enum op_collective collective = op_rows[instr->op].collective;
    int g = 0;
    if (instr->attr.group == MESH_NONE)
      continue;
    while (g < n && (group[g].set != instr->attr.group || group[g].lane != instr->lane))
      g++;
    if (g == EXEC_GROUPS)
      return -1;
    if (g == n)
      group[n++] = (struct exec_group){.set = instr->attr.group, .lane = instr->lane};
    group[g].parts |= collective == COLLECTIVE_GATHER || collective == COLLECTIVE_EXCHANGE;
    group[g].by_nodes |= plan_gathers_by_nodes(plan, instr);
  }
  return n;
}

struct comm_group *exec_group(const struct exec *exec, mesh_set set, enum plan_lane lane)
{
  for (int g = 0; g < exec->n_groups; g++)
    if (exec->group[g].set == set && exec->group[g].lane == lane)
      return exec->group[g].comm;
  return NULL;
}

static struct comm_members members_of(const struct plan *plan, mesh_set set)
{
  const int rank = plan->input.rank, size = mesh_ranks(&plan->mesh, set);
  return (struct comm_members){.size = size,
                               .index = mesh_index(&plan->mesh, set, rank),
                               .first = mesh_member(&plan->mesh, set, rank, 0),
                               .last = mesh_member(&plan->mesh, set, rank, size - 1)};
}

int64_t exec_groups_shared_bytes(const struct plan *plan, int local_ranks)
{
  struct exec_group group[EXEC_GROUPS];
  const int n = list_groups(plan, group);
  int64_t bytes = 0;
  for (int g = 0; g < n; g++) {
    if (!group[g].parts || (!plan->input.device->host_memory && !plan->on_host[group[g].lane]))
      continue;
    bytes += comm_group_shared_bytes(local_ranks, members_of(plan, group[g].set));
    if (group[g].by_nodes)
      bytes += comm_group_shared_bytes(local_ranks, members_of(plan, group[g].set & MESH_INSIDE));
  }
  return bytes;
}

/* MPI moves data in host memory. */
static enum status make_group(struct exec *exec, struct exec_group *group)
{
  struct comm *comm = exec->config.comm;
  const struct plan *plan = exec->plan;
  const bool host = exec_is_beside(exec, group->lane);
  watchdog_start(exec->config.start, "joining group %s of lane %s, transport %s",
                 mesh_name(group->set).text, plan_lane_name(group->lane),
                 host ? "mpi" : comm_transport(comm));
  const enum status status = (host ? comm_group_create_on_host : comm_group_create)(
      comm, members_of(plan, group->set), group->parts, &group->comm);
  return status || !group->by_nodes
             ? status
             : comm_group_gather_by_nodes(group->comm, members_of(plan, group->set & MESH_INSIDE),
                                          members_of(plan, group->set & MESH_ACROSS));
}

static enum status make_groups(struct exec *exec)
{
  const int n = list_groups(exec->plan, exec->group);
  enum status status =
      n < 0 ? status_set(STATUS_INTERNAL, "a plan has more than %d groups", EXEC_GROUPS)
            : STATUS_OK;
  for (; exec->n_groups < n && !status; exec->n_groups++)
    status = make_group(exec, &exec->group[exec->n_groups]);
  return status;
}

/* Enqueued collectives are issued in the plan's order, the same on all ranks, whatever lanes they
 * are on. So they cannot deadlock. An instruction waits only for instructions before it in the
 * plan, or in an earlier step. Consider the first collective that does not end: all earlier ones
 * have ended on all ranks. So every rank issues it, and no queue of a device has an unfinished
 * collective before it. */
static void order_collectives(struct exec *exec)
{
  int first = -1, last = -1;
  for (int i = 0; i < exec->plan->n; i++) {
    const struct instr *instr = &exec->plan->instr[i];
    const struct comm_group *group = exec_group(exec, instr->attr.group, instr->lane);
    if (op_rows[instr->op].collective == COLLECTIVE_NONE || !group ||
        !comm_group_is_enqueued(group))
      continue;
    exec->span[i].turn = last;
    first = first < 0 ? i : first;
    last = i;
  }
  if (first >= 0) {
    exec->span[first].turn = last;
    exec->span[first].turn_back = 1;
  }
}

/* A transport may need data at the same places on all ranks. */
static enum status check_places(const struct exec *exec)
{
  uint64_t hash = HASH_START;
  for (int b = 0; b < exec->plan->buffers; b++) {
    const struct plan_buffer *buffer = &exec->plan->buffer[b];
    const int64_t word[] = {buffer->offset, buffer->bytes};
    if (buffer->parent < 0) /* the offset of a rank's own part differs between ranks */
      hash = hash_bytes(hash, word, sizeof word);
  }
  return comm_check_same(exec->config.comm, "the memory layout of the plan", &hash, sizeof hash);
}

/* By the transport of the device. */
static bool moves_memory(const struct exec *exec, const struct exec_group *group)
{
  return group->parts && !exec_is_beside(exec, group->lane);
}

/* Collectives read and write in the arenas only. */
static enum status register_memory(struct exec *exec)
{
  const struct exec_memory *memory = exec->config.memory;
  void *const arena[] = {memory->transient[TIER_DEVICE], memory->persistent[TIER_DEVICE]};
  const int64_t bytes[] = {memory->transient_bytes[TIER_DEVICE],
                           memory->persistent_bytes[TIER_DEVICE]};
  if (exec->config.device->model.host_memory)
    return STATUS_OK;
  watchdog_start(exec->config.start, "registering memory with its groups");
  enum status status = check_places(exec);
  for (int g = 0; g < exec->n_groups; g++)
    for (int a = 0; a < 2 && !status && moves_memory(exec, &exec->group[g]); a++)
      if (bytes[a] > 0)
        status = comm_agree(exec->config.comm,
                            comm_group_register(exec->group[g].comm, arena[a], bytes[a]));
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
    return status_usage("a lane cannot be bound to its cores: %s", strerror(errno));
  return STATUS_OK;
}

/* Threads inherit the CPUs of the thread that starts them: narrow this one's for a while. */
static enum status narrow_affinity(const int *cores, int n, struct affinity *before)
{
  struct affinity narrow;
  if (sched_getaffinity(0, sizeof before->set, before->set) != 0)
    return status_set(STATUS_LIBRARY, "the CPUs of this process cannot be read: %s",
                      strerror(errno));
  CPU_ZERO_S(sizeof narrow.set, narrow.set);
  for (int i = 0; i < n; i++)
    CPU_SET_S((size_t)cores[i], sizeof narrow.set, narrow.set);
  return set_affinity(&narrow);
}

/* The CPUs on which a lane computes, or waits for the disk; 0: all CPUs of this process. */
static int cores_of(const struct exec *exec, enum plan_lane lane, const int **out)
{
  const struct exec_config *config = &exec->config;
  const bool math = exec_is_beside(exec, lane)
                        ? lane == LANE_HOST || lane == LANE_REDUCE
                        : lane == LANE_COMPUTE && config->device->model.host_memory;
  *out = lane == LANE_DISK ? config->io_cores : config->cores;
  if (lane == LANE_DISK)
    return config->io_cpus;
  return math && config->cores ? config->threads : 0;
}

/* The optimizer's workers next to a device: each has a CPU of its own if there are enough.
 * Elsewhere lanes share CPUs, and the scheduler moves a worker away from a busy CPU. */
static bool is_pinned(const struct exec *exec, enum plan_lane lane)
{
  const int *cores;
  const int n = cores_of(exec, lane, &cores);
  if (lane != LANE_HOST)
    return false;
  for (int i = 0; i < n; i++)
    for (int j = 0; j < i; j++)
      if (cores[i] == cores[j])
        return false;
  return n > 0;
}

static enum status start_lane(struct exec *exec, enum plan_lane which)
{
  struct driver *driver = &exec->driver[which];
  struct device *device = exec_device_of(exec, which);
  if (driver->n == 0)
    return STATUS_OK;
  const bool math = which == LANE_COMPUTE || which == LANE_REDUCE || which == LANE_HOST;
  const enum lane_role role = which == LANE_COMPUTE                          ? LANE_ROLE_COMPUTE
                              : which == LANE_GATHER || which == LANE_REDUCE ? LANE_ROLE_COMMUNICATE
                                                                             : LANE_ROLE_BACKGROUND;
  enum status status = device->ops->lane_create(device, plan_lane_name(which), role,
                                                math ? exec->config.threads : 1, &driver->lane);
  if (!status && is_pinned(exec, which))
    status = team_pin(driver->lane->team, exec->config.cores);
  if (!status && exec->config.counters)
    status = op_counters_lane_create(exec->config.counters, driver->lane->team, &driver->counters);
  return status || which != LANE_COMPUTE ? status : device->ops->lane_reserve(driver->lane);
}

typedef enum status start(struct exec *exec, enum plan_lane lane);

/* On the first `most` of a lane's CPUs. */
static enum status start_on_cores(struct exec *exec, enum plan_lane lane, int most, start *begin)
{
  const int *cores;
  const int all = cores_of(exec, lane, &cores), n = all < most ? all : most;
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

/* The driver of the host device's compute lane is not bound, because it is one of the team, which
 * has the cores. */
static enum status start_threads(struct exec *exec)
{
  enum status status = STATUS_OK;
  for (int lane = 0; !status && lane < LANE_COUNT; lane++)
    if (exec->driver[lane].n > 0 && lane != LANE_IO)
      status = lane == LANE_COMPUTE
                   ? start_thread(exec, lane)
                   : start_on_cores(exec, lane, is_pinned(exec, lane) ? 1 : INT_MAX, start_thread);
  return status;
}

static enum status start_lanes(struct exec *exec)
{
  enum status status = STATUS_OK;
  for (int lane = 0; !status && lane < LANE_COUNT; lane++)
    status = start_on_cores(exec, lane, INT_MAX, start_lane);
  return status
             ? status
             : op_counters_start(
                   exec->driver[LANE_IO].counters); /* the other lanes' threads do it themselves */
}

enum status exec_create(const struct exec_config *config, struct exec **out)
{
  struct exec *exec = NULL;
  enum status status = comm_agree(config->comm, mem_new(MEM_META, 1, &exec));
  if (status) {
    mem_free(exec);
    return status;
  }
  exec->config = *config;
  exec->plan = config->plan;
  pthread_mutex_init(&exec->mutex, NULL); /* with default attributes it does not fail on Linux */
  uint64_t hash = plan_collective_hash(exec->plan);
  status = comm_check_same(config->comm, "the list of collectives in the plan", &hash, sizeof hash);
  status = status ?: comm_agree(config->comm, prepare(exec)) ?: make_groups(exec);
  if (!status)
    order_collectives(exec);
  status = status ?: register_memory(exec) ?: comm_agree(config->comm, start_lanes(exec));
  watchdog_start(config->start, "trying the operations of the plan");
  status = status ?: exec_autotune(exec) ?: comm_agree(config->comm, start_threads(exec));
  if (!status && config->timeout_s > 0)
    status = watchdog_create(config->comm, exec, config->timeout_s, &exec->watchdog);
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
      op_counters_stop(driver->counters);
    op_counters_lane_destroy(driver->counters);
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
  for (int g = 0; g < exec->n_groups; g++)
    comm_group_destroy(exec->group[g].comm);
  token_board_destroy(exec->board);
  pthread_mutex_destroy(&exec->mutex);
  void *const tables[] = {exec->pointer[0], exec->pointer[1], exec->is_window,
                          exec->parts,      exec->held,       exec->order,
                          exec->ran,        exec->spent,      exec->sources};
  for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
    mem_free(tables[i]);
  mem_free(exec);
}

/* Checked here, because the model would write after the end of a cache, and no later check would
 * notice. */
static enum status check_generation(const struct exec *exec, const struct step_args *args)
{
  const struct plan_input *input = &exec->plan->input;
  if (input->mode != PLAN_GENERATE)
    return STATUS_OK;
  if (args->tokens < 1 || args->tokens > input->shape.sequence)
    return status_set(STATUS_INTERNAL,
                      "a step of %" PRId64 " tokens was asked of a plan that takes 1 to %" PRId64,
                      args->tokens, input->shape.sequence);
  if (args->past < 0 || args->past > exec->cached)
    return status_set(STATUS_INTERNAL,
                      "a step after %" PRId64 " tokens was requested, but %" PRId64
                      " are in the cache",
                      args->past, exec->cached);
  if (args->past > input->capacity - args->tokens)
    return status_set(STATUS_INTERNAL,
                      "%" PRId64 " tokens behind %" PRId64 " do not fit into a cache of %" PRId64,
                      args->tokens, args->past, input->capacity);
  return STATUS_OK;
}

/* Step n reuses the marks of step n - 2, which is complete: exec_end() waited for it
 * before it returned from step n - 1. An instruction of step n - 1 may still have to wait for a
 * mark of step n - 2. The two instructions conflict, so the mark is not set again before that
 * wait. */
static enum status release_step(struct exec *exec, const struct step_args *args)
{
  if (exec->begun)
    return status_set(STATUS_INTERNAL,
                      "step %" PRId64 " was released before step %" PRId64 " was ended", args->step,
                      exec->next_step - 1);
  if (exec->released > 0 && args->step != exec->next_step)
    return status_set(STATUS_INTERNAL,
                      "step %" PRId64 " was released where step %" PRId64 " comes next", args->step,
                      exec->next_step);
  enum status status = check_generation(exec, args) ?: exec_wait_issued(exec, exec->released - 1);
  if (status)
    return status;
  const int64_t n = exec->released + 1;
  status = exec_mark_release(exec, n);
  if (status)
    return exec_fail(exec, status);
  exec->cached = args->past + args->tokens;
  exec->next_step = args->step + 1;
  exec->args[n % KEPT] = *args;
  exec->released = n;
  token_signal(exec->board, exec->plan->n, exec->released);
  return STATUS_OK;
}

static enum status run_io(struct exec *exec)
{
  enum status status = driver_step(&exec->driver[LANE_IO], exec->released);
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

/* Waits for step n of an instruction; -1: none. */
static enum status wait_for_one(struct exec *exec, int index, int64_t n)
{
  if (index < 0)
    return STATUS_OK;
  return token_wait(exec->board, index, n)
             ?: exec_device_of(exec, exec->plan->instr[index].lane)
                    ->ops->mark_wait(exec->span[index].end[n & 1]);
}

/* Waits for the metrics and the tally of the step released last, or for all of it if there are no
 * metrics. */
static enum status wait_for_results(struct exec *exec)
{
  const int64_t n = exec->released;
  enum status status =
      exec->metrics < 0 ? exec_wait_complete(exec, n) : wait_for_one(exec, exec->metrics, n);
  status = status ?: wait_for_one(exec, exec->tallied, n) ?: check_lanes(exec);
  return status ? exec_fail(exec, status) : STATUS_OK;
}

/* All ranks see the same sum, so all of them fail. */
static enum status check_targets(const struct exec *exec, const struct plan_metrics *metrics,
                                 const struct step_args *args)
{
  const struct exactsum *targets = metrics->of + plan_losses(&exec->plan->input);
  double loaded = 0;
  for (int s = 0; s < plan_sources(&exec->plan->input); s++)
    loaded += exactsum_value(&targets[s]);
  return loaded == (double)args->targets
             ? STATUS_OK
             : status_set(STATUS_INTERNAL,
                          "step %" PRId64 " has %.0f targets, but its loss is that of %" PRId64,
                          args->step, loaded, args->targets);
}

static enum status read_results(const struct exec *exec, struct exec_result *result)
{
  const struct plan_metrics *metrics = exec->results->metrics[exec->released % KEPT];
  const struct step_args *args = &exec->args[exec->released % KEPT];
  result->fp8 = exec->tallied >= 0;
  if (result->fp8)
    result->tally = exec->results->tally[exec->released % KEPT];
  if (exec->metrics < 0)
    return STATUS_OK;
  result->loss_exact = metrics->of;
  result->targets_exact = metrics->of + plan_losses(&exec->plan->input);
  if (exec->plan->input.beta > 0) {
    const struct exactsum *preferred = metrics->of + plan_sources(&exec->plan->input);
    result->margin = exactsum_value(&preferred[0]) / (double)args->targets;
    result->accuracy = exactsum_value(&preferred[1]) / (double)args->targets;
  }
  result->loss_sum = metrics->outcome.loss_sum;
  result->loss = result->loss_sum / (double)args->targets;
  result->grad_norm = metrics->outcome.grad_norm;
  result->finite = metrics->outcome.finite;
  return check_targets(exec, metrics, args);
}

/* Reads the times of the step before the one released last, while the last one runs. */
static enum status take_earlier_times(struct exec *exec)
{
  enum status status = exec_wait_complete(exec, exec->released - 1);
  status = status ?: exec_take_times(exec, exec->released - 1);
  return status ? exec_fail(exec, status) : STATUS_OK;
}

enum status exec_begin(struct exec *exec, int64_t step, int64_t update, double lr)
{
  const struct step_args args = {.step = step,
                                 .update = update,
                                 .past = exec->past,
                                 .tokens = exec->tokens,
                                 .targets = exec->targets,
                                 .lr = lr};
  enum status status = release_step(exec, &args);
  if (status)
    return status;
  exec->begun_s = clock_s();
  status = run_io(exec);
  exec->begun = !status;
  return status;
}

void exec_skip(struct exec *exec)
{
  exec->next_step++; /* of no use before the first step, which may have any number */
}

enum status exec_end(struct exec *exec, struct exec_result *result)
{
  struct exec_result mine = {0};
  if (!exec->begun)
    return status_set(STATUS_INTERNAL, "a step was ended that was not begun");
  exec->begun = false;
  enum status status = take_earlier_times(exec) ?: wait_for_results(exec);
  status = status ?: read_results(exec, &mine);
  if (status)
    return status;
  mine.seconds = clock_s() - exec->begun_s;
  *result = mine;
  return STATUS_OK;
}

void exec_read_sample(const struct exec *exec, int unit, struct plan_sample *out)
{
  *out = (struct plan_sample){0};
  for (int i = 0; i < exec->plan->n; i++) {
    const struct plan_sample *sample = exec->span[i].sample;
    if (!sample || exec->plan->instr[i].unit != unit)
      continue;
    exactsum_merge(&out->elements, &sample->elements);
    exactsum_merge(&out->lost, &sample->lost);
    exactsum_merge(&out->decoded, &sample->decoded);
    out->residual = sample->residual;
  }
  struct exactsum *const sums[] = {&out->elements, &out->lost, &out->decoded};
  for (int i = 0; i < 3; i++)
    exactsum_normalize(sums[i]);
}

enum status exec_step(struct exec *exec, int64_t step, int64_t update, double lr,
                      struct exec_result *result)
{
  return exec_begin(exec, step, update, lr) ?: exec_end(exec, result);
}

enum status exec_drain(struct exec *exec)
{
  enum status status = exec_wait_complete(exec, exec->released);
  status = status ?: exec_take_times(exec, exec->released) ?: exec_settle(exec);
  exec->drained = exec->released;
  return status ? exec_fail(exec, status) : STATUS_OK;
}

enum status exec_set_targets(struct exec *exec, int64_t targets)
{
  if (targets < 1)
    return status_set(STATUS_INTERNAL, "a loss over %lld targets: a step needs at least one",
                      (long long)targets);
  exec->targets = targets;
  return STATUS_OK;
}

void exec_set_window(struct exec *exec, int64_t past, int64_t tokens)
{
  exec->past = past;
  exec->tokens = tokens;
}

void *exec_pointer(const struct exec *exec, int buffer)
{
  return exec->pointer[exec->released & 1][buffer];
}
