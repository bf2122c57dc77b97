/* A model and a device of which only sizes exist, and plans of them. */
#pragma once

#include "plan/plan.h"

extern struct device_model fixture_device; /* the host's */
extern struct device_model fixture_half;   /* with memory of its own, computing in bf16 */

/* Sets of frozen parameters. */
enum freeze {
  FREEZE_NOTHING,
  FREEZE_ODD,      /* every second parameter of every unit */
  FREEZE_LOW,      /* the embeddings and the first block */
  FREEZE_MIDDLE,   /* the last block and the norm in front of the head; the head too if it is untied
                    */
  FREEZE_BUT_HEAD, /* all but that norm, and the head if it is untied */
  FREEZE_EVEN,     /* the parameters that FREEZE_ODD trains: weights and embeddings */
  FREEZE_BASE,     /* as with adapters: all but few small parameters of each block */
  FREEZES
};

/* One point of the grid of plans. */
struct point {
  enum plan_mode mode;
  enum deck_strategy strategy;
  int ranks, group, prefetch, recompute,
      micros; /* recompute: of every K-th block not all activations are kept */
  bool reduce_every_micro;
  enum { TIED, UNTIED } head; /* UNTIED: it has a unit of its own */
  enum freeze freeze;
  bool half; /* on fixture_half */
  bool fp8;  /* and with products of all blocks but h.1 in fp8 */
  bool host, params_full, cpu_reduce, one_node, immediate; /* host: masters in host memory */
  bool speculative;
  double nvme_state;
  enum dtype moments;
  bool keep_working;
  int gathered;         /* units that are gathered once per step */
  int resident;         /* units whose masters stay on the device, with host */
  enum deck_keep keep;  /* what is kept of the blocks that `recompute` names, or of all; by default
                           those have their input */
  const char *codec;    /* of gradients between ranks; NULL: none */
  int64_t sample;       /* steps between measurements of the errors of messages; 0: never */
  const char *feedback; /* codec of residuals; NULL: errors of messages are lost */
  const char *base;     /* value of train.frozen; NULL: fp32 */
  const char *weights;  /* codec of gathered parameters; NULL: none */
  bool difference;      /* by which differences travel */
  enum deck_residual residual; /* and where */
  bool mixed;                  /* gradients of h.1 travel as they are */
  enum optimizer optim;
  int local_ranks;      /* of a node, so that collectives have two hops; 0: they have one */
  const char *lr_scale; /* factor of h.1's learning rate; NULL: 1 */
  /* Words of jobs that run alone (tests/exec/job.h). */
  const char *keeps, *frozen, *lr_scales; /* the deck's lists: of what blocks keep, in turn, and of
                                         patterns of parameters, and of units with their lr_scale */
  const char
      *rounded; /* value of train.frozen by which initial frozen parts were rounded; NULL: none */
  const char *values;           /* codec of the values that `weights` selects */
  const char *cores, *io_cores; /* logical CPUs, with commas; io_cores: one */
  int threads;                  /* 0: 1 */
  int sources;                  /* of the data; 0: 1 */
  int64_t capacity;             /* of a cache */
  int stages;                   /* of a block; 0: one */
  bool own;                     /* each stage has a unit */
  bool llama, whole, stochastic, no_clip, beside, late;
  /* Weights, positions and documents; LEADING has the second half of PACKED in a plain batch. */
  enum { INPUT_PLAIN, INPUT_TRIVIAL, INPUT_PACKED, INPUT_LEADING } input;
  enum { TARGETS_ALL, TARGETS_SOME, TARGETS_HALF, TARGETS_TWICE } targets; /* job_load() */
  double rate, clip, eps, lr;
  double beta; /* of pairs; 0: of tokens */
};

/* The root and `blocks` blocks whose sizes are no multiples of anything, tied and trained. Free
 * with fixture_free. */
void fixture_model(struct model *model, int blocks);
/* As the point has head and freeze, packed for its ranks. */
void fixture_model_of(struct model *model, int blocks, const struct point *point);
void fixture_free(struct model *model); /* takes a zeroed one */

/* One of FIXTURE_BLOCKS blocks for a group of tests: made and freed by cmocka. */
enum { FIXTURE_BLOCKS = 3 };
extern struct model fixture_small;
int fixture_make_small(void **state);
int fixture_free_small(void **state);

/* From then on the model computes in the type of the point. */
struct plan_input fixture_input(struct model *model, const struct point *point, int rank);
/* A plan of all steps; where there is none the test fails and says why. */
struct plan *fixture_plan(struct model *model, const struct point *point, int rank);
/* That of fixture_point(), on a rank. small_plan() has the model fixture_small. */
struct plan *plan_of(struct model *model, int rank, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
#define small_plan(rank, ...) plan_of(&fixture_small, rank, __VA_ARGS__)
/* Variables that end with their block, in the reverse order. */
#define PLAN __attribute__((cleanup(fixture_drop))) struct plan *const
#define MODEL __attribute__((cleanup(fixture_free))) struct model
void fixture_drop(struct plan *const *plan);
/* The first such instruction, -1: none; how many there are of an operation. `unit`, `micro`: -1 for
 * any. */
int fixture_find(const struct plan *plan, enum op op, int unit, int micro);
int fixture_count(const struct plan *plan, enum op op);
/* Bytes of all parameters, in fp32. */
int64_t fixture_flat_bytes(const struct plan *plan);
/* The point that a line of words describes: "full_shard ranks=4 group=2 micros=2 bf16 host
 * codec=int8". Each word is a flag or a key of words[] in fixture.c, a mode or a strategy. Without
 * them there is one rank, one group of all ranks, and one micro-batch. The line is a format of
 * printf. Static storage, for the next 15 calls. */
const struct point *fixture_point(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Such words, for messages. Static storage. */
const char *fixture_name(const struct point *point);

/* Calls visit(arg, point) for every training point: strategies x ranks 1..6 (hybrid: every group
 * that divides them) x prefetch 0..2 x recompute 0..2 x micro-batches 1..3 x reduce. */
typedef void fixture_visit(void *arg, const struct point *point);
void fixture_grid(fixture_visit *visit, void *arg);
/* The same for models with an untied head or frozen parameters, and all of them in bf16, some of
 * the choices for each. */
void fixture_variants(fixture_visit *visit, void *arg);
/* Every training point with masters in host memory, or one in `every` of them. If `every` divides
 * no number of choices, all choices occur. The points are full and hybrid sharding on ranks 1..5 x
 * micro-batches 1..3 x prefetch 0..3 x transfer of parameters and of gradients (by the devices, by
 * hosts, by hosts that share memory) x update x kept activations x share of moments on NVMe x
 * compute type. Heads, frozen parts and types of moments alternate. */
void fixture_host(int every, fixture_visit *visit, void *arg);
