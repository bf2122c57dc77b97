/* Traced steps of this rank: a timeline of all its lanes (io/results/trace.h), and its totals. */
#pragma once

#include "exec/exec.h"
#include "io/results/results.h"

struct trace_run;

/* wire_bytes, for collectives between ranks: the bytes that each of the P ranks sends and receives,
 * (P - 1) / P of the whole. Divided by seconds this is the bus bandwidth of NCCL's tests. METRICS
 * has none, because it moves almost nothing and waits. `spent`: its counts by
 * the threads of its lane. */
struct trace_kind {
  int64_t count;
  double seconds, wire_bytes;
  int64_t spent[OP_COUNTERS];
};

/* Work that overlaps with the compute lane: the time in which at least one of its instructions ran,
 * and the part of it in which the compute lane ran nothing. */
struct trace_beside {
  double seconds, exposed_s;
};

struct trace_summary {
  int64_t steps, first, last;
  double seconds; /* from the beginning of the first instruction to the end of the last one, with
                     the time between steps */
  struct trace_kind kind[OP_COUNT];
  double busy_s[LANE_COUNT];
  int64_t spent[LANE_COUNT][OP_COUNTERS];
  /* A step overlaps with work that the step before it deferred, and defers some work itself. So
   * overlap is measured on steps between traced steps, from their first instruction on the compute
   * lane to that of the next step. A step that was released at rest, for example after an
   * evaluation, does not count. If there is no such step (0), the result covers all traced
   * steps. */
  int64_t steady_steps;
  double step_s, idle_s;                    /* per step; and while the compute lane ran nothing */
  struct trace_beside beside[PART_NOTHING]; /* per step; PART_COMM: collectives between ranks, with
                                               their waits for other ranks */
  double link_bytes_s;                      /* as measured; 0: not known */
};

/* Facts that a trace reports besides its events. */
struct trace_facts {
  const struct op_counters *counters; /* that events carry in `spent`; NULL: none */
  double link_bytes_s;                /* measured rate of the link in bytes/s; 0: not known */
  struct class_total operations[CLASS_COUNT]; /* exec_measured(); no calls: not measured */
};

/* Makes `dir` and in it rank-00000.json, and at the end summary-00000.txt. The plan and the facts
 * must outlive the trace. Counters are set before the first event, the rest before the end.
 * Local. */
enum status trace_run_open(const char *dir, const struct plan *plan,
                           const struct trace_facts *facts, struct trace_run **out);
/* exec_config.trace, with the trace as its argument. */
void trace_run_event(void *run, const struct exec_event *event);
/* Ends both files. The executor must not call back any more, so call it after the exec_drain() that
 * follows the last traced step. A failure since open is reported here. Frees; takes NULL, with a
 * zeroed result. Local. */
enum status trace_run_close(struct trace_run *run, struct trace_summary *out);

/* A line of kind "trace". Local. */
void trace_record(struct json_writer *line, void *summary);
