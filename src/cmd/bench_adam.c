/* sluice bench adam: the optimizer step of the host with host masters, compared with the same loads
 * and stores without the arithmetic, the limit of the memory. The two run alternately, and medians
 * are compared. Each rank has arrays of its own. The time of a pass is that of the slowest rank. */
#include <stdio.h>
#include <string.h>

#include "base/append.h"
#include "base/clock.h"
#include "base/rng.h"
#include "cmd/bench_frame.h"
#include "device/host/host.h"
#include "train/stats.h"

enum { ELEMENTS = 1 << 28, LEAST = 32, BLOCK = 1 << 18, MOST_PASSES = 10000 };

struct values {
  int64_t n, threads;
  int master, grad, moments, copy, rounding;
  char *kernel, *results;
  double seconds;
};

static const char *const type_names[] = {"fp32", "bf16", "fp16", NULL};
static const char *const copy_names[] = {"none", "fp32", "bf16", "fp16", NULL};
static const char *const rounding_names[] = {"nearest", "stochastic", NULL};
static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

// clang-format off: one row an option
static const struct option table[] = {
    {"n", OPTION_INT, AT(n), "0", .least = 0, .most = 1e12, .unit = "parameters",
     .text = "Parameters per rank, rounded down to a multiple of 32. 0: 268435456, or fewer if "
             "memory is short."},
    BENCH_THREADS,
    {"kernel", OPTION_STRING, AT(kernel), "",
     .text = "Kernel to measure. Empty: the best one.\n"
             "  generic  plain C\n"
             "  avx2  AVX2\n"
             "  avx512  AVX-512\n"
             "  neon  NEON, on Arm\n"
             "  all  all kernels that this processor supports"},
    {"master", OPTION_CHOICE, AT(master), "fp32", .choices = type_names,
     .text = "Data type of the master weights."},
    {"grad", OPTION_CHOICE, AT(grad), "fp32", .choices = type_names,
     .text = "Data type of the gradients."},
    {"moments", OPTION_CHOICE, AT(moments), "fp32", .choices = type_names,
     .text = "Data type of both moments."},
    {"copy", OPTION_CHOICE, AT(copy), "bf16", .choices = copy_names,
     .text = "Data type of the working copy. It is written in the same pass."},
    {"rounding", OPTION_CHOICE, AT(rounding), "nearest", .choices = rounding_names,
     .text = "Rounding of masters and moments to a 16-bit type."},
    {"seconds", OPTION_REAL, AT(seconds), "5", .least = 0, .most = 86400, .unit = "s",
     .text = "Time per kernel. At least three passes are measured."},
    BENCH_RESULTS,
    {.name = NULL},
};
// clang-format on

enum { MASTER, GRAD, FIRST, SECOND, COPY, ARRAYS };

struct bench {
  struct comm *comm;
  const struct values *values;
  struct topo *topo;
  struct device *device;
  struct lane *lane;
  struct update op;
  int64_t n;
  int threads;
  const char *kernel; /* that was measured */
  void *array[ARRAYS];
  struct stats step, traffic;
};

static size_t array_size(const struct bench *bench, int array)
{
  const enum dtype type[ARRAYS] = {bench->op.master, bench->op.grad, bench->op.states,
                                   bench->op.states, bench->op.copy};
  return array == COPY && bench->values->copy == 0 ? 0 : dtype_size(type[array]);
}

/* Bytes read and written. Masters and moments are both read and written. */
static int bytes_a_parameter(const struct bench *bench)
{
  int bytes = 0;
  for (int i = 0; i < ARRAYS; i++)
    bytes += (int)array_size(bench, i) * (i == GRAD || i == COPY ? 1 : 2);
  return bytes;
}

static int64_t held_a_parameter(const struct bench *bench)
{
  int64_t bytes = 0;
  for (int i = 0; i < ARRAYS; i++)
    bytes += (int64_t)array_size(bench, i);
  return bytes;
}

/* Nine tenths of the free memory, shared by the ranks of the node; -1: unknown. */
static int64_t room(const struct bench *bench)
{
  int64_t bytes = mem_available_bytes();
  const int64_t limit = mem_limit_bytes(), resident = mem_resident_bytes();
  if (limit >= 0 && (bytes < 0 || limit - resident < bytes))
    bytes = limit > resident ? limit - resident : 0;
  return bytes < 0 ? -1 : bytes / 10 * 9 / comm_local_ranks(bench->comm);
}

static enum status choose_elements(struct bench *bench)
{
  const int64_t each = held_a_parameter(bench), asked = bench->values->n, bytes = room(bench);
  int64_t n = asked ? asked : ELEMENTS;
  if (bytes >= 0 && n > bytes / each) {
    if (asked)
      return status_set(
          STATUS_MEMORY,
          "n=%lld parameters take %s, but a rank can have %s: choose fewer, or leave n= out",
          (long long)asked, mem_amount((double)asked * (double)each).text,
          mem_amount((double)bytes).text);
    n = bytes / each;
  }
  n = n / LEAST * LEAST;
  if (n < LEAST)
    return status_set(asked ? STATUS_USAGE : STATUS_MEMORY,
                      "%lld parameters are too few to measure: %d at least",
                      (long long)(asked ? asked : n), LEAST);
  bench->n = n;
  return STATUS_OK;
}

/* The same number on all ranks: the least that any rank can have. */
static enum status agree_on_elements(struct bench *bench)
{
  enum status status = comm_agree(bench->comm, choose_elements(bench));
  int64_t most = -bench->n;
  if (!status)
    status = comm_max_i64(bench->comm, &most, 1);
  bench->n = -most;
  return status;
}

static enum status check_kernel(const char *name)
{
  char known[64] = "";
  for (int i = 0; kernels_variant(i); i++) {
    if (!strcmp(kernels_variant(i)->name, name))
      return STATUS_OK;
    append_text(known, sizeof known, "%s%s", i ? ", " : "", kernels_variant(i)->name);
  }
  if (!*name || !strcmp(name, "all"))
    return STATUS_OK;
  return status_set(STATUS_UNSUPPORTED, "this processor has no kernels '%s': use %s, or kernel=all",
                    name, known);
}

static enum status choose_update(struct bench *bench)
{
  const struct values *values = bench->values;
  bench->op = (struct update){.lr = 1e-3,
                              .beta1 = 0.9,
                              .beta2 = 0.95,
                              .eps = 1e-8,
                              .decay = 0.1,
                              .grad_scale = 1,
                              .bias1 = 0.1,
                              .bias2 = 0.05,
                              .master = types[values->master],
                              .grad = types[values->grad],
                              .states = types[values->moments],
                              .copy = types[values->copy ? values->copy - 1 : 0],
                              .stochastic = values->rounding == 1};
  if (bench->op.stochastic && bench->op.master == DTYPE_F32 && bench->op.states == DTYPE_F32)
    return status_set(STATUS_USAGE, "rounding=stochastic, but masters and moments are fp32, which "
                                    "needs no rounding: set moments=bf16 or fp16, or leave it out");
  return check_kernel(values->kernel);
}

/* Normally distributed numbers, the same in every block. The threads that compute touch the memory
 * first. */
static enum status fill_gradients(struct bench *bench)
{
  const size_t size = array_size(bench, GRAD);
  const int64_t block = bench->n < BLOCK ? bench->n : BLOCK;
  float *wide = NULL;
  enum status status = mem_alloc(MEM_META, (size_t)block * sizeof *wide, (void **)&wide);
  if (status)
    return status;
  rng_fill_normal(rng_key_make(1, "bench"), 0, 0, block, 0, 1e-3f, wide);
  for (int64_t i = 0; i < bench->n && !status; i += block)
    status = bench->device->ops->cast(bench->lane, bench->n - i < block ? bench->n - i : block,
                                      DTYPE_F32, wide, bench->op.grad,
                                      (char *)bench->array[GRAD] + (size_t)i * size);
  mem_free(wide);
  return status;
}

static enum status set_up(struct bench *bench)
{
  enum status status = device_create("host", 0, DTYPE_F32, &bench->device);
  if (!status)
    status = bench->device->ops->lane_create(bench->device, "adam", LANE_ROLE_COMPUTE,
                                             bench->threads, &bench->lane);
  for (int i = 0; i < ARRAYS && !status; i++) {
    const size_t bytes = (size_t)bench->n * array_size(bench, i);
    if (bytes == 0)
      continue;
    status = mem_alloc(MEM_ARENA_PERSISTENT, bytes, &bench->array[i]);
    if (!status)
      status = bench->device->ops->zero(bench->lane, bench->array[i], bytes);
  }
  if (!status)
    status = fill_gradients(bench);
  if (!status)
    status = stats_create(MOST_PASSES, &bench->step);
  if (!status)
    status = stats_create(MOST_PASSES, &bench->traffic);
  return comm_agree(bench->comm, status);
}

/* One pass of either kind, by the slowest rank's clock. Collective. */
static enum status time_pass(struct bench *bench, bool traffic, double *seconds)
{
  void *const *a = bench->array;
  enum status status = comm_barrier(bench->comm);
  if (status)
    return status;
  const double start = clock_s();
  status = (traffic ? host_update_traffic : host_update)(bench->lane, bench->n, &bench->op,
                                                         a[MASTER], a[GRAD], &a[FIRST], a[COPY]);
  *seconds = clock_s() - start;
  bench->op.seed++;
  status = comm_agree(bench->comm, status);
  return status ? status : comm_max_f64(bench->comm, seconds, 1);
}

/* The first pass of each kind is not counted. */
static enum status measure(struct bench *bench)
{
  double all = 0, step, traffic;
  bench->step.n = bench->traffic.n = 0;
  for (int pass = 0; pass < 4 || (all < bench->values->seconds && pass < MOST_PASSES); pass++) {
    enum status status = time_pass(bench, false, &step);
    if (!status)
      status = time_pass(bench, true, &traffic);
    if (status)
      return status;
    if (pass == 0)
      continue;
    stats_add(&bench->step, step);
    stats_add(&bench->traffic, traffic);
    all += step + traffic;
  }
  return STATUS_OK;
}

static double rate(const struct bench *bench, struct stats *stats)
{
  return (double)bench->n * comm_ranks(bench->comm) / stats_percentile(stats, 50);
}

static void print_head(const struct bench *bench)
{
  const struct values *values = bench->values;
  printf("%-22s %s masters, %s gradients, %s moments%s, %s copy: %d bytes per parameter\n",
         "update", type_names[values->master], type_names[values->grad],
         type_names[values->moments], bench->op.stochastic ? " (stochastic rounding)" : "",
         values->copy ? copy_names[values->copy] : "no", bytes_a_parameter(bench));
  printf("%-22s %lld parameters, %s\n", "size", (long long)bench->n * comm_ranks(bench->comm),
         bench_size(bench->comm, bench->threads).text);
}

static void print_kernel(struct bench *bench)
{
  const double step = rate(bench, &bench->step), traffic = rate(bench, &bench->traffic),
               bytes = bytes_a_parameter(bench);
  printf("%-22s %.3f G parameters/s, %.1f GB/s: %.1f %% of the %.1f GB/s that the same loads and "
         "stores reach (medians of %lld passes in turns)\n",
         bench->kernel, step * 1e-9, step * bytes * 1e-9, 100 * step / traffic,
         traffic * bytes * 1e-9, (long long)bench->step.n);
}

static enum status record(struct results *results, void *arg)
{
  struct bench *bench = arg;
  const double step = rate(bench, &bench->step), traffic = rate(bench, &bench->traffic),
               bytes = bytes_a_parameter(bench);
  results_begin(results, "bench_adam");
  results_time(results);
  results_origin(results);
  results_text(results, "kernel", bench->kernel);
  results_int(results, "ranks", comm_ranks(bench->comm));
  results_int(results, "threads", bench->threads);
  results_int(results, "parameters", bench->n * comm_ranks(bench->comm));
  results_text(results, "master", type_names[bench->values->master]);
  results_text(results, "grad", type_names[bench->values->grad]);
  results_text(results, "moments", type_names[bench->values->moments]);
  results_text(results, "copy", copy_names[bench->values->copy]);
  results_text(results, "rounding", rounding_names[bench->values->rounding]);
  results_int(results, "passes", bench->step.n);
  results_int(results, "bytes_a_parameter", bytes_a_parameter(bench));
  results_real(results, "parameters_per_s", step);
  results_real(results, "gb_s", step * bytes * 1e-9);
  results_real(results, "traffic_gb_s", traffic * bytes * 1e-9);
  results_real(results, "share", step / traffic);
  return results_end(results);
}

static enum status measure_kernel(struct bench *bench, const struct kernels *kernels)
{
  ((struct host_device *)bench->device)->kernels = kernels;
  enum status status = measure(bench);
  if (!status && comm_rank(bench->comm) == 0) {
    bench->kernel = kernels->name;
    print_kernel(bench);
    status = bench_record(bench->values->results, record, bench);
  }
  return comm_agree(bench->comm, status);
}

static enum status measure_kernels(struct bench *bench)
{
  const char *name = bench->values->kernel;
  enum status status = STATUS_OK;
  if (!*name)
    return measure_kernel(bench, kernels_best());
  for (int i = 0; kernels_variant(i) && !status; i++)
    if (!strcmp(name, "all") || !strcmp(name, kernels_variant(i)->name))
      status = measure_kernel(bench, kernels_variant(i));
  return status;
}

static void tear_down(struct bench *bench)
{
  stats_destroy(&bench->step);
  stats_destroy(&bench->traffic);
  for (int i = 0; i < ARRAYS; i++)
    mem_free(bench->array[i]);
  if (bench->lane)
    bench->device->ops->lane_destroy(bench->lane);
  device_destroy(bench->device);
  topo_destroy(bench->topo);
}

static enum status run(const struct arguments *arguments)
{
  struct comm *comm = arguments->comm;
  struct bench bench = {.comm = comm, .values = arguments->values};
  enum status status = bench_check_results(comm, bench.values->results);
  if (!status)
    status = comm_agree(comm, choose_update(&bench));
  if (!status)
    status = agree_on_elements(&bench);
  if (!status)
    status = bench_take_cores(comm, bench.values->threads, &bench.topo, &bench.threads);
  if (!status)
    status = set_up(&bench);
  if (!status && comm_rank(comm) == 0)
    print_head(&bench);
  if (!status)
    status = measure_kernels(&bench);
  tear_down(&bench);
  return status;
}

const struct command bench_adam = {
    .name = "bench adam",
    .usage = "[key=value ...]",
    .summary = "measure the AdamW step of masters in host memory",
    .text = "Measures the update of tiers.optimizer=host, and the same loads and stores without "
            "arithmetic, which show what memory allows. It reports parameters per second, GB/s "
            "and the ratio of the two. results= gets a line per kernel.",
    .examples = "  sluice bench adam\n"
                "  mpirun -n 4 --bind-to none sluice bench adam kernel=all moments=bf16\n"
                "  sluice bench adam threads=16 results=adam.jsonl\n",
    .options = table,
    .values_size = sizeof(struct values),
    .uses_mpi = true,
    .run = run,
};
