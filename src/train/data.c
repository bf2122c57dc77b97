/* Tokens of micro-batches. A sample depends on the seed and its number, not on the ranks. */
#include "train/data.h"

#include <math.h>
#include <string.h>

#include "base/hash.h"
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

void data_close(struct data_sources *data)
{
  for (int i = 0; i < data->n; i++)
    token_set_close(data->of[i].set);
  data->n = 0;
}

/* The number of tokens of each further source counts too: where a source ends changes the order. */
struct token_stream data_stream(const struct data_sources *data)
{
  struct token_stream all = token_set_stream(data->of[0].set);
  for (int i = 1; i < data->n; i++) {
    const struct token_stream next = token_set_stream(data->of[i].set);
    const int64_t both[] = {all.tokens, all.crc32, next.tokens, next.crc32};
    all.crc32 = (uint32_t)hash_bytes(HASH_START, both, sizeof both);
    all.tokens += next.tokens;
  }
  return all;
}

/* --- mixtures ------------------------------------------------------------- */

/* A source without a weight has that of its tokens. */
static void share_out(const struct deck *deck, struct data_sources *data)
{
  double weight[DECK_SOURCES], rest = 0;
  deck_weights(deck, weight);
  for (int i = data->n - 1; i >= 0; i--) {
    struct data_source *source = &data->of[i];
    const double own = weight[i] > 0 ? weight[i] : (double)token_set_stream(source->set).tokens;
    rest += own;
    const double share = nearbyint(0x1p32 * (own / rest));
    source->share = (uint32_t)fmin(fmax(share, 1), UINT32_MAX);
  }
}

/* Of the first `n` samples, those of a source that gets `share` of them. */
static int64_t part_of(int64_t n, uint32_t share)
{
  return (int64_t)((unsigned __int128)n * share >> 32);
}

int data_choose(const struct data_sources *data, int64_t sample, int64_t *number)
{
  int s = 0;
  for (; s < data->n - 1; s++) {
    const uint32_t share = data->of[s].share;
    const int64_t before = part_of(sample, share);
    if (part_of(sample + 1, share) > before) {
      *number = before;
      return s;
    }
    sample -= before;
  }
  *number = sample;
  return s;
}

int64_t data_part(const struct data_sources *data, int s, int64_t samples)
{
  for (int i = 0; i < s; i++)
    samples -= part_of(samples, data->of[i].share);
  return s == data->n - 1 ? samples : part_of(samples, data->of[s].share);
}

static enum status read_sample(const struct data_order *order, int64_t sample, int32_t *tokens,
                               int32_t *targets, int32_t *source)
{
  int64_t number;
  if (!order->data) {
    fill_random(order, sample, tokens, targets);
    return STATUS_OK;
  }
  const int s = data_choose(order->data, sample, &number);
  const struct data_source *of = &order->data->of[s];
  if (source)
    *source = s;
  const int64_t T = order->shape.sequence,
                window = token_order(order->seed, s, of->windows, number);
  return read_row(of->set, window * T, T, tokens, targets);
}

enum status data_load_train(void *arg, int64_t step, int micro, const struct model_batch *out)
{
  const struct data_order *order = arg;
  const struct deck_shape *shape = &order->shape;
  const int64_t position = order->rank * shape->rank_batch + micro * shape->micro_batch;
  const int64_t first = order->first_sample + (step - order->first_step) * order->batch + position;
  enum status status = STATUS_OK;
  for (int64_t b = 0; b < shape->micro_batch && !status; b++)
    status =
        read_sample(order, first + b, out->tokens + b * shape->sequence,
                    out->targets + b * shape->sequence, out->sources ? out->sources + b : NULL);
  return status;
}

/* --- a scan --------------------------------------------------------------- */

static int64_t scored_of(const struct data_scan *scan, int s)
{
  const int64_t all = token_set_stream(scan->data.of[s].set).tokens - 1;
  return scan->most > 0 && scan->most < all ? scan->most : all;
}

static int64_t windows_of(const struct data_scan *scan, int s)
{
  return (scored_of(scan, s) + scan->sequence - 1) / scan->sequence;
}

int64_t data_scan_all(const struct data_scan *scan, int64_t *windows)
{
  int64_t targets = 0;
  *windows = 0;
  for (int s = 0; s < scan->data.n; s++) {
    targets += scored_of(scan, s);
    *windows += windows_of(scan, s);
  }
  return targets;
}

/* The source, first token and targets of a window. There are none after the last window. */
static int64_t find_window(const struct data_scan *scan, int64_t window, int *source, int64_t *at)
{
  const int64_t T = scan->sequence;
  for (int s = 0; s < scan->data.n; window -= windows_of(scan, s++))
    if (window < windows_of(scan, s)) {
      const int64_t left = scored_of(scan, s) - window * T;
      *source = s;
      *at = window * T;
      return left < T ? left : T;
    }
  *source = 0;
  *at = 0;
  return 0;
}

static int64_t first_window(const struct data_scan *scan, int64_t step, int rank)
{
  return ((step - scan->first_step) * scan->ranks + rank) * scan->micro_batch;
}

int64_t data_scan_targets(const struct data_scan *scan, int64_t step)
{
  int64_t n = 0, at;
  int source;
  for (int64_t w = first_window(scan, step, 0); w < first_window(scan, step + 1, 0); w++)
    n += find_window(scan, w, &source, &at);
  return n;
}

enum status data_load_scan(void *arg, int64_t step, int micro, const struct model_batch *out)
{
  const struct data_scan *scan = arg;
  (void)micro; /* one per step */
  const int64_t T = scan->sequence, first = first_window(scan, step, scan->rank);
  for (int64_t b = 0; b < scan->micro_batch; b++) {
    int32_t *token = out->tokens + b * T, *target = out->targets + b * T;
    int64_t at;
    int source;
    const int64_t n = find_window(scan, first + b, &source, &at);
    const enum status status =
        n > 0 ? read_row(scan->data.of[source].set, at, n, token, target) : STATUS_OK;
    if (status)
      return status;
    for (int64_t t = n; t < T; t++) {
      token[t] = 0;
      target[t] = -1;
    }
    if (out->sources)
      out->sources[b] = source;
  }
  return STATUS_OK;
}

/* --- opening -------------------------------------------------------------- */

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

struct opening {
  struct comm *comm;
  const struct deck *deck;
  const char *key, *dir; /* a key of the deck, and a folder that it names */
  enum token_split split;
  int64_t sequence;
  const struct data_maker *maker;
};

static enum status check_set(const struct token_set *set, const struct opening *from)
{
  const long long last = (long long)token_set_stream(set).tokenizer.vocab - 1;
  const int64_t vocab = from->deck->model.vocab;
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
static enum status refuse_maker(const struct tokenizer_id *id, const struct opening *from)
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

static enum status check_maker(const struct token_set *set, const struct opening *from)
{
  const struct data_maker *maker = from->maker;
  const struct tokenizer_id id = token_set_stream(set).tokenizer;
  const enum tokenizer_match match = tokenizer_compare(&id, &maker->id);
  if (!*maker->of || match == TOKENIZER_SAME)
    return STATUS_OK;
  if (match == TOKENIZER_OTHER)
    return refuse_maker(&id, from);
  if (comm_rank(from->comm) == 0)
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

/* The set is closed by the caller, whatever the status. */
static enum status open_one(const struct opening *from, struct data_source *out)
{
  struct comm *comm = from->comm;
  enum status status = token_set_open(comm, from->dir, from->split, &out->set);
  if (status)
    return status_prefix(status, "%s", from->key);
  out->dir = from->dir;
  out->windows = token_set_windows(out->set, from->sequence);
  status = check_maker(out->set, from) ?: check_set(out->set, from);
  status = comm_agree(comm, status);
  if (!status && !*from->maker->of && from->split == SPLIT_TRAIN && comm_rank(comm) == 0)
    hint_vocab(out->set, from->dir, from->deck);
  return status || !from->deck->data.verify ? status : token_set_verify(comm, out->set);
}

enum status data_open(struct comm *comm, const struct deck *deck, enum token_split split,
                      int64_t sequence, const struct data_maker *maker, struct data_sources *out)
{
  const bool own = split == SPLIT_VAL && (deck->data.val.n > 0 || deck->data.train.n == 0);
  const struct option_strings *list = own ? &deck->data.val : &deck->data.train;
  struct data_maker first;
  struct opening from = {comm, deck, own ? "data.val" : "data.train", "", split, sequence, maker};
  enum status status = STATUS_OK;
  *out = (struct data_sources){0};
  if (list->n == 0)
    return status_usage(
        "%s is not set: make token shards with `sluice prepare TEXT out=DIR` and set %s=DIR",
        from.key, from.key);
  for (int i = 0; i < list->n && !status; i++) {
    from.dir = list->item[i];
    status = open_one(&from, &out->of[out->n]);
    out->n += out->of[i].set != NULL;
    if (status || i > 0 || *maker->of)
      continue;
    first =
        (struct data_maker){.id = token_set_stream(out->of[0].set).tokenizer, .of = list->item[0]};
    from.maker = &first;
  }
  if (!status && !own)
    share_out(deck, out);
  return status;
}
