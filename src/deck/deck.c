/* The table of deck keys, and what must hold between them. */
#include "deck/deck.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/append.h"
#include "base/mem.h"
#include "base/printable.h"
#include "compress/rule/codecs.h"
#include "deck/presets.h"
#include "optim/rule/rules.h"

#define AT(field) offsetof(struct deck, field)
#define KEY(type, field, value) #field, OPTION_##type, AT(field), value
#define INT(field, value, from, to) KEY(INT, field, value), .least = from, .most = to
#define ROPE(type, field, value) "model.rope_" #field, OPTION_##type, AT(model.rope.field), value
#define REAL(field, value, from, to) KEY(REAL, field, value), .least = from, .most = to
#define LIST(...)                                                                                  \
  (const char *const[])                                                                            \
  {                                                                                                \
    __VA_ARGS__, NULL                                                                              \
  }
#define CHOICE(field, value, list) KEY(CHOICE, field, value), .choices = list

static const char *const strategies[] = {"full_shard", "shard_grad_op", "shard_optim",
                                         "no_shard",   "hybrid_shard",  NULL};
static const char *const tiers[] = {"device", "host", NULL};
#define OPTIM_NAME(name, ...) #name,
#define OPTIM_TEXT(name, title, ...) "\n  " #name "  " title
static const char *const optimizers[] = {OPTIM_ELEMENTWISE(OPTIM_NAME) OPTIM_MATRIX(OPTIM_NAME)
                                             NULL};
#define OPTIM_STATES_OF(name, title, source, ...) [OPTIM_##name] = {__VA_ARGS__},
static const struct state_row states_of[OPTIM_COUNT][RULE_STATES] = {
    OPTIM_ELEMENTWISE(OPTIM_STATES_OF)};
#define CODEC_CHOICE(name, ...) CHOICE_##name,
#define CODEC_NAME(name, ...) #name,
#define CODEC_TEXT(name, kind, title, ...) "\n  " #name "  " title
enum { CODEC_ROWS(CODEC_CHOICE) };
static const char *const codecs[] = {CODEC_ROWS(CODEC_NAME) NULL};
#define CODEC_TEXTS CODEC_ROWS(CODEC_TEXT)
#define FROZEN_TEXTS                                                                               \
  " With fp8 and nf4, parameters other than the weight matrices of blocks are in bf16.\n"          \
  "  fp32  4 bytes\n  bf16  2 bytes\n"                                                             \
  "  fp8  8-bit floats with 3 bits of mantissa, a scale per 256 elements\n"                        \
  "  nf4  QLoRA's NormalFloat4 with double quantisation, 4.127 bits per element"
static const char *const frozen_types[] = {"fp32", "bf16", "fp8", "nf4", NULL};
static const char *const feedbacks[] = {"off", "fp32", "bf16", "int8", NULL};

// clang-format off: one row an option
const struct option deck_table[] = {
    {KEY(STRING, run.dir, "runs/default"), .path = true, .example = "runs/first", .unhashed = true,
     .text = "Run folder. It holds deck.yaml, log.txt, results.jsonl and the checkpoints."},
    {INT(run.steps, "100", 1, INT64_C(1) << 32), .unit = "steps", .example = "2000",
     .unhashed = true, .text = "Number of optimizer steps to train."},
    {REAL(run.minutes, "0", 0, 1e7), .unit = "min", .example = "55", .unhashed = true,
     .text = "Wall-clock limit of this start, 0 for none. The run saves and exits with code 75 "
             "before the limit. It reserves the time of two steps and a checkpoint, plus 25 % and "
             "10 s. SLURM_JOB_END_TIME is a limit as well."},
    {INT(run.seed, "1", 0, INFINITY), .effect = EFFECT_ORDER, .example = "7",
     .text = "Seed of the random numbers. They give the initial weights, the order of the samples "
             "and stochastic rounding."},
    {INT(run.threads, "0", 0, 4096), .unit = "threads", .example = "8", .unhashed = true,
     .text = "Math threads per rank, 0 for all cores of the rank."},
    {INT(run.warmup, "2", 0, 1e6), .unit = "steps", .unhashed = true,
     .text = "Steps after each start that timings leave out. The record of the run in "
             "results.jsonl has the timings."},
    {CHOICE(run.device, "auto", LIST("auto", "host", "cuda")),
     .text = "Device that computes the model.\n"
             "  auto  cuda if this build and this machine have CUDA, otherwise host\n"
             "  host  the CPU cores of the rank\n"
             "  cuda  one NVIDIA GPU per rank"},
    {CHOICE(run.compute, "auto", LIST("auto", "fp32", "bf16", "fp8")), .effect = EFFECT_MATH,
     .text = "Data type of activations and working weights.\n"
             "  auto  bf16 on GPUs, fp32 on the host\n"
             "  fp32  32-bit floating point\n"
             "  bf16  bfloat16; on the host it is slow and needs memory that sluice plan does not "
             "count\n"
             "  fp8  bf16, except that products of blocks are in fp8"},
    {KEY(STRINGS, run.fp8_except, "[]"), .effect = EFFECT_MATH, .example = "[h.0, h.1*]",
     .text = "Blocks that stay in bf16 with run.compute=fp8. Each item is a name, a pattern with * "
             "and ? as for file names, first:K (the first K blocks) or last:K."},
    {KEY(BOOL, run.fp8_gradients, "true"), .effect = EFFECT_MATH,
     .text = "Compute weight gradients from operands in fp8. With false the operands are in bf16. "
             "The results are in fp32. Only with run.compute=fp8."},
    {CHOICE(run.fp8_scales, "auto", LIST("auto", "groups", "tensor")), .effect = EFFECT_MATH,
     .text = "Scales of operands in fp8. Only with run.compute=fp8.\n"
             "  auto  groups if the devices of all ranks multiply with them, otherwise tensor\n"
             "  groups  one per 1 x 128 or 128 x 128 elements; only with compute capability 9.0\n"
             "  tensor  one per operand; from compute capability 8.9 on"},
    {KEY(STRINGS, run.counters, "[none]"), .example = "[auto]", .unhashed = true,
     .text = "Processor events to count, by lane and instruction. The result is in results.jsonl "
             "and in the trace.\n"
             "  none  count nothing\n"
             "  auto  count the events that this machine offers\n"
             "  NAME,...  count these events; PAPI names are allowed"},
    {KEY(BOOL, run.tensorboard, "true"), .unhashed = true,
     .text = "Write event files for TensorBoard. They are in the run folder."},
    {REAL(run.peak, "0", 0, 1e9), .unit = "TFLOP/s", .example = "989", .unhashed = true,
     .text = "Matrix peak of a rank's device, 0 for unknown. With it, the run records its MFU "
             "(model FLOP/s utilization). Give a measured or a published value."},

    {KEY(BOOL, topo.bind, "true"), .unhashed = true,
     .text = "Bind threads to cores and memory to NUMA nodes."},
    {KEY(STRINGS, topo.cores, "[]"), .example = "[0-15, 16-31]", .unhashed = true,
     .text = "CPUs of each rank of a node, such as [0-15, 16-31]. Empty: the CPUs near the rank's "
             "GPU."},
    {INT(topo.controller, "0", 0, 4096), .unit = "cores", .example = "2", .unhashed = true,
     .text = "Cores per rank for threads that drive lanes and MPI. 0: one or two cores with a GPU, "
             "none without a GPU."},

    {KEY(STRING, model.arch, "gpt2"), .example = "llama",
     .text = "Architecture.\n"
             "  gpt2  LayerNorm, learned positions, biases, GELU, tied head\n"
             "  llama  RMSNorm, rotary positions, grouped key and value heads, SwiGLU\n"
             "  qwen2  llama with biases on the query, key and value projections\n"
             "  qwen3  llama with a norm on each query and key head\n"
             "  mistral  llama with a sliding window"},
    {INT(model.layers, "12", 1, 1 << 16), .unit = "blocks", .text = "Number of decoder blocks."},
    {INT(model.width, "768", 1, 1 << 20), .text = "Width of the residual stream (hidden size)."},
    {INT(model.heads, "12", 1, 1 << 16), .unit = "heads", .text = "Number of attention heads."},
    {INT(model.kv_heads, "0", 0, 1 << 16), .unit = "heads", .example = "4",
     .text = "Key and value heads, 0 for as many as model.heads. The number must divide "
             "model.heads."},
    {INT(model.head_width, "0", 0, MODEL_MOST_HEAD_WIDTH), .example = "128",
     .text = "Width of a head, 0 for model.width / model.heads."},
    {INT(model.ffn, "0", 0, 1 << 24), .example = "3072",
     .text = "Width of the feed-forward part. 0: 4 times model.width, for gpt2 only."},
    {INT(model.context, "1024", 1, 1 << 26), .unit = "tokens",
     .text = "Longest sequence that the model can take."},
    {INT(model.vocab, "50257", 2, INT32_MAX), .unit = "tokens",
     .text = "Vocabulary size. It must "
             "be at least that of the tokenizer: 257 for bytes, 50257 for GPT-2's."},
    {REAL(model.norm_eps, "1e-5", 0, 1), .text = "Epsilon of the norms, added to the variance."},
    {REAL(model.init_std, "0.02", 0, 10), .text = "Standard deviation of the initial weights."},

    {KEY(BOOL, model.tied, "true"), .text = "Use the embedding's matrix as the output head."},
    {INT(model.window, "0", 0, 1 << 26), .unit = "tokens", .example = "4096",
     .text = "Sliding window of the attention, 0 for none. For mistral, qwen2 and qwen3."},
    {INT(model.window_from, "0", 0, 1 << 16), .unit = "blocks", .example = "21",
     .text = "First block that uses model.window."},
    {ROPE(REAL, theta, "0"), .most = 1e12, .example = "5e5",
     .text = "Base of the rotary frequencies. 0: 10000 if the architecture has rotary positions."},
    {ROPE(CHOICE, scaling, "none"), .choices = LIST("none", "linear", "llama3"),
     .text = "Scaling of the rotary frequencies.\n"
             "  none  no scaling\n"
             "  linear  divide all frequencies by model.rope_factor\n"
             "  llama3  the scaling of Llama 3; it uses all model.rope_* keys"},
    {ROPE(REAL, factor, "0"), .most = 1e6, .example = "8",
     .text = "Factor of linear and llama3 scaling."},
    {ROPE(REAL, low_freq, "0"), .most = 1e6, .example = "1",
     .text = "The low_freq_factor of llama3 scaling."},
    {ROPE(REAL, high_freq, "0"), .most = 1e6, .example = "4",
     .text = "The high_freq_factor of llama3 scaling."},
    {ROPE(INT, original, "0"), .most = 1 << 26, .unit = "tokens", .example = "8192",
     .text = "Context before llama3 scaling. It is original_max_position_embeddings in "
             "config.json."},
    {"model.dtype", OPTION_CHOICE, AT(export), "float32",
     .choices = LIST("float32", "bfloat16", "float16"),
     .text = "Data type of weights that sluice "
             "ckpt export writes. Training always keeps fp32 master weights.\n"
             "  float32  32-bit floating point\n"
             "  bfloat16  8 bits of exponent, 7 of mantissa\n"
             "  float16  5 bits of exponent, 10 of mantissa"},

    {KEY(STRING, train.init, ""), .path = true, .example = "models/qwen2.5-7b",
     .text = "Model to start from, empty for random weights. A Hugging Face model folder or a "
             "checkpoint. Weights and all model.* keys that are not given are taken from it."},
    {CHOICE(train.objective, "lm", LIST("lm", "dpo")), .effect = EFFECT_MATH,
     .text = "What is learned.\n"
             "  lm  the next token\n"
             "  dpo  to prefer the chosen conversation of a pair to the rejected one, by direct "
             "preference optimisation (Rafailov et al. 2023). The reference is the model that the "
             "run begins with. A row of data.sequence tokens holds one conversation, and "
             "data.batch and data.micro_batch count conversations, two per pair"},
    {REAL(train.beta, "0.1", 1e-6, 1e6), .effect = EFFECT_MATH,
     .text = "Strength of the reference in dpo. Margins between the two conversations of a pair "
             "are multiplied by it."},
    {KEY(STRINGS, train.freeze, "[]"), .example = "[model.embed_tokens.*, model.layers.0.*]",
     .text = "Parameters that are not trained. Each item is a name that sluice ckpt show prints, "
             "or a pattern with * and ?, as for file names. A deck has quotes around an item that "
             "begins with *."},
    {CHOICE(train.frozen, "fp32", frozen_types), .effect = EFFECT_MATH,
     .text = "Data type in which frozen parameters are kept. They are rounded to it before the "
             "first step, and checkpoints contain the rounded values. If the run computes in "
             "bf16, bf16 does not change what is learned." FROZEN_TEXTS},
    {KEY(INTS, train.trace, "[]"), .least = 0, .most = INFINITY, .count = 2, .unit = "steps",
     .example = "[10, 13]", .unhashed = true,
     .text = "Steps to trace, counted from 0. [10, 13] "
             "traces steps 10, 11 and 12, which the log calls 11, 12 and 13."},

    {KEY(STRING, lora.init, ""), .path = true, .example = "adapters/first",
     .text = "Folder of adapters to start from. PEFT saves adapter_config.json and "
             "adapter_model.safetensors there. train.init is their base. The other keys lora.* "
             "except lora.base are taken from it. Empty: new adapters."},
    {INT(lora.rank, "0", 0, 1 << 16), .example = "16",
     .text = "Rank r of low-rank adapters. 0: none. Only the adapters are trained, two matrices A "
             "[r, in] and B [out, r] for each targeted matrix W: y = W x + s B A x, where s is "
             "alpha / r."},
    {REAL(lora.alpha, "0", 0, 1e6), .effect = EFFECT_MATH, .example = "32",
     .text = "Alpha of adapters. 0: twice the rank, as in most recipes. PEFT's own default is 8."},
    {KEY(STRINGS, lora.targets, "[]"), .example = "[model.layers.*.q_proj.weight]",
     .text = "Weight matrices that get adapters. Items are as in train.freeze, and name matrices "
             "of blocks. Empty: all weight matrices of blocks."},
    {KEY(BOOL, lora.rslora, "false"), .effect = EFFECT_MATH,
     .text = "Divide alpha by the square root of the rank (rsLoRA)."},
    {CHOICE(lora.base, "bf16", frozen_types), .effect = EFFECT_MATH,
     .text = "Data type of the base if lora.rank is not 0. All parameters except adapters are "
             "rounded to it, as by train.frozen." FROZEN_TEXTS},

    {KEY(STRINGS, data.train, ""), .path = true, .example = "data/first",
     .text = "Folder of training token shards, from sluice prepare. A list of folders is a mixture "
             "of sources."},
    {KEY(STRINGS, data.weights, "[]"), .effect = EFFECT_ORDER, .example = "[0.7, 0.3]",
     .text = "Weights of the folders of data.train. A weight is the share of the sequences that "
             "come from that source, and each source goes through epochs and an order of its own. "
             "Empty: the numbers of tokens of the sources."},
    {KEY(STRINGS, data.val, ""), .path = true, .example = "data/val",
     .text = "Folder of validation token shards. A list of folders is scored source by source. "
             "Empty: the validation parts of data.train."},
    {INT(data.batch, "8", 1, 1 << 30), .effect = EFFECT_MATH, .unit = "sequences", .example = "256",
     .text = "Global batch: sequences per step over all ranks. Gradient accumulation steps are "
             "data.batch / (ranks x data.micro_batch)."},
    {INT(data.sequence, "0", 0, 1 << 26), .effect = EFFECT_ORDER, .unit = "tokens",
     .example = "2048", .text = "Length of a training sequence, 0 for model.context."},
    {INT(data.micro_batch, "0", 0, 1 << 30), .unit = "sequences", .example = "4", .chosen = true,
     .text = "Sequences that a rank computes at a time. 0: the rank's whole share of data.batch."},
    {CHOICE(data.pack, "auto", LIST("auto", "false", "true")), .effect = EFFECT_ORDER,
     .example = "true",
     .text = "Packing of whole documents into sequences. Attention and positions of a packed "
             "document begin with it, and padding fills the rest of a sequence.\n"
             "  auto  pack a source that has tokens which are not trained, such as conversations\n"
             "  false  a sequence is data.sequence tokens in a row, of any documents\n"
             "  true  pack every source"},
    {"data.long", OPTION_CHOICE, AT(data.over), "cut", .choices = LIST("cut", "drop", "split"),
     .effect = EFFECT_ORDER, .example = "split",
     .text = "Treatment of documents that exceed a sequence.\n"
             "  cut  train on their first data.sequence tokens\n"
             "  drop  leave them out\n"
             "  split  cut them into documents of data.sequence tokens and a rest"},
    {KEY(BOOL, data.reorder, "false"), .unhashed = true,
     .text = "Allow a resume that changes the order of samples. Other training data, data.weights, "
             "data.pack, data.long, data.sequence or run.seed change it. Some samples are "
             "then seen twice, and others not at all."},
    {KEY(BOOL, data.verify, "false"),
     .text = "Check all token shards before the first step. This reads every shard and compares "
             "its checksums. Otherwise only the length and header of a shard are checked when it "
             "is opened."},

    {INT(mesh.context, "1", 1, 1 << 16), .unit = "ranks", .effect = EFFECT_MATH,
     .text = "Ranks that share each sequence. No architecture can be cut along it yet."},
    {INT(mesh.tensor, "1", 1, 1 << 16), .unit = "ranks", .effect = EFFECT_MATH,
     .text = "Ranks that share each matrix. No architecture can be cut along it yet."},
    {INT(mesh.pipeline, "1", 1, 1 << 16), .unit = "ranks", .effect = EFFECT_MATH,
     .text =
         "Stages of blocks, each on ranks of its own. No architecture can be cut along it yet."},
    {INT(mesh.expert, "1", 1, 1 << 16), .unit = "ranks", .effect = EFFECT_MATH,
     .text = "Ranks that share the experts of a block. They are a factor of the shard group. No "
             "architecture can be cut along them yet."},

    {CHOICE(shard.strategy, "full_shard", strategies), .aliases = deck_strategy_aliases,
     .chosen = true,
     .text = "The state that is sharded over the ranks.\n"
             "  full_shard  parameters, gradients and optimizer state (ZeRO-3, FSDP)\n"
             "  shard_grad_op  gradients and optimizer state (ZeRO-2)\n"
             "  shard_optim  optimizer state (ZeRO-1)\n"
             "  no_shard  nothing (DDP)\n"
             "  hybrid_shard  full_shard inside each group of shard.group ranks, replicated over "
             "the groups (HSDP)"},
    {KEY(STRING, shard.group, "auto"), .example = "4", .chosen = true,
     .text = "Ranks per group of hybrid_shard.\n"
             "  auto  chosen with auto for shard.strategy; with hybrid_shard the ranks of a node\n"
             "  world  all ranks\n"
             "  node  the ranks of a node\n"
             "  N  this number of ranks; it must divide the number of ranks"},
    {INT(shard.prefetch, "1", 0, 8), .unit = "units", .example = "2", .chosen = true,
     .text = "Units that are gathered ahead of the computed unit."},
    {INT(shard.gathered, "-1", -1, 1 << 20), .unit = "units", .example = "4", .chosen = true,
     .text =
         "Number of leading units gathered once per step. The first unit is the embedding. "
         "These units stay gathered from their first to their last use in a step. This saves "
         "traffic on a slow link and takes device memory for their parameters. On one rank and "
         "with no_shard, units that are gathered once are cast once per step. -1: no unit if ranks "
         "gather from each other, otherwise all units except those with codes (lora.base and "
         "train.frozen). "
         "Only with full_shard, hybrid_shard and no_shard, and with tiers.optimizer=device."},
    {CHOICE(shard.reduce, "auto", LIST("auto", "micro", "step")),
     .text = "When gradients are reduced over the ranks.\n"
             "  auto  micro if gradients are sharded, otherwise step\n"
             "  micro  after each micro-batch\n"
             "  step  once per step; whole gradients stay in memory until then"},
    {CHOICE(shard.hops, "auto", LIST("auto", "1", "2")), .effect = EFFECT_MATH, .chosen = true,
     .text = "Hops of collectives between several nodes. With two, a node sends and gets each "
             "part once: its ranks add up gradients first. Codecs encode messages of gradients "
             "between nodes alone.\n"
             "  auto  2 if possible\n"
             "  1  each rank sends to each other rank\n"
             "  2  one in nodes, one between them. All nodes must have the same number of "
             "ranks, at least 2. Groups of hybrid_shard must fill nodes or fit in one."},

    {CHOICE(comm.backend, "auto", LIST("auto", "mpi", "nccl")),
     .text = "Library that moves data between ranks.\n"
             "  auto  nccl between GPUs, mpi between hosts\n"
             "  mpi  MPI\n"
             "  nccl  NCCL, for GPUs only"},
    {REAL(comm.timeout, "600", 0, 1e6), .unit = "s", .example = "1800", .unhashed = true,
     .text = "Time without progress that ends a job, 0 for never. It applies to the start, to a "
             "step and to a checkpoint. The job ends with the state of every rank."},

    {CHOICE(compress.feedback, "off", feedbacks), .effect = EFFECT_MATH,
     .text = "Data type of residuals, for error feedback. A residual is the error of a gradient "
             "message. It is added to the next gradient. With AdamW, error feedback makes no clear "
             "difference for formats with scales per block, such as int4. It may raise the loss of "
             "onebit, countsketch and sparse codecs. Residuals take memory for each element of the "
             "gradient, see tiers.residual.\n"
             "  off  no residuals: errors of messages are lost\n"
             "  fp32  4 bytes\n"
             "  bf16  2 bytes\n"
             "  int8  1 byte, and a scale per block"},
    {INT(compress.warmup, "0", 0, INT64_C(1) << 32), .effect = EFFECT_MATH, .unit = "updates",
     .example = "100",
     .text = "Updates at the start that use no gradient codec. A resumed run continues to count. "
             "Steps that are skipped do not count."},
    {INT(compress.sample, "0", 0, INFINITY), .unit = "steps", .example = "50", .unhashed = true,
     .text = "Steps between tests of message errors, 0 for none. A test compares up to 65,536 "
             "elements of each unit and rank with their decoded values. It does not change the "
             "training. results.jsonl has the errors of each unit."},
    {CHOICE(compress.grads.codec, "none", codecs), .effect = EFFECT_MATH, .chosen = true,
     .text =
         "Codec of gradients between ranks. Sums are computed in fp32. Between nodes the program "
         "may choose exponent, which has the results of none, bit for bit." CODEC_TEXTS},
    {CHOICE(compress.grads.values, "none", codecs), .effect = EFFECT_MATH,
     .text = "Codec of the values of a sparse or low-rank codec." CODEC_TEXTS},
    {INT(compress.grads.block, "0", 0, 1 << 20), .effect = EFFECT_MATH, .unit = "elements",
     .example = "256",
     .text = "Elements that are encoded together, a power of two. With a low-rank codec: elements "
             "of a row, a multiple of 32, such as model.width. 0: the codec's default."},
    {INT(compress.grads.levels, "0", 0, 1 << 16), .effect = EFFECT_MATH, .unit = "levels",
     .example = "15", .text = "Levels of the codec qsgd. 0: the codec's default."},
    {INT(compress.grads.rank, "0", 0, 1 << 10), .effect = EFFECT_MATH, .unit = "vectors",
     .example = "4", .text = "Rank of the codecs powersgd and gradiveq. 0: the codec's default."},
    {REAL(compress.grads.density, "0", 0, 1), .effect = EFFECT_MATH, .example = "0.01",
     .text = "Share of the elements that a sparse codec sends. 0: the codec's default."},
    {REAL(compress.grads.threshold, "0", 0, INFINITY), .effect = EFFECT_MATH, .example = "1e-4",
     .text = "Smallest magnitude that the codec threshold sends. 0: the codec's default."},
    {"compress.grads.units", OPTION_STRINGS, AT(compress.units), "[]", .effect = EFFECT_MATH,
     .example = "[h.1*=topk+int8]",
     .text = "Codecs of single units. Each item is PATTERN=CODEC, such as h.1*=topk+int8. The "
             "pattern is for the name of a unit (sluice plan prints it), with * and ? as for file "
             "names. The first item that matches counts. Other units have compress.grads.codec. "
             "All of them use the settings of compress.grads."},
    {CHOICE(compress.weights.codec, "none", codecs), .effect = EFFECT_MATH, .chosen = true,
     .text = "Codec of parameters that training gathers. Masters and checkpoints stay in fp32. "
             "Evaluation gathers parameters without the codec. Between nodes the program may "
             "choose exponent, which has the results of none, bit for bit." CODEC_TEXTS},
    {"compress.weights.delta", OPTION_BOOL, AT(compress.difference), "false", .effect = EFFECT_MATH,
     .text = "Send changes of parameters, not their values. Each rank keeps a copy of all "
             "parameters in the compute type, and adds the changes. The error of a message is part "
             "of the next one. For shard_grad_op and shard_optim."},
    {CHOICE(compress.weights.values, "none", codecs), .effect = EFFECT_MATH,
     .text = "Codec of the values that a sparse codec sends." CODEC_TEXTS},
    {INT(compress.weights.block, "0", 0, 1 << 20), .effect = EFFECT_MATH, .unit = "elements",
     .example = "256",
     .text = "Elements that are encoded together, a power of two. 0: the codec's default."},
    {REAL(compress.weights.density, "0", 0, 1), .effect = EFFECT_MATH, .example = "0.05",
     .text = "Share of the elements that a sparse codec sends. 0: the codec's default."},

    {CHOICE(tiers.preset, "none", deck_presets), .unhashed = true,
     .text = "Where everything is stored, as one choice. It sets tiers.params, tiers.optimizer, "
             "tiers.activations, tiers.resident, transfer.*, optim.state and optim.state_share. "
             "Each of these keys may still be set next to it. On the command line it replaces "
             "these keys of the deck. sluice plan compares the presets for a deck and a machine.\n"
             "  none  the single keys decide\n"
             "  device  everything in device memory: the fastest, if it fits\n"
             "  recompute  device, with activation checkpointing\n"
             "  offload_resident  as offload, with three units on the device, which hide the "
             "transfer between two steps\n"
             "  offload  masters, moments and the inputs of blocks in host memory\n"
             "  offload_nvme  as offload, with moments and the inputs of blocks on NVMe: the least "
             "memory, and slow"},
    {CHOICE(tiers.params, "device", tiers), .chosen = true,
     .text = "Memory that holds the parameters. It must be equal to tiers.optimizer.\n"
             "  device  device memory\n"
             "  host  host memory; the device holds a window of shard.prefetch + 1 units (CPU "
             "offload)"},
    {CHOICE(tiers.optimizer, "device", tiers), .chosen = true,
     .text = "Memory that holds master weights and "
             "moments. They are updated there. It must be equal to tiers.params.\n"
             "  device  device memory\n"
             "  host  host memory; the CPU runs the optimizer"},
    {KEY(STRING, tiers.activations, "keep"), .example = "recompute", .chosen = true,
     .text = "How a block keeps activations for the backward pass.\n"
             "  keep  in device memory\n"
             "  keep_host  in host memory, except the block's input\n"
             "  recompute  keep only the block's input and compute the rest again (activation "
             "checkpointing)\n"
             "  host  recompute, with the input in host memory\n"
             "  nvme  recompute, with the input on NVMe\n"
             "  WORD:K  WORD for every K-th block, keep for all others\n"
             "  WORD,WORD  blocks take these words in turn"},
    {KEY(STRING, tiers.nvme, ""), .path = true, .example = "/local/scratch", .unhashed = true,
     .text = "Node-local folder for data offloaded to NVMe. Empty: nvme in run.dir, which is "
             "allowed for jobs on one node with a local file system."},
    {CHOICE(tiers.working, "gather", LIST("gather", "keep")), .unhashed = true, .chosen = true,
     .text = "Whether the optimizer also writes working weights.\n"
             "  gather  no: each gather casts the fp32 masters to the compute type\n"
             "  keep  yes: a gather casts nothing; 2 more bytes per parameter that the rank owns. "
             "Blocks in fp8 keep their codes within a step instead"},
    {INT(tiers.resident, "0", 0, 1 << 20), .unit = "units", .example = "3", .chosen = true,
     .text = "Units that stay on the device with host offload. The first units, from the embedding "
             "on, are updated on the device because the next step needs them first. Only with "
             "tiers.optimizer=host."},
    {CHOICE(tiers.residual, "device", LIST("device", "host", "nvme")),
     .text = "Memory that holds residuals (compress.feedback).\n"
             "  device  device memory\n"
             "  host  host memory; the device holds those of a few units\n"
             "  nvme  tiers.nvme; host and device memory hold those of a few units"},

    {CHOICE(transfer.params, "shard", LIST("shard", "full")),
     .text =
         "Host-to-device transfer with tiers.params=host.\n"
         "  shard  each rank copies its shard, then the devices all-gather\n"
         "  full  each rank copies whole parameters from memory that its group shares on a node"},
    {CHOICE(transfer.grads, "gpu_reduce", LIST("gpu_reduce", "cpu_reduce")),
     .text = "Device-to-host transfer with tiers.optimizer=host.\n"
             "  gpu_reduce  the devices reduce-scatter, then each rank copies its shard\n"
             "  cpu_reduce  each rank copies whole gradients, then the hosts reduce them"},
    {REAL(transfer.rate, "0", 0, 1e6), .unit = "GB/s", .example = "16", .unhashed = true,
     .text = "Simulated rate of copies between tiers. Only if the device is the host; it shows "
             "what a slower link does. 0: as fast as memory."},

    {CHOICE(optim.name, "adamw", optimizers), .effect = EFFECT_MATH,
     .text = "Optimizer." OPTIM_ELEMENTWISE(OPTIM_TEXT) OPTIM_MATRIX(OPTIM_TEXT)},
    {REAL(optim.lr, "6e-4", 0, 1000), .effect = EFFECT_MATH, .example = "3e-4",
     .text = "Peak learning rate, after the warm-up."},
    {KEY(STRINGS, optim.lr_scale, "[]"), .effect = EFFECT_MATH, .example = "[root=0.5]",
     .text = "Factors of the learning rate of single units. Each item is PATTERN=FACTOR, such as "
             "root=0.5. The pattern is for the name of a unit (sluice plan prints it), with * and "
             "? as for file names. The first item that matches counts. Other units have factor 1. "
             "root has the embeddings and a tied head. h.0 is the first block. head is an untied "
             "head. The final norm is in the unit of the head. Weight decay scales likewise."},
    {KEY(REALS, optim.betas, "[0.9, 0.95]"), .effect = EFFECT_MATH, .least = 0, .most = 1,
     .count = 2,
     .text = "Decay rates of the moments. adamw, adamw8bit and lion read them, and muon for the "
             "parameters that AdamW updates. The authors of lion use [0.95, 0.98] for language "
             "models."},
    {REAL(optim.momentum, "0.95", 0, 1), .effect = EFFECT_MATH,
     .text = "Momentum of sgd and muon, below 1."},
    {KEY(BOOL, optim.nesterov, "true"), .effect = EFFECT_MATH,
     .text = "Nesterov's form of the momentum of sgd. muon always has it."},
    {REAL(optim.eps, "1e-8", 0, 1), .effect = EFFECT_MATH,
     .text = "Number added to the root of the second moment."},
    {REAL(optim.weight_decay, "0.1", 0, 1000), .effect = EFFECT_MATH,
     .text = "Decoupled weight decay."},
    {REAL(optim.clip, "1.0", 0, INFINITY), .effect = EFFECT_MATH,
     .text = "Largest global norm of gradients, 0 for no clipping."},
    {REAL(optim.min_lr, "0.1", 0, 1), .effect = EFFECT_MATH,
     .text = "Final learning rate, as a share of optim.lr."},
    {CHOICE(optim.schedule, "cosine", LIST("constant", "linear", "cosine")), .effect = EFFECT_MATH,
     .text = "Learning rate after the warm-up.\n"
             "  constant  stays at optim.lr\n"
             "  linear  falls linearly to optim.min_lr\n"
             "  cosine  falls along a half cosine to optim.min_lr"},
    {CHOICE(optim.nonfinite, "stop", LIST("stop", "skip")),
     .text = "Action if the loss or a gradient is not finite.\n"
             "  stop  end the run with exit code 7\n"
             "  skip  skip the step; the tenth skipped step in a row ends the run"},
    {INT(optim.warmup, "0", 0, INFINITY), .effect = EFFECT_MATH, .unit = "steps", .example = "2000",
     .text = "Steps over which the learning rate rises. The step after them has optim.lr."},
    {INT(optim.decay_steps, "0", 0, INFINITY), .effect = EFFECT_MATH, .unit = "steps",
     .example = "10000",
     .text = "Steps of the whole schedule, 0 for run.steps. The step after "
             "them is the first with optim.min_lr."},
    {KEY(STRINGS, optim.no_decay, "[norm, bias]"), .effect = EFFECT_MATH,
     .choices = LIST("norm", "bias", "embedding"), .text = "Parameters without weight decay."},
    {CHOICE(optim.moments, "fp32", LIST("fp32", "bf16", "fp16")), .effect = EFFECT_MATH,
     .text = "Data type of both moments. With adamw8bit leave it out: its moments take 8 bits.\n"
             "  fp32  32-bit floating point\n"
             "  bf16  bfloat16\n"
             "  fp16  scaled half precision; the second moment is stored as its root"},
    {CHOICE(optim.rounding, "nearest", LIST("nearest", "stochastic")), .effect = EFFECT_MATH,
     .text = "Rounding of moments to a 16-bit type. With adamw8bit leave it out: its rounding is "
             "always stochastic.\n"
             "  nearest  to the nearest value\n"
             "  stochastic  up or down at random, so that the mean is exact"},
    {CHOICE(optim.update, "auto", LIST("auto", "deferred", "immediate", "speculative")),
     .text = "When parameters are updated.\n"
             "  auto  immediate with tiers.optimizer=host if optim.clip=0 and "
             "optim.nonfinite=stop, otherwise speculative with it, transfer.grads=gpu_reduce and "
             "one micro-batch per step, otherwise deferred\n"
             "  deferred  after the norm of all gradients is known\n"
             "  immediate  as soon as the gradient of a unit is ready; needs optim.clip=0\n"
             "  speculative  as immediate, before it is known whether the step is clipped; a "
             "clipped step is repaired, with the results of deferred"},
    {CHOICE(optim.state, "host", LIST("host", "nvme")),
     .text = "Where moments are stored with tiers.optimizer=host.\n"
             "  host  host memory\n"
             "  nvme  a file in tiers.nvme"},
    {REAL(optim.state_share, "1", 0, 1),
     .text = "Share of units with moments on NVMe. Only with optim.state=nvme."},

    {INT(checkpoint.every, "0", 0, INFINITY), .unit = "steps", .example = "500",
     .text = "Steps between checkpoints, 0 for one at the end."},
    {INT(checkpoint.keep, "3", 0, INFINITY), .unit = "checkpoints",
     .text = "Newest checkpoints to keep, 0 for all."},
    {INT(checkpoint.keep_every, "0", 0, INFINITY), .unit = "steps", .example = "10000",
     .text = "Checkpoints at multiples of this are never removed. 0: none. It becomes 0 if the "
             "command line sets checkpoint.every=0 and not this key."},
    {KEY(BOOL, checkpoint.at_end, "true"), .text = "Save a checkpoint after the last step."},
    {KEY(BOOL, checkpoint.background, "true"), .unhashed = true,
     .text = "Write checkpoints while training goes on. The state is first copied in host memory. "
             "If there is no room for the copy, the steps wait."},

    {INT(eval.every, "0", 0, INFINITY), .unit = "steps", .example = "100",
     .text = "Steps between validations. The last step is validated too. 0: no validation."},
    {INT(eval.batches, "0", 0, INFINITY), .unit = "batches", .example = "20",
     .text = "Batches per validation, 0 for the whole set."},
    {REAL(eval.target, "0", 0, INFINITY), .example = "25", .unhashed = true,
     .text = "Validation perplexity to reach, 0 for none. results.jsonl has the first step and the "
             "time at which a validation is at or below it."},
    {0},
};
// clang-format on

/* --- loading ------------------------------------------------------------- */

/* checkpoint.every=0 on the command line means no checkpoints during training. So
 * checkpoint.keep_every of the deck becomes 0, also in the deck that checkpoints hold. */
static enum status drop_keep_every(struct deck *deck)
{
  const bool dropped = deck->checkpoint.every == 0 &&
                       options_is_typed(deck->set, "checkpoint.every") &&
                       !options_is_typed(deck->set, "checkpoint.keep_every");
  return dropped
             ? options_resolve_from(deck->set, "checkpoint.every=0", "checkpoint.keep_every", "0")
             : STATUS_OK;
}

/* Quotes that a text processor puts in the place of " and '. */
static bool is_quotation_mark(uint32_t code)
{
  return (code >= 0x2018 && code <= 0x201f) || code == 0xab || code == 0xbb;
}

static enum status check_text(const struct deck *deck, const struct option *option,
                              const char *text)
{
  const struct character first = printable_at(text, strlen(text));
  const char *where = options_where(deck->set, option->name);
  if (!printable_is(text))
    return status_usage("%s (%s) has a control character: '%s'; remove it", option->name, where,
                        text);
  if (first.bytes > 1 && is_quotation_mark(first.code))
    return status_usage("%s (%s) begins with the quotation mark U+%04X, %s: use \" or '",
                        option->name, where, first.code, text);
  return STATUS_OK;
}

/* Names of files, folders and parameters, which logs, reports and job scripts print. */
static enum status check_texts(const struct deck *deck)
{
  enum status status = STATUS_OK;
  for (const struct option *option = deck_table; option->name; option++) {
    const void *value = (const char *)deck + option->offset;
    const struct option_strings *list = option->type == OPTION_STRINGS ? value : NULL;
    const int n = list ? list->n : option->type == OPTION_STRING;
    char *const *item = list ? list->item : value;
    for (int i = 0; i < n && !status; i++)
      status = *item[i] ? check_text(deck, option, item[i]) : STATUS_OK;
  }
  return status;
}

static enum status load(struct deck *deck, const char *site, const char *site_text,
                        const char *label, const char *text, size_t bytes, int n,
                        char *const assignments[])
{
  memset(deck, 0, sizeof *deck);
  enum status status = options_create(deck_table, deck, &deck->set);
  if (!status)
    options_set_aliases(deck->set, deck_aliases);
  if (!status && site_text)
    status = options_read_text(deck->set, site, site_text, strlen(site_text));
  if (!status && text)
    status = options_read_text(deck->set, label, text, bytes);
  for (int i = 0; i < n && !status; i++)
    status = options_assign(deck->set, assignments[i]);
  status = status ?: options_check_required(deck->set) ?: check_texts(deck);
  status = status ?: deck_apply_preset(deck, false) ?: drop_keep_every(deck);
  if (!status && !*deck->train.init)
    status = deck_check(deck);
  if (status)
    deck_destroy(deck);
  return status;
}

enum status deck_load_text(struct deck *deck, const char *label, const char *text, size_t bytes,
                           int n, char *const assignments[])
{
  return load(deck, NULL, NULL, label, text, bytes, n, assignments);
}

enum status deck_load_site(struct deck *deck, const char *site, const char *site_text,
                           const char *label, const char *text, int n, char *const assignments[])
{
  return load(deck, site, site_text, label, text, text ? strlen(text) : 0, n, assignments);
}

void deck_site_keys(const struct deck *deck, char *out, size_t size)
{
  *out = '\0';
  for (const struct option *option = deck_table; option->name; option++)
    if (options_is_site(deck->set, option->name))
      append_text(out, size, "%s%s", *out ? ", " : "", option->name);
}

enum status deck_load(struct deck *deck, int n, char *const assignments[])
{
  return deck_load_text(deck, NULL, NULL, 0, n, assignments);
}

/* Adds "key=value" to `changes` if that is not the deck's value. */
static enum status note_change(const struct deck *from, const char *assignment, char *changes,
                               size_t size)
{
  char key[64], *now = NULL;
  snprintf(key, sizeof key, "%.*s", (int)strcspn(assignment, "="), assignment);
  const enum status status = options_print_named(from->set, key, &now);
  if (!status && strcmp(now, assignment + strlen(key) + 1) != 0)
    append_text(changes, size, "%s%s", *changes ? " " : "", assignment);
  mem_free(now);
  return status;
}

enum status deck_vary(const struct deck *from, const char *assignments, struct deck *out,
                      char *changes, size_t size)
{
  char *rest = NULL, *words = mem_strdup(assignments);
  if (!words)
    return STATUS_MEMORY;
  *out = (struct deck){0};
  *changes = 0;
  enum status status = options_copy(from->set, out, &out->set);
  memcpy(out->rows, from->rows, sizeof out->rows);
  for (char *word = strtok_r(words, " ", &rest); word && !status; word = strtok_r(NULL, " ", &rest))
    status = options_assign(out->set, word) ?: note_change(from, word, changes, size);
  if (!status && strstr(assignments, "tiers.preset="))
    status = deck_apply_preset(out, true);
  status = status ?: deck_check(out);
  if (status)
    deck_destroy(out);
  mem_free(words);
  return status;
}

void deck_destroy(struct deck *deck)
{
  options_destroy(deck->set);
  memset(deck, 0, sizeof *deck);
}

/* --- checks -------------------------------------------------------------- */

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

/* "96 or 108": the multiples of `of` on both sides of x, the lower one only if there is one. of 0:
 * x. */
static struct cited multiples_around(int64_t x, int64_t of)
{
  struct cited cited;
  int64_t below = of ? x / of * of : x, above;
  bool none_above = __builtin_add_overflow(below, of, &above);
  if (of && below > 0 && !none_above)
    snprintf(cited.text, sizeof cited.text, "%lld or %lld", (long long)below, (long long)above);
  else
    snprintf(cited.text, sizeof cited.text, "%lld", (long long)(none_above ? below : above));
  return cited;
}

/* Only digits, and from 1 to most. */
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

/* The choice named by a word of `length` letters, -1: unknown. */
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

static int64_t most_words(int64_t layers)
{
  return layers < DECK_PATTERN ? layers : DECK_PATTERN;
}

bool deck_parse_activations(const char *text, int64_t layers, struct deck_pattern *out)
{
  struct deck_pattern pattern = {0};
  const int64_t most = most_words(layers);
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

bool deck_shards_params(enum deck_strategy strategy)
{
  return strategy == STRATEGY_FULL_SHARD || strategy == STRATEGY_HYBRID_SHARD;
}

/* "PATTERN=VALUE": the length of the pattern; 0: another form, or too long. */
static size_t split_unit(const char *item)
{
  const size_t length = strcspn(item, "=");
  const bool both = length > 0 && item[length] && item[length + 1];
  return both && length < DECK_UNIT_TEXT && strlen(item + length + 1) < DECK_UNIT_TEXT ? length : 0;
}

/* `form`: of an item, and an example. */
static enum status check_units(const struct deck *deck, const char *key,
                               const struct option_strings *units, const char *form,
                               const char *example)
{
  if (units->n > DECK_UNIT_ITEMS)
    return status_usage("%s has %d items, and at most %d are possible: use patterns",
                        cite(deck, key).text, units->n, DECK_UNIT_ITEMS);
  for (int i = 0; i < units->n; i++)
    if (split_unit(units->item[i]) == 0)
      return status_usage("%s has '%s': an item is %s with at most %d letters each, such as %s",
                          cite(deck, key).text, units->item[i], form, DECK_UNIT_TEXT - 1, example);
  return STATUS_OK;
}

static enum status check_unit_values(const struct deck *deck)
{
  enum { MOST = 1000 }; /* as optim.lr */
  const struct option_strings *units = &deck->optim.lr_scale;
  enum status status = check_units(deck, "compress.grads.units", &deck->compress.units,
                                   "PATTERN=CODEC", "h.1*=int8");
  status = status ?: check_units(deck, "optim.lr_scale", units, "PATTERN=FACTOR", "root=0.5");
  for (int i = 0; i < units->n && !status; i++) {
    double factor;
    if (!options_parse_real(units->item[i] + split_unit(units->item[i]) + 1, &factor) ||
        factor <= 0 || factor > MOST)
      return status_usage("%s has '%s': a factor is a number above 0 and at most %d "
                          "(train.freeze is for parameters that are not trained)",
                          cite(deck, "optim.lr_scale").text, units->item[i], MOST);
  }
  return status;
}

static bool encodes(const struct deck *deck)
{
  return deck->compress.grads.codec != CHOICE_none || deck->compress.units.n > 0;
}

static enum status check_counters(const struct deck *deck)
{
  const struct option_strings *counters = &deck->run.counters;
  for (int i = 0; i < counters->n; i++)
    if (!*counters->item[i] || (counters->n > 1 && (!strcmp(counters->item[i], "none") ||
                                                    !strcmp(counters->item[i], "auto"))))
      return status_usage("%s has '%s' in its list: give none or auto alone, or names of events",
                          cite(deck, "run.counters").text, counters->item[i]);
  return STATUS_OK;
}

/* Sets the status. In `text`, {key} is the key with its origin, {key=} its value, {} is `near`. */
static enum status refuse(const struct deck *deck, const char *text, const char *near)
{
  char out[2048] = "";
  for (const char *open; (open = strchr(text, '{')); text = strchr(open, '}') + 1) {
    const int length = (int)strcspn(open + 1, "=}");
    char key[64], *value = NULL;
    snprintf(key, sizeof key, "%.*s", length, open + 1);
    if (length > 0 && options_print_named(deck->set, key, &value))
      return STATUS_MEMORY;
    append_text(out, sizeof out, "%.*s%s", (int)(open - text), text,
                length == 0               ? near
                : open[1 + length] == '=' ? value
                                          : cite(deck, key).text);
    mem_free(value);
  }
  return status_usage("%s%s", out, text);
}

/* Keys that contradict each other. */
static enum status check_pairs(const struct deck *deck)
{
  const int group = parse_group(deck->shard.group);
  const bool hybrid = deck->shard.strategy == STRATEGY_HYBRID_SHARD,
             host = deck->tiers.optimizer == DECK_TIER_HOST,
             nvme = deck->optim.state == DECK_STATE_NVME,
             at_once = deck->optim.update == DECK_UPDATE_IMMEDIATE,
             skips = deck->optim.nonfinite != NONFINITE_STOP,
             feedback = deck->compress.feedback != 0,
             hosts_reduce = deck->transfer.grads == DECK_CPU_REDUCE,
             shared = deck->transfer.params == DECK_PARAMS_FULL || hosts_reduce;
  const struct option_ints *trace = &deck->train.trace;
  const int64_t width = deck->model.width, heads = deck->model.heads,
                kv_heads = deck->model.kv_heads, every = deck->checkpoint.every,
                keep_every = deck->checkpoint.keep_every, warmup = deck->compress.warmup;
  const bool divides = deck->model.head_width == 0, /* heads the width */
      stores = states_of[deck->optim.name][0].type != DTYPE_F32;
  struct deck_pattern pattern;
#define FOR_HOST                                                                                   \
  ", which is for masters in host memory: set tiers.params=host and tiers.optimizer=host, or "     \
  "leave it out"
  const struct {
    bool wrong;
    const char *text;
    int64_t of, by; /* the sentence names the multiples of `by` on both sides of `of`; 0: `of` */
  } rows[] = {
      {!*deck->run.dir, "{run.dir} must name a folder, such as runs/first"},
      {divides && width / heads > MODEL_MOST_HEAD_WIDTH,
       "{model.width} is {model.width=} and {model.heads} is {model.heads=}, so a head has more "
       "than 65536 elements; use more heads, or model.head_width if model.arch is not gpt2"},
      {divides && width % heads != 0,
       "{model.width} is {model.width=}, which {model.heads} = {model.heads=} does not divide; use "
       "{}, or give model.head_width",
       width, heads},
      {kv_heads > 0 && heads % kv_heads != 0, "{model.kv_heads} is {model.kv_heads=}, which does "
                                              "not divide {model.heads} = {model.heads=}"},
      {deck->data.sequence > deck->model.context,
       "{data.sequence} is {data.sequence=} tokens, more than {model.context} = {model.context=}; "
       "shorten the sequence or lengthen the context"},
      {group == GROUP_BAD,
       "{shard.group} must be auto, world, node or a number of ranks, not '{shard.group=}'"},
      {hybrid && group == GROUP_WORLD,
       "{shard.group} is world, but {shard.strategy} is hybrid_shard, whose groups are smaller; "
       "leave it out, which means node, or set shard.group=N ranks"},
      {!hybrid && group != GROUP_WORLD && group != GROUP_AUTO,
       "{shard.group} is '{shard.group=}', but {shard.strategy} is {shard.strategy=}, which works "
       "on all ranks; leave it out, or use shard.strategy=hybrid_shard"},
      {deck->tiers.params != deck->tiers.optimizer,
       "{tiers.params} is {tiers.params=} and {tiers.optimizer} is {tiers.optimizer=}, but "
       "parameters live where they are updated: set both to the same"},
      {stores && deck->optim.moments != DECK_F32,
       "{optim.moments} is {optim.moments=}, but {optim.name} is {optim.name=}, which stores "
       "moments in a format of its own: set optim.moments=fp32, or leave it out"},
      {stores && deck->optim.rounding == DECK_ROUND_STOCHASTIC,
       "{optim.rounding} is stochastic, but {optim.name} is {optim.name=}, which always rounds "
       "moments stochastically: leave it out"},
      {deck->optim.rounding == DECK_ROUND_STOCHASTIC && deck->optim.moments == DECK_F32,
       "{optim.rounding} is stochastic, but {optim.moments} is fp32, which needs no rounding: set "
       "optim.moments=bf16 or fp16, or leave it out"},
      {deck->optim.state_share < 1 && !nvme,
       "{optim.state_share} is {optim.state_share=}, but {optim.state} is host, so all moments are "
       "in host memory: set optim.state=nvme, or leave it out"},
      {host && !deck_shards_params(deck->shard.strategy),
       "{tiers.optimizer} is host, which needs sharded parameters: use shard.strategy=full_shard "
       "or hybrid_shard, not {shard.strategy=}"},
      {host && deck->tiers.resident > 0 && shared,
       "{tiers.resident} is {tiers.resident=}, but only devices gather and reduce units that they "
       "update: set transfer.params=shard and transfer.grads=gpu_reduce, or leave it out"},
      {host && deck->shard.reduce == REDUCE_STEP,
       "{shard.reduce} is step, but with {tiers.optimizer} = host gradients go to the host after "
       "each micro-batch: set shard.reduce=micro or leave it out"},
      /* Keys of parameter transfers have no effect on the device, so decks may set them. */
      {!host && hosts_reduce, "{transfer.grads} is cpu_reduce" FOR_HOST},
      {!host && deck->optim.update == DECK_UPDATE_SPECULATIVE,
       "{optim.update} is speculative" FOR_HOST},
      {!host && nvme, "{optim.state} is nvme" FOR_HOST},
      {at_once && deck->optim.clip > 0,
       "{optim.update} is immediate, but {optim.clip} = {optim.clip=} needs the norm of all "
       "gradients first: set optim.clip=0, or optim.update=deferred"},
      {at_once && skips,
       "{optim.update} is immediate, but {optim.nonfinite} is skip, and a step whose units are "
       "updated already cannot be skipped: set optim.nonfinite=stop, or optim.update=deferred"},
      {deck->optim.betas[0] >= 1 || deck->optim.betas[1] >= 1,
       "{optim.betas} must be below 1: with 1, a moment stays 0; usual values are [0.9, 0.95]"},
      {deck->optim.momentum >= 1,
       "{optim.momentum} must be below 1: the momentum would only grow; a usual value is 0.95"},
      {deck->optim.decay_steps > 0 && deck->optim.warmup > deck->optim.decay_steps,
       "{optim.warmup} is {optim.warmup=} steps, longer than {optim.decay_steps} = "
       "{optim.decay_steps=}, which counts from the first step and includes it; shorten the "
       "warm-up"},
      {trace->n > 0 && trace->item[0] >= trace->item[1],
       "{train.trace} is {train.trace=}, which holds no step: the first number is the first step, "
       "the second the step after the last"},
      {keep_every > 0 && every == 0,
       "{checkpoint.keep_every} is {checkpoint.keep_every=}, but no checkpoints are written during "
       "training; set checkpoint.every too"},
      {keep_every > 0 && every > 0 && keep_every % every != 0,
       "{checkpoint.keep_every} is {checkpoint.keep_every=}, not a multiple of {checkpoint.every} "
       "= {checkpoint.every=}, so most of those checkpoints are never written; use {}",
       keep_every, every},
      {warmup > 0 && !encodes(deck),
       "{compress.warmup} is {compress.warmup=}, but {compress.grads.codec} is none, so there is "
       "no codec to warm up for: choose a codec, or leave it out"},
      {warmup > 0 && trace->n > 0 && trace->item[0] < warmup,
       "{train.trace} is {train.trace=}, but steps of the warm-up are not traced: begin at "
       "{compress.warmup} = {compress.warmup=} or later"},
      {feedback && skips, "{compress.feedback} is {compress.feedback=}, but {optim.nonfinite} is "
                          "skip, and the residual of a step that is not finite would spoil all "
                          "later steps: set optim.nonfinite=stop, or compress.feedback=off"},
      {feedback && !encodes(deck),
       "{compress.feedback} is {compress.feedback=}, but {compress.grads.codec} is none, whose "
       "messages lose nothing: choose a codec, or leave it out"},
      {deck->train.objective == OBJECTIVE_DPO && deck->data.pack == DECK_PACK_YES,
       "{data.pack} is true, but with {train.objective} = dpo a row holds one conversation: leave "
       "it out"},
      {deck->train.objective == OBJECTIVE_DPO && deck->eval.target > 0,
       "{eval.target} is a perplexity, and {train.objective} = dpo has none: leave it out"},
      {deck->train.frozen && deck->train.freeze.n == 0,
       "{train.frozen} is {train.frozen=}, but {train.freeze} is empty: name the parameters that "
       "are not trained, or leave it out"},
      {deck->lora.rank > 0 && deck->train.freeze.n > 0,
       "{train.freeze} is {train.freeze=}, but with {lora.rank} = {lora.rank=} only adapters are "
       "trained: leave it out, or choose matrices by lora.targets"},
      {*deck->lora.init && !*deck->train.init,
       "{lora.init} is {lora.init=}, but {train.init} is empty: it names the base of the adapters"},
      {deck->lora.rank == 0 &&
           (deck->lora.alpha > 0 || deck->lora.targets.n > 0 || deck->lora.rslora ||
            strcmp(frozen_types[deck->lora.base], "bf16") != 0),
       "{lora.rank} is {lora.rank=}, so there are no adapters: set it, or leave out all keys of "
       "lora"},
      {deck->compress.difference && deck->compress.weights.codec == CHOICE_none,
       "{compress.weights.delta} is true, but {compress.weights.codec} is none, so whole "
       "parameters are sent: choose a codec, or leave it out"},
      {!deck_parse_activations(deck->tiers.activations, deck->model.layers, &pattern),
       "{tiers.activations} must be keep, keep_host, recompute, host or nvme, not "
       "'{tiers.activations=}'. All but keep may end in :K, for every K-th block (K is 1 to {}). "
       "Or give up to {} words, which blocks take in turn, such as recompute,host",
       most_words(deck->model.layers)},
      {deck->run.counters.n > DECK_COUNTERS,
       "{run.counters} names {} events, and at most 8 are counted at a time: count the rest in "
       "another run",
       deck->run.counters.n},
  };
#undef FOR_HOST
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (rows[i].wrong)
      return refuse(deck, rows[i].text, multiples_around(rows[i].of, rows[i].by).text);
  return STATUS_OK;
}

static enum status check_sources(const struct deck *deck)
{
  enum { MOST = 1000000 }; /* the smallest weight still gives one sequence in 64 million */
  const struct option_strings *weights = &deck->data.weights;
  const int sources = deck->data.train.n, n = weights->n;
  double weight;
  if (sources > DECK_SOURCES || deck->data.val.n > DECK_SOURCES)
    return status_usage("%s names %d folders, and at most %d are possible: prepare some of them "
                        "into one",
                        cite(deck, sources > DECK_SOURCES ? "data.train" : "data.val").text,
                        sources > DECK_SOURCES ? sources : deck->data.val.n, DECK_SOURCES);
  if (n > 0 && n != sources)
    return status_usage("%s has %d weight%s, but data.train names %d folder%s: give one weight for "
                        "each",
                        cite(deck, "data.weights").text, n, plural(n), sources, plural(sources));
  for (int i = 0; i < n; i++)
    if (!options_parse_real(weights->item[i], &weight) || weight < 1.0 / MOST || weight > MOST)
      return status_usage("%s has '%s': a weight is a number from 1e-6 to 1e6; leave out a source "
                          "that gives nothing",
                          cite(deck, "data.weights").text, weights->item[i]);
  return STATUS_OK;
}

void deck_weights(const struct deck *deck, double weight[DECK_SOURCES])
{
  for (int i = 0; i < deck->data.train.n; i++) {
    weight[i] = 0;
    if (deck->data.weights.n > 0)
      options_parse_real(deck->data.weights.item[i], &weight[i]);
  }
}

static enum status check(const struct deck *deck)
{
  return check_pairs(deck)
             ?: check_counters(deck)
             ?: check_unit_values(deck)
             ?: check_sources(deck);
}

enum status deck_choose(struct deck *deck, const char *assignments)
{
  char *rest = NULL, *words = mem_strdup(assignments);
  enum status status = words ? STATUS_OK : STATUS_MEMORY;
  if (status)
    return status;
  for (char *key = strtok_r(words, "=", &rest); key && !status; key = strtok_r(NULL, "=", &rest)) {
    const char *value = strtok_r(NULL, " ", &rest);
    if (!options_is_set(deck->set, key))
      status = options_choose(deck->set, key, value, NULL);
  }
  mem_free(words);
  return status;
}

enum status deck_check(struct deck *deck)
{
#define HYBRID "shard.strategy=hybrid_shard"
#define MASTERS "tiers.params=host tiers.optimizer=host"
  static const char *const points[] = {HYBRID, MASTERS, HYBRID " " MASTERS};
  enum status status = check(deck);
  for (size_t p = 0; p < sizeof points / sizeof *points && status == STATUS_USAGE; p++) {
    struct deck other = {0};
    status = options_copy(deck->set, &other, &other.set)
        ?: deck_choose(&other, points[p])
        ?: check(&other)
        ?: deck_choose(deck, points[p]);
    deck_destroy(&other);
  }
  return status == STATUS_USAGE ? check(deck) : status; /* the first contradiction is named */
}

enum status deck_unchoose(struct deck *deck)
{
  return options_unchoose(deck->set) ?: deck_check(deck);
}

/* --- what it means on P ranks -------------------------------------------- */

int deck_data_ranks(const struct deck_shape *shape)
{
  return (int)(shape->ranks / (shape->mesh.context * shape->mesh.tensor * shape->mesh.pipeline));
}

int deck_local_data_ranks(const struct deck_shape *shape)
{
  const int64_t each = shape->mesh.context * shape->mesh.tensor;
  const int all = deck_data_ranks(shape),
            local = shape->local_ranks % each == 0 ? (int)(shape->local_ranks / each) : 1;
  return local < all ? local : all;
}

/* Axes whose product divides the ranks, with the least sum of differences from `mesh`. */
static struct deck_mesh nearest_mesh(struct deck_mesh mesh, int ranks)
{
  struct deck_mesh best = mesh;
  int64_t least = INT64_MAX;
  for (int64_t c = 1; c <= ranks; c++)
    for (int64_t t = 1; ranks % c == 0 && t <= ranks / c; t++)
      for (int64_t p = 1; ranks / c % t == 0 && p <= ranks / c / t; p++) {
        const int64_t apart =
            llabs(c - mesh.context) + llabs(t - mesh.tensor) + llabs(p - mesh.pipeline);
        if (ranks / c / t % p != 0 || apart >= least)
          continue;
        least = apart;
        best = (struct deck_mesh){c, t, p, mesh.expert};
      }
  return best;
}

static enum status resolve_mesh(const struct deck *deck, struct deck_shape *shape)
{
  const struct deck_mesh mesh = deck->mesh;
  shape->mesh = mesh;
  if (shape->ranks % (mesh.context * mesh.tensor * mesh.pipeline) == 0)
    return STATUS_OK;
  const struct deck_mesh near = nearest_mesh(mesh, shape->ranks);
  return status_usage(
      "mesh.context x mesh.tensor x mesh.pipeline is %lld x %lld x %lld, which does "
      "not divide the %d ranks of this run; the nearest mesh that does is "
      "mesh.context=%lld mesh.tensor=%lld mesh.pipeline=%lld",
      (long long)mesh.context, (long long)mesh.tensor, (long long)mesh.pipeline, shape->ranks,
      (long long)near.context, (long long)near.tensor, (long long)near.pipeline);
}

static enum status resolve_experts(const struct deck *deck, const struct deck_shape *shape)
{
  const int64_t expert = shape->mesh.expert;
  int64_t near = 1;
  for (int64_t e = 1; e <= shape->group; e++)
    if (shape->group % e == 0 && llabs(e - expert) < llabs(near - expert))
      near = e;
  if (near == expert)
    return STATUS_OK;
  return status_usage("%s is %lld, which does not divide shard groups of %d; the nearest that does "
                      "is mesh.expert=%lld",
                      cite(deck, "mesh.expert").text, (long long)expert, shape->group,
                      (long long)near);
}

static enum status resolve_group(const struct deck *deck, struct deck_shape *shape)
{
  const int data = deck_data_ranks(shape), local = deck_local_data_ranks(shape);
  const char *kind = data == shape->ranks ? "ranks" : "data ranks";
  if (deck->shard.strategy != STRATEGY_HYBRID_SHARD || data == 1) {
    shape->group = deck->shard.strategy == STRATEGY_NO_SHARD ? 1 : data;
    return STATUS_OK;
  }
  int group = parse_group(deck->shard.group);
  if (group == GROUP_NODE || group == GROUP_AUTO) {
    if (data % local != 0)
      return status_usage("%s is %s, but %d %s do not fill nodes of %d; start the same number of "
                          "ranks on every node",
                          cite(deck, "shard.group").text,
                          group == GROUP_NODE ? "node" : "auto, which means node here", data, kind,
                          local);
    group = local;
  }
  if (data % group != 0)
    return status_usage("%s is %d ranks, which does not divide the %d %s of this run; start %s %s, "
                        "or use a group that divides %d",
                        cite(deck, "shard.group").text, group, data, kind,
                        multiples_around(data, group).text, kind, data);
  shape->group = group;
  return STATUS_OK;
}

static enum status resolve_batch(const struct deck *deck, int ranks, struct deck_shape *shape)
{
  int64_t batch = deck->data.batch, micro = deck->data.micro_batch;
  if (micro > 0 && batch % micro != 0)
    return status_usage("%s is %lld sequences, not a multiple of %s = %lld; use a batch of %s, or "
                        "another micro-batch",
                        cite(deck, "data.batch").text, (long long)batch,
                        cite(deck, "data.micro_batch").text, (long long)micro,
                        multiples_around(batch, micro).text);
  if (batch % ranks != 0)
    return status_usage("%s is %lld sequences, which %d ranks cannot share evenly; use "
                        "data.batch=%s, or a number of ranks that divides %lld",
                        cite(deck, "data.batch").text, (long long)batch, ranks,
                        multiples_around(batch, ranks).text, (long long)batch);
  shape->rank_batch = batch / ranks;
  if (micro > 0 && shape->rank_batch % micro != 0)
    return status_usage(
        "%s is %lld sequences, but each of %d ranks has %lld (%s = %lld), which is not a multiple "
        "of that; use a micro-batch that divides %lld, or a batch of %s",
        cite(deck, "data.micro_batch").text, (long long)micro, ranks, (long long)shape->rank_batch,
        cite(deck, "data.batch").text, (long long)batch, (long long)shape->rank_batch,
        multiples_around(batch, micro * ranks).text);
  shape->micro_batch = micro > 0 ? micro : shape->rank_batch;
  shape->micros = shape->rank_batch / shape->micro_batch;
  if (deck->train.objective == OBJECTIVE_DPO && shape->micro_batch % 2 != 0)
    return status_usage("%s is dpo, and a micro-batch of %lld conversations splits a pair: set "
                        "data.micro_batch to an even number, or data.batch to an even number per "
                        "rank",
                        cite(deck, "train.objective").text, (long long)shape->micro_batch);
  return STATUS_OK;
}

/* NULL: none. */
static const char *codec_name(int choice)
{
  return choice == CHOICE_none ? NULL : codecs[choice];
}

static bool reduce_every_micro(const struct deck *deck)
{
  if (deck->shard.reduce != REDUCE_AUTO)
    return deck->shard.reduce == REDUCE_MICRO;
  return deck->shard.strategy != STRATEGY_SHARD_OPTIM && deck->shard.strategy != STRATEGY_NO_SHARD;
}

/* The choice of forecasts. With several micro-batches, or with sums on the host, the backward pass
 * of the last one needs the memory of the host for these sums. Then early updates gain nothing. */
static enum deck_update update_of(const struct deck *deck, const struct deck_shape *shape)
{
  if (deck->optim.update != DECK_UPDATE_AUTO)
    return deck->optim.update;
  if (deck->tiers.optimizer != DECK_TIER_HOST)
    return DECK_UPDATE_DEFERRED;
  if (deck->optim.clip == 0 && deck->optim.nonfinite == NONFINITE_STOP)
    return DECK_UPDATE_IMMEDIATE;
  return deck->transfer.grads == DECK_GPU_REDUCE && shape->micros == 1 ? DECK_UPDATE_SPECULATIVE
                                                                       : DECK_UPDATE_DEFERRED;
}

static struct deck_codec codec_of(const struct deck_compress *asked)
{
  return (struct deck_codec){.codec = codec_name(asked->codec),
                             .values = codec_name(asked->values),
                             .block = asked->block,
                             .levels = (int)asked->levels,
                             .rank = (int)asked->rank,
                             .density = asked->density,
                             .threshold = asked->threshold};
}

static struct deck_units units_of(const struct option_strings *units)
{
  struct deck_units out = {.n = units->n};
  for (int i = 0; i < units->n; i++) {
    const char *item = units->item[i];
    const int length = (int)split_unit(item);
    snprintf(out.of[i].pattern, DECK_UNIT_TEXT, "%.*s", length, item);
    snprintf(out.of[i].value, DECK_UNIT_TEXT, "%s", item + length + 1);
  }
  return out;
}

static enum status resolve_policy(const struct deck *deck, const struct deck_shape *shape,
                                  struct deck_policy *out)
{
  static const enum dtype moments[] = {
      [DECK_F32] = DTYPE_F32, [DECK_BF16] = DTYPE_BF16, [DECK_F16] = DTYPE_F16};
  const bool host = deck->tiers.optimizer == DECK_TIER_HOST;
  const int local_ranks = deck_local_data_ranks(shape), group = shape->group;
  const enum deck_update update = update_of(deck, shape);
  *out = (struct deck_policy){
      .reduce_every_micro = reduce_every_micro(deck),
      .keep_working = !host && deck->tiers.working == DECK_WORKING_KEEP,
      .host_state = host,
      .params_full = host && deck->transfer.params == DECK_PARAMS_FULL && group > 1,
      .cpu_reduce = deck->transfer.grads == DECK_CPU_REDUCE && group > 1,
      .one_node = local_ranks % group == 0,
      .immediate = update == DECK_UPDATE_IMMEDIATE,
      .speculative = update == DECK_UPDATE_SPECULATIVE,
      .moments = moments[deck->optim.moments],
      .frozen = deck_frozen(deck),
      .grads = codec_of(&deck->compress.grads),
      .units = units_of(&deck->compress.units),
      .lr_scale = units_of(&deck->optim.lr_scale),
      .feedback = deck_feedback(deck),
      .weights = codec_of(&deck->compress.weights),
      .difference = deck->compress.difference,
      .residual = deck->tiers.residual,
      .sample = deck->compress.sample,
      .nvme_state = deck->optim.state == DECK_STATE_NVME ? deck->optim.state_share : 0,
      .resident = host ? deck->tiers.resident : 0,
      .gathered = deck->shard.gathered};
  deck_parse_activations(deck->tiers.activations, deck->model.layers, &out->activations);
  if (out->params_full && !out->one_node)
    return status_usage(
        "%s is full, where the ranks of a shard group share the parameters in the memory of a "
        "node, but a group has %d ranks and a node %d: set transfer.params=shard, or "
        "shard.strategy=hybrid_shard with shard.group=node",
        cite(deck, "transfer.params").text, group, local_ranks);
  return STATUS_OK;
}

/* On nodes of unequal size other ranks may decide otherwise: the job compares them. */
static enum status resolve_hops(const struct deck *deck, bool cpu_reduce, struct deck_shape *shape)
{
  const int ranks = deck_data_ranks(shape), local = deck_local_data_ranks(shape),
            group = deck->shard.strategy == STRATEGY_NO_SHARD ? ranks : shape->group;
  const char *cure = local == 1           ? "start several ranks on every node"
                     : ranks % local != 0 ? "start the same number of ranks on every node"
                     : group % local != 0 && local % group != 0 ? "set shard.group=node"
                     : cpu_reduce                               ? "set transfer.grads=gpu_reduce"
                                                                : NULL;
  if (shape->local_ranks == shape->ranks || deck->shard.hops == DECK_HOPS_ONE)
    return STATUS_OK;
  if (cure && deck->shard.hops == DECK_HOPS_TWO)
    return status_usage("%s is 2, but two hops are impossible for %d ranks in groups of %d on "
                        "nodes of %d: %s, or set shard.hops=auto",
                        cite(deck, "shard.hops").text, ranks, group, local, cure);
  shape->two_hops = !cure;
  return STATUS_OK;
}

enum status deck_resolve(const struct deck *deck, int ranks, int local_ranks,
                         struct deck_shape *shape, struct deck_policy *policy)
{
  if (ranks < 1 || local_ranks < 1 || local_ranks > ranks)
    return status_usage("%d ranks with %d on a node is not a job; both must be at least 1, and the "
                        "first the larger",
                        ranks, local_ranks);
  struct deck_shape s = {.ranks = ranks, .local_ranks = local_ranks};
  struct deck_policy p;
  enum status status = check(deck) ?: resolve_mesh(deck, &s);
  if (status)
    return status;
  status = resolve_group(deck, &s) ?: resolve_experts(deck, &s);
  status = status ?: resolve_batch(deck, deck_data_ranks(&s), &s);
  status = status ?: resolve_policy(deck, &s, &p) ?: resolve_hops(deck, p.cpu_reduce, &s);
  if (status)
    return status;
  s.sequence = deck->data.sequence > 0 ? deck->data.sequence : deck->model.context;
  *shape = s;
  *policy = p;
  return STATUS_OK;
}

void deck_hash(const struct deck *deck, char *out)
{
  snprintf(out, 17, "%016llx", (unsigned long long)options_hash(deck->set));
}

bool deck_counts(const struct deck *deck)
{
  const struct option_strings *counters = &deck->run.counters;
  return counters->n > 0 && strcmp(counters->item[0], "none") != 0;
}

const char *deck_frozen(const struct deck *deck)
{
  const int type = deck->lora.rank > 0 ? deck->lora.base : deck->train.frozen;
  return type ? frozen_types[type] : NULL;
}

double deck_lora_scale(const struct deck *deck)
{
  const double rank = (double)(deck->lora.rank > 0 ? deck->lora.rank : 1);
  const double alpha = deck->lora.alpha > 0 ? deck->lora.alpha : 2 * rank;
  return alpha / (deck->lora.rslora ? sqrt(rank) : rank);
}

const char *deck_feedback(const struct deck *deck)
{
  return deck->compress.feedback ? feedbacks[deck->compress.feedback] : NULL;
}

const char *deck_strategy_name(enum deck_strategy strategy)
{
  return strategies[strategy];
}
