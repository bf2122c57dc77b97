/* Reading of results.jsonl, for commands that show runs: whole lines, one JSON object per line. */
#ifndef SLUICE_CMD_RECORDS_H
#define SLUICE_CMD_RECORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "io/text/json.h"

/* Where the reader is in a file. Start with zeros. */
struct records {
  int64_t offset, inode;                 /* after the last whole line that was read */
  int64_t lines, damaged, first_damaged; /* lines from 1 */
  bool torn; /* the file ends within a line, because it is being written or its writer was lost */
};

/* Give `take` each whole line after the offset as an object. A line that is no JSON object is
 * counted as damaged and left out. If the file was replaced or became shorter, it is read from its
 * start, after one call with a record of NULL. Stops at the first failure of `take`. STATUS_IO or
 * STATUS_INPUT if the file cannot be read. Local. */
typedef enum status records_take(void *arg, const json_t *record);
enum status records_read(const char *path, struct records *records, records_take *take, void *arg);

/* A field of a record: a number, a number from 0 on without fraction, a text. NAN, 0 and "" if the
 * field is missing, null or of another type. Local. */
double record_real(const json_t *record, const char *key);
int64_t record_whole(const json_t *record, const char *key);
const char *record_text(const json_t *record, const char *key);

#endif
