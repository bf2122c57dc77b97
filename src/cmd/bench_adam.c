/* sluice bench adam: the optimizer step of the host with host masters, compared with the same loads
 * and stores without the arithmetic, the limit of the memory. The two run alternately, and medians
 * are compared. Each rank has arrays of its own. */
#include <stdio.h>
#include <string.h>

#include "base/append.h"
#include "base/rng.h"
#include "cmd/bench_frame.h"
#include "device/host/host.h"
#include "job/rates.h"

enum { ELEMENTS = 1 << 28, LEAST = 32, BLOCK = 1 << 18, LEAST_ROUNDS = 3 };

struct values {
  struct bench_values shared;
  int64_t n;
  int master, grad, moments, copy, rounding;
  char *kernel;
};

static const char *const type_names[] = {"fp32", "bf16", "fp16", NULL};
static const char *const copy_names[] = {"none", "fp32", "bf16", "fp16", NULL};
static const char *const rounding_names[] = {"nearest", "stochastic", NULL};
static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

/* clang-format off */
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
    BENCH_SECONDS("5", 86400, "Time per kernel. At least three passes are measured."),
    BENCH_RESULTS(shared.results),
    {.name = NULL},
};
/* clang-format on */

enum { MASTER, GRAD, FIRST, SECOND, COPY, ARRAYS };
enum { UPDATE, TRAFFIC, WORKS };

struct adam {
  struct bench bench;
  const struct values *values;
  struct lane *lane;
  struct update op;
  int64_t n;
  const char *kernel; /* that was measured */
  void *array[ARRAYS];
  struct stats seconds[WORKS];
};

static size_t array_size(const struct adam *adam, int array)
{
  const enum dtype type[ARRAYS] = {adam->op.master, adam->op.grad, adam->op.states, adam->op.states,
                                   adam->op.copy};
  return array == COPY && adam->values->copy == 0 ? 0 : dtype_size(type[array]);
}

/* Bytes of a parameter in memory. `moved`: read and written, of which masters and moments are
 * both. */
static int parameter_bytes(const struct adam *adam, bool moved)
{
  int bytes = 0;
  for (int i = 0; i < ARRAYS; i++)
    bytes += (int)array_size(adam, i) * (moved && i != GRAD && i != COPY ? 2 : 1);
  return bytes;
}

/* Nine tenths of the free memory, shared by the ranks of the node; -1: unknown. */
static int64_t room(const struct adam *adam)
{
  int64_t bytes = mem_available_bytes();
  const int64_t limit = mem_limit_bytes(), resident = mem_resident_bytes();
  if (limit >= 0 && (bytes < 0 || limit - resident < bytes))
    bytes = limit > resident ? limit - resident : 0;
  return bytes < 0 ? -1 : bytes / 10 * 9 / comm_local_ranks(adam->bench.comm);
}

static enum status choose_elements(struct adam *adam)
{
  const int64_t each = parameter_bytes(adam, false), asked = adam->values->n, bytes = room(adam);
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
  adam->n = n / LEAST * LEAST;
  return adam->n >= LEAST ? STATUS_OK
                          : status_set(asked ? STATUS_USAGE : STATUS_MEMORY,
                                       "%lld parameters are too few to measure: %d at least",
                                       (long long)n, LEAST);
}

static enum status check_kernel(const char *name)
{
  char known[64] = "";
  bool found = !*name || !strcmp(name, "all");
  for (int i = 0; kernels_variant(i); i++) {
    found = found || !strcmp(kernels_variant(i)->name, name);
    append_text(known, sizeof known, "%s%s", i ? ", " : "", kernels_variant(i)->name);
  }
  return found
             ? STATUS_OK
             : status_set(STATUS_UNSUPPORTED,
                          "this processor has no kernels '%s': use %s, or kernel=all", name, known);
}

static enum status check(void *part)
{
  struct adam *adam = part;
  const struct values *values = adam->values;
  adam->op = job_rates_update;
  adam->op.master = types[values->master];
  adam->op.grad = types[values->grad];
  adam->op.states = types[values->moments];
  adam->op.copy = types[values->copy ? values->copy - 1 : 0];
  adam->op.stochastic = values->rounding == 1;
  if (adam->op.stochastic && adam->op.master == DTYPE_F32 && adam->op.states == DTYPE_F32)
    return status_usage("rounding=stochastic, but masters and moments are fp32, which "
                        "needs no rounding: set moments=bf16 or fp16, or leave it out");
  return check_kernel(values->kernel) ?: choose_elements(adam);
}

/* Normally distributed numbers, the same in every block. The threads that compute touch the memory
 * first. */
static enum status fill_gradients(struct adam *adam)
{
  const int64_t block = adam->n < BLOCK ? adam->n : BLOCK;
  float *wide = NULL;
  enum status status = mem_new(MEM_META, block, &wide);
  if (!status)
    rng_fill_normal(rng_key_make(1, "bench"), 0, 0, block, 0, 1e-3f, wide);
  for (int64_t i = 0; i < adam->n && !status; i += block)
    status = adam->bench.host->ops->cast(
        adam->lane, adam->n - i < block ? adam->n - i : block, DTYPE_F32, wide, adam->op.grad,
        (char *)adam->array[GRAD] + (size_t)i * array_size(adam, GRAD));
  mem_free(wide);
  return status;
}

static enum status set_up(struct adam *adam)
{
  const struct device_ops *ops = adam->bench.host->ops;
  enum status status = ops->lane_create(adam->bench.host, "adam", LANE_ROLE_COMPUTE,
                                        adam->bench.threads, &adam->lane);
  for (int i = 0; i < ARRAYS && !status; i++) {
    const size_t bytes = (size_t)adam->n * array_size(adam, i);
    if (bytes == 0)
      continue;
    status = mem_alloc(MEM_ARENA_PERSISTENT, bytes, &adam->array[i])
                 ?: ops->zero(adam->lane, adam->array[i], bytes);
  }
  return comm_agree(adam->bench.comm, status ? status : fill_gradients(adam));
}

static enum status run_work(void *part, int work)
{
  struct adam *adam = part;
  void *const *a = adam->array;
  adam->op.seed++;
  return (work == UPDATE ? host_update : host_update_traffic)(
      adam->lane, adam->n, &adam->op, a[MASTER], a[GRAD], &a[FIRST], a[COPY]);
}

/* Parameters per second. */
static double rate(struct adam *adam, int work)
{
  return (double)adam->n * comm_ranks(adam->bench.comm) /
         stats_percentile(&adam->seconds[work], 50);
}

static void print_head(const struct adam *adam)
{
  const struct values *values = adam->values;
  printf("%-22s %s masters, %s gradients, %s moments%s, %s copy: %d bytes per parameter\n",
         "update", type_names[values->master], type_names[values->grad],
         type_names[values->moments], adam->op.stochastic ? " (stochastic rounding)" : "",
         values->copy ? copy_names[values->copy] : "no", parameter_bytes(adam, true));
  printf("%-22s %lld parameters, %s\n", "size", (long long)adam->n * comm_ranks(adam->bench.comm),
         bench_size(adam->bench.comm, adam->bench.threads).text);
}

static void print_kernel(struct adam *adam)
{
  const double step = rate(adam, UPDATE), traffic = rate(adam, TRAFFIC),
               gb = 1e-9 * parameter_bytes(adam, true);
  printf("%-22s %.3f G parameters/s, %.1f GB/s: %.1f %% of the %.1f GB/s that the same loads and "
         "stores reach (medians of %lld passes in turns)\n",
         adam->kernel, step * 1e-9, step * gb, 100 * step / traffic, traffic * gb,
         (long long)adam->seconds[UPDATE].n);
}

static void record(struct json_writer *line, void *part)
{
  struct adam *adam = part;
  const double step = rate(adam, UPDATE), traffic = rate(adam, TRAFFIC),
               gb = 1e-9 * parameter_bytes(adam, true);
  bench_begin(line, &adam->bench);
  json_write_text(line, "kernel", adam->kernel);
  json_write_int(line, "parameters", adam->n * comm_ranks(adam->bench.comm));
  json_write_text(line, "master", type_names[adam->values->master]);
  json_write_text(line, "grad", type_names[adam->values->grad]);
  json_write_text(line, "moments", type_names[adam->values->moments]);
  json_write_text(line, "copy", copy_names[adam->values->copy]);
  json_write_text(line, "rounding", rounding_names[adam->values->rounding]);
  json_write_int(line, "passes", adam->seconds[UPDATE].n);
  json_write_int(line, "bytes_a_parameter", parameter_bytes(adam, true));
  json_write_real(line, "parameters_per_s", step);
  json_write_real(line, "gb_s", step * gb);
  json_write_real(line, "traffic_gb_s", traffic * gb);
  json_write_real(line, "share", step / traffic);
}

static enum status measure_kernel(struct adam *adam, const struct kernels *kernels)
{
  struct bench *bench = &adam->bench;
  ((struct host_device *)bench->host)->kernels = kernels;
  adam->kernel = kernels->name;
  enum status status = bench_take_turns(bench, WORKS, run_work, LEAST_ROUNDS, adam->seconds);
  if (!status && comm_rank(bench->comm) == 0) {
    print_kernel(adam);
    status = bench_record(adam->values->shared.results, "bench_adam", record, adam);
  }
  for (int i = 0; i < WORKS; i++)
    stats_destroy(&adam->seconds[i]);
  return comm_agree(bench->comm, status);
}

static enum status measure(void *part)
{
  struct adam *adam = part;
  const char *name = adam->values->kernel;
  int64_t least = -adam->n; /* the same number on all ranks: the least that any rank can have */
  enum status status = comm_max_i64(adam->bench.comm, &least, 1);
  adam->n = -least;
  status = status ?: bench_take_place(&adam->bench, "host", "mpi") ?: set_up(adam);
  if (!status && comm_rank(adam->bench.comm) == 0)
    print_head(adam);
  if (!*name)
    return status ? status : measure_kernel(adam, kernels_best());
  for (int i = 0; kernels_variant(i) && !status; i++)
    if (!strcmp(name, "all") || !strcmp(name, kernels_variant(i)->name))
      status = measure_kernel(adam, kernels_variant(i));
  return status;
}

static void tear_down(void *part)
{
  struct adam *adam = part;
  for (int i = 0; i < ARRAYS; i++)
    mem_free(adam->array[i]);
  if (adam->lane)
    adam->bench.host->ops->lane_destroy(adam->lane);
}

static enum status run(const struct arguments *arguments)
{
  return bench_run(arguments, &(struct adam){.values = arguments->values}, check, measure,
                   tear_down);
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
