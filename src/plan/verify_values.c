/* Values: what is read is what it is taken for. They are followed through one step: an update reads the whole sum and nothing else, and what comes back from
 * another tier is what went there. */
#include "base/mem.h"
#include "plan/verify.h"

enum kind {
  VALUE_OTHER,
  VALUE_TOKENS,
  VALUE_STREAM,
  VALUE_SAVED,
  VALUE_STREAM_GRADIENT,
  VALUE_GRADIENT,
  VALUE_OLD_MOMENT1, /* as the step before has left it */
  VALUE_OLD_MOMENT2,
  VALUE_MOMENT1,
  VALUE_MOMENT2,
  VALUE_WORKING
};

/* What a buffer holds. Of a gradient: the sum over so many ranks and micro-batches, from `micro` on, of what the unit itself and of what the
 * embedding contributes; of a block's input: whether it has gone on to another tier, so that it is no longer here. */
struct value {
  enum kind kind;
  int unit, micro;
  int ranks, micros, embeds;
  bool gone;
};

static const char *const words_of[] = {
    [VALUE_OTHER] = "nothing",
    [VALUE_TOKENS] = "the tokens of its micro-batch",
    [VALUE_STREAM] = "the block's input",
    [VALUE_SAVED] = "the block's activations",
    [VALUE_STREAM_GRADIENT] = "the gradient by the block's output",
    [VALUE_GRADIENT] = "the unit's gradient",
    [VALUE_OLD_MOMENT1] = "the unit's first moment from the disk",
    [VALUE_OLD_MOMENT2] = "the unit's second moment from the disk",
    [VALUE_MOMENT1] = "the unit's first moment after its update",
    [VALUE_MOMENT2] = "the unit's second moment after its update",
    [VALUE_WORKING] = "the unit's parameters after their update",
};

struct walker {
  const struct plan *plan;
  struct value *value; /* by buffer */
  int *next;           /* by buffer: see verify_families() */
  int now;             /* instruction */
};

static int buffer_of(const struct walker *w, int k)
{
  return w->plan->instr[w->now].use[k].buffer;
}

/* A part has the whole's value until it gets one of its own. */
static struct value value_of(const struct walker *w, int k)
{
  int buffer = buffer_of(w, k);
  while (w->value[buffer].kind == VALUE_OTHER && w->plan->buffer[buffer].parent >= 0)
    buffer = w->plan->buffer[buffer].parent;
  return w->value[buffer];
}

/* Of the same family, whatever shares bytes loses its value. */
static void set_value(const struct walker *w, int k, struct value value)
{
  int buffer = buffer_of(w, k);
  const struct plan_buffer *set = &w->plan->buffer[buffer];
  for (int b = plan_root(w->plan, buffer, NULL); b >= 0; b = w->next[b]) {
    const struct plan_buffer *other = &w->plan->buffer[b];
    if (other->offset < set->offset + set->bytes && set->offset < other->offset + other->bytes)
      w->value[b] = (struct value){0};
  }
  w->value[buffer] = value;
}

static enum status expect(const struct walker *w, int k, enum kind kind, int unit, int micro)
{
  struct value value = value_of(w, k);
  if (value.kind == kind && value.unit == unit && value.micro == micro)
    return STATUS_OK;
  return status_set(STATUS_PLAN, "%s reads %s, which is not %s", verify_name(w->plan, w->now, w->now).text, w->plan->buffer[buffer_of(w, k)].name,
                    words_of[kind]);
}

static enum status expect_here(const struct walker *w, int k, enum kind kind, int unit)
{
  enum status status = expect(w, k, kind, unit, w->plan->instr[w->now].micro);
  if (status || !value_of(w, k).gone)
    return status;
  return status_set(STATUS_PLAN, "%s reads %s, from where it has gone to another tier", verify_name(w->plan, w->now, w->now).text,
                    w->plan->buffer[buffer_of(w, k)].name);
}

/* For a block's backward pass. */
static enum status expect_input(const struct walker *w, int k)
{
  return expect_here(w, k, VALUE_STREAM, w->plan->instr[w->now].unit - 1);
}

static enum status expect_saved(const struct walker *w, int k)
{
  return expect_here(w, k, VALUE_SAVED, w->plan->instr[w->now].unit);
}

/* What a block keeps, to another tier or back. */
static enum status move_kept(const struct walker *w)
{
  enum status status = verify_recomputes(w->plan, w->plan->instr[w->now].unit) ? expect_input(w, 0) : expect_saved(w, 0);
  if (status)
    return status;
  set_value(w, 1, value_of(w, 0));
  w->value[buffer_of(w, 0)].gone = true;
  return STATUS_OK;
}

/* The backward pass begins a sum or goes on with it, in the order of the micro-batches. */
static enum status add_gradient(const struct walker *w, int k)
{
  const struct instr *instr = &w->plan->instr[w->now];
  bool embeds = instr->op == OP_EMBED_BACKWARD;
  struct value sum = {.kind = VALUE_GRADIENT, .unit = instr->unit, .micro = instr->micro, .ranks = 1};
  if (instr->use[k].access == ACCESS_ADD)
    sum = value_of(w, k);
  int next = sum.micro + (embeds ? sum.embeds : sum.micros);
  if (sum.kind != VALUE_GRADIENT || sum.unit != instr->unit || sum.ranks != 1 || next != instr->micro)
    return status_set(STATUS_PLAN, "%s adds to %s, which is not the sum over the micro-batches before it", verify_name(w->plan, w->now, w->now).text,
                      w->plan->buffer[buffer_of(w, k)].name);
  *(embeds ? &sum.embeds : &sum.micros) += 1;
  set_value(w, k, sum);
  return STATUS_OK;
}

/* One sum goes on where the other ends. */
static enum status join_sums(const struct walker *w, int k, struct value more)
{
  struct value sum = value_of(w, k);
  int behind = sum.micro + (sum.micros > sum.embeds ? sum.micros : sum.embeds);
  if (sum.kind != VALUE_GRADIENT || sum.unit != more.unit || sum.ranks != more.ranks || behind != more.micro)
    return status_set(STATUS_PLAN, "%s adds to %s, which is not the sum over the micro-batches before it", verify_name(w->plan, w->now, w->now).text,
                      w->plan->buffer[buffer_of(w, k)].name);
  sum.micros += more.micros;
  sum.embeds += more.embeds;
  set_value(w, k, sum);
  return STATUS_OK;
}

/* Of its unit and of this micro-batch, where the instruction has one. */
static enum status expect_gradient(const struct walker *w, int k)
{
  const struct instr *instr = &w->plan->instr[w->now];
  return expect(w, k, VALUE_GRADIENT, instr->unit, instr->micro < 0 ? value_of(w, k).micro : instr->micro);
}

/* What is reduced is each member's own sum; it is spent. `to`: use of the result. */
static enum status reduce_sums(const struct walker *w, int to)
{
  const struct instr *instr = &w->plan->instr[w->now];
  enum status status = expect_gradient(w, 0);
  if (status)
    return status;
  struct value sum = value_of(w, 0);
  sum.ranks *= (int)verify_members(w->plan, instr->op);
  set_value(w, 0, (struct value){0});
  if (instr->use[to].access == ACCESS_ADD)
    return join_sums(w, to, sum);
  set_value(w, to, sum);
  return STATUS_OK;
}

static enum status move_gradient(const struct walker *w)
{
  enum status status = expect_gradient(w, 0);
  if (!status)
    set_value(w, 1, value_of(w, 0));
  return status;
}

/* Every rank's and every micro-batch's, once. */
static enum status expect_whole_sum(const struct walker *w, int k)
{
  const struct plan_input *input = &w->plan->input;
  int unit = w->plan->instr[w->now].unit, micros = (int)input->shape.micros;
  struct value sum = value_of(w, k);
  enum status status = expect(w, k, VALUE_GRADIENT, unit, 0);
  if (status)
    return status;
  bool own = verify_is_block(w->plan, unit) || unit == input->model->head, embeds = unit == 0 && verify_embedding_learns(w->plan);
  if (sum.ranks == input->ranks && sum.micros == (own ? micros : 0) && sum.embeds == (embeds ? micros : 0))
    return STATUS_OK;
  return status_set(STATUS_PLAN, "%s reads %s, the sum over %d of %d ranks and %d of %d micro-batches", verify_name(w->plan, w->now, w->now).text,
                    w->plan->buffer[buffer_of(w, k)].name, sum.ranks, input->ranks, own ? sum.micros : sum.embeds, micros);
}

/* On the disk moments are as the step before has left them, whatever copies of them are in memory. */
static enum status update(const struct walker *w, int first)
{
  const struct instr *instr = &w->plan->instr[w->now];
  bool on_disk = verify_state_on_disk(w->plan, instr->unit);
  enum status status = expect_whole_sum(w, first);
  if (!status && on_disk)
    status = expect(w, first + 2, VALUE_OLD_MOMENT1, instr->unit, 0);
  if (!status && on_disk)
    status = expect(w, first + 3, VALUE_OLD_MOMENT2, instr->unit, 0);
  if (status)
    return status;
  set_value(w, first + 2, (struct value){.kind = VALUE_MOMENT1, .unit = instr->unit});
  set_value(w, first + 3, (struct value){.kind = VALUE_MOMENT2, .unit = instr->unit});
  if (instr->n_use > first + 4)
    set_value(w, first + 4, (struct value){.kind = VALUE_WORKING, .unit = instr->unit});
  return STATUS_OK;
}

static void read_state(const struct walker *w)
{
  int unit = w->plan->instr[w->now].unit;
  set_value(w, 2, (struct value){.kind = VALUE_OLD_MOMENT1, .unit = unit});
  set_value(w, 3, (struct value){.kind = VALUE_OLD_MOMENT2, .unit = unit});
}

static enum status write_state(const struct walker *w)
{
  int unit = w->plan->instr[w->now].unit;
  enum status status = expect(w, 0, VALUE_MOMENT1, unit, 0);
  return status ? status : expect(w, 1, VALUE_MOMENT2, unit, 0);
}

static enum status walk_forward(const struct walker *w)
{
  const struct instr *instr = &w->plan->instr[w->now];
  enum status status = instr->op == OP_RECOMPUTE ? expect_input(w, 1) : expect(w, 1, VALUE_STREAM, instr->unit - 1, instr->micro);
  if (status)
    return status;
  if (instr->op != OP_RECOMPUTE)
    set_value(w, 2, (struct value){.kind = VALUE_STREAM, .unit = instr->unit, .micro = instr->micro});
  int saved = instr->op == OP_RECOMPUTE ? 3 : instr->op == OP_FORWARD && instr->n_use > 4 ? 4 : -1;
  if (saved >= 0)
    set_value(w, saved, (struct value){.kind = VALUE_SAVED, .unit = instr->unit, .micro = instr->micro});
  return STATUS_OK;
}

static enum status walk_head(const struct walker *w)
{
  const struct instr *instr = &w->plan->instr[w->now];
  int last = w->plan->input.model->blocks;
  enum status status = expect(w, 1, VALUE_STREAM, last, instr->micro);
  if (!status && instr->op == OP_LOSS)
    status = expect(w, 2, VALUE_TOKENS, -1, instr->micro);
  if (status || instr->op == OP_LOGITS || instr->n_use < 6)
    return status;
  set_value(w, 5, (struct value){.kind = VALUE_STREAM_GRADIENT, .unit = last, .micro = instr->micro});
  return instr->n_use > 6 ? add_gradient(w, 6) : STATUS_OK;
}

static enum status walk_backward(const struct walker *w)
{
  const struct instr *instr = &w->plan->instr[w->now];
  enum status status = expect_input(w, 1);
  if (!status)
    status = expect_saved(w, 2);
  if (!status)
    status = expect(w, 3, VALUE_STREAM_GRADIENT, instr->unit, instr->micro);
  if (status)
    return status;
  set_value(w, 3, (struct value){.kind = VALUE_STREAM_GRADIENT, .unit = instr->unit - 1, .micro = instr->micro});
  return instr->n_use > 5 ? add_gradient(w, 5) : STATUS_OK;
}

static enum status walk_embedding(const struct walker *w, bool back)
{
  int micro = w->plan->instr[w->now].micro;
  enum status status = expect(w, back ? 0 : 1, VALUE_TOKENS, -1, micro);
  if (!status && !back)
    set_value(w, 2, (struct value){.kind = VALUE_STREAM, .micro = micro});
  if (status || !back)
    return status;
  status = expect(w, 1, VALUE_STREAM_GRADIENT, 0, micro);
  return status ? status : add_gradient(w, 2);
}

static enum status walk_value(const struct walker *w)
{
  const struct instr *instr = &w->plan->instr[w->now];
  enum status status;
  switch (instr->op) {
  case OP_LOAD: set_value(w, 0, (struct value){.kind = VALUE_TOKENS, .unit = -1, .micro = instr->micro}); return STATUS_OK;
  case OP_EMBED: return walk_embedding(w, false);
  case OP_FORWARD:
  case OP_DECODE:
  case OP_RECOMPUTE: return walk_forward(w);
  case OP_LOSS:
  case OP_LOGITS: return walk_head(w);
  case OP_BACKWARD: return walk_backward(w);
  case OP_EMBED_BACKWARD: return walk_embedding(w, true);
  case OP_SAVE_ACT:
  case OP_WRITE_ACT:
  case OP_READ_ACT:
  case OP_FETCH_ACT: return move_kept(w);
  case OP_REDUCE:
  case OP_REPLICA_REDUCE: return reduce_sums(w, 2);
  case OP_SUM_SHARED: return reduce_sums(w, 1);
  case OP_GATHER_GRADS:
  case OP_FETCH_GRAD: return move_gradient(w);
  case OP_ACCUMULATE: status = expect_gradient(w, 0); return status ? status : join_sums(w, 1, value_of(w, 0));
  case OP_SQUARES: return expect_whole_sum(w, 0);
  case OP_ADAM: return update(w, 1);
  case OP_ADAM_NOW: return update(w, 0);
  case OP_PUBLISH: return expect(w, 0, VALUE_WORKING, instr->unit, 0);
  case OP_READ_STATE: read_state(w); return STATUS_OK;
  case OP_WRITE_STATE: return write_state(w);
  default: return STATUS_OK;
  }
}

enum status verify_values(const struct plan *plan)
{
  struct walker w = {.plan = plan};
  void *value = NULL, *next = NULL;
  enum status status = mem_alloc(MEM_META, (size_t)plan->buffers * sizeof *w.value, &value);
  if (!status)
    status = mem_alloc(MEM_META, (size_t)plan->buffers * sizeof *w.next, &next);
  if (!status) {
    w.value = value;
    w.next = next;
    verify_families(plan, next);
  }
  for (; w.now < plan->n && !status; w.now++)
    status = walk_value(&w);
  mem_free(next);
  mem_free(value);
  return status;
}
