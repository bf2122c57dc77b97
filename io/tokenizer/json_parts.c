/* What comes before and after the model in tokenizer.json: the normal form, the steps of the
 * pre-tokenizer, and the tokens around a text. A part is an object with a type, or a Sequence of
 * such parts. */
#include "io/tokenizer/json_loader.h"

#include <string.h>

typedef void part_load(struct json_loader *loader, struct json_node part);

struct part_kind {
  const char *list;    /* key of the parts of a Sequence */
  const char *refusal; /* what else is supported */
  const char *known;   /* keys, except of which there is a warning; NULL: of none */
  struct {
    const char *type;
    part_load *load; /* NULL: the type changes no token */
  } types[5];
};

/* A Sequence without parts changes nothing. */
static void load_part(struct json_loader *loader, struct json_node part,
                      const struct part_kind *kind)
{
  const char *type = json_get_text(json_find(json_get_object(part), "type"));
  if (part.file->status)
    return;
  if (kind->known)
    json_warn_of_others(loader, part, kind->known);
  for (size_t i = 0; kind->types[i].type; i++)
    if (strcmp(type, kind->types[i].type) == 0) {
      if (kind->types[i].load)
        kind->types[i].load(loader, part);
      return;
    }
  if (strcmp(type, "Sequence") != 0) {
    json_fail(part, "is of type %s, which Sluice does not support; it knows %s", type,
              kind->refusal);
    return;
  }
  const struct json_node list = json_get_array(json_find(part, kind->list));
  for (struct json_node item = json_first(list); json_more(item); item = json_next(item))
    load_part(loader, item, kind);
}

/* --- the normalizer ------------------------------------------------------ */

static void load_nfc(struct json_loader *loader, struct json_node part)
{
  if (!loader->t->nfc)
    json_keep(part.file, nfc_create(&loader->t->nfc));
}

void json_load_normalizer(struct json_loader *loader)
{
  static const struct part_kind kind = {
      .list = "normalizers", .refusal = "NFC and Sequences of it", .types = {{"NFC", load_nfc}}};
  const struct json_node normalizer = json_find_set(loader->root, "normalizer");
  if (normalizer.value)
    load_part(loader, normalizer, &kind);
}

/* --- the pre-tokenizer --------------------------------------------------- */

static void add_step(struct json_loader *loader, enum tokenizer_step_kind kind,
                     const struct split_rule *rule)
{
  struct json_file *file = &loader->file;
  if (!file->status)
    json_keep(file, tokenizer_bpe_add_step(loader->t, file->path, kind, rule));
}

/* Steps after ByteLevel see the characters that stand for the bytes. */
static void add_split(struct json_loader *loader, const struct split_rule *rule)
{
  if (loader->byte_level && !loader->spelled) {
    loader->spelled = true;
    add_step(loader, STEP_SPELL, NULL);
  }
  add_step(loader, STEP_SPLIT, rule);
}

static void load_byte_level(struct json_loader *loader, struct json_node part)
{
  if (loader->byte_level)
    json_fail(part, "is a second ByteLevel");
  loader->prefix = json_flag(part, "add_prefix_space", true);
  if (loader->prefix)
    add_step(loader, STEP_SPACE, NULL);
  if (json_flag(part, "use_regex", true))
    add_split(loader, &(struct split_rule){.pattern = split_pattern("gpt2")});
  loader->byte_level = true;
}

static void load_digits(struct json_loader *loader, struct json_node part)
{
  const char *name = json_flag(part, "individual_digits", false) ? "digit" : "digits";
  add_split(loader, &(struct split_rule){.pattern = split_pattern(name)});
}

static enum split_behavior read_behavior(struct json_node node)
{
  static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                      "Contiguous"};
  const char *name = json_get_text(node);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(name, names[i]) == 0)
      return (enum split_behavior)i;
  json_fail(node, "is %s, which Sluice does not support", name);
  return 0;
}

static void load_punctuation(struct json_loader *loader, struct json_node part)
{
  struct split_rule rule = {.pattern = "[!-/:-@\\[-`{-~]|\\p{P}"};
  const struct json_node behavior = json_find_set(part, "behavior");
  if (behavior.value)
    rule.behavior = read_behavior(behavior);
  add_split(loader, &rule);
}

static void load_split(struct json_loader *loader, struct json_node part)
{
  const struct json_node pattern = json_get_object(json_find(part, "pattern"));
  struct split_rule rule = {.invert = json_flag(part, "invert", false),
                            .literal = json_find(pattern, "String").value};
  rule.behavior = read_behavior(json_find(part, "behavior"));
  rule.pattern = json_get_text(json_find(pattern, rule.literal ? "String" : "Regex"));
  add_split(loader, &rule);
}

void json_load_pre_tokenizer(struct json_loader *loader)
{
  static const char known[] = "type pretokenizers add_prefix_space trim_offsets use_regex pattern "
                              "behavior invert individual_digits";
  static const struct part_kind kind = {
      .list = "pretokenizers",
      .refusal = "ByteLevel, Digits, Punctuation, Split, and Sequences of these",
      .known = known,
      .types = {{"ByteLevel", load_byte_level},
                {"Digits", load_digits},
                {"Punctuation", load_punctuation},
                {"Split", load_split}}};
  const struct json_node part = json_find(loader->root, "pre_tokenizer");
  load_part(loader, part, &kind);
  if (!loader->byte_level)
    json_fail(part, "has no ByteLevel, so its pieces are no bytes");
  if (loader->spelled)
    add_step(loader, STEP_UNSPELL, NULL);
}

/* --- the post-processor -------------------------------------------------- */

/* The one id of a special token of the template. */
static int32_t template_id(const struct json_loader *loader, struct json_node template,
                           struct json_node piece)
{
  const char *name = json_get_text(json_find(piece, "id"));
  const struct json_node tokens = json_get_object(json_find(template, "special_tokens")),
                         token = json_get_object(json_find(tokens, name)),
                         ids = json_get_array(json_find(token, "ids"));
  if (json_length(ids) != 1)
    json_fail(ids, "holds %zu ids; Sluice puts one token before a text and one after it",
              json_length(ids));
  return (int32_t)json_get_whole(json_first(ids), 0, loader->t->base.vocab - 1);
}

/* "single": special tokens around the sequence A. */
static void load_template(struct json_loader *loader, struct json_node template)
{
  const struct json_node single = json_get_array(json_find(template, "single"));
  int32_t *const begin = &loader->t->base.begin_of_text, *place = begin;
  if (*begin >= 0 || loader->after >= 0)
    json_fail(template, "is a second template");
  for (struct json_node node = json_first(single); json_more(node); node = json_next(node)) {
    const struct json_node special = json_find(node, "SpecialToken");
    const bool is_text = json_find(node, "Sequence").value;
    if (!special.value && (!is_text || place != begin))
      json_fail(node, "is neither a SpecialToken nor the one Sequence");
    else if (!special.value)
      place = &loader->after;
    else if (*place >= 0)
      json_fail(node, "is a second token on one side of the text; Sluice puts one before it and "
                      "one after it");
    else
      *place = template_id(loader, template, special);
  }
  if (place == begin)
    json_fail(single, "has no Sequence");
}

void json_load_processor(struct json_loader *loader)
{
  static const struct part_kind kind = {.list = "processors",
                                        .refusal =
                                            "ByteLevel, TemplateProcessing and Sequences of these",
                                        .types = {{"ByteLevel", NULL /* moves offsets only */},
                                                  {"TemplateProcessing", load_template}}};
  const struct json_node processor = json_find_set(loader->root, "post_processor");
  if (processor.value)
    load_part(loader, processor, &kind);
}
