#include "exec/hardware.h"

#include "config.h"
#ifdef HAVE_PAPI
#include <errno.h>
#include <linux/perf_event.h>
#include <papi.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"

/* Where the kernel lets nobody look, PAPI may say of an event that there is none: so the kernel is asked for one that every machine has. */
static bool kernel_forbids(void)
{
  struct perf_event_attr attr = {.type = PERF_TYPE_SOFTWARE, .size = sizeof attr, .config = PERF_COUNT_SW_DUMMY, .exclude_kernel = 1, .exclude_hv = 1};
  const long fd = syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
  if (fd >= 0)
    close((int)fd);
  return fd < 0 && (errno == EPERM || errno == EACCES);
}

enum status hardware_check(int result, const char *call)
{
  if (result >= PAPI_OK)
    return STATUS_OK;
  if (result == PAPI_ENOEVNT && kernel_forbids())
    result = PAPI_EPERM;
  if (result == PAPI_EPERM || result == PAPI_ECMP_DISABLED)
    return status_set(STATUS_LIBRARY,
                      "PAPI: %s: %s; it takes sysctl kernel.perf_event_paranoid=2 or lower, and in a container CAP_PERFMON or a seccomp profile that "
                      "lets perf_event_open pass",
                      call,
                      result == PAPI_EPERM ? "the kernel forbids it" : "PAPI has turned its component off, as it does where the kernel forbids it");
  return status_set(result == PAPI_ENOEVNT ? STATUS_UNSUPPORTED : STATUS_LIBRARY, "PAPI: %s: %s", call, PAPI_strerror(result));
}

/* A thread's number as PAPI wants it. */
static unsigned long this_thread(void)
{
  return (unsigned long)pthread_self();
}

enum status hardware_start(void)
{
  const int version = PAPI_library_init(PAPI_VER_CURRENT);
  if (version > PAPI_OK && version != PAPI_VER_CURRENT)
    return status_set(STATUS_LIBRARY, "PAPI: version %d.%d was loaded, this build is for %s: build Sluice again", PAPI_VERSION_MAJOR(version),
                      PAPI_VERSION_MINOR(version), SLUICE_VERSION_PAPI);
  const enum status status = hardware_check(version, "PAPI_library_init");
  return status ? status : hardware_check(PAPI_thread_init(this_thread), "PAPI_thread_init");
}

void hardware_destroy(int *set)
{
  enum status status = hardware_check(PAPI_cleanup_eventset(*set), "PAPI_cleanup_eventset");
  if (!status)
    status = hardware_check(PAPI_destroy_eventset(set), "PAPI_destroy_eventset");
  if (status)
    log_warn("%s", status_text());
}

void hardware_stop(int set)
{
  if (hardware_check(PAPI_stop(set, NULL), "PAPI_stop"))
    log_warn("%s", status_text());
  hardware_destroy(&set);
}
#endif
