/* `sluice plan --json`: the needs of the plan, for programs. */

#include <inttypes.h>
#include <stdio.h>

#include "cmd/plan.h"
#include "io/text/json_write.h"
#include "layout/mesh.h"

static const char *const tier_names[TIER_COUNT] = {
    [TIER_DEVICE] = "device", [TIER_HOST] = "host", [TIER_SHARED] = "shared", [TIER_DISK] = "nvme"};

static void write_model(struct json_writer *json, const struct model *model)
{
  json_write_open(json, "model", '{');
  json_write_text(json, "arch", model->config.arch);
  json_write_int(json, "parameters", model->parameters);
  json_write_int(json, "frozen", model->frozen);
  json_write_close(json, '}');
}

static void write_shape(struct json_writer *json, const struct plan *plan)
{
  const struct plan_input *input = &plan->input;
  json_write_int(json, "ranks", input->ranks);
  json_write_int(json, "rank", input->rank);
  json_write_text(json, "strategy", deck_strategy_name(input->strategy));
  json_write_int(json, "group", mesh_ranks(&plan->mesh, MESH_SHARD));
  json_write_int(json, "micro_batches", input->shape.micros);
  json_write_int(json, "micro_batch", input->shape.micro_batch);
  json_write_int(json, "sequence", input->shape.sequence);
}

static void write_part(struct json_writer *json, const char *tier, const char *purpose,
                       int64_t persistent, int64_t transient)
{
  if (persistent + transient == 0)
    return;
  json_write_open(json, NULL, '{');
  json_write_text(json, "tier", tier);
  json_write_text(json, "purpose", purpose);
  json_write_int(json, "persistent", persistent);
  json_write_int(json, "transient", transient);
  json_write_close(json, '}');
}

static void write_memory(struct json_writer *json, const struct plan *plan)
{
  json_write_open(json, "memory", '[');
  for (int tier = 0; tier < TIER_COUNT; tier++) {
    for (int p = 0; p < PURPOSE_COUNT; p++)
      write_part(json, tier_names[tier], plan_purpose_name((enum plan_purpose)p),
                 plan_purpose_bytes(plan, (enum plan_tier)tier, (enum plan_purpose)p, true),
                 plan_purpose_bytes(plan, (enum plan_tier)tier, (enum plan_purpose)p, false));
    write_part(json, tier_names[tier], "total", plan->persistent_bytes[tier],
               plan->transient_bytes[tier]);
  }
  json_write_close(json, ']');
}

static void write_traffic(struct json_writer *json, const struct plan *plan,
                          const struct traffic_model *links)
{
  const int nodes = traffic_nodes(plan->input.ranks, links->local_ranks);
  const struct traffic_bytes traffic = plan_traffic(plan, links);
  json_write_open(json, "node_sends", '{');
  json_write_int(json, "nodes", nodes);
  json_write_int(json, "parameters", traffic.gather / nodes);
  json_write_int(json, "gradients", traffic.reduce / nodes);
  json_write_int(json, "replicas", traffic.replicas / nodes);
  json_write_int(json, "all", traffic.all / nodes);
  json_write_close(json, '}');
}

static void write_messages(struct json_writer *json, const struct plan *plan)
{
  const struct message_count messages = plan_messages(plan);
  json_write_open(json, "messages", '{');
  json_write_int(json, "all", messages.all);
  json_write_int(json, "scales", messages.scales);
  json_write_int(json, "groups", messages.groups);
  json_write_close(json, '}');
}

static void write_room(struct json_writer *json, const char *name, const struct rooms *rooms,
                       enum room room, double reserve)
{
  const double need = rooms->need[room], have = rooms->have[room];
  if (need <= 0 && have < 0)
    return;
  json_write_open(json, name, '{');
  json_write_real(json, "need", need);
  if (reserve > 0)
    json_write_real(json, "reserve", reserve);
  if (have >= 0) {
    json_write_real(json, "have", have);
    json_write_real(json, "left", have - need);
    json_write_bool(json, "fits", !rooms_is_short(rooms, room));
  }
  json_write_close(json, '}');
}

static bool write_fit(struct json_writer *json, const struct plan_facts *facts)
{
  const struct search *job = &facts->job;
  struct rooms rooms;
  job->judge(job->arg, job->local_ranks, job->n, job->plans, &rooms);
  const bool fits = rooms_fit(&rooms);
  json_write_open(json, "fit", '{');
  write_room(json, "device", &rooms, ROOM_DEVICE, fit_reserve(job->plans[0]));
  write_room(json, "host", &rooms, ROOM_HOST, 0);
  write_room(json, "nvme", &rooms, ROOM_DISK, 0);
  if (fit_is_sized(facts->room))
    json_write_bool(json, "fits", fits);
  json_write_close(json, '}');
  return fits;
}

static enum status write_forecast(struct json_writer *json, const struct plan *plan,
                                  const struct plan_rates *rates)
{
  struct plan_forecast forecast;
  const enum status status = plan_simulate(plan, rates, &forecast);
  if (status)
    return status;
  json_write_open(json, "forecast", '{');
  json_write_real(json, "step_s", forecast.step_s);
  json_write_real(json, "exposed_comm_s", forecast.exposed_comm_s);
  json_write_real(json, "exposed_copy_s", forecast.exposed_copy_s);
  json_write_real(json, "exposed_update_s", forecast.exposed_update_s);
  json_write_real(json, "exposed_disk_s", forecast.exposed_disk_s);
  json_write_open(json, "busy_s", '{');
  for (int lane = 0; lane < LANE_COUNT; lane++)
    json_write_real(json, plan_lane_name((enum plan_lane)lane), forecast.busy_s[lane]);
  json_write_close(json, '}');
  json_write_close(json, '}');
  return STATUS_OK;
}

static void write_settings(struct json_writer *json, const struct plan_facts *facts)
{
  json_write_open(json, "settings", '[');
  for (int i = 0; i < facts->other.n; i++) {
    const struct choice *choice = &facts->other.of[i];
    json_write_open(json, NULL, '{');
    json_write_text(json, "changes", choice->changes);
    json_write_real(json, "device", choice->rooms.need[ROOM_DEVICE]);
    json_write_real(json, "host", choice->rooms.need[ROOM_HOST]);
    json_write_real(json, "nvme", choice->rooms.need[ROOM_DISK]);
    json_write_real(json, "node_sends", choice->sent);
    if (facts->rates)
      json_write_real(json, "step_s", choice->step_s);
    if (fit_is_sized(facts->room))
      json_write_bool(json, "fits", choice->fits);
    json_write_close(json, '}');
  }
  json_write_close(json, ']');
}

enum status plan_json_print(const struct plan_facts *facts, bool *fits)
{
  struct json_writer json = {.to = stdout};
  const struct plan *plan = facts->job.plans[0];
  enum status status = STATUS_OK;
  char hash[24];
  snprintf(hash, sizeof hash, "%016" PRIx64, plan_collective_hash(plan));
  json_write_open(&json, NULL, '{');
  write_model(&json, plan->input.model);
  write_shape(&json, plan);
  json_write_text(&json, "device", facts->device);
  json_write_text(&json, "compute", facts->precision);
  json_write_bool(&json, "estimated", facts->estimated);
  json_write_int(&json, "instructions", plan->n);
  json_write_text(&json, "hash", hash);
  write_memory(&json, plan);
  write_messages(&json, plan);
  if (plan->input.mode == PLAN_TRAIN)
    write_traffic(&json, plan, &facts->links);
  *fits = write_fit(&json, facts);
  if (facts->rates)
    status = write_forecast(&json, plan, facts->rates);
  if (facts->other.n > 0)
    write_settings(&json, facts);
  json_write_close(&json, '}');
  return status;
}
