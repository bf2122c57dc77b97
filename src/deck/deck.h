/* The deck: all settings of a run, read from YAML and `key=value`. The table is in deck.c;
 * `sluice help keys` prints it. */
#pragma once

#include "base/dtype.h"
#include "deck/options.h"
#include "model/rule/config.h"

/* The choices of keys, in the order of deck.c. */
/* clang-format off */
enum deck_strategy {
  STRATEGY_FULL_SHARD, STRATEGY_SHARD_GRAD_OP, STRATEGY_SHARD_OPTIM, STRATEGY_NO_SHARD,
  STRATEGY_HYBRID_SHARD
};
enum deck_reduce { REDUCE_AUTO, REDUCE_MICRO, REDUCE_STEP };
enum deck_schedule { SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE };
enum deck_dtype { DECK_F32, DECK_BF16, DECK_F16 };
enum deck_tier { DECK_TIER_DEVICE, DECK_TIER_HOST };
enum deck_preset {
  DECK_PRESET_NONE, DECK_PRESET_DEVICE, DECK_PRESET_RECOMPUTE, DECK_PRESET_OFFLOAD_RESIDENT,
  DECK_PRESET_OFFLOAD, DECK_PRESET_OFFLOAD_NVME, DECK_PRESETS
};
enum deck_params { DECK_PARAMS_SHARD, DECK_PARAMS_FULL };
enum deck_grads { DECK_GPU_REDUCE, DECK_CPU_REDUCE };
enum deck_update {
  DECK_UPDATE_AUTO, DECK_UPDATE_DEFERRED, DECK_UPDATE_IMMEDIATE, DECK_UPDATE_SPECULATIVE
};
enum deck_rounding { DECK_ROUND_NEAREST, DECK_ROUND_STOCHASTIC };
enum deck_state { DECK_STATE_HOST, DECK_STATE_NVME };
enum deck_working { DECK_WORKING_GATHER, DECK_WORKING_KEEP };
enum deck_residual { DECK_RESIDUAL_DEVICE, DECK_RESIDUAL_HOST, DECK_RESIDUAL_NVME };
enum deck_device { DECK_DEVICE_AUTO, DECK_DEVICE_HOST, DECK_DEVICE_CUDA };
enum deck_compute { DECK_COMPUTE_AUTO, DECK_COMPUTE_FP32, DECK_COMPUTE_BF16, DECK_COMPUTE_FP8 };
enum deck_fp8_scales { DECK_FP8_SCALES_AUTO, DECK_FP8_SCALES_GROUPS, DECK_FP8_SCALES_TENSOR };
enum deck_backend { DECK_BACKEND_AUTO, DECK_BACKEND_MPI, DECK_BACKEND_NCCL };
enum deck_nonfinite { NONFINITE_STOP, NONFINITE_SKIP };
enum deck_pack { DECK_PACK_AUTO, DECK_PACK_NO, DECK_PACK_YES };
enum deck_long { DECK_LONG_CUT, DECK_LONG_DROP, DECK_LONG_SPLIT };
enum deck_objective { OBJECTIVE_LM, OBJECTIVE_DPO };
enum deck_hops { DECK_HOPS_AUTO, DECK_HOPS_ONE, DECK_HOPS_TWO };
/* clang-format on */

/* A codec and the codec of its values, as choices. For the other settings 0 means the codec's
 * default. */
struct deck_compress {
  int codec, values;
  int64_t block, levels, rank;
  double density, threshold;
};

/* Ranks along axes of the mesh. `expert` is a factor of the shard group. */
struct deck_mesh {
  int64_t context, tensor, pipeline, expert;
};

/* Fields are named as the keys, whose texts in deck.c say what 0 and an empty text mean. */
struct deck {
  struct {
    char *dir;
    int64_t steps, seed, threads, warmup;
    double minutes, peak;
    enum deck_device device;
    enum deck_compute compute;
    enum deck_fp8_scales fp8_scales;
    bool tensorboard, fp8_gradients;
    struct option_strings counters, fp8_except;
  } run;
  struct model_config model;
  enum deck_dtype export; /* model.dtype */
  struct {
    bool bind;
    struct option_strings cores;
    int64_t controller;
  } topo;
  struct {
    char *init;
    enum deck_objective objective;
    double beta;
    struct option_strings freeze;
    int frozen;               /* fp32, or the codec of this name */
    struct option_ints trace; /* steps from, to (excluded) */
  } train;
  struct {
    char *init;
    int64_t rank; /* 0: no adapters */
    double alpha; /* 0: twice the rank */
    struct option_strings targets;
    bool rslora;
    int base; /* as train.frozen */
  } lora;
  struct {
    struct option_strings train, val, weights;
    int64_t batch, sequence, micro_batch;
    enum deck_pack pack;
    enum deck_long over; /* data.long */
    bool reorder, verify;
  } data;
  struct deck_mesh mesh;
  struct {
    enum deck_strategy strategy;
    char *group;
    int64_t prefetch, gathered;
    enum deck_reduce reduce;
    enum deck_hops hops;
  } shard;
  struct {
    enum deck_backend backend;
    double timeout;
  } comm;
  struct {
    int feedback; /* choice; 0: off. See deck_feedback() */
    int64_t warmup, sample;
    struct deck_compress grads, weights;
    struct option_strings units; /* of grads */
    bool difference;             /* weights.delta */
  } compress;
  struct {
    enum deck_preset preset;
    enum deck_tier params, optimizer;
    char *activations; /* see deck_parse_activations() */
    char *nvme;
    enum deck_working working;
    int64_t resident;
    enum deck_residual residual;
  } tiers;
  struct {
    enum deck_params params;
    enum deck_grads grads;
    double rate;
  } transfer;
  struct {
    int name; /* enum optimizer */
    double lr, betas[2], momentum, eps, weight_decay, clip, min_lr, state_share;
    struct option_strings lr_scale, no_decay;
    bool nesterov;
    enum deck_schedule schedule;
    enum deck_nonfinite nonfinite;
    int64_t warmup, decay_steps;
    enum deck_dtype moments;
    enum deck_rounding rounding;
    enum deck_update update;
    enum deck_state state;
  } optim;
  struct {
    int64_t every, keep, keep_every;
    bool at_end, background;
  } checkpoint;
  struct {
    int64_t every, batches;
    double target;
  } eval;
  /* Of the rows of training data, then of validation data: job_look_at_data(). */
  struct deck_rows {
    bool packed;    /* of any source */
    bool apart;     /* each row of an evaluation is a source; the caller sets it */
    double squares; /* mean sum of the squares of the lengths of a row's documents; 0: whole rows */
  } rows[2];
  struct option_set *set; /* owns the strings above */
};

/* The effect of a changed value of a key on a resumed run (option.effect). ORDER: it changes the
 * order of samples. A key without effect changes results by rounding at most. Other checks compare
 * model.*, train.freeze and data.train. */
enum deck_effect { EFFECT_NONE, EFFECT_MATH, EFFECT_ORDER };

extern const struct option deck_table[];
extern const struct option_alias deck_aliases[];
extern const struct option_alias deck_strategy_aliases[]; /* of the choices of shard.strategy */

/* Defaults, then the `n` assignments, then the checks that need more than one key (deck_check).
 * With train.init, which may hold the model, the caller runs the checks once model.* is known. Free
 * with deck_destroy. */
enum status deck_load(struct deck *deck, int n, char *const assignments[]);
/* From the YAML text stored in a checkpoint (`label` names it in messages), then assignments. */
enum status deck_load_text(struct deck *deck, const char *label, const char *text, size_t bytes,
                           int n, char *const assignments[]);
/* The same after the defaults of a site. `site` is their label (OPTIONS_SITE and a path). Each of
 * the two texts may be NULL. */
enum status deck_load_site(struct deck *deck, const char *site, const char *site_text,
                           const char *label, const char *text, int n, char *const assignments[]);
/* The keys whose values are defaults of the site, separated by commas; "": none. Local. */
void deck_site_keys(const struct deck *deck, char *out, size_t size);
void deck_destroy(struct deck *deck); /* takes a zeroed deck */
/* A copy of a deck with other values: `assignments` are "key=value", separated by blanks, as if
 * they had been typed last. A preset among them replaces all keys that it sets. `changes`, of
 * `size` bytes, lists the assignments that differ from the deck's values. STATUS_USAGE: the keys
 * contradict each other. Free with deck_destroy. Local. */
enum status deck_vary(const struct deck *from, const char *assignments, struct deck *out,
                      char *changes, size_t size);

/* Sets the keys of tiers.preset to its values. Keys that are set in the same place or on the
 * command line keep theirs, unless `all`. The functions above call it. Local. */
enum status deck_apply_preset(struct deck *deck, bool all);

/* Chooses values for those keys of `assignments`, with blanks between them, that the program may
 * choose. Local. */
enum status deck_choose(struct deck *deck, const char *assignments);
/* Takes all choices back. Keys that the set ones need are chosen again, as deck_check() does.
 * Local. */
enum status deck_unchoose(struct deck *deck);

/* Impossible combinations that do not depend on the number of ranks (width % heads, sequence >
 * context, warmup > decay_steps, ...). A warm-up longer than run.steps is allowed, for a shortened
 * run (run.steps=50 on the command line). If defaults of keys that the program may choose
 * contradict other keys, they get values that do not: tiers.params=host with tiers.optimizer=host.
 * Local. */
enum status deck_check(struct deck *deck);

enum { DECK_SOURCES = 64 }; /* the most folders that data.train may name */
/* Weights of the n items of data.train, which fit it. Without data.weights each is 0. */
void deck_weights(const struct deck *deck, double weight[DECK_SOURCES]);

enum { DECK_COUNTERS = 8 }; /* the most events that run.counters may name */
/* Whether run.counters requests any events. */
bool deck_counts(const struct deck *deck);

/* The data type of residuals: compress.feedback, NULL: off. */
const char *deck_feedback(const struct deck *deck);

/* The data type of frozen parameters: train.frozen, or lora.base of a run with adapters. NULL:
 * fp32. */
const char *deck_frozen(const struct deck *deck);

/* The factor of B A x: lora.alpha / rank, or over its square root. */
double deck_lora_scale(const struct deck *deck);

const char *deck_strategy_name(enum deck_strategy strategy); /* "full_shard" */

/* The data that a block keeps from its forward to its backward pass. It keeps all activations, on
 * the device or (except its input) in host memory. Or it keeps only its input, and computes the
 * rest again. The input is kept on the device, in host memory, or on NVMe. Block b has of[b %
 * n]. */
/* clang-format off */
enum deck_keep {
  KEEP_ACTIVATIONS, KEEP_INPUT, KEEP_INPUT_HOST, KEEP_INPUT_NVME, KEEP_ACTIVATIONS_HOST
};
/* clang-format on */
enum { DECK_PATTERN = 128 };
struct deck_pattern {
  int n;
  uint8_t of[DECK_PATTERN];
};
bool deck_keeps(const struct deck_pattern *pattern,
                enum deck_keep what); /* of any block; n 0: KEEP_ACTIVATIONS of all */
/* Accepts "keep", "keep_host", "recompute", "host", "nvme", or a list of these that blocks take in
 * turn ("recompute,host"). All except "keep" may end in ":K": they hold for every K-th block, from
 * the first one, and the others are kept. False: another text, or a list longer than the number of
 * blocks or than DECK_PATTERN. */
bool deck_parse_activations(const char *text, int64_t layers, struct deck_pattern *out);

/* The arithmetic of a step. */
struct deck_shape {
  int ranks;
  int group; /* data ranks in a shard group: 1 for no_shard, all except for hybrid_shard */
  struct deck_mesh mesh;
  int64_t rank_batch;                    /* sequences of one rank per step */
  int64_t micro_batch, micros, sequence; /* sequences of one micro-batch; micro-batches a step */
  int local_ranks; /* of each node, numbered node by node; 0: all ranks are on one node */
  /* Several nodes have local_ranks each, and shard groups fill nodes or fit in one. Collectives of
   * a group run among its ranks of a node first, and gradients are encoded between nodes alone. */
  bool two_hops;
  bool uneven; /* nodes have different numbers of ranks */
};

/* The codec of messages between ranks: names in src/compress, NULL: none. `values`: the codec of
 * the values that a sparse codec selects. A setting of 0 is the codec's default. */
struct deck_codec {
  const char *codec, *values;
  int64_t block;
  int levels, rank;
  double density, threshold;
};

/* Values of single units. A unit has the value of the first pattern that matches its name, as for
 * file names. */
enum { DECK_UNIT_ITEMS = 32, DECK_UNIT_TEXT = 48 };
struct deck_units {
  int n;
  struct {
    char pattern[DECK_UNIT_TEXT], value[DECK_UNIT_TEXT];
  } of[DECK_UNIT_ITEMS];
};

/* Requests of the deck that hold for all units. unit_policy_make() makes the policy of each unit
 * from it. */
struct deck_policy {
  bool reduce_every_micro; /* reduce gradients after each micro-batch, or once per step */
  struct deck_pattern activations;
  bool keep_working; /* tiers.working=keep, with masters on the device */
  bool host_state;   /* masters, moments and gradients are in host memory */
  bool params_full;  /* with host_state: the shard group shares whole units, which each rank
                      * copies. Otherwise a rank copies its shard and the group gathers. */
  bool cpu_reduce;   /* with host_state: whole gradients are reduced on the host */
  bool one_node;     /* a shard group is on one node, judged from this rank's node */
  bool immediate;    /* a unit is updated as soon as its gradient is complete */
  bool speculative;  /* with host_state: likewise, but the norm may still clip the update */
  enum dtype moments;
  const char *frozen;         /* codec of frozen parameters between their uses; NULL: fp32 */
  struct deck_codec grads;    /* between ranks, for units that no pattern of `units` matches */
  struct deck_units units;    /* codecs */
  struct deck_units lr_scale; /* factors of the learning rate, see deck_check() */
  bool warmup; /* this plan is for the first updates, which encode no gradients; the deck does not
                  set it */
  int64_t sample;              /* steps between measurements of the error of messages; 0: never */
  const char *feedback;        /* codec of residuals, or fp32; NULL: no residuals */
  enum deck_residual residual; /* the memory that holds residuals */
  struct deck_codec weights;   /* of parameters that are gathered for training */
  bool difference;   /* with weights.codec: messages hold differences to a copy of the whole unit,
                        which each rank keeps */
  double nvme_state; /* with host_state: share of the units with moments on NVMe */
  int64_t resident;  /* with host_state: the first units, which stay on the device; 0 with
                      * params_full or cpu_reduce */
  int64_t gathered;  /* the first units, which training gathers once per step; -1: see the deck */
};

/* full_shard and hybrid_shard: a rank gathers parameters for each use. Pure. */
bool deck_shards_params(enum deck_strategy strategy);

/* Ranks with sequences of their own, of all ranks or of a node; 1 for a node that does not have all
 * of its context and tensor axes. Pure. */
int deck_data_ranks(const struct deck_shape *shape);
int deck_local_data_ranks(const struct deck_shape *shape);

/* Shape and policy of the deck on `ranks` ranks with `local_ranks` on this node. STATUS_USAGE names
 * keys that do not fit, such as a batch or a group that does not divide. It begins with
 * deck_check(), because loading a deck with a train.init does not check it. Pure. */
enum status deck_resolve(const struct deck *deck, int ranks, int local_ranks,
                         struct deck_shape *shape, struct deck_policy *policy);

/* A hash of the resolved deck as 16 hex digits, without keys that are `unhashed` in the table. out:
 * at least 17 bytes. */
void deck_hash(const struct deck *deck, char *out);
