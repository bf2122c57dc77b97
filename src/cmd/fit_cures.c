/* What would make a plan fit: keys, by the plans that they make, and what no key can do. */
#include "base/mem.h"
#include "cmd/fit_private.h"

enum { MOST_PARTS = 6 };
enum { SHARDED = FIT_BIT(FIT_SHARD_ALL) | FIT_BIT(FIT_REDUCE_EACH) };

/* All changes together; and what may do without the others, in the order of what that costs. */
struct cure {
  unsigned all, part[MOST_PARTS];
  bool quiet; /* if it does not help */
};

/* All together bound what a part can do, so that parts are tried only where one of them may fit. */
static enum status print_least(const struct plan *plan, const struct cure *cure, const struct fit_variant *all, const struct fit_room *room, FILE *to)
{
  for (int p = 0; p < MOST_PARTS && cure->part[p]; p++) {
    struct fit_variant part = fit_vary(plan, cure->part[p]);
    if (part.made == all->made)
      break;
    const enum status status = fit_build(&part);
    const bool fits = !status && part.plan && fit_fits(part.plan, room);
    if (fits)
      fit_print_variant(&part, plan, room, to);
    plan_destroy(part.plan);
    if (status || fits)
      return status;
  }
  fit_print_variant(all, plan, room, to);
  return STATUS_OK;
}

static enum status make(const struct plan *plan, unsigned changes, struct fit_variant *out)
{
  *out = fit_vary(plan, changes);
  return fit_build(out);
}

static enum status try_cure(const struct plan *plan, const struct cure *cure, const struct fit_room *room, FILE *to, bool *fits)
{
  struct fit_variant all;
  enum status status = *fits ? STATUS_OK : make(plan, cure->all, &all);
  if (status || *fits || !all.plan)
    return status;
  *fits = fit_fits(all.plan, room);
  if (*fits)
    status = print_least(plan, cure, &all, room, to);
  else if (!cure->quiet && fit_needs_less(all.plan, plan, room))
    fit_print_variant(&all, plan, room, to);
  plan_destroy(all.plan);
  return status;
}

/* Whether there would be room with many more ranks, with a much shorter sequence, or with both; and whether the node's memory is short as well. */
struct hopes {
  bool ranks, sequence, both, nodes;
};

/* With so many ranks that what they share takes nothing, unless `with_shared`. */
static bool leaves_room(const struct plan *plan, const struct fit_room *room, bool with_shared)
{
  int64_t bytes = plan_tier_bytes(plan, TIER_DEVICE), shared = plan->persistent_bytes[TIER_DEVICE];
  shared += plan_purpose_bytes(plan, TIER_DEVICE, PURPOSE_GRADS, false);
  if (room->gpu_bytes > 0)
    return bytes - (with_shared ? 0 : shared) <= room->gpu_bytes;
  if (with_shared)
    return fit_node_bytes(plan, room) <= room->host_bytes;
  bytes += plan_tier_bytes(plan, TIER_HOST);
  shared += plan->persistent_bytes[TIER_HOST] + plan_purpose_bytes(plan, TIER_HOST, PURPOSE_GRADS, false);
  return bytes - shared <= room->host_bytes;
}

static enum status find_hopes(const struct plan *plan, unsigned changes, const struct fit_room *room, struct hopes *out)
{
  enum { MUCH = 8 };
  struct fit_variant least = fit_vary(plan, changes);
  struct plan *now = NULL, *brief = NULL;
  enum status status = plan_create(&least.input, &now);
  least.input.shape.sequence = (least.input.shape.sequence + MUCH - 1) / MUCH;
  if (!status)
    status = plan_create(&least.input, &brief);
  if (!status)
    *out = (struct hopes){.ranks = leaves_room(now, room, false),
                          .sequence = leaves_room(brief, room, true),
                          .both = leaves_room(brief, room, false),
                          .nodes = room->host_bytes > 0 && fit_node_bytes(now, room) > room->host_bytes};
  plan_destroy(brief);
  plan_destroy(now);
  return status;
}

/* Besides keys. */
static enum status print_hopes(const struct plan *plan, unsigned changes, const struct fit_room *room, bool fits, FILE *to)
{
  const char *use = fits ? "or use" : "use";
  struct hopes hopes;
  const enum status status = find_hopes(plan, changes, room, &hopes);
  if (status)
    return status;
  const char *more = room->gpu_bytes == 0 ? "more nodes" : hopes.nodes ? "more ranks on more nodes" : "more ranks";
  if (hopes.ranks)
    fprintf(to, "%s %s%s\n", use, more, hopes.sequence ? ", or a shorter data.sequence" : "");
  else if (hopes.sequence)
    fprintf(to, "%s a shorter data.sequence\n", use);
  else if (hopes.both)
    fprintf(to, "%s %s with a shorter data.sequence\n", use, more);
  else if (!fits)
    fprintf(to, "neither %s nor a much shorter data.sequence would do: use %s with more memory\n", more, room->gpu_bytes > 0 ? "GPUs" : "nodes");
  return STATUS_OK;
}

/* Which keep the numbers come first. */
static enum status print_device_cures(const struct plan *plan, const struct fit_room *room, FILE *to)
{
  enum { TRANSFERS = FIT_BIT(FIT_PARAMS_SHARD) | FIT_BIT(FIT_GRADS_DEVICE) };
  enum { LEAST = SHARDED | TRANSFERS | FIT_BIT(FIT_WORKING_GATHER) | FIT_BIT(FIT_RESIDENT_NONE) | FIT_BIT(FIT_RECOMPUTE) | FIT_BIT(FIT_MICRO_ONE) };
  enum {
    HOST = SHARDED | TRANSFERS | FIT_BIT(FIT_STATE_HOST) | FIT_BIT(FIT_RESIDENT_NONE) | FIT_BIT(FIT_INPUTS_HOST) | FIT_BIT(FIT_MICRO_ONE),
    HOST_LESS = HOST | FIT_BIT(FIT_MOMENTS_BF16)
  };
  static const struct cure same = {
      LEAST,
      {FIT_BIT(FIT_WORKING_GATHER), FIT_BIT(FIT_RESIDENT_NONE), FIT_BIT(FIT_KEEP_HOST), FIT_BIT(FIT_MICRO_ONE), SHARDED, FIT_BIT(FIT_RECOMPUTE)},
      .quiet = false};
  static const struct cure others[] = {{LEAST | FIT_BIT(FIT_MOMENTS_BF16), {FIT_BIT(FIT_MOMENTS_BF16)}, .quiet = true},
                                       {HOST, {SHARDED | FIT_BIT(FIT_STATE_HOST)}, .quiet = false}};
  static const struct cure host_too[] = {{HOST_LESS, {0}, .quiet = true}, {HOST_LESS | FIT_BIT(FIT_MOMENTS_NVME), {0}, .quiet = false}};
  const bool train = plan->input.mode == PLAN_TRAIN;
  bool fits = false;
  enum status status = try_cure(plan, &same, room, to, &fits);
  if (status || fits)
    return status;
  for (int i = 0; i < 2 && train && !status; i++)
    status = try_cure(plan, &others[i], room, to, &fits);
  for (int i = 0; i < 2 && train && room->host_bytes > 0 && !status; i++)
    status = try_cure(plan, &host_too[i], room, to, &fits);
  return status ? status : print_hopes(plan, LEAST, room, fits, to);
}

static void print_node_cures_besides(const struct plan *plan, const struct fit_room *room, bool fits, FILE *to)
{
  const int64_t moving = room->local_ranks * fit_moving_bytes(plan, room);
  fprintf(to, "%s more nodes with fewer ranks on each\n", fits ? "or use" : "use");
  if (moving > 0 && fit_node_bytes(plan, room) - moving <= room->host_bytes)
    fprintf(to, "or neither load nor save: without train.init, with checkpoint.every=0 and checkpoint.at_end=false, a node needs %s\n",
            mem_amount(fit_node_bytes(plan, room) - moving).text);
}

/* What GPUs leave to their hosts. */
static enum status print_node_cures(const struct plan *plan, const struct fit_room *room, FILE *to)
{
  enum { LEAST = SHARDED | FIT_BIT(FIT_GRADS_DEVICE) | FIT_BIT(FIT_MOMENTS_NVME) };
  static const struct cure cures[] = {
      {LEAST | FIT_BIT(FIT_RECOMPUTE),
       {FIT_BIT(FIT_KEEP_DEVICE), FIT_BIT(FIT_RECOMPUTE), FIT_BIT(FIT_GRADS_DEVICE), SHARDED, FIT_BIT(FIT_MOMENTS_NVME)},
       .quiet = false},
      {LEAST | FIT_BIT(FIT_INPUTS_NVME), {FIT_BIT(FIT_INPUTS_NVME)}, .quiet = true},
      {LEAST | FIT_BIT(FIT_RECOMPUTE) | FIT_BIT(FIT_MOMENTS_BF16),
       {FIT_BIT(FIT_MOMENTS_BF16), FIT_BIT(FIT_MOMENTS_BF16) | FIT_BIT(FIT_KEEP_DEVICE)},
       .quiet = false}};
  bool fits = false;
  enum status status = STATUS_OK;
  fprintf(to, "the node's memory is %s short:\n", mem_amount(fit_node_bytes(plan, room) - room->host_bytes).text);
  for (int i = 0; i < 3 && !status; i++)
    status = try_cure(plan, &cures[i], room, to, &fits);
  if (!status)
    print_node_cures_besides(plan, room, fits, to);
  return status;
}

/* Where hosts compute. */
static enum status print_host_cures(const struct plan *plan, const struct fit_room *room, FILE *to)
{
  enum {
    LEAST = SHARDED | FIT_BIT(FIT_GRADS_DEVICE) | FIT_BIT(FIT_WORKING_GATHER) | FIT_BIT(FIT_RECOMPUTE) | FIT_BIT(FIT_MOMENTS_NVME) |
            FIT_BIT(FIT_MICRO_ONE)
  };
  static const struct cure cures[] = {
      {LEAST,
       {FIT_BIT(FIT_WORKING_GATHER), FIT_BIT(FIT_GRADS_DEVICE), FIT_BIT(FIT_MICRO_ONE), SHARDED, FIT_BIT(FIT_RECOMPUTE), FIT_BIT(FIT_MOMENTS_NVME)},
       .quiet = false},
      {LEAST | FIT_BIT(FIT_MOMENTS_BF16), {FIT_BIT(FIT_MOMENTS_BF16)}, .quiet = true}};
  bool fits = false;
  enum status status = try_cure(plan, &cures[0], room, to, &fits);
  if (status || fits)
    return status;
  status = try_cure(plan, &cures[1], room, to, &fits);
  return status ? status : print_hopes(plan, LEAST, room, fits, to);
}

enum status fit_print_cure(const struct plan *plan, const struct fit_room *room, FILE *to)
{
  const bool device = fit_device_is_short(plan, room);
  if (plan->input.mode == PLAN_GENERATE) {
    fprintf(to, "use more %s, or a shorter data.sequence (context= of sluice generate)\n", device ? "ranks" : "nodes");
    return STATUS_OK;
  }
  if (device)
    return print_device_cures(plan, room, to);
  return room->gpu_bytes > 0 ? print_node_cures(plan, room, to) : print_host_cures(plan, room, to);
}
