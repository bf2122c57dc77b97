/* Frozen parts that are kept as messages: codes by the unit's codec of all elements, then the
 * elements of parameters that are no weights. */
#include "plan/plan.h"

static int64_t length_of(const struct plan_unit *unit)
{
  return unit->frozen_owned.end - unit->frozen_owned.begin;
}

static int64_t code_bytes(const struct plan_unit *unit)
{
  return unit->policy.base.ops->bytes(&unit->policy.base, length_of(unit));
}

int64_t plan_message_bytes(const struct plan *plan, int u)
{
  const struct plan_unit *unit = &plan->unit[u];
  const int64_t n = length_of(unit), whole = unit->layout.flat - unit->layout.trained;
  return n == 0 ? 0
                : code_bytes(unit) +
                      model_beside_bytes(plan->input.model, u, &unit->layout, (int)(whole / n));
}

enum status plan_message_encode(const struct plan *plan, int u, struct lane *lane, const float *x,
                                void *message)
{
  const struct plan_unit *unit = &plan->unit[u];
  const struct codec *codec = &unit->policy.base;
  const struct codec_pass pass = {.lane = lane, .n = length_of(unit), .parts = 1};
  const struct model_part part = {u, &unit->layout, unit->frozen_owned, DTYPE_F32, x};
  return codec->ops->encode(codec, &pass, x, message)
             ?: model_beside_move(plan->input.model, lane, &part, true,
                                  (char *)message + code_bytes(unit));
}

enum status plan_message_decode(const struct plan *plan, int u, struct lane *lane, int members,
                                const void *messages, enum dtype type, void *x)
{
  const struct plan_unit *unit = &plan->unit[u];
  const struct codec *codec = &unit->policy.base;
  const struct codec_pass pass = {.lane = lane, .n = length_of(unit), .parts = members};
  const int64_t bytes = plan_message_bytes(plan, u);
  enum status status = codec->ops->decode(codec, &pass, messages, bytes, QUANT_SET_EACH, type, x);
  for (int i = 0; i < members && !status; i++) {
    const struct layout_range range =
        members > 1 ? layout_shard(&unit->layout, true, members, i) : unit->frozen_owned;
    const struct model_part part = {u, &unit->layout, range, type,
                                    (char *)x + i * pass.n * (int64_t)dtype_size(type)};
    status = model_beside_move(plan->input.model, lane, &part, false,
                               (char *)messages + i * bytes + code_bytes(unit));
  }
  return status;
}
