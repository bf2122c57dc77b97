/* A look at a job. Oracles: the sent data are a pure function of the rank. One machine has one
 * clock. The kernel makes the tree of files. The test knows the command line of mpirun. */
/* ranks: 1 2 3 5 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/collect.h"
#include "comm/mpi_info.h"
#include "comm/ops.h"
#include "fixture.h"

enum { MOST_RANKS = 8 };

static void gathers(void **state)
{
  (void)state;
  struct {
    int64_t rank;
    char text[1000];
  } mine = {.rank = comm_rank(job)}, all[MOST_RANKS];
  memset(mine.text, 'a' + comm_rank(job), sizeof mine.text);
  assert_int_equal(comm_collect_bytes(job, &mine, sizeof mine, all), STATUS_OK);
  for (int r = 0; comm_rank(job) == 0 && r < comm_ranks(job); r++) {
    assert_int_equal(all[r].rank, r);
    assert_int_equal(all[r].text[0], 'a' + r);
    assert_int_equal(all[r].text[999], 'a' + r);
  }
}

static void refuses_what_is_too_much(void **state)
{
  (void)state;
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

static void reads_clocks(void **state)
{
  (void)state;
  struct comm_offset offset[MOST_RANKS];
  assert_int_equal(comm_node_leader(job), 0);
  assert_int_equal(comm_collect_clocks(job, offset), STATUS_OK);
  agree(offset, false);
}

/* Every rank a node of its own. */
static void reads_clocks_of_nodes(void **state)
{
  (void)state;
  struct comm_offset offset[MOST_RANKS];
  const int node = job->node;
  job->node = job->rank;
  assert_int_equal(comm_collect_clocks(job, offset), STATUS_OK);
  job->node = node;
  agree(offset, true);
}

/* The first echo is the fastest: 10 ns there and 20 back, the peer 1000 ns ahead; by hand: 1010 -
 * 15 = 995 ns, +- 15. */
static void estimates_offsets(void **state)
{
  (void)state;
  const struct comm_echo echo[] = {{100, 1110, 130}, {200, 5000, 9000}, {300, 1300, 340}};
  const struct comm_offset first = comm_clock_offset(echo, 3),
                           last = comm_clock_offset(echo + 1, 2);
  assert_true(first.seconds > 994.9e-9 && first.seconds < 995.1e-9 && first.error > 14.9e-9 &&
              first.error < 15.1e-9);
  assert_true(last.seconds > 979.9e-9 && last.seconds < 980.1e-9 && last.error > 19.9e-9 &&
              last.error < 20.1e-9);
}

static void reads_the_library(void **state)
{
  (void)state;
  struct mpi_info library;
  assert_int_equal(mpi_info_read(&library), STATUS_OK);
  assert_int_equal(library.thread_level, 3); /* what comm_create_mpi() insists on */
  assert_true(*library.version && library.cuda >= -1 && library.cuda <= 1);
  const char *pml = getenv("OMPI_MCA_pml");
  if (pml && *pml)
    assert_string_equal(library.messages, pml);
  if (!strcmp(library.messages, "ob1"))
    assert_non_null(strstr(library.transports, "self")); /* ob1 does nothing without */
}

static void write_line(const char *folder, const char *name, const char *line)
{
  char path[256];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "we");
  assert_non_null(file);
  assert_true(fprintf(file, "%s\n", line) > 0);
  assert_int_equal(fclose(file), 0);
}

/* ROOT/DEVICE/ports/1 with what the kernel says of it; line NULL: away with it. */
static void port(const char *root, const char *device, const char *line, const char *rate)
{
  static const char *const folders[] = {"", "/ports", "/ports/1"};
  char path[3][256], file[2][300];
  for (int i = 0; i < 3; i++)
    snprintf(path[i], sizeof path[i], "%s/%s%s", root, device, folders[i]);
  snprintf(file[0], sizeof file[0], "%s/state", path[2]);
  snprintf(file[1], sizeof file[1], "%s/rate", path[2]);
  for (int i = 0; line && i < 3; i++)
    assert_int_equal(mkdir(path[i], 0700), 0);
  if (line) {
    write_line(path[2], "state", line);
    write_line(path[2], "rate", rate);
    return;
  }
  assert_int_equal(remove(file[0]) | remove(file[1]), 0);
  for (int i = 2; i >= 0; i--)
    assert_int_equal(rmdir(path[i]), 0);
}

static void reads_fabrics(void **state)
{
  (void)state;
  char root[] = "/tmp/sluice-fabric-XXXXXX";
  struct comm_fabric fabric;
  assert_non_null(mkdtemp(root));
  comm_fabric_read("/nowhere", &fabric);
  assert_int_equal(fabric.ports, 0);
  comm_fabric_read(root, &fabric);
  assert_int_equal(fabric.ports, 0);
  port(root, "mlx5_1", "1: DOWN", "10 Gb/sec (4X SDR)");
  comm_fabric_read(root, &fabric);
  assert_true(fabric.ports == 1 && fabric.active == 0);
  port(root, "mlx5_0", "4: ACTIVE", "400 Gb/sec (4X NDR)");
  comm_fabric_read(root, &fabric);
  assert_true(fabric.ports == 2 && fabric.active == 1);
  assert_string_equal(fabric.text,
                      "mlx5_0:1 ACTIVE 400 Gb/sec (4X NDR), mlx5_1:1 DOWN 10 Gb/sec (4X SDR)");
  port(root, "mlx5_0", NULL, NULL);
  port(root, "mlx5_1", NULL, NULL);
  assert_int_equal(rmdir(root), 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gathers),           cmocka_unit_test(refuses_what_is_too_much),
      cmocka_unit_test(reads_clocks),      cmocka_unit_test(reads_clocks_of_nodes),
      cmocka_unit_test(estimates_offsets), cmocka_unit_test(reads_the_library),
      cmocka_unit_test(reads_fabrics),
  };
  return cmocka_run_group_tests(tests, start_job, stop_job);
}
