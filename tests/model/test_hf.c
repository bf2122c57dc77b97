/* Hugging Face's configurations and names. Oracles: the fixtures' numbers, written here by hand;
 * one model said with the keys of transformers 5.x and of 4.x; print and read as inverses; the
 * tensors that transformers wrote. */
#include <unistd.h>

#include "base/append.h"
#include "base/log.h"
#include "base/mem.h"
#include "io/huggingface/private.h"
#include "io/text/file.h"
#include "model/hf.h"
#include "tests/rows.h"

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
  must(hf_config_read(path, &config));
  return config;
}

static void add_tokens(char *text, size_t size, const char *what, const struct hf_tokens *tokens)
{
  append_text(text, size, " %s %s", what, tokens->n == 0 ? "none" : "");
  for (int i = 0; i < tokens->n; i++)
    append_text(text, size, "%lld,", (long long)tokens->id[i]);
}

/* " arch gpt2 layers 2 ... " */
static void describe(const struct hf_config *c, char *text, size_t size)
{
  const struct model_config *m = &c->model;
  snprintf(text, size,
           " arch %s layers %lld width %lld heads %lld kv_heads %lld head_width %lld ffn %lld "
           "context %lld vocab %lld window %lld %lld tied %d norm_eps %g init_std %g dtype %s "
           "rope %d %g %g %lld %g %g",
           m->arch, (long long)m->layers, (long long)m->width, (long long)m->heads,
           (long long)m->kv_heads, (long long)m->head_width, (long long)m->ffn,
           (long long)m->context, (long long)m->vocab, (long long)m->window,
           (long long)m->window_from, m->tied, m->norm_eps, m->init_std, dtype_name(c->dtype),
           m->rope.scaling, m->rope.theta, m->rope.factor, (long long)m->rope.original,
           m->rope.low_freq, m->rope.high_freq);
  add_tokens(text, size, "bos", &c->bos);
  add_tokens(text, size, "eos", &c->eos);
  append_text(text, size, " ");
}

static struct hf_config read_changed(const char *name, const char *from, const char *to);

/* First of the tests, because the log opens with earlier warnings. */
TEST(unknown_keys_and_dropout_are_warned_of)
{
  char *text = NULL;
  size_t bytes = 0;
  must(log_open_file(log_path));
  (void)read_changed(
      "gpt2", NULL,
      "\"water_level\": 3, \"logit_scale\": 1.0, \"softcap\": null, \"head_bias\": false");
  must(log_open_file(NULL));
  must(file_read_all(log_path, 1 << 20, &text, &bytes));
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

static void check_config(const char *name, const char *expected)
{
  char path[64], text[1024];
  snprintf(path, sizeof path, "%.*s", (int)strcspn(name, "/"), name);
  struct hf_config config = read_config(fixture(path, strchr(name, '/') + 1));
  if (config.model.head_width == 0)
    config.model.head_width = config.model.width / config.model.heads;
  describe(&config, text, sizeof text);
  if (!strstr(text, expected))
    fail_msg("%s is%s", name, text);
}

TEST(configurations_of_both_versions_are_read)
{
  rows_each("tests/model/config.txt", "read", check_config);
}

static const char *const models[] = {"gpt2", "llama", "llama3", "qwen2", "qwen3", "mistral"};
enum { MODELS = sizeof models / sizeof *models };

TEST(printed_configurations_read_back)
{
  for (int m = 0; m < MODELS; m++)
    for (int variant = 0; variant < 4; variant++) {
      struct hf_config config = read_config(fixture(models[m], "config.json"));
      struct model_config *const model = &config.model;
      char *text = NULL, wanted[1024], found[1024];
      if (model->head_width == 0 && strcmp(model->arch, "gpt2") != 0)
        model->head_width = model->width / model->heads;
      if (variant & 1) {
        config.dtype = DTYPE_BF16;
        config.bos = (struct hf_tokens){0};
        config.eos = (struct hf_tokens){3, {5, 6, 7}};
        model->norm_eps = 1.2345678901234567e-6;
      }
      if (variant & 2 && model->rope.theta != 0) {
        model->tied = !model->tied;
        model->rope = (struct rope_config){.theta = 5e5, .scaling = ROPE_LINEAR, .factor = 2.5};
        if (!strcmp(model->arch, "qwen3"))
          model->window = 17, model->window_from = 1;
      } else if (variant & 2) {
        model->ffn = 77;
      }
      must(hf_config_print(&config, &text));
      must(file_write_all(config_path, text, strlen(text)));
      mem_free(text);
      struct hf_config again = read_config(config_path);
      if (again.model.head_width == 0 && strcmp(model->arch, "gpt2") != 0)
        again.model.head_width = model->width / model->heads;
      describe(&config, wanted, sizeof wanted);
      describe(&again, found, sizeof found);
      assert_string_equal(found, wanted);
      assert_true(again.model.norm_eps == model->norm_eps &&
                  again.model.rope.theta == model->rope.theta);
    }
}

/* --- changed configurations ---------------------------------------------- */

/* config.json of a model with `from` replaced by `to`; from NULL: `to` is added as a member. */
static void put_changed(const char *name, const char *from, const char *to)
{
  char *text = NULL;
  size_t bytes = 0;
  must(file_read_all(fixture(name, "config.json"), 1 << 20, &text, &bytes));
  char *at = strstr(text, from ? from : "{"), *changed = NULL;
  if (!at)
    fail_msg("%s is not in the config.json of %s", from, name);
  changed = from ? mem_printf("%.*s%s%s", (int)(at - text), text, to, at + strlen(from))
                 : mem_printf("{%s,%s", to, at + 1);
  must(file_write_all(config_path, changed, strlen(changed)));
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
  must_fail(hf_config_read(config_path, &config), STATUS_INPUT, config_path);
  unlink(config_path);
  assert_int_equal(hf_config_read(config_path, &config), STATUS_INPUT);
}

static void check_field(const char *given, const char *field)
{
  char found[1024], wanted[64];
  const struct hf_config config = read_config(config_path);
  describe(&config, found, sizeof found);
  snprintf(wanted, sizeof wanted, " %s ", field);
  if (!strstr(found, wanted))
    fail_msg("%s gives%s, not %s", given, found, field);
}

static void check_taken(const char *row, const char *field)
{
  put_row(row);
  check_field(row, field);
}

TEST(defaults_are_those_of_transformers)
{
  rows_each("tests/model/config.txt", "taken", check_taken);
}

/* `given`: members next to those of a whole model. */
static void check_window(const char *given, const char *field)
{
  char text[512];
  snprintf(text, sizeof text,
           "{\"model_type\": \"qwen3\", \"vocab_size\": 9, \"hidden_size\": 8, "
           "\"intermediate_size\": 8, \"num_hidden_layers\": 2, \"num_attention_heads\": 2, "
           "\"use_sliding_window\": true, \"sliding_window\": 16, %s}",
           given);
  must(file_write_all(config_path, text, strlen(text)));
  check_field(given, field);
  check_field(given, "kv_heads 32");
}

TEST(windows_begin_at_some_block)
{
  rows_each("tests/model/config.txt", "windows", check_window);
}

TEST(configurations_of_other_programs_give_no_warning)
{
  char *text = NULL;
  size_t bytes = 0;
  unlink(log_path);
  must(log_open_file(log_path));
  for (int m = 0; m < MODELS; m++) {
    (void)read_config(fixture(models[m], "config.json"));
    (void)read_config(fixture(models[m], "config.hub.json"));
  }
  must(log_open_file(NULL));
  must(file_read_all(log_path, 1 << 20, &text, &bytes));
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
    must(model_create(&config.model, &model));
    must(safetensors_open(fixture(names[m], "model.safetensors"), &file));
    for (int u = 0; u < model->units; u++)
      parameters += model->unit[u].params;
    for (int64_t t = 0; t < file->n; t++) {
      const struct st_tensor *tensor = &file->tensor[t];
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

static void check_extra(const char *given, const char *expected)
{
  static const char *const extras[] = {[HF_EXTRA_BUFFER] = "buffer",
                                       [HF_EXTRA_TIED_HEAD] = "tied head",
                                       [HF_EXTRA_UNKNOWN] = "unknown"};
  char name[64];
  struct model *model = NULL;
  snprintf(name, sizeof name, "%.*s", (int)strcspn(given, ":"), given);
  const struct hf_config config = read_config(fixture(name, "config.json"));
  must(model_create(&config.model, &model));
  assert_string_equal(extras[hf_extra(model, strchr(given, ':') + 1)], expected);
  model_destroy(model);
}

TEST(extras_are_told_apart)
{
  rows_each("tests/model/config.txt", "extras", check_extra);
}

TEST(the_unprintable_is_refused)
{
  char *text = NULL;
  const struct hf_config config = {.model = {.arch = "mamba"}};
  assert_int_equal(hf_config_print(&config, &text), STATUS_UNSUPPORTED);
  assert_null(text);
}

TEST_MAIN(start, stop)
