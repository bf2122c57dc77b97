/* The choice of what is trained: parameters that no pattern of train.freeze names, or adapters of
 * matrices that patterns of lora.targets name. */
#include <fnmatch.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"

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

/* ---- adapters ---- */

static bool is_matrix(const struct model *model, int u, int p)
{
  return model->unit[u].block >= 0 && model->unit[u].param[p].kind == PARAM_WEIGHT;
}

static bool is_target(const struct model *model, const struct model_lora *lora, int u, int p)
{
  return is_matrix(model, u, p) &&
         (lora->n == 0 || matches(&model->unit[u].param[p], lora->n, lora->targets));
}

static enum status check_target(const struct model *model, char *const pattern[1])
{
  const char *matrix = NULL, *other = NULL;
  for (int u = 0; u < model->units; u++)
    for (int p = 0; p < model->unit[u].params; p++) {
      const struct model_param *param = &model->unit[u].param[p];
      const char **const seen = is_matrix(model, u, p) ? &matrix : &other;
      if (matches(param, 1, pattern) && is_matrix(model, u, p))
        return STATUS_OK;
      if (!*seen || (!is_matrix(model, u, p) && matches(param, 1, pattern)))
        *seen = param->name;
    }
  if (other && fnmatch(*pattern, other, 0) == 0)
    return status_usage("lora.targets: \"%s\" names %s, which is no weight matrix of a block; "
                        "names of these look like \"%s\"",
                        *pattern, other, matrix);
  return status_usage(
      "lora.targets: no parameter of this model is named \"%s\"; names look like \"%s\"", *pattern,
      matrix);
}

static enum status check_rank(const struct model *model, const struct model_lora *lora)
{
  for (int u = 0; u < model->units; u++)
    for (int p = 0; p < model->unit[u].params; p++) {
      const struct model_param *param = &model->unit[u].param[p];
      const int64_t *shape = param->shape, side = shape[0] < shape[1] ? shape[0] : shape[1];
      if (is_target(model, lora, u, p) && lora->rank > side)
        return status_usage("lora.rank is %" PRId64 ", but %s is %s: the rank is at most %" PRId64
                            ", or leave the matrix out of lora.targets",
                            lora->rank, param->name, layout_shape_text(2, shape).text, side);
    }
  return STATUS_OK;
}

/* PEFT's initial values: B is zero, and A is uniform as the weights of nn.Linear, which is Kaiming
 * uniform with a = sqrt(5). */
static enum status describe_adapter(const struct model *model, const struct model_param *matrix,
                                    int64_t rank, struct model_param *a, struct model_param *b)
{
  const bool transposed = model_is_transposed(model);
  const int64_t in = matrix->shape[transposed], width = matrix->shape[!transposed];
  const int stem = (int)(strrchr(matrix->name, '.') - matrix->name);
  const struct model_param both = {.kind = PARAM_ADAPTER, .ndim = 2, .part = matrix->part};
  *a = *b = both;
  a->name = mem_printf("%.*s.lora_A.weight", stem, matrix->name);
  a->shape[0] = b->shape[1] = rank;
  a->shape[1] = in;
  a->init = INIT_UNIFORM;
  a->std = (float)(1 / sqrt((double)in));
  b->name = mem_printf("%.*s.lora_B.weight", stem, matrix->name);
  b->shape[0] = width;
  return a->name && b->name ? STATUS_OK : STATUS_MEMORY;
}

/* Matrices of a stage (part -1: of the unit) that get adapters, before these are added. */
static int count_targets(const struct model *model, const struct model_lora *lora, int u, int part)
{
  const struct model_unit *unit = &model->unit[u];
  int targets = 0;
  for (int p = 0; p < unit->layout.params; p++)
    targets += (part < 0 || unit->param[p].part == part) && is_target(model, lora, u, p);
  return targets;
}

/* All A of a stage, then all B of it, then those of the next stage. */
static enum status adapt_unit(struct model *model, const struct model_lora *lora, int u)
{
  struct model_unit *unit = &model->unit[u];
  const int before = unit->params;
  int at = before, part = -1, targets = 0;
  enum status status = unit_grow(unit, 2 * count_targets(model, lora, u, -1));
  for (int p = 0; p < before && !status; p++) {
    struct model_param *const param = &unit->param[p];
    if (param->part > part) {
      part = param->part;
      at += targets;
      targets = count_targets(model, lora, u, part);
    }
    param->frozen = true;
    model->frozen += unit->layout.elements[p];
    if (!is_target(model, lora, u, p))
      continue;
    param->adapter.a = at++;
    param->adapter.b = param->adapter.a + targets;
    status = describe_adapter(model, param, lora->rank, &unit->param[param->adapter.a],
                              &unit->param[param->adapter.b]);
    model->parameters += lora->rank * (param->shape[0] + param->shape[1]);
  }
  return status;
}

enum status model_adapt(struct model *model, const struct model_lora *lora, int ranks)
{
  enum status status = STATUS_OK;
  for (int i = 0; i < lora->n && !status; i++)
    status = check_target(model, &lora->targets[i]);
  status = status ?: check_rank(model, lora);
  for (int u = 0; u < model->units && !status; u++)
    status = adapt_unit(model, lora, u) ?: unit_pack(&model->unit[u], ranks);
  if (status)
    return status;
  model->ranks = ranks;
  model->lora_rank = lora->rank;
  model->lora_scale = (float)lora->scale;
  return STATUS_OK;
}
