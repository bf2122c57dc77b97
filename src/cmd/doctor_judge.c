/* The judgements of sluice doctor. Each is a list of rules, of which the first that holds decides.
 * The sentence of a warning or a fault names the cure. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/append.h"
#include "base/mem.h"
#include "cmd/doctor.h"
#include "config.h"
#include "job/job.h"

#define GIB ((double)(INT64_C(1) << 30))
#define MIB ((double)(INT64_C(1) << 20))

/* A comment next to each threshold explains it. */
static const double least_shared_bytes =
    64 * MIB; /* a rank's part of the data of MPI and NCCL there, and the default of containers for
                 all ranks */
static const double good_shared_bytes = 1.0 * GIB;
static const double least_memory_bytes = 1.0 * GIB; /* a rank */
static const double least_disk_bytes = 1.0 * GIB;
static const double good_disk_bytes = 20.0 * GIB; /* a few checkpoints of a billion parameters */
static const double good_write_rate =
    100e6; /* bytes/s: a checkpoint of a billion parameters takes two minutes */
static const double good_skew = 0.1; /* s: beyond what a running NTP leaves */
static const double most_skew =
    5; /* s: times of files and the job's end are compared across nodes */

const char *verdict_name(enum verdict verdict)
{
  static const char *const names[] = {
      [VERDICT_OK] = "ok", [VERDICT_WARNING] = "warning", [VERDICT_FAULT] = "fault"};
  return names[verdict];
}

enum { SAID = 64 };

/* A part of a sentence. It stays as it is until SAID later calls. */
static const char *__attribute__((format(printf, 1, 2))) say(const char *format, ...)
{
  static char text[SAID][DOCTOR_TEXT];
  static int n;
  va_list values;
  n = (n + 1) % SAID;
  va_start(values, format);
  vsnprintf(text[n], sizeof *text, format, values);
  va_end(values);
  return text[n];
}

/* A line of the page, if it concerns a rank with these facts, begins with what is known. Rules
 * follow, of which the first that holds gives the verdict and the rest of the text. */
struct rule {
  enum doctor_line line;
  const char *title; /* NULL: of a rule */
  bool common, holds;
  enum verdict verdict;
  const char *text;
};
/* clang-format off */
#define LINE(id, title, common, holds, ...)                                                        \
  {DOCTOR_##id, title, common, holds, VERDICT_OK, say(__VA_ARGS__)}
#define FINE(id, holds, ...) {DOCTOR_##id, NULL, false, holds, VERDICT_OK, say(__VA_ARGS__)}
#define WARN(id, holds, ...) {DOCTOR_##id, NULL, false, holds, VERDICT_WARNING, say(__VA_ARGS__)}
#define FAULT(id, holds, ...) {DOCTOR_##id, NULL, false, holds, VERDICT_FAULT, say(__VA_ARGS__)}
/* clang-format on */
enum { DIFFERS = false, EVERYWHERE = true }; /* texts of nodes */

static void apply(size_t n, const struct rule *rule, struct finding *finding)
{
  bool open = false; /* the line waits for its rule */
  for (const struct rule *end = rule + n; rule < end; rule++) {
    struct finding *to = &finding[rule->line];
    if (rule->title) {
      open = rule->holds && !*to->what;
      if (open) {
        *to = (struct finding){.common = rule->common};
        snprintf(to->what, sizeof to->what, "%s", rule->title);
        snprintf(to->text, sizeof to->text, "%s", rule->text);
      }
    } else if (open && rule->holds) {
      to->verdict = rule->verdict;
      append_text(to->text, sizeof to->text, "%s", rule->text);
      open = false;
    }
  }
}
#define APPLY(rules, finding)                                                                      \
  do {                                                                                             \
    _Static_assert(sizeof(rules) / sizeof *(rules) < SAID / 2, "say() keeps all of their texts");  \
    apply(sizeof(rules) / sizeof *(rules), rules, finding);                                        \
  } while (0)

/* --- the page ------------------------------------------------------------ */

static bool is_worse(const struct finding *a, const struct finding *b)
{
  return a->verdict != b->verdict ? a->verdict > b->verdict : a->amount < b->amount;
}

struct finding doctor_merge(enum doctor_line line, int ranks, const struct doctor_report *report)
{
  const struct doctor_report *worst = NULL, *other = NULL; /* other: its text differs */
  for (const struct doctor_report *one = report; one < report + ranks; one++)
    if (*one->finding[line].what &&
        (!worst || is_worse(&one->finding[line], &worst->finding[line])))
      worst = one;
  if (!worst)
    return (struct finding){0};
  struct finding merged = worst->finding[line];
  for (const struct doctor_report *one = report; one < report + ranks && !other; one++)
    if (*one->finding[line].what && strcmp(one->finding[line].text, merged.text) != 0)
      other = one;
  if (!other || !strcmp(worst->host, other->host))
    return merged;
  if (!merged.common) {
    append_text(merged.text, sizeof merged.text, " [%s]", worst->host);
    return merged;
  }
  if (merged.verdict == VERDICT_OK)
    merged.verdict = VERDICT_WARNING;
  merged.text[0] = '\0';
  append_text(merged.text, sizeof merged.text,
              "differs between nodes, install the same on all: %.240s [%s]; %.240s [%s]",
              worst->finding[line].text, worst->host, other->finding[line].text, other->host);
  return merged;
}

static bool is_name_character(char c)
{
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.';
}

/* Position of `what` in the text as whole parts of a path; NULL: none. */
static char *find_part(char *text, const char *what)
{
  const size_t length = strlen(what);
  for (char *at = strstr(text, what); at; at = strstr(at + 1, what))
    if (!is_name_character(at[length]) &&
        (what[0] == '/' ? at == text || !is_name_character(at[-1]) : at > text && at[-1] == '/'))
      return at;
  return NULL;
}

static void replace(char *text, size_t size, const char *what, const char *by)
{
  char rest[DOCTOR_TEXT];
  for (char *at = find_part(text, what); at; at = find_part(at + strlen(by), what)) {
    const size_t room = size - (size_t)(at - text);
    if (strlen(by) >= room)
      return;
    snprintf(rest, sizeof rest, "%s", at + strlen(what));
    snprintf(at, room, "%s%s", by, rest);
  }
}

void doctor_hide(char *text, size_t size, const char *home, const char *user)
{
  if (home && home[0] == '/' && home[1])
    replace(text, size, home, "~");
  if (user && *user)
    replace(text, size, user, "USER");
}

/* --- the start and the nodes --------------------------------------------- */

void doctor_judge_start(int ranks, struct launch launch, struct finding *finding)
{
  /* clang-format off */
  const struct rule rules[] = {
      LINE(START, "start", DIFFERS, true, "%d rank%s", ranks, plural(ranks)),
      FAULT(START, ranks == 1 && launch.tasks > 1,
            ": the launcher started %lld separate tasks (%s), each is rank 0 of 1: use the mpirun "
            "of " SLUICE_VERSION_MPI ", or its plugin of srun (Open MPI: srun --mpi=pmix; MPICH: "
            "pmi2 or cray_shasta; srun --mpi=list shows what the site has)",
            (long long)launch.tasks, launch.told_by ? launch.told_by : ""),
  };
  /* clang-format on */
  APPLY(rules, finding);
}

static int count_members(int ranks, const struct doctor_report *report, int leader)
{
  int n = 0;
  for (int r = 0; r < ranks; r++)
    n += report[r].node == leader;
  return n;
}

/* "2: a x 4, b x 4". *uneven: not the same number of ranks on each. */
static void list_nodes(int ranks, const struct doctor_report *report, char *list, size_t size,
                       bool *uneven)
{
  char names[400] = "";
  int nodes = 0;
  *uneven = false;
  for (int r = 0; r < ranks; r++)
    if (report[r].node == r) {
      const int members = count_members(ranks, report, r);
      append_text(names, sizeof names, "%s%s x %d", nodes ? ", " : "", report[r].host, members);
      *uneven |= members != count_members(ranks, report, report[0].node);
      nodes++;
    }
  if (strlen(names) == sizeof names - 1)
    memcpy(names + sizeof names - 4, "...", 4);
  snprintf(list, size, "%d: %s", nodes, names);
}

/* The least difference of the clocks that the error of the measurement allows. */
static double certain(struct comm_offset offset)
{
  return fmax(0, fabs(offset.seconds) - offset.error);
}

void doctor_judge_job(int ranks, const struct doctor_report *report,
                      const struct comm_offset *offset, struct finding *finding)
{
  char list[420];
  int furthest = 0, nodes = 0;
  bool uneven;
  list_nodes(ranks, report, list, sizeof list, &uneven);
  for (int r = 0; r < ranks; r++) {
    nodes += offset[r].error >= 0;
    if (offset[r].error >= 0 && certain(offset[r]) > certain(offset[furthest]))
      furthest = r;
  }
  const double skew = certain(offset[furthest]), seconds = offset[furthest].seconds;
  const char *away =
      say("%s is %.6f s %s%s (+- %.6f)", report[furthest].host, fabs(seconds),
          seconds < 0 ? "behind " : "ahead of ", report[0].host, offset[furthest].error);
  /* clang-format off */
  const struct rule rules[] = {
      LINE(NODES, "nodes", DIFFERS, true, "%s", list),
      WARN(NODES, uneven, "; not the same number of ranks on each: groups of a node "
           "(shard.group=node) need that, --ntasks-per-node or mpirun --map-by ppr"),
      LINE(CLOCKS, "clocks", DIFFERS, true, "%s", ""),
      FINE(CLOCKS, nodes < 2, "one node"),
      FINE(CLOCKS, skew == 0, "of %d nodes agree, as far as can be measured", nodes),
      FAULT(CLOCKS, skew > most_skew, "%s: start chronyd or ntpd on both", away),
      WARN(CLOCKS, skew > good_skew, "%s: start chronyd or ntpd on both", away),
      FINE(CLOCKS, true, "%s, the furthest", away),
  };
  /* clang-format on */
  APPLY(rules, finding);
}

/* --- MPI ----------------------------------------------------------------- */

/* Transports that reach a GPU begin with "cuda"; "^" begins a list of those that are not used. */
static bool reaches_gpus(const char *tls)
{
  char list[512], *next = NULL;
  bool cuda = false, all = false;
  snprintf(list, sizeof list, "%s", tls + (*tls == '^'));
  for (char *item = strtok_r(list, ",", &next); item; item = strtok_r(NULL, ",", &next)) {
    cuda = cuda || !strncmp(item, "cuda", 4);
    all = all || !strcmp(item, "all");
  }
  return *tls == '^' ? !cuda : cuda || all;
}

/* Whether libfabric may use nothing but its providers for Slingshot: cxi, and lnx, which joins cxi
 * with shared memory. */
static bool names_slingshot(const char *provider)
{
  return provider && *provider != '^' && (strstr(provider, "cxi") || strstr(provider, "lnx"));
}

#define SLINGSHOT_CURE                                                                             \
  " Slingshot: use Cray MPICH, or an Open MPI 5 that is built with a libfabric that has cxi, "     \
  "with OMPI_MCA_pml=cm OMPI_MCA_mtl=ofi FI_PROVIDER=cxi"
#define RDMA_CURE                                                                                  \
  ", although RDMA devices are active: mpirun --mca pml ucx, or OMPI_MCA_pml=ucx (an Open MPI "    \
  "that is built with UCX)"

/* Nodes may differ: a node uses shared memory only if it has several ranks. UCX_TLS is judged
 * because Sluice passes GPU memory to an MPI library that accepts it. Such a call fails without a
 * transport that reaches GPUs. Open MPI reaches Slingshot only by cm over libfabric. The other
 * libraries do not tell. */
static void judge_mpi(const struct doctor_facts *f, struct finding *finding)
{
  static const char *const levels[] = {"single", "funneled", "serialized", "multiple"};
  const struct comm_fabric *net = &f->fabric;
  const int ports = net->ports + net->slingshot, up = net->active + net->slingshot_up;
  const char *pml = f->mpi.messages, *by = *pml ? f->mpi.transports : "",
             *tls = f->tls ? f->tls : "", *cray = f->cray ? f->cray : "";
  const bool known = *f->mpi.version, gpus = doctor_uses_gpus(f), slingshot = net->slingshot > 0,
             libfabric = slingshot && !strcmp(pml, "cm") && strstr(by, "ofi"),
             rdma = !strcmp(pml, "ob1") && net->active;
  /* clang-format off */
  const struct rule rules[] = {
      LINE(MPI, "MPI", EVERYWHERE, known, "%s, threads %s", f->mpi.version,
           levels[f->mpi.thread_level]),
      FAULT(MPI, f->mpi.thread_level < 3,
            ": Sluice needs multiple, use an MPI library that is built with it"),
      WARN(MPI, strcmp(f->mpi.version, f->built_mpi) != 0, "; Sluice was built with %s: build it "
           "again, or load the module it was built with", f->built_mpi),
      LINE(CUDA_AWARE, "CUDA-aware MPI", EVERYWHERE, known && gpus, "%s", ""),
      WARN(CUDA_AWARE, !strcmp(cray, "1") && *f->built_nccl, "MPICH_GPU_SUPPORT_ENABLED=1: jobs "
           "that also use NCCL can hang; set it to 0, unless comm.backend=mpi"),
      FINE(CUDA_AWARE, f->mpi.cuda > 0, "yes"),
      WARN(CUDA_AWARE, true, "%s: comm.backend=mpi copies through the host; use comm.backend=nccl, "
           "or a CUDA-aware MPI library (Open MPI: built with --with-cuda over UCX; Cray MPICH: "
           "MPICH_GPU_SUPPORT_ENABLED=1)",
           f->mpi.cuda == 0 ? "no" : "this MPI library does not tell"),
      LINE(TRANSPORT, "transport", DIFFERS, known, "%s%s%s", pml, *by ? " over " : "", by),
      FINE(TRANSPORT, !*pml, "this MPI library does not tell"),
      FINE(TRANSPORT, libfabric && names_slingshot(f->provider), ", by FI_PROVIDER"),
      WARN(TRANSPORT, libfabric, ", which may be TCP instead of" SLINGSHOT_CURE),
      WARN(TRANSPORT, slingshot, ", which does not reach" SLINGSHOT_CURE),
      FAULT(TRANSPORT, rdma && f->nodes > 1, RDMA_CURE),
      WARN(TRANSPORT, rdma, RDMA_CURE),
      WARN(TRANSPORT, !strcmp(pml, "ucx") && gpus && f->mpi.cuda > 0 && *tls && !reaches_gpus(tls),
           "; no transport of UCX_TLS=%.31s reaches a GPU: unset it, or add cuda_copy,cuda_ipc",
           tls),
      LINE(FABRIC, "RDMA devices", DIFFERS, true, "%s", ""),
      FINE(FABRIC, ports == 0, "none"),
      WARN(FABRIC, up == 0, "no port is active: %s; data go over TCP; check the cable and the %s",
           net->text, slingshot ? "switch (cxi_stat)" : "subnet manager (ibstat)"),
      FINE(FABRIC, true, "%s%d of %d port%s active: %s", slingshot ? "Slingshot, " : "", up, ports,
           plural(ports), net->text),
  };
  /* clang-format on */
  APPLY(rules, finding);
}

/* --- GPUs ---------------------------------------------------------------- */

bool doctor_uses_gpus(const struct doctor_facts *f)
{
  return f->cuda && (f->card || f->gpus.driver > 0 || f->gpus.runtime == 0);
}

/* Compares versions of the form x.y.z. The first character of another kind ends a version. */
static int compare_versions(const char *a, const char *b)
{
  int x[3] = {0}, y[3] = {0}, i = 0;
  (void)sscanf(a, "%d.%d.%d", x, x + 1, x + 2);
  (void)sscanf(b, "%d.%d.%d", y, y + 1, y + 2);
  while (i < 2 && x[i] == y[i])
    i++;
  return x[i] - y[i];
}

/* "2.27.3" of 22703; "" of 0. */
static const char *version_text(int version)
{
  return version ? say("%d.%d.%d", version / 10000, version / 100 % 100, version % 100) : "";
}

#define OLDER(id, loaded, built)                                                                   \
  WARN(id, compare_versions(loaded, built) < 0,                                                    \
       " is loaded, older than %s that Sluice was built with: see LD_LIBRARY_PATH", built)

/* Within a major version any driver runs any runtime. NCCL uses TCP without an error if it cannot
 * use a faster network. */
static void judge_gpus(const struct doctor_facts *f, struct finding *finding)
{
  const struct gpu_versions *gpus = &f->gpus;
  const int major = gpus->driver / 1000, ours = gpus->runtime / 1000;
  const char *cuda = say("CUDA %d.%d", ours, gpus->runtime % 1000 / 10),
             *driver = say("%d.%d", major, gpus->driver % 1000 / 10),
             *all = say("%s, %s, driver for %s", gpus->names, cuda, driver),
             *nccl = version_text(gpus->nccl), *chosen = f->net.chosen;
  const bool usable = f->cuda && gpus->driver > 0 && major >= ours, tcp = !strcmp(chosen, "Socket"),
             loads = *f->net.plugin, known = doctor_uses_gpus(f) && gpus->runtime > 0;
  /* clang-format off */
  const struct rule rules[] = {
      LINE(GPUS, "GPUs", !usable, true, "%s", ""),
      WARN(GPUS, !f->cuda && f->card, "none are used: this build is without CUDA. Cure: configure "
           "again with --with-cuda, which names what is missing"),
      FINE(GPUS, !f->cuda, "none are used: this build is without CUDA"),
      FINE(GPUS, gpus->driver == 0 && !f->card,
           "none in this machine: the model is computed on the host"),
      WARN(GPUS, gpus->driver == 0, "%s, no driver: runs on the host only; load NVIDIA's driver, "
           "or in a container start it with --nv or --gpus all", cuda),
      FAULT(GPUS, !usable, "%s, but the driver runs up to %s: install a newer driver, or build "
            "Sluice with CUDA %d", cuda, driver, major),
      WARN(GPUS, gpus->gpus == 0, "none is seen: ask Slurm for them (--gpus-per-task=1), and look "
           "at CUDA_VISIBLE_DEVICES and nvidia-smi"),
      FAULT(GPUS, gpus->gpus > 1 && f->local_ranks > gpus->gpus,
            "%s; more ranks than GPUs on this node: start one rank per GPU", all),
      FINE(GPUS, true, "%s", all),
      LINE(NCCL, "NCCL", EVERYWHERE, known, "%s", nccl),
      WARN(NCCL, !*nccl && f->ranks > 1, SLUICE_WITHOUT_NCCL),
      FINE(NCCL, !*nccl, SLUICE_WITHOUT_NCCL),
      OLDER(NCCL, nccl, f->built_nccl),
      LINE(NCCL_NET, "NCCL network", DIFFERS, f->asked_net, "%s", ""),
      WARN(NCCL_NET, f->fabric.slingshot > 0 && (tcp || (!*chosen && !loads)),
           "TCP instead of Slingshot (%s): put the folder of aws-ofi-nccl's libnccl-net.so, and of "
           "a libfabric that has cxi, into LD_LIBRARY_PATH; set NCCL_NET='AWS Libfabric', with "
           "which NCCL stops if it cannot use them",
           loads ? "the plug-in loads, but finds no device of libfabric's" : f->net.lacks),
      WARN(NCCL_NET, f->fabric.active > 0 && tcp, "TCP, although RDMA devices are active: install "
           "libibverbs, and unset NCCL_NET, NCCL_IB_DISABLE and NCCL_IB_HCA; NCCL_DEBUG=INFO shows "
           "the reason"),
      FINE(NCCL_NET, *chosen, "%s%s", chosen, tcp ? " (TCP)" : ""),
      FINE(NCCL_NET, true, "%s%s; NCCL_DEBUG=INFO shows NCCL's choice",
           loads ? "plug-in for " : "no plug-in", f->net.plugin),
  };
  /* clang-format on */
  APPLY(rules, finding);
  finding[DOCTOR_GPUS].amount = gpus->gpus;
}

/* --- the build and other libraries --------------------------------------- */

/* The last -O counts. */
static bool is_optimized(const char *flags)
{
  bool optimized = false;
  for (const char *at = strstr(flags, "-O"); at; at = strstr(at + 2, "-O"))
    optimized = at[2] != '0';
  return optimized;
}

static void judge_build(const struct doctor_facts *f, struct finding *finding)
{
  const char *given = f->configured + strspn(f->configured, " "), *loaded = f->hdf5.loaded;
  const bool checks = strcmp(f->sanitizer, "no") != 0;
  /* clang-format off */
  const struct rule rules[] = {
      LINE(BUILD, "build", EVERYWHERE, true, "sluice %s, %s %s%s%s, configured with %s", f->version,
           f->compiler, f->flags, checks ? ", sanitizer " : "", checks ? f->sanitizer : "",
           *given ? given : "no arguments"),
      WARN(BUILD, checks, "; slow, for tests: configure without --enable-sanitizer"),
      WARN(BUILD, !is_optimized(f->flags), "; not optimized: configure with CFLAGS='-O2 -g'"),
      LINE(HDF5, "HDF5", EVERYWHERE, true, "%s", loaded),
      FAULT(HDF5, !f->hdf5.parallel,
            " without MPI-IO: build Sluice with a parallel HDF5 (Debian: libhdf5-openmpi-dev)"),
      FAULT(HDF5, strcmp(f->hdf5.built, loaded) != 0, " is loaded, but Sluice was built with %s: "
            "load that module, or build again", f->hdf5.built),
      FINE(HDF5, compare_versions(loaded, "1.14") < 0, ", parallel; a forged file can crash it "
           "(older than 1.14): open only files that you trust"),
      FINE(HDF5, true, ", parallel"),
      LINE(PAPI, "PAPI", EVERYWHERE, true, "%s", f->built_papi),
      WARN(PAPI, *f->note || f->events == 0, "%s%s", *f->built_papi ? ": " : "",
           *f->note ? f->note : "nothing is counted"),
      FINE(PAPI, true, ", %d counters", f->events),
      LINE(CHATS, "conversations", EVERYWHERE, f->chats, "%s", ""),
      WARN(CHATS, f->chats && *f->chats, "sluice prepare cannot render them; training does not "
           "need it: %s", f->chats),
      FINE(CHATS, true, "sluice prepare renders them by Jinja2"),
  };
  /* clang-format on */
  APPLY(rules, finding);
}

/* --- the node ------------------------------------------------------------ */

static const char *size_text(int64_t bytes)
{
  return say("%s", mem_amount((double)bytes).text);
}

#define LOCK_CURE                                                                                  \
  "ulimit -l unlimited: LimitMEMLOCK=infinity in slurmd's unit, or memlock in "                    \
  "/etc/security/limits.conf"
#define LOCK_RDMA "; RDMA devices need memory that is locked: " LOCK_CURE
#define SHARED_CURE                                                                                \
  ": enlarge it (mount -o remount,size=50%% /dev/shm; in a container --shm-size=8g or "            \
  "--ipc=host) and remove what ended jobs left in it"

static void judge_node(const struct doctor_facts *f, struct finding *finding)
{
  const struct topo_summary *m = &f->machine;
  const int ranks = f->local_ranks;
  const int64_t limit = f->memory_limit, available = f->memory_available, total = f->memory_total,
                usable = limit >= 0 && limit < available ? limit : available;
  const double shared = (double)f->shared_free / ranks;
  const bool quota = m->quota > 0 && m->quota < m->own_cores, known = total >= 0 && available >= 0,
             rdma = f->fabric.active > 0, there = f->shared_size >= 0;
  /* clang-format off */
  const struct rule rules[] = {
      LINE(CORES, "cores", *m->described, true, "hwloc %s: %d package%s, %d NUMA node%s, %d "
           "core%s, %d CPU%s, of these %d core%s for this process", m->version, m->packages,
           plural(m->packages), m->nodes, plural(m->nodes), m->cores, plural(m->cores), m->cpus,
           plural(m->cpus), m->own_cores, plural(m->own_cores)),
      WARN(CORES, *m->described, "; %s", m->described),
      WARN(CORES, quota, "; control groups grant the time of %.3g: raise the container's or the "
           "job's CPU limit", m->quota),
      WARN(CORES, m->cores < ranks, "; %d ranks on fewer cores take turns: start fewer", ranks),
      WARN(CORES, m->own_cores == 1 && m->cores > ranks,
           "; bound to one core of many: srun --cpus-per-task, or mpirun --bind-to none"),
      LINE(MEMLOCK, "memlock", DIFFERS, true, "%s",
           f->memlock < 0 ? "unlimited" : size_text(f->memlock)),
      FINE(MEMLOCK, f->memlock < 0, "%s", ""),
      FAULT(MEMLOCK, rdma && f->memlock < JOB_LEAST_LOCK, LOCK_RDMA),
      WARN(MEMLOCK, rdma, LOCK_RDMA),
      WARN(MEMLOCK, doctor_uses_gpus(f), "; memory that GPUs copy from may need more: " LOCK_CURE),
      FINE(MEMLOCK, true, "; nothing here needs more"),
      LINE(SHARED_MEMORY, "/dev/shm", DIFFERS, !there, "%s", ""),
      FAULT(SHARED_MEMORY, true,
            "is not there: ranks of a node share memory by it; mount a tmpfs on it"),
      LINE(SHARED_MEMORY, "/dev/shm", DIFFERS, there, "%s of %s free for %d rank%s",
           size_text(f->shared_free), size_text(f->shared_size), ranks, plural(ranks)),
      FAULT(SHARED_MEMORY, shared < least_shared_bytes, SHARED_CURE),
      WARN(SHARED_MEMORY, shared < good_shared_bytes, SHARED_CURE),
      LINE(MEMORY, "memory", DIFFERS, !known, "%s", ""),
      WARN(MEMORY, true, "/proc/meminfo cannot be read: mount /proc"),
      LINE(MEMORY, "memory", DIFFERS, known, "%s available of %s, %s%s", size_text(available),
           size_text(total), limit >= 0 ? "control groups allow " : "no limit by control groups",
           limit >= 0 ? size_text(limit) : ""),
      FAULT(MEMORY, (double)usable / ranks < least_memory_bytes, ": too little for %d rank%s; end "
            "what else runs there, or ask Slurm for more (--mem=0: all)", ranks, plural(ranks)),
      WARN(MEMORY, limit >= 0 && limit < total / 2, ": less than half of the node; ask Slurm for "
           "more (--mem=0: all), or raise the container's limit"),
  };
  /* clang-format on */
  APPLY(rules, finding);
  finding[DOCTOR_CORES].amount = quota ? m->quota : m->own_cores;
  finding[DOCTOR_MEMLOCK].amount = f->memlock < 0 ? INFINITY : (double)f->memlock;
  finding[DOCTOR_SHARED_MEMORY].amount = there ? (double)f->shared_free : 0;
  finding[DOCTOR_MEMORY].amount = known ? (double)usable : 0;
}

void doctor_judge(const struct doctor_facts *facts, struct finding *finding)
{
  judge_build(facts, finding);
  judge_mpi(facts, finding);
  judge_gpus(facts, finding);
  judge_node(facts, finding);
}

/* --- the deck and its folders -------------------------------------------- */

void doctor_judge_refusal(enum doctor_line line, const char *what, const char *refusal,
                          const char *fine, struct finding *finding)
{
  struct finding *to = &finding[line];
  *to = (struct finding){.verdict = refusal ? VERDICT_FAULT : VERDICT_OK, .common = true};
  snprintf(to->what, sizeof to->what, "%s", what);
  snprintf(to->text, sizeof to->text, "%.600s", refusal ? refusal : fine);
}

void doctor_judge_run(const struct doctor_run *run, struct finding *finding)
{
  const bool lacks = !run->refusal && run->need > run->free;
  /* clang-format off */
  const struct rule rules[] = {
      LINE(FOLDER, "run folder", !lacks, true, "%s", run->refusal ? run->refusal : run->dir),
      FAULT(FOLDER, run->refusal, "%s", ""),
      WARN(FOLDER, lacks,
           ": a checkpoint needs %s, and %s are free: make room, or choose another run.dir",
           size_text(run->need), size_text(run->free)),
      FINE(FOLDER, run->stopped > 0,
           ": holds a run that stopped after step %lld: continue it with --resume auto",
           (long long)run->stopped),
      FINE(FOLDER, true, ": free for a new run"),
  };
  /* clang-format on */
  APPLY(rules, finding);
}

void doctor_judge_disk(int place, int nodes, const struct doctor_disk *disk,
                       struct finding *finding)
{
  const struct stripes *stripes = &disk->stripes;
  const double rate = disk->seconds > 0 ? (double)disk->written / disk->seconds : 0,
               free = (double)disk->system.free;
  /* clang-format off */
  const struct rule rules[] = {
      LINE(PLACES, "disk", DIFFERS, *disk->failure, "%.200s: %s", disk->dir, disk->failure),
      FAULT(PLACES, true, "%s", ""),
      LINE(PLACES, "disk", DIFFERS, !*disk->failure,
           "%.160s (%s%s%s): wrote %.1f MB/s%s, %s free of %s", disk->dir, disk->system.type,
           stripes->lustre ? ", a file on " : "", stripes->lustre ? stripes_text(stripes).text : "",
           rate * 1e-6, nodes > 1 ? " while the other nodes did" : "", size_text(disk->system.free),
           size_text(disk->system.size)),
      FAULT(PLACES, disk->shared && !disk->seen, ": this node does not see what rank 0's writes "
            "there; use a folder on a file system that all nodes share"),
      FAULT(PLACES, free < least_disk_bytes,
            ": no room for checkpoints; free some, or use another folder"),
      WARN(PLACES, !disk->shared && disk->system.reach == REACH_SHARED, ": all nodes share it, and "
           "every step waits for it; set tiers.nvme to a folder on the node's own disk"),
      WARN(PLACES, disk->system.in_memory,
           ": lies in memory and ends with the machine; use a folder on a disk"),
      WARN(PLACES, free < good_disk_bytes,
           ": room for few checkpoints; free some, or use another folder"),
      WARN(PLACES, stripes->lustre && stripes->own && stripes->count == 1, ": somebody gave it one "
           "stripe, which sluice train leaves; set more: lfs setstripe -c 32 -S 4M on the folder "
           "of the checkpoints"),
      WARN(PLACES, rate < good_write_rate, ": slow; background checkpoints "
           "(checkpoint.background=true) hide it, a parallel file system cures it"),
      WARN(PLACES, disk->shared && nodes > 1 && disk->system.one_writer, ": %s is not made for one "
           "file written by many nodes; a parallel file system (Lustre, GPFS, BeeGFS) is",
           disk->system.type),
  };
  /* clang-format on */
  APPLY(rules, finding + place);
  finding[DOCTOR_PLACES + place].amount = *disk->failure ? 0 : rate;
}
