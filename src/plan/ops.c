/* One row per operation. The comment above a row says what the row itself cannot. */
#include "plan/ops.h"

/* clang-format off */
#define ROW(n, on, of, missing) .name = n, .lane = LANE_##on, .part = PART_##of, .without = missing
/* Columns: name, place, type, extent, role, and if the operand is optional its condition. */
#define OPERAND(a, n, p, t, e, r, ...) \
  {n, OPERAND_##a, PLACE_##p, TYPE_##t, EXTENT_##e, ROLE_##r, __VA_ARGS__}
#define READS(...) OPERAND(READ, __VA_ARGS__, )
#define WRITES(...) OPERAND(WRITE, __VA_ARGS__, )
#define CHANGES(...) OPERAND(ADD, __VA_ARGS__, )
#define SPENDS(...) OPERAND(SPEND, __VA_ARGS__, )
#define SUMS(...) OPERAND(SUM, __VA_ARGS__, )
/* Operands of passes of a block. */
#define READS_POSITIONS READS("positions", OUTSIDE, TOKENS, ANY, ANY, verify_turns_positions)
#define READS_FIRST READS("first", OUTSIDE, TOKENS, ANY, ANY, verify_has_documents)
/* Operands of a move between two tiers. */
#define MOVES_RESIDUAL(from, to) { \
  [MOVE_FROM] = READS("from", from, BYTES, RESIDUAL, RESIDUAL), \
  [MOVE_TO] = WRITES("to", to, BYTES, RESIDUAL, RESIDUAL)}
#define MOVES_ACT(from, to) { \
  [MOVE_FROM] = READS("from", from, ANY, ANY, ANY), \
  [MOVE_TO] = WRITES("to", to, FIRST, FIRST, ANY)}

const struct op_row op_rows[OP_COUNT] = {
    /* The input of a micro-batch. */
    [OP_LOAD] = {
        ROW("LOAD", IO, NOTHING, "it would work on old tokens"),
        .one = {UNIT_NONE, EACH_MICRO}, .value = value_load, .cost = cost_operands, .operand = {
        [LOAD_TOKENS] = WRITES("tokens", OUTSIDE, TOKENS, ANY, ANY),
        [LOAD_TARGETS] = WRITES("targets", OUTSIDE, TOKENS, ANY, ANY, verify_evaluates),
        [LOAD_WEIGHTS] = WRITES("weights", OUTSIDE, FP32, FIRST, ANY, verify_has_weights),
        [LOAD_POSITIONS] = WRITES("positions", OUTSIDE, TOKENS, FIRST, ANY,
            verify_has_positions),
        [LOAD_FIRST] = WRITES("first", OUTSIDE, TOKENS, FIRST, ANY, verify_has_documents),
        [LOAD_REFERENCE] = WRITES("reference", OUTSIDE, FP64, BATCH, ANY, verify_has_pairs),
    }},
    /* All-gather of a part of a unit over the shard group. A shard of another type is cast
     * first, or coded by the unit's scales. A shard that is at its place in the window is
     * gathered in place. */
    [OP_GATHER] = {
        ROW("GATHER", GATHER, COMM, NULL),
        .group = MESH_SHARD, .collective = COLLECTIVE_GATHER, .whole = GATHER_WHOLE,
        .in_place = true, .check = check_gather, .cost = cost_gather, .operand = {
        [GATHER_SHARD] = READS("shard", DEVICE, ANY, ANY, ANY),
        [GATHER_WHOLE] = WRITES("whole", DEVICE, WINDOW, ANY, ANY),
        [GATHER_BY_SCALES] = READS("scales", DEVICE, BYTES, SCALES, SCALES, plan_gathers_codes),
    }},
    /* Scales of a unit that is gathered in fp8, once per step, part 1: the largest magnitudes of
     * this rank's parts of blocks. Parameters other than weights travel with them. */
    [OP_MEASURE] = {
        ROW("MEASURE", GATHER, NOTHING, "its weights would have no scales"),
        .axes = AXES_SQUARE,
        .one = {UNIT_EACH, EACH_STEP, plan_gathers_codes}, .check = check_measure,
        .value = value_measure, .cost = cost_operands, .operand = {
        [MEASURE_TRAINED] = READS("trained", DEVICE, ANY, ANY, ANY, verify_has_trained),
        [MEASURE_FROZEN] = READS("frozen", DEVICE, ANY, ANY, ANY, verify_has_frozen),
        [MEASURE_SCALES] = WRITES("scales", DEVICE, BYTES, SCALES, SCALES),
    }},
    /* Part 2: an all-reduce. The scales of several units get the most of all members. */
    [OP_MERGE] = {
        ROW("MERGE", GATHER, COMM, NULL),
        .axes = AXES_SUM,
        .group = MESH_SHARD, .collective = COLLECTIVE_REDUCE, .whole = MERGE_SCALES,
        .one = {UNIT_NONE, EACH_STEP}, .due = due_merge, .value = value_merge,
        .cost = cost_all_reduce, .operand = {
        [MERGE_SCALES] = CHANGES("scales", DEVICE, BYTES, ANY, ANY),
    }},
    /* Part 3, before the unit's first GATHER: scales of the magnitudes. It may also make the codes
     * of this rank's trained part, which all GATHERs of the step then read. */
    [OP_SCALE] = {
        ROW("SCALE", GATHER, NOTHING, "its weights would have no scales"),
        .one = {UNIT_EACH, EACH_STEP, plan_gathers_codes}, .check = check_scale,
        .value = value_scale, .cost = cost_operands, .operand = {
        [SCALE_SCALES] = CHANGES("scales", DEVICE, BYTES, SCALES, SCALES),
        [SCALE_TRAINED] = READS("trained", DEVICE, ANY, ANY, ANY, verify_keeps_codes),
        [SCALE_CODES] = WRITES("codes", DEVICE, WINDOW, OWNED, CODES, verify_keeps_codes),
    }},
    /* GATHER by a codec, part 1: one message of this rank's part, or of the difference to its
     * part of the copy. A frozen part may be kept as its message. */
    [OP_ENCODE_PARAMS] = {
        ROW("ENCODE_PARAMS", GATHER, NOTHING,
            "the other ranks would not get this rank's parameters"),
        .group = MESH_SHARD, .codes_params = true, .due = due_encode_params,
        .check = check_encode_params, .cost = cost_encode_params, .operand = {
        [ENCODE_PARAMS_SHARD] = READS("shard", DEVICE, MASTER, ANY, ANY),
        [ENCODE_PARAMS_MESSAGE] = WRITES("message", DEVICE, BYTES, ANY, ANY),
        [ENCODE_PARAMS_COPY] = READS("copy", DEVICE, WINDOW, FIRST, COPY, verify_keeps_copy),
        [ENCODE_PARAMS_DIFFERENCE] = WRITES("difference", DEVICE, FP32, FIRST, ANY,
            verify_keeps_copy),
        [ENCODE_PARAMS_WORK] = WRITES("work", DEVICE, BYTES, ANY, ANY, verify_wants_params_work),
    }},
    [OP_GATHER_MESSAGES] = {
        ROW("GATHER_MESSAGES", GATHER, COMM, "this rank would not get the other ranks' parameters"),
        .group = MESH_SHARD, .collective = COLLECTIVE_GATHER, .whole = GATHER_MESSAGES_ALL,
        .codes_params = true, .in_place = true, .due = due_gather_messages,
        .check = check_gather_messages, .cost = cost_gather, .operand = {
        [GATHER_MESSAGES_MINE] = READS("mine", DEVICE, BYTES, ANY, ANY),
        [GATHER_MESSAGES_ALL] = WRITES("all", DEVICE, BYTES, ANY, ANY),
    }},
    /* GATHER by a codec, part 3: writes the window, or with ACCESS_ADD adds differences to
     * plan_unit.copy, rounded to its type. This rank's part is decoded too: all ranks compute
     * with the same parameters. */
    [OP_DECODE_PARAMS] = {
        ROW("DECODE_PARAMS", GATHER, NOTHING, "its copy would miss what the other copies get"),
        .group = MESH_SHARD, .codes_params = true, .due = due_messages,
        .check = check_decode_params, .cost = cost_decode_params, .operand = {
        [DECODE_PARAMS_MESSAGES] = READS("messages", DEVICE, BYTES, ANY, ANY),
        [DECODE_PARAMS_WHOLE] = SUMS("whole", DEVICE, WINDOW, ANY, ANY),
        [DECODE_PARAMS_WORK] = WRITES("work", DEVICE, BYTES, ANY, ANY, verify_wants_params_work),
    }},
    [OP_EMBED] = {
        ROW("EMBED", COMPUTE, NOTHING, "nothing would enter the first block"),
        .stage = STAGE_EMBED,
        .params = true, .one = {UNIT_EACH, EACH_MICRO}, .value = value_embed, .cost = cost_embed,
        .operand = {
        [EMBED_PARAMS] = READS("params", DEVICE, WINDOW, UNIT, ANY),
        [EMBED_TOKENS] = READS("tokens", OUTSIDE, TOKENS, ANY, ANY),
        [EMBED_OUT] = WRITES("out", DEVICE, COMPUTE, ANY, ANY),
        [EMBED_POSITIONS] = READS("positions", OUTSIDE, TOKENS, ANY, ANY, verify_embeds_positions),
    }},
    [OP_FORWARD] = {
        ROW("FORWARD", COMPUTE, NOTHING, "nothing would pass through it"),
        .stage = STAGE_BLOCK,
        .fp8 = true, .params = true, .one = {UNIT_EACH, EACH_MICRO, verify_evaluates},
        .value = value_forward, .flops = flops_block, .cost = cost_flops, .operand = {
        [FORWARD_PARAMS] = READS("params", DEVICE, WINDOW, UNIT, ANY),
        [FORWARD_IN] = READS("in", DEVICE, COMPUTE, ANY, ANY),
        [FORWARD_OUT] = WRITES("out", DEVICE, COMPUTE, ANY, ANY),
        [FORWARD_WORK] = WRITES("work", DEVICE, BYTES, ANY, ANY),
        [FORWARD_SAVED] = WRITES("saved", DEVICE, BYTES, ANY, ANY, verify_wants_saved),
        [FORWARD_SCALES] = READS("scales", DEVICE, BYTES, SCALES, SCALES, plan_gathers_codes),
        [FORWARD_POSITIONS] = READS_POSITIONS,
        [FORWARD_FIRST] = READS_FIRST,
    }},
    /* The forward pass again, for the activations alone. */
    [OP_RECOMPUTE] = {
        ROW("RECOMPUTE", COMPUTE, NOTHING, "its activations would be gone"),
        .stage = STAGE_BLOCK,
        .fp8 = true, .params = true, .one = {UNIT_EACH, EACH_MICRO, verify_needs_recompute},
        .value = value_recompute, .flops = flops_block, .cost = cost_flops, .operand = {
        [FORWARD_PARAMS] = READS("params", DEVICE, WINDOW, UNIT, ANY),
        [FORWARD_IN] = READS("in", DEVICE, COMPUTE, ANY, ANY),
        [FORWARD_WORK] = WRITES("work", DEVICE, BYTES, ANY, ANY),
        [FORWARD_SAVED] = WRITES("saved", DEVICE, BYTES, ANY, ANY),
        [FORWARD_SCALES] = READS("scales", DEVICE, BYTES, SCALES, SCALES, plan_gathers_codes),
        [FORWARD_POSITIONS] = READS_POSITIONS,
        [FORWARD_FIRST] = READS_FIRST,
    }},
    /* With gradients in PLAN_TRAIN. The first one of a step has ACCESS_WRITE: the loss is zeroed
     * first. With attr.beta the loss is that of pairs. */
    [OP_LOSS] = {
        ROW("LOSS", COMPUTE, NOTHING, "the loss would lack a part"),
        .stage = STAGE_HEAD, .axes = AXES_CONTRACT,
        .params = true, .one = {UNIT_EACH, EACH_MICRO, verify_evaluates}, .value = value_loss,
        .flops = flops_loss, .cost = cost_flops, .operand = {
        [LOSS_PARAMS] = READS("params", DEVICE, WINDOW, UNIT, ANY),
        [LOSS_IN] = READS("in", DEVICE, COMPUTE, ANY, ANY),
        [LOSS_TARGETS] = READS("targets", OUTSIDE, TOKENS, ANY, ANY),
        [LOSS_SUM] = SUMS("loss", DEVICE, BYTES, ANY, LOSS),
        [LOSS_WORK] = WRITES("work", DEVICE, BYTES, ANY, ANY),
        [LOSS_D] = WRITES("d", DEVICE, COMPUTE, ANY, ANY, verify_trains),
        [LOSS_GRADS] = SUMS("grads", DEVICE, GRADIENT, STAGE, ANY, verify_learns),
        [LOSS_WEIGHTS] = READS("weights", OUTSIDE, FP32, ANY, ANY, verify_has_weights),
        [LOSS_REFERENCE] = READS("reference", OUTSIDE, FP64, BATCH, ANY, verify_has_pairs),
    }},
    [OP_LOGITS] = {
        ROW("LOGITS", COMPUTE, NOTHING, "there would be no result"),
        .stage = STAGE_HEAD,
        .params = true, .one = {UNIT_EACH, EACH_MICRO, verify_generates}, .value = value_logits,
        .flops = flops_logits, .cost = cost_flops, .operand = {
        [LOGITS_PARAMS] = READS("params", DEVICE, WINDOW, UNIT, ANY),
        [LOGITS_IN] = READS("in", DEVICE, COMPUTE, ANY, ANY),
        [LOGITS_WORK] = WRITES("work", DEVICE, BYTES, ANY, ANY),
        [LOGITS_OUT] = WRITES("logits", OUTSIDE, FP32, ANY, ANY),
    }},
    /* New tokens after those in the cache (PLAN_GENERATE). */
    [OP_DECODE] = {
        ROW("DECODE", COMPUTE, NOTHING, "nothing would pass through it"),
        .stage = STAGE_BLOCK,
        .params = true, .one = {UNIT_EACH, EACH_MICRO, verify_generates}, .check = check_decode,
        .value = value_forward, .flops = flops_block, .cost = cost_flops, .operand = {
        [DECODE_PARAMS] = READS("params", DEVICE, WINDOW, UNIT, ANY),
        [DECODE_IN] = READS("in", DEVICE, COMPUTE, ANY, ANY),
        [DECODE_OUT] = WRITES("out", DEVICE, COMPUTE, ANY, ANY),
        [DECODE_WORK] = WRITES("work", DEVICE, BYTES, ANY, ANY),
        [DECODE_CACHE] = CHANGES("cache", DEVICE, BYTES, ANY, ANY),
    }},
    /* The model writes a new gradient up to the last parameter. The executor zeroes the elements
     * after it, layout.used to layout.trained. The same holds for LOSS and EMBED_BACKWARD. */
    [OP_BACKWARD] = {
        ROW("BACKWARD", COMPUTE, NOTHING, "its gradient would lack a part"),
        .stage = STAGE_BLOCK, .axes = AXES_CONTRACT,
        .fp8 = true, .params = true, .one = {UNIT_EACH, EACH_MICRO, verify_needs_backward},
        .value = value_backward, .flops = flops_backward, .cost = cost_flops, .operand = {
        [BACKWARD_PARAMS] = READS("params", DEVICE, WINDOW, UNIT, ANY),
        [BACKWARD_IN] = READS("in", DEVICE, COMPUTE, ANY, ANY),
        [BACKWARD_SAVED] = READS("saved", DEVICE, BYTES, ANY, ANY),
        [BACKWARD_D] = CHANGES("d", DEVICE, COMPUTE, ANY, ANY),
        [BACKWARD_WORK] = WRITES("work", DEVICE, BYTES, ANY, ANY),
        [BACKWARD_GRADS] = SUMS("grads", DEVICE, GRADIENT, STAGE, ANY, verify_learns),
        [BACKWARD_SCALES] = READS("scales", DEVICE, BYTES, SCALES, SCALES, plan_gathers_codes),
        [BACKWARD_POSITIONS] = READS_POSITIONS,
        [BACKWARD_FIRST] = READS_FIRST,
    }},
    [OP_EMBED_BACKWARD] = {
        ROW("EMBED_BACKWARD", COMPUTE, NOTHING, "its gradient would lack a part"),
        .stage = STAGE_EMBED, .axes = AXES_CONTRACT,
        .one = {UNIT_EACH, EACH_MICRO, verify_trains_embedding}, .value = value_embed_backward,
        .cost = cost_embed_backward, .operand = {
        [EMBED_BACKWARD_TOKENS] = READS("tokens", OUTSIDE, TOKENS, ANY, ANY),
        [EMBED_BACKWARD_D] = READS("d", DEVICE, COMPUTE, ANY, ANY),
        [EMBED_BACKWARD_GRADS] = SUMS("grads", DEVICE, GRADIENT, STAGE, ANY),
        [EMBED_BACKWARD_POSITIONS] = READS("positions", OUTSIDE, TOKENS, ANY, ANY,
            verify_embeds_positions),
    }},
    /* The gathered window ends here. The operation itself does nothing. */
    [OP_RELEASE] = {
        ROW("RELEASE", COMPUTE, NOTHING, NULL),
        .params = true, .operand = {
        [RELEASE_PARAMS] = READS("params", DEVICE, WINDOW, ANY, ANY),
    }},
    /* The largest magnitude of what the group is about to encode, for CODEC_NEEDS_MAX: an all-
     * gather of the members' own. */
    [OP_MAGNITUDE] = {
        ROW("MAGNITUDE", REDUCE, COMM, "ranks would encode by scales of their own"),
        .group = MESH_SHARD, .collective = COLLECTIVE_GATHER, .whole = MAGNITUDE_ALL,
        .coded = true, .extra = true, .due = due_magnitude, .check = check_magnitude,
        .value = value_magnitude, .cost = cost_magnitude, .operand = {
        [MAGNITUDE_GRADS] = SPENDS("grads", REDUCE, GRADIENT, SUMMED, ANY),
        [MAGNITUDE_ALL] = WRITES("all", REDUCE, FP32, MEMBERS, ANY),
        [MAGNITUDE_LARGEST] = WRITES("largest", REDUCE, FP32, ONE, ANY),
        [MAGNITUDE_RESIDUAL] = READS("residual", DEVICE, BYTES, RESIDUAL, RESIDUAL,
            verify_has_residual),
        [MAGNITUDE_WORK] = WRITES("work", DEVICE, BYTES, ANY, ANY, verify_wants_encode_work),
    }},
    /* One message per destination. ENCODE, EXCHANGE and DECODE_SUM are a reduce-scatter of
     * gradients over the shard group, or of the reduced shard over the replicas. ENCODE is left
     * out if the codec's message is the gradient itself. In two hops there are two of
     * these: over MESH_INSIDE as it is, in a block for each node, and then over MESH_ACROSS. A
     * residual is added to the gradient first, unless MAGNITUDE has added it. It then holds the
     * error of the messages, and the gradient has no valid value. The same holds if the error is
     * measured (policy.sample): for that the end of the work has plan_sample_bytes(). */
    [OP_ENCODE] = {
        ROW("ENCODE", REDUCE, NOTHING, "the other ranks would get no messages"),
        .group = MESH_SHARD, .coded = true, .due = due_encode, .check = check_encode,
        .value = value_encode, .cost = cost_encode, .operand = {
        [ENCODE_GRADS] = SPENDS("grads", REDUCE, GRADIENT, SUMMED, ANY),
        [ENCODE_MESSAGES] = WRITES("messages", ENCODED, BYTES, MESSAGES, ANY),
        [ENCODE_RESIDUAL] = CHANGES("residual", DEVICE, BYTES, RESIDUAL, RESIDUAL,
            verify_has_residual),
        [ENCODE_WORK] = WRITES("work", DEVICE, BYTES, ANY, ANY, verify_wants_encode_work),
        [ENCODE_LARGEST] = READS("largest", REDUCE, FP32, ONE, ANY, verify_wants_largest),
    }},
    /* The moves of residuals that a tier other than the device's memory keeps between their
     * uses. */
    [OP_READ_RESIDUAL] = {
        ROW("READ_RESIDUAL", DISK, DISK, "what its messages have lost would not come back"),
        .one = {UNIT_TRAINED, WHEN_REDUCED, verify_stores_residual}, .value = value_residual,
        .cost = cost_disk, .operand = MOVES_RESIDUAL(DISK, HOST)},
    [OP_FETCH_RESIDUAL] = {
        ROW("FETCH_RESIDUAL", H2D, COPY, "what its messages have lost would not come back"),
        .one = {UNIT_TRAINED, WHEN_REDUCED, verify_moves_residual}, .value = value_residual,
        .cost = cost_copy, .operand = MOVES_RESIDUAL(HOST, DEVICE)},
    [OP_SAVE_RESIDUAL] = {
        ROW("SAVE_RESIDUAL", D2H, COPY, "what its messages lose would be gone"),
        .one = {UNIT_TRAINED, WHEN_REDUCED, verify_moves_residual}, .value = value_residual,
        .cost = cost_copy, .operand = MOVES_RESIDUAL(DEVICE, HOST)},
    [OP_WRITE_RESIDUAL] = {
        ROW("WRITE_RESIDUAL", DISK, DISK, "what its messages lose would be gone"),
        .one = {UNIT_TRAINED, WHEN_REDUCED, verify_stores_residual}, .value = value_residual,
        .cost = cost_disk, .operand = MOVES_RESIDUAL(HOST, DISK)},
    /* Messages between the members of the group. */
    [OP_EXCHANGE] = {
        ROW("EXCHANGE", REDUCE, COMM, "its gradient would lack the other ranks' part"),
        .group = MESH_SHARD, .collective = COLLECTIVE_EXCHANGE, .whole = EXCHANGE_RECEIVED,
        .coded = true, .due = due_exchange, .value = value_exchange, .cost = cost_exchange,
        .operand = {
        [EXCHANGE_SENT] = READS("sent", REDUCE, SENT, MESSAGES, ANY),
        [EXCHANGE_RECEIVED] = WRITES("received", REDUCE, BYTES, MESSAGES, ANY),
    }},
    /* The sum of the received messages. A shard with ACCESS_ADD accumulates over micro-batches.
     * With ACCESS_WRITE it may be a part of the gradient that was sent, at its place. */
    [OP_DECODE_SUM] = {
        ROW("DECODE_SUM", REDUCE, NOTHING, "its gradient would lack the other ranks' part"),
        .axes = AXES_SCATTER,
        .group = MESH_SHARD, .coded = true, .due = due_exchange, .check = check_decode_sum,
        .value = value_decode_sum, .cost = cost_decode_sum, .operand = {
        [DECODE_SUM_MESSAGES] = READS("messages", REDUCE, BYTES, MESSAGES, ANY),
        [DECODE_SUM_SHARD] = SUMS("shard", REDUCE, GRADIENT, PART, ANY),
        [DECODE_SUM_WORK] = WRITES("work", DEVICE, BYTES, ANY, ANY, verify_wants_decode_work),
    }},
    /* All-gather of gradients over the replicas, or without sharding over the shard group. A
     * piece may be a part of the whole. */
    [OP_GATHER_GRADS] = {
        ROW("GATHER_GRADS", REDUCE, COMM, "it would be updated by a partial gradient"),
        .axes = AXES_GATHER,
        .group = MESH_REPLICA, .collective = COLLECTIVE_GATHER, .whole = GATHER_GRADS_WHOLE,
        .in_place = true, .one = {UNIT_TRAINED, WHEN_REPLICAS_MEET, verify_gathers_grads},
        .check = check_gather_grads, .value = value_gradient, .cost = cost_gather, .operand = {
        [GATHER_GRADS_PIECE] = READS("piece", REDUCE, GRADIENT, ANY, ANY),
        [GATHER_GRADS_WHOLE] = WRITES("whole", REDUCE, GRADIENT, ANY, ANY),
    }},
    /* This rank's part of the squared global norm. If gradients of several micro-batches add up
     * on the host and metrics are on the device, it runs on the host lane and sums into
     * plan->squares, which METRICS adds. The first one of a step has ACCESS_WRITE: the sum is
     * zeroed first. */
    [OP_SQUARES] = {
        ROW("SQUARES", REDUCE, NOTHING, "the gradient norm would lack a part"),
        .axes = AXES_SQUARE,
        .one = {UNIT_TRAINED, EACH_STEP}, .value = value_squares, .cost = cost_operands,
        .operand = {
        [SQUARES_GRADS] = READS("grads", SQUARES, GRADIENT, PIECE, ANY),
        [SQUARES_SUM] = SUMS("sum", SQUARES, BYTES, ANY, SQUARES),
    }},
    /* Exact sums over all ranks, clip factor, finite or not. ACCESS_WRITE: nothing was squared
     * (PLAN_EVAL), so the squares are zeroed first. */
    [OP_METRICS] = {
        ROW("METRICS", REDUCE, COMM, "loss and gradient norm would lack the other ranks' part"),
        .axes = AXES_SUM,
        .group = MESH_WORLD, .collective = COLLECTIVE_TREE, .whole = METRICS_LOSS,
        .one = {UNIT_NONE, EACH_STEP, verify_evaluates}, .check = check_metrics,
        .value = value_metrics, .cost = cost_tree, .operand = {
        [METRICS_LOSS] = CHANGES("loss", REDUCE, BYTES, ANY, SUMMED_LOSS),
        [METRICS_OUT] = SUMS("metrics", REDUCE, BYTES, ANY, METRICS),
        [METRICS_SQUARES] = READS("squares", HOST, BYTES, ANY, HOST_SQUARES, verify_wants_squares),
    }},
    /* For an optimizer of whole matrices: the momentum of this rank's range, in the compute
     * type. */
    [OP_DIRECTION] = {
        ROW("DIRECTION", HOST, UPDATE, "its matrices would be updated without a direction"),
        .updates = true, .one = {UNIT_TRAINED, EACH_STEP, verify_has_matrices},
        .value = value_direction, .cost = cost_operands, .operand = {
        [DIRECTION_METRICS] = READS("metrics", REDUCE, BYTES, ANY, METRICS),
        [DIRECTION_GRADS] = READS("grads", STATE, GRADIENT, OWNED, ANY),
        [DIRECTION_OUT] = WRITES("direction", DEVICE, COMPUTE, OWNED, ANY),
        [DIRECTION_STATE] = CHANGES("momentum", STATE, STATE, STATE, STATE, .index = 0),
    }},
    /* All-gather of the direction over the shard group, because UPDATE needs whole matrices. */
    [OP_GATHER_DIRECTION] = {
        ROW("GATHER_DIRECTION", REDUCE, COMM,
            "its matrices would be updated by a part of their direction"),
        .axes = AXES_GATHER,
        .group = MESH_SHARD, .collective = COLLECTIVE_GATHER, .whole = GATHER_DIRECTION_WHOLE,
        .in_place = true, .one = {UNIT_TRAINED, EACH_STEP, verify_gathers_matrices},
        .check = check_gather_direction, .value = value_gather_direction, .cost = cost_gather,
        .operand = {
        [GATHER_DIRECTION_PIECE] = READS("piece", DEVICE, COMPUTE, OWNED, ANY),
        [GATHER_DIRECTION_WHOLE] = WRITES("whole", DEVICE, COMPUTE, TRAINED, ANY),
    }},
    /* The optimizer's step. Without METRICS it waits for no other unit. If only some units are
     * on the host, those of the others are on the reduce lane, and their gradients are reduced
     * in staging buffers of their own. Of a speculative unit (policy.timing) it changes masters
     * and states by the gradient of the step before, whose norm is known by now. Then it writes
     * the working copy that the gradient of this step leads to if the step is not clipped. If
     * the step before was clipped, it leaves the working copy to REPAIR. The gradient is kept
     * for the next step: grads and pending exchange their memory after each step. exec_drain()
     * changes masters and states by the gradients that still wait. */
    [OP_UPDATE] = {
        ROW("UPDATE", HOST, UPDATE, "its parameters would never change"),
        .updates = true, .one = {UNIT_TRAINED, EACH_STEP}, .check = check_update,
        .value = value_update, .cost = cost_update, .operand = {
        [UPDATE_METRICS] = READS("metrics", REDUCE, BYTES, ANY, METRICS, verify_wants_metrics),
        [UPDATE_GRADS] = READS("grads", STATE, GRADIENT, OWNED, ANY),
        [UPDATE_MASTER] = CHANGES("master", STATE, MASTER, OWNED, MASTER),
        [UPDATE_WORKING] = WRITES("working", WORKING, COMPUTE, OWNED, WORKING, verify_has_working),
        [UPDATE_DIRECTION] = CHANGES("direction", DEVICE, COMPUTE, TRAINED, ANY,
            verify_has_matrices),
        [UPDATE_WORK] = WRITES("work", DEVICE, BYTES, ANY, ANY, verify_has_matrices),
        [UPDATE_PENDING] = CHANGES("pending", STATE, GRADIENT, OWNED, PENDING, verify_speculates),
        [UPDATE_STATE] = CHANGES("state 1", STATE, STATE, STATE, STATE, .index = 0),
        [UPDATE_STATE + 1] = CHANGES("state 2", STATE, STATE, STATE, STATE, .index = 1),
        [UPDATE_STATE + 2] = CHANGES("state 3", STATE, STATE, STATE, STATE, .index = 2),
    }},
    /* After METRICS, of a speculative unit: writes the working copy if UPDATE has not, or if the
     * gradient is clipped or not finite. */
    [OP_REPAIR] = {
        ROW("REPAIR", HOST, UPDATE, "a step that is clipped would leave parameters that are not"),
        .updates = true, .one = {UNIT_TRAINED, EACH_STEP, verify_speculates},
        .check = check_repair, .value = value_repair, .cost = cost_repair, .operand = {
        [REPAIR_METRICS] = READS("metrics", REDUCE, BYTES, ANY, METRICS),
        [REPAIR_GRADS] = READS("grads", STATE, GRADIENT, OWNED, ANY),
        [REPAIR_MASTER] = READS("master", STATE, MASTER, OWNED, MASTER),
        [REPAIR_WORKING] = CHANGES("working", WORKING, COMPUTE, OWNED, WORKING),
        [REPAIR_STATE] = READS("state 1", STATE, STATE, STATE, STATE, .index = 0),
        [REPAIR_STATE + 1] = READS("state 2", STATE, STATE, STATE, STATE, .index = 1),
    }},
    /* Parameters of masters in host memory to the device: a unit's window, or this rank's part
     * of it. */
    [OP_FETCH] = {
        ROW("FETCH", H2D, COPY, NULL),
        .cost = cost_copy, .operand = {
        [MOVE_FROM] = READS("from", SOURCE, ANY, ANY, ANY),
        [MOVE_TO] = WRITES("to", DEVICE, ANY, ANY, ANY),
    }},
    /* All members of the shard group have written the copy that they share. */
    [OP_PUBLISH] = {
        ROW("PUBLISH", GATHER, COMM,
            "ranks would compute with parameters that others are still writing"),
        .group = MESH_SHARD, .collective = COLLECTIVE_BARRIER, .whole = MOVE_TO,
        .in_place = true, .one = {UNIT_TRAINED, EACH_STEP, verify_shares_copy},
        .check = check_publish, .value = value_publish, .cost = cost_barrier, .operand = {
        [MOVE_FROM] = READS("mine", SHARED, ANY, ANY, WORKING),
        [MOVE_TO] = WRITES("whole", SHARED, COMPUTE, ANY, ANY),
    }},
    /* The moves of what a block keeps in another tier for its backward pass: its input, or all
     * activations. */
    [OP_SAVE_ACT] = {
        ROW("SAVE_ACT", D2H, COPY, "what its backward pass reads would be gone"),
        .stage = STAGE_BLOCK, .due = due_kept_on_host, .value = value_kept, .cost = cost_copy,
        .operand = MOVES_ACT(DEVICE, HOST)},
    [OP_WRITE_ACT] = {
        ROW("WRITE_ACT", DISK, DISK, "what its backward pass reads would be gone"),
        .stage = STAGE_BLOCK, .due = due_kept_on_disk, .value = value_kept, .cost = cost_disk,
        .operand = MOVES_ACT(HOST, DISK)},
    [OP_READ_ACT] = {
        ROW("READ_ACT", DISK, DISK, "what its backward pass reads would not come back"),
        .stage = STAGE_BLOCK, .due = due_kept_on_disk, .value = value_kept, .cost = cost_disk,
        .operand = MOVES_ACT(DISK, HOST)},
    [OP_FETCH_ACT] = {
        ROW("FETCH_ACT", H2D, COPY, "what its backward pass reads would not come back"),
        .stage = STAGE_BLOCK, .due = due_kept_on_host, .value = value_kept, .cost = cost_copy,
        .operand = MOVES_ACT(HOST, DEVICE)},
    /* A gradient to the host: the reduced shard, or the whole unit. */
    [OP_FETCH_GRAD] = {
        ROW("FETCH_GRAD", D2H, COPY, "its gradient would not come to the host"),
        .one = {UNIT_TRAINED, WHEN_REDUCED, verify_on_host}, .value = value_gradient,
        .cost = cost_copy, .operand = {
        [MOVE_FROM] = READS("from", DEVICE, GRADIENT, ANY, ANY),
        [MOVE_TO] = WRITES("to", LANDED, GRADIENT, FIRST, ANY),
    }},
    [OP_ACCUMULATE] = {
        ROW("ACCUMULATE", HOST, UPDATE, "its gradient would lack a part"),
        .one = {UNIT_TRAINED, EACH_LATER_MICRO, verify_sums_on_device}, .value = value_accumulate,
        .cost = cost_operands, .operand = {
        [ACCUMULATE_LANDED] = READS("landed", HOST, GRADIENT, ANY, ANY),
        [ACCUMULATE_GRADS] = CHANGES("grads", HOST, GRADIENT, FIRST, ANY),
    }},
    /* Optimizer state from NVMe. */
    [OP_READ_STATE] = {
        ROW("READ_STATE", DISK, DISK, "it would be updated without its state"),
        .one = {UNIT_TRAINED, EACH_STEP, verify_moves_state}, .value = value_read_state,
        .cost = cost_disk, .operand = {
        [STATE_FROM] = READS("from 1", DISK, STATE, STATE, STORED_STATE, .index = 0),
        [STATE_FROM + 1] = READS("from 2", DISK, STATE, STATE, STORED_STATE, .index = 1),
        [STATE_TO] = WRITES("to 1", HOST, STATE, STATE, STATE, .index = 0),
        [STATE_TO + 1] = WRITES("to 2", HOST, STATE, STATE, STATE, .index = 1),
    }},
    [OP_WRITE_STATE] = {
        ROW("WRITE_STATE", DISK, DISK, "its state would never change"),
        .one = {UNIT_TRAINED, EACH_STEP, verify_moves_state}, .value = value_write_state,
        .cost = cost_disk, .operand = {
        [STATE_FROM] = READS("from 1", HOST, STATE, STATE, STATE, .index = 0),
        [STATE_FROM + 1] = READS("from 2", HOST, STATE, STATE, STATE, .index = 1),
        [STATE_TO] = WRITES("to 1", DISK, STATE, STATE, STORED_STATE, .index = 0),
        [STATE_TO + 1] = WRITES("to 2", DISK, STATE, STATE, STORED_STATE, .index = 1),
    }},
    /* The loss to the host, where METRICS sums it. */
    [OP_FETCH_LOSS] = {
        ROW("FETCH_LOSS", D2H, COPY, "the loss would not come to the host"),
        .one = {UNIT_NONE, EACH_STEP, verify_loss_on_host}, .value = value_fetch_loss,
        .cost = cost_copy, .operand = {
        [MOVE_FROM] = READS("from", DEVICE, ANY, ANY, LOSS),
        [MOVE_TO] = WRITES("to", HOST, FIRST, FIRST, LOSS_HOST),
    }},
    /* EXCHANGE and DECODE_SUM in one, for messages in shared memory of a shard group: each
     * member adds up the part that it owns. The transient arena of TIER_SHARED has a region for
     * each member, with the same offsets. Other members read it only during this operation,
     * which waits for all members at its beginning and end. */
    [OP_SUM_SHARED] = {
        ROW("SUM_SHARED", REDUCE, COMM, "its gradient would lack the other ranks' part"),
        .axes = AXES_SCATTER,
        .group = MESH_SHARD, .collective = COLLECTIVE_BARRIER, .whole = SUM_SHARED_SENT,
        .coded = true, .one = {UNIT_TRAINED, WHEN_REDUCED, verify_exchanges_shared},
        .value = value_sum_shared, .cost = cost_sum_shared, .operand = {
        [SUM_SHARED_SENT] = READS("sent", SHARED, SENT, MESSAGES, ANY),
        [SUM_SHARED_SHARD] = SUMS("shard", HOST, GRADIENT, PART, ANY),
    }},
};
