/* The handler of each operation, and the call that runs an instruction. */
#include "exec/handlers.h"

static op_run *const run[OP_COUNT] = {
    [OP_LOAD] = run_load,
    [OP_GATHER] = run_gather,
    [OP_MEASURE] = run_measure,
    [OP_MERGE] = run_merge,
    [OP_SCALE] = run_scale,
    [OP_ENCODE_PARAMS] = run_encode_params,
    [OP_GATHER_MESSAGES] = run_all_gather,
    [OP_DECODE_PARAMS] = run_decode_params,
    [OP_EMBED] = run_embed,
    [OP_FORWARD] = run_forward,
    [OP_RECOMPUTE] = run_forward,
    [OP_LOSS] = run_loss,
    [OP_LOGITS] = run_logits,
    [OP_DECODE] = run_decode,
    [OP_BACKWARD] = run_backward,
    [OP_EMBED_BACKWARD] = run_embed_backward,
    [OP_RELEASE] = run_release,
    [OP_MAGNITUDE] = run_magnitude,
    [OP_ENCODE] = run_encode,
    [OP_READ_RESIDUAL] = run_move,
    [OP_FETCH_RESIDUAL] = run_move,
    [OP_SAVE_RESIDUAL] = run_move,
    [OP_WRITE_RESIDUAL] = run_move,
    [OP_EXCHANGE] = run_exchange,
    [OP_DECODE_SUM] = run_decode_sum,
    [OP_GATHER_GRADS] = run_all_gather,
    [OP_SQUARES] = run_squares,
    [OP_METRICS] = run_metrics,
    [OP_DIRECTION] = run_direction,
    [OP_GATHER_DIRECTION] = run_all_gather,
    [OP_UPDATE] = run_update,
    [OP_REPAIR] = run_repair,
    [OP_FETCH] = run_move,
    [OP_PUBLISH] = run_publish,
    [OP_SAVE_ACT] = run_move,
    [OP_WRITE_ACT] = run_move,
    [OP_READ_ACT] = run_move,
    [OP_FETCH_ACT] = run_move,
    [OP_FETCH_GRAD] = run_move,
    [OP_ACCUMULATE] = run_accumulate,
    [OP_READ_STATE] = run_move_states,
    [OP_WRITE_STATE] = run_move_states,
    [OP_FETCH_LOSS] = run_move,
    [OP_SUM_SHARED] = run_sum_shared,
};

int exec_window_of(const struct instr *instr)
{
  switch (instr->op) {
  case OP_FETCH: return instr->use[MOVE_TO].buffer; /* a later GATHER may complete it */
  case OP_GATHER: return instr->use[GATHER_WHOLE].buffer;
  case OP_DECODE_PARAMS: return instr->use[DECODE_PARAMS_WHOLE].buffer;
  default: return -1;
  }
}

enum status exec_run(struct exec *exec, struct lane *lane, int index, int64_t n)
{
  const struct instr *instr = &exec->plan->instr[index];
  const struct call call = call_of(exec, lane, index, n);
  const int window = exec_window_of(instr);
  enum status status = STATUS_OK;
  if (window >= 0)
    status = open_window(&call, window);
  else if (op_rows[instr->op].params)
    status = check_window(&call, instr->use[0].buffer);
  status = status ?: run[instr->op](&call);
  if (!status && window >= 0)
    hold_window(&call, window);
  return status;
}

enum status exec_try(struct exec *exec, struct lane *lane, int index, int64_t tokens)
{
  const struct step_args args = {.tokens = tokens};
  struct call call = call_of(exec, lane, index, 0);
  call.args = &args;
  return call.instr->op == OP_RELEASE ? STATUS_OK : run[call.instr->op](&call);
}
