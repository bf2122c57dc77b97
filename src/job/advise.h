/* Other settings for a job, which would make it fit or faster. A variant is a list of deck
 * assignments. It is resolved, planned, sized and simulated as if the user had typed them.
 */
#ifndef SLUICE_JOB_ADVISE_H
#define SLUICE_JOB_ADVISE_H

#include "job/job.h"
#include "plan/arenas.h"

enum room { ROOM_DEVICE, ROOM_HOST, ROOM_SHARED, ROOM_DISK, ROOMS };
/* Bytes of a node, or of a rank for device memory. They are doubles because a need may exceed
 * 2^63. */
struct rooms {
  double need[ROOMS], have[ROOMS]; /* have < 0: unknown, and so enough */
};
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

/* A job, and a function that judges the needs of its plans, or of those of another deck. */
struct advise_case {
  const struct deck *deck;
  enum job_use use;
  int local_ranks;
  int ranks; /* of plans with other assignments; 0: as many as those of the deck */
  int n;     /* plans of the deck, of which the first has the job's shape */
  const struct plan *const *plans;
  void (*judge)(const void *arg, int n, const struct plan *const plans[], struct rooms *out);
  const void *arg;
};

/* The needs of plans and the time of a step. */
struct advise_measure {
  struct rooms rooms;
  double tier[TIER_COUNT];       /* of this rank; of TIER_SHARED of its group */
  double divided[TIER_COUNT];    /* bytes of `tier` that more ranks would split */
  double grows;                  /* device memory that several ranks need more than one */
  struct plan_forecast forecast; /* zeros without rates */
};

struct advice {
  char name[640];       /* the assignments that differ from the deck, as they are typed; "": none */
  bool possible;        /* the keys are consistent, and the rest is set */
  bool changes_numbers; /* of the training */
  bool fits;
  struct advise_measure measure;
};

/* The needs of the deck with these assignments ("tiers.activations=recompute data.micro_batch=1").
 * `rates` may be NULL. Local. */
enum status advise_try(const struct advise_case *job, const char *assignments,
                       const struct plan_rates *rates, struct advice *out);

/* The first plan of the job with these assignments, with waits if `ordered`. Free with
 * plan_destroy. NULL: the keys contradict each other. Local. */
enum status advise_plan(const struct advise_case *job, const char *assignments, bool ordered,
                        struct plan **out);

/* Whether many more ranks are a cure, and what they need besides. */
struct advise_hopes {
  bool ranks;
  bool keys;       /* the keys of the last advice */
  bool full_shard; /* shard.strategy=full_shard, because the deck's strategy splits nothing */
  bool shorter;    /* a much shorter sequence */
};

/* Searches for keys that make a job fit. Single changes come first, in the order of their cost, and
 * changes of the numbers last. If no single change is enough, several together are tried, and none
 * of them is superfluous. If they are not enough, shorter sequences are tried. `tell` gets up to
 * three that fit. If there is none, it gets the needs with all changes together, and *fits is
 * false. Local. */
typedef void advise_tell(void *to, const struct advice *advice);
enum status advise_fit(const struct advise_case *job, advise_tell *tell, void *to, bool *fits,
                       struct advise_hopes *hopes);

/* "tiers.activations=recompute", with a note if it changes the numbers. Adds to `text` of `size`
 * bytes. Local. */
void advise_append_name(const struct advice *advice, char *text, size_t size);

/* Further needs of more ranks: "", or " with KEYS and a much shorter data.sequence". Adds to
 * `text` of `size` bytes. Local. */
void advise_append_hopes(const struct advise_hopes *hopes, const char *keys, char *text,
                         size_t size);

#endif
