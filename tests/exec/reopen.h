/* A job of job.h whose executor is started again over the same parameters, with settings that
 * job_setup lacks. */
#ifndef SLUICE_TESTS_EXEC_REOPEN_H
#define SLUICE_TESTS_EXEC_REOPEN_H

#include "job.h"

/* Before the first step of a training job. `with` sets trace, trace_arg, trace_from, trace_to,
 * timeout_s, and load with load_arg. NULL stands for the values of job.h. */
enum status job_reopen(struct job *job, const struct exec_config *with);
/* exec_load of a training job; arg is the job. */
enum status job_load(void *arg, int64_t step, int micro, int32_t *tokens, int32_t *targets);

#endif
