/* Frozen parts that are kept as messages: codes by the unit's codec of all elements, then the
 * elements of parameters that are no weights. The codes may also be those that products read. */
#include "base/mem.h"
#include "device/device.h"
#include "device/lane.h"
#include "plan/plan.h"

static int64_t length_of(const struct plan_unit *unit)
{
  return unit->frozen_owned.end - unit->frozen_owned.begin;
}

/* nf4 codes each parameter by itself. */
static bool is_nf4(const struct plan_unit *unit)
{
  return unit->policy.frozen == DTYPE_U8 && unit->policy.base.ops == &codec_nf4;
}

static int64_t code_bytes(const struct plan_unit *unit)
{
  return is_nf4(unit) ? nf4_bytes(length_of(unit), plan_message_params(&unit->layout, NULL))
                      : unit->policy.base.ops->bytes(&unit->policy.base, length_of(unit));
}

int64_t plan_message_scales(const struct plan *plan, int u)
{
  const struct plan_unit *unit = &plan->unit[u];
  int64_t scales = 0;
  for (int p = 0; p < unit->layout.params && is_nf4(unit); p++)
    scales += unit->layout.frozen[p] ? nf4_scales(nf4_blocks(unit->layout.elements[p])) : 0;
  return scales;
}

int plan_message_params(const struct layout_unit *layout, struct nf4_param *param)
{
  int n = 0;
  int64_t scale = 0;
  for (int p = 0; p < layout->params; p++) {
    const int64_t blocks = nf4_blocks(layout->elements[p]);
    if (!layout->frozen[p])
      continue;
    if (param)
      param[n] =
          (struct nf4_param){(layout->offset[p] - layout->trained) / NF4_BLOCK, blocks, scale};
    scale += nf4_scales(blocks);
    n++;
  }
  return n;
}

bool plan_keeps_message(const struct plan *plan, int u)
{
  return plan->unit[u].frozen >= 0 &&
         (plan->unit[u].kept >= 0 || plan->unit[u].policy.frozen == DTYPE_U8);
}

struct layout_range plan_message_range(const struct plan *plan, int u)
{
  const struct plan_unit *unit = &plan->unit[u];
  return unit->kept < 0 ? unit->frozen_owned
                        : model_fp8_blocks(plan->input.model, u, &unit->layout, unit->frozen_owned);
}

int64_t plan_message_bytes(const struct plan *plan, int u)
{
  const struct plan_unit *unit = &plan->unit[u];
  const int64_t n = length_of(unit), whole = unit->layout.flat - unit->layout.trained;
  return n == 0 ? 0
                : code_bytes(unit) +
                      model_beside_bytes(plan->input.model, u, &unit->layout, (int)(whole / n));
}

/* `kept` has what MEASURE would make. Scales are made of a copy. */
static enum status encode_products(const struct plan *plan, int u, struct lane *lane,
                                   const float *x, void *codes, void *kept)
{
  const struct model *model = plan->input.model;
  const struct plan_unit *unit = &plan->unit[u];
  const size_t bytes = (size_t)plan->buffer[unit->kept].bytes;
  const struct layout_range range = plan_message_range(plan, u);
  const struct model_part all = {u, &unit->layout, range, DTYPE_F32, x},
                          own = {u, &unit->layout, unit->frozen_owned, DTYPE_F32,
                                 x + (unit->frozen_owned.begin - range.begin)};
  void *scales;
  enum status status = mem_alloc(MEM_IO, bytes, &scales);
  if (status)
    return status;
  memset(kept, 0, bytes);
  status = model_fp8_measure(model, lane, &all, kept);
  memcpy(scales, kept, bytes);
  status = status
               ?: model_fp8_scale(model, lane, u, scales)
               ?: model_fp8_code(model, lane, &own, scales, codes);
  mem_free(scales);
  return status;
}

enum status plan_message_encode(const struct plan *plan, int u, struct lane *lane, float *x,
                                void *message, void *kept)
{
  const struct plan_unit *unit = &plan->unit[u];
  if (unit->kept >= 0)
    return encode_products(plan, u, lane, x, message, kept);
  const struct codec *codec = &unit->policy.base;
  const struct codec_pass pass = {.lane = lane, .n = length_of(unit), .parts = 1};
  const struct model_part part = {u, &unit->layout, unit->frozen_owned, DTYPE_F32, x};
  return model_beside_move(plan->input.model, lane, &part, true, (char *)message + code_bytes(unit))
             ?: is_nf4(unit) ? lane->device->ops->nf4_code(lane, pass.n, x, message, kept)
                             : codec->ops->encode(codec, &pass, x, message);
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
