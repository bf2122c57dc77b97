/* Hugging Face's configurations and names. Oracles: the fixtures' numbers, written here by hand;
 * one model said with the keys of transformers 5.x and of 4.x; print and read as inverses; the
 * tensors that transformers wrote. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/append.h"
#include "base/log.h"
#include "base/mem.h"
#include "io/huggingface/safetensors.h"
#include "io/text/file.h"
#include "model/hf.h"
#include "tests/rows.h"
#include "tests/test.h"

static char dir[] = "/tmp/sluice-hf-XXXXXX";
static char config_path[64], log_path[64];

FIXTURE(start)
{
  if (!mkdtemp(dir))
    return -1;
  snprintf(config_path, sizeof config_path, "%s/config.json", dir);
  snprintf(log_path, sizeof log_path, "%s/log", dir);
  return 0;
}

FIXTURE(stop)
{
  unlink(config_path);
  unlink(log_path);
  return rmdir(dir);
}

static const char *fixture(const char *name, const char *file)
{
  static char path[4096];
  const char *top = getenv("top_srcdir");
  snprintf(path, sizeof path, "%s/tests/model/data/%s/%s", top ? top : ".", name, file);
  return path;
}

static struct hf_config read_config(const char *path)
{
  struct hf_config config = {0};
  const enum status status = hf_config_read(path, &config);
  assert_string_equal(status ? status_text() : "", "");
  return config;
}

static int64_t head_width(const struct model_config *model)
{
  return model->head_width ? model->head_width : model->width / model->heads;
}

static void same_config(const struct hf_config *a, const struct hf_config *b)
{
  assert_string_equal(a->model.arch, b->model.arch);
  assert_int_equal(a->model.layers, b->model.layers);
  assert_int_equal(a->model.width, b->model.width);
  assert_int_equal(a->model.heads, b->model.heads);
  assert_int_equal(a->model.context, b->model.context);
  assert_int_equal(a->model.vocab, b->model.vocab);
  assert_int_equal(a->model.kv_heads, b->model.kv_heads);
  assert_int_equal(head_width(&a->model), head_width(&b->model));
  assert_int_equal(a->model.ffn, b->model.ffn);
  assert_int_equal(a->model.window, b->model.window);
  assert_int_equal(a->model.window_from, b->model.window_from);
  assert_int_equal(a->model.tied, b->model.tied);
  assert_true(a->model.norm_eps == b->model.norm_eps && a->model.init_std == b->model.init_std);
  assert_true(a->model.rope.theta == b->model.rope.theta &&
              a->model.rope.factor == b->model.rope.factor);
  assert_true(a->model.rope.low_freq == b->model.rope.low_freq &&
              a->model.rope.high_freq == b->model.rope.high_freq);
  assert_int_equal(a->model.rope.scaling, b->model.rope.scaling);
  assert_int_equal(a->model.rope.original, b->model.rope.original);
  assert_int_equal(a->dtype, b->dtype);
  assert_memory_equal(&a->bos, &b->bos, sizeof a->bos);
  assert_memory_equal(&a->eos, &b->eos, sizeof a->eos);
}

#define PLAIN(base)                                                                                \
  {                                                                                                \
    .theta = (base)                                                                                \
  }

static struct hf_config read_changed(const char *name, const char *from, const char *to);

/* First of the tests, because the log opens with earlier warnings. */
TEST(unknown_keys_and_dropout_are_warned_of)
{
  char *text = NULL;
  size_t bytes = 0;
  assert_int_equal(log_open_file(log_path), STATUS_OK);
  (void)read_changed(
      "gpt2", NULL,
      "\"water_level\": 3, \"logit_scale\": 1.0, \"softcap\": null, \"head_bias\": false");
  assert_int_equal(log_open_file(NULL), STATUS_OK);
  assert_int_equal(file_read_all(log_path, 1 << 20, &text, &bytes), STATUS_OK);
  const char *dropout = strstr(text, "configured with dropout 0.1: Sluice trains without dropout"),
             *unknown = strstr(text, "water_level is ignored");
  assert_non_null(dropout);
  assert_null(
      strstr(dropout + 1, "configured with dropout")); /* once, though GPT-2 has three of them */
  assert_non_null(unknown);
  assert_null(strstr(unknown + 1, "water_level"));
  assert_non_null(strstr(text, "logit_scale is ignored")); /* one changes nothing */
  mem_free(text);
}

static const struct {
  const char *name;
  struct hf_config config;
  /* clang-format off */
} models[] = {
    {"gpt2", {{.arch = "gpt2", .layers = 2, .width = 30, .heads = 3, .context = 40, .vocab = 67,
       .tied = true, .norm_eps = 1e-5, .init_std = 0.02}, DTYPE_F32, {1, {66}}, {1, {66}}}},
    {"llama", {{.arch = "llama", .layers = 2, .width = 48, .heads = 6, .context = 64, .vocab = 61,
       .kv_heads = 2, .head_width = 8, .ffn = 40, .norm_eps = 1e-5, .init_std = 0.02,
       .rope = PLAIN(10000)}, DTYPE_F32, {1, {1}}, {1, {2}}}},
    {"llama3", {{.arch = "llama", .layers = 2, .width = 32, .heads = 4, .context = 512, .vocab = 61,
       .kv_heads = 2, .head_width = 16, .ffn = 48, .tied = true, .norm_eps = 1e-5, .init_std = 0.02,
       .rope = {.theta = 1000, .scaling = ROPE_LLAMA3, .factor = 8, .low_freq = 1, .high_freq = 4,
                .original = 64}}, DTYPE_F32, {1, {1}}, {1, {2}}}},
    {"qwen2", {{.arch = "qwen2", .layers = 2, .width = 36, .heads = 3, .context = 128, .vocab = 83,
       .kv_heads = 1, .ffn = 44, .tied = true, .norm_eps = 1e-6, .init_std = 0.02,
       .rope = PLAIN(1e6)}, DTYPE_F32, {1, {1}}, {1, {2}}}},
    {"qwen3", {{.arch = "qwen3", .layers = 2, .width = 32, .heads = 4, .context = 128, .vocab = 64,
       .kv_heads = 2, .head_width = 20, .ffn = 40, .norm_eps = 1e-6, .init_std = 0.02,
       .rope = PLAIN(1e6)}, DTYPE_F32, {1, {1}}, {1, {2}}}},
    {"mistral", {{.arch = "mistral", .layers = 2, .width = 40, .heads = 5, .context = 64,
       .vocab = 71, .kv_heads = 1, .head_width = 12, .ffn = 36, .window = 8, .norm_eps = 1e-5,
       .init_std = 0.02, .rope = PLAIN(10000)}, DTYPE_F32, {1, {1}}, {1, {2}}}},
};
/* clang-format on */
enum { MODELS = sizeof models / sizeof *models };

TEST(configurations_of_both_versions_are_read)
{
  for (int m = 0; m < MODELS; m++) {
    const struct hf_config new = read_config(fixture(models[m].name, "config.json")),
                           old = read_config(fixture(models[m].name, "config.hub.json"));
    same_config(&new, &models[m].config);
    same_config(&old, &models[m].config);
  }
  assert_int_equal(read_config(fixture("qwen2-bf16", "config.json")).dtype, DTYPE_BF16);
  assert_int_equal(read_config(fixture("mistral-fp16", "config.json")).dtype, DTYPE_F16);
}

TEST(printed_configurations_read_back)
{
  for (int m = 0; m < MODELS; m++)
    for (int variant = 0; variant < 4; variant++) {
      struct hf_config config = models[m].config;
      char *text = NULL;
      if (variant & 1) {
        config.dtype = DTYPE_BF16;
        config.bos = (struct hf_tokens){0};
        config.eos = (struct hf_tokens){3, {5, 6, 7}};
        config.model.norm_eps = 1.2345678901234567e-6;
      }
      if (variant & 2 && config.model.rope.theta != 0) {
        config.model.tied = !config.model.tied;
        config.model.rope =
            (struct rope_config){.theta = 5e5, .scaling = ROPE_LINEAR, .factor = 2.5};
        if (!strcmp(config.model.arch, "qwen3")) {
          config.model.window = 17;
          config.model.window_from = 1;
        }
      } else if (variant & 2) {
        config.model.ffn = 77;
      }
      assert_int_equal(hf_config_print(&config, &text), STATUS_OK);
      assert_int_equal(file_write_all(config_path, text, strlen(text)), STATUS_OK);
      mem_free(text);
      const struct hf_config again = read_config(config_path);
      same_config(&again, &config);
    }
}

/* --- changed configurations ---------------------------------------------- */

/* config.json of a model with `from` replaced by `to`; from NULL: `to` is added as a member. */
static void put_changed(const char *name, const char *from, const char *to)
{
  char *text = NULL;
  size_t bytes = 0;
  assert_int_equal(file_read_all(fixture(name, "config.json"), 1 << 20, &text, &bytes), STATUS_OK);
  char *at = strstr(text, from ? from : "{"), *changed = NULL;
  if (!at)
    fail_msg("%s is not in the config.json of %s", from, name);
  changed = from ? mem_printf("%.*s%s%s", (int)(at - text), text, to, at + strlen(from))
                 : mem_printf("{%s,%s", to, at + 1);
  assert_int_equal(file_write_all(config_path, changed, strlen(changed)), STATUS_OK);
  mem_free(changed);
  mem_free(text);
}

static struct hf_config read_changed(const char *name, const char *from, const char *to)
{
  put_changed(name, from, to);
  return read_config(config_path);
}

/* "MODEL: FROM => TO" */
static void put_row(const char *row)
{
  char copy[ROWS_LONGEST];
  strcpy(copy, row);
  char *from = strstr(copy, ": "), *to = strstr(copy, " =>");
  assert_true(from && to);
  *from = *to = 0;
  from += strlen(": ");
  to += strlen(" =>") + (to[strlen(" =>")] == ' ');
  put_changed(copy, strcmp(from, "-") ? from : NULL, to);
}

static void check_refused(const char *row, const char *sentence)
{
  struct hf_config config = {0};
  put_row(row);
  const enum status status = hf_config_read(config_path, &config);
  if (status == STATUS_OK)
    fail_msg("accepted: %s", row);
  assert_int_equal(status, STATUS_INPUT);
  if (!strstr(status_text(), config_path) || !strstr(status_text(), sentence))
    fail_msg("%s\nsays: %s\nnot:  %s", row, status_text(), sentence);
  assert_null(config.model.arch);
}

TEST(unsupported_features_are_refused_by_name)
{
  struct hf_config config;
  rows_each("tests/model/config.txt", "refused", check_refused);
  put_changed("llama", "{", "[");
  assert_int_equal(hf_config_read(config_path, &config), STATUS_INPUT);
  assert_non_null(strstr(status_text(), config_path));
  unlink(config_path);
  assert_int_equal(hf_config_read(config_path, &config), STATUS_INPUT);
}

static void check_taken(const char *row, const char *field)
{
  char found[1024], wanted[64];
  put_row(row);
  const struct hf_config c = read_config(config_path);
  const struct model_config *m = &c.model;
  snprintf(found, sizeof found,
           " arch %s kv_heads %lld window %lld head_width %lld tied %d norm_eps %g width %lld "
           "context %lld dtype %s ffn %lld rope %d %g %g %lld eos ",
           m->arch, (long long)m->kv_heads, (long long)m->window, (long long)m->head_width, m->tied,
           m->norm_eps, (long long)m->width, (long long)m->context, dtype_name(c.dtype),
           (long long)m->ffn, m->rope.scaling, m->rope.theta, m->rope.factor,
           (long long)m->rope.original);
  for (int i = 0; i < c.eos.n; i++)
    append_text(found, sizeof found, "%lld,", (long long)c.eos.id[i]);
  append_text(found, sizeof found, "%s", c.eos.n ? " " : "none ");
  snprintf(wanted, sizeof wanted, " %s ", field);
  if (!strstr(found, wanted))
    fail_msg("%s gives%s, not %s", row, found, field);
}

TEST(defaults_are_those_of_transformers)
{
  rows_each("tests/model/config.txt", "taken", check_taken);
}

TEST(windows_begin_at_some_block)
{
  static const struct {
    const char *types;
    int64_t first, window, from;
  } cases[] = {{"\"full_attention\", \"sliding_attention\"", 28, 16, 1},
               {"\"sliding_attention\", \"sliding_attention\"", 28, 16, 0},
               {"\"full_attention\", \"full_attention\"", 0, 0, 0},
               {NULL, 28, 0, 0},
               {NULL, 1, 16, 1},
               {NULL, 0, 16, 0},
               {NULL, 2, 0, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[512];
    snprintf(
        text, sizeof text,
        "{\"model_type\": \"qwen3\", \"vocab_size\": 9, \"hidden_size\": 8, \"intermediate_size\": "
        "8, \"num_hidden_layers\": 2, "
        "\"num_attention_heads\": 2, "
        "\"use_sliding_window\": true, \"sliding_window\": 16, \"max_window_layers\": %lld%s%s%s}",
        (long long)cases[i].first, cases[i].types ? ", \"layer_types\": [" : "",
        cases[i].types ? cases[i].types : "", cases[i].types ? "]" : "");
    assert_int_equal(file_write_all(config_path, text, strlen(text)), STATUS_OK);
    const struct hf_config c = read_config(config_path);
    assert_int_equal(c.model.window, cases[i].window);
    assert_int_equal(c.model.window_from, cases[i].from);
    assert_int_equal(c.model.kv_heads, 32);
  }
}

TEST(configurations_of_other_programs_give_no_warning)
{
  char *text = NULL;
  size_t bytes = 0;
  unlink(log_path);
  assert_int_equal(log_open_file(log_path), STATUS_OK);
  for (int m = 0; m < MODELS; m++) {
    (void)read_config(fixture(models[m].name, "config.json"));
    (void)read_config(fixture(models[m].name, "config.hub.json"));
  }
  assert_int_equal(log_open_file(NULL), STATUS_OK);
  assert_int_equal(file_read_all(log_path, 1 << 20, &text, &bytes), STATUS_OK);
  assert_null(strstr(text, "is ignored"));
  mem_free(text);
}

/* --- names --------------------------------------------------------------- */

static const struct model_param *find_param(const struct model *model, const char *name)
{
  for (int u = 0; u < model->units; u++)
    for (int p = 0; p < model->unit[u].params; p++) {
      const struct model_param *param = &model->unit[u].param[p];
      const char *base = hf_base_name(model, param->name);
      if (!strcmp(param->name, name) || (base && !strcmp(base, name)))
        return param;
    }
  return NULL;
}

TEST(every_tensor_of_a_file_is_a_parameter_or_a_known_extra)
{
  static const char *const names[] = {"gpt2",  "gpt2-hub", "llama",   "llama3",
                                      "qwen2", "qwen3",    "mistral", "odd"};
  for (size_t m = 0; m < sizeof names / sizeof *names; m++) {
    const struct hf_config config = read_config(fixture(names[m], "config.json"));
    struct safetensors *file = NULL;
    struct model *model = NULL;
    int64_t parameters = 0, found = 0;
    const enum status status = model_create(&config.model, &model);
    assert_string_equal(status ? status_text() : "", "");
    assert_int_equal(safetensors_open(fixture(names[m], "model.safetensors"), &file), STATUS_OK);
    for (int u = 0; u < model->units; u++)
      parameters += model->unit[u].params;
    for (int64_t t = 0; t < safetensors_count(file); t++) {
      const struct st_tensor *tensor = safetensors_at(file, t);
      const struct model_param *param = find_param(model, tensor->name);
      found += param != NULL;
      if (!param)
        assert_int_equal(hf_extra(model, tensor->name), HF_EXTRA_BUFFER);
      else
        assert_memory_equal(param->shape, tensor->shape,
                            (size_t)param->ndim * sizeof *param->shape);
    }
    assert_int_equal(found, parameters);
    safetensors_close(file);
    model_destroy(model);
  }
}

TEST(extras_are_told_apart)
{
  const struct {
    const char *model, *name;
    enum hf_extra extra;
  } cases[] = {
      {"gpt2", "transformer.h.1.attn.bias", HF_EXTRA_BUFFER},
      {"gpt2", "h.11.attn.masked_bias", HF_EXTRA_BUFFER},
      {"gpt2", "h.attn.bias", HF_EXTRA_UNKNOWN},
      {"gpt2", "h.1.attn.biases", HF_EXTRA_UNKNOWN},
      {"gpt2", "h.1x.attn.bias", HF_EXTRA_UNKNOWN},
      {"gpt2", "lm_head.weight", HF_EXTRA_TIED_HEAD},
      {"gpt2", "layers.0.self_attn.rotary_emb.inv_freq", HF_EXTRA_UNKNOWN},
      {"llama", "model.layers.0.self_attn.rotary_emb.inv_freq", HF_EXTRA_BUFFER},
      {"llama", "model.rotary_emb.inv_freq", HF_EXTRA_BUFFER},
      {"llama", "lm_head.weight", HF_EXTRA_UNKNOWN}, /* untied: a parameter, or too many */
      {"llama", "h.0.attn.bias", HF_EXTRA_UNKNOWN},
      {"llama3", "lm_head.weight", HF_EXTRA_TIED_HEAD},
      {"llama3", "lm_head.bias", HF_EXTRA_UNKNOWN},
      {"qwen2", "", HF_EXTRA_UNKNOWN},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const struct hf_config config = read_config(fixture(cases[i].model, "config.json"));
    struct model *model = NULL;
    assert_int_equal(model_create(&config.model, &model), STATUS_OK);
    assert_int_equal(hf_extra(model, cases[i].name), cases[i].extra);
    model_destroy(model);
  }
}

TEST(the_unprintable_is_refused)
{
  char *text = NULL;
  const struct hf_config config = {.model = {.arch = "mamba"}};
  assert_int_equal(hf_config_print(&config, &text), STATUS_UNSUPPORTED);
  assert_null(text);
}

TEST_MAIN(start, stop)
