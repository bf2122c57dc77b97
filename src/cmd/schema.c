/* sluice schema: a JSON Schema (draft 7) of decks, from the option table. Editors complete and
 * check decks with it. Readers of YAML 1.1 take 6e-4 as a text and off as false, so both are valid.
 */
#include <stdio.h>
#include <string.h>

#include "cmd/cmd.h"
#include "io/text/json_write.h"

#define NUMBER_PATTERN "^[-+]?[0-9]+(\\.[0-9]*)?([eE][-+]?[0-9]+)?"

static void write_texts(struct json_writer *json, const char *key, const char *const *texts)
{
  json_write_open(json, key, '[');
  for (; *texts; texts++)
    json_write_text(json, NULL, *texts);
  json_write_close(json, ']');
}

static void open_type(struct json_writer *json, const char *type)
{
  json_write_open(json, NULL, '{');
  json_write_text(json, "type", type);
}

static void write_range(struct json_writer *json, const struct option *option)
{
  if (option->least == 0 && option->most == 0)
    return;
  json_write_real(json, "minimum", option->least);
  if (option->most < 1e300)
    json_write_real(json, "maximum", option->most);
}

/* A number, or a text such as 8M, or auto. */
static void write_number(struct json_writer *json, const struct option *option, bool whole)
{
  json_write_open(json, "anyOf", '[');
  open_type(json, whole ? "integer" : "number");
  write_range(json, option);
  json_write_close(json, '}');
  open_type(json, "string");
  json_write_text(json, "pattern",
                  option->chosen ? "^auto$|" NUMBER_PATTERN "([kKMGT]i?)?B?$"
                  : whole        ? NUMBER_PATTERN "([kKMGT]i?)?B?$"
                                 : NUMBER_PATTERN "$");
  json_write_close(json, '}');
  json_write_close(json, ']');
}

static void write_choices(struct json_writer *json, const struct option *option)
{
  json_write_open(json, "enum", '[');
  if (option->chosen)
    json_write_text(json, NULL, "auto");
  for (const char *const *choices = option->choices; *choices; choices++) {
    json_write_text(json, NULL, *choices);
    if (!strcmp(*choices, "true"))
      json_write_bool(json, NULL, true);
    if (!strcmp(*choices, "off") || !strcmp(*choices, "false")) /* as YAML reads them */
      json_write_bool(json, NULL, false);
  }
  json_write_close(json, ']');
}

static void write_bool(struct json_writer *json)
{
  json_write_open(json, "enum", '[');
  json_write_bool(json, NULL, true);
  json_write_bool(json, NULL, false);
  for (const char *const *word = (const char *const[]){"yes", "no", "on", "off", NULL}; *word;
       word++)
    json_write_text(json, NULL, *word);
  json_write_close(json, ']');
}

/* A value that is not a list, or an item of a list. */
static void write_item(struct json_writer *json, const struct option *option)
{
  static const char *const scalars[] = {"string", "number", "boolean", "null", NULL};
  if (option->choices)
    write_choices(json, option);
  else if (option->type == OPTION_STRING || option->type == OPTION_STRINGS)
    write_texts(json, "type", scalars);
  else
    write_number(json, option, option->type == OPTION_INT || option->type == OPTION_INTS);
}

static bool is_list(const struct option *option)
{
  return option->type == OPTION_REALS || option->type == OPTION_INTS ||
         option->type == OPTION_STRINGS;
}

/* A list of `least` to `most` items; most -1: any number. */
static void write_list(struct json_writer *json, const struct option *option, int least, int most)
{
  open_type(json, "array");
  json_write_open(json, "items", '{');
  write_item(json, option);
  json_write_close(json, '}');
  json_write_int(json, "minItems", least);
  if (most >= 0)
    json_write_int(json, "maxItems", most);
  json_write_close(json, '}');
}

static void write_lists(struct json_writer *json, const struct option *option)
{
  const bool any = option->type == OPTION_STRINGS;
  json_write_open(json, "anyOf", '[');
  write_list(json, option, any ? 0 : option->count, any ? -1 : option->count);
  if (any) { /* or one item */
    json_write_open(json, NULL, '{');
    write_item(json, option);
    json_write_close(json, '}');
  }
  if (option->type == OPTION_INTS)
    write_list(json, option, 0, 0);
  json_write_close(json, ']');
}

/* The value of an option as the table has it. */
static void write_value(struct json_writer *json, const char *key, const struct option *option,
                        const char *value)
{
  const bool is_text = option->type == OPTION_STRING || option->type == OPTION_CHOICE ||
                       option->type == OPTION_STRINGS;
  if (!is_list(option)) {
    (is_text ? json_write_text : json_write_number)(json, key, value);
    return;
  }
  json_write_open(json, key, '[');
  for (const char *item = value + strspn(value, "["); *item && *item != ']';) {
    char text[64];
    const size_t length = strcspn(item, ",]");
    snprintf(text, sizeof text, "%.*s", (int)length, item);
    (is_text ? json_write_text : json_write_number)(json, NULL, text);
    item += length + strspn(item + length, ", ");
  }
  json_write_close(json, ']');
}

static void write_key(struct json_writer *json, const char *key, const struct option *option)
{
  char example[100];
  options_print_example(option, example, sizeof example);
  json_write_open(json, key, '{');
  json_write_text(json, "description", option->text);
  if (option->type == OPTION_BOOL)
    write_bool(json);
  else
    (is_list(option) ? write_lists : write_item)(json, option);
  if (option->chosen)
    json_write_text(json, "default", "auto");
  else if (option->value)
    write_value(json, "default", option, option->value);
  json_write_open(json, "examples", '[');
  write_value(json, NULL, option, example);
  json_write_close(json, ']');
  json_write_close(json, '}');
}

static void write_mapping(struct json_writer *json)
{
  static const char *const types[] = {"object", "null", NULL};
  write_texts(json, "type", types);
  json_write_bool(json, "additionalProperties", false);
  json_write_open(json, "properties", '{');
}

static void close_mapping(struct json_writer *json)
{
  json_write_close(json, '}');
  json_write_close(json, '}');
}

/* The keys and sections of a section, the first `length` bytes of a name; 0: of the deck. */
static void write_section(struct json_writer *json, const char *section, size_t length)
{
  for (const struct option *option = deck_table; option->name; option++) {
    if (strncmp(option->name, section, length) != 0 || (length > 0 && option->name[length] != '.'))
      continue;
    const char *rest = option->name + length + (length > 0), *dot = strchr(rest, '.');
    const size_t inner = dot ? (size_t)(dot - option->name) : 0;
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)(dot ? dot - rest : (int)strlen(rest)), rest);
    if (!dot) {
      write_key(json, name, option);
    } else if (option == deck_table || strncmp(option[-1].name, option->name, inner + 1) != 0) {
      json_write_open(json, name, '{');
      write_mapping(json);
      write_section(json, option->name, inner);
      close_mapping(json);
    }
  }
}

enum status schema_print(int argc, char **argv)
{
  struct json_writer json = {.to = stdout};
  json_write_open(&json, NULL, '{');
  json_write_text(&json, "$schema", "http://json-schema.org/draft-07/schema#");
  json_write_text(&json, "title", "Deck of Sluice");
  write_mapping(&json);
  write_section(&json, "", 0);
  close_mapping(&json);
  (void)argc, (void)argv;
  return STATUS_OK;
}
