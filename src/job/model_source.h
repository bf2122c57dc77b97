/* The model.* keys of a deck, taken from a model: config.json of a Hugging Face folder, or the deck
 * in a checkpoint. */
#pragma once

#include "comm/comm.h"
#include "deck/deck.h"

/* Whether `path` is a Hugging Face model folder: it has a config.json. Local. */
bool model_source_is_folder(const char *path);
/* Whether `path` is named as a checkpoint is: .h5. */
bool model_source_is_checkpoint(const char *path);
/* Whether the folder holds such a file; "" is no folder. Local. */
bool model_source_holds(const char *folder, const char *name);

/* Gives every model.* key that the deck does not set the value in `path`, a folder or a checkpoint.
 * options_where() then names `path` as the source. Then it calls deck_check(), and checks whether
 * such a model is possible. A key that is set and disagrees: STATUS_USAGE naming both values.
 * model.context may be smaller than in `path` if positions have no weights (not gpt2).
 * model.init_std and model.dtype may differ. With lora.init, its keys lora.* are treated likewise.
 * Collective. */
enum status model_source_resolve(struct comm *comm, const char *path, struct deck *deck);
/* The same from a checkpoint, whatever its name. Collective. */
enum status model_source_resolve_checkpoint(struct comm *comm, const char *path, struct deck *deck);
/* The same from another deck, which `path` names in messages. Local. */
enum status model_source_resolve_from(const struct deck *found, const char *path,
                                      struct deck *deck);

/* Whether the decks describe one model, with the same exceptions. STATUS_USAGE naming the first key
 * that differs. Local. */
enum status model_source_check(const struct deck *found, const char *path, const struct deck *deck);
