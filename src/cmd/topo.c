/* sluice topo: GPU, cores and memory of each rank of a node. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cmd.h"
#include "io/text/json_write.h"
#include "job/job.h"
#include "topo/topo.h"

struct values {
  char *xml, *machine;
  int64_t gpus, ranks;
  struct option_strings mask;
  bool json;
};

// clang-format off: one row an option
static const struct option table[] = {
    {"xml", OPTION_STRING, AT(xml), "", .path = true,
     .text =
         "Machine to show, as XML of hwloc. lstopo machine.xml writes it. Empty: this machine."},
    {"machine", OPTION_STRING, AT(machine), "",
     .text =
         "Machine to show, in hwloc's synthetic language. Such as 'pack:2 numa:1 core:4 pu:2'."},
    {"gpus", OPTION_INT, AT(gpus), "-1", .least = -1, .most = TOPO_GPUS,
     .text = "Number of GPUs to assume, -1 for those of the machine. If the machine shows no GPUs, "
             "they are spread evenly over it."},
    {"ranks", OPTION_INT, AT(ranks), "-1", .least = -1, .most = 4096, .unit = "ranks",
     .text = "Ranks on the machine. -1: the ranks of this job on this node, or one per GPU."},
    {"mask", OPTION_STRINGS, AT(mask), "[]",
     .text = "CPUs that the launcher gives each rank. Examples: [0-15, 16-31], "
             "['0-7,16-23', '8-15,24-31'], or one set for all ranks. Empty: the actual CPUs."},
    {"json", OPTION_BOOL, AT(json), "false", .text = "Print JSON."},
    {.name = NULL},
};
// clang-format on

static enum status create_scene(const struct values *values, const struct deck *deck,
                                const struct job_buses *buses, const struct topo_options *options,
                                struct topo **out)
{
  const bool described = *values->xml || *values->machine,
             none = !described && deck->run.device == DECK_DEVICE_HOST;
  const struct topo_scene scene = {.xml = *values->xml ? values->xml : NULL,
                                   .synthetic = *values->machine ? values->machine : NULL,
                                   .ranks = values->ranks > 0 ? (int)values->ranks : 0,
                                   .gpus = none ? 0 : (int)values->gpus,
                                   .buses = described ? 0 : buses->n,
                                   .bus = buses->bus,
                                   .masks = values->mask.n,
                                   .mask = values->mask.item};
  if (*values->xml && *values->machine)
    return status_usage("both xml= and machine= are given; show one of them");
  if (values->ranks == 0)
    return status_usage("ranks=0: a machine is shown for 1 rank or more; leave ranks= out "
                        "for the ranks of this job, or one per GPU");
  return topo_create_scene(&scene, options, out);
}

/* --- JSON ----------------------------------------------------------------------------------- */

/* A cell may be a number, a text, or nothing. */
static void write_rank(struct json_writer *json, const struct topo *topo, int rank)
{
  static const char *const keys[TOPO_COLUMNS] = {"rank",       "gpu", "memory", "cores",
                                                 "controller", "io",  "math",   "threads"};
  json_write_open(json, NULL, '{');
  for (int column = 0; column < TOPO_COLUMNS; column++) {
    char cell[TOPO_CELL];
    topo_print_cell(topo, rank, (enum topo_column)column, cell, sizeof cell);
    if (column == TOPO_RANK || column == TOPO_CORES || column == TOPO_THREADS)
      json_write_int(json, keys[column], strtol(cell, NULL, 10));
    else
      json_write_text(json, keys[column], strcmp(cell, "-") != 0 ? cell : NULL);
  }
  json_write_text(json, "warning", topo_rank_warning(topo, rank));
  json_write_close(json, '}');
}

static enum status print_json(const struct topo *topo)
{
  struct json_writer json = {.to = stdout};
  struct topo_machine machine;
  topo_read_machine(topo, &machine);
  json_write_open(&json, NULL, '{');
  json_write_open(&json, "machine", '{');
  json_write_int(&json, "packages", machine.packages);
  json_write_int(&json, "numa_nodes", machine.nodes);
  json_write_int(&json, "cores", machine.cores);
  json_write_int(&json, "cpus", machine.cpus);
  json_write_int(&json, "gpus", machine.gpus);
  json_write_close(&json, '}');
  json_write_open(&json, "ranks", '[');
  for (int rank = 0; rank < topo_ranks(topo); rank++)
    write_rank(&json, topo, rank);
  json_write_close(&json, ']');
  json_write_close(&json, '}');
  return STATUS_OK;
}

static enum status show(const struct arguments *arguments, const struct deck *deck)
{
  const struct values *values = arguments->values;
  struct comm *comm = arguments->comm;
  const bool described = *values->xml || *values->machine;
  const bool job = comm_ranks(comm) > 1 && !described && values->ranks < 0 && values->gpus < 0 &&
                   values->mask.n == 0;
  const struct topo_options options = job_topo_options(deck);
  struct job_buses buses = {0};
  struct topo *topo = NULL;
  int gpus = 0;
  enum status status = comm_agree(comm, (described ? STATUS_OK : job_count_gpus(deck, &gpus))
                                            ?: job_list_buses(gpus, &buses));
  if (!status)
    status = job ? job_create_topo(comm, &buses, &options, &topo)
                 : comm_agree(comm, create_scene(values, deck, &buses, &options, &topo));
  if (!status && comm_rank(comm) == 0)
    status = values->json ? print_json(topo) : topo_print(topo, stdout);
  status = comm_agree(comm, status);
  topo_destroy(topo);
  return status;
}

static enum status run(const struct arguments *arguments)
{
  struct deck deck = {0};
  enum status status =
      deck_open(arguments, arguments->words > 0 ? arguments->word[0] : NULL, &deck);
  status = status ?: show(arguments, &deck);
  deck_destroy(&deck);
  return status;
}

const struct command command_topo = {
    .name = "topo",
    .usage = "[DECK] [--xml FILE | --machine TEXT] [--gpus N] [--ranks K] [key=value ...]",
    .summary = "show which GPU, cores and memory each rank of a node gets",
    .text = "Each rank gets the GPU nearest to the CPUs that its launcher gave it. Of these CPUs "
            "it uses the ones near its GPU. Ranks with the same CPUs split them. If there are "
            "fewer ranks than GPUs, the ranks are spread over the packages.\n"
            "\n"
            "With a GPU the cores of a rank are split: controller cores for the threads that "
            "drive lanes and MPI, one core for I/O, and the others for math. The keys topo.cores, "
            "topo.controller and run.threads change the split.\n"
            "\n"
            "The result is a table and a picture, with a warning for every rank whose CPUs are "
            "not near its GPU. Under mpirun or srun it shows the binding of a job with this deck, "
            "on the node of rank 0. Without a launcher it shows --ranks ranks that share the CPUs "
            "of this process. With --xml or --machine it shows any other machine.\n"
            "\n"
            "JSON (--json):\n"
            "  machine  packages, numa_nodes, cores, cpus, gpus\n"
            "  ranks  objects with rank, gpu (index and bus), memory (NUMA nodes), cores (their "
            "number), controller, io and math (CPUs), threads and warning; null: none",
    .examples = "  sluice topo --ranks 4\n"
                "  mpirun -n 4 --bind-to none sluice topo inputs/gpt2-62m.yaml\n"
                "  sluice topo --machine 'pack:2 numa:1 core:32 pu:1' --gpus 4\n",
    .options = table,
    .values_size = sizeof(struct values),
    .takes_deck = true,
    .uses_mpi = true,
    .words = {0, 1},
    .run = run,
};
