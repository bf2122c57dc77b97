/* The start of a plan of a job, and the counters and the trace of training steps. */
#include "job/private.h"

#include "base/append.h"
#include "base/log.h"
#include "base/mem.h"
#include "exec/watchdog.h"

static enum status measure_link(struct job *job)
{
  watchdog_start(job->start, "measuring the link between ranks");
  return exec_measure_link(job->exec[PLAN_TRAIN], &job->traced.link_bytes_s);
}

static enum status open_trace(struct job *job)
{
  if (job->deck->train.trace.n == 0)
    return STATUS_OK;
  char *dir = mem_printf("%s/trace", job->deck->run.dir);
  const enum status status =
      dir ? trace_run_open(dir, job->plan[PLAN_TRAIN], &job->traced, &job->trace) : STATUS_MEMORY;
  mem_free(dir);
  job->traced.counters = job->counters;
  return status;
}

static void log_counters(const struct job *job)
{
  char keys[2048] = "";
  for (int e = 0; e < op_counters_events(job->counters); e++)
    append_text(keys, sizeof keys, "%s%s", e ? ", " : "", op_counters_key(job->counters, e));
  if (comm_rank(job->comm) != 0)
    return;
  log_info("run.counters: counting %s of the threads that drive lanes and of their workers",
           *keys ? keys : "nothing");
  if (*op_counters_note(job->counters))
    log_warn("run.counters: %s", op_counters_note(job->counters));
}

static enum status open_counters(struct job *job)
{
  _Static_assert((int)DECK_COUNTERS <= (int)OP_COUNTERS, "run.counters may name as many");
  const struct option_strings *names = &job->deck->run.counters;
  if (!deck_counts(job->deck))
    return STATUS_OK;
  const enum status status = op_counters_create(COUNT_LANES, names->n, names->item, &job->counters);
  if (!status)
    log_counters(job);
  return status;
}

/* The common configuration of the executors of all plans. */
static struct exec_config config_of(struct job *job, const struct plan *plan)
{
  const struct topo_own *own = topo_own(job->topo);
  return (struct exec_config){.plan = plan,
                              .model = job->model,
                              .device = job->device,
                              .host = job->host,
                              .comm = job->comm,
                              .memory = &job->memory,
                              .copy_rate = job->deck->transfer.rate * 1e9,
                              .threads = job->threads,
                              .cores = own->cores,
                              .io_cpus = own->io_cpus,
                              .io_cores = own->io_cores,
                              .timeout_s = job->deck->comm.timeout,
                              .start = job->start};
}

static void watch_steps(const struct job *job, struct exec_config *config)
{
  config->trace = job->trace ? trace_run_event : NULL;
  config->trace_arg = job->trace;
  config->trace_from = job->deck->train.trace.item[0];
  config->trace_to = job->deck->train.trace.item[1];
  config->counters = job->counters;
}

enum status job_start(struct job *job, enum plan_mode mode, exec_load *load, void *arg)
{
  enum status status = mode == PLAN_TRAIN ? open_counters(job) : STATUS_OK;
  if (!status && mode == PLAN_TRAIN)
    status = open_trace(job);
  if (!status && mode != PLAN_GENERATE)
    status = prefetch_create(job->plan[mode], load, arg, job->topo, &job->prefetch[mode]);
  status = comm_agree(job->comm, status);
  if (status)
    return status;
  struct exec_config config = config_of(job, job->plan[mode]);
  config.load = job->prefetch[mode] ? prefetch_load : load;
  config.load_arg = job->prefetch[mode] ? job->prefetch[mode] : arg;
  if (mode == PLAN_TRAIN)
    watch_steps(job, &config);
  status = exec_create(&config, &job->exec[mode]);
  if (!status && mode == PLAN_TRAIN)
    job_say_where_memory_lies(job);
  status = status ?: comm_say_warnings(job->comm);
  if (!status && config.trace)
    status = measure_link(job);
  watchdog_started(job->start);
  return status;
}

enum status job_start_warmup(struct job *job)
{
  struct exec_config config = config_of(job, job->plan[JOB_WARMUP]);
  config.load = prefetch_load;
  config.load_arg = job->prefetch[PLAN_TRAIN];
  enum status status = exec_create(&config, &job->exec[JOB_WARMUP]) ?: comm_say_warnings(job->comm);
  watchdog_started(job->start);
  return status;
}

enum status job_end_warmup(struct job *job)
{
  const enum status status = exec_drain(job->exec[JOB_WARMUP]);
  if (status)
    return status;
  exec_destroy(job->exec[JOB_WARMUP]);
  job->exec[JOB_WARMUP] = NULL;
  return STATUS_OK;
}

void job_read_ahead(struct job *job, enum plan_mode mode, int64_t first, int64_t steps)
{
  prefetch_begin(job->prefetch[mode], first, steps);
}

enum status job_await_read(struct job *job, enum plan_mode mode, int64_t step)
{
  return prefetch_await(job->prefetch[mode], step);
}

void job_skip_step(struct job *job, enum plan_mode mode, struct exec *exec)
{
  prefetch_skip(job->prefetch[mode]);
  exec_skip(exec);
}

enum status job_end_trace(struct job *job, struct trace_summary *out)
{
  *out = (struct trace_summary){0};
  if (!job->trace)
    return STATUS_OK;
  enum status status = exec_drain(job->exec[PLAN_TRAIN]);
  status = status ?: exec_measured(job->exec[PLAN_TRAIN], job->traced.operations);
  if (status)
    return status;
  status = trace_run_close(job->trace, out);
  job->trace = NULL; /* no step is traced after this one, because the caller runs none */
  return status;
}
