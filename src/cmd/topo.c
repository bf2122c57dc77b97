/* sluice topo: which GPU, cores and memory each rank of a node gets. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cmd/cmd.h"
#include "device/device.h"
#include "topo/topo.h"
#include "train/job.h"

struct values {
  char *xml, *machine;
  int64_t gpus, ranks;
  struct option_strings mask;
};

static const struct option table[] = {
    {.name = "xml",
     .type = OPTION_STRING,
     .offset = offsetof(struct values, xml),
     .value = "",
     .text = "a machine as hwloc wrote it (lstopo machine.xml); empty: this one"},
    {.name = "machine",
     .type = OPTION_STRING,
     .offset = offsetof(struct values, machine),
     .value = "",
     .text = "a machine in hwloc's synthetic language, such as 'pack:2 numa:1 core:4 pu:2'"},
    {.name = "gpus",
     .type = OPTION_INT,
     .offset = offsetof(struct values, gpus),
     .value = "-1",
     .least = -1,
     .most = TOPO_GPUS,
     .text = "as if there were so many GPUs; -1: those that the machine shows. A machine that shows none has them spread evenly"},
    {.name = "ranks",
     .type = OPTION_INT,
     .offset = offsetof(struct values, ranks),
     .value = "0",
     .least = 0,
     .most = 4096,
     .unit = "ranks",
     .text = "on the machine; 0: those of this job on this node, or one per GPU"},
    {.name = "mask",
     .type = OPTION_STRINGS,
     .offset = offsetof(struct values, mask),
     .value = "[]",
     .text = "CPUs that the launcher leaves each rank, as [0-15, 16-31] or "
             "['0-7,16-23', '8-15,24-31'], or one mask for all; empty: as they are"},
    {0},
};

enum { BUS = 24 };
struct buses {
  int n;
  char text[TOPO_GPUS][BUS];
  const char *bus[TOPO_GPUS];
};

/* Those that a job would use: none that the deck does not ask for. */
static enum status list_gpus(const struct deck *deck, struct buses *out)
{
  int gpus = 0;
  enum status status = job_count_gpus(deck, &gpus);
  out->n = gpus < TOPO_GPUS ? gpus : TOPO_GPUS;
  for (int g = 0; g < out->n && !status; g++) {
    out->bus[g] = out->text[g];
    status = device_bus("cuda", g, out->text[g], BUS);
  }
  return status;
}

static enum status create_job(struct comm *comm, const struct buses *buses, const struct topo_options *options, struct topo **out)
{
  const int ranks = comm_ranks(comm), rank = comm_rank(comm);
  struct topo_record *records = NULL;
  enum status status = mem_alloc(MEM_META, (size_t)ranks * sizeof *records, (void **)&records);
  if (!status)
    status = topo_record(buses->n, buses->bus, &records[rank]);
  status = comm_agree(comm, status);
  if (!status)
    status = comm_sum_i64(comm, (int64_t *)records, ranks * TOPO_RECORD_WORDS);
  if (!status)
    status = comm_agree(comm, topo_create_job(records, ranks, rank, options, out));
  mem_free(records);
  return status;
}

static enum status create_scene(const struct values *values, const struct deck *deck, const struct buses *buses, const struct topo_options *options,
                                struct topo **out)
{
  const bool described = *values->xml || *values->machine, none = !described && deck->run.device == DECK_DEVICE_HOST;
  const struct topo_scene scene = {.xml = *values->xml ? values->xml : NULL,
                                   .synthetic = *values->machine ? values->machine : NULL,
                                   .ranks = (int)values->ranks,
                                   .gpus = none ? 0 : (int)values->gpus,
                                   .buses = described ? 0 : buses->n,
                                   .bus = buses->bus,
                                   .masks = values->mask.n,
                                   .mask = values->mask.item};
  if (*values->xml && *values->machine)
    return status_set(STATUS_USAGE, "both xml= and machine= are given; show one of them");
  return topo_create_scene(&scene, options, out);
}

static enum status show(const struct arguments *arguments, const struct deck *deck)
{
  const struct values *values = arguments->values;
  struct comm *comm = arguments->comm;
  const bool described = *values->xml || *values->machine;
  const bool job = comm_ranks(comm) > 1 && !described && values->ranks == 0 && values->gpus < 0 && values->mask.n == 0;
  const struct topo_options options = {.bind = deck->topo.bind,
                                       .threads = (int)deck->run.threads,
                                       .controller = (int)deck->topo.controller,
                                       .lists = deck->topo.cores.n,
                                       .list = deck->topo.cores.item};
  struct buses buses = {0};
  struct topo *topo = NULL;
  enum status status = comm_agree(comm, described ? STATUS_OK : list_gpus(deck, &buses));
  if (!status)
    status = job ? create_job(comm, &buses, &options, &topo) : comm_agree(comm, create_scene(values, deck, &buses, &options, &topo));
  if (!status)
    status = comm_agree(comm, comm_rank(comm) == 0 ? topo_print(topo, stdout) : STATUS_OK);
  topo_destroy(topo);
  return status;
}

static enum status run(const struct arguments *arguments, int *exit_code)
{
  (void)exit_code;
  struct deck deck = {0};
  enum status status = arguments->words > 0 ? deck_open(arguments, arguments->word[0], &deck)
                                            : comm_agree(arguments->comm, deck_load(&deck, NULL, arguments->assignments, arguments->assignment));
  if (!status)
    status = show(arguments, &deck);
  deck_destroy(&deck);
  return status;
}

const struct command command_topo = {
    .name = "topo",
    .usage = "[DECK] [--xml FILE | --machine TEXT] [--gpus N] [--ranks K] [key=value ...]",
    .summary = "show which GPU, cores and memory each rank of a node gets",
    .text = "Each rank has the GPU nearest to the CPUs that its launcher left it, and of these the ones near its GPU; ranks that have the same ones "
            "split them. Fewer ranks than GPUs are spread over the packages. Beside a "
            "GPU its cores are split into the\n"
            "controller (threads that drive lanes, and MPI), one core for I/O, and math: the optimizer's workers. Printed as a table and as a "
            "picture, with a "
            "warning for every rank whose CPUs are not near\n"
            "its GPU. Under mpirun or srun: as a job with this deck would bind, on the node of rank 0. Alone: for --ranks ranks that share the CPUs "
            "of this "
            "process. With --xml or --machine: for any other machine.\n"
            "topo.cores, topo.controller and run.threads change it.",
    .options = table,
    .values_size = sizeof(struct values),
    .takes_deck = true,
    .uses_mpi = true,
    .least_words = 0,
    .most_words = 1,
    .run = run,
};
