/* The files by which Open MPI's ranks of a node find the memory that they share: segments in /dev/shm, which outlive a rank that is killed, and hold memory of the node. Once all have
 * found them nobody looks for them again, so their names go, and the memory with the last process. Where there are none, nothing is done. */
#ifndef SLUICE_COMM_SEGMENTS_H
#define SLUICE_COMM_SEGMENTS_H

/* Remove the name of this rank's own, `local_rank` of its node; when all ranks of the node have left MPI_Init. Local. */
void segments_hide(int local_rank);
/* Before MPI_Finalize(), which removes what it made and complains where it is not there: an empty file of that name. Local. */
void segments_show(void);

#endif
