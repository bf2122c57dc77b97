/* sluice doctor: each rank collects and judges its facts. Rank 0 collects the findings and prints
 * one page. */
#include "cmd/doctor.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/append.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/printable.h"
#include "cmd/cmd.h"
#include "cmd/script.h"
#include "config.h"
#include "exec/op_counters.h"
#include "io/hdf5/version.h"
#include "io/text/json_write.h"
#include "io/tokens/chat.h"
#include "job/job.h"
#include "train/train.h"
#ifdef HAVE_CUDA
#include "gpu/versions.h"
#endif
#ifdef HAVE_NCCL
#include "gpu/net.h"
#endif

enum { PATH_SIZE = 4096 };
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

struct doctor {
  struct comm *comm;
  const struct values *values;
  struct deck deck; /* zeroed if none was named */
  struct doctor_disk place[DOCTOR_MOST_PLACES];
  int places, nodes;
  char *nvme; /* the deck's folder for data on NVMe; NULL: none */
  struct doctor_report mine;
};

static bool leads(const struct doctor *doctor)
{
  return comm_node_leader(doctor->comm) == comm_rank(doctor->comm);
}

/* A failure has logged its cause and the cure. `fine` NULL: there is a finding of a failure only,
 * and it is not the same on all nodes. */
static void judge(enum doctor_line line, const char *what, enum status status, const char *fine,
                  struct finding *finding)
{
  if (status || fine)
    doctor_judge_refusal(line, what, status ? status_text() : NULL, fine, finding);
  finding[line].common = fine;
}

/* --- facts of this process and its node ---------------------------------- */

/* NCCL takes memory when it starts, and its answers are the same on a node. So one rank asks,
 * unless memory is short, because then the process would be killed without a page. A job of one
 * node has no use for a network, so there NCCL is asked only if it has a fast one. */
static void ask_nccl(const struct doctor *doctor, struct doctor_facts *facts)
{
  struct finding finding[DOCTOR_LINES] = {0};
  doctor_judge(facts, finding);
  if (!leads(doctor) || finding[DOCTOR_MEMORY].verdict == VERDICT_FAULT)
    return;
#ifdef HAVE_NCCL
  facts->asked_net = doctor_uses_gpus(facts) &&
                     (doctor->nodes > 1 || facts->fabric.active > 0 || facts->fabric.slingshot > 0);
  if (facts->asked_net)
    gpu_net_read(facts->gpus.gpus > 0, &facts->net);
#endif
}

/* Renders a conversation by an empty template. `why`: "" if that succeeds. */
static void try_chat(char *why, size_t size)
{
  char *const word[] = {mem_strdup("folder="),         mem_strdup("template=/dev/null"),
                        mem_strdup("train=assistant"), mem_strdup("eot=turn"),
                        mem_strdup("special=token"),   mem_strdup("invalid=refuse")};
  static const char record[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"\"}]}";
  char **argv = NULL;
  struct tokenizer *tokenizer = NULL;
  struct chat *chat = NULL;
  struct chat_answer answer;
  const enum status status = script_command("chat", true, sizeof word / sizeof *word, word, &argv)
                                 ?: tokenizer_create("bytes", NULL, &tokenizer)
                                 ?: chat_create(argv, 1, tokenizer, &chat)
                                 ?: chat_send(chat, record, strlen(record))
                                 ?: chat_receive(chat, &answer);
  snprintf(why, size, "%s", status ? status_text() : "");
  chat_destroy(chat);
  tokenizer_destroy(tokenizer);
  script_command_free(argv);
}

static void read_memory(struct doctor_facts *facts)
{
  struct statvfs room;
  const bool there = statvfs("/dev/shm", &room) == 0;
  const int64_t block = there ? (int64_t)room.f_frsize : 0;
  facts->shared_size = there ? (int64_t)room.f_blocks * block : -1;
  facts->shared_free = there ? (int64_t)room.f_bavail * block : -1;
  facts->memory_total = mem_total_bytes();
  facts->memory_available = mem_available_bytes();
  facts->memory_limit = mem_limit_bytes();
  facts->memlock = mem_lock_limit_bytes();
}

static void look_here(struct doctor *doctor)
{
  struct finding *finding = doctor->mine.finding;
  struct op_counters *counters = NULL;
  char chats[DOCTOR_TEXT] = "";
  struct doctor_facts facts = {.ranks = comm_ranks(doctor->comm),
                               .local_ranks = comm_local_ranks(doctor->comm),
                               .nodes = doctor->nodes,
                               .version = PACKAGE_VERSION,
                               .compiler = SLUICE_CC,
                               .flags = SLUICE_CFLAGS,
                               .sanitizer = SLUICE_SANITIZER,
                               .configured = SLUICE_CONFIGURE_ARGS,
                               .built_mpi = SLUICE_VERSION_MPI,
                               .built_nccl = SLUICE_VERSION_NCCL,
                               .built_papi = SLUICE_VERSION_PAPI,
                               .cray = getenv("MPICH_GPU_SUPPORT_ENABLED"),
                               .tls = getenv("UCX_TLS"),
                               .provider = getenv("FI_PROVIDER"),
                               .card = doctor_has_card("/sys"),
                               .note = ""};
  comm_fabric_read("/sys/class", &facts.fabric);
  read_memory(&facts);
#ifdef HAVE_CUDA
  facts.cuda = true;
  judge(DOCTOR_GPUS, "GPUs", gpu_versions_read(&facts.gpus), NULL, finding);
#endif
  judge(DOCTOR_MPI, "MPI", mpi_info_read(&facts.mpi), NULL, finding);
  judge(DOCTOR_HDF5, "HDF5", hdf5_version_read(&facts.hdf5), NULL, finding);
  judge(DOCTOR_CORES, "cores", topo_summary_read(&facts.machine), NULL, finding);
  const enum status status = op_counters_create(COUNT_PROCESS, 0, NULL, &counters);
  judge(DOCTOR_PAPI, "PAPI", status, NULL, finding);
  if (!status) {
    facts.events = op_counters_events(counters);
    facts.note = op_counters_note(counters);
  }
  if (leads(doctor)) {
    try_chat(chats, sizeof chats);
    facts.chats = chats;
  }
  ask_nccl(doctor, &facts);
  doctor_judge(&facts, finding);
  op_counters_destroy(counters);
}

/* --- folders ------------------------------------------------------------- */

/* The full path of a file that rank 0 makes in the folder. "" if it cannot make one, which its own
 * finding reports. NULL if memory is out. */
static char *make_mark(const char *dir)
{
  char *nearest = NULL, whole[PATH_SIZE];
  const bool found = !file_system_find_nearest(dir, &nearest) && realpath(nearest, whole);
  char *path = mem_printf("%s/.sluice-doctor-XXXXXX", found ? whole : "");
  const int file = path && found ? mkostemp(path, 0) : -1;
  if (file >= 0)
    (void)close(file); /* nothing was written to it */
  else if (path)
    *path = '\0';
  mem_free(nearest);
  return path;
}

static bool wait_for(const char *path)
{
  const double end = clock_s() + sight_seconds;
  while (access(path, F_OK) != 0) {
    if (clock_s() >= end)
      return false;
    clock_sleep_until(clock_s() + 0.05);
  }
  return true;
}

/* Whether this node sees files that rank 0's node writes. Collective. */
static enum status look_across(const struct doctor *doctor, struct doctor_disk *place)
{
  const bool makes = comm_rank(doctor->comm) == 0;
  char *path = makes ? make_mark(place->dir) : NULL;
  enum status status = comm_agree(doctor->comm, makes && !path ? STATUS_MEMORY : STATUS_OK);
  status = status ?: comm_broadcast_text(doctor->comm, &path, 0);
  if (!status && *path && leads(doctor))
    place->seen = wait_for(path);
  status = status ?: comm_barrier(doctor->comm);
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
    struct doctor_disk *place = &doctor->place[i];
    status = comm_barrier(doctor->comm); /* so that the nodes write at the same time, as in a run */
    if (!status && leads(doctor))
      doctor_disk_read(doctor->values->size, doctor->values->seconds, place);
    if (!status && place->shared && doctor->nodes > 1)
      status = look_across(doctor, place);
    if (!status && leads(doctor))
      doctor_judge_disk(i, doctor->nodes, place, doctor->mine.finding);
  }
  return status;
}

static enum status add_place(struct doctor *doctor, const char *dir, bool shared)
{
  if (doctor->places == DOCTOR_MOST_PLACES)
    return status_usage("dir names more than %d folders: test them in several calls",
                        DOCTOR_MOST_PLACES);
  doctor->place[doctor->places++] =
      (struct doctor_disk){.dir = dir, .shared = shared, .seen = true};
  return STATUS_OK;
}

/* Collective: a deck is read by rank 0. */
static enum status name_places(struct doctor *doctor, const struct arguments *arguments)
{
  const struct option_strings *dir = &doctor->values->dir;
  const struct deck *deck = &doctor->deck;
  const bool named = arguments->words > 0;
  enum status status = STATUS_OK;
  if (!named && arguments->assignments > 0)
    return status_usage("sluice doctor takes '%s' only with a deck: sluice doctor DECK %s",
                        arguments->assignment[0], arguments->assignment[0]);
  if (named)
    status = deck_open(arguments, arguments->word[0], &doctor->deck);
  for (int i = 0; i < dir->n && !status; i++)
    status = add_place(doctor, dir->item[i], true);
  if (status || dir->n > 0)
    return status;
  status = add_place(doctor, named ? deck->run.dir : ".", true);
  if (!status && named && (*deck->tiers.nvme || job_uses_disk(deck))) {
    doctor->nvme = job_nvme_folder(deck);
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
  struct doctor_run run = {.dir = deck->run.dir};
  struct job *job = NULL;
  int64_t tokens = 0;
  char text[DOCTOR_TEXT];
  enum status status = train_check_folder(comm, deck, &run.stopped)
                           ?: train_check_space(comm, deck, &run.need, &run.free);
  run.refusal = status ? status_text() : NULL;
  doctor_judge_run(&run, finding);
  status = train_check_weights(comm, deck);
  snprintf(text, sizeof text, "%.300s: those of the deck", deck->train.init);
  if (*deck->train.init)
    judge(DOCTOR_WEIGHTS, "weights", status, text, finding);
  status = train_check_data(comm, deck, &tokens);
  snprintf(text, sizeof text, "%.160s: %lld tokens to train on", options_first(&deck->data.train),
           (long long)tokens);
  judge(DOCTOR_DATA, "data", status, text, finding);
  status = job_begin(comm, &doctor->deck, &job) ?: job_check(job, job_training(deck));
  job_destroy(job);
  judge(DOCTOR_DECK, "deck", status, "valid for these ranks and devices, and fits into memory",
        finding);
}

/* --- the page ------------------------------------------------------------ */

static void print_finding(const struct finding *finding, struct json_writer *json)
{
  const char *verdict = verdict_name(finding->verdict);
  if (!json) {
    printable_print(stdout, "%-7s  %-14s  %s\n", verdict, finding->what, finding->text);
    return;
  }
  json_write_open(json, NULL, '{');
  json_write_text(json, "verdict", verdict);
  json_write_text(json, "what", finding->what);
  json_write_text(json, "text", finding->text);
  json_write_close(json, '}');
}

/* Returns the number of faults. */
static int print_page(const struct doctor *doctor, const struct doctor_report *report)
{
  struct json_writer writer = {.to = stdout}, *json = doctor->values->json ? &writer : NULL;
  int n[VERDICT_FAULT + 1] = {0};
  if (json) {
    json_write_open(json, NULL, '{');
    json_write_open(json, "findings", '[');
  }
  for (int line = 0; line < DOCTOR_LINES; line++) {
    const struct finding finding =
        doctor_merge((enum doctor_line)line, comm_ranks(doctor->comm), report);
    if (!*finding.what)
      continue;
    n[finding.verdict]++;
    print_finding(&finding, json);
  }
  const int faults = n[VERDICT_FAULT], warnings = n[VERDICT_WARNING];
  if (json) {
    json_write_close(json, ']');
    json_write_int(json, "faults", faults);
    json_write_int(json, "warnings", warnings);
    json_write_close(json, '}');
  } else {
    printf("%d fault%s, %d warning%s\n", faults, plural(faults), warnings, plural(warnings));
  }
  return faults;
}

/* The reports of all ranks, on rank 0. The exit code is rank 0's alone: a launcher that sees
 * another rank fail may end this one before its page is out. Collective. */
static enum status report(struct doctor *doctor, int *exit_code)
{
  struct comm *comm = doctor->comm;
  const bool prints = comm_rank(comm) == 0;
  const int ranks = comm_ranks(comm);
  struct doctor_report *all = NULL;
  struct comm_offset *offset = NULL;
  const int n = prints ? ranks : 0;
  const enum status status =
      comm_agree(comm, mem_new(MEM_META, n, &all) ?: mem_new(MEM_META, n, &offset))
          ?: comm_collect_bytes(comm, &doctor->mine, sizeof doctor->mine, all)
          ?: comm_collect_clocks(comm, offset);
  if (!status && prints) {
    doctor_judge_start(ranks, launch_read(), all->finding);
    doctor_judge_job(ranks, all, offset, all->finding);
    *exit_code = print_page(doctor, all) > 0;
  }
  mem_free(all);
  mem_free(offset);
  return status;
}

static void sign(struct doctor_report *mine, int node)
{
  mine->node = node;
  if (gethostname(mine->host, sizeof mine->host - 1) != 0)
    snprintf(mine->host, sizeof mine->host, "node of rank %d", node);
  for (int line = 0; line < DOCTOR_LINES; line++)
    doctor_hide(mine->finding[line].text, sizeof mine->finding[line].text, getenv("HOME"),
                getenv("USER"));
}

static enum status run(const struct arguments *arguments)
{
  struct comm *comm = arguments->comm;
  struct doctor *doctor = NULL;
  int64_t nodes;
  enum status status = comm_agree(comm, mem_new(MEM_META, 1, &doctor));
  if (status)
    return status;
  doctor->comm = comm;
  doctor->values = arguments->values;
  status = name_places(doctor, arguments);
  nodes = leads(doctor);
  status = status ?: comm_sum_i64(comm, &nodes, 1);
  if (!status) {
    doctor->nodes = (int)nodes;
    look_here(doctor);
    status = look_at_places(doctor);
  }
  if (!status) {
    if (arguments->words > 0)
      look_at_deck(doctor); /* last, because it binds this thread, as a run does */
    sign(&doctor->mine, comm_node_leader(comm));
    status = report(doctor, arguments->exit_code);
  }
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
    .words = {0, 1},
    .run = run,
};
