/* The tokenizer of a model, for commands that turn text into its ids. Private to src/cmd. */
#pragma once

#include "cmd/cmd.h"
#include "io/tokenizer/tokenizer.h"

/* Rows of a command's table. */
/* clang-format off */
#define LANGUAGE_OPTIONS                                                                           \
  {"tokenizer", OPTION_STRING, AT(tokenizer), "", .path = true,                                    \
   .text = "Tokenizer, if it is not the model's own. It is bytes, gpt2, or a folder with "         \
           "tokenizer.json or with vocab.json and merges.txt. Empty: the tokenizer of the model "  \
           "folder or of the training data."},                                                     \
  {"tokenizer_dir", OPTION_STRING, AT(tokenizer_dir), "", .path = true, .rare = true,              \
   .text = "Folder with vocab.json and merges.txt. For tokenizer=gpt2 and for data whose folder "  \
           "does not have these files."}
/* clang-format on */

struct language {
  const char *named, *named_dir; /* given: values of these options */
  struct tokenizer *tokenizer;   /* of rank 0 */
  char *folder;                  /* of the tokenizer, on rank 0; NULL: none */
  const char *data;              /* folder of the training data, if it is there; NULL */
};
/* The tokenizer comes from the options, else from the model folder, else from the training data.
 * The model folder may be the one that the run began with. It must be the one of `model`, the
 * source's checkpoint or model folder ("": none), and of the data, unless an option names it.
 * language_close(), whatever the status. Collective. */
enum status language_open(struct comm *comm, const struct source *source, const char *model,
                          struct language *language);
void language_close(struct language *language);
