/* Documents packed into rows of a fixed length, so that each row holds whole documents and little
 * padding. A document of n tokens takes n - 1 positions, because its last token is a target alone.
 *
 *   documents in the order of an epoch:  | window 0: PACK_WINDOW of them | window 1 | ... |
 *   rows of a window:                    | row | row | ... in an order of their own |
 *   a row:                               | document | document | padding |
 *
 * A window's documents fill its rows by best fit decreasing (D. S. Johnson, "Near-optimal bin
 * packing algorithms", 1973). Rows are a pure function of the seed, the source and the epoch, so
 * they do not depend on ranks, and a resume finds its row again. Memory: 8 bytes per document. */
#pragma once

#include "io/tokens/tokens.h"

enum { PACK_WINDOW = 8192 };

/* What happens to documents with more positions than a row. */
enum pack_long {
  PACK_CUT,  /* the first positions make a row */
  PACK_DROP, /* they are left out */
  PACK_SPLIT /* rows of their own, and a rest; each part begins again */
};

struct pack_config {
  int64_t row; /* positions */
  enum pack_long over;
  bool pairs;    /* rows 2k and 2k + 1 hold the chosen and the rejected conversation of a pair, and
                    nothing else. An epoch has the pairs in an order of its own. PACK_DROP leaves
                    out both of a pair; otherwise one that is longer than a row is refused */
  bool in_order; /* documents and rows are not shuffled */
  uint64_t seed;
  int source; /* of a mixture */
};

/* Of an epoch. `rows` and `filled`: of the first one. */
struct pack_facts {
  int64_t documents;
  int64_t empty;  /* of one token, which are left out */
  int64_t longer; /* than a row */
  int64_t lost;   /* positions of longer ones that are in no row */
  int64_t rows;
  int64_t filled; /* positions of these rows that hold documents */
};

/* Tokens [at, at + n] of the stream: n inputs and n targets. */
struct pack_piece {
  int64_t at, n;
};

struct pack;
/* STATUS_INPUT if no row would hold anything. Free with pack_destroy(). Keeps `set`. Collective. */
enum status pack_create(struct comm *comm, struct token_set *set, const struct pack_config *config,
                        struct pack **out);
void pack_destroy(struct pack *pack); /* takes NULL */
struct pack_facts pack_facts(const struct pack *pack);
/* The pieces of row `index`, counted over all epochs, in *out, which is valid until the next call.
 * Returns their number. No allocation. Rows that follow each other are found at once. A search from
 * the first row takes about 1 us per document. One thread at a time. */
int pack_row(struct pack *pack, int64_t index, const struct pack_piece **out);
/* With pairs: the place of row `index` among the rows of an epoch in order. Pure. */
int64_t pack_place(const struct pack *pack, int64_t index);
