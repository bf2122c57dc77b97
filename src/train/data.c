/* Tokens of micro-batches. A sample depends on the seed and its number, not on the ranks. */
#include "train/data.h"

#include <math.h>
#include <string.h>

#include "base/append.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "exec/watchdog.h"
#include "io/checkpoint/checkpoint.h"
#include "job/job.h"
#include "job/model_source.h"

/* --- rows ------------------------------------------------------------------ */

/* The arrays of one sequence; NULL: the plan has none. */
struct row {
  int32_t *tokens, *targets, *positions, *first;
};

static struct row row_of(const struct model_batch *batch, int64_t b, int64_t T)
{
  return (struct row){batch->tokens + b * T, batch->targets + b * T,
                      batch->positions ? batch->positions + b * T : NULL,
                      batch->first ? batch->first + b * T : NULL};
}

/* A document from position `at` of the row on. */
static enum status fill_piece(const struct data_source *source, const struct pack_piece *piece,
                              const struct row *row, int64_t at, struct data_counts *counts)
{
  const struct token_range range = {.token = source->token, .trained = source->trained};
  const enum status status = token_set_read(source->set, piece->at, piece->n + 1, &range);
  for (int64_t t = 0; t < piece->n && !status; t++) {
    const bool trained = !source->trained || source->trained[t + 1];
    row->tokens[at + t] = source->token[t];
    row->targets[at + t] = trained ? source->token[t + 1] : -1;
    counts->targets += trained;
    if (row->positions)
      row->positions[at + t] = (int32_t)t;
    if (row->first)
      row->first[at + t] = (int32_t)at;
  }
  counts->filled += piece->n;
  counts->squares += piece->n * piece->n;
  return status;
}

/* Each position of padding is a document of its own, which nothing attends to. */
static void pad(const struct row *row, int64_t at, int64_t T)
{
  for (; at < T; at++) {
    row->tokens[at] = 0;
    row->targets[at] = -1;
    if (row->positions)
      row->positions[at] = 0;
    if (row->first)
      row->first[at] = (int32_t)at;
  }
}

/* Row `number` of the source in its order. In order, none follows the last row. */
static enum status load_row(const struct data_source *source, uint64_t seed, int s, int64_t number,
                            const struct row *row, struct data_counts *counts)
{
  struct pack_piece window;
  const struct pack_piece *piece = &window;
  int64_t at = 0;
  int n = 0;
  if (source->in_order && number >= source->rows)
    n = 0;
  else if (source->pack)
    n = pack_row(source->pack, number, &piece);
  else {
    const int64_t w = source->in_order ? number : token_order(seed, s, source->rows, number),
                  left = token_set_stream(source->set).tokens - 1 - w * source->row;
    window = (struct pack_piece){w * source->row, left < source->row ? left : source->row};
    n = 1;
  }
  enum status status = STATUS_OK;
  for (int p = 0; p < n && !status; at += piece[p++].n)
    status = fill_piece(source, &piece[p], row, at, counts);
  pad(row, at, source->row);
  return status;
}

void data_close(struct data_sources *data)
{
  for (int i = 0; i < data->n; i++) {
    pack_destroy(data->of[i].pack);
    mem_free(data->of[i].token);
    mem_free(data->of[i].trained);
    mem_free(data->of[i].reference);
    token_set_close(data->of[i].set);
  }
  data->n = 0;
}

bool data_is_whole(const struct data_sources *data)
{
  for (int i = 0; i < data->n; i++)
    if (data->of[i].pack || data->of[i].trained || data->of[i].in_order)
      return false;
  return true;
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
  const int64_t unit = data->pairs ? 2 : 1, rest = sample % unit;
  int s = 0;
  for (sample /= unit; s < data->n - 1; s++) {
    const uint32_t share = data->of[s].share;
    const int64_t before = part_of(sample, share);
    if (part_of(sample + 1, share) > before) {
      sample = before;
      break;
    }
    sample -= before;
  }
  *number = sample * unit + rest;
  return s;
}

int64_t data_part(const struct data_sources *data, int s, int64_t samples)
{
  const int64_t unit = data->pairs ? 2 : 1;
  samples /= unit;
  for (int i = 0; i < s; i++)
    samples -= part_of(samples, data->of[i].share);
  return unit * (s == data->n - 1 ? samples : part_of(samples, data->of[s].share));
}

/* Row `b` of the batch. */
static enum status load_sample(struct data_order *order, int64_t sample, int64_t step, int64_t b,
                               const struct model_batch *out)
{
  int64_t number;
  const int s = data_choose(order->data, sample, &number);
  const struct data_source *source = &order->data->of[s];
  const struct row row = row_of(out, b, order->shape.sequence);
  struct data_counts *counts = &order->counts[step & 1];
  const int64_t targets = counts->targets;
  if (out->sources)
    out->sources[b] = s;
  const enum status status = load_row(source, order->seed, s, number, &row, counts);
  if (!out->reference)
    return status;
  out->reference[b] = source->reference[pack_place(source->pack, number)];
  counts->targets = targets + b % 2;
  return status;
}

enum status data_load_train(void *arg, int64_t step, int micro, const struct model_batch *out)
{
  struct data_order *order = arg;
  const struct deck_shape *shape = &order->shape;
  const int64_t position = order->rank * shape->rank_batch + micro * shape->micro_batch;
  const int64_t first = order->first_sample + (step - order->first_step) * order->batch + position;
  enum status status = STATUS_OK;
  if (micro == 0)
    order->counts[step & 1] = (struct data_counts){0};
  for (int64_t b = 0; b < shape->micro_batch && !status; b++)
    status = load_sample(order, first + b, step, b, out);
  return status;
}

enum status data_count(struct job *job, const struct data_order *order, int64_t step,
                       struct data_counts *out)
{
  struct watchdog *watchdog = watchdog_of(job_trainer(job));
  const int64_t row = job->shape.sequence, rows = order->batch;
  *out = (struct data_counts){rows * row, rows * row, rows * row * row};
  if (data_is_whole(order->data))
    return STATUS_OK;
  comm_must(job->comm, job_await_read(job, PLAN_TRAIN, step));
  *out = order->counts[step & 1];
  watchdog_enter(watchdog, TASK_MEET, NULL, "the count of trained tokens of step %lld",
                 (long long)step + 1);
  const enum status status = comm_sum_i64(job->comm, (int64_t *)out, DATA_COUNTS);
  watchdog_leave(watchdog, TASK_MEET);
  return status;
}

/* --- a scan --------------------------------------------------------------- */

int64_t data_scan_rows_of(const struct data_scan *scan, int s)
{
  const int64_t rows = scan->data.of[s].rows;
  return scan->most > 0 && scan->most < rows ? scan->most : rows;
}

int64_t data_scan_rows(const struct data_scan *scan)
{
  int64_t rows = scan->choices ? scan->choices->rows : 0;
  for (int s = 0; s < scan->data.n; s++)
    rows += data_scan_rows_of(scan, s);
  return rows;
}

/* Only the last targets of a row are scored. */
static void fill_choice(const struct choices *choices, int64_t number, const struct row *row,
                        int64_t T, struct data_counts *counts)
{
  const struct choices_row *choice = &choices->row[number];
  const int32_t *id = choices->id + choice->begin;
  const int64_t n = choice->n - 1;
  for (int64_t t = 0; t < n; t++) {
    row->tokens[t] = id[t];
    row->targets[t] = t < n - choice->scored ? -1 : id[t + 1];
    if (row->positions)
      row->positions[t] = (int32_t)t;
    if (row->first)
      row->first[t] = 0;
  }
  pad(row, n, T);
  counts->targets += choice->scored;
}

enum status data_load_scan(void *arg, int64_t step, int micro, const struct model_batch *out)
{
  struct data_scan *scan = arg;
  (void)micro; /* one per step */
  const int64_t first = ((step - scan->first_step) * scan->ranks + scan->rank) * scan->micro_batch;
  struct data_counts *counts = &scan->counts[step & 1];
  enum status status = STATUS_OK;
  *counts = (struct data_counts){0};
  for (int64_t b = 0; b < scan->micro_batch && !status; b++) {
    const struct row row = row_of(out, b, scan->sequence);
    int64_t number = first + b;
    int s = 0;
    while (s < scan->data.n && number >= data_scan_rows_of(scan, s))
      number -= data_scan_rows_of(scan, s++);
    if (scan->choices && number < scan->choices->rows)
      fill_choice(scan->choices, number, &row, scan->sequence, counts);
    else if (s == scan->data.n)
      pad(&row, 0, scan->sequence);
    else
      status = load_row(&scan->data.of[s], 0, s, number, &row, counts);
    if (out->sources)
      out->sources[b] = scan->apart        ? (int32_t)(scan->rank * scan->micro_batch + b)
                        : s < scan->data.n ? s
                                           : 0;
  }
  return status;
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
  const bool pairs = from->deck->train.objective == OBJECTIVE_DPO;
  if (pairs != token_set_has_pairs(set))
    return status_usage(pairs ? "%s: train.objective is dpo, but %s holds no pairs of "
                                "conversations: prepare records with \"chosen\" and \"rejected\""
                              : "%s: %s holds pairs of chosen and rejected conversations: set "
                                "train.objective=dpo",
                        from->key, from->dir);
  const int64_t tokens = token_set_stream(set).tokens,
                least = from->split == SPLIT_VAL || pairs || job_packs(from->deck, set)
                            ? 1
                            : from->sequence;
  if (tokens - 1 < least)
    return status_usage("%s: %s holds %lld tokens, fewer than one sequence of %lld and its target: "
                        "use more text or a smaller data.sequence",
                        from->key, from->dir, (long long)tokens, (long long)least);
  if (token_set_untrained(set) >= tokens)
    return status_set(STATUS_INPUT,
                      "%s: %s holds no token that is trained: prepare the data again, with another "
                      "train= or other conversations",
                      from->key, from->dir);
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

/* Says what packing leaves out, and how full rows are. */
static void say_rows(const struct opening *from, const struct pack_facts *facts)
{
  static const char *const done[] = {"cut", "left out", "split"};
  const bool pairs = from->deck->train.objective == OBJECTIVE_DPO;
  const double share = (double)facts->filled / (double)(facts->rows * from->sequence);
  log_info("%s: %lld %s %lld rows of %lld, %.1f %% filled", from->dir,
           (long long)(pairs ? facts->documents / 2 : facts->documents),
           pairs ? "pairs, in" : "documents packed into", (long long)facts->rows,
           (long long)from->sequence, 100 * share);
  if (pairs && facts->rows < facts->documents)
    log_warn("%s: %lld pair%s left out, because a conversation is longer than a row of %lld "
             "(data.long=drop) or has one token",
             from->dir, (long long)(facts->documents - facts->rows) / 2,
             plural((facts->documents - facts->rows) / 2), (long long)from->sequence);
  if (pairs)
    return;
  if (facts->longer > 0)
    log_warn("%s: %lld document%s longer than a row of %lld: %s (data.long=%s), %lld token%s lost",
             from->dir, (long long)facts->longer, facts->longer == 1 ? " is" : "s are",
             (long long)from->sequence, done[from->deck->data.over],
             (const char *[]){"cut", "drop", "split"}[from->deck->data.over],
             (long long)facts->lost, plural(facts->lost));
  if (facts->empty > 0)
    log_warn("%s: %lld document%s of one token left out", from->dir, (long long)facts->empty,
             plural(facts->empty));
}

static enum status open_pack(const struct opening *from, int s, struct data_source *out)
{
  _Static_assert((int)DECK_LONG_CUT == (int)PACK_CUT && (int)DECK_LONG_DROP == (int)PACK_DROP &&
                     (int)DECK_LONG_SPLIT == (int)PACK_SPLIT,
                 "one order");
  const struct pack_config config = {.row = from->sequence,
                                     .over = (enum pack_long)from->deck->data.over,
                                     .pairs = token_set_has_pairs(out->set),
                                     .in_order = out->in_order,
                                     .seed = (uint64_t)from->deck->run.seed,
                                     .source = s};
  const enum status status = pack_create(from->comm, out->set, &config, &out->pack);
  if (status)
    return status_prefix(status, "%s: %s", from->key, from->dir);
  const struct pack_facts facts = pack_facts(out->pack);
  out->rows = facts.rows;
  if (comm_rank(from->comm) == 0)
    say_rows(from, &facts);
  return STATUS_OK;
}

static enum status make_room(struct data_source *out)
{
  const enum status status = mem_new(MEM_DATA, out->row + 1, &out->token);
  return status || token_set_untrained(out->set) == 0
             ? status
             : mem_new(MEM_DATA, out->row + 1, &out->trained);
}

/* Looks for a row with a token that is trained: all such tokens may be in parts of documents that
 * no row has. */
static enum status find_trained(const struct opening *from, int s, const struct data_source *source)
{
  const struct deck *deck = from->deck;
  const int64_t most = source->in_order ? deck->eval.batches : 0,
                rows = most > 0 && most < source->rows / deck->data.batch ? most * deck->data.batch
                                                                          : source->rows;
  struct data_counts counts = {0};
  int32_t *tokens = NULL;
  enum status status = mem_new(MEM_DATA, 2 * source->row, &tokens);
  const struct row row = {.tokens = tokens, .targets = tokens + source->row};
  for (int64_t i = 0; i < rows && counts.targets == 0 && !status; i++)
    status = load_row(source, (uint64_t)deck->run.seed, s, i, &row, &counts);
  mem_free(tokens);
  return status || counts.targets > 0
             ? status
             : status_set(STATUS_INPUT,
                          "%s: no token is trained in the %lld row%s of %lld that %s gives: use a "
                          "larger data.sequence, data.long=split or other conversations",
                          from->key, (long long)rows, plural(rows), (long long)source->row,
                          from->dir);
}

/* Source s, whose set is open. */
static enum status fill_source(const struct opening *from, int s, struct data_source *out)
{
  struct comm *comm = from->comm;
  const int64_t tokens = token_set_stream(out->set).tokens;
  out->dir = from->dir;
  out->in_order = from->split == SPLIT_VAL;
  out->row = from->sequence;
  out->rows = out->in_order ? (tokens - 1 + out->row - 1) / out->row
                            : token_set_windows(out->set, out->row);
  enum status status = check_maker(out->set, from) ?: check_set(out->set, from) ?: make_room(out);
  status = comm_agree(comm, status);
  if (!status && !*from->maker->of && from->split == SPLIT_TRAIN && comm_rank(comm) == 0)
    hint_vocab(out->set, from->dir, from->deck);
  if (!status && from->deck->data.verify)
    status = token_set_verify(comm, out->set);
  if (!status && (token_set_has_pairs(out->set) || job_packs(from->deck, out->set)))
    status = open_pack(from, s, out);
  if (!status && out->trained && comm_rank(comm) == 0)
    status = find_trained(from, s, out);
  return comm_agree(comm, status);
}

/* Source s. It is closed by the caller, whatever the status. */
static enum status open_one(const struct opening *from, int s, struct data_source *out)
{
  const enum status status = token_set_open(from->comm, from->dir, from->split, &out->set);
  return status ? status_prefix(status, "%s", from->key) : fill_source(from, s, out);
}

enum status data_take(struct comm *comm, const struct deck *deck, int64_t sequence,
                      struct data_sources *data)
{
  const struct data_maker none = {.of = ""};
  const struct opening from = {comm,        deck,     "documents", "random tokens",
                               SPLIT_TRAIN, sequence, &none};
  const enum status status = fill_source(&from, 0, &data->of[0]);
  data->pairs = deck->train.objective == OBJECTIVE_DPO;
  return status || !data->pairs
             ? status
             : comm_agree(comm, mem_new(MEM_DATA, data->of[0].rows, &data->of[0].reference));
}

enum status data_open(struct comm *comm, const struct deck *deck, enum token_split split,
                      int64_t sequence, const struct data_maker *maker, struct data_sources *out)
{
  const bool own = split == SPLIT_VAL && (deck->data.val.n > 0 || deck->data.train.n == 0);
  const struct option_strings *list = own ? &deck->data.val : &deck->data.train;
  struct data_maker first;
  struct opening from = {comm, deck, own ? "data.val" : "data.train", "", split, sequence, maker};
  enum status status = STATUS_OK;
  *out = (struct data_sources){.pairs = deck->train.objective == OBJECTIVE_DPO};
  if (list->n == 0)
    return status_usage(
        "%s is not set: make token shards with `sluice prepare TEXT out=DIR` and set %s=DIR",
        from.key, from.key);
  for (int i = 0; i < list->n && !status; i++) {
    from.dir = list->item[i];
    status = open_one(&from, i, &out->of[i]);
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
