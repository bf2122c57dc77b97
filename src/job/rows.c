/* What the data say of the rows of a plan, before it is made. */
#include "base/mem.h"
#include "job/job.h"

bool job_packs(const struct deck *deck, const struct token_set *set)
{
  return !token_set_has_pairs(set) &&
         (deck->data.pack == DECK_PACK_YES ||
          (deck->data.pack == DECK_PACK_AUTO && token_set_untrained(set) > 0));
}

/* The mean sum of squares in a full row of documents: of the first ones. */
static enum status measure_documents(struct comm *comm, const struct deck *deck,
                                     struct token_set *set, double *squares)
{
  enum { MOST = 8192 };
  const int64_t all = token_set_documents(set), n = all < MOST ? all : MOST,
                row = deck->data.sequence ?: deck->model.context;
  int64_t *first = NULL;
  double filled = 0, sum = 0;
  enum status status = mem_new(MEM_DATA, n + 1, &first);
  if (!status && comm_rank(comm) == 0)
    status = token_set_read_documents(set, 0, n < all ? n + 1 : n, first);
  for (int64_t d = 0; d < n && !status; d++) {
    const int64_t end = d + 1 < all ? first[d + 1] : token_set_stream(set).tokens;
    int64_t left = end - first[d] - 1;
    const bool drop = left > row && deck->data.over == DECK_LONG_DROP;
    if (left > row && deck->data.over == DECK_LONG_CUT)
      left = row;
    for (; left > 0 && !drop; left -= row) {
      const double part = (double)(left < row ? left : row);
      filled += part;
      sum += part * part;
    }
  }
  *squares = filled > 0 ? sum / filled * (double)row : 0;
  mem_free(first);
  return comm_agree(comm, status) ?: comm_broadcast(comm, squares, sizeof *squares, 0);
}

/* A folder that cannot be opened is reported when its data are needed. */
static enum status look(struct comm *comm, const struct deck *deck,
                        const struct option_strings *list, enum token_split split,
                        struct deck_rows *out)
{
  double weight[DECK_SOURCES] = {0}, sum = 0, weights = 0;
  const double row = (double)(deck->data.sequence ?: deck->model.context);
  enum status status = STATUS_OK;
  *out = (struct deck_rows){.packed = deck->data.pack == DECK_PACK_YES, .apart = out->apart};
  if (list == &deck->data.train)
    deck_weights(deck, weight);
  for (int i = 0; i < list->n && !status; i++) {
    struct token_set *set = NULL;
    double squares = row * row;
    if (token_set_open(comm, list->item[i], split, &set))
      continue;
    if (job_packs(deck, set)) {
      out->packed = true;
      status = measure_documents(comm, deck, set, &squares);
    }
    const double own = weight[i] > 0 ? weight[i] : (double)token_set_stream(set).tokens;
    sum += own * squares;
    weights += own;
    token_set_close(set);
  }
  if (out->packed && weights > 0)
    out->squares = sum / weights;
  return status;
}

enum status job_make_data(const struct deck *deck, int64_t documents, struct token_set **out)
{
  const bool pairs = deck->train.objective == OBJECTIVE_DPO;
  const struct token_made made = {(uint64_t)deck->run.seed, deck->model.vocab, documents, pairs};
  return pairs && documents == 0
             ? status_usage("train.objective is dpo: set documents to the mean length of a "
                            "conversation")
             : token_set_make(&made, out);
}

enum status job_look_at_data(struct comm *comm, struct deck *deck, struct token_set *made)
{
  const struct option_strings *train = &deck->data.train,
                              *val = deck->data.val.n > 0 ? &deck->data.val : train;
  if (made) {
    deck->rows[0] = (struct deck_rows){.packed = job_packs(deck, made)};
    return deck->rows[0].packed ? measure_documents(comm, deck, made, &deck->rows[0].squares)
                                : STATUS_OK;
  }
  return look(comm, deck, train, SPLIT_TRAIN, &deck->rows[0])
             ?: look(comm, deck, val, SPLIT_VAL, &deck->rows[1]);
}
