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

static const struct finding nothing = {.verdict = VERDICT_OK};

/* A part of a sentence. It stays as it is until SAID later calls. */
static const char *__attribute__((format(printf, 1, 2))) say(const char *format, ...)
{
  enum { SAID = 16 };
  static char text[SAID][DOCTOR_TEXT];
  static int n;
  va_list values;
  n = (n + 1) % SAID;
  va_start(values, format);
  vsnprintf(text[n], sizeof *text, format, values);
  va_end(values);
  return text[n];
}

/* `text` follows what is known in any case. */
struct rule {
  bool holds;
  enum verdict verdict;
  const char *text;
};
/* clang-format off */
#define FINE(holds, ...) {holds, VERDICT_OK, say(__VA_ARGS__)}
#define WARN(holds, ...) {holds, VERDICT_WARNING, say(__VA_ARGS__)}
#define FAULT(holds, ...) {holds, VERDICT_FAULT, say(__VA_ARGS__)}
#define OTHERWISE(...) FINE(true, __VA_ARGS__)
#define NOTHING_MORE {true, VERDICT_OK, ""}

/* A finding that depends on the node: `known`, and then the text of the first rule that holds. The
 * last rule always holds. */
#define DECIDE(what, known, ...) decide(what, known, (const struct rule[]){__VA_ARGS__})
/* clang-format on */
static struct finding decide(const char *what, const char *known, const struct rule *rule)
{
  struct finding finding = {0};
  while (!rule->holds)
    rule++;
  finding.verdict = rule->verdict;
  snprintf(finding.what, sizeof finding.what, "%s", what);
  snprintf(finding.text, sizeof finding.text, "%s%s", known, rule->text);
  return finding;
}

/* The text should be the same on all nodes. */
static struct finding everywhere(struct finding finding)
{
  finding.common = true;
  return finding;
}

static struct finding by_amount(struct finding finding, double amount)
{
  finding.amount = amount;
  return finding;
}

/* --- the page ------------------------------------------------------------ */

static bool is_worse(const struct finding *a, const struct finding *b)
{
  return a->verdict != b->verdict ? a->verdict > b->verdict : a->amount < b->amount;
}

static const struct finding *finding_of(const struct finding *first, int rank, size_t stride)
{
  return (const struct finding *)((const char *)first + (size_t)rank * stride);
}

/* The first rank whose text differs from that of rank `worst`; -1: none. */
static int find_other(const struct finding *finding, int ranks, size_t stride, int worst)
{
  const char *text = finding_of(finding, worst, stride)->text;
  for (int r = 0; r < ranks; r++)
    if (*finding_of(finding, r, stride)->what &&
        strcmp(finding_of(finding, r, stride)->text, text) != 0)
      return r;
  return -1;
}

struct finding doctor_merge(const struct finding *finding, int ranks, size_t stride,
                            const char (*host)[DOCTOR_HOST])
{
  int worst = -1;
  for (int r = 0; r < ranks; r++)
    if (*finding_of(finding, r, stride)->what &&
        (worst < 0 || is_worse(finding_of(finding, r, stride), finding_of(finding, worst, stride))))
      worst = r;
  if (worst < 0)
    return (struct finding){0};
  struct finding merged = *finding_of(finding, worst, stride);
  const int other = find_other(finding, ranks, stride, worst);
  if (other < 0 || !strcmp(host[worst], host[other]))
    return merged;
  if (!merged.common) {
    append_text(merged.text, sizeof merged.text, " [%s]", host[worst]);
    return merged;
  }
  if (merged.verdict == VERDICT_OK)
    merged.verdict = VERDICT_WARNING;
  snprintf(merged.text, sizeof merged.text,
           "differs between nodes, install the same on all: %.240s [%s]; %.240s [%s]",
           finding_of(finding, worst, stride)->text, host[worst],
           finding_of(finding, other, stride)->text, host[other]);
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
  const size_t length = strlen(what), put = strlen(by);
  for (char *at = find_part(text, what); at; at = find_part(at + put, what)) {
    const size_t rest = strlen(at + length), room = size - (size_t)(at - text) - 1;
    if (put > room)
      return;
    const size_t kept = rest < room - put ? rest : room - put;
    memmove(at + put, at + length, kept);
    memcpy(at, by, put);
    at[put + kept] = '\0';
  }
}

void doctor_hide(char *text, size_t size, const char *home, const char *user)
{
  if (home && home[0] == '/' && home[1])
    replace(text, size, home, "~");
  if (user && *user)
    replace(text, size, user, "USER");
}

/* --- the build and the start --------------------------------------------- */

/* The last -O counts. */
static bool is_optimized(const char *flags)
{
  bool optimized = false;
  for (const char *at = strstr(flags, "-O"); at; at = strstr(at + 2, "-O"))
    optimized = at[2] != '0';
  return optimized;
}

struct finding judge_build(const char *version, const char *compiler, const char *flags,
                           const char *sanitizer, const char *configured)
{
  const char *given = configured + strspn(configured, " ");
  const bool checks = strcmp(sanitizer, "no") != 0;
  return everywhere(DECIDE(
      "build",
      say("sluice %s, %s %s%s%s, configured with %s", version, compiler, flags,
          checks ? ", sanitizer " : "", checks ? sanitizer : "", *given ? given : "no arguments"),
      WARN(checks, "; slow, for tests: configure without --enable-sanitizer"),
      WARN(!is_optimized(flags), "; not optimized: configure with CFLAGS='-O2 -g'"), NOTHING_MORE));
}

struct finding judge_start(int ranks, struct launch launch)
{
  return DECIDE("start", say("%d rank%s", ranks, plural(ranks)),
                FAULT(ranks == 1 && launch.tasks > 1,
                      ": the launcher started %lld separate tasks (%s), each is rank 0 of 1: use "
                      "the mpirun of " SLUICE_VERSION_MPI ", or its plugin of srun (Open MPI: srun "
                      "--mpi=pmix; MPICH: pmi2 or cray_shasta; srun --mpi=list shows what the site "
                      "has)",
                      (long long)launch.tasks, launch.told_by ? launch.told_by : ""),
                NOTHING_MORE);
}

static int count_members(int ranks, const int *node, int leader)
{
  int n = 0;
  for (int r = 0; r < ranks; r++)
    n += node[r] == leader;
  return n;
}

struct finding judge_nodes(int ranks, const int *node, const char (*host)[DOCTOR_HOST])
{
  char list[400] = "";
  int nodes = 0;
  const int least = count_members(ranks, node, node[0]);
  bool uneven = false;
  for (int r = 0; r < ranks; r++)
    if (node[r] == r) {
      const int members = count_members(ranks, node, r);
      append_text(list, sizeof list, "%s%s x %d", nodes ? ", " : "", host[r], members);
      uneven = uneven || members != least;
      nodes++;
    }
  if (strlen(list) == sizeof list - 1)
    memcpy(list + sizeof list - 4, "...", 4);
  return DECIDE("nodes", say("%d: %s", nodes, list),
                WARN(uneven, "; not the same number of ranks on each: groups of a node "
                             "(shard.group=node) need that, --ntasks-per-node or mpirun --map-by "
                             "ppr"),
                NOTHING_MORE);
}

/* --- MPI ----------------------------------------------------------------- */

struct finding judge_mpi(const struct mpi_info *library, const char *built)
{
  static const char *const levels[] = {"single", "funneled", "serialized", "multiple"};
  return everywhere(DECIDE(
      "MPI", say("%s, threads %s", library->version, levels[library->thread_level]),
      FAULT(library->thread_level < 3,
            ": Sluice needs multiple, use an MPI library that is built with it"),
      WARN(strcmp(library->version, built) != 0,
           "; Sluice was built with %s: build it again, or load the module it was built with",
           built),
      NOTHING_MORE));
}

struct finding judge_cuda_aware(const struct mpi_info *library, bool gpus, const char *cray,
                                bool nccl)
{
  if (!gpus)
    return nothing;
  return everywhere(DECIDE(
      "CUDA-aware MPI", "",
      WARN(cray && !strcmp(cray, "1") && nccl,
           "MPICH_GPU_SUPPORT_ENABLED=1: jobs that also use NCCL can hang; set it to 0, unless "
           "comm.backend=mpi"),
      FINE(library->cuda > 0, "yes"),
      WARN(true,
           "%s: comm.backend=mpi copies through the host; use comm.backend=nccl, or a CUDA-aware "
           "MPI library (Open MPI: built with --with-cuda over UCX; Cray MPICH: "
           "MPICH_GPU_SUPPORT_ENABLED=1)",
           library->cuda == 0 ? "no" : "this MPI library does not tell")));
}

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

/* Nodes may differ: a node uses shared memory only if it has several ranks. UCX_TLS is judged
 * because Sluice passes GPU memory to an MPI library that accepts it. Such a call fails without a
 * transport that reaches GPUs. Open MPI reaches Slingshot only by cm over libfabric. The other
 * libraries do not tell. */
struct finding judge_transport(const struct mpi_info *library, const struct comm_fabric *fabric,
                               const char *tls, const char *provider, bool gpus, int nodes)
{
#define SLINGSHOT_CURE                                                                             \
  " Slingshot: use Cray MPICH, or an Open MPI 5 that is built with a libfabric that has cxi, "     \
  "with OMPI_MCA_pml=cm OMPI_MCA_mtl=ofi FI_PROVIDER=cxi"
  const char *pml = library->messages, *by = *pml ? library->transports : "";
  const bool libfabric = !strcmp(pml, "cm") && strstr(by, "ofi"), slingshot = fabric->slingshot > 0,
             blind = tls && *tls && !reaches_gpus(tls),
             rdma = !strcmp(pml, "ob1") && fabric->active;
  const char *without_rdma = ", although RDMA devices are active: mpirun --mca pml ucx, or "
                             "OMPI_MCA_pml=ucx (an Open MPI that is built with UCX)";
  return DECIDE("transport", say("%s%s%s", pml, *by ? " over " : "", by),
                FINE(!*pml, "this MPI library does not tell"),
                FINE(slingshot && libfabric && names_slingshot(provider), ", by FI_PROVIDER"),
                WARN(slingshot && libfabric, ", which may be TCP instead of" SLINGSHOT_CURE),
                WARN(slingshot, ", which does not reach" SLINGSHOT_CURE),
                FAULT(rdma && nodes > 1, "%s", without_rdma), WARN(rdma, "%s", without_rdma),
                WARN(!strcmp(pml, "ucx") && gpus && library->cuda > 0 && blind,
                     "; no transport of UCX_TLS=%.31s reaches a GPU: unset it, or add "
                     "cuda_copy,cuda_ipc",
                     tls ? tls : ""),
                NOTHING_MORE);
}

struct finding judge_fabric(const struct comm_fabric *fabric)
{
  const int ports = fabric->ports + fabric->slingshot, up = fabric->active + fabric->slingshot_up;
  return DECIDE("RDMA devices", "", FINE(ports == 0, "none"),
                WARN(up == 0, "no port is active: %s; data go over TCP; check the cable and the %s",
                     fabric->text,
                     fabric->slingshot ? "switch (cxi_stat)" : "subnet manager (ibstat)"),
                OTHERWISE("%s%d of %d port%s active: %s", fabric->slingshot ? "Slingshot, " : "",
                          up, ports, plural(ports), fabric->text));
}

/* The least difference of the clocks that the error of the measurement allows. */
static double certain(struct comm_offset offset)
{
  return fmax(0, fabs(offset.seconds) - offset.error);
}

struct finding judge_clocks(const struct comm_offset *offset, int ranks,
                            const char (*host)[DOCTOR_HOST])
{
  int furthest = 0, nodes = 0;
  for (int r = 0; r < ranks; r++) {
    nodes += offset[r].error >= 0;
    if (offset[r].error >= 0 && certain(offset[r]) > certain(offset[furthest]))
      furthest = r;
  }
  const double skew = certain(offset[furthest]), seconds = offset[furthest].seconds;
  const char *away = say("%s is %.6f s %s%s (+- %.6f)", host[furthest], fabs(seconds),
                         seconds < 0 ? "behind " : "ahead of ", host[0], offset[furthest].error);
  static const char cure[] = ": start chronyd or ntpd on both";
  return DECIDE("clocks", "", FINE(nodes < 2, "one node"),
                FINE(skew == 0, "of %d nodes agree, as far as can be measured", nodes),
                FAULT(skew > most_skew, "%s%s", away, cure),
                WARN(skew > good_skew, "%s%s", away, cure), OTHERWISE("%s, the furthest", away));
}

/* --- GPUs ---------------------------------------------------------------- */

/* Within a major version any driver runs any runtime. */
struct finding judge_gpus(const struct doctor_gpus *gpus, int local_ranks)
{
  const int major = gpus->driver / 1000;
  const char *cuda = say("CUDA %d.%d", gpus->runtime / 1000, gpus->runtime % 1000 / 10),
             *driver = say("%d.%d", major, gpus->driver % 1000 / 10),
             *all = say("%s, %s, driver for %s", gpus->names, cuda, driver);
  const bool usable = gpus->cuda && gpus->driver > 0 && major >= gpus->runtime / 1000;
  const struct finding finding = DECIDE(
      "GPUs", "",
      WARN(!gpus->cuda && gpus->card,
           "none are used: this build is without CUDA. Cure: configure again with --with-cuda, "
           "which names what is missing"),
      FINE(!gpus->cuda, "none are used: this build is without CUDA"),
      FINE(gpus->driver == 0 && !gpus->card,
           "none in this machine: the model is computed on the host"),
      WARN(gpus->driver == 0,
           "%s, no driver: runs on the host only; load NVIDIA's driver, or in a container start it "
           "with --nv or --gpus all",
           cuda),
      FAULT(!usable,
            "%s, but the driver runs up to %s: install a newer driver, or build Sluice with CUDA "
            "%d",
            cuda, driver, major),
      WARN(gpus->gpus == 0,
           "none is seen: ask Slurm for them (--gpus-per-task=1), and look at CUDA_VISIBLE_DEVICES "
           "and nvidia-smi"),
      FAULT(gpus->gpus > 1 && local_ranks > gpus->gpus,
            "%s; more ranks than GPUs on this node: start one rank per GPU", all),
      OTHERWISE("%s", all));
  return usable ? by_amount(finding, gpus->gpus) : everywhere(by_amount(finding, gpus->gpus));
}

bool doctor_uses_gpus(const struct doctor_gpus *gpus)
{
  return gpus->cuda && (gpus->card || gpus->driver > 0);
}

/* Compares versions of the form x.y.z. The first character of another kind ends a version. */
static int compare_versions(const char *a, const char *b)
{
  for (int i = 0; i < 3; i++) {
    char *a_end, *b_end;
    const long x = strtol(a, &a_end, 10), y = strtol(b, &b_end, 10);
    if (x != y)
      return x < y ? -1 : 1;
    a = *a_end == '.' ? a_end + 1 : a_end;
    b = *b_end == '.' ? b_end + 1 : b_end;
  }
  return 0;
}

/* "2.27.3" of 22703. */
static const char *version_text(int version)
{
  return say("%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

static struct rule rule_of_version(const char *loaded, const char *built)
{
  return (struct rule)WARN(
      compare_versions(loaded, built) < 0,
      " is loaded, older than %s that Sluice was built with: see LD_LIBRARY_PATH", built);
}

struct finding judge_nccl(const struct doctor_gpus *gpus, int ranks)
{
  const char *loaded = version_text(gpus->nccl);
  if (!doctor_uses_gpus(gpus))
    return nothing;
  return everywhere(DECIDE("NCCL", gpus->nccl ? loaded : "",
                           WARN(!gpus->nccl && ranks > 1, SLUICE_WITHOUT_NCCL),
                           FINE(!gpus->nccl, SLUICE_WITHOUT_NCCL),
                           rule_of_version(loaded, gpus->nccl_built), NOTHING_MORE));
}

/* NCCL uses TCP without an error if it cannot use a faster network. */
struct finding judge_nccl_net(const struct doctor_net *net, const struct comm_fabric *fabric)
{
  const bool tcp = !strcmp(net->chosen, "Socket"), knows = *net->chosen != '\0',
             loads = *net->plugin != '\0';
  return DECIDE(
      "NCCL network", "",
      WARN(fabric->slingshot > 0 && (tcp || (!knows && !loads)),
           "TCP instead of Slingshot (%s): put the folder of aws-ofi-nccl's libnccl-net.so, and of "
           "a libfabric that has cxi, into LD_LIBRARY_PATH; set NCCL_NET='AWS Libfabric', with "
           "which NCCL stops if it cannot use them",
           loads ? "the plug-in loads, but finds no device of libfabric's" : net->lacks),
      WARN(fabric->active > 0 && tcp,
           "TCP, although RDMA devices are active: install libibverbs, and unset NCCL_NET, "
           "NCCL_IB_DISABLE and NCCL_IB_HCA; NCCL_DEBUG=INFO shows the reason"),
      FINE(knows, "%s%s", net->chosen, tcp ? " (TCP)" : ""),
      OTHERWISE("%s%s; NCCL_DEBUG=INFO shows NCCL's choice", loads ? "plug-in for " : "no plug-in",
                net->plugin));
}

struct finding judge_cudnn(const struct doctor_gpus *gpus)
{
  const char *loaded = version_text(gpus->cudnn);
  const int theirs = gpus->cudnn_runtime / 1000, ours = gpus->runtime / 1000;
  const bool lacks = gpus->lacks_backward && *gpus->lacks_backward;
  if (!doctor_uses_gpus(gpus))
    return nothing;
  const struct finding finding = DECIDE(
      "cuDNN", gpus->cudnn ? loaded : "", WARN(!gpus->cudnn, SLUICE_WITHOUT_CUDNN),
      FAULT(theirs != ours,
            " is for CUDA %d, Sluice for CUDA %d: put the fitting one first in LD_LIBRARY_PATH",
            theirs, ours),
      WARN(lacks,
           " has no deterministic backward pass of attention for this GPU, so a plain kernel "
           "computes it, which is slow: load cuDNN 9.18 or later, which Blackwell needs (%s)",
           lacks ? gpus->lacks_backward : ""),
      rule_of_version(loaded, gpus->cudnn_built), NOTHING_MORE);
  return gpus->cudnn && lacks ? finding : everywhere(finding);
}

/* --- other libraries ----------------------------------------------------- */

struct finding judge_hdf5(const char *built, const char *loaded, bool parallel)
{
  return everywhere(DECIDE(
      "HDF5", loaded,
      FAULT(!parallel,
            " without MPI-IO: build Sluice with a parallel HDF5 (Debian: libhdf5-openmpi-dev)"),
      FAULT(strcmp(built, loaded) != 0,
            " is loaded, but Sluice was built with %s: load that module, or build again", built),
      FINE(compare_versions(loaded, "1.14") < 0,
           ", parallel; a forged file can crash it (older than 1.14): open only files that you "
           "trust"),
      OTHERWISE(", parallel")));
}

struct finding judge_cores(const struct topo_summary *m, int local_ranks)
{
  const bool limited = m->quota > 0 && m->quota < m->own_cores;
  struct finding finding = DECIDE(
      "cores",
      say("hwloc %s: %d package%s, %d NUMA node%s, %d core%s, %d CPU%s, of these %d core%s for "
          "this process",
          m->version, m->packages, plural(m->packages), m->nodes, plural(m->nodes), m->cores,
          plural(m->cores), m->cpus, plural(m->cpus), m->own_cores, plural(m->own_cores)),
      WARN(*m->described, "; %s", m->described),
      WARN(limited,
           "; control groups grant the time of %.3g: raise the container's or the job's CPU limit",
           m->quota),
      WARN(m->cores < local_ranks, "; %d ranks on fewer cores take turns: start fewer",
           local_ranks),
      WARN(m->own_cores == 1 && m->cores > local_ranks,
           "; bound to one core of many: srun --cpus-per-task, or mpirun --bind-to none"),
      NOTHING_MORE);
  finding.common = *m->described != 0;
  return by_amount(finding, limited ? m->quota : m->own_cores);
}

struct finding judge_counters(const char *version, int events, const char *note)
{
  return everywhere(DECIDE(
      "PAPI", version,
      WARN(*note || events == 0, "%s%s", *version ? ": " : "", *note ? note : "nothing is counted"),
      OTHERWISE(", %d counters", events)));
}

/* --- the node ------------------------------------------------------------ */

struct finding judge_memlock(int64_t limit, const struct comm_fabric *fabric, bool gpus)
{
#define LOCK_CURE                                                                                  \
  "ulimit -l unlimited: LimitMEMLOCK=infinity in slurmd's unit, or memlock in "                    \
  "/etc/security/limits.conf"
#define LOCK_RDMA "; RDMA devices need memory that is locked: " LOCK_CURE
  const bool rdma = fabric->active > 0;
  return by_amount(DECIDE("memlock",
                          limit < 0 ? "unlimited" : say("%s", mem_amount((double)limit).text),
                          FINE(limit < 0, "%s", ""),
                          FAULT(rdma && limit < JOB_LEAST_LOCK, LOCK_RDMA), WARN(rdma, LOCK_RDMA),
                          WARN(gpus, "; memory that GPUs copy from may need more: " LOCK_CURE),
                          OTHERWISE("; nothing here needs more")),
                   limit < 0 ? INFINITY : (double)limit);
}

struct finding judge_shared_memory(int64_t size, int64_t free, int local_ranks)
{
  static const char cure[] = ": enlarge it (mount -o remount,size=50% /dev/shm; in a container "
                             "--shm-size=8g or --ipc=host) and remove what ended jobs left in it";
  const double each = (double)free / local_ranks;
  const bool there = size >= 0;
  const struct finding finding =
      DECIDE("/dev/shm",
             there ? say("%s of %s free for %d rank%s", mem_amount((double)free).text,
                         mem_amount((double)size).text, local_ranks, plural(local_ranks))
                   : "",
             FAULT(!there, "is not there: ranks of a node share memory by it; mount a tmpfs on it"),
             FAULT(each < least_shared_bytes, "%s", cure),
             WARN(each < good_shared_bytes, "%s", cure), NOTHING_MORE);
  return there ? by_amount(finding, (double)free) : finding;
}

struct finding judge_memory(int64_t total, int64_t available, int64_t limit, int local_ranks)
{
  const bool known = total >= 0 && available >= 0;
  const int64_t usable = limit >= 0 && limit < available ? limit : available;
  const struct finding finding = DECIDE(
      "memory",
      known ? say("%s available of %s, %s%s", mem_amount((double)available).text,
                  mem_amount((double)total).text,
                  limit >= 0 ? "control groups allow " : "no limit by control groups",
                  limit >= 0 ? mem_amount((double)limit).text : "")
            : "",
      WARN(!known, "/proc/meminfo cannot be read: mount /proc"),
      FAULT((double)usable / local_ranks < least_memory_bytes,
            ": too little for %d rank%s; end what else runs there, or ask Slurm for more (--mem=0: "
            "all)",
            local_ranks, plural(local_ranks)),
      WARN(limit >= 0 && limit < total / 2,
           ": less than half of the node; ask Slurm for more (--mem=0: all), or raise the "
           "container's limit"),
      NOTHING_MORE);
  return known ? by_amount(finding, (double)usable) : finding;
}

/* --- the deck ------------------------------------------------------------ */

struct finding judge_refusal(const char *what, const char *refusal, const char *fine)
{
  return everywhere(DECIDE(what, "", FAULT(refusal, "%.600s", refusal ? refusal : ""),
                           OTHERWISE("%.600s", fine)));
}

struct finding judge_folder(const char *refusal, const char *dir, int64_t need, int64_t free,
                            int64_t stopped)
{
  struct finding finding = DECIDE(
      "run folder", "", FAULT(refusal, "%s", refusal ? refusal : ""),
      WARN(need > free,
           "%s: a checkpoint needs %s, and %s are free: make room, or choose another run.dir", dir,
           mem_amount((double)need).text, mem_amount((double)free).text),
      FINE(stopped > 0,
           "%s: holds a run that stopped after step %lld: continue it with --resume auto", dir,
           (long long)stopped),
      OTHERWISE("%s: free for a new run", dir));
  finding.common = finding.verdict != VERDICT_WARNING;
  return finding;
}

/* --- folders ------------------------------------------------------------- */

struct finding judge_disk(const char *dir, const struct doctor_disk *disk, bool shared, bool seen,
                          int nodes)
{
  const double rate = disk->seconds > 0 ? (double)disk->written / disk->seconds : 0,
               free = (double)disk->system.free;
  const struct stripes *stripes = &disk->stripes;
  if (*disk->failure)
    return DECIDE("disk", say("%.200s: ", dir), FAULT(true, "%s", disk->failure));
  return by_amount(
      DECIDE(
          "disk",
          say("%.160s (%s%s%s): wrote %.1f MB/s%s, %s free of %s", dir, disk->system.type,
              stripes->lustre ? ", a file on " : "",
              stripes->lustre ? stripes_text(stripes).text : "", rate * 1e-6,
              nodes > 1 ? " while the other nodes did" : "", mem_amount(free).text,
              mem_amount((double)disk->system.size).text),
          FAULT(shared && !seen,
                ": this node does not see what rank 0's writes there; use a folder on a file "
                "system that all nodes share"),
          FAULT(free < least_disk_bytes,
                ": no room for checkpoints; free some, or use another folder"),
          WARN(!shared && disk->system.reach == REACH_SHARED,
               ": all nodes share it, and every step waits for it; set tiers.nvme to a folder on "
               "the node's own disk"),
          WARN(disk->system.in_memory,
               ": lies in memory and ends with the machine; use a folder on a disk"),
          WARN(free < good_disk_bytes,
               ": room for few checkpoints; free some, or use another folder"),
          WARN(stripes->lustre && stripes->own && stripes->count == 1,
               ": somebody gave it one stripe, which sluice train leaves; set more: lfs setstripe "
               "-c 32 -S 4M on the folder of the checkpoints"),
          WARN(rate < good_write_rate,
               ": slow; background checkpoints (checkpoint.background=true) hide it, a parallel "
               "file system cures it"),
          WARN(shared && nodes > 1 && disk->system.one_writer,
               ": %s is not made for one file written by many nodes; a parallel file system "
               "(Lustre, GPFS, BeeGFS) is",
               disk->system.type),
          NOTHING_MORE),
      rate);
}
