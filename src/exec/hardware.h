/* PAPI, for whoever counts with it: its start, and the one reader of its return codes. Only for src/exec, and only where HAVE_PAPI says so. */
#ifndef SLUICE_EXEC_HARDWARE_H
#define SLUICE_EXEC_HARDWARE_H

#include "base/status.h"

/* What PAPI returned from `call`, where negative numbers are failures. STATUS_UNSUPPORTED: this machine has no such event. */
enum status hardware_check(int result, const char *call);

/* Before any other call, as often as one likes. By a thread that outlives all counting. */
enum status hardware_start(void);

/* Stops a set that counts, and frees it; failures are logged. */
void hardware_stop(int set);
/* Frees a set that does not count. */
void hardware_destroy(int *set);

#endif
