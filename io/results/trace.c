/* Events are written as they come. The file gets its name when it is complete. */
#include "io/results/trace.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/open.h"
#include "io/text/file.h"
#include "io/text/json_write.h"

struct trace {
  char *path, *temporary;
  struct json_writer json;
  int error; /* errno of the first write that failed */
};

static void put_us(struct json_writer *json, const char *key, double seconds)
{
  char text[64];
  snprintf(text, sizeof text, "%.3f", 1e6 * seconds);
  json_write_number(json, key, text);
}

/* On a line of its own. Without a category it is not a span, but describes a thread or process. */
void trace_span(struct trace *trace, const struct trace_span *span)
{
  struct json_writer *json = &trace->json;
  fputc('\n', json->to);
  json_write_open(json, NULL, '{');
  json_write_text(json, "ph", span->category ? "X" : "M");
  json_write_int(json, "pid", span->pid);
  json_write_int(json, "tid", span->tid);
  json_write_text(json, "name", span->name);
  if (span->category) {
    json_write_text(json, "cat", span->category);
    put_us(json, "ts", span->begin_s);
    put_us(json, "dur", span->end_s - span->begin_s);
  }
  json_write_open(json, "args", '{');
  for (const struct trace_arg *arg = span->arg; arg < span->arg + span->args; arg++)
    if (arg->text)
      json_write_text(json, arg->key, arg->text);
    else
      json_write_int(json, arg->key, arg->number);
  json_write_close(json, '}');
  json_write_close(json, '}');
  if (ferror(json->to) && !trace->error)
    trace->error = errno ? errno : EIO;
}

static void describe(struct trace *trace, const char *kind, int pid, int tid, struct trace_arg arg)
{
  trace_span(trace,
             &(struct trace_span){.name = kind, .pid = pid, .tid = tid, .args = 1, .arg = {arg}});
}

void trace_process(struct trace *trace, int pid, const char *name)
{
  describe(trace, "process_name", pid, 0, (struct trace_arg){"name", name, 0});
}

void trace_lane(struct trace *trace, int pid, int tid, const char *name)
{
  describe(trace, "thread_name", pid, tid, (struct trace_arg){"name", name, 0});
  describe(trace, "thread_sort_index", pid, tid, (struct trace_arg){"sort_index", NULL, tid});
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
  trace->json = (struct json_writer){.to = fdopen(fd, "w"), .compact = true};
  if (trace->json.to)
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
  json_write_open(&trace->json, NULL, '{');
  json_write_text(&trace->json, "displayTimeUnit", "ms");
  json_write_open(&trace->json, "traceEvents", '[');
  *out = trace;
  return STATUS_OK;
}

enum status trace_close(struct trace *trace)
{
  if (!trace)
    return STATUS_OK;
  json_write_close(&trace->json, ']');
  json_write_close(&trace->json, '}');
  if (fclose(trace->json.to) != 0 && !trace->error)
    trace->error = errno;
  enum status status = STATUS_OK;
  if (trace->error) {
    status = open_failed(trace->error, "write", trace->temporary);
    (void)unlink(trace->temporary); /* the first failure is the one to report */
  } else {
    status = file_sync_rename(trace->temporary, trace->path);
  }
  release(trace);
  return status;
}
