#include "deck/deck.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(struct deck, field)

static const char *const strategies[] = {"full_shard", "shard_grad_op", "shard_optim", "no_shard", "hybrid_shard", NULL};
static const char *const reduces[] = {"auto", "micro", "step", NULL};
static const char *const tiers[] = {"device", "host", NULL};
static const char *const param_transfers[] = {"shard", "full", NULL};
static const char *const grad_transfers[] = {"gpu_reduce", "cpu_reduce", NULL};
static const char *const moment_types[] = {"fp32", "bf16", "fp16", NULL};
static const char *const roundings[] = {"nearest", "stochastic", NULL};
static const char *const updates[] = {"auto", "deferred", "immediate", NULL};
static const char *const workspaces[] = {"fast", "tight", NULL};
static const char *const workings[] = {"gather", "keep", NULL};
static const char *const state_tiers[] = {"host", "nvme", NULL};
static const char *const optimizers[] = {"adamw", NULL};
static const char *const schedules[] = {"constant", "linear", "cosine", NULL};
static const char *const rope_scalings[] = {"none", "linear", "llama3", NULL};
static const char *const dtypes[] = {"float32", "bfloat16", "float16", NULL};
static const char *const nonfinites[] = {"stop", "skip", NULL};
static const char *const devices[] = {"auto", "host", "cuda", NULL};
static const char *const computes[] = {"auto", "fp32", "bf16", NULL};
static const char *const backends[] = {"auto", "mpi", "nccl", NULL};
static const char *const wire_types[] = {"fp32", "bf16", NULL};
static const char *const undecayed[] = {"norm", "bias", "embedding", NULL};

// clang-format off: one row an option
const struct option deck_table[] = {
    {"run.dir", OPTION_STRING, AT(run.dir), "runs/default", .text = "folder of the run: log, results, checkpoints"},
    {"run.steps", OPTION_INT, AT(run.steps), "100", .least = 1, .most = INT64_C(1) << 32, .unit = "steps", .text = "optimizer steps to train"},
    {"run.minutes", OPTION_REAL, AT(run.minutes), "0", .least = 0, .most = 1e7, .unit = "min",
     .text = "the run saves and leaves before so long has passed, with two steps, a checkpoint and 10 s to spare; 0: only SLURM_JOB_END_TIME"},
    {"run.seed", OPTION_INT, AT(run.seed), "1", .least = 0, .most = INFINITY,
     .text = "of the initial weights, the sample order and the generated text"},
    {"run.threads", OPTION_INT, AT(run.threads), "0", .least = 0, .most = 4096, .unit = "threads",
     .text = "math threads of a rank; 0: the cores this rank may use"},
    {"run.device", OPTION_CHOICE, AT(run.device), "auto", .choices = devices,
     .text = "where the model is computed; auto: on a GPU where this build and the machine have CUDA, on the host elsewhere"},
    {"run.compute", OPTION_CHOICE, AT(run.compute), "auto", .choices = computes,
     .text = "type of activations and working weights; auto: fp32 on the host, bf16 on GPUs. bf16 on the host: slow, and memory beside the plan"},
    {"run.counters", OPTION_STRINGS, AT(run.counters), "[none]",
     .text = "what of the processor is counted, by lane and kind of instruction: none, auto (what there is), or names of events, PAPI's too"},

    {"topo.bind", OPTION_BOOL, AT(topo.bind), "true", .text = "bind the threads of a rank to its cores, and its memory to their NUMA node"},
    {"topo.cores", OPTION_STRINGS, AT(topo.cores), "[]",
     .text = "CPUs of each rank of a node, as [0-15, 16-31], in place of those near its GPU; empty: those"},
    {"topo.controller", OPTION_INT, AT(topo.controller), "0", .least = 0, .most = 4096, .unit = "cores",
     .text = "of a rank, for the threads that drive its lanes and MPI; 0: 1 or 2 beside a GPU, none without"},

    {"model.arch", OPTION_STRING, AT(model.arch), "gpt2", .text = "architecture: gpt2, llama, qwen2, qwen3 or mistral"},
    {"model.layers", OPTION_INT, AT(model.layers), "12", .least = 1, .most = 1 << 16, .unit = "blocks", .text = "decoder blocks"},
    {"model.width", OPTION_INT, AT(model.width), "768", .least = 1, .most = 1 << 20, .text = "width of the residual stream"},
    {"model.heads", OPTION_INT, AT(model.heads), "12", .least = 1, .most = 1 << 16, .unit = "heads", .text = "attention heads"},
    {"model.kv_heads", OPTION_INT, AT(model.kv_heads), "0", .least = 0, .most = 1 << 16, .unit = "heads",
     .text = "key and value heads, which divide model.heads; 0: as many as model.heads"},
    {"model.head_width", OPTION_INT, AT(model.head_width), "0", .least = 0, .most = 1 << 16, .text = "width of a head; 0: model.width / model.heads"},
    {"model.ffn", OPTION_INT, AT(model.ffn), "0", .least = 0, .most = 1 << 24,
     .text = "width of the feed-forward part; 0: 4 times model.width (gpt2 only)"},
    {"model.context", OPTION_INT, AT(model.context), "1024", .least = 1, .most = 1 << 26, .unit = "tokens", .text = "longest sequence"},
    {"model.vocab", OPTION_INT, AT(model.vocab), "50257", .least = 2, .most = INT32_MAX, .unit = "tokens",
     .text = "vocabulary: 50257 for GPT-2's tokenizer, 257 for bytes"},
    {"model.norm_eps", OPTION_REAL, AT(model.norm_eps), "1e-5", .least = 0, .most = 1, .text = "added to the variance in a norm"},
    {"model.init_std", OPTION_REAL, AT(model.init_std), "0.02", .least = 0, .most = 10, .text = "standard deviation of the initial weights"},

    {"model.tied", OPTION_BOOL, AT(model.tied), "true", .text = "the head is the embedding's matrix"},
    {"model.window", OPTION_INT, AT(model.window), "0", .least = 0, .most = 1 << 26, .unit = "tokens",
     .text = "sliding window of the attention (mistral, qwen2, qwen3); 0: none"},
    {"model.window_from", OPTION_INT, AT(model.window_from), "0", .least = 0, .most = 1 << 16, .unit = "blocks",
     .text = "first block that has the window"},
    {"model.rope_theta", OPTION_REAL, AT(model.rope_theta), "0", .least = 0, .most = 1e12,
     .text = "base of the rotary frequencies; 0: 10000, where there are any"},
    {"model.rope_scaling", OPTION_CHOICE, AT(model.rope_scaling), "none", .choices = rope_scalings, .text = "how rotary frequencies are stretched"},
    {"model.rope_factor", OPTION_REAL, AT(model.rope_factor), "0", .least = 0, .most = 1e6, .text = "of linear and llama3 scaling"},
    {"model.rope_low_freq", OPTION_REAL, AT(model.rope_low_freq), "0", .least = 0, .most = 1e6, .text = "low_freq_factor of llama3 scaling"},
    {"model.rope_high_freq", OPTION_REAL, AT(model.rope_high_freq), "0", .least = 0, .most = 1e6, .text = "high_freq_factor of llama3 scaling"},
    {"model.rope_original", OPTION_INT, AT(model.rope_original), "0", .least = 0, .most = 1 << 26, .unit = "tokens",
     .text = "context that the frequencies were made for: original_max_position_embeddings of llama3 scaling"},
    {"model.dtype", OPTION_CHOICE, AT(model.dtype), "float32", .choices = dtypes,
     .text = "type of the weights that sluice ckpt export writes; training keeps fp32 masters"},

    {"train.init", OPTION_STRING, AT(train.init), "",
     .text = "Hugging Face model folder, or a checkpoint, to start from: weights, and every model.* that is not given"},
    {"train.freeze", OPTION_STRINGS, AT(train.freeze), "[]", .text = "names of parameters that are not trained; * and ? as in file names"},
    {"train.trace", OPTION_INTS, AT(train.trace), "[]", .least = 0, .most = INFINITY, .count = 2, .unit = "steps",
     .text = "first step of which a trace is written, and the one behind the last; empty: none"},

    {"data.train", OPTION_STRING, AT(data.train), "", .text = "folder of token shards to train on (made by sluice prepare)"},
    {"data.val", OPTION_STRING, AT(data.val), "", .text = "folder of token shards to validate on; empty: the validation part of data.train"},
    {"data.batch", OPTION_INT, AT(data.batch), "8", .least = 1, .most = 1 << 30, .unit = "sequences", .text = "sequences a step over all ranks"},
    {"data.sequence", OPTION_INT, AT(data.sequence), "0", .least = 0, .most = 1 << 26, .unit = "tokens",
     .text = "length of a sequence; 0: model.context"},
    {"data.micro_batch", OPTION_INT, AT(data.micro_batch), "0", .least = 0, .most = 1 << 30, .unit = "sequences",
     .text = "sequences of a rank at a time; 0: all of its share of the batch"},
    {"data.verify", OPTION_BOOL, AT(data.verify), "false",
     .text = "read all token shards against their checksums before the first step, not only length and header of each as it is opened"},

    {"shard.strategy", OPTION_CHOICE, AT(shard.strategy), "full_shard", .choices = strategies,
     .text = "what ranks split: parameters, gradients and optimizer state, the last two, the last, nothing, or all of it inside each group"},
    {"shard.group", OPTION_STRING, AT(shard.group), "auto",
     .text = "ranks in a group of hybrid_shard: node, or a number; auto: node with hybrid_shard, world otherwise"},
    {"shard.prefetch", OPTION_INT, AT(shard.prefetch), "1", .least = 0, .most = 8, .unit = "units",
     .text = "units gathered ahead of the one computed"},
    {"shard.reduce", OPTION_CHOICE, AT(shard.reduce), "auto", .choices = reduces,
     .text = "reduce gradients after each micro-batch or once a step; auto: micro where gradients are sharded, step where they are not"},

    {"comm.backend", OPTION_CHOICE, AT(comm.backend), "auto", .choices = backends,
     .text = "what carries data between ranks; auto: nccl between GPUs, mpi between hosts"},
    {"comm.gradients", OPTION_CHOICE, AT(comm.gradients), "fp32", .choices = wire_types,
     .text = "type in which gradients travel; they are added in fp32"},
    {"comm.timeout", OPTION_REAL, AT(comm.timeout), "600", .least = 0, .most = 1e6, .unit = "s",
     .text = "a job in which nothing has moved for so long, in its start, a step or a checkpoint, is ended with a report; 0: never"},

    {"tiers.params", OPTION_CHOICE, AT(tiers.params), "device", .choices = tiers,
     .text = "where parameters live; host: a window of shard.prefetch + 1 units is on the device"},
    {"tiers.optimizer", OPTION_CHOICE, AT(tiers.optimizer), "device", .choices = tiers,
     .text = "where masters and moments live and are updated; the same as tiers.params"},
    {"tiers.activations", OPTION_STRING, AT(tiers.activations), "keep",
     .text = "of blocks: all (keep, keep_host) or the input alone (recompute, host, nvme: where it waits); :K each K-th; a,b in turn"},
    {"tiers.nvme", OPTION_STRING, AT(tiers.nvme), "", .text = "folder on the node's own disk for what goes to NVMe; empty: nvme in run.dir, on one node whose own that is"},
    {"tiers.workspace", OPTION_CHOICE, AT(tiers.workspace), "fast", .choices = workspaces,
     .text = "tight: where it is cuDNN's, attention's backward pass takes less room while activations fill the GPU, which is slower there"},
    {"tiers.working", OPTION_CHOICE, AT(tiers.working), "gather", .choices = workings,
     .text = "keep: the update leaves parameters in the compute type too, so that gathers cast nothing; 2 bytes for each that a rank owns"},
    {"tiers.resident", OPTION_INT, AT(tiers.resident), "0", .least = 0, .most = 1 << 20, .unit = "units",
     .text = "with tiers.optimizer=host: so many units, from the embedding on, are updated on the device; the next step asks for them first"},

    {"transfer.params", OPTION_CHOICE, AT(transfer.params), "shard", .choices = param_transfers,
     .text = "from host memory: each rank copies its shard and devices gather, or each copies all from what its group shares on a node"},
    {"transfer.grads", OPTION_CHOICE, AT(transfer.grads), "gpu_reduce", .choices = grad_transfers,
     .text = "to host memory: devices reduce and each rank copies its shard, or each copies all and the hosts reduce"},
    {"transfer.rate", OPTION_REAL, AT(transfer.rate), "0", .least = 0, .most = 1e6, .unit = "GB/s",
     .text = "of copies between tiers where the device is the host, to see what a link does; 0: as fast as memory"},

    {"optim.name", OPTION_CHOICE, AT(optim.name), "adamw", .choices = optimizers, .text = "optimizer"},
    {"optim.lr", OPTION_REAL, AT(optim.lr), "6e-4", .least = 0, .most = 1000, .text = "highest learning rate"},
    {"optim.betas", OPTION_REALS, AT(optim.betas), "[0.9, 0.95]", .least = 0, .most = 1, .count = 2,
     .text = "decay of the first and the second moment"},
    {"optim.eps", OPTION_REAL, AT(optim.eps), "1e-8", .least = 0, .most = 1, .text = "added to the root of the second moment"},
    {"optim.weight_decay", OPTION_REAL, AT(optim.weight_decay), "0.1", .least = 0, .most = 1000, .text = "decoupled weight decay"},
    {"optim.clip", OPTION_REAL, AT(optim.clip), "1.0", .least = 0, .most = INFINITY, .text = "largest global norm of the gradient; 0: no clipping"},
    {"optim.min_lr", OPTION_REAL, AT(optim.min_lr), "0.1", .least = 0, .most = 1, .text = "learning rate at the end, as a share of optim.lr"},
    {"optim.schedule", OPTION_CHOICE, AT(optim.schedule), "cosine", .choices = schedules, .text = "learning rate after the warm-up"},
    {"optim.nonfinite", OPTION_CHOICE, AT(optim.nonfinite), "stop", .choices = nonfinites,
     .text = "when a loss or a gradient is not finite: stop the run (exit code 7), or skip the step; the tenth in a row stops it, too"},
    {"optim.warmup", OPTION_INT, AT(optim.warmup), "0", .least = 0, .most = INFINITY, .unit = "steps", .text = "linear warm-up"},
    {"optim.decay_steps", OPTION_INT, AT(optim.decay_steps), "0", .least = 0, .most = INFINITY, .unit = "steps",
     .text = "step at which optim.min_lr is reached; 0: run.steps"},
    {"optim.no_decay", OPTION_STRINGS, AT(optim.no_decay), "[norm, bias]", .choices = undecayed, .text = "parameters without weight decay"},
    {"optim.moments", OPTION_CHOICE, AT(optim.moments), "fp32", .choices = moment_types,
     .text = "type of both moments; fp16 holds the root of the second, and both scaled"},
    {"optim.rounding", OPTION_CHOICE, AT(optim.rounding), "nearest", .choices = roundings, .text = "of moments to a 16-bit type"},
    {"optim.update", OPTION_CHOICE, AT(optim.update), "auto", .choices = updates,
     .text = "of all units behind the norm, or of each as its gradient is there; auto: immediate on the host where nothing needs the norm"},
    {"optim.state", OPTION_CHOICE, AT(optim.state), "host", .choices = state_tiers, .text = "where moments lie, with tiers.optimizer=host"},
    {"optim.state_share", OPTION_REAL, AT(optim.state_share), "1", .least = 0, .most = 1,
     .text = "share of the units whose moments lie on NVMe, with optim.state=nvme"},

    {"checkpoint.every", OPTION_INT, AT(checkpoint.every), "0", .least = 0, .most = INFINITY, .unit = "steps",
     .text = "between checkpoints; 0: only at the end"},
    {"checkpoint.keep", OPTION_INT, AT(checkpoint.keep), "3", .least = 0, .most = INFINITY, .unit = "checkpoints",
     .text = "newest ones to keep; 0: all"},
    {"checkpoint.keep_every", OPTION_INT, AT(checkpoint.keep_every), "0", .least = 0, .most = INFINITY, .unit = "steps",
     .text = "checkpoints at multiples of it are kept for good; 0: none"},
    {"checkpoint.at_end", OPTION_BOOL, AT(checkpoint.at_end), "true", .text = "save one after the last step"},
    {"checkpoint.background", OPTION_BOOL, AT(checkpoint.background), "true",
     .text = "write them behind the next steps, from a copy of the state in host memory, where there is room for it"},

    {"eval.every", OPTION_INT, AT(eval.every), "0", .least = 0, .most = INFINITY, .unit = "steps",
     .text = "between validations; 0: none during training"},
    {"eval.batches", OPTION_INT, AT(eval.batches), "0", .least = 0, .most = INFINITY, .unit = "batches",
     .text = "of a validation; 0: the whole validation set"},
    {0},
};
// clang-format on

/* --- loading --------------------------------------------------------------------------------------------------------------------------------- */

static enum status assign_all(struct deck *deck, int n, char *const assignments[])
{
  for (int i = 0; i < n; i++) {
    enum status status = options_assign(deck->set, assignments[i]);
    if (status)
      return status;
  }
  enum status status = options_check_required(deck->set);
  return status || *deck->train.init ? status : deck_check(deck);
}

enum status deck_load(struct deck *deck, const char *path, int n, char *const assignments[])
{
  memset(deck, 0, sizeof *deck);
  enum status status = options_create(deck_table, deck, &deck->set);
  if (!status && path)
    status = options_read_file(deck->set, path);
  if (!status)
    status = assign_all(deck, n, assignments);
  if (status)
    deck_destroy(deck);
  return status;
}

enum status deck_load_text(struct deck *deck, const char *label, const char *text, size_t bytes, int n, char *const assignments[])
{
  memset(deck, 0, sizeof *deck);
  enum status status = options_create(deck_table, deck, &deck->set);
  if (!status)
    status = options_read_text(deck->set, label, text, bytes);
  if (!status)
    status = assign_all(deck, n, assignments);
  if (status)
    deck_destroy(deck);
  return status;
}

void deck_destroy(struct deck *deck)
{
  options_destroy(deck->set);
  memset(deck, 0, sizeof *deck);
}

/* --- checks ---------------------------------------------------------------------------------------------------------------------------------- */

struct cited {
  char text[400];
};

/* "data.batch (quickstart.yaml:12)" */
static struct cited cite(const struct deck *deck, const char *key)
{
  struct cited cited;
  snprintf(cited.text, sizeof cited.text, "%s (%s)", key, options_where(deck->set, key));
  return cited;
}

/* "96 or 108": the multiples of `of` on both sides of x, the lower one only if there is one. */
static struct cited multiples_around(int64_t x, int64_t of)
{
  struct cited cited;
  int64_t below = x / of * of, above;
  bool none_above = __builtin_add_overflow(below, of, &above);
  if (below > 0 && !none_above)
    snprintf(cited.text, sizeof cited.text, "%lld or %lld", (long long)below, (long long)above);
  else
    snprintf(cited.text, sizeof cited.text, "%lld", (long long)(none_above ? below : above));
  return cited;
}

/* Nothing but digits, and from 1 to most. */
static bool parse_count(const char *text, int64_t most, int *out)
{
  size_t length = strlen(text);
  if (length == 0 || length > 9 || strspn(text, "0123456789") != length)
    return false;
  long count = strtol(text, NULL, 10);
  if (count < 1 || count > most)
    return false;
  *out = (int)count;
  return true;
}

/* One word of `length` letters; -1: none that is known. */
static int find_keep(const char *word, size_t length)
{
  static const char *const words[] = {[KEEP_ACTIVATIONS] = "keep",
                                      [KEEP_INPUT] = "recompute",
                                      [KEEP_INPUT_HOST] = "host",
                                      [KEEP_INPUT_NVME] = "nvme",
                                      [KEEP_ACTIVATIONS_HOST] = "keep_host"};
  for (int k = 0; k < (int)(sizeof words / sizeof *words); k++)
    if (strlen(words[k]) == length && strncmp(words[k], word, length) == 0)
      return k;
  return -1;
}

bool deck_keeps(const struct deck_pattern *pattern, enum deck_keep what)
{
  bool found = pattern->n == 0 && what == KEEP_ACTIVATIONS;
  for (int i = 0; i < pattern->n; i++)
    found |= pattern->of[i] == what;
  return found;
}

bool deck_parse_activations(const char *text, int64_t layers, struct deck_pattern *out)
{
  struct deck_pattern pattern = {0};
  const int64_t most = layers < DECK_PATTERN ? layers : DECK_PATTERN;
  const char *colon = strchr(text, ':');
  if (colon) {
    const int keep = find_keep(text, (size_t)(colon - text));
    if (keep <= KEEP_ACTIVATIONS || !parse_count(colon + 1, most, &pattern.n))
      return false;
    pattern.of[0] = (uint8_t)keep;
    *out = pattern;
    return true;
  }
  for (const char *word = text; word; word = strchr(word, ',') ? strchr(word, ',') + 1 : NULL) {
    const int keep = find_keep(word, strcspn(word, ","));
    if (keep < 0 || pattern.n == (int)most)
      return false;
    pattern.of[pattern.n++] = (uint8_t)keep;
  }
  *out = pattern;
  return true;
}

enum { GROUP_WORLD = 0, GROUP_NODE = -1, GROUP_AUTO = -2, GROUP_BAD = -3 };

static int parse_group(const char *text)
{
  int ranks;
  if (strcmp(text, "world") == 0)
    return GROUP_WORLD;
  if (strcmp(text, "node") == 0)
    return GROUP_NODE;
  if (strcmp(text, "auto") == 0)
    return GROUP_AUTO;
  return parse_count(text, INT32_MAX, &ranks) ? ranks : GROUP_BAD;
}

static enum status check_model(const struct deck *deck)
{
  const int64_t heads = deck->model.heads, kv_heads = deck->model.kv_heads;
  if (deck->model.head_width == 0 && deck->model.width % heads != 0)
    return status_set(STATUS_USAGE, "%s is %lld, which %s = %lld does not divide; use %s, or give model.head_width", cite(deck, "model.width").text,
                      (long long)deck->model.width, cite(deck, "model.heads").text, (long long)heads,
                      multiples_around(deck->model.width, heads).text);
  if (kv_heads > 0 && heads % kv_heads != 0)
    return status_set(STATUS_USAGE, "%s is %lld, which does not divide %s = %lld", cite(deck, "model.kv_heads").text, (long long)kv_heads,
                      cite(deck, "model.heads").text, (long long)heads);
  return STATUS_OK;
}

static enum status check_data(const struct deck *deck)
{
  if (deck->data.sequence > deck->model.context)
    return status_set(STATUS_USAGE, "%s is %lld tokens, more than %s = %lld; shorten the sequence or lengthen the context",
                      cite(deck, "data.sequence").text, (long long)deck->data.sequence, cite(deck, "model.context").text,
                      (long long)deck->model.context);
  return STATUS_OK;
}

static enum status check_shard(const struct deck *deck)
{
  const char *given = deck->shard.group;
  int group = parse_group(given);
  if (group == GROUP_BAD)
    return status_set(STATUS_USAGE, "%s must be auto, world, node or a number of ranks, not '%s'", cite(deck, "shard.group").text, given);
  if (deck->shard.strategy == STRATEGY_HYBRID_SHARD && group == GROUP_WORLD)
    return status_set(STATUS_USAGE,
                      "%s is world, but %s is hybrid_shard, whose groups are smaller; leave it out, which means node, or set shard.group=N ranks",
                      cite(deck, "shard.group").text, cite(deck, "shard.strategy").text);
  if (deck->shard.strategy != STRATEGY_HYBRID_SHARD && group != GROUP_WORLD && group != GROUP_AUTO)
    return status_set(STATUS_USAGE, "%s is '%s', but %s is %s, which works on all ranks; leave it out, or use shard.strategy=hybrid_shard",
                      cite(deck, "shard.group").text, given, cite(deck, "shard.strategy").text, strategies[deck->shard.strategy]);
  return STATUS_OK;
}

static enum status check_tiers(const struct deck *deck)
{
  struct deck_pattern pattern;
  const long long most = deck->model.layers < DECK_PATTERN ? (long long)deck->model.layers : DECK_PATTERN;
  if (!deck_parse_activations(deck->tiers.activations, deck->model.layers, &pattern))
    return status_set(
        STATUS_USAGE,
        "%s must be keep, keep_host, recompute, host or nvme, one of the last four with :K (K from 1 to %lld) for every K-th block, or up to %lld "
        "words for blocks in turn, as in recompute,host; not '%s'",
        cite(deck, "tiers.activations").text, most, most, deck->tiers.activations);
  if (deck->tiers.params != deck->tiers.optimizer)
    return status_set(STATUS_USAGE, "%s is %s and %s is %s, but parameters live where they are updated: set both to the same",
                      cite(deck, "tiers.params").text, tiers[deck->tiers.params], cite(deck, "tiers.optimizer").text, tiers[deck->tiers.optimizer]);
  return STATUS_OK;
}

/* What asks for masters in host memory where they are on the device. (How parameters are transferred matters to nobody there: decks may say it.) */
static enum status check_device_state(const struct deck *deck)
{
  const struct {
    const char *key, *value;
    bool given;
  } keys[] = {{"transfer.grads", "cpu_reduce", deck->transfer.grads == DECK_CPU_REDUCE},
              {"optim.state", "nvme", deck->optim.state == DECK_STATE_NVME}};
  for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
    if (keys[k].given)
      return status_set(STATUS_USAGE,
                        "%s is %s, which is for masters in host memory: set tiers.params=host and tiers.optimizer=host, or leave it out",
                        cite(deck, keys[k].key).text, keys[k].value);
  return STATUS_OK;
}

/* A unit that is updated as soon as its gradient is there has not seen the others'. */
static enum status check_immediate(const struct deck *deck)
{
  if (deck->optim.clip > 0)
    return status_set(STATUS_USAGE, "%s is immediate, but %s = %g needs the norm of all gradients first: set optim.clip=0, or optim.update=deferred",
                      cite(deck, "optim.update").text, cite(deck, "optim.clip").text, deck->optim.clip);
  if (deck->optim.nonfinite != NONFINITE_STOP)
    return status_set(STATUS_USAGE,
                      "%s is immediate, but %s is skip, and a step whose units are updated already cannot be skipped: set optim.nonfinite=stop, or "
                      "optim.update=deferred",
                      cite(deck, "optim.update").text, cite(deck, "optim.nonfinite").text);
  return STATUS_OK;
}

static enum status check_host_state(const struct deck *deck)
{
  if (deck->shard.strategy != STRATEGY_FULL_SHARD && deck->shard.strategy != STRATEGY_HYBRID_SHARD)
    return status_set(STATUS_USAGE, "%s is host, where ranks own shards: use shard.strategy=full_shard or hybrid_shard, not %s",
                      cite(deck, "tiers.optimizer").text, strategies[deck->shard.strategy]);
  if (deck->tiers.resident > 0 && (deck->transfer.params == DECK_PARAMS_FULL || deck->transfer.grads == DECK_CPU_REDUCE))
    return status_set(STATUS_USAGE,
                      "%s is %lld: what is updated on the devices is gathered and reduced by them, so set transfer.params=shard and "
                      "transfer.grads=gpu_reduce, or leave it out",
                      cite(deck, "tiers.resident").text, (long long)deck->tiers.resident);
  if (deck->shard.reduce == REDUCE_STEP)
    return status_set(STATUS_USAGE,
                      "%s is step, but with %s = host gradients go to the host after each micro-batch: set shard.reduce=micro or leave it out",
                      cite(deck, "shard.reduce").text, cite(deck, "tiers.optimizer").text);
  return STATUS_OK;
}

static enum status check_state(const struct deck *deck)
{
  if (deck->optim.rounding == DECK_ROUND_STOCHASTIC && deck->optim.moments == DECK_F32)
    return status_set(STATUS_USAGE, "%s is stochastic, but %s is fp32, to which nothing is rounded: set optim.moments=bf16 or fp16, or leave it out",
                      cite(deck, "optim.rounding").text, cite(deck, "optim.moments").text);
  if (deck->optim.state_share < 1 && deck->optim.state != DECK_STATE_NVME)
    return status_set(STATUS_USAGE, "%s is %g, but %s is host, so no unit's moments lie on NVMe: set optim.state=nvme, or leave it out",
                      cite(deck, "optim.state_share").text, deck->optim.state_share, cite(deck, "optim.state").text);
  const enum status status = deck->tiers.optimizer == DECK_TIER_HOST ? check_host_state(deck) : check_device_state(deck);
  return status || deck->optim.update != DECK_UPDATE_IMMEDIATE ? status : check_immediate(deck);
}

static enum status check_optim(const struct deck *deck)
{
  for (int i = 0; i < 2; i++)
    if (deck->optim.betas[i] >= 1)
      return status_set(STATUS_USAGE, "%s must be below 1: a moment that never decays never starts; usual are [0.9, 0.95]",
                        cite(deck, "optim.betas").text);
  if (deck->optim.decay_steps > 0 && deck->optim.warmup > deck->optim.decay_steps)
    return status_set(STATUS_USAGE, "%s is %lld steps, longer than %s = %lld, which counts from the first step and includes it; shorten the warm-up",
                      cite(deck, "optim.warmup").text, (long long)deck->optim.warmup, cite(deck, "optim.decay_steps").text,
                      (long long)deck->optim.decay_steps);
  return STATUS_OK;
}

static enum status check_trace(const struct deck *deck)
{
  const struct option_ints *trace = &deck->train.trace;
  if (trace->n == 0 || trace->item[0] < trace->item[1])
    return STATUS_OK;
  return status_set(STATUS_USAGE, "%s is [%lld, %lld], which holds no step: the first number is the first step, the second the one behind the last",
                    cite(deck, "train.trace").text, (long long)trace->item[0], (long long)trace->item[1]);
}

static enum status check_counters(const struct deck *deck)
{
  const struct option_strings *counters = &deck->run.counters;
  if (counters->n > DECK_COUNTERS)
    return status_set(STATUS_USAGE, "%s names %d events, and at most %d are counted at a time: run it once for each part of them",
                      cite(deck, "run.counters").text, counters->n, DECK_COUNTERS);
  for (int i = 0; i < counters->n; i++)
    if (!*counters->item[i] || (counters->n > 1 && (!strcmp(counters->item[i], "none") || !strcmp(counters->item[i], "auto"))))
      return status_set(STATUS_USAGE, "%s has '%s' in its list: say none or auto alone, or name events", cite(deck, "run.counters").text,
                        counters->item[i]);
  return STATUS_OK;
}

static enum status check_checkpoint(const struct deck *deck)
{
  int64_t every = deck->checkpoint.every, keep_every = deck->checkpoint.keep_every;
  if (keep_every > 0 && every == 0)
    return status_set(STATUS_USAGE, "%s is %lld, but no checkpoints are written during training; set checkpoint.every too",
                      cite(deck, "checkpoint.keep_every").text, (long long)keep_every);
  if (keep_every > 0 && keep_every % every != 0)
    return status_set(STATUS_USAGE, "%s is %lld, not a multiple of %s = %lld, so most of those checkpoints are never written; use %s",
                      cite(deck, "checkpoint.keep_every").text, (long long)keep_every, cite(deck, "checkpoint.every").text, (long long)every,
                      multiples_around(keep_every, every).text);
  return STATUS_OK;
}

enum status deck_check(const struct deck *deck)
{
  typedef enum status check(const struct deck *);
  static check *const checks[] = {check_model, check_data,  check_shard,    check_tiers,     check_state,
                                  check_optim, check_trace, check_counters, check_checkpoint};
  if (!*deck->run.dir)
    return status_set(STATUS_USAGE, "%s must name a folder, such as runs/first", cite(deck, "run.dir").text);
  for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
    enum status status = checks[i](deck);
    if (status)
      return status;
  }
  return STATUS_OK;
}

/* --- what it means on P ranks ---------------------------------------------------------------------------------------------------------------- */

static enum status resolve_group(const struct deck *deck, int ranks, int local_ranks, int *out)
{
  if (deck->shard.strategy != STRATEGY_HYBRID_SHARD || ranks == 1) {
    *out = deck->shard.strategy == STRATEGY_NO_SHARD ? 1 : ranks;
    return STATUS_OK;
  }
  int group = parse_group(deck->shard.group);
  if (group == GROUP_NODE || group == GROUP_AUTO) {
    if (ranks % local_ranks != 0)
      return status_set(STATUS_USAGE, "%s is %s, but %d ranks do not fill nodes of %d; start the same number of ranks on every node",
                        cite(deck, "shard.group").text, group == GROUP_NODE ? "node" : "auto, which means node here", ranks, local_ranks);
    *out = local_ranks;
    return STATUS_OK;
  }
  if (ranks % group != 0)
    return status_set(STATUS_USAGE, "%s is %d ranks, which does not divide the %d ranks of this run; start %s ranks, or use a group that divides %d",
                      cite(deck, "shard.group").text, group, ranks, multiples_around(ranks, group).text, ranks);
  *out = group;
  return STATUS_OK;
}

static enum status resolve_batch(const struct deck *deck, int ranks, struct deck_shape *shape)
{
  int64_t batch = deck->data.batch, micro = deck->data.micro_batch;
  if (micro > 0 && batch % micro != 0)
    return status_set(STATUS_USAGE, "%s is %lld sequences, not a multiple of %s = %lld; use a batch of %s, or another micro-batch",
                      cite(deck, "data.batch").text, (long long)batch, cite(deck, "data.micro_batch").text, (long long)micro,
                      multiples_around(batch, micro).text);
  if (batch % ranks != 0)
    return status_set(STATUS_USAGE,
                      "%s is %lld sequences, which %d ranks cannot share evenly; use data.batch=%s, or a number of ranks that divides %lld",
                      cite(deck, "data.batch").text, (long long)batch, ranks, multiples_around(batch, ranks).text, (long long)batch);
  shape->rank_batch = batch / ranks;
  if (micro > 0 && shape->rank_batch % micro != 0)
    return status_set(STATUS_USAGE,
                      "%s is %lld sequences, but each of %d ranks has %lld of %s = %lld, which is not a multiple of it; "
                      "use a micro-batch that divides %lld, or a batch of %s",
                      cite(deck, "data.micro_batch").text, (long long)micro, ranks, (long long)shape->rank_batch, cite(deck, "data.batch").text,
                      (long long)batch, (long long)shape->rank_batch, multiples_around(batch, micro * ranks).text);
  shape->micro_batch = micro > 0 ? micro : shape->rank_batch;
  shape->micros = shape->rank_batch / shape->micro_batch;
  return STATUS_OK;
}

static bool reduce_every_micro(const struct deck *deck)
{
  if (deck->shard.reduce != REDUCE_AUTO)
    return deck->shard.reduce == REDUCE_MICRO;
  return deck->shard.strategy != STRATEGY_SHARD_OPTIM && deck->shard.strategy != STRATEGY_NO_SHARD;
}

static bool updates_at_once(const struct deck *deck)
{
  if (deck->optim.update != DECK_UPDATE_AUTO)
    return deck->optim.update == DECK_UPDATE_IMMEDIATE;
  return deck->tiers.optimizer == DECK_TIER_HOST && deck->optim.clip == 0 && deck->optim.nonfinite == NONFINITE_STOP;
}

static enum status resolve_tiers(const struct deck *deck, int local_ranks, struct deck_shape *shape)
{
  static const enum dtype moments[] = {[DECK_F32] = DTYPE_F32, [DECK_BF16] = DTYPE_BF16, [DECK_F16] = DTYPE_F16};
  shape->moments = moments[deck->optim.moments];
  shape->host_state = deck->tiers.optimizer == DECK_TIER_HOST;
  shape->params_full = shape->host_state && deck->transfer.params == DECK_PARAMS_FULL && shape->group > 1;
  shape->cpu_reduce = deck->transfer.grads == DECK_CPU_REDUCE && shape->group > 1;
  shape->one_node = local_ranks % shape->group == 0;
  shape->immediate = updates_at_once(deck);
  shape->tight = deck->tiers.workspace == DECK_WORKSPACE_TIGHT;
  shape->keep_working = !shape->host_state && deck->tiers.working == DECK_WORKING_KEEP;
  shape->nvme_state = deck->optim.state == DECK_STATE_NVME ? deck->optim.state_share : 0;
  shape->resident = shape->host_state ? deck->tiers.resident : 0;
  if (shape->params_full && !shape->one_node)
    return status_set(
        STATUS_USAGE,
        "%s is full, where the ranks of a shard group share the parameters in the memory of a node, but a group has %d ranks and a node "
        "%d: set transfer.params=shard, or shard.strategy=hybrid_shard with shard.group=node",
        cite(deck, "transfer.params").text, shape->group, local_ranks);
  if (!deck_parse_activations(deck->tiers.activations, deck->model.layers, &shape->activations))
    return check_tiers(deck);
  return STATUS_OK;
}

enum status deck_resolve(const struct deck *deck, int ranks, int local_ranks, struct deck_shape *out)
{
  if (ranks < 1 || local_ranks < 1 || local_ranks > ranks)
    return status_set(STATUS_USAGE, "%d ranks with %d on a node is not a job; both must be at least 1, and the first the larger", ranks, local_ranks);
  struct deck_shape shape = {.ranks = ranks};
  enum status status = resolve_group(deck, ranks, local_ranks, &shape.group);
  if (!status)
    status = resolve_batch(deck, ranks, &shape);
  if (status)
    return status;
  shape.replicas = ranks / shape.group;
  shape.sequence = deck->data.sequence > 0 ? deck->data.sequence : deck->model.context;
  shape.reduce_every_micro = reduce_every_micro(deck);
  status = resolve_tiers(deck, local_ranks, &shape);
  if (!status)
    *out = shape;
  return status;
}

void deck_hash(const struct deck *deck, char *out)
{
  static const char *const except[] = {"run.dir",
                                       "run.steps",
                                       "run.minutes",
                                       "run.threads",
                                       "run.counters",
                                       "topo.bind",
                                       "topo.cores",
                                       "topo.controller",
                                       "train.trace",
                                       "comm.timeout",
                                       "transfer.rate",
                                       "tiers.nvme",
                                       "tiers.workspace",
                                       "tiers.working",
                                       "checkpoint.background",
                                       NULL};
  snprintf(out, 17, "%016llx", (unsigned long long)options_hash(deck->set, except));
}

bool deck_counts(const struct deck *deck)
{
  const struct option_strings *counters = &deck->run.counters;
  return counters->n > 0 && strcmp(counters->item[0], "none") != 0;
}

const char *deck_strategy_name(enum deck_strategy strategy)
{
  return strategies[strategy];
}
