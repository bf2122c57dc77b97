/* Makes a folder of token shards from a table on standard input:
 *
 *   documents FOLDER VOCAB < table
 *
 * Tokens are below VOCAB. A line is a document, of "train" or "val": train 5 7 9* 3*. Tokens
 * with a star are trained. If a split has none of them, it has a mask without a bit. */
#include <stdlib.h>
#include <string.h>

#include "io/text/file.h"
#include "io/tokens/index.h"

enum { MOST = 1 << 16 };
static struct draft {
  uint16_t token[MOST];
  uint64_t first[MOST];
  unsigned char trained[MOST / 8];
  struct shard_info info;
} draft[SHARD_SPLITS];

static void must(enum status status)
{
  if (!status)
    return;
  fprintf(stderr, "documents: %s\n", status_text());
  exit(1);
}

static void add_document(char *line)
{
  char *rest = NULL, *word = strtok_r(line, " \n", &rest);
  if (!word)
    return;
  struct draft *to = &draft[strcmp(word, "val") == 0 ? SPLIT_VAL : SPLIT_TRAIN];
  int64_t *n = &to->info.part_tokens[to->info.split];
  to->first[to->info.documents++] = (uint64_t)*n;
  while ((word = strtok_r(NULL, " \n", &rest)) && *n < MOST) {
    const bool trained = strchr(word, '*') != NULL;
    to->token[*n] = (uint16_t)strtol(word, NULL, 10);
    to->trained[*n / 8] |= (unsigned char)(trained << *n % 8);
    to->info.untrained += !trained;
    to->info.text_bytes += 4;
    ++*n;
  }
}

int main(int argc, char **argv)
{
  static char line[1 << 16];
  struct shard_info made[SHARD_SPLITS];
  int64_t n = 0;
  const int64_t vocab = argc == 3 ? strtol(argv[2], NULL, 10) : 0;
  if (vocab < 1)
    return 2;
  for (int s = 0; s < SHARD_SPLITS; s++)
    draft[s].info = (struct shard_info){.split = (enum token_split)s,
                                        .groups = 1,
                                        .last = 1,
                                        .tokenizer = {.name = "json", .vocab = vocab}};
  while (fgets(line, sizeof line, stdin))
    add_document(line);
  must(file_make_folders(argv[1]));
  for (int s = SHARD_SPLITS - 1; s >= 0; s--) {
    struct draft *of = &draft[s];
    of->info.part_tokens[!s] = draft[!s].info.part_tokens[!s];
    const struct file_path path = shard_path(argv[1], of->info.split, 0, 0);
    if (of->info.documents == 0)
      continue;
    must(shard_write(path.text, &of->info, "documents", of->token, of->first, of->trained));
    must(shard_read(path.text, &made[n++]));
  }
  must(shard_index_write(argv[1], n, made));
  return 0;
}
