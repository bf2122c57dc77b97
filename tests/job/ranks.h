/* Tests of the state of jobs on the ranks of mpirun, in a folder of their own. */
#pragma once

#include "tests/job/fixture.h"
#include "tests/test.h"

extern struct comm *comm;
extern char *dir, *ranks_file; /* of all ranks; a checkpoint in it */
/* Whether moments are numbers that 16-bit types hold, too. */
extern bool ranks_narrow;
/* Whether narrow moments are numbers that block8 holds, too. */
extern bool ranks_blocks;
/* Whether parameters are numbers that bf16 and e4m3 hold. */
extern bool ranks_rounded;

/* Whether the folder holds files at the end. They are then removed. */
extern bool ranks_untidy;

enum { RANKS_MOST = 4096 }; /* elements of a tensor */

/* Before the first test, and after the last one. */
int ranks_start(void **state);
int ranks_stop(void **state);

/* Runs the tests of the program, which includes this header. Returns its exit status. */
static inline int ranks_main(int argc, char **argv)
{
  if (comm_create_mpi(&argc, &argv, &comm))
    return 1;
  const int failed = test_run(ranks_start, ranks_stop);
  comm_destroy(comm);
  return failed;
}

/* Element e of a tensor, the same on every rank. It has any bits, unless it is a narrow moment. */
float ranks_value(const char *group, const char *name, int64_t e);
/* Sets all state to these values, or to zero. */
void ranks_fill(struct job *job, bool zeros);
/* All state that this rank holds, or that it alone saves, has these values. */
void ranks_check(const struct job *job, bool unique);
void ranks_check_tensor(const struct io_tensor *tensor, const char *what);

/* The bytes of a buffer of any tier; the caller frees them. */
void ranks_read(const struct job *job, int buffer, char **out);
/* The checkpoint that all ranks write; it is removed after all have read it. */
void ranks_save(const struct job *job);
void ranks_remove(void);
