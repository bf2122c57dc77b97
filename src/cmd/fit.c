#include "cmd/fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "train/job_state.h"

/* Memory sizes as NVIDIA's data sheets give them, taken as decimal gigabytes. The driver shows some 5 % more (80 GB is 80 GiB on its label): that is left to the
 * driver's context, to the libraries' workspaces and to NCCL. */
static const struct {
  const char *name, *title;
  int64_t bytes;
} gpus[] = {
    {"a100-40", "A100 40GB (NVIDIA A100 Tensor Core GPU data sheet)", INT64_C(40000000000)},
    {"a100-80", "A100 80GB (NVIDIA A100 Tensor Core GPU data sheet)", INT64_C(80000000000)},
    {"h100", "H100 80GB (NVIDIA H100 Tensor Core GPU data sheet, SXM and PCIe)", INT64_C(80000000000)},
    {"h200", "H200 141GB (NVIDIA H200 Tensor Core GPU data sheet)", INT64_C(141000000000)},
    {"l40s", "L40S 48GB (NVIDIA L40S GPU data sheet)", INT64_C(48000000000)},
};

/* "B", or a letter of kMGT with or without i and B. */
static bool parse_unit(const char *text, double *unit)
{
  static const char letters[] = "kMGT";
  const char *letter = *text ? strchr(letters, *text == 'K' ? 'k' : *text) : NULL;
  *unit = 1;
  if (letter) { /* what it stands for is said by it, so B may be left out */
    const bool binary = *++text == 'i';
    text += binary;
    *unit = pow(binary ? 1024 : 1000, (double)(letter - letters + 1));
  }
  return (letter && !*text) || strcmp(text, "B") == 0;
}

static bool parse_size(const char *text, int64_t *out)
{
  char *end;
  double unit, number = strtod(text, &end);
  if (*text < '0' || *text > '9' || !parse_unit(end, &unit) || !(number * unit >= 1 && number * unit <= 0x1p62))
    return false;
  *out = (int64_t)(number * unit);
  return true;
}

enum status fit_gpu(const char *text, struct fit_room *room)
{
  if (!*text)
    return STATUS_OK;
  for (size_t i = 0; i < sizeof gpus / sizeof gpus[0]; i++)
    if (strcmp(text, gpus[i].name) == 0) {
      room->gpu = gpus[i].title;
      room->gpu_bytes = gpus[i].bytes;
      return STATUS_OK;
    }
  if (!parse_size(text, &room->gpu_bytes))
    return status_set(STATUS_USAGE, "gpu=%s: it is one of " FIT_GPUS ", or a size with its unit, such as 64GiB", text);
  room->gpu = "the GPU";
  return STATUS_OK;
}

enum status fit_host(const char *text, struct fit_room *room)
{
  if (*text && !parse_size(text, &room->host_bytes))
    return status_set(STATUS_USAGE, "host=%s: it is a size with its unit, such as 512GiB", text);
  return STATUS_OK;
}

struct fit_count fit_count(int64_t n)
{
  struct fit_count count;
  char digits[24];
  const size_t length = (size_t)snprintf(digits, sizeof digits, "%lld", (long long)n);
  char *to = count.text;
  for (size_t i = 0; i < length; i++) {
    if (i > 0 && (length - i) % 3 == 0)
      *to++ = ',';
    *to++ = digits[i];
  }
  *to = '\0';
  return count;
}

static int64_t tier_bytes(const struct plan *plan, enum plan_tier tier)
{
  return plan->persistent_bytes[tier] + plan->transient_bytes[tier];
}

/* What moves the state of a rank between its GPU and files. */
static int64_t moving_bytes(const struct plan *plan, const struct fit_room *room)
{
  return room->gpu_bytes > 0 ? job_state_bytes(plan, plan->input.mode == PLAN_TRAIN) : 0;
}

/* What the ranks of a node need of its memory. */
static int64_t node_bytes(const struct plan *plan, const struct fit_room *room)
{
  const int group = plan->input.shape.group, groups = (room->local_ranks + group - 1) / group;
  const int64_t rank = tier_bytes(plan, TIER_HOST) + (room->gpu_bytes > 0 ? moving_bytes(plan, room) : tier_bytes(plan, TIER_DEVICE));
  return room->local_ranks * rank + groups * plan_shared_bytes(plan);
}

static bool all_fits(const struct plan *plan, const struct fit_room *room)
{
  return (room->gpu_bytes == 0 || tier_bytes(plan, TIER_DEVICE) <= room->gpu_bytes) &&
         (room->host_bytes == 0 || node_bytes(plan, room) <= room->host_bytes);
}

static void print_line(const char *who, int64_t need, const char *what, int64_t have, FILE *to)
{
  fprintf(to, "  %s %.2f GiB, %s has %.2f GiB: %s\n", who, mem_GiB(need), what, mem_GiB(have), need <= have ? "fits" : "does not fit");
}

static bool device_is_short(const struct plan *plan, const struct fit_room *room)
{
  return room->gpu_bytes > 0 && tier_bytes(plan, TIER_DEVICE) > room->gpu_bytes;
}

/* ---- the same plan with other keys ---- */

/* In the order in which they are named. */
enum change {
  SHARD_ALL,
  REDUCE_EACH,
  STATE_HOST,
  PARAMS_SHARD,
  GRADS_DEVICE,
  WORKING_GATHER,
  KEEP_DEVICE,
  KEEP_HOST,
  RECOMPUTE,
  INPUTS_HOST,
  INPUTS_NVME,
  MOMENTS_BF16,
  MOMENTS_NVME,
  MICRO_ONE,
  CHANGES
};

static const char *const keys[CHANGES] = {
    [SHARD_ALL] = "shard.strategy=full_shard",
    [REDUCE_EACH] = "shard.reduce=micro",
    [STATE_HOST] = "tiers.params=host, tiers.optimizer=host",
    [PARAMS_SHARD] = "transfer.params=shard",
    [GRADS_DEVICE] = "transfer.grads=gpu_reduce",
    [WORKING_GATHER] = "tiers.working=gather",
    [KEEP_DEVICE] = "tiers.activations=keep",
    [KEEP_HOST] = "tiers.activations=keep_host:2",
    [RECOMPUTE] = "tiers.activations=recompute",
    [INPUTS_HOST] = "tiers.activations=host",
    [INPUTS_NVME] = "tiers.activations=nvme",
    [MOMENTS_BF16] = "optim.moments=bf16 (which changes the numbers)",
    [MOMENTS_NVME] = "optim.state=nvme",
    [MICRO_ONE] = "data.micro_batch=1",
};

#define BIT(change) (1u << (change))
enum { SHARDED = BIT(SHARD_ALL) | BIT(REDUCE_EACH) };

static bool set(bool *value, bool to)
{
  const bool changes = *value != to;
  *value = to;
  return changes;
}

static bool shard_all(struct plan_input *input)
{
  if (input->strategy == STRATEGY_FULL_SHARD || input->ranks == 1)
    return false;
  input->strategy = STRATEGY_FULL_SHARD;
  input->shape.group = input->ranks;
  input->shape.replicas = 1;
  return true;
}

static bool take_one_sequence(struct plan_input *input)
{
  if (input->shape.micro_batch == 1)
    return false;
  input->shape.micro_batch = 1;
  if (input->mode == PLAN_TRAIN)
    input->shape.micros = input->shape.rank_batch;
  else
    input->shape.rank_batch = 1;
  return true;
}

static bool keep_as(struct plan_input *input, const char *text)
{
  return deck_parse_activations(text, input->model->blocks, &input->shape.activations);
}

/* Only where it is less in the memory that is short. */
static bool change_activations(struct plan_input *input, enum change change)
{
  const struct deck_pattern *now = &input->shape.activations;
  const bool kept = deck_keeps(now, KEEP_ACTIVATIONS), kept_host = deck_keeps(now, KEEP_ACTIVATIONS_HOST);
  const bool recomputed = deck_keeps(now, KEEP_INPUT), inputs_host = deck_keeps(now, KEEP_INPUT_HOST);
  switch (change) {
  case KEEP_DEVICE: return kept_host && keep_as(input, "keep");
  case KEEP_HOST: return kept && !kept_host && !recomputed && !inputs_host && keep_as(input, "keep_host:2");
  case RECOMPUTE: return (kept || kept_host) && keep_as(input, "recompute");
  case INPUTS_HOST: return (kept || kept_host || recomputed) && keep_as(input, "host");
  default: return (kept_host || inputs_host) && keep_as(input, "nvme");
  }
}

static bool move_state(struct plan_input *input)
{
  input->shape.keep_working = false;
  return set(&input->shape.host_state, true);
}

static bool shrink_moments(struct plan_input *input)
{
  const bool changes = input->shape.moments == DTYPE_F32;
  input->shape.moments = changes ? DTYPE_BF16 : input->shape.moments;
  return changes;
}

static bool move_moments(struct plan_input *input)
{
  const bool changes = input->shape.host_state && input->shape.nvme_state < 1;
  input->shape.nvme_state = changes ? 1 : input->shape.nvme_state;
  return changes;
}

/* Whether it changes anything. */
static bool apply(struct plan_input *input, enum change change)
{
  struct deck_shape *shape = &input->shape;
  if (change == SHARD_ALL)
    return shard_all(input);
  if (change == MICRO_ONE)
    return take_one_sequence(input);
  if (input->mode != PLAN_TRAIN)
    return false;
  switch (change) {
  case REDUCE_EACH: return set(&shape->reduce_every_micro, true);
  case STATE_HOST: return move_state(input);
  case PARAMS_SHARD: return set(&shape->params_full, false);
  case GRADS_DEVICE: return set(&shape->cpu_reduce, false);
  case WORKING_GATHER: return set(&shape->keep_working, false) && input->device->compute != DTYPE_F32;
  case MOMENTS_BF16: return shrink_moments(input);
  case MOMENTS_NVME: return move_moments(input);
  default: return change_activations(input, change);
  }
}

struct variant {
  struct plan_input input;
  struct plan *plan; /* NULL: nothing is changed */
  unsigned made;
};

/* Of all `changes` those that are any. */
static struct variant vary(const struct plan *plan, unsigned changes)
{
  struct variant variant = {.input = plan->input};
  for (int c = 0; c < CHANGES; c++)
    if (changes & BIT(c) && apply(&variant.input, (enum change)c))
      variant.made |= BIT(c);
  return variant;
}

static enum status build(struct variant *variant)
{
  return variant->made ? plan_create(&variant->input, &variant->plan) : STATUS_OK;
}

static enum status make(const struct plan *plan, unsigned changes, struct variant *out)
{
  *out = vary(plan, changes);
  return build(out);
}

static void name_changes(unsigned made, FILE *to)
{
  const char *between = "";
  for (int c = 0; c < CHANGES; c++)
    if (made & BIT(c)) {
      made &= ~BIT(c);
      fprintf(to, "%s%s", between, keys[c]);
      between = made & (made - 1) ? ", " : " and ";
    }
}

static void print_variant(const struct variant *variant, const struct plan *plan, const struct fit_room *room, FILE *to)
{
  fprintf(to, "with ");
  name_changes(variant->made, to);
  if (device_is_short(plan, room))
    fprintf(to, " a rank needs %.2f GiB of its GPU", mem_GiB(tier_bytes(variant->plan, TIER_DEVICE)));
  if (device_is_short(plan, room) && (room->host_bytes > 0 || variant->made & BIT(STATE_HOST)))
    fprintf(to, ", and a node %.2f GiB", mem_GiB(node_bytes(variant->plan, room)));
  if (!device_is_short(plan, room))
    fprintf(to, " a node needs %.2f GiB", mem_GiB(node_bytes(variant->plan, room)));
  fprintf(to, ": %s\n", all_fits(variant->plan, room) ? "fits" : "does not fit either");
}

static bool needs_less(const struct plan *least, const struct plan *plan, const struct fit_room *room)
{
  if (device_is_short(plan, room))
    return tier_bytes(least, TIER_DEVICE) < tier_bytes(plan, TIER_DEVICE) ||
           (room->host_bytes > 0 && node_bytes(least, room) < node_bytes(plan, room));
  return node_bytes(least, room) < node_bytes(plan, room);
}

/* ---- what would make it fit ---- */

enum { MOST_PARTS = 6 };

/* All changes together; and what may do without the others, in the order of what that costs. */
struct cure {
  unsigned all, part[MOST_PARTS];
  bool quiet; /* if it does not help */
};

/* All together bound what a part can do, so that parts are tried only where one of them may fit. */
static enum status print_least(const struct plan *plan, const struct cure *cure, const struct variant *all, const struct fit_room *room, FILE *to)
{
  for (int p = 0; p < MOST_PARTS && cure->part[p]; p++) {
    struct variant part = vary(plan, cure->part[p]);
    if (part.made == all->made)
      break;
    const enum status status = build(&part);
    const bool fits = !status && part.plan && all_fits(part.plan, room);
    if (fits)
      print_variant(&part, plan, room, to);
    plan_destroy(part.plan);
    if (status || fits)
      return status;
  }
  print_variant(all, plan, room, to);
  return STATUS_OK;
}

static enum status try_cure(const struct plan *plan, const struct cure *cure, const struct fit_room *room, FILE *to, bool *fits)
{
  struct variant all;
  enum status status = *fits ? STATUS_OK : make(plan, cure->all, &all);
  if (status || *fits || !all.plan)
    return status;
  *fits = all_fits(all.plan, room);
  if (*fits)
    status = print_least(plan, cure, &all, room, to);
  else if (!cure->quiet && needs_less(all.plan, plan, room))
    print_variant(&all, plan, room, to);
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
  int64_t bytes = tier_bytes(plan, TIER_DEVICE), shared = plan->persistent_bytes[TIER_DEVICE];
  shared += plan_purpose_bytes(plan, TIER_DEVICE, PURPOSE_GRADS, false);
  if (room->gpu_bytes > 0)
    return bytes - (with_shared ? 0 : shared) <= room->gpu_bytes;
  if (with_shared)
    return node_bytes(plan, room) <= room->host_bytes;
  bytes += tier_bytes(plan, TIER_HOST);
  shared += plan->persistent_bytes[TIER_HOST] + plan_purpose_bytes(plan, TIER_HOST, PURPOSE_GRADS, false);
  return bytes - shared <= room->host_bytes;
}

static enum status find_hopes(const struct plan *plan, unsigned changes, const struct fit_room *room, struct hopes *out)
{
  enum { MUCH = 8 };
  struct variant least = vary(plan, changes);
  struct plan *now = NULL, *brief = NULL;
  enum status status = plan_create(&least.input, &now);
  least.input.shape.sequence = (least.input.shape.sequence + MUCH - 1) / MUCH;
  if (!status)
    status = plan_create(&least.input, &brief);
  if (!status)
    *out = (struct hopes){.ranks = leaves_room(now, room, false),
                          .sequence = leaves_room(brief, room, true),
                          .both = leaves_room(brief, room, false),
                          .nodes = room->host_bytes > 0 && node_bytes(now, room) > room->host_bytes};
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
  enum { TRANSFERS = BIT(PARAMS_SHARD) | BIT(GRADS_DEVICE) };
  enum { LEAST = SHARDED | TRANSFERS | BIT(WORKING_GATHER) | BIT(RECOMPUTE) | BIT(MICRO_ONE) };
  enum { HOST = SHARDED | TRANSFERS | BIT(STATE_HOST) | BIT(INPUTS_HOST) | BIT(MICRO_ONE), HOST_LESS = HOST | BIT(MOMENTS_BF16) };
  static const struct cure same = {LEAST, {BIT(WORKING_GATHER), BIT(KEEP_HOST), BIT(MICRO_ONE), SHARDED, BIT(RECOMPUTE)}, .quiet = false};
  static const struct cure others[] = {{LEAST | BIT(MOMENTS_BF16), {BIT(MOMENTS_BF16)}, .quiet = true},
                                       {HOST, {SHARDED | BIT(STATE_HOST)}, .quiet = false}};
  static const struct cure host_too[] = {{HOST_LESS, {0}, .quiet = true}, {HOST_LESS | BIT(MOMENTS_NVME), {0}, .quiet = false}};
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
  const int64_t moving = room->local_ranks * moving_bytes(plan, room);
  fprintf(to, "%s more nodes with fewer ranks on each\n", fits ? "or use" : "use");
  if (moving > 0 && node_bytes(plan, room) - moving <= room->host_bytes)
    fprintf(to, "or neither load nor save: without train.init, with checkpoint.every=0 and checkpoint.at_end=false, a node needs %.2f GiB\n",
            mem_GiB(node_bytes(plan, room) - moving));
}

/* What GPUs leave to their hosts. */
static enum status print_node_cures(const struct plan *plan, const struct fit_room *room, FILE *to)
{
  enum { LEAST = SHARDED | BIT(GRADS_DEVICE) | BIT(MOMENTS_NVME) };
  static const struct cure cures[] = {
      {LEAST | BIT(RECOMPUTE), {BIT(KEEP_DEVICE), BIT(RECOMPUTE), BIT(GRADS_DEVICE), SHARDED, BIT(MOMENTS_NVME)}, .quiet = false},
      {LEAST | BIT(INPUTS_NVME), {BIT(INPUTS_NVME)}, .quiet = true},
      {LEAST | BIT(RECOMPUTE) | BIT(MOMENTS_BF16), {BIT(MOMENTS_BF16), BIT(MOMENTS_BF16) | BIT(KEEP_DEVICE)}, .quiet = false}};
  bool fits = false;
  enum status status = STATUS_OK;
  fprintf(to, "the node's memory is %.2f GiB short:\n", mem_GiB(node_bytes(plan, room) - room->host_bytes));
  for (int i = 0; i < 3 && !status; i++)
    status = try_cure(plan, &cures[i], room, to, &fits);
  if (!status)
    print_node_cures_besides(plan, room, fits, to);
  return status;
}

/* Where hosts compute. */
static enum status print_host_cures(const struct plan *plan, const struct fit_room *room, FILE *to)
{
  enum { LEAST = SHARDED | BIT(GRADS_DEVICE) | BIT(WORKING_GATHER) | BIT(RECOMPUTE) | BIT(MOMENTS_NVME) | BIT(MICRO_ONE) };
  static const struct cure cures[] = {
      {LEAST, {BIT(WORKING_GATHER), BIT(GRADS_DEVICE), BIT(MICRO_ONE), SHARDED, BIT(RECOMPUTE), BIT(MOMENTS_NVME)}, .quiet = false},
      {LEAST | BIT(MOMENTS_BF16), {BIT(MOMENTS_BF16)}, .quiet = true}};
  bool fits = false;
  enum status status = try_cure(plan, &cures[0], room, to, &fits);
  if (status || fits)
    return status;
  status = try_cure(plan, &cures[1], room, to, &fits);
  return status ? status : print_hopes(plan, LEAST, room, fits, to);
}

static enum status print_cure(const struct plan *plan, const struct fit_room *room, FILE *to)
{
  const bool device = device_is_short(plan, room);
  if (plan->input.mode == PLAN_GENERATE) {
    fprintf(to, "use more %s, or a shorter data.sequence (context= of sluice generate)\n", device ? "ranks" : "nodes");
    return STATUS_OK;
  }
  if (device)
    return print_device_cures(plan, room, to);
  return room->gpu_bytes > 0 ? print_node_cures(plan, room, to) : print_host_cures(plan, room, to);
}

enum status fit_print(const struct plan *plan, const struct fit_room *room, FILE *to, bool *fits)
{
  char who[96];
  fprintf(to, "\nmemory of this plan, which computes in %s with gradients in %s and masters in fp32:\n", dtype_name(plan->input.device->compute),
          dtype_name(plan->input.device->gradient));
  if (room->gpu_bytes > 0)
    print_line("device: a rank needs", tier_bytes(plan, TIER_DEVICE), room->gpu, room->gpu_bytes, to);
  if (room->host_bytes > 0) {
    snprintf(who, sizeof who, "host: the %d rank%s of a node need%s%s", room->local_ranks, room->local_ranks == 1 ? "" : "s",
             room->local_ranks == 1 ? "s" : "", moving_bytes(plan, room) > 0 ? ", to load and save what is on their GPUs," : "");
    print_line(who, node_bytes(plan, room), "it", room->host_bytes, to);
  }
  *fits = all_fits(plan, room);
  return *fits ? STATUS_OK : print_cure(plan, room, to);
}
