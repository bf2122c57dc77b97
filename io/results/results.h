/* results.jsonl: one JSON object per line, appended and flushed. The incomplete last line of an
 * interrupted run is removed when the file is opened again. */
#ifndef SLUICE_IO_RESULTS_RESULTS_H
#define SLUICE_IO_RESULTS_RESULTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct results;
enum status results_open(const char *path, struct results **out);
enum status results_close(struct results *results); /* takes NULL */
/* Whether results_open() can open the file, for a check before long work. It leaves no file
 * behind. */
enum status results_check(const char *path);
/* A number for the run whose results these are, never 0. It is a hash of the first line, which is
 * the record of the first start, with its time. Later starts of the run keep that line. */
enum status results_identity(const char *path, uint64_t *out);
/* Whether the file holds a record of a completed step. A file that is not there holds none. */
enum status results_have_steps(const char *path, bool *out);

/* One object: begin, fields, end. Non-finite numbers become null. The line reaches the file at
 * end. */
void results_begin(struct results *results,
                   const char *kind); /* "kind": "step" | "run" | "eval" | "save" | "trace" |
                                         "bench", "bench_adam", ... */
void results_int(struct results *results, const char *key, int64_t value);
void results_real(struct results *results, const char *key, double value); /* %.17g */
void results_text(struct results *results, const char *key, const char *value);
void results_bool(struct results *results, const char *key, bool value);
void results_texts(struct results *results, const char *key, int n, const char *const texts[]);
/* "time": now, in seconds since 1970, to the millisecond. */
void results_time(struct results *results);
/* "version" and "commit" of the program. */
void results_origin(struct results *results);
/* An object: begin, the fields, end. */
void results_begin_object(struct results *results, const char *key);
void results_end_object(struct results *results);
enum status results_end(struct results *results);

/* Remove the lines of any kind with "step" > last (a run that resumes from an earlier checkpoint
 * writes them again). Damaged lines stay, with a warning. No file: nothing to do. */
enum status results_rewind(const char *path, int64_t last_step);

#endif
