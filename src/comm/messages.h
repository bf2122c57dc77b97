/* Shared by the files of src/comm and io/ that exchange MPI messages. The bodies are in mpi.c. */
#pragma once

#include <mpi.h>

#include "comm/ops.h"

/* The result of `call`, then of the completion of its request. The calling thread sleeps while it
 * waits. */
enum status comm_mpi_wait(int error, const char *call, MPI_Request *request);
#define COMM_MPI_WAIT(call, request) comm_mpi_wait(call, #call, request)
/* The elements of all ranks of an mpi job, `size` bytes each, in the order of the ranks. *n is
 * their number: before the call of this rank, after it of all ranks. mem_free. The thread sleeps
 * while it waits. STATUS_UNSUPPORTED: they are more than MPI can count. Collective. */
enum status comm_mpi_gather(struct comm *comm, enum mem_tag tag, const void *mine, int size,
                            int64_t *n, void **all);
/* The name of the loaded MPI library, such as "MPICH 4.0.2". */
enum status comm_mpi_version(char text[MPI_MAX_LIBRARY_VERSION_STRING]);
/* Whether the loaded MPI library accepts pointers to GPU memory: 1 yes, 0 no, -1 it does not report
 * it. */
int comm_mpi_cuda_aware(void);
