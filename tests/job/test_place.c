/* Where a job computes, and whether it fits there. Oracles: a table of decks, machines and expected
 * places. Plans are compared with memory of one byte more and one byte less. Sums have round
 * sizes. */
#include <sys/resource.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/mem.h"
#include "config.h"
#include "fixture.h"
#include "job/private.h"
#include "job/search.h"
#include "tests/rows.h"

#ifdef HAVE_NCCL
#define BETWEEN_GPUS "nccl"
#else
#define BETWEEN_GPUS "mpi_device"
#endif

/* A result begins with what is expected; all of it is, if nothing was refused. */
static void expect_result(const char *given, enum status status, const char *result,
                          const char *expected)
{
  char told[2200];
  snprintf(told, sizeof told, "%s: %s", status_name(status), status_text());
  if (status ? strncmp(told, expected, strlen(expected)) != 0 : strcmp(result, expected) != 0)
    fail_msg("%s: '%s' is not '%s'", given, status ? told : result, expected);
}

static void check_place(const char *given, const char *expected)
{
  int ranks, local_ranks, gpus, length;
  char wanted[1024], result[128];
  struct deck deck;
  struct job_place place = {.device = "untouched"};
  const char *between = !strncmp(expected, "cuda ", 5) ? strstr(expected, " between") : NULL;
  assert_int_equal(sscanf(given, "%d %d %d%n", &ranks, &local_ranks, &gpus, &length), 3);
  must(fixture_load(&deck, given + length + (given[length] == ' ')));
  const enum status status = job_choose_place(&deck, ranks, local_ranks, gpus, &place);
  deck_destroy(&deck);
  snprintf(wanted, sizeof wanted, "%s", expected);
  if (between)
    snprintf(wanted, sizeof wanted, "%.*s %s", (int)(between - expected), expected, BETWEEN_GPUS);
  const bool fp8 = place.precision && !strncmp(place.precision, "fp8", 3);
  snprintf(result, sizeof result, "%s %s %s%s%s", place.device, dtype_name(place.compute),
           status ? "" : place.transport, fp8 ? " " : "", fp8 ? place.precision : "");
  expect_result(given, status, result, wanted);
  assert_true(!status || !strcmp(place.device, "untouched"));
}

/* A deck with each choice of run.fp8_scales, on devices with each kind of products. */
static void check_scales(const char *given, const char *expected)
{
  char key[32], has[16], set[64];
  struct deck deck;
  bool tensor = false;
  assert_int_equal(sscanf(given, "%31s %15s", key, has), 2);
  snprintf(set, sizeof set, "run.fp8_scales=%s", key);
  must(fixture_load(&deck, set));
  const enum status status = job_fp8_scales(&deck,
                                            !strcmp(has, "groups")   ? FP8_SCALES_GROUPS
                                            : !strcmp(has, "tensor") ? FP8_SCALES_TENSOR
                                                                     : FP8_SCALES_NONE,
                                            "TPU", &tensor);
  expect_result(given, status, tensor ? "tensor" : "groups", expected);
  assert_true(!status || !tensor);
  deck_destroy(&deck);
}

TEST(places)
{
  rows_each("tests/job/place.txt", "places", check_place);
  rows_each("tests/job/place.txt", "scales", check_scales);
}

TEST(a_build_or_node_without_gpus_says_so)
{
  struct deck deck;
  struct job_place none;
  must(fixture_load(&deck, "run.device=cuda"));
  assert_int_equal(job_choose_place(&deck, 1, 1, 0, &none), STATUS_UNSUPPORTED);
  deck_destroy(&deck);
  assert_true(
      strstr(status_text(),
             "this build has no CUDA: configure it with --with-cuda, or set run.device=host") ||
      strstr(status_text(), "this process sees no GPU"));
}

/* A job of two ranks of one node, and its training plan with sizes that are easy to add up. Nothing
 * of a deck is in them. */
struct sized {
  struct deck deck;
  struct job job;
  struct plan plan;
  struct plan_unit unit[8];
};

enum { GI = 1 << 30 };

/* `rank` of `ranks`, on nodes of `local`. Its plan is the real one. */
static void open_rank(struct sized *sized, const char *keys, int rank, int ranks, int local,
                      bool apart)
{
  struct comm *comm;
  fixture_deck(&sized->deck, "gpt2", "full_shard", "world", "[]");
  fixture_assign(&sized->deck, keys);
  must(deck_check(&sized->deck));
  must(comm_create_fake(rank, ranks, local, &comm));
  fixture_open(&sized->job, &sized->deck, comm, rank, ranks, apart);
  sized->plan = *sized->job.plan[PLAN_TRAIN];
}

static void sized_open(struct sized *sized, bool apart)
{
  open_rank(sized, "checkpoint.at_end=false", 0, 2, 2, apart);
  assert_in_range(sized->job.model->units, 1, 8);
  memcpy(sized->unit, sized->plan.unit, (size_t)sized->job.model->units * sizeof *sized->unit);
  sized->plan.unit = sized->unit;
  for (int tier = 0; tier < TIER_COUNT; tier++)
    sized->plan.persistent_bytes[tier] = sized->plan.transient_bytes[tier] = 0;
}

static void sized_close(struct sized *sized)
{
  fixture_close(&sized->job);
  deck_destroy(&sized->deck);
}

static enum status sized_check(const struct sized *sized, enum job_use use,
                               const struct job_limits *limits)
{
  const struct plan *plans[] = {&sized->plan};
  return job_check_limits(&sized->job, use, 1, plans, limits, true);
}

static const struct job_limits no_limits = {
    .device = -1, .host = -1, .shared = -1, .disk = -1, .lock = -1};

static void refused(const struct sized *sized, const struct job_limits *limits, const char *text)
{
  must_fail(sized_check(sized, JOB_TRAIN, limits), STATUS_MEMORY, text);
}

/* The job fits in `bytes` bytes of a limit, and is refused with one less. */
static void bounded(const struct sized *sized, struct job_limits *limits, int64_t *limit,
                    int64_t bytes, const char *text)
{
  *limit = bytes;
  must(sized_check(sized, JOB_TRAIN, limits));
  *limit = bytes - 1;
  refused(sized, limits, text);
}

/* Against the memory of this machine. */
static enum status check_here(const struct sized *sized)
{
  const struct plan *plans[] = {&sized->plan};
  return job_check_fits(&sized->job, JOB_TRAIN, 1, plans);
}

/* The arenas of a rank are compared with the memory that the reserve leaves. The context is in use
 * already, and counts once. */
TEST(a_device_apart_is_asked_for_its_memory)
{
  struct sized sized;
  sized_open(&sized, true);
  sized.plan.persistent_bytes[TIER_DEVICE] = INT64_C(3) * GI;
  sized.plan.transient_bytes[TIER_DEVICE] = INT64_C(2) * GI;
  struct job_limits limits = no_limits;
  must(sized_check(&sized, JOB_TRAIN, &limits));
  bounded(&sized, &limits, &limits.device, INT64_C(5) * GI,
          "the job does not fit: a rank needs 5.00 GiB of memory on its apart device (3.00 GiB "
          "persistent, 2.00 GiB per step) and has 5.00 GiB (and 2.25 GiB for the CUDA context, "
          "libraries and NCCL): use ");
  apart_set_memory(GI / 2, INT64_C(7) * GI + GI / 4); /* and the device's own word is asked for */
  must(check_here(&sized));
  apart_set_memory(GI / 2 + 1, INT64_C(7) * GI + GI / 4);
  must_fail(check_here(&sized), STATUS_MEMORY, "and has 5.00 GiB (and 2.25 GiB for");
  apart_set_memory(-1, 0);
  sized_close(&sized);
}

/* A node holds the arenas of its ranks, and once what they share. */
TEST(host_memory_is_that_of_all_ranks_of_a_node)
{
  struct sized sized;
  sized_open(&sized, true);
  sized.plan.persistent_bytes[TIER_HOST] = INT64_C(10) * GI;
  sized.plan.transient_bytes[TIER_HOST] = INT64_C(4) * GI;
  sized.plan.persistent_bytes[TIER_SHARED] = INT64_C(6) * GI;
  int *const shards = &sized.plan.mesh.size[AXIS_NODE];
  fixture_assign(&sized.deck, "tiers.params=host tiers.optimizer=host transfer.params=full");
  const int64_t state_bytes =
      job_state_bytes(&sized.plan, true); /* the real plan's: masters and moments on the device */
  struct job_limits limits = no_limits;
  limits.host = 2 * (INT64_C(14) * GI + state_bytes) + INT64_C(6) * GI;
  must(sized_check(&sized, JOB_TRAIN, &limits));
  limits.host = INT64_C(34) * GI - 1;
  limits.shared = INT64_C(6) * GI;
  refused(&sized, &limits,
          "the job does not fit: the 2 ranks of this node need 34.00 GiB of host memory (per "
          "rank 10.00 GiB persistent, 4.00 GiB per step; 6.00 GiB shared by the ranks) and have "
          "34.00 GiB: use ");
  must_say("; the ranks of this node need 6.00 GiB of shared memory in /dev/shm, which has 6.00 "
           "GiB (enough)");
  *shards = 1; /* each rank with a copy of its own */
  limits = no_limits;
  bounded(&sized, &limits, &limits.shared, INT64_C(12) * GI,
          "the job does not fit: the ranks of this node need 12.00 GiB of shared memory in "
          "/dev/shm, which has 12.00 GiB: use ");
  must_say("transfer.params=shard, or a larger /dev/shm (mount");

  *shards = 2; /* and what each has for itself */
  sized.plan.transient_bytes[TIER_SHARED] = INT64_C(1) * GI;
  bounded(
      &sized, &limits, &limits.shared, INT64_C(8) * GI,
      "the ranks of this node need 8.00 GiB of shared memory in /dev/shm, which has 8.00 "
      "GiB: use tiers.params=device tiers.optimizer=device, or transfer.params=shard, or a larger "
      "/dev/shm");
  sized_close(&sized);
}

/* ---- cures ---- */

static void open_with(struct sized *sized, const char *keys)
{
  char all[4096];
  snprintf(all, sizeof all, "checkpoint.at_end=false %s", keys);
  open_rank(sized, all, 0, 2, 2, true);
}

/* `cure` holds keys with blanks between them, and perhaps a note. */
static void check_cure(const char *keys, const char *cure, const struct job_limits *limits)
{
  struct sized sized;
  char all[2048];
  snprintf(all, sizeof all, "%s %.*s", keys, (int)strcspn(cure, "("), cure);
  open_with(&sized, all);
  if (sized_check(&sized, JOB_TRAIN, limits))
    fail_msg("'%s' is no cure: %s", cure, status_text());
  sized_close(&sized);
}

/* Oracle: decks with these keys, whose plans fit. How many there were. */
static int check_cures(const char *keys, const char *least, const struct job_limits *limits)
{
  struct sized sized;
  char text[2048];
  int cures = 0;
  open_with(&sized, keys);
  refused(&sized, limits, least);
  const char *named = strstr(status_text(), ": use ");
  snprintf(text, sizeof text, "%s", named ? named + strlen(": use ") : "");
  sized_close(&sized);
  text[strcspn(text, ";")] = 0;
  for (char *at = *text ? text : NULL; at;) {
    char * or = strstr(at, ", or ");
    if (or)
      * or = 0;
    if (strchr(at, '=') && strncmp(at, "a larger ", 9) != 0 && !strstr(at, " ranks on ") &&
        !strstr(at, "FOLDER")) { /* not what no key does */
      check_cure(keys, at, limits);
      cures++;
    }
    at = or ? or +5 : NULL;
  }
  return cures;
}

/* Bytes that the node of these keys needs in a tier: the device's are of one rank. */
static int64_t needs(const char *keys, enum plan_tier tier)
{
  struct sized sized;
  open_with(&sized, keys);
  const int64_t bytes = tier == TIER_SHARED   ? plan_shared_bytes(&sized.plan)
                        : tier == TIER_DEVICE ? plan_tier_bytes(&sized.plan, tier)
                                              : 2 * plan_tier_bytes(&sized.plan, tier);
  sized_close(&sized);
  return bytes;
}

#define HOST "tiers.params=host tiers.optimizer=host "

/* One byte is missing, and the cheapest cures come first. The device is full of what masters in
 * host memory leave there, with room for a unit. */
TEST(keys_that_are_named_make_it_fit)
{
  static const struct {
    const char *keys;
    enum plan_tier tier;
    const char *cures;
  } known[] = {
      {"data.micro_batch=6", TIER_DEVICE,
       ": use tiers.activations=recompute:2, or tiers.params=host tiers.optimizer=host, or "
       "shard.prefetch=0, or 4 ranks"},
      {HOST "optim.update=deferred", TIER_HOST,
       ": use tiers.resident=1, or optim.moments=bf16 (which changes the numbers), or 2 ranks on 2 "
       "nodes"},
      {HOST "optim.update=deferred optim.moments=bf16 train.freeze=[*.h.*]", TIER_HOST,
       ": use tiers.resident=1, or train.frozen=bf16 (which changes the numbers), or 2 ranks on 2 "
       "nodes"},
      {HOST "tiers.nvme=/tmp", TIER_HOST,
       ": use tiers.resident=1, or optim.update=deferred, or optim.state=nvme, or 2 ranks"},
      {HOST "optim.state=nvme tiers.nvme=/tmp", TIER_DISK,
       ": use optim.state=host, or tiers.resident=1, or optim.state_share=0.5, or tiers.nvme"},
      {HOST "transfer.params=full", TIER_SHARED, ": use transfer.params=shard, or a larger"},
  };
  struct job_limits limits = no_limits;
  int named = 0;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    const int64_t short_of = needs(known[i].keys, known[i].tier) - 1;
    limits = no_limits;
    limits.device = needs(known[i].keys, TIER_DEVICE) + 8192; /* little room for masters */
    *(known[i].tier == TIER_DEVICE   ? &limits.device
      : known[i].tier == TIER_HOST   ? &limits.host
      : known[i].tier == TIER_SHARED ? &limits.shared
                                     : &limits.disk) = short_of;
    assert_in_range(check_cures(known[i].keys, known[i].cures, &limits), 1, 3);
  }
  limits = no_limits;
  for (int64_t part = 9; part > 0; part--) { /* less and less room: cheap cures disappear */
    limits.device = needs(known[0].keys, TIER_DEVICE) / 10 * part;
    named += check_cures(known[0].keys, ": ", &limits);
  }
  assert_true(named > 5);
}

/* Messages in host memory are decoded next to it, one at a time, to be loaded, and to be saved.
 * Magnitudes of all are kept while they are loaded. */
TEST(frozen_messages_need_room_to_be_loaded)
{
  struct sized sized;
  struct job_limits limits = no_limits;
  open_with(&sized, HOST "train.freeze=[*.h.*] train.frozen=nf4 checkpoint.at_end=true");
  int64_t bytes = plan_tier_bytes(&sized.plan, TIER_HOST), elements = 0, message = 0,
          magnitudes = 0;
  for (int u = 0; u < sized.job.model->units; u++) {
    const struct plan_unit *unit = &sized.plan.unit[u];
    const int64_t held = (unit->frozen_owned.end - unit->frozen_owned.begin) * 4;
    if (unit->policy.frozen == DTYPE_U8) {
      elements = held > elements ? held : elements;
      magnitudes += nf4_blocks(held / 4) * 4;
      message = sized.plan.buffer[unit->frozen].bytes > message
                    ? sized.plan.buffer[unit->frozen].bytes
                    : message;
    }
  }
  assert_true(message > 0);
  bytes += elements + message + magnitudes;
  bounded(&sized, &limits, &limits.host, 2 * bytes, "to load and save the state of its device");
  sized_close(&sized);
}

/* And where none does, that is said; a rank that is not to look for them says what it needs alone.
 */
TEST(no_key_is_named_that_does_not_help)
{
  struct sized sized;
  struct job_limits limits = no_limits;
  open_with(&sized, "");
  limits.device = 1;
  refused(&sized, &limits,
          "and has 1 B (and 2.25 GiB for the CUDA context, libraries and NCCL): none of the keys "
          "that were tried makes it fit; use GPUs with more memory");
  const struct plan *plans[] = {&sized.plan};
  assert_int_equal(job_check_limits(&sized.job, JOB_TRAIN, 1, plans, &limits, false),
                   STATUS_MEMORY);
  assert_string_equal(strstr(status_text(), " and has 1 B"),
                      " and has 1 B (and 2.25 GiB for the CUDA context, libraries and NCCL)");
  sized_close(&sized);
}

/* The message, if any, of a job that is not refused. */
static void check_warning(const struct sized *sized, const struct job_limits *limits,
                          const char *text)
{
  status_set(STATUS_OK, "nothing");
  must(sized_check(sized, JOB_TRAIN, limits));
  must_say(text);
}

/* Registered memory may be held against the limit for locked memory: a warning, for some drivers do
 * not. */
TEST(registered_memory_is_compared_with_the_limit)
{
  static const char registers[] =
      "each rank registers 1.00 MiB of shared memory with its GPU, but may lock at most ";
  for (int apart = 0; apart < 2; apart++) {
    struct sized sized;
    sized_open(&sized, apart);
    sized.plan.persistent_bytes[TIER_SHARED] = 1 << 20;
    struct job_limits limits = no_limits;
    limits.lock = 1 << 20;
    check_warning(&sized, &limits, "nothing");
    limits.lock--;
    check_warning(&sized, &limits, apart ? registers : "nothing");

    struct rlimit usual;
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &usual), 0);
    assert_int_equal(
        setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){.rlim_cur = 65536, .rlim_max = usual.rlim_max}),
        0);
    status_set(STATUS_OK, "nothing");
    must(check_here(&sized));
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &usual), 0);
    must_say(apart ? registers : "nothing");
    sized_close(&sized);
  }
}

TEST(rdma_is_held_against_what_may_be_locked)
{
  struct sized sized;
  sized_open(&sized, false);
  struct job_limits limits = no_limits;
  limits.rdma = true;
  check_warning(&sized, &limits, "nothing");
  limits.lock = GI;
  check_warning(&sized, &limits, "nothing");
  limits.lock = GI / 16;
  check_warning(&sized, &limits,
                "a rank may lock at most 64.00 MiB of memory (RLIMIT_MEMLOCK), and memory that MPI "
                "and NCCL register for RDMA counts: if they fail, raise it (ulimit -l unlimited");
  limits.rdma = false;
  check_warning(&sized, &limits, "nothing");
  sized_close(&sized);
}

TEST(the_disk_is_asked_for_its_room)
{
  struct sized sized;
  sized_open(&sized, false);
  sized.plan.persistent_bytes[TIER_DISK] = INT64_C(3) * GI;
  sized.plan.transient_bytes[TIER_DISK] = INT64_C(1) * GI;
  sized.plan.input.policy.nvme_state = 1;
  sized.job.nvme = (char *)"/scratch/run";
  struct job_limits limits = no_limits;
  bounded(&sized, &limits, &limits.disk, INT64_C(8) * GI,
          "the job does not fit: the 2 ranks of this node need 8.00 GiB on the disk of "
          "/scratch/run, which has 8.00 GiB: use ");
  must_say("tiers.nvme=FOLDER on a larger disk");
  sized.plan.input.policy.nvme_state = 0;
  sized.plan.persistent_bytes[TIER_DISK] = INT64_C(1) << 60; /* the file system itself is asked */
  char folder[] = "/tmp/sluice-XXXXXX", words[192], below[64];
  assert_non_null(mkdtemp(folder));
  snprintf(below, sizeof below, "%s/nvme", folder);
  sized.job.nvme = below;
  assert_int_equal(check_here(&sized), STATUS_MEMORY);
  snprintf(words, sizeof words,
           "the 2 ranks of this node need 2.00 EiB on the disk of %s (a new folder), which has",
           below);
  must_say(words);
  must_say("tiers.nvme=FOLDER on a larger disk");
  assert_int_not_equal(rmdir(below), 0); /* nothing is made in vain */
  sized.job.nvme = folder;
  assert_int_equal(check_here(&sized), STATUS_MEMORY);
  snprintf(words, sizeof words,
           "the 2 ranks of this node need 2.00 EiB on the disk of %s, which has", folder);
  must_say(words);
  assert_int_equal(rmdir(folder), 0);
  sized.job.nvme = NULL;
  sized_close(&sized);
}

/* However much is asked for, and however little room there is: nothing is said of either. */
TEST(a_folder_that_cannot_be_is_not_a_full_disk)
{
  struct sized sized;
  sized_open(&sized, false);
  sized.job.nvme = (char *)"/proc/nowhere";
  for (int shift = 10; shift <= 60; shift += 50) {
    sized.plan.persistent_bytes[TIER_DISK] = INT64_C(1) << shift;
    must_fail(check_here(&sized), STATUS_IO,
              "the NVMe folder /proc/nowhere does not exist and cannot be made in /proc (");
    must_say("(tiers.nvme=FOLDER)");
    assert_null(strstr(status_text(), "iB")); /* no size */
  }
  sized.plan.persistent_bytes[TIER_DISK] = 0; /* who needs none is not asked for one */
  must(check_here(&sized));
  sized.job.nvme = NULL;
  sized_close(&sized);
}

/* The result of statfs() for every folder; 0: the real one. And the number of folders that were
 * made as a trial. And the folders that were made to try one. */
static unsigned system_type;
static int trials;

int __wrap_statfs(const char *path, struct statfs *info);
int __real_statfs(const char *path, struct statfs *info);
char *__wrap_mkdtemp(char *path);
char *__real_mkdtemp(char *path);

int __wrap_statfs(const char *path, struct statfs *info)
{
  const int error = __real_statfs(path, info);
  if (system_type)
    info->f_type = (__fsword_t)system_type;
  return error;
}

char *__wrap_mkdtemp(char *path)
{
  trials++;
  return __real_mkdtemp(path);
}

/* A rank of 4 on nodes of `local`, whose plan puts `bytes` bytes on the disk of /tmp/nvme, which
 * the deck names or does not. */
static enum status check_disk_of(int rank, int local, bool named, int64_t bytes)
{
  struct sized sized;
  open_rank(&sized, named ? "tiers.nvme=/tmp/nvme" : "run.dir=/tmp", rank, 4, local, false);
  sized.plan.persistent_bytes[TIER_DISK] = bytes;
  sized.job.nvme = job_nvme_folder(&sized.deck);
  assert_string_equal(sized.job.nvme, "/tmp/nvme");
  trials = 0;
  status_set(STATUS_OK, "nothing");
  const enum status status = check_here(&sized);
  mem_free(sized.job.nvme);
  sized_close(&sized);
  return status;
}

/* Oracle: linux/magic.h, and the numbers that Lustre, GPFS and BeeGFS give themselves. */
TEST(nvme_data_go_to_the_disk_of_the_node)
{
  static const char cure[] =
      "set tiers.nvme to a folder on the node's own disk, such as $SLURM_TMPDIR or /local/scratch";
  static const unsigned local[] = {0xef53, 0x58465342, 0x9123683e, 0x01021994, 0x794c7630};
  static const struct {
    unsigned type;
    const char *name;
  } shared[] = {{0x6969, "nfs"},        {0x0bd00bd0, "lustre"}, {0x47504653, "gpfs"},
                {0x19830326, "beegfs"}, {0x00c36400, "ceph"},   {0xff534d42, "cifs"}};
  char words[200];
  for (size_t i = 0; i < sizeof local / sizeof *local; i++) {
    system_type = local[i];
    must_fail(check_disk_of(0, 4, false, 1), STATUS_OK, "nothing");
    must_fail(check_disk_of(0, 2, true, 1), STATUS_OK,
              "nothing"); /* on two nodes, where each has a folder of its own */
    must_fail(check_disk_of(0, 2, false, 1), STATUS_USAGE,
              "activations, optimizer state or residuals go to NVMe, but tiers.nvme names no "
              "folder, and all nodes would use the default /tmp/nvme: ");
    must_say(cure);
    must(check_disk_of(0, 2, false, 0)); /* who needs none is asked for none */
  }
  for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) {
    system_type = shared[i].type;
    snprintf(words, sizeof words,
             "tiers.nvme names no folder, and the default /tmp/nvme is on %s, which nodes share: ",
             shared[i].name);
    must_fail(check_disk_of(0, 4, false, 1), STATUS_USAGE, words);
    must_say(cure);
    assert_int_equal(trials, 0);
    snprintf(
        words, sizeof words,
        "tiers.nvme (command line) is /tmp/nvme, on %s, which nodes share: every step waits for it",
        shared[i].name);
    must_fail(check_disk_of(0, 2, true, 1), STATUS_OK, words);
    must_fail(check_disk_of(1, 2, true, 1), STATUS_OK, "nothing"); /* once */
  }
  system_type = 0x65735546; /* one node's, or not */
  must_fail(check_disk_of(0, 4, false, 1), STATUS_OK,
            "NVMe data go to /tmp/nvme, whose file system (fuse) may not be local to the node: ");
  must_fail(check_disk_of(1, 4, false, 1), STATUS_OK, "nothing");
  must_fail(check_disk_of(0, 4, true, 1), STATUS_OK, "nothing");
  /* And what they need is what all of them have together. */
  system_type = 0xef53;
  must_fail(
      check_disk_of(0, 2, true, INT64_C(1) << 60), STATUS_MEMORY,
      "the 2 ranks of this node need 2.00 EiB on the disk of /tmp/nvme (a new folder), which has ");
  system_type = 0x6969;
  must_fail(
      check_disk_of(0, 2, true, INT64_C(1) << 60), STATUS_MEMORY,
      "the 4 ranks of all nodes need 4.00 EiB on the disk of /tmp/nvme (a new folder), which has ");
  system_type = 0;
}

/* A key that would use the disk is one only where there is a folder for it. */
static bool names_nvme(int local, unsigned type)
{
  struct sized sized;
  struct job_limits limits = no_limits;
  open_rank(&sized, "run.dir=/tmp checkpoint.at_end=false " HOST, 0, 4, local, true);
  const struct plan *plans[] = {&sized.plan};
  limits.host = (int64_t)job_need(1, plans, local, false).room[ROOM_HOST] - 1;
  limits.device = plan_tier_bytes(&sized.plan, TIER_DEVICE);
  sized.job.nvme = job_nvme_folder(&sized.deck);
  system_type = type;
  job_look_at_disk(&sized.job, &limits);
  system_type = 0;
  refused(&sized, &limits, ": use ");
  const bool names = strstr(status_text(), "optim.state=nvme") != NULL;
  mem_free(sized.job.nvme);
  sized_close(&sized);
  return names;
}

TEST(nvme_is_a_cure_where_there_is_a_folder_for_it)
{
  assert_true(names_nvme(4, 0xef53));
  assert_false(names_nvme(4, 0x6969));
  assert_false(names_nvme(2, 0xef53));
}

TEST(one_rank_of_a_node_tries_the_folder)
{
  for (int rank = 0; rank < 4; rank++) {
    must(check_disk_of(rank, 2, true, 1));
    assert_int_equal(trials, rank % 2 == 0);
  }
}

/* Memory that is never allocated only gives a warning. */
TEST(state_that_cannot_be_saved_is_refused)
{
  static const struct {
    const char *saves;
    enum job_use use;
    enum status status;
  } known[] = {{"checkpoint.at_end=true", JOB_TRAIN, STATUS_MEMORY},
               {"checkpoint.every=5", JOB_TRAIN_AND_EVAL, STATUS_MEMORY},
               {"train.init=elsewhere", JOB_TRAIN, STATUS_MEMORY},
               {"checkpoint.at_end=false", JOB_TRAIN, STATUS_OK},
               {"checkpoint.at_end=false", JOB_EVAL, STATUS_MEMORY},
               {"checkpoint.at_end=false", JOB_GENERATE, STATUS_MEMORY},
               {"checkpoint.at_end=true", JOB_BENCH, STATUS_OK}};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    struct sized sized;
    struct job_limits limits = no_limits;
    sized_open(&sized, true);
    must(options_assign(sized.deck.set, known[i].saves));
    limits.host = INT64_C(1) << 50;
    must(sized_check(&sized, known[i].use, &limits));
    sized.unit[0].owned.end = sized.unit[0].owned.begin + (INT64_C(1) << 56);
    status_set(STATUS_OK, "nothing");
    if (sized_check(&sized, known[i].use, &limits) != known[i].status)
      fail_msg("%s, use %d: not %s", known[i].saves, known[i].use, status_name(known[i].status));
    must_say("(per rank 0 B persistent, 0 B per step, ");
    must_say("to load and save the state of its device) and have 1.00 PiB: use ");
    must_say("2 ranks on 2 nodes");
    sized.plan.transient_bytes[TIER_HOST] = INT64_C(1) << 50; /* that is no copy of the state */
    assert_int_equal(sized_check(&sized, known[i].use, &limits), STATUS_MEMORY);
    sized_close(&sized);
  }
}

/* Where the memory is one, both tiers are compared with it, and nothing is moved to load and save.
 */
TEST(the_host_device_is_asked_for_the_host_s_memory)
{
  const int64_t boxes =
      2 * 2 *
      ((2 << 20) +
       128); /* of two groups, which gather and reduce, two halves and a line for each rank */
  struct sized sized;
  sized_open(&sized, false);
  struct job_limits limits = no_limits;
  sized.plan.persistent_bytes[TIER_DEVICE] = INT64_C(3) * GI;
  sized.plan.persistent_bytes[TIER_HOST] = INT64_C(2) * GI;
  sized.plan.transient_bytes[TIER_DEVICE] = INT64_C(1) * GI;
  limits.device = 0;
  limits.host = INT64_C(12) * GI + boxes;
  limits.shared = 0; /* then messages take their place */
  must(sized_check(&sized, JOB_TRAIN, &limits));
  limits.shared = -1;
  limits.host--;
  refused(
      &sized, &limits,
      "the job does not fit: the 2 ranks of this node need 12.01 GiB of host memory (per "
      "rank 5.00 GiB persistent, 1.00 GiB per step; 8.00 MiB to exchange data) and have "
      "12.01 GiB: use tiers.activations=recompute:2, or shard.prefetch=0, or data.micro_batch=3, "
      "or 2 ranks on 2 nodes");
  sized.plan.transient_bytes[TIER_DEVICE] = INT64_C(1) << 60;
  must_fail(check_here(&sized), STATUS_MEMORY,
            "the 2 ranks of this node need 2.00 EiB of host memory");
  sized_close(&sized);
}

/* A plan that fits is not refused at the start of the run. Oracle: arenas, and the boxes of two
 * groups. */
TEST(a_plan_and_a_run_need_the_same)
{
  static const struct {
    const char *strategy, *group;
    int ranks, boxes;
  } known[] = {
      {"full_shard", "world", 1, 0}, {"full_shard", "world", 2, 4}, {"hybrid_shard", "2", 4, 8}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    struct deck deck;
    struct job job;
    struct job_limits limits = no_limits;
    fixture_deck(&deck, "gpt2", known[i].strategy, known[i].group, "[]");
    fixture_open(&job, &deck, NULL, 0, known[i].ranks, false);
    const struct plan *plans[] = {job.plan[PLAN_TRAIN]};
    const struct job_need need = job_need(1, plans, known[i].ranks, true);
    limits.host =
        known[i].ranks * job_arena_bytes(1, plans) + known[i].boxes * ((INT64_C(2) << 20) + 128);
    assert_int_equal((int64_t)need.room[ROOM_HOST], limits.host);
    must(job_check_limits(&job, JOB_TRAIN, 1, plans, &limits, true));
    limits.host--;
    assert_int_equal(job_check_limits(&job, JOB_TRAIN, 1, plans, &limits, true), STATUS_MEMORY);
    fixture_close(&job);
    deck_destroy(&deck);
  }
}

/* A control group bounds what is available, and promises nothing beyond it; but where the machine
 * shows more only when more is in use, it is all that is known. */
TEST(limits_bound_what_is_available)
{
  static const struct {
    int64_t available, limit;
    bool grows;
    int64_t room;
  } known[] = {{100, -1, false, 100},   {100, 80, false, 80},    {100, 110, false, 100},
               {100, 1000, false, 100}, {-1, 50, false, -1},     {-1, -1, false, -1},
               {100, -1, true, 100},    {100, 1000, true, 1000}, {100, 80, true, 80},
               {-1, 50, true, -1}};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
    assert_int_equal(job_host_room(known[i].available, known[i].limit, known[i].grows),
                     known[i].room);
}

/* Settings that CUDA's update and copies do not support are refused when the plan is made. */
TEST(a_device_apart_refuses_what_it_does_not_do)
{
  static const struct {
    const char *given;
    bool apart;
    enum status status;
    const char *text;
  } known[] = {
      {"optim.moments=bf16", true, STATUS_OK, NULL},
      {"transfer.rate=2.5", false, STATUS_OK, NULL},
      {"transfer.rate=2.5", true, STATUS_USAGE,
       "transfer.rate (command line) is 2.5, which simulates slow copies on the host: leave it "
       "out, or set run.device=host"},
  };
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    struct deck deck;
    must(fixture_load(&deck, known[i].given));
    struct device_model device = {.host_memory = !known[i].apart};
    struct plan_input input = {.mode = PLAN_TRAIN, .ranks = 1, .device = &device};
    assert_int_equal(job_shape(&deck, JOB_TRAIN, 1, &input), known[i].status);
    if (known[i].text)
      assert_string_equal(status_text(), known[i].text);
    must(job_shape(&deck, JOB_EVAL, 1, &input)); /* where nothing is updated */
    deck_destroy(&deck);
  }
}

TEST_MAIN(NULL, NULL)
