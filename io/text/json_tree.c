/* One array of nodes and one arena of text. Nodes refer to each other by index because the array
 * grows. A decoded text is never longer than its source, so the arena is as large as the file and
 * never moves. All objects share one hash table, keyed by (object, key). */
#include "io/text/json_tree.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "io/text/file.h"
#include "io/text/file_kind.h"
#include "io/text/json.h"
#include "io/text/utf8.h"

enum {
  DEPTH_MOST = 64,
  NODES_MOST = 1 << 23,
  BYTES_MOST = 1 << 27,
  BOM_BYTES = 3,
  QUOTED_MOST = 80
};

struct json_node {
  const char *key, *text; /* text: of a string, or of a number as written */
  uint32_t key_bytes, text_bytes;
  int32_t self, parent, next,
      first; /* 0: none; node 0 is no value, its key is the label and its text the tree */
  int32_t length;
  uint8_t kind;
  bool truth;
};

struct json_tree {
  struct json_node *node;
  int64_t nodes, room;
  struct text_buffer arena;
  int32_t *slot; /* 0: free */
  int64_t slots, keys;
  uint64_t seed;
};

struct parser {
  struct text_input input;
  struct json_tree *tree;
};

/* --- the table of keys --------------------------------------------------- */

static uint64_t hash_of(const struct json_tree *tree, int32_t object, const char *key, size_t bytes)
{
  return hash_seeded(hash_mix(tree->seed, (uint64_t)object), key, bytes);
}

/* Where the key is, or the free slot where it belongs. */
static int32_t *find_slot(const struct json_tree *tree, int32_t object, const char *key,
                          size_t bytes)
{
  const uint64_t mask = (uint64_t)tree->slots - 1;
  for (uint64_t at = hash_of(tree, object, key, bytes) & mask;; at = (at + 1) & mask) {
    const struct json_node *node = &tree->node[tree->slot[at]];
    if (!tree->slot[at] ||
        (node->parent == object && node->key_bytes == bytes && !memcmp(node->key, key, bytes)))
      return &tree->slot[at];
  }
}

static enum status grow_table(struct json_tree *tree)
{
  int32_t *old = tree->slot, *fresh = NULL;
  const int64_t slots = tree->slots ? 4 * tree->slots : 64;
  enum status status = mem_new(MEM_META, slots, &fresh);
  if (status)
    return status;
  const int64_t before = tree->slots;
  tree->slot = fresh;
  tree->slots = slots;
  for (int64_t i = 0; i < before; i++) {
    const struct json_node *node = &tree->node[old[i]];
    if (old[i])
      *find_slot(tree, node->parent, node->key, node->key_bytes) = old[i];
  }
  mem_free(old);
  return STATUS_OK;
}

/* --- reading ------------------------------------------------------------- */

static enum status add_node(struct parser *parser, enum json_kind kind, int32_t parent,
                            int32_t *out)
{
  struct json_tree *tree = parser->tree;
  if (tree->nodes == NODES_MOST)
    return text_input_fail(&parser->input, text_input_offset(&parser->input), "more than %d values",
                           NODES_MOST);
  enum status status =
      mem_grow(MEM_META, (void **)&tree->node, &tree->room, tree->nodes + 1, sizeof *tree->node);
  if (status)
    return status;
  const int32_t self = (int32_t)tree->nodes++;
  tree->node[self] = (struct json_node){.self = self, .parent = parent, .kind = (uint8_t)kind};
  *out = self;
  return STATUS_OK;
}

/* A zero-terminated string in the arena. */
static enum status take_string(struct parser *parser, const char **text, uint32_t *bytes)
{
  struct text_buffer *arena = &parser->tree->arena;
  const size_t begin = arena->bytes;
  enum status status = json_string(&parser->input, arena);
  if (!status)
    status = text_buffer_append(arena, "", 1);
  if (status)
    return status;
  *text = arena->data + begin;
  *bytes = (uint32_t)(arena->bytes - begin - 1);
  return STATUS_OK;
}

static enum status take_number(struct parser *parser, const char **text, uint32_t *bytes)
{
  struct text_buffer *arena = &parser->tree->arena;
  const size_t begin = parser->input.at, to = arena->bytes;
  enum status status = json_number(&parser->input);
  if (!status)
    status = text_buffer_append(arena, parser->input.buffer + begin, parser->input.at - begin);
  if (!status)
    status = text_buffer_append(arena, "", 1);
  if (status)
    return status;
  *text = arena->data + to;
  *bytes = (uint32_t)(parser->input.at - begin);
  return STATUS_OK;
}

static enum status refuse_duplicate(struct parser *parser, int64_t where, const char *key,
                                    size_t bytes)
{
  const int shown = bytes < QUOTED_MOST ? (int)bytes : QUOTED_MOST;
  return text_input_fail(&parser->input, where, "the key \"%.*s\" occurs twice in one object",
                         shown, key);
}

static enum status enter_key(struct parser *parser, int32_t member, int64_t where)
{
  struct json_tree *tree = parser->tree;
  enum status status = 2 * (tree->keys + 1) > tree->slots ? grow_table(tree) : STATUS_OK;
  if (status)
    return status;
  const struct json_node *node = &tree->node[member];
  int32_t *slot = find_slot(tree, node->parent, node->key, node->key_bytes);
  if (*slot)
    return refuse_duplicate(parser, where, node->key, node->key_bytes);
  *slot = member;
  tree->keys++;
  return STATUS_OK;
}

static enum status parse_value(struct parser *parser, int32_t parent, int depth, int32_t *out);

/* A member of an array, or "key": value of an object. */
static enum status parse_member(struct parser *parser, int32_t parent, bool object, int depth,
                                int32_t *out)
{
  const char *key = NULL;
  uint32_t bytes = 0;
  int byte = -1;
  enum status status = json_peek(&parser->input, &byte);
  const int64_t where = text_input_offset(&parser->input);
  if (!status && object)
    status = take_string(parser, &key, &bytes);
  if (!status && object)
    status = json_expect(&parser->input, ':', "':'");
  if (!status)
    status = parse_value(parser, parent, depth, out);
  if (status || !object)
    return status;
  parser->tree->node[*out].key = key;
  parser->tree->node[*out].key_bytes = bytes;
  return enter_key(parser, *out, where);
}

/* After the opening bracket. */
static enum status parse_members(struct parser *parser, int32_t parent, bool object, int depth)
{
  const char closing = object ? '}' : ']';
  int32_t last = 0, member = 0;
  bool more = false;
  enum status status = json_enter(&parser->input, closing, &more);
  while (!status && more) {
    status = parse_member(parser, parent, object, depth, &member);
    if (status)
      return status;
    struct json_node *node = parser->tree->node;
    *(last ? &node[last].next : &node[parent].first) = member;
    node[parent].length++;
    last = member;
    status = json_more(&parser->input, closing, &more);
  }
  return status;
}

static enum status parse_nested(struct parser *parser, bool object, int32_t self, int depth)
{
  if (depth == DEPTH_MOST)
    return text_input_fail(&parser->input, text_input_offset(&parser->input),
                           "values nested more than %d deep", DEPTH_MOST);
  parser->input.at++;
  return parse_members(parser, self, object, depth + 1);
}

static enum json_kind kind_of(int byte)
{
  switch (byte) {
  case '{': return JSON_OBJECT;
  case '[': return JSON_ARRAY;
  case '"': return JSON_STRING;
  case 't':
  case 'f': return JSON_BOOL;
  case 'n': return JSON_NULL;
  default: return JSON_NUMBER;
  }
}

static enum status parse_value(struct parser *parser, int32_t parent, int depth, int32_t *out)
{
  int byte = -1;
  int32_t self = 0;
  const char *text = NULL;
  uint32_t bytes = 0;
  enum status status = json_peek(&parser->input, &byte);
  if (status)
    return status;
  const enum json_kind kind = kind_of(byte);
  if (kind == JSON_NUMBER && byte != '-' && (byte < '0' || byte > '9'))
    return json_unexpected(&parser->input, "a value");
  status = add_node(parser, kind, parent, &self);
  if (status)
    return status;
  switch (kind) {
  case JSON_OBJECT:
  case JSON_ARRAY: status = parse_nested(parser, kind == JSON_OBJECT, self, depth); break;
  case JSON_STRING: status = take_string(parser, &text, &bytes); break;
  case JSON_NUMBER: status = take_number(parser, &text, &bytes); break;
  case JSON_BOOL: status = json_literal(&parser->input, byte == 't' ? "true" : "false"); break;
  case JSON_NULL: status = json_literal(&parser->input, "null"); break;
  }
  struct json_node *node = &parser->tree->node[self];
  node->text = text;
  node->text_bytes = bytes;
  node->truth = byte == 't';
  *out = self;
  return status;
}

static enum status parse_all(struct parser *parser, const char *label)
{
  int32_t head = 0, root = 0;
  int byte = -1;
  enum status status = add_node(parser, JSON_NULL, 0, &head);
  if (!status)
    status = parse_value(parser, head, 0, &root);
  if (!status)
    status = json_peek(&parser->input, &byte);
  if (!status && byte >= 0)
    status = json_unexpected(&parser->input, "the end of the file");
  if (status)
    return status;
  parser->tree->node[head].key = mem_strdup(label);
  parser->tree->node[head].text = (const char *)parser->tree;
  return parser->tree->node[head].key ? STATUS_OK : STATUS_MEMORY;
}

static enum status check_text(const struct text_input *input)
{
  const int64_t invalid = utf8_find_invalid(input->buffer, input->end);
  if (invalid >= 0)
    return text_input_fail(input, invalid, "not valid UTF-8 (0x%02X)",
                           (unsigned char)input->buffer[invalid]);
  return STATUS_OK;
}

enum status json_tree_parse(const char *label, const char *text, size_t bytes,
                            struct json_tree **out)
{
  struct parser parser = {.input = {.path = (char *)label,
                                    .buffer = (char *)text,
                                    .end = bytes,
                                    .filled = bytes,
                                    .at_eof = true}};
  struct json_tree *tree = NULL;
  if (bytes > BYTES_MOST)
    return status_set(STATUS_INPUT, "%s: %zu bytes of JSON, %d are allowed", label, bytes,
                      BYTES_MOST);
  enum status status = check_text(&parser.input);
  if (status)
    return status;
  if (bytes >= BOM_BYTES && !memcmp(text, "\xEF\xBB\xBF", BOM_BYTES))
    parser.input.at = BOM_BYTES;
  status = mem_new(MEM_META, 1, &tree);
  if (status)
    return status;
  parser.tree = tree;
  tree->seed = hash_seed();
  tree->arena.room = bytes + 1;
  status = mem_alloc(MEM_META, tree->arena.room, (void **)&tree->arena.data);
  if (!status)
    status = parse_all(&parser, label);
  if (status)
    json_tree_free(tree);
  else
    *out = tree;
  return status;
}

enum status json_tree_read(const char *path, int64_t most, struct json_tree **out)
{
  char *text = NULL;
  size_t bytes = 0;
  if (!file_exists(path))
    return status_set(STATUS_INPUT, "there is no file %s", path);
  enum status status = file_read_all(path, (size_t)most, &text, &bytes);
  if (status)
    return status;
  status = file_kind_refuse(path, "JSON", text, bytes);
  if (!status)
    status = json_tree_parse(path, text, bytes, out);
  mem_free(text);
  return status;
}

void json_tree_free(struct json_tree *tree)
{
  if (!tree)
    return;
  if (tree->nodes > 0)
    mem_free((char *)tree->node[0].key);
  mem_free(tree->node);
  mem_free(tree->slot);
  mem_free(tree->arena.data);
  mem_free(tree);
}

/* --- looking ------------------------------------------------------------- */

const struct json_node *json_tree_root(const struct json_tree *tree)
{
  return &tree->node[1];
}

/* Node `index` of the tree of `node`; NULL for 0. */
static const struct json_node *neighbour(const struct json_node *node, int32_t index)
{
  return index ? node + (index - node->self) : NULL;
}

static const struct json_node *head_of(const struct json_node *node)
{
  return node - node->self;
}

enum json_kind json_kind(const struct json_node *node)
{
  return (enum json_kind)node->kind;
}

int64_t json_length(const struct json_node *node)
{
  return node->length;
}

const struct json_node *json_first(const struct json_node *node)
{
  return node ? neighbour(node, node->first) : NULL;
}

const struct json_node *json_next(const struct json_node *node)
{
  return neighbour(node, node->next);
}

const char *json_key(const struct json_node *node, size_t *bytes)
{
  if (bytes)
    *bytes = node->key_bytes;
  return node->key;
}

const struct json_node *json_find(const struct json_node *object, const char *key)
{
  if (!object)
    return NULL;
  const struct json_tree *tree = (const struct json_tree *)head_of(object)->text;
  if (object->kind != JSON_OBJECT || !tree->slots)
    return NULL;
  return neighbour(object, *find_slot(tree, object->self, key, strlen(key)));
}

const struct json_node *json_find_said(const struct json_node *object, const char *key)
{
  const struct json_node *node = json_find(object, key);
  return node && json_kind(node) != JSON_NULL ? node : NULL;
}

/* --- typed access -------------------------------------------------------- */

/* Text of a file, cut to a length that fits an error message. */
static size_t put_quoted(char *to, size_t room, const char *text, size_t bytes)
{
  const size_t most = room - 1 < QUOTED_MOST ? room - 1 : QUOTED_MOST,
               used = bytes < most ? bytes : most;
  memcpy(to, text, used);
  to[used] = '\0';
  return used;
}

static int64_t place_of(const struct json_node *node)
{
  int64_t i = 0;
  for (const struct json_node *m = json_first(neighbour(node, node->parent)); m != node;
       m = json_next(m))
    i++;
  return i;
}

/* "rope_scaling.factor", "layer_types[3]"; empty for the root. */
static size_t put_way(const struct json_node *node, char *to, size_t room)
{
  to[0] = '\0';
  if (!node->parent)
    return 0;
  size_t used = put_way(neighbour(node, node->parent), to, room);
  if (room - used < QUOTED_MOST + 24)
    return used;
  if (!node->key)
    return used + (size_t)snprintf(to + used, room - used, "[%lld]", (long long)place_of(node));
  if (used)
    to[used++] = '.';
  return used + put_quoted(to + used, room - used, node->key, node->key_bytes);
}

enum status json_fail(const struct json_node *node, const char *format, ...)
{
  char way[512], text[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  const size_t bytes = put_way(node, way, sizeof way);
  return status_set(STATUS_INPUT, "%s: %s%s%s", head_of(node)->key, way, bytes ? " " : "", text);
}

static enum status wrong_kind(const struct json_node *node, const char *wanted)
{
  static const char *const names[] = {"null",   "true or false", "a number",
                                      "a text", "an array",      "an object"};
  return json_fail(node, "is %s, where %s belongs", names[node->kind], wanted);
}

enum status json_get_text(const struct json_node *node, const char **out, size_t *bytes)
{
  if (node->kind != JSON_STRING)
    return wrong_kind(node, "a text");
  *out = node->text;
  if (bytes)
    *bytes = node->text_bytes;
  return STATUS_OK;
}

enum status json_get_whole(const struct json_node *node, int64_t least, int64_t most, int64_t *out)
{
  if (node->kind != JSON_NUMBER)
    return wrong_kind(node, "a whole number");
  char *end = NULL;
  errno = 0;
  const long long value = strtoll(node->text, &end, 10);
  if (*end || errno || value < least || value > most) {
    char shown[QUOTED_MOST + 1];
    put_quoted(shown, sizeof shown, node->text, node->text_bytes);
    return json_fail(node, "is %s, where a whole number from %lld to %lld belongs", shown,
                     (long long)least, (long long)most);
  }
  *out = value;
  return STATUS_OK;
}

enum status json_get_real(const struct json_node *node, double *out)
{
  if (node->kind != JSON_NUMBER)
    return wrong_kind(node, "a number");
  const double value = strtod(node->text, NULL);
  if (!isfinite(value)) {
    char shown[QUOTED_MOST + 1];
    put_quoted(shown, sizeof shown, node->text, node->text_bytes);
    return json_fail(node, "is %s, which is too large for a number here", shown);
  }
  *out = value;
  return STATUS_OK;
}

enum status json_get_bool(const struct json_node *node, bool *out)
{
  if (node->kind != JSON_BOOL)
    return wrong_kind(node, "true or false");
  *out = node->truth;
  return STATUS_OK;
}

const char *json_number_text(const struct json_node *node)
{
  return node->kind == JSON_NUMBER ? node->text : NULL;
}
