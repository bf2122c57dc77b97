/* A whole JSON file as a tree of jansson, with limits on bytes and values: config.json,
 * tokenizer.json, an index of tensors, the header of a safetensors file. Strict (RFC 8259): a key
 * that occurs twice in an object is refused, too. Errors of the text name file, line and byte.
 * Errors of a value name file and place: "config.json: rope_scaling.factor is a text, where a
 * number belongs". Corpora are read by io/text/jsonl.h.
 *
 * The first failure stays in the file: later calls fail without a message, and json_more() is
 * false. So a reader may get many values and look at file->status once. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct json_file {
  char *path;
  json_t *root;
  enum status status; /* the first failure */
};

/* A value, and its place for messages. Lives as long as its file. */
struct json_node {
  json_t *value; /* NULL: not there */
  json_t *in;    /* object or array that holds it; NULL: the file */
  const char *key;
  size_t index; /* in an array */
  struct json_file *file;
};

/* Read all of a file of at most `most` bytes. A missing, damaged or too large file: STATUS_INPUT
 * (STATUS_IO where the system failed) naming it. Local. */
enum status json_read(const char *path, int64_t most, struct json_file *out);
/* From memory; `path` names it in messages. */
enum status json_parse(const char *path, const char *text, size_t bytes, struct json_file *out);
void json_close(struct json_file *file); /* takes a zeroed one */
struct json_node json_root(struct json_file *file);

/* A member of an object. A value that is not there, or in no object, is NULL. */
struct json_node json_find(struct json_node object, const char *key);
/* The same, and NULL for a member that is null. */
struct json_node json_find_set(struct json_node object, const char *key);
size_t json_length(struct json_node node); /* members of an array or object, 0 of others */
/* Members in the file's order: for (m = json_first(node); json_more(m); m = json_next(m)). */
struct json_node json_first(struct json_node node);
struct json_node json_next(struct json_node member);
bool json_more(struct json_node member); /* false after the last one, and after a failure */

/* Typed access. Zero or "" after a failure: the value is not there ("has no \"rope\""), has another
 * type, or is out of range. */
const char *json_get_text(struct json_node node);
int64_t json_get_whole(struct json_node node, int64_t least, int64_t most); /* "7"; not "7.0" */
double json_get_real(struct json_node node);
bool json_get_bool(struct json_node node);
/* Fails unless the node is an object, or an array. Returns the node. */
struct json_node json_get_object(struct json_node node);
struct json_node json_get_array(struct json_node node);

/* A failure for values of the right type that are wrong: "FILE: PLACE <text>". Returns the status
 * of the file. */
enum status json_fail(struct json_node node, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Keeps a failure of another call, unless there was one before. Returns the status of the file. */
enum status json_keep(struct json_file *file, enum status status);
/* "FILE: PLACE", for warnings. */
struct json_place {
  char text[1024];
};
struct json_place json_place(struct json_node node);
