/* Groups of files go to the rank with the least work. Rank 0 writes record and index. */
#include "io/tokens/prepare.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "io/text/file.h"
#include "io/text/lock.h"
#include "io/text/scratch.h"
#include "io/tokenizer/tokenizer.h"
#include "io/tokens/index.h"
#include "io/tokens/prepare_group.h"
#include "io/tokens/prepare_record.h"

static const int64_t GROUP_BYTES = 8 << 20; /* small files are taken together up to this size */
static const int64_t SHARD_TOKENS_MOST = (int64_t)1 << 33;

static enum status check_config(const struct prepare_config *config)
{
  if (config->inputs < 1)
    return status_usage("no input is given: name files or folders of text");
  if (!config->out || !config->out[0])
    return status_usage("no output folder is given");
  if (!(config->val >= 0 && config->val < 1))
    return status_usage(
        "the share of validation documents is %g; it must be at least 0 and below 1", config->val);
  if (config->shard_tokens < 1 || config->shard_tokens > SHARD_TOKENS_MOST)
    return status_usage("a shard of %" PRId64 " tokens is asked for; 1 to %" PRId64 " are possible",
                        config->shard_tokens, SHARD_TOKENS_MOST);
  return STATUS_OK;
}

/* ---- the output folder */

static bool matches(const char *pattern, const char *name)
{
  return fnmatch(pattern, name, FNM_EXTMATCH) == 0;
}

/* Files that tokenizer_copy() may write next to the shards. */
static const char of_tokenizer[] =
    "@(@(tokenizer|tokenizer_config|generation_config|vocab).json|merges.txt|chat_template.jinja)"
    "?(.tmp)";
static const char of_shards[] = "@(train|val)-*.h5";
/* Folders of an unfinished shard or index. */
static const char of_drafts[] = ".@(train-|val-|" SHARD_INDEX ")*";

/* Contents of the folder. `sweep` removes unfinished files of a killed process. `clear` removes all
 * shards, their index, the record and the tokenizer. */
struct contents {
  int64_t shards, others;
  bool record;
};

static enum status look_at(const char *dir, bool sweep, bool clear, struct contents *out)
{
  struct contents found = {0};
  DIR *folder = opendir(dir);
  if (!folder)
    return status_set(STATUS_IO, "cannot open the folder %s: %s", dir, strerror(errno));
  for (const struct dirent *entry; (entry = readdir(folder));) {
    const char *name = entry->d_name;
    const bool temporary = strcmp(name, "prepare.json.tmp") == 0,
               record = strcmp(name, "prepare.json") == 0, shard = matches(of_shards, name);
    int length;
    if (sweep && scratch_parse(name, &length) && matches(of_drafts, name))
      scratch_clear(dir, name);
    if (name[0] == '.')
      continue;
    if ((sweep && temporary) ||
        (clear && (shard || record || temporary || strcmp(name, SHARD_INDEX) == 0 ||
                   matches(of_tokenizer, name))))
      unlinkat(dirfd(folder), name, 0); /* a file that stays is reported later by its name */
    else if (shard)
      found.shards++;
    else if (record)
      found.record = true;
    else
      found.others += !temporary;
  }
  closedir(folder);
  *out = found;
  return STATUS_OK;
}

/* The first line of a record that another one has not, for a message:
 * "val": 0.050000000000000003, becomes val 0.05. */
struct difference {
  char text[300];
};

static struct difference find_difference(const char *a, const char *b)
{
  struct difference out;
  char line[200], key[64], *end;
  size_t same = 0, begin = 0;
  int at = 0;
  for (; a[same] && a[same] == b[same]; same++)
    if (a[same] == '\n')
      begin = same + 1;
  a += begin + strspn(a + begin, " ");
  snprintf(line, sizeof line, "%.*s", (int)strcspn(a, "\n"), a);
  snprintf(out.text, sizeof out.text, "%s", line);
  if (sscanf(line, "\"%63[a-z0-9_]\": %n", key, &at) != 1 || at == 0)
    return out;
  char *value = line + at + (line[at] == '"');
  value[strcspn(value, "\",")] = '\0';
  const double number = strtod(value, &end);
  if (end > value && strchr(value, '.'))
    snprintf(out.text, sizeof out.text, "%s %g", key, number);
  else
    snprintf(out.text, sizeof out.text, "%s %s", key, value);
  return out;
}

/* A call continues a folder with shards only if the folder records the same settings and inputs. */
static enum status compare_record(const char *dir, const char *path, const char *record)
{
  char *old = NULL;
  size_t bytes = 0;
  enum status status = file_read_all(path, (size_t)1 << 30, &old, &bytes);
  if (status)
    return status;
  if (strcmp(old, record) != 0)
    status = status_usage(
        "%s holds token shards of other settings or inputs (recorded: %s; now: %s); choose another "
        "folder, or remove this one to make it again",
        dir, find_difference(old, record).text, find_difference(record, old).text);
  mem_free(old);
  return status;
}

/* Rank 0. */
static enum status enter_folder(const char *dir, const char *record)
{
  struct contents contents;
  const struct file_path path = file_path(dir, "prepare.json"), index = file_path(dir, SHARD_INDEX);
  enum status status = look_at(dir, true, false, &contents);
  if (!status && contents.shards > 0 && contents.record)
    status = compare_record(dir, path.text, record);
  else if (!status && (contents.shards > 0 || (contents.others > 0 && !contents.record)))
    status = status_usage(
        "the folder %s is not empty and holds no prepare.json; choose another one", dir);
  else if (!status)
    status = file_write_all(path.text, record, strlen(record));
  /* Only a finished folder has an index, so it is removed until this call ends. */
  if (!status && unlink(index.text) != 0 && errno != ENOENT)
    status = status_set(STATUS_IO, "cannot remove %s: %s", index.text, strerror(errno));
  return status;
}

/* Rank 0, after a failure. A folder without a finished shard, or with useless shards (`clear`), is
 * restored to its earlier state. */
static void leave_folder(const char *dir, bool clear)
{
  struct contents contents;
  if (!look_at(dir, true, clear, &contents) && contents.shards == 0)
    (void)look_at(dir, true, true, &contents);
}

/* ---- groups per rank */

static enum status make_groups(struct prepare_job *job, struct input_piece **piece)
{
  const struct input_files *inputs = &job->inputs;
  enum status status = mem_new(MEM_META, inputs->count + 1, &job->group_begin)
                           ?: mem_new(MEM_META, inputs->count, piece);
  if (status)
    return status;
  for (int64_t i = 0; i < inputs->count; i++) {
    struct input_piece *last = *piece + job->groups;
    if (i == 0 || last[-1].bytes + inputs->file[i].bytes > GROUP_BYTES) {
      job->group_begin[job->groups] = i;
      last++->number = job->groups++;
    }
    last[-1].bytes += inputs->file[i].bytes;
  }
  job->group_begin[job->groups] = inputs->count;
  return STATUS_OK;
}

/* ---- the split */

/* Each side of the split needs at least one document. If all fall to one side, the document nearest
 * to the other side is moved there. The search stops when both sides have one, usually after a few
 * documents. A file that cannot be read is reported later, when the work reaches it. */
struct search {
  struct rng_key key;
  double least, most;
  struct prepare_choice nearest_val, nearest_train;
  int64_t documents;
  bool both; /* sides have a document */
};

static void look_at_document(const struct prepare_job *job, int64_t file, int64_t number,
                             struct search *search)
{
  double u = rng_uniform(search->key, (uint64_t)file, (uint64_t)number);
  const struct prepare_choice here = {file, number};
  if (u < search->least) {
    search->least = u;
    search->nearest_val = here;
  }
  if (u > search->most) {
    search->most = u;
    search->nearest_train = here;
  }
  search->documents++;
  search->both = search->least < job->config->val && search->most >= job->config->val;
}

static enum status look_at_file(const struct prepare_job *job, int64_t file, struct search *search)
{
  struct text *text = NULL;
  struct text_document document;
  bool found = true;
  enum status status = text_open(job->inputs.file[file].path, (struct text_position){0, 0},
                                 &job->config->text, &text);
  while (!status && !search->both) {
    status = text_next(text, &document, &found);
    if (status || !found)
      break;
    if (document.begins)
      look_at_document(job, file, document.document, search);
  }
  text_close(text);
  return status;
}

static enum status choose_turned(struct prepare_job *job)
{
  struct search search = {.key = rng_key_make(job->config->seed, "split"), .least = 1, .most = -1};
  if (job->config->val == 0)
    return STATUS_OK;
  for (int64_t f = 0; f < job->inputs.count && !search.both; f++)
    if (look_at_file(job, f, &search) != STATUS_OK)
      return STATUS_OK;
  if (search.documents == 1)
    return status_set(STATUS_INPUT,
                      "the corpus is one document, and a document is never split between training "
                      "and validation: use val=0, or cut the text into several files (split -C 64k "
                      "--additional-suffix=.txt FILE)");
  if (search.documents > 1 && !search.both)
    job->turned = search.least < job->config->val ? search.nearest_train : search.nearest_val;
  return STATUS_OK;
}

/* ---- the work */

struct worker {
  const struct prepare_job *job;
  struct prepare_group *group; /* at work, or NULL */
  struct prepare_done done;
};

static enum status advance(void *user, int64_t number, int64_t *byte, bool *finished)
{
  struct worker *worker = user;
  const enum status status =
      (worker->group ? STATUS_OK : prepare_group_open(worker->job, number, &worker->group))
          ?: prepare_group_advance(worker->group, &worker->done, byte, finished);
  if (!status && *finished) {
    prepare_group_close(worker->group);
    worker->group = NULL;
  }
  return status;
}

/* Appends the results of all ranks to *all. */
static enum status gather(struct comm *comm, const struct prepare_done *done,
                          struct prepare_done *all)
{
  enum status status = STATUS_OK;
  for (int root = 0; root < comm_ranks(comm) && !status; root++) {
    int64_t n = done->shards;
    status = comm_broadcast(comm, &n, sizeof n, root);
    if (status || n == 0)
      continue;
    status = comm_agree(comm, mem_grow(MEM_META, (void **)&all->shard, &all->room, all->shards + n,
                                       (int64_t)sizeof *all->shard));
    if (status)
      break;
    struct shard_info *piece = all->shard + all->shards;
    if (comm_rank(comm) == root)
      memcpy(piece, done->shard, (size_t)n * sizeof *piece);
    status = comm_broadcast(comm, piece, n * (int64_t)sizeof *piece, root);
    all->shards += n;
  }
  return status;
}

/* The last step: the folder is finished. */
static enum status write_index(struct comm *comm, const struct prepare_job *job,
                               const struct prepare_done *done)
{
  struct prepare_done all = {.shards = 0};
  enum status status = gather(comm, done, &all);
  for (int64_t i = 0; i < all.shards; i++)
    all.shard[i].tokenizer = tokenizer_id(job->tokenizer);
  if (!status && comm_rank(comm) == 0)
    status = shard_index_write(job->config->out, all.shards, all.shard);
  mem_free(all.shard);
  return comm_agree(comm, status);
}

static enum status check_result(const struct prepare_config *config,
                                const struct prepare_result *result)
{
  const char *others = config->inputs > 1 ? " and the other inputs" : "";
  if (result->pairs > 0 && result->documents != 2 * result->pairs)
    return status_set(STATUS_INPUT,
                      "%s%s holds pairs of chosen and rejected conversations (%" PRId64
                      ") and other texts (%" PRId64 "): prepare each kind into a folder of its own",
                      config->input[0], others, result->pairs,
                      result->documents - 2 * result->pairs);
  if (result->documents > 0)
    return STATUS_OK;
  if (result->skipped == 0)
    return status_set(STATUS_INPUT, "the corpus is empty: %s%s holds nothing but white space",
                      config->input[0], others);
  if (result->silent == result->skipped)
    return status_set(STATUS_INPUT,
                      "nothing of any conversation of %s%s is trained: none has an answer of the "
                      "assistant in the text that the chat template makes (train=all trains all)",
                      config->input[0], others);
  return status_set(STATUS_INPUT,
                    "the corpus is empty: each record of %s%s is blank or was skipped (%" PRId64
                    "); without invalid=skip the first is named",
                    config->input[0], others, result->skipped);
}

static enum status run_groups(struct comm *comm, struct prepare_job *job,
                              struct prepare_result *result, bool *useless)
{
  struct worker worker = {.job = job};
  struct input_piece *piece = NULL;
  enum status status =
      comm_agree(comm, make_groups(job, &piece))
          ?: input_files_work(comm, "prepare", piece, job->groups, advance, &worker);
  prepare_group_close(worker.group);
  mem_free(piece);
  struct prepare_result *sums = &worker.done.result;
  status = status ?: comm_sum_i64(comm, (int64_t *)sums, (int)(sizeof *sums / sizeof(int64_t)));
  sums->files = job->inputs.count;
  if (!status) {
    status = check_result(job->config, sums);
    *useless = status;
  }
  status = status ?: write_index(comm, job, &worker.done);
  mem_free(worker.done.shard);
  if (!status)
    *result = *sums;
  return status;
}

/* The template that was used, if it is a file. */
static enum status copy_template(const struct prepare_config *config)
{
  const struct file_path own = file_path(config->tokenizer_dir ?: "", "chat_template.jinja");
  const char *path = config->template ?: own.text;
  char *text = NULL;
  size_t bytes = 0;
  if (path == own.text && (!config->tokenizer_dir || !file_exists(path)))
    return STATUS_OK;
  const enum status status =
      file_read_all(path, PREPARE_TEMPLATE_MOST, &text, &bytes)
          ?: file_write_all(file_path(config->out, "chat_template.jinja").text, text, bytes);
  mem_free(text);
  return status;
}

/* Cores of this process, or its share of the node's if it is not bound. */
static int count_workers(struct comm *comm)
{
  cpu_set_t mask;
  const long all = sysconf(_SC_NPROCESSORS_ONLN);
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) /* more than 1024 CPUs */
    return 1;
  const int own = CPU_COUNT(&mask), each = own < all ? own : own / (int)comm_local_ranks(comm);
  return each > 0 ? each : 1;
}

static enum status run_in_folder(struct comm *comm, struct prepare_job *job,
                                 struct prepare_result *result)
{
  const struct prepare_config *config = job->config;
  bool useless = false;
  char *record = NULL;
  enum status status =
      comm_agree(comm, prepare_record(config, &job->inputs, job->tokenizer, &record));
  if (!status) {
    job->settings = hash_text(record);
    status = comm_check_same(comm, "the settings of prepare or the tokenizer's files",
                             &job->settings, sizeof job->settings);
  }
  const bool first = comm_rank(comm) == 0;
  status = status ?: comm_agree(comm, first ? enter_folder(config->out, record) : STATUS_OK);
  mem_free(record);
  if (!status) {
    if (first)
      status = tokenizer_copy(job->tokenizer, config->out)
                   ?: copy_template(config)
                   ?: choose_turned(job);
    status = comm_agree(comm, status)
             ?: comm_broadcast(comm, &job->turned, sizeof job->turned, 0)
             ?: run_groups(comm, job, result, &useless);
    if (status && first)
      leave_folder(config->out, useless);
  }
  return status;
}

enum status prepare_run(struct comm *comm, const struct prepare_config *config,
                        struct prepare_result *result)
{
  struct prepare_job job = {.config = config, .turned = {-1, -1}};
  enum status status =
      check_config(config)
          ?: tokenizer_create(config->tokenizer, config->tokenizer_dir, &job.tokenizer)
          ?: chat_create(config->renderer, count_workers(comm), job.tokenizer, &job.chat);
  struct folder_lock lock = {.fd = -1};
  if (!status && comm_rank(comm) == 0)
    status = folder_lock(config->out, "out", &lock);
  status = comm_agree(comm, status)
           ?: input_files_list(comm, config->inputs, config->input, config->out, &job.inputs)
           ?: run_in_folder(comm, &job, result);
  folder_unlock(config->out, &lock);
  input_files_free(&job.inputs);
  mem_free(job.group_begin);
  chat_destroy(job.chat);
  tokenizer_destroy(job.tokenizer);
  return status;
}
