/* Counters belong to a thread, so each lane reads those of its own. */
#include "exec/op_counters.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/append.h"
#include "base/log.h"
#include "base/mem.h"
#include "config.h"
#ifdef HAVE_PAPI
#include <linux/perf_event.h>
#include <papi.h>
#include <pthread.h>
#include <sys/syscall.h>
#endif

enum source { FROM_PAPI, FROM_CLOCK, FROM_FAULTS, FROM_SWITCHES, SOURCES };

struct event {
  char key[128];
  enum source source;
  int slot; /* of PAPI's set */
  int64_t scale;
};

struct op_counters {
  enum op_counters_scope scope;
  bool account; /* some event comes from the kernel's accounting */
  int n, codes;
  struct event event[OP_COUNTERS];
  int code[OP_COUNTERS]; /* PAPI's, in the order of its set */
  char note[1024];
};

/* Counts of one thread, or of the process. */
struct meter {
  int set; /* PAPI's, if `counts` */
  bool counts;
  int64_t last[OP_COUNTERS], spent[OP_COUNTERS];
  struct status_record failure;
};

struct op_counters_lane {
  const struct op_counters *counters;
  struct team *team;
  bool lost;
  enum { START, READ, STOP } phase; /* of run_worker() */
  struct meter meter[];             /* of the worker of the same number */
};

/* --- PAPI --------------------------------------------------------------------------------- */

#ifdef HAVE_PAPI

/* If the kernel forbids counting, PAPI may say that an event does not exist. So ask the kernel for
 * an event that every machine has. */
static bool kernel_forbids(void)
{
  struct perf_event_attr attr = {.type = PERF_TYPE_SOFTWARE,
                                 .size = sizeof attr,
                                 .config = PERF_COUNT_SW_DUMMY,
                                 .exclude_kernel = 1,
                                 .exclude_hv = 1};
  const long fd = syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
  if (fd >= 0)
    close((int)fd);
  return fd < 0 && (errno == EPERM || errno == EACCES);
}

/* The status of `call`, which returned `result`: negative numbers are failures. STATUS_UNSUPPORTED:
 * this machine has no such event. */
static enum status papi_check(int result, const char *call)
{
  if (result >= PAPI_OK)
    return STATUS_OK;
  if (result == PAPI_ENOEVNT && kernel_forbids())
    result = PAPI_EPERM;
  if (result == PAPI_EPERM || result == PAPI_ECMP_DISABLED)
    return status_set(STATUS_LIBRARY,
                      "PAPI: %s: %s; it takes sysctl kernel.perf_event_paranoid=2 or lower, and in "
                      "a container CAP_PERFMON or a seccomp profile that lets perf_event_open pass",
                      call,
                      result == PAPI_EPERM ? "the kernel forbids it"
                                           : "PAPI has turned its component off, as it does where "
                                             "the kernel forbids it");
  return status_set(result == PAPI_ENOEVNT ? STATUS_UNSUPPORTED : STATUS_LIBRARY, "PAPI: %s: %s",
                    call, PAPI_strerror(result));
}

static unsigned long this_thread(void)
{
  return (unsigned long)pthread_self();
}

/* May be called again, by a thread that outlives all counting. */
static enum status start_papi(void)
{
  const int version = PAPI_library_init(PAPI_VER_CURRENT);
  if (version > PAPI_OK && version != PAPI_VER_CURRENT)
    return status_set(
        STATUS_LIBRARY, "PAPI: version %d.%d was loaded, this build is for %s: build Sluice again",
        PAPI_VERSION_MAJOR(version), PAPI_VERSION_MINOR(version), SLUICE_VERSION_PAPI);
  const enum status status = papi_check(version, "PAPI_library_init");
  return status ? status : papi_check(PAPI_thread_init(this_thread), "PAPI_thread_init");
}

static void destroy_set(int set)
{
  enum status status = papi_check(PAPI_cleanup_eventset(set), "PAPI_cleanup_eventset");
  status = status ?: papi_check(PAPI_destroy_eventset(&set), "PAPI_destroy_eventset");
  if (status)
    log_warn("%s", status_text());
}

static void stop_set(int set)
{
  if (papi_check(PAPI_stop(set, NULL), "PAPI_stop"))
    log_warn("%s", status_text());
  destroy_set(set);
}

static enum status let_threads_inherit(int set)
{
  const int component = PAPI_get_component_index("perf_event");
  enum status status = papi_check(component, "component perf_event");
  if (!status)
    status = papi_check(PAPI_assign_eventset_component(set, component),
                        "PAPI_assign_eventset_component");
  PAPI_option_t option = {.inherit = {.eventset = set, .inherit = PAPI_INHERIT_ALL}};
  return status ?: papi_check(PAPI_set_opt(PAPI_INHERIT, &option), "PAPI_set_opt(PAPI_INHERIT)");
}

/* All events, on the calling thread. */
static enum status start_set(const struct op_counters *counters, int *out)
{
  int set = PAPI_NULL;
  enum status status = papi_check(PAPI_create_eventset(&set), "PAPI_create_eventset");
  if (status)
    return status;
  if (counters->scope == COUNT_PROCESS)
    status = let_threads_inherit(set);
  for (int i = 0; i < counters->codes && !status; i++)
    status = papi_check(PAPI_add_event(set, counters->code[i]), "PAPI_add_event");
  status = status ?: papi_check(PAPI_start(set), "PAPI_start");
  if (status)
    destroy_set(set);
  else
    *out = set;
  return status;
}

/* The first thread of the process belongs to PAPI, so other event sets of it may continue. */
static void forget_thread(void)
{
  if (gettid() != getpid() && PAPI_unregister_thread() < PAPI_OK)
    log_warn("PAPI: PAPI_unregister_thread failed");
}

static enum status start_meter(const struct op_counters *counters, struct meter *meter)
{
  enum status status = papi_check(PAPI_register_thread(), "PAPI_register_thread");
  if (status)
    return status;
  status = start_set(counters, &meter->set);
  meter->counts = !status;
  if (status)
    forget_thread();
  return status;
}

static void stop_meter(struct meter *meter)
{
  stop_set(meter->set);
  forget_thread();
}

static enum status read_meter(const struct meter *meter, long long value[OP_COUNTERS])
{
  return papi_check(PAPI_read(meter->set, value), "PAPI_read");
}

static enum status find_code(const char *preset, const char *name, int *code)
{
  enum status status = start_papi();
  if (!status)
    status =
        papi_check(PAPI_event_name_to_code(preset ? preset : name, code), preset ? preset : name);
  if (!status || preset)
    return status;
  return status_set(STATUS_UNSUPPORTED,
                    "'%s' is neither cycles, instructions, l3_misses, memory_bytes, task_clock, "
                    "page_faults or context_switches, nor an event that PAPI knows on this machine "
                    "(%s); papi_avail and papi_native_avail list those",
                    name, status_text());
}

/* Tried together with the events before it, which may be one too many for the processor. */
static enum status try_codes(const struct op_counters *counters, const char *name)
{
  int set;
  const enum status status = start_set(counters, &set);
  if (!status)
    stop_set(set);
  if (status == STATUS_UNSUPPORTED)
    return status_set(status,
                      "%s: not available on this machine; a virtual machine has hardware counters "
                      "only if its host provides them (%s)",
                      name, status_text());
  return status ? status_set(status, "%s: %s", name, status_text()) : STATUS_OK;
}

static enum status add_code(struct op_counters *counters, const char *preset, const char *name,
                            int *slot)
{
  int code = 0;
  enum status status = find_code(preset, name, &code);
  if (status)
    return status;
  for (*slot = 0; *slot < counters->codes; ++*slot)
    if (counters->code[*slot] == code)
      return STATUS_OK;
  counters->code[counters->codes++] = code;
  status = try_codes(counters, name);
  if (status)
    counters->codes--;
  return status;
}

#else /* no event gets a code, so no meter counts */

static enum status add_code(struct op_counters *counters, const char *preset, const char *name,
                            int *slot)
{
  (void)counters, (void)preset, (void)slot;
  return status_set(STATUS_UNSUPPORTED,
                    "%s: this build is without PAPI: install it and configure with --with-papi",
                    name);
}

static enum status start_meter(const struct op_counters *counters, struct meter *meter)
{
  (void)counters, (void)meter;
  return STATUS_OK;
}

static void stop_meter(struct meter *meter)
{
  (void)meter;
}

static enum status read_meter(const struct meter *meter, long long value[OP_COUNTERS])
{
  (void)meter, (void)value;
  return STATUS_OK;
}

#endif

/* --- which events ------------------------------------------------------------------------- */

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
_Static_assert((int)KNOWN <= (int)OP_COUNTERS, "auto may find all of them");

static int64_t line_bytes(void)
{
  const long bytes = sysconf(_SC_LEVEL1_DCACHE_LINESIZE);
  return bytes > 0 ? bytes : 64;
}

static enum status add_event(struct op_counters *counters, const char *name)
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
    const enum status status = add_code(counters, known ? known->preset : NULL, name, &event.slot);
    if (status)
      return status;
  }
  counters->account |= event.source != FROM_PAPI;
  counters->event[counters->n++] = event;
  return STATUS_OK;
}

/* One message per cause, because the cause is often the same for all events. */
static void note_refusal(struct op_counters *counters, const char *name)
{
  const size_t length = strlen(name);
  const bool names =
      !strncmp(status_text(), name, length) && !strncmp(status_text() + length, ": ", 2);
  const char *cause = status_text() + (names ? length + 2 : 0);
  static const char also[] = "; also not counted: ";
  const char *last = counters->note;
  for (const char *part = strstr(last, "; "); part; part = strstr(part + 2, "; "))
    last = part;
  if (strstr(counters->note, cause))
    append_text(counters->note, sizeof counters->note, "%s%s",
                strncmp(last, also, strlen(also)) == 0 ? ", " : also, name);
  else
    append_text(counters->note, sizeof counters->note, "%s%s is not counted: %s",
                *counters->note ? "; " : "", name, cause);
}

static enum status add_named(struct op_counters *counters, int n, char *const names[])
{
  enum status status = STATUS_OK;
  if (n > OP_COUNTERS)
    return status_set(STATUS_INTERNAL, "%d events were asked for, where %d have room", n,
                      OP_COUNTERS);
  for (int i = 0; i < n && !status; i++)
    status = add_event(counters, names[i]);
  return status ? status_set(status, "run.counters: %s; run.counters=auto counts what there is",
                             status_text())
                : STATUS_OK;
}

static void add_all(struct op_counters *counters)
{
  for (int i = 0; i < KNOWN; i++)
    if (add_event(counters, known_events[i].name))
      note_refusal(counters, known_events[i].name);
}

enum status op_counters_create(enum op_counters_scope scope, int n, char *const names[],
                               struct op_counters **out)
{
  struct op_counters *counters;
  enum status status = mem_new(MEM_META, 1, &counters);
  if (status)
    return status;
  counters->scope = scope;
  if (!names || (n == 1 && !strcmp(names[0], "auto")))
    add_all(counters);
  else
    status = add_named(counters, n, names);
  if (status)
    op_counters_destroy(counters);
  else
    *out = counters;
  return status;
}

void op_counters_destroy(struct op_counters *counters)
{
  mem_free(counters);
}

int op_counters_events(const struct op_counters *counters)
{
  return counters ? counters->n : 0;
}

const char *op_counters_key(const struct op_counters *counters, int event)
{
  return counters->event[event].key;
}

const char *op_counters_note(const struct op_counters *counters)
{
  return counters->note;
}

/* --- a thread, or the process ------------------------------------------------------------- */

static enum status read_account(enum op_counters_scope scope, int64_t value[SOURCES])
{
  const bool process = scope == COUNT_PROCESS;
  struct rusage usage;
  struct timespec clock;
  if (clock_gettime(process ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_THREAD_CPUTIME_ID, &clock) != 0 ||
      getrusage(process ? RUSAGE_SELF : RUSAGE_THREAD, &usage) != 0)
    return status_set(STATUS_LIBRARY, "the kernel does not report what a %s used: %s",
                      process ? "process" : "thread", strerror(errno));
  value[FROM_CLOCK] = clock.tv_sec * INT64_C(1000000000) + clock.tv_nsec;
  value[FROM_FAULTS] = usage.ru_minflt + usage.ru_majflt;
  value[FROM_SWITCHES] = usage.ru_nvcsw + usage.ru_nivcsw;
  return STATUS_OK;
}

static enum status read_all(const struct op_counters *counters, const struct meter *meter,
                            int64_t now[OP_COUNTERS])
{
  long long papi[OP_COUNTERS] = {0};
  int64_t account[SOURCES] = {0};
  enum status status = counters->account ? read_account(counters->scope, account) : STATUS_OK;
  if (!status && meter->counts)
    status = read_meter(meter, papi);
  for (int e = 0; e < counters->n && !status; e++) {
    const struct event *event = &counters->event[e];
    now[e] = event->source == FROM_PAPI ? papi[event->slot] * event->scale : account[event->source];
  }
  return status;
}

static void run_worker(void *arg, int worker, int workers)
{
  struct op_counters_lane *lane = arg;
  struct meter *meter = &lane->meter[worker];
  int64_t now[OP_COUNTERS];
  enum status status = STATUS_OK;
  (void)workers;
  if (lane->phase == STOP) {
    if (meter->counts)
      stop_meter(meter);
    meter->counts = false;
    return;
  }
  if (lane->phase == START && lane->counters->codes > 0)
    status = start_meter(lane->counters, meter);
  status = status ?: read_all(lane->counters, meter, now);
  status_keep(&meter->failure, status);
  for (int e = 0; e < lane->counters->n && !status; e++) {
    meter->spent[e] = now[e] - meter->last[e];
    meter->last[e] = now[e];
  }
}

/* --- a lane ------------------------------------------------------------------------------- */

enum status op_counters_lane_create(const struct op_counters *counters, struct team *team,
                                    struct op_counters_lane **out)
{
  struct op_counters_lane *lane;
  const size_t meters = (size_t)team_size(team) * sizeof(struct meter);
  const enum status status = mem_alloc(MEM_META, sizeof *lane + meters, (void **)&lane);
  if (status)
    return status;
  lane->counters = counters;
  lane->team = team;
  *out = lane;
  return STATUS_OK;
}

void op_counters_lane_destroy(struct op_counters_lane *lane)
{
  mem_free(lane);
}

/* The first failure of its threads. */
static enum status run_all(struct op_counters_lane *lane, int phase)
{
  lane->phase = phase;
  team_run(lane->team, run_worker, lane);
  enum status status = STATUS_OK;
  for (int w = 0; w < team_size(lane->team) && !status; w++)
    status = status_restore(&lane->meter[w].failure);
  return status;
}

enum status op_counters_start(struct op_counters_lane *lane)
{
  return lane ? run_all(lane, START) : STATUS_OK;
}

void op_counters_stop(struct op_counters_lane *lane)
{
  if (lane)
    (void)run_all(lane, STOP);
}

static void lose(struct op_counters_lane *lane)
{
  lane->lost = true;
  log_warn("counting stops: %s", status_text());
}

/* Its other workers have been idle since the last instruction. */
void op_counters_begin(struct op_counters_lane *lane)
{
  if (!lane->lost && read_all(lane->counters, &lane->meter[0], lane->meter[0].last))
    lose(lane);
}

void op_counters_read(struct op_counters_lane *lane, int64_t spent[OP_COUNTERS])
{
  if (!lane->lost && run_all(lane, READ))
    lose(lane);
  for (int e = 0; e < lane->counters->n; e++) {
    spent[e] = lane->lost ? -1 : 0;
    for (int w = 0; w < team_size(lane->team) && !lane->lost; w++)
      spent[e] += lane->meter[w].spent[e];
  }
}
