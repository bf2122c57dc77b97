#include "cmd/fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/append.h"
#include "base/mem.h"
#include "deck/options.h"

/* Memory that the driver shows to programs (cudaMemGetInfo), in MiB and rounded down. It is less
 * than on the label, because the driver and error correction take a part. */
#define MIB INT64_C(1048576)
static const struct {
  const char *name, *title;
  int64_t bytes;
  int major, minor; /* compute capability */
  int multiprocessors;
} gpus[] = {
    {"a100-40", "A100 40GB", 40300 * MIB, 8, 0, 108},
    {"a100-80", "A100 80GB", 80900 * MIB, 8, 0, 108},
    {"h100", "H100 80GB", 80900 * MIB, 9, 0, 132},
    {"h200", "H200 141GB", 143000 * MIB, 9, 0, 132},
    {"l40s", "L40S 48GB", 45400 * MIB, 8, 9, 142},
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
    if (strcasecmp(text, gpus[i].name) == 0) {
      room->gpu = gpus[i].title;
      room->gpu_bytes = gpus[i].bytes;
      room->fp8 = device_cuda_fp8(gpus[i].major, gpus[i].minor);
      room->multiprocessors = gpus[i].multiprocessors;
      room->hopper = gpus[i].major == 9 && gpus[i].minor == 0;
      return STATUS_OK;
    }
  if (!parse_size(text, &room->gpu_bytes))
    return status_set(STATUS_USAGE, "gpu=%s is neither a size such as 24GiB nor one of " FIT_GPUS,
                      text);
  return STATUS_OK;
}

/* The size decides which kernels run. It differs a little between GPUs of a name. */
void fit_describe(const struct fit_room *room, struct device_gpu *gpu)
{
  if (room->gpu_bytes > 0)
    gpu->memory = room->gpu_bytes + room->gpu_bytes / 64;
  if (room->gpu) {
    gpu->multiprocessors = room->multiprocessors;
    gpu->hopper = room->hopper;
  }
}

enum status fit_size(const char *key, const char *text, int64_t *bytes)
{
  if (*text && !parse_size(text, bytes))
    return status_set(STATUS_USAGE, "%s=%s: it is a size with its unit, such as 512GiB", key, text);
  return STATUS_OK;
}

bool fit_is_sized(const struct fit_room *room)
{
  return room->gpu_bytes > 0 || room->host_bytes > 0 || room->nvme_bytes > 0;
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

static bool is_apart(const struct plan *plan)
{
  return !plan->input.device->host_memory;
}

static double known(int64_t bytes)
{
  return bytes > 0 ? (double)bytes : -1;
}

static double gpu_room(const struct plan_input *input, const struct fit_room *room)
{
  return room->gpu_bytes > 0
             ? (double)device_model_room(input->device, input->ranks, 0, room->gpu_bytes)
             : -1;
}

static struct job_need need_of(const struct fit_room *room, int n, const struct plan *const plans[])
{
  return job_need(n, plans, room->local_ranks, true);
}

void fit_judge(const void *arg, int n, const struct plan *const plans[], struct rooms *out)
{
  const struct fit_room *room = arg;
  const struct job_need need = need_of(room, n, plans);
  *out = (struct rooms){.have = {[ROOM_DEVICE] = gpu_room(&plans[0]->input, room),
                                 [ROOM_HOST] = known(room->host_bytes),
                                 [ROOM_SHARED] = -1,
                                 [ROOM_DISK] = known(room->nvme_bytes)}};
  memcpy(out->need, need.room, sizeof out->need);
}

double fit_reserve(const struct plan *plan)
{
  return (double)device_model_reserve(plan->input.device, plan->input.ranks);
}

/* ---- verdict ---- */

static const struct {
  enum room room;
  const char *name;
} tiers[] = {{ROOM_DEVICE, "GPU"}, {ROOM_HOST, "host"}, {ROOM_DISK, "NVMe"}};
enum { TIERS = sizeof tiers / sizeof *tiers };

/* In GiB with three digits, so that all numbers of a verdict have one unit. Smaller sizes than
 * 0.001 GiB are those of tests. */
static struct mem_amount gib(double bytes)
{
  const double all = bytes / 0x1p30, size = fabs(all);
  struct mem_amount out;
  if (size > 0 && size < 0.001)
    return mem_amount(bytes);
  const int digits = size == 0 ? 0 : size < 0.9995 ? 3 : size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
  snprintf(out.text, sizeof out.text, "%.*f GiB", digits, all);
  return out;
}

static void print_short(const struct rooms *rooms)
{
  const char *between = ": ";
  printf("does not fit");
  for (int t = 0; t < TIERS; t++)
    if (rooms_is_short(rooms, tiers[t].room)) {
      const double missing = rooms->need[tiers[t].room] - rooms->have[tiers[t].room];
      printf("%s%s %s short", between, tiers[t].name, gib(missing).text);
      between = ", ";
    }
  putchar('\n');
}

static void print_owner(enum room room, const struct advise_case *job)
{
  const struct fit_room *sizes = job->arg;
  const bool moves = room == ROOM_HOST && need_of(sizes, job->n, job->plans).state > 0;
  if (room == ROOM_DEVICE)
    printf("of a rank");
  else
    printf("of a node of %d rank%s%s", sizes->local_ranks, plural(sizes->local_ranks),
           moves ? ", with loading and saving" : "");
}

static void print_tier(int tier, const struct rooms *rooms, const struct advise_case *job)
{
  const enum room room = tiers[tier].room;
  const double need = rooms->need[room], have = rooms->have[room];
  if (need <= 0 && have < 0)
    return;
  printf("  %-5s %10s", tiers[tier].name, gib(need).text);
  if (have >= 0)
    printf(" %10s %10s  ", gib(have).text, gib(have - need).text);
  else
    printf(" %10s %10s  ", "?", "?");
  print_owner(room, job);
  putchar('\n');
}

static void print_verdict(const struct rooms *rooms, const struct advise_case *job)
{
  const struct fit_room *sizes = job->arg;
  const struct plan *plan = job->plans[0];
  if (!fit_is_sized(sizes))
    puts("no verdict: gpu=NAME, gpu=SIZE, host=SIZE or nvme=SIZE says whether it fits");
  else if (rooms_fit(rooms))
    puts("fits");
  else
    print_short(rooms);
  printf("  %-5s %10s %10s %10s\n", "", "needs", "has", "left");
  for (int t = 0; t < TIERS; t++)
    print_tier(t, rooms, job);
  if (sizes->gpu_bytes > 0)
    printf("  %s has %s, %s of it for %s\n", sizes->gpu ? sizes->gpu : "a GPU",
           gib((double)sizes->gpu_bytes).text, gib(fit_reserve(plan)).text,
           device_model_reserve_name(plan->input.ranks));
}

/* ---- cures ---- */

/* Prints a line: changes, the resulting need of each memory that was too small, and whether all
 * fits. `arg`: the rooms of the plan that does not fit. */
static void print_advice(void *arg, const struct advice *advice)
{
  const struct rooms *now = arg;
  const double *need = advice->measure.rooms.need;
  const bool device = rooms_is_short(now, ROOM_DEVICE), host = rooms_is_short(now, ROOM_HOST);
  char name[sizeof advice->name + 64] = "";
  advise_append_name(advice, name, sizeof name);
  printf("with %s", name);
  if (device)
    printf(" a rank needs %s of its GPU", gib(need[ROOM_DEVICE]).text);
  else if (host)
    printf(" a node needs %s", gib(need[ROOM_HOST]).text);
  else
    printf(" a node needs %s of its NVMe", gib(need[ROOM_DISK]).text);
  if (device && (now->have[ROOM_HOST] >= 0 || need[ROOM_HOST] > now->need[ROOM_HOST]))
    printf(", and a node %s", gib(need[ROOM_HOST]).text);
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
  const struct job_need need = need_of(room, job->n, job->plans);
  const double at_rest = need.room[ROOM_HOST] - need.state * need.local;
  printf("%s more nodes with fewer ranks on each\n", fits ? "or use" : "use");
  if (need.state > 0 && at_rest <= (double)room->host_bytes)
    printf("or neither load nor save: without train.init, with checkpoint.every=0 and "
           "checkpoint.at_end=false, a node needs %s\n",
           gib(at_rest).text);
}

static enum status print_cures(const struct advise_case *job, struct rooms *rooms)
{
  const bool host = rooms_is_short(rooms, ROOM_HOST), apart = is_apart(job->plans[0]);
  struct advise_hopes hopes;
  bool fits;
  putchar('\n');
  const enum status status = advise_fit(job, print_advice, rooms, &fits, &hopes);
  if (status)
    return status;
  if (rooms_is_short(rooms, ROOM_DEVICE) || (host && !apart))
    print_hopes(&hopes, rooms, fits);
  else if (host)
    print_besides_on_node(job, fits);
  else
    printf("%s a larger disk\n", fits ? "or use" : "use");
  return STATUS_OK;
}

enum status fit_print(const struct advise_case *job, bool *fits)
{
  struct rooms rooms;
  fit_judge(job->arg, job->n, job->plans, &rooms);
  print_verdict(&rooms, job);
  *fits = rooms_fit(&rooms);
  return *fits ? STATUS_OK : print_cures(job, &rooms);
}
