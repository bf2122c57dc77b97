/* Every architecture on the host device against a twin in double (twin.c). The engine's fp32
 * rounding, 6e-8 per operation, is the only difference. Over the depth of these models it was
 * measured as up to 2e-7 in the loss, 1.4e-6 in logits and 4e-6 in gradients. The bounds leave a
 * factor of ten for the sums of other machines. */

#include <math.h>

#include "base/rng.h"
#include "engine.h"
#include "tests/test.h"
#include "twin.h"

/* Every size odd, the context longer than the sequences. */
static const char tiny[] = "arch=gpt2 layers=3 width=15 heads=3 ffn=47 context=13 vocab=37";
static const struct model_shape tiny_shape = {.B = 2, .T = 11};

static const double loss_bound = 2e-6, logits_bound = 1.5e-5,
                    gradient_bound = 4e-5; /* relative; vectors by their 2-norms */

struct fixture {
  struct engine engine;
  struct twin twin;
  struct batch batch;
  struct model_batch in;
  int64_t V;
  int64_t sample; /* elements of a parameter to check */
};

/* The first of the shapes is a GPT-2 too, but larger. */
static void for_all(void (*check)(struct fixture *f))
{
  for (int i = 0; i < 2 * shape_count; i++) {
    const bool extended = i >= shape_count; /* with weights, positions and documents */
    const char *const shape = i % shape_count ? shapes[i % shape_count] : tiny;
    struct fixture f = {.sample = shape == tiny ? 20 : 4};
    engine_create(shape, 2, &f.engine);
    twin_create(f.engine.model, f.engine.params, &f.twin);
    f.V = f.engine.model->config.vocab;
    batch_create(tiny_shape, f.V, &f.batch);
    if (extended)
      batch_extend(&f.batch, f.engine.model->config.context, false);
    f.in = batch_at(&f.batch, 0);
    check(&f);
    batch_destroy(&f.batch);
    twin_destroy(&f.twin);
    engine_destroy(&f.engine);
  }
}

static void assert_close(const char *what, double error, double norm, double bound)
{
  if (!(error <= bound * norm)) /* NaN fails */
    fail_msg("%s: error %.3g of %.3g exceeds %.3g", what, error, norm, bound);
}

/* Oracle: the twin. */
static void check_loss(struct fixture *f)
{
  struct exactsum sum = engine_evaluate(&f->engine, &f->batch);
  double loss = exactsum_value(&sum), expected = twin_loss(&f->twin, tiny_shape, &f->in);
  assert_close("loss", fabs(loss - expected), expected, loss_bound);
}

/* Oracle: the twin. */
static void check_logits(struct fixture *f)
{
  size_t n = (size_t)(tiny_shape.B * f->V);
  float *logits = engine_alloc(&f->engine, n * sizeof *logits);
  double *expected = calloc(n, sizeof *expected);
  assert_non_null(expected);
  for (int64_t position = 0; position < tiny_shape.T; position++) {
    engine_logits(&f->engine, &f->batch, position, logits);
    twin_logits(&f->twin, tiny_shape, &f->in, position, expected);
    double error = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
      error += (logits[i] - expected[i]) * (logits[i] - expected[i]);
      norm += expected[i] * expected[i];
    }
    assert_close("logits", sqrt(error), sqrt(norm), logits_bound);
  }
  free(expected);
  engine_free(&f->engine, logits, n * sizeof *logits);
}

/* Central difference of the twin's loss by one element; its own error is about 1e-10. */
static double difference(struct fixture *f, double *element)
{
  const double step = 1e-5, at = *element;
  *element = at + step;
  double above = twin_loss(&f->twin, tiny_shape, &f->in);
  *element = at - step;
  double below = twin_loss(&f->twin, tiny_shape, &f->in);
  *element = at;
  return (above - below) / (2 * step);
}

/* For some elements. The error is compared with the mean size over the whole gradient, because
 * these elements may happen to be small. */
static void check_param(struct fixture *f, int u, int p)
{
  const struct model_unit *unit = &f->engine.model->unit[u];
  const float *got = engine_param(&f->engine, f->engine.grads, u, p);
  int64_t n = unit->layout.elements[p], checked = n < f->sample ? n : f->sample;
  double error = 0, norm = 0;
  for (int64_t i = 0; i < checked; i++) {
    int64_t element =
        (int64_t)rng_permute(rng_key_make(3, unit->param[p].name), 0, (uint64_t)n, (uint64_t)i);
    double expected = difference(f, &f->twin.flat[u][unit->layout.offset[p] + element]);
    error += (got[element] - expected) * (got[element] - expected) / (double)checked;
  }
  for (int64_t i = 0; i < n; i++)
    norm += (double)got[i] * got[i] / (double)n;
  assert_true(norm > 0);
  assert_close(unit->param[p].name, sqrt(error), sqrt(norm), gradient_bound);
}

/* Oracle: central differences of the twin, for every trained parameter of every unit. */
static void check_gradients(struct fixture *f)
{
  engine_step(&f->engine, &f->batch, (struct cut){.micro = tiny_shape.B});
  for (int u = 0; u < f->engine.model->units; u++)
    for (int p = 0; p < f->engine.model->unit[u].params; p++)
      if (!f->engine.model->unit[u].param[p].frozen)
        check_param(f, u, p);
}

/* Positions that no token had, and what lies between the parameters: zero, although the buffer held
 * NaN. */
static void check_written(struct fixture *f)
{
  engine_step(&f->engine, &f->batch, (struct cut){.micro = 1});
  for (int u = 0; u < f->engine.model->units; u++) {
    const struct model_unit *unit = &f->engine.model->unit[u];
    const float *grads = f->engine.grads[u];
    int64_t end = 0;
    for (int p = 0; p < unit->params; p++) {
      if (unit->param[p].frozen)
        continue;
      for (int64_t i = end; i < unit->layout.offset[p]; i++)
        assert_true(grads[i] == 0);
      end = unit->layout.offset[p] + unit->layout.elements[p];
      for (int64_t i = unit->layout.offset[p]; i < end; i++)
        assert_true(isfinite(grads[i]));
    }
  }
  const struct model_unit *root = &f->engine.model->unit[0];
  if (strcmp(root->param[1 % root->params].name, "transformer.wpe.weight") || f->in.positions ||
      root->param[1].frozen)
    return;
  const float *positions = engine_param(&f->engine, f->engine.grads, 0, 1);
  for (int64_t i = tiny_shape.T * root->param[1].shape[1]; i < root->layout.elements[1]; i++)
    assert_true(positions[i] == 0);
}

/* A vocabulary so large that a sequence's logits are made in two chunks, of 33 and 32 tokens.
 * Oracle: loss and head gradients as written on paper, in double, from the twin's final
 * activations: dlogits = softmax - onehot, dwte = dlogits^T y, dbias = sum of dlogits wte. */
TEST(test_head_in_chunks)
{
  enum { C = 3, V = 270000 };
  const struct model_shape s = {.B = 1, .T = 65};
  struct engine engine;
  struct twin twin;
  struct batch batch;
  engine_create("arch=gpt2 layers=1 width=3 heads=1 context=65 vocab=270000", 2, &engine);
  twin_create(engine.model, engine.params, &twin);
  batch_create(s, V, &batch);
  struct exactsum sum = engine_step(&engine, &batch, (struct cut){.micro = 1});

  const double *wte = twin_head(&twin);
  const struct model_batch in = batch_at(&batch, 0);
  double *y = twin_final(&twin, s, &in), *p = calloc((size_t)V, sizeof *p),
         *dwte = calloc((size_t)(V * C), sizeof *dwte), dbias[C] = {0}, loss = 0;
  assert_true(p && dwte);
  for (int64_t r = 0; r < s.T; r++) {
    if (batch.target[r] < 0)
      continue;
    double total = 0;
    for (int64_t v = 0; v < V; v++) {
      double logit = 0;
      for (int64_t c = 0; c < C; c++)
        logit += y[r * C + c] * wte[v * C + c];
      total += p[v] = exp(logit); /* logits are small here */
    }
    loss += log(total) - log(p[batch.target[r]]);
    for (int64_t v = 0; v < V; v++)
      for (int64_t c = 0; c < C; c++) {
        double dlogit = p[v] / total - (v == batch.target[r]);
        dwte[v * C + c] += dlogit * y[r * C + c];
        dbias[c] += dlogit * wte[v * C + c];
      }
  }
  assert_close("loss", fabs(exactsum_value(&sum) - loss), loss, loss_bound);

  /* The embedding's part of the gradient is in there too: leave out the tokens that occur. */
  const struct layout_unit *layout = &engine.model->unit[0].layout;
  const float *got = (float *)engine.grads[0] + layout->offset[0],
              *got_bias = (float *)engine.grads[0] + layout->offset[3];
  double error = 0, norm = 0, bias_error = 0, bias_norm = 0;
  for (int64_t r = 0; r < s.T; r++)
    for (int64_t c = 0; c < C; c++)
      dwte[batch.token[r] * C + c] = NAN;
  for (int64_t i = 0; i < V * C; i++)
    if (!isnan(dwte[i])) {
      error += (got[i] - dwte[i]) * (got[i] - dwte[i]);
      norm += dwte[i] * dwte[i];
    }
  for (int64_t c = 0; c < C; c++) {
    bias_error += (got_bias[c] - dbias[c]) * (got_bias[c] - dbias[c]);
    bias_norm += dbias[c] * dbias[c];
  }
  assert_close("wte", sqrt(error), sqrt(norm), gradient_bound);
  assert_close("ln_f.bias", sqrt(bias_error), sqrt(bias_norm), gradient_bound);
  free(y);
  free(p);
  free(dwte);
  batch_destroy(&batch);
  twin_destroy(&twin);
  engine_destroy(&engine);
}

TEST(test_loss)
{
  for_all(check_loss);
}

TEST(test_logits)
{
  for_all(check_logits);
}

TEST(test_gradients)
{
  for_all(check_gradients);
}

TEST(test_gradients_are_all_written)
{
  for_all(check_written);
}

TEST_MAIN(NULL, NULL)
