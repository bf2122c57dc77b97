/* The version of this process's MPI library and its choices, for `sluice doctor`. Choices are known
 * for Open MPI. Other libraries give version and thread level only. */
#pragma once

#include "base/status.h"

struct mpi_info {
  char version[128];   /* "Open MPI 4.1.4" */
  int thread_level;    /* MPI's, in steps: 0 single, 1 funneled, 2 serialized, 3 multiple */
  int cuda;            /* 1: accepts pointers to GPU memory, 0: does not, -1: not reported */
  char messages[32];   /* Open MPI's PML in use: "ucx", "ob1", "cm"; "" if it is unknown */
  char transports[96]; /* transports: "self vader tcp" (BTLs of ob1), "ofi" (MTLs of cm); "" for
                          ucx, which chooses by itself */
};

/* MPI has been started. Local. */
enum status mpi_info_read(struct mpi_info *out);

/* Network devices of this machine that bypass the kernel: ports of RDMA devices (InfiniBand, RoCE),
 * and Slingshot's devices, which only libfabric's provider cxi reaches. The kernel lists them below
 * `root` ("/sys/class"). Local. */
struct comm_fabric {
  int ports, active;
  int slingshot, slingshot_up;
  char text[192]; /* "mlx5_0:1 ACTIVE 400 Gb/sec (4X NDR), cxi0 up BS_200G" as far as it fits */
};
void comm_fabric_read(const char *root, struct comm_fabric *out);
