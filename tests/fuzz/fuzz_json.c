/* JSON files: every value is looked at in every way, and found again by its key. */
#include <string.h>

#include "fuzz.h"
#include "io/text/json.h"

static bool accepted(struct json_node node)
{
  const enum status status = node.file->status;
  node.file->status = STATUS_OK;
  return fuzz_accepted(status);
}

static void look(struct json_node node)
{
  (void)json_get_text(node);
  fuzz_expect(accepted(node) == json_is_string(node.value), "a text is what only strings have");
  (void)json_get_bool(node);
  fuzz_expect(accepted(node) == json_is_boolean(node.value), "only true and false are truths");
  const int64_t whole = json_get_whole(node, -1000, INT64_MAX);
  fuzz_expect(!accepted(node) || (json_is_integer(node.value) && whole >= -1000),
              "a whole number is out of its range");
  const double real = json_get_real(node);
  fuzz_expect(!accepted(node) || (json_is_number(node.value) && real - real == 0),
              "a number is not finite");
}

static void walk(struct json_node node)
{
  size_t members = 0;
  look(node);
  for (struct json_node m = json_first(node); json_more(m); m = json_next(m), members++) {
    if (json_is_object(node.value))
      fuzz_expect(json_find(node, m.key).value == m.value, "a member is not found by its key");
    walk(m);
  }
  fuzz_expect(members == json_length(node), "a value has another number of members than it says");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  struct json_file file = {0};
  if (!fuzz_accepted(json_parse("input.json", (const char *)data, size, &file)))
    return 0;
  walk(json_root(&file));
  json_close(&file);
  return 0;
}
