/* Tokens of micro-batches. A sample depends on the seed and its number, not on the ranks. */
#include "train/data.h"

#include <string.h>

#include "base/log.h"
#include "base/rng.h"
#include "io/checkpoint/checkpoint.h"
#include "job/model_source.h"

static void fill_random(const struct data_order *order, int64_t sample, int32_t *tokens,
                        int32_t *targets)
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

/* n inputs from token `at` on, and their targets. */
static enum status read_row(struct token_set *set, int64_t at, int64_t n, int32_t *tokens,
                            int32_t *targets)
{
  const enum status status =
      token_set_read(set, at, n, &(struct token_range){.token = tokens})
          ?: token_set_read(set, at + n, 1, &(struct token_range){.token = targets + n - 1});
  if (!status)
    memcpy(targets, tokens + 1, (size_t)(n - 1) * sizeof *tokens);
  return status;
}

enum status data_load_train(void *arg, int64_t step, int micro, const struct model_batch *out)
{
  const struct data_order *order = arg;
  const struct deck_shape *shape = &order->shape;
  const int64_t position = order->rank * shape->rank_batch + micro * shape->micro_batch;
  const int64_t first = order->first_sample + (step - order->first_step) * order->batch + position;
  for (int64_t b = 0; b < shape->micro_batch; b++) {
    int32_t *token = out->tokens + b * shape->sequence,
            *target = out->targets + b * shape->sequence;
    if (!order->set) {
      fill_random(order, first + b, token, target);
      continue;
    }
    const int64_t window = token_order(order->seed, order->windows, first + b);
    const enum status status =
        read_row(order->set, window * shape->sequence, shape->sequence, token, target);
    if (status)
      return status;
  }
  return STATUS_OK;
}

int64_t data_scan_targets(const struct data_scan *scan, int64_t step)
{
  const int64_t most = scan->ranks * scan->micro_batch * scan->sequence,
                left = scan->scored - (step - scan->first_step) * most;
  return left < most ? left : most;
}

enum status data_load_scan(void *arg, int64_t step, int micro, const struct model_batch *out)
{
  const struct data_scan *scan = arg;
  (void)micro; /* one per step */
  const int64_t T = scan->sequence,
                first = ((step - scan->first_step) * scan->ranks + scan->rank) * scan->micro_batch;
  for (int64_t b = 0; b < scan->micro_batch; b++) {
    int32_t *token = out->tokens + b * T, *target = out->targets + b * T;
    const int64_t at = (first + b) * T, left = scan->scored - at;
    const int64_t n = left < 0 ? 0 : left < T ? left : T;
    const enum status status = n ? read_row(scan->set, at, n, token, target) : STATUS_OK;
    if (status)
      return status;
    for (int64_t t = n; t < T; t++) {
      token[t] = 0;
      target[t] = -1;
    }
  }
  return STATUS_OK;
}

static struct tokenizer_id identify_folder(const char *dir)
{
  struct tokenizer_id id = {.name = ""};
  struct tokenizer *own = NULL;
  const char *name = tokenizer_in_folder(dir);
  if (!name)
    return id;
  if (tokenizer_create(name, dir, &own))
    log_warn("the tokenizer of %s cannot be read, so it is not compared with that of the data: %s",
             dir, status_text());
  else
    id = tokenizer_id(own);
  tokenizer_destroy(own);
  return id;
}

enum status data_maker_find(struct comm *comm, const char *path, struct data_maker *out)
{
  int64_t folder = comm_rank(comm) == 0 && model_source_is_folder(path);
  struct checkpoint_meta meta = {0};
  *out = (struct data_maker){.of = path};
  enum status status = comm_max_i64(comm, &folder, 1);
  if (status || !*path)
    return status;
  if (!folder) {
    status = checkpoint_read_meta(comm, path, &meta);
    out->id = meta.data.tokenizer;
    checkpoint_meta_free(&meta);
    return status;
  }
  if (comm_rank(comm) == 0)
    out->id = identify_folder(path);
  return comm_broadcast(comm, &out->id, sizeof out->id, 0);
}

static enum status check_set(const struct token_set *set, const struct data_source *from,
                             int64_t vocab)
{
  const long long last = (long long)token_set_stream(set).tokenizer.vocab - 1;
  if (last >= vocab && *from->maker->of)
    return status_usage("%s: the tokens of %s go up to %lld, but the model of %s has %lld: another "
                        "tokenizer made them",
                        from->key, from->dir, last, from->maker->of, (long long)vocab);
  if (last >= vocab)
    return status_usage("%s: the tokens of %s go up to %lld, but model.vocab is %lld: set "
                        "model.vocab to at least %lld",
                        from->key, from->dir, last, (long long)vocab, last + 1);
  if (token_set_windows(set, from->sequence) < 1)
    return status_usage("%s: %s holds %lld tokens, fewer than one sequence of %lld and its target: "
                        "use more text or a smaller data.sequence",
                        from->key, from->dir, (long long)token_set_stream(set).tokens,
                        (long long)from->sequence);
  return STATUS_OK;
}

/* The ids of another tokenizer mean other texts, so a loss over them is meaningless. */
static enum status refuse_maker(const struct tokenizer_id *id, const struct data_source *from)
{
  const struct data_maker *maker = from->maker;
  const bool bytes = !strcmp(maker->id.name, "bytes"),
             named = bytes || tokenizer_in_folder(maker->of);
  return status_usage(
      "%s: %s was made with another tokenizer (%s) than %s (%s), so its ids mean other texts: "
      "prepare the text again with %s%s",
      from->key, from->dir, tokenizer_id_text(id).text, maker->of,
      tokenizer_id_text(&maker->id).text, named ? "tokenizer=" : "that tokenizer",
      bytes   ? "bytes"
      : named ? maker->of
              : "");
}

static enum status check_maker(struct comm *comm, const struct token_set *set,
                               const struct data_source *from)
{
  const struct data_maker *maker = from->maker;
  const struct tokenizer_id id = token_set_stream(set).tokenizer;
  const enum tokenizer_match match = tokenizer_compare(&id, &maker->id);
  if (!*maker->of || match == TOKENIZER_SAME)
    return STATUS_OK;
  if (match == TOKENIZER_OTHER)
    return refuse_maker(&id, from);
  if (comm_rank(comm) == 0)
    log_warn("%s: %s does not record its tokenizer, so it cannot be compared with that of %s",
             from->key, maker->of, from->dir);
  return STATUS_OK;
}

/* Ids that no text contains cost memory and time. A vocabulary that was padded to a multiple is far
 * below this. */
static void hint_vocab(const struct token_set *set, const char *dir, const struct deck *deck)
{
  const int64_t has = token_set_stream(set).tokenizer.vocab, unused = deck->model.vocab - has;
  if (unused > has)
    log_warn("model.vocab is %lld, but the tokens of %s go up to %lld: model.vocab=%lld saves %.1f "
             "M parameters that are never trained",
             (long long)deck->model.vocab, dir, (long long)has - 1, (long long)has,
             (double)unused * (double)deck->model.width * (deck->model.tied ? 1 : 2) * 1e-6);
}

enum status data_open(struct comm *comm, const struct deck *deck, const struct data_source *from,
                      struct token_set **out)
{
  if (!from->dir || !*from->dir)
    return status_usage(
        "%s is not set: make token shards with `sluice prepare TEXT out=DIR` and set %s=DIR",
        from->key, from->key);
  struct token_set *set = NULL;
  enum status status = token_set_open(comm, from->dir, from->split, &set);
  if (status)
    return status_prefix(status, "%s", from->key);
  status = check_maker(comm, set, from) ?: check_set(set, from, deck->model.vocab);
  status = comm_agree(comm, status);
  if (!status && !*from->maker->of && from->split == SPLIT_TRAIN && comm_rank(comm) == 0)
    hint_vocab(set, from->dir, deck);
  if (!status && deck->data.verify)
    status = token_set_verify(comm, set);
  if (status)
    token_set_close(set);
  else
    *out = set;
  return status;
}
