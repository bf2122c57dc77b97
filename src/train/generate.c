#include "train/generate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"

static int descending(const void *a, const void *b)
{
  const float x = *(const float *)a, y = *(const float *)b;
  return (x < y) - (x > y);
}

static int32_t likeliest(const float *logits, int64_t V)
{
  int64_t best = 0;
  for (int64_t v = 1; v < V; v++)
    if (logits[v] > logits[best])
      best = v;
  return (int32_t)best;
}

int32_t generate_sample(const float *logits, int64_t V, const struct generate_options *options, int64_t draw, float *scratch)
{
  if (options->temperature <= 0)
    return likeliest(logits, V);
  float least = -INFINITY;
  if (options->top_k > 0 && options->top_k < V) {
    memcpy(scratch, logits, (size_t)V * sizeof *scratch);
    qsort(scratch, (size_t)V, sizeof *scratch, descending);
    least = scratch[options->top_k - 1];
  }
  const float most = logits[likeliest(logits, V)];
  double total = 0;
  for (int64_t v = 0; v < V; v++) {
    scratch[v] = logits[v] < least ? 0 : (float)exp(((double)logits[v] - (double)most) / options->temperature);
    total += (double)scratch[v];
  }
  double left = rng_uniform(rng_key_make(options->seed, "sample"), 0, (uint64_t)draw) * total;
  int64_t picked = likeliest(logits, V);
  for (int64_t v = 0; v < V; v++) {
    if (scratch[v] <= 0)
      continue;
    picked = v;
    left -= (double)scratch[v];
    if (left < 0)
      break;
  }
  return (int32_t)picked;
}

struct generation {
  struct job *job;
  struct tokenizer *tokenizer;
  const struct generate_options *options;
  int32_t *token; /* prompt and what came after it */
  int64_t n, room;
  char *text; /* decoded, not yet printed */
  int64_t bytes, text_room;
  float *scratch;
};

/* The exec_load of generation: the last `context` tokens, padded behind. */
static enum status load_window(void *arg, int64_t step, int micro, int32_t *tokens, int32_t *targets)
{
  const struct generation *g = arg;
  const int64_t T = g->job->shape.sequence, first = g->n > T ? g->n - T : 0;
  (void)step;
  (void)micro;
  for (int64_t t = 0; t < T; t++) {
    tokens[t] = first + t < g->n ? g->token[first + t] : 0;
    targets[t] = -1;
  }
  return STATUS_OK;
}

/* Print the whole characters of what is pending; a lone broken byte becomes U+FFFD. */
static void print_whole_characters(struct generation *g, bool last)
{
  while (g->bytes > 0) {
    int64_t valid = utf8_find_invalid(g->text, (size_t)g->bytes);
    if (valid < 0)
      valid = g->bytes;
    fwrite(g->text, 1, (size_t)valid, stdout);
    memmove(g->text, g->text + valid, (size_t)(g->bytes - valid));
    g->bytes -= valid;
    if (g->bytes == 0 || (g->bytes < 4 && !last))
      break;
    fputs("\xEF\xBF\xBD", stdout);
    memmove(g->text, g->text + 1, (size_t)--g->bytes);
  }
  fflush(stdout);
}

static enum status emit(struct generation *g, const int32_t *tokens, int64_t n)
{
  if (comm_rank(g->job->comm) != 0)
    return STATUS_OK;
  const enum status status = tokenizer_decode(g->tokenizer, tokens, n, &g->text, &g->bytes, &g->text_room);
  if (!status)
    print_whole_characters(g, false);
  return status;
}

static enum status next_token(struct generation *g, int64_t draw, int32_t *out)
{
  struct exec *exec = g->job->exec[PLAN_GENERATE];
  struct exec_result result;
  const int64_t T = g->job->shape.sequence;
  exec_set_position(exec, (g->n < T ? g->n : T) - 1);
  enum status status = exec_step(exec, draw, 0, 0.0, &result);
  if (!status)
    status = exec_drain(exec);
  if (status)
    comm_abort(g->job->comm, status);
  const float *logits = exec_pointer(exec, g->job->plan[PLAN_GENERATE]->logits);
  *out = generate_sample(logits, tokenizer_vocab(g->tokenizer), g->options, draw, g->scratch); /* the model's vocabulary may be padded */
  return STATUS_OK;
}

static enum status start(struct generation *g)
{
  const int64_t V = g->job->model->config.vocab;
  const char *prompt = g->options->prompt;
  const int64_t invalid = utf8_find_invalid(prompt, strlen(prompt));
  if (invalid >= 0)
    return status_set(STATUS_INPUT, "prompt: byte %lld is not valid UTF-8", (long long)invalid);
  if (tokenizer_vocab(g->tokenizer) > V)
    return status_set(STATUS_USAGE, "the %s tokenizer has %lld tokens, the model's vocabulary %lld: this is not the tokenizer it was trained with",
                      tokenizer_name(g->tokenizer), (long long)tokenizer_vocab(g->tokenizer), (long long)V);
  enum status status = tokenizer_encode(g->tokenizer, prompt, strlen(prompt), &g->token, &g->n, &g->room);
  if (status)
    return status;
  const int64_t room = g->n + g->options->tokens + 1;
  status = mem_resize(MEM_DATA, (size_t)room * sizeof *g->token, (void **)&g->token);
  if (status)
    return status;
  g->room = room;
  if (g->n == 0)
    g->token[g->n++] = tokenizer_end_of_text(g->tokenizer); /* an empty prompt: a new document */
  return mem_alloc(MEM_DATA, (size_t)V * sizeof *g->scratch, (void **)&g->scratch);
}

static enum status run_tokens(struct generation *g)
{
  enum status status = emit(g, g->token, g->n);
  for (int64_t i = 0; i < g->options->tokens && !status; i++) {
    int32_t token = 0;
    status = next_token(g, i, &token);
    if (status || token == tokenizer_end_of_text(g->tokenizer))
      break;
    g->token[g->n++] = token;
    status = emit(g, &token, 1);
  }
  if (!status && comm_rank(g->job->comm) == 0) {
    print_whole_characters(g, true);
    fputc('\n', stdout);
  }
  return status;
}

enum status generate_run(struct job *job, struct tokenizer *tokenizer, const struct generate_options *options)
{
  struct generation g = {.job = job, .tokenizer = tokenizer, .options = options};
  enum status status = comm_agree(job->comm, start(&g));
  if (!status)
    status = job_start(job, PLAN_GENERATE, load_window, &g);
  if (!status)
    status = comm_agree(job->comm, run_tokens(&g));
  mem_free(g.scratch);
  mem_free(g.text);
  mem_free(g.token);
  return status;
}
