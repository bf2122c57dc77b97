/* Traced steps of this rank: a timeline of all its lanes (io/trace.h) and what it adds up to. */
#ifndef SLUICE_EXEC_TRACE_H
#define SLUICE_EXEC_TRACE_H

#include "exec/exec.h"

struct trace_run;

/* wire_bytes: of collectives between ranks, what each of the P ranks has to send and to receive, (P - 1) / P of the whole: over seconds this is what NCCL's tests call the
 * bus bandwidth. METRICS has none: it moves next to nothing, and waits.
 * spent: what of trace_run_set_tally() the threads of its lane took for it. */
struct trace_kind { int64_t count; double seconds, wire_bytes; int64_t spent[DECK_COUNTERS]; };

/* What lanes beside the compute lane did: how long at least one of them ran, and the part of it in which the compute lane ran nothing. */
struct trace_beside {
  double seconds, exposed_s;
};
enum { TRACE_COPIES, TRACE_UPDATES, TRACE_DISK, TRACE_BESIDES }; /* to and from the host; of the optimizer; of the node's disk */

struct trace_summary {
  int64_t steps, first, last;
  double seconds;            /* from the begin of the first instruction to the end of the last one, what lies between steps included */
  struct trace_kind kind[OP_COUNT];
  double busy_s[LANE_COUNT];
  int64_t spent[LANE_COUNT][DECK_COUNTERS];
  double communication_s;    /* while at least one collective between ranks was under way: its waits for other ranks too */
  double exposed_s;          /* the part of it in which the compute lane ran nothing */
  double overlap;            /* 1 - exposed / communication; NAN without communication */
  struct trace_beside beside[TRACE_BESIDES];
  double link_bytes_s;       /* as measured; 0: not known */
  struct class_total operations[CLASS_COUNT]; /* no calls: not measured */
};

/* Makes `dir` and in it rank-00000.json, and at the end summary-00000.txt. The plan must outlive the trace. link_bytes_s: what the link was measured to carry, bytes a second;
 * 0: not known. Local. */
enum status trace_run_open(const char *dir, const struct plan *plan, double link_bytes_s, struct trace_run **out);
/* The same later, before the end. Local. */
void trace_run_set_link(struct trace_run *run, double link_bytes_s);
/* What events carry in `spent`: before the first of them. It must outlive the trace. Local. */
void trace_run_set_tally(struct trace_run *run, const struct tally *tally);
/* What exec_measured() found, before the end. Local. */
void trace_run_set_classes(struct trace_run *run, const struct class_total total[CLASS_COUNT]);
/* exec_config.trace, with the trace as its argument. */
void trace_run_event(void *run, const struct exec_event *event);
/* Ends both files. The executor may not call back any more: after exec_drain() behind the last traced step. A failure since open is told here. Frees; takes NULL, which sums up to
 * nothing. Local. */
enum status trace_run_close(struct trace_run *run, struct trace_summary *out);

#endif
