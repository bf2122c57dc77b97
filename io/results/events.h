/* Event files of TensorBoard: numbers of a run by step. Each start of a run writes a file of its
 * own in the run folder, `events.out.tfevents.SECONDS.sluice`, with the time of the start.
 *
 * If a file cannot be written, one warning is logged and nothing more is written, because this must
 * not end a run. */
#pragma once

#include <stdint.h>

#include "base/status.h"

struct events;

/* Remove events after `step` from the event files in `folder`, for a run that resumes from `step`
 * and writes them again. A damaged or incomplete record is removed with all records after it,
 * because TensorBoard reads none of them. A file that is then empty is removed. No files: nothing
 * to do. */
enum status events_rewind(const char *folder, int64_t step);

/* A new file in `folder`. A TensorBoard that is running drops events after `step` when it reads the
 * first event of this file. NULL after a warning if the file cannot be made. */
struct events *events_open(const char *folder, int64_t step);
void events_close(struct events *events); /* takes NULL */

/* Numbers of one step: begin, add for each, end. They reach the file at end. A name is a group, a
 * slash and the rest, of fewer than 100 bytes. All take NULL, and do nothing then. */
void events_begin(struct events *events, int64_t step);
void events_add(struct events *events, const char *name, double value);
void events_end(struct events *events);
