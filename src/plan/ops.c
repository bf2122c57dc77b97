/* One row per operation. The comment above a row says what the row itself cannot. */
#include "plan/ops.h"

#define READS(n, ...)                                                                              \
  {                                                                                                \
    .name = n, .access = OPERAND_READ, __VA_ARGS__                                                 \
  }
#define WRITES(n, ...)                                                                             \
  {                                                                                                \
    .name = n, .access = OPERAND_WRITE, __VA_ARGS__                                                \
  }
#define CHANGES(n, ...)                                                                            \
  {                                                                                                \
    .name = n, .access = OPERAND_ADD, __VA_ARGS__                                                  \
  }
#define SPENDS(n, ...)                                                                             \
  {                                                                                                \
    .name = n, .access = OPERAND_SPEND, __VA_ARGS__                                                \
  }
#define SUMS(n, ...)                                                                               \
  {                                                                                                \
    .name = n, .access = OPERAND_SUM, __VA_ARGS__                                                  \
  }

#define PARAMS READS("params", .type = TYPE_WINDOW, .extent = EXTENT_UNIT)
#define STATE(ACCESS, n, where, what, nth)                                                         \
  ACCESS(n, .type = TYPE_STATE, .extent = EXTENT_STATE, .place = where, .role = what, .index = nth)
#define GRADS .type = TYPE_GRADIENT, .extent = EXTENT_TRAINED
#define SCALES .type = TYPE_BYTES, .extent = EXTENT_SCALES, .role = ROLE_SCALES
#define RESIDUAL .type = TYPE_BYTES, .extent = EXTENT_RESIDUAL, .role = ROLE_RESIDUAL

/* clang-format off */
const struct op_row op_rows[OP_COUNT] = {
    /* Tokens and targets of a micro-batch. */
    [OP_LOAD] = {
        .name = "LOAD", .lane = LANE_IO, .part = PART_NOTHING, .group = GROUP_NONE,
        .without = "it would work on old tokens",
        .operand = {
            [LOAD_TOKENS] = WRITES("tokens", .place = PLACE_OUTSIDE, .type = TYPE_TOKENS),
        },
        .one = {UNIT_NONE, EACH_MICRO}, .value = value_load, .cost = cost_operands,
    },
    /* All-gather of a part of a unit over the shard group. A shard of another type is cast first,
     * or coded by the unit's scales. A shard that is at its place in the window is gathered in
     * place. */
    [OP_GATHER] = {
        .name = "GATHER", .lane = LANE_GATHER, .part = PART_COMM, .group = GROUP_GATHER,
        .collective = COLLECTIVE_GATHER, .whole = GATHER_WHOLE, .in_place = true,
        .operand = {
            [GATHER_SHARD] = READS("shard"),
            [GATHER_WHOLE] = WRITES("whole", .type = TYPE_WINDOW),
            [GATHER_BY_SCALES] = READS("scales", SCALES, .wanted = plan_gathers_codes),
        },
        .check = check_gather, .cost = cost_gather,
    },
    /* Scales of a unit that is gathered in fp8, once per step, before its first GATHER: the largest
     * magnitudes of this rank's parts of blocks. Each member gets a share of all members'. */
    [OP_MEASURE] = {
        .name = "MEASURE", .lane = LANE_GATHER, .part = PART_COMM, .group = GROUP_GATHER,
        .collective = COLLECTIVE_EXCHANGE, .whole = MEASURE_RECEIVED,
        .without = "its weights would have no scales",
        .operand = {
            [MEASURE_TRAINED] = READS("trained", .wanted = verify_has_trained),
            [MEASURE_FROZEN] = READS("frozen", .wanted = verify_has_frozen),
            [MEASURE_SCALES] = WRITES("scales", SCALES),
            [MEASURE_RECEIVED] = WRITES("received", .type = TYPE_BYTES, .extent = EXTENT_SCALES,
                .wanted = verify_shares_scales),
        },
        .one = {UNIT_BLOCK, EACH_STEP, plan_gathers_codes}, .check = check_measure,
        .cost = cost_measure,
    },
    /* Makes scales of the largest magnitudes, and all-gathers the shares. Parameters other than
     * weights travel with them. It may also make the codes of this rank's trained part, which all
     * GATHERs of the step then read. */
    [OP_GATHER_SCALES] = {
        .name = "GATHER_SCALES", .lane = LANE_GATHER, .part = PART_COMM, .group = GROUP_GATHER,
        .collective = COLLECTIVE_GATHER, .whole = SCALES_ALL,
        .without = "its weights would have no scales",
        .operand = {
            [SCALES_RECEIVED] = READS("received", .type = TYPE_BYTES, .extent = EXTENT_SCALES,
                .wanted = verify_shares_scales),
            [SCALES_ALL] = CHANGES("scales", SCALES),
            [SCALES_TRAINED] = READS("trained", .wanted = verify_keeps_codes),
            [SCALES_CODES] = WRITES("codes", .type = TYPE_WINDOW, .extent = EXTENT_OWNED,
                .role = ROLE_CODES, .wanted = verify_keeps_codes),
        },
        .one = {UNIT_BLOCK, EACH_STEP, plan_gathers_codes}, .check = check_scales,
        .cost = cost_measure,
    },
    /* GATHER by a codec, part 1: one message of this rank's part, or of the difference to its part
     * of the copy. */
    [OP_ENCODE_PARAMS] = {
        .name = "ENCODE_PARAMS", .lane = LANE_GATHER, .part = PART_NOTHING, .group = GROUP_GATHER,
        .codes_params = true,
        .without = "the other ranks would not get this rank's parameters",
        .operand = {
            [ENCODE_PARAMS_SHARD] = READS("shard", .type = TYPE_MASTER),
            [ENCODE_PARAMS_MESSAGE] = WRITES("message", .type = TYPE_BYTES),
            [ENCODE_PARAMS_COPY] = READS("copy", .type = TYPE_WINDOW, .extent = EXTENT_FIRST,
                .role = ROLE_COPY, .wanted = verify_keeps_copy),
            [ENCODE_PARAMS_DIFFERENCE] = WRITES("difference", .type = TYPE_FP32,
                .extent = EXTENT_FIRST, .wanted = verify_keeps_copy),
            [ENCODE_PARAMS_WORK] = WRITES("work", .type = TYPE_BYTES,
                .wanted = verify_wants_params_work),
        },
        .due = due_messages, .check = check_encode_params, .cost = cost_encode_params,
    },
    [OP_GATHER_MESSAGES] = {
        .name = "GATHER_MESSAGES", .lane = LANE_GATHER, .part = PART_COMM, .group = GROUP_GATHER,
        .collective = COLLECTIVE_GATHER, .whole = GATHER_MESSAGES_ALL, .in_place = true,
        .codes_params = true,
        .without = "this rank would not get the other ranks' parameters",
        .operand = {
            [GATHER_MESSAGES_MINE] = READS("mine", .type = TYPE_BYTES),
            [GATHER_MESSAGES_ALL] = WRITES("all", .type = TYPE_BYTES),
        },
        .due = due_messages, .check = check_gather_messages, .cost = cost_gather,
    },
    /* GATHER by a codec, part 3: writes the window, or with ACCESS_ADD adds differences to
     * plan_unit.copy, rounded to its type. This rank's part is decoded too: all ranks compute with
     * the same parameters. */
    [OP_DECODE_PARAMS] = {
        .name = "DECODE_PARAMS", .lane = LANE_GATHER, .part = PART_NOTHING, .group = GROUP_GATHER,
        .codes_params = true,
        .without = "its copy would miss what the other copies get",
        .operand = {
            [DECODE_PARAMS_MESSAGES] = READS("messages", .type = TYPE_BYTES),
            [DECODE_PARAMS_WHOLE] = SUMS("whole", .type = TYPE_WINDOW),
            [DECODE_PARAMS_WORK] = WRITES("work", .type = TYPE_BYTES,
                .wanted = verify_wants_params_work),
        },
        .due = due_messages, .check = check_decode_params, .cost = cost_decode_params,
    },
    [OP_EMBED] = {
        .name = "EMBED", .lane = LANE_COMPUTE, .part = PART_NOTHING, .params = true,
        .without = "nothing would enter the first block",
        .operand = {
            [EMBED_PARAMS] = PARAMS,
            [EMBED_TOKENS] = READS("tokens", .place = PLACE_OUTSIDE, .type = TYPE_TOKENS),
            [EMBED_OUT] = WRITES("out", .type = TYPE_COMPUTE),
        },
        .one = {UNIT_ROOT, EACH_MICRO}, .value = value_embed, .cost = cost_embed,
    },
    [OP_FORWARD] = {
        .name = "FORWARD", .lane = LANE_COMPUTE, .part = PART_NOTHING, .params = true,
        .fp8 = true,
        .without = "nothing would pass through it",
        .operand = {
            [FORWARD_PARAMS] = PARAMS,
            [FORWARD_IN] = READS("in", .type = TYPE_COMPUTE),
            [FORWARD_OUT] = WRITES("out", .type = TYPE_COMPUTE),
            [FORWARD_WORK] = WRITES("work", .type = TYPE_BYTES),
            [FORWARD_SAVED] = WRITES("saved", .type = TYPE_BYTES, .wanted = verify_wants_saved),
            [FORWARD_SCALES] = READS("scales", SCALES, .wanted = plan_gathers_codes),
        },
        .one = {UNIT_BLOCK, EACH_MICRO, verify_evaluates}, .value = value_forward,
        .flops = flops_block, .cost = cost_block,
    },
    /* The forward pass again, for the activations alone. */
    [OP_RECOMPUTE] = {
        .name = "RECOMPUTE", .lane = LANE_COMPUTE, .part = PART_NOTHING, .params = true,
        .fp8 = true,
        .without = "its activations would be gone",
        .operand = {
            [FORWARD_PARAMS] = PARAMS,
            [FORWARD_IN] = READS("in", .type = TYPE_COMPUTE),
            [FORWARD_WORK] = WRITES("work", .type = TYPE_BYTES),
            [FORWARD_SAVED] = WRITES("saved", .type = TYPE_BYTES),
            [FORWARD_SCALES] = READS("scales", SCALES, .wanted = plan_gathers_codes),
        },
        .one = {UNIT_BLOCK, EACH_MICRO, verify_needs_recompute}, .value = value_recompute,
        .flops = flops_block, .cost = cost_block,
    },
    /* With gradients in PLAN_TRAIN. The first one of a step has ACCESS_WRITE: the loss is zeroed
     * first. */
    [OP_LOSS] = {
        .name = "LOSS", .lane = LANE_COMPUTE, .part = PART_NOTHING, .params = true,
        .without = "the loss would lack a part",
        .operand = {
            [LOSS_PARAMS] = PARAMS,
            [LOSS_IN] = READS("in", .type = TYPE_COMPUTE),
            [LOSS_TOKENS] = READS("tokens", .place = PLACE_OUTSIDE, .type = TYPE_TOKENS),
            [LOSS_SUM] = SUMS("loss", .type = TYPE_BYTES, .role = ROLE_LOSS),
            [LOSS_WORK] = WRITES("work", .type = TYPE_BYTES),
            [LOSS_D] = WRITES("d", .type = TYPE_COMPUTE, .wanted = verify_trains),
            [LOSS_GRADS] = SUMS("grads", GRADS, .wanted = verify_learns),
        },
        .one = {UNIT_HEAD, EACH_MICRO, verify_evaluates}, .value = value_loss, .flops = flops_loss,
        .cost = cost_loss,
    },
    [OP_LOGITS] = {
        .name = "LOGITS", .lane = LANE_COMPUTE, .part = PART_NOTHING, .params = true,
        .without = "there would be no result",
        .operand = {
            [LOGITS_PARAMS] = PARAMS,
            [LOGITS_IN] = READS("in", .type = TYPE_COMPUTE),
            [LOGITS_WORK] = WRITES("work", .type = TYPE_BYTES),
            [LOGITS_OUT] = WRITES("logits", .place = PLACE_OUTSIDE, .type = TYPE_FP32),
        },
        .one = {UNIT_HEAD, EACH_MICRO, verify_generates}, .value = value_logits,
        .flops = flops_logits, .cost = cost_logits,
    },
    /* New tokens after those in the cache (PLAN_GENERATE). */
    [OP_DECODE] = {
        .name = "DECODE", .lane = LANE_COMPUTE, .part = PART_NOTHING, .params = true,
        .without = "nothing would pass through it",
        .operand = {
            [DECODE_PARAMS] = PARAMS,
            [DECODE_IN] = READS("in", .type = TYPE_COMPUTE),
            [DECODE_OUT] = WRITES("out", .type = TYPE_COMPUTE),
            [DECODE_WORK] = WRITES("work", .type = TYPE_BYTES),
            [DECODE_CACHE] = CHANGES("cache", .type = TYPE_BYTES),
        },
        .one = {UNIT_BLOCK, EACH_MICRO, verify_generates}, .check = check_decode,
        .value = value_forward, .flops = flops_block, .cost = cost_block,
    },
    /* The model writes a new gradient up to the last parameter. The executor zeroes the elements
     * after it, layout.used to layout.trained. The same holds for LOSS and EMBED_BACKWARD. */
    [OP_BACKWARD] = {
        .name = "BACKWARD", .lane = LANE_COMPUTE, .part = PART_NOTHING, .params = true,
        .fp8 = true,
        .without = "its gradient would lack a part",
        .operand = {
            [BACKWARD_PARAMS] = PARAMS,
            [BACKWARD_IN] = READS("in", .type = TYPE_COMPUTE),
            [BACKWARD_SAVED] = READS("saved", .type = TYPE_BYTES),
            [BACKWARD_D] = CHANGES("d", .type = TYPE_COMPUTE),
            [BACKWARD_WORK] = WRITES("work", .type = TYPE_BYTES),
            [BACKWARD_GRADS] = SUMS("grads", GRADS, .wanted = verify_learns),
            [BACKWARD_SCALES] = READS("scales", SCALES, .wanted = plan_gathers_codes),
        },
        .one = {UNIT_BLOCK, EACH_MICRO, verify_needs_backward}, .value = value_backward,
        .flops = flops_backward, .cost = cost_backward,
    },
    [OP_EMBED_BACKWARD] = {
        .name = "EMBED_BACKWARD", .lane = LANE_COMPUTE, .part = PART_NOTHING,
        .without = "its gradient would lack a part",
        .operand = {
            [EMBED_BACKWARD_TOKENS] = READS("tokens", .place = PLACE_OUTSIDE, .type = TYPE_TOKENS),
            [EMBED_BACKWARD_D] = READS("d", .type = TYPE_COMPUTE),
            [EMBED_BACKWARD_GRADS] = SUMS("grads", GRADS),
        },
        .one = {UNIT_ROOT, EACH_MICRO, verify_trains_embedding}, .value = value_embed_backward,
        .cost = cost_embed_backward,
    },
    /* The gathered window ends here. The operation itself does nothing. */
    [OP_RELEASE] = {
        .name = "RELEASE", .lane = LANE_COMPUTE, .part = PART_NOTHING, .params = true,
        .operand = {
            [RELEASE_PARAMS] = READS("params", .type = TYPE_WINDOW),
        },
    },
    /* The largest magnitude of what the group is about to encode, for CODEC_NEEDS_MAX: an all-
     * gather of the members' own. */
    [OP_MAGNITUDE] = {
        .name = "MAGNITUDE", .lane = LANE_REDUCE, .part = PART_COMM, .group = GROUP_REDUCE,
        .collective = COLLECTIVE_GATHER, .whole = MAGNITUDE_ALL, .coded = true, .extra = true,
        .without = "ranks would encode by scales of their own",
        .operand = {
            [MAGNITUDE_GRADS] = SPENDS("grads", .place = PLACE_REDUCE, .type = TYPE_GRADIENT,
                .extent = EXTENT_SUMMED),
            [MAGNITUDE_ALL] = WRITES("all", .place = PLACE_REDUCE, .type = TYPE_FP32,
                .extent = EXTENT_MEMBERS),
            [MAGNITUDE_LARGEST] = WRITES("largest", .place = PLACE_REDUCE, .type = TYPE_FP32,
                .extent = EXTENT_ONE),
            [MAGNITUDE_RESIDUAL] = READS("residual", .type = TYPE_BYTES, .extent = EXTENT_RESIDUAL,
                .role = ROLE_RESIDUAL, .wanted = verify_has_residual),
            [MAGNITUDE_WORK] = WRITES("work", .type = TYPE_BYTES,
                .wanted = verify_wants_encode_work),
        },
        .due = due_magnitude, .check = check_magnitude, .value = value_magnitude,
        .cost = cost_magnitude,
    },
    /* One message per destination. ENCODE, EXCHANGE and DECODE_SUM are a reduce-scatter of
     * gradients over the shard group, or of the reduced shard over the replicas. ENCODE is left out
     * if the codec's message is the gradient itself. With ACROSS_NODES there are two of these: over
     * GROUP_NODE as it is, in a block for each node, and then over GROUP_ACROSS. A residual is
     * added to the gradient first, unless MAGNITUDE has added it. It then holds the error of the
     * messages, and the gradient has no valid value. The same holds if the error is measured
     * (policy.sample): for that the end of the work has plan_sample_bytes(). */
    [OP_ENCODE] = {
        .name = "ENCODE", .lane = LANE_REDUCE, .part = PART_NOTHING, .group = GROUP_REDUCE,
        .coded = true,
        .without = "the other ranks would get no messages",
        .operand = {
            [ENCODE_GRADS] = SPENDS("grads", .place = PLACE_REDUCE, .type = TYPE_GRADIENT,
                .extent = EXTENT_SUMMED),
            [ENCODE_MESSAGES] = WRITES("messages", .place = PLACE_ENCODED, .type = TYPE_BYTES,
                .extent = EXTENT_MESSAGES),
            [ENCODE_RESIDUAL] = CHANGES("residual", RESIDUAL, .wanted = verify_has_residual),
            [ENCODE_WORK] = WRITES("work", .type = TYPE_BYTES, .wanted = verify_wants_encode_work),
            [ENCODE_LARGEST] = READS("largest", .place = PLACE_REDUCE, .type = TYPE_FP32,
                .extent = EXTENT_ONE, .wanted = verify_wants_largest),
        },
        .due = due_encode, .check = check_encode, .value = value_encode, .cost = cost_encode,
    },
    /* The moves of residuals that a tier other than the device's memory keeps between their uses.
     * */
    [OP_READ_RESIDUAL] = {
        .name = "READ_RESIDUAL", .lane = LANE_DISK, .part = PART_DISK,
        .without = "what its messages have lost would not come back",
        .operand = {
            [MOVE_FROM] = READS("from", .place = PLACE_DISK, RESIDUAL),
            [MOVE_TO] = WRITES("to", .place = PLACE_HOST, RESIDUAL),
        },
        .one = {UNIT_TRAINED, WHEN_REDUCED, verify_stores_residual}, .value = value_residual,
        .cost = cost_disk,
    },
    [OP_FETCH_RESIDUAL] = {
        .name = "FETCH_RESIDUAL", .lane = LANE_H2D, .part = PART_COPY,
        .without = "what its messages have lost would not come back",
        .operand = {
            [MOVE_FROM] = READS("from", .place = PLACE_HOST, RESIDUAL),
            [MOVE_TO] = WRITES("to", .place = PLACE_DEVICE, RESIDUAL),
        },
        .one = {UNIT_TRAINED, WHEN_REDUCED, verify_moves_residual}, .value = value_residual,
        .cost = cost_copy,
    },
    [OP_SAVE_RESIDUAL] = {
        .name = "SAVE_RESIDUAL", .lane = LANE_D2H, .part = PART_COPY,
        .without = "what its messages lose would be gone",
        .operand = {
            [MOVE_FROM] = READS("from", .place = PLACE_DEVICE, RESIDUAL),
            [MOVE_TO] = WRITES("to", .place = PLACE_HOST, RESIDUAL),
        },
        .one = {UNIT_TRAINED, WHEN_REDUCED, verify_moves_residual}, .value = value_residual,
        .cost = cost_copy,
    },
    [OP_WRITE_RESIDUAL] = {
        .name = "WRITE_RESIDUAL", .lane = LANE_DISK, .part = PART_DISK,
        .without = "what its messages lose would be gone",
        .operand = {
            [MOVE_FROM] = READS("from", .place = PLACE_HOST, RESIDUAL),
            [MOVE_TO] = WRITES("to", .place = PLACE_DISK, RESIDUAL),
        },
        .one = {UNIT_TRAINED, WHEN_REDUCED, verify_stores_residual}, .value = value_residual,
        .cost = cost_disk,
    },
    /* Messages between the members of the group. */
    [OP_EXCHANGE] = {
        .name = "EXCHANGE", .lane = LANE_REDUCE, .part = PART_COMM, .group = GROUP_REDUCE,
        .collective = COLLECTIVE_EXCHANGE, .whole = EXCHANGE_RECEIVED, .coded = true,
        .without = "its gradient would lack the other ranks' part",
        .operand = {
            [EXCHANGE_SENT] = READS("sent", .place = PLACE_REDUCE, .type = TYPE_SENT,
                .extent = EXTENT_MESSAGES),
            [EXCHANGE_RECEIVED] = WRITES("received", .place = PLACE_REDUCE, .type = TYPE_BYTES,
                .extent = EXTENT_MESSAGES),
        },
        .due = due_exchange, .value = value_exchange, .cost = cost_exchange,
    },
    /* The sum of the received messages. A shard with ACCESS_ADD accumulates over micro-batches.
     * With ACCESS_WRITE it may be a part of the gradient that was sent, at its place. */
    [OP_DECODE_SUM] = {
        .name = "DECODE_SUM", .lane = LANE_REDUCE, .part = PART_NOTHING, .group = GROUP_REDUCE,
        .coded = true,
        .without = "its gradient would lack the other ranks' part",
        .operand = {
            [DECODE_SUM_MESSAGES] = READS("messages", .place = PLACE_REDUCE, .type = TYPE_BYTES,
                .extent = EXTENT_MESSAGES),
            [DECODE_SUM_SHARD] = SUMS("shard", .place = PLACE_REDUCE, .type = TYPE_GRADIENT,
                .extent = EXTENT_PART),
            [DECODE_SUM_WORK] = WRITES("work", .type = TYPE_BYTES,
                .wanted = verify_wants_decode_work),
        },
        .due = due_exchange, .check = check_decode_sum, .value = value_decode_sum,
        .cost = cost_decode_sum,
    },
    /* All-gather of gradients over the replicas, or without sharding over the shard group. A piece
     * may be a part of the whole. */
    [OP_GATHER_GRADS] = {
        .name = "GATHER_GRADS", .lane = LANE_REDUCE, .part = PART_COMM, .group = GROUP_REPLICAS,
        .collective = COLLECTIVE_GATHER, .whole = GATHER_GRADS_WHOLE, .in_place = true,
        .without = "it would be updated by a partial gradient",
        .operand = {
            [GATHER_GRADS_PIECE] = READS("piece", .place = PLACE_REDUCE, .type = TYPE_GRADIENT),
            [GATHER_GRADS_WHOLE] = WRITES("whole", .place = PLACE_REDUCE, .type = TYPE_GRADIENT),
        },
        .one = {UNIT_TRAINED, WHEN_REPLICAS_MEET, verify_gathers_grads}, .check = check_gather_grads,
        .value = value_gradient,
        .cost = cost_gather,
    },
    /* This rank's part of the squared global norm. If gradients of several micro-batches add up on
     * the host and metrics are on the device, it runs on the host lane and sums into plan->squares,
     * which METRICS adds. The first one of a step has ACCESS_WRITE: the sum is zeroed first. */
    [OP_SQUARES] = {
        .name = "SQUARES", .lane = LANE_REDUCE, .part = PART_NOTHING,
        .without = "the gradient norm would lack a part",
        .operand = {
            [SQUARES_GRADS] = READS("grads", .place = PLACE_SQUARES, .type = TYPE_GRADIENT,
                .extent = EXTENT_PIECE),
            [SQUARES_SUM] = SUMS("sum", .place = PLACE_SQUARES, .type = TYPE_BYTES,
                .role = ROLE_SQUARES),
        },
        .one = {UNIT_TRAINED, EACH_STEP}, .value = value_squares, .cost = cost_operands,
    },
    /* Exact sums over all ranks, clip factor, finite or not. ACCESS_WRITE: nothing was squared
     * (PLAN_EVAL), so the squares are zeroed first. */
    [OP_METRICS] = {
        .name = "METRICS", .lane = LANE_REDUCE, .part = PART_COMM, .group = GROUP_WORLD,
        .collective = COLLECTIVE_TREE, .whole = METRICS_LOSS,
        .without = "loss and gradient norm would lack the other ranks' part",
        .operand = {
            [METRICS_LOSS] = CHANGES("loss", .place = PLACE_REDUCE, .type = TYPE_BYTES,
                .role = ROLE_SUMMED_LOSS),
            [METRICS_OUT] = SUMS("metrics", .place = PLACE_REDUCE, .type = TYPE_BYTES,
                .role = ROLE_METRICS),
            [METRICS_SQUARES] = READS("squares", .place = PLACE_HOST, .type = TYPE_BYTES,
                .role = ROLE_HOST_SQUARES, .wanted = verify_wants_squares),
        },
        .one = {UNIT_NONE, EACH_STEP, verify_evaluates}, .check = check_metrics, .cost = cost_tree,
    },
    /* For an optimizer of whole matrices: the momentum of this rank's range, in the compute type.
     * */
    [OP_DIRECTION] = {
        .name = "DIRECTION", .lane = LANE_HOST, .part = PART_UPDATE, .updates = true,
        .without = "its matrices would be updated without a direction",
        .operand = {
            [DIRECTION_METRICS] = READS("metrics", .place = PLACE_REDUCE, .type = TYPE_BYTES,
                .role = ROLE_METRICS),
            [DIRECTION_GRADS] = READS("grads", .place = PLACE_STATE, .type = TYPE_GRADIENT,
                .extent = EXTENT_OWNED),
            [DIRECTION_OUT] = WRITES("direction", .type = TYPE_COMPUTE, .extent = EXTENT_OWNED),
            [DIRECTION_STATE] = STATE(CHANGES, "momentum", PLACE_STATE, ROLE_STATE, 0),
        },
        .one = {UNIT_TRAINED, EACH_STEP, verify_has_matrices}, .value = value_direction,
        .cost = cost_operands,
    },
    /* All-gather of the direction over the shard group, because UPDATE needs whole matrices. */
    [OP_GATHER_DIRECTION] = {
        .name = "GATHER_DIRECTION", .lane = LANE_REDUCE, .part = PART_COMM, .group = GROUP_REDUCE,
        .collective = COLLECTIVE_GATHER, .whole = GATHER_DIRECTION_WHOLE, .in_place = true,
        .without = "its matrices would be updated by a part of their direction",
        .operand = {
            [GATHER_DIRECTION_PIECE] = READS("piece", .type = TYPE_COMPUTE, .extent = EXTENT_OWNED),
            [GATHER_DIRECTION_WHOLE] = WRITES("whole", .type = TYPE_COMPUTE,
                .extent = EXTENT_TRAINED),
        },
        .one = {UNIT_TRAINED, EACH_STEP, verify_gathers_matrices}, .check = check_gather_direction,
        .value = value_gather_direction, .cost = cost_gather,
    },
    /* The optimizer's step. Without METRICS it waits for no other unit. If only some units are on
     * the host, those of the others are on the reduce lane, and their gradients are reduced in
     * staging buffers of their own. Of a speculative unit (policy.timing) it changes masters and
     * states by the gradient of the step before, whose norm is known by now. Then it writes the
     * working copy that the gradient of this step leads to if the step is not clipped. If the step
     * before was clipped, it leaves the working copy to REPAIR. The gradient is kept for the next
     * step: grads and pending exchange their memory after each step. exec_drain() changes masters
     * and states by the gradients that still wait. */
    [OP_UPDATE] = {
        .name = "UPDATE", .lane = LANE_HOST, .part = PART_UPDATE, .updates = true,
        .without = "its parameters would never change",
        .operand = {
            [UPDATE_METRICS] = READS("metrics", .place = PLACE_REDUCE, .type = TYPE_BYTES,
                .role = ROLE_METRICS, .wanted = verify_wants_metrics),
            [UPDATE_GRADS] = READS("grads", .place = PLACE_STATE, .type = TYPE_GRADIENT,
                .extent = EXTENT_OWNED),
            [UPDATE_MASTER] = CHANGES("master", .place = PLACE_STATE, .type = TYPE_MASTER,
                .extent = EXTENT_OWNED, .role = ROLE_MASTER),
            [UPDATE_WORKING] = WRITES("working", .place = PLACE_WORKING, .type = TYPE_COMPUTE,
                .extent = EXTENT_OWNED, .role = ROLE_WORKING, .wanted = verify_has_working),
            [UPDATE_DIRECTION] = CHANGES("direction", .type = TYPE_COMPUTE,
                .extent = EXTENT_TRAINED, .wanted = verify_has_matrices),
            [UPDATE_WORK] = WRITES("work", .type = TYPE_BYTES, .wanted = verify_has_matrices),
            [UPDATE_PENDING] = CHANGES("pending", .place = PLACE_STATE, .type = TYPE_GRADIENT,
                .extent = EXTENT_OWNED, .role = ROLE_PENDING, .wanted = verify_speculates),
            [UPDATE_STATE] = STATE(CHANGES, "state 1", PLACE_STATE, ROLE_STATE, 0),
            [UPDATE_STATE + 1] = STATE(CHANGES, "state 2", PLACE_STATE, ROLE_STATE, 1),
            [UPDATE_STATE + 2] = STATE(CHANGES, "state 3", PLACE_STATE, ROLE_STATE, 2),
        },
        .one = {UNIT_TRAINED, EACH_STEP}, .check = check_update, .value = value_update,
        .cost = cost_update,
    },
    /* After METRICS, of a speculative unit: writes the working copy if UPDATE has not, or if the
     * gradient is clipped or not finite. */
    [OP_REPAIR] = {
        .name = "REPAIR", .lane = LANE_HOST, .part = PART_UPDATE, .updates = true,
        .without = "a step that is clipped would leave parameters that are not",
        .operand = {
            [REPAIR_METRICS] = READS("metrics", .place = PLACE_REDUCE, .type = TYPE_BYTES,
                .role = ROLE_METRICS),
            [REPAIR_GRADS] = READS("grads", .place = PLACE_STATE, .type = TYPE_GRADIENT,
                .extent = EXTENT_OWNED),
            [REPAIR_MASTER] = READS("master", .place = PLACE_STATE, .type = TYPE_MASTER,
                .extent = EXTENT_OWNED, .role = ROLE_MASTER),
            [REPAIR_WORKING] = CHANGES("working", .place = PLACE_WORKING, .type = TYPE_COMPUTE,
                .extent = EXTENT_OWNED, .role = ROLE_WORKING),
            [REPAIR_STATE] = STATE(READS, "state 1", PLACE_STATE, ROLE_STATE, 0),
            [REPAIR_STATE + 1] = STATE(READS, "state 2", PLACE_STATE, ROLE_STATE, 1),
        },
        .one = {UNIT_TRAINED, EACH_STEP, verify_speculates}, .check = check_repair,
        .value = value_repair, .cost = cost_repair,
    },
    /* Parameters of masters in host memory to the device: a unit's window, or this rank's part of
     * it. */
    [OP_FETCH] = {
        .name = "FETCH", .lane = LANE_H2D, .part = PART_COPY,
        .operand = {
            [MOVE_FROM] = READS("from", .place = PLACE_SOURCE),
            [MOVE_TO] = WRITES("to"),
        },
        .cost = cost_copy,
    },
    /* All members of the shard group have written the copy that they share. */
    [OP_PUBLISH] = {
        .name = "PUBLISH", .lane = LANE_GATHER, .part = PART_COMM, .group = GROUP_GATHER,
        .collective = COLLECTIVE_BARRIER, .whole = MOVE_TO, .in_place = true,
        .without = "ranks would compute with parameters that others are still writing",
        .operand = {
            [MOVE_FROM] = READS("mine", .place = PLACE_SHARED, .role = ROLE_WORKING),
            [MOVE_TO] = WRITES("whole", .place = PLACE_SHARED, .type = TYPE_COMPUTE),
        },
        .one = {UNIT_TRAINED, EACH_STEP, verify_shares_copy}, .check = check_publish,
        .value = value_publish, .cost = cost_barrier,
    },
    /* The moves of what a block keeps in another tier for its backward pass: its input, or all
     * activations. */
    [OP_SAVE_ACT] = {
        .name = "SAVE_ACT", .lane = LANE_D2H, .part = PART_COPY,
        .without = "what its backward pass reads would be gone",
        .operand = {
            [MOVE_FROM] = READS("from"),
            [MOVE_TO] = WRITES("to", .place = PLACE_HOST, .type = TYPE_FIRST,
                .extent = EXTENT_FIRST),
        },
        .due = due_kept_on_host, .value = value_kept, .cost = cost_copy,
    },
    [OP_WRITE_ACT] = {
        .name = "WRITE_ACT", .lane = LANE_DISK, .part = PART_DISK,
        .without = "what its backward pass reads would be gone",
        .operand = {
            [MOVE_FROM] = READS("from", .place = PLACE_HOST),
            [MOVE_TO] = WRITES("to", .place = PLACE_DISK, .type = TYPE_FIRST,
                .extent = EXTENT_FIRST),
        },
        .due = due_kept_on_disk, .value = value_kept, .cost = cost_disk,
    },
    [OP_READ_ACT] = {
        .name = "READ_ACT", .lane = LANE_DISK, .part = PART_DISK,
        .without = "what its backward pass reads would not come back",
        .operand = {
            [MOVE_FROM] = READS("from", .place = PLACE_DISK),
            [MOVE_TO] = WRITES("to", .place = PLACE_HOST, .type = TYPE_FIRST,
                .extent = EXTENT_FIRST),
        },
        .due = due_kept_on_disk, .value = value_kept, .cost = cost_disk,
    },
    [OP_FETCH_ACT] = {
        .name = "FETCH_ACT", .lane = LANE_H2D, .part = PART_COPY,
        .without = "what its backward pass reads would not come back",
        .operand = {
            [MOVE_FROM] = READS("from", .place = PLACE_HOST),
            [MOVE_TO] = WRITES("to", .type = TYPE_FIRST, .extent = EXTENT_FIRST),
        },
        .due = due_kept_on_host, .value = value_kept, .cost = cost_copy,
    },
    /* A gradient to the host: the reduced shard, or the whole unit. */
    [OP_FETCH_GRAD] = {
        .name = "FETCH_GRAD", .lane = LANE_D2H, .part = PART_COPY,
        .without = "its gradient would not come to the host",
        .operand = {
            [MOVE_FROM] = READS("from", .type = TYPE_GRADIENT),
            [MOVE_TO] = WRITES("to", .place = PLACE_LANDED, .type = TYPE_GRADIENT,
                .extent = EXTENT_FIRST),
        },
        .one = {UNIT_TRAINED, WHEN_REDUCED, verify_on_host}, .value = value_gradient,
        .cost = cost_copy,
    },
    [OP_ACCUMULATE] = {
        .name = "ACCUMULATE", .lane = LANE_HOST, .part = PART_UPDATE,
        .without = "its gradient would lack a part",
        .operand = {
            [ACCUMULATE_LANDED] = READS("landed", .place = PLACE_HOST, .type = TYPE_GRADIENT),
            [ACCUMULATE_GRADS] = CHANGES("grads", .place = PLACE_HOST, .type = TYPE_GRADIENT,
                .extent = EXTENT_FIRST),
        },
        .one = {UNIT_TRAINED, EACH_LATER_MICRO, verify_sums_on_device}, .value = value_accumulate,
        .cost = cost_operands,
    },
    /* Optimizer state from NVMe. */
    [OP_READ_STATE] = {
        .name = "READ_STATE", .lane = LANE_DISK, .part = PART_DISK,
        .without = "it would be updated without its state",
        .operand = {
            [STATE_FROM] = STATE(READS, "from 1", PLACE_DISK, ROLE_STORED_STATE, 0),
            [STATE_FROM + 1] = STATE(READS, "from 2", PLACE_DISK, ROLE_STORED_STATE, 1),
            [STATE_TO] = STATE(WRITES, "to 1", PLACE_HOST, ROLE_STATE, 0),
            [STATE_TO + 1] = STATE(WRITES, "to 2", PLACE_HOST, ROLE_STATE, 1),
        },
        .one = {UNIT_TRAINED, EACH_STEP, verify_moves_state}, .value = value_read_state,
        .cost = cost_disk,
    },
    [OP_WRITE_STATE] = {
        .name = "WRITE_STATE", .lane = LANE_DISK, .part = PART_DISK,
        .without = "its state would never change",
        .operand = {
            [STATE_FROM] = STATE(READS, "from 1", PLACE_HOST, ROLE_STATE, 0),
            [STATE_FROM + 1] = STATE(READS, "from 2", PLACE_HOST, ROLE_STATE, 1),
            [STATE_TO] = STATE(WRITES, "to 1", PLACE_DISK, ROLE_STORED_STATE, 0),
            [STATE_TO + 1] = STATE(WRITES, "to 2", PLACE_DISK, ROLE_STORED_STATE, 1),
        },
        .one = {UNIT_TRAINED, EACH_STEP, verify_moves_state}, .value = value_write_state,
        .cost = cost_disk,
    },
    /* The loss to the host, where METRICS sums it. */
    [OP_FETCH_LOSS] = {
        .name = "FETCH_LOSS", .lane = LANE_D2H, .part = PART_COPY,
        .without = "the loss would not come to the host",
        .operand = {
            [MOVE_FROM] = READS("from", .role = ROLE_LOSS),
            [MOVE_TO] = WRITES("to", .place = PLACE_HOST, .type = TYPE_FIRST,
                .extent = EXTENT_FIRST, .role = ROLE_LOSS_HOST),
        },
        .one = {UNIT_NONE, EACH_STEP, verify_loss_on_host}, .cost = cost_copy,
    },
    /* EXCHANGE and DECODE_SUM in one, for messages in shared memory of a shard group: each member
     * adds up the part that it owns. The transient arena of TIER_SHARED has a region for each
     * member, with the same offsets. Other members read it only during this operation, which waits
     * for all members at its beginning and end. */
    [OP_SUM_SHARED] = {
        .name = "SUM_SHARED", .lane = LANE_REDUCE, .part = PART_COMM, .group = GROUP_REDUCE,
        .collective = COLLECTIVE_BARRIER, .whole = SUM_SHARED_SENT, .coded = true,
        .without = "its gradient would lack the other ranks' part",
        .operand = {
            [SUM_SHARED_SENT] = READS("sent", .place = PLACE_SHARED, .type = TYPE_SENT,
                .extent = EXTENT_MESSAGES),
            [SUM_SHARED_SHARD] = SUMS("shard", .place = PLACE_HOST, .type = TYPE_GRADIENT,
                .extent = EXTENT_PART),
        },
        .one = {UNIT_TRAINED, WHEN_REDUCED, verify_exchanges_shared}, .value = value_sum_shared,
        .cost = cost_sum_shared,
    },
};
