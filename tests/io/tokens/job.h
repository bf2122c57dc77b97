/* The ranks and folders of a test of token shards, `sluice prepare` or `sluice tokenizer train`.
 * Every test finds `in` and `out` missing, and leaves them so. */
#pragma once

#include "base/log.h"
#include "tests/io/tokens/corpus.h"

static struct comm *job, *alone; /* alone: one rank, without MPI */
static char folder[64], in[80], out[80], one[80], corpus[600], data[512];
static bool root; /* rank 0 */

/* For what one rank does and the others wait for. */
static inline void everybody_waits(void)
{
  must(comm_barrier(job));
}

static inline void remove_on_root(const char *path)
{
  everybody_waits();
  if (root)
    folder_remove(path);
  everybody_waits();
}

/* An input file. */
static inline void put_in(const char *name, const void *content, size_t bytes)
{
  everybody_waits();
  if (root)
    corpus_put(in, name, content, bytes);
  everybody_waits();
}

static inline void remove_all(void)
{
  remove_on_root(in);
  remove_on_root(out);
  remove_on_root(one);
}

FIXTURE(tear_down)
{
  remove_on_root(folder);
  return 0;
}

static int job_main(int argc, char **argv, CMFixtureFunction set_up)
{
  const char *top = getenv("top_srcdir");
  if (comm_create_mpi(&argc, &argv, &job) || comm_create_fake(0, 1, 1, &alone)) {
    fprintf(stderr, "%s\n", status_text());
    return 1;
  }
  log_set_rank(comm_rank(job));
  log_set_level(LOG_ERROR);
  root = comm_rank(job) == 0;
  strcpy(folder, "/tmp/sluice-tokens-XXXXXX");
  if ((root && !mkdtemp(folder)) || comm_broadcast(job, folder, sizeof folder, 0))
    return 1;
  snprintf(data, sizeof data, "%s/tests/io/data", top ? top : ".");
  snprintf(in, sizeof in, "%s/in", folder);
  snprintf(out, sizeof out, "%s/deep/out", folder);
  snprintf(one, sizeof one, "%s/one", folder);
  snprintf(corpus, sizeof corpus, "%s/corpus", folder);
  const int failed = test_run(set_up, tear_down);
  comm_destroy(alone);
  comm_destroy(job);
  return failed;
}
