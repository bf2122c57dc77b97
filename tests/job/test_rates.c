/* The rates of a machine at the start of a job: the file in the user's cache, and the time to
 * measure. Oracles: numbers that the test writes into the file; the files of the folder; links that
 * take as long as a formula says, on up to 1,024 ranks that do not exist. */
/* ranks: 1 2 3 */
#include <dirent.h>
#include <math.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/team.h"
#include "comm/mpi_info.h"
#include "io/text/file.h"
#include "job/rates.h"
#include "ranks.h"

static struct job job;
static struct deck deck;
static char folder[PATH_MAX];

static void start(const char *keys)
{
  fixture_deck(&deck, "gpt2", "full_shard", "world", "[]");
  fixture_assign(&deck, keys);
  fixture_open(&job, &deck, comm, comm_rank(comm), comm_ranks(comm), false);
  job.place.transport = "mpi";
  job.place.precision = "fp32";
}

static void end(void)
{
  mem_free(job.rates_of);
  fixture_end(&job);
}

/* The machine that a start finds. */
static struct comm_fabric fabric_found;
static char product[sizeof job.device->product];

void __wrap_comm_fabric_read(const char *root, struct comm_fabric *out);
void __wrap_comm_fabric_read(const char *root, struct comm_fabric *out)
{
  assert_string_equal(root, "/sys/class");
  *out = fabric_found;
}

/* Each rank is a node of its own, if exchanges between nodes take a time that a test sets. */
static struct {
  double first_s, then_s; /* the first one, and the others; 0: ranks share a node */
  int calls;
} late;

int __real_comm_local_ranks(const struct comm *of);
int __wrap_comm_local_ranks(const struct comm *of);
int __wrap_comm_local_ranks(const struct comm *of)
{
  return late.then_s > 0 ? 1 : __real_comm_local_ranks(of);
}

/* A folder is one call of a file system that all ranks share. */
int __real_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode)
{
  assert_int_equal(comm_rank(comm), 0);
  return __real_mkdir(path, mode);
}

/* All ranks have the same numbers. */
static struct plan_rates rates_of(const char *keys)
{
  struct plan_rates rates;
  start(keys);
  snprintf(job.device->product, sizeof product, "%s", product);
  must(job_rates(&job, &rates));
  must(comm_check_same(comm, "rates", &rates, sizeof rates));
  end();
  return rates;
}

/* The only file of the folder, or one of so many. */
static struct file_path cached(int files)
{
  struct file_path found = {""};
  int n = 0;
  DIR *open = opendir(folder);
  assert_non_null(open);
  for (struct dirent *entry; (entry = readdir(open));)
    if (entry->d_name[0] != '.') {
      assert_true(!strncmp(entry->d_name, "sluice-rates-", 13) && strlen(entry->d_name) == 29);
      found = file_path(folder, entry->d_name);
      n++;
    }
  assert_int_equal(closedir(open), 0);
  assert_int_equal(n, files);
  return found;
}

/* Each test has an empty folder. */
static void begin(const char *name)
{
  snprintf(folder, sizeof folder, "%s/%s", dir, name);
  must(comm_barrier(comm));
  if (comm_rank(comm) == 0)
    assert_int_equal(mkdir(folder, 0700), 0);
  assert_int_equal(setenv("XDG_CACHE_HOME", folder, true), 0);
  must(comm_barrier(comm));
}

static void remove_all(void)
{
  char command[PATH_MAX + 16];
  must(comm_barrier(comm));
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  if (comm_rank(comm) == 0)
    assert_int_equal(system(command), 0);
  must(comm_barrier(comm));
}

/* Replaces the first `old` of the file by as many characters, and the hash in its last line. */
static void change(const char *old, const char *new, bool sealed)
{
  char *text = NULL;
  size_t bytes;
  must(comm_barrier(comm));
  if (comm_rank(comm) == 0) {
    const struct file_path path = cached(1);
    must(file_read_all(path.text, 1 << 16, &text, &bytes));
    char *at = strstr(text, old), *seal = text + bytes - 19;
    assert_non_null(at);
    memcpy(at, new, strlen(new));
    if (sealed) {
      *seal = '\0';
      snprintf(seal, 20, "# %016llx\n", (unsigned long long)hash_text(text));
    }
    must(file_write_all(path.text, text, bytes));
    mem_free(text);
  }
  must(comm_barrier(comm));
}

TEST(a_start_that_measures_has_the_rates_of_the_next_one)
{
  begin("same");
  const struct plan_rates cold = rates_of(""), warm = rates_of("");
  assert_memory_equal(&cold, &warm, sizeof cold);
  assert_true(cold.gemm_flops > 0 && cold.memory_bytes > 0);
  assert_int_equal(cold.link_bytes > 0, comm_ranks(comm) > 1);
  assert_true(cold.h2d_bytes == 0 && cold.host_bytes == 0 && cold.disk_read_bytes == 0);
  cached(1);
  remove_all();
}

TEST(a_file_is_read)
{
  begin("read");
  (void)rates_of("");
  change("\ngemm: ", "\ngemm: 1234567  # ", true);
  assert_true(rates_of("").gemm_flops == 1234567e9);
  cached(1);
  remove_all();
}

/* Other sequences per micro-batch, and another codec. */
TEST(another_job_has_a_file_of_its_own)
{
  static const char *const other[] = {"data.micro_batch=1", "compress.grads.codec=int8",
                                      "model.layers=3", "train.freeze=[*.h.0.*]"};
  enum { OTHERS = sizeof other / sizeof *other };
  begin("other");
  (void)rates_of("");
  change("\ngemm: ", "\ngemm: 1234567  # ", true);
  for (int i = 0; i < OTHERS; i++) {
    const struct plan_rates rates = rates_of(other[i]);
    assert_true(rates.gemm_flops != 1234567e9);
    assert_int_equal(rates.encode_bytes[CODEC_int8] > 0, i == 1);
    cached(2 + i);
  }
  assert_true(rates_of("run.seed=5").gemm_flops == 1234567e9);
  cached(1 + OTHERS);
  remove_all();
}

TEST(another_machine_has_a_file_of_its_own)
{
  begin("machine");
  (void)rates_of("");
  change("\ngemm: ", "\ngemm: 1234567  # ", true);
  snprintf(fabric_found.text, sizeof fabric_found.text, "mlx5_0:1 ACTIVE 400 Gb/sec (4X NDR)");
  assert_true(rates_of("").gemm_flops != 1234567e9);
  fabric_found.text[0] = '\0';
  snprintf(product, sizeof product, "NVIDIA H200");
  assert_true(rates_of("").gemm_flops != 1234567e9);
  product[0] = '\0';
  assert_true(rates_of("").gemm_flops == 1234567e9);
  cached(3);
  remove_all();
}

/* One rank of those that exchange is late, so the others know of it only by agreement. */
TEST(links_between_nodes_that_changed_are_measured_again)
{
  static const struct {
    double first_s, then_s;
    bool again;
  } row[] = {{0.02, 0.02, false}, {0.1, 0.02, false}, {0.024, 0.024, false}, {0.06, 0.06, true},
             {0.06, 0.06, false}, {0.02, 0.02, true}, {0.002, 0.002, true}};
  begin("links");
  late.first_s = late.then_s = 0.02;
  (void)rates_of("");
  for (size_t r = 0; r < sizeof row / sizeof *row && comm_ranks(comm) > 1; r++) {
    change("\ngemm: ", "\ngemm: 1234567  # ", true);
    late.first_s = row[r].first_s;
    late.then_s = row[r].then_s;
    late.calls = 0;
    if ((rates_of("").gemm_flops != 1234567e9) != row[r].again)
      fail_msg("row %zu", r);
    cached(1);
  }
  late.then_s = 0;
  remove_all();
}

/* A file of any other machine is removed when a file is written, if it is the oldest one. */
TEST(files_do_not_pile_up)
{
  enum { MOST = 64 };
  begin("many");
  for (int i = 0; i < MOST + 5 && comm_rank(comm) == 0; i++) {
    char name[32];
    snprintf(name, sizeof name, "sluice-rates-%016x", i);
    must(file_write_all(file_path(folder, name).text, "", 0));
  }
  must(comm_barrier(comm));
  (void)rates_of("");
  cached(MOST);
  assert_true(rates_of("").gemm_flops > 0);
  remove_all();
}

/* The file is whole after that. */
TEST(a_damaged_file_is_measured_again)
{
  static const struct {
    const char *old, *new;
    bool sealed;
  } row[] = {{"\ngemm: ", "\ngemm: 1234567  # ", false},
             {"# sluice ", "# juices ", true}, /* of something else */
             {"\ngemm: ", "\ngemm: many    # ", true},
             {"# Measured", "# Measure!", true}};
  begin("damaged");
  for (size_t r = 0; r < sizeof row / sizeof *row; r++) {
    (void)rates_of("");
    change(row[r].old, row[r].new, row[r].sealed);
    const struct plan_rates again = rates_of(""), warm = rates_of("");
    assert_true(again.gemm_flops > 0 && again.gemm_flops != 1234567e9);
    assert_memory_equal(&again, &warm, sizeof again);
  }
  must(comm_barrier(comm));
  if (comm_rank(comm) == 0)
    assert_int_equal(truncate(cached(1).text, 100), 0);
  must(comm_barrier(comm));
  assert_true(rates_of("").gemm_flops > 0);
  remove_all();
}

TEST(a_folder_that_cannot_be_written_is_no_error)
{
  begin("refused");
  char below[PATH_MAX + 8];
  snprintf(below, sizeof below, "%s/file/x", folder);
  if (comm_rank(comm) == 0)
    must(file_write_all(file_path(folder, "file").text, "", 0));
  assert_int_equal(setenv("XDG_CACHE_HOME", below, true), 0);
  assert_true(rates_of("").gemm_flops > 0);
  assert_int_equal(setenv("XDG_CACHE_HOME", "", true), 0);
  char *home = strdup(getenv("HOME") ? getenv("HOME") : "");
  assert_int_equal(unsetenv("HOME"), 0);
  assert_true(rates_of("").gemm_flops > 0);
  assert_int_equal(setenv("HOME", home, true), 0);
  free(home);
  remove_all();
}

/* The rates after job_rates_learn(), of a job that asked for its rates before. */
static struct plan_rates learn(const struct exec_profile *profile, bool asks)
{
  struct plan_rates rates;
  start("");
  if (asks)
    must(job_rates(&job, &rates));
  must(job_rates_learn(&job, profile));
  must(comm_barrier(comm));
  must(job_rates(&job, &rates));
  must(comm_check_same(comm, "rates", &rates, sizeof rates));
  return rates;
}

/* The last rank takes twice as long as the others. Oracle: its operations by time, by hand. */
TEST(later_starts_know_the_passes_of_the_slowest_rank)
{
  const double slow = comm_rank(comm) == comm_ranks(comm) - 1 ? 1 : 0.5;
  struct exec_profile profile = {.steps = 3};
  profile.op_s[OP_FORWARD] = slow * 2;
  profile.op_s[OP_BACKWARD] = slow * 5;
  profile.op_s[OP_LOSS] = slow * 0.5;
  begin("passes");
  assert_true(learn(&profile, false).forward_flops == 0);
  end();
  for (int turn = 0; turn < 2; turn++) { /* rates that are there are kept */
    const struct plan_rates rates = learn(&profile, true);
    const struct plan *plan = job.plan[PLAN_TRAIN];
    const double forward = plan_op_flops(plan, OP_FORWARD) * 3 / 2,
                 backward = plan_op_flops(plan, OP_BACKWARD) * 3 / 5,
                 loss = plan_op_flops(plan, OP_LOSS) * 3 / 0.5;
    assert_float_equal(rates.forward_flops, forward, 1e-5 * forward);
    assert_float_equal(rates.backward_flops, backward, 1e-5 * backward);
    assert_float_equal(rates.loss_flops, loss, 1e-5 * loss);
    end();
    profile.steps = 5;
  }
  cached(1);
  remove_all();
}

/* ---- failures ---- */

static int threads_left = -1; /* until one is refused; -1: none is */

enum status __real_thread_start(const char *name, thread_body *body, void *arg,
                                struct thread **out);
enum status __wrap_thread_start(const char *name, thread_body *body, void *arg,
                                struct thread **out);
enum status __wrap_thread_start(const char *name, thread_body *body, void *arg, struct thread **out)
{
  if (strcmp(name, "rates") == 0 && threads_left >= 0 && threads_left-- == 0)
    return status_set(STATUS_LIBRARY, "no more threads");
  return __real_thread_start(name, body, arg, out);
}

/* Also a thread of a collective, which others would wait in. The first runs are of products.
 * Oracle: all ranks return, with the same failure. */
TEST(a_thread_that_one_rank_cannot_start_fails_all)
{
  struct plan_rates rates;
  const int last = comm_ranks(comm) - 1;
  char text[64];
  begin("threads");
  start("");
  for (int left = 0; left < 60; left += 1 + left / 4) {
    threads_left = comm_rank(comm) == last ? left : -1;
    const enum status status = job_rates(&job, &rates);
    int64_t refused = threads_left < 0 && comm_rank(comm) == last;
    must(comm_max_i64(comm, &refused, 1));
    snprintf(text, sizeof text, last > 0 ? "rank %d: no more threads" : "no more threads", last);
    if (!refused) {
      must(status);
      assert_true(left >= 4);
      break;
    }
    must_fail(status, STATUS_LIBRARY, text);
  }
  threads_left = -1;
  end();
  remove_all();
}

/* ---- time ---- */

/* A collective takes as long as its bytes and messages do. */
static struct {
  double rate, near, hop_s, all_s; /* near: inside a node; all_s: of all collectives so far */
  int local;
  bool hidden; /* hops between nodes take no time in all-gathers of two hops */
} wire;
static _Thread_local double spent_s;

static void spend(const struct comm_group *group, int pieces, int64_t bytes)
{
  const int size = comm_group_size(group);
  if (wire.rate > 0)
    spent_s += pieces * (size - 1) *
               ((double)bytes / (size == wire.local ? wire.near : wire.rate) + wire.hop_s);
}

enum status __real_comm_all_gather(struct comm_group *group, struct lane *lane, const void *shard,
                                   int64_t bytes, bool varying, void *full);
enum status __wrap_comm_all_gather(struct comm_group *group, struct lane *lane, const void *shard,
                                   int64_t bytes, bool varying, void *full);
enum status __wrap_comm_all_gather(struct comm_group *group, struct lane *lane, const void *shard,
                                   int64_t bytes, bool varying, void *full)
{
  const struct comm_group *across = comm_group_across(group);
  if (!across || !wire.hidden)
    spend(across ? across : group, 1, bytes);
  if (across)
    spend(comm_group_node(group), comm_group_size(across), bytes);
  return __real_comm_all_gather(group, lane, shard, bytes, varying, full);
}

enum status __real_comm_exchange(struct comm_group *group, struct lane *lane, const void *sent,
                                 int64_t bytes, bool varying, void *received);
enum status __wrap_comm_exchange(struct comm_group *group, struct lane *lane, const void *sent,
                                 int64_t bytes, bool varying, void *received);
enum status __wrap_comm_exchange(struct comm_group *group, struct lane *lane, const void *sent,
                                 int64_t bytes, bool varying, void *received)
{
  const double seconds = late.calls++ ? late.then_s : late.first_s;
  if (late.then_s > 0 && comm_rank(comm) == comm_ranks(comm) - 1)
    (void)nanosleep(&(struct timespec){.tv_nsec = (long)(1e9 * seconds)}, NULL);
  spend(group, 1, bytes);
  return __real_comm_exchange(group, lane, sent, bytes, varying, received);
}

static struct device_ops timed;
static enum status (*real_seconds)(struct mark *from, struct mark *to, double *out);
static enum status timed_seconds(struct mark *from, struct mark *to, double *out)
{
  const enum status status = real_seconds(from, to, out);
  if (spent_s > 0)
    *out = spent_s;
  wire.all_s += spent_s; /* lanes with collectives run one at a time */
  spent_s = 0;
  return status;
}

static int64_t rows; /* of the last product */
static enum status (*real_matmul)(struct lane *lane, const struct matmul *op);
static enum status timed_matmul(struct lane *lane, const struct matmul *op)
{
  rows = op->m;
  return real_matmul(lane, op);
}

/* Products of a host have 512 rows at most, or as many as a small model's widest. */
TEST(measuring_takes_a_second_at_most)
{
  static const struct {
    int ranks, local_ranks, width;
    double rate, hop_s, most_s;
    bool hidden;
  } row[] = {{2, 1, 768, 0.125e9, 50e-6, 0.5},     {6, 2, 768, 0.125e9, 50e-6, 1},
             {6, 2, 768, 0.125e9, 50e-6, 1, true}, {16, 8, 768, 0.125e9, 50e-6, 1},
             {1024, 8, 768, 0.125e9, 20e-6, 1},    {1024, 8, 768, 25e9, 10e-6, 1},
             {2, 2, 768, 200e9, 5e-6, 0.3},        {3, 3, 12, 0.125e9, 50e-6, 0.1},
             {2, 2, 12, 25e9, 5e-6, 0.05}};
  for (size_t r = 0; r < sizeof row / sizeof *row && comm_ranks(comm) == 1; r++) {
    struct plan_rates rates;
    char keys[160];
    begin("time");
    fixture_deck(&deck, "gpt2", "full_shard", "world", "[]");
    snprintf(keys, sizeof keys, "model.width=%d data.batch=%d", row[r].width, row[r].ranks);
    fixture_assign(&deck, keys);
    fixture_set_nodes(row[r].local_ranks);
    fixture_open(&job, &deck, NULL, 0, row[r].ranks, false);
    job.place.transport = "mpi";
    job.place.precision = "fp32";
    timed = *job.device->ops;
    real_seconds = timed.mark_seconds;
    timed.mark_seconds = timed_seconds;
    real_matmul = timed.matmul;
    timed.matmul = timed_matmul;
    job.device->ops = &timed;
    const bool hops = row[r].local_ranks > 1 && row[r].local_ranks < row[r].ranks;
    wire.rate = row[r].rate;
    wire.near = 4 * row[r].rate;
    wire.local = hops ? row[r].local_ranks : 0;
    wire.hidden = row[r].hidden;
    wire.hop_s = row[r].hop_s;
    wire.all_s = 0;
    must(job_rates(&job, &rates));
    if (!(wire.all_s > 0 && wire.all_s < row[r].most_s))
      fail_msg("row %zu: links are measured for %g s", r, wire.all_s);
    assert_float_equal(rates.link_bytes, row[r].rate, 0.01 * row[r].rate);
    assert_float_equal(rates.link_latency_s, row[r].hop_s, 0.05 * row[r].hop_s);
    assert_int_equal(rows, row[r].width < 100 ? 64 : 512);
    const int peers = row[r].ranks - 1;
    const double far =
        hops ? (row[r].ranks - row[r].local_ranks) * row[r].rate / peers : row[r].rate;
    assert_float_equal(rates.exchange_bytes, far, 0.01 * far);
    assert_float_equal(rates.exchange_latency_s, row[r].hop_s, 0.05 * row[r].hop_s);
    if (hops) { /* of 6 ranks on 3 nodes, each gets 2 parts from other nodes, and then 3 */
      const double across = row[r].hidden ? wire.near * (2 + 3) / 3 : row[r].rate;
      assert_float_equal(rates.node_exchange_bytes, wire.near, 0.01 * wire.near);
      assert_float_equal(rates.across_exchange_bytes, row[r].rate, 0.01 * row[r].rate);
      assert_float_equal(rates.node_link_bytes, wire.near, 0.01 * wire.near);
      assert_float_equal(rates.across_link_bytes, across, 0.01 * across);
    }
    wire.rate = 0;
    end();
    fixture_set_nodes(0);
    remove_all();
  }
}

/* Products, memory, codecs, copies and updates, on a rank alone. The bound holds for slow machines
 * that others share. A start may take a second on usual ones. */
TEST(measuring_takes_seconds_of_cpu_time_at_most)
{
  static const char *const row[] = {
      "", "model.layers=12 model.width=768 model.heads=12 model.context=1024 model.vocab=50257 "
          "compress.grads.codec=int8 tiers.params=host tiers.optimizer=host"};
  for (int r = 0; r < 2 && comm_ranks(comm) == 1; r++) {
    struct plan_rates rates;
    begin("cpu");
    fixture_deck(&deck, "gpt2", "full_shard", "world", "[]");
    fixture_assign(&deck, row[r]);
    job = (struct job){.deck = &deck,
                       .comm = comm,
                       .place = {.compute = DTYPE_F32, .transport = "mpi", .precision = "fp32"},
                       .threads = 1};
    must(device_create("host", 0, DTYPE_F32, &job.device));
    must(job_model(&deck, DTYPE_F32, 1, &job.model));
    const clock_t begun = clock();
    must(job_rates(&job, &rates));
    const double used_s = (double)(clock() - begun) / CLOCKS_PER_SEC;
    if (used_s > 5)
      fail_msg("row %d: %g s of CPU time", r, used_s);
    assert_true(rates.gemm_flops > 0 && rates.memory_bytes > 0);
    assert_int_equal(rates.encode_bytes[CODEC_int8] > 0, r);
    assert_int_equal(rates.host_bytes > 0, r);
    model_destroy(job.model);
    device_destroy(job.device);
    mem_free(job.rates_of);
    remove_all();
  }
}

int main(int argc, char **argv)
{
  return ranks_main(argc, argv);
}
