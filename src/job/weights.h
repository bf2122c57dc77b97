/* Weights that were not made here: a Hugging Face folder's, or a checkpoint's. */
#ifndef SLUICE_JOB_WEIGHTS_H
#define SLUICE_JOB_WEIGHTS_H

#include "comm/comm.h"
#include "io/huggingface/safetensors.h"
#include "job/job.h"

/* Fill the parameters of a job at rest from a folder or a checkpoint. Each rank reads what it holds
 * and nothing else. A missing, misshapen or unknown tensor, and a checkpoint of another model: a
 * sentence that names it. Collective. */
enum status weights_load(struct job *job, const char *path);
/* The same with moments, from a checkpoint that may be damaged: *damaged is as checkpoint_try() has
 * it, and the job may then load another. Collective. */
enum status weights_resume(struct job *job, const char *path, bool *damaged);
/* As a fresh run begins: from the deck's train.init, or initialised. Collective. */
enum status weights_start(struct job *job);

/* The folder's tensor of each parameter, in the order of units and parameters: out has room for
 * them all. Names may lack the prefix of base models. Whatever else the folder holds is known to
 * change nothing: a tied head is compared with the embedding, bit by bit, each rank a part.
 * Collective. */
enum status weights_match(struct comm *comm, const struct model *model, const char *dir,
                          const struct safetensors_folder *folder, const struct st_tensor **out);
int weights_count(const struct model *model); /* parameters as named tensors */

#endif
