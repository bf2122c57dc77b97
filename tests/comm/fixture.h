/* The job of a test program that mpirun starts. */
#pragma once

#include "comm/comm.h"

extern struct comm *job;

/* For a group of cmocka's tests. */
int start_job(void **state);
int stop_job(void **state);

/* The beginning of the message for a call that fails with this class of errors. */
const char *failed(const char *call, int class);
