/* The choice of units that multiply in fp8. */
#include <fnmatch.h>
#include <inttypes.h>

#include "device/fp8.h"
#include "model/model.h"

static bool matches(const char *name, int n, char *const patterns[])
{
  for (int i = 0; i < n; i++)
    if (fnmatch(patterns[i], name, 0) == 0)
      return true;
  return false;
}

static enum status check_pattern(const struct model *model, char *const pattern[1])
{
  for (int u = 1; u <= model->blocks; u++)
    if (matches(model->unit[u].name, 1, pattern))
      return STATUS_OK;
  return status_set(STATUS_USAGE,
                    "run.fp8_except: no block of this model is named \"%s\"; blocks are \"%s\" to "
                    "\"%s\"",
                    *pattern, model->unit[1].name, model->unit[model->blocks].name);
}

/* Blocks of 128 x 128 must fill weights. */
static enum status check_unit(const struct model_unit *unit)
{
  for (int p = 0; p < unit->params; p++) {
    const struct model_param *param = &unit->param[p];
    if (param->kind == PARAM_WEIGHT &&
        (param->shape[0] % FP8_TILE != 0 || param->shape[1] % FP8_TILE != 0))
      return status_set(STATUS_USAGE,
                        "run.compute=fp8 needs rows and columns of weights that are multiples of "
                        "%d, but %s is %" PRId64 " x %" PRId64
                        ": use run.compute=bf16, or name %s in run.fp8_except",
                        FP8_TILE, param->name, param->shape[0], param->shape[1], unit->name);
  }
  return STATUS_OK;
}

enum status model_use_fp8(struct model *model, enum fp8_use use, int n, char *const except[])
{
  enum status status = STATUS_OK;
  for (int i = 0; i < n && !status; i++)
    status = check_pattern(model, &except[i]);
  for (int u = 1; u <= model->blocks && !status; u++) {
    if (matches(model->unit[u].name, n, except))
      continue;
    model->unit[u].fp8 = model->fp8 = use;
    status = check_unit(&model->unit[u]);
  }
  return status;
}
