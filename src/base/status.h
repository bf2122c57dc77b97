/* Status codes and the one sentence that goes with a failure.
 *
 * Whoever first detects a failure calls status_set() with the exact cause and the cure; callers only forward the code.
 * The sentence belongs to the calling thread; a thread that reports for another carries it over with status_text().
 * A function sets its outputs on STATUS_OK only. */
#ifndef SLUICE_BASE_STATUS_H
#define SLUICE_BASE_STATUS_H

enum status {
  STATUS_OK = 0,
  STATUS_USAGE,       /* the command line or the deck asks for something that cannot be */
  STATUS_INPUT,       /* a file's content is not what it should be */
  STATUS_IO,          /* the operating system or HDF5 failed to read or write */
  STATUS_MEMORY,      /* memory that was asked for is not there */
  STATUS_LIBRARY,     /* MPI, BLAS, CUDA, hwloc, ... returned an error */
  STATUS_NONFINITE,   /* a loss or a gradient is not a finite number */
  STATUS_UNSUPPORTED, /* this build or this back end cannot do it */
  STATUS_PLAN,        /* verify found a plan that is not safe */
  STATUS_ABORTED,     /* another thread or rank failed first */
  STATUS_INTERNAL     /* a bug in Sluice */
};

/* Record `code` and a printf-formatted sentence (at most 2047 bytes) for this thread. Control
 * characters are replaced as by printable_make(). Returns `code`. Local. */
enum status status_set(enum status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Put "PREFIX: " in front of the recorded sentence (a file's name, a rank). Returns `code` unchanged. Local. */
enum status status_prefix(enum status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The sentence last recorded by this thread, "" if none. Valid until the next status_set() of this thread. */
const char *status_text(void);

/* "usage", "input", ... */
const char *status_name(enum status code);

/* The exit code of the process for a status: 0 ok, 2 usage, 3 input, 4 i/o, 5 memory, 6 library, 7 non-finite, 8 unsupported,
 * 9 plan, 10 aborted, 70 internal. Codes of runs that end early but well are in train/train.h. */
int status_exit_code(enum status code);

#endif
