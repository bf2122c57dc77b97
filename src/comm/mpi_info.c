/* Reads Open MPI's variables through MPI_T, and the fabrics from /sys. */
#include "comm/mpi_info.h"

#include <glob.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include "base/append.h"
#include "base/open.h"
#include "comm/messages.h"
#include "comm/ops.h"

/* --- MPI ----------------------------------------------------------------- */

static enum status read_thread_level(int *out)
{
  const int levels[] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED,
                        MPI_THREAD_MULTIPLE};
  int provided;
  const enum status status = COMM_MPI(MPI_Query_thread(&provided));
  for (int i = 0; !status && i < 4; i++)
    if (levels[i] == provided)
      *out = i;
  return status;
}

struct choice {
  char pml[32], btl[96], mtl[96];
};

/* A variable of a component is KIND_COMPONENT_SUFFIX. */
static void take_variable(const char *variable, struct choice *out)
{
  char kind[4], name[64], suffix[16];
  if (sscanf(variable, "%3[a-z]_%63[^_]_%15s", kind, name, suffix) != 3)
    return;
  const bool has_priority = !strcmp(suffix, "priority");
  if (!strcmp(kind, "pml") && has_priority && !out->pml[0])
    append_text(out->pml, sizeof out->pml, "%s", name);
  else if (!strcmp(kind, "btl") && !strcmp(suffix, "exclusivity"))
    append_text(out->btl, sizeof out->btl, "%s%s", out->btl[0] ? " " : "", name);
  else if (!strcmp(kind, "mtl") && has_priority)
    append_text(out->mtl, sizeof out->mtl, "%s%s", out->mtl[0] ? " " : "", name);
}

/* Open MPI closes the components that it does not use, and their control variables become invalid.
 * The valid ones are those that it chose. */
static enum status read_choice(struct choice *out)
{
  int provided, variables = 0;
  enum status status = COMM_MPI(MPI_T_init_thread(MPI_THREAD_MULTIPLE, &provided));
  if (status)
    return status;
  status = COMM_MPI(MPI_T_cvar_get_num(&variables));
  for (int i = 0; !status && i < variables; i++) {
    char name[256];
    int length = sizeof name, verbosity, binding, scope;
    MPI_Datatype type;
    MPI_T_enum choices;
    if (MPI_T_cvar_get_info(i, name, &length, &verbosity, &type, &choices, NULL, NULL, &binding,
                            &scope) == MPI_SUCCESS)
      take_variable(name, out);
  }
  const enum status closing = COMM_MPI(MPI_T_finalize());
  return status ? status : closing;
}

enum status mpi_info_read(struct mpi_info *out)
{
  struct mpi_info library = {.cuda = comm_mpi_cuda_aware()};
  struct choice choice = {0};
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  enum status status = comm_mpi_version(version) ?: read_thread_level(&library.thread_level);
  if (!status && !strncmp(version, "Open MPI", 8)) /* MPICH 4.0 crashes at MPI_T's second start */
    status = read_choice(&choice);
  if (status)
    return status;
  snprintf(library.version, sizeof library.version, "%.127s", version);
  memcpy(library.messages, choice.pml, sizeof library.messages);
  if (!strcmp(choice.pml, "ob1"))
    memcpy(library.transports, choice.btl, sizeof library.transports);
  else if (!strcmp(choice.pml, "cm"))
    memcpy(library.transports, choice.mtl, sizeof library.transports);
  *out = library;
  return STATUS_OK;
}

/* --- network devices ----------------------------------------------------- */

/* The first line of FOLDER/NAME, "" if there is none. */
static void read_line(const char *folder, const char *name, char *line, size_t size)
{
  char path[1280];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  if (!open_read_text(path, line, size))
    line[0] = '\0';
  line[strcspn(line, "\n")] = '\0';
}

/* folder: DEVICE/ports/PORT. */
static void add_port(const char *folder, const char *device, struct comm_fabric *out)
{
  char state[32], rate[48];
  read_line(folder, "state", state, sizeof state); /* "4: ACTIVE" */
  read_line(folder, "rate", rate, sizeof rate);
  const char *colon = strchr(state, ':');
  const char *name = colon ? colon + 1 + strspn(colon + 1, " ") : state;
  append_text(out->text, sizeof out->text, "%s%.*s:%s %s %s", *out->text ? ", " : "",
              (int)strcspn(device, "/"), device, strrchr(folder, '/') + 1, name, rate);
  out->ports++;
  out->active += !strcmp(name, "ACTIVE");
}

/* The driver of the first generation writes port/link and port/speed, that of
 * the second one port/0/link/state and port/0/link/speed (cxi_stat of HPE's libcxi). */
static void add_slingshot(const char *folder, const char *device, struct comm_fabric *out)
{
  char state[32], speed[48];
  read_line(folder, "device/port/link", state, sizeof state);
  read_line(folder, *state ? "device/port/speed" : "device/port/0/link/speed", speed, sizeof speed);
  if (!*state)
    read_line(folder, "device/port/0/link/state", state, sizeof state);
  append_text(out->text, sizeof out->text, "%s%s %s %s", *out->text ? ", " : "", device, state,
              speed);
  out->slingshot++;
  out->slingshot_up += !strcmp(state, "up");
}

/* Calls add(folder, device, out) for each folder that matches ROOT/PATTERN, in alphabetical order.
 * The pattern's first '*' stands for the device. */
static void each(const char *root, const char *pattern,
                 void (*add)(const char *folder, const char *device, struct comm_fabric *out),
                 struct comm_fabric *out)
{
  char path[256];
  glob_t found;
  const size_t device = strlen(root) + 1 + strcspn(pattern, "*");
  snprintf(path, sizeof path, "%s/%s", root, pattern);
  if (glob(path, 0, NULL, &found) != 0)
    return;
  for (size_t i = 0; i < found.gl_pathc; i++)
    add(found.gl_pathv[i], found.gl_pathv[i] + device, out);
  globfree(&found);
}

void comm_fabric_read(const char *root, struct comm_fabric *out)
{
  *out = (struct comm_fabric){0};
  each(root, "infiniband/*/ports/*", add_port, out);
  each(root, "cxi/*", add_slingshot, out);
}
