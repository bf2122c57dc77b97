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

/* The same step with everything sharded, nothing kept for the backward pass, and one sequence at a time; and with the state and the blocks' inputs in host memory. */
static enum status make_least(const struct plan *plan, bool host, struct plan **out)
{
  struct plan_input input = plan->input;
  input.strategy = STRATEGY_FULL_SHARD;
  input.shape.group = input.ranks;
  input.shape.replicas = 1;
  input.shape.micro_batch = 1;
  if (input.mode == PLAN_TRAIN)
    input.shape.micros = input.shape.rank_batch;
  else
    input.shape.rank_batch = 1;
  input.shape.activations = (struct deck_pattern){.n = 1, .of = {host ? KEEP_INPUT_HOST : KEEP_INPUT}};
  input.shape.reduce_every_micro = true;
  input.shape.params_full = input.shape.cpu_reduce = false;
  if (host) {
    input.shape.host_state = true;
    input.shape.moments = DTYPE_BF16;
  }
  return plan_create(&input, out);
}

static bool needs_less(const struct plan *least, const struct plan *plan, const struct fit_room *room)
{
  return tier_bytes(least, TIER_DEVICE) < tier_bytes(plan, TIER_DEVICE) || node_bytes(least, room) < node_bytes(plan, room);
}

static enum status print_least(const struct plan *plan, const struct fit_room *room, FILE *to, bool *fits)
{
  struct plan *least;
  const bool train = plan->input.mode == PLAN_TRAIN;
  const enum status status = make_least(plan, false, &least);
  if (status)
    return status;
  *fits = all_fits(least, room);
  if (needs_less(least, plan, room))
    fprintf(to, "with shard.strategy=full_shard%s%s and data.micro_batch=1 a rank needs %.2f GiB: %s\n",
            train && !plan->input.shape.reduce_every_micro ? ", shard.reduce=micro" : "", train ? ", tiers.activations=recompute" : "",
            mem_GiB(tier_bytes(least, TIER_DEVICE) + tier_bytes(least, TIER_HOST)),
            *fits ? "fits" : "does not fit either; use more ranks on more nodes, or a shorter data.sequence");
  else
    fprintf(to, "use more ranks on more nodes, or a shorter data.sequence\n");
  plan_destroy(least);
  return STATUS_OK;
}

/* Host memory instead of a GPU's. */
static enum status print_least_on_host(const struct plan *plan, const struct fit_room *room, FILE *to)
{
  struct plan *least;
  const enum status status = make_least(plan, true, &least);
  if (status)
    return status;
  if (needs_less(least, plan, room))
    fprintf(to,
            "with tiers.params=host, tiers.optimizer=host, tiers.activations=host, optim.moments=bf16 and data.micro_batch=1 a rank needs "
            "%.2f GiB of its GPU, and a node %.2f GiB: %s\n",
            mem_GiB(tier_bytes(least, TIER_DEVICE)), mem_GiB(node_bytes(least, room)),
            all_fits(least, room) ? "fits" : "does not fit either; use more ranks on more nodes, or optim.state=nvme");
  else if (plan->input.shape.nvme_state < 1 && room->host_bytes > 0 && node_bytes(plan, room) > room->host_bytes)
    fprintf(to, "optim.state=nvme takes the moments out of host memory\n");
  plan_destroy(least);
  return STATUS_OK;
}

static enum status print_cure(const struct plan *plan, const struct fit_room *room, FILE *to)
{
  bool fits;
  if (plan->input.mode == PLAN_GENERATE) {
    fprintf(to, "use more ranks, or a shorter data.sequence (context= of sluice generate)\n");
    return STATUS_OK;
  }
  const enum status status = print_least(plan, room, to, &fits);
  if (status || fits || room->gpu_bytes == 0 || plan->input.mode != PLAN_TRAIN)
    return status;
  return print_least_on_host(plan, room, to);
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
