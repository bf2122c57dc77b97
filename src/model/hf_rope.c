/* Rotary positions in config.json, in the forms of transformers 4.x and 5.x. */
#include "model/hf_private.h"

#include <string.h>

static const char *const rope_types[] = {
    [ROPE_PLAIN] = "default", [ROPE_LINEAR] = "linear", [ROPE_LLAMA3] = "llama3"};

static int read_scaling(struct json_node rope, int otherwise)
{
  struct json_node node = json_find_set(rope, "rope_type");
  if (!node.value)
    node = json_find_set(rope, "type");
  if (!node.value)
    return otherwise;
  const char *name = json_get_text(node);
  for (int i = 0; i < 3; i++)
    if (!strcmp(rope_types[i], name))
      return i;
  json_fail(node, "is \"%.40s\"; Sluice knows the rope types default, linear and llama3", name);
  return otherwise;
}

/* Keys of the parameters, and the first rope type that uses each. */
static const struct {
  const char *key;
  int least;
} known[] = {{"rope_type", ROPE_PLAIN},         {"type", ROPE_PLAIN},
             {"rope_theta", ROPE_PLAIN},        {"partial_rotary_factor", ROPE_PLAIN},
             {"factor", ROPE_LINEAR},           {"low_freq_factor", ROPE_LLAMA3},
             {"high_freq_factor", ROPE_LLAMA3}, {"original_max_position_embeddings", ROPE_LLAMA3}};

static void check_rope_key(struct json_node node, int scaling)
{
  size_t i = 0;
  while (i < sizeof known / sizeof *known && strcmp(known[i].key, node.key) != 0)
    i++;
  if (i == sizeof known / sizeof *known)
    json_fail(node, "is given: Sluice knows no such parameter of rotary positions");
  else if (!json_is_null(node.value) && scaling < known[i].least)
    json_fail(node, "is given, but the rope type is %s, which does not use it",
              rope_types[scaling]);
}

static double read_rope_number(struct json_node rope, const char *key)
{
  const struct json_node node = json_find_set(rope, key);
  if (!node.value)
    json_fail(rope, "has no %s, which its rope type needs", key);
  return hf_read_real(node, 0, 1e6);
}

/* transformers 4.x may have it one level up. */
static int64_t read_original(struct json_node root, struct json_node rope)
{
  static const char key[] = "original_max_position_embeddings";
  const struct json_node node = json_find_set(rope, key), above = json_find_set(root, key);
  if (!node.value)
    json_fail(rope, "has no %s, which its rope type needs", key);
  const int64_t own = json_get_whole(node, 1, 1 << 26),
                other = above.value ? json_get_whole(above, 1, 1 << 26) : own;
  if (other != own)
    json_fail(above, "is %lld, and %lld next to the rope type: they must agree", (long long)other,
              (long long)own);
  return own;
}

static double read_theta(struct json_node of, double otherwise)
{
  const struct json_node node = json_find_set(of, "rope_theta");
  return node.value ? hf_read_real(node, 1, 1e12) : otherwise;
}

/* One object of parameters. `out` holds the values that it does not give. */
static void read_rope_object(struct json_node root, struct json_node rope, struct rope_config *out)
{
  if (!json_is_object(rope.value))
    json_fail(rope, "is not an object");
  out->theta = read_theta(rope, out->theta);
  out->scaling = read_scaling(rope, out->scaling);
  for (struct json_node node = json_first(rope); json_more(node); node = json_next(node))
    check_rope_key(node, out->scaling);
  if (json_find_set(rope, "partial_rotary_factor").value)
    hf_check_one(json_find(rope, "partial_rotary_factor"));
  if (out->scaling != ROPE_PLAIN)
    out->factor = read_rope_number(rope, "factor");
  if (out->scaling != ROPE_LLAMA3)
    return;
  out->low_freq = read_rope_number(rope, "low_freq_factor");
  out->high_freq = read_rope_number(rope, "high_freq_factor");
  out->original = read_original(root, rope);
}

static bool same_rope(const struct rope_config *a, const struct rope_config *b)
{
  return a->theta == b->theta && a->scaling == b->scaling && a->factor == b->factor &&
         a->low_freq == b->low_freq && a->high_freq == b->high_freq && a->original == b->original;
}

/* 5.x writes rope_parameters, which holds all values. 4.x writes rope_theta, and rope_scaling if
 * there is scaling. Values that are given twice must be equal. */
struct rope_config hf_read_rope(struct json_node root)
{
  const struct json_node four = json_find_set(root, "rope_scaling"),
                         five = json_find_set(root, "rope_parameters"),
                         theta = json_find_set(root, "rope_theta");
  const struct rope_config plain = {.theta = read_theta(root, 10000)};
  struct rope_config first = plain, second = plain;
  const bool scaled = four.value && !(json_is_object(four.value) && json_length(four) == 0);
  if (five.value)
    read_rope_object(root, five, &second);
  if (!theta.value)
    first.theta = second.theta; /* 4.x has it next to rope_scaling */
  if (scaled)
    read_rope_object(root, four, &first);
  if (scaled && five.value && !same_rope(&first, &second))
    json_fail(four, "and rope_parameters disagree: leave one of them out");
  if (theta.value && five.value && second.theta != plain.theta)
    json_fail(theta, "is %g, and %g in rope_parameters: they must agree", plain.theta,
              second.theta);
  return scaled ? first : second;
}
