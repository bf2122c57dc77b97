/* A fixed team of threads for data-parallel loops inside one lane, and named threads.
 *
 * Workers are created once; a call to team_run() wakes them by a futex-like wait after a short
 * spin, allocates nothing and returns when all have finished. One caller at a time (a team belongs
 * to one lane). Results must not depend on the number of threads: split work so that every output
 * element is computed by the same sequence of operations on any thread. */
#pragma once

#include <stdint.h>

#include "base/status.h"

struct team;

/* `threads` >= 1 counts the caller. `cores`: logical CPU of each thread, or NULL to leave binding
 * alone. The caller's own binding stays as it is, because another thread may create the team. */
enum status team_create(int threads, const int *cores, struct team **out);
/* Binds thread i to the CPU cores[i] from now on, except the calling thread. */
enum status team_pin(struct team *team, const int *cores);
void team_destroy(struct team *team);   /* takes NULL */
int team_size(const struct team *team); /* 1 for NULL */

/* task(arg, worker, workers) once on every worker, the caller being worker 0. With a NULL team:
 * task(arg, 0, 1). */
typedef void team_task(void *arg, int worker, int workers);
void team_run(struct team *team, team_task *task, void *arg);

/* The contiguous part [*begin, *end) of n items, in multiples of `grain`, that belongs to
 * `worker`. */
void team_slice(int64_t n, int64_t grain, int worker, int workers, int64_t *begin, int64_t *end);

/* Start a thread named `name` (at most 15 bytes); join it. The body returns its status.
 * thread_join() also sets its error text for the joining thread. */
struct thread;
typedef enum status thread_body(void *arg);
enum status thread_start(const char *name, thread_body *body, void *arg, struct thread **out);
enum status thread_join(struct thread *thread); /* frees it; takes NULL (STATUS_OK) */
