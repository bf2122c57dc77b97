/* `sluice doctor`: facts and their judgements. A judgement is a pure function from facts to a
 * finding (doctor_judge.c). Facts of folders and of the bus are read in doctor_facts.c. Private to
 * src/cmd and its tests. */
#ifndef SLUICE_CMD_DOCTOR_H
#define SLUICE_CMD_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/collect.h"
#include "comm/launch.h"
#include "comm/mpi_info.h"
#include "io/text/file_system.h"
#include "io/text/stripes.h"
#include "topo/topo.h"

enum verdict { VERDICT_OK, VERDICT_WARNING, VERDICT_FAULT };
const char *verdict_name(enum verdict verdict); /* "ok", "warning", "fault" */

enum { DOCTOR_TEXT = 640, DOCTOR_HOST = 64 };

/* One line of the page, of one rank. Plain bytes, which are sent to rank 0. The text of a warning
 * or a fault has the cure. */
struct finding {
  enum verdict verdict;
  bool common;   /* the text should be the same on all nodes */
  double amount; /* among findings of the same verdict, the one with the least amount is reported */
  char what[16]; /* "": no finding on this rank */
  char text[DOCTOR_TEXT];
};

/* The line of the whole job: the worst of all ranks' findings, which are `stride` bytes apart. It
 * is a warning if texts that should be the same differ. It names the host if hosts[] (of each rank)
 * has several. Without any finding, `what` is "". */
struct finding doctor_merge(const struct finding *finding, int ranks, size_t stride,
                            const char (*host)[DOCTOR_HOST]);

/* Hides the user: the path of HOME becomes ~, and the user's name in a path becomes USER. In place;
 * NULL or "": not known. */
void doctor_hide(char *text, size_t size, const char *home, const char *user);

/* Judges the build and the start. */
struct finding judge_build(const char *version, const char *compiler, const char *flags,
                           const char *sanitizer, const char *configured);
struct finding judge_start(int ranks, struct launch launch);
struct finding judge_nodes(
    int ranks, const int *node,
    const char (*host)[DOCTOR_HOST]); /* node[ranks]: the lowest rank on each rank's node */

/* Judges MPI. built: the version that Sluice was built with. gpus: the build has CUDA, and the
 * machine a GPU. Without a GPU, facts that only GPUs need are not judged. */
struct finding judge_mpi(const struct mpi_info *library, const char *built);
/* cray: MPICH_GPU_SUPPORT_ENABLED, or NULL. nccl: the build has NCCL. */
struct finding judge_cuda_aware(const struct mpi_info *library, bool gpus, const char *cray,
                                bool nccl);
/* tls, provider: UCX_TLS and FI_PROVIDER of the environment, or NULL. */
struct finding judge_transport(const struct mpi_info *library, const struct comm_fabric *fabric,
                               const char *tls, const char *provider, bool gpus, int nodes);
struct finding judge_fabric(const struct comm_fabric *fabric);
struct finding judge_clocks(const struct comm_offset *offset, int ranks,
                            const char (*host)[DOCTOR_HOST]);

/* Facts of GPUs. cuda: the build has CUDA. card: the machine has one. Versions are counted as in
 * struct gpu_versions (gpu/versions.h). */
struct doctor_gpus {
  bool cuda, card;
  int driver, runtime, nccl, cudnn, cudnn_runtime, gpus;
  const char *names, *nccl_built, *cudnn_built; /* "" if the build does not have it */
  const char *lacks_backward; /* why cuDNN has no deterministic backward pass of attention here; "":
                                 it has one; NULL: was not asked */
};
/* Whether this machine has an NVIDIA GPU, with or without a driver. sys: "/sys". Local. */
bool doctor_has_card(const char *sys);
bool doctor_uses_gpus(const struct doctor_gpus *gpus); /* facts for GPUs are collected */
struct finding judge_gpus(const struct doctor_gpus *gpus, int local_ranks);
struct finding judge_nccl(const struct doctor_gpus *gpus, int ranks);
/* The network of NCCL between nodes, as in struct gpu_net (gpu/net.h). */
struct doctor_net {
  const char *plugin, *lacks, *chosen;
};
struct finding judge_nccl_net(const struct doctor_net *net, const struct comm_fabric *fabric);
struct finding judge_cudnn(const struct doctor_gpus *gpus);

/* Judges other libraries. note: op_counters_note(). */
struct finding judge_hdf5(const char *built, const char *loaded, bool parallel);
struct finding judge_cores(const struct topo_summary *machine, int local_ranks);
struct finding judge_counters(const char *version, int events, const char *note);

/* Judges the node. Bytes; -1: no limit, or not known. */
struct finding judge_memlock(int64_t limit, const struct comm_fabric *fabric, bool gpus);
struct finding judge_shared_memory(int64_t size, int64_t free,
                                   int local_ranks); /* size -1: there is none */
struct finding judge_memory(int64_t total, int64_t available, int64_t limit, int local_ranks);

/* Judges a deck. `refusal`: the reason why a run would not start, or could not use its data; NULL:
 * none, and then the text is `fine`. */
struct finding judge_refusal(const char *what, const char *refusal, const char *fine);
/* need: bytes of a checkpoint; free: for them. stopped: the step of the newest checkpoint of a run
 * in this folder that can continue, 0: there is none. */
struct finding judge_folder(const char *refusal, const char *dir, int64_t need, int64_t free,
                            int64_t stopped);

/* Facts of a folder. */
struct doctor_disk {
  struct file_system system;
  struct stripes stripes; /* of DIR/ckpt, or of what is there of that path */
  int64_t written;        /* bytes */
  double seconds;         /* for `written` bytes, with the flush to the disk */
  char failure[256];      /* "": writing succeeded */
};
/* Writes up to `bytes` bytes, for at most `seconds`, into an unnamed file of the folder. If the
 * folder does not exist, its nearest parent is used. Failures are found in *out. Local. */
void doctor_disk_read(const char *dir, int64_t bytes, double seconds, struct doctor_disk *out);
/* shared: all nodes should see files that one of them writes; seen: whether this node does. Not
 * shared: a folder on NVMe, which should be on each node's own disk. */
struct finding judge_disk(const char *dir, const struct doctor_disk *disk, bool shared, bool seen,
                          int nodes);

#endif
