/* Sets up a job in the order deck, device, model, plans, memory, executors. */
#include "job/private.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "exec/watchdog.h"
#include "job/choose.h"
#include "job/state.h"
#include "layout/mesh.h"

enum status job_find_nodes(struct comm *comm, int *least, int *most)
{
  const int local = comm_local_ranks(comm);
  int64_t values[] = {-local, local};
  const enum status status = comm_max_i64(comm, values, 2);
  *least = (int)-values[0];
  *most = (int)values[1];
  return status;
}

/* Whether members of this rank's group are on other nodes. */
static bool spans_nodes(struct comm *comm, const struct plan_input *input)
{
  const struct mesh mesh = plan_mesh(input);
  const int node = comm_rank(comm) - comm_local_rank(comm),
            last = mesh_ranks(&mesh, MESH_SHARD) - 1;
  return mesh_member(&mesh, MESH_SHARD, comm_rank(comm), 0) < node ||
         mesh_member(&mesh, MESH_SHARD, comm_rank(comm), last) >= node + comm_local_ranks(comm);
}

enum status job_check_nodes(struct comm *comm, const struct deck *deck, struct plan_input *input)
{
  const int group = input->shape.group, local = input->shape.local_ranks;
  int64_t most[] = {spans_nodes(comm, input), group, -group, local, -local};
  const enum status status = comm_max_i64(comm, most, 5);
  input->policy.one_node = most[0] == 0;
  if (!status && most[1] != -most[2])
    return status_usage(
        "nodes have between %lld and %lld ranks, but the groups of all nodes must be equal; start "
        "the same number of ranks on every node, or set shard.group to a number",
        (long long)-most[2], (long long)most[1]);
  if (!status && most[3] != -most[4] && deck->shard.hops == DECK_HOPS_TWO)
    return status_usage(
        "nodes have between %lld and %lld ranks, but shard.hops=2 needs the same number on each: "
        "start the same number of ranks on every node, or set shard.hops=auto",
        (long long)-most[4], (long long)most[3]);
  input->shape.uneven = most[3] != -most[4];
  input->shape.two_hops &= !input->shape.uneven;
  return status;
}

static enum status create_plan(struct job *job, enum job_use use, int slot)
{
  const bool warmup = slot == JOB_WARMUP;
  struct plan_input input = {.mode = warmup ? PLAN_TRAIN : (enum plan_mode)slot,
                             .rank = comm_rank(job->comm),
                             .ranks = comm_ranks(job->comm),
                             .model = job->model,
                             .device = &job->device->model,
                             .threads = job->threads};
  enum status status =
      comm_agree(job->comm, job_shape(job->deck, use, comm_local_ranks(job->comm), &input));
  status = status ?: job_check_nodes(job->comm, job->deck, &input);
  if (status)
    return status;
  input.policy.warmup = warmup;
  if (job->shape.ranks == 0)
    job->shape = input.shape;
  return comm_agree(job->comm, plan_create(&input, &job->plan[slot]));
}

static enum status create_plans(struct job *job, enum job_use use)
{
  const int first = use == JOB_EVAL ? PLAN_EVAL : use == JOB_GENERATE ? PLAN_GENERATE : PLAN_TRAIN;
  enum status status = create_plan(job, use, first);
  if (!status && use == JOB_TRAIN_AND_EVAL)
    status = create_plan(job, use, PLAN_EVAL);
  if (!status && job_trains(use) && job->deck->compress.warmup > 0)
    status = create_plan(job, use, JOB_WARMUP);
  return status;
}

/* The deck gets the number of hops that the nodes allow, so that a resumed run has the same sums.
 */
static enum status note_hops(struct job *job)
{
  static const char key[] = "shard.hops";
  return options_is_set(job->deck->set, key)
             ? STATUS_OK
             : comm_agree(job->comm, options_choose(job->deck->set, key,
                                                    job->shape.two_hops ? "2" : "1", NULL));
}

/* With the defaults of free keys, then with the chosen values if they differ. */
static enum status create_best_plans(struct job *job, enum job_use use)
{
  struct chosen chosen;
  enum status status = create_plans(job, use) ?: job_choose(job, use, &chosen);
  const bool changed = !status && *chosen.text;
  for (int mode = 0; mode < JOB_PLANS && changed; mode++) {
    plan_destroy(job->plan[mode]);
    job->plan[mode] = NULL;
  }
  if (changed) {
    job->shape = (struct deck_shape){0};
    status = create_plans(job, use);
  }
  return status ?: note_hops(job) ?: choose_log(job, &chosen);
}

int job_list_plans(const struct job *job, const struct plan *plans[JOB_PLANS])
{
  int n = 0;
  for (int mode = 0; mode < JOB_PLANS; mode++)
    if (job->plan[mode])
      plans[n++] = job->plan[mode];
  return n;
}

int64_t job_planned_bytes(const struct job *job)
{
  const struct plan *plans[JOB_PLANS];
  return job_arena_bytes(job_list_plans(job, plans), plans);
}

/* FLOP of a step. The backward pass has twice those of the forward pass, less the gradients of
 * frozen weights. */
static double pass_flops(const struct model *model, struct model_shape s)
{
  const double head = model->ops->head_flops(model, s);
  double all = head, frozen = (1 - model_trained_share(model, model->stages - 1)) * head;
  for (int stage = 1; model->stage[stage].kind == STAGE_BLOCK; stage++) {
    const double flops = model->ops->block_flops(model, stage, s),
                 weights = flops - model->ops->attention_flops(model, stage, s);
    frozen += (1 - model_trained_share(model, stage)) * weights;
    all += flops;
  }
  return 3 * all - frozen;
}

double job_step_flops(const struct job *job, int64_t tokens, double squares)
{
  const struct model_shape micro = {job->shape.micro_batch, job->shape.sequence, 0},
                           all = {1, tokens, squares};
  return squares > 0 ? pass_flops(job->model, all)
                     : pass_flops(job->model, micro) * (double)job->shape.micros *
                           mesh_ranks(&job_state_plan(job)->mesh, MESH_BATCH);
}

/* Collective. */
static enum status create_memory(struct job *job)
{
  const struct plan *plans[JOB_PLANS];
  const int n = job_list_plans(job, plans);
  watchdog_start(job->start, "taking memory");
  return comm_agree(job->comm,
                    exec_memory_create(job->device, job->comm, job->nvme, plans, n, &job->memory)
                        ?: job_state_make_scales(job));
}

/* The part that needs no large memory. A job that cannot fit fails here. Collective. */
static enum status create_parts(struct job *job, enum job_use use)
{
  const struct plan *plans[JOB_PLANS];
  watchdog_start(job->start, "planning");
  job->nvme = job_nvme_folder(job->deck);
  enum status status = job->nvme ? STATUS_OK : STATUS_MEMORY;
  status = status ?: job_model(job->deck, job->place.compute, comm_ranks(job->comm), &job->model);
  status = comm_agree(job->comm, status) ?: create_best_plans(job, use);
  return status
             ? status
             : comm_agree(job->comm, job_check_fits(job, use, job_list_plans(job, plans), plans));
}

/* Collective. */
static enum status read_device_memory(struct job *job)
{
  const struct device_ops *ops = job->device->ops;
  return job->device->model.host_memory
             ? STATUS_OK
             : comm_agree(job->comm, ops->memory(job->device, &job->device_used, &job->device_all));
}

enum status job_begin(struct comm *comm, struct deck *deck, struct job **out)
{
  const int64_t resident = mem_resident_bytes();
  struct job *job = NULL;
  enum status status = comm_agree(comm, mem_new(MEM_META, 1, &job));
  *out = job;
  if (status)
    return status;
  job->comm = comm;
  job->deck = deck;
  job->resident_start = resident;
  return deck->comm.timeout > 0 ? watchdog_create(comm, NULL, deck->comm.timeout, &job->start)
                                : STATUS_OK;
}

static enum status take_place(struct job *job, enum job_use use)
{
  watchdog_start(job->start, "taking its place on the node");
  return (use == JOB_BENCH ? STATUS_OK : job_look_at_data(job->comm, job->deck, NULL))
      ?: job_take_place(job) ?: read_device_memory(job);
}

enum status job_check(struct job *job, enum job_use use)
{
  const enum status status =
      (job->topo ? STATUS_OK : take_place(job, use)) ?: create_parts(job, use);
  return status ? status : comm_say_warnings(job->comm);
}

enum status job_create(struct job *job, enum job_use use)
{
  const enum status status = job_check(job, use) ?: create_memory(job);
  if (status)
    return status;
  job_log(job, use);
  watchdog_start(job->start, "finding what it begins with");
  return STATUS_OK;
}

void job_clear(struct job *job)
{
  exec_memory_destroy(&job->memory);
  for (int mode = 0; mode < JOB_PLANS; mode++)
    plan_destroy(job->plan[mode]);
  model_destroy(job->model);
  mem_free(job->base);
  mem_free(job->scales);
  mem_free(job->nvme);
  memset(job->plan, 0, sizeof job->plan);
  job->model = NULL;
  job->base = NULL;
  job->scales = NULL;
  job->nvme = NULL;
  job->shape = (struct deck_shape){0};
  job->predicted_s = 0;
}

void job_destroy(struct job *job)
{
  if (!job)
    return;
  struct trace_summary unread;
  watchdog_started(job->start);
  for (int mode = 0; mode < JOB_PLANS; mode++)
    exec_destroy(job->exec[mode]);
  for (int mode = 0; mode < JOB_PLANS; mode++)
    prefetch_destroy(job->prefetch[mode]);
  if (trace_run_close(job->trace, &unread))
    log_warn("%s", status_text());
  op_counters_destroy(job->counters);
  watchdog_destroy(job->start);
  job_clear(job);
  device_destroy(job->host);
  device_destroy(job->device);
  mem_free(job->rates_of);
  topo_destroy(job->topo);
  mem_free(job);
}

const struct plan *job_state_plan(const struct job *job)
{
  const struct plan *plans[JOB_PLANS] = {NULL};
  (void)job_list_plans(job, plans);
  return plans[0];
}
