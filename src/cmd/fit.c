/* The verdict of `sluice plan`: what a plan needs of each memory, and what would fit. */
#include "cmd/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/append.h"
#include "base/mem.h"
#include "deck/options.h"

/* Memory that the driver shows to programs (cudaMemGetInfo), in MiB and rounded down. It is less
 * than on the label, because the driver and error correction take a part. */
#define MIB INT64_C(1048576)
static const struct fit_gpu gpus[] = {
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
      room->gpu = &gpus[i];
      room->gpu_bytes = gpus[i].bytes;
      return STATUS_OK;
    }
  if (!parse_size(text, &room->gpu_bytes))
    return status_usage("gpu=%s is neither a size such as 24GiB nor one of " FIT_GPUS, text);
  return STATUS_OK;
}

void fit_describe(const struct fit_room *room, struct device_gpu *gpu)
{
  if (!room->gpu)
    return;
  gpu->multiprocessors = room->gpu->multiprocessors;
  gpu->hopper = room->gpu->major == 9 && room->gpu->minor == 0;
  gpu->shared = (gpu->hopper ? 227 : room->gpu->minor == 9 ? 99 : 163) << 10;
}

enum status fit_size(const char *key, const char *text, int64_t *bytes)
{
  if (*text && !parse_size(text, bytes))
    return status_usage("%s=%s: it is a size with its unit, such as 512GiB", key, text);
  return STATUS_OK;
}

bool fit_is_sized(const struct fit_room *room)
{
  return room->gpu_bytes > 0 || room->host_bytes > 0 || room->nvme_bytes > 0;
}

static double known(int64_t bytes)
{
  return bytes > 0 ? (double)bytes : -1;
}

void fit_judge(const void *arg, int local_ranks, int n, const struct plan *const plans[],
               struct rooms *out)
{
  const struct fit_room *room = arg;
  const struct job_need need = job_need(n, plans, local_ranks, true);
  const struct plan_input *input = &plans[0]->input;
  const int64_t gpu = device_model_room(input->device, input->ranks, 0, room->gpu_bytes);
  *out = (struct rooms){.have = {[ROOM_DEVICE] = room->gpu_bytes > 0 ? (double)gpu : -1,
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

struct mem_amount fit_gib(double bytes)
{
  const double all = bytes / 0x1p30, size = fabs(all);
  struct mem_amount out;
  if (size > 0 && size < 0.001)
    return mem_amount(bytes);
  const int digits = size == 0 ? 0 : size < 0.9995 ? 3 : size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
  snprintf(out.text, sizeof out.text, "%.*f GiB", digits, all);
  return out;
}

static struct job_need need_of(const struct plan_facts *facts)
{
  return job_need(facts->job.n, facts->job.plans, facts->job.local_ranks, true);
}

static void print_short(const struct rooms *rooms)
{
  const char *between = ": ";
  printf("does not fit");
  for (int t = 0; t < TIERS; t++)
    if (rooms_is_short(rooms, tiers[t].room)) {
      const double missing = rooms->need[tiers[t].room] - rooms->have[tiers[t].room];
      printf("%s%s %s short", between, tiers[t].name, fit_gib(missing).text);
      between = ", ";
    }
  putchar('\n');
}

/* The time that the deck loses by pinning keys that the program would choose otherwise. The
 * settings have the best one first. */
static void print_faster(const struct plan_facts *facts)
{
  const enum room room = facts->job.plans[0]->input.device->host_memory ? ROOM_HOST : ROOM_DEVICE;
  const struct choice *best = &facts->other.best;
  if (!best->fits || !search_gains(best, &facts->now))
    return;
  printf("faster, and fits: %s, %s, step %.2fx\n", *best->changes ? best->changes : "the defaults",
         fit_gib(best->rooms.need[room]).text, best->step_s / facts->now.step_s);
}

static void print_tier(int tier, const struct rooms *rooms, const struct plan_facts *facts)
{
  const enum room room = tiers[tier].room;
  const double need = rooms->need[room], have = rooms->have[room];
  const int local = facts->job.local_ranks;
  const bool moves = room == ROOM_HOST && need_of(facts).state > 0;
  if (need <= 0 && have < 0)
    return;
  printf("  %-5s %10s %10s %10s  ", tiers[tier].name, fit_gib(need).text,
         have < 0 ? "?" : fit_gib(have).text, have < 0 ? "?" : fit_gib(have - need).text);
  if (room == ROOM_DEVICE)
    puts("of a rank");
  else
    printf("of a node of %d rank%s%s\n", local, plural(local),
           moves ? ", with loading and saving" : "");
}

static void print_verdict(const struct rooms *rooms, const struct plan_facts *facts)
{
  const struct fit_room *sizes = facts->room;
  const struct plan *plan = facts->job.plans[0];
  if (!fit_is_sized(sizes))
    puts("no verdict: gpu=NAME, gpu=SIZE, host=SIZE or nvme=SIZE says whether it fits");
  else if (rooms_fit(rooms))
    puts("fits");
  else
    print_short(rooms);
  if (fit_is_sized(sizes) && rooms_fit(rooms))
    print_faster(facts);
  printf("  %-5s %10s %10s %10s\n", "", "needs", "has", "left");
  for (int t = 0; t < TIERS; t++)
    print_tier(t, rooms, facts);
  if (sizes->gpu_bytes > 0)
    printf("  %s has %s, %s of it for %s\n", sizes->gpu ? sizes->gpu->title : "a GPU",
           fit_gib((double)sizes->gpu_bytes).text, fit_gib(fit_reserve(plan)).text,
           device_model_reserve_name(plan->input.ranks));
}

/* ---- cures ---- */

/* "ranks=16 local_ranks=4 tiers.activations=recompute". */
static void print_changes(const struct search *job, const struct choice *choice)
{
  const int usual = choice->ranks < job->node_ranks ? choice->ranks : job->node_ranks;
  char name[sizeof choice->changes + 64] = "";
  search_append_changes(choice, name, sizeof name);
  fputs("with", stdout);
  if (choice->ranks != job->plans[0]->input.ranks)
    printf(" ranks=%d", choice->ranks);
  if (choice->local_ranks != usual)
    printf(" local_ranks=%d", choice->local_ranks);
  printf("%s%s", *name ? " " : "", name);
}

/* Prints a line: changes, the resulting need of each memory that was too small, and whether all
 * fits. */
static void print_cure(const struct search *job, const struct choice *choice,
                       const struct rooms *now)
{
  const double *need = choice->rooms.need;
  const bool device = rooms_is_short(now, ROOM_DEVICE), host = rooms_is_short(now, ROOM_HOST);
  print_changes(job, choice);
  if (device)
    printf(" a rank needs %s of its GPU", fit_gib(need[ROOM_DEVICE]).text);
  else if (host)
    printf(" a node needs %s", fit_gib(need[ROOM_HOST]).text);
  else
    printf(" a node needs %s of its NVMe", fit_gib(need[ROOM_DISK]).text);
  if (device && (now->have[ROOM_HOST] >= 0 || need[ROOM_HOST] > now->need[ROOM_HOST]))
    printf(", and a node %s", fit_gib(need[ROOM_HOST]).text);
  printf(": %s\n", choice->fits ? "fits" : "does not fit either");
}

/* The host memory that only a job needs that loads or saves. */
static void print_at_rest(const struct plan_facts *facts, const struct rooms *rooms)
{
  const struct job_need need = need_of(facts);
  const double at_rest = need.room[ROOM_HOST] - need.state * need.local;
  if (need.state > 0 && at_rest <= rooms->have[ROOM_HOST])
    printf("or neither load nor save: without train.init, with checkpoint.every=0 and "
           "checkpoint.at_end=false, a node needs %s\n",
           fit_gib(at_rest).text);
}

static enum status print_cures(const struct plan_facts *facts, const struct rooms *rooms)
{
  const struct search *job = &facts->job;
  const bool device = rooms_is_short(rooms, ROOM_DEVICE), host = rooms_is_short(rooms, ROOM_HOST);
  struct settings cures;
  const enum status status = search_cures(job, &cures);
  if (status)
    return status;
  const bool fits = cures.n > 0 && cures.of[0].fits;
  putchar('\n');
  for (int c = 0; c < cures.n; c++)
    print_cure(job, &cures.of[c], rooms);
  if (host && !device)
    print_at_rest(facts, rooms);
  if (!device && !host)
    printf("%s a larger disk\n", fits ? "or use" : "use");
  else if (!fits)
    printf("neither more ranks nor a much shorter data.sequence is enough: use %s with more "
           "memory\n",
           device ? "GPUs" : "nodes");
  return STATUS_OK;
}

enum status fit_print(const struct plan_facts *facts, bool *fits)
{
  const struct search *job = &facts->job;
  struct rooms rooms;
  job->judge(job->arg, job->local_ranks, job->n, job->plans, &rooms);
  print_verdict(&rooms, facts);
  *fits = rooms_fit(&rooms);
  return *fits ? STATUS_OK : print_cures(facts, &rooms);
}

/* ---- settings ---- */

static void print_setting(const struct plan_facts *facts, const struct choice *choice,
                          const bool used[TIERS], const char *name)
{
  printf("  %7.3f", choice->step_s / facts->now.step_s);
  if (facts->rates)
    printf("  %11.4f s", choice->step_s);
  for (int t = 0; t < TIERS; t++)
    if (used[t])
      printf("  %11s", mem_amount(choice->rooms.need[tiers[t].room]).text);
  if (facts->job.links)
    printf("  %11s", mem_amount(choice->sent).text);
  if (fit_is_sized(facts->room))
    printf("  %-9s", choice->fits ? "fits" : "too large");
  printf("  %s\n", *name ? name : "(defaults)");
}

void fit_print_settings(const struct plan_facts *facts)
{
  const struct settings *other = &facts->other;
  bool used[TIERS] = {false};
  if (other->n == 0)
    return;
  for (int t = 0; t < TIERS; t++) {
    used[t] = facts->now.rooms.need[tiers[t].room] > 0;
    for (int i = 0; i < other->n; i++)
      used[t] |= other->of[i].rooms.need[tiers[t].room] > 0;
  }
  printf(
      "\nthis deck, and the best settings of keys that the program may choose; times are relative "
      "to this deck%s\n  %7s",
      facts->rates ? "" : ", by nominal rates", "time");
  if (facts->rates)
    printf("  %13s", "step");
  for (int t = 0; t < TIERS; t++)
    if (used[t])
      printf("  %11s", tiers[t].name);
  printf("%s\n", facts->job.links ? "   node sends" : "");
  print_setting(facts, &facts->now, used, "(this deck)");
  for (int i = 0; i < other->n; i++)
    print_setting(facts, &other->of[i], used, other->of[i].changes);
}
