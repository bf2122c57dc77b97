/* Sound plans to break, and what has to be done so that verify sees the break and nothing else. */
#pragma once

#include "fixture.h"

/* For fixture_point(). Those of HOST have masters in host memory. */
#define FULL_SHARD "full_shard ranks=4 prefetch=1 recompute=2 micros=2 each_micro"
#define SHARD_OPTIM "shard_optim ranks=3 prefetch=1"
#define HYBRID_SHARD "hybrid_shard ranks=4 group=2 prefetch=1 micros=2"
#define NO_SHARD "no_shard ranks=3 prefetch=1"
#define HOST_DEVICE "full_shard ranks=2 prefetch=1 micros=2 host keep=input_host"
#define HOST_SHARED                                                                                \
  "full_shard ranks=2 micros=2 bf16 host params_full cpu_reduce nvme_state=1 moments=bf16 "        \
  "keep=input_nvme"
#define HOST_ONE_NODE "full_shard ranks=3 prefetch=1 micros=2 host params_full cpu_reduce one_node"

/* A sound plan of the last rank. Its model is that of the last call: one plan at a time. */
struct plan *broken_start(const struct point *point);
int broken_end(void **state); /* the teardown of the program's tests */

/* After a change of the instructions: waits as they need. Lifetimes, which count instructions, are
 * not to complain first. */
void broken_settle(struct plan *plan);
/* And every buffer with bytes of its own all the time, so that what is written over gives nothing
 * away. */
void broken_spread(struct plan *plan);
/* Another number of elements of the same type. */
void broken_resize(struct plan *plan, int buffer, int64_t elements);
/* Without instruction i, settled. */
void broken_delete(struct plan *plan, int i);
/* The plan is refused with these words, and destroyed. */
void broken_refused(struct plan *plan, const char *words);
/* Makes the steps of a change, which are separated by ';':
 *
 *   lane I LANE            instruction I runs on another lane
 *   use I.K B [ACCESS]     operand K of I is buffer B
 *   trade I.K J.L          the two operands have each other's buffer
 *   access I.K ACCESS      read, write or add
 *   attr I NAME VALUE      group, codec, blocks, clip, fp8, lr_scale, optimizer, stochastic, seed
 *   put I J, swap I J      I becomes a copy of J; both change places
 *   delete I, wait I J     I goes, and waits are made again; the first wait of I is for J
 *   move B BYTES           B begins so many bytes later
 *   over B C               B begins where C does, with its parent
 *   resize B N, view B N   N elements, or with a sign so many more; a new buffer of B's first N
 *   tier B TIER, purpose B PURPOSE, persistent B 0
 *   settle, spread, order  see below; plan_order() alone
 *
 * I is an operation with its unit, stage of the unit, micro-batch and group, and a distance:
 * "FORWARD:1/0:0", "ENCODE:1:0@ACROSS+1"; or a number from the first or the last instruction: "#3",
 * "#-1". B is the buffer of an operand, as
 * "UPDATE:1.master" or "UPDATE:1.7", a buffer's name, "none", "beyond" or "new": the last view. */
void broken_change(struct plan *plan, const char *change);
int broken_buffer(const struct plan *plan, const char *name);
