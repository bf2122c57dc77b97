#include "train/data.h"

#include "base/log.h"
#include "base/rng.h"
#include "io/tokenizer.h"
#include "train/origin.h"

static void fill_random(const struct data_order *order, int64_t sample, int32_t *tokens, int32_t *targets)
{
  const struct rng_key key = rng_key_make(order->seed, "random tokens");
  const int64_t T = order->shape.sequence;
  uint32_t block[4];
  for (int64_t t = 0; t <= T; t++) {
    if (t % 4 == 0)
      rng_block(key, (uint64_t)sample, (uint64_t)(t / 4), block);
    const int32_t token = (int32_t)(block[t % 4] % (uint64_t)order->vocab);
    if (t < T)
      tokens[t] = token;
    if (t > 0)
      targets[t - 1] = token;
  }
}

enum status data_load_train(void *arg, int64_t step, int micro, int32_t *tokens, int32_t *targets)
{
  const struct data_order *order = arg;
  const struct deck_shape *shape = &order->shape;
  const int64_t position = order->rank * shape->rank_batch + micro * shape->micro_batch;
  const int64_t first = order->first_sample + (step - order->first_step) * order->batch + position;
  for (int64_t b = 0; b < shape->micro_batch; b++) {
    int32_t *token = tokens + b * shape->sequence, *target = targets + b * shape->sequence;
    if (!order->set) {
      fill_random(order, first + b, token, target);
      continue;
    }
    const int64_t window = token_order(order->seed, order->windows, first + b);
    const enum status status = token_set_read(order->set, window, shape->sequence, token, target);
    if (status)
      return status;
  }
  return STATUS_OK;
}

/* Of the last window only what has a target is there to be read: token by token. */
static enum status load_part(struct token_set *set, int64_t first, int64_t n, int32_t *tokens, int32_t *targets)
{
  enum status status = STATUS_OK;
  for (int64_t t = 0; t < n && !status; t++)
    status = token_set_read(set, first + t, 1, tokens + t, targets + t);
  return status;
}

enum status data_load_scan(void *arg, int64_t step, int micro, int32_t *tokens, int32_t *targets)
{
  const struct data_scan *scan = arg;
  (void)micro; /* one a step */
  const int64_t T = scan->sequence, first = ((step - scan->first_step) * scan->ranks + scan->rank) * scan->micro_batch;
  for (int64_t b = 0; b < scan->micro_batch; b++) {
    int32_t *token = tokens + b * T, *target = targets + b * T;
    const int64_t left = scan->scored - (first + b) * T, n = left < 0 ? 0 : left < T ? left : T;
    const enum status status =
        n == T ? token_set_read(scan->set, first + b, T, token, target) : load_part(scan->set, (first + b) * T, n, token, target);
    if (status)
      return status;
    for (int64_t t = n; t < T; t++) {
      token[t] = 0;
      target[t] = -1;
    }
  }
  return STATUS_OK;
}

static enum status check_set(const struct token_set *set, const char *key, const char *dir, const char *init, int64_t vocab, int64_t sequence)
{
  if (token_set_vocab(set) > vocab && *init)
    return status_set(STATUS_USAGE,
                      "%s: the tokens of %s go up to %lld, but the model of %s has %lld: they were made with another tokenizer than its own", key,
                      dir, (long long)token_set_vocab(set) - 1, init, (long long)vocab);
  if (token_set_vocab(set) > vocab)
    return status_set(STATUS_USAGE, "%s: the tokens of %s go up to %lld, but model.vocab is %lld: set model.vocab to at least %lld", key, dir,
                      (long long)token_set_vocab(set) - 1, (long long)vocab, (long long)token_set_vocab(set));
  if (token_set_windows(set, sequence) < 1)
    return status_set(STATUS_USAGE,
                      "%s: %s holds %lld tokens, fewer than one sequence of %lld and its target: use more text or a smaller data.sequence", key, dir,
                      (long long)token_set_tokens(set), (long long)sequence);
  return STATUS_OK;
}

/* A model that comes with a tokenizer learns from no other's tokens: their ids mean other texts. */
static enum status check_tokenizer(const struct token_set *set, const char *key, const char *dir, const char *init)
{
  struct tokenizer *own = NULL;
  if (!origin_holds(init, "tokenizer.json"))
    return STATUS_OK;
  if (tokenizer_create("json", init, &own)) {
    log_warn("%s: whether %s was made with the tokenizer of %s cannot be told: %s", key, dir, init, status_text());
    return STATUS_OK;
  }
  const bool same = tokenizer_is(own, token_set_tokenizer(set), token_set_checksum(set));
  tokenizer_destroy(own);
  if (same)
    return STATUS_OK;
  return status_set(
      STATUS_USAGE,
      "%s: %s was made with another tokenizer ('%s') than that of train.init, whose ids mean other texts: sluice prepare ... tokenizer=%s (or "
      "import the weights with `sluice ckpt import`, which leaves the tokenizer behind)",
      key, dir, token_set_tokenizer(set), init);
}

enum status data_open(struct comm *comm, const struct deck *deck, const char *key, const char *dir, enum token_split split, int64_t sequence,
                      struct token_set **out)
{
  if (!dir || !*dir)
    return status_set(STATUS_USAGE, "%s is not set: make token shards with `sluice prepare TEXT out=DIR` and set %s=DIR", key, key);
  struct token_set *set = NULL;
  enum status status = token_set_open(comm, dir, split, &set);
  if (status)
    return status;
  status = check_set(set, key, dir, deck->train.init, deck->model.vocab, sequence);
  if (!status && comm_rank(comm) == 0)
    status = check_tokenizer(set, key, dir, deck->train.init);
  status = comm_agree(comm, status);
  if (!status && deck->data.verify)
    status = token_set_verify(comm, set);
  if (status) {
    token_set_close(set);
    return status;
  }
  *out = set;
  return STATUS_OK;
}
