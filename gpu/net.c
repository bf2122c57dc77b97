/* NCCL's network between nodes. Without a plug-in for the site's network, NCCL uses TCP and says so
 * only in its log. */
#include "gpu/net.h"

#include <dlfcn.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

enum { NEWEST_TABLE = 20, OLDEST_TABLE = 6 }; /* versions of a plug-in's table */

/* Each version of the table begins with the network's name (NVIDIA/nccl, plugins/net). */
static bool take_name(void *library, struct gpu_net *out)
{
  char symbol[32];
  const char *const *table = NULL;
  for (int version = NEWEST_TABLE; version >= OLDEST_TABLE && !table; version--) {
    snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", version);
    table = dlsym(library, symbol);
  }
  if (table)
    snprintf(out->plugin, sizeof out->plugin, "%s", *table);
  else
    snprintf(out->lacks, sizeof out->lacks, "it is no plug-in for NCCL");
  return table != NULL;
}

static bool load(const char *file, struct gpu_net *out)
{
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(out->lacks, sizeof out->lacks, "%s", dlerror());
    return false;
  }
  const bool is_plugin = take_name(library, out);
  dlclose(library);
  return is_plugin;
}

/* As NCCL does (src/plugin/plugin_open.cc): NCCL_NET_PLUGIN=X is the file X or libnccl-net-X.so, or
 * several of these; "none" is none. */
static void find_plugin(struct gpu_net *out)
{
  const char *set = getenv("NCCL_NET_PLUGIN");
  char list[512], file[600], *rest = NULL;
  snprintf(list, sizeof list, "%s", set ? set : "libnccl-net.so");
  if (!strcmp(list, "none"))
    snprintf(out->lacks, sizeof out->lacks, "NCCL_NET_PLUGIN=none");
  else
    for (char *name = strtok_r(list, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
      snprintf(file, sizeof file, "libnccl-net-%s.so", name);
      if (load(name, out) || (set && load(file, out)))
        return;
    }
}

/* "host:1:2 [0] NCCL INFO Using network Socket" */
static void find_choice(const char *log, struct gpu_net *out)
{
  static const char before[] = "Using network ";
  char line[512];
  FILE *stream = fopen(log, "re");
  while (stream && fgets(line, sizeof line, stream)) {
    const char *at = strstr(line, before);
    if (at)
      snprintf(out->chosen, sizeof out->chosen, "%.*s", (int)strcspn(at + sizeof before - 1, "\n"),
               at + sizeof before - 1);
  }
  if (stream)
    (void)fclose(stream);
}

/* NCCL reads its environment once, at its first call that logs. Children of this process must not
 * log too, so each variable gets its value back. */
static void ask(struct gpu_net *out)
{
  enum { VARIABLES = 3 };
  const int first = 0;
  ncclComm_t comm = NULL;
  char log[] = "/tmp/sluice-nccl-XXXXXX", *before[VARIABLES];
  const char *const variable[VARIABLES][2] = {
      {"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "INIT,NET"}, {"NCCL_DEBUG_FILE", log}};
  const int file = getenv("NCCL_DEBUG") ? -1 : mkstemp(log);
  if (file < 0)
    return;
  for (int i = 0; i < VARIABLES; i++) {
    const char *value = getenv(variable[i][0]);
    before[i] = value ? mem_strdup(value) : NULL;
    (void)setenv(variable[i][0], variable[i][1], 1);
  }
  if (ncclCommInitAll(&comm, 1, &first) == ncclSuccess)
    (void)ncclCommDestroy(comm); /* its log is complete */
  find_choice(log, out);         /* nothing if a variable was not set */
  for (int i = 0; i < VARIABLES; i++) {
    (void)(before[i] ? setenv(variable[i][0], before[i], 1) : unsetenv(variable[i][0]));
    mem_free(before[i]);
  }
  (void)close(file); /* nothing was written through it */
  (void)unlink(log); /* NCCL may still hold it open */
}

void gpu_net_read(bool asks, struct gpu_net *out)
{
  *out = (struct gpu_net){.plugin = ""};
  find_plugin(out);
  if (asks)
    ask(out);
}
