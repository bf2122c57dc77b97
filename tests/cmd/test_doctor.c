/* The judgements of sluice doctor. Oracle: for every judgement, facts that must make each of its
 * warnings and faults fire. Facts that differ in one point must not fire it. Sizes and times are
 * computed by hand. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cmd/doctor.h"
#include "tests/rows.h"
#include "tests/test.h"

#define OK VERDICT_OK
#define WARN VERDICT_WARNING
#define FAULT VERDICT_FAULT
#define GIB (INT64_C(1) << 30)
#define MIB (INT64_C(1) << 20)

/* `part` is in the text: of warnings and faults the cure. */
static void is(struct finding finding, enum verdict verdict, const char *part)
{
  if (finding.verdict != verdict || !strstr(finding.text, part))
    fail_msg("%s %s: %s; expected %s and '%s'", verdict_name(finding.verdict), finding.what,
             finding.text, verdict_name(verdict), part);
}

TEST(builds)
{
  is(judge_build("1.0", "gcc", "-O2 -g", "no", ""), OK,
     "sluice 1.0, gcc -O2 -g, configured with no arguments");
  is(judge_build("1.0", "gcc", "-g", "no", " '--with-papi'"), WARN, "CFLAGS='-O2 -g'");
  is(judge_build("1.0", "gcc", "-O2 -O0", "no", ""), WARN, "not optimized");
  is(judge_build("1.0", "gcc", "-O0 -O3", "no", ""), OK, "-O3");
  is(judge_build("1.0", "gcc", "-O2", "address", ""), WARN, "without --enable-sanitizer");
}

TEST(starts)
{
  is(judge_start(1, (struct launch){0}), OK, "1 rank");
  is(judge_start(1, (struct launch){.tasks = 1}), OK, "1 rank");
  is(judge_start(8, (struct launch){.tasks = 8}), OK, "8 ranks");
  is(judge_start(1, (struct launch){.tasks = 8, .told_by = "PMI_SIZE"}), FAULT,
     "8 separate tasks (PMI_SIZE), each is rank 0 of 1: use the mpirun of");
}

static void check_launcher(const char *given, const char *expected)
{
  char environment[256], text[64], *next = NULL;
  snprintf(environment, sizeof environment, "%s", given);
  assert_int_equal(clearenv(), 0);
  for (char *word = strtok_r(environment, " ", &next); word; word = strtok_r(NULL, " ", &next))
    assert_int_equal(putenv(word), 0);
  const struct launch launch = launch_read();
  snprintf(text, sizeof text, "%s %ld %lld %s", launch.launched ? "launched" : "alone",
           (long)launch.rank, (long long)launch.tasks, launch.told_by ? launch.told_by : "-");
  assert_int_equal(clearenv(), 0);
  assert_string_equal(text, expected);
}

TEST(launchers)
{
  const char *top = getenv("top_srcdir");
  char kept[512];
  snprintf(kept, sizeof kept, "%s", top ? top : ".");
  rows_each("tests/cmd/doctor.txt", "launchers", check_launcher);
  assert_int_equal(setenv("top_srcdir", kept, 1), 0);
}

TEST(nodes)
{
  static const char host[5][DOCTOR_HOST] = {"a", "a", "b", "b", "b"};
  is(judge_nodes(4, (int[]){0, 0, 2, 2}, host), OK, "2: a x 2, b x 2");
  is(judge_nodes(4, (int[]){0, 1, 0, 1}, (const char[4][DOCTOR_HOST]){"a", "b", "a", "b"}), OK,
     "2: a x 2, b x 2");
  is(judge_nodes(5, (int[]){0, 0, 2, 2, 2}, host), WARN, "--ntasks-per-node");
}

/* Many names do not fit: the line is cut and stays a line. */
TEST(many_nodes)
{
  enum { NODES = 300 };
  static char host[NODES][DOCTOR_HOST];
  int node[NODES];
  for (int r = 0; r < NODES; r++) {
    snprintf(host[r], sizeof host[r], "node%03d", r);
    node[r] = r;
  }
  is(judge_nodes(NODES, node, (const char(*)[DOCTOR_HOST])host), OK,
     "300: node000 x 1, node001 x 1");
  is(judge_nodes(NODES, node, (const char(*)[DOCTOR_HOST])host), OK, "...");
}

static const struct mpi_info library = {.version = "Open MPI 4.1.4",
                                        .thread_level = 3,
                                        .cuda = 0,
                                        .messages = "ob1",
                                        .transports = "self tcp"};
static const struct comm_fabric no_fabric = {0},
                                fabric = {.ports = 2,
                                          .active = 1,
                                          .text = "mlx5_0:1 ACTIVE 400 Gb/sec, mlx5_1:1 DOWN"},
                                dead_fabric = {.ports = 1, .text = "mlx5_0:1 DOWN"},
                                slingshot = {.slingshot = 2,
                                             .slingshot_up = 1,
                                             .text = "cxi0 up BS_200G, cxi1 down BS_200G"},
                                dead_slingshot = {.slingshot = 1, .text = "cxi0 down BS_200G"};

TEST(mpi_libraries)
{
  struct mpi_info single = library;
  single.thread_level = 2;
  is(judge_mpi(&library, "Open MPI 4.1.4"), OK, "threads multiple");
  is(judge_mpi(&single, "Open MPI 4.1.4"), FAULT, "threads serialized: Sluice needs multiple");
  is(judge_mpi(&library, "Open MPI 5.0.1"), WARN, "built with Open MPI 5.0.1: build it again");
}

TEST(cuda_awareness)
{
  struct mpi_info aware = library, silent = library;
  aware.cuda = 1;
  silent.cuda = -1;
  is(judge_cuda_aware(&aware, true, NULL, true), OK, "yes");
  assert_true(!*judge_cuda_aware(&library, false, "1", true).what &&
              !*judge_cuda_aware(&aware, false, "1", true).what);
  is(judge_cuda_aware(&library, true, "0", true), WARN, "comm.backend=nccl");
  is(judge_cuda_aware(&silent, true, NULL, true), WARN, "does not tell");
  is(judge_cuda_aware(&aware, true, "1", true), WARN, "NCCL can hang; set it to 0");
  is(judge_cuda_aware(&aware, true, "1", false), OK, "yes");
}

TEST(transports)
{
  struct mpi_info ucx = library, silent = library;
  snprintf(ucx.messages, sizeof ucx.messages, "ucx");
  ucx.transports[0] = silent.messages[0] = '\0';
  is(judge_transport(&library, &no_fabric, NULL, NULL, false, 4), OK, "ob1 over self tcp");
  is(judge_transport(&library, &dead_fabric, NULL, NULL, false, 4), OK, "ob1 over self tcp");
  is(judge_transport(&library, &fabric, NULL, NULL, false, 1), WARN, "--mca pml ucx");
  is(judge_transport(&library, &fabric, NULL, NULL, false, 2), FAULT, "--mca pml ucx");
  is(judge_transport(&ucx, &fabric, NULL, NULL, true, 2), OK, "ucx");
  is(judge_transport(&silent, &fabric, "rc", NULL, true, 2), OK, "does not tell");
}

/* given: fields with | between them. */
static void cut(const char *given, char field[3][64])
{
  for (int i = 0; i < 3; i++) {
    const size_t length = strcspn(given, "|");
    snprintf(field[i], sizeof field[i], "%.*s", (int)length, given);
    given += length + (given[length] == '|');
  }
}

/* expected: a verdict, a blank and a part of the text. */
static void is_as(struct finding finding, const char *expected)
{
  const size_t length = strcspn(expected, " ");
  if (strncmp(verdict_name(finding.verdict), expected, length) != 0 ||
      !strstr(finding.text, expected + length + 1))
    fail_msg("%s: %s; expected %s", verdict_name(finding.verdict), finding.text, expected);
}

static void check_slingshot(const char *given, const char *expected)
{
  char field[3][64];
  struct mpi_info mpi = library;
  cut(given, field);
  snprintf(mpi.messages, sizeof mpi.messages, "%.20s", field[0]);
  snprintf(mpi.transports, sizeof mpi.transports, "%.30s", field[1]);
  const char *provider = strcmp(field[2], "-") ? field[2] : NULL;
  is_as(judge_transport(&mpi, &slingshot, NULL, provider, true, 2), expected);
}

/* Open MPI reaches Slingshot by libfabric's provider cxi alone: every other choice is TCP, or may
 * be it. MPI libraries that name no transport are not judged. */
TEST(transports_on_slingshot)
{
  rows_each("tests/cmd/doctor.txt", "transports on Slingshot", check_slingshot);
}

TEST(transports_to_gpus)
{
  static const struct {
    const char *tls;
    bool reaches;
  } cases[] = {{"rc,sm", false}, {"^cuda_ipc", false},      {"", true},
               {"all", true},    {"rc,sm,cuda_copy", true}, {"^tcp", true}};
  struct mpi_info ucx = library, aware;
  snprintf(ucx.messages, sizeof ucx.messages, "ucx");
  aware = ucx;
  aware.cuda = 1;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    is(judge_transport(&aware, &fabric, cases[i].tls, NULL, true, 2), cases[i].reaches ? OK : WARN,
       cases[i].reaches ? "ucx" : "reaches a GPU: unset it, or add cuda_copy,cuda_ipc");
  is(judge_transport(&aware, &fabric, "rc,sm", NULL, false, 2), OK, "ucx"); /* no GPU */
  is(judge_transport(&ucx, &fabric, "rc,sm", NULL, true, 2), OK, "ucx");    /* copies on the host */
}

/* A folder below `root` with all above it, and a file in it where `text` is not NULL. */
static void put(const char *root, const char *folder, const char *file, const char *text)
{
  char path[256];
  snprintf(path, sizeof path, "%s/%s/", root, folder);
  for (char *slash = strchr(path + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    mkdir(path, 0700);
    *slash = '/';
  }
  if (!text)
    return;
  snprintf(path, sizeof path, "%s/%s/%s", root, folder, file);
  FILE *stream = fopen(path, "we");
  assert_non_null(stream);
  assert_true(fputs(text, stream) >= 0 && fclose(stream) == 0);
}

/* Oracle: a tree like the kernel's, made here: NVIDIA's sound, another vendor's display, then
 * NVIDIA's display. */
TEST(finds_a_card)
{
  static const struct {
    const char *device, *vendor, *class;
    bool has;
  } steps[] = {{"0000:01:00.1", "0x10de\n", "0x040300\n", false},
               {"0000:02:00.0", "0x1a03\n", "0x030000\n", false},
               {"0000:01:00.0", "0x10de\n", "0x030200\n", true}};
  char root[] = "/tmp/sluice-doctor-XXXXXX", path[256];
  assert_non_null(mkdtemp(root));
  assert_false(doctor_has_card(root));
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
    snprintf(path, sizeof path, "bus/pci/devices/%s", steps[i].device);
    put(root, path, "vendor", steps[i].vendor);
    put(root, path, "class", steps[i].class);
    assert_int_equal(doctor_has_card(root), steps[i].has);
  }
  snprintf(path, sizeof path, "rm -r %s", root);
  assert_int_equal(system(path), 0);
}

/* --- the network --------------------------------------------------------- */

TEST(fabrics)
{
  is(judge_fabric(&no_fabric), OK, "none");
  is(judge_fabric(&fabric), OK, "1 of 2 ports active: mlx5_0:1 ACTIVE");
  is(judge_fabric(&dead_fabric), WARN, "mlx5_0:1 DOWN; data go over TCP; check the cable");
  is(judge_fabric(&slingshot), OK, "Slingshot, 1 of 2 ports active: cxi0 up BS_200G");
  is(judge_fabric(&dead_slingshot), WARN, "cxi0 down BS_200G; data go over TCP");
}

/* Samples as an asker sees them whose peer is `ahead` ns ahead: there and back take `there` and
 * `back`. */
static struct comm_echo echo(int64_t at, int64_t ahead, int64_t there, int64_t back)
{
  return (struct comm_echo){
      .sent = at, .answered = at + there + ahead, .received = at + there + back};
}

static struct finding clocks_ahead(int64_t ahead)
{
  static const char host[3][DOCTOR_HOST] = {"a", "b", "b"};
  const int64_t now = INT64_C(1800000000) * 1000000000;
  const struct comm_echo samples[] = {echo(now, ahead, 9000000, 100000),
                                      echo(now + 20000000, ahead, 20000, 30000),
                                      echo(now + 40000000, ahead, 50000, 900000)};
  const struct comm_offset offset[] = {{0}, comm_clock_offset(samples, 3), {.error = -1}};
  return judge_clocks(offset, 3, host);
}

/* The fastest echo takes 50 us, so its error is 25 us and its estimate off by (20 - 30) / 2 = -5
 * us. */
TEST(clocks)
{
  static const char host[2][DOCTOR_HOST] = {"a", "a"};
  is(judge_clocks((struct comm_offset[]){{0}, {.error = -1}}, 2, host), OK, "one node");
  is(clocks_ahead(0), OK, "of 2 nodes agree");
  is(clocks_ahead(29000), OK, "of 2 nodes agree");
  is(clocks_ahead(31000), OK, "b is 0.000026 s ahead of a (+- 0.000025)");
  is(clocks_ahead(90000000), OK, "b is 0.089995 s ahead of a");
  is(clocks_ahead(110000000), WARN, "ahead of a (+- 0.000025): start chronyd");
  is(clocks_ahead(-110000000), WARN, "b is 0.110005 s behind a");
  is(clocks_ahead(INT64_C(6000000000)), FAULT, "start chronyd");
  is(clocks_ahead(INT64_C(-6000000000)), FAULT, "b is 6.000005 s behind a");
}

/* An offset that lies within its error says nothing. */
TEST(doubtful_clocks)
{
  static const char host[3][DOCTOR_HOST] = {"a", "b", "c"};
  is(judge_clocks((struct comm_offset[]){{0},
                                         {.seconds = 9, .error = 10},
                                         {.seconds = 0.01, .error = 0.001}},
                  3, host),
     OK, "c is 0.010000 s");
}

static const struct doctor_gpus two = {.cuda = true,
                                       .card = true,
                                       .driver = 13000,
                                       .runtime = 12060,
                                       .nccl = 22703,
                                       .cudnn = 91301,
                                       .cudnn_runtime = 12080,
                                       .gpus = 2,
                                       .names = "2 x GPU",
                                       .nccl_built = "2.27.3",
                                       .cudnn_built = "9.13.1"};

TEST(gpus)
{
  struct doctor_gpus none = {.names = ""}, unused = {.card = true, .names = ""}, no_driver = two,
                     no_card = two, old_driver = two, unseen = two, one = two;
  no_driver.driver = no_card.driver = 0;
  no_card.card = false;
  old_driver.driver = 11080;
  unseen.gpus = 0;
  one.gpus = 1;
  is(judge_gpus(&none, 1), OK, "without CUDA");
  is(judge_gpus(&unused, 1), WARN, "--with-cuda");
  is(judge_gpus(&two, 2), OK, "2 x GPU, CUDA 12.6, driver for 13.0");
  is(judge_gpus(&two, 3), FAULT, "one rank per GPU");
  is(judge_gpus(&one, 8), OK, "CUDA 12.6"); /* Slurm shows each rank its own */
  is(judge_gpus(&no_driver, 1), WARN, "load NVIDIA's driver");
  is(judge_gpus(&no_card, 1), OK, "none in this machine");
  assert_true(!*judge_nccl(&no_card, 2).what && !*judge_cudnn(&no_card).what);
  assert_true(doctor_uses_gpus(&two) && doctor_uses_gpus(&no_driver) &&
              !doctor_uses_gpus(&no_card) && !doctor_uses_gpus(&none));
  is(judge_gpus(&old_driver, 1), FAULT, "the driver runs up to 11.8: install a newer driver");
  is(judge_gpus(&unseen, 1), WARN, "--gpus-per-task=1");
}

/* The reason of a refusal is quoted in its own words, as far as a line has room. It is the same on
 * all nodes. */
TEST(decks)
{
  char sentence[2 * DOCTOR_TEXT];
  memset(sentence, 'w', sizeof sentence - 1);
  sentence[sizeof sentence - 1] = '\0';
  is(judge_refusal("deck", NULL, "fits into memory"), OK, "fits into memory");
  is(judge_refusal("deck", "this build has no CUDA", "fits"), FAULT, "this build has no CUDA");
  is(judge_refusal("deck", sentence, "fits"), FAULT, "wwww");
  assert_true(judge_refusal("deck", NULL, "").common && judge_refusal("data", "none", "").common);
  is(judge_folder(NULL, "run", 1, 2, 0), OK, "run: free for a new run");
  is(judge_folder(NULL, "run", 3, 2, 0), WARN, "make room, or choose another run.dir");
  is(judge_folder(NULL, "run", 1, 2, 8), OK,
     "run: holds a run that stopped after step 8: continue it with --resume auto");
  is(judge_folder("run is in use", "run", 1, 2, 8), FAULT, "run is in use");
}

TEST(gpu_libraries)
{
  struct doctor_gpus none = {.names = ""}, without = two, older = two, newer = two, other = two,
                     blackwell = two;
  without.nccl = without.cudnn = 0;
  older.nccl = 22605;
  older.cudnn = 90800;
  newer.nccl = 23001;
  newer.cudnn = 100001;
  other.cudnn_runtime = 13000;
  assert_true(!*judge_nccl(&none, 2).what && !*judge_cudnn(&none).what);
  is(judge_nccl(&two, 2), OK, "2.27.3");
  is(judge_nccl(&newer, 2), OK, "2.30.1");
  is(judge_nccl(&older, 2), WARN, "2.26.5 is loaded, older than 2.27.3");
  is(judge_nccl(&without, 1), OK, "Cure: install libnccl-dev");
  is(judge_nccl(&without, 2), WARN, "Cure: install libnccl-dev");
  is(judge_cudnn(&two), OK, "9.13.1");
  is(judge_cudnn(&newer), OK, "10.0.1");
  is(judge_cudnn(&older), WARN, "9.8.0 is loaded, older than 9.13.1");
  is(judge_cudnn(&without), WARN, "--with-cudnn"); /* or --with-cudnn-frontend */
  blackwell.lacks_backward = "";
  is(judge_cudnn(&blackwell), OK, "9.13.1");
  blackwell.lacks_backward = "not supported on this GPU";
  is(judge_cudnn(&blackwell), WARN,
     "9.13.1 has no deterministic backward pass of attention for this GPU, so a plain kernel "
     "computes "
     "it, which is slow: load cuDNN 9.18 or later, which Blackwell needs (not supported on");
  is(judge_cudnn(&other), FAULT, "is for CUDA 13, Sluice for CUDA 12");
}

static const struct comm_fabric *net_fabric;

static void check_nccl_net(const char *given, const char *expected)
{
  char field[3][64];
  cut(given, field);
  is_as(judge_nccl_net(&(struct doctor_net){field[1], field[2], field[0]}, net_fabric), expected);
}

/* NCCL falls back to TCP in silence, so only its choice counts, and without it the plug-in. */
TEST(nccl_networks)
{
  net_fabric = &no_fabric;
  rows_each("tests/cmd/doctor.txt", "NCCL, no fabric", check_nccl_net);
  net_fabric = &fabric;
  rows_each("tests/cmd/doctor.txt", "NCCL, fabric", check_nccl_net);
  net_fabric = &slingshot;
  rows_each("tests/cmd/doctor.txt", "NCCL, slingshot", check_nccl_net);
}

TEST(libraries)
{
  is(judge_hdf5("1.10.8", "1.10.8", true), OK,
     "1.10.8, parallel; a forged file can crash it (older than 1.14)");
  is(judge_hdf5("1.13.3", "1.13.3", true), OK, "open only files that you trust");
  assert_null(strstr(judge_hdf5("1.14.0", "1.14.0", true).text, "forged"));
  is(judge_hdf5("1.10.8", "1.14.0", true), FAULT, "built with 1.10.8");
  is(judge_hdf5("1.10.8", "1.10.8", false), FAULT, "parallel HDF5");
  is(judge_counters("7.0.0", 3, ""), OK, "7.0.0, 3 counters");
  is(judge_counters("7.0.0", 3, "no hardware counters"), WARN, "7.0.0: no hardware counters");
  is(judge_counters("", 0, "configure with --with-papi"), WARN, "--with-papi");
}

TEST(cores)
{
  const struct topo_summary machine = {
      .version = "2.8", .packages = 2, .nodes = 2, .cores = 64, .cpus = 128, .own_cores = 16};
  struct topo_summary limited = machine, narrow = machine, ample = machine;
  limited.quota = 4;
  ample.quota = 16;
  narrow.own_cores = 1;
  is(judge_cores(&machine, 4), OK,
     "2 packages, 2 NUMA nodes, 64 cores, 128 CPUs, of these 16 cores");
  is(judge_cores(&ample, 4), OK, "hwloc 2.8");
  is(judge_cores(&limited, 4), WARN, "the time of 4: raise");
  is(judge_cores(&machine, 65), WARN, "start fewer");
  is(judge_cores(&narrow, 4), WARN, "--cpus-per-task");
  is(judge_cores(&narrow, 64), OK, "of these 1 core for");
}

TEST(locked_memory)
{
  is(judge_memlock(-1, &fabric, true), OK, "unlimited");
  is(judge_memlock(8 * MIB, &no_fabric, false), OK, "8.00 MiB");
  is(judge_memlock(8 * MIB, &dead_fabric, false), OK, "8.00 MiB");
  is(judge_memlock(8 * MIB, &slingshot, false), OK, "8.00 MiB"); /* its driver has no limit */
  is(judge_memlock(8 * MIB, &no_fabric, true), WARN, "LimitMEMLOCK=infinity");
  is(judge_memlock(8 * MIB, &fabric, false), FAULT, "LimitMEMLOCK=infinity");
  is(judge_memlock(GIB, &fabric, false), WARN, "LimitMEMLOCK=infinity");
}

TEST(shared_memory)
{
  is(judge_shared_memory(-1, -1, 1), FAULT, "mount a tmpfs");
  is(judge_shared_memory(8 * GIB, 8 * GIB, 8), OK, "8.00 GiB of 8.00 GiB free");
  is(judge_shared_memory(8 * GIB, 8 * GIB - 1, 8), WARN, "--shm-size");
  is(judge_shared_memory(64 * MIB, 64 * MIB, 1), WARN, "--shm-size");
  is(judge_shared_memory(64 * MIB, 64 * MIB, 2), FAULT, "--shm-size");
}

TEST(memory)
{
  is(judge_memory(512 * GIB, 500 * GIB, -1, 8), OK, "500.00 GiB available of 512.00 GiB, no limit");
  is(judge_memory(512 * GIB, 500 * GIB, 256 * GIB, 8), OK, "allow 256.00 GiB");
  is(judge_memory(512 * GIB, 500 * GIB, 255 * GIB, 8), WARN, "--mem=0");
  is(judge_memory(512 * GIB, 500 * GIB, 7 * GIB, 8), FAULT, "too little for 8 ranks");
  is(judge_memory(512 * GIB, 7 * GIB, -1, 8), FAULT, "end what else runs there");
  is(judge_memory(-1, 7 * GIB, -1, 8), WARN, "mount /proc");
}

TEST(disks)
{
  const struct doctor_disk disk = {
      .system = {.type = "lustre", .reach = REACH_SHARED, .size = 1000 * GIB, .free = 900 * GIB},
      .written = 256000000,
      .seconds = 0.5};
  struct doctor_disk slow = disk, tight = disk, full = disk, ram = disk, nfs = disk, broken = disk,
                     own = disk, narrow = disk, wide = disk;
  narrow.stripes = (struct stripes){.lustre = true, .own = true, .count = 1, .osts = 128};
  wide.stripes = narrow.stripes;
  wide.stripes.own = false; /* sluice train gives it more */
  slow.seconds = 2.6;
  own.system.reach = REACH_NODE;
  tight.system.free = 19 * GIB;
  full.system.free = GIB / 2;
  ram.system.in_memory = nfs.system.one_writer = true;
  snprintf(nfs.system.type, sizeof nfs.system.type, "nfs");
  snprintf(broken.failure, sizeof broken.failure, "cannot make a file: use another folder");
  is(judge_disk("runs", &disk, true, true, 4), OK,
     "runs (lustre): wrote 512.0 MB/s while the other nodes did, 900.00 GiB free of 1000.00 GiB");
  is(judge_disk("runs", &disk, true, false, 4), FAULT, "file system that all nodes share");
  is(judge_disk("nvme", &own, false, false, 4), OK, "512.0 MB/s");
  is(judge_disk("nvme", &disk, false, false, 4), WARN,
     "all nodes share it, and every step waits for it; set tiers.nvme to");
  is(judge_disk("runs", &slow, true, true, 1), WARN,
     "wrote 98.5 MB/s, 900.00 GiB free of 1000.00 GiB: slow");
  is(judge_disk("runs", &tight, true, true, 1), WARN, "room for few checkpoints");
  is(judge_disk("runs", &full, true, true, 1), FAULT, "no room for checkpoints");
  is(judge_disk("runs", &ram, true, true, 1), WARN, "lies in memory");
  is(judge_disk("runs", &nfs, true, true, 1), OK, "nfs");
  is(judge_disk("runs", &nfs, true, true, 2), WARN, "nfs is not made for one file");
  is(judge_disk("runs", &narrow, true, true, 1), WARN,
     "runs (lustre, a file on 1 of 128 OSTs): wrote 512.0 MB/s, 900.00 GiB free of 1000.00 GiB: "
     "somebody gave it one stripe, which sluice train leaves; set more: lfs setstripe -c 32 -S 4M");
  is(judge_disk("runs", &wide, true, true, 1), OK, "1 of 128 OSTs");
  is(judge_disk("runs", &broken, true, true, 1), FAULT, "runs: cannot make a file");
}

/* Oracle: statvfs' own numbers cannot be held still, so what was asked for, and what the folder
 * holds before and after. */
TEST(reads_a_disk)
{
  char dir[] = "/tmp/sluice-doctor-XXXXXX", below[64];
  struct doctor_disk disk;
  assert_non_null(mkdtemp(dir));
  snprintf(below, sizeof below, "%s/a/b", dir);
  doctor_disk_read(below, 9 << 20, 60, &disk);
  assert_string_equal(disk.failure, "");
  assert_int_equal(disk.written, 8 << 20); /* whole pieces of 4 MiB */
  assert_true(disk.seconds > 0 && disk.system.free > 0 && disk.system.size >= disk.system.free &&
              *disk.system.type);
  doctor_disk_read(dir, 1 << 30, 1e-9, &disk);
  assert_int_equal(disk.written, 4 << 20); /* the first piece shows that time is up */
  assert_int_equal(rmdir(dir), 0);         /* nothing was left in it */
  doctor_disk_read("/proc", 9 << 20, 60, &disk);
  assert_non_null(strstr(disk.failure, "use a folder that you may write"));
}

/* Fields of a rank on both sides of its finding. */
struct rank {
  int other;
  struct finding finding;
};

static struct finding merge(int ranks, const struct rank *rank, const char (*host)[DOCTOR_HOST])
{
  return doctor_merge(&rank->finding, ranks, sizeof *rank, host);
}

TEST(merges)
{
  static const char host[3][DOCTOR_HOST] = {"a", "b", "b"}, alone[3][DOCTOR_HOST] = {"a", "a", "a"};
  struct rank rank[3] = {0};
  assert_string_equal(merge(3, rank, host).what, ""); /* no rank reports */
  for (int r = 0; r < 3; r++)
    rank[r].finding = (struct finding){.what = "disk", .text = "fast", .amount = 100};
  is(merge(3, rank, host), OK, "fast");
  assert_string_equal(merge(3, rank, host).text, "fast");
  rank[1].finding = (struct finding){
      .what = "disk", .text = "slower", .amount = 90}; /* the least of the same verdict */
  assert_string_equal(merge(3, rank, host).text, "slower [b]");
  assert_string_equal(merge(3, rank, alone).text, "slower");
  rank[0].finding = (struct finding){.what = "disk",
                                     .text = "slow",
                                     .amount = 200,
                                     .verdict = WARN}; /* the worse verdict before the least */
  is(merge(3, rank, host), WARN, "slow [a]");
  rank[2].finding = (struct finding){.what = "disk", .text = "gone", .verdict = FAULT};
  is(merge(3, rank, host), FAULT, "gone [b]");
  rank[2].finding =
      (struct finding){.text = "not of a rank that has nothing to say", .verdict = FAULT};
  is(merge(3, rank, host), WARN, "slow [a]");
}

TEST(merges_what_ought_to_agree)
{
  static const char host[2][DOCTOR_HOST] = {"a", "b"};
  struct rank rank[2] = {{.finding = {.what = "HDF5", .text = "1.10.8", .common = true}},
                         {.finding = {.what = "HDF5", .text = "1.10.8", .common = true}}};
  is(merge(2, rank, host), OK, "1.10.8");
  snprintf(rank[1].finding.text, sizeof rank[1].finding.text, "1.14.0");
  is(merge(2, rank, host), WARN, "install the same on all: 1.10.8 [a]; 1.14.0 [b]");
  rank[1].finding.verdict = FAULT;
  is(merge(2, rank, host), FAULT, "1.14.0 [b]; 1.10.8 [a]");
}

static void hides(const char *text, const char *home, const char *user, const char *expected)
{
  char line[32];
  snprintf(line, sizeof line, "%s", text);
  doctor_hide(line, sizeof line, home, user);
  assert_string_equal(line, expected);
}

TEST(hides_users)
{
  hides("in /home/eve/runs, /home/eve", "/home/eve", "eve", "in ~/runs, ~");
  hides("/scratch/eve/runs /data/eve", "/home/eve", "eve", "/scratch/USER/runs /data/USER");
  hides("/home/evelyn /eve2 steve eve", "/home/eve", "eve", "/home/evelyn /eve2 steve eve");
  hides("'--prefix=/home/eve'", "/home/eve", NULL, "'--prefix=~'");
  hides("/mnt/home/eve", "/home/eve", "", "/mnt/home/eve");
  hides("/a/b", "/", "root", "/a/b");
  hides("/a/e/bbbbbbbbbbbbbbbbbbbbbbbbb", NULL, "e", "/a/USER/bbbbbbbbbbbbbbbbbbbbbbb");
  hides("/aaaaaaaaaaaaaaaaaaaaaaaaaaa/e", NULL, "e", "/aaaaaaaaaaaaaaaaaaaaaaaaaaa/e");
}

TEST_MAIN(NULL, NULL)
