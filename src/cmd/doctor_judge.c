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

/* `text`: pieces up to NULL, which follow what is known in any case. */
enum { PIECES = 7 };
struct rule {
  bool holds;
  enum verdict verdict;
  const char *text[PIECES];
};
/* clang-format off */
#define FINE(holds, ...) {holds, VERDICT_OK, {__VA_ARGS__}}
#define WARN(holds, ...) {holds, VERDICT_WARNING, {__VA_ARGS__}}
#define FAULT(holds, ...) {holds, VERDICT_FAULT, {__VA_ARGS__}}
/* clang-format on */
static const struct rule otherwise = {true, VERDICT_OK, {NULL}};

/* A finding that depends on the node, with the text that is known in any case and that of the first
 * rule that holds. The last rule always holds. */
static struct finding __attribute__((format(printf, 3, 4)))
decide(const char *what, const struct rule *rule, const char *format, ...)
{
  struct finding finding = {.verdict = VERDICT_OK};
  va_list values;
  while (!rule->holds)
    rule++;
  finding.verdict = rule->verdict;
  snprintf(finding.what, sizeof finding.what, "%s", what);
  va_start(values, format);
  vsnprintf(finding.text, sizeof finding.text, format, values);
  va_end(values);
  for (int i = 0; i < PIECES && rule->text[i]; i++)
    append_text(finding.text, sizeof finding.text, "%s", rule->text[i]);
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

/* A number of a sentence. */
struct digits {
  char text[32];
};
static struct digits __attribute__((format(printf, 1, 2))) digits(const char *format, ...)
{
  struct digits out;
  va_list values;
  va_start(values, format);
  vsnprintf(out.text, sizeof out.text, format, values);
  va_end(values);
  return out;
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
  const struct rule rules[] = {
      WARN(checks, "; slow, for tests: configure without --enable-sanitizer"),
      WARN(!is_optimized(flags), "; not optimized: configure with CFLAGS='-O2 -g'"),
      otherwise,
  };
  return everywhere(decide("build", rules, "sluice %s, %s %s%s%s, configured with %s", version,
                           compiler, flags, checks ? ", sanitizer " : "", checks ? sanitizer : "",
                           *given ? given : "no arguments"));
}

struct finding judge_start(int ranks, struct launch launch)
{
  const struct digits tasks = digits("%lld", (long long)launch.tasks);
  const struct rule rules[] = {
      FAULT(ranks == 1 && launch.tasks > 1, ": the launcher started ", tasks.text,
            " separate tasks (", launch.told_by,
            "), each is rank 0 of 1: use the mpirun of " SLUICE_VERSION_MPI
            ", or its plugin of srun (Open MPI: srun --mpi=pmix; MPICH: pmi2 or cray_shasta; srun "
            "--mpi=list shows what the site has)"),
      otherwise,
  };
  return decide("start", rules, "%d rank%s", ranks, plural(ranks));
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
  const struct rule rules[] = {
      WARN(uneven,
           "; not the same number of ranks on each: groups of a node (shard.group=node) need that, "
           "--ntasks-per-node or mpirun --map-by ppr"),
      otherwise,
  };
  return decide("nodes", rules, "%d: %s", nodes, list);
}

/* --- MPI ----------------------------------------------------------------- */

struct finding judge_mpi(const struct mpi_info *library, const char *built)
{
  static const char *const levels[] = {"single", "funneled", "serialized", "multiple"};
  const struct rule rules[] = {
      FAULT(library->thread_level < 3,
            ": Sluice needs multiple, use an MPI library that is built with it"),
      WARN(strcmp(library->version, built) != 0, "; Sluice was built with ", built,
           ": build it again, or load the module it was built with"),
      otherwise,
  };
  return everywhere(
      decide("MPI", rules, "%s, threads %s", library->version, levels[library->thread_level]));
}

struct finding judge_cuda_aware(const struct mpi_info *library, bool gpus, const char *cray,
                                bool nccl)
{
  const struct rule rules[] = {
      WARN(cray && !strcmp(cray, "1") && nccl,
           "MPICH_GPU_SUPPORT_ENABLED=1: jobs that also use NCCL can hang; set it to 0, unless "
           "comm.backend=mpi"),
      FINE(library->cuda > 0, "yes"),
      WARN(true, library->cuda == 0 ? "no" : "this MPI library does not tell",
           ": comm.backend=mpi copies through the host; use comm.backend=nccl, or a CUDA-aware MPI "
           "library (Open MPI: built with --with-cuda over UCX; Cray MPICH: "
           "MPICH_GPU_SUPPORT_ENABLED=1)"),
  };
  return gpus ? everywhere(decide("CUDA-aware MPI", rules, "%s", "")) : nothing;
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
  static const char slingshot_cure[] =
      " Slingshot: use Cray MPICH, or an Open MPI 5 that is built with a libfabric that has cxi, "
      "with OMPI_MCA_pml=cm OMPI_MCA_mtl=ofi FI_PROVIDER=cxi";
  const char *pml = library->messages, *by = *pml ? library->transports : "";
  const bool libfabric = !strcmp(pml, "cm") && strstr(by, "ofi"), slingshot = fabric->slingshot > 0;
  const struct digits list = digits("%.31s", tls ? tls : "");
  const struct rule rules[] = {
      FINE(!*pml, "this MPI library does not tell"),
      FINE(slingshot && libfabric && names_slingshot(provider), ", by FI_PROVIDER"),
      WARN(slingshot && libfabric, ", which may be TCP instead of", slingshot_cure),
      WARN(slingshot, ", which does not reach", slingshot_cure),
      {!strcmp(pml, "ob1") && fabric->active > 0,
       nodes > 1 ? VERDICT_FAULT : VERDICT_WARNING,
       {", although RDMA devices are active: mpirun --mca pml ucx, or OMPI_MCA_pml=ucx (an Open "
        "MPI that is built with UCX)"}},
      WARN(!strcmp(pml, "ucx") && gpus && library->cuda > 0 && tls && *tls && !reaches_gpus(tls),
           "; no transport of UCX_TLS=", list.text,
           " reaches a GPU: unset it, or add cuda_copy,cuda_ipc"),
      otherwise,
  };
  return decide("transport", rules, "%s%s%s", pml, *by ? " over " : "", by);
}

struct finding judge_fabric(const struct comm_fabric *fabric)
{
  const int ports = fabric->ports + fabric->slingshot, up = fabric->active + fabric->slingshot_up;
  const struct digits ratio = digits("%d of %d", up, ports);
  const struct rule rules[] = {
      FINE(ports == 0, "none"),
      WARN(up == 0, "no port is active: ", fabric->text,
           "; data go over TCP; check the cable and the ",
           fabric->slingshot ? "switch (cxi_stat)" : "subnet manager (ibstat)"),
      FINE(true, fabric->slingshot ? "Slingshot, " : "", ratio.text, " port", plural(ports),
           " active: ", fabric->text),
  };
  return decide("RDMA devices", rules, "%s", "");
}

/* The least difference of the clocks that the error of the measurement allows. */
static double certain(struct comm_offset offset)
{
  const double size = offset.seconds < 0 ? -offset.seconds : offset.seconds;
  return size > offset.error ? size - offset.error : 0;
}

struct finding judge_clocks(const struct comm_offset *offset, int ranks,
                            const char (*host)[DOCTOR_HOST])
{
  static const char cure[] = ": start chronyd or ntpd on both";
  int furthest = 0, nodes = 0;
  for (int r = 0; r < ranks; r++) {
    nodes += offset[r].error >= 0;
    if (offset[r].error >= 0 && certain(offset[r]) > certain(offset[furthest]))
      furthest = r;
  }
  const double skew = certain(offset[furthest]), seconds = offset[furthest].seconds;
  const struct digits count = digits("%d", nodes),
                      error = digits(" (+- %.6f)", offset[furthest].error),
                      away = digits(" is %.6f s ", seconds < 0 ? -seconds : seconds);
  const struct rule rules[] = {
      FINE(nodes < 2, "one node"),
      FINE(skew == 0, "of ", count.text, " nodes agree, as far as can be measured"),
      {true,
       skew > most_skew   ? VERDICT_FAULT
       : skew > good_skew ? VERDICT_WARNING
                          : VERDICT_OK,
       {host[furthest], away.text, seconds < 0 ? "behind " : "ahead of ", host[0], error.text,
        skew > good_skew ? cure : ", the furthest"}},
  };
  return decide("clocks", rules, "%s", "");
}

/* --- GPUs ---------------------------------------------------------------- */

/* Within a major version any driver runs any runtime. */
struct finding judge_gpus(const struct doctor_gpus *gpus, int local_ranks)
{
  const int major = gpus->driver / 1000;
  const struct digits cuda = digits("CUDA %d.%d", gpus->runtime / 1000, gpus->runtime % 1000 / 10),
                      driver = digits("%d.%d", major, gpus->driver % 1000 / 10),
                      build = digits("%d", major);
  const bool usable = gpus->cuda && gpus->driver > 0 && major >= gpus->runtime / 1000;
  const struct rule rules[] = {
      {!gpus->cuda,
       gpus->card ? VERDICT_WARNING : VERDICT_OK,
       {"none are used: this build is without CUDA",
        gpus->card ? ". Cure: configure again with --with-cuda, which names what is missing"
                   : NULL}},
      FINE(gpus->driver == 0 && !gpus->card,
           "none in this machine: the model is computed on the host"),
      WARN(gpus->driver == 0, cuda.text,
           ", no driver: runs on the host only; load NVIDIA's driver, or in a container "
           "start it with --nv or --gpus all"),
      FAULT(!usable, cuda.text, ", but the driver runs up to ", driver.text,
            ": install a newer driver, or build Sluice with CUDA ", build.text),
      WARN(gpus->gpus == 0,
           "none is seen: ask Slurm for them (--gpus-per-task=1), and look at CUDA_VISIBLE_DEVICES "
           "and nvidia-smi"),
      FAULT(gpus->gpus > 1 && local_ranks > gpus->gpus, gpus->names, ", ", cuda.text,
            ", driver for ", driver.text,
            "; more ranks than GPUs on this node: start one rank per GPU"),
      FINE(true, gpus->names, ", ", cuda.text, ", driver for ", driver.text),
  };
  const struct finding finding = by_amount(decide("GPUs", rules, "%s", ""), gpus->gpus);
  return usable ? finding : everywhere(finding);
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
static struct digits version_text(int version)
{
  return digits("%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

static struct rule rule_of_version(const char *loaded, const char *built)
{
  return (struct rule)WARN(compare_versions(loaded, built) < 0, " is loaded, older than ", built,
                           " that Sluice was built with: see LD_LIBRARY_PATH");
}

struct finding judge_nccl(const struct doctor_gpus *gpus, int ranks)
{
  const struct digits loaded = version_text(gpus->nccl);
  const struct rule without[] = {
      {true, ranks > 1 ? VERDICT_WARNING : VERDICT_OK, {SLUICE_WITHOUT_NCCL}}};
  if (!doctor_uses_gpus(gpus))
    return nothing;
  if (!gpus->nccl)
    return everywhere(decide("NCCL", without, "%s", ""));
  const struct rule rules[] = {rule_of_version(loaded.text, gpus->nccl_built), otherwise};
  return everywhere(decide("NCCL", rules, "%s", loaded.text));
}

/* NCCL uses TCP without an error if it cannot use a faster network. */
struct finding judge_nccl_net(const struct doctor_net *net, const struct comm_fabric *fabric)
{
  const bool tcp = !strcmp(net->chosen, "Socket"), knows = *net->chosen != '\0';
  const struct rule rules[] = {
      WARN(fabric->slingshot > 0 && (tcp || (!knows && !*net->plugin)),
           "TCP instead of Slingshot (",
           *net->plugin ? "the plug-in loads, but finds no device of libfabric's" : net->lacks,
           "): put the folder of aws-ofi-nccl's libnccl-net.so, and of a libfabric that has cxi, "
           "into "
           "LD_LIBRARY_PATH; set NCCL_NET='AWS Libfabric', with which NCCL stops if it cannot use "
           "them"),
      WARN(fabric->active > 0 && tcp,
           "TCP, although RDMA devices are active: install libibverbs, and unset NCCL_NET, "
           "NCCL_IB_DISABLE and NCCL_IB_HCA; NCCL_DEBUG=INFO shows the reason"),
      FINE(knows, net->chosen, tcp ? " (TCP)" : NULL),
      FINE(true, *net->plugin ? "plug-in for " : "no plug-in", net->plugin,
           "; NCCL_DEBUG=INFO shows NCCL's choice"),
  };
  return decide("NCCL network", rules, "%s", "");
}

struct finding judge_cudnn(const struct doctor_gpus *gpus)
{
  const struct digits loaded = version_text(gpus->cudnn),
                      theirs = digits("%d", gpus->cudnn_runtime / 1000),
                      ours = digits("%d", gpus->runtime / 1000);
  const bool lacks = gpus->lacks_backward && *gpus->lacks_backward;
  const struct rule without[] = {WARN(true, SLUICE_WITHOUT_CUDNN)};
  if (!doctor_uses_gpus(gpus))
    return nothing;
  if (!gpus->cudnn)
    return everywhere(decide("cuDNN", without, "%s", ""));
  const struct rule rules[] = {
      FAULT(strcmp(theirs.text, ours.text) != 0, " is for CUDA ", theirs.text, ", Sluice for CUDA ",
            ours.text, ": put the fitting one first in LD_LIBRARY_PATH"),
      WARN(lacks,
           " has no deterministic backward pass of attention for this GPU, so a plain kernel "
           "computes "
           "it, which is slow: load cuDNN 9.18 or later, which Blackwell needs (",
           gpus->lacks_backward, ")"),
      rule_of_version(loaded.text, gpus->cudnn_built),
      otherwise,
  };
  const struct finding finding = decide("cuDNN", rules, "%s", loaded.text);
  return lacks ? finding : everywhere(finding);
}

/* --- other libraries ----------------------------------------------------- */

struct finding judge_hdf5(const char *built, const char *loaded, bool parallel)
{
  const struct rule rules[] = {
      FAULT(!parallel,
            " without MPI-IO: build Sluice with a parallel HDF5 (Debian: libhdf5-openmpi-dev)"),
      FAULT(strcmp(built, loaded) != 0, " is loaded, but Sluice was built with ", built,
            ": load that module, or build again"),
      FINE(compare_versions(loaded, "1.14") < 0,
           ", parallel; a forged file can crash it (older than 1.14): open only files that you "
           "trust"),
      FINE(true, ", parallel"),
  };
  return everywhere(decide("HDF5", rules, "%s", loaded));
}

struct finding judge_cores(const struct topo_summary *machine, int local_ranks)
{
  const struct digits quota = digits("%.3g", machine->quota), ranks = digits("%d", local_ranks);
  const bool limited = machine->quota > 0 && machine->quota < machine->own_cores;
  const struct rule rules[] = {
      WARN(*machine->described, "; ", machine->described),
      WARN(limited, "; control groups grant the time of ", quota.text,
           ": raise the container's or the job's CPU limit"),
      WARN(machine->cores < local_ranks, "; ", ranks.text,
           " ranks on fewer cores take turns: start fewer"),
      WARN(machine->own_cores == 1 && machine->cores > local_ranks,
           "; bound to one core of many: srun --cpus-per-task, or mpirun --bind-to none"),
      otherwise,
  };
  struct finding finding =
      decide("cores", rules,
             "hwloc %s: %d package%s, %d NUMA node%s, %d core%s, %d CPU%s, of these %d core%s for "
             "this process",
             machine->version, machine->packages, plural(machine->packages), machine->nodes,
             plural(machine->nodes), machine->cores, plural(machine->cores), machine->cpus,
             plural(machine->cpus), machine->own_cores, plural(machine->own_cores));
  finding.common = *machine->described != 0;
  return by_amount(finding, limited ? machine->quota : machine->own_cores);
}

struct finding judge_counters(const char *version, int events, const char *note)
{
  const struct digits count = digits("%d", events);
  const struct rule rules[] = {
      WARN(*note || events == 0, *version ? ": " : "", *note ? note : "nothing is counted"),
      FINE(true, ", ", count.text, " counters"),
  };
  return everywhere(decide("PAPI", rules, "%s", version));
}

/* --- the node ------------------------------------------------------------ */

struct finding judge_memlock(int64_t limit, const struct comm_fabric *fabric, bool gpus)
{
  static const char cure[] = "ulimit -l unlimited: LimitMEMLOCK=infinity in slurmd's unit, or "
                             "memlock in /etc/security/limits.conf";
  const struct rule rules[] = {
      FINE(limit < 0, NULL),
      {fabric->active > 0,
       limit < JOB_LEAST_LOCK ? VERDICT_FAULT : VERDICT_WARNING,
       {"; RDMA devices need memory that is locked: ", cure}},
      WARN(gpus, "; memory that GPUs copy from may need more: ", cure),
      FINE(true, "; nothing here needs more"),
  };
  return by_amount(
      decide("memlock", rules, "%s", limit < 0 ? "unlimited" : mem_amount((double)limit).text),
      limit < 0 ? INFINITY : (double)limit);
}

struct finding judge_shared_memory(int64_t size, int64_t free, int local_ranks)
{
  static const char cure[] = ": enlarge it (mount -o remount,size=50% /dev/shm; in a container "
                             "--shm-size=8g or --ipc=host) and remove what ended jobs left in it";
  const struct rule none[] = {
      FAULT(true, "is not there: ranks of a node share memory by it; mount a tmpfs on it")};
  const double each = (double)free / local_ranks;
  const struct rule rules[] = {FAULT(each < least_shared_bytes, cure),
                               WARN(each < good_shared_bytes, cure), otherwise};
  if (size < 0)
    return decide("/dev/shm", none, "%s", "");
  return by_amount(decide("/dev/shm", rules, "%s of %s free for %d rank%s",
                          mem_amount((double)free).text, mem_amount((double)size).text, local_ranks,
                          plural(local_ranks)),
                   (double)free);
}

struct finding judge_memory(int64_t total, int64_t available, int64_t limit, int local_ranks)
{
  const struct rule none[] = {WARN(true, "/proc/meminfo cannot be read: mount /proc")};
  const int64_t usable = limit >= 0 && limit < available ? limit : available;
  const struct digits ranks = digits("%d", local_ranks);
  const struct rule rules[] = {
      FAULT((double)usable / local_ranks < least_memory_bytes, ": too little for ", ranks.text,
            " rank", plural(local_ranks),
            "; end what else runs there, or ask Slurm for more (--mem=0: all)"),
      WARN(limit >= 0 && limit < total / 2, ": less than half of the node; ask Slurm for more "
                                            "(--mem=0: all), or raise the container's "
                                            "limit"),
      otherwise,
  };
  if (total < 0 || available < 0)
    return decide("memory", none, "%s", "");
  return by_amount(decide("memory", rules, "%s available of %s, %s%s",
                          mem_amount((double)available).text, mem_amount((double)total).text,
                          limit >= 0 ? "control groups allow " : "no limit by control groups",
                          limit >= 0 ? mem_amount((double)limit).text : ""),
                   (double)usable);
}

/* --- the deck ------------------------------------------------------------ */

struct finding judge_refusal(const char *what, const char *refusal, const char *fine)
{
  const struct rule rules[] = {FAULT(refusal, NULL), otherwise};
  return everywhere(decide(what, rules, "%.600s", refusal ? refusal : fine));
}

struct finding judge_folder(const char *refusal, const char *dir, int64_t need, int64_t free,
                            int64_t stopped)
{
  const struct digits step = digits("%lld", (long long)stopped);
  const struct mem_amount needs = mem_amount((double)need), has = mem_amount((double)free);
  const struct rule rules[] = {
      FAULT(refusal, refusal),
      WARN(need > free, dir, ": a checkpoint needs ", needs.text, ", and ", has.text,
           " are free: make room, or choose another run.dir"),
      FINE(stopped > 0, dir, ": holds a run that stopped after step ", step.text,
           ": continue it with --resume auto"),
      FINE(true, dir, ": free for a new run"),
  };
  struct finding finding = decide("run folder", rules, "%s", "");
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
  const struct rule fails[] = {FAULT(true, disk->failure)};
  const struct rule rules[] = {
      FAULT(
          shared && !seen,
          ": this node does not see what rank 0's writes there; use a folder on a file system that "
          "all nodes share"),
      FAULT(free < least_disk_bytes, ": no room for checkpoints; free some, or use another folder"),
      WARN(!shared && disk->system.reach == REACH_SHARED,
           ": all nodes share it, and every step waits for it; set tiers.nvme to a folder on the "
           "node's own disk"),
      WARN(disk->system.in_memory,
           ": lies in memory and ends with the machine; use a folder on a disk"),
      WARN(free < good_disk_bytes, ": room for few checkpoints; free some, or use another folder"),
      WARN(
          stripes->lustre && stripes->own && stripes->count == 1,
          ": somebody gave it one stripe, which sluice train leaves; set more: lfs setstripe -c 32 "
          "-S "
          "4M on the folder of the checkpoints"),
      WARN(rate < good_write_rate,
           ": slow; background checkpoints (checkpoint.background=true) hide it, a parallel file "
           "system cures it"),
      WARN(shared && nodes > 1 && disk->system.one_writer, ": ", disk->system.type,
           " is not made for one file written by many nodes; a parallel file system (Lustre, GPFS, "
           "BeeGFS) is"),
      otherwise,
  };
  if (*disk->failure)
    return decide("disk", fails, "%.200s: ", dir);
  return by_amount(decide("disk", rules, "%.160s (%s%s%s): wrote %.1f MB/s%s, %s free of %s", dir,
                          disk->system.type, stripes->lustre ? ", a file on " : "",
                          stripes->lustre ? stripes_text(stripes).text : "", rate * 1e-6,
                          nodes > 1 ? " while the other nodes did" : "", mem_amount(free).text,
                          mem_amount((double)disk->system.size).text),
                   rate);
}
