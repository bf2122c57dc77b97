/* A timeline as a file in the trace-event format (JSON) that Perfetto and chrome://tracing open. A
 * process is a rank, a thread is a lane, and a span is a piece of work. The file has a temporary
 * name until trace_close() returns STATUS_OK. The first failure of a write is kept, and
 * trace_close() returns it. */
#pragma once

#include <stdint.h>

#include "base/status.h"

struct trace;

/* Details of a span, shown when a user clicks on it. */
struct trace_arg {
  const char *key, *text;
  int64_t number;
}; /* `number` where text is NULL */
enum { TRACE_MAX_ARGS = 18 };

struct trace_span {
  const char *name, *category;
  int pid, tid;
  double begin_s, end_s; /* to the nanosecond */
  int args;
  struct trace_arg arg[TRACE_MAX_ARGS];
};

/* The folder must exist. Local. */
enum status trace_create(const char *path, struct trace **out);
/* Names, once each; lanes are shown in the order of their tid. */
void trace_process(struct trace *trace, int pid, const char *name);
void trace_lane(struct trace *trace, int pid, int tid, const char *name);
void trace_span(struct trace *trace, const struct trace_span *span);
/* Ends the file and gives it its name. After a failure there is no file. Frees. Takes NULL. */
enum status trace_close(struct trace *trace);
