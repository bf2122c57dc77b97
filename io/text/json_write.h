/* A writer of JSON (RFC 8259) for other programs: values one after another. The caller asks the
 * stream for errors. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct json_writer {
  FILE *to;
  bool compact; /* all on one line, without blanks; otherwise indented */
  int depth;    /* open objects and arrays */
  bool filled;  /* the innermost one has a member */
};

/* Open an object ('{') or an array ('['), and close it ('}' or ']'). `key`, here and below, names a
 * member of an object; NULL in an array and for the outermost value. Local. */
void json_write_open(struct json_writer *writer, const char *key, char bracket);
void json_write_close(struct json_writer *writer, char bracket);

/* text NULL, and a number that is not finite: null. Local. */
void json_write_text(struct json_writer *writer, const char *key, const char *text);
void json_write_int(struct json_writer *writer, const char *key, int64_t value);
void json_write_real(struct json_writer *writer, const char *key, double value);
void json_write_number(struct json_writer *writer, const char *key, const char *text); /* as is */
void json_write_bool(struct json_writer *writer, const char *key, bool value);

/* A string with its quotes. JSON is UTF-8: U+FFFD replaces each byte that is not. Returns EOF if
 * the stream failed. Local. */
int json_write_string(const char *text, FILE *to);
