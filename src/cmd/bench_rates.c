/* sluice bench rates: the rates for predictions (sluice plan rates=FILE). All ranks measure at the
 * same time, as in a step. Each rate is that of the slowest rank. The rate of the host's memory,
 * which a node may share with others, is the best of ROUNDS at different times, as STREAM reports
 * it (McCalpin 1995). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/append.h"
#include "base/mem.h"
#include "base/printable.h"
#include "base/rng.h"
#include "base/team.h"
#include "cmd/bench_frame.h"
#include "cmd/rates.h"
#include "compress/compress.h"
#include "device/device.h"
#include "device/lane.h"
#include "io/store/store.h"
#include "io/text/file.h"
#include "job/job.h"

enum {
  ROUNDS = 3,
  BLOCK_BYTES = 4096,
  LEAST_BYTES = 1 << 20,
  CUDA_MATRIX = 8192,
  HOST_MATRIX = 512,
  LITTLE = 64,
  LITTLE_VECTOR = 4096,
  MOST_TIMES = 10000
};
enum { FILE_BYTES = 16384 }; /* of out= at most */

struct values {
  char *out, *dir, *results;
  int64_t bytes, threads;
  int device, backend;
  double seconds;
};

enum { WHERE_AUTO, WHERE_HOST, WHERE_CUDA };
static const char *const wheres[] = {"auto", "host", "cuda", NULL};
static const char *const backends[] = {"auto", "mpi", "nccl", NULL}; /* by enum deck_backend */

// clang-format off: one row an option
static const struct option table[] = {
    {"out", OPTION_STRING, AT(out), "", .path = true,
     .text = "File to write the rates to, for sluice plan rates=."},
    {"dir", OPTION_STRING, AT(dir), "", .path = true,
     .text = "Folder on the disk to measure (tiers.nvme of a deck). Empty: the disk is not "
             "measured."},
    {"bytes", OPTION_INT, AT(bytes), "256Mi", .least = LEAST_BYTES, .most = 1 << 30,
     .unit = OPTIONS_BYTES, .text = "Bytes of a copy, of a collective, and of an array."},
    {"device", OPTION_CHOICE, AT(device), "auto", .choices = wheres,
     .text = "Device that computes. auto: GPUs if there are any."},
    {"backend", OPTION_CHOICE, AT(backend), "auto", .choices = backends,
     .text = "Library that moves data between GPUs, as comm.backend of the deck. auto: NCCL if it "
             "is in this build."},
    BENCH_THREADS,
    {"seconds", OPTION_REAL, AT(seconds), "1", .least = 0, .most = 3600, .unit = "s",
     .text = "Approximate time per rate."},
    BENCH_RESULTS,
    {.name = NULL},
};
// clang-format on

static const char *const codec_names[CODECS] = {
#define CODEC_NAME(id, kind, title, source) #id,
    CODEC_ROWS(CODEC_NAME)
#undef CODEC_NAME
};

enum { MASTER, GRAD, FIRST, SECOND, COPY, FAR };
enum { NEAR = 3 };

struct bench {
  struct comm *comm;
  const struct values *values;
  struct topo *topo;
  struct device *device, *host; /* the same device if the host computes */
  enum dtype type;              /* that `device` computes in */
  struct lane *compute, *gather, *up, *down, *cpu;
  struct comm_group *link, *hosts;
  struct comm_group *node, *across; /* NULL unless there are several nodes of equally many ranks */
  struct store *store;
  int threads;
  int64_t bytes, matrix;
  void *near[NEAR]; /* the device's memory, of `bytes` or a matrix each */
  void *far[FAR];   /* host memory that the device's lanes can access, `bytes` each, half of it for
                       the copy in bf16 */
  struct codec codec;      /* at hand */
  int64_t elements;        /* that it encodes */
  struct plan_rates rates; /* in the units of the file; below 0: not measured */
};

/* ---- measurements ---- */

typedef enum status work(struct bench *bench, struct lane *lane);

static enum status multiply_by(struct bench *bench, struct lane *lane, const void *a)
{
  const int64_t n = bench->matrix;
  const struct matmul op = {.m = n,
                            .n = n,
                            .k = n,
                            .trans_b = true,
                            .a = a,
                            .b = bench->near[1],
                            .c = bench->near[2],
                            .lda = n,
                            .ldb = n,
                            .ldc = n};
  return lane->device->ops->matmul(lane, &op);
}

static enum status multiply(struct bench *bench, struct lane *lane)
{
  return multiply_by(bench, lane, bench->near[0]);
}

/* Products while another lane gathers into near[0]. */
static enum status multiply_beside(struct bench *bench, struct lane *lane)
{
  return multiply_by(bench, lane, bench->near[1]);
}

static enum status copy_near(struct bench *bench, struct lane *lane)
{
  return lane->device->ops->copy(lane, bench->near[1], bench->near[0], (size_t)bench->bytes);
}

static enum status copy_up(struct bench *bench, struct lane *lane)
{
  return lane->device->ops->copy(lane, bench->near[0], bench->far[MASTER], (size_t)bench->bytes);
}

static enum status copy_down(struct bench *bench, struct lane *lane)
{
  return lane->device->ops->copy(lane, bench->far[GRAD], bench->near[1], (size_t)bench->bytes);
}

/* Elements of a rank's part. */
static int64_t part(const struct bench *bench)
{
  return bench->bytes / comm_ranks(bench->comm) / (int64_t)sizeof(float);
}

static enum status gather_in_place(struct bench *bench, struct lane *lane, int64_t count)
{
  float *full = bench->near[0];
  return comm_all_gather(bench->link, lane, full + comm_rank(bench->comm) * count,
                         count * (int64_t)sizeof(float), full);
}

/* Bytes of a member's part. */
static int64_t part_in(const struct bench *bench, const struct comm_group *group)
{
  return bench->bytes / comm_group_size(group);
}

static enum status gather_in(struct bench *bench, struct comm_group *group, struct lane *lane,
                             int64_t bytes)
{
  char *full = bench->near[0];
  return comm_all_gather(group, lane, full + comm_group_index(group) * bytes, bytes, full);
}

static enum status gather_in_node(struct bench *bench, struct lane *lane)
{
  return gather_in(bench, bench->node, lane, part_in(bench, bench->node));
}

static enum status gather_little_in_node(struct bench *bench, struct lane *lane)
{
  return gather_in(bench, bench->node, lane, LITTLE * (int64_t)sizeof(float));
}

static enum status gather_across(struct bench *bench, struct lane *lane)
{
  return gather_in(bench, bench->across, lane, part_in(bench, bench->across));
}

static enum status gather(struct bench *bench, struct lane *lane)
{
  return gather_in_place(bench, lane, part(bench));
}

static enum status gather_little(struct bench *bench, struct lane *lane)
{
  return gather_in_place(bench, lane, LITTLE);
}

static enum status update(struct bench *bench, struct lane *lane)
{
  static const struct update op = {.lr = 1e-3,
                                   .beta1 = 0.9,
                                   .beta2 = 0.95,
                                   .eps = 1e-8,
                                   .decay = 0.1,
                                   .grad_scale = 1,
                                   .bias1 = 0.1,
                                   .bias2 = 0.05,
                                   .copy = DTYPE_BF16};
  void *const *far = bench->far;
  return lane->device->ops->update(lane, bench->bytes / (int64_t)sizeof(float), &op, far[MASTER],
                                   far[GRAD], &far[FIRST], far[COPY]);
}

static enum status exchange(struct bench *bench, struct lane *lane)
{
  return comm_exchange(bench->hosts, lane, bench->far[GRAD], part(bench) * (int64_t)sizeof(float),
                       bench->far[FIRST]);
}

/* After the scratch memory of codecs. */
static float *largest_of(const struct bench *bench)
{
  return (float *)(void *)((char *)bench->near[2] + bench->bytes / 4 * 3);
}

/* Vectors take a quarter of the memory at most, because a message may be somewhat longer, and
 * scratch memory lies after the decoded vector. */
static struct codec_pass codec_pass(const struct bench *bench, struct lane *lane)
{
  return (struct codec_pass){.lane = lane,
                             .n = bench->elements,
                             .parts = 1,
                             .seed = 1,
                             .work = (char *)bench->near[2] + bench->bytes / 4,
                             .largest = largest_of(bench)};
}

static enum status encode(struct bench *bench, struct lane *lane)
{
  const struct codec_pass pass = codec_pass(bench, lane);
  return bench->codec.ops->encode(&bench->codec, &pass, bench->near[0], bench->near[1]);
}

static enum status decode(struct bench *bench, struct lane *lane)
{
  const struct codec_pass pass = codec_pass(bench, lane);
  return bench->codec.ops->decode_sum(&bench->codec, &pass, bench->near[1],
                                      bench->codec.ops->bytes(&bench->codec, pass.n), false,
                                      bench->near[2]);
}

/* Memory in whole blocks, so that transfers can bypass the page cache. */
static char *disk_memory(const struct bench *bench)
{
  char *memory = bench->far[MASTER];
  return memory + (BLOCK_BYTES - (uintptr_t)memory % BLOCK_BYTES) % BLOCK_BYTES;
}

static enum status write_disk(struct bench *bench, struct lane *lane)
{
  (void)lane;
  return store_write(bench->store, 0, bench->bytes, disk_memory(bench));
}

static enum status read_disk(struct bench *bench, struct lane *lane)
{
  (void)lane;
  return store_read(bench->store, 0, bench->bytes, disk_memory(bench));
}

/* ---- time ---- */

struct run {
  work *work;
  struct lane *lane;
  bool collective, idle; /* idle: this rank does nothing while others do */
  struct bench *bench;
  struct thread *thread;
  int64_t times;
  double seconds, own; /* per time: of the slowest rank, and of this one */
};

static enum status time_work(struct run *run, struct mark *from, struct mark *to)
{
  const struct device_ops *ops = run->lane->device->ops;
  enum status status = ops->mark_set(run->lane, from);
  for (int64_t i = 0; i < run->times && !run->idle && !status; i++)
    status = run->work(run->bench, run->lane);
  if (!status)
    status = ops->mark_set(run->lane, to);
  if (!status)
    status = ops->mark_wait(to);
  if (!status)
    status = ops->lane_check(run->lane);
  return status ? status : ops->mark_seconds(from, to, &run->seconds);
}

static enum status drive(void *arg)
{
  struct run *run = arg;
  struct device *device = run->lane->device;
  struct mark *from = NULL, *to = NULL;
  enum status status = device->ops->enter(device);
  if (!status)
    status = device->ops->mark_create(device, &from);
  if (!status)
    status = device->ops->mark_create(device, &to);
  if (!status)
    status = time_work(run, from, to);
  device->ops->mark_destroy(from);
  device->ops->mark_destroy(to);
  if (status && run->collective) /* the other ranks would wait forever */
    comm_abort(run->bench->comm, status);
  return status;
}

/* Runs all lanes at the same time, `times` times. *longest is the time of the slowest lane of all
 * ranks. Collective. */
static enum status run_lanes(struct bench *bench, struct run *runs, int n, int64_t times,
                             double *longest)
{
  enum status status = comm_barrier(bench->comm);
  int started = 0;
  for (; started < n && !status; started++) {
    runs[started].bench = bench;
    runs[started].times = times;
    status = thread_start("rates", drive, &runs[started], &runs[started].thread);
  }
  for (int i = 0; i < started; i++) {
    const enum status one = thread_join(runs[i].thread);
    status = status ? status : one;
  }
  status = comm_agree(bench->comm, status);
  *longest = 0;
  for (int i = 0; i < n && !status; i++) {
    runs[i].own = runs[i].seconds;
    status = comm_max_f64(bench->comm, &runs[i].seconds, 1);
    *longest = runs[i].seconds > *longest ? runs[i].seconds : *longest;
  }
  return status;
}

/* One of so many rounds. The first run warms up, and the second one determines the number of
 * repetitions. */
static enum status measure(struct bench *bench, int rounds, struct run *runs, int n)
{
  double longest = 0;
  enum status status = run_lanes(bench, runs, n, 1, &longest);
  if (!status)
    status = run_lanes(bench, runs, n, 1, &longest);
  if (status)
    return status;
  const double wanted = bench->values->seconds / rounds / (longest > 0 ? longest : 1e-6);
  const int64_t times = wanted < 1 ? 1 : wanted > MOST_TIMES ? MOST_TIMES : (int64_t)wanted;
  status = run_lanes(bench, runs, n, times, &longest);
  for (int i = 0; i < n; i++) {
    runs[i].seconds = runs[i].seconds > 0 ? runs[i].seconds / (double)times : 1e-9;
    runs[i].own /= (double)times;
  }
  return status;
}

/* `amount`: work of one run, in the rate's unit. */
static enum status measure_rate(struct bench *bench, double *rate, struct run run, double amount)
{
  const enum status status = measure(bench, 1, &run, 1);
  if (!status)
    *rate = amount / run.seconds;
  return status;
}

/* In parts per million of the slowest rank's time, so that squares of all ranks can be added. */
static enum status measure_spread(struct bench *bench, const struct run *products)
{
  const int ranks = comm_ranks(bench->comm);
  const int64_t part = (int64_t)(1e6 * fmin(1, products->own / products->seconds));
  int64_t sums[2] = {part, part * part};
  const enum status status = ranks > 1 ? comm_sum_i64(bench->comm, sums, 2) : STATUS_OK;
  if (status || ranks == 1)
    return status;
  const double mean = (double)sums[0] / ranks, square = (double)sums[1] / ranks;
  bench->rates.spread = sqrt(fmax(0, square - mean * mean)) / fmax(1, mean);
  bench->rates.spread_ranks = ranks;
  return STATUS_OK;
}

static enum status measure_device(struct bench *bench)
{
  struct run products = {.work = multiply, .lane = bench->compute};
  const struct run copies = {.work = copy_near, .lane = bench->compute};
  const double n = (double)bench->matrix;
  enum status status = measure(bench, 1, &products, 1);
  if (status)
    return status;
  bench->rates.gemm_flops = 2 * n * n * n * 1e-9 / products.seconds;
  status = measure_spread(bench, &products);
  return status ? status
                : measure_rate(bench, &bench->rates.memory_bytes, copies,
                               2 * (double)bench->bytes * 1e-9);
}

/* Numbers like gradients, in fp32. */
static enum status fill_vector(struct bench *bench)
{
  enum status status = STATUS_OK;
  for (int64_t at = 0; at < bench->bytes / 4 && !status; at += LEAST_BYTES / 4)
    status = bench->device->ops->copy(bench->compute, (char *)bench->near[0] + at,
                                      bench->far[MASTER], LEAST_BYTES / 4);
  return status ? status
                : bench->device->ops->max_magnitude(bench->compute, bench->bytes / 16,
                                                    bench->near[0], largest_of(bench));
}

/* Seconds to encode and to decode `elements`. There are many codecs, so each gets a fraction of the
 * time of a rate. */
static enum status time_codec(struct bench *bench, int64_t elements, double *encode_s,
                              double *decode_s)
{
  enum { FRACTION = 10 };
  struct run encodes = {.work = encode, .lane = bench->compute};
  struct run decodes = {.work = decode, .lane = bench->compute};
  bench->elements = elements;
  enum status status = measure(bench, FRACTION, &encodes, 1);
  if (!status)
    status = measure(bench, FRACTION, &decodes, 1);
  *encode_s = encodes.seconds;
  *decode_s = decodes.seconds;
  return status;
}

/* The line through the times of a long and a short vector: *rate in GB/s, *latency in us. */
static void fit_line(int64_t elements, double seconds, double little_s, double *rate,
                     double *latency)
{
  const double bytes = sizeof(float) * (double)elements,
               little = sizeof(float) * (double)LITTLE_VECTOR;
  const bool rises = seconds > little_s && elements > LITTLE_VECTOR;
  const double per_byte = rises ? (seconds - little_s) / (bytes - little) : seconds / bytes;
  *rate = 1e-9 / per_byte;
  *latency = 1e6 * fmax(0, little_s - little * per_byte);
}

static enum status measure_codecs(struct bench *bench)
{
  const int64_t elements = bench->bytes / 4 / (int64_t)sizeof(float);
  double seconds[2] = {1, 1}, little_s[2] = {1, 1};
  struct plan_rates *rates = &bench->rates;
  enum status status = fill_vector(bench);
  for (int c = 0; c < CODECS && !status; c++) {
    status = codec_make(codec_names[c], NULL, false, &bench->codec);
    if (!status)
      status = time_codec(bench, elements, &seconds[0], &seconds[1]);
    if (!status)
      status = time_codec(bench, LITTLE_VECTOR, &little_s[0], &little_s[1]);
    fit_line(elements, seconds[0], little_s[0], &rates->encode_bytes[c],
             &rates->encode_latency_s[c]);
    fit_line(elements, seconds[1], little_s[1], &rates->decode_bytes[c],
             &rates->decode_latency_s[c]);
  }
  return status;
}

static double received_in(const struct bench *bench, const struct comm_group *group)
{
  return (double)part_in(bench, group) * (comm_group_size(group) - 1) * 1e-9;
}

/* A ring through all ranks crosses between nodes once per node. The mean over its hops contains
 * these crossings. */
static enum status measure_node(struct bench *bench)
{
  const struct run node = {.work = gather_in_node, .lane = bench->gather, .collective = true},
                   across = {.work = gather_across, .lane = bench->gather, .collective = true};
  struct run little = {.work = gather_little_in_node, .lane = bench->gather, .collective = true};
  const int local = comm_group_size(bench->node);
  enum status status =
      measure_rate(bench, &bench->rates.node_link_bytes, node, received_in(bench, bench->node));
  if (!status)
    status = measure_rate(bench, &bench->rates.across_link_bytes, across,
                          received_in(bench, bench->across));
  if (!status)
    status = measure(bench, 1, &little, 1);
  if (status)
    return status;
  const double hop = little.seconds / (local - 1) * 1e6, mean = bench->rates.link_latency_s;
  bench->rates.node_latency_s = hop;
  bench->rates.link_latency_s = fmax(mean, local * mean - (local - 1) * hop);
  return STATUS_OK;
}

/* Slowdown of products while a gather runs. The gather may be shorter than the products. */
static enum status measure_contention(struct bench *bench)
{
  struct run runs[2] = {{.work = multiply_beside, .lane = bench->compute},
                        {.work = gather, .lane = bench->gather, .collective = true}};
  const double n = (double)bench->matrix, alone = 2 * n * n * n * 1e-9 / bench->rates.gemm_flops;
  const enum status status = measure(bench, 1, runs, 2);
  if (!status)
    bench->rates.contention =
        fmin(1, fmax(0, (runs[0].seconds - alone) / fmin(runs[0].seconds, runs[1].seconds)));
  return status;
}

/* A plan adds the time of the sum of an exchange, by host_memory. */
static enum status measure_links(struct bench *bench)
{
  const struct run all = {.work = gather, .lane = bench->gather, .collective = true};
  const struct run little = {.work = gather_little, .lane = bench->gather, .collective = true};
  const struct run exchanges = {.work = exchange, .lane = bench->cpu, .collective = true};
  const double others = comm_ranks(bench->comm) - 1;
  const double received = (double)part(bench) * sizeof(float) * others * 1e-9;
  if (others == 0)
    return STATUS_OK;
  enum status status = measure_rate(bench, &bench->rates.link_bytes, all, received);
  if (!status)
    status = measure_rate(bench, &bench->rates.link_latency_s, little, others * 1e-6);
  if (status)
    return status;
  bench->rates.link_latency_s = 1 / bench->rates.link_latency_s; /* per repetition */
  status = bench->node ? measure_node(bench) : STATUS_OK;
  if (!status)
    status = measure_contention(bench);
  return status ? status : measure_rate(bench, &bench->rates.host_link_bytes, exchanges, received);
}

/* Both rates come from the round in which their sum is largest. */
static enum status measure_both_ways(struct bench *bench, bool idle, double *up, double *down)
{
  struct run runs[2] = {{.work = copy_up, .lane = bench->up, .idle = idle},
                        {.work = copy_down, .lane = bench->down, .idle = idle}};
  const enum status status = measure(bench, ROUNDS, runs, 2);
  if (status)
    return status;
  const double now_up = (double)bench->bytes / runs[0].seconds * 1e-9,
               now_down = (double)bench->bytes / runs[1].seconds * 1e-9;
  if (now_up + now_down > *up + *down) {
    *up = now_up;
    *down = now_down;
  }
  return STATUS_OK;
}

/* For all ranks at once, and for the first rank of each node. */
static enum status measure_copies(struct bench *bench)
{
  struct plan_rates *rates = &bench->rates;
  int64_t most = comm_local_ranks(bench->comm);
  enum status status = measure_both_ways(bench, false, &rates->h2d_bytes, &rates->d2h_bytes);
  if (!status)
    status = comm_max_i64(bench->comm, &most, 1);
  if (status || most == 1)
    return status;
  return measure_both_ways(bench, comm_local_rank(bench->comm) > 0, &rates->h2d_alone_bytes,
                           &rates->d2h_alone_bytes);
}

/* Bytes: master and moments are read and written, the gradient is read, and the copy is written in
 * half as many bytes. */
static enum status measure_updates(struct bench *bench)
{
  struct run updates = {.work = update, .lane = bench->cpu};
  const enum status status = measure(bench, ROUNDS, &updates, 1);
  if (status)
    return status;
  const double now = 7.5 * (double)bench->bytes / updates.seconds * 1e-9;
  if (now > bench->rates.host_bytes)
    bench->rates.host_bytes = now;
  return STATUS_OK;
}

static enum status measure_disk(struct bench *bench)
{
  const struct run writes = {.work = write_disk, .lane = bench->cpu};
  const struct run reads = {.work = read_disk, .lane = bench->cpu};
  if (!bench->store)
    return STATUS_OK;
  const enum status status =
      measure_rate(bench, &bench->rates.disk_write_bytes, writes, (double)bench->bytes * 1e-9);
  return status ? status
                : measure_rate(bench, &bench->rates.disk_read_bytes, reads,
                               (double)bench->bytes * 1e-9);
}

static enum status measure_all(struct bench *bench)
{
  enum status status = measure_device(bench);
  if (!status)
    status = measure_codecs(bench);
  if (!status)
    status = measure_links(bench);
  for (int round = 0; round < ROUNDS && !status; round++) {
    status = measure_copies(bench);
    if (!status)
      status = measure_updates(bench);
  }
  return status ? status : measure_disk(bench);
}

/* ---- set up ---- */

static enum status choose_bytes(struct bench *bench)
{
  const int64_t grain = (int64_t)BLOCK_BYTES * comm_ranks(bench->comm);
  bench->bytes = bench->values->bytes / grain * grain;
  if (bench->bytes == 0)
    return status_set(STATUS_USAGE, "bytes=%lld: %d ranks need %lld at least",
                      (long long)bench->values->bytes, comm_ranks(bench->comm), (long long)grain);
  return STATUS_OK;
}

/* Local; *gpus are those that this rank sees and uses. */
static enum status count_gpus(const struct bench *bench, int *gpus)
{
  const int where = bench->values->device, local_ranks = comm_local_ranks(bench->comm);
  *gpus = where == WHERE_HOST ? 0 : device_count("cuda");
  if (*gpus < 0)
    return STATUS_LIBRARY; /* its error text is set */
  if (where == WHERE_CUDA && *gpus == 0)
    return status_set(STATUS_UNSUPPORTED, "device=cuda, but this build has no CUDA, or this "
                                          "process sees no GPU: request one, or use device=host");
  if (local_ranks > *gpus && *gpus > 1)
    return status_set(STATUS_USAGE,
                      "this node has %d ranks, but they see %d GPUs and each rank needs one: start "
                      "at most that many per node, or set device=host",
                      local_ranks, *gpus);
  return STATUS_OK;
}

static const char *transport_of(const struct bench *bench)
{
  return job_device_transport((enum deck_backend)bench->values->backend);
}

static enum status create_gpu(struct bench *bench, int gpus)
{
  const enum status status =
      device_create("cuda", comm_local_rank(bench->comm) % gpus, bench->type, &bench->device);
  if (status)
    return status;
  bench->device->plain_memory = strcmp(transport_of(bench), "nccl") != 0;
  comm_set_device(bench->comm, bench->device);
  return STATUS_OK;
}

/* The same on all ranks. Collective. */
static enum status create_devices(struct bench *bench)
{
  int gpus = 0;
  enum status status = comm_agree(bench->comm, count_gpus(bench, &gpus));
  int64_t some[2] = {gpus > 0, gpus == 0};
  if (!status)
    status = comm_max_i64(bench->comm, some, 2);
  if (!status && some[0] && some[1])
    status = status_set(STATUS_USAGE, "some ranks see a GPU and some do not: start all of them "
                                      "where GPUs are, or set device=host");
  if (!status && gpus == 0 && bench->values->backend == DECK_BACKEND_NCCL)
    status = status_set(STATUS_USAGE, "backend=nccl moves data between GPUs, but this run measures "
                                      "the host: leave out backend, or set device=cuda");
  if (status)
    return status;
  bench->matrix = gpus > 0 ? CUDA_MATRIX : HOST_MATRIX;
  bench->type = gpus > 0 ? DTYPE_BF16 : DTYPE_F32;
  status = device_create("host", 0, DTYPE_F32, &bench->host);
  bench->device = gpus > 0 ? NULL : bench->host;
  if (!status && gpus > 0)
    status = create_gpu(bench, gpus);
  return comm_agree(bench->comm, status);
}

static enum status create_lanes(struct bench *bench)
{
  const struct {
    struct device *device;
    const char *name;
    enum lane_role role;
    int threads;
    struct lane **lane;
  } lanes[] = {{bench->device, "compute", LANE_ROLE_COMPUTE, bench->threads, &bench->compute},
               {bench->device, "gather", LANE_ROLE_COMMUNICATE, 1, &bench->gather},
               {bench->device, "h2d", LANE_ROLE_BACKGROUND, 1, &bench->up},
               {bench->device, "d2h", LANE_ROLE_BACKGROUND, 1, &bench->down},
               {bench->host, "host", LANE_ROLE_COMPUTE, bench->threads, &bench->cpu}};
  enum status status = STATUS_OK;
  for (size_t i = 0; i < sizeof lanes / sizeof *lanes && !status; i++)
    status = lanes[i].device->ops->lane_create(lanes[i].device, lanes[i].name, lanes[i].role,
                                               lanes[i].threads, lanes[i].lane);
  return status ? status : bench->device->ops->lane_reserve(bench->compute);
}

static int64_t matrix_bytes(const struct bench *bench)
{
  return bench->matrix * bench->matrix * (int64_t)dtype_size(bench->type);
}

/* The host's pages are first touched by the threads that compute. */
static enum status allocate(struct bench *bench)
{
  const struct device_ops *ops = bench->device->ops;
  const int64_t near = bench->bytes > matrix_bytes(bench) ? bench->bytes : matrix_bytes(bench);
  enum status status = STATUS_OK;
  for (int i = 0; i < NEAR && !status; i++)
    status = ops->alloc(bench->device, MEM_ARENA_TRANSIENT, (size_t)near, &bench->near[i]);
  for (int i = 0; i < FAR && !status; i++) {
    const size_t far = (size_t)(i == COPY ? bench->bytes / 2 : bench->bytes + BLOCK_BYTES);
    status = ops->alloc_host(bench->device, MEM_ARENA_PERSISTENT, far, &bench->far[i]);
    if (!status)
      status = bench->host->ops->zero(bench->cpu, bench->far[i], far);
  }
  return status;
}

/* Normally distributed numbers in both factors, because a chip is faster on zeros than on real
 * data. */
static enum status fill_matrices(struct bench *bench)
{
  const int64_t size = (int64_t)dtype_size(bench->type),
                block = LEAST_BYTES / (int64_t)sizeof(float) / 2;
  char *pattern = bench->far[GRAD];
  enum status status = STATUS_OK;
  rng_fill_normal(rng_key_make(1, "rates"), 0, 0, block, 0, 1, bench->far[MASTER]);
  dtype_convert(pattern, bench->type, bench->far[MASTER], DTYPE_F32, (size_t)block);
  for (int i = 0; i < 2; i++)
    for (int64_t at = 0; at < matrix_bytes(bench) && !status; at += block * size) {
      const int64_t left = matrix_bytes(bench) - at;
      status = bench->device->ops->copy(bench->compute, (char *)bench->near[i] + at, pattern,
                                        (size_t)(left < block * size ? left : block * size));
    }
  return status;
}

/* Collective. */
static enum status create_node(struct bench *bench)
{
  const int local = comm_local_ranks(bench->comm);
  int64_t most[] = {local, -local};
  const enum status status = comm_max_i64(bench->comm, most, 2);
  if (status || most[0] != -most[1] || local == 1 || local == comm_ranks(bench->comm))
    return status;
  const enum status created = comm_group_create(bench->comm, COMM_SHARD, local, &bench->node);
  return created ? created : comm_group_create(bench->comm, COMM_REPLICA, local, &bench->across);
}

/* Collective. */
static enum status create_groups(struct bench *bench)
{
  const bool apart = bench->device != bench->host;
  if (comm_ranks(bench->comm) == 1)
    return apart && bench->values->backend == DECK_BACKEND_NCCL
               ? comm_set_transport(bench->comm, "nccl")
               : STATUS_OK;
  enum status status =
      comm_group_create(bench->comm, COMM_WORLD, comm_ranks(bench->comm), &bench->hosts);
  if (!status && apart)
    status = comm_set_transport(bench->comm, transport_of(bench));
  if (!status)
    status = comm_group_create(bench->comm, COMM_WORLD, comm_ranks(bench->comm), &bench->link);
  if (!status && apart)
    status =
        comm_agree(bench->comm, comm_group_register(bench->link, bench->near[0], bench->bytes));
  return status ? status : create_node(bench);
}

static enum status set_up(struct bench *bench)
{
  enum status status = create_devices(bench);
  if (!status)
    status = comm_agree(bench->comm, create_lanes(bench));
  if (!status)
    status = comm_agree(bench->comm, allocate(bench));
  if (!status)
    status = comm_agree(bench->comm, fill_matrices(bench));
  if (!status)
    status = create_groups(bench);
  if (!status && *bench->values->dir)
    status = store_create(bench->comm, bench->values->dir, bench->bytes, &bench->store);
  return status;
}

static void tear_down(struct bench *bench)
{
  struct lane *const lanes[] = {bench->compute, bench->gather, bench->up, bench->down, bench->cpu};
  store_destroy(bench->store);
  comm_group_destroy(bench->across);
  comm_group_destroy(bench->node);
  comm_group_destroy(bench->link);
  comm_group_destroy(bench->hosts);
  for (int i = 0; i < FAR; i++)
    if (bench->far[i])
      bench->device->ops->release_host(bench->device, bench->far[i]);
  for (int i = 0; i < NEAR; i++)
    if (bench->near[i])
      bench->device->ops->release(bench->device, bench->near[i]);
  for (size_t i = 0; i < sizeof lanes / sizeof *lanes; i++)
    if (lanes[i])
      lanes[i]->device->ops->lane_destroy(lanes[i]);
  if (bench->device != bench->host)
    device_destroy(bench->device);
  device_destroy(bench->host);
  topo_destroy(bench->topo);
}

/* ---- results ---- */

static void describe(const struct bench *bench, char *out, size_t size)
{
  const int ranks = comm_ranks(bench->comm);
  snprintf(out, size, "%d rank%s, %d on a node, x %d thread%s, device %s%s%s%s%s%s", ranks,
           plural(ranks), comm_local_ranks(bench->comm), bench->threads, plural(bench->threads),
           bench->device->ops->name, *bench->device->product ? " (" : "", bench->device->product,
           *bench->device->product ? ")" : "", ranks > 1 ? ", transport between ranks: " : "",
           ranks > 1 ? comm_transport_text(bench->comm) : "");
}

static void print(struct bench *bench)
{
  char about[256];
  describe(bench, about, sizeof about);
  printable_print(stdout, "%-28s %s; those of the slowest rank, while all ranks do the same\n",
                  "rates of", about);
  for (const struct option *row = rates_table; row->name; row++) {
    const double rate = *rates_value(&bench->rates, row);
    if (rate >= 0)
      printf("%-28s %.4g %s, %s\n", row->name, rate, row->unit, row->text);
  }
}

/* Rates without a measurement are left out. */
static enum status write_rates(struct bench *bench)
{
  char text[FILE_BYTES], about[256];
  if (!*bench->values->out)
    return STATUS_OK;
  describe(bench, about, sizeof about);
  snprintf(text, sizeof text, "# Measured by sluice bench rates: %s.\n", about);
  for (const struct option *row = rates_table; row->name; row++)
    if (*rates_value(&bench->rates, row) >= 0)
      rates_append_line(row, *rates_value(&bench->rates, row), text, sizeof text);
  return file_write_all(bench->values->out, text, strlen(text));
}

static enum status record(struct results *results, void *arg)
{
  struct bench *bench = arg;
  results_begin(results, "bench_rates");
  results_time(results);
  results_origin(results);
  results_int(results, "ranks", comm_ranks(bench->comm));
  results_int(results, "threads", bench->threads);
  results_text(results, "device", bench->device->ops->name);
  results_text(results, "transport", comm_transport(bench->comm));
  results_int(results, "bytes", bench->bytes);
  for (const struct option *row = rates_table; row->name; row++)
    if (*rates_value(&bench->rates, row) >= 0)
      results_real(results, row->name, *rates_value(&bench->rates, row));
  return results_end(results);
}

static enum status report(struct bench *bench)
{
  print(bench);
  const enum status status = write_rates(bench);
  return status ? status : bench_record(bench->values->results, record, bench);
}

static enum status run(const struct arguments *arguments)
{
  struct comm *comm = arguments->comm;
  struct bench bench = {.comm = comm, .values = arguments->values};
  const char *out = bench.values->out;
  for (const struct option *row = rates_table; row->name; row++)
    *rates_value(&bench.rates, row) = -1;
  enum status status = bench_check_results(comm, bench.values->results);
  if (!status)
    status = comm_agree(comm, choose_bytes(&bench));
  if (!status)
    status = comm_agree(comm, comm_rank(comm) == 0 && *out ? file_check_write(out, FILE_BYTES)
                                                           : STATUS_OK);
  if (!status)
    status = bench_take_cores(comm, bench.values->threads, &bench.topo, &bench.threads);
  if (!status)
    status = set_up(&bench);
  if (!status)
    status = measure_all(&bench);
  if (!status)
    status = comm_agree(comm, comm_rank(comm) == 0 ? report(&bench) : STATUS_OK);
  tear_down(&bench);
  return status;
}

const struct command bench_rates = {
    .name = "bench rates",
    .usage = "[key=value ...]",
    .summary = "measure the rates that sluice plan predicts a step from",
    .text = "Measures on all ranks at the same time: matrix products, memory, links, copies "
            "between host and device in both directions, updates and sums in host memory, codecs, "
            "and the disk. sluice plan DECK rates=FILE reads the result. sluice bench DECK "
            "rates=FILE adds the rates of a model's passes, which small matrices make slower than "
            "gemm.\n"
            "\n"
            "A file of rates is YAML with lines such as gemm: 700000. A file may have some of the "
            "keys only. Without gemm nothing is predicted. Work at another missing rate takes no "
            "time, except if the key has a default. With rates=FIRST,SECOND the values of SECOND "
            "take precedence. So a file of two lines "
            "is enough to try other numbers. The keys are:\n" RATES_LIST,
    .examples = "  mpirun -n 4 --bind-to none sluice bench rates out=rates.yaml\n"
                "  mpirun -n 4 --bind-to none sluice bench rates out=rates.yaml dir=/local/disk\n"
                "  mpirun -n 4 --bind-to none sluice bench rates out=rates.yaml backend=mpi\n"
                "  sluice plan inputs/qwen2.5-7b.yaml --ranks 4 rates=rates.yaml\n",
    .options = table,
    .values_size = sizeof(struct values),
    .uses_mpi = true,
    .run = run,
};
