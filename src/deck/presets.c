/* Presets of tiers.preset. No preset is worse than another in device memory, host memory and time
 * together: doc/explanation/memory-tiers.md, "Presets". */
#include "deck/presets.h"

#include <string.h>

#include "base/mem.h"

const char *const deck_presets[DECK_PRESETS + 1] = {
    [DECK_PRESET_NONE] = "none",           [DECK_PRESET_DEVICE] = "device",
    [DECK_PRESET_RECOMPUTE] = "recompute", [DECK_PRESET_OFFLOAD_RESIDENT] = "offload_resident",
    [DECK_PRESET_OFFLOAD] = "offload",     [DECK_PRESET_OFFLOAD_NVME] = "offload_nvme"};

#define GPU_REDUCE "gpu_reduce"

// clang-format off: one row per key, one column per preset
static const struct {
  const char *key, *value[DECK_PRESETS];
} rows[] = {
    /*                             device        recompute     resident      offload       nvme */
    {"tiers.params", {NULL, "device", "device", "host", "host", "host"}},
    {"tiers.optimizer", {NULL, "device", "device", "host", "host", "host"}},
    {"tiers.activations", {NULL, "keep", "recompute", "host", "host", "nvme"}},
    {"tiers.resident", {NULL, "0", "0", "3", "0", "0"}},
    {"transfer.params", {NULL, "shard", "shard", "shard", "shard", "shard"}},
    {"transfer.grads", {NULL, GPU_REDUCE, GPU_REDUCE, GPU_REDUCE, GPU_REDUCE, GPU_REDUCE}},
    {"optim.state", {NULL, "host", "host", "host", "host", "nvme"}},
    {"optim.state_share", {NULL, "1", "1", "1", "1", "1"}},
};
// clang-format on

static const char key[] = "tiers.preset";

/* Whether the user chose the value. A value that another preset set does not count. If the user
 * chose a preset, a default of the site does not count either. */
static bool is_users(const struct deck *deck, const char *name)
{
  if (options_is_site(deck->set, name) && !options_is_site(deck->set, key))
    return false;
  return options_is_set(deck->set, name) &&
         strncmp(options_where(deck->set, name), key, strlen(key)) != 0;
}

enum status deck_apply_preset(struct deck *deck, bool all)
{
  enum status status = STATUS_OK;
  if (deck->tiers.preset == DECK_PRESET_NONE)
    return STATUS_OK;
  char *where = mem_printf("%s=%s", key, deck_presets[deck->tiers.preset]);
  if (!where)
    return STATUS_MEMORY;
  for (size_t i = 0; i < sizeof rows / sizeof *rows && !status; i++) {
    const char *row = rows[i].key;
    const bool kept =
        options_is_typed(deck->set, key) ? options_is_typed(deck->set, row) : is_users(deck, row);
    if (all || !kept)
      status = options_resolve_from(deck->set, where, row, rows[i].value[deck->tiers.preset]);
  }
  mem_free(where);
  return status;
}
