/* Reads lines of results.jsonl as JSON objects. */
#include "cmd/records.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/open.h"

enum { LINE_MOST_BYTES = 1 << 20 };

double record_real(const json_t *record, const char *key)
{
  const json_t *value = json_object_get(record, key);
  return json_is_number(value) ? json_number_value(value) : NAN;
}

int64_t record_whole(const json_t *record, const char *key)
{
  const json_int_t value = json_integer_value(json_object_get(record, key));
  return value < 0 ? 0 : value;
}

const char *record_text(const json_t *record, const char *key)
{
  const char *text = json_string_value(json_object_get(record, key));
  return text ? text : "";
}

struct reading {
  const char *path;
  struct records *records;
  records_take *take;
  void *arg;
};

static enum status take_line(const struct reading *reading, const char *line, size_t bytes)
{
  struct records *records = reading->records;
  struct json_file file = {0};
  records->lines++;
  enum status status =
      bytes <= LINE_MOST_BYTES ? json_parse(reading->path, line, bytes, &file) : STATUS_INPUT;
  if (status == STATUS_MEMORY)
    return status;
  const bool whole = json_is_object(file.root);
  if (!whole && records->damaged++ == 0)
    records->first_damaged = records->lines;
  status = whole ? reading->take(reading->arg, file.root) : STATUS_OK;
  json_close(&file);
  return status;
}

static enum status take_lines(const struct reading *reading, FILE *file, char *line)
{
  struct records *records = reading->records;
  enum status status = STATUS_OK;
  size_t bytes = 0;
  for (int c; !status && (c = getc_unlocked(file)) != EOF;) {
    if (c != '\n') {
      if (bytes < LINE_MOST_BYTES)
        line[bytes] = (char)c;
      bytes++;
      continue;
    }
    status = take_line(reading, line, bytes);
    records->offset += (int64_t)bytes + 1;
    bytes = 0;
  }
  records->torn = bytes > 0;
  if (!status && ferror(file))
    status = status_set(STATUS_IO, "cannot read %s: %s", reading->path, strerror(errno));
  return status;
}

/* A resumed run removes later records and writes a new file. */
static enum status find_place(const struct reading *reading, FILE *file)
{
  struct records *records = reading->records;
  struct stat info;
  if (fstat(fileno(file), &info) != 0)
    return status_set(STATUS_IO, "cannot read %s: %s", reading->path, strerror(errno));
  const bool other = records->offset > 0 &&
                     ((int64_t)info.st_ino != records->inode || info.st_size < records->offset);
  if (other)
    *records = (struct records){0};
  records->inode = (int64_t)info.st_ino;
  if (fseeko(file, records->offset, SEEK_SET) != 0)
    return status_set(STATUS_IO, "cannot read %s: %s", reading->path, strerror(errno));
  return other ? reading->take(reading->arg, NULL) : STATUS_OK;
}

enum status records_read(const char *path, struct records *records, records_take *take, void *arg)
{
  const struct reading reading = {path, records, take, arg};
  char *line = NULL;
  int fd = -1;
  enum status status = open_regular(path, OPEN_OWN, &fd);
  FILE *file = status ? NULL : fdopen(fd, "r");
  if (!status && !file) {
    status = open_failed(errno, "read", path);
    close(fd);
  }
  if (!status)
    status = find_place(&reading, file);
  if (!status)
    status = mem_new(MEM_META, LINE_MOST_BYTES, &line);
  if (!status)
    status = take_lines(&reading, file, line);
  if (file)
    fclose(file);
  mem_free(line);
  return status;
}
