/* Types and functions that the state*.c files of src/job share. Private to src/job. */
#pragma once

#include "base/team.h"
#include "job/state.h"

enum {
  JOB_STATE_PARTS = 2,        /* trained and frozen */
  JOB_STATE_BLOCK = 64,       /* most elements of a block of a state's type */
  JOB_STATE_SCRATCH = 1 << 20 /* buffer for elements that move from or to the disk */
};

/* A range of a unit's flat elements, of one kind, trained or frozen, in one buffer of the plan. */
struct job_state_piece {
  int buffer; /* -1: there is none */
  struct layout_range range;
  int64_t elements; /* of the range that this kind has, without gaps */
  enum dtype type;
  enum state_code code;
  const struct codec *codec; /* the piece is the message of all held elements; NULL: elements */
  int64_t offset;            /* of range.begin in the buffer, bytes */
  char *host;                /* range.begin, in `type`; NULL: on the disk only */
  bool blocked;              /* in the block */
};

struct job_state_part {
  const struct job_state *state;
  const struct job_state_piece *piece;
  int64_t at; /* of the parameter's element 0 in the piece; of a residual: 0 */
  int unit;
  float block[JOB_STATE_BLOCK]; /* decoded, while only a part of it has been moved */
};

int job_state_kinds(const struct plan *plan, bool moments);
/* Whether the plan keeps copies to which differences are added. */
bool job_state_has_copies(const struct plan *plan);
/* The kind after the optimizer's states: the copy to which differences are added. Each rank saves
 * its part. */
bool job_state_is_copy(const struct plan *plan, int kind);
/* The last kind: residuals, as the bytes of one message per rank and unit. */
bool job_state_is_residual(const struct plan *plan, int kind);
int job_state_piece_index(const struct plan *plan, int kind, int u, bool frozen);
/* The requested part of a holding. With `unique` it is the part that only this rank writes. */
struct job_state_piece job_state_make_piece(const struct plan *plan, int kind, int u, bool frozen,
                                            bool unique);
/* Whether parameter p has a tensor of this kind. */
bool job_state_has(const struct plan *plan, int kind, int u, int p);
/* Elements of this kind before flat element `element` of the unit. */
int64_t job_state_offset(const struct plan *plan, int kind, int u, int64_t element);
int64_t job_state_piece_bytes(const struct job_state_piece *piece);

/* NULL: the host cannot reach it. */
char *job_state_host_pointer(const struct job *job, int buffer);
/* The memory of the job that the host reads and writes directly. */
char *job_state_place(const struct job_state *state, const struct job_state_piece *piece);
/* In the block, and on a separate device. */
bool job_state_is_apart(const struct job_state *state, const struct job_state_piece *piece);
/* Where the host finds the pieces: in place, or contiguous in a block. */
enum status job_state_place_pieces(struct job_state *state, bool snapshot);

/* Parts of masters and frozen shards that are rounded to the compute type. They go into the working
 * copy, the copy that a group shares, and the copy to which differences are added. A copy that was
 * loaded is left as it is. */
enum { JOB_STATE_CASTS = 4 };
struct job_state_cast {
  int master;
  struct layout_range range; /* of the unit, which `master` holds */
  int copy;
  int64_t at; /* of the range in the copy */
};
int job_state_list_casts(const struct job_state *state, int u, struct job_state_cast out[]);
/* Where a buffer of the job lies, also on a separate device. */
char *job_state_pointer(const struct job *job, int buffer);
/* Runs work of a device on a lane of its own. Complete on return. */
typedef enum status job_state_work(struct lane *lane, const void *arg);
enum status job_state_on_lane(struct device *device, int threads, job_state_work *work,
                              const void *arg);
/* Copies bytes between the host and the job's device. Complete on return. Local. */
enum status job_state_copy(const struct job *job, void *to, const void *from, int64_t bytes);
/* Bytes of the elements of the largest frozen part that is kept as a message, with `loads` also of
 * all magnitudes, and of the largest message. Pure. */
int64_t job_state_coding_bytes(const struct plan *plan, bool loads, int64_t *message);
/* Loads or saves the unit's frozen part from here on, if it is kept as a message. Elements of the
 * one before become its message (`load`). STATUS_INTERNAL: the unit comes back. */
enum status job_state_open_unit(struct job_state *state, int u);
/* Makes the last message, and those of units without any element that was loaded. */
enum status job_state_close_units(struct job_state *state);
/* Completes messages in nf4, for which the ranks agree on scales, except on those that were loaded.
 * Collective. */
enum status job_state_complete(const struct job_state *state);
/* The scales of a unit. */
float *job_state_scales(const struct job *job, int u);
/* io_tensor's move of such a part: it opens the unit. Threads may move parts of an open unit. */
enum status job_state_move_coded(const struct io_tensor *tensor, struct layout_range range,
                                 void *data);
void job_state_coding_destroy(struct job_state_coding *coding); /* takes NULL */
/* Runs on the job's threads and cores. */
enum status job_state_run_team(const struct job *job, team_task *task, void *arg);
/* Moves data between the block and a separate device, and makes its copies, on a lane of its own.
 * Complete on return. */
enum status job_state_transfer(const struct job_state *state, bool to_job);
/* io_tensor's move: a range of a tensor without data. */
enum status job_state_move(const struct io_tensor *tensor, struct layout_range range, void *data);
/* A unit's residual as a tensor with a row per rank: this rank's row, or the rows from which it
 * makes its own.
 */
enum status job_state_describe_residual(struct job_state *state, int u);
void job_state_merge_destroy(struct job_state_merge *merge); /* takes NULL */
/* Zeros all moments on the disk, whose initial content is undefined. With `moments`, zeros only the
 * bytes that no parameter's elements will be written to. */
enum status job_state_zero_disk(const struct job_state *state, bool moments);
