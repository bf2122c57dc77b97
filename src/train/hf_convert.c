/* Converts between checkpoints and Hugging Face model folders, tensor by tensor. */
#include "train/hf_convert.h"

#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/append.h"
#include "base/log.h"
#include "base/mem.h"
#include "config.h"
#include "io/checkpoint/checkpoint.h"
#include "io/huggingface/safetensors.h"
#include "io/text/file.h"
#include "io/text/json.h"
#include "io/text/lock.h"
#include "io/tokenizer/tokenizer.h"
#include "job/base.h"
#include "job/model_source.h"
#include "job/weights.h"
#include "model/hf.h"
#include "model/unit.h"
#include "train/data.h"

/* This rank's part of tensor t. A small tensor belongs to one rank. */
static struct layout_range share(struct comm *comm, int t, int64_t elements)
{
  enum { SMALL = 1 << 16 };
  const int64_t rank = comm_rank(comm), ranks = comm_ranks(comm);
  if (elements < SMALL)
    return t % ranks == rank ? (struct layout_range){0, elements} : (struct layout_range){0, 0};
  return (struct layout_range){elements / ranks * rank,
                               rank == ranks - 1 ? elements : elements / ranks * (rank + 1)};
}

/* The model's parameters as tensors that are moved by pieces, each rank its share. */
static enum status make_tensors(struct comm *comm, const struct model *model, io_move *move,
                                struct io_tensor **out)
{
  struct io_tensor *tensors = NULL;
  const int n = weights_count(model);
  enum status status = mem_new(MEM_META, n, &tensors);
  if (status)
    return status;
  for (int u = 0, t = 0; u < model->units; u++)
    for (int p = 0; p < model->unit[u].params; p++, t++) {
      const struct model_param *param = &model->unit[u].param[p];
      tensors[t] = (struct io_tensor){.group = "model",
                                      .name = param->name,
                                      .type = DTYPE_F32,
                                      .ndim = param->ndim,
                                      .range = share(comm, t, model->unit[u].layout.elements[p]),
                                      .writer = true,
                                      .move = move};
      memcpy(tensors[t].shape, param->shape, (size_t)param->ndim * sizeof *param->shape);
    }
  *out = tensors;
  return STATUS_OK;
}

/* --- import -------------------------------------------------------------- */

struct import {
  struct comm *comm;
  const char *dir, *path;
  struct deck deck;
  struct model *model;
  struct safetensors_folder *folder;
  const struct st_tensor **from;
  struct io_tensor *tensors;
};

static enum status read_piece(const struct io_tensor *tensor, struct layout_range piece, void *data)
{
  return safetensors_read(tensor->arg, piece, data);
}

/* The stored deck is that of a run that begins with these parameters, so it has no train.init. */
static enum status describe(struct import *import)
{
  char *init = mem_printf("train.init=%s", import->dir);
  enum status status = init ? deck_load(&import->deck, 1, &init) : STATUS_MEMORY;
  mem_free(init);
  status = comm_agree(import->comm, status)
      ?: model_source_resolve(import->comm, import->dir, &import->deck)
      ?: comm_agree(import->comm, options_resolve_from(import->deck.set, "sluice ckpt import",
                                                           "train.init", ""));
  return status;
}

/* A missing folder is probably a typing error. */
static enum status check_target(const char *path)
{
  char text[PATH_MAX];
  snprintf(text, sizeof text, "%s", path);
  const char *folder = dirname(text);
  if (file_is_folder(folder))
    return STATUS_OK;
  return status_usage("%s: there is no folder %s; make it, or choose another name", path, folder);
}

static enum status write_import(struct import *import)
{
  const int n = weights_count(import->model);
  struct checkpoint_meta meta = {.ranks = comm_ranks(import->comm),
                                 .seed = (uint64_t)import->deck.run.seed,
                                 .version = (char *)PACKAGE_VERSION};
  for (int t = 0; t < n; t++)
    import->tensors[t].arg = (void *)import->from[t];
  enum status status =
      comm_agree(import->comm, options_print_yaml(import->deck.set, &meta.deck))
          ?: checkpoint_write(import->comm, import->path, &meta, n, import->tensors);
  if (!status)
    log_info("%s: %lld tensors, %.1f M parameters of a %s; its tokenizer, token ids and "
             "generation_config.json stay in %s: export it with tokenizer=%s",
             import->path, (long long)n, (double)import->model->parameters * 1e-6,
             import->model->config.arch, import->dir, import->dir);
  mem_free(meta.deck);
  return status;
}

enum status hf_convert_import(struct comm *comm, const char *dir, const char *path)
{
  struct import import = {.comm = comm, .dir = dir, .path = path};
  enum status status =
      comm_agree(comm, comm_rank(comm) == 0 ? check_target(path) : STATUS_OK) ?: describe(&import);
  status = status ?: model_create(&import.deck.model, &import.model)
        ?: safetensors_folder_open(dir, &import.folder)
        ?: mem_new(MEM_META, weights_count(import.model), &import.from)
        ?: make_tensors(comm, import.model, read_piece, &import.tensors);
  status = comm_agree(comm, status)
      ?: weights_match(comm, import.model, dir, import.folder, import.from)
      ?: write_import(&import);
  mem_free(import.tensors);
  mem_free(import.from);
  safetensors_folder_close(import.folder);
  model_destroy(import.model);
  deck_destroy(&import.deck);
  return status;
}

/* --- export -------------------------------------------------------------- */

struct export
{
  struct comm *comm;
  const struct deck *deck;
  const char *checkpoint, *dir;
  const struct hf_convert_options *options;
  struct checkpoint_meta meta;
  bool adapters;           /* are exported, and not a whole model */
  struct data_maker maker; /* the tokenizer that the checkpoint records */
  bool bytes;              /* the tokenizer is bytes, whose files are made here */
  struct folder_lock lock; /* rank 0: of the folder */
  struct model *model;
  struct st_shape *shapes; /* of the tensors that are written */
  int written;
  struct io_tensor *tensors;
  struct target *targets; /* of each */
  struct safetensors_writer *writer;
};

/* A tensor on its way to the folder. */
struct target {
  const struct export *export;
  const struct model_param *param;
  char *name;         /* in the folder, if it has another one */
  int at;             /* in the writer */
  const float *a, *b; /* to be merged into it; NULL: none */
};

/* w += s B A, of the elements [range) of a matrix, in fp32. */
static void merge(const struct target *target, struct layout_range range, float *w)
{
  enum { PART = 256 };
  const struct model *model = target->export->model;
  const bool transposed = model_is_transposed(model);
  const int64_t rank = model->lora_rank, rows = target->param->shape[0],
                columns = target->param->shape[1];
  for (int64_t e = range.begin, n; e < range.end; e += n) {
    const int64_t row = e / columns, column = e % columns;
    float sum[PART] = {0};
    n = columns - column < range.end - e ? columns - column : range.end - e;
    n = n < PART ? n : PART;
    for (int64_t k = 0; k < rank; k++) {
      const float factor = transposed ? target->b[row * rank + k] : target->a[k * rows + row];
      const float *of =
          transposed ? target->a + k * columns + column : target->b + column * rank + k;
      for (int64_t j = 0; j < n; j++)
        sum[j] += factor * of[transposed ? j : j * rank];
    }
    for (int64_t j = 0; j < n; j++)
      w[e - range.begin + j] += model->lora_scale * sum[j];
  }
}

static enum status write_piece(const struct io_tensor *tensor, struct layout_range piece,
                               void *data)
{
  const struct target *target = tensor->arg;
  if (target->a)
    merge(target, piece, data);
  return safetensors_writer_put(target->export->writer, target->at, piece, data);
}

static enum status refuse_model(const char *dir)
{
  static const char *const names[] = {"config.json", "model.safetensors",
                                      "model.safetensors.index.json", "adapter_config.json",
                                      "adapter_model.safetensors"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (model_source_holds(dir, names[i]))
      return status_usage("%s holds a model already (%s): remove it or choose another folder", dir,
                          names[i]);
  return STATUS_OK;
}

/* Files that belong to a tokenizer; other files are copied if they exist. */
static const struct file {
  const char *name;
  bool makes_tokenizer;
} files[] = {{"tokenizer.json", true},         {"vocab.json", true},
             {"tokenizer.model", true},        {"merges.txt", false},
             {"tokenizer_config.json", false}, {"special_tokens_map.json", false},
             {"added_tokens.json", false},     {"generation_config.json", false},
             {"chat_template.jinja", false},   {"chat_template.json", false}};
enum { FILES = sizeof files / sizeof *files };

static bool has_tokenizer(const char *dir)
{
  for (int i = 0; i < FILES; i++)
    if (files[i].makes_tokenizer && model_source_holds(dir, files[i].name))
      return true;
  return false;
}

/* Without the key, the tokenizer of transformers 4 also gives token_type_ids, which generate() of
 * most models refuses. A file that is no JSON object stays as it is. */
static enum status name_inputs(const char *path, char **text, size_t *bytes)
{
  struct json_file file = {0};
  if (json_parse(path, *text, *bytes, &file))
    return STATUS_OK;
  enum status status = STATUS_OK;
  char *named = NULL;
  if (json_is_object(file.root) && !json_object_get(file.root, "model_input_names")) {
    named = mem_printf("{\n  \"model_input_names\": [\"input_ids\", \"attention_mask\"]%s%s",
                       json_object_size(file.root) > 0 ? "," : "", strchr(*text, '{') + 1);
    status = named ? STATUS_OK : STATUS_MEMORY;
  }
  json_close(&file);
  if (!named)
    return status;
  mem_free(*text);
  *text = named;
  *bytes = strlen(named);
  return status;
}

static enum status copy_file(const char *from, const char *to, const char *name)
{
  enum { MOST = 256 << 20 };
  const struct file_path source = file_path(from, name);
  char *text = NULL;
  size_t bytes = 0;
  enum status status = file_read_all(source.text, MOST, &text, &bytes);
  if (!status && !strcmp(name, "tokenizer_config.json"))
    status = name_inputs(source.text, &text, &bytes);
  status = status ?: file_write_all(file_path(to, name).text, text, bytes);
  mem_free(text);
  return status;
}

static enum status check_tokenizer(const struct export *export)
{
  const char *word = export->options->tokenizer;
  const long long vocab = (long long)export->deck->model.vocab;
  const bool bytes = !strcmp(word, "bytes");
  if (bytes && vocab < TOKENIZER_BYTES_VOCAB)
    return status_usage("tokenizer=bytes has %d tokens, but the model has %lld: name the folder of "
                        "its tokenizer",
                        TOKENIZER_BYTES_VOCAB, vocab);
  if (!*word || bytes || has_tokenizer(word) || model_source_is_folder(word))
    return STATUS_OK;
  return status_usage(
      "tokenizer=%s: the folder holds no tokenizer.json, vocab.json or "
      "tokenizer.model, nor a config.json; use tokenizer=bytes, or name another folder",
      word);
}

/* A folder of tokens may hold the tokenizer that they were made with. */
static const char *find_tokenizer(const struct export *export)
{
  const char *const init = export->deck->train.init, *const data =
                                                         options_first(&export->deck->data.train);
  if (export->bytes)
    return "";
  if (*export->options->tokenizer)
    return export->options->tokenizer;
  if (*init && model_source_is_folder(init) && (has_tokenizer(init) || !has_tokenizer(data)))
    return init;
  return has_tokenizer(data) ? data : "";
}

/* The files of a tokenizer come before the checkpoint's record. */
static bool takes_bytes(const struct export *export)
{
  const char *word = export->options->tokenizer;
  if (*word)
    return !strcmp(word, "bytes");
  return !strcmp(export->maker.id.name, "bytes") && !has_tokenizer(find_tokenizer(export));
}

static enum status pass_files(const struct export *export)
{
  const char *from = find_tokenizer(export);
  enum status status = STATUS_OK;
  if (export->bytes)
    return tokenizer_write_bytes(export->dir);
  for (int i = 0; i < FILES && !status; i++)
    if (model_source_holds(from, files[i].name))
      status = copy_file(from, export->dir, files[i].name);
  return status;
}

static enum status tokens_of_tokenizer(const char *name, const char *folder,
                                       struct hf_config *config)
{
  struct tokenizer *tokenizer = NULL;
  const enum status status = tokenizer_create(name, folder, &tokenizer);
  if (status)
    return status;
  config->eos = (struct hf_tokens){.n = 1, .id = {tokenizer_end_of_text(tokenizer)}};
  config->bos = (struct hf_tokens){.n = HF_TOKENS_NONE};
  if (tokenizer_begin_of_text(tokenizer) >= 0)
    config->bos = (struct hf_tokens){.n = 1, .id = {tokenizer_begin_of_text(tokenizer)}};
  tokenizer_destroy(tokenizer);
  return STATUS_OK;
}

/* Token ids belong to the tokenizer, and come from its folder: from config.json, or, if there is
 * none, from the tokenizer itself. */
static void find_tokens(const struct export *export, const char *from, struct hf_config *config)
{
  const char *name = export->bytes ? "bytes" : tokenizer_in_folder(from);
  enum status status = STATUS_OK;
  if (model_source_holds(from, "config.json"))
    status = hf_config_tokens(file_path(from, "config.json").text, &config->bos, &config->eos);
  else if (name)
    status = tokens_of_tokenizer(name, from, config);
  if (status)
    log_warn("%s: config.json gets no bos_token_id and eos_token_id", status_text());
}

/* If no folder has one. With it transformers ends a text as the tokenizer does. */
static enum status write_generation(const struct export *export, const struct hf_config *config)
{
  char text[128] = "{";
  if (config->bos.n > 0)
    append_text(text, sizeof text, "\"bos_token_id\": %lld, ", (long long)config->bos.id[0]);
  append_text(text, sizeof text, "\"eos_token_id\": %lld}\n", (long long)config->eos.id[0]);
  return file_write_all(file_path(export->dir, "generation_config.json").text, text, strlen(text));
}

/* If a model's folder or a tokenizer was the source, a missing part was missing there too. */
static void warn_of_missing(const struct export *export, const char *from,
                            const struct hf_config *config)
{
  const char *data = options_first(&export->deck->data.train);
  const bool known = model_source_holds(from, "config.json") || config->eos.n;
  const bool moved = !*from && *data && !file_exists(data);
  const char *const missing[] = {has_tokenizer(from) || export->bytes ? "" : ", tokenizer",
                                 known ? "" : ", bos_token_id, eos_token_id",
                                 known || model_source_holds(from, "generation_config.json")
                                     ? ""
                                     : ", generation_config.json"};
  char list[96] = "";
  for (size_t i = 0; i < sizeof missing / sizeof *missing; i++)
    append_text(list, sizeof list, "%s", missing[i]);
  if (*list)
    log_warn("%s has no %s%s%s%s: export to a new folder with tokenizer=FOLDER, a folder that "
             "holds the tokenizer's files or a model, or with tokenizer=bytes",
             export->dir, list + 2, moved ? ", because data.train=" : "", moved ? data : "",
             moved ? " is not there" : "");
}

static enum status write_config(const struct export *export)
{
  struct hf_config config = {.model = export->model->config, .dtype = export->options->type};
  const char *from = find_tokenizer(export);
  char *text = NULL;
  find_tokens(export, from, &config);
  warn_of_missing(export, from, &config);
  enum status status = STATUS_OK;
  if (config.eos.n && !model_source_holds(from, "config.json") &&
      !model_source_holds(from, "generation_config.json"))
    status = write_generation(export, &config);
  status = status
      ?: hf_config_print(&config, &text)
      ?: file_write_all(file_path(export->dir, "config.json").text, text, strlen(text));
  mem_free(text);
  return status;
}

static const char *base_of(const struct export *export)
{
  return base_place(&export->meta, export->deck, export->checkpoint, export->options->base ?: "");
}

static enum status write_adapter_config(const struct export *export)
{
  const struct deck *deck = export->deck;
  struct hf_adapter adapter = {.rank = deck->lora.rank,
                               .alpha = deck->lora.alpha > 0 ? deck->lora.alpha
                                                             : 2.0 * (double)deck->lora.rank,
                               .rslora = deck->lora.rslora};
  char *text = NULL;
  snprintf(adapter.base, sizeof adapter.base, "%s", base_of(export));
  const enum status status =
      hf_adapter_print(export->model, &adapter, &text)
          ?: file_write_all(file_path(export->dir, "adapter_config.json").text, text, strlen(text));
  mem_free(text);
  return status;
}

/* Adapters that are merged are read whole. */
static enum status describe_target(struct export *export, int t, const struct model_param *param)
{
  struct io_tensor *tensor = &export->tensors[t];
  struct target *target = &export->targets[t];
  const bool adapter = param->kind == PARAM_ADAPTER;
  *target = (struct target){.export = export, .param = param, .at = -1};
  tensor->arg = target;
  if (adapter && !export->adapters) {
    tensor->move = NULL;
    tensor->range = (struct layout_range){0, param->shape[0] * param->shape[1]};
    return mem_alloc(MEM_IO, (size_t)tensor->range.end * sizeof(float), &tensor->data);
  }
  if (adapter != export->adapters)
    return STATUS_OK;
  if (adapter && !(target->name = mem_printf("base_model.model.%s", param->name)))
    return STATUS_MEMORY;
  target->at = export->written++;
  export->shapes[target->at] =
      (struct st_shape){.name = target->name ?: tensor->name, .ndim = tensor->ndim};
  memcpy(export->shapes[target->at].shape, tensor->shape, sizeof tensor->shape);
  return STATUS_OK;
}

static enum status describe_targets(struct export *export)
{
  const struct model *model = export->model;
  enum status status = STATUS_OK;
  for (int u = 0, t = 0; u < model->units; u++) {
    const int first = t;
    for (int p = 0; p < model->unit[u].params && !status; p++, t++)
      status = describe_target(export, t, &model->unit[u].param[p]);
    for (int p = 0; p < model->unit[u].params && !status && !export->adapters; p++) {
      const struct model_param *param = &model->unit[u].param[p];
      const int a = param->adapter.a, b = param->adapter.b;
      export->targets[first + p].a = a ? export->tensors[first + a].data : NULL;
      export->targets[first + p].b = b ? export->tensors[first + b].data : NULL;
    }
  }
  return status;
}

static enum status open_export(struct export *export)
{
  const bool leads = comm_rank(export->comm) == 0;
  enum status status = leads ? folder_lock(export->dir, "folder", &export->lock) : STATUS_OK;
  if (!status && leads)
    status = refuse_model(export->dir);
  status = status ?: check_tokenizer(export);
  export->bytes = !status && takes_bytes(export);
  status = status ?: job_model(export->deck, DTYPE_F32, comm_ranks(export->comm), &export->model)
        ?: make_tensors(export->comm, export->model, write_piece, &export->tensors)
        ?: mem_new(MEM_META, weights_count(export->model), &export->targets)
        ?: mem_new(MEM_META, weights_count(export->model), &export->shapes);
  return status ?: describe_targets(export);
}

/* What the checkpoint has, and the base that it names. */
static enum status read_tensors(const struct export *export)
{
  struct comm *comm = export->comm;
  const struct base base = {comm, export->model, NULL, export->meta.seed, export->tensors};
  const char *place = base_of(export), *path = export->checkpoint;
  const bool adapted = export->model->lora_rank > 0;
  struct io_tensor *list = NULL;
  uint64_t sum;
  int n = 0;
  enum status status = comm_agree(comm, mem_new(MEM_META, weights_count(export->model), &list));
  for (int t = 0; t < weights_count(export->model) && !status; t++)
    if (!adapted || export->targets[t].param->kind == PARAM_ADAPTER)
      list[n++] = export->tensors[t];
  status = status ?: checkpoint_load(comm, path, n, list, NULL);
  mem_free(list);
  if (status || !adapted || export->adapters)
    return status;
  return base_check_place(comm, place, path, "base")
             ?: base_read(&base, place, &sum)
             ?: comm_agree(comm, base_check_sum(&export->meta, path, place, "base", sum));
}

/* Weights are complete before config.json makes the folder a model. */
static enum status write_export(struct export *export)
{
  struct comm *comm = export->comm;
  const bool leads = comm_rank(comm) == 0, adapters = export->adapters;
  enum status status =
      safetensors_writer_open(comm, export->dir, adapters ? "adapter_model" : "model",
                              export->options->type, export->written, export->shapes,
                              adapters ? INT64_MAX : export->options->most_bytes, &export->writer);
  if (status)
    return status;
  status = read_tensors(export) ?: comm_agree(comm, leads ? pass_files(export) : STATUS_OK);
  status = safetensors_writer_close(export->writer, status);
  if (!status && leads)
    status = adapters ? write_adapter_config(export) : write_config(export);
  return comm_agree(comm, status);
}

static void say_export(const struct export *export)
{
  const struct model *model = export->model;
  const int64_t trained = model->parameters - model->frozen;
  log_info("%s: %s, %.1f M parameters as %s", export->dir,
           export->adapters ? "adapters" : export->deck->model.arch,
           (double)(export->adapters       ? trained
                    : model->lora_rank > 0 ? model->frozen
                                           : model->parameters) *
               1e-6,
           dtype_name(export->options->type));
  if (model->lora_rank > 0 && !export->adapters)
    log_info("adapters are merged into the base as it is stored%s%s",
             deck_frozen(export->deck) ? ", not as training had it, in " : "",
             deck_frozen(export->deck) ?: "");
}

static void free_export(struct export *export)
{
  for (int t = 0; export->targets && t < weights_count(export->model); t++) {
    mem_free(export->targets[t].name);
    mem_free(export->tensors[t].data);
  }
  mem_free(export->targets);
  mem_free(export->tensors);
  mem_free(export->shapes);
  model_destroy(export->model);
  checkpoint_meta_free(&export->meta);
}

enum status hf_convert_export(struct comm *comm, const struct deck *deck, const char *checkpoint,
                              const char *dir, const struct hf_convert_options *options)
{
  struct export export = {.comm = comm,
                          .deck = deck,
                          .checkpoint = checkpoint,
                          .dir = dir,
                          .options = options,
                          .adapters = deck->lora.rank > 0 && !options->merge,
                          .lock = {.fd = -1}};
  enum status status = data_maker_find(comm, checkpoint, &export.maker)
      ?: checkpoint_read_meta(comm, checkpoint, &export.meta)
      ?: comm_agree(comm, open_export(&export));
  if (!status) {
    status = write_export(&export);
    for (int i = 0; i < FILES && status && export.lock.made; i++)
      unlink(file_path(dir, files[i].name).text);
  }
  folder_unlock(dir, &export.lock);
  if (!status)
    say_export(&export);
  free_export(&export);
  return status;
}
