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

static struct finding __attribute__((format(printf, 3, 4)))
found(enum verdict verdict, const char *what, const char *format, ...)
{
  struct finding finding = {.verdict = verdict};
  va_list values;
  snprintf(finding.what, sizeof finding.what, "%s", what);
  va_start(values, format);
  vsnprintf(finding.text, sizeof finding.text, format, values);
  va_end(values);
  return finding;
}

static const struct finding nothing = {.verdict = VERDICT_OK};

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
  const char *cure = checks ? "; slow, for tests: configure without --enable-sanitizer"
                     : !is_optimized(flags) ? "; not optimized: configure with CFLAGS='-O2 -g'"
                                            : "";
  return everywhere(found(*cure ? VERDICT_WARNING : VERDICT_OK, "build",
                          "sluice %s, %s %s%s%s, configured with %s%s", version, compiler, flags,
                          checks ? ", sanitizer " : "", checks ? sanitizer : "",
                          *given ? given : "no arguments", cure));
}

struct finding judge_start(int ranks, struct launch launch)
{
  if (ranks == 1 && launch.tasks > 1)
    return found(VERDICT_FAULT, "start",
                 "the launcher started %lld separate tasks (%s), each is rank 0 of 1: use the "
                 "mpirun of %s, or its plugin of srun (Open MPI: srun --mpi=pmix; MPICH: pmi2 or "
                 "cray_shasta; srun --mpi=list shows what the site has)",
                 (long long)launch.tasks, launch.told_by, SLUICE_VERSION_MPI);
  return found(VERDICT_OK, "start", "%d rank%s", ranks, plural(ranks));
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
  struct finding finding = {.what = "nodes"};
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
  finding.verdict = uneven ? VERDICT_WARNING : VERDICT_OK;
  snprintf(finding.text, sizeof finding.text, "%d: %s%s", nodes, list,
           uneven ? "; not the same number of ranks on each: groups of a node (shard.group=node) "
                    "need that, --ntasks-per-node or mpirun --map-by ppr"
                  : "");
  return finding;
}

/* --- MPI ----------------------------------------------------------------- */

struct finding judge_mpi(const struct mpi_info *library, const char *built)
{
  static const char *const levels[] = {"single", "funneled", "serialized", "multiple"};
  const char *level = levels[library->thread_level];
  if (library->thread_level < 3)
    return everywhere(
        found(VERDICT_FAULT, "MPI",
              "%s, threads %s: Sluice needs multiple, use an MPI library that is built with it",
              library->version, level));
  if (strcmp(library->version, built) != 0)
    return everywhere(found(VERDICT_WARNING, "MPI",
                            "%s, threads %s; Sluice was built with %s: build it again, or load the "
                            "module it was built with",
                            library->version, level, built));
  return everywhere(found(VERDICT_OK, "MPI", "%s, threads %s", library->version, level));
}

struct finding judge_cuda_aware(const struct mpi_info *library, bool gpus, const char *cray,
                                bool nccl)
{
  if (!gpus)
    return nothing;
  if (cray && !strcmp(cray, "1") && nccl)
    return everywhere(found(VERDICT_WARNING, "CUDA-aware MPI",
                            "MPICH_GPU_SUPPORT_ENABLED=1: jobs that also use NCCL can hang; set it "
                            "to 0, unless comm.backend=mpi"));
  if (library->cuda > 0)
    return everywhere(found(VERDICT_OK, "CUDA-aware MPI", "yes"));
  return everywhere(found(VERDICT_WARNING, "CUDA-aware MPI",
                          "%s: comm.backend=mpi copies through the host; use comm.backend=nccl, or "
                          "a CUDA-aware MPI library (Open MPI: built with --with-cuda over UCX; "
                          "Cray MPICH: MPICH_GPU_SUPPORT_ENABLED=1)",
                          library->cuda == 0 ? "no" : "this MPI library does not tell"));
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

/* Open MPI reaches Slingshot only by cm over libfabric. The other libraries do not tell. */
static struct finding judge_slingshot(const struct mpi_info *library, const char *provider)
{
  const char *pml = library->messages, *by = library->transports;
  const bool libfabric = !strcmp(pml, "cm") && strstr(by, "ofi");
  if (libfabric && names_slingshot(provider))
    return found(VERDICT_OK, "transport", "%s over %s, by FI_PROVIDER", pml, by);
  return found(VERDICT_WARNING, "transport",
               "%s%s%s, %s Slingshot: use Cray MPICH, or an Open MPI 5 that is built with a "
               "libfabric that has cxi, with OMPI_MCA_pml=cm OMPI_MCA_mtl=ofi FI_PROVIDER=cxi",
               pml, *by ? " over " : "", by,
               libfabric ? "which may be TCP instead of" : "which does not reach");
}

/* Nodes may differ: a node uses shared memory only if it has several ranks. UCX_TLS is judged
 * because Sluice passes GPU memory to an MPI library that accepts it. Such a call fails without a
 * transport that reaches GPUs. */
struct finding judge_transport(const struct mpi_info *library, const struct comm_fabric *fabric,
                               const char *tls, const char *provider, bool gpus, int nodes)
{
  const char *pml = library->messages, *by = library->transports;
  if (!*pml)
    return found(VERDICT_OK, "transport", "this MPI library does not tell");
  if (fabric->slingshot > 0)
    return judge_slingshot(library, provider);
  if (!strcmp(pml, "ob1") && fabric->active > 0)
    return found(nodes > 1 ? VERDICT_FAULT : VERDICT_WARNING, "transport",
                 "ob1 over %s, although RDMA devices are active: mpirun --mca pml ucx, or "
                 "OMPI_MCA_pml=ucx (an Open MPI that is built with UCX)",
                 by);
  if (!strcmp(pml, "ucx") && gpus && library->cuda > 0 && tls && *tls && !reaches_gpus(tls))
    return found(VERDICT_WARNING, "transport",
                 "ucx; no transport of UCX_TLS=%.60s reaches a GPU: unset it, or add "
                 "cuda_copy,cuda_ipc",
                 tls);
  return found(VERDICT_OK, "transport", "%s%s%s", pml, *by ? " over " : "", by);
}

struct finding judge_fabric(const struct comm_fabric *fabric)
{
  const int ports = fabric->ports + fabric->slingshot, up = fabric->active + fabric->slingshot_up;
  if (ports == 0)
    return found(VERDICT_OK, "RDMA devices", "none");
  if (up == 0)
    return found(VERDICT_WARNING, "RDMA devices",
                 "no port is active: %s; data go over TCP; check the cable and the %s",
                 fabric->text, fabric->slingshot ? "switch (cxi_stat)" : "subnet manager (ibstat)");
  return found(VERDICT_OK, "RDMA devices", "%s%d of %d port%s active: %s",
               fabric->slingshot ? "Slingshot, " : "", up, ports, plural(ports), fabric->text);
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
  int furthest = 0, nodes = 0;
  for (int r = 0; r < ranks; r++) {
    if (offset[r].error < 0)
      continue;
    nodes++;
    if (certain(offset[r]) > certain(offset[furthest]))
      furthest = r;
  }
  if (nodes < 2)
    return found(VERDICT_OK, "clocks", "one node");
  const double skew = certain(offset[furthest]);
  if (skew == 0)
    return found(VERDICT_OK, "clocks", "of %d nodes agree, as far as can be measured", nodes);
  const enum verdict verdict = skew > most_skew   ? VERDICT_FAULT
                               : skew > good_skew ? VERDICT_WARNING
                                                  : VERDICT_OK;
  return found(verdict, "clocks", "%s is %.6f s %s %s (+- %.6f)%s", host[furthest],
               offset[furthest].seconds < 0 ? -offset[furthest].seconds : offset[furthest].seconds,
               offset[furthest].seconds < 0 ? "behind" : "ahead of", host[0],
               offset[furthest].error,
               verdict == VERDICT_OK ? ", the furthest" : ": start chronyd or ntpd on both");
}

/* --- GPUs ---------------------------------------------------------------- */

struct finding judge_gpus(const struct doctor_gpus *gpus, int local_ranks)
{
  if (!gpus->cuda)
    return everywhere(found(gpus->card ? VERDICT_WARNING : VERDICT_OK, "GPUs",
                            "none are used: this build is without CUDA%s",
                            gpus->card ? ". Cure: configure again with --with-cuda, which "
                                         "names what is missing"
                                       : ""));
  const int driver = gpus->driver / 1000, runtime = gpus->runtime / 1000,
            minor = gpus->runtime % 1000 / 10;
  if (gpus->driver == 0 && !gpus->card)
    return everywhere(
        found(VERDICT_OK, "GPUs", "none in this machine: the model is computed on the host"));
  if (gpus->driver == 0)
    return everywhere(found(VERDICT_WARNING, "GPUs",
                            "CUDA %d.%d, no driver: runs on the host only; load NVIDIA's driver, "
                            "or in a container start it with --nv or --gpus all",
                            runtime, minor));
  /* Within a major version any driver runs any runtime. */
  if (driver < runtime)
    return everywhere(found(VERDICT_FAULT, "GPUs",
                            "CUDA %d.%d, but the driver runs up to %d.%d: install a newer driver, "
                            "or build Sluice with CUDA %d",
                            runtime, minor, driver, gpus->driver % 1000 / 10, driver));
  if (gpus->gpus == 0)
    return found(VERDICT_WARNING, "GPUs",
                 "none is seen: ask Slurm for them (--gpus-per-task=1), and look at "
                 "CUDA_VISIBLE_DEVICES and nvidia-smi");
  const bool crowded = gpus->gpus > 1 && local_ranks > gpus->gpus;
  return by_amount(
      found(crowded ? VERDICT_FAULT : VERDICT_OK, "GPUs", "%s, CUDA %d.%d, driver for %d.%d%s",
            gpus->names, runtime, minor, driver, gpus->driver % 1000 / 10,
            crowded ? "; more ranks than GPUs on this node: start one rank per GPU" : ""),
      gpus->gpus);
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

static struct finding judge_version(const char *what, const char *loaded, const char *built)
{
  if (compare_versions(loaded, built) < 0)
    return everywhere(
        found(VERDICT_WARNING, what,
              "%s is loaded, older than %s that Sluice was built with: see LD_LIBRARY_PATH", loaded,
              built));
  return everywhere(found(VERDICT_OK, what, "%s", loaded));
}

struct finding judge_nccl(const struct doctor_gpus *gpus, int ranks)
{
  char loaded[32];
  if (!doctor_uses_gpus(gpus))
    return nothing;
  if (!gpus->nccl)
    return everywhere(
        found(ranks > 1 ? VERDICT_WARNING : VERDICT_OK, "NCCL", "%s", SLUICE_WITHOUT_NCCL));
  snprintf(loaded, sizeof loaded, "%d.%d.%d", gpus->nccl / 10000, gpus->nccl / 100 % 100,
           gpus->nccl % 100);
  return judge_version("NCCL", loaded, gpus->nccl_built);
}

/* NCCL uses TCP without an error if it cannot use a faster network. */
struct finding judge_nccl_net(const struct doctor_net *net, const struct comm_fabric *fabric)
{
  const bool tcp = !strcmp(net->chosen, "Socket"), knows = *net->chosen != '\0';
  const char *lacks =
      *net->plugin ? "the plug-in loads, but finds no device of libfabric's" : net->lacks;
  if (fabric->slingshot > 0 && (tcp || (!knows && !*net->plugin)))
    return found(VERDICT_WARNING, "NCCL network",
                 "TCP instead of Slingshot (%s): put the folder of aws-ofi-nccl's libnccl-net.so, "
                 "and of a libfabric that has cxi, into LD_LIBRARY_PATH; set NCCL_NET='AWS "
                 "Libfabric', with which NCCL stops if it cannot use them",
                 lacks);
  if (fabric->active > 0 && tcp)
    return found(VERDICT_WARNING, "NCCL network",
                 "TCP, although RDMA devices are active: install libibverbs, and unset NCCL_NET, "
                 "NCCL_IB_DISABLE and NCCL_IB_HCA; NCCL_DEBUG=INFO shows the reason");
  if (knows)
    return found(VERDICT_OK, "NCCL network", "%s%s", net->chosen, tcp ? " (TCP)" : "");
  return found(VERDICT_OK, "NCCL network", "%s%s; NCCL_DEBUG=INFO shows NCCL's choice",
               *net->plugin ? "plug-in for " : "no plug-in", net->plugin);
}

struct finding judge_cudnn(const struct doctor_gpus *gpus)
{
  char loaded[32];
  if (!doctor_uses_gpus(gpus))
    return nothing;
  if (!gpus->cudnn)
    return everywhere(found(VERDICT_WARNING, "cuDNN", "%s", SLUICE_WITHOUT_CUDNN));
  snprintf(loaded, sizeof loaded, "%d.%d.%d", gpus->cudnn / 10000, gpus->cudnn / 100 % 100,
           gpus->cudnn % 100);
  if (gpus->cudnn_runtime / 1000 != gpus->runtime / 1000)
    return everywhere(
        found(VERDICT_FAULT, "cuDNN",
              "%s is for CUDA %d, Sluice for CUDA %d: put the fitting one first in LD_LIBRARY_PATH",
              loaded, gpus->cudnn_runtime / 1000, gpus->runtime / 1000));
  if (gpus->lacks_backward && *gpus->lacks_backward)
    return found(
        VERDICT_WARNING, "cuDNN",
        "%s has no deterministic backward pass of attention for this GPU, so a plain kernel "
        "computes it, which is slow: load cuDNN 9.18 or later, which Blackwell needs (%s)",
        loaded, gpus->lacks_backward);
  return judge_version("cuDNN", loaded, gpus->cudnn_built);
}

/* --- other libraries ----------------------------------------------------- */

struct finding judge_hdf5(const char *built, const char *loaded, bool parallel)
{
  if (!parallel)
    return everywhere(
        found(VERDICT_FAULT, "HDF5",
              "%s without MPI-IO: build Sluice with a parallel HDF5 (Debian: libhdf5-openmpi-dev)",
              loaded));
  if (strcmp(built, loaded) != 0)
    return everywhere(
        found(VERDICT_FAULT, "HDF5",
              "%s is loaded, but Sluice was built with %s: load that module, or build again",
              loaded, built));
  if (compare_versions(loaded, "1.14") < 0)
    return everywhere(found(VERDICT_OK, "HDF5",
                            "%s, parallel; a forged file can crash it (older than 1.14): open only "
                            "files that you trust",
                            loaded));
  return everywhere(found(VERDICT_OK, "HDF5", "%s, parallel", loaded));
}

struct finding judge_cores(const struct topo_summary *machine, int local_ranks)
{
  char text[240];
  snprintf(text, sizeof text,
           "hwloc %s: %d package%s, %d NUMA node%s, %d core%s, %d CPU%s, of these %d core%s for "
           "this process",
           machine->version, machine->packages, plural(machine->packages), machine->nodes,
           plural(machine->nodes), machine->cores, plural(machine->cores), machine->cpus,
           plural(machine->cpus), machine->own_cores, plural(machine->own_cores));
  if (*machine->described)
    return everywhere(found(VERDICT_WARNING, "cores", "%s; %s", text, machine->described));
  if (machine->quota > 0 && machine->quota < machine->own_cores)
    return by_amount(found(VERDICT_WARNING, "cores",
                           "%s; control groups grant the time of %.3g: raise the container's or "
                           "the job's CPU limit",
                           text, machine->quota),
                     machine->quota);
  if (machine->cores < local_ranks)
    return by_amount(found(VERDICT_WARNING, "cores",
                           "%s; %d ranks on fewer cores take turns: start fewer", text,
                           local_ranks),
                     machine->own_cores);
  if (machine->own_cores == 1 && machine->cores > local_ranks)
    return by_amount(
        found(VERDICT_WARNING, "cores",
              "%s; bound to one core of many: srun --cpus-per-task, or mpirun --bind-to none",
              text),
        machine->own_cores);
  return by_amount(found(VERDICT_OK, "cores", "%s", text), machine->own_cores);
}

struct finding judge_counters(const char *version, int events, const char *note)
{
  if (*note || events == 0)
    return everywhere(found(VERDICT_WARNING, "PAPI", "%s%s%s", version, *version ? ": " : "",
                            *note ? note : "nothing is counted"));
  return everywhere(found(VERDICT_OK, "PAPI", "%s, %d counters", version, events));
}

/* --- the node ------------------------------------------------------------ */

struct finding judge_memlock(int64_t limit, const struct comm_fabric *fabric, bool gpus)
{
  static const char cure[] = "ulimit -l unlimited: LimitMEMLOCK=infinity in slurmd's unit, or "
                             "memlock in /etc/security/limits.conf";
  if (limit < 0)
    return found(VERDICT_OK, "memlock", "unlimited");
  if (fabric->active > 0)
    return by_amount(found(limit < JOB_LEAST_LOCK ? VERDICT_FAULT : VERDICT_WARNING, "memlock",
                           "%s; RDMA devices need memory that is locked: %s",
                           mem_amount((double)limit).text, cure),
                     (double)limit);
  if (gpus)
    return by_amount(found(VERDICT_WARNING, "memlock",
                           "%s; memory that GPUs copy from may need more: %s",
                           mem_amount((double)limit).text, cure),
                     (double)limit);
  return by_amount(
      found(VERDICT_OK, "memlock", "%s; nothing here needs more", mem_amount((double)limit).text),
      (double)limit);
}

struct finding judge_shared_memory(int64_t size, int64_t free, int local_ranks)
{
  static const char cure[] = "enlarge it (mount -o remount,size=50% /dev/shm; in a container "
                             "--shm-size=8g or --ipc=host) and remove what ended jobs left in it";
  if (size < 0)
    return found(VERDICT_FAULT, "/dev/shm",
                 "is not there: ranks of a node share memory by it; mount a tmpfs on it");
  const double each = (double)free / local_ranks;
  const enum verdict verdict = each < least_shared_bytes  ? VERDICT_FAULT
                               : each < good_shared_bytes ? VERDICT_WARNING
                                                          : VERDICT_OK;
  return by_amount(found(verdict, "/dev/shm", "%s of %s free for %d rank%s%s%s",
                         mem_amount((double)free).text, mem_amount((double)size).text, local_ranks,
                         plural(local_ranks), verdict ? ": " : "", verdict ? cure : ""),
                   (double)free);
}

struct finding judge_memory(int64_t total, int64_t available, int64_t limit, int local_ranks)
{
  char text[160], most[64] = "no limit by control groups";
  if (total < 0 || available < 0)
    return found(VERDICT_WARNING, "memory", "/proc/meminfo cannot be read: mount /proc");
  if (limit >= 0)
    snprintf(most, sizeof most, "control groups allow %s", mem_amount((double)limit).text);
  const int64_t usable = limit >= 0 && limit < available ? limit : available;
  snprintf(text, sizeof text, "%s available of %s, %s", mem_amount((double)available).text,
           mem_amount((double)total).text, most);
  if ((double)usable / local_ranks < least_memory_bytes)
    return by_amount(found(VERDICT_FAULT, "memory",
                           "%s: too little for %d rank%s; end what else runs there, or ask Slurm "
                           "for more (--mem=0: all)",
                           text, local_ranks, plural(local_ranks)),
                     (double)usable);
  if (limit >= 0 && limit < total / 2)
    return by_amount(found(VERDICT_WARNING, "memory",
                           "%s: less than half of the node; ask Slurm for more (--mem=0: all), or "
                           "raise the container's limit",
                           text),
                     (double)usable);
  return by_amount(found(VERDICT_OK, "memory", "%s", text), (double)usable);
}

/* --- the deck ------------------------------------------------------------ */

static struct finding refused(const char *what, const char *refusal)
{
  return everywhere(found(VERDICT_FAULT, what, "%.600s", refusal));
}

struct finding judge_deck(const char *refusal)
{
  return refusal ? refused("deck", refusal)
                 : everywhere(found(VERDICT_OK, "deck",
                                    "valid for these ranks and devices, and fits into memory"));
}

struct finding judge_folder(const char *refusal, const char *dir, int64_t need, int64_t free)
{
  if (refusal)
    return refused("run folder", refusal);
  if (need > free)
    return found(VERDICT_WARNING, "run folder",
                 "%.300s: a checkpoint needs %s, and %s are free: make room, or choose another "
                 "run.dir",
                 dir, mem_amount((double)need).text, mem_amount((double)free).text);
  return everywhere(found(VERDICT_OK, "run folder", "%.300s: free for a new run", dir));
}

struct finding judge_weights(const char *refusal, const char *path)
{
  return refusal ? refused("weights", refusal)
                 : everywhere(found(VERDICT_OK, "weights", "%.300s: those of the deck", path));
}

struct finding judge_data(const char *refusal, const char *dir, int64_t tokens)
{
  return refusal ? refused("data", refusal)
                 : everywhere(found(VERDICT_OK, "data", "%.160s: %lld tokens to train on", dir,
                                    (long long)tokens));
}

/* --- folders ------------------------------------------------------------- */

struct finding judge_disk(const char *dir, const struct doctor_disk *disk, bool shared, bool seen,
                          int nodes)
{
  char text[360], on[64] = "";
  const double rate = disk->seconds > 0 ? (double)disk->written / disk->seconds : 0;
  if (*disk->failure)
    return found(VERDICT_FAULT, "disk", "%.200s: %s", dir, disk->failure);
  if (disk->stripes.lustre)
    snprintf(on, sizeof on, ", a file on %s", stripes_text(&disk->stripes).text);
  snprintf(text, sizeof text, "%.160s (%s%s): wrote %.1f MB/s%s, %s free of %s", dir,
           disk->system.type, on, rate * 1e-6, nodes > 1 ? " while the other nodes did" : "",
           mem_amount((double)disk->system.free).text, mem_amount((double)disk->system.size).text);
  if (shared && !seen)
    return found(VERDICT_FAULT, "disk",
                 "%s: this node does not see what rank 0's writes there; use a folder on a file "
                 "system that all nodes share",
                 text);
  const struct {
    bool found;
    enum verdict verdict;
    const char *text;
  } faults[] = {
      {(double)disk->system.free < least_disk_bytes, VERDICT_FAULT,
       "no room for checkpoints; free some, or use another folder"},
      {!shared && disk->system.reach == REACH_SHARED, VERDICT_WARNING,
       "all nodes share it, and every step waits for it; set tiers.nvme to a "
       "folder on the node's own disk"},
      {disk->system.in_memory, VERDICT_WARNING,
       "lies in memory and ends with the machine; use a folder on a disk"},
      {(double)disk->system.free < good_disk_bytes, VERDICT_WARNING,
       "room for few checkpoints; free some, or use another folder"},
      {disk->stripes.lustre && disk->stripes.own && disk->stripes.count == 1, VERDICT_WARNING,
       "somebody gave it one stripe, which sluice train leaves; set more: "
       "lfs setstripe -c 32 -S 4M on the folder of the checkpoints"},
      {rate < good_write_rate, VERDICT_WARNING,
       "slow; background checkpoints (checkpoint.background=true) hide it, a parallel file "
       "system cures it"},
  };
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
    if (faults[i].found)
      return by_amount(found(faults[i].verdict, "disk", "%s: %s", text, faults[i].text), rate);
  if (shared && nodes > 1 && disk->system.one_writer)
    return by_amount(found(VERDICT_WARNING, "disk",
                           "%s: %s is not made for one file written by many nodes; a parallel file "
                           "system (Lustre, GPFS, BeeGFS) is",
                           text, disk->system.type),
                     rate);
  return by_amount(found(VERDICT_OK, "disk", "%s", text), rate);
}
