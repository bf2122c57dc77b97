/* The keys that a deck leaves to the program (option.chosen): the settings with which a step is
 * predicted to be fastest.
 *
 * Keys that may change the order of sums are chosen with the rates that a description of the
 * machine gives: kinds and numbers of devices, nodes and ranks. So every start on such a machine
 * has the same bits. The other keys are chosen with measured rates. If other programs hold so much
 * memory that nothing fits, the first keys are chosen for the memory that is free. */
#pragma once

#include "job/job.h"
#include "job/search.h"

/* Rates that the description of a machine gives: ranks on nodes of `local_ranks`, each with such a
 * device. A host's number of threads does not count, because threads never change the order of
 * sums. Pure. Local. */
struct plan_rates choose_nominal_rates(const struct device_model *model, int ranks,
                                       int local_ranks);

/* Gives missing rates their nominal values, because work without a rate takes no time, so that a
 * setting with much of it would look fast. Local. */
void choose_fill_rates(const struct plan_rates *nominal, struct plan_rates *rates);

/* The best settings, as assignments; "": the defaults, also if nothing fits. */
struct chosen {
  char text[640];
  double step_s, default_s; /* predicted by measured rates */
  bool measured;            /* `step_s` depends on no nominal rate */
  bool default_fits;
  struct settings best; /* of the search with measured rates */
};
/* Both searches are of one job. `described` has nominal rates and the whole memories of the
 * machine. `measured` has the memories that are free, and measured rates, which may lack some, or
 * NULL. Local. */
enum status choose_settings(const struct search *described, const struct search *measured,
                            struct chosen *out);
/* Gives every free key of `deck` a value: that of `text`, or its default. Local. */
enum status choose_apply(const char *text, struct deck *deck);

/* Sets the free keys of job->deck, from the plans that it has with their defaults. out->text: they
 * differ from the defaults, so other plans are needed. The same on all ranks. Collective. */
enum status job_choose(struct job *job, enum job_use use, struct chosen *out);
/* Logs on rank 0 what was chosen, if it fits, and all keys that keep it. Local. */
enum status choose_log(const struct job *job, const struct chosen *chosen);
/* Gives the free keys of `deck` the values of the deck that a checkpoint on as many ranks holds, so
 * that a resumed run does the same sums. A key that says "auto" stays free. If the values
 * contradict other keys or do not go with these nodes, all stay free, and the log says so. *taken:
 * at least one key got its value. Collective. */
enum status choose_resumed(struct comm *comm, const struct deck *saved, const char *path,
                           struct deck *deck, bool *taken);
/* Frees the keys that choose_resumed() has set, because the status text says what is wrong with
 * them, and logs it. Collective. */
enum status choose_again(struct comm *comm, const char *path, struct deck *deck);
