/* Settings of UCX and Open MPI in the environment, held against what this node has: see "Options that matter" in doc/mpi.md. */
#include <dirent.h>
#include <fnmatch.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/append.h"
#include "cmd/doctor.h"

enum { ITEM = 128 };

static const char *const names[SETTINGS] = {
    [SETTING_TLS] = "UCX_TLS",
    [SETTING_NET_DEVICES] = "UCX_NET_DEVICES",
    [SETTING_RNDV_THRESH] = "UCX_RNDV_THRESH",
    [SETTING_RNDV_SCHEME] = "UCX_RNDV_SCHEME",
    [SETTING_GPU_DIRECT] = "UCX_IB_GPU_DIRECT_RDMA",
    [SETTING_MEMTYPE_CACHE] = "UCX_MEMTYPE_CACHE",
    [SETTING_RAILS] = "UCX_MAX_RNDV_RAILS",
    [SETTING_LOG] = "UCX_LOG_LEVEL",
    [SETTING_PROTO] = "UCX_PROTO_INFO",
    [SETTING_PML] = "OMPI_MCA_pml",
    [SETTING_BTL] = "OMPI_MCA_btl",
    [SETTING_TCP_IF] = "OMPI_MCA_btl_tcp_if_include",
    [SETTING_SINGLE_COPY] = "OMPI_MCA_btl_vader_single_copy_mechanism",
};

/* --- facts ------------------------------------------------------------------------------------------------------------------------------------------ */

void doctor_settings_read(struct doctor_settings *out)
{
  for (int s = 0; s < SETTINGS; s++) {
    const char *value = getenv(names[s]);
    out->value[s] = value && *value ? value : NULL;
  }
}

static void __attribute__((format(printf, 3, 4))) add_device(struct doctor_devices *devices, bool rdma, const char *format, ...)
{
  va_list values;
  if (devices->n == DOCTOR_DEVICES) {
    devices->cut = true;
    return;
  }
  struct doctor_device *device = &devices->device[devices->n++];
  device->rdma = rdma;
  va_start(values, format);
  vsnprintf(device->name, sizeof device->name, format, values);
  va_end(values);
}

/* "4: ACTIVE" is what the kernel writes; UCX takes no other. */
static bool is_active(const char *ports, const char *port)
{
  char path[1024], line[32] = "";
  snprintf(path, sizeof path, "%s/%s/state", ports, port);
  FILE *file = fopen(path, "re");
  const bool read = file && fgets(line, sizeof line, file);
  if (file)
    fclose(file);
  return read && strstr(line, "ACTIVE");
}

static void add_ports(struct doctor_devices *devices, const char *folder, const char *name)
{
  char ports[700];
  snprintf(ports, sizeof ports, "%s/%s/ports", folder, name);
  DIR *dir = opendir(ports);
  for (const struct dirent *entry = dir ? readdir(dir) : NULL; entry; entry = readdir(dir))
    if (entry->d_name[0] != '.' && is_active(ports, entry->d_name))
      add_device(devices, true, "%s:%s", name, entry->d_name);
  if (dir)
    closedir(dir);
}

static void add_interface(struct doctor_devices *devices, const char *folder, const char *name)
{
  (void)folder;
  add_device(devices, false, "%s", name);
}

static void add_all(const char *sys, const char *name, void (*add)(struct doctor_devices *devices, const char *folder, const char *name),
                    struct doctor_devices *devices)
{
  char folder[320];
  snprintf(folder, sizeof folder, "%s/%s", sys, name);
  DIR *dir = opendir(folder);
  for (const struct dirent *entry = dir ? readdir(dir) : NULL; entry; entry = readdir(dir))
    if (entry->d_name[0] != '.')
      add(devices, folder, entry->d_name);
  if (dir)
    closedir(dir);
}

static bool has_module(const char *sys, const char *name)
{
  char path[320];
  snprintf(path, sizeof path, "%s/module/%s", sys, name);
  return access(path, F_OK) == 0;
}

/* The first number of a file of a device's, -1: there is none. */
static long read_number(const char *folder, const char *device, const char *name)
{
  char path[1024], line[32] = "";
  snprintf(path, sizeof path, "%s/%s/%s", folder, device, name);
  FILE *file = fopen(path, "re");
  const bool read = file && fgets(line, sizeof line, file);
  if (file)
    fclose(file);
  return read ? strtol(line, NULL, 16) : -1;
}

static void note_card(struct doctor_devices *devices, const char *folder, const char *name)
{
  enum { NVIDIA = 0x10de, DISPLAY = 0x03 }; /* of PCI, which also has their sound and their switches */
  devices->card = devices->card || (read_number(folder, name, "vendor") == NVIDIA && read_number(folder, name, "class") >> 16 == DISPLAY);
}

static int by_kind_and_name(const void *a, const void *b)
{
  const struct doctor_device *x = a, *y = b;
  return x->rdma != y->rdma ? (int)y->rdma - (int)x->rdma : strcmp(x->name, y->name);
}

void doctor_devices_read(const char *sys, struct doctor_devices *out)
{
  *out = (struct doctor_devices){.peermem = has_module(sys, "nvidia_peermem") || has_module(sys, "nv_peer_mem")}; /* the latter: before driver 470 */
  add_all(sys, "class/infiniband", add_ports, out);
  add_all(sys, "class/net", add_interface, out);
  add_all(sys, "bus/pci/devices", note_card, out);
  qsort(out->device, (size_t)out->n, sizeof *out->device, by_kind_and_name);
}

/* --- one setting ------------------------------------------------------------------------------------------------------------------------------------ */

/* What a setting is held against. */
struct scene {
  const struct mpi_info *library;
  const struct doctor_devices *devices;
  bool gpu_data; /* MPI is given memory of GPUs */
  int nodes;
};

struct remark {
  enum verdict verdict; /* VERDICT_OK: there is none */
  char text[240];
};

static struct remark __attribute__((format(printf, 2, 3))) remark(enum verdict verdict, const char *format, ...)
{
  struct remark made = {.verdict = verdict};
  va_list values;
  va_start(values, format);
  vsnprintf(made.text, sizeof made.text, format, values);
  va_end(values);
  return made;
}

static const struct remark fine = {.verdict = VERDICT_OK};

/* The next of a list, *at is moved behind it; false: there is none. */
static bool next_item(const char **at, char item[ITEM])
{
  if (!*at)
    return false;
  const char *end = strchr(*at, ',');
  snprintf(item, ITEM, "%.*s", (int)(end ? end - *at : (ptrdiff_t)strlen(*at)), *at);
  *at = end ? end + 1 : NULL;
  return true;
}

static bool is_one_of(const char *word, const char *const *words)
{
  while (*words && strcasecmp(*words, word) != 0)
    words++;
  return *words != NULL;
}

static bool names_item(const char *list, const char *word, bool as_prefix)
{
  char item[ITEM];
  for (const char *at = list; next_item(&at, item);)
    if (as_prefix ? !strncmp(item, word, strlen(word)) : !strcmp(item, word))
      return true;
  return false;
}

/* "^" begins a list of what is not to be used. */
static struct remark on_tls(const struct scene *scene, const char *value)
{
  const bool reaches = value[0] == '^' ? !names_item(value + 1, "cuda", true) : names_item(value, "cuda", true) || names_item(value, "all", false);
  if (!scene->gpu_data || reaches)
    return fine;
  return remark(VERDICT_WARNING, "no transport of it reaches a GPU, unset UCX_TLS or add cuda_copy,cuda_ipc");
}

static bool is_there(const struct doctor_devices *devices, const char *pattern, bool rdma_too)
{
  for (int d = 0; d < devices->n; d++)
    if ((rdma_too || !devices->device[d].rdma) && fnmatch(pattern, devices->device[d].name, 0) == 0)
      return true;
  return devices->cut;
}

static void list_devices(const struct doctor_devices *devices, bool rdma_too, char *out, size_t size)
{
  out[0] = '\0';
  for (int d = 0; d < devices->n; d++) {
    const char *name = devices->device[d].name;
    if (devices->device[d].rdma && !rdma_too)
      continue;
    if (strlen(out) + strlen(name) + sizeof ", ..." > size) {
      append_text(out, size, "...");
      return;
    }
    append_text(out, size, "%s%s", *out ? ", " : "", name);
  }
}

/* Of the items one has to be there: without any, nothing goes from node to node. */
static struct remark on_devices(const struct scene *scene, const char *value, bool rdma_too, const char *what)
{
  char item[ITEM], first[ITEM] = "", there[80];
  int missing = 0, items = 0;
  for (const char *at = value; next_item(&at, item); items++) {
    if ((!rdma_too && strchr(item, '/')) || is_there(scene->devices, item, rdma_too))
      continue;
    if (missing++ == 0)
      snprintf(first, sizeof first, "%s", item);
  }
  if (missing == 0)
    return fine;
  list_devices(scene->devices, rdma_too, there, sizeof there);
  return remark(missing == items && scene->nodes > 1 ? VERDICT_FAULT : VERDICT_WARNING, "this node has no %s %.40s: name one of %s", what, first,
                there);
}

static struct remark on_net_devices(const struct scene *scene, const char *value)
{
  if (value[0] == '^' || !strcmp(value, "all"))
    return fine;
  return on_devices(scene, value, true, "active device");
}

static struct remark on_tcp_interfaces(const struct scene *scene, const char *value)
{
  return strcmp(scene->library->messages, "ob1") != 0 ? fine : on_devices(scene, value, false, "interface");
}

/* "8192", "64k", "1.5" is none; "inf" and "auto" are. */
static bool is_size(const char *text)
{
  static const char *const words[] = {"inf", "auto", NULL};
  const size_t digits = strspn(text, "0123456789");
  const char *unit = text + digits;
  if (is_one_of(text, words))
    return true;
  if (*unit && strchr("bBkKmMgGtT", *unit))
    unit += 1 + (unit[1] == 'b' || unit[1] == 'B');
  return digits > 0 && !*unit;
}

/* One size, or from UCX 1.16 on one inside nodes and one between them. */
static struct remark on_threshold(const struct scene *scene, const char *value)
{
  char item[ITEM];
  (void)scene;
  for (const char *at = value; next_item(&at, item);) {
    const bool keyed = !strncmp(item, "intra:", 6) || !strncmp(item, "inter:", 6);
    if (!is_size(keyed ? item + 6 : item))
      return remark(VERDICT_FAULT, "is not a size: unset it, or say 8192, 64k, inf or auto");
  }
  return fine;
}

/* From 1.14 on UCX may reach a GPU's memory without the module, by dma-buf. */
static bool knows_dma_buf(const struct scene *scene)
{
  char *end;
  const long major = strtol(scene->library->ucx, &end, 10), minor = *end == '.' ? strtol(end + 1, NULL, 10) : 0;
  return major > 1 || (major == 1 && minor >= 14);
}

static bool lacks_gpu_direct(const struct scene *scene)
{
  return !scene->devices->peermem && scene->devices->n > 0 && scene->devices->device[0].rdma;
}

static struct remark on_scheme(const struct scene *scene, const char *value)
{
  static const char *const schemes[] = {"auto", "get_zcopy", "put_zcopy", "get_ppln", "put_ppln", "rkey_ptr", "am", NULL};
  static const char *const direct[] = {"get_zcopy", "put_zcopy", NULL};
  if (!is_one_of(value, schemes))
    return remark(VERDICT_FAULT, "is no scheme that UCX knows: unset it, or say auto, get_zcopy or put_zcopy");
  if (scene->gpu_data && is_one_of(value, direct) && lacks_gpu_direct(scene))
    return remark(VERDICT_WARNING, "nvidia_peermem is not loaded: modprobe nvidia_peermem, or say auto%s",
                  knows_dma_buf(scene) ? " (dma-buf may stand in for it: ucx_info -d)" : "");
  return fine;
}

static struct remark on_gpu_direct(const struct scene *scene, const char *value)
{
  static const char *const yes[] = {"y", "yes", "on", "1", NULL};
  if (!is_one_of(value, yes) || !lacks_gpu_direct(scene))
    return fine;
  if (knows_dma_buf(scene))
    return remark(VERDICT_WARNING, "nvidia_peermem is not loaded, so it takes dma-buf (ucx_info -d): modprobe nvidia_peermem, or say try");
  return remark(VERDICT_FAULT, "nvidia_peermem is not loaded: modprobe nvidia_peermem, or say try");
}

static struct remark on_memtype_cache(const struct scene *scene, const char *value)
{
  static const char *const no[] = {"n", "no", "off", "0", NULL};
  if (!scene->gpu_data || !is_one_of(value, no))
    return fine;
  return remark(VERDICT_WARNING, "makes every message slower: unset it unless it cures damaged messages or crashes");
}

static struct remark on_rails(const struct scene *scene, const char *value)
{
  (void)scene;
  if (strspn(value, "0123456789") == strlen(value))
    return fine;
  return remark(VERDICT_FAULT, "is not a number of cards: unset it, or say 1");
}

static struct remark on_pml(const struct scene *scene, const char *value)
{
  const char *used = scene->library->messages;
  if (value[0] == '^' || !names_item(value, "ucx", false) || !*used || !strcmp(used, "ucx"))
    return fine;
  return remark(strchr(value, ',') ? VERDICT_WARNING : VERDICT_FAULT, "MPI uses %s, %s", used,
                *scene->library->ucx ? "though UCX is installed: ompi_info | grep ucx says whether Open MPI is built with it"
                                     : "it has no UCX: load an Open MPI that is built with it, or unset OMPI_MCA_pml");
}

static struct remark on_btl(const struct scene *scene, const char *value)
{
  const bool without = value[0] == '^' ? names_item(value + 1, "smcuda", false) : !names_item(value, "smcuda", false);
  if (!scene->gpu_data || strcmp(scene->library->messages, "ob1") != 0 || !without)
    return fine;
  return remark(VERDICT_WARNING, "without smcuda data between the GPUs of a node are staged: %s",
                value[0] == '^' ? "leave it out of the list" : "add it, in place of vader");
}

/* --- all of them ------------------------------------------------------------------------------------------------------------------------------------ */

/* NULL: only shown. */
static struct remark (*const remarks[SETTINGS])(const struct scene *scene, const char *value) = {
    [SETTING_TLS] = on_tls,
    [SETTING_NET_DEVICES] = on_net_devices,
    [SETTING_RNDV_THRESH] = on_threshold,
    [SETTING_RNDV_SCHEME] = on_scheme,
    [SETTING_GPU_DIRECT] = on_gpu_direct,
    [SETTING_MEMTYPE_CACHE] = on_memtype_cache,
    [SETTING_RAILS] = on_rails,
    [SETTING_PML] = on_pml,
    [SETTING_BTL] = on_btl,
    [SETTING_TCP_IF] = on_tcp_interfaces,
};

/* Settings first ... end - 1, behind `head`: what is wrong comes first, since the line may be full before all is told. scene NULL: nothing is held against them. */
static struct finding judge(const struct scene *scene, const char *what, const char *head, const struct doctor_settings *settings, enum setting first,
                            enum setting end)
{
  struct finding finding = {.common = true};
  char rest[DOCTOR_TEXT] = "";
  snprintf(finding.what, sizeof finding.what, "%s", what);
  append_text(finding.text, sizeof finding.text, "%s", head);
  for (enum setting s = first; s < end; s++) {
    const char *value = settings->value[s];
    const struct remark on = value && scene && remarks[s] ? remarks[s](scene, value) : fine;
    if (value && !on.verdict)
      append_text(rest, sizeof rest, ", %s=%.60s", names[s], value);
    else if (value)
      append_text(finding.text, sizeof finding.text, "%s%s=%.60s: %s", *finding.text ? "; " : "",
                  names[s], value, on.text);
    finding.verdict = on.verdict > finding.verdict ? on.verdict : finding.verdict;
  }
  append_text(finding.text, sizeof finding.text, "%s", *finding.text || !*rest ? rest : rest + 2);
  return finding;
}

struct finding judge_ucx(const struct mpi_info *library, const struct doctor_settings *settings,
                         const struct doctor_devices *devices, bool gpus, int nodes)
{
  const struct scene scene = {.library = library, .devices = devices, .gpu_data = gpus && library->cuda > 0, .nodes = nodes};
  const bool used = !strcmp(library->messages, "ucx");
  char head[96];
  if (used)
    snprintf(head, sizeof head, "%s", *library->ucx ? library->ucx : "used by MPI, of unknown version");
  else
    snprintf(head, sizeof head, "%s%s", *library->ucx ? library->ucx : "none", *library->ucx ? " is installed, MPI does not use it" : "");
  return judge(used ? &scene : NULL, "UCX", head, settings, SETTING_TLS, SETTING_PML);
}

struct finding judge_mpi_options(const struct mpi_info *library,
                                 const struct doctor_settings *settings,
                                 const struct doctor_devices *devices, bool gpus, int nodes)
{
  const struct scene scene = {.library = library, .devices = devices, .gpu_data = gpus && library->cuda > 0, .nodes = nodes};
  struct finding finding = judge(&scene, "MPI options", "", settings, SETTING_PML, SETTINGS);
  if (!*finding.text)
    snprintf(finding.text, sizeof finding.text, "no variable of doc/mpi.md is set");
  return finding;
}
