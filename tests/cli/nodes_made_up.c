/* Loaded before MPI: the ranks of one machine are on nodes of NODES ranks, such as "4,2,2". */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

int MPI_Comm_split_type(MPI_Comm from, int type, int key, MPI_Info info, MPI_Comm *out)
{
  int rank = 0, node = 0, last = 0;
  (void)type, (void)info;
  MPI_Comm_rank(from, &rank);
  for (const char *ranks = getenv("NODES"); ranks && *ranks; ranks += *ranks == ',') {
    last += (int)strtol(ranks, (char **)&ranks, 10);
    node += rank >= last;
  }
  return MPI_Comm_split(from, node, key, out);
}
