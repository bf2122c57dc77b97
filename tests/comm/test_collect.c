/* A look at a job. Oracles: the sent data are a pure function of the rank. One machine has one
 * clock. The kernel makes the tree of files. The test knows the command line of mpirun. */
/* ranks: 1 2 3 5 */
#include <sys/stat.h>

#include <mpi.h>

#include "comm/collect.h"
#include "comm/mpi_info.h"
#include "comm/mpi_version.h"
#include "comm/ops.h"
#include "fixture.h"
#include "tests/test.h"

enum { MOST_RANKS = 8 };

TEST(gathers)
{
  struct {
    int64_t rank;
    char text[1000];
  } mine = {.rank = comm_rank(job)}, all[MOST_RANKS];
  memset(mine.text, 'a' + comm_rank(job), sizeof mine.text);
  must(comm_collect_bytes(job, &mine, sizeof mine, all));
  for (int r = 0; comm_rank(job) == 0 && r < comm_ranks(job); r++) {
    assert_int_equal(all[r].rank, r);
    assert_int_equal(all[r].text[0], 'a' + r);
    assert_int_equal(all[r].text[999], 'a' + r);
  }
}

TEST(refuses_what_is_too_much)
{
  assert_int_equal(comm_collect_bytes(job, NULL, (INT64_C(1) << 30) / comm_ranks(job) + 1, NULL),
                   STATUS_UNSUPPORTED);
}

/* Bounds hold whatever the ways took: the true offset is 0 here. */
static void agree(const struct comm_offset *offset, bool every)
{
  for (int r = 0; comm_rank(job) == 0 && r < comm_ranks(job); r++) {
    if (r > 0 && !every) {
      assert_true(offset[r].error < 0);
      continue;
    }
    assert_true(offset[r].error >= 0 && (r == 0 || offset[r].error > 0));
    assert_true(offset[r].seconds <= offset[r].error && offset[r].seconds >= -offset[r].error);
  }
}

TEST(reads_clocks)
{
  struct comm_offset offset[MOST_RANKS];
  assert_int_equal(comm_node_leader(job), 0);
  must(comm_collect_clocks(job, offset));
  agree(offset, false);
}

/* Every rank a node of its own. */
TEST(reads_clocks_of_nodes)
{
  struct comm_offset offset[MOST_RANKS];
  const int node = job->node;
  job->node = job->rank;
  must(comm_collect_clocks(job, offset));
  job->node = node;
  agree(offset, true);
}

/* The first echo is the fastest: 10 ns there and 20 back, the peer 1000 ns ahead; by hand: 1010 -
 * 15 = 995 ns, +- 15. */
TEST(estimates_offsets)
{
  const struct comm_echo echo[] = {{100, 1110, 130}, {200, 5000, 9000}, {300, 1300, 340}};
  const struct comm_offset first = comm_clock_offset(echo, 3),
                           last = comm_clock_offset(echo + 1, 2);
  assert_true(first.seconds > 994.9e-9 && first.seconds < 995.1e-9 && first.error > 14.9e-9 &&
              first.error < 15.1e-9);
  assert_true(last.seconds > 979.9e-9 && last.seconds < 980.1e-9 && last.error > 19.9e-9 &&
              last.error < 20.1e-9);
}

TEST(reads_the_library)
{
  struct mpi_info library;
  must(mpi_info_read(&library));
  assert_int_equal(library.thread_level, 3); /* what comm_create_mpi() insists on */
  assert_true(*library.version && library.cuda >= -1 && library.cuda <= 1);
#if defined(MPICH)
  const char *pml = "";
#else
  const char *pml = getenv("OMPI_MCA_pml");
#endif
  if (pml)
    assert_string_equal(library.messages, pml);
  if (!strcmp(library.messages, "ob1"))
    assert_non_null(strstr(library.transports, "self")); /* ob1 does nothing without */
}

#if defined(MPICH)
static int gpus_are_supported, is_cray;

int MPIX_GPU_query_support(int kind, int *supported)
{
  *supported = kind == MPIX_GPU_SUPPORT_CUDA && gpus_are_supported;
  return MPI_SUCCESS;
}

int MPI_Get_library_version(char *text, int *length)
{
  const int code = PMPI_Get_library_version(text, length);
  if (is_cray)
    snprintf(text, MPI_MAX_LIBRARY_VERSION_STRING, "MPI VERSION    : CRAY MPICH version 8.1.29");
  return code;
}

TEST(asks_for_gpus)
{
  struct mpi_info library;
  for (int i = 0; i < 8; i++) {
    is_cray = i & 1;
    gpus_are_supported = (i & 2) != 0;
    assert_int_equal(setenv("MPICH_GPU_SUPPORT_ENABLED", i & 4 ? "1" : "0", 1), 0);
    must(mpi_info_read(&library));
    assert_int_equal(library.cuda, is_cray ? (i & 4) != 0 : gpus_are_supported);
  }
  is_cray = 0;
  assert_int_equal(unsetenv("MPICH_GPU_SUPPORT_ENABLED"), 0);
}
#else
TEST(asks_for_gpus)
{
  skip();
}
#endif

/* What the libraries themselves return, and the names by which their users know them. */
TEST(names_of_libraries)
{
  static const char *const rows[][2] = {
      {"Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4", "Open MPI 4.1.4"},
      {"Open MPI v5.0.0rc1, package: x", "Open MPI 5.0.0rc1"},
      {"MPICH Version:\t4.0.2\nMPICH Release date:\tThu Apr  7\n", "MPICH 4.0.2"},
      {"MPICH Version:      4.3.0\nMPICH ABI:          17:0:5\n", "MPICH 4.3.0"},
      {"MPI VERSION    : CRAY MPICH version 8.1.29.17 (ANL base 3.4a2)\nMPI BUILD INFO : Wed",
       "CRAY MPICH 8.1.29.17"},
      {"MVAPICH2 Version      :\t2.3.7\nMVAPICH2 Release date", "MVAPICH2 2.3.7"},
      {"Intel(R) MPI Library 2021.11 for Linux* OS\n",
       "Intel(R) MPI Library 2021.11 for Linux* OS"},
      {"", ""},
      {" \n", ""},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char text[128];
    snprintf(text, sizeof text, "%s", rows[i][0]);
    mpi_version_shorten(text);
    assert_string_equal(text, rows[i][1]);
  }
}

/* Oracle: the kernel's tree, whose files a shell makes. */
TEST(reads_fabrics)
{
  static const struct {
    const char *makes, *text; /* a command, run in the root; the text of all that is there then */
    int ports, active, slingshot, up;
  } steps[] = {
      {"true", "", 0, 0, 0, 0},
      {"mkdir -p infiniband cxi", "", 0, 0, 0, 0},
      {"mkdir -p infiniband/mlx5_1/ports/1; cd infiniband/mlx5_1/ports/1; echo 1: DOWN > state; "
       "echo '10 Gb/sec (4X SDR)' > rate",
       "mlx5_1:1 DOWN 10 Gb/sec (4X SDR)", 1, 0, 0, 0},
      {"mkdir -p infiniband/mlx5_0/ports/1; cd infiniband/mlx5_0/ports/1; echo 4: ACTIVE > state; "
       "echo '400 Gb/sec (4X NDR)' > rate",
       "mlx5_0:1 ACTIVE 400 Gb/sec (4X NDR), mlx5_1:1 DOWN 10 Gb/sec (4X SDR)", 2, 1, 0, 0},
      {"rm -r infiniband/*; mkdir -p cxi/cxi1/device/port; echo down > cxi/cxi1/device/port/link",
       "cxi1 down ", 0, 0, 1, 0},
      {"mkdir -p cxi/cxi0/device/port; cd cxi/cxi0/device/port; echo up > link; "
       "echo BS_200G > speed",
       "cxi0 up BS_200G, cxi1 down ", 0, 0, 2, 1},
      {"rm -r cxi/*; mkdir -p cxi/cxi0/device/port/0/link; cd cxi/cxi0/device/port/0/link; "
       "echo up > state; echo ck400G > speed",
       "cxi0 up ck400G", 0, 0, 1, 1},
  };
  char root[] = "/tmp/sluice-fabric-XXXXXX", command[512];
  struct comm_fabric fabric;
  assert_non_null(mkdtemp(root));
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
    snprintf(command, sizeof command, "cd %s; %s", root, steps[i].makes);
    assert_int_equal(system(command), 0);
    comm_fabric_read(root, &fabric);
    assert_string_equal(fabric.text, steps[i].text);
    assert_int_equal(fabric.ports, steps[i].ports);
    assert_int_equal(fabric.active, steps[i].active);
    assert_int_equal(fabric.slingshot, steps[i].slingshot);
    assert_int_equal(fabric.slingshot_up, steps[i].up);
  }
  snprintf(command, sizeof command, "rm -r %s", root);
  assert_int_equal(system(command), 0);
}

TEST_MAIN(start_job, stop_job)
