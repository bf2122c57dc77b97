/* The handlers of operations: small functions that depend only on operands and attributes, and the
 * call that each of them gets. Private to handlers*.c. */
#pragma once

#include "exec/engine.h"
#include "model/model.h"
#include "plan/ops.h"

struct call {
  struct exec *exec;
  struct lane *lane;
  const struct instr *instr;
  int index;
  int64_t n; /* the step, counted from create */
  const struct step_args *args;
};

/* The call of an instruction in step n. */
static inline struct call call_of(struct exec *exec, struct lane *lane, int index, int64_t n)
{
  return (struct call){.exec = exec,
                       .lane = lane,
                       .instr = &exec->plan->instr[index],
                       .index = index,
                       .n = n,
                       .args = &exec->args[n % KEPT]};
}

static inline void *use(const struct call *call, int i)
{
  return call->instr->use[i].buffer < 0
             ? NULL
             : call->exec->pointer[call->n & 1][call->instr->use[i].buffer];
}

static inline bool adds(const struct call *call, int i)
{
  return call->instr->use[i].buffer >= 0 && call->instr->use[i].access == ACCESS_ADD;
}

static inline const struct plan_buffer *buffer_of(const struct call *call, int i)
{
  return &call->exec->plan->buffer[call->instr->use[i].buffer];
}

static inline struct comm_group *group_of(const struct call *call)
{
  return exec_group(call->exec, call->instr->attr.group, call->instr->lane);
}

static inline int64_t use_bytes(const struct call *call, int i)
{
  return buffer_of(call, i)->bytes;
}

static inline const struct model *model_of(const struct call *call)
{
  return call->exec->config.model;
}

typedef enum status op_run(const struct call *call);

/* ---- handlers_window.c ---- */
op_run run_measure, run_merge, run_scale, run_gather, run_release;

/* Before and after an instruction writes the parameters of its unit into a buffer. */
enum status open_window(const struct call *call, int buffer);
void hold_window(const struct call *call, int buffer);
/* Whether all parts of the window hold the unit's parameters of this step. */
enum status check_window(const struct call *call, int buffer);

/* ---- handlers_model.c ---- */
op_run run_load, run_embed, run_forward, run_decode, run_loss, run_logits, run_backward,
    run_embed_backward;

/* ---- handlers_codec.c ---- */
op_run run_magnitude, run_encode, run_encode_params, run_decode_params, run_exchange,
    run_decode_sum, run_sum_shared, run_all_gather;

/* ---- handlers_update.c ---- */
op_run run_squares, run_accumulate, run_metrics, run_direction, run_update, run_repair;

/* ---- handlers_move.c ---- */
op_run run_move, run_move_states, run_publish;
