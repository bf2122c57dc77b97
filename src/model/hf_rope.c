/* Rotary positions in config.json, in the forms of transformers 4.x and 5.x. */
#include "model/hf_private.h"

#include <string.h>

static enum status check_rope_keys(const struct json_node *rope)
{
  static const char *const known[] = {"rope_type",
                                      "type",
                                      "rope_theta",
                                      "factor",
                                      "low_freq_factor",
                                      "high_freq_factor",
                                      "original_max_position_embeddings",
                                      "partial_rotary_factor"};
  for (const struct json_node *node = json_first(rope); node; node = json_next(node)) {
    size_t i = 0;
    while (i < sizeof known / sizeof *known && strcmp(known[i], json_key(node, NULL)) != 0)
      i++;
    if (i == sizeof known / sizeof *known)
      return json_fail(node, "is given: Sluice knows no such parameter of rotary positions");
  }
  const struct json_node *partial = json_find_said(rope, "partial_rotary_factor");
  return partial ? hf_check_one(partial) : STATUS_OK;
}

static const char *const rope_types[] = {
    [ROPE_PLAIN] = "default", [ROPE_LINEAR] = "linear", [ROPE_LLAMA3] = "llama3"};

static enum status read_scaling(const struct json_node *rope, int *scaling)
{
  const struct json_node *node = json_find_said(rope, "rope_type");
  const char *name = NULL;
  if (!node)
    node = json_find_said(rope, "type");
  if (!node)
    return STATUS_OK;
  enum status status = json_get_text(node, &name, NULL);
  if (status)
    return status;
  for (int i = 0; i < 3; i++)
    if (!strcmp(rope_types[i], name)) {
      *scaling = i;
      return STATUS_OK;
    }
  return json_fail(node, "is \"%.40s\"; Sluice knows the rope types default, linear and llama3",
                   name);
}

static enum status refuse_unused(const struct json_node *rope, int scaling)
{
  static const struct {
    const char *key;
    int least; /* the first type that uses it */
  } numbers[] = {{"factor", ROPE_LINEAR},
                 {"low_freq_factor", ROPE_LLAMA3},
                 {"high_freq_factor", ROPE_LLAMA3},
                 {"original_max_position_embeddings", ROPE_LLAMA3}};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    const struct json_node *node = json_find_said(rope, numbers[i].key);
    if (node && scaling < numbers[i].least)
      return json_fail(node, "is given, but the rope type is %s, which does not use it",
                       rope_types[scaling]);
  }
  return STATUS_OK;
}

static enum status read_rope_number(const struct json_node *rope, const char *key, double *out)
{
  const struct json_node *node = json_find_said(rope, key);
  if (!node)
    return json_fail(rope, "has no %s, which its rope type needs", key);
  return hf_read_real(node, 0, 1e6, out);
}

/* Older versions also have it one level up. */
static enum status read_original(const struct json_node *root, const struct json_node *rope,
                                 int64_t *out)
{
  const struct json_node *node = json_find_said(rope, "original_max_position_embeddings"),
                         *beside = json_find_said(root, "original_max_position_embeddings");
  int64_t other = 0;
  if (!node)
    return json_fail(rope, "has no original_max_position_embeddings, which its rope type needs");
  enum status status = json_get_whole(node, 1, 1 << 26, out);
  if (!status && beside)
    status = json_get_whole(beside, 1, 1 << 26, &other);
  if (!status && beside && other != *out)
    status = json_fail(beside, "is %lld, and %lld next to the rope type: they must agree",
                       (long long)other, (long long)*out);
  return status;
}

/* theta NULL: it stays. */
static enum status read_theta(const struct json_node *theta, double *out)
{
  return theta ? hf_read_real(theta, 1, 1e12, out) : STATUS_OK;
}

/* Reads one object of parameters. `out` holds the values that it does not give. */
static enum status read_rope_object(const struct json_node *root, const struct json_node *rope,
                                    struct rope_config *out)
{
  if (json_kind(rope) != JSON_OBJECT)
    return json_fail(rope, "is not an object");
  const struct json_node *theta = json_find_said(rope, "rope_theta");
  enum status status = read_theta(theta, &out->theta);
  if (!status)
    status = read_scaling(rope, &out->scaling);
  if (!status)
    status = check_rope_keys(rope);
  if (!status)
    status = refuse_unused(rope, out->scaling);
  if (!status && out->scaling != ROPE_PLAIN)
    status = read_rope_number(rope, "factor", &out->factor);
  if (status || out->scaling != ROPE_LLAMA3)
    return status;
  status = read_rope_number(rope, "low_freq_factor", &out->low_freq);
  if (!status)
    status = read_rope_number(rope, "high_freq_factor", &out->high_freq);
  return status ? status : read_original(root, rope, &out->original);
}

static bool same_rope(const struct rope_config *a, const struct rope_config *b)
{
  return a->theta == b->theta && a->scaling == b->scaling && a->factor == b->factor &&
         a->low_freq == b->low_freq && a->high_freq == b->high_freq && a->original == b->original;
}

/* 5.x writes rope_parameters, which holds all values. 4.x writes rope_theta, and rope_scaling if
 * there is scaling. Values that are given twice must be equal. */
enum status hf_read_rope(const struct json_node *root, struct rope_config *out)
{
  const struct json_node *old = json_find_said(root, "rope_scaling"),
                         *new = json_find_said(root, "rope_parameters"),
                         *theta = json_find_said(root, "rope_theta");
  out->theta = 10000;
  enum status status = read_theta(theta, &out->theta);
  struct rope_config plain = *out, first = plain, second = plain;
  const bool scaled = old && (json_kind(old) != JSON_OBJECT || json_length(old) > 0);
  if (!status && new)
    status = read_rope_object(root, new, &second);
  if (!theta)
    first.theta = second.theta; /* 4.x has it next to rope_scaling */
  if (!status && scaled)
    status = read_rope_object(root, old, &first);
  if (status)
    return status;
  if (scaled && new && !same_rope(&first, &second))
    return json_fail(old, "and rope_parameters disagree: leave one of them out");
  if (theta && new &&second.theta != plain.theta)
    return json_fail(theta, "is %g, and %g in rope_parameters: they must agree", plain.theta,
                     second.theta);
  *out = scaled ? first : second;
  return STATUS_OK;
}
