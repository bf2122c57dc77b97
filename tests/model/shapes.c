#include "shapes.h"

/* clang-format off */
const struct shape_case shape_cases[] = {
    {"gpt2", {.arch = "gpt2", .layers = 3, .width = 72, .heads = 3, .context = 40, .vocab = 301,
      .tied = true, .norm_eps = 1e-5, .init_std = 0.02}},
    {"llama", {.arch = "llama", .layers = 3, .width = 39, .heads = 6, .kv_heads = 2,
      .head_width = 10, .ffn = 53, .context = 40, .vocab = 101, .norm_eps = 1e-5,
      .init_std = 0.02}},
    {"llama, tied, llama3 frequencies, one product for q, k and v", {.arch = "llama", .layers = 3,
      .width = 64, .heads = 4, .kv_heads = 2, .ffn = 96, .context = 40, .vocab = 101, .tied = true,
      .norm_eps = 1e-5, .init_std = 0.02,
      .rope = {.theta = 100, .scaling = ROPE_LLAMA3, .factor = 8, .low_freq = 1, .high_freq = 4,
               .original = 16}}},
    {"mistral, linear frequencies", {.arch = "mistral", .layers = 3, .width = 30, .heads = 3,
      .kv_heads = 1, .head_width = 40, .ffn = 37, .context = 40, .vocab = 101, .window = 7,
      .norm_eps = 1e-5, .init_std = 0.02,
      .rope = {.theta = 1000, .scaling = ROPE_LINEAR, .factor = 4}}},
    {"qwen2, a window in the last block, one product for q, k and v", {.arch = "qwen2", .layers = 3,
      .width = 64, .heads = 4, .kv_heads = 2, .head_width = 32, .ffn = 57, .context = 40,
      .vocab = 101, .window = 5, .window_from = 2, .tied = true, .norm_eps = 1e-6,
      .init_std = 0.02}},
    {"qwen3", {.arch = "qwen3", .layers = 3, .width = 33, .heads = 4, .kv_heads = 2,
      .head_width = 20, .ffn = 40, .context = 40, .vocab = 101, .norm_eps = 1e-6,
      .init_std = 0.02}},
};
/* clang-format on */
const int shape_count = sizeof shape_cases / sizeof shape_cases[0];
