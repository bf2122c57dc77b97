/* The ranks of a test of files, and their folder. */
#pragma once

#include "base/log.h"
#include "base/mem.h"
#include "comm/ops.h"
#include "io/text/file.h"
#include "tests/io/checkpoint/sample.h"
#include "tests/test.h"

static struct comm *job;
static char *dir;

FIXTURE(start)
{
  must(comm_create_mpi(NULL, NULL, &job));
  log_set_rank(comm_rank(job));
  dir = sample_folder(job);
  return 0;
}

FIXTURE(stop)
{
  sample_folder_remove(job, dir);
  comm_destroy(job);
  return 0;
}

/* Each rank is a node of its own, or not any more. */
static inline void part_nodes(bool apart)
{
  job->local_ranks = apart ? 1 : job->ranks;
}

static inline bool is_root(void)
{
  return comm_rank(job) == 0;
}

/* For what rank 0 does and the others wait for. */
static inline void everybody_waits(void)
{
  must(comm_barrier(job));
}

static inline void expect_same_files(const char *left, const char *right)
{
  char *a, *b;
  size_t n, m;
  must(file_read_all(left, 1 << 24, &a, &n));
  must(file_read_all(right, 1 << 24, &b, &m));
  assert_int_equal(n, m);
  assert_memory_equal(a, b, n);
  mem_free(a);
  mem_free(b);
}

static inline enum status save_to(const char *where, enum sample_split split, int64_t step,
                                  int seed, bool big, char **path)
{
  struct sample sample;
  sample_make(&sample, job, split, step, seed, big, true);
  const enum status status =
      checkpoint_save(job, where, &sample.meta, sample.n, sample.tensor, path);
  assert_int_equal(sample_wrong(&sample, seed), 0); /* saving changes nothing */
  sample_free(&sample);
  return status;
}
