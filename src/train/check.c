/* For `sluice doctor`: would a run start, or continue? The refusals come from the functions of
 * train_run(). Nothing is left behind. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "io/checkpoint/checkpoint.h"
#include "io/text/file_system.h"
#include "job/model_source.h"
#include "job/weights.h"
#include "optim/optim.h"
#include "train/evaluate.h"
#include "train/private.h"

static enum status check_folder(const struct deck *deck, bool *used)
{
  struct train_run run = {.deck = deck};
  double end_s;
  train_folder_paths(&run);
  return stop_find_end(getenv("SLURM_JOB_END_TIME"), (double)time(NULL), &end_s)
             ?: train_folder_check(&run, used);
}

/* The step of the newest checkpoint of the run folder, 0: there is none. Collective. */
static enum status find_step(struct comm *comm, const struct deck *deck, int64_t *step)
{
  static const char prefix[] = "/step-";
  char *path = NULL;
  const enum status status =
      checkpoint_find(comm, file_path(deck->run.dir, "ckpt").text, false, &path);
  *step = path ? strtoll(strrchr(path, '/') + sizeof prefix - 1, NULL, 10) : 0;
  mem_free(path);
  return status;
}

enum status train_check_folder(struct comm *comm, const struct deck *deck, int64_t *stopped)
{
  bool used = false;
  *stopped = 0;
  enum status status =
      comm_agree(comm, comm_rank(comm) == 0 ? check_folder(deck, &used) : STATUS_OK);
  status = status ?: comm_broadcast(comm, &used, sizeof used, 0);
  if (!status && used)
    status = find_step(comm, deck, stopped);
  if (status || !used || (*stopped > 0 && *stopped < deck->run.steps))
    return status;
  *stopped = 0;
  return train_folder_refuse(deck);
}

enum status train_check_space(struct comm *comm, const struct deck *deck, int64_t *need,
                              int64_t *free)
{
  struct model *model = NULL;
  struct file_system system;
  enum status status = job_model(deck, DTYPE_F32, comm_ranks(comm), &model)
                           ?: file_system_read(deck->run.dir, &system);
  if (!status) {
    const int tensors = 1 + optim_ops((enum optimizer)deck->optim.name)->n_states;
    const int64_t saved = model->parameters - (model->lora_rank > 0 ? model->frozen : 0);
    *need = saved * (int64_t)sizeof(float) * tensors;
    *free = system.free;
  }
  model_destroy(model);
  return comm_agree(comm, status);
}

enum status train_check_weights(struct comm *comm, const struct deck *deck)
{
  const char *init = deck->train.init;
  int64_t folder = *init && comm_rank(comm) == 0 && model_source_is_folder(init);
  const enum status status = *init ? comm_max_i64(comm, &folder, 1) : STATUS_OK;
  if (status || !*init)
    return status;
  return folder ? weights_check_folder(comm, deck, init) : checkpoint_verify(comm, init);
}

enum status train_check_data(struct comm *comm, const struct deck *deck, int64_t *tokens)
{
  const int64_t sequence = deck->data.sequence ? deck->data.sequence : deck->model.context;
  struct data_sources data = {0}, val = {0};
  struct data_maker maker;
  enum status status = data_maker_find(comm, deck->train.init, &maker)
                           ?: data_open(comm, deck, SPLIT_TRAIN, sequence, &maker, &data);
  if (!status) {
    *tokens = data_stream(&data).tokens;
    maker = (struct data_maker){.id = data_stream(&data).tokenizer, .of = data.of[0].dir};
  }
  if (!status && deck->eval.every) {
    status = data_open(comm, deck, SPLIT_VAL, sequence, &maker, &val);
    if (status == STATUS_INPUT)
      status_set(status, "%s%s", status_text(), evaluator_cure);
  }
  data_close(&val);
  data_close(&data);
  return status;
}
