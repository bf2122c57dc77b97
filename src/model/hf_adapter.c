/* PEFT's adapter_config.json: the keys that LoRA needs, and the refusal of all that changes its
 * arithmetic. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/append.h"
#include "base/log.h"
#include "base/mem.h"
#include "io/text/json.h"
#include "io/text/json_write.h"
#include "model/hf.h"
#include "model/unit.h"

/* --- writing ------------------------------------------------------------- */

/* The module of a weight: "model.layers.0.self_attn.q_proj". NULL: memory is out. */
static char *module_of(const struct model_param *param)
{
  return mem_printf("%.*s", (int)(strrchr(param->name, '.') - param->name), param->name);
}

/* "*.q_proj.weight" names the weights of all modules with the same last word. Whether one of them
 * has no adapter. */
static bool leaves_out(const struct model *model, const char *last)
{
  const size_t bytes = strlen(last);
  for (int u = 0; u < model->units; u++)
    for (int p = 0; p < model->unit[u].params; p++) {
      const struct model_param *param = &model->unit[u].param[p];
      const char *end = strrchr(param->name, '.');
      if (param->kind == PARAM_WEIGHT && !param->adapter.a && (size_t)(end - param->name) > bytes &&
          end[-1 - (int)bytes] == '.' && !strncmp(end - bytes, last, bytes))
        return true;
    }
  return false;
}

static int compare_texts(const void *a, const void *b)
{
  return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Last words where they name adapters alone, else whole names; sorted, each once. */
static enum status put_targets(struct json_writer *to, const struct model *model)
{
  char **target = NULL;
  int n = 0, params = 0;
  for (int u = 0; u < model->units; u++)
    params += model->unit[u].params;
  enum status status = mem_new(MEM_META, params, &target);
  for (int u = 0; u < model->units && !status; u++)
    for (int p = 0; p < model->unit[u].params && !status; p++) {
      if (!model->unit[u].param[p].adapter.a)
        continue;
      char *const module = target[n] = module_of(&model->unit[u].param[p]);
      status = target[n++] ? STATUS_OK : STATUS_MEMORY;
      const char *last = module ? strrchr(module, '.') + 1 : "";
      if (!status && !leaves_out(model, last))
        memmove(module, last, strlen(last) + 1);
    }
  if (!status)
    qsort(target, (size_t)n, sizeof *target, compare_texts);
  json_write_open(to, "target_modules", '[');
  for (int i = 0; i < n && !status; i++)
    if (i == 0 || strcmp(target[i], target[i - 1]) != 0)
      json_write_text(to, NULL, target[i]);
  json_write_close(to, ']');
  while (n > 0)
    mem_free(target[--n]);
  mem_free(target);
  return status;
}

static enum status put_config(struct json_writer *to, const struct model *model,
                              const struct hf_adapter *adapter)
{
  json_write_open(to, NULL, '{');
  json_write_text(to, "base_model_name_or_path", *adapter->base ? adapter->base : NULL);
  json_write_text(to, "bias", "none");
  json_write_bool(to, "fan_in_fan_out", !model_is_transposed(model));
  json_write_bool(to, "inference_mode", true);
  json_write_bool(to, "init_lora_weights", true);
  if (adapter->alpha == floor(adapter->alpha))
    json_write_int(to, "lora_alpha", (int64_t)adapter->alpha);
  else
    json_write_real(to, "lora_alpha", adapter->alpha);
  json_write_number(to, "lora_dropout", "0.0");
  json_write_text(to, "modules_to_save", NULL);
  json_write_text(to, "peft_type", "LORA");
  json_write_int(to, "r", adapter->rank);
  const enum status status = put_targets(to, model);
  json_write_text(to, "task_type", "CAUSAL_LM");
  json_write_bool(to, "use_dora", false);
  json_write_bool(to, "use_rslora", adapter->rslora);
  json_write_close(to, '}');
  return status;
}

enum status hf_adapter_print(const struct model *model, const struct hf_adapter *adapter,
                             char **out)
{
  char *text = NULL;
  size_t bytes;
  struct json_writer json = {.to = open_memstream(&text, &bytes)};
  enum status status = json.to ? put_config(&json, model, adapter) : STATUS_OK;
  if (!json.to || fclose(json.to) != 0)
    status = status_set(STATUS_MEMORY, "no memory for the text of adapter_config.json");
  if (!status)
    status = (*out = mem_strdup(text)) ? STATUS_OK : STATUS_MEMORY;
  free(text);
  return status;
}

/* --- reading ------------------------------------------------------------- */

enum { MOST_BYTES = 4 << 20 };

/* Of any kind of value. */
static bool is_off(const json_t *value)
{
  return !value || json_is_null(value) || json_is_false(value) ||
         (json_is_string(value) && !*json_string_value(value)) ||
         (json_is_array(value) && json_array_size(value) == 0) ||
         (json_is_object(value) && json_object_size(value) == 0);
}

/* Keys that other functions read, and keys that do not change what adapters compute. */
static bool is_known(const char *key)
{
  static const char *const keys[] = {"auto_mapping",
                                     "base_model_name_or_path",
                                     "corda_config",
                                     "ensure_weight_tying",
                                     "eva_config",
                                     "fan_in_fan_out",
                                     "inference_mode",
                                     "init_lora_weights",
                                     "loftq_config",
                                     "lora_alpha",
                                     "lora_dropout",
                                     "lora_ga_config",
                                     "megatron_core",
                                     "peft_type",
                                     "peft_version",
                                     "qalora_group_size",
                                     "r",
                                     "revision",
                                     "runtime_config",
                                     "target_modules",
                                     "task_type",
                                     "use_rslora"};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (!strcmp(key, keys[i]))
      return true;
  return false;
}

/* With other initial values (PiSSA, OLoRA, CorDA, LoftQ) the base lacks what A and B had then. */
static void check_start(struct json_node start)
{
  static const char *const harmless[] = {"gaussian", "eva", "orthogonal"};
  bool known = !json_is_string(start.value);
  for (size_t i = 0; i < sizeof harmless / sizeof *harmless && !known; i++)
    known = !strcmp(json_string_value(start.value), harmless[i]);
  if (!known)
    json_fail(start, "changes the base: save the adapters by PEFT with "
                     "path_initial_model_for_weight_conversion");
}

static void check_keys(struct json_node root)
{
  for (struct json_node node = json_first(root); json_more(node); node = json_next(node)) {
    const bool none = !strcmp(node.key, "bias") && json_is_string(node.value) &&
                      !strcmp(json_string_value(node.value), "none");
    if (!is_known(node.key) && !none && !is_off(node.value))
      json_fail(node, "is set, and Sluice has LoRA without it");
  }
}

/* PEFT adapts each module whose name is a target or ends with a point and a target. */
static void add_target(struct json_node node, struct hf_adapter *out)
{
  static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.";
  const char *name = json_get_text(node);
  const bool whole = !strncmp(name, "model.", 6) || !strncmp(name, "transformer.", 12);
  const size_t used = strlen(out->targets);
  if (*name && name[strspn(name, letters)])
    json_fail(node, "is no name of a module");
  else if (used + strlen(name) + 16 > sizeof out->targets)
    json_fail(node, "is one name of a module too many");
  else
    append_text(out->targets, sizeof out->targets, "%s%s%s.weight", used > 1 ? ", " : "",
                whole ? "" : "*.", name);
}

static void read_targets(struct json_node node, struct hf_adapter *out)
{
  if (json_is_string(node.value)) {
    json_fail(node, "is a pattern, where Sluice needs a list of names");
    return;
  }
  if (json_length(json_get_array(node)) == 0)
    json_fail(node, "names no module");
  snprintf(out->targets, sizeof out->targets, "[");
  for (struct json_node name = json_first(node); json_more(name); name = json_next(name))
    add_target(name, out);
  append_text(out->targets, sizeof out->targets, "]");
}

enum status hf_adapter_read(const char *path, struct hf_adapter *out)
{
  struct json_file file = {0};
  enum status status = json_read(path, MOST_BYTES, &file);
  if (status)
    return status;
  const struct json_node root = json_get_object(json_root(&file)),
                         type = json_find(root, "peft_type"),
                         dropout = json_find_set(root, "lora_dropout"),
                         rslora = json_find_set(root, "use_rslora"),
                         start = json_find_set(root, "init_lora_weights"),
                         alpha = json_find(root, "lora_alpha"),
                         base = json_find_set(root, "base_model_name_or_path");
  *out = (struct hf_adapter){.rank = json_get_whole(json_find(root, "r"), 1, 1 << 16),
                             .alpha = json_get_real(alpha),
                             .rslora = rslora.value && json_get_bool(rslora)};
  if (strcmp(json_get_text(type), "LORA") != 0)
    json_fail(type, "is not LORA");
  if (out->alpha <= 0)
    json_fail(alpha, "is not above 0");
  if (start.value)
    check_start(start);
  check_keys(root);
  read_targets(json_find(root, "target_modules"), out);
  snprintf(out->base, sizeof out->base, "%s", base.value ? json_get_text(base) : "");
  if (dropout.value && json_get_real(dropout) != 0)
    log_warn("%s: lora_dropout is %g, and Sluice trains without dropout", path,
             json_get_real(dropout));
  status = file.status;
  json_close(&file);
  return status;
}
