/* results.jsonl: one JSON object per line, appended and flushed. The incomplete last line of an
 * interrupted run is removed when the file is opened again. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "io/text/json_write.h"

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

/* One object: begin, its fields by json_write_int() etc., end. The line reaches the file at end. */
struct json_writer *results_begin(struct results *results,
                                  const char *kind); /* "kind": "step" | "run" | "eval" | "save" |
                                                        "trace" | "bench", "bench_adam", ... */
/* "time": now, in seconds since 1970, to the millisecond. */
void results_time(struct json_writer *line);
/* "version" and "commit" of the program. */
void results_origin(struct json_writer *line);
enum status results_end(struct results *results);

/* Remove the lines of any kind with "step" > last (a run that resumes from an earlier checkpoint
 * writes them again). Damaged lines stay, with a warning. No file: nothing to do. */
enum status results_rewind(const char *path, int64_t last_step);
