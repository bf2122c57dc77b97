/* Takes model.* from a Hugging Face folder or a checkpoint. Keys of the deck must agree. */
#include "job/model_source.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "io/checkpoint/checkpoint.h"
#include "io/huggingface/safetensors.h"
#include "io/text/file.h"
#include "job/job.h"
#include "model/hf.h"

bool model_source_is_folder(const char *path)
{
  return model_source_holds(path, "config.json");
}

bool model_source_is_checkpoint(const char *path)
{
  static const char tail[] = ".h5";
  const size_t bytes = strlen(path), own = sizeof tail - 1;
  return bytes >= own && !strcmp(path + bytes - own, tail);
}

bool model_source_holds(const char *folder, const char *name)
{
  return *folder && file_exists(file_path(folder, name).text);
}

/* --- one key ------------------------------------------------------------- */

/* As a user would write it. "": memory is out, or the value is longer than any of a model. */
struct value {
  char text[64];
};

static struct value value_of(const struct deck *deck, const struct option *option)
{
  struct value value = {""};
  char *text = NULL;
  if (!options_print_value(option, deck, &text))
    snprintf(value.text, sizeof value.text, "%s", text);
  mem_free(text);
  return value;
}

static bool is_model_key(const struct option *option)
{
  return !strncmp(option->name, "model.", 6);
}

/* Whether an option changes no result of a model that has its weights. */
static bool is_free(const struct option *option)
{
  return !strcmp(option->name, "model.init_std") || !strcmp(option->name, "model.dtype");
}

/* Resolves zeros, which mean values derived from other keys. */
static struct deck spell_out(const struct deck *deck)
{
  struct deck full = *deck;
  if (full.model.kv_heads == 0)
    full.model.kv_heads = full.model.heads;
  if (full.model.head_width == 0 && full.model.heads > 0)
    full.model.head_width = full.model.width / full.model.heads;
  if (full.model.ffn == 0)
    full.model.ffn = 4 * full.model.width;
  if (full.model.rope.theta == 0)
    full.model.rope.theta = 10000;
  return full;
}

/* The first key that does not agree, or NULL; *here and *there are its values. gpt2 has a weight
 * for each position. */
static const struct option *find_other(const struct deck *deck, const struct deck *found,
                                       struct value *here, struct value *there)
{
  const struct deck full = spell_out(deck), full_found = spell_out(found);
  const bool shorter =
      deck->model.context < found->model.context && strcmp(found->model.arch, "gpt2") != 0;
  for (const struct option *option = deck_table; option->name; option++) {
    if (!is_model_key(option) || is_free(option) ||
        (shorter && !strcmp(option->name, "model.context")))
      continue;
    *here = value_of(&full, option);
    *there = value_of(&full_found, option);
    if (strcmp(here->text, there->text) != 0)
      return option;
  }
  return NULL;
}

enum status model_source_check(const struct deck *found, const char *path, const struct deck *deck)
{
  struct value here, there;
  const struct option *option = find_other(deck, found, &here, &there);
  if (option)
    return status_usage("%s holds a model of %s=%s, the deck says %s: they must agree", path,
                        option->name, there.text, here.text);
  return STATUS_OK;
}

/* --- a whole deck -------------------------------------------------------- */

/* The keys that lora.init decides. */
static bool is_adapter_key(const struct option *option)
{
  return !strncmp(option->name, "lora.", 5) && strcmp(option->name, "lora.init") != 0 &&
         strcmp(option->name, "lora.base") != 0;
}

/* A run that continues does not read lora.init again. */
static enum status take_unset(const struct deck *found, const char *where, struct deck *deck)
{
  const bool adapters = *deck->lora.init && found->lora.rank > 0;
  enum status status = STATUS_OK;
  for (const struct option *option = deck_table; option->name && !status; option++) {
    char *text = NULL;
    if ((!is_model_key(option) && !(adapters && is_adapter_key(option))) ||
        options_is_set(deck->set, option->name))
      continue;
    status = options_print_value(option, found, &text)
                 ?: options_resolve_from(deck->set, where, option->name, text);
    mem_free(text);
  }
  return status;
}

static enum status check_set(const struct deck *found, const char *path, const struct deck *deck)
{
  struct value here, there;
  const struct option *option = find_other(deck, found, &here, &there);
  if (option)
    return status_usage("%s is %s (%s), but %s holds a model of %s: leave the key out",
                        option->name, here.text, options_where(deck->set, option->name), path,
                        there.text);
  return STATUS_OK;
}

/* Checks settings that only the architecture can refuse. */
static enum status check_model(const char *where, const struct deck *deck)
{
  struct model *model = NULL;
  const enum status status = model_create(&deck->model, &model);
  model_destroy(model);
  return status_prefix(status, "%s", where);
}

/* `where`: the file in `path` that has the values. */
static enum status resolve(const struct deck *found, const char *path, const char *where,
                           struct deck *deck)
{
  enum status status = take_unset(found, where, deck) ?: check_set(found, path, deck);
  status = status ?: deck_check(deck);
  return status ? status : check_model(where, deck);
}

enum status model_source_resolve_from(const struct deck *found, const char *path, struct deck *deck)
{
  return resolve(found, path, path, deck);
}

static struct deck describe(const struct hf_config *config)
{
  const enum deck_dtype export = config->dtype == DTYPE_BF16  ? DECK_BF16
                                 : config->dtype == DTYPE_F16 ? DECK_F16
                                                              : DECK_F32;
  return (struct deck){.model = config->model, .export = export};
}

static enum status read_config(const char *dir, struct hf_config *config, char **arch)
{
  const enum status status = hf_config_read(file_path(dir, "config.json").text, config);
  if (!status)
    *arch = mem_strdup(config->model.arch);
  return status || *arch ? status : STATUS_MEMORY;
}

/* Rank 0 reads the file, and sets the error. */
static enum status resolve_from_folder(struct comm *comm, const char *dir, struct deck *deck)
{
  struct hf_config config = {0};
  char *arch = NULL;
  enum status status =
      comm_agree(comm, comm_rank(comm) == 0 ? read_config(dir, &config, &arch) : STATUS_OK);
  status = status ?: comm_broadcast(comm, &config, sizeof config, 0);
  status = status ?: comm_broadcast_text(comm, &arch, 0);
  if (!status) {
    config.model.arch = arch;
    const struct deck found = describe(&config);
    status = comm_agree(comm, resolve(&found, dir, file_path(dir, "config.json").text, deck));
  }
  mem_free(arch);
  return status;
}

static enum status resolve_from_text(const char *path, const char *text, struct deck *deck)
{
  struct deck found = {0};
  enum status status = deck_load_text(&found, path, text, strlen(text), 0, NULL);
  status = status ?: model_source_resolve_from(&found, path, deck);
  deck_destroy(&found);
  return status;
}

enum status model_source_resolve_checkpoint(struct comm *comm, const char *path, struct deck *deck)
{
  struct checkpoint_meta meta = {0};
  enum status status = checkpoint_read_meta(comm, path, &meta);
  status = status ?: comm_agree(comm, resolve_from_text(path, meta.deck, deck));
  checkpoint_meta_free(&meta);
  return status;
}

static bool is_model_file(const char *path)
{
  const char *end = strrchr(path, '.');
  return end && (!strcmp(end, ".safetensors") || !strcmp(end, ".json"));
}

/* The error if rank 0 found no model folder at `path`. */
static enum status refuse(const char *path, const struct deck *deck)
{
  if (file_is_hub_name(path))
    return status_set(STATUS_INPUT,
                      "there is no folder %s. That looks like a Hugging Face name: download it "
                      "first (hf download %s --local-dir DIR), and name DIR",
                      path, path);
  if (!file_exists(path) && options_is_set(deck->set, "train.init") &&
      !options_is_typed(deck->set, "train.init"))
    return status_set(STATUS_INPUT,
                      "there is no folder %s%s (train.init, %s): download it as the head of the "
                      "deck says, or set train.init; `sluice plan` needs only its config.json",
                      path, file_base(path).text, options_where(deck->set, "train.init"));
  if (!file_exists(path))
    return status_set(STATUS_INPUT, "there is no %s%s: name a model folder or a checkpoint (.h5)",
                      path, file_base(path).text);
  if (model_source_holds(path, "ckpt"))
    return status_set(
        STATUS_INPUT,
        "%s is a run folder: name a checkpoint in %s/ckpt, such as %s/ckpt/step-00000100.h5", path,
        path, path);
  const enum status status = file_is_folder(path) ? safetensors_folder_refuse(path) : STATUS_OK;
  if (status)
    return status;
  if (!file_is_folder(path) && is_model_file(path))
    return status_set(STATUS_INPUT, "%s is one file of a model: name its folder", path);
  return status_set(STATUS_INPUT,
                    "%s is neither a model folder, with a config.json, nor a checkpoint (.h5)",
                    path);
}

/* --- adapters ------------------------------------------------------------ */

static enum status take_adapter(const struct hf_adapter *adapter, struct deck *deck)
{
  const struct file_path where = file_path(deck->lora.init, "adapter_config.json");
  const struct {
    const char *key;
    double here, there;
  } number[] = {{"lora.rank", (double)deck->lora.rank, (double)adapter->rank},
                {"lora.alpha", deck->lora.alpha, adapter->alpha},
                {"lora.rslora", deck->lora.rslora, adapter->rslora}};
  enum status status = STATUS_OK;
  for (size_t i = 0; i < sizeof number / sizeof *number && !status; i++) {
    char text[32];
    snprintf(text, sizeof text, "%.15g", number[i].there);
    if (!options_is_set(deck->set, number[i].key))
      status = options_resolve_from(deck->set, where.text, number[i].key,
                                    i < 2             ? text
                                    : adapter->rslora ? "true"
                                                      : "false");
    else if (number[i].here != number[i].there)
      status = status_usage("%s is %g (%s), but the adapters of %s have %s: leave the key out",
                            number[i].key, number[i].here, options_where(deck->set, number[i].key),
                            deck->lora.init, text);
  }
  if (!status && !options_is_set(deck->set, "lora.targets"))
    status = options_resolve_from(deck->set, where.text, "lora.targets", adapter->targets);
  return status;
}

/* PEFT stores a name alone, so only a difference can be said. */
static void warn_of_base(const struct hf_adapter *adapter, const struct deck *deck)
{
  const char *there = strrchr(adapter->base, '/'), *here = strrchr(deck->train.init, '/');
  there = there ? there + 1 : adapter->base;
  here = here ? here + 1 : deck->train.init;
  if (*there && *here && strcmp(there, here) != 0)
    log_warn("the adapters of %s are of %s, and train.init is %s: is it the same model?",
             deck->lora.init, adapter->base, deck->train.init);
}

/* Rank 0 reads the file. */
static enum status resolve_adapters(struct comm *comm, struct deck *deck)
{
  struct hf_adapter adapter = {0};
  enum status status = STATUS_OK;
  if (!*deck->lora.init)
    return STATUS_OK;
  if (comm_rank(comm) == 0)
    status = hf_adapter_read(file_path(deck->lora.init, "adapter_config.json").text, &adapter);
  if (!status && comm_rank(comm) == 0)
    warn_of_base(&adapter, deck);
  return comm_agree(comm, status)
             ?: comm_broadcast(comm, &adapter, sizeof adapter, 0)
             ?: comm_agree(comm, take_adapter(&adapter, deck));
}

enum status model_source_resolve(struct comm *comm, const char *path, struct deck *deck)
{
  int64_t folder = comm_rank(comm) == 0 && model_source_is_folder(path);
  const enum status status = resolve_adapters(comm, deck) ?: comm_max_i64(comm, &folder, 1);
  if (status)
    return status;
  if (folder)
    return resolve_from_folder(comm, path, deck);
  if (model_source_is_checkpoint(path))
    return model_source_resolve_checkpoint(comm, path, deck);
  return comm_agree(comm, comm_rank(comm) == 0 ? refuse(path, deck) : STATUS_OK);
}
