/* Turns the documents of a group into shards, which a later run finds again. */
#include "io/tokens/prepare_group.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "io/text/file.h"
#include "io/text/text.h"

/* The unfinished shard of one split. */
struct draft {
  unsigned char *tokens; /* shard_token_bytes() each */
  int64_t n, room;
  uint64_t *first; /* of each document */
  int64_t documents, documents_room, pairs;
  unsigned char *trained; /* a bit per token */
  int64_t trained_room, untrained;
  int64_t text_bytes;
  int64_t skipped; /* objects left out; only the train shard counts them */
};

/* A conversation whose record was sent to be rendered. */
struct ahead {
  struct text_document document; /* without its text */
  int64_t skipped;               /* by text_skipped(), when it was read */
};

struct prepare_group {
  const struct prepare_job *job;
  int64_t number, part;
  int token_bytes;
  struct shard_position begin, at; /* start of the part; position after the last document taken */
  bool part_open;
  struct text *text;             /* open on input file at.file, or NULL */
  struct text_document document; /* read but not taken yet, if `waiting` */
  bool waiting;
  struct ahead *ahead; /* [chat_slots()] conversation k is in slot k modulo the slots */
  int64_t ahead_sent, ahead_taken;
  bool held, ended;    /* a plain document, or the end of the file, comes after those */
  int64_t skipped;     /* of `text`, counted so far */
  int64_t skipped_now; /* before the document */
  int64_t untrained;   /* conversations of which nothing is trained, not counted so far */
  bool begun;          /* the current document has tokens */
  bool rendered, bare; /* the document is a conversation; it has no ends of a text around it */
  struct draft draft[SHARD_SPLITS];
  struct tokenizer_tokens tokens; /* of a document, or of the two of a pair */
  int64_t chosen;                 /* tokens of the first of a pair; 0: no pair */
};

static bool is_validation(const struct prepare_job *job, int64_t file, int64_t number)
{
  bool below = rng_uniform(rng_key_make(job->config->seed, "split"), (uint64_t)file,
                           (uint64_t)number) < job->config->val;
  return below != (file == job->turned.file && number == job->turned.number);
}

/* Room for a whole train shard, so that it never moves. Pages take memory only as it fills. */
static enum status reserve_draft(struct prepare_group *group)
{
  const struct prepare_job *job = group->job;
  int64_t bytes = 0;
  for (int64_t i = job->group_begin[group->number]; i < job->group_begin[group->number + 1]; i++)
    bytes += job->inputs.file[i].bytes;
  struct draft *draft = &group->draft[SPLIT_TRAIN];
  return mem_grow(MEM_DATA, (void **)&draft->tokens, &draft->room,
                  bytes < job->config->shard_tokens ? bytes : job->config->shard_tokens,
                  group->token_bytes);
}

enum status prepare_group_open(const struct prepare_job *job, int64_t number,
                               struct prepare_group **out)
{
  struct prepare_group *group = NULL;
  enum status status = mem_new(MEM_DATA, 1, &group);
  if (status)
    return status;
  group->job = job;
  group->number = number;
  group->at.file = job->group_begin[number];
  group->token_bytes = shard_token_bytes(tokenizer_vocab(job->tokenizer));
  status = reserve_draft(group) ?: mem_new(MEM_DATA, chat_slots(job->chat), &group->ahead);
  if (status)
    prepare_group_close(group);
  else
    *out = group;
  return status;
}

void prepare_group_close(struct prepare_group *group)
{
  if (!group)
    return;
  text_close(group->text);
  for (int s = 0; s < SHARD_SPLITS; s++) {
    mem_free(group->draft[s].tokens);
    mem_free(group->draft[s].first);
    mem_free(group->draft[s].trained);
  }
  mem_free(group->ahead);
  mem_free(group->tokens.id);
  mem_free(group->tokens.trained);
  mem_free(group);
}

/* ---- parts that an earlier call finished */

static struct file_path path_of(const struct prepare_group *group, enum token_split split)
{
  return shard_path(group->job->config->out, split, group->number, group->part);
}

/* Header and checksums of one of the part's shards. */
static enum status check_shard(const struct prepare_group *group, enum token_split split,
                               struct shard_info *out)
{
  const struct file_path path = path_of(group, split);
  enum status status = shard_read(path.text, out) ?: shard_verify(path.text, out);
  const struct shard_position *a = &out->begin, *b = &group->at;
  if (!status && (out->settings != group->job->settings || out->split != split ||
                  out->group != group->number || out->part != group->part || a->file != b->file ||
                  a->byte != b->byte || a->number != b->number))
    status = status_set(STATUS_INPUT, "%s does not match its name and prepare.json", path.text);
  return status;
}

/* The train shard is made last, so without it the part is unfinished. A damaged part is made
 * again. */
static enum status find_finished(const struct prepare_group *group,
                                 struct shard_info info[SHARD_SPLITS], bool *found)
{
  *found = file_exists(path_of(group, SPLIT_TRAIN).text);
  if (!*found)
    return STATUS_OK;
  enum status status = check_shard(group, SPLIT_TRAIN, &info[SPLIT_TRAIN]);
  info[SPLIT_VAL] = (struct shard_info){.split = SPLIT_VAL};
  if (!status && info[SPLIT_TRAIN].part_tokens[SPLIT_VAL] > 0)
    status = check_shard(group, SPLIT_VAL, &info[SPLIT_VAL]);
  *found = !status;
  if (status == STATUS_MEMORY)
    return status;
  if (status)
    log_warn("a finished part cannot be kept and is made again: %s", status_text());
  return STATUS_OK;
}

static enum status count_shard(const struct shard_info *info, bool reused,
                               struct prepare_done *done)
{
  struct prepare_result *result = &done->result;
  if (info->split == SPLIT_VAL && shard_tokens(info) == 0)
    return STATUS_OK; /* there is no such file */
  const enum status status = mem_grow(MEM_META, (void **)&done->shard, &done->room,
                                      done->shards + 1, (int64_t)sizeof *done->shard);
  if (status)
    return status;
  done->shard[done->shards++] = *info;
  result->documents += info->documents;
  result->pairs += info->pairs;
  result->skipped += info->skipped;
  result->untrained += info->untrained;
  result->bytes += info->text_bytes;
  *(info->split == SPLIT_VAL ? &result->val_tokens : &result->train_tokens) += shard_tokens(info);
  result->shards++;
  result->reused_shards += reused;
  return STATUS_OK;
}

static void next_part(struct prepare_group *group)
{
  group->part++;
  group->part_open = false;
  for (int s = 0; s < SHARD_SPLITS; s++)
    group->draft[s].n = group->draft[s].documents = group->draft[s].pairs =
        group->draft[s].text_bytes = group->draft[s].skipped = group->draft[s].untrained = 0;
}

/* Forgets what was read of the text and not taken. */
static enum status drop_text(struct prepare_group *group)
{
  struct chat_answer answer;
  enum status status = STATUS_OK;
  for (; group->ahead_taken < group->ahead_sent && !status; group->ahead_taken++) {
    status = chat_receive(group->job->chat, &answer);
    status = status == STATUS_INPUT ? STATUS_OK : status;
  }
  text_close(group->text);
  group->text = NULL;
  group->waiting = group->held = group->ended = false;
  return status;
}

/* Skip the part if it is finished, else begin it. */
static enum status begin_part(struct prepare_group *group, struct prepare_done *done,
                              bool *finished)
{
  struct shard_info info[SHARD_SPLITS] = {0};
  bool found = false;
  enum status status = find_finished(group, info, &found);
  if (status)
    return status;
  if (!found) {
    group->begin = group->at;
    group->part_open = true;
    return STATUS_OK;
  }
  for (int s = 0; s < SHARD_SPLITS && !status; s++)
    status = count_shard(&info[s], true, done);
  status = status ?: drop_text(group);
  group->untrained = 0;
  group->at = info[SPLIT_TRAIN].end;
  group->begun = group->at.number > 0; /* it matters in the blocks of a plain text */
  *finished = info[SPLIT_TRAIN].last;
  next_part(group);
  return status;
}

/* ---- parts made here */

static enum status write_draft(struct prepare_group *group, enum token_split split, bool last,
                               struct prepare_done *done)
{
  const struct prepare_job *job = group->job;
  const struct draft *draft = &group->draft[split];
  const struct input_file *source = &job->inputs.file[group->begin.file];
  struct shard_info info = {.split = split,
                            .group = group->number,
                            .groups = job->groups,
                            .part = group->part,
                            .last = last,
                            .settings = job->settings,
                            .tokenizer = tokenizer_id(job->tokenizer),
                            .end_of_text = tokenizer_end_of_text(job->tokenizer),
                            .begin = group->begin,
                            .end = group->at,
                            .part_tokens = {group->draft[SPLIT_TRAIN].n, group->draft[SPLIT_VAL].n},
                            .documents = draft->documents,
                            .pairs = draft->pairs,
                            .skipped = draft->skipped,
                            .untrained = draft->untrained,
                            .text_bytes = draft->text_bytes};
  const struct file_path path = path_of(group, split);
  return shard_write(path.text, &info, source->path + source->name, draft->tokens,
                     draft->first, draft->trained)
             ?: shard_read(path.text, &info) /* where in the file things lie */
             ?: count_shard(&info, false, done);
}

static enum status close_part(struct prepare_group *group, bool last, struct prepare_done *done)
{
  enum status status =
      group->draft[SPLIT_VAL].n > 0 ? write_draft(group, SPLIT_VAL, last, done) : STATUS_OK;
  status = status ?: write_draft(group, SPLIT_TRAIN, last, done);
  next_part(group);
  return status;
}

/* Objects that were left out belong to the part that takes the document after them. */
static void count_skipped(struct prepare_group *group)
{
  group->draft[SPLIT_TRAIN].skipped += group->skipped_now - group->skipped + group->untrained;
  group->skipped = group->skipped_now;
  group->untrained = 0;
}

static enum status name_document(const struct prepare_group *group, enum status status)
{
  return status ? status_prefix(status, "%s, document %lld",
                                group->job->inputs.file[group->at.file].path,
                                (long long)group->document.number)
                : STATUS_OK;
}

/* The next document of the text: a conversation is sent to be rendered, another one is held, and
 * the end is noted. */
static enum status look_ahead(struct prepare_group *group)
{
  struct ahead next = {.skipped = 0};
  bool found = false;
  enum status status = text_next(group->text, &next.document, &found);
  next.skipped = text_skipped(group->text);
  if (status)
    return status;
  group->ended = !found;
  group->held = found && !next.document.is_chat;
  if (!found || group->held) {
    group->document = next.document;
    return STATUS_OK;
  }
  group->ahead[group->ahead_sent++ % chat_slots(group->job->chat)] = next;
  return chat_send(group->job->chat, next.document.text, next.document.bytes);
}

/* Appends tokens of a conversation. *trained false: nothing of it is trained. */
static enum status encode_chat(struct prepare_group *group, const struct chat_answer *answer,
                               size_t from, size_t to, bool *trained)
{
  struct tokenizer_tokens *tokens = &group->tokens;
  const int64_t before = tokens->n;
  bool any = false;
  const enum status status = tokenizer_encode_marked(group->job->tokenizer, answer->text + from,
                                                     to - from, answer->marks + from, tokens);
  for (int64_t i = before; i < tokens->n && !any; i++)
    any = tokens->trained[i];
  *trained &= any;
  return status;
}

/* The oldest conversation or pair becomes the document, with its tokens. A refused one, and one of
 * which nothing is trained, is left out. */
static enum status take_chat(struct prepare_group *group, struct prepare_done *done)
{
  const struct prepare_job *job = group->job;
  const struct ahead *next = &group->ahead[group->ahead_taken++ % chat_slots(job->chat)];
  struct chat_answer answer = {.text = NULL};
  bool trained = true;
  group->document = next->document;
  group->skipped_now = next->skipped;
  group->tokens.n = group->chosen = 0;
  enum status status = chat_receive(job->chat, &answer);
  if (status == STATUS_INPUT && job->config->text.invalid == TEXT_SKIP) {
    group->untrained++;
    return STATUS_OK;
  }
  if (status == STATUS_UNSUPPORTED) /* not because of this one */
    return status;
  if (!status && answer.first > 0) {
    status = encode_chat(group, &answer, 0, answer.first, &trained);
    group->chosen = group->tokens.n;
  }
  status = status ?: encode_chat(group, &answer, answer.first, answer.bytes, &trained);
  if (status)
    return name_document(group, status);
  if (*answer.note && done->result.differing++ == 0)
    log_warn(
        "%s, document %lld: the marks of the chat template are not what the assistant says: %s",
        job->inputs.file[group->at.file].path, (long long)group->document.number, answer.note);
  if (!trained && done->result.silent++ == 0)
    log_warn(
        "%s, document %lld: nothing of the conversation is trained; it is left out, and so are "
        "others like it",
        job->inputs.file[group->at.file].path, (long long)group->document.number);
  done->result.chats += trained;
  group->untrained += !trained;
  group->document.text = answer.text;
  group->document.bytes = answer.bytes;
  group->rendered = true;
  group->bare = !answer.is_text;
  group->waiting = trained;
  return STATUS_OK;
}

static enum status open_text(struct prepare_group *group)
{
  const struct prepare_job *job = group->job;
  group->skipped = group->skipped_now = 0;
  return text_open(job->inputs.file[group->at.file].path,
                   (struct text_position){group->at.byte, group->at.number}, &job->config->text,
                   &group->text);
}

/* Reads the next document of the group's files into group->document. If none is left,
 * group->waiting stays false. Conversations are read ahead, so that all processes have work. */
static enum status read_document(struct prepare_group *group, struct prepare_done *done)
{
  enum status status = STATUS_OK;
  while (!status && !group->waiting &&
         group->at.file < group->job->group_begin[group->number + 1]) {
    if (!group->text)
      status = open_text(group);
    while (!status && !group->held && !group->ended && chat_has_room(group->job->chat))
      status = look_ahead(group);
    if (status)
      break;
    if (group->ahead_taken < group->ahead_sent) {
      status = take_chat(group, done);
      continue;
    }
    group->skipped_now = text_skipped(group->text);
    group->rendered = group->bare = false;
    group->chosen = 0;
    group->waiting = group->held;
    group->held = false;
    if (group->waiting)
      continue;
    count_skipped(group);
    status = drop_text(group);
    group->at = (struct shard_position){.file = group->at.file + 1};
  }
  return status;
}

/* `trained`: 1 or 0 for each; NULL: all are. */
static enum status append_tokens(struct draft *draft, int token_bytes, const int32_t *tokens,
                                 const uint8_t *trained, int64_t n)
{
  enum status status =
      mem_grow(MEM_DATA, (void **)&draft->tokens, &draft->room, draft->n + n, token_bytes)
          ?: mem_grow(MEM_DATA, (void **)&draft->trained, &draft->trained_room,
                      (draft->n + n) / 8 + 1, 1);
  if (status)
    return status;
  unsigned char *to = draft->tokens + draft->n * token_bytes;
  for (int64_t i = 0; token_bytes == 2 && i < n; i++)
    memcpy(to + 2 * i, &(uint16_t){(uint16_t)tokens[i]}, 2);
  if (token_bytes == 4)
    memcpy(to, tokens, (size_t)n * sizeof *tokens);
  for (int64_t i = 0; i < n; i++) {
    const int64_t at = draft->n + i;
    const int bit = !trained || trained[i];
    draft->trained[at / 8] = (unsigned char)((at % 8 ? draft->trained[at / 8] : 0) | bit << at % 8);
    draft->untrained += !bit;
  }
  draft->n += n;
  return STATUS_OK;
}

/* A document's first token, and the beginning of text if the tokenizer has one. It never comes
 * twice. `tokens` [at, end) of the group are the document's. */
static enum status begin_document(struct prepare_group *group, struct draft *draft, int64_t at,
                                  int64_t end)
{
  const int32_t token = tokenizer_begin_of_text(group->job->tokenizer);
  const bool written = at < end && group->tokens.id[at] == token;
  enum status status = mem_grow(MEM_DATA, (void **)&draft->first, &draft->documents_room,
                                draft->documents + 1, (int64_t)sizeof *draft->first);
  if (status)
    return status;
  draft->first[draft->documents++] = (uint64_t)draft->n;
  return token >= 0 && !written && !group->bare
             ? append_tokens(draft, group->token_bytes, &token,
                             group->rendered ? group->tokens.trained + at : NULL, 1)
             : STATUS_OK;
}

static enum status encode(struct prepare_group *group)
{
  const struct prepare_job *job = group->job;
  const struct text_document *document = &group->document;
  group->tokens.n = 0;
  return name_document(group, tokenizer_encode(job->tokenizer, document->text, document->bytes,
                                               job->config->special_as_text, &group->tokens));
}

/* Tokens [at, end) of the group. */
static enum status put_document(struct prepare_group *group, struct draft *draft, int64_t at,
                                int64_t end)
{
  const struct tokenizer_tokens *tokens = &group->tokens;
  const int32_t last = tokenizer_end_of_text(group->job->tokenizer);
  enum status status = group->begun ? STATUS_OK : begin_document(group, draft, at, end);
  status = status
               ?: append_tokens(draft, group->token_bytes, tokens->id + at,
                                group->rendered ? tokens->trained + at : NULL, end - at);
  group->begun = !group->document.ends;
  const bool written = group->rendered && tokens->id[end - 1] == last;
  return status || group->begun || group->bare || written
             ? status
             : append_tokens(draft, group->token_bytes, &last, NULL, 1);
}

static enum status take_document(struct prepare_group *group)
{
  const struct text_document *document = &group->document;
  enum token_split split =
      is_validation(group->job, group->at.file, document->document) ? SPLIT_VAL : SPLIT_TRAIN;
  struct draft *draft = &group->draft[split];
  if (document->begins)
    group->begun = false;
  enum status status = group->rendered ? STATUS_OK : encode(group);
  if (!status && group->chosen > 0)
    status = put_document(group, draft, 0, group->chosen);
  status = status ?: put_document(group, draft, group->chosen, group->tokens.n);
  draft->pairs += group->chosen > 0;
  draft->text_bytes += (int64_t)document->bytes;
  count_skipped(group);
  group->at.byte = document->after.byte;
  group->at.number = document->after.number;
  group->waiting = false;
  return status;
}

enum status prepare_group_advance(struct prepare_group *group, struct prepare_done *done,
                                  int64_t *byte, bool *finished)
{
  *byte = group->at.byte;
  if (!group->part_open)
    return begin_part(group, done, finished);
  enum status status = read_document(group, done);
  if (status)
    return status;
  const int64_t most = group->job->config->shard_tokens;
  *finished = !group->waiting;
  if (*finished || group->draft[SPLIT_TRAIN].n >= most || group->draft[SPLIT_VAL].n >= most)
    return close_part(group, *finished, done);
  return take_document(group);
}
