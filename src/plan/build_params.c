/* Parameters that a codec gathers: messages instead of shards, into a window, or as differences
 * into a copy of the unit that each rank keeps. */
#include "plan/builder.h"

bool build_encodes_params(const struct builder *b, int u)
{
  return b->plan->unit[u].policy.weights.ops != NULL;
}

bool build_encodes(const struct builder *b, int u, int shard)
{
  return build_encodes_params(b, u) && b->plan->buffer[shard].dtype == DTYPE_F32;
}

void build_copy(struct builder *b, int u)
{
  struct plan *plan = b->plan;
  struct unit_buffers *unit = &b->unit[u];
  if (!build_encodes_params(b, u) || !plan->unit[u].policy.difference)
    return;
  unit->params = plan->unit[u].copy = build_persistent(b, "copy", u, TIER_DEVICE, PURPOSE_WORKING,
                                                       b->element, plan->unit[u].layout.flat);
  unit->trained = build_part(b, "trained_copy", u, unit->params, false);
  if (unit->trained >= 0)
    plan->unit[u].copy_mine =
        build_mine(b, "copy_mine", unit->trained, build_length(plan->unit[u].owned));
}

/* Memory that no other lane uses, because all blocks use it one after the other. So a message can
 * travel while the window that it is decoded into is still in use. */
static int messages_of(struct builder *b, int u, int64_t bytes)
{
  const bool block = model_block_of(b->model, u) >= 0;
  if (block && b->messages < 0)
    b->messages = build_bytes(b, "messages", -1, TIER_DEVICE, PURPOSE_STAGING, bytes);
  if (!block || b->plan->buffer[b->messages].bytes != bytes)
    return build_bytes(b, "messages", u, TIER_DEVICE, PURPOSE_STAGING, bytes);
  return build_view(b, "messages", u, b->messages, 0, bytes);
}

/* It is next to the messages. */
static int work_of(struct builder *b, int u, int64_t elements, int messages)
{
  const int64_t bytes = codec_work(&b->plan->unit[u].policy.weights, elements, messages);
  return bytes > 0 ? build_bytes(b, "codec_work", u, TIER_DEVICE, PURPOSE_STAGING, bytes) : -1;
}

void build_coded_gather(struct builder *b, int u, int micro, int source, int whole)
{
  const struct codec *codec = &b->plan->unit[u].policy.weights;
  const int64_t elements = b->plan->buffer[source].elements,
                bytes = codec->ops->bytes(codec, elements);
  const int messages = messages_of(b, u, b->group * bytes);
  b->plan->buffer[messages].unit = u; /* they are its parameters */
  const int message = build_mine(b, "message", messages, bytes), alone = work_of(b, u, elements, 1);
  int difference = -1;
  if (b->plan->unit[u].copy >= 0)
    difference =
        build_transient(b, "difference", u, TIER_DEVICE, PURPOSE_STAGING, DTYPE_F32, elements);
  BUILD(b, OP_ENCODE_PARAMS, u, micro, source, message, b->plan->unit[u].copy_mine, difference,
        alone);
  BUILD(b, OP_GATHER_MESSAGES, u, micro, message, messages);
  const int work = work_of(b, u, elements, b->group);
  struct instr *decode = BUILD(b, OP_DECODE_PARAMS, u, micro, messages, whole, work);
  build_sum(decode, DECODE_PARAMS_WHOLE, whole, b->plan->unit[u].copy >= 0);
}
