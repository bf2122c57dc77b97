/* Proof that a plan is safe and complete. It uses only the plan's input, instructions, waits and
 * offsets, and shares no code with the builder, the placement and the ordering. Each part may
 * assume the results of the parts before it. */
#include "plan/verify.h"

#include <stdarg.h>

#include "base/append.h"
#include "base/mem.h"

void verify_at(struct verify *v, int time)
{
  v->now = time;
  v->instr = &v->plan->instr[time % v->plan->n];
  v->row = &op_rows[v->instr->op];
  v->unit = &v->plan->unit[v->instr->unit < 0 ? 0 : v->instr->unit];
  v->stage = &v->plan->input.model->stage[v->instr->stage < 0 ? 0 : v->instr->stage];
}

void verify_walk(struct verify *v, op_check *check)
{
  for (int i = 0; i < v->plan->n && !v->status; i++) {
    verify_at(v, i);
    check(v);
  }
}

struct verify_label verify_name(const struct verify *v, int time)
{
  struct verify_label label;
  plan_instr_name(v->plan, time % v->plan->n, label.text, sizeof label.text);
  if (time / v->plan->n != v->now / v->plan->n)
    append_text(label.text, sizeof label.text, " of the step before");
  return label;
}

const char *verify_verb(enum plan_access access)
{
  return access == ACCESS_READ ? "reads" : access == ACCESS_WRITE ? "writes" : "changes";
}

struct verify_label verify_does(const struct plan *plan, const struct plan_use *use)
{
  struct verify_label label;
  snprintf(label.text, sizeof label.text, "%s %s", verify_verb(use->access),
           plan->buffer[use->buffer].name);
  return label;
}

void verify_fail(struct verify *v, const char *why, ...)
{
  char text[1024];
  va_list args;
  if (v->status)
    return;
  va_start(args, why);
  vsnprintf(text, sizeof text, why, args);
  va_end(args);
  v->status = status_set(STATUS_PLAN, "%s %s", verify_name(v, v->now).text, text);
}

void verify_families(struct verify *v)
{
  v->status = v->status ?: mem_new(MEM_META, v->plan->buffers, &v->next);
  for (int b = 0; b < v->plan->buffers && !v->status; b++)
    v->next[b] = -1;
  for (int b = 0; b < v->plan->buffers && !v->status; b++) {
    const int root = plan_root(v->plan, b, NULL);
    if (root == b)
      continue;
    v->next[b] = v->next[root];
    v->next[root] = b;
  }
}

enum status plan_verify(const struct plan *plan)
{
  static enum status (*const parts[])(const struct plan *plan) = {
      verify_form, verify_windows, verify_bytes, verify_counts, verify_roles, verify_values};
  enum status status = STATUS_OK;
  for (size_t p = 0; p < sizeof parts / sizeof *parts && !status; p++)
    status = parts[p](plan);
  return status;
}
