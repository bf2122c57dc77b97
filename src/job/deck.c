/* The parts of a job that the deck defines: the shape of a step, and the model. */
#include "job/private.h"
#include "optim/optim.h"

#include <stdio.h>

static int64_t least_of(int64_t a, int64_t b)
{
  return a < b ? a : b;
}

/* Evaluation and generation do not use the batch, so any number of ranks is valid, and full
 * sharding needs the least memory. Parameters are in the tier that training used. */
static void shape_without_batch(const struct deck *deck, struct plan_input *input)
{
  enum { EVAL_SEQUENCES = 8, NEW_TOKENS = 256, CACHED_TOKENS = 2048 };
  int64_t sequence = deck->data.sequence ? deck->data.sequence : deck->model.context;
  int64_t micro =
      deck->data.micro_batch ? deck->data.micro_batch : least_of(deck->data.batch, EVAL_SEQUENCES);
  if (input->mode == PLAN_GENERATE) {
    input->capacity =
        deck->data.sequence ? deck->data.sequence : least_of(deck->model.context, CACHED_TOKENS);
    sequence = least_of(input->capacity, NEW_TOKENS);
    micro = 1;
  }
  input->strategy = STRATEGY_FULL_SHARD;
  input->shape = (struct deck_shape){.ranks = input->ranks,
                                     .group = input->ranks,
                                     .mesh = {1, 1, 1, 1},
                                     .rank_batch = micro,
                                     .micro_batch = micro,
                                     .micros = 1,
                                     .sequence = sequence};
  if (input->mode == PLAN_EVAL && job_scores_rows(deck))
    input->sources = (int)(micro * input->ranks);
  /* Data that training could not keep on the device do not fit here either. */
  input->policy = (struct deck_policy){.reduce_every_micro = true,
                                       .host_state = deck->tiers.optimizer == DECK_TIER_HOST,
                                       .frozen = deck_frozen(deck)};
}

struct job_cited job_cite(const struct deck *deck, const char *key, const char *value)
{
  struct job_cited cited;
  snprintf(cited.text, sizeof cited.text, "%s (%s) is %s", key, options_where(deck->set, key),
           value);
  return cited;
}

bool job_scores_rows(const struct deck *deck)
{
  return deck->rows[1].apart || deck->train.objective == OBJECTIVE_DPO;
}

enum job_use job_training(const struct deck *deck)
{
  return deck->eval.every || deck->train.objective == OBJECTIVE_DPO ? JOB_TRAIN_AND_EVAL
                                                                    : JOB_TRAIN;
}

/* No row of an architecture says yet how it is cut along these axes. */
static enum status check_axes(const struct deck *deck)
{
  const struct {
    const char *key;
    int64_t ranks;
  } axes[] = {{"mesh.context", deck->mesh.context},
              {"mesh.tensor", deck->mesh.tensor},
              {"mesh.pipeline", deck->mesh.pipeline},
              {"mesh.expert", deck->mesh.expert}};
  for (size_t i = 0; i < sizeof axes / sizeof *axes; i++)
    if (axes[i].ranks > 1)
      return status_set(STATUS_UNSUPPORTED,
                        "%s (%s) is %lld, but no architecture can be cut along this axis yet: "
                        "leave it out",
                        axes[i].key, options_where(deck->set, axes[i].key),
                        (long long)axes[i].ranks);
  return STATUS_OK;
}

enum status job_shape(const struct deck *deck, enum job_use use, int local_ranks,
                      struct plan_input *input)
{
  const int vals = deck->data.val.n;
  input->prefetch = (int)deck->shard.prefetch;
  input->sources = use == JOB_BENCH || use == JOB_GENERATE ? 1
                   : input->mode == PLAN_EVAL && vals > 0  ? vals
                                                           : deck->data.train.n;
  if (use != JOB_GENERATE) {
    const struct deck_rows *rows = &deck->rows[input->mode == PLAN_EVAL];
    input->positions = input->documents = rows->packed;
    input->squares = rows->squares;
  }
  input->optim = optim_settings(deck);
  if (use == JOB_EVAL || use == JOB_GENERATE) {
    shape_without_batch(deck, input);
    return check_axes(deck);
  }
  input->strategy = deck->shard.strategy;
  enum status status = deck_resolve(deck, input->ranks, local_ranks, &input->shape, &input->policy)
                           ?: check_axes(deck);
  if (!status && deck->transfer.rate > 0 && !input->device->host_memory)
    status =
        status_usage("transfer.rate (%s) is %g, which simulates slow copies on the host: leave "
                     "it out, or set run.device=host",
                     options_where(deck->set, "transfer.rate"), deck->transfer.rate);
  if (status)
    return status;
  if (input->mode ==
      PLAN_EVAL) { /* during training: in the training's storage, one micro-batch per step */
    input->shape.micros = 1;
    input->shape.rank_batch = input->shape.micro_batch;
    if (job_scores_rows(deck))
      input->sources = (int)(input->shape.micro_batch * input->ranks);
  } else if (deck->train.objective == OBJECTIVE_DPO)
    input->beta = deck->train.beta;
  return STATUS_OK;
}

enum status job_model(const struct deck *deck, enum dtype compute, int ranks, struct model **out)
{
  struct model_config config = deck->model;
  struct model *model = NULL;
  config.compute = compute;
  const struct model_lora lora = {.rank = deck->lora.rank,
                                  .scale = deck_lora_scale(deck),
                                  .n = deck->lora.targets.n,
                                  .targets = deck->lora.targets.item};
  enum status status = model_create(&config, &model);
  if (!status)
    status = lora.rank > 0
                 ? model_adapt(model, &lora, ranks)
                 : model_freeze(model, deck->train.freeze.n, deck->train.freeze.item, ranks);
  if (!status && deck->run.compute == DECK_COMPUTE_FP8)
    status = model_use_fp8(model, deck->run.fp8_gradients ? FP8_ALL : FP8_PRODUCTS,
                           deck->run.fp8_except.n, deck->run.fp8_except.item);
  if (status)
    model_destroy(model);
  else
    *out = model;
  return status;
}
