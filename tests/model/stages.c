#include "stages.h"
#include "tests/test.h"

const struct stage_row stages_shared[] = {
    {"attention", ATTENTION, false}, {"mlp", FEED_FORWARD, true}, {0}};
const struct stage_row stages_own[] = {
    {"attention", ATTENTION, false}, {"mlp", FEED_FORWARD, false}, {0}};
const struct stage_row *stages_next;

typedef enum status find(const char *name, const struct architecture **out);
find __real_architecture_find, __wrap_architecture_find;
enum status __wrap_architecture_find(const char *name, const struct architecture **out)
{
  static struct architecture changed[32]; /* one for each architecture and list of stages */
  const enum status status = __real_architecture_find(name, out);
  if (status || !stages_next)
    return status;
  int c = 0;
  while (changed[c].name && (changed[c].name != (*out)->name || changed[c].stage != stages_next))
    c++;
  assert_in_range(c, 0, 30);
  changed[c] = **out;
  changed[c].stage = stages_next;
  *out = &changed[c];
  return STATUS_OK;
}
