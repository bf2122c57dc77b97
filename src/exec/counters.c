#include "exec/counters.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/mem.h"
#include "config.h"
#include "exec/hardware.h"
#ifdef HAVE_PAPI
#include <papi.h>
#endif

struct source {
  enum status (*read)(struct counters *counters, int64_t total[COUNTER_KINDS]); /* totals of the kinds in `event` */
  void (*close)(struct counters *counters);
};

struct counters {
  const struct source *source; /* NULL: nothing is counted */
  int set;                     /* PAPI's event set */
  int events;
  enum counter event[COUNTER_KINDS];
  int64_t last[COUNTER_KINDS];
  char note[1024];
};

static const struct {
  const char *name, *unit;
} kinds[COUNTER_KINDS] = {
    [COUNTER_CYCLES] = {"cycles", ""},           [COUNTER_INSTRUCTIONS] = {"instructions", ""}, [COUNTER_L3_MISSES] = {"l3_misses", ""},
    [COUNTER_TASK_CLOCK] = {"task_clock", "ns"}, [COUNTER_PAGE_FAULTS] = {"page_faults", ""},   [COUNTER_CONTEXT_SWITCHES] = {"context_switches", ""},
};

const char *counter_name(enum counter counter)
{
  return kinds[counter].name;
}

const char *counter_unit(enum counter counter)
{
  return kinds[counter].unit;
}

/* --- PAPI -------------------------------------------------------------------------------------------------------------------------------------- */

#ifdef HAVE_PAPI

static enum status let_threads_inherit(int set)
{
  const int component = PAPI_get_component_index("perf_event");
  enum status status = hardware_check(component, "component perf_event");
  if (!status)
    status = hardware_check(PAPI_assign_eventset_component(set, component), "PAPI_assign_eventset_component");
  PAPI_option_t option = {.inherit = {.eventset = set, .inherit = PAPI_INHERIT_ALL}};
  return status ? status : hardware_check(PAPI_set_opt(PAPI_INHERIT, &option), "PAPI_set_opt(PAPI_INHERIT)");
}

/* What is refused goes into the note; the caller need not know unless all is. */
static enum status add_events(struct counters *counters)
{
  static const struct {
    int code;
    enum counter counter;
    const char *call;
  } presets[] = {
      {PAPI_TOT_CYC, COUNTER_CYCLES, "PAPI_add_event(PAPI_TOT_CYC)"},
      {PAPI_TOT_INS, COUNTER_INSTRUCTIONS, "PAPI_add_event(PAPI_TOT_INS)"},
      {PAPI_L3_TCM, COUNTER_L3_MISSES, "PAPI_add_event(PAPI_L3_TCM)"},
  };
  enum status refused = STATUS_OK;
  for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
    const enum status status = hardware_check(PAPI_add_event(counters->set, presets[i].code), presets[i].call);
    if (!status) {
      counters->event[counters->events++] = presets[i].counter;
      continue;
    }
    const size_t length = strlen(counters->note);
    snprintf(counters->note + length, sizeof counters->note - length, "%s%s", length ? "; " : "", status_text());
    refused = status;
  }
  return counters->events > 0 ? STATUS_OK : refused;
}

static void papi_close(struct counters *counters)
{
  hardware_stop(counters->set);
}

static enum status papi_read(struct counters *counters, int64_t total[COUNTER_KINDS])
{
  long long value[COUNTER_KINDS];
  const enum status status = hardware_check(PAPI_read(counters->set, value), "PAPI_read");
  for (int i = 0; i < counters->events && !status; i++)
    total[counters->event[i]] = value[i];
  return status;
}

static enum status open_hardware(struct counters *counters)
{
  static const struct source papi = {.read = papi_read, .close = papi_close};
  enum status status = hardware_start();
  if (status)
    return status;
  counters->set = PAPI_NULL;
  status = hardware_check(PAPI_create_eventset(&counters->set), "PAPI_create_eventset");
  if (status)
    return status;
  status = let_threads_inherit(counters->set);
  if (!status)
    status = add_events(counters);
  if (!status)
    status = hardware_check(PAPI_start(counters->set), "PAPI_start");
  if (status)
    hardware_destroy(&counters->set);
  else
    counters->source = &papi;
  return status;
}

#else

static enum status open_hardware(struct counters *counters)
{
  (void)counters;
  return status_set(STATUS_LIBRARY, "this build is without PAPI: install it and configure with --with-papi");
}

#endif

/* --- the kernel's account of the process ------------------------------------------------------------------------------------------------------- */

static enum status kernel_read(struct counters *counters, int64_t total[COUNTER_KINDS])
{
  struct rusage usage;
  struct timespec clock;
  (void)counters;
  if (getrusage(RUSAGE_SELF, &usage) != 0 || clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &clock) != 0)
    return status_set(STATUS_LIBRARY, "the kernel does not tell what this process used: %s", strerror(errno));
  total[COUNTER_TASK_CLOCK] = clock.tv_sec * INT64_C(1000000000) + clock.tv_nsec;
  total[COUNTER_PAGE_FAULTS] = usage.ru_minflt + usage.ru_majflt;
  total[COUNTER_CONTEXT_SWITCHES] = usage.ru_nvcsw + usage.ru_nivcsw;
  return STATUS_OK;
}

static void kernel_close(struct counters *counters)
{
  (void)counters; /* the kernel keeps its account whether it is read or not */
}

static void open_account(struct counters *counters)
{
  static const struct source kernel = {.read = kernel_read, .close = kernel_close};
  static const enum counter account[] = {COUNTER_TASK_CLOCK, COUNTER_PAGE_FAULTS, COUNTER_CONTEXT_SWITCHES};
  counters->events = sizeof account / sizeof *account;
  memcpy(counters->event, account, sizeof account);
  counters->source = &kernel;
}

/* --- either ------------------------------------------------------------------------------------------------------------------------------------ */

struct counters *counters_create(void)
{
  struct counters *counters = NULL;
  if (mem_alloc(MEM_META, sizeof *counters, (void **)&counters))
    return NULL;
  const enum status status = open_hardware(counters);
  if (status == STATUS_UNSUPPORTED)
    snprintf(counters->note, sizeof counters->note, "no hardware counters on this machine; a virtual one has them where its host passes them on (%s)",
             status_text());
  else if (status)
    snprintf(counters->note, sizeof counters->note, "no hardware counters: %s", status_text());
  if (status)
    open_account(counters);
  int64_t since_birth[COUNTER_KINDS];
  counters_read(counters, since_birth);
  return counters;
}

void counters_destroy(struct counters *counters)
{
  if (counters && counters->source)
    counters->source->close(counters);
  mem_free(counters);
}

int counters_events(const struct counters *counters)
{
  return counters && counters->source ? counters->events : 0;
}

const char *counters_note(const struct counters *counters)
{
  return counters ? counters->note : "no memory for counters";
}

void counters_read(struct counters *counters, int64_t value[COUNTER_KINDS])
{
  int64_t total[COUNTER_KINDS];
  for (int kind = 0; kind < COUNTER_KINDS; kind++)
    value[kind] = -1;
  if (!counters || !counters->source)
    return;
  if (counters->source->read(counters, total)) {
    snprintf(counters->note, sizeof counters->note, "%s", status_text());
    counters->source->close(counters);
    counters->source = NULL;
    return;
  }
  for (int i = 0; i < counters->events; i++) {
    const enum counter kind = counters->event[i];
    value[kind] = total[kind] - counters->last[kind];
    counters->last[kind] = total[kind];
  }
}
