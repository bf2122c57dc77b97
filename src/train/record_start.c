/* The record of a start: program, deck, hosts and GPUs. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "train/private.h"

enum { NAME_BYTES = 128 };

struct place {
  char host[NAME_BYTES], gpu[NAME_BYTES]; /* "": not known, or no GPU */
};
enum { PLACE_WORDS = sizeof(struct place) / sizeof(int64_t) };

/* Each rank fills its own entry of zeros, so the sum has all entries. */
static enum status gather_places(const struct train_run *run, struct place *place)
{
  const struct device *device = run->job->device;
  struct place *own = &place[comm_rank(run->comm)];
  if (gethostname(own->host, sizeof own->host - 1) != 0)
    *own->host = '\0';
  if (!device->model.host_memory)
    snprintf(own->gpu, sizeof own->gpu, "%s", *device->product ? device->product : "GPU");
  return comm_sum_i64(run->comm, (int64_t *)place, comm_ranks(run->comm) * PLACE_WORDS);
}

/* Names without repetition. `offset`: of the name in struct place. */
static void record_names(struct json_writer *line, const char *key, int ranks,
                         const struct place *place, size_t offset)
{
  json_write_open(line, key, '[');
  for (int r = 0; r < ranks; r++) {
    const char *name = (const char *)&place[r] + offset;
    int same = r - 1; /* ranks of one node follow each other */
    while (same >= 0 && strcmp((const char *)&place[same] + offset, name) != 0)
      same--;
    if (*name && same < 0)
      json_write_text(line, NULL, name);
  }
  json_write_close(line, ']');
}

static enum status record_key(struct json_writer *line, const struct deck *deck,
                              const struct option *option)
{
  const char *field = (const char *)deck + option->offset;
  char *text = NULL;
  enum status status = STATUS_OK;
  switch (option->type) {
  case OPTION_INT: json_write_int(line, option->name, *(const int64_t *)field); break;
  case OPTION_REAL: json_write_real(line, option->name, *(const double *)field); break;
  case OPTION_BOOL: json_write_bool(line, option->name, *(const bool *)field); break;
  default:
    status = options_print_value(option, deck, &text);
    if (!status)
      json_write_text(line, option->name, text);
  }
  mem_free(text);
  return status;
}

void train_record_job(struct json_writer *line, const struct job *job)
{
  json_write_int(line, "ranks", comm_ranks(job->comm));
  json_write_int(line, "threads", job->threads);
  json_write_text(line, "device", job->place.device);
  json_write_text(line, "compute", job->place.precision);
  json_write_text(line, "mpi", comm_description(job->comm));
  json_write_text(line, "transport", job->place.transport);
  json_write_int(line, "parameters", job->model->parameters);
  if (job->predicted_s > 0)
    json_write_real(line, "predicted_s", job->predicted_s);
}

void train_record_tiers(struct json_writer *line, const struct plan *plan)
{
  for (int tier = 0; tier < TIER_COUNT; tier++) {
    char key[48];
    snprintf(key, sizeof key, "planned_%s_bytes", plan_tier_name((enum plan_tier)tier));
    json_write_int(line, key, plan_tier_bytes(plan, (enum plan_tier)tier));
  }
}

static enum status record_start(struct train_run *run, const struct place *place)
{
  const struct job *job = run->job;
  struct json_writer *line = results_begin(run->results, "start");
  const int ranks = comm_ranks(run->comm);
  char hash[17];
  deck_hash(run->deck, hash);
  results_time(line);
  results_origin(line);
  json_write_int(line, "step", run->first);
  json_write_int(line, "steps", run->deck->run.steps);
  json_write_int(line, "step_tokens", train_step_tokens(run));
  record_names(line, "hosts", ranks, place, offsetof(struct place, host));
  record_names(line, "gpus", ranks, place, offsetof(struct place, gpu));
  json_write_int(line, "ranks_per_host", comm_local_ranks(run->comm));
  train_record_job(line, job);
  train_record_tiers(line, job->plan[PLAN_TRAIN]);
  json_write_text(line, "resumed_from", run->from ? run->from : "");
  json_write_text(line, "deck_hash", hash);
  enum status status = STATUS_OK;
  json_write_open(line, "deck", '{');
  for (const struct option *option = deck_table; option->name && !status; option++)
    status = record_key(line, run->deck, option);
  json_write_close(line, '}');
  json_write_open(line, "chosen", '[');
  for (const struct option *option = deck_table; option->name; option++)
    if (options_is_chosen(run->deck->set, option->name))
      json_write_text(line, NULL, option->name);
  json_write_close(line, ']');
  return status ?: results_end(run->results);
}

enum status train_record_start(struct train_run *run)
{
  const int ranks = comm_ranks(run->comm);
  struct place *place = NULL;
  enum status status = comm_agree(run->comm, mem_new(MEM_META, ranks, &place))
      ?: gather_places(run, place)
      ?: comm_agree(run->comm, run->results ? record_start(run, place) : STATUS_OK)
      ?: comm_agree(run->comm, run->results ? results_identity(run->results_path.text, &run->id)
                                                : STATUS_OK)
      ?: comm_broadcast(run->comm, &run->id, sizeof run->id, 0);
  mem_free(place);
  return status;
}
