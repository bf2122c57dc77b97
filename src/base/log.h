/* Messages for people. One process-wide log: a terminal (stderr) and, when opened, a file.
 * Thread-safe.
 *
 * On ranks other than 0 only warnings and errors are printed, prefixed with the rank. A message is
 * one line: its control characters are replaced as by printable_make(). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* LOG_NOTE: a fact for the log file alone, such as a library's version. */
enum log_level { LOG_DEBUG, LOG_INFO, LOG_NOTE, LOG_WARN, LOG_ERROR };

/* Set once at start, before other threads exist. */
void log_set_rank(int rank);
void log_set_level(enum log_level least);

/* Append all messages to `path` too (rank 0 only; NULL closes). Line-buffered. The first file
 * begins with the messages logged before it was opened. */
enum status log_open_file(const char *path);

void log_message(enum log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
#define log_debug(...) log_message(LOG_DEBUG, __VA_ARGS__)
#define log_info(...) log_message(LOG_INFO, __VA_ARGS__)
#define log_note(...) log_message(LOG_NOTE, __VA_ARGS__)
#define log_warn(...) log_message(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_message(LOG_ERROR, __VA_ARGS__)

/* A warning that many ranks may share, before the first step. If log_keep_alike() is on, the
 * warning is kept until the ranks have counted how many have it (comm_say_warnings()). Then one
 * rank logs it for all. Otherwise, and if there is no room to keep it, it is logged at once. The
 * n-th warnings of ranks at one place of the source count as the same, even if they contain
 * different numbers. A repeated warning on one rank counts once. */
#define log_warn_alike(...) log_message_alike(__FILE__, __LINE__, __VA_ARGS__)
void log_message_alike(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void log_keep_alike(bool keep);
/* Hash of the oldest kept warning, 0 if there is none. Equal on all ranks that hold it. The second
 * function says whether a warning with that hash is kept. */
uint64_t log_kept(void);
bool log_keeps(uint64_t name);
/* Forgets the warning with that hash, if it is kept. `say`: logs it first, with the number of
 * `others` that have it. */
void log_settle(uint64_t name, bool say, int64_t others);
/* Logs all kept warnings. For exits on which ranks cannot be counted any more. */
void log_say_kept(void);

/* The last message of a command: "sluice: TEXT", rank 0 only. */
void log_failure(const char *text);

/* A progress line. On a terminal it overwrites the line before it. Elsewhere it is printed as a
 * plain line, at most every `seconds` (0: always). The log file has every progress line.
 * log_progress_end() keeps the last line on the terminal. Rank 0 only. */
void log_progress(double seconds, const char *format, ...) __attribute__((format(printf, 2, 3)));
void log_progress_end(void);
/* Whether the process has a terminal, though perhaps not as stderr: ranks under mpirun write into a
 * pipe. A batch job has none. */
bool log_has_terminal(void);
