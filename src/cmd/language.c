/* Rank 0 chooses the tokenizer of a model, and compares it with those that made its data. */
#include "cmd/language.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "io/text/file.h"
#include "train/data.h"

/* `set` NULL: there are no data. */
static enum status choose(const struct source *source, const struct token_set *set,
                          struct tokenizer_id *id, struct language *out)
{
  const char *home = source->deck.train.init, *data = options_first(&source->deck.data.train);
  const char *name = tokenizer_in_folder(home), *own = *out->named_dir ? out->named_dir : data;
  if (*out->named) {
    const enum status status = tokenizer_find(out->named, out->named_dir, &name, &out->folder);
    if (status)
      return status;
  } else if (!name && !set) {
    return status_usage(
        "no tokenizer found: neither the model nor %s has one; set tokenizer=bytes or "
        "tokenizer=FOLDER",
        *data ? data : "data.train");
  } else {
    out->folder = mem_strdup(name ? home : own);
    if (!out->folder)
      return STATUS_MEMORY;
  }
  if (name)
    snprintf(id->name, sizeof id->name, "%s", name);
  else
    *id = token_set_stream(set).tokenizer;
  return STATUS_OK;
}

/* Ids of another tokenizer mean other texts than the model learned. Only an explicit tokenizer= may
 * use one. */
static enum status compare(const struct language *language, const struct data_maker *maker)
{
  const struct tokenizer_id id = tokenizer_id(language->tokenizer);
  if (tokenizer_compare(&id, &maker->id) != TOKENIZER_OTHER)
    return STATUS_OK;
  const enum status status =
      status_usage("this tokenizer (%s) is not that of %s (%s), so its ids mean other texts; %s",
                   tokenizer_id_text(&id).text, maker->of, tokenizer_id_text(&maker->id).text,
                   *language->named ? "it is used because tokenizer= names it"
                                    : "name the tokenizer of the model by tokenizer=FOLDER");
  if (!*language->named)
    return status;
  log_warn("%s", status_text());
  return STATUS_OK;
}

/* Compares with the model's tokenizer and, if the deck now names other data, with theirs. */
static enum status check(const struct language *language, const struct data_maker *learned,
                         const struct token_set *set)
{
  const enum status status = compare(language, learned);
  if (status || !set)
    return status;
  const struct data_maker data = {.id = token_set_stream(set).tokenizer, .of = language->data};
  return tokenizer_compare(&data.id, &learned->id) == TOKENIZER_SAME ? STATUS_OK
                                                                     : compare(language, &data);
}

static enum status open_first(const struct source *source, const struct data_maker *learned,
                              const struct token_set *set, struct language *out)
{
  struct tokenizer_id id = {.name = ""};
  const enum status status = choose(source, set, &id, out)
                                 ?: tokenizer_create(id.name, out->folder, &out->tokenizer)
                                 ?: check(out, learned, set);
  if (status)
    return status;
  const long long has = tokenizer_vocab(out->tokenizer), V = source->deck.model.vocab;
  return has <= V ? STATUS_OK
                  : status_usage("the %s tokenizer has %lld tokens, the model's vocabulary %lld: "
                                 "this is not the tokenizer it was trained with",
                                 tokenizer_name(out->tokenizer), has, V);
}

/* The data of the deck may have been moved. Then they are not compared. */
enum status language_open(struct comm *comm, const struct source *source, const char *model,
                          struct language *language)
{
  struct token_set *set = NULL;
  struct data_maker learned;
  const char *data = options_first(&source->deck.data.train);
  int64_t there = comm_rank(comm) == 0 && *data && file_exists(data);
  enum status status = data_maker_find(comm, model, &learned) ?: comm_sum_i64(comm, &there, 1);
  if (!status && there)
    status = token_set_open(comm, data, SPLIT_TRAIN, &set);
  language->data = there ? data : NULL;
  if (!status && comm_rank(comm) == 0)
    status = open_first(source, &learned, set, language);
  status = comm_agree(comm, status);
  token_set_close(set);
  return status;
}

void language_close(struct language *language)
{
  tokenizer_destroy(language->tokenizer);
  mem_free(language->folder);
}
