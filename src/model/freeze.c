/* Marks the parameters that patterns of train.freeze name. */
#include <fnmatch.h>

#include "model/model.h"
#include "model/unit.h"

static bool matches(const struct model_param *param, int n, char *const patterns[])
{
  for (int i = 0; i < n; i++)
    if (fnmatch(patterns[i], param->name, 0) == 0)
      return true;
  return false;
}

static bool matches_any(const struct model *model, char *const pattern[1])
{
  for (int u = 0; u < model->units; u++)
    for (int p = 0; p < model->unit[u].params; p++)
      if (matches(&model->unit[u].param[p], 1, pattern))
        return true;
  return false;
}

/* Checked before anything is changed. */
static enum status check_patterns(const struct model *model, int n, char *const patterns[])
{
  for (int i = 0; i < n; i++)
    if (!matches_any(model, &patterns[i]))
      return status_usage(
          "train.freeze: no parameter of this model is named \"%s\"; names look like \"%s\"",
          patterns[i], model->unit[1].param[0].name);
  for (int u = 0; u < model->units; u++)
    for (int p = 0; p < model->unit[u].params; p++)
      if (!model->unit[u].param[p].frozen && !matches(&model->unit[u].param[p], n, patterns))
        return STATUS_OK;
  return status_usage(
      "train.freeze: with \"%s\" all parameters are frozen, and nothing is left to train",
      n > 0 ? patterns[n - 1] : "");
}

enum status model_freeze(struct model *model, int n, char *const patterns[], int ranks)
{
  enum status status = check_patterns(model, n, patterns);
  for (int u = 0; u < model->units && status == STATUS_OK; u++) {
    struct model_unit *unit = &model->unit[u];
    for (int p = 0; p < unit->params; p++)
      if (!unit->param[p].frozen && matches(&unit->param[p], n, patterns)) {
        unit->param[p].frozen = true;
        model->frozen += unit->layout.elements[p];
      }
    status = unit_pack(unit, ranks);
  }
  if (status == STATUS_OK)
    model->ranks = ranks;
  return status;
}
