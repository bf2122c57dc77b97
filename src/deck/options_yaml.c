/* Reads options from YAML events. Anchors, tags and repeated keys are refused. */
#include <string.h>
#include <yaml.h>

#include "base/mem.h"
#include "deck/options.h"
#include "deck/options_set.h"

struct reader {
  yaml_parser_t parser;
  yaml_event_t event; /* the current one; zeroed: none */
  struct option_set *set;
  const char *label, *text, *end;
};

static enum status fail_here(const struct reader *reader, const char *sentence)
{
  return status_usage("%s:%zu: %s", reader->label, reader->event.start_mark.line + 1, sentence);
}

/* Whether a tab is among the blanks at the start of a line, which counts from 0. */
static bool has_tab(const struct reader *reader, size_t line)
{
  const char *at = reader->text;
  for (; line > 0 && at; line--) {
    at = memchr(at, '\n', (size_t)(reader->end - at));
    at = at ? at + 1 : NULL;
  }
  while (at && at < reader->end && *at == ' ')
    at++;
  return at && at < reader->end && *at == '\t';
}

/* The cure of a mistake that the parser's words do not explain. */
static const char *cure_of(const struct reader *reader)
{
  const yaml_parser_t *parser = &reader->parser;
  if (parser->context && !strcmp(parser->context, "while scanning an alias"))
    return "; put a text that begins with * in quotes";
  if (has_tab(reader, parser->problem_mark.line))
    return "; indent with blanks, not with tabs";
  return "";
}

static enum status parse_error(const struct reader *reader)
{
  const yaml_parser_t *parser = &reader->parser;
  const char *problem = parser->problem ? parser->problem : "unknown problem";
  if (parser->error == YAML_MEMORY_ERROR)
    return status_set(STATUS_MEMORY, "%s: no memory left for reading it", reader->label);
  if (parser->error == YAML_READER_ERROR)
    return status_usage("%s: not YAML at byte %zu (0x%02X): %s", reader->label,
                        parser->problem_offset, (unsigned)parser->problem_value, problem);
  return status_usage("%s:%zu: not YAML: %s%s%s%s", reader->label, parser->problem_mark.line + 1,
                      parser->context ? parser->context : "", parser->context ? ", " : "", problem,
                      cure_of(reader));
}

static void drop_event(struct reader *reader)
{
  yaml_event_delete(&reader->event);
  memset(&reader->event, 0, sizeof reader->event);
}

/* Each value is written where it is used, as itself. Patterns and names may begin like a node of
 * YAML's that has a name or a type. */
static enum status check_node(const struct reader *reader)
{
  const yaml_event_t *event = &reader->event;
  const bool holds = event->type == YAML_SCALAR_EVENT || event->type == YAML_SEQUENCE_START_EVENT ||
                     event->type == YAML_MAPPING_START_EVENT; /* all begin with anchor and tag */
  if (event->type == YAML_ALIAS_EVENT)
    return fail_here(reader, "a deck has no aliases (*name); write the value out, and put a text "
                             "that begins with * in quotes");
  if (holds && event->data.scalar.anchor)
    return fail_here(reader, "a deck has no anchors (&name); remove it, and put a text that begins "
                             "with & in quotes");
  if (holds && event->data.scalar.tag)
    return fail_here(reader, "a deck has no tags (!name); remove it, and put a text that begins "
                             "with ! in quotes");
  return STATUS_OK;
}

static enum status next(struct reader *reader)
{
  drop_event(reader);
  return yaml_parser_parse(&reader->parser, &reader->event) ? check_node(reader)
                                                            : parse_error(reader);
}

static const char *scalar(const struct reader *reader)
{
  return (const char *)reader->event.data.scalar.value;
}

/* YAML joins lines that are indented further than their key, which no value of a deck needs. */
static enum status check_lines(const struct reader *reader)
{
  const yaml_event_t *event = &reader->event;
  if (event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE ||
      event->start_mark.line == event->end_mark.line || !*scalar(reader))
    return STATUS_OK;
  return status_usage("%s:%zu: '%s' goes over several lines: indent the keys of a section alike (a "
                      "comma separates them inside {}), and put a text of several lines in quotes",
                      reader->label, event->start_mark.line + 1, scalar(reader));
}

/* Texts are C strings from here on. */
static enum status check_scalar(const struct reader *reader)
{
  switch (reader->event.type) {
  case YAML_SCALAR_EVENT:
    if (strlen(scalar(reader)) != reader->event.data.scalar.length)
      return fail_here(reader, "a text must not contain a zero byte");
    return check_lines(reader);
  case YAML_MAPPING_START_EVENT: return fail_here(reader, "expected a value, found a mapping");
  case YAML_SEQUENCE_START_EVENT:
    return fail_here(reader, "expected a text or a number, found a list");
  default: return fail_here(reader, "expected a value");
  }
}

static enum status append(const struct reader *reader, struct option_given *given)
{
  const enum status status = check_scalar(reader)
                                 ?: mem_grow(MEM_META, (void **)&given->item, &given->room,
                                             (int64_t)given->n + 1, sizeof *given->item);
  if (status)
    return status;
  given->item[given->n] = mem_strdup(scalar(reader));
  if (!given->item[given->n])
    return STATUS_MEMORY;
  given->n++;
  return STATUS_OK;
}

/* The current event starts the value. */
static enum status collect(struct reader *reader, struct option_given *given)
{
  given->list = reader->event.type == YAML_SEQUENCE_START_EVENT;
  if (!given->list)
    return append(reader, given);
  enum status status = next(reader);
  while (!status && reader->event.type != YAML_SEQUENCE_END_EVENT)
    status = append(reader, given) ?: next(reader);
  return status;
}

static enum status store_here(struct reader *reader, int index, char *where)
{
  struct option_given given = {.where = where};
  const enum status status = collect(reader, &given) ?: options_store(reader->set, index, &given);
  if (!status)
    reader->set->origin[index].read = reader->set->reads;
  for (int i = 0; i < given.n; i++)
    mem_free(given.item[i]);
  mem_free(given.item);
  return status;
}

static enum status read_option(struct reader *reader, const char *name, size_t line)
{
  const struct option_set *set = reader->set;
  char *where = mem_printf("%s:%zu", reader->label, line + 1);
  if (!where)
    return STATUS_MEMORY;
  enum status status;
  int index = options_find(set->table, name);
  if (index < 0)
    status = options_unknown(set, where, name);
  else if (set->origin[index].read == set->reads)
    status = status_usage("%s: %s was already given at %s; keep one of them", where, name,
                          set->origin[index].where);
  else
    status = store_here(reader, index, where);
  mem_free(where);
  return status;
}

static enum status read_mapping(struct reader *reader, const char *section);

static enum status read_section(struct reader *reader, const char *name, int index, size_t line)
{
  struct option_origin *origin = &reader->set->origin[index];
  const int depth = strchr(name, '.') ? 1 : 0;
  if (origin->section_read[depth] == reader->set->reads)
    return status_usage(
        "%s:%zu: the section '%s' was already opened at line %d; put its keys together",
        reader->label, line + 1, name, origin->section_line[depth]);
  origin->section_read[depth] = reader->set->reads;
  origin->section_line[depth] = (int)line + 1;
  if (reader->event.type == YAML_SCALAR_EVENT &&
      !*scalar(reader)) /* all of its keys commented out */
    return STATUS_OK;
  if (reader->event.type != YAML_MAPPING_START_EVENT)
    return status_usage("%s:%zu: '%s' is a section: expected its keys, such as '%s'", reader->label,
                        line + 1, name, reader->set->table[index].name);
  return read_mapping(reader, name);
}

/* The current event is a key. */
static enum status read_entry(struct reader *reader, const char *section)
{
  size_t line = reader->event.start_mark.line;
  enum status status = check_scalar(reader);
  if (status)
    return status;
  char *name = section ? mem_printf("%s.%s", section, scalar(reader)) : mem_strdup(scalar(reader));
  if (!name)
    return STATUS_MEMORY;
  status = next(reader);
  if (!status) {
    const int first = options_find_section(reader->set->table, name);
    status = first >= 0 ? read_section(reader, name, first, line) : read_option(reader, name, line);
  }
  mem_free(name);
  return status;
}

/* The current event opened the mapping. `section` NULL: the whole deck. */
static enum status read_mapping(struct reader *reader, const char *section)
{
  enum status status = next(reader);
  while (!status && reader->event.type != YAML_MAPPING_END_EVENT)
    status = read_entry(reader, section) ?: next(reader);
  return status;
}

/* The current event starts the only document. */
static enum status read_document(struct reader *reader)
{
  enum status status = next(reader);
  if (status)
    return status;
  if (reader->event.type == YAML_MAPPING_START_EVENT)
    status = read_mapping(reader, NULL);
  else if (reader->event.type != YAML_SCALAR_EVENT || *scalar(reader))
    status = fail_here(reader, "expected sections of keys and values, such as 'run: {steps: 100}'");
  return status ? status : next(reader);
}

static enum status read_stream(struct reader *reader)
{
  enum status status = next(reader); /* the start of the stream */
  status = status ?: next(reader);
  if (status || reader->event.type == YAML_STREAM_END_EVENT)
    return status;
  status = read_document(reader) ?: next(reader);
  if (!status && reader->event.type != YAML_STREAM_END_EVENT)
    status = fail_here(reader, "a deck is one document; remove what follows '---' or '...'");
  return status;
}

/* The encoding that the first bytes of a text show, or NULL. */
static const char *encoding_of(const char *text, size_t bytes)
{
  static const struct {
    const char *name, *mark;
    size_t bytes;
  } marks[] = {
      {"UTF-32", "\0\0\376\377", 4},
      {"UTF-32", "\377\376\0\0", 4}, /* before UTF-16, whose mark it begins with */
      {"UTF-16", "\376\377", 2},
      {"UTF-16", "\377\376", 2},
  };
  for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
    if (bytes >= marks[i].bytes && !memcmp(text, marks[i].mark, marks[i].bytes))
      return marks[i].name;
  return NULL;
}

enum status options_check_text(const char *label, const char *text, size_t bytes)
{
  const char *encoding = encoding_of(text, bytes), *nul = memchr(text, '\0', bytes);
  if (encoding)
    return status_usage(
        "%s is a text in %s, and a deck is one in UTF-8: convert it (iconv -f %s -t UTF-8)", label,
        encoding, encoding);
  if (nul)
    return status_usage(
        "%s is not a text file, because its byte %zu is NUL: it is damaged, or no deck", label,
        (size_t)(nul - text));
  return STATUS_OK;
}

static enum status read_clean(struct option_set *set, const char *label, const char *text,
                              size_t bytes)
{
  struct reader reader = {.set = set, .label = label, .text = text, .end = text + bytes};
  if (!yaml_parser_initialize(&reader.parser))
    return status_set(STATUS_MEMORY, "%s: the YAML parser cannot start: no memory", label);
  yaml_parser_set_input_string(&reader.parser, (const unsigned char *)text, bytes);
  set->reads++;
  const enum status status = read_stream(&reader);
  drop_event(&reader);
  yaml_parser_delete(&reader.parser);
  return status;
}

enum status options_read_text(struct option_set *set, const char *label, const char *text,
                              size_t bytes)
{
  char *clean = NULL;
  enum status status = options_check_text(label, text, bytes);
  status = status ?: mem_new(MEM_META, bytes + 1, &clean);
  if (!status) {
    memcpy(clean, text, bytes);
    status = read_clean(set, label, clean, options_clean(clean, bytes, true));
  }
  mem_free(clean);
  return status;
}
