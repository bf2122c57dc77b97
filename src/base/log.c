/* One lock orders all lines of a process. The progress line is cleared before another line. */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/open.h"
#include "base/printable.h"

enum { LINE_SIZE = 4096, MOST_KEPT = 8 };

struct kept {
  uint64_t place, name;
  char line[LINE_SIZE];
};

static struct {
  pthread_mutex_t mutex;
  int rank;
  enum log_level least;
  FILE *file;
  char progress[LINE_SIZE];  /* the last progress line */
  bool progress_on_terminal; /* the cursor is after a progress line */
  bool progress_held_back;   /* the last progress line came too early to be printed */
  double progress_printed;   /* when the last one was, clock_s() */
  char early[4 * LINE_SIZE]; /* lines logged before the first file was opened */
  size_t early_used;
  bool had_file;
  bool keeps;
  int n_kept;
  struct kept kept[MOST_KEPT]; /* oldest first */
} log_state = {.mutex = PTHREAD_MUTEX_INITIALIZER, .least = LOG_INFO};

void log_set_rank(int rank)
{
  log_state.rank = rank;
}

void log_set_level(enum log_level least)
{
  log_state.least = least;
}

static void format_line(char *line, const char *format, va_list args)
{
  if (vsnprintf(line, LINE_SIZE, format, args) < 0)
    snprintf(line, LINE_SIZE, "%s", format);
  printable_make(line, LINE_SIZE);
}

/* If the log file cannot be written, one message says so and the file is closed, because it must
 * not end the run. */
static void write_file(const char *prefix, const char *line)
{
  if (!log_state.had_file) {
    const size_t room = sizeof log_state.early - log_state.early_used;
    const int n = snprintf(log_state.early + log_state.early_used, room, "%s%s\n", prefix, line);
    if (n > 0 && (size_t)n < room)
      log_state.early_used += (size_t)n;
    return;
  }
  if (!log_state.file || fprintf(log_state.file, "%s%s\n", prefix, line) >= 0)
    return;
  fprintf(
      stderr,
      "warning: the log file cannot be written any more (%s); messages go to the terminal only\n",
      strerror(errno));
  fclose(log_state.file);
  log_state.file = NULL;
}

static void clear_progress(void)
{
  if (log_state.progress_on_terminal)
    fputs("\r\033[K", stderr);
  log_state.progress_on_terminal = false;
}

/* With the mutex. */
static void print_line(enum log_level level, const char *line)
{
  static const char *const prefixes[] = {[LOG_DEBUG] = "debug: ",
                                         [LOG_INFO] = "",
                                         [LOG_NOTE] = "",
                                         [LOG_WARN] = "warning: ",
                                         [LOG_ERROR] = "error: "};
  char rank[32] = "";
  if (log_state.rank != 0)
    snprintf(rank, sizeof rank, "rank %d: ", log_state.rank);
  if (level != LOG_NOTE) {
    clear_progress();
    fprintf(stderr, "%s%s%s\n", rank, prefixes[level], line);
  }
  write_file(prefixes[level], line);
}

void log_message(enum log_level level, const char *format, ...)
{
  if (level < log_state.least || (log_state.rank != 0 && level < LOG_WARN))
    return;

  char line[LINE_SIZE];
  va_list args;
  va_start(args, format);
  format_line(line, format, args);
  va_end(args);
  pthread_mutex_lock(&log_state.mutex);
  print_line(level, line);
  pthread_mutex_unlock(&log_state.mutex);
}

void log_keep_alike(bool keep)
{
  log_state.keeps = keep;
}

/* The hash of a warning: its place in the source, and the number of kept warnings from there. */
static void keep_line(uint64_t place, const char *line)
{
  uint64_t before = 0;
  for (int i = 0; i < log_state.n_kept; i++) {
    const bool same_place = log_state.kept[i].place == place;
    if (same_place && strcmp(log_state.kept[i].line, line) == 0)
      return;
    before += same_place;
  }
  if (!log_state.keeps || log_state.n_kept == MOST_KEPT) {
    print_line(LOG_WARN, line);
    return;
  }
  struct kept *kept = &log_state.kept[log_state.n_kept++];
  kept->place = place;
  kept->name = hash_bytes(place, &before, sizeof before);
  snprintf(kept->line, sizeof kept->line, "%s", line);
}

void log_message_alike(const char *file, int number, const char *format, ...)
{
  if (log_state.least > LOG_WARN)
    return;
  char line[LINE_SIZE];
  va_list args;
  va_start(args, format);
  format_line(line, format, args);
  va_end(args);
  pthread_mutex_lock(&log_state.mutex);
  keep_line(hash_bytes(hash_text(file), &number, sizeof number), line);
  pthread_mutex_unlock(&log_state.mutex);
}

/* With the mutex; n_kept: there is none. */
static int find_kept(uint64_t name)
{
  int i = 0;
  while (i < log_state.n_kept && log_state.kept[i].name != name)
    i++;
  return i;
}

uint64_t log_kept(void)
{
  pthread_mutex_lock(&log_state.mutex);
  const uint64_t name = log_state.n_kept > 0 ? log_state.kept[0].name : 0;
  pthread_mutex_unlock(&log_state.mutex);
  return name;
}

bool log_keeps(uint64_t name)
{
  pthread_mutex_lock(&log_state.mutex);
  const bool keeps = find_kept(name) < log_state.n_kept;
  pthread_mutex_unlock(&log_state.mutex);
  return keeps;
}

static void say_line(const char *line, int64_t others)
{
  char said[LINE_SIZE + 64];
  snprintf(said, sizeof said, "%s (also on %" PRId64 " other rank%s)", line, others,
           others == 1 ? "" : "s");
  print_line(LOG_WARN, others > 0 ? said : line);
}

void log_settle(uint64_t name, bool say, int64_t others)
{
  pthread_mutex_lock(&log_state.mutex);
  const int at = find_kept(name);
  if (at < log_state.n_kept) {
    if (say)
      say_line(log_state.kept[at].line, others);
    log_state.n_kept--;
    memmove(&log_state.kept[at], &log_state.kept[at + 1],
            (size_t)(log_state.n_kept - at) * sizeof *log_state.kept);
  }
  pthread_mutex_unlock(&log_state.mutex);
}

void log_say_kept(void)
{
  for (uint64_t name; (name = log_kept());)
    log_settle(name, true, 0);
}

void log_failure(const char *text)
{
  if (log_state.rank != 0)
    return;
  char line[LINE_SIZE];
  snprintf(line, sizeof line, "%s", text);
  printable_make(line, sizeof line);
  pthread_mutex_lock(&log_state.mutex);
  clear_progress();
  fprintf(stderr, "sluice: %s\n", line);
  write_file("error: ", line);
  pthread_mutex_unlock(&log_state.mutex);
}

static enum status open_file(const char *path)
{
  if (log_state.file && fclose(log_state.file) != 0) {
    log_state.file = NULL;
    return status_set(STATUS_IO, "closing the log file failed: %s", strerror(errno));
  }
  log_state.file = NULL;
  if (!path)
    return STATUS_OK;

  int fd = -1;
  const enum status status = open_regular(path, OPEN_APPEND, &fd);
  if (status)
    return status;
  FILE *file = fdopen(fd, "a");
  if (!file) {
    const int error = errno;
    close(fd);
    return open_failed(error, "write to", path);
  }
  if (setvbuf(file, NULL, _IOLBF, LINE_SIZE) != 0) {
    fclose(file);
    return status_set(STATUS_IO, "cannot set up the buffer of the log file '%s'", path);
  }
  log_state.file = file;
  log_state.had_file = true;
  if (fwrite(log_state.early, 1, log_state.early_used, file) != log_state.early_used)
    return status_set(STATUS_IO, "cannot write to the log file '%s': %s", path, strerror(errno));
  log_state.early_used = 0;
  return STATUS_OK;
}

enum status log_open_file(const char *path)
{
  if (log_state.rank != 0)
    return STATUS_OK;
  pthread_mutex_lock(&log_state.mutex);
  enum status status = open_file(path);
  pthread_mutex_unlock(&log_state.mutex);
  return status;
}

/* A line longer than the terminal is cut, because a wrapped line cannot be overwritten. */
static int terminal_columns(void)
{
  struct winsize size;
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 2)
    return LINE_SIZE;
  return size.ws_col - 1;
}

static void show_progress(double seconds)
{
  if (isatty(STDERR_FILENO)) {
    fprintf(stderr, "\r\033[K%.*s", terminal_columns(), log_state.progress);
    log_state.progress_on_terminal = true;
    return;
  }
  double now = clock_s();
  log_state.progress_held_back =
      log_state.progress_printed > 0 && now - log_state.progress_printed < seconds;
  if (log_state.progress_held_back)
    return;
  fprintf(stderr, "%s\n", log_state.progress);
  log_state.progress_printed = now;
}

void log_progress(double seconds, const char *format, ...)
{
  if (log_state.rank != 0 || log_state.least > LOG_INFO)
    return;
  pthread_mutex_lock(&log_state.mutex);
  va_list args;
  va_start(args, format);
  format_line(log_state.progress, format, args);
  va_end(args);
  write_file("", log_state.progress);
  show_progress(seconds);
  pthread_mutex_unlock(&log_state.mutex);
}

void log_progress_end(void)
{
  pthread_mutex_lock(&log_state.mutex);
  if (log_state.progress_on_terminal)
    fputc('\n', stderr);
  if (log_state.progress_held_back)
    fprintf(stderr, "%s\n", log_state.progress);
  log_state.progress_on_terminal = log_state.progress_held_back = false;
  log_state.progress_printed = 0;
  pthread_mutex_unlock(&log_state.mutex);
}

bool log_has_terminal(void)
{
  const int fd = isatty(STDERR_FILENO) ? -1 : open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC);
  if (fd >= 0)
    close(fd);
  return fd >= 0 || isatty(STDERR_FILENO);
}
