/* Values know the object or array that holds them, but not its place: jansson's trees have no way
 * up, and true, false and null are one value each. A message searches the place from the root. */
#include "io/text/json.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/append.h"
#include "base/mem.h"
#include "io/text/file.h"
#include "io/text/file_kind.h"

enum { BYTES_MOST = 1 << 27, VALUES_MOST = 1 << 23, BOM_BYTES = 3, SHOWN_MOST = 80 };

/* --- reading ------------------------------------------------------------- */

static enum status refuse_text(const char *path, const json_error_t *error, size_t skipped)
{
  const enum json_error_code code = json_error_code(error);
  if (code == json_error_out_of_memory)
    return status_set(STATUS_MEMORY, "%s: no memory for its values", path);
  return status_set(STATUS_INPUT, "%s, line %d, byte %zu: broken JSON: %s%s", path, error->line,
                    (size_t)error->position + skipped, error->text,
                    code == json_error_premature_end_of_input ? "; the file is truncated" : "");
}

/* An upper bound: each value follows one of these bytes, except the first one. An object takes the
 * memory of four other values. */
static bool has_too_many(const char *text, size_t bytes)
{
  size_t values = 1;
  for (size_t i = 0; i < bytes; i++)
    values += text[i] == '{' ? 4 : text[i] == ',' || text[i] == '[';
  return values > VALUES_MOST;
}

enum status json_parse(const char *path, const char *text, size_t bytes, struct json_file *out)
{
  json_error_t error;
  if (bytes > BYTES_MOST)
    return status_set(STATUS_INPUT, "%s: %zu bytes of JSON, %d are allowed", path, bytes,
                      BYTES_MOST);
  if (has_too_many(text, bytes))
    return status_set(STATUS_INPUT, "%s: more than %d values", path, VALUES_MOST);
  const bool mark = bytes >= BOM_BYTES && !memcmp(text, "\xEF\xBB\xBF", BOM_BYTES);
  const size_t skipped = mark ? BOM_BYTES : 0;
  json_t *root =
      json_loadb(text + skipped, bytes - skipped, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
  if (!root)
    return refuse_text(path, &error, skipped);
  char *copy = mem_strdup(path);
  if (!copy) {
    json_decref(root);
    return STATUS_MEMORY;
  }
  *out = (struct json_file){.path = copy, .root = root};
  return STATUS_OK;
}

enum status json_read(const char *path, int64_t most, struct json_file *out)
{
  char *text = NULL;
  size_t bytes = 0;
  if (!file_exists(path))
    return status_set(STATUS_INPUT, "there is no file %s", path);
  const enum status status = file_read_all(path, (size_t)most, &text, &bytes)
      ?: file_kind_refuse(path, "JSON", text, bytes)
      ?: json_parse(path, text, bytes, out);
  mem_free(text);
  return status;
}

void json_close(struct json_file *file)
{
  json_decref(file->root);
  mem_free(file->path);
  *file = (struct json_file){0};
}

/* --- looking ------------------------------------------------------------- */

struct json_node json_root(struct json_file *file)
{
  return (struct json_node){.value = file->root, .file = file};
}

struct json_node json_find(struct json_node object, const char *key)
{
  return (struct json_node){.value = json_object_get(object.value, key),
                            .in = object.value,
                            .key = key,
                            .file = object.file};
}

struct json_node json_find_set(struct json_node object, const char *key)
{
  struct json_node node = json_find(object, key);
  if (json_is_null(node.value))
    node.value = NULL;
  return node;
}

size_t json_length(struct json_node node)
{
  return json_is_array(node.value) ? json_array_size(node.value) : json_object_size(node.value);
}

/* The member that an iterator of jansson stands at. */
static struct json_node member_at(struct json_node member, void *iterator)
{
  member.key = json_object_iter_key(iterator);
  member.value = json_object_iter_value(iterator);
  return member;
}

struct json_node json_first(struct json_node node)
{
  struct json_node member = {.in = node.value, .file = node.file};
  if (json_is_object(node.value))
    return member_at(member, json_object_iter(node.value));
  member.value = json_array_get(node.value, 0);
  return member;
}

struct json_node json_next(struct json_node member)
{
  if (member.key)
    return member_at(member, json_object_iter_next(member.in, json_object_key_to_iter(member.key)));
  member.value = json_array_get(member.in, ++member.index);
  return member;
}

bool json_more(struct json_node member)
{
  return member.value && !member.file->status;
}

/* --- messages ------------------------------------------------------------ */

static void put_step(struct json_place *way, const char *key, size_t index)
{
  if (key)
    append_text(way->text, sizeof way->text, "%s%.*s", *way->text ? "." : "", SHOWN_MOST, key);
  else
    append_text(way->text, sizeof way->text, "[%zu]", index);
}

/* "rope_scaling.factor", "layer_types[3]": the way from `from` to an object or array, added to
 * `way`. */
static bool find_way(struct json_node from, const json_t *to, struct json_place *way)
{
  if (from.value == to)
    return true;
  const size_t used = strlen(way->text);
  for (struct json_node m = json_first(from); m.value; m = json_next(m)) {
    if (!json_is_object(m.value) && !json_is_array(m.value))
      continue;
    put_step(way, m.key, m.index);
    if (find_way(m, to, way))
      return true;
    way->text[used] = '\0';
  }
  return false;
}

static struct json_place way_to_holder(struct json_node node)
{
  struct json_place way = {""};
  if (node.in)
    find_way(json_root(node.file), node.in, &way);
  return way;
}

static struct json_place way_to(struct json_node node)
{
  struct json_place way = way_to_holder(node);
  if (node.in)
    put_step(&way, node.key, node.index);
  return way;
}

struct json_place json_place(struct json_node node)
{
  struct json_place place = {""};
  append_text(place.text, sizeof place.text, "%s: %s", node.file->path, way_to(node).text);
  return place;
}

enum status json_keep(struct json_file *file, enum status status)
{
  file->status = file->status ?: status;
  return file->status;
}

static enum status fail_at(struct json_file *file, struct json_place way, const char *text)
{
  return json_keep(file, status_set(STATUS_INPUT, "%s: %s%s%s", file->path, way.text,
                                    *way.text ? " " : "", text));
}

enum status json_fail(struct json_node node, const char *format, ...)
{
  char text[1024];
  if (node.file->status)
    return node.file->status;
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return fail_at(node.file, way_to(node), text);
}

/* --- typed access -------------------------------------------------------- */

/* The node is not of a wanted type. */
static void refuse_type(struct json_node node, const char *wanted)
{
  static const char *const names[] = {
      [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array", [JSON_STRING] = "a text",
      [JSON_INTEGER] = "a number", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
      [JSON_FALSE] = "false",      [JSON_NULL] = "null"};
  char text[SHOWN_MOST + 20] = "";
  if (node.value) {
    json_fail(node, "is %s, where %s belongs", names[json_typeof(node.value)], wanted);
  } else if (!node.file->status) {
    append_text(text, sizeof text, "has no \"%.*s\"", SHOWN_MOST, node.key ? node.key : "0");
    fail_at(node.file, way_to_holder(node), text);
  }
}

const char *json_get_text(struct json_node node)
{
  if (!json_is_string(node.value))
    refuse_type(node, "a text");
  return node.file->status ? "" : json_string_value(node.value);
}

int64_t json_get_whole(struct json_node node, int64_t least, int64_t most)
{
  const json_int_t value = json_integer_value(node.value);
  char shown[SHOWN_MOST];
  if (!json_is_number(node.value)) {
    refuse_type(node, "a whole number");
  } else if (!json_is_integer(node.value) || value < least || value > most) {
    const size_t bytes =
        json_dumpb(node.value, shown, sizeof shown, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    json_fail(node, "is %.*s, where a whole number from %" PRId64 " to %" PRId64 " belongs",
              (int)bytes, shown, least, most);
  }
  return node.file->status ? 0 : value;
}

double json_get_real(struct json_node node)
{
  if (!json_is_number(node.value))
    refuse_type(node, "a number");
  return node.file->status ? 0 : json_number_value(node.value);
}

bool json_get_bool(struct json_node node)
{
  if (!json_is_boolean(node.value))
    refuse_type(node, "true or false");
  return !node.file->status && json_is_true(node.value);
}

struct json_node json_get_object(struct json_node node)
{
  if (!json_is_object(node.value))
    refuse_type(node, "an object");
  return node;
}

struct json_node json_get_array(struct json_node node)
{
  if (!json_is_array(node.value))
    refuse_type(node, "an array");
  return node;
}
