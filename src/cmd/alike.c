/* Refuses a start in which ranks were given different words or values. */
#include "cmd/alike.h"

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

/* All ranks call this. On at least one of them `mine` differs from rank 0's. */
static enum status explain(struct comm *comm, const char *what, char *mine)
{
  char *first = mine, *other = mine; /* a rank that broadcasts keeps its own */
  enum status status = comm_broadcast_text(comm, &first, 0);
  int64_t rank = status || !strcmp(first, mine) ? -comm_ranks(comm) : -comm_rank(comm);
  if (!status)
    status = comm_max_i64(comm, &rank, 1); /* the lowest rank */
  status = status ?: comm_broadcast_text(comm, &other, (int)-rank);
  if (!status)
    status =
        status_usage("%s is %s on rank 0 and %s on rank %d: start all ranks with the same command",
                     what, first, other, (int)-rank);
  if (first != mine)
    mem_free(first);
  if (other != mine)
    mem_free(other);
  return status;
}

/* The maximum of the complements gives the minimum, which is compared with the maximum. */
static enum status find_first(struct comm *comm, int n, int64_t *hash, int *first)
{
  for (int i = 0; i < n; i++)
    hash[n + i] = ~hash[i];
  const enum status status = comm_max_i64(comm, hash, 2 * n);
  *first = 0;
  while (!status && *first < n && hash[*first] == ~hash[n + *first])
    ++*first;
  return status;
}

enum status alike_check_text(struct comm *comm, const char *what, char *text)
{
  int64_t hash[2] = {(int64_t)hash_text(text)};
  int first;
  if (comm_ranks(comm) == 1)
    return STATUS_OK;
  const enum status status = find_first(comm, 1, hash, &first);
  return status || first == 1 ? status : explain(comm, what, text);
}

static enum status hash_options(const struct option *table, const struct option_set *set, int n,
                                int64_t *hash)
{
  for (int i = 0; i < n; i++) {
    char *text = NULL;
    const enum status status = options_print_named(set, table[i].name, &text);
    if (status)
      return status;
    hash[i] = (int64_t)hash_text(text);
    mem_free(text);
  }
  return STATUS_OK;
}

static enum status explain_option(struct comm *comm, const struct option_set *set, const char *name)
{
  char *text = NULL;
  const enum status status =
      comm_agree(comm, options_print_named(set, name, &text)) ?: explain(comm, name, text);
  mem_free(text);
  return status;
}

enum status alike_check_options(struct comm *comm, const struct option *table,
                                const struct option_set *set)
{
  int n = 0, first = 0;
  int64_t *hash = NULL;
  while (table[n].name)
    n++;
  if (comm_ranks(comm) == 1)
    return STATUS_OK;
  enum status status =
      comm_agree(comm, mem_new(MEM_META, 2 * n, &hash) ?: hash_options(table, set, n, hash))
          ?: find_first(comm, n, hash, &first);
  if (!status && first < n)
    status = explain_option(comm, set, table[first].name);
  mem_free(hash);
  return status;
}
