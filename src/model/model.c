/* Creates models: resolves their keys, describes their units and counts their parameters. */
#include "model/model.h"

#include "base/rng.h"
#include "model/decoder.h"

static enum status count_parameters(struct model *model)
{
  enum status status = STATUS_OK;
  for (int u = 0; u < model->units; u++)
    for (int p = 0; p < model->unit[u].params && !status; p++)
      status = layout_add(model->parameters, model->unit[u].layout.elements[p], &model->parameters);
  return status;
}

enum status model_create(const struct model_config *config, struct model **out)
{
  const struct architecture *architecture;
  struct model *model;
  enum status status =
      architecture_find(config->arch, &architecture) ?: mem_new(MEM_META, 1, &model);
  if (status)
    return status;
  model->ops = &decoder_ops;
  model->architecture = architecture;
  model->config = *config;
  model->config.arch = architecture->name;
  model->ranks = 1;
  status = config_resolve(architecture->features, &model->config);
  status = status ?: decoder_create(model) ?: count_parameters(model);
  if (status)
    model_destroy(model);
  else
    *out = model;
  return status;
}

void model_destroy(struct model *model)
{
  if (!model)
    return;
  for (int u = 0; u < model->units; u++)
    unit_free(&model->unit[u]);
  mem_free(model->unit);
  mem_free(model->stage);
  mem_free(model->inv_freq);
  mem_free(model);
}

void model_whole_shape(const struct model_param *param, int64_t *out)
{
  for (int d = 0; d < param->ndim; d++)
    out[d] = param->shape[d] * (param->cut[d].parts > 1 ? param->cut[d].parts : 1);
}

void model_init_param(const struct model *model, uint64_t seed, int u, int p,
                      struct layout_range range, float *out)
{
  const struct model_param *param = &model->unit[u].param[p];
  const struct rng_key key = rng_key_make(seed, param->name);
  int64_t n = range.end - range.begin;
  if (param->init == INIT_NORMAL) {
    rng_fill_normal(key, 0, (uint64_t)range.begin, n, 0, param->std, out);
    return;
  }
  for (int64_t i = 0; i < n; i++)
    out[i] = param->init == INIT_UNIFORM
                 ? param->std * (float)(2 * rng_uniform(key, 0, (uint64_t)(range.begin + i)) - 1)
                 : (float)(param->init == INIT_ONE);
}

size_t model_stream_bytes(const struct model *model, struct model_shape s)
{
  struct carve stream = {0};
  carve(&stream, shape_rows(s), model->config.width, dtype_size(model->config.compute));
  return stream.used;
}

double model_trained_share(const struct model *model, int stage)
{
  const struct model_unit *u = &model->unit[model->stage[stage].unit];
  double all = 0, trained = 0;
  for (int p = 0; p < u->params; p++)
    if (u->param[p].ndim > 1 && model_stage_has(model, stage, p)) {
      all += (double)u->layout.elements[p];
      trained += u->param[p].frozen ? 0 : (double)u->layout.elements[p];
    }
  return all > 0 ? trained / all : 1;
}

bool model_decays(const struct model *model, int u, int p, unsigned exempt_kinds)
{
  return !(exempt_kinds >> model->unit[u].param[p].kind & 1);
}
