/* Messages of codecs between ranks: gradients with error feedback, and parameters. */
#include "base/hash.h"
#include "compress/compress.h"
#include "exec/handlers.h"
#include "layout/mesh.h"

/* The messages of a unit in a step: parameters without and with a group, gradients over the shard
 * group, over replicas, and between nodes. */
static int64_t sum_of(const struct call *call)
{
  const mesh_set group = call->instr->attr.group;
  if (call->instr->lane == LANE_GATHER)
    return group != MESH_NONE;
  return group == MESH_REPLICA ? 3 : group == MESH_ACROSS ? 5 : 2;
}

/* Random bits are new in each step, and different on each rank, unless messages of a sum must share
 * them. */
static uint64_t codec_seed(const struct call *call)
{
  const struct attributes *attr = &call->instr->attr;
  const bool common = attr->codec.ops->traits & CODEC_COMMON_SEED;
  const int64_t word[] = {(int64_t)attr->seed, call->args->step,
                          sum_of(call),        call->instr->unit,
                          call->instr->micro,  common ? -1 : call->exec->plan->input.rank};
  return hash_bytes(HASH_START, word, sizeof word);
}

/* One part per member of the group, of so many elements each. */
static struct codec_pass pass_of(const struct call *call, int64_t elements, void *work)
{
  return (struct codec_pass){.lane = call->lane,
                             .n = elements,
                             .parts = comm_group_size(group_of(call)),
                             .seed = codec_seed(call),
                             .work = work};
}

/* Elements of this rank's own part, so that all ranks together measure all parts. */
struct sample {
  int64_t n;
  const float *x; /* in the gradient */
  float *copy;
  struct plan_sample *sums;
};

static struct sample sample_of(const struct call *call, const struct codec_pass *pass)
{
  const int64_t n = plan_sampled(pass->n),
                before = use_bytes(call, ENCODE_WORK) - plan_sample_bytes(pass->n);
  char *place = (char *)use(call, ENCODE_WORK) + before / 256 * 256;
  return (struct sample){.n = n,
                         .x = (float *)use(call, ENCODE_GRADS) +
                              comm_group_index(group_of(call)) * pass->n,
                         .copy = (float *)(place + sizeof(struct plan_sample)),
                         .sums = (struct plan_sample *)place};
}

/* The gradient now holds the error of the messages. The copy minus this error is the decoded
 * message. */
static enum status measure_sample(const struct call *call, const struct codec_pass *pass,
                                  const struct sample *s)
{
  const struct device_ops *ops = call->lane->device->ops;
  struct plan_sample *out = call->exec->span[call->index].sample;
  enum status status = ops->zero(call->lane, s->sums, sizeof *s->sums);
  status = status ?: ops->sum_squares(call->lane, s->n, s->copy, &s->sums->elements);
  status = status ?: ops->sum_squares(call->lane, s->n, s->x, &s->sums->lost);
  status = status ?: ops->subtract(call->lane, s->n, DTYPE_F32, s->x, s->copy);
  status = status ?: ops->sum_squares(call->lane, s->n, s->copy, &s->sums->decoded);
  if (!status && use(call, ENCODE_RESIDUAL))
    status = ops->sum_squares(call->lane, pass->n * pass->parts, use(call, ENCODE_GRADS),
                              &s->sums->residual);
  return status ? status : ops->copy(call->lane, out, s->sums, sizeof *out);
}

/* Messages of x. If the error is kept or measured, x becomes the error. */
static enum status encode(const struct call *call, const struct codec_pass *pass)
{
  const struct codec *codec = &call->instr->attr.codec;
  const int64_t every = call->instr->attr.sample;
  const bool measures = every > 0 && (call->args->step + 1) % every == 0; /* results count from 1 */
  float *x = use(call, ENCODE_GRADS);
  void *messages = use(call, ENCODE_MESSAGES);
  struct sample sample = {0};
  enum status status = STATUS_OK;
  if (measures) {
    sample = sample_of(call, pass);
    status = call->lane->device->ops->copy(call->lane, sample.copy, sample.x,
                                           (size_t)sample.n * sizeof *sample.x);
  }
  status = status ?: codec->ops->encode(codec, pass, x, messages);
  if (!status && (measures || use(call, ENCODE_RESIDUAL)))
    status = codec->ops->decode(codec, pass, messages, codec->ops->bytes(codec, pass->n),
                                QUANT_SUBTRACT, DTYPE_F32, x);
  return status || !measures ? status : measure_sample(call, pass, &sample);
}

/* The residual of earlier messages, added to the gradient. */
static enum status add_residual(const struct call *call, float *x, int64_t n, int residual,
                                void *work)
{
  const struct codec *lost = &call->instr->attr.residual;
  const struct codec_pass whole = {.lane = call->lane, .n = n, .parts = 1, .work = work};
  return lost->ops->decode(lost, &whole, use(call, residual), use_bytes(call, residual), QUANT_ADD,
                           DTYPE_F32, x);
}

enum status run_magnitude(const struct call *call)
{
  const struct device_ops *ops = call->lane->device->ops;
  struct comm_group *group = group_of(call);
  const int64_t n = buffer_of(call, MAGNITUDE_GRADS)->elements;
  float *x = use(call, MAGNITUDE_GRADS), *all = use(call, MAGNITUDE_ALL),
        *mine = all + comm_group_index(group);
  enum status status = STATUS_OK;
  if (use(call, MAGNITUDE_RESIDUAL))
    status = add_residual(call, x, n, MAGNITUDE_RESIDUAL, use(call, MAGNITUDE_WORK));
  status = status ?: ops->max_magnitude(call->lane, n, x, mine);
  status = status ?: comm_all_gather(group, call->lane, mine, sizeof *mine, false, all);
  return status ? status
                : ops->max_magnitude(call->lane, comm_group_size(group), all,
                                     use(call, MAGNITUDE_LARGEST));
}

/* Error feedback: Seide et al. 2014; Karimireddy et al. 2019, arXiv:1901.09847. The residual is the
 * gradient minus its messages. MAGNITUDE has added it already. */
enum status run_encode(const struct call *call)
{
  const struct codec *lost = &call->instr->attr.residual;
  const int64_t n = buffer_of(call, ENCODE_GRADS)->elements;
  float *x = use(call, ENCODE_GRADS);
  void *residual = use(call, ENCODE_RESIDUAL);
  struct codec_pass pass =
      pass_of(call, n / comm_group_size(group_of(call)), use(call, ENCODE_WORK));
  pass.largest = use(call, ENCODE_LARGEST);
  struct codec_pass whole = pass;
  whole.n = n;
  whole.parts = 1;
  enum status status = STATUS_OK;
  if (residual && !pass.largest)
    status = add_residual(call, x, n, ENCODE_RESIDUAL, pass.work);
  status = status ?: encode(call, &pass);
  return status || !residual ? status : lost->ops->encode(lost, &whole, x, residual);
}

/* All gathers of a step send the same messages. Replicas of a shard do, too. */
static uint64_t params_seed(const struct call *call)
{
  const struct attributes *attr = &call->instr->attr;
  const struct comm_group *group = group_of(call);
  const bool common = attr->codec.ops->traits & CODEC_COMMON_SEED;
  const int64_t word[] = {(int64_t)attr->seed, call->args->update, sum_of(call), call->instr->unit,
                          common || !group ? -1 : comm_group_index(group)};
  return hash_bytes(HASH_START, word, sizeof word);
}

/* The shard minus the copy: the difference that the other ranks do not have yet. */
static enum status subtract_copy(const struct call *call)
{
  const struct device_ops *ops = call->lane->device->ops;
  const struct plan_buffer *copy = buffer_of(call, ENCODE_PARAMS_COPY);
  float *difference = use(call, ENCODE_PARAMS_DIFFERENCE);
  return ops->copy(call->lane, difference, use(call, ENCODE_PARAMS_SHARD),
                   (size_t)use_bytes(call, ENCODE_PARAMS_SHARD))
             ?: ops->subtract(call->lane, copy->elements, copy->dtype,
                              use(call, ENCODE_PARAMS_COPY), difference);
}

enum status run_encode_params(const struct call *call)
{
  const struct codec *codec = &call->instr->attr.codec;
  const struct codec_pass pass = {.lane = call->lane,
                                  .n = buffer_of(call, ENCODE_PARAMS_SHARD)->elements,
                                  .parts = 1,
                                  .seed = params_seed(call),
                                  .work = use(call, ENCODE_PARAMS_WORK)};
  const bool differs = use(call, ENCODE_PARAMS_DIFFERENCE) != NULL;
  const enum status status = differs ? subtract_copy(call) : STATUS_OK;
  return status ? status
                : codec->ops->encode(
                      codec, &pass,
                      use(call, differs ? ENCODE_PARAMS_DIFFERENCE : ENCODE_PARAMS_SHARD),
                      use(call, ENCODE_PARAMS_MESSAGE));
}

_Static_assert((int)GATHER_GRADS_WHOLE == (int)GATHER_MESSAGES_ALL &&
                   (int)GATHER_DIRECTION_WHOLE == (int)GATHER_MESSAGES_ALL,
               "the part comes first, then the whole");

/* Gathers messages, gradients or directions. */
enum status run_all_gather(const struct call *call)
{
  return comm_all_gather(group_of(call), call->lane, use(call, GATHER_MESSAGES_MINE),
                         use_bytes(call, GATHER_MESSAGES_MINE), plan_is_varying(call->instr),
                         use(call, GATHER_MESSAGES_ALL));
}

/* A codec may turn zeros into other numbers. Zeros between parameters must stay, because masters
 * and copies are encoded with them. `part`: elements [begin, end) of the trained part. */
static enum status zero_gaps(const struct call *call, char *part, int64_t begin, int64_t end,
                             int64_t size)
{
  const struct layout_unit *layout = &call->exec->plan->unit[call->instr->unit].layout;
  enum status status = STATUS_OK;
  int64_t at = 0;
  for (int p = 0; p <= layout->params && !status; p++) {
    if (p < layout->params && layout->frozen[p])
      continue;
    const int64_t next = p < layout->params ? layout->offset[p] : layout->trained,
                  from = at > begin ? at : begin, to = next < end ? next : end;
    if (from < to)
      status = call->lane->device->ops->zero(call->lane, part + (from - begin) * size,
                                             (size_t)((to - from) * size));
    at = p < layout->params ? next + layout->elements[p] : next;
  }
  return status;
}

/* Whether messages are of a unit's frozen part, which is kept as messages. */
static bool holds_frozen(const struct call *call)
{
  const struct plan_unit *unit = &call->exec->plan->unit[call->instr->unit];
  const struct plan_buffer *whole = buffer_of(call, DECODE_PARAMS_WHOLE);
  const int64_t begin = whole->parent < 0 ? 0 : whole->parent_offset;
  return unit->policy.frozen == DTYPE_U8 &&
         begin >= unit->layout.trained * (int64_t)dtype_size(whole->dtype);
}

enum status run_decode_params(const struct call *call)
{
  const struct codec *codec = &call->instr->attr.codec;
  const struct plan_buffer *whole = buffer_of(call, DECODE_PARAMS_WHOLE);
  const struct comm_group *group = group_of(call);
  const int members = group ? comm_group_size(group) : 1;
  const struct codec_pass pass = {.lane = call->lane,
                                  .n = whole->elements / members,
                                  .parts = members,
                                  .seed = params_seed(call),
                                  .work = use(call, DECODE_PARAMS_WORK)};
  const bool copies = adds(call, DECODE_PARAMS_WHOLE);
  if (holds_frozen(call))
    return plan_message_decode(call->exec->plan, call->instr->unit, call->lane, members,
                               use(call, DECODE_PARAMS_MESSAGES), whole->dtype,
                               use(call, DECODE_PARAMS_WHOLE));
  const enum status status = codec->ops->decode(
      codec, &pass, use(call, DECODE_PARAMS_MESSAGES), codec->ops->bytes(codec, pass.n),
      copies ? QUANT_ADD_EACH : QUANT_SET_EACH, whole->dtype, use(call, DECODE_PARAMS_WHOLE));
  return status || !copies ? status
                           : zero_gaps(call, use(call, DECODE_PARAMS_WHOLE), 0, whole->elements,
                                       (int64_t)dtype_size(whole->dtype));
}

enum status run_exchange(const struct call *call)
{
  struct comm_group *group = group_of(call);
  const int blocks = call->instr->attr.blocks;
  const int64_t bytes = use_bytes(call, EXCHANGE_RECEIVED) / blocks;
  const char *sent = use(call, EXCHANGE_SENT);
  char *received = use(call, EXCHANGE_RECEIVED);
  enum status status = STATUS_OK;
  for (int b = 0; b < blocks && !status; b++)
    status = comm_exchange(group, call->lane, sent + b * bytes, bytes / comm_group_size(group),
                           plan_is_varying(call->instr), received + b * bytes);
  return status;
}

/* The flat element at which this member's part of an encoded sum begins. */
static int64_t part_begin(const struct call *call, int64_t elements)
{
  const struct plan *plan = call->exec->plan;
  const mesh_set group = call->instr->attr.group;
  const int64_t begin = group == MESH_REPLICA ? plan->unit[call->instr->unit].owned.begin : 0;
  return begin +
         mesh_index(&plan->mesh, group == MESH_ACROSS ? MESH_SHARD : group, plan->input.rank) *
             elements;
}

/* Messages from all members for `out`, which is `elements` of operand `shard`, `stride` bytes
 * apart. */
static enum status decode_sum(const struct call *call, const void *messages, int64_t stride,
                              int shard, int64_t elements, float *out, void *work)
{
  const struct codec *codec = &call->instr->attr.codec;
  const struct codec_pass pass = pass_of(call, elements, work);
  const enum status status = codec->ops->decode(
      codec, &pass, messages, stride, adds(call, shard) ? QUANT_ADD : QUANT_SET, DTYPE_F32, out);
  const int64_t begin = part_begin(call, elements);
  return status || codec->ops->traits & CODEC_IDENTITY
             ? status
             : zero_gaps(call, (char *)out, begin, begin + elements, sizeof(float));
}

enum status run_decode_sum(const struct call *call)
{
  const int blocks = call->instr->attr.blocks, members = comm_group_size(group_of(call));
  const int64_t bytes = use_bytes(call, DECODE_SUM_MESSAGES) / blocks,
                elements = buffer_of(call, DECODE_SUM_SHARD)->elements / blocks;
  const char *messages = use(call, DECODE_SUM_MESSAGES);
  float *shard = use(call, DECODE_SUM_SHARD);
  enum status status = STATUS_OK;
  for (int b = 0; b < blocks && !status; b++)
    status = decode_sum(call, messages + b * bytes, bytes / members, DECODE_SUM_SHARD, elements,
                        shard + b * elements, use(call, DECODE_SUM_WORK));
  return status;
}

/* Messages are read in the senders' memory. After the first barrier all are complete. After the
 * second one all have been read. */
enum status run_sum_shared(const struct call *call)
{
  const struct exec_memory *memory = call->exec->config.memory;
  struct comm_group *group = group_of(call);
  const int64_t bytes = use_bytes(call, SUM_SHARED_SENT) / comm_group_size(group);
  const char *mine = use(call, SUM_SHARED_SENT);
  const char *first = (const char *)comm_shared_memory(memory->regions) +
                      (mine - (char *)memory->transient[TIER_SHARED]);
  enum status status = comm_group_barrier(group);
  if (!status)
    status = decode_sum(call, first + comm_group_index(group) * bytes, memory->region_bytes,
                        SUM_SHARED_SHARD, buffer_of(call, SUM_SHARED_SHARD)->elements,
                        use(call, SUM_SHARED_SHARD), NULL);
  return status ? status : comm_group_barrier(group);
}
