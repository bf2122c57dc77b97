/* One group of input files turned into shards, part after part. The content of a part depends on
 * the inputs and the settings only. Private to io/. */
#pragma once

#include <stdbool.h>

#include "io/text/input_files.h"
#include "io/tokenizer/tokenizer.h"
#include "io/tokens/chat.h"
#include "io/tokens/prepare.h"
#include "io/tokens/shard.h"

/* Data that all groups of a call share. */
struct prepare_job {
  const struct prepare_config *config;
  struct input_files inputs;
  struct tokenizer *tokenizer;
  struct chat *chat;
  uint64_t settings;    /* hash of prepare.json */
  int64_t *group_begin; /* [groups + 1] first input file of each group */
  int64_t groups;
  struct prepare_choice {
    int64_t file, number;
  } turned; /* the document that is moved to the other side of the split; file -1: none */
};

/* Finished parts of a rank's groups, in the order in which they were finished. */
struct prepare_done {
  struct prepare_result result;
  struct shard_info *shard; /* [shards] mem_free */
  int64_t shards, room;
};

struct prepare_group;
enum status prepare_group_open(const struct prepare_job *job, int64_t group,
                               struct prepare_group **out);
void prepare_group_close(
    struct prepare_group *group); /* takes NULL; drops tokens of unfinished shards */
/* Works on one document, or skips one part that an earlier call finished. A part that is finished
 * is added to *done. *byte: where in its file the group is. Local. */
enum status prepare_group_advance(struct prepare_group *group, struct prepare_done *done,
                                  int64_t *byte, bool *finished);
