/* Tiny models against transformers and torch: logits, loss, every gradient, ten steps of AdamW,
 * greedy generation. Oracle: data/NAME, made by tests/fixtures/make_models.py; both sides compute
 * in fp32. The bounds are those that Sluice promises: 1e-5 in logits and in the losses of a run,
 * 1e-6 in a loss, 1e-4 in gradients. Adapters against PEFT: 1e-5 in both, and twenty steps. */

#include <math.h>
#include <unistd.h>

#include "engine.h"
#include "io/huggingface/private.h"
#include "io/text/json.h"
#include "model/hf.h"
#include "tests/test.h"

static const double logits_bound = 1e-5, loss_bound = 1e-6, gradient_bound = 1e-4, run_bound = 1e-5,
                    adapter_bound = 1e-5;

struct fixture {
  const char *name;
  const char *adapters; /* folder of adapters of the model `name`, NULL: the model itself */
  struct safetensors *expected;
  struct engine engine;
  struct batch batch;
};

static char *path_of(const char *name, const char *file, char *out, size_t size)
{
  const char *top = getenv("top_srcdir");
  snprintf(out, size, "%s/tests/model/data/%s/%s", top ? top : ".", name, file);
  return out;
}

static const struct st_tensor *tensor_of(const struct safetensors *file, const char *name)
{
  const struct st_tensor *tensor = st_find(file->by_name, file->n, name);
  if (!tensor)
    fail_msg("no tensor %s", name);
  return tensor;
}

static float *read_floats(const struct st_tensor *tensor)
{
  float *out = calloc((size_t)tensor->elements, sizeof *out);
  assert_non_null(out);
  must(safetensors_read(tensor, (struct layout_range){0, tensor->elements}, out));
  return out;
}

static int32_t *read_ints(const struct st_tensor *tensor)
{
  assert_string_equal(tensor->type_name, "I32");
  int32_t *out = malloc((size_t)tensor->bytes);
  assert_non_null(out);
  assert_int_equal(pread(tensor->fd, out, (size_t)tensor->bytes, tensor->at), tensor->bytes);
  return out;
}

/* Every tensor of the file is a parameter, and the other way round. */
static void load_params(struct engine *e, const struct safetensors *file, bool adapters)
{
  int64_t loaded = 0;
  for (int u = 0; u < e->model->units; u++)
    for (int p = 0; p < e->model->unit[u].params; p++) {
      const struct model_param *param = &e->model->unit[u].param[p];
      char name[256];
      if ((param->kind == PARAM_ADAPTER) != adapters)
        continue;
      snprintf(name, sizeof name, "%s%s", adapters ? "base_model.model." : "", param->name);
      const struct st_tensor *tensor = tensor_of(file, name);
      loaded++;
      assert_int_equal(tensor->ndim, param->ndim);
      assert_memory_equal(tensor->shape, param->shape, (size_t)param->ndim * sizeof *param->shape);
      must(safetensors_read(tensor, (struct layout_range){0, tensor->elements},
                            engine_param(e, e->params, u, p)));
    }
  assert_int_equal(file->n, loaded);
}

static void load(struct fixture *f, const char *folder, const char *name, bool adapters)
{
  char path[1024];
  struct safetensors *file;
  must(safetensors_open(path_of(folder, name, path, sizeof path), &file));
  load_params(&f->engine, file, adapters);
  safetensors_close(file);
}

static void reload(struct fixture *f)
{
  load(f, f->name, "model.safetensors", false);
  if (f->adapters)
    load(f, f->adapters, "adapter_model.safetensors", true);
}

static const char *folder_of(const struct fixture *f)
{
  return f->adapters ? f->adapters : f->name;
}

static double real_of(struct json_node object, const char *key)
{
  return json_get_real(json_find(object, key));
}

/* Patterns for the target_modules of adapter_config.json. */
static void adapt(const struct fixture *f, struct model *model)
{
  char path[1024], text[8][64], *targets[8];
  struct json_file file;
  must(json_read(path_of(f->adapters, "adapter_config.json", path, sizeof path), 1 << 20, &file));
  const struct json_node root = json_root(&file), modules = json_find(root, "target_modules");
  const double rank = real_of(root, "r"), alpha = real_of(root, "lora_alpha");
  struct model_lora lora = {.rank = (int64_t)rank, .targets = targets};
  lora.scale = alpha / (json_get_bool(json_find(root, "use_rslora")) ? sqrt(rank) : rank);
  for (struct json_node m = json_first(modules); json_more(m); m = json_next(m)) {
    snprintf(text[lora.n], sizeof text[0], "*.%s.weight", json_get_text(m));
    targets[lora.n] = text[lora.n];
    lora.n++;
  }
  must(model_adapt(model, &lora, 1));
  must(file.status);
  json_close(&file);
}

/* Those of the adapters. */
static void take_expected(struct fixture *f)
{
  char path[1024];
  safetensors_close(f->expected);
  must(safetensors_open(path_of(f->adapters, "expected.safetensors", path, sizeof path),
                        &f->expected));
}

static void open_fixture(struct fixture *f)
{
  char path[1024];
  struct hf_config config;
  struct model *model;
  must(hf_config_read(path_of(f->name, "config.json", path, sizeof path), &config));
  must(model_create(&config.model, &model));
  if (f->adapters)
    adapt(f, model);
  engine_create_model(model, 2, &f->engine);
  reload(f);
  must(safetensors_open(path_of(f->name, "expected.safetensors", path, sizeof path), &f->expected));
  const struct st_tensor *tokens = tensor_of(f->expected, "tokens");
  f->batch = (struct batch){.shape = {tokens->shape[0], tokens->shape[1]},
                            .token = read_ints(tokens),
                            .target = read_ints(tensor_of(f->expected, "targets"))};
  if (f->adapters)
    take_expected(f);
}

static void close_fixture(struct fixture *f)
{
  batch_destroy(&f->batch);
  engine_destroy(&f->engine);
  safetensors_close(f->expected);
}

static double scale_of(const struct fixture *f)
{
  return 1 / (double)(f->batch.shape.B *
                      f->batch.shape.T); /* the mean over the targets, all of which count */
}

/* ||got * scale - expected|| / ||expected||, and the same by the largest elements. */
struct distance {
  double norm, largest;
};

static struct distance distance_of(int64_t n, const float *got, double scale, const float *expected)
{
  double error = 0, norm = 0, worst = 0, most = 0;
  for (int64_t i = 0; i < n; i++) {
    double difference = got[i] * scale - expected[i];
    error += difference * difference;
    norm += (double)expected[i] * expected[i];
    worst = isnan(difference) ? NAN : fmax(worst, fabs(difference));
    most = fmax(most, fabs(expected[i]));
  }
  return (struct distance){sqrt(error / norm), worst / most};
}

static void assert_within(const struct fixture *f, const char *what, double error, double bound)
{
  if (!(error <= bound)) /* NaN fails */
    fail_msg("%s: %s: relative error %.3g exceeds %.3g", f->name, what, error, bound);
}

static void check_logits(struct fixture *f)
{
  const int64_t B = f->batch.shape.B, T = f->batch.shape.T, V = f->engine.model->config.vocab;
  const struct st_tensor *tensor = tensor_of(f->expected, "logits");
  float *expected = read_floats(tensor), *got = calloc((size_t)(B * T * V), sizeof *got),
        *row = calloc((size_t)(B * V), sizeof *row);
  assert_true(got && row && tensor->elements == B * T * V);
  for (int64_t t = 0; t < T; t++) {
    engine_logits(&f->engine, &f->batch, t, row);
    for (int64_t b = 0; b < B; b++)
      memcpy(got + (b * T + t) * V, row + b * V, (size_t)V * sizeof *row);
  }
  struct distance d = distance_of(B * T * V, got, 1, expected);
  assert_within(f, "logits", d.norm, logits_bound);
  assert_within(f, "largest logit", d.largest, logits_bound);
  free(expected);
  free(got);
  free(row);
}

static double step(struct fixture *f)
{
  struct exactsum loss =
      engine_step(&f->engine, &f->batch, (struct cut){.micro = f->batch.shape.B});
  return exactsum_value(&loss) * scale_of(f);
}

static void check_loss_and_gradients(struct fixture *f)
{
  double loss = step(f);
  float *expected = read_floats(tensor_of(f->expected, "loss"));
  assert_within(f, "loss", fabs(loss - expected[0]) / expected[0], loss_bound);
  free(expected);
  for (int u = 0; u < f->engine.model->units; u++)
    for (int p = 0; p < f->engine.model->unit[u].params; p++) {
      char name[256];
      if (f->engine.model->unit[u].param[p].frozen)
        continue;
      snprintf(name, sizeof name, "grad.%s", f->engine.model->unit[u].param[p].name);
      const struct st_tensor *tensor = tensor_of(f->expected, name);
      expected = read_floats(tensor);
      struct distance d = distance_of(
          tensor->elements, engine_param(&f->engine, f->engine.grads, u, p), scale_of(f), expected);
      assert_within(f, name, d.norm, f->adapters ? adapter_bound : gradient_bound);
      free(expected);
    }
}

static int32_t most_probable(int64_t V, const float *logits)
{
  int32_t best = 0;
  for (int32_t v = 1; v < V; v++)
    if (logits[v] > logits[best])
      best = v;
  return best;
}

static void check_greedy(struct fixture *f)
{
  enum { PROMPT = 5 };
  const struct st_tensor *tensor = tensor_of(f->expected, "greedy");
  const int64_t V = f->engine.model->config.vocab;
  int32_t *expected = read_ints(tensor),
          *token = calloc((size_t)(PROMPT + tensor->elements), sizeof *token);
  float *logits = calloc((size_t)V, sizeof *logits);
  assert_true(token && logits);
  memcpy(token, f->batch.token, PROMPT * sizeof *token);
  struct caches caches;
  caches_create(&f->engine, 1, PROMPT + tensor->elements, &caches);
  for (int64_t i = 0, past = 0; i < tensor->elements; i++) {
    int64_t n = PROMPT + i;
    engine_decode(&f->engine, &caches, past, n - past, token + past, logits);
    token[n] = most_probable(V, logits);
    past = n;
  }
  assert_memory_equal(token + PROMPT, expected, (size_t)tensor->bytes);
  caches_destroy(&f->engine, &caches);
  free(logits);
  free(token);
  free(expected);
}

/* The values of adamw.json. */
enum { MOST_STEPS = 20 };
struct series {
  struct update adamw;
  int64_t steps;
  double loss[MOST_STEPS + 1];
};

static void read_series(const struct fixture *f, const char *key, struct series *out)
{
  char path[1024];
  struct json_file file;
  must(json_read(path_of(folder_of(f), "adamw.json", path, sizeof path), 1 << 20, &file));
  const struct json_node root = json_root(&file), betas = json_find(root, "betas"),
                         losses = json_find(root, key);
  *out = (struct series){.adamw = {.lr = real_of(root, "lr"),
                                   .eps = real_of(root, "eps"),
                                   .decay = real_of(root, "weight_decay")},
                         .steps = (int64_t)json_length(losses) - 1};
  out->adamw.grad_scale = (float)scale_of(f);
  out->adamw.beta1 = json_get_real(json_first(betas));
  out->adamw.beta2 = json_get_real(json_next(json_first(betas)));
  assert_in_range(out->steps, 10, MOST_STEPS);
  int64_t i = 0;
  for (struct json_node loss = json_first(losses); json_more(loss); loss = json_next(loss))
    out->loss[i++] = json_get_real(loss);
  must(file.status);
  json_close(&file);
}

/* moments: those of all parameters in turn, the first ones before the second ones. */
static void update(struct fixture *f, const struct update *op, unsigned exempt, float *moments)
{
  struct engine *e = &f->engine;
  for (int u = 0; u < e->model->units; u++)
    for (int p = 0; p < e->model->unit[u].params; p++) {
      const int64_t n = e->model->unit[u].layout.elements[p];
      if (e->model->unit[u].param[p].frozen)
        continue;
      struct update mine = *op;
      mine.decay = model_decays(e->model, u, p, exempt) ? op->decay : 0;
      must(e->device->ops->update(e->lane, n, &mine, engine_param(e, e->params, u, p),
                                  engine_param(e, e->grads, u, p),
                                  (void *[]){moments, moments + e->model->parameters}, NULL));
      moments += n;
    }
}

static void check_run(struct fixture *f, const char *key, unsigned exempt)
{
  struct series series;
  float *moments = calloc(2 * (size_t)f->engine.model->parameters, sizeof *moments);
  assert_non_null(moments);
  read_series(f, key, &series);
  reload(f);
  for (int64_t i = 0; i <= series.steps; i++) {
    double loss = step(f);
    assert_within(f, key, fabs(loss - series.loss[i]) / series.loss[i], run_bound);
    series.adamw.bias1 = 1 - pow(series.adamw.beta1, (double)(i + 1));
    series.adamw.bias2 = 1 - pow(series.adamw.beta2, (double)(i + 1));
    update(f, &series.adamw, exempt, moments);
  }
  free(moments);
}

static const char *const names[] = {"gpt2",    "llama", "llama3",       "qwen2",       "qwen3",
                                    "mistral", "odd",   "qwen2-window", "llama-linear"};
enum { NAMES = sizeof names / sizeof names[0] };

static void for_all(void (*check)(struct fixture *f))
{
  for (int i = 0; i < NAMES; i++) {
    struct fixture f = {.name = names[i]};
    open_fixture(&f);
    check(&f);
    close_fixture(&f);
  }
}

TEST(test_logits)
{
  for_all(check_logits);
}

TEST(test_loss_and_gradients)
{
  for_all(check_loss_and_gradients);
}

TEST(test_greedy)
{
  for_all(check_greedy);
}

static void check_runs(struct fixture *f)
{
  check_run(f, "losses", 0);
  check_run(f, "losses_nodecay_norm_bias", 1u << PARAM_NORM | 1u << PARAM_BIAS);
}

TEST(test_adamw)
{
  for_all(check_runs);
}

/* Oracle: PEFT. */
TEST(test_adapters)
{
  static const char *const adapted[][2] = {{"gpt2", "gpt2-lora"}, {"qwen2", "qwen2-lora"}};
  for (size_t i = 0; i < sizeof adapted / sizeof *adapted; i++) {
    struct fixture f = {.name = adapted[i][0], .adapters = adapted[i][1]};
    open_fixture(&f);
    check_loss_and_gradients(&f);
    check_run(&f, "losses", 0);
    close_fixture(&f);
  }
}

TEST_MAIN(NULL, NULL)
