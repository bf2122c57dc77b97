/* Weights from a Hugging Face folder or a checkpoint. */
#pragma once

#include "comm/comm.h"
#include "io/huggingface/safetensors.h"
#include "job/job.h"

/* Fill the parameters of a job at rest from a folder or a checkpoint. Each rank reads only its own
 * part. The error names a missing, misshapen or unknown tensor, a checkpoint of another model, and
 * adapters that `path` does not have. Collective. */
enum status weights_load(struct job *job, const char *path);
/* The same with moments, from a checkpoint that may be damaged and whose adapters the caller has
 * compared. *damaged is set as by checkpoint_load(), and the job may then load another one.
 * Collective. */
enum status weights_resume(struct job *job, const char *path, bool *damaged);
/* Whether a checkpoint has the adapters of the job: their ranks, their matrices and the factor of
 * their products. model: that of its deck. STATUS_USAGE names the checkpoint. Local. */
enum status weights_match_adapters(const struct job *job, const char *path,
                                   const struct deck *saved, const struct model *model);
/* The weights of a new run: from the deck's train.init, or initialised. Collective. */
enum status weights_start(struct job *job);

/* The folder's tensor of each parameter, in the order of units and parameters: out has room for
 * them all. Names may lack the prefix of base models, and have words of wrappers, which are taken
 * out with a warning. Other tensors of the folder are known to
 * change nothing. A tied head is compared bitwise with the embedding, and each rank compares a
 * part. Collective. */
enum status weights_match(struct comm *comm, const struct model *model, const char *dir,
                          struct safetensors_folder *folder, const struct st_tensor **out);
/* Whether weights_load() would find the deck's parameters in the folder. Collective. */
enum status weights_check_folder(struct comm *comm, const struct deck *deck, const char *dir);
/* A source of job_state_fill(): the elements of a struct st_tensor. */
enum status weights_range(const void *tensor, struct layout_range range, float *out);
int weights_count(const struct model *model); /* parameters as named tensors */
