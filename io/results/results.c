/* A line is built in memory and written by one call, so that none is mixed. */
#include "io/results/results.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/commit.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/open.h"
#include "config.h"
#include "io/text/file.h"
#include "io/text/json.h"

struct results {
  int fd;
  char *path, *text; /* text: of the line, which `memory` keeps */
  size_t bytes;
  FILE *memory;
  struct json_writer line;
};

/* Writing. */

struct json_writer *results_begin(struct results *results, const char *kind)
{
  rewind(results->memory);
  results->line = (struct json_writer){.to = results->memory, .compact = true};
  json_write_open(&results->line, NULL, '{');
  json_write_text(&results->line, "kind", kind);
  return &results->line;
}

void results_time(struct json_writer *line)
{
  char text[32];
  const long long ms = (long long)clock_wall_ns() / 1000000;
  snprintf(text, sizeof text, "%lld.%03lld", ms / 1000, ms % 1000);
  json_write_number(line, "time", text);
}

void results_origin(struct json_writer *line)
{
  json_write_text(line, "version", PACKAGE_VERSION);
  json_write_text(line, "commit", sluice_commit);
}

enum status results_end(struct results *results)
{
  json_write_close(&results->line, '}');
  if (fflush(results->memory) != 0 || ferror(results->memory))
    return status_set(STATUS_MEMORY, "no memory for a line of %s", results->path);
  off_t before = lseek(results->fd, 0, SEEK_END);
  enum status status =
      before < 0 ? open_failed(errno, "find the end of", results->path)
                 : file_write_open(results->fd, results->path, results->text, results->bytes);
  if (status && before >= 0 && ftruncate(results->fd, before) != 0)
    return status_prefix(status, "a part of a line is left in %s (%s)", results->path,
                         strerror(errno));
  return status;
}

/* Opening. */

/* Cuts a line that an interrupted run left unfinished. */
static enum status open_file(const char *path, int *out)
{
  char last;
  int fd = -1;
  enum status status = open_regular(path, OPEN_APPEND, &fd);
  if (status)
    return status;
  off_t end = lseek(fd, 0, SEEK_END);
  ssize_t n = 1;
  while (end > 0 && (n = pread(fd, &last, 1, end - 1)) == 1 && last != '\n')
    end--;
  if (n == 0)
    status = status_set(STATUS_IO, "it shrinks while it is read");
  else if (end < 0 || n < 0 || ftruncate(fd, end) != 0)
    status = status_set(STATUS_IO, "%s", strerror(errno));
  if (status) {
    close(fd);
    return status_prefix(
        status, "cannot cut the last line of %s, which an interrupted run left unfinished", path);
  }
  *out = fd;
  return STATUS_OK;
}

static void release(struct results *results)
{
  if (results->memory)
    (void)fclose(results->memory); /* of memory: nothing can be lost */
  free(results->text);
  mem_free(results->path);
  mem_free(results);
}

enum status results_open(const char *path, struct results **out)
{
  struct results *results = NULL;
  enum status status = mem_new(MEM_META, 1, &results);
  if (status)
    return status;
  results->fd = -1;
  results->path = mem_strdup(path);
  results->memory = open_memstream(&results->text, &results->bytes);
  if (!results->path || !results->memory)
    status = status_set(STATUS_MEMORY, "no memory for the lines of %s", path);
  status = status ?: open_file(path, &results->fd);
  if (status)
    release(results);
  else
    *out = results;
  return status;
}

enum status results_close(struct results *results)
{
  enum status status = STATUS_OK;
  if (!results)
    return status;
  if (close(results->fd) != 0)
    status = open_failed(errno, "close", results->path);
  release(results);
  return status;
}

enum status results_check(const char *path)
{
  struct stat info;
  int fd = -1;
  /* Removes only its own file, not one that another process makes at the same time. */
  if (lstat(path, &info) != 0 && errno == ENOENT) {
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
      return errno == EEXIST ? STATUS_OK : open_failed(errno, "open", path);
    close(fd);
    return unlink(path) == 0 ? STATUS_OK : open_failed(errno, "remove the empty file", path);
  }
  const enum status status = open_regular(path, OPEN_UPDATE, &fd);
  if (!status)
    close(fd);
  return status;
}

/* Rewinding. */

struct scan {
  char *text;
  size_t bytes, kept;          /* of the file; of the lines that stay, which are at the front */
  int64_t later, damaged, bad; /* lines; bad: the number of the first damaged one, from 1 */
};

/* A line that is not strict JSON has no step. */
static void scan_line(struct scan *scan, const char *line, size_t bytes, int64_t last_step,
                      int64_t number)
{
  struct json_file record = {0};
  const bool damaged = json_parse("results", line, bytes, &record) != STATUS_OK;
  const json_t *step = json_object_get(record.root, "step");
  const bool later = json_is_integer(step) && json_integer_value(step) > last_step;
  json_close(&record);
  scan->later += later;
  if (later)
    return;
  if (damaged && scan->damaged++ == 0)
    scan->bad = number - scan->later;
  memmove(scan->text + scan->kept, line, bytes);
  scan->kept += bytes;
}

/* Moves the lines that stay to the front. The last one, if unfinished, goes. */
static enum status scan_lines(const char *path, int64_t last_step, struct scan *out)
{
  *out = (struct scan){0};
  if (!file_exists(path))
    return STATUS_OK;
  const enum status status = file_read_own(path, SIZE_MAX / 4, &out->text, &out->bytes);
  if (status)
    return status;
  const char *line = out->text, *end = line + out->bytes, *newline;
  for (int64_t number = 1; (newline = memchr(line, '\n', (size_t)(end - line))); number++) {
    scan_line(out, line, (size_t)(newline - line) + 1, last_step, number);
    line = newline + 1;
  }
  return STATUS_OK;
}

enum status results_have_steps(const char *path, bool *out)
{
  struct scan scan;
  const enum status status = scan_lines(path, 0, &scan);
  *out = scan.later > 0;
  mem_free(scan.text);
  return status;
}

enum status results_rewind(const char *path, int64_t last_step)
{
  struct scan scan;
  enum status status = scan_lines(path, last_step, &scan);
  if (scan.damaged > 0)
    log_warn(
        "%s: line %lld is no JSON object, one of %lld such lines. They stay, and other programs "
        "may stop there: delete them",
        path, (long long)scan.bad, (long long)scan.damaged);
  if (!status && scan.kept < scan.bytes)
    status = file_write_all(path, scan.text, scan.kept);
  mem_free(scan.text);
  return status;
}

enum status results_identity(const char *path, uint64_t *out)
{
  enum { MOST = 1 << 16 }; /* enough of a line to distinguish runs */
  char *text = NULL;
  int fd = -1;
  enum status status = open_regular(path, OPEN_OWN, &fd);
  if (status)
    return status;
  status = mem_new(MEM_META, MOST + 1, &text); /* zeros */
  const int64_t bytes = status ? 0 : file_read_at(fd, text, MOST, 0);
  if (!status && bytes < 0)
    status = open_failed(errno, "read", path);
  close(fd); /* was only read */
  if (!status)
    *out = hash_seeded(1, text, strcspn(text, "\n")) | 1;
  mem_free(text);
  return status;
}
