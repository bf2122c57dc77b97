/* The format: a file is a list of records (TFRecord: length, CRC of the length, data, CRC of the
 * data). The data are a protocol buffer `Event` (tensorflow/core/util/event.proto):
 *
 * - Event: 1 wall_time: double, 2 step: int64, 3 file_version: string, 5 summary, 7 session_log.
 * - Summary: 1 value: repeated Value.
 * - Value: 1 tag: string, 2 simple_value: float.
 * - SessionLog: 1 status: enum, 1 is START.
 *
 * TensorBoard forgets events of the step of a START and later ones, from files that it read before.
 * It reads the files of a folder in the order of their names. Numbers are little-endian. */
#include "io/results/events.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/open.h"
#include "io/text/file.h"

enum { HEAD_BYTES = 12, TAIL_BYTES = 4, SUMMARY_BYTES = 4096 };
enum { RECORD_BYTES = HEAD_BYTES + SUMMARY_BYTES + 64 + TAIL_BYTES };
enum { WIRE_VARINT, WIRE_64, WIRE_BYTES, WIRE_32 = 5 };
enum { EVENT_TIME = 1, EVENT_STEP, EVENT_VERSION, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };

/* Names have ten digits, which give the order. A file that claims a time after the year 2286 is no
 * file of Sluice. */
static const long long MOST_SECONDS = 9999999999;
static const char prefix[] = "events.out.tfevents.", suffix[] = ".sluice";

struct bytes {
  size_t n;
  unsigned char at[RECORD_BYTES];
};

struct events {
  int fd;
  char *path;
  int64_t step;
  struct bytes summary;
};

/* ---- records ---- */

/* CRC-32C (RFC 3720, appendix B.4), bit by bit: a record has a few hundred bytes. Masked, as
 * TFRecord stores it, because the CRC of a string that contains CRCs is weak. */
static uint32_t masked_crc(const void *data, size_t n)
{
  const unsigned char *at = data;
  uint32_t crc = UINT32_MAX;
  for (size_t i = 0; i < n; i++) {
    crc ^= at[i];
    for (int bit = 0; bit < 8; bit++)
      crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0x82f63b78) : 0);
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + UINT32_C(0xa282ead8);
}

static void put_bytes(struct bytes *out, const void *data, size_t n)
{
  memcpy(out->at + out->n, data, n);
  out->n += n;
}

/* `n` bytes of a number, of which memory has the lowest first, as the file does. */
static void put_number(struct bytes *out, uint64_t value, size_t n)
{
  put_bytes(out, &value, n);
}

static uint64_t get_number(const unsigned char *at, size_t n)
{
  uint64_t value = 0;
  memcpy(&value, at, n);
  return value;
}

/* ---- protocol buffers ---- */

static void put_varint(struct bytes *out, uint64_t value)
{
  for (; value >= 128; value >>= 7)
    put_number(out, value | 128, 1);
  put_number(out, value, 1);
}

static void put_field(struct bytes *out, int field, int wire)
{
  put_varint(out, (uint64_t)(field << 3 | wire));
}

static void put_nested(struct bytes *out, int field, const void *data, size_t n)
{
  put_field(out, field, WIRE_BYTES);
  put_varint(out, n);
  put_bytes(out, data, n);
}

/* false: not a varint. */
static bool get_varint(const unsigned char **at, const unsigned char *end, uint64_t *out)
{
  *out = 0;
  for (int shift = 0; *at < end && shift < 64; shift += 7) {
    const unsigned char byte = *(*at)++;
    *out |= (uint64_t)(byte & 127) << shift;
    if (byte < 128)
      return true;
  }
  return false;
}

/* An Event has no step 0, because protocol buffers leave out zeros. */
static int64_t step_of(const unsigned char *at, size_t n)
{
  const unsigned char *end = at + n;
  for (uint64_t tag, value; at < end && get_varint(&at, end, &tag);) {
    if (tag >> 3 == EVENT_STEP && get_varint(&at, end, &value))
      return (int64_t)value;
    if (tag != (EVENT_TIME << 3 | WIRE_64) || end - at < 8)
      break;
    at += 8;
  }
  return 0;
}

/* ---- writing ---- */

/* A part of a record would hide all later ones, so it is removed. */
static void write_record(struct events *events, const struct bytes *data)
{
  struct bytes record = {0};
  put_number(&record, data->n, 8);
  put_number(&record, masked_crc(record.at, 8), 4);
  put_bytes(&record, data->at, data->n);
  put_number(&record, masked_crc(data->at, data->n), TAIL_BYTES);
  const off_t before = lseek(events->fd, 0, SEEK_CUR);
  ssize_t n;
  do
    n = write(events->fd, record.at, record.n);
  while (n < 0 && errno == EINTR);
  if (n == (ssize_t)record.n)
    return;
  const int error = n < 0 ? errno : ENOSPC;
  if (n > 0 && ftruncate(events->fd, before) != 0)
    log_warn("a part of a record is left in %s: %s", events->path, strerror(errno));
  log_warn("cannot write %s: %s; TensorBoard gets no more numbers of this run", events->path,
           strerror(error));
  close(events->fd);
  events->fd = -1;
}

static void write_event(struct events *events, int64_t step, int field, const void *data, size_t n)
{
  struct bytes event = {0};
  const double seconds = 1e-9 * (double)clock_wall_ns();
  put_field(&event, EVENT_TIME, WIRE_64);
  put_bytes(&event, &seconds, sizeof seconds);
  put_field(&event, EVENT_STEP, WIRE_VARINT);
  put_varint(&event, (uint64_t)step);
  put_nested(&event, field, data, n);
  write_record(events, &event);
}

void events_begin(struct events *events, int64_t step)
{
  if (!events)
    return;
  events->step = step;
  events->summary.n = 0;
}

void events_end(struct events *events)
{
  if (!events || events->fd < 0 || events->summary.n == 0)
    return;
  write_event(events, events->step, EVENT_SUMMARY, events->summary.at, events->summary.n);
  events->summary.n = 0;
}

void events_add(struct events *events, const char *name, double value)
{
  enum { NAME_BYTES = 100, ROOM = NAME_BYTES + 16 };
  if (!events || events->fd < 0)
    return;
  if (events->summary.n + ROOM > SUMMARY_BYTES)
    events_end(events);
  const float real = (float)value;
  struct bytes one = {0};
  put_nested(&one, 1, name, strnlen(name, NAME_BYTES));
  put_field(&one, 2, WIRE_32);
  put_bytes(&one, &real, sizeof real);
  put_nested(&events->summary, 1, one.at, one.n);
}

/* ---- files ---- */

/* The seconds in the name of an event file of Sluice, -1: it is another file. */
static long long seconds_of(const char *name)
{
  char *end;
  if (strncmp(name, prefix, strlen(prefix)) != 0 || !strchr("0123456789", name[strlen(prefix)]))
    return -1;
  const long long seconds = strtoll(name + strlen(prefix), &end, 10);
  return strcmp(end, suffix) == 0 && seconds < MOST_SECONDS ? seconds : -1;
}

/* Later than the names of all files that are there, because names give the order. */
static char *new_path(const char *folder)
{
  long long seconds = (long long)time(NULL);
  DIR *dir = opendir(folder);
  for (struct dirent *entry; dir && (entry = readdir(dir));)
    if (seconds_of(entry->d_name) >= seconds)
      seconds = seconds_of(entry->d_name) + 1;
  if (dir)
    closedir(dir);
  return mem_printf("%s/%s%010lld%s", folder, prefix, seconds, suffix);
}

struct events *events_open(const char *folder, int64_t step)
{
  static const unsigned char start[] = {1 << 3 | WIRE_VARINT, 1};
  static const char version[] = "brain.Event:2";
  struct events *events = NULL;
  enum status status = mem_new(MEM_META, 1, &events);
  if (!status) {
    events->fd = -1;
    events->path = new_path(folder);
    status = events->path ? open_regular(events->path, OPEN_NEW, &events->fd) : STATUS_MEMORY;
  }
  if (status) {
    log_warn("TensorBoard gets no numbers of this run: %s", status_text());
    events_close(events);
    return NULL;
  }
  write_event(events, 0, EVENT_VERSION, version, strlen(version));
  if (events->fd >= 0)
    write_event(events, step + 1, EVENT_SESSION, start, sizeof start);
  return events;
}

void events_close(struct events *events)
{
  if (!events)
    return;
  if (events->fd >= 0)
    close(events->fd);
  mem_free(events->path);
  mem_free(events);
}

/* ---- rewinding ---- */

/* Length of the record at the start of `bytes` bytes, 0: there is no whole one. A host that lost
 * its power may leave a record of the right length whose data was never written. */
static size_t record_bytes(const unsigned char *at, size_t bytes)
{
  if (bytes < HEAD_BYTES || get_number(at + 8, 4) != masked_crc(at, 8))
    return 0;
  const uint64_t n = get_number(at, 8);
  if (n > bytes - HEAD_BYTES || bytes - HEAD_BYTES - n < TAIL_BYTES)
    return 0;
  const unsigned char *data = at + HEAD_BYTES;
  if (get_number(data + n, TAIL_BYTES) != masked_crc(data, (size_t)n))
    return 0;
  return HEAD_BYTES + (size_t)n + TAIL_BYTES;
}

/* Bytes of the records up to `step`, which come first, because the steps of a file rise. A record
 * that is longer than those of Sluice counts as damaged. */
static enum status find_later(int fd, const char *path, int64_t step, off_t *kept, int *records)
{
  unsigned char record[RECORD_BYTES];
  *kept = 0;
  for (*records = 0;; ++*records) {
    const int64_t got = file_read_at(fd, record, sizeof record, *kept);
    if (got < 0)
      return open_failed(errno, "read", path);
    const size_t n = record_bytes(record, (size_t)got);
    if (n == 0 || step_of(record + HEAD_BYTES, n - HEAD_BYTES - TAIL_BYTES) > step)
      return STATUS_OK;
    *kept += (off_t)n;
  }
}

static enum status rewind_file(const char *path, int64_t step)
{
  off_t kept = 0;
  int records = 0, fd = -1;
  enum status status = open_regular(path, OPEN_UPDATE, &fd);
  if (status)
    return status;
  status = find_later(fd, path, step, &kept, &records);
  if (!status && records <= 1 &&
      unlink(path) != 0) /* the first one has the version of the format */
    status = open_failed(errno, "remove", path);
  else if (!status && records > 1 && ftruncate(fd, kept) != 0)
    status = open_failed(errno, "cut", path);
  close(fd); /* a lost end is written again */
  return status;
}

enum status events_rewind(const char *folder, int64_t step)
{
  DIR *dir = opendir(folder);
  if (!dir)
    return errno == ENOENT ? STATUS_OK : open_failed(errno, "read the folder", folder);
  enum status status = STATUS_OK;
  for (struct dirent *entry; !status && (entry = readdir(dir));)
    if (seconds_of(entry->d_name) >= 0)
      status = rewind_file(file_path(folder, entry->d_name).text, step);
  closedir(dir);
  return status;
}
