/* JSON as a tree: every node is looked at in every way, and found again by its key. */
#include <string.h>

#include "fuzz.h"
#include "io/text/json_tree.h"

static void look(const struct json_node *node)
{
  const char *text = NULL;
  size_t bytes = 0;
  int64_t whole = 0;
  double real = 0;
  bool truth = false;
  const enum json_kind kind = json_kind(node);
  fuzz_expect(fuzz_accepted(json_get_text(node, &text, &bytes)) == (kind == JSON_STRING),
              "a text is what only strings have");
  fuzz_expect(kind != JSON_STRING || strlen(text) == bytes,
              "a text has another length than it says");
  fuzz_expect(fuzz_accepted(json_get_bool(node, &truth)) == (kind == JSON_BOOL),
              "only true and false are truths");
  if (fuzz_accepted(json_get_whole(node, -1000, INT64_MAX, &whole)))
    fuzz_expect(kind == JSON_NUMBER && whole >= -1000, "a whole number is out of its range");
  if (fuzz_accepted(json_get_real(node, &real)))
    fuzz_expect(kind == JSON_NUMBER && real - real == 0, "a number is not finite");
  fuzz_expect((json_number_text(node) != NULL) == (kind == JSON_NUMBER),
              "only numbers have a number's text");
}

static void walk(const struct json_node *node)
{
  static const char rare[] = "no such key, never"; /* libFuzzer can copy it from the program */
  bool there = false;
  int64_t members = 0;
  look(node);
  for (const struct json_node *member = json_first(node); member;
       member = json_next(member), members++) {
    const char *key = json_key(member, NULL);
    if (json_kind(node) == JSON_OBJECT) {
      fuzz_expect(json_find(node, key) == member, "a member is not found by its key");
      there |= strcmp(key, rare) == 0;
    }
    walk(member);
  }
  fuzz_expect(members == json_length(node), "a value has another number of members than it says");
  fuzz_expect((json_find(node, rare) != NULL) == there, "json_find and the members disagree");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  struct json_tree *tree = NULL;
  if (!fuzz_accepted(json_tree_parse("input.json", (const char *)data, size, &tree)))
    return 0;
  walk(json_tree_root(tree));
  json_tree_free(tree);
  return 0;
}
