/* sluice ckpt: lists, shows, verifies, compares, imports and exports checkpoints. */
#include "io/checkpoint/checkpoint.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/printable.h"
#include "cmd/cmd.h"
#include "io/text/file.h"
#include "io/text/json_write.h"
#include "train/hf_convert.h"

struct values {
  int dtype;
  char *tokenizer;
  int64_t shard_bytes;
  char *base;
  bool merge, json;
};

/* Each type has two names. */
static const char *const dtypes[] = {"deck",    "fp32",     "bf16",    "fp16",
                                     "float32", "bfloat16", "float16", NULL};

// clang-format off: one row an option
static const struct option table[] = {
    {"dtype", OPTION_CHOICE, AT(dtype), "deck", .choices = dtypes,
     .text = "Export: data type of the weights. deck: model.dtype of the checkpoint's deck, and "
             "fp32 for adapters."},
    {"merge", OPTION_BOOL, AT(merge), "false",
     .text = "Export of a checkpoint with adapters: the whole model. Adapters are added in fp32 to "
             "the base as it is stored, and the sum is rounded once. Otherwise PEFT's files of the "
             "adapters."},
    {"base", OPTION_STRING, AT(base), "", .path = true,
     .text = "Export: base of the adapters, if it has moved."},
    {"tokenizer", OPTION_STRING, AT(tokenizer), "", .path = true,
     .text = "Export: bytes, or the folder of the tokenizer files to copy. Empty: the tokenizer of "
             "train.init or of the training data."},
    {"shard_bytes", OPTION_INT, AT(shard_bytes), "5G", .least = 1, .most = 1e18,
     .unit = OPTIONS_BYTES, .text = "Export: largest size of one weight file."},
    {"json", OPTION_BOOL, AT(json), "false", .text = "Ls, show, verify, diff: print JSON."},
    {.name = NULL},
};
// clang-format on

static bool wants_json(const struct arguments *arguments)
{
  return ((const struct values *)arguments->values)->json;
}

/* A run folder stands for its checkpoints. */
static enum status find_folder(const char *word, char **out)
{
  *out = mem_printf("%s/ckpt", word);
  if (*out && !file_is_folder(*out)) {
    mem_free(*out);
    *out = mem_strdup(word);
  }
  return *out ? STATUS_OK : STATUS_MEMORY;
}

static enum status list(const struct arguments *arguments)
{
  char *folder = NULL;
  const enum status status = find_folder(arguments->word[1], &folder)
                                 ?: checkpoint_list(folder, wants_json(arguments), stdout);
  mem_free(folder);
  return status;
}

/* The file that a word names, after it was used. A run folder stands for its newest checkpoint that
 * verifies, or for the newest one that `use` does not call damaged. *out is mem_free()d.
 * Collective. */
static enum status find_file(struct comm *comm, const char *word, checkpoint_use *use, char **out)
{
  bool is_folder = comm_rank(comm) == 0 && file_is_folder(word), damaged;
  char *folder = NULL;
  enum status status = comm_broadcast(comm, &is_folder, sizeof is_folder, 0);
  if (!status && is_folder)
    status = comm_agree(comm, find_folder(word, &folder));
  if (!status && is_folder)
    status = use ? checkpoint_use_newest(comm, folder, false, use, comm, out)
                 : checkpoint_find(comm, folder, false, out);
  if (!status && is_folder && !*out)
    status = status_set(STATUS_INPUT, "%s holds no checkpoint", folder);
  mem_free(folder);
  if (status || is_folder)
    return status;
  *out = mem_strdup(word);
  status = comm_agree(comm, *out ? STATUS_OK : STATUS_MEMORY);
  return status || !use ? status : use(comm, word, &damaged);
}

static enum status show(const struct arguments *arguments)
{
  struct comm *comm = arguments->comm;
  char *file = NULL;
  enum status status = find_file(comm, arguments->word[1], NULL, &file);
  if (!status && comm_rank(comm) == 0)
    status = checkpoint_show(file, wants_json(arguments), stdout);
  status = comm_agree(comm, status);
  mem_free(file);
  return status;
}

/* A damaged newest checkpoint is a failure, so no earlier one replaces it. */
static enum status verify_file(void *comm, const char *path, bool *damaged)
{
  *damaged = false;
  return checkpoint_verify(comm, path);
}

static void print_verified(const char *path, bool json)
{
  struct json_writer writer = {.to = stdout};
  if (!json) {
    printable_print(stdout, "%s: all checksums agree\n", path);
    return;
  }
  json_write_open(&writer, NULL, '{');
  json_write_text(&writer, "file", path);
  json_write_bool(&writer, "verified", true);
  json_write_close(&writer, '}');
}

static enum status verify(const struct arguments *arguments)
{
  char *file = NULL;
  enum status status = find_file(arguments->comm, arguments->word[1], verify_file, &file);
  if (!status && comm_rank(arguments->comm) == 0)
    print_verified(file, wants_json(arguments));
  mem_free(file);
  return status;
}

/* As diff(1): exit code 1 when the files differ. */
static enum status diff(const struct arguments *arguments)
{
  struct comm *comm = arguments->comm;
  char *left = NULL, *right = NULL;
  bool same = true;
  enum status status = find_file(comm, arguments->word[1], NULL, &left)
                           ?: find_file(comm, arguments->word[2], NULL, &right);
  if (!status && comm_rank(comm) == 0)
    status = checkpoint_diff(left, right, wants_json(arguments), stdout, &same);
  status = comm_agree(comm, status);
  if (!status && !same)
    *arguments->exit_code = 1;
  mem_free(left);
  mem_free(right);
  return status;
}

static enum status import_model(const struct arguments *arguments)
{
  return hf_convert_import(arguments->comm, arguments->word[1], arguments->word[2]);
}

static enum status export_model(const struct arguments *arguments)
{
  static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16, /* of both names */
                                     DTYPE_F32, DTYPE_BF16, DTYPE_F16};
  const struct values *values = arguments->values;
  struct source source = {0};
  enum status status = source_open(arguments, arguments->word[1], "", &source);
  if (!status && source.deck.lora.rank == 0 && (values->merge || *values->base))
    status = status_usage("%s has no adapters: leave out merge and base", source.checkpoint);
  if (!status) {
    const bool adapters = source.deck.lora.rank > 0 && !values->merge;
    const struct hf_convert_options options = {.type = types[values->dtype > 0 ? values->dtype - 1
                                                             : adapters        ? (int)DECK_F32
                                                                        : (int)source.deck.export],
                                               .merge = values->merge,
                                               .base = values->base,
                                               .tokenizer = values->tokenizer,
                                               .most_bytes = values->shard_bytes};
    status = hf_convert_export(arguments->comm, &source.deck, source.checkpoint, arguments->word[2],
                               &options);
  }
  source_close(&source);
  return status;
}

static const struct action actions[] = {
    {"ls", "FOLDER", {2, 2}, false, list},
    {"show", "FILE|RUN_FOLDER", {2, 2}, true, show},
    {"verify", "FILE|RUN_FOLDER", {2, 2}, true, verify},
    {"diff", "FILE|RUN_FOLDER FILE|RUN_FOLDER", {3, 3}, true, diff},
    {"import", "MODEL_FOLDER FILE", {3, 3}, true, import_model},
    {"export",
     "FILE|RUN_FOLDER MODEL_FOLDER [merge=true] [base=FOLDER] [dtype=fp32|bf16|fp16] "
     "[tokenizer=bytes|FOLDER] [shard_bytes=N]",
     {3, 3},
     true,
     export_model},
    {.name = NULL},
};

static enum status run(const struct arguments *arguments)
{
  const char *action = arguments->word[0];
  if (wants_json(arguments) && (!strcmp(action, "import") || !strcmp(action, "export")))
    return status_usage("sluice ckpt %s prints nothing, so it takes no --json", action);
  return action_run(&command_ckpt, arguments);
}

const struct command command_ckpt = {
    .name = "ckpt",
    .usage = "ls FOLDER | show FILE|RUN_FOLDER | verify FILE|RUN_FOLDER | diff FILE|RUN_FOLDER "
             "FILE|RUN_FOLDER | import MODEL_FOLDER FILE | export FILE|RUN_FOLDER MODEL_FOLDER "
             "[key=value ...]",
    .summary = "list, show, verify, compare, import and export checkpoints",
    .text =
        "  ls  print one line for each checkpoint of a folder, such as the ckpt/ of a run folder\n"
        "  show  print the metadata and tensors of a checkpoint\n"
        "  verify  check the structure and every checksum, in parallel under mpirun\n"
        "  diff  print the differences between two checkpoints; the exit code is 1 if there are "
        "any\n"
        "  import  write a checkpoint (.h5) of step 0, without optimizer state, from a Hugging "
        "Face model folder (config.json and safetensors)\n"
        "  export  write a Hugging Face model folder, with the tokenizer's files, from a "
        "checkpoint; of a checkpoint with adapters PEFT's adapter_model.safetensors and "
        "adapter_config.json\n"
        "\n"
        "RUN_FOLDER stands for its newest checkpoint that verifies. verify takes the newest one, "
        "damaged or not.\n"
        "\n"
        "Import and export stream the tensors, in parallel under mpirun. They do not overwrite a "
        "model.\n"
        "\n"
        "JSON (--json):\n"
        "  ls  an array of objects: file, step, samples, ranks, tensors, bytes, program; or file "
        "and error for a file that cannot be read\n"
        "  show  file, format, version, program, step, samples, skipped, seed (a text), ranks, "
        "tokens, tokenizer, compute, bytes, deck (YAML), and tensors with name, type, shape, "
        "elements and crc32; with adapters also base and base_checksum (a text)\n"
        "  verify  file and verified\n"
        "  diff  same, and differences: objects with tensor and either only_in, or left and right "
        "(type and shape), or elements, differ (their number), largest (null: not a number), "
        "left_norm, right_norm and cosine (of the angle between both; null: undefined, or "
        "integers)",
    .examples = "  sluice ckpt ls runs/quickstart\n"
                "  sluice ckpt diff runs/a/ckpt/step-00000100.h5 runs/b/ckpt/step-00000100.h5\n"
                "  sluice ckpt export runs/qwen2.5-7b tuned/\n",
    .options = table,
    .actions = actions,
    .exits = "0 done, 1 the files differ, 2 usage error",
    .values_size = sizeof(struct values),
    .uses_mpi = true,
    .words = {1, 3},
    .run = run,
};
