/* A plan as text: one instruction per line, and the bytes by purpose. */
#include <string.h>

#include "base/append.h"
#include "plan/internal.h"

static const char *const mode_names[] = {
    [PLAN_TRAIN] = "train", [PLAN_EVAL] = "eval", [PLAN_GENERATE] = "generate"};
static const char *const tier_names[TIER_COUNT] = {[TIER_DEVICE] = "device memory",
                                                   [TIER_HOST] = "host memory",
                                                   [TIER_SHARED] = "shared host memory",
                                                   [TIER_DISK] = "NVMe"};

/* That of its stage or unit. */
static const char *place_name(const struct plan *plan, const struct instr *instr)
{
  const struct model *model = plan->input.model;
  return instr->stage >= 0  ? model->stage[instr->stage].name
         : instr->unit >= 0 ? model->unit[instr->unit].name
                            : "";
}

/* "FORWARD h.3 m0" into out. */
static void name_instr(const struct plan *plan, const struct instr *instr, char *out, size_t size)
{
  snprintf(out, size, "%s", plan_op_name(instr->op));
  if (instr->unit >= 0)
    append_text(out, size, " %s", place_name(plan, instr));
  if (instr->micro >= 0)
    append_text(out, size, " m%d", instr->micro);
}

void plan_instr_name(const struct plan *plan, int index, char *out, size_t size)
{
  const struct instr *instr = &plan->instr[index];
  name_instr(plan, instr, out, size);
  append_text(out, size, " (#%d, %s)", index, plan_lane_name(instr->lane));
}

static void print_uses(const struct plan *plan, const struct instr *instr, FILE *to)
{
  static const char *const sign[] = {[ACCESS_READ] = "", [ACCESS_WRITE] = "=", [ACCESS_ADD] = "+"};
  const char *between = "";
  for (int k = 0; k < PLAN_MAX_USE; k++) {
    if (instr->use[k].buffer < 0)
      continue;
    fprintf(to, "%s%s%s", between, sign[instr->use[k].access],
            plan->buffer[instr->use[k].buffer].name);
    between = " ";
  }
  const struct codec *codec = &instr->attr.codec;
  if (codec->ops && !(codec->ops->traits & CODEC_IDENTITY)) {
    char name[64];
    codec_print_name(codec, name, sizeof name);
    fprintf(to, " in %s", name);
  }
  if (instr->attr.fp8)
    fprintf(to, " in fp8%s",
            instr->op == OP_BACKWARD && instr->attr.fp8 != FP8_ALL ? " but for weights" : "");
  if (instr->attr.group == MESH_INSIDE)
    fprintf(to, " in a node");
  if (instr->attr.group == MESH_ACROSS)
    fprintf(to, " between nodes");
  if (instr->attr.clip > 0)
    fprintf(to, " clipped to %g", instr->attr.clip);
  if (instr->attr.beta > 0)
    fprintf(to, " of pairs with beta %g", instr->attr.beta);
  if (instr->attr.optimizer != OPTIM_adamw)
    fprintf(to, " by %s", optim_ops(instr->attr.optimizer)->name);
  if (instr->attr.lr_scale != 0 && instr->attr.lr_scale != 1)
    fprintf(to, " at %g of the learning rate", instr->attr.lr_scale);
  if (instr->attr.stochastic)
    fprintf(to, " rounded at random");
}

static void print_waits(const struct plan *plan, const struct instr *instr, FILE *to)
{
  for (int w = 0; w < instr->n_wait; w++) {
    char name[64];
    name_instr(plan, &plan->instr[instr->wait[w].instr], name, sizeof name);
    fprintf(to, "%s #%d %s%s", w > 0 ? "," : "  <-", instr->wait[w].instr, name,
            instr->wait[w].back > 0 ? " (step before)" : "");
  }
}

static void print_instr(const struct plan *plan, int i, FILE *to)
{
  const struct instr *instr = &plan->instr[i];
  char micro[16] = "";
  if (instr->micro >= 0)
    snprintf(micro, sizeof micro, "m%d", instr->micro);
  fprintf(to, "#%-5d %-8s %-14s %-6s %-4s ", i, plan_lane_name(instr->lane),
          plan_op_name(instr->op), place_name(plan, instr), micro);
  print_uses(plan, instr, to);
  print_waits(plan, instr, to);
  fputc('\n', to);
}

void plan_print(const struct plan *plan, FILE *to)
{
  const struct plan_input *input = &plan->input;
  char cache[64] = "";
  if (input->mode == PLAN_GENERATE)
    snprintf(cache, sizeof cache, " into a cache of %lld", (long long)input->capacity);
  fprintf(to,
          "%s, %s, rank %d of %d in groups of %d, %lld micro-batch%s of %lld x %lld tokens%s, "
          "prefetch %d: %d instructions\n",
          mode_names[input->mode], deck_strategy_name(input->strategy), input->rank, input->ranks,
          mesh_ranks(&plan->mesh, MESH_SHARD), (long long)input->shape.micros,
          input->shape.micros == 1 ? "" : "es", (long long)input->shape.micro_batch,
          (long long)input->shape.sequence, cache, input->prefetch, plan->n);
  for (int i = 0; i < plan->n; i++)
    print_instr(plan, i, to);
}

/* Whether an instruction uses bytes of a buffer with this name: the buffer, a part, or the whole.
 */
static bool touches(const struct plan *plan, const struct instr *instr, const char *name)
{
  for (int k = 0; k < PLAN_MAX_USE; k++) {
    const int used = instr->use[k].buffer;
    for (int b = 0; b < plan->buffers && used >= 0; b++) {
      const struct plan_buffer *one = &plan->buffer[b], *other = &plan->buffer[used];
      if (strcmp(one->name, name) == 0 && plan_root(plan, b, NULL) == plan_root(plan, used, NULL) &&
          one->offset < other->offset + other->bytes && other->offset < one->offset + one->bytes)
        return true;
    }
  }
  return false;
}

enum status plan_print_uses(const struct plan *plan, const char *name, FILE *to)
{
  int found = 0;
  for (int b = 0; b < plan->buffers; b++) {
    const struct plan_buffer *buffer = &plan->buffer[b];
    if (strcmp(buffer->name, name) != 0)
      continue;
    fprintf(to, "%s: %s, %s, %lld %s, bytes %lld to %lld, #%d to #%d\n", name,
            plan_purpose_name(buffer->purpose), tier_names[buffer->tier],
            (long long)buffer->elements, dtype_name(buffer->dtype), (long long)buffer->offset,
            (long long)(buffer->offset + buffer->bytes), buffer->first, buffer->last);
    found++;
  }
  for (int i = 0; i < plan->n; i++)
    if (touches(plan, &plan->instr[i], name))
      print_instr(plan, i, to);
  return found > 0 ? STATUS_OK
                   : status_usage("the plan has no buffer '%s'; --list prints their "
                                  "names in the lines of instructions",
                                  name);
}

static bool is_first_with_codec(const struct plan *plan, int u)
{
  int first = 0;
  while (plan->unit[first].layout.trained == 0 ||
         !codec_equal(&plan->unit[first].policy.grads, &plan->unit[u].policy.grads))
    first++;
  return first == u;
}

void plan_print_codecs(const struct plan *plan, char *out, size_t size)
{
  *out = '\0';
  for (int u = 0; u < plan->input.model->units; u++) {
    char name[64];
    if (plan->unit[u].layout.trained == 0 || !is_first_with_codec(plan, u))
      continue;
    codec_print_name(&plan->unit[u].policy.grads, name, sizeof name);
    append_text(out, size, "%s%s", *out ? ", " : "", name);
  }
}

/* ---- memory ---- */

static int64_t purpose_bytes_at(const struct plan *plan, enum plan_tier tier,
                                enum plan_purpose purpose, bool persistent, int instr)
{
  int64_t bytes = 0;
  for (int i = 0; i < plan->buffers; i++) {
    const struct plan_buffer *b = &plan->buffer[i];
    bool live = b->persistent || (b->first <= instr && instr <= b->last);
    if (b->tier == tier && b->parent < 0 && b->purpose == purpose && b->persistent == persistent &&
        live)
      bytes += b->bytes;
  }
  return bytes;
}

int64_t plan_purpose_bytes(const struct plan *plan, enum plan_tier tier, enum plan_purpose purpose,
                           bool persistent)
{
  return purpose_bytes_at(plan, tier, purpose, persistent, plan->fullest[tier]);
}

static void print_row(const char *name, int64_t persistent, int64_t transient, FILE *to)
{
  fprintf(to, "  %-22s %14s %14s %14s\n", name, mem_amount((double)persistent).text,
          mem_amount((double)transient).text, mem_amount((double)(persistent + transient)).text);
}

/* Prints a part of the kept parameters. */
static void print_frozen(const struct plan *plan, enum plan_tier tier, FILE *to)
{
  int64_t bytes = 0;
  for (int u = 0; u < plan->input.model->units; u++)
    if (plan->unit[u].frozen >= 0 && plan->buffer[plan->unit[u].frozen].tier == tier)
      bytes += plan->buffer[plan->unit[u].frozen].bytes;
  if (bytes > 0)
    print_row("  of which frozen", bytes, 0, to);
}

static void print_tier(const struct plan *plan, enum plan_tier tier, FILE *to)
{
  int peak = plan->fullest[tier];
  int64_t sum = 0;
  char name[128];
  plan_instr_name(plan, peak, name, sizeof name);
  fprintf(to, "%s of rank %d; the transient arena is fullest at %s\n", tier_names[tier],
          plan->input.rank, name);
  fprintf(to, "  %-22s %14s %14s %14s\n", "", "persistent", "transient", "together");
  for (int p = 0; p < PURPOSE_COUNT; p++) {
    int64_t kept = purpose_bytes_at(plan, tier, (enum plan_purpose)p, true, peak),
            passing = purpose_bytes_at(plan, tier, (enum plan_purpose)p, false, peak);
    if (kept + passing > 0)
      print_row(plan_purpose_name((enum plan_purpose)p), kept, passing, to);
    if (p == PURPOSE_PARAMS)
      print_frozen(plan, tier, to);
    sum += passing;
  }
  if (plan->transient_bytes[tier] > sum)
    print_row("lost to packing", 0, plan->transient_bytes[tier] - sum, to);
  print_row("total", plan->persistent_bytes[tier], plan->transient_bytes[tier], to);
  if (tier == TIER_SHARED && plan->transient_bytes[tier] > 0)
    print_row("total of the group", plan->persistent_bytes[tier],
              plan_shared_bytes(plan) - plan->persistent_bytes[tier], to);
}

void plan_print_memory(const struct plan *plan, FILE *to)
{
  for (int tier = 0; tier < TIER_COUNT; tier++)
    if (plan_tier_bytes(plan, (enum plan_tier)tier) > 0)
      print_tier(plan, (enum plan_tier)tier, to);
}
