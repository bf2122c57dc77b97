/* Parameters that a codec gathers: messages instead of shards, into a window, or as differences
 * into a copy of the unit that each rank keeps. */
#include <stdio.h>

#include "plan/builder.h"

bool build_encodes_params(const struct builder *b, int u)
{
  return b->plan->policy[u].weights.ops != NULL;
}

void build_copy(struct builder *b, int u)
{
  struct plan *plan = b->plan;
  struct unit_buffers *unit = &b->unit[u];
  plan->copy[u] = plan->copy_mine[u] = -1;
  if (!build_encodes_params(b, u) || !plan->policy[u].difference)
    return;
  unit->params = plan->copy[u] = build_persistent(b, "copy", u, TIER_DEVICE, PURPOSE_WORKING,
                                                  b->element, plan->layout[u].flat);
  plan->buffer[unit->params].scope = SCOPE_GROUP;
  unit->trained = build_part(b, "trained_copy", u, unit->params, false);
  if (unit->trained >= 0)
    plan->copy_mine[u] = build_mine(b, "copy_mine", unit->trained, build_length(plan->owned[u]));
}

/* Memory that no other lane uses, because all blocks use it one after the other. So a message can
 * travel while the window that it is decoded into is still in use. */
static int messages_of(struct builder *b, int u, int64_t bytes)
{
  char full[32];
  const bool block = u > 0 && u <= b->model->blocks;
  if (block && b->messages < 0)
    b->messages = build_bytes(b, "messages", -1, TIER_DEVICE, PURPOSE_STAGING, bytes);
  if (!block || b->plan->buffer[b->messages].bytes != bytes)
    return build_bytes(b, "messages", u, TIER_DEVICE, PURPOSE_STAGING, bytes);
  snprintf(full, sizeof full, "messages.%s", b->model->unit[u].name);
  return build_view(b, full, b->messages, 0, bytes);
}

/* It is next to the messages. */
static int work_of(struct builder *b, int u, int64_t elements, int messages)
{
  const int64_t bytes = codec_work(&b->plan->policy[u].weights, elements, messages);
  return bytes > 0 ? build_bytes(b, "codec_work", u, TIER_DEVICE, PURPOSE_STAGING, bytes) : -1;
}

static void encode(struct builder *b, int u, int micro, int source, int message)
{
  const int64_t elements = b->plan->buffer[source].elements;
  const int copy = b->plan->copy[u], work = work_of(b, u, elements, 1);
  int difference = -1;
  if (copy >= 0)
    difference =
        build_transient(b, "difference", u, TIER_DEVICE, PURPOSE_STAGING, DTYPE_F32, elements);
  struct instr *encode = build_move(b, OP_ENCODE_PARAMS, u, micro, source, message);
  if (copy >= 0) {
    build_use(encode, ENCODE_PARAMS_COPY, b->plan->copy_mine[u]);
    build_use(encode, ENCODE_PARAMS_DIFFERENCE, difference);
  }
  if (work >= 0)
    build_use(encode, ENCODE_PARAMS_WORK, work);
}

void build_coded_gather(struct builder *b, int u, int micro, int source, int whole)
{
  const struct codec *codec = &b->plan->policy[u].weights;
  const int64_t elements = b->plan->buffer[source].elements,
                bytes = codec->ops->bytes(codec, elements);
  const int messages = messages_of(b, u, b->group * bytes);
  b->plan->buffer[messages].unit = u; /* they are its parameters */
  const int message = build_mine(b, "message", messages, bytes);
  encode(b, u, micro, source, message);
  build_move(b, OP_GATHER_MESSAGES, u, micro, message, messages);
  const int work = work_of(b, u, elements, b->group);
  struct instr *decode = build_emit(b, OP_DECODE_PARAMS, u, micro);
  build_use(decode, DECODE_PARAMS_MESSAGES, messages);
  build_sum(decode, DECODE_PARAMS_WHOLE, whole, b->plan->copy[u] >= 0);
  if (work >= 0)
    build_use(decode, DECODE_PARAMS_WORK, work);
}
