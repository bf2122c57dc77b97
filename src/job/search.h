/* The settings with which a job fits, and what they cost. A variant is a deck with other values. It
 * is resolved, planned and priced as if a user had typed them. The advice of a job that does not
 * fit, the verdict of `sluice plan` and its forecasts read the variants from here.
 *
 * Changes are assignments with blanks between them, as they are typed. `key=*2` and `key=/2` stand
 * for a multiple or a part of a number: for data.micro_batch of a rank's share of the batch, for
 * shard.group of the ranks of a node, and otherwise of the job's own sequence. `key=units` is the
 * number of the model's units. */
#pragma once

#include "job/job.h"
#include "plan/arenas.h"
#include "plan/traffic.h"

enum room { ROOM_DEVICE, ROOM_HOST, ROOM_SHARED, ROOM_DISK, ROOMS };
/* Bytes of a node, or of a rank for device memory. They are doubles because a need may exceed
 * 2^63. */
struct rooms {
  double need[ROOMS], have[ROOMS]; /* have < 0: unknown, and so enough */
};
/* Whether the need of one memory exceeds what there is; whether none does. Local. */
bool rooms_is_short(const struct rooms *rooms, enum room room);
bool rooms_fit(const struct rooms *rooms);

/* Memory that the plans of a job need. */
struct job_need {
  int local; /* ranks of the node */
  struct plan_arenas device, host, shared,
      disk;     /* of a rank, except shared.persistent, which is of a group */
  double state; /* host memory of a rank that moves the state between the device and files */
  double boxes; /* in the node's shared memory, for data exchange between its ranks. ROOM_SHARED
                   does not count them, because messages can replace them */
  double room[ROOMS]; /* ROOM_DEVICE of a rank, the others of the node */
};
/* On a node of `local` ranks. Plans of the host device have all in host memory. `moves`: the job
 * loads or saves its state. Local. */
struct job_need job_need(int n, const struct plan *const plans[], int local, bool moves);

/* A job, and a function that judges the needs of its plans, or of those of a variant. */
struct search {
  const struct deck *deck;
  enum job_use use;
  int local_ranks; /* of a node */
  int node_ranks;  /* that a node can have; 0: local_ranks */
  int n;           /* plans of the deck, of which the first has the job's shape */
  const struct plan *const *plans;
  const struct plan_rates *rates; /* NULL: steps are not predicted */
  bool fitting;                   /* only what fits is priced */
  bool rough;                     /* a step of many micro-batches is priced from plans of a few */
  const struct traffic_model *links; /* NULL: traffic between nodes is not counted */
  void (*judge)(const void *arg, int local_ranks, int n, const struct plan *const plans[],
                struct rooms *out);
  const void *arg;
};

struct choice {
  char changes[640]; /* the assignments that differ from the deck; "": none */
  int ranks, local_ranks;
  bool possible;        /* the keys are consistent, and the rest is set */
  bool changes_numbers; /* of the training */
  bool fits;
  struct rooms rooms;
  double step_s;        /* predicted; 0 without rates */
  double sent;          /* bytes of a node to others in a step; 0 without links */
  int64_t micros;       /* micro-batches of a step */
  int64_t instructions; /* that were planned */
};

/* One variant. ranks 0: as many ranks on as many nodes as the job. Local. */
enum status search_try(const struct search *job, const char *changes, int ranks, int local_ranks,
                       struct choice *out);
/* The first plan of a variant, with waits. Free with plan_destroy. NULL: the keys contradict each
 * other. Local. */
enum status search_plan(const struct search *job, const char *changes, struct plan **out);

/* The predicted step of a plan with waits. Local. */
enum status search_price(const struct plan *plan, const struct plan_rates *rates, double *step_s);

/* The best settings of the keys that the deck leaves to the program (option.chosen), none of which
 * changes what is learned. `best` fits if any variant that was tried fits. It keeps a default
 * if no other value gains one percent by job->rates, and avoids a disk if it can. `of`: `best`, and
 * then the best variants that were tried, in order. Without `sums` the keys that may change the
 * order of sums stay as they are. The same for the same deck, rates and memories on every machine.
 * Local. */
enum { SEARCH_SETTINGS = 4 };
struct settings {
  struct choice best;
  char sums[640]; /* the part of best.changes that may change the order of sums */
  int n;
  struct choice of[SEARCH_SETTINGS];
};
enum status search_best(const struct search *job, bool sums, struct settings *out);
/* A value that it tries, as assignments that search_try() takes: for each axis its default and then
 * the others. *sums: they may change the order of sums. NULL: there is no such value, or no such
 * axis if `value` is 0. Local. */
const char *search_axis_value(int axis, int value, bool *sums);
/* Whether the first one is faster by more than the error of a forecast. Local. */
bool search_gains(const struct choice *choice, const struct choice *than);
/* Whether the deck leaves anything to choose: not shard.group alone, for example. `apart`: the
 * device has memory of its own. `nodes`: there are several. Local. */
bool search_is_free(const struct deck *deck, bool apart, bool nodes);
/* Whether a free key may have this value: not a codec that changes what is learned. Local. */
bool search_may_choose(const char *key, const char *value);
/* The codec of gradients or parameters that may be chosen if its rates are known; NULL: none.
 * Local. */
const char *search_codec(const struct deck *deck, bool nodes);

/* The ways to make a job fit, in out->of: the best value of each key alone, of those that the deck
 * sets and those that change the numbers too. What changes no numbers is first, then what
 * needs no disk, then what is faster. If no single change is enough, several together are tried,
 * and none of them is superfluous. If they are not enough, shorter sequences are tried. The last
 * way is the smallest number of nodes with which it fits, if more nodes help. If nothing helps, the
 * only choice has all changes together, or there is none, and the first one does not fit. Local. */
enum status search_cures(const struct search *job, struct settings *out);

/* "tiers.activations=recompute", with a note if it changes the numbers. Adds to `text` of `size`
 * bytes. Local. */
void search_append_changes(const struct choice *choice, char *text, size_t size);
