/* Generates text token by token, with keys and values of earlier tokens in a cache. */
#include "train/generate.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/printable.h"
#include "comm/launch.h"
#include "io/text/input.h"
#include "io/text/utf8.h"

/* Message of rank 0 to the others after each step. */
struct word {
  int32_t token; /* -1: none */
  int32_t last;
};

/* The next input on rank 0. */
enum turn { TURN_TEXT, TURN_NEW, TURN_OVER };

/* Tokens that the model computed, many at a time or one by one. */
struct speed {
  int64_t tokens;
  double seconds;
};

struct generation {
  struct job *job;
  struct exec *exec;
  const struct generate_options *options;
  int64_t capacity, chunk; /* tokens of the cache, and of a step at most */
  int64_t step, draw;

  int32_t *token;  /* the context [capacity] */
  int64_t n, past; /* in the context; of them, in the cache */

  struct tokenizer_tokens line; /* rank 0's next tokens */

  int64_t keep; /* tokens of the context before rank 0's next ones */
  int64_t read; /* tokens of prompts */
  struct speed prompt, answer;

  /* Rank 0's own. */
  struct tokenizer *tokenizer; /* NULL: ids */
  char *text;                  /* decoded but not yet printed */
  int64_t bytes, text_room;
  struct text_buffer said; /* of an answer in a conversation */
  uint64_t *scratch;
  bool at_end;        /* the last token ended a text */
  char *typed, *page; /* a line from getline(3), and as it is in the context */
  size_t typed_room;
};

static bool is_root(const struct generation *g)
{
  return comm_rank(g->job->comm) == 0;
}

/* ---- the context */

/* Append tokens and return how many were taken. If they do not fit, the last half of the cache is
 * kept and computed again. */
static int64_t append(struct generation *g, const int32_t *token, int64_t n)
{
  if (n <= g->capacity - g->n) {
    memcpy(g->token + g->n, token, (size_t)n * sizeof *token);
    g->n += n;
    return n;
  }
  const int64_t keep = g->capacity > 1 ? g->capacity / 2 : 1, fresh = n < keep ? n : keep,
                kept = keep - fresh;
  memmove(g->token, g->token + g->n - kept, (size_t)kept * sizeof *token);
  memcpy(g->token + kept, token + n - fresh, (size_t)fresh * sizeof *token);
  g->n = keep;
  g->past = 0;
  return fresh;
}

/* The exec_load of generation. */
static enum status load_window(void *arg, int64_t step, int micro, const struct model_batch *out)
{
  const struct generation *g = arg;
  const int64_t left = g->n - g->past, n = left < g->chunk ? left : g->chunk;
  (void)step;
  (void)micro;
  memcpy(out->tokens, g->token + g->past, (size_t)n * sizeof *out->tokens);
  return STATUS_OK;
}

/* Computes the whole context into the cache, in chunks. The logits are then those after its last
 * token. */
static void feed(struct generation *g)
{
  const double start = clock_s();
  struct speed *speed = g->n - g->past == 1 && g->past > 0 ? &g->answer : &g->prompt;
  while (g->past < g->n) {
    struct exec_result result;
    const int64_t left = g->n - g->past, n = left < g->chunk ? left : g->chunk;
    exec_set_window(g->exec, g->past, n);
    comm_must(g->job->comm, exec_step(g->exec, g->step++, 0, 0.0, &result) ?: exec_drain(g->exec));
    g->past += n;
    speed->tokens += n;
  }
  speed->seconds += clock_s() - start;
}

/* ---- rank 0: text */

/* Text that cannot be written is dropped after one warning. Under a launcher, main() lets standard
 * output keep a part of a line. */
static enum status flush_text(bool part)
{
  if ((part && launch_read().launched) || (fflush(stdout) == 0 && !ferror(stdout)))
    return STATUS_OK;
  const enum status status =
      status_set(STATUS_IO, "cannot write to standard output: %s", strerror(errno));
  __fpurge(stdout);
  clearerr(stdout);
  return status;
}

static void print_text(struct generation *g, const char *text, size_t n)
{
  printable_put(text, n, stdout);
  if (g->options->conversation)
    text_buffer_append(&g->said, text, n);
}

/* Print the whole characters of the pending bytes. An invalid byte becomes U+FFFD. */
static void print_whole_characters(struct generation *g, bool last)
{
  while (g->bytes > 0) {
    int64_t valid = utf8_find_invalid(g->text, (size_t)g->bytes);
    if (valid < 0)
      valid = g->bytes;
    print_text(g, g->text, (size_t)valid);
    memmove(g->text, g->text + valid, (size_t)(g->bytes - valid));
    g->bytes -= valid;
    if (g->bytes == 0 || (g->bytes < 4 && !last))
      break;
    print_text(g, "\xEF\xBF\xBD", 3);
    memmove(g->text, g->text + 1, (size_t)--g->bytes);
  }
}

static enum status print_token(struct generation *g, int32_t token, bool first)
{
  if (!g->tokenizer) {
    printf("%s%d", first ? "" : " ", token);
    return flush_text(true);
  }
  const enum status status =
      tokenizer_decode(g->tokenizer, &token, 1, &g->text, &g->bytes, &g->text_room);
  if (status)
    return status;
  print_whole_characters(g, false);
  return flush_text(true);
}

static bool is_end(const struct generation *g, int32_t token)
{
  if (!g->tokenizer)
    return false; /* ids: as many as requested */
  for (int64_t i = 0; i < g->options->n_end; i++)
    if (g->options->end[i] == token)
      return true;
  return token == tokenizer_end_of_text(g->tokenizer);
}

/* The next token: picked and written. The model's vocabulary may be padded beyond the
 * tokenizer's. */
static enum status say(struct generation *g, int64_t i, struct word *word)
{
  const float *logits = exec_pointer(g->exec, g->job->plan[PLAN_GENERATE]->logits);
  const int64_t V = g->tokenizer ? tokenizer_vocab(g->tokenizer) : g->job->model->config.vocab;
  for (int64_t v = 0; v < V; v++)
    if (!isfinite(logits[v]))
      return status_set(STATUS_NONFINITE,
                        "the model gives token %lld a logit that is not a finite number: its "
                        "weights are damaged, or its training diverged",
                        (long long)v);
  const int32_t token = sample_token(logits, V, &g->options->sample, g->draw++, g->scratch);
  g->at_end = is_end(g, token);
  const enum status status = g->at_end ? STATUS_OK : print_token(g, token, i == 0);
  if (!status)
    *word = (struct word){.token = token, .last = g->at_end};
  return status;
}

/* ---- turns */

/* An answer becomes a turn. */
static enum status keep_answer(struct generation *g)
{
  struct conversation *conversation = g->options->conversation;
  enum status status = g->said.status;
  if (conversation && !status)
    status = conversation_answer(conversation, g->said.data, g->said.bytes);
  text_buffer_clear(&g->said);
  return status;
}

/* Continue the context. */
static enum status answer(struct generation *g)
{
  struct comm *comm = g->job->comm;
  enum status status = STATUS_OK;
  for (int64_t i = 0; i < g->options->tokens; i++) {
    struct word word = {.token = -1, .last = true};
    feed(g);
    if (is_root(g))
      status = say(g, i, &word);
    const enum status told = comm_broadcast(comm, &word, sizeof word, 0);
    if (told)
      return told;
    if (word.token >= 0)
      append(g, &word.token, 1);
    if (word.last)
      break;
  }
  if (is_root(g) && !status) {
    print_whole_characters(g, true);
    putchar('\n');
    status = flush_text(false) ?: keep_answer(g);
  }
  return comm_agree(comm, status);
}

/* Rank 0: the tokens of `text` [n], to be added to the context. A context begins with the
 * tokenizer's begin-of-text token. If it has none, an empty context begins after an end-of-text
 * token. */
static enum status encode_text(struct generation *g, const char *text, size_t n)
{
  const int32_t begin = tokenizer_begin_of_text(g->tokenizer);
  const enum status status =
      mem_grow(MEM_DATA, (void **)&g->line.id, &g->line.room, 1, sizeof *g->line.id);
  if (status)
    return status;
  g->line.n = 0;
  g->keep = g->n;
  if (g->n == 0 && (begin >= 0 || n == 0))
    g->line.id[g->line.n++] = begin >= 0 ? begin : tokenizer_end_of_text(g->tokenizer);
  return tokenizer_encode(g->tokenizer, text, n, false, &g->line);
}

/* Rank 0: the tokens of a conversation with another turn. The context keeps those that it begins
 * with, except the last one, whose logits are needed. */
static enum status encode_turn(struct generation *g, const char *text, size_t n)
{
  const enum status status = conversation_ask(g->options->conversation, text, n, &g->line);
  if (status)
    return status;
  for (g->keep = 0; g->keep < g->n && g->keep < g->line.n - 1; g->keep++)
    if (g->token[g->keep] != g->line.id[g->keep])
      break;
  g->line.n -= g->keep;
  memmove(g->line.id, g->line.id + g->keep, (size_t)g->line.n * sizeof *g->line.id);
  return STATUS_OK;
}

static enum status encode(struct generation *g, const char *text, size_t n)
{
  return g->options->conversation ? encode_turn(g, text, n) : encode_text(g, text, n);
}

/* Rank 0: a line, to be added to the context. A line that cannot be encoded is reported, and the
 * user is asked again. */
static enum status take_line(struct generation *g, char *line, size_t n, bool *taken)
{
  const bool is_turn = g->options->conversation;
  const size_t gap = g->n > 0 && n > 0 && !g->at_end && !is_turn; /* a new line on the page */
  enum status status = mem_resize(MEM_DATA, n + gap + 1, (void **)&g->page);
  if (status || (n == 0 && is_turn))
    return status;
  memcpy(g->page, "\n", gap);
  memcpy(g->page + gap, line, n);
  status = encode(g, g->page, n + gap);
  *taken = status == STATUS_OK;
  if (status != STATUS_INPUT)
    return status;
  log_warn("%s", status_text());
  return STATUS_OK;
}

static enum status read_turn(struct generation *g, enum turn *turn)
{
  const bool asks = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
  for (bool taken = false; !taken;) {
    if (asks)
      fputs("> ", stdout);
    enum status status = flush_text(false);
    if (status)
      return status;
    ssize_t n = getline(&g->typed, &g->typed_room, stdin);
    if (n < 0 && asks)
      putchar('\n');
    if (n < 0 && ferror(stdin))
      return status_set(STATUS_IO, "standard input cannot be read: %s", strerror(errno));
    while (n > 0 && (g->typed[n - 1] == '\n' || g->typed[n - 1] == '\r'))
      n--;
    *turn = n < 0 ? TURN_OVER : n == 4 && memcmp(g->typed, "/new", 4) == 0 ? TURN_NEW : TURN_TEXT;
    if (*turn != TURN_TEXT)
      return STATUS_OK;
    status = take_line(g, g->typed, (size_t)n, &taken);
    if (status)
      return status;
  }
  return STATUS_OK;
}

/* Broadcasts rank 0's line and adds it to the part of the context that is kept. */
static enum status share_line(struct generation *g)
{
  struct comm *comm = g->job->comm;
  enum status status = comm_broadcast(comm, &g->line.n, sizeof g->line.n, 0)
                           ?: comm_broadcast(comm, &g->keep, sizeof g->keep, 0);
  if (!status && !is_root(g))
    status = mem_resize(MEM_DATA, (size_t)g->line.n * sizeof *g->line.id, (void **)&g->line.id);
  status = comm_agree(comm, status)
               ?: comm_broadcast(comm, g->line.id, g->line.n * (int64_t)sizeof *g->line.id, 0);
  if (status)
    return status;
  g->n = g->keep;
  g->past = g->past < g->n ? g->past : g->n;
  g->read += append(g, g->line.id, g->line.n);
  return STATUS_OK;
}

static enum status converse(struct generation *g)
{
  const struct generate_options *options = g->options;
  struct comm *comm = g->job->comm;
  for (;;) {
    enum turn turn = TURN_OVER;
    enum status status = comm_agree(comm, is_root(g) ? read_turn(g, &turn) : STATUS_OK)
                             ?: comm_broadcast(comm, &turn, sizeof turn, 0);
    if (status || turn == TURN_OVER)
      return status;
    if (turn == TURN_NEW) {
      g->n = g->past = 0;
      if (options->conversation)
        conversation_clear(options->conversation);
      continue;
    }
    status = share_line(g) ?: answer(g);
    if (status)
      return status;
  }
}

/* ---- the run */

static enum status begin_with_ids(struct generation *g)
{
  const struct generate_options *options = g->options;
  const int64_t V = g->job->model->config.vocab;
  for (int64_t i = 0; i < options->n_ids; i++)
    if (options->ids[i] < 0 || options->ids[i] >= V)
      return status_usage("ids: %d is no token of the model, whose vocabulary is 0 to %lld",
                          options->ids[i], (long long)V - 1);
  g->read += append(g, options->ids, options->n_ids);
  for (int64_t i = 0; is_root(g) && i < options->n_ids; i++)
    printf("%s%d", i ? " " : "", options->ids[i]);
  if (is_root(g))
    putchar('\n');
  return STATUS_OK;
}

static enum status begin_with_prompt(struct generation *g)
{
  const struct generate_options *options = g->options;
  enum status status = is_root(g) ? encode(g, options->prompt, options->prompt_bytes) : STATUS_OK;
  if (status == STATUS_INPUT)
    status = status_prefix(status, "prompt");
  status = comm_agree(g->job->comm, status) ?: share_line(g);
  if (!status && is_root(g) && !options->conversation)
    printable_put(options->prompt, options->prompt_bytes, stdout);
  return status;
}

static enum status run(struct generation *g)
{
  const struct generate_options *options = g->options;
  enum status status = STATUS_OK;
  if (options->ids || options->prompt_bytes > 0 || !options->interactive) {
    status = options->ids ? begin_with_ids(g) : begin_with_prompt(g);
    const int64_t given = options->ids ? options->n_ids : g->line.n;
    if (!status && given > g->capacity)
      log_info("the prompt has %lld tokens, but the context has room for %lld: the last %lld "
               "tokens are used",
               (long long)given, (long long)g->capacity, (long long)g->n);
    status = status ?: answer(g);
  }
  if (!status && options->interactive)
    status = converse(g);
  return status;
}

static enum status prepare(struct generation *g)
{
  const enum status status = mem_new(MEM_DATA, g->capacity, &g->token);
  return status || !is_root(g) ? status
                               : mem_new(MEM_DATA, g->job->model->config.vocab, &g->scratch);
}

static double rate(const struct speed *speed)
{
  return speed->seconds > 0 ? (double)speed->tokens / speed->seconds : 0;
}

/* The computation of the prompt gives the first token, so a single token has no speed. */
static void say_speed(const struct generation *g)
{
  char speed[48] = "";
  if (g->answer.tokens > 0)
    snprintf(speed, sizeof speed, " at %.1f tokens/s", rate(&g->answer));
  log_info("%lld tokens read at %.1f tokens/s, %lld written%s%s", (long long)g->read,
           rate(&g->prompt), (long long)g->draw, speed,
           g->at_end ? "; the last one is the end of text" : "");
}

enum status generate_run(struct job *job, const struct generate_options *options)
{
  const struct plan_input *input = &job->plan[PLAN_GENERATE]->input;
  struct generation g = {.job = job,
                         .tokenizer = options->tokenizer,
                         .options = options,
                         .capacity = input->capacity,
                         .chunk = input->shape.sequence};
  enum status status =
      comm_agree(job->comm, prepare(&g)) ?: job_start(job, PLAN_GENERATE, load_window, &g);
  g.exec = job->exec[PLAN_GENERATE];
  status = status ?: run(&g);
  if (!status && g.prompt.tokens > 0)
    say_speed(&g);
  free(g.typed);
  mem_free(g.page);
  mem_free(g.scratch);
  mem_free(g.text);
  text_buffer_free(&g.said);
  mem_free(g.line.trained);
  mem_free(g.line.id);
  mem_free(g.token);
  return status;
}
