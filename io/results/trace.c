/* Events are written as they come. The file gets its name when it is complete. */
#include "io/results/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/open.h"
#include "io/text/file.h"
#include "io/text/json_write.h"

struct trace {
  char *path, *temporary;
  FILE *file;
  int64_t events;
  int error; /* errno of the first write that failed */
};

static void keep_error(struct trace *trace, int result)
{
  if (result < 0 && !trace->error)
    trace->error = errno ? errno : EIO;
}

static void put(struct trace *trace, const char *text)
{
  keep_error(trace, fputs(text, trace->file));
}

static void put_string(struct trace *trace, const char *text)
{
  keep_error(trace, json_write_string(text, trace->file));
}

static void begin_event(struct trace *trace, const char *phase, int pid, int tid, const char *name)
{
  put(trace, trace->events++ ? ",\n" : "\n");
  keep_error(trace, fprintf(trace->file, "{\"ph\":\"%s\",\"pid\":%d,\"tid\":%d,\"name\":", phase,
                            pid, tid));
  put_string(trace, name);
}

static void name_something(struct trace *trace, const char *kind, int pid, int tid,
                           const char *name)
{
  begin_event(trace, "M", pid, tid, kind);
  put(trace, ",\"args\":{\"name\":");
  put_string(trace, name);
  put(trace, "}}");
}

void trace_process(struct trace *trace, int pid, const char *name)
{
  name_something(trace, "process_name", pid, 0, name);
}

void trace_lane(struct trace *trace, int pid, int tid, const char *name)
{
  name_something(trace, "thread_name", pid, tid, name);
  begin_event(trace, "M", pid, tid, "thread_sort_index");
  keep_error(trace, fprintf(trace->file, ",\"args\":{\"sort_index\":%d}}", tid));
}

static void put_arg(struct trace *trace, const struct trace_arg *arg)
{
  put_string(trace, arg->key);
  put(trace, ":");
  if (arg->text)
    put_string(trace, arg->text);
  else
    keep_error(trace, fprintf(trace->file, "%" PRId64, arg->number));
}

/* Times are in microseconds. */
void trace_span(struct trace *trace, const struct trace_span *span)
{
  begin_event(trace, "X", span->pid, span->tid, span->name);
  put(trace, ",\"cat\":");
  put_string(trace, span->category);
  keep_error(trace, fprintf(trace->file, ",\"ts\":%.3f,\"dur\":%.3f,\"args\":{",
                            1e6 * span->begin_s, 1e6 * (span->end_s - span->begin_s)));
  for (int i = 0; i < span->args; i++) {
    put(trace, i ? "," : "");
    put_arg(trace, &span->arg[i]);
  }
  put(trace, "}}");
}

static void release(struct trace *trace)
{
  mem_free(trace->temporary);
  mem_free(trace->path);
  mem_free(trace);
}

static enum status open_file(struct trace *trace, const char *path)
{
  trace->path = mem_strdup(path);
  trace->temporary = mem_printf("%s.tmp", path);
  if (!trace->path || !trace->temporary)
    return STATUS_MEMORY;
  int fd = -1;
  const enum status status = open_regular(trace->temporary, OPEN_NEW, &fd);
  if (status)
    return status;
  trace->file = fdopen(fd, "w");
  if (trace->file)
    return STATUS_OK;
  close(fd);
  return open_failed(errno, "write to", trace->temporary);
}

enum status trace_create(const char *path, struct trace **out)
{
  struct trace *trace;
  enum status status = mem_new(MEM_META, 1, &trace);
  if (status)
    return status;
  status = open_file(trace, path);
  if (status) {
    release(trace);
    return status;
  }
  put(trace, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
  *out = trace;
  return STATUS_OK;
}

enum status trace_close(struct trace *trace)
{
  if (!trace)
    return STATUS_OK;
  put(trace, "\n]}\n");
  keep_error(trace, fclose(trace->file));
  enum status status = STATUS_OK;
  if (trace->error) {
    status =
        status_set(STATUS_IO, "cannot write %s: %s%s", trace->temporary, strerror(trace->error),
                   trace->error == ENOSPC || trace->error == EDQUOT ? "; free some space" : "");
    (void)unlink(trace->temporary); /* the first failure is the one to report */
  } else {
    status = file_sync_rename(trace->temporary, trace->path);
  }
  release(trace);
  return status;
}
