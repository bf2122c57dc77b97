/* `sluice doctor`: facts of a rank and their judgements. A judgement is a pure function from facts
 * to a finding (doctor_judge.c). Facts of folders and of the bus are read in doctor_facts.c.
 * Private to src/cmd and its tests. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/collect.h"
#include "comm/launch.h"
#include "comm/mpi_info.h"
#include "gpu/net.h"
#include "gpu/versions.h"
#include "io/hdf5/version.h"
#include "io/text/file_system.h"
#include "io/text/stripes.h"
#include "topo/topo.h"

enum verdict { VERDICT_OK, VERDICT_WARNING, VERDICT_FAULT };
const char *verdict_name(enum verdict verdict); /* "ok", "warning", "fault" */

enum { DOCTOR_TEXT = 640, DOCTOR_HOST = 64, DOCTOR_MOST_PLACES = 8 };

/* The lines of the page, in its order. Every rank contributes to them, except that START, NODES and
 * CLOCKS are rank 0's alone. */
/* clang-format off */
enum doctor_line {
  DOCTOR_BUILD, DOCTOR_START, DOCTOR_NODES, DOCTOR_MPI, DOCTOR_CUDA_AWARE, DOCTOR_TRANSPORT,
  DOCTOR_FABRIC, DOCTOR_GPUS, DOCTOR_NCCL, DOCTOR_NCCL_NET, DOCTOR_HDF5, DOCTOR_CORES,
  DOCTOR_PAPI, DOCTOR_CHATS, DOCTOR_MEMLOCK, DOCTOR_SHARED_MEMORY, DOCTOR_MEMORY, DOCTOR_CLOCKS,
  DOCTOR_DECK, DOCTOR_FOLDER, DOCTOR_WEIGHTS, DOCTOR_DATA, DOCTOR_PLACES,
  DOCTOR_LINES = DOCTOR_PLACES + DOCTOR_MOST_PLACES
};
/* clang-format on */

/* One line of the page, of one rank. The text of a warning or a fault has the cure. */
struct finding {
  enum verdict verdict;
  bool common;   /* the text should be the same on all nodes */
  double amount; /* among findings of the same verdict, the one with the least amount is reported */
  char what[16]; /* "": no finding on this rank */
  char text[DOCTOR_TEXT];
};

/* A rank's message to rank 0, as plain bytes. */
struct doctor_report {
  char host[DOCTOR_HOST];
  int node; /* the lowest rank of it */
  struct finding finding[DOCTOR_LINES];
};

/* A folder, and the result of writing to it. */
struct doctor_disk {
  const char *dir;
  bool shared; /* all nodes should see files that one of them writes; otherwise a folder on NVMe,
                  which should be on each node's own disk */
  bool seen;   /* this node sees them */
  struct file_system system;
  struct stripes stripes; /* of DIR/ckpt, or of what is there of that path */
  int64_t written;        /* bytes */
  double seconds;         /* for `written` bytes, with the flush to the disk */
  char failure[256];      /* "": writing succeeded */
};

/* Facts of a rank. A member that cannot be read is zeroed. */
struct doctor_facts {
  int ranks, local_ranks, nodes;
  const char *version, *compiler, *flags, *sanitizer, *configured; /* the build's */
  const char *built_mpi, *built_nccl, *built_papi;                 /* "": the build has none */
  const char *cray, *tls, *provider; /* MPICH_GPU_SUPPORT_ENABLED, UCX_TLS, FI_PROVIDER, or NULL */
  struct mpi_info mpi;
  struct comm_fabric fabric;
  bool cuda, card; /* the build has CUDA, the machine an NVIDIA GPU */
  bool asked_net;  /* `net` was read */
  struct gpu_net net;
  struct gpu_versions gpus;
  struct hdf5_version hdf5;
  struct topo_summary machine;
  int events;        /* that are counted */
  const char *note;  /* op_counters_note() */
  const char *chats; /* why no conversation can be prepared; "": it can; NULL: not tried */
  /* Bytes; -1: no limit, or not known. shared_size -1: there is no /dev/shm. */
  int64_t memlock, shared_size, shared_free, memory_total, memory_available, memory_limit;
};

/* The folder of a run. */
struct doctor_run {
  const char *refusal; /* why a run would not start; NULL: it would */
  const char *dir;
  int64_t need, free; /* bytes of a checkpoint, and bytes for them */
  int64_t stopped; /* the step of the newest checkpoint of a run in this folder that can continue,
                      0: there is none */
};

/* Add findings to those of a rank, finding[DOCTOR_LINES]. A line that has one is left alone. */
void doctor_judge(const struct doctor_facts *facts, struct finding *finding);
void doctor_judge_start(int ranks, struct launch launch, struct finding *finding);
/* NODES and CLOCKS, from all ranks' reports and clocks. */
void doctor_judge_job(int ranks, const struct doctor_report *report,
                      const struct comm_offset *offset, struct finding *finding);
void doctor_judge_run(const struct doctor_run *run, struct finding *finding);
void doctor_judge_disk(int place, int nodes, const struct doctor_disk *disk,
                       struct finding *finding);
/* refusal: the reason why a run would not start, or a library's; NULL: none, and then the text is
 * `fine`. */
void doctor_judge_refusal(enum doctor_line line, const char *what, const char *refusal,
                          const char *fine, struct finding *finding);

/* The line of the whole job: the worst of all ranks' findings. It is a warning if texts that should
 * be the same differ. It names the host if there are several. Without any finding, `what` is "". */
struct finding doctor_merge(enum doctor_line line, int ranks, const struct doctor_report *report);

/* Hides the user: the path of HOME becomes ~, and the user's name in a path becomes USER. In place;
 * NULL or "": not known. */
void doctor_hide(char *text, size_t size, const char *home, const char *user);

/* Whether facts for GPUs are collected. */
bool doctor_uses_gpus(const struct doctor_facts *facts);
/* Whether this machine has an NVIDIA GPU, with or without a driver. sys: "/sys". Local. */
bool doctor_has_card(const char *sys);

/* Writes up to `bytes` bytes, for at most `seconds`, into an unnamed file of disk->dir. If the
 * folder does not exist, its nearest parent is used. Failures are found in *disk. Local. */
void doctor_disk_read(int64_t bytes, double seconds, struct doctor_disk *disk);
