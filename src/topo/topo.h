/* Finds the GPU, the cores and the memory of each rank of a machine (hwloc). It does not call MPI:
 * the caller passes the records of all ranks.
 *
 * A launcher either gives each rank its own mask (mpirun --bind-to socket, srun --cpu-bind=cores),
 * or all ranks the same mask (--bind-to none, a container). Each rank gets the GPU nearest to its
 * mask. No GPU idles while another one has two ranks. Fewer ranks than GPUs are spread over the
 * packages. Each rank gets cores of its mask that are near its GPU. Ranks that may have the same
 * cores split them, along NUMA domains if their number fits the number of ranks.
 *
 * The cores of a rank with a GPU have three parts. The controller has the threads that drive lanes,
 * and MPI. One core is for I/O. The others are for math on the host (optimizer workers). Without a
 * GPU, all cores are for math. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

struct topo;

/* The facts that a rank knows about itself, as numbers that can be summed over ranks: each rank
 * sets its own and leaves zeros for the others. */
enum {
  TOPO_GPUS = 32,
  TOPO_MASK_WORDS = 128
}; /* 8,192 CPUs, the most that Linux can be built for */
struct topo_record {
  int64_t machine, gpus, gpu[TOPO_GPUS], mask[TOPO_MASK_WORDS];
};
enum { TOPO_RECORD_WORDS = sizeof(struct topo_record) / sizeof(int64_t) };
/* This rank's, before topo_bind(). bus: of the GPUs that it sees, by ordinal ("0000:1b:00.0").
 * Local. */
enum status topo_record(int gpus, const char *const bus[], struct topo_record *out);

struct topo_options {
  bool bind;      /* false: threads are counted, nothing is bound */
  int threads;    /* for math; 0: one per physical core, fewer if the control group grants less time
                     (CPU quota) */
  int controller; /* cores for it; 0: 1 or 2 with a GPU, none without */
  int lists;      /* topo.cores: */
  char *const
      *list; /* CPUs of each rank of a machine, instead of the CPUs near its GPU; 0 lists: none */
};

/* The share of `rank`, computed from all ranks' records. Each rank of a machine gets its own share.
 * STATUS_USAGE if the options do not fit. Local, consistent on all ranks of a machine. */
enum status topo_create_job(const struct topo_record *records, int ranks, int rank,
                            const struct topo_options *options, struct topo **out);

/* The shares of ranks that do not exist, for display. */
struct topo_scene {
  const char *xml, *synthetic; /* a file that hwloc wrote; hwloc's synthetic language ("pack:2
                                  numa:1 core:4 pu:2"); both NULL: this machine */
  int ranks;                   /* on the machine; 0: one per GPU */
  int self;                    /* the rank that topo_threads() and the like describe */
  int gpus;  /* -1: those that the machine shows. A machine that shows none is assumed to have so
                many */
  int buses; /* GPUs of this machine by ordinal, as in topo_record(); 0: look for them */
  const char *const *bus;
  int masks; /* 1: the same for all ranks; else one per rank. 0: all CPUs of a described
              * machine, or the CPUs of this process */
  char *const *mask;
  double quota; /* CPU time of a described machine, in CPUs, 0: unlimited */
};
enum status topo_create_scene(const struct topo_scene *scene, const struct topo_options *options,
                              struct topo **out);

/* Takes NULL. Undoes topo_bind(), in the thread that called it: a later job of this process finds
 * the CPUs that this one found. */
void topo_destroy(struct topo *topo);

/* The share of this rank, valid as long as `topo`. */
struct topo_own {
  int threads;      /* for math, at least 1 */
  int cpus;         /* hardware threads for math */
  const int *cores; /* the CPU of each thread; NULL: they are left to the scheduler */
  int io_cpus;      /* CPUs for the thread that does I/O; 0: wherever this process may run */
  const int *io_cores;
  int gpu;                 /* ordinal of its GPU among those that it sees, -1: none */
  bool bound;              /* whether topo_bind() binds anything */
  const char *description; /* "2 cores of NUMA node 0 (CPUs 0-1)" */
  const char *warning;     /* about its mask, "" if it is right */
};
const struct topo_own *topo_own(const struct topo *topo);

/* Binds all threads of this process to its share, or to the controller's part if the share is
 * split. Memory is bound to the NUMA node of the share's cores. If the node is full, the rest comes
 * from other nodes. This holds for memory that the calling thread, or a thread that it starts
 * later, touches first or has a driver pin. A share with cores of several nodes binds no memory:
 * each page goes to the node of the thread that touches it first. A policy that the process was
 * started with is kept. If the kernel does not let memory be bound, that is a warning. A rank that
 * shares a core, because there are too few, is left to the scheduler. So is a rank of a job if a
 * variable of hwloc, such as HWLOC_XMLFILE, describes another machine; topo_create_job() warns. */
enum status topo_bind(struct topo *topo);
/* Bind the calling thread to the part for I/O. */
enum status topo_bind_io(const struct topo *topo);

/* Numbers of pages: near is on a NUMA node of this rank's share, far is on another node. nowhere is
 * not touched yet, or unknown to the kernel. */
struct topo_pages {
  int64_t near, far, nowhere;
};
/* Adds up to 1024 pages of `memory`, evenly spread. STATUS_UNSUPPORTED: the kernel reports nothing,
 * or no memory is local to this rank's cores. Local. */
enum status topo_find_pages(const struct topo *topo, const void *memory, int64_t bytes,
                            struct topo_pages *pages);

/* The shares of all ranks of the machine as a table, and the machine as a picture in text. */
enum status topo_print(const struct topo *topo, FILE *to);

/* The same as single facts. A cell is a text, as snprintf() writes it: sets of CPUs or NUMA nodes
 * such as "0-3,8", a GPU as its index on the machine and its bus, "-" for nothing. A warning of a
 * rank is NULL if nothing is wrong. Local. */
enum { TOPO_CELL = 24576 }; /* bytes of any cell: every second CPU of 8,192 */
enum topo_column {
  TOPO_RANK,
  TOPO_GPU,
  TOPO_NODES, /* of memory */
  TOPO_CORES,
  TOPO_CONTROLLER,
  TOPO_IO,
  TOPO_MATH,
  TOPO_THREADS,
  TOPO_COLUMNS
};
int topo_ranks(const struct topo *topo);
int topo_print_cell(const struct topo *topo, int rank, enum topo_column column, char *out,
                    size_t size);
const char *topo_rank_warning(const struct topo *topo, int rank);
struct topo_machine {
  int packages, nodes, cores, cpus, gpus;
};
void topo_read_machine(const struct topo *topo, struct topo_machine *out);

/* This machine in one line, and how much of it this process may use: for `sluice doctor`. */
struct topo_summary {
  char version[16];                 /* of the hwloc that is loaded */
  int packages, nodes, cores, cpus; /* of the machine; nodes: NUMA nodes with memory */
  int own_cores;                    /* with a CPU in this process' mask */
  double quota;                     /* CPUs of time that control groups grant, 0: unlimited */
  char described[256];              /* warning, "": this is the machine that runs */
};
enum status topo_summary_read(struct topo_summary *out); /* Local */
