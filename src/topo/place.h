/* Private part of topo.h: a machine with its GPUs, and the shares of the ranks on it. Only for
 * src/topo. */
#pragma once

#include <hwloc.h>
#include <stdbool.h>

#include "topo/topo.h"

/* Cores that share their local memory. */
struct domain {
  hwloc_obj_t node;    /* NUMA node that they allocate from; NULL: none is local */
  hwloc_obj_t package; /* of the first core; NULL: the machine shows none */
  hwloc_bitmap_t cpus;
};

struct gpu {
  int64_t bus; /* domain, bus, device and function as one number; -1: not of this machine's PCI
                  tree, but assumed */
  hwloc_bitmap_t near; /* CPUs near it; all if the machine does not report them */
};

enum { SHARE_SETS = 7 };

/* The share of one rank. */
struct share {
  union {
    struct {
      hwloc_bitmap_t mask;                 /* CPUs that its launcher, or topo.cores, gave it */
      hwloc_bitmap_t near;                 /* of the mask, those near its GPU: it may have them */
      hwloc_bitmap_t cpus;                 /* CPUs that it has */
      hwloc_bitmap_t controller, io, math; /* parts of them; equal if `split` is false */
      hwloc_bitmap_t nodes;                /* NUMA nodes that its cores allocate from */
    };
    hwloc_bitmap_t set[SHARE_SETS]; /* all of these */
  };
  int visible, sees[TOPO_GPUS]; /* indices of GPUs, by the rank's own ordinals */
  int sharers;                  /* ranks with this mask */

  int ordinal; /* of its GPU among those that it sees, -1: none */
  int cores;
  int rivals;        /* ranks on fewer cores together, itself included: it shares one; 0: no */
  bool split;        /* controller, I/O and math have cores of their own */
  int threads, *cpu; /* of the math */
  int io_cpus, *io_cpu;
  char *warning; /* NULL: nothing is wrong */
};

struct topo {
  hwloc_topology_t machine;
  struct topo_options options;
  double quota;
  int domains;
  struct domain *domain; /* in the order of their first cores */
  int gpus;
  struct gpu gpu[TOPO_GPUS];
  int ranks, self;
  struct share *share;
  char *description;
  struct topo_own own;
  bool memory_bound;     /* by topo_bind() */
  hwloc_bitmap_t before; /* CPUs of the thread that called topo_bind(), NULL: not called */
};

/* The check of calls of hwloc. */
#define HWLOC(call) topo_check(call, #call)
enum status topo_check(int result, const char *call);

/* Operations on sets of CPUs or nodes fail only if memory is out. That is remembered for this
 * thread, and sets_status() returns and forgets it. */
#define SET(call) sets_note(call)
void sets_note(int result);
enum status sets_status(void);
enum status set_create(hwloc_bitmap_t *out);

/* All CPUs of the masks of the ranks. The caller frees them, also after an error. */
enum status topo_join_masks(const struct topo *topo, hwloc_bitmap_t *out);

/* Whether a rank is bound, and whether its memory is: if its cores have one of several NUMA nodes
 * of the machine.
 */
bool share_binds(const struct topo *topo, const struct share *share);
bool share_binds_memory(const struct topo *topo, const struct share *share);

/* --- the machine (machine.c) */

/* This one, or one of a file that hwloc wrote, or one in its synthetic language. */
enum status machine_load(const char *xml, const char *synthetic, hwloc_topology_t *out);
/* Whether a variable of hwloc put a description in place of this machine. `out`: a sentence, "" if
 * not. */
bool machine_is_described(hwloc_topology_t machine, char *out, size_t size);
/* All of them, disallowed ones included. */
static inline hwloc_const_bitmap_t machine_cpus(hwloc_topology_t machine)
{
  return hwloc_topology_get_topology_cpuset(machine);
}
/* CPUs of a list. STATUS_USAGE names `what`, the source of the list. */
enum status machine_read_cpus(const char *what, const char *list, hwloc_bitmap_t out);
/* The next core with a CPU in the mask, after `core` (NULL: the first). */
hwloc_obj_t machine_next_core(hwloc_topology_t machine, hwloc_const_bitmap_t mask,
                              hwloc_obj_t core);
int machine_count_cores(hwloc_topology_t machine, hwloc_const_bitmap_t mask);
/* out = the CPUs in the mask of its cores begin ... end - 1. */
void machine_take_cores(hwloc_topology_t machine, hwloc_const_bitmap_t mask, int begin, int end,
                        hwloc_bitmap_t out);
/* Whether a NUMA node has memory. */
bool machine_has_memory(hwloc_topology_t machine, hwloc_obj_t node);
/* All domains of topo->machine, disallowed CPUs included. topo_destroy() frees them. */
enum status machine_find_domains(struct topo *topo);

/* "0000:1b:00.0" */
enum status machine_read_bus(const char *text, int64_t *out);
struct bus_text {
  char text[32];
};
struct bus_text machine_bus_text(int64_t bus);
/* "GPU 0000:1b:00.0" or "assumed GPU", for a sentence */
struct bus_text machine_gpu_text(int64_t bus);

/* The GPU on this bus, by its place in topo->gpu, where it is added if it is new. */
enum status machine_add_gpu(struct topo *topo, int64_t bus, int *index);
/* All that the machine shows, in the order of their buses, or the first `most` of them. */
enum status machine_find_gpus(struct topo *topo, int most);
/* `n` of them, spread evenly over the domains with CPUs that may be used. */
enum status machine_assume_gpus(struct topo *topo, int n);

/* --- cores (split.c) */

/* Gives every rank CPUs of its set `near`: `cpus`, `cores`, `rivals`. STATUS_USAGE refuses masks
 * that overlap without being equal. Local. */
enum status split_cores(const struct topo *topo);

/* --- the shares (place.c) */

/* "0-3,8" */
struct list_text {
  char text[TOPO_CELL];
};
struct list_text list_text(hwloc_const_bitmap_t set);
/* The next package with one of the CPUs, after `package` (NULL: the first). */
hwloc_obj_t topo_next_package(const struct topo *topo, hwloc_const_bitmap_t cpus,
                              hwloc_obj_t package);
/* NULL: it has none. */
const struct gpu *share_gpu(const struct topo *topo, const struct share *share);
enum status share_create(struct share *share);
void share_destroy(struct share *share); /* takes a zeroed one */
/* Masks, visible GPUs and options are given; the rest is found. */
enum status place_ranks(struct topo *topo);
