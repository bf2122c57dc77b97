#include "exec/tally.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "config.h"
#include "exec/hardware.h"
#ifdef HAVE_PAPI
#include <papi.h>
#endif

enum source { FROM_PAPI, FROM_CLOCK, FROM_FAULTS, FROM_SWITCHES, SOURCES };

struct event {
  char key[128];
  enum source source;
  int slot; /* of PAPI's set */
  int64_t scale;
};

struct tally {
  int n, codes;
  struct event event[DECK_COUNTERS];
  int code[DECK_COUNTERS]; /* PAPI's, in the order of its set */
  char note[1024];
};

/* What one thread has counted. */
struct meter {
  int set; /* PAPI's, where `counts` */
  bool counts;
  int64_t last[DECK_COUNTERS], spent[DECK_COUNTERS];
  enum status status;
  char failure[512];
};

struct tally_lane {
  const struct tally *tally;
  struct team *team;
  struct tally_sum sum[OP_COUNT];
  bool lost;
  struct meter meter[]; /* of the worker of the same number */
};

/* --- PAPI -------------------------------------------------------------------------------------------------------------------------------------- */

#ifdef HAVE_PAPI

static enum status add_codes(const struct tally *tally, int set)
{
  enum status status = STATUS_OK;
  for (int i = 0; i < tally->codes && !status; i++)
    status = hardware_check(PAPI_add_event(set, tally->code[i]), "PAPI_add_event");
  return status;
}

/* All of the tally's events, on the calling thread. */
static enum status start_set(const struct tally *tally, int *out)
{
  int set = PAPI_NULL;
  enum status status = hardware_check(PAPI_create_eventset(&set), "PAPI_create_eventset");
  if (status)
    return status;
  status = add_codes(tally, set);
  if (!status)
    status = hardware_check(PAPI_start(set), "PAPI_start");
  if (status)
    hardware_destroy(&set);
  else
    *out = set;
  return status;
}

/* The process' first thread is PAPI's own: other sets of it may go on. */
static void forget_thread(void)
{
  if (gettid() != getpid() && PAPI_unregister_thread() < PAPI_OK)
    log_warn("PAPI: PAPI_unregister_thread failed");
}

static enum status start_hardware(const struct tally *tally, struct meter *meter)
{
  enum status status = hardware_check(PAPI_register_thread(), "PAPI_register_thread");
  if (status)
    return status;
  status = start_set(tally, &meter->set);
  meter->counts = !status;
  if (status)
    forget_thread();
  return status;
}

static void stop_hardware(struct meter *meter)
{
  hardware_stop(meter->set);
  forget_thread();
}

static enum status read_hardware(const struct meter *meter, int64_t value[DECK_COUNTERS])
{
  long long counted[DECK_COUNTERS] = {0};
  const enum status status = hardware_check(PAPI_read(meter->set, counted), "PAPI_read");
  for (int i = 0; i < DECK_COUNTERS && !status; i++)
    value[i] = counted[i];
  return status;
}

static enum status code_of(const char *preset, const char *name, int *code)
{
  enum status status = hardware_start();
  if (status)
    return status;
  status = hardware_check(PAPI_event_name_to_code(preset ? preset : name, code), preset ? preset : name);
  if (!status || preset)
    return status;
  return status_set(
      STATUS_UNSUPPORTED,
      "'%s' is neither cycles, instructions, l3_misses, memory_bytes, task_clock, page_faults or context_switches, nor an event that PAPI "
      "knows on this machine (%s); papi_avail and papi_native_avail list those",
      name, status_text());
}

/* Together with those that are there already, which may be one too many for the processor. */
static enum status try_codes(const struct tally *tally, const char *what)
{
  int set;
  const enum status status = start_set(tally, &set);
  if (!status)
    hardware_stop(set);
  if (status == STATUS_UNSUPPORTED)
    return status_set(status, "%s: this machine does not have it, and a virtual one has hardware counters where its host passes them on (%s)", what,
                      status_text());
  return status ? status_set(status, "%s: %s", what, status_text()) : STATUS_OK;
}

#else

static enum status no_hardware(void)
{
  return status_set(STATUS_UNSUPPORTED, "this build is without PAPI: install it and configure with --with-papi");
}

static enum status start_hardware(const struct tally *tally, struct meter *meter)
{
  (void)tally, (void)meter;
  return no_hardware();
}

static void stop_hardware(struct meter *meter)
{
  (void)meter;
}

static enum status read_hardware(const struct meter *meter, int64_t value[DECK_COUNTERS])
{
  (void)meter, (void)value;
  return no_hardware();
}

static enum status code_of(const char *preset, const char *name, int *code)
{
  (void)preset, (void)code;
  const enum status status = no_hardware();
  return status_set(status, "%s: %s", name, status_text());
}

static enum status try_codes(const struct tally *tally, const char *what)
{
  (void)tally, (void)what;
  return no_hardware();
}

#endif

/* --- which events ------------------------------------------------------------------------------------------------------------------------------ */

static const struct known {
  const char *name, *key, *preset;
  enum source source;
} known_events[] = {
    {"cycles", "cycles", "PAPI_TOT_CYC", FROM_PAPI},
    {"instructions", "instructions", "PAPI_TOT_INS", FROM_PAPI},
    {"l3_misses", "l3_misses", "PAPI_L3_TCM", FROM_PAPI},
    {"memory_bytes", "memory_bytes", "PAPI_L3_TCM", FROM_PAPI},
    {"task_clock", "task_clock_ns", NULL, FROM_CLOCK},
    {"page_faults", "page_faults", NULL, FROM_FAULTS},
    {"context_switches", "context_switches", NULL, FROM_SWITCHES},
};
enum { KNOWN = sizeof known_events / sizeof *known_events };
_Static_assert(sizeof known_events / sizeof *known_events <= DECK_COUNTERS, "auto may find all of them");

static int64_t line_bytes(void)
{
  const long bytes = sysconf(_SC_LEVEL1_DCACHE_LINESIZE);
  return bytes > 0 ? bytes : 64;
}

static enum status add_code(struct tally *tally, const char *preset, const char *name, int *slot)
{
  int code = 0;
  enum status status = code_of(preset, name, &code);
  if (status)
    return status;
  for (*slot = 0; *slot < tally->codes; ++*slot)
    if (tally->code[*slot] == code)
      return STATUS_OK;
  tally->code[tally->codes++] = code;
  status = try_codes(tally, name);
  if (status)
    tally->codes--;
  return status;
}

static enum status add_event(struct tally *tally, const char *name)
{
  const struct known *known = NULL;
  struct event event = {.scale = 1};
  for (int i = 0; i < KNOWN && !known; i++)
    if (!strcmp(known_events[i].name, name))
      known = &known_events[i];
  event.source = known ? known->source : FROM_PAPI;
  if (known && !strcmp(known->name, "memory_bytes"))
    event.scale = line_bytes();
  snprintf(event.key, sizeof event.key, "%s", known ? known->key : name);
  if (event.source == FROM_PAPI) {
    const enum status status = add_code(tally, known ? known->preset : NULL, name, &event.slot);
    if (status)
      return status;
  }
  tally->event[tally->n++] = event;
  return STATUS_OK;
}

/* One sentence a cause: it is often the same for all. */
static void note_refusal(struct tally *tally, const char *name)
{
  const size_t used = strlen(tally->note), length = strlen(name);
  const bool names = !strncmp(status_text(), name, length) && !strncmp(status_text() + length, ": ", 2);
  const char *cause = status_text() + (names ? length + 2 : 0);
  if (!strstr(tally->note, cause))
    snprintf(tally->note + used, sizeof tally->note - used, "%s%s is not counted: %s", used ? "; " : "", name, cause);
  else
    snprintf(tally->note + used, sizeof tally->note - used, "; nor is %s", name);
}

static void add_all(struct tally *tally)
{
  for (int i = 0; i < KNOWN; i++)
    if (add_event(tally, known_events[i].name))
      note_refusal(tally, known_events[i].name);
}

static enum status add_named(struct tally *tally, const struct option_strings *names)
{
  enum status status = STATUS_OK;
  if (names->n > DECK_COUNTERS)
    return status_set(STATUS_INTERNAL, "%d events were asked for, where %d have room", names->n, DECK_COUNTERS);
  for (int i = 0; i < names->n && !status; i++)
    status = add_event(tally, names->item[i]);
  return status ? status_set(status, "run.counters: %s; run.counters=auto counts what there is", status_text()) : STATUS_OK;
}

enum status tally_create(const struct option_strings *names, struct tally **out)
{
  void *block;
  enum status status = mem_alloc(MEM_META, sizeof(struct tally), &block);
  if (status)
    return status;
  struct tally *tally = block;
  if (names->n == 1 && !strcmp(names->item[0], "auto"))
    add_all(tally);
  else
    status = add_named(tally, names);
  if (status)
    tally_destroy(tally);
  else
    *out = tally;
  return status;
}

void tally_destroy(struct tally *tally)
{
  mem_free(tally);
}

int tally_events(const struct tally *tally)
{
  return tally ? tally->n : 0;
}

const char *tally_key(const struct tally *tally, int event)
{
  return tally->event[event].key;
}

const char *tally_note(const struct tally *tally)
{
  return tally->note;
}

/* --- a thread ---------------------------------------------------------------------------------------------------------------------------------- */

static bool wants(const struct tally *tally, enum source source)
{
  for (int e = 0; e < tally->n; e++)
    if (tally->event[e].source == source)
      return true;
  return false;
}

/* Of the calling thread, by source. */
static enum status read_account(const struct tally *tally, int64_t value[SOURCES])
{
  struct rusage usage = {0};
  struct timespec clock = {0};
  if (wants(tally, FROM_CLOCK) && clock_gettime(CLOCK_THREAD_CPUTIME_ID, &clock) != 0)
    return status_set(STATUS_LIBRARY, "the kernel does not tell the CPU time of a thread: %s", strerror(errno));
  if ((wants(tally, FROM_FAULTS) || wants(tally, FROM_SWITCHES)) && getrusage(RUSAGE_THREAD, &usage) != 0)
    return status_set(STATUS_LIBRARY, "the kernel does not tell what a thread used: %s", strerror(errno));
  value[FROM_CLOCK] = clock.tv_sec * INT64_C(1000000000) + clock.tv_nsec;
  value[FROM_FAULTS] = usage.ru_minflt + usage.ru_majflt;
  value[FROM_SWITCHES] = usage.ru_nvcsw + usage.ru_nivcsw;
  return STATUS_OK;
}

static enum status read_all(const struct tally *tally, const struct meter *meter, int64_t now[DECK_COUNTERS])
{
  int64_t papi[DECK_COUNTERS] = {0}, account[SOURCES] = {0};
  enum status status = read_account(tally, account);
  if (!status && meter->counts)
    status = read_hardware(meter, papi);
  for (int e = 0; e < tally->n && !status; e++) {
    const struct event *event = &tally->event[e];
    now[e] = event->source == FROM_PAPI ? papi[event->slot] * event->scale : account[event->source];
  }
  return status;
}

static void keep_failure(struct meter *meter, enum status status)
{
  meter->status = status;
  if (status)
    snprintf(meter->failure, sizeof meter->failure, "%s", status_text());
}

static void start_worker(void *arg, int worker, int workers)
{
  struct tally_lane *lane = arg;
  struct meter *meter = &lane->meter[worker];
  (void)workers;
  enum status status = lane->tally->codes > 0 ? start_hardware(lane->tally, meter) : STATUS_OK;
  if (!status)
    status = read_all(lane->tally, meter, meter->last);
  keep_failure(meter, status);
}

static void stop_worker(void *arg, int worker, int workers)
{
  struct tally_lane *lane = arg;
  struct meter *meter = &lane->meter[worker];
  (void)workers;
  if (meter->counts)
    stop_hardware(meter);
  meter->counts = false;
}

static void read_worker(void *arg, int worker, int workers)
{
  struct tally_lane *lane = arg;
  struct meter *meter = &lane->meter[worker];
  int64_t now[DECK_COUNTERS];
  (void)workers;
  const enum status status = read_all(lane->tally, meter, now);
  keep_failure(meter, status);
  for (int e = 0; e < lane->tally->n && !status; e++) {
    meter->spent[e] = now[e] - meter->last[e];
    meter->last[e] = now[e];
  }
}

/* --- a lane ------------------------------------------------------------------------------------------------------------------------------------ */

enum status tally_lane_create(const struct tally *tally, struct team *team, struct tally_lane **out)
{
  void *block;
  const size_t meters = (size_t)team_size(team) * sizeof(struct meter);
  const enum status status = mem_alloc(MEM_META, sizeof(struct tally_lane) + meters, &block);
  if (status)
    return status;
  struct tally_lane *lane = block;
  lane->tally = tally;
  lane->team = team;
  *out = lane;
  return STATUS_OK;
}

void tally_lane_destroy(struct tally_lane *lane)
{
  mem_free(lane);
}

/* The first failure of its threads. */
static enum status failure_of(const struct tally_lane *lane)
{
  for (int w = 0; w < team_size(lane->team); w++)
    if (lane->meter[w].status)
      return status_set(lane->meter[w].status, "%s", lane->meter[w].failure);
  return STATUS_OK;
}

enum status tally_start(struct tally_lane *lane)
{
  if (!lane)
    return STATUS_OK;
  team_run(lane->team, start_worker, lane);
  return failure_of(lane);
}

void tally_stop(struct tally_lane *lane)
{
  if (lane)
    team_run(lane->team, stop_worker, lane);
}

static void lose(struct tally_lane *lane)
{
  lane->lost = true;
  log_warn("a lane's instructions are not counted from here on: %s", status_text());
}

/* Of its workers nothing was asked since the last instruction. */
void tally_begin(struct tally_lane *lane)
{
  if (!lane->lost && read_all(lane->tally, &lane->meter[0], lane->meter[0].last))
    lose(lane);
}

void tally_end(struct tally_lane *lane, enum op op, int64_t spent[DECK_COUNTERS])
{
  int64_t sum[DECK_COUNTERS] = {0};
  if (!lane->lost) {
    team_run(lane->team, read_worker, lane);
    if (failure_of(lane))
      lose(lane);
  }
  lane->sum[op].count += !lane->lost;
  for (int e = 0; e < lane->tally->n; e++) {
    for (int w = 0; w < team_size(lane->team); w++)
      sum[e] += lane->meter[w].spent[e];
    lane->sum[op].spent[e] += lane->lost ? 0 : sum[e];
    if (spent)
      spent[e] = lane->lost ? -1 : sum[e];
  }
}

const struct tally_sum *tally_sums(const struct tally_lane *lane)
{
  return lane->sum;
}
