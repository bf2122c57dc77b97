#include "cmd/fit_private.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "deck/options.h"
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

/* With its unit: a number alone may mean GiB. */
static bool parse_size(const char *text, int64_t *out)
{
  char *end;
  int64_t unit;
  const double number = strtod(text, &end);
  if (*text < '0' || *text > '9' || !*end || !options_parse_scale(end, true, &unit))
    return false;
  const double bytes = number * (double)unit;
  if (!(bytes >= 1 && bytes <= 0x1p62))
    return false;
  *out = (int64_t)bytes;
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

int64_t fit_moving_bytes(const struct plan *plan, const struct fit_room *room)
{
  return room->gpu_bytes > 0 ? job_state_bytes(plan, plan->input.mode == PLAN_TRAIN) : 0;
}

int64_t fit_node_bytes(const struct plan *plan, const struct fit_room *room)
{
  const int group = plan->input.shape.group, groups = (room->local_ranks + group - 1) / group;
  const int64_t rank = plan_tier_bytes(plan, TIER_HOST) + (room->gpu_bytes > 0 ? fit_moving_bytes(plan, room) : plan_tier_bytes(plan, TIER_DEVICE));
  return room->local_ranks * rank + groups * plan_shared_bytes(plan);
}

bool fit_fits(const struct plan *plan, const struct fit_room *room)
{
  return (room->gpu_bytes == 0 || plan_tier_bytes(plan, TIER_DEVICE) <= room->gpu_bytes) &&
         (room->host_bytes == 0 || fit_node_bytes(plan, room) <= room->host_bytes);
}

static void print_line(const char *who, int64_t need, const char *what, int64_t have, FILE *to)
{
  fprintf(to, "  %s %s, %s has %s: %s\n", who, mem_amount(need).text, what, mem_amount(have).text, need <= have ? "fits" : "does not fit");
}

bool fit_device_is_short(const struct plan *plan, const struct fit_room *room)
{
  return room->gpu_bytes > 0 && plan_tier_bytes(plan, TIER_DEVICE) > room->gpu_bytes;
}

enum status fit_print(const struct plan *plan, const struct fit_room *room, FILE *to, bool *fits)
{
  char who[96];
  fprintf(to, "\nmemory of this plan, which computes in %s with gradients in %s and masters in fp32:\n", dtype_name(plan->input.device->compute),
          dtype_name(plan->input.device->gradient));
  if (room->gpu_bytes > 0)
    print_line("device: a rank needs", plan_tier_bytes(plan, TIER_DEVICE), room->gpu, room->gpu_bytes, to);
  if (room->host_bytes > 0) {
    snprintf(who, sizeof who, "host: the %d rank%s of a node need%s%s", room->local_ranks, room->local_ranks == 1 ? "" : "s",
             room->local_ranks == 1 ? "s" : "", fit_moving_bytes(plan, room) > 0 ? ", to load and save what is on their GPUs," : "");
    print_line(who, fit_node_bytes(plan, room), "it", room->host_bytes, to);
  }
  *fits = fit_fits(plan, room);
  return *fits ? STATUS_OK : fit_print_cure(plan, room, to);
}
