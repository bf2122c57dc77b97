/* sluice doctor: each rank collects and judges its facts. Rank 0 collects the findings and prints
 * one page. */
#include "cmd/doctor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/append.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/printable.h"
#include "cmd/cmd.h"
#include "config.h"
#include "exec/op_counters.h"
#include "io/hdf5/version.h"
#include "io/text/json_write.h"
#include "job/job.h"
#include "train/train.h"
#ifdef HAVE_CUDA
#include "gpu/versions.h"
#endif
#ifdef HAVE_NCCL
#include "gpu/net.h"
#endif

enum { MOST_PLACES = 8, PATH_SIZE = 4096 };
static const double sight_seconds =
    3; /* time after which a network file system must show files of other nodes */

struct values {
  struct option_strings dir;
  int64_t size;
  double seconds;
  bool json;
};

// clang-format off: one row an option
static const struct option table[] = {
    {"dir", OPTION_STRINGS, AT(dir), "", .path = true,
     .text = "Folders to test, such as a run.dir. Empty: run.dir and the NVMe folder of the deck, "
             "or the working folder."},
    {"size", OPTION_INT, AT(size), "256Mi", .least = 4 << 20, .most = 1e12, .unit = OPTIONS_BYTES,
     .text = "Most bytes that each node writes to a folder."},
    {"seconds", OPTION_REAL, AT(seconds), "2", .least = 0.001, .most = 3600, .unit = "s",
     .text = "Longest time of a write test. Writes that have started by then are completed."},
    {"json", OPTION_BOOL, AT(json), "false", .text = "Print JSON."},
    {.name = NULL},
};
// clang-format on

/* The lines of the page. Every rank contributes to them, except that START, NODES and CLOCKS are
 * rank 0's alone. */
/* clang-format off */
enum line {
  BUILD, START, NODES, MPI, CUDA_AWARE, TRANSPORT, FABRIC, GPUS, NCCL, NCCL_NET, CUDNN, HDF5, CORES,
  PAPI, MEMLOCK, SHARED_MEMORY, MEMORY, CLOCKS, DECK, FOLDER, WEIGHTS, DATA, PLACES,
  LINES = PLACES + MOST_PLACES
};
/* clang-format on */

/* The message to rank 0. */
struct report {
  char host[DOCTOR_HOST];
  int node; /* the lowest rank of it */
  struct finding finding[LINES];
};

struct place {
  const char *dir;
  bool shared; /* among all nodes */
};

struct doctor {
  struct comm *comm;
  const struct values *values;
  int *exit_code;
  struct deck deck; /* zeroed if none was named */
  bool named;
  struct place place[MOST_PLACES];
  int places, nodes;
  char *nvme; /* the deck's folder for data on NVMe; NULL: none */
  struct report mine;
};

/* If a fact cannot be found, the library that refuses is at fault, and its message names the
 * cure. */
static struct finding refused(const char *what)
{
  struct finding finding = {.verdict = VERDICT_FAULT};
  snprintf(finding.what, sizeof finding.what, "%s", what);
  snprintf(finding.text, sizeof finding.text, "%.600s", status_text());
  return finding;
}

static bool leads(const struct doctor *doctor)
{
  return comm_node_leader(doctor->comm) == comm_rank(doctor->comm);
}

/* --- facts of this process and its node ---------------------------------- */

static const bool has_gpus =
#ifdef HAVE_CUDA
    true;
#else
    false;
#endif

static enum status read_gpus(struct doctor_gpus *out, char *names, size_t size)
{
  *out = (struct doctor_gpus){.cuda = has_gpus,
                              .names = names,
                              .nccl_built = SLUICE_VERSION_NCCL,
                              .cudnn_built = SLUICE_VERSION_CUDNN};
  names[0] = '\0';
#ifdef HAVE_CUDA
  struct gpu_versions versions;
  const enum status status = gpu_versions_read(&versions);
  if (status)
    return status;
  snprintf(names, size, "%s", versions.names);
  out->driver = versions.driver;
  out->runtime = versions.runtime;
  out->nccl = versions.nccl;
  out->cudnn = versions.cudnn;
  out->cudnn_runtime = versions.cudnn_runtime;
  out->gpus = versions.gpus;
#endif
  (void)size;
  return STATUS_OK;
}

/* NCCL and cuDNN take memory when they start, and their answers are the same on a node. So one rank
 * asks, unless memory is short, because then the process would be killed without a page. */
static bool may_ask(const struct doctor *doctor)
{
  return leads(doctor) && doctor->mine.finding[MEMORY].verdict != VERDICT_FAULT;
}

/* A job of one node has no use for a network, so there NCCL is asked only if it has a fast one. */
static void look_at_nccl_net(const struct doctor *doctor, const struct doctor_gpus *gpus,
                             const struct comm_fabric *fabric, struct finding *finding)
{
#ifdef HAVE_NCCL
  struct gpu_net net;
  if (!doctor_uses_gpus(gpus) ||
      (doctor->nodes == 1 && fabric->active == 0 && fabric->slingshot == 0))
    return;
  gpu_net_read(gpus->gpus > 0, &net);
  const struct doctor_net facts = {net.plugin, net.lacks, net.chosen};
  finding[NCCL_NET] = judge_nccl_net(&facts, fabric);
#endif
  (void)doctor, (void)gpus, (void)fabric, (void)finding;
}

static const char *ask_backward(const struct doctor_gpus *gpus, char *lacks, size_t size)
{
#ifdef HAVE_CUDA
  if (gpus->cudnn && gpus->gpus > 0) {
    gpu_backward_read(lacks, size);
    return lacks;
  }
#endif
  (void)gpus, (void)lacks, (void)size;
  return NULL;
}

/* Whether there are any GPUs to use. */
static bool look_at_gpus(const struct doctor *doctor, const struct comm_fabric *fabric,
                         struct finding *finding)
{
  struct doctor_gpus gpus;
  char names[160], lacks[200];
  if (read_gpus(&gpus, names, sizeof names)) {
    finding[GPUS] = refused("GPUs");
    return true;
  }
  gpus.card = doctor_has_card("/sys");
  finding[GPUS] = judge_gpus(&gpus, comm_local_ranks(doctor->comm));
  finding[NCCL] = judge_nccl(&gpus, comm_ranks(doctor->comm));
  gpus.lacks_backward = NULL;
  if (may_ask(doctor)) {
    gpus.lacks_backward = ask_backward(&gpus, lacks, sizeof lacks);
    look_at_nccl_net(doctor, &gpus, fabric, finding);
  }
  finding[CUDNN] = judge_cudnn(&gpus);
  return doctor_uses_gpus(&gpus);
}

static void look_at_mpi(const struct doctor *doctor, const struct comm_fabric *fabric, bool gpus,
                        struct finding *finding)
{
  struct mpi_info library;
  if (mpi_info_read(&library)) {
    finding[MPI] = refused("MPI");
    return;
  }
  finding[MPI] = judge_mpi(&library, SLUICE_VERSION_MPI);
  finding[CUDA_AWARE] =
      judge_cuda_aware(&library, gpus, getenv("MPICH_GPU_SUPPORT_ENABLED"), *SLUICE_VERSION_NCCL);
  finding[TRANSPORT] = judge_transport(&library, fabric, getenv("UCX_TLS"), getenv("FI_PROVIDER"),
                                       gpus, doctor->nodes);
}

static void look_at_libraries(const struct doctor *doctor, struct finding *finding)
{
  struct hdf5_version hdf5;
  struct topo_summary machine;
  struct op_counters *counters = NULL;
  finding[HDF5] = hdf5_version_read(&hdf5) ? refused("HDF5")
                                           : judge_hdf5(hdf5.built, hdf5.loaded, hdf5.parallel);
  finding[CORES] = topo_summary_read(&machine)
                       ? refused("cores")
                       : judge_cores(&machine, comm_local_ranks(doctor->comm));
  finding[PAPI] = op_counters_create(COUNT_PROCESS, 0, NULL, &counters)
                      ? refused("PAPI")
                      : judge_counters(SLUICE_VERSION_PAPI, op_counters_events(counters),
                                       op_counters_note(counters));
  op_counters_destroy(counters);
}

static void look_at_memory(struct doctor *doctor)
{
  const int ranks = comm_local_ranks(doctor->comm);
  struct finding *finding = doctor->mine.finding;
  struct statvfs room;
  const bool there = statvfs("/dev/shm", &room) == 0;
  const int64_t block = there ? (int64_t)room.f_frsize : 0;
  finding[SHARED_MEMORY] = judge_shared_memory(there ? (int64_t)room.f_blocks * block : -1,
                                               there ? (int64_t)room.f_bavail * block : -1, ranks);
  finding[MEMORY] =
      judge_memory(mem_total_bytes(), mem_available_bytes(), mem_limit_bytes(), ranks);
}

/* Memory first: see may_ask(). */
static void look_here(struct doctor *doctor)
{
  struct finding *finding = doctor->mine.finding;
  struct comm_fabric fabric;
  comm_fabric_read("/sys/class", &fabric);
  finding[BUILD] = judge_build(PACKAGE_VERSION, SLUICE_CC, SLUICE_CFLAGS, SLUICE_SANITIZER,
                               SLUICE_CONFIGURE_ARGS);
  finding[FABRIC] = judge_fabric(&fabric);
  look_at_memory(doctor);
  const bool gpus = look_at_gpus(doctor, &fabric, finding);
  finding[MEMLOCK] = judge_memlock(mem_lock_limit_bytes(), &fabric, gpus);
  look_at_mpi(doctor, &fabric, gpus, finding);
  look_at_libraries(doctor, finding);
}

/* --- folders ------------------------------------------------------------- */

/* The full path of a file that rank 0 makes in the folder. NULL if it cannot make one, which its
 * own finding reports. */
static char *make_mark(const char *dir)
{
  char *nearest = NULL, whole[PATH_SIZE];
  if (file_system_find_nearest(dir, &nearest))
    return NULL;
  char *path = realpath(nearest, whole) ? mem_printf("%s/.sluice-doctor-XXXXXX", whole) : NULL;
  mem_free(nearest);
  const int file = path ? mkostemp(path, 0) : -1;
  if (file >= 0) {
    (void)close(file); /* nothing was written to it */
    return path;
  }
  mem_free(path);
  return NULL;
}

static bool wait_for(const char *path)
{
  const double end = clock_s() + sight_seconds;
  bool there = access(path, F_OK) == 0;
  while (!there && clock_s() < end) {
    clock_sleep_until(clock_s() + 0.05);
    there = access(path, F_OK) == 0;
  }
  return there;
}

/* Whether this node sees files that rank 0's node writes. Collective. */
static enum status look_across(const struct doctor *doctor, const char *dir, bool *seen)
{
  const bool makes = comm_rank(doctor->comm) == 0;
  char *path = makes ? make_mark(dir) : NULL;
  if (makes && !path)
    path = mem_strdup("");
  enum status status = comm_agree(doctor->comm, makes && !path ? STATUS_MEMORY : STATUS_OK);
  if (!status)
    status = comm_broadcast_text(doctor->comm, &path, 0);
  if (!status && *path && leads(doctor))
    *seen = wait_for(path);
  if (!status)
    status = comm_barrier(doctor->comm);
  if (makes && path && *path)
    (void)unlink(path); /* an empty file that remains is harmless */
  mem_free(path);
  return status;
}

/* One rank of each node looks. Collective. */
static enum status look_at_places(struct doctor *doctor)
{
  enum status status = STATUS_OK;
  for (int i = 0; i < doctor->places && !status; i++) {
    const struct place *place = &doctor->place[i];
    struct doctor_disk disk;
    bool seen = true;
    status = comm_barrier(doctor->comm); /* so that the nodes write at the same time, as in a run */
    if (!status && leads(doctor))
      doctor_disk_read(place->dir, doctor->values->size, doctor->values->seconds, &disk);
    if (!status && place->shared && doctor->nodes > 1)
      status = look_across(doctor, place->dir, &seen);
    if (!status && leads(doctor))
      doctor->mine.finding[PLACES + i] =
          judge_disk(place->dir, &disk, place->shared, seen, doctor->nodes);
  }
  return status;
}

static enum status add_place(struct doctor *doctor, const char *dir, bool shared)
{
  if (doctor->places == MOST_PLACES)
    return status_set(STATUS_USAGE, "dir names more than %d folders: test them in several calls",
                      MOST_PLACES);
  doctor->place[doctor->places++] = (struct place){.dir = dir, .shared = shared};
  return STATUS_OK;
}

/* Collective: a deck is read by rank 0. */
static enum status name_places(struct doctor *doctor, const struct arguments *arguments)
{
  const struct option_strings *dir = &doctor->values->dir;
  enum status status = STATUS_OK;
  if (arguments->words == 0 && arguments->assignments > 0)
    return status_set(STATUS_USAGE,
                      "sluice doctor takes '%s' only with a deck: sluice doctor DECK %s",
                      arguments->assignment[0], arguments->assignment[0]);
  doctor->named = arguments->words > 0;
  if (doctor->named)
    status = deck_open(arguments, arguments->word[0], &doctor->deck);
  for (int i = 0; i < dir->n && !status; i++)
    status = add_place(doctor, dir->item[i], true);
  if (status || dir->n > 0)
    return status;
  status = add_place(doctor, doctor->named ? doctor->deck.run.dir : ".", true);
  if (!status && doctor->named && (*doctor->deck.tiers.nvme || job_uses_disk(&doctor->deck))) {
    doctor->nvme = job_nvme_folder(&doctor->deck);
    status = doctor->nvme ? add_place(doctor, doctor->nvme, false) : STATUS_MEMORY;
  }
  return status;
}

/* --- the deck ------------------------------------------------------------ */

/* Checks whether sluice train would start with the deck, or continue its run, and reports its
 * message if it would not. */
static void look_at_deck(struct doctor *doctor)
{
  struct comm *comm = doctor->comm;
  const struct deck *deck = &doctor->deck;
  struct finding *finding = doctor->mine.finding;
  int64_t tokens = 0, need = 0, free = 0, stopped = 0;
  char text[DOCTOR_TEXT];
  enum status status = train_check_folder(comm, deck, &stopped);
  if (!status)
    status = train_check_space(comm, deck, &need, &free);
  finding[FOLDER] = judge_folder(status ? status_text() : NULL, deck->run.dir, need, free, stopped);
  status = train_check_weights(comm, deck);
  snprintf(text, sizeof text, "%.300s: those of the deck", deck->train.init);
  if (*deck->train.init)
    finding[WEIGHTS] = judge_refusal("weights", status ? status_text() : NULL, text);
  status = train_check_data(comm, deck, &tokens);
  snprintf(text, sizeof text, "%.160s: %lld tokens to train on", deck->data.train,
           (long long)tokens);
  finding[DATA] = judge_refusal("data", status ? status_text() : NULL, text);
  status = job_check(comm, deck, deck->eval.every ? JOB_TRAIN_AND_EVAL : JOB_TRAIN);
  finding[DECK] = judge_refusal("deck", status ? status_text() : NULL,
                                "valid for these ranks and devices, and fits into memory");
}

/* --- the page ------------------------------------------------------------ */

struct page {
  int faults, warnings;
  struct json_writer *json; /* NULL: print text */
};

static void print_line(struct page *page, const struct finding *finding)
{
  if (!*finding->what)
    return;
  page->faults += finding->verdict == VERDICT_FAULT;
  page->warnings += finding->verdict == VERDICT_WARNING;
  if (!page->json) {
    printable_print(stdout, "%-7s  %-14s  %s\n", verdict_name(finding->verdict), finding->what,
                    finding->text);
    return;
  }
  json_write_open(page->json, NULL, '{');
  json_write_text(page->json, "verdict", verdict_name(finding->verdict));
  json_write_text(page->json, "what", finding->what);
  json_write_text(page->json, "text", finding->text);
  json_write_close(page->json, '}');
}

static void begin_page(const struct page *page)
{
  if (!page->json)
    return;
  json_write_open(page->json, NULL, '{');
  json_write_open(page->json, "findings", '[');
}

static void end_page(const struct page *page)
{
  if (!page->json) {
    printf("%d fault%s, %d warning%s\n", page->faults, plural(page->faults), page->warnings,
           plural(page->warnings));
    return;
  }
  json_write_close(page->json, ']');
  json_write_int(page->json, "faults", page->faults);
  json_write_int(page->json, "warnings", page->warnings);
  json_write_close(page->json, '}');
}

struct everyone {
  int ranks;
  struct report *report;
  struct comm_offset *offset;
  char (*host)[DOCTOR_HOST];
  int *node;
};

static void print_page(const struct doctor *doctor, const struct everyone *all)
{
  struct json_writer json = {.to = stdout};
  struct page page = {.json = doctor->values->json ? &json : NULL};
  const char(*host)[DOCTOR_HOST] = (const char(*)[DOCTOR_HOST])all->host;
  struct finding *mine = all->report[0].finding;
  mine[START] = judge_start(all->ranks, launch_read());
  mine[NODES] = judge_nodes(all->ranks, all->node, host);
  mine[CLOCKS] = judge_clocks(all->offset, all->ranks, host);
  begin_page(&page);
  for (int line = 0; line < PLACES + doctor->places; line++) {
    const struct finding merged =
        doctor_merge(&mine[line], all->ranks, sizeof(struct report), host);
    print_line(&page, &merged);
  }
  end_page(&page);
  *doctor->exit_code = page.faults > 0;
}

/* The reports of all ranks, on rank 0; empty elsewhere. */
static void free_everyone(struct everyone *all)
{
  mem_free(all->report);
  mem_free(all->offset);
  mem_free(all->host);
  mem_free(all->node);
}

static enum status make_everyone(struct comm *comm, struct everyone *all)
{
  const int ranks = all->ranks = comm_ranks(comm);
  if (comm_rank(comm) != 0)
    return STATUS_OK;
  enum status status = mem_new(MEM_META, ranks, &all->report);
  if (!status)
    status = mem_new(MEM_META, ranks, &all->offset);
  if (!status)
    status = mem_new(MEM_META, ranks, &all->host);
  return status ? status : mem_new(MEM_META, ranks, &all->node);
}

/* Collective. */
static enum status ask_everyone(struct doctor *doctor, struct everyone *all)
{
  enum status status = comm_agree(doctor->comm, make_everyone(doctor->comm, all));
  if (!status)
    status = comm_collect_bytes(doctor->comm, &doctor->mine, sizeof doctor->mine, all->report);
  if (!status)
    status = comm_collect_clocks(doctor->comm, all->offset);
  for (int r = 0; !status && comm_rank(doctor->comm) == 0 && r < all->ranks; r++) {
    memcpy(all->host[r], all->report[r].host, sizeof all->host[r]);
    all->node[r] = all->report[r].node;
  }
  return status;
}

static enum status count_nodes(struct doctor *doctor)
{
  int64_t nodes = leads(doctor);
  const enum status status = comm_sum_i64(doctor->comm, &nodes, 1);
  doctor->nodes = (int)nodes;
  return status;
}

static void sign(struct report *mine, int node)
{
  mine->node = node;
  if (gethostname(mine->host, sizeof mine->host - 1) != 0)
    snprintf(mine->host, sizeof mine->host, "node of rank %d", node);
  for (int line = 0; line < LINES; line++)
    doctor_hide(mine->finding[line].text, sizeof mine->finding[line].text, getenv("HOME"),
                getenv("USER"));
}

/* The exit code is rank 0's alone: a launcher that sees another rank fail may end this one before
 * its page is out. */
static enum status examine(struct doctor *doctor)
{
  struct everyone all = {0};
  enum status status = count_nodes(doctor);
  if (status)
    return status;
  look_here(doctor);
  status = look_at_places(doctor);
  if (status)
    return status;
  if (doctor->named)
    look_at_deck(doctor); /* last, because it binds this thread, as a run does */
  sign(&doctor->mine, comm_node_leader(doctor->comm));
  status = ask_everyone(doctor, &all);
  if (!status && comm_rank(doctor->comm) == 0)
    print_page(doctor, &all);
  free_everyone(&all);
  return status;
}

static enum status run(const struct arguments *arguments)
{
  struct doctor *doctor = NULL;
  enum status status =
      comm_agree(arguments->comm, mem_alloc(MEM_META, sizeof *doctor, (void **)&doctor));
  if (status)
    return status;
  doctor->comm = arguments->comm;
  doctor->values = arguments->values;
  doctor->exit_code = arguments->exit_code;
  status = name_places(doctor, arguments);
  if (!status)
    status = examine(doctor);
  deck_destroy(&doctor->deck);
  mem_free(doctor->nvme);
  mem_free(doctor);
  return status;
}

const struct command command_doctor = {
    .name = "doctor",
    .usage = "[DECK] [dir=FOLDER,...] [size=256Mi] [seconds=2] [key=value ...]",
    .summary = "report what the machine offers, what is wrong, and the cure",
    .text = "Start it as you start training: with the same launcher, nodes and ranks. Put its "
            "output into a support ticket. It reports the build, MPI, GPUs, libraries, limits, "
            "memory, clocks and folders of all nodes.\n"
            "\n"
            "With a deck it also says whether a run would start here, or continue: device, ranks, "
            "memory, run folder, weights (train.init) and data.\n"
            "\n"
            "Each line is ok, a warning (training runs, but not as well as it could) or a fault "
            "(training does not run), with the cure. If there is a fault, the exit code is 1. If "
            "nodes differ, the worst one is reported with its name.\n"
            "\n"
            "Every node writes and removes a file in each folder. User names are left out. The "
            "only environment variables that may be shown are UCX_TLS, NCCL_NET_PLUGIN and "
            "MPICH_GPU_SUPPORT_ENABLED.\n"
            "\n"
            "JSON (--json) has findings, objects with verdict (ok, warning, fault), what and text, "
            "then the numbers of faults and of warnings.",
    .examples = "  mpirun -n 4 --bind-to none sluice doctor\n"
                "  mpirun -n 4 --bind-to none sluice doctor inputs/gpt2-62m.yaml\n"
                "  srun --mpi=pmix sluice doctor dir=/scratch/me size=1Gi\n",
    .options = table,
    .exits = "0 no fault, 1 a fault, 2 usage error",
    .values_size = sizeof(struct values),
    .takes_deck = true,
    .uses_mpi = true,
    .most_words = 1,
    .run = run,
};
