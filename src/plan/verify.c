/* Proof that a plan is safe and complete. It uses only the plan's input, instructions, waits and
 * offsets, and shares no code with the builder, the placement and the ordering. Each part may
 * assume the results of the parts before it. */
#include "plan/verify.h"

#include <stdarg.h>
#include <string.h>

#include "base/mem.h"

struct verify_label verify_name(const struct plan *plan, int time, int now)
{
  struct verify_label label;
  plan_instr_name(plan, time % plan->n, label.text, sizeof label.text);
  size_t length = strlen(label.text);
  if (time / plan->n != now / plan->n)
    snprintf(label.text + length, sizeof label.text - length, " of the step before");
  return label;
}

const char *verify_verb(enum plan_access access)
{
  return access == ACCESS_READ ? "reads" : access == ACCESS_WRITE ? "writes" : "changes";
}

enum status verify_fail(const struct plan *plan, int time, const char *why, ...)
{
  char text[1024];
  va_list args;
  va_start(args, why);
  vsnprintf(text, sizeof text, why, args);
  va_end(args);
  return status_set(STATUS_PLAN, "%s %s", verify_name(plan, time, time).text, text);
}

enum status verify_families(const struct plan *plan, int **out)
{
  int *next;
  const enum status status = mem_new(MEM_META, plan->buffers, &next);
  if (status)
    return status;
  for (int b = 0; b < plan->buffers; b++)
    next[b] = -1;
  for (int b = 0; b < plan->buffers; b++) {
    int root = plan_root(plan, b, NULL);
    if (root == b)
      continue;
    next[b] = next[root];
    next[root] = b;
  }
  *out = next;
  return STATUS_OK;
}

enum status plan_verify(const struct plan *plan)
{
  static enum status (*const parts[])(const struct plan *plan) = {
      verify_form,  verify_windows, verify_bytes, verify_counts,
      verify_roles, verify_scopes,  verify_values};
  enum status status = STATUS_OK;
  for (size_t p = 0; p < sizeof parts / sizeof *parts && !status; p++)
    status = parts[p](plan);
  return status;
}
