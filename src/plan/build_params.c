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
  const bool block = b->model->unit[u].block >= 0;
  if (block && b->messages < 0)
    b->messages = build_bytes(b, "messages", -1, TIER_DEVICE, PURPOSE_STAGING, bytes);
  const int messages = !block || b->plan->buffer[b->messages].bytes != bytes
                           ? build_bytes(b, "messages", u, TIER_DEVICE, PURPOSE_STAGING, bytes)
                           : build_view(b, "messages", u, b->messages, 0, bytes);
  b->plan->buffer[messages].unit = u; /* they are its parameters */
  return messages;
}

/* Work space of a codec, needed together with the messages. Only policy.weights needs it. */
static int work_of(struct builder *b, int u, int64_t elements, int messages)
{
  const struct codec *codec = &b->plan->unit[u].policy.weights;
  const int64_t bytes = codec->ops ? codec_work_each(codec, elements, messages) : 0;
  return bytes > 0 ? build_bytes(b, "codec_work", u, TIER_DEVICE, PURPOSE_STAGING, bytes) : -1;
}

static void encode(struct builder *b, int u, int micro, int source, int message)
{
  const int64_t elements = b->plan->buffer[source].elements;
  const int alone = work_of(b, u, elements, 1);
  int difference = -1;
  if (b->plan->unit[u].copy >= 0)
    difference =
        build_transient(b, "difference", u, TIER_DEVICE, PURPOSE_STAGING, DTYPE_F32, elements);
  BUILD(b, OP_ENCODE_PARAMS, u, micro, source, message, b->plan->unit[u].copy_mine, difference,
        alone);
}

/* A frozen shard may be a message already. Without shards, it is the message of the whole part. */
void build_coded_gather(struct builder *b, int u, int micro, int source, int whole)
{
  const bool kept = b->plan->buffer[source].dtype == DTYPE_U8;
  const struct codec codec = kept ? b->plan->unit[u].policy.base : b->plan->unit[u].policy.weights;
  const int members = b->shards ? b->group : 1;
  const int64_t elements = b->plan->buffer[whole].elements / members,
                bytes = kept ? plan_message_bytes(b->plan, u) : codec.ops->bytes(&codec, elements);
  const int messages = members > 1 ? messages_of(b, u, members * bytes) : source,
            message = kept ? source : build_mine(b, "message", messages, bytes);
  if (!kept)
    encode(b, u, micro, source, message);
  if (members > 1)
    BUILD(b, OP_GATHER_MESSAGES, u, micro, message, messages)->attr.codec = codec;
  const int work = work_of(b, u, elements, members);
  struct instr *decode = BUILD(b, OP_DECODE_PARAMS, u, micro, messages, whole, work);
  decode->attr.codec = codec;
  if (!b->shards)
    decode->attr.group = MESH_NONE;
  build_sum(decode, DECODE_PARAMS_WHOLE, whole, b->plan->unit[u].copy >= 0);
}
