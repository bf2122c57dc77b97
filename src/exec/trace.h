/* Traced steps of this rank: a timeline of all its lanes (io/results/trace.h) and what it adds up
 * to. */
#ifndef SLUICE_EXEC_TRACE_H
#define SLUICE_EXEC_TRACE_H

#include "exec/exec.h"
#include "io/results/results.h"

struct trace_run;

/* wire_bytes: of collectives between ranks, what each of the P ranks has to send and to receive, (P
 * - 1) / P of the whole: over seconds this is what NCCL's tests call the bus bandwidth. METRICS has
 * none: it moves next to nothing, and waits. spent: what of trace_run_set_counters() the threads of
 * its lane took for it. */
struct trace_kind {
  int64_t count;
  double seconds, wire_bytes;
  int64_t spent[OP_COUNTERS];
};

/* What ran beside the compute lane: how long at least one of its instructions did, and the part of
 * it in which the compute lane ran nothing. */
struct trace_beside {
  double seconds, exposed_s;
};

struct trace_summary {
  int64_t steps, first, last;
  double seconds; /* from the begin of the first instruction to the end of the last one, what lies
                     between steps included */
  struct trace_kind kind[OP_COUNT];
  double busy_s[LANE_COUNT];
  int64_t spent[LANE_COUNT][OP_COUNTERS];
  /* A step has what the one before it put off beside it, and puts off some itself: so what lanes do
   * beside each other is of the steps that have traced ones on both sides, from their first
   * instruction on the compute lane to the next step's. A step that was released at rest, as behind
   * an evaluation, has none before it. 0: there is no such step, and it is of all that was traced,
   * with both ends. */
  int64_t steady_steps;
  double step_s, idle_s;                      /* a step; and while the compute lane ran nothing */
  struct trace_beside beside[PART_NOTHING];   /* a step; PART_COMM: collectives between ranks, with
                                                 their waits for other ranks */
  double link_bytes_s;                        /* as measured; 0: not known */
  struct class_total operations[CLASS_COUNT]; /* no calls: not measured */
};

/* Makes `dir` and in it rank-00000.json, and at the end summary-00000.txt. The plan must outlive
 * the trace. link_bytes_s: what the link was measured to carry, bytes a second; 0: not known.
 * Local. */
enum status trace_run_open(const char *dir, const struct plan *plan, double link_bytes_s,
                           struct trace_run **out);
/* The same later, before the end. Local. */
void trace_run_set_link(struct trace_run *run, double link_bytes_s);
/* What events carry in `spent`: before the first of them. It must outlive the trace. Local. */
void trace_run_set_counters(struct trace_run *run, const struct op_counters *counters);
/* What exec_measured() found, before the end. Local. */
void trace_run_set_classes(struct trace_run *run, const struct class_total total[CLASS_COUNT]);
/* exec_config.trace, with the trace as its argument. */
void trace_run_event(void *run, const struct exec_event *event);
/* Ends both files. The executor may not call back any more: after exec_drain() behind the last
 * traced step. A failure since open is told here. Frees; takes NULL, which sums up to nothing.
 * Local. */
enum status trace_run_close(struct trace_run *run, struct trace_summary *out);

/* A line of kind "trace". Local. */
enum status trace_record(struct results *results, const struct trace_summary *sum);

#endif
