/* Status codes and the one sentence that goes with a failure.
 *
 * The function that first detects a failure calls status_set() with the exact cause and the cure;
 * callers only forward the code. The sentence belongs to the calling thread; a thread that reports
 * for another carries it over with status_keep(). A function sets its outputs on STATUS_OK only.
 * Calls that follow one another are joined by `?:`, which ends them at the first failure. */
#pragma once

enum status {
  STATUS_OK = 0,
  STATUS_USAGE,       /* the command line or the deck has an error */
  STATUS_INPUT,       /* the content of a file is wrong */
  STATUS_IO,          /* the operating system or HDF5 failed to read or write */
  STATUS_MEMORY,      /* out of memory */
  STATUS_LIBRARY,     /* MPI, BLAS, CUDA, hwloc, ... returned an error */
  STATUS_NONFINITE,   /* a loss or a gradient is not a finite number */
  STATUS_UNSUPPORTED, /* this build or this back end cannot do it */
  STATUS_PLAN,        /* verify found a plan that is not safe */
  STATUS_TIMEOUT,     /* no progress for too long */
  STATUS_ABORTED,     /* another thread or rank failed first */
  STATUS_INTERNAL     /* a bug in Sluice */
};

/* Record `code` and a printf-formatted sentence (at most 2047 bytes) for this thread. Control
 * characters are replaced as by printable_make(). Returns `code`. Local. */
enum status status_set(enum status code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#define status_usage(...) status_set(STATUS_USAGE, __VA_ARGS__)

/* Put "PREFIX: " in front of the recorded sentence (a file's name, a rank), unless `code` is
 * STATUS_OK. Returns `code`. Local. */
enum status status_prefix(enum status code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The sentence last recorded by this thread, "" if none. Valid until the next status_set() of this
 * thread. */
const char *status_text(void);

/* A failure and its sentence, to report it later or on another thread. Zeroed: none. */
struct status_record {
  enum status code;
  char text[2048];
};

/* Keep `code` and the sentence of this thread. Only the first failure is kept. Local. */
void status_keep(struct status_record *record, enum status code);

/* Return what is kept. The sentence of a failure becomes that of this thread. Local. */
enum status status_restore(const struct status_record *record);

/* "usage", "input", ... */
const char *status_name(enum status code);

/* The exit code of the process for a status. Local. */
int status_exit_code(enum status code);

/* Exit codes that belong to no status. 75 is EX_TEMPFAIL of sysexits.h: a run left early, has
 * saved, and can be resumed. */
enum { EXIT_VERDICT = 1, EXIT_UNFINISHED = 75, EXIT_SIGNAL = 128 };

struct exit_code {
  int code;            /* EXIT_SIGNAL: this and all above */
  const char *meaning; /* one line, without a full stop */
};

/* Every exit code with its meaning, in ascending order. --exit-codes, the man pages and the job
 * scripts print this table. */
extern const struct exit_code exit_codes[];
extern const int exit_codes_count;

/* The meaning of one code. Codes above EXIT_SIGNAL share a row. NULL: not a code of Sluice.
 * Local. */
const char *exit_code_meaning(int code);
