/* The place of a job: device, transport, cores. */
#include "job/private.h"

#include <string.h>

#include "base/append.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "config.h"

static enum status no_gpu(const struct deck *deck)
{
#ifdef HAVE_CUDA
  static const char missing[] =
      "this process sees no GPU: request one, check whether CUDA_VISIBLE_DEVICES hides it";
#else
  static const char missing[] = "this build has no CUDA: configure it with --with-cuda";
#endif
  return status_set(STATUS_UNSUPPORTED, "%s, but %s, or set run.device=host",
                    job_cite(deck, "run.device", "cuda").text, missing);
}

#ifdef HAVE_NCCL
static const bool has_nccl = true;
#else
static const bool has_nccl = false;
#endif

static enum status choose_transport(const struct deck *deck, int ranks, bool cuda, const char **out)
{
  const enum deck_backend backend = deck->comm.backend;
  if (backend == DECK_BACKEND_NCCL && !cuda)
    return status_usage("%s, which moves data between GPUs, but the model is computed on the host: "
                        "set comm.backend=mpi, or run.device=cuda",
                        job_cite(deck, "comm.backend", "nccl").text);
  const bool nccl = backend == DECK_BACKEND_NCCL || (backend == DECK_BACKEND_AUTO && has_nccl);
  if (!cuda || (ranks == 1 && backend != DECK_BACKEND_NCCL))
    *out = "mpi";
  else
    *out = nccl ? "nccl" : "mpi_device";
  return STATUS_OK;
}

enum status job_choose_place(const struct deck *deck, int ranks, int local_ranks, int gpus,
                             struct job_place *out)
{
  const bool cuda =
      deck->run.device == DECK_DEVICE_CUDA || (deck->run.device == DECK_DEVICE_AUTO && gpus > 0);
  const bool fp8 = deck->run.compute == DECK_COMPUTE_FP8;
  const bool bf16 = fp8 || deck->run.compute == DECK_COMPUTE_BF16 ||
                    (deck->run.compute == DECK_COMPUTE_AUTO && cuda);
  const char *transport = NULL;
  if (cuda && gpus == 0)
    return no_gpu(deck);
  if (cuda && local_ranks > gpus && gpus > 1)
    return status_usage("this node has %d ranks, but they see %d GPUs and each rank needs one: "
                        "start at most that many per node, or set run.device=host",
                        local_ranks, gpus);
  const enum status status = choose_transport(deck, ranks, cuda, &transport);
  if (status)
    return status;
  *out = (struct job_place){.device = cuda ? "cuda" : "host",
                            .compute = bf16 ? DTYPE_BF16 : DTYPE_F32,
                            .precision = fp8    ? "fp8"
                                         : bf16 ? dtype_name(DTYPE_BF16)
                                                : dtype_name(DTYPE_F32),
                            .transport = transport};
  return STATUS_OK;
}

enum status job_check_same_place(struct comm *comm, const struct deck *deck, bool gpu)
{
  int64_t some[2] = {gpu, !gpu};
  const enum status status = comm_max_i64(comm, some, 2);
  if (status || deck->run.device != DECK_DEVICE_AUTO || !some[0] || !some[1])
    return status;
  return status_usage("%s, but some ranks see a GPU and some do not: start all of them where GPUs "
                      "are, or set run.device=host",
                      job_cite(deck, "run.device", "auto").text);
}

/* If each rank of a node sees one GPU, it may be its own, or the same GPU on all of them. */
static enum status check_own_device(const struct job *job)
{
  const int ranks = comm_ranks(job->comm), rank = comm_rank(job->comm);
  const int first = rank - comm_local_rank(job->comm),
            end = first + comm_local_ranks(job->comm); /* of the node */
  int64_t *ids = NULL;
  enum status status = comm_agree(job->comm, mem_new(MEM_META, ranks, &ids));
  if (status)
    return status;
  ids[rank] = (int64_t)(hash_text(job->device->id) >> 1);
  status = comm_sum_i64(job->comm, ids, ranks);
  for (int other = first; other < end && !status; other++)
    if (*job->device->id && other != rank && ids[other] == ids[rank])
      status = status_usage("ranks %d and %d have the same GPU (%s), and each needs its own: start "
                            "one rank per GPU (mpirun -n), or set run.device=host",
                            rank, other, job->device->product);
  mem_free(ids);
  return comm_agree(job->comm, status);
}

enum status job_count_gpus(const struct deck *deck, int *out)
{
  const int gpus = deck->run.device == DECK_DEVICE_HOST ? 0 : device_count("cuda");
  if (gpus < 0)
    return STATUS_LIBRARY; /* its sentence is there */
  *out = gpus;
  return STATUS_OK;
}

/* The device of the job: *gpus is the number of GPUs from which a rank chooses, 0 for the host.
 * Collective. */
static enum status choose_place(struct job *job, int *out)
{
  int gpus = 0;
  enum status status = comm_agree(job->comm, job_count_gpus(job->deck, &gpus));
  status = status ?: job_check_same_place(job->comm, job->deck, gpus > 0);
  if (!status)
    status = job_choose_place(job->deck, comm_ranks(job->comm), comm_local_ranks(job->comm), gpus,
                              &job->place);
  status = comm_agree(job->comm, status);
  if (!status)
    *out = strcmp(job->place.device, "host") == 0 ? 0 : gpus;
  return status;
}

/* More threads than CPUs take turns. A few more may be intended, but many more are a typing
 * error. */
static enum status check_threads(const struct deck *deck, const struct topo *topo)
{
  enum { TURNS = 4 };
  const int64_t threads = deck->run.threads;
  struct topo_machine machine;
  topo_read_machine(topo, &machine);
  const int own = topo_own(topo)->cpus, all = machine.cpus;
  if (threads > (int64_t)TURNS * all)
    return status_usage("run.threads is %lld (%s), but this machine has %d CPU%s: set it to 0, "
                        "which uses the cores of each rank, or to at most %d",
                        (long long)threads, options_where(deck->set, "run.threads"), all,
                        plural(all), TURNS * all);
  if (threads > own)
    log_warn_alike("run.threads is %lld, but this rank has %d CPU%s for them: its threads take "
                   "turns, and steps are slower than with run.threads=0",
                   (long long)threads, own, plural(own));
  return STATUS_OK;
}

struct topo_options job_topo_options(const struct deck *deck)
{
  return (struct topo_options){.bind = deck->topo.bind,
                               .threads = (int)deck->run.threads,
                               .controller = (int)deck->topo.controller,
                               .lists = deck->topo.cores.n,
                               .list = deck->topo.cores.item};
}

enum status job_list_buses(int gpus, struct job_buses *out)
{
  enum status status = STATUS_OK;
  *out = (struct job_buses){.n = gpus};
  for (int g = 0; g < gpus && g < TOPO_GPUS && !status; g++) {
    out->bus[g] = out->text[g];
    status = device_bus("cuda", g, out->text[g], sizeof out->text[g]);
  }
  return status;
}

enum status job_create_topo(struct comm *comm, const struct job_buses *buses,
                            const struct topo_options *options, struct topo **out)
{
  const int ranks = comm_ranks(comm), rank = comm_rank(comm);
  struct topo_record *records = NULL;
  enum status status = mem_new(MEM_META, ranks, &records);
  status = status ?: topo_record(buses->n, buses->bus, &records[rank]);
  status = comm_agree(comm, status);
  status = status ?: comm_sum_i64(comm, (int64_t *)records, ranks * TOPO_RECORD_WORDS);
  status = status ?: comm_agree(comm, topo_create_job(records, ranks, rank, options, out));
  mem_free(records);
  return status;
}

static enum status take_cores(struct job *job)
{
  enum status status = check_threads(job->deck, job->topo) ?: topo_bind(job->topo);
  if (status)
    return status;
  job->threads = topo_own(job->topo)->threads;
  if (*topo_own(job->topo)->warning)
    log_warn_alike("%s", topo_own(job->topo)->warning);
  return STATUS_OK;
}

/* Each rank gets a GPU and cores of its own near it. This rank's threads are bound to them.
 * Collective. */
static enum status place_rank(struct job *job, int gpus)
{
  const struct topo_options options = job_topo_options(job->deck);
  struct job_buses buses;
  enum status status = comm_agree(job->comm, job_list_buses(gpus, &buses));
  status = status ?: job_create_topo(job->comm, &buses, &options, &job->topo);
  return status ? status : comm_agree(job->comm, take_cores(job));
}

enum status job_fp8_scales(const struct deck *deck, enum fp8_scales has, const char *product,
                           bool *tensor)
{
  if (has == FP8_SCALES_NONE)
    return status_set(STATUS_UNSUPPORTED,
                      "run.compute=fp8 needs a GPU of compute capability 8.9, 9.0, or 10.0 and "
                      "later, which %s is not: use run.compute=bf16",
                      product);
  if (deck->run.fp8_scales == DECK_FP8_SCALES_GROUPS && has != FP8_SCALES_GROUPS)
    return status_set(STATUS_UNSUPPORTED,
                      "run.fp8_scales=groups needs a GPU of compute capability 9.0 (H100, H200), "
                      "which %s is not: use run.fp8_scales=tensor",
                      product);
  *tensor = deck->run.fp8_scales == DECK_FP8_SCALES_TENSOR || has != FP8_SCALES_GROUPS;
  return STATUS_OK;
}

/* Ranks code parts of the same weights, so all of them use the same scales. Collective. */
static enum status choose_fp8_scales(struct job *job)
{
  bool tensor = false;
  if (job->deck->run.compute != DECK_COMPUTE_FP8)
    return STATUS_OK;
  enum status status = comm_agree(
      job->comm, job_fp8_scales(job->deck, job->device->model.fp8, job->device->product, &tensor));
  int64_t any = tensor;
  status = status ?: comm_max_i64(job->comm, &any, 1);
  if (!status && any) {
    job->device->fp8_tensor = true;
    job->device->model.fp8 = FP8_SCALES_TENSOR;
  }
  return status;
}

/* The device, and the transport of its data. Collective. */
static enum status create_device(struct job *job)
{
  const int gpu = topo_own(job->topo)->gpu;
  enum status status =
      device_create(job->place.device, gpu < 0 ? 0 : gpu, job->place.compute, &job->device);
  if (!status && !job->device->model.host_memory)
    status = device_create("host", 0, DTYPE_F32, &job->host);
  status = comm_agree(job->comm, status) ?: choose_fp8_scales(job) ?: check_own_device(job);
  if (status)
    return status;
  job->device->plain_memory = strcmp(job->place.transport, "nccl") != 0;
  comm_set_device(job->comm, job->device);
  return comm_set_transport(job->comm, job->place.transport);
}

enum status job_take_place(struct job *job)
{
  int gpus = 0;
  return choose_place(job, &gpus) ?: place_rank(job, gpus) ?: create_device(job);
}
