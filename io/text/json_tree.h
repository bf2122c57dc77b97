/* A small JSON file as a tree: config.json, tokenizer.json, an index of tensors, the header of a
 * safetensors file. Strict (RFC 8259, through io/text/json.h), with limits on bytes and depth. A
 * key that occurs twice in an object is refused. If a value has the wrong kind, the error names
 * file and path: "config.json: rope_scaling.factor is a text, where a number belongs". Private to
 * io/ and to readers of configurations. */
#ifndef SLUICE_IO_TEXT_JSON_TREE_H
#define SLUICE_IO_TEXT_JSON_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum json_kind { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json_tree;
struct json_node; /* lives as long as its tree */

/* Read all of a file of at most `most` bytes. A missing, damaged or too large file: STATUS_INPUT
 * (STATUS_IO where the system failed) naming it. Local. */
enum status json_tree_read(const char *path, int64_t most, struct json_tree **out);
/* From memory; `label` names it in messages. */
enum status json_tree_parse(const char *label, const char *text, size_t bytes,
                            struct json_tree **out);
void json_tree_free(struct json_tree *tree); /* takes NULL */
const struct json_node *json_tree_root(const struct json_tree *tree);

enum json_kind json_kind(const struct json_node *node);
int64_t json_length(const struct json_node *node); /* members of an array or object, 0 of others */
const struct json_node *json_first(
    const struct json_node
        *node); /* first member, in the file's order; NULL: none; NULL has none */
const struct json_node *json_next(const struct json_node *node); /* sibling */
const char *json_key(
    const struct json_node *node,
    size_t *bytes); /* of a member of an object; zero-terminated; bytes may be NULL */
const struct json_node *json_find(const struct json_node *object,
                                  const char *key); /* NULL: not there, or not an object (NULL is
                                                       none); by hash: fast for large objects */
/* The same, and NULL for a member that is null. */
const struct json_node *json_find_said(const struct json_node *object, const char *key);

/* Typed access. STATUS_INPUT with the error above, or with the expected range. `out` is set on
 * success only. */
enum status json_get_text(const struct json_node *node, const char **out,
                          size_t *bytes); /* zero-terminated; bytes may be NULL */
enum status json_get_whole(const struct json_node *node, int64_t least, int64_t most,
                           int64_t *out); /* "4096"; not "4096.0", not "4e3" */
enum status json_get_real(const struct json_node *node, double *out);
enum status json_get_bool(const struct json_node *node, bool *out);
/* The number as it is written: "1e-05". NULL if it is none. */
const char *json_number_text(const struct json_node *node);
/* STATUS_INPUT: "FILE: PATH.TO.NODE <text>". For values of the right kind that are wrong. */
enum status json_fail(const struct json_node *node, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
