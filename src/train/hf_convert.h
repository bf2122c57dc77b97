/* Checkpoints from and to Hugging Face model folders. All ranks work, one tensor at a time, through
 * a buffer of a few MiB for any size of model. */
#pragma once

#include "comm/comm.h"
#include "deck/deck.h"

/* A checkpoint of step 0, without optimizer state, from a folder: fp32 masters, and a deck with the
 * folder's model.*. The folder of `path` must exist, `path` itself must not. Collective. */
enum status hf_convert_import(struct comm *comm, const char *dir, const char *path);

struct hf_convert_options {
  enum dtype type;       /* of the weights: F32, BF16, F16 */
  const char *tokenizer; /* "bytes", or a folder with the model's tokenizer. "": that of the deck's
                            train.init or data.train, or bytes if the checkpoint records it */
  int64_t most_bytes;    /* of weights in one file */
  bool merge;            /* of a checkpoint with adapters: the merged model */
  const char *base;      /* of adapters; NULL or "": where the checkpoint says */
};
/* A folder that transformers loads or, of adapters, PEFT, from a checkpoint whose deck is `deck`. A
 * folder that already holds a model is refused. config.json is written last. If the export fails, a
 * folder that it made is removed. If config.json and the folder lack a part of a complete model
 * (tokenizer, token ids), a warning names it. Collective. */
enum status hf_convert_export(struct comm *comm, const struct deck *deck, const char *checkpoint,
                              const char *dir, const struct hf_convert_options *options);
