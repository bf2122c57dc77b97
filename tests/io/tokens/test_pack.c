/* Rows of documents. Oracles: rows by hand; a plain best fit decreasing over each window; every
 * position of every document once in an epoch; a row asked for alone is the row of a walk. */
/* ranks: 1 3 */
#include "job.h"

#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "io/text/file.h"
#include "io/tokens/index.h"
#include "io/tokens/pack.h"
#include "tests/rows.h"

enum { MOST = 3 * PACK_WINDOW + 5 };
static int64_t length[MOST], first[MOST + 1];
static char dir[80];

/* A folder of two shards, between which a document may go on. */
static struct token_set *make_set(int n)
{
  struct token_set *set = NULL;
  struct shard_info info[2];
  uint16_t *token = NULL;
  uint64_t *begin = NULL;
  first[0] = 0;
  for (int d = 0; d < n; d++)
    first[d + 1] = first[d] + length[d];
  const int64_t cut[] = {0, first[n] / 2, first[n]};
  must(mem_new(MEM_DATA, first[n], &token));
  must(mem_new(MEM_DATA, n, &begin));
  if (root)
    must(file_make_folders(dir));
  for (int s = 0; s < 2 && root; s++) {
    info[s] = (struct shard_info){.groups = 2,
                                  .group = s,
                                  .last = 1,
                                  .tokenizer = {.name = "test", .vocab = 50},
                                  .part_tokens = {cut[s + 1] - cut[s], 0}};
    for (int d = 0; d < n; d++)
      if (first[d] >= cut[s] && first[d] < cut[s + 1])
        begin[info[s].documents++] = (uint64_t)(first[d] - cut[s]);
    const struct file_path path = shard_path(dir, SPLIT_TRAIN, s, 0);
    must(shard_write(path.text, &info[s], "test", token, begin, NULL));
    must(shard_read(path.text, &info[s]));
  }
  if (root)
    must(shard_index_write(dir, 2, info));
  everybody_waits();
  must(token_set_open(job, dir, SPLIT_TRAIN, &set));
  mem_free(token);
  mem_free(begin);
  return set;
}

static void drop(struct token_set *set)
{
  token_set_close(set);
  remove_on_root(dir);
}

static int document_at(int n, int64_t at)
{
  int d = 0;
  for (int high = n - 1; d < high;) {
    const int middle = (d + high + 1) / 2;
    if (first[middle] <= at)
      d = middle;
    else
      high = middle - 1;
  }
  return d;
}

static enum pack_long over_of(const char *name)
{
  return !strcmp(name, "drop") || !strcmp(name, "pairs") ? PACK_DROP
         : !strcmp(name, "split")                        ? PACK_SPLIT
                                                         : PACK_CUT;
}

static void check_rows(const char *given, const char *expected)
{
  struct pack_config config = {.in_order = true};
  char over[8], got[400] = "";
  int n = 0, used, more;
  assert_int_equal(sscanf(given, "%ld %7s%n", &config.row, over, &used), 2);
  for (; sscanf(given + used, "%ld%n", &length[n], &more) == 1; used += more)
    n++;
  config.over = over_of(over);
  config.pairs = !strncmp(over, "pair", 4);
  struct token_set *set = make_set(n);
  struct pack *pack = NULL;
  if (pack_create(job, set, &config, &pack))
    snprintf(got, sizeof got, "%s", status_text());
  for (int64_t r = 0; pack && r < pack_facts(pack).rows; r++) {
    const struct pack_piece *piece;
    const int pieces = pack_row(pack, r, &piece);
    for (int p = 0; p < pieces; p++) {
      const int d = document_at(n, piece[p].at);
      snprintf(got + strlen(got), sizeof got - strlen(got), "%s%d:%ld+%ld",
               p   ? " "
               : r ? " | "
                   : "",
               d, piece[p].at - first[d], piece[p].n);
    }
  }
  assert_string_equal(got, expected);
  pack_destroy(pack);
  drop(set);
}

TEST(test_rows)
{
  rows_each("tests/io/tokens/pack.txt", NULL, check_rows);
}

/* An epoch has each pair once, in an order of its own. */
TEST(test_pairs)
{
  enum { PAIRS = 11 };
  struct pack *pack = NULL;
  int seen[3][PAIRS] = {0}, order[3][PAIRS], same = 0;
  for (int d = 0; d < 2 * PAIRS; d++)
    length[d] = d == 6 ? 9 : 2 + d % 5;
  struct token_set *set = make_set(2 * PAIRS);
  must(pack_create(job, set,
                   &(struct pack_config){.row = 7, .over = PACK_DROP, .pairs = true, .seed = 4},
                   &pack));
  const int64_t pairs = PAIRS - 1;
  assert_int_equal(pack_facts(pack).rows, 2 * pairs);
  for (int64_t r = 0; r < 6 * pairs; r++) {
    const struct pack_piece *piece;
    assert_int_equal(pack_row(pack, r, &piece), 1);
    const int d = document_at(2 * PAIRS, piece->at);
    assert_int_equal(piece->at, first[d]);
    assert_int_equal(piece->n, length[d] - 1);
    assert_int_equal(d % 2, r % 2);
    assert_int_equal(pack_place(pack, r), d - (d > 6 ? 2 : 0));
    if (r % 2)
      assert_int_equal(d / 2, order[r / 2 / pairs][r / 2 % pairs]);
    order[r / 2 / pairs][r / 2 % pairs] = d / 2;
    seen[r / 2 / pairs][d / 2]++;
  }
  for (int k = 0; k < PAIRS; k++) {
    assert_true(seen[0][k] == 2 * (k != 3) && seen[1][k] == seen[0][k]);
    same += k < pairs && order[0][k] == order[1][k];
  }
  assert_true(same < pairs / 2);
  pack_destroy(pack);
  drop(set);
}

/* A document of no tokens, which no writer makes. */
TEST(test_a_table_that_does_not_rise)
{
  struct pack *pack = NULL;
  const struct pack_config config = {.row = 4};
  for (int d = 0; d < 3; d++)
    length[d] = d == 1 ? 0 : 5;
  struct token_set *set = make_set(3);
  must_fail(pack_create(job, set, &config, &pack), STATUS_INPUT, "the table of documents does not");
  drop(set);
}

/* Log-normal lengths with a mean of 700. */
static void draw_lengths(int n)
{
  const struct rng_key key = rng_key_make(1, "lengths");
  for (int d = 0; d < n; d++) {
    float normal;
    rng_fill_normal(key, 0, (uint64_t)d, 1, 0, 1, &normal);
    length[d] = 1 + (int64_t)(700 * exp(0.9 * (double)normal - 0.405));
  }
}

/* The rows of best fit decreasing of a window's documents, by definition: their number. */
static int64_t count_rows(const struct pack_piece *part, int n, int64_t row)
{
  static int64_t room[PACK_WINDOW], size[PACK_WINDOW];
  int64_t rows = 0;
  for (int i = 0; i < n; i++) {
    int at = i;
    for (; at > 0 && size[at - 1] < part[i].n; at--)
      size[at] = size[at - 1];
    size[at] = part[i].n;
  }
  for (int i = 0; i < n; i++) {
    int64_t best = -1;
    for (int64_t r = 0; r < rows; r++)
      if (room[r] >= size[i] && (best < 0 || room[r] < room[best]))
        best = r;
    if (best < 0)
      room[best = rows++] = row;
    room[best] -= size[i];
  }
  return rows;
}

/* Two epochs of three windows and a part of one, walked, with what each window must have. */
TEST(test_epochs)
{
  enum { ROW = 4096 };
  static uint8_t seen[MOST];
  static struct pack_piece part[PACK_WINDOW];
  const struct pack_config config = {.row = ROW, .seed = 5, .source = 1};
  const struct pack_piece *piece;
  struct pack *pack, *other;
  draw_lengths(MOST);
  struct token_set *set = make_set(MOST);
  must(pack_create(job, set, &config, &pack));
  const struct pack_facts facts = pack_facts(pack);
  assert_true((double)facts.filled > 0.97 * ROW * (double)facts.rows);
  int64_t row = 0, place = 0;
  for (int epoch = 0; epoch < 2; epoch++) {
    int64_t filled = 0, moved = 0;
    memset(seen, 0, sizeof seen);
    for (int window = 0; window < 4; window++) {
      const int documents = window < 3 ? PACK_WINDOW : MOST - 3 * PACK_WINDOW;
      int64_t rows = 0;
      int n = 0;
      while (n < documents) {
        const int pieces = pack_row(pack, row++, &piece);
        int64_t used = 0;
        for (int p = 0; p < pieces; p++) {
          const int d = document_at(MOST, piece[p].at);
          const int64_t all = length[d] - 1;
          assert_true(piece[p].at == first[d] && piece[p].n == (all < ROW ? all : ROW));
          assert_int_equal(seen[d]++, 0);
          part[n++] = piece[p];
          used += piece[p].n;
          moved += d != place++;
        }
        assert_in_range(used, 1, ROW);
        filled += used;
        rows++;
      }
      assert_int_equal(n, documents);
      if (window != 1) /* once is enough */
        assert_int_equal(rows, count_rows(part, n, ROW));
    }
    assert_int_equal(filled, facts.filled);
    assert_true(moved > MOST / 2);
    if (epoch == 0)
      assert_int_equal(row, facts.rows);
  }
  must(pack_create(job, set, &config, &other));
  for (int64_t i = 0; i < 40; i++) {
    struct pack_piece want[PACK_WINDOW];
    const int64_t at = (i * 7919 + comm_rank(job)) % row;
    const int pieces = pack_row(pack, at, &piece);
    memcpy(want, piece, (size_t)pieces * sizeof *piece);
    if (i % 10 == 0) { /* as a resume does */
      pack_destroy(other);
      must(pack_create(alone, set, &config, &other));
    }
    assert_int_equal(pack_row(other, at, &piece), pieces);
    assert_memory_equal(piece, want, (size_t)pieces * sizeof *piece);
  }
  pack_destroy(other);
  pack_destroy(pack);
  drop(set);
}

FIXTURE(set_up)
{
  snprintf(dir, sizeof dir, "%s/set", folder);
  return 0;
}

int main(int argc, char **argv)
{
  return job_main(argc, argv, set_up);
}
