#include "cmd/fit.h"

#include <stdlib.h>
#include <string.h>

#include "base/append.h"
#include "base/mem.h"
#include "deck/options.h"
#include "job/state.h"
#include "plan/arenas.h"

/* Memory sizes as NVIDIA's data sheets give them, taken as decimal gigabytes. The driver shows
 * about 5 % more (80 GB is 80 GiB on its label). That difference is left to the driver's context,
 * the libraries' workspaces and NCCL. */
static const struct {
  const char *name, *title;
  int64_t bytes;
  int major, minor; /* compute capability */
} gpus[] = {
    {"a100-40", "A100 40GB (NVIDIA A100 Tensor Core GPU data sheet)", INT64_C(40000000000), 8, 0},
    {"a100-80", "A100 80GB (NVIDIA A100 Tensor Core GPU data sheet)", INT64_C(80000000000), 8, 0},
    {"h100", "H100 80GB (NVIDIA H100 Tensor Core GPU data sheet, SXM and PCIe)",
     INT64_C(80000000000), 9, 0},
    {"h200", "H200 141GB (NVIDIA H200 Tensor Core GPU data sheet)", INT64_C(141000000000), 9, 0},
    {"l40s", "L40S 48GB (NVIDIA L40S GPU data sheet)", INT64_C(48000000000), 8, 9},
};

/* A unit is required, because a number alone may mean GiB. */
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
      room->named = true;
      room->fp8 = device_cuda_fp8(gpus[i].major, gpus[i].minor);
      return STATUS_OK;
    }
  if (!parse_size(text, &room->gpu_bytes))
    return status_set(STATUS_USAGE,
                      "gpu=%s: it is one of " FIT_GPUS ", or a size with its unit, such as 64GiB",
                      text);
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

/* Memory that moves the state of a rank between its GPU and files. */
static int64_t moving_bytes(const struct plan *plan, const struct fit_room *room)
{
  return room->gpu_bytes > 0 ? job_state_bytes(plan, plan->input.mode == PLAN_TRAIN) : 0;
}

/* Arenas that the plans of a job share. */
static int64_t tier_bytes(int n, const struct plan *const plans[], enum plan_tier tier)
{
  const struct plan_arenas arenas = plan_arenas(n, plans, tier);
  return arenas.persistent + arenas.transient;
}

static int64_t shared_bytes(int n, const struct plan *const plans[])
{
  const struct plan_arenas arenas = plan_arenas(n, plans, TIER_SHARED);
  return arenas.persistent + plans[0]->input.shape.group * arenas.transient;
}

/* Host memory that the ranks of a node need. */
static int64_t node_bytes(int n, const struct plan *const plans[], const struct fit_room *room)
{
  const int group = plans[0]->input.shape.group, groups = (room->local_ranks + group - 1) / group;
  const int64_t device =
      room->gpu_bytes > 0 ? moving_bytes(plans[0], room) : tier_bytes(n, plans, TIER_DEVICE);
  return room->local_ranks * (tier_bytes(n, plans, TIER_HOST) + device) +
         groups * shared_bytes(n, plans);
}

void fit_judge(const void *arg, int n, const struct plan *const plans[], struct rooms *out)
{
  const struct fit_room *room = arg;
  *out = (struct rooms){.need = {[ROOM_DEVICE] = (double)tier_bytes(n, plans, TIER_DEVICE),
                                 [ROOM_HOST] = (double)node_bytes(n, plans, room)},
                        .have = {[ROOM_DEVICE] = room->gpu_bytes > 0 ? (double)room->gpu_bytes : -1,
                                 [ROOM_HOST] = room->host_bytes > 0 ? (double)room->host_bytes : -1,
                                 [ROOM_SHARED] = -1,
                                 [ROOM_DISK] = -1}};
}

static void print_line(const char *who, int64_t need, const char *what, int64_t have)
{
  printf("  %s %s, %s has %s: %s\n", who, mem_amount(need).text, what, mem_amount(have).text,
         need <= have ? "fits" : "does not fit");
}

/* ---- cures ---- */

/* Prints a line: changes, the resulting need of each memory that was too small, and whether all
 * fits. `arg`: the rooms of the plan that does not fit. */
static void print_advice(void *arg, const struct advice *advice)
{
  const struct rooms *now = arg;
  const double *need = advice->measure.rooms.need;
  char name[sizeof advice->name + 64] = "";
  advise_append_name(advice, name, sizeof name);
  printf("with %s", name);
  if (!rooms_is_short(now, ROOM_DEVICE))
    printf(" a node needs %s", mem_amount(need[ROOM_HOST]).text);
  else
    printf(" a rank needs %s of its GPU", mem_amount(need[ROOM_DEVICE]).text);
  if (rooms_is_short(now, ROOM_DEVICE) &&
      (now->have[ROOM_HOST] >= 0 || need[ROOM_HOST] > now->need[ROOM_HOST]))
    printf(", and a node %s", mem_amount(need[ROOM_HOST]).text);
  printf(": %s\n", advice->fits ? "fits" : "does not fit either");
}

/* Cures other than keys. */
static void print_hopes(const struct advise_hopes *hopes, const struct rooms *rooms, bool fits)
{
  const char *use = fits ? "or use" : "use";
  const bool gpu = rooms->have[ROOM_DEVICE] >= 0;
  const char *more = !gpu                               ? "more nodes"
                     : rooms_is_short(rooms, ROOM_HOST) ? "more ranks on more nodes"
                                                        : "more ranks";
  char needs[128] = "";
  advise_append_hopes(hopes, "the keys above", needs, sizeof needs);
  if (hopes->ranks)
    printf("%s %s%s\n", use, more, needs);
  else if (!fits)
    printf("neither %s nor a much shorter data.sequence is enough: use %s with more memory\n", more,
           gpu ? "GPUs" : "nodes");
}

static void print_besides_on_node(const struct advise_case *job, bool fits)
{
  const struct fit_room *room = job->arg;
  const int64_t moving = room->local_ranks * moving_bytes(job->plans[0], room),
                node = node_bytes(job->n, job->plans, room);
  printf("%s more nodes with fewer ranks on each\n", fits ? "or use" : "use");
  if (moving > 0 && node - moving <= room->host_bytes)
    printf("or neither load nor save: without train.init, with checkpoint.every=0 and "
           "checkpoint.at_end=false, a node needs %s\n",
           mem_amount(node - moving).text);
}

static enum status print_cures(const struct advise_case *job, struct rooms *rooms)
{
  const struct fit_room *room = job->arg;
  const bool node = !rooms_is_short(rooms, ROOM_DEVICE) && room->gpu_bytes > 0;
  struct advise_hopes hopes;
  bool fits;
  if (node)
    printf("the node's memory is %s short:\n",
           mem_amount(rooms->need[ROOM_HOST] - rooms->have[ROOM_HOST]).text);
  const enum status status = advise_fit(job, print_advice, rooms, &fits, &hopes);
  if (!status && node)
    print_besides_on_node(job, fits);
  else if (!status)
    print_hopes(&hopes, rooms, fits);
  return status;
}

enum status fit_print(const struct advise_case *job, bool *fits)
{
  const struct fit_room *room = job->arg;
  const struct plan *plan = job->plans[0];
  char who[96];
  struct rooms rooms;
  fit_judge(room, job->n, job->plans, &rooms);
  printf("\nmemory of this plan, which computes in %s with gradients in %s and masters in fp32:\n",
         plan->input.model->fp8 ? "fp8" : dtype_name(plan->input.model->config.compute),
         dtype_name(plan->input.device->gradient));
  if (room->gpu_bytes > 0)
    print_line("device: a rank needs", tier_bytes(job->n, job->plans, TIER_DEVICE), room->gpu,
               room->gpu_bytes);
  if (room->host_bytes > 0) {
    snprintf(who, sizeof who, "host: the %d rank%s of a node need%s%s", room->local_ranks,
             plural(room->local_ranks), room->local_ranks == 1 ? "s" : "",
             moving_bytes(plan, room) > 0 ? ", to load and save what is on their GPUs," : "");
    print_line(who, node_bytes(job->n, job->plans, room), "it", room->host_bytes);
  }
  *fits = rooms_fit(&rooms);
  return *fits ? STATUS_OK : print_cures(job, &rooms);
}
