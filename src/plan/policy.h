/* The policy of a unit: the tiers and types of its state, and the codecs of its messages. It also
 * has the times of reduction and update, and the factor of the learning rate. The builder asks it
 * instead of the deck. */
#pragma once

#include <stdbool.h>

#include "base/dtype.h"
#include "compress/compress.h"
#include "deck/deck.h"

/* The copy of its parameters in the compute type. The update writes it, and it is gathered or
 * fetched. */
enum working {
  WORKING_NONE,
  WORKING_OWN,   /* each rank has its shard */
  WORKING_SHARED /* the shard group has the whole unit, in host memory that it shares */
};

/* The moment of a unit's update. */
enum timing {
  TIMING_DEFERRED,  /* after the norm of all gradients is known */
  TIMING_IMMEDIATE, /* as soon as its gradient is complete, without clipping */
  /* The working copy is written as soon as its gradient is complete, as if the norm were below
   * optim.clip. If it is not, REPAIR writes it again. Masters and state change only when the norm
   * is known: in the unit's UPDATE of the next step, which reads them anyway. The method follows
   * the speculation of Lian et al. 2025 (SuperOffload, arXiv:2509.21271), without a rollback. */
  TIMING_SPECULATIVE
};

/* The place where gradients are summed over ranks. */
enum sums {
  SUMS_DEVICE,
  SUMS_HOST,  /* whole gradients are copied to the host, and hosts exchange them */
  SUMS_SHARED /* the shard group adds them up in host memory that it shares */
};

struct unit_policy {
  bool host;             /* masters, optimizer state and reduced gradients are in host memory */
  bool disk;             /* and the optimizer state is on NVMe between updates */
  enum dtype compute;    /* of values that units pass to each other, and of working copies */
  enum dtype window;     /* in which parameters are gathered: `compute`, or codes in fp8 */
  bool keeps_codes;      /* codes are made once per step, and kept between its GATHERs */
  enum dtype frozen;     /* of frozen shards between their uses; DTYPE_U8: messages of `base`;
                            DTYPE_F8_E4M3: codes, as in windows */
  enum dtype state;      /* of optimizer state */
  double lr_scale;       /* factor of the learning rate */
  struct codec grads;    /* of gradients between ranks; in two hops, between nodes */
  struct codec residual; /* of residuals; ops NULL: no residuals */
  struct codec base;     /* of frozen shards: a rank has one message, made before the first step */
  struct codec
      weights;     /* of gathered parameters in training; ops NULL: they are sent as they are */
  bool difference; /* messages of parameters are differences to a copy of the whole unit */
  bool apart; /* masters have a buffer of their own, because training decodes other values around
                 them. The same in all plans of a job. */
  enum deck_residual residual_tier; /* its tier between uses */
  int64_t sample; /* steps between measurements of the errors of gradient messages; 0: never */
  enum working working;
  enum sums sums;
  bool gather_once; /* in a step: its window stays from its first use to its last use */
  bool each_micro;  /* gradients are reduced after each of several micro-batches, or once a step */
  enum timing timing;
  bool waits; /* its update runs after the backward pass, in the next forward pass */
  enum deck_keep keep; /* of a block, from its forward to its backward pass */
};

struct plan_input;

/* The part of a gradient that a rank encodes. The gradient has `blocks` equal blocks. Each block
 * has `parts` equal parts. The rank encodes part (rank modulo `parts`) of each block. */
struct encoded {
  int parts, blocks;
};
struct encoded unit_policy_encoded(const struct plan_input *input); /* Pure. Local. */
/* STATUS_USAGE, STATUS_UNSUPPORTED: the policy that the deck requests is impossible. Local. */
enum status unit_policy_check(const struct plan_input *input);
/* The codec of residuals for a value of compress.feedback; NULL: none, without ops. Local. */
enum status unit_policy_residual(const char *feedback, struct codec *out);
/* The codec of the gradients of the unit of this name. STATUS_USAGE. Local. */
enum status unit_policy_codec(const struct deck_policy *asked, const char *unit, struct codec *out);
/* The policy of one unit, from an input that was checked. Pure. Local. */
struct unit_policy unit_policy_make(const struct plan_input *input, int unit);
