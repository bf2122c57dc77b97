/* The rates of a machine for predictions. All ranks measure at the same time, as in a step. Each
 * rate is that of the slowest rank. The rate of the host's memory, which a node may share with
 * others, is the best of ROUNDS at different times, as STREAM reports it (McCalpin 1995). */
#include <math.h>
#include <pthread.h>

#include "base/rng.h"
#include "base/team.h"
#include "compress/compress.h"
#include "device/lane.h"
#include "io/store/store.h"
#include "job/private.h"
#include "job/rates.h"

enum {
  ROUNDS = 3,
  CUDA_MATRIX = 8192,
  HOST_MATRIX = 512,
  LITTLE_BYTES = 256,
  LITTLE_VECTOR = 4096,
  MOST_TIMES = 10000
};

static const double link_s = 0.04; /* of a collective on a slow link */

const struct update job_rates_update = {.lr = 1e-3,
                                        .beta1 = 0.9,
                                        .beta2 = 0.95,
                                        .eps = 1e-8,
                                        .decay = 0.1,
                                        .grad_scale = 1,
                                        .bias1 = 0.1,
                                        .bias2 = 0.05,
                                        .copy = DTYPE_BF16};

/* clang-format off */
#define CODEC_NAME(id, kind, title, source) #id,
static const char *const codec_names[CODECS] = {CODEC_ROWS(CODEC_NAME)};
#undef CODEC_NAME
/* clang-format on */

enum { MASTER, GRAD, FIRST, SECOND, COPY, FAR };
enum { NEAR = 3 };
enum lane_name { COMPUTE, GATHER, UP, DOWN, CPU, LANES };

struct rates {
  const struct job *job;
  const struct job_rates_wanted *wanted;
  enum status status;           /* of the first failure, after which nothing is measured */
  struct device *device, *host; /* host: its device, or `device` if that is the host */
  struct lane *lane[LANES];
  struct comm_group *link, *hosts;
  int local; /* ranks of each of several nodes; 0: they differ, or nodes or ranks are single */
  pthread_mutex_t gate; /* held until all ranks have started their threads, or one has failed */
  bool goes;
  struct store *store;
  int64_t bytes, matrix;
  void *near[NEAR]; /* the device's memory, of `bytes` or a matrix each */
  void *far[FAR];   /* host memory that the device's lanes can access, `bytes` each, half of it for
                       the copy in bf16 */
  /* Operands of the work that is measured now. */
  const void *left;         /* factor of products */
  struct comm_group *group; /* of collectives, with a part of so many bytes per rank */
  int64_t part;
  bool warm; /* works like the next one have run */
  struct codec codec;
  struct codec_pass pass;  /* of it */
  struct plan_rates rates; /* in the units of the file; below 0: not measured */
};

/* ---- works ---- */

typedef enum status work(struct rates *rates, struct lane *lane);

static enum status multiply(struct rates *rates, struct lane *lane)
{
  const int64_t n = rates->matrix;
  const struct matmul op = {.m = n,
                            .n = n,
                            .k = n,
                            .trans_b = true,
                            .a = rates->left,
                            .b = rates->near[1],
                            .c = rates->near[2],
                            .lda = n,
                            .ldb = n,
                            .ldc = n};
  return lane->device->ops->matmul(lane, &op);
}

/* Each lane copies in its own direction. */
static enum status copy(struct rates *rates, struct lane *lane)
{
  void *from = rates->near[0], *to = rates->near[1];
  if (lane == rates->lane[UP]) {
    to = from;
    from = rates->far[MASTER];
  } else if (lane == rates->lane[DOWN]) {
    from = to;
    to = rates->far[GRAD];
  }
  return lane->device->ops->copy(lane, to, from, (size_t)rates->bytes);
}

static enum status gather(struct rates *rates, struct lane *lane)
{
  char *full = rates->near[0];
  return comm_all_gather(rates->group, lane, full + comm_group_index(rates->group) * rates->part,
                         rates->part, false, full);
}

static enum status exchange(struct rates *rates, struct lane *lane)
{
  return comm_exchange(rates->group, lane, rates->near[1], rates->part, false, rates->near[2]);
}

static enum status exchange_hosts(struct rates *rates, struct lane *lane)
{
  return comm_exchange(rates->group, lane, rates->far[GRAD], rates->part, false, rates->far[FIRST]);
}

static enum status update(struct rates *rates, struct lane *lane)
{
  void *const *far = rates->far;
  return lane->device->ops->update(lane, rates->bytes / (int64_t)sizeof(float), &job_rates_update,
                                   far[MASTER], far[GRAD], &far[FIRST], far[COPY]);
}

static enum status encode(struct rates *rates, struct lane *lane)
{
  (void)lane;
  return rates->codec.ops->encode(&rates->codec, &rates->pass, rates->near[0], rates->near[1]);
}

static enum status decode(struct rates *rates, struct lane *lane)
{
  (void)lane;
  return rates->codec.ops->decode(&rates->codec, &rates->pass, rates->near[1],
                                  rates->codec.ops->bytes(&rates->codec, rates->pass.n), QUANT_SET,
                                  DTYPE_F32, rates->near[2]);
}

static enum status write_disk(struct rates *rates, struct lane *lane)
{
  (void)lane;
  return store_write(rates->store, 0, rates->bytes, store_align(rates->far[MASTER]));
}

static enum status read_disk(struct rates *rates, struct lane *lane)
{
  (void)lane;
  return store_read(rates->store, 0, rates->bytes, store_align(rates->far[MASTER]));
}

/* ---- time ---- */

/* A work that is repeated on a lane. */
struct run {
  work *work;
  enum lane_name lane;
  bool idle; /* this rank does nothing while others do */
  struct rates *rates;
  struct thread *thread;
  int64_t times;
  double seconds, own; /* per time: of the slowest rank, and of this one */
};

static enum status time_work(struct run *run, struct lane *lane, struct mark *from, struct mark *to)
{
  const struct device_ops *ops = lane->device->ops;
  enum status status = ops->mark_set(lane, from);
  for (int64_t i = 0; i < run->times && !run->idle && !status; i++)
    status = run->work(run->rates, lane);
  status = status ?: ops->mark_set(lane, to) ?: ops->mark_wait(to) ?: ops->lane_check(lane);
  return status ? status : ops->mark_seconds(from, to, &run->seconds);
}

static enum status drive(void *arg)
{
  struct run *run = arg;
  struct lane *lane = run->rates->lane[run->lane];
  struct device *device = lane->device;
  struct mark *from = NULL, *to = NULL;
  pthread_mutex_lock(&run->rates->gate);
  const bool goes = run->rates->goes;
  pthread_mutex_unlock(&run->rates->gate);
  if (!goes)
    return STATUS_OK;
  enum status status = device->ops->enter(device)
      ?: device->ops->mark_create(device, &from)
      ?: device->ops->mark_create(device, &to)
      ?: time_work(run, lane, from, to);
  device->ops->mark_destroy(from);
  device->ops->mark_destroy(to);
  const bool collective = run->lane == GATHER || run->work == exchange_hosts;
  if (status && collective) /* others would wait forever */
    comm_abort(run->rates->job->comm, status);
  return status;
}

/* Runs all lanes at the same time, `times` times. *longest is the time of the slowest lane of all
 * ranks. No collective begins on a lane before the threads of all ranks are there. Collective. */
static enum status run_lanes(struct rates *rates, struct run *runs, int n, int64_t times,
                             double *longest)
{
  struct comm *comm = rates->job->comm;
  enum status status = STATUS_OK;
  int started = 0;
  pthread_mutex_lock(&rates->gate);
  for (; started < n && !status; started++) {
    runs[started].rates = rates;
    runs[started].times = times;
    runs[started].thread = NULL;
    status = thread_start("rates", drive, &runs[started], &runs[started].thread);
  }
  status = comm_agree(comm, status);
  rates->goes = !status;
  pthread_mutex_unlock(&rates->gate);
  for (int i = 0; i < started; i++) {
    const enum status one = thread_join(runs[i].thread);
    status = status ? status : one;
  }
  status = comm_agree(comm, status);
  *longest = 0;
  for (int i = 0; i < n && !status; i++) {
    runs[i].own = runs[i].seconds;
    status = comm_max_f64(comm, &runs[i].seconds, 1);
    *longest = fmax(*longest, runs[i].seconds);
  }
  return status;
}

/* One of so many rounds. The first run warms up, unless similar works are warm. The second one
 * determines the number of repetitions of a third, or is long enough. After a failure all times
 * are 1. */
static void measure_runs(struct rates *rates, int rounds, struct run *runs, int n)
{
  double longest = 0;
  int64_t times = 1;
  if (!rates->warm)
    rates->status = rates->status ?: run_lanes(rates, runs, n, times, &longest);
  rates->status = rates->status ?: run_lanes(rates, runs, n, times, &longest);
  const double wanted = rates->wanted->seconds / rounds / fmax(1e-6, longest);
  if (!rates->status && wanted >= 2) {
    times = (int64_t)fmin(wanted, MOST_TIMES);
    rates->status = run_lanes(rates, runs, n, times, &longest);
  }
  for (int i = 0; i < n; i++) {
    runs[i].own = rates->status ? 1 : runs[i].own / (double)times;
    runs[i].seconds = rates->status ? 1 : fmax(1e-9, runs[i].seconds / (double)times);
  }
}

/* The mean time of one work that runs alone. */
static double seconds_of(struct rates *rates, int rounds, work *of, enum lane_name lane)
{
  struct run run = {.work = of, .lane = lane};
  measure_runs(rates, rounds, &run, 1);
  return run.seconds;
}

/* ---- measurements ---- */

/* In parts per million of the slowest rank's time, so that squares of all ranks can be added. */
static void measure_spread(struct rates *rates, const struct run *products)
{
  const int ranks = comm_ranks(rates->job->comm);
  const int64_t part = (int64_t)(1e6 * fmin(1, products->own / products->seconds));
  int64_t sums[2] = {part, part * part};
  if (rates->status || ranks == 1)
    return;
  rates->status = comm_sum_i64(rates->job->comm, sums, 2);
  const double mean = (double)sums[0] / ranks, square = (double)sums[1] / ranks;
  rates->rates.spread = sqrt(fmax(0, square - mean * mean)) / fmax(1, mean);
  rates->rates.spread_ranks = ranks;
}

/* GFLOP of a product. */
static double product_work(const struct rates *rates)
{
  const double n = (double)rates->matrix;
  return 2 * n * n * n * 1e-9;
}

/* Fills `bytes` of the device's memory with copies of a block of host memory. */
static enum status fill(struct rates *rates, void *to, int64_t bytes, const void *from,
                        int64_t block)
{
  enum status status = STATUS_OK;
  for (int64_t at = 0; at < bytes && !status; at += block)
    status = rates->device->ops->copy(rates->lane[COMPUTE], (char *)to + at, from,
                                      (size_t)(bytes - at < block ? bytes - at : block));
  return status;
}

/* The line through the times of much and of little: *rate in GB/s, *latency in us. */
static void fit_line(double bytes, double seconds, double little, double little_s, double *rate,
                     double *latency)
{
  const bool rises = seconds > little_s && bytes > little;
  const double per_byte = rises ? (seconds - little_s) / (bytes - little) : seconds / bytes;
  *rate = 1e-9 / per_byte;
  *latency = 1e6 * fmax(0, little_s - little * per_byte);
}

/* There are many codecs, so each gets a fraction of the time of a rate. The vector has numbers like
 * gradients, in fp32. Vectors take a quarter of the memory at most, because a message may be
 * somewhat longer, and scratch memory lies after the decoded vector. */
static void measure_codecs(struct rates *rates)
{
  enum { FRACTION = 10 };
  const int64_t quarter = rates->bytes / 4,
                sizes[] = {quarter / (int64_t)sizeof(float), LITTLE_VECTOR};
  char *decoded = rates->near[2];
  float *largest = (float *)(void *)(decoded + quarter * 3);
  struct plan_rates *out = &rates->rates;
  const double bytes = sizeof(float) * (double)sizes[0], little = sizeof(float) * (double)sizes[1];
  double encode_s[2] = {0}, decode_s[2] = {0};
  rates->pass = (struct codec_pass){.lane = rates->lane[COMPUTE],
                                    .parts = 1,
                                    .seed = 1,
                                    .work = decoded + quarter,
                                    .largest = largest};
  rates->status = rates->status
      ?: fill(rates, rates->near[0], quarter, rates->far[MASTER], RATES_LEAST / 4)
      ?: rates->device->ops->max_magnitude(rates->lane[COMPUTE], sizes[0], rates->near[0],
                                           largest);
  rates->status = comm_agree(rates->job->comm, rates->status);
  for (int c = 0; c < CODECS && !rates->status; c++) {
    if (!rates->wanted->codec[c])
      continue;
    rates->status = codec_make(codec_names[c], NULL, false, &rates->codec);
    for (int i = 0; i < 2; i++) {
      rates->pass.n = sizes[i];
      encode_s[i] = seconds_of(rates, FRACTION, encode, COMPUTE);
      decode_s[i] = seconds_of(rates, FRACTION, decode, COMPUTE);
    }
    fit_line(bytes, encode_s[0], little, encode_s[1], &out->encode_bytes[c],
             &out->encode_latency_s[c]);
    fit_line(bytes, decode_s[0], little, decode_s[1], &out->decode_bytes[c],
             &out->decode_latency_s[c]);
  }
}

/* A collective of a group, with parts of so many bytes. */
static double part_seconds(struct rates *rates, int rounds, work *of, enum lane_name lane,
                           int64_t part)
{
  rates->part = part;
  return seconds_of(rates, rounds, of, lane);
}

/* GB/s of the parts that count, and microseconds for each peer of a rank. A slow link gets fewer
 * bytes, so that one collective takes about the time of a rate, but not so few that buffers of the
 * network hold most of them. The time of a small one does not count for the rate, because many
 * peers make it long. */
static void measure_group(struct rates *rates, struct comm_group *group, work *of, int parts,
                          double *rate, double *hop_us)
{
  const enum lane_name lane = of == exchange_hosts ? CPU : GATHER;
  enum { FRACTION = 8 };
  const int64_t most = rates->bytes / comm_group_size(group), sample = most / FRACTION;
  const double peers = comm_group_size(group) - 1, enough_s = fmax(rates->wanted->seconds, link_s);
  double latency = 0;
  rates->group = group;
  const double little_s = part_seconds(rates, 1, of, lane, LITTLE_BYTES),
               sample_s = part_seconds(rates, FRACTION, of, lane, sample),
               fits = enough_s * (double)sample / fmax(1e-9, sample_s - little_s);
  const int64_t fit = fits < (double)most ? (int64_t)fits / LITTLE_BYTES * LITTLE_BYTES : most,
                part = fit > sample ? fit : sample;
  rates->warm = true;
  const double seconds = part_seconds(rates, 1, of, lane, part);
  rates->warm = false;
  fit_line(parts * (double)part, seconds, parts * LITTLE_BYTES, little_s, rate, &latency);
  *hop_us = latency / peers;
}

/* The rate of the hop between nodes of an all-gather of two hops. `rate`: of its parts by the time
 * of both hops. A node is at least as fast inside as its link. */
static double across_rate(double rate, double node_rate, int local, int nodes)
{
  const double far = nodes - 1, near = (local - 1) * nodes, whole_s = 1 / rate;
  return 1 / fmax(whole_s - near / far / node_rate, whole_s * far / (far + near));
}

/* A ring through all ranks crosses between nodes once per node. The mean over its hops contains
 * these crossings. */
static void measure_node(struct rates *rates)
{
  struct plan_rates *out = &rates->rates;
  struct comm_group *node = comm_group_node(rates->link), *across = comm_group_across(rates->link);
  const int local = comm_group_size(node), nodes = comm_group_size(across);
  const double mean = out->link_latency_s;
  double us, rate;
  measure_group(rates, node, gather, local - 1, &out->node_link_bytes, &out->node_latency_s);
  measure_group(rates, rates->link, gather, nodes - 1, &rate, &us);
  measure_group(rates, node, exchange, local - 1, &out->node_exchange_bytes, &us);
  measure_group(rates, across, exchange, nodes - 1, &out->across_exchange_bytes, &us);
  out->across_link_bytes = across_rate(rate, out->node_link_bytes, local, nodes);
  out->link_latency_s = fmax(mean, local * mean - (local - 1) * out->node_latency_s);
}

/* Slowdown of products while a gather runs. The gather may be shorter than the products. It changes
 * near[0], so the products leave that alone. */
static void measure_contention(struct rates *rates)
{
  struct run runs[] = {{.work = multiply, .lane = COMPUTE}, {.work = gather, .lane = GATHER}};
  const double alone = product_work(rates) / rates->rates.gemm_flops;
  rates->left = rates->near[1];
  measure_runs(rates, 1, runs, 2);
  rates->rates.contention =
      fmin(1, fmax(0, (runs[0].seconds - alone) / fmin(runs[0].seconds, runs[1].seconds)));
}

/* Collective. */
static enum status register_near(struct rates *rates, struct comm_group *group)
{
  enum status status = STATUS_OK;
  for (int i = 0; i < NEAR && !status && rates->device != rates->host; i++)
    status = comm_agree(rates->job->comm, comm_group_register(group, rates->near[i], rates->bytes));
  return status;
}

/* Collective. */
static enum status gather_by_nodes(struct rates *rates)
{
  struct comm_group *link = rates->link;
  const struct comm *comm = rates->job->comm;
  const int local = rates->local;
  return comm_group_gather_by_nodes(link, comm_evenly(comm, local, 1),
                                    comm_evenly(comm, comm_ranks(comm) / local, local))
             ?: register_near(rates, comm_group_node(link))
             ?: register_near(rates, comm_group_across(link));
}

/* A plan adds the time of the sum of an exchange, by host_memory. */
static void measure_links(struct rates *rates)
{
  struct plan_rates *out = &rates->rates;
  const int peers = comm_ranks(rates->job->comm) - 1,
            far = rates->local ? peers + 1 - rates->local : peers;
  double us;
  measure_group(rates, rates->link, gather, peers, &out->link_bytes, &out->link_latency_s);
  measure_contention(rates);
  measure_group(rates, rates->link, exchange, far, &out->exchange_bytes, &out->exchange_latency_s);
  if (rates->local)
    rates->status = rates->status ?: gather_by_nodes(rates);
  if (rates->local && !rates->status)
    measure_node(rates);
  if (rates->hosts)
    measure_group(rates, rates->hosts, exchange_hosts, peers, &out->host_link_bytes, &us);
}

/* Both rates come from the round in which their sum is largest. */
static void measure_both_ways(struct rates *rates, bool idle, double *up, double *down)
{
  struct run runs[] = {{.work = copy, .lane = UP, .idle = idle},
                       {.work = copy, .lane = DOWN, .idle = idle}};
  measure_runs(rates, ROUNDS, runs, 2);
  const double gb = 1e-9 * (double)rates->bytes;
  if (gb / runs[0].seconds + gb / runs[1].seconds <= *up + *down)
    return;
  *up = gb / runs[0].seconds;
  *down = gb / runs[1].seconds;
}

/* A round: copies of all ranks at once and of the first rank of each node, and updates. Bytes of
 * updates: master and moments are read and written, the gradient is read, and the copy is written
 * in half as many bytes. */
static void measure_round(struct rates *rates)
{
  struct comm *comm = rates->job->comm;
  struct plan_rates *out = &rates->rates;
  int64_t most = comm_local_ranks(comm);
  measure_both_ways(rates, false, &out->h2d_bytes, &out->d2h_bytes);
  rates->status = rates->status ?: comm_max_i64(comm, &most, 1);
  if (most > 1)
    measure_both_ways(rates, comm_local_rank(comm) > 0, &out->h2d_alone_bytes,
                      &out->d2h_alone_bytes);
  out->host_bytes =
      fmax(out->host_bytes, 7.5e-9 * (double)rates->bytes / seconds_of(rates, ROUNDS, update, CPU));
}

static void measure_products(struct rates *rates)
{
  struct run products = {.work = multiply, .lane = COMPUTE};
  rates->left = rates->near[0];
  measure_runs(rates, 1, &products, 1);
  rates->rates.gemm_flops = product_work(rates) / products.seconds;
  measure_spread(rates, &products);
  rates->rates.memory_bytes = 2e-9 * (double)rates->bytes / seconds_of(rates, 1, copy, COMPUTE);
}

static void measure_disk(struct rates *rates)
{
  const double gb = 1e-9 * (double)rates->bytes;
  rates->rates.disk_write_bytes = gb / seconds_of(rates, 1, write_disk, CPU);
  rates->rates.disk_read_bytes = gb / seconds_of(rates, 1, read_disk, CPU);
}

static void measure_all(struct rates *rates)
{
  measure_products(rates);
  measure_codecs(rates);
  if (rates->link)
    measure_links(rates);
  for (int round = 0; round < ROUNDS && rates->wanted->copies; round++)
    measure_round(rates);
  if (rates->store)
    measure_disk(rates);
}

/* ---- set up ---- */

static enum status create_lanes(struct rates *rates)
{
  const int threads = rates->job->threads;
  const struct {
    const char *name;
    enum lane_role role;
    int threads;
  } lanes[LANES] = {[COMPUTE] = {"compute", LANE_ROLE_COMPUTE, threads},
                    [GATHER] = {"gather", LANE_ROLE_COMMUNICATE, 1},
                    [UP] = {"h2d", LANE_ROLE_BACKGROUND, 1},
                    [DOWN] = {"d2h", LANE_ROLE_BACKGROUND, 1},
                    [CPU] = {"host", LANE_ROLE_COMPUTE, threads}};
  enum status status = STATUS_OK;
  for (int i = 0; i < LANES && !status; i++) {
    struct device *device = i == CPU ? rates->host : rates->device;
    status = device->ops->lane_create(device, lanes[i].name, lanes[i].role, lanes[i].threads,
                                      &rates->lane[i]);
  }
  return status ? status : rates->device->ops->lane_reserve(rates->lane[COMPUTE]);
}

static int64_t near_bytes(const struct rates *rates)
{
  const int64_t matrix =
      rates->matrix * rates->matrix * (int64_t)dtype_size(rates->job->place.compute);
  return rates->bytes > matrix ? rates->bytes : matrix;
}

/* The host's pages are first touched by the threads that compute. */
static enum status allocate(struct rates *rates)
{
  const struct device_ops *ops = rates->device->ops;
  const int64_t near = near_bytes(rates);
  enum status status = STATUS_OK;
  for (int i = 0; i < NEAR && !status; i++)
    status = ops->alloc(rates->device, MEM_ARENA_TRANSIENT, (size_t)near, &rates->near[i]);
  for (int i = 0; i < (rates->wanted->copies ? FAR : FIRST) && !status; i++) {
    const size_t far = (size_t)(i == COPY ? rates->bytes / 2 : rates->bytes + STORE_BLOCK);
    status = ops->alloc_host(rates->device, MEM_ARENA_PERSISTENT, far, &rates->far[i])
                 ?: rates->host->ops->zero(rates->lane[CPU], rates->far[i], far);
  }
  return status;
}

/* Normally distributed numbers in all arrays, because a chip is faster on zeros than on real data.
 * It also touches all pages. */
static enum status fill_near(struct rates *rates)
{
  const int64_t size = (int64_t)dtype_size(rates->job->place.compute),
                block = RATES_LEAST / (int64_t)sizeof(float) / 2;
  char *pattern = rates->far[GRAD];
  enum status status = STATUS_OK;
  rng_fill_normal(rng_key_make(1, "rates"), 0, 0, block, 0, 1, rates->far[MASTER]);
  dtype_convert(pattern, rates->job->place.compute, rates->far[MASTER], DTYPE_F32, (size_t)block);
  for (int i = 0; i < NEAR && !status; i++)
    status = fill(rates, rates->near[i], near_bytes(rates), pattern, block * size);
  return status;
}

/* Collective. */
static enum status find_nodes(struct rates *rates)
{
  struct comm *comm = rates->job->comm;
  int least, most;
  const enum status status = job_find_nodes(comm, &least, &most);
  if (!status && least == most && most > 1 && most < comm_ranks(comm))
    rates->local = most;
  return status;
}

/* Collective. */
static enum status create_groups(struct rates *rates)
{
  struct comm *comm = rates->job->comm;
  const int ranks = comm_ranks(comm);
  enum status status = STATUS_OK;
  if (ranks == 1 || !rates->wanted->links)
    return STATUS_OK;
  if (rates->wanted->copies)
    status = comm_group_create_on_host(comm, comm_evenly(comm, ranks, 1), true, &rates->hosts);
  return status
             ?: comm_group_create(comm, comm_evenly(comm, ranks, 1), true, &rates->link)
             ?: register_near(rates, rates->link)
             ?: find_nodes(rates);
}

static enum status set_up(struct rates *rates)
{
  struct comm *comm = rates->job->comm;
  enum status status = comm_agree(comm, create_lanes(rates))
      ?: comm_agree(comm, allocate(rates))
      ?: comm_agree(comm, fill_near(rates))
      ?: create_groups(rates);
  if (!status && rates->wanted->disk)
    status = store_create(comm, rates->wanted->disk, rates->bytes, &rates->store);
  return status;
}

static void tear_down(struct rates *rates)
{
  store_destroy(rates->store);
  comm_group_destroy(rates->link);
  comm_group_destroy(rates->hosts);
  for (int i = 0; i < FAR; i++)
    if (rates->far[i])
      rates->device->ops->release_host(rates->device, rates->far[i]);
  for (int i = 0; i < NEAR; i++)
    if (rates->near[i])
      rates->device->ops->release(rates->device, rates->near[i]);
  for (int i = 0; i < LANES; i++)
    if (rates->lane[i])
      rates->lane[i]->device->ops->lane_destroy(rates->lane[i]);
}

enum status job_rates_measure(const struct job *job, const struct job_rates_wanted *wanted,
                              struct plan_rates *out)
{
  const int64_t usual = job->device->model.host_memory ? HOST_MATRIX : CUDA_MATRIX;
  struct rates rates = {.job = job,
                        .wanted = wanted,
                        .device = job->device,
                        .host = job->host ? job->host : job->device,
                        .gate = PTHREAD_MUTEX_INITIALIZER,
                        .bytes = wanted->bytes,
                        .matrix =
                            wanted->matrix && wanted->matrix < usual ? wanted->matrix : usual};
  for (const struct option *row = job_rates_table; row->name; row++)
    *job_rates_value(&rates.rates, row) = -1;
  rates.status = set_up(&rates);
  if (!rates.status)
    measure_all(&rates);
  tear_down(&rates);
  if (!rates.status)
    *out = rates.rates;
  return rates.status;
}
