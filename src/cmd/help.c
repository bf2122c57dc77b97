/* Help, man pages and the version, from the tables of commands and options. */
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/append.h"
#include "base/commit.h"
#include "base/prose.h"
#include "base/status.h"
#include "cmd/cmd.h"
#include "config.h"

static const char deck_text[] =
    "A deck is a YAML file that describes a run. Its keys stand in sections, such as \"optim:\" "
    "with \"lr: 1e-3\". Each key can also be given on the command line, as optim.lr=1e-3. The "
    "command line wins over the deck.\n"
    "\n"
    "An integer may end in k, M, G or T (powers of 1000) or in Ki, Mi, Gi or Ti (powers of 1024), "
    "or have an exponent, as in 2e3. An unknown key is an error, which names the nearest known "
    "key if one is near.\n"
    "\n"
    "A path is taken as it is written, because no shell reads a deck. So ~, $NAME, patterns, "
    "quotes and blanks at an end are refused, unless a file has that name.";

/* --- the terminal -------------------------------------------------------- */

static void print_usage(const struct command *command)
{
  const int at = (int)strlen("usage: sluice ") + (int)strlen(command->name) + 1;
  printf("usage: sluice %s ", command->name);
  prose_wrap(command->usage, at, at, prose_columns(), stdout);
  printf("\nsluice %s: %s\n", command->name, command->summary);
}

/* Bytes of the first `lines` lines. */
static int head_of(const char *text, int lines)
{
  const char *at = text;
  for (; lines > 0 && *at; lines--)
    at += strcspn(at, "\n") + 1;
  return (int)(at - text);
}

static void print_pointers(const struct command *command, bool shorter)
{
  const char *examples = command->examples;
  printf("Examples:\n%.*s\n", head_of(examples, shorter ? 2 : INT_MAX), examples);
  if (command->takes_deck)
    printf("Deck keys:  sluice help keys [SECTION|KEY|WORD]\n");
  if (shorter)
    printf("More help:  sluice %s --help\n", command->name);
  else
    printf("Exit codes: %s; all: sluice --exit-codes\n",
           command->exits ? command->exits : "0 done, 2 usage error");
}

void help_print_short(const struct command *command)
{
  print_usage(command);
  if (command->options) {
    printf("\nOptions (key=value or --key value):\n");
    const int rare = options_print_brief(command->options, false, stdout);
    if (rare > 0)
      printf("  and %d rare options\n", rare);
  }
  putchar('\n');
  print_pointers(command, true);
}

void help_print(const struct command *command)
{
  print_usage(command);
  putchar('\n');
  prose_print(command->text, 0, prose_columns(), stdout);
  if (command->options) {
    printf("\nOptions (key=value or --key value):\n\n");
    options_print_help(command->options, NULL, prose_columns(), stdout);
  } else {
    putchar('\n');
  }
  if (command->lists_keys) {
    printf("Deck keys (in the deck, or key=value on the command line):\n");
    (void)options_print_brief(deck_table, true, stdout);
    putchar('\n');
  }
  print_pointers(command, false);
}

static void print_sections(void)
{
  char text[400] = "Sections:";
  for (const struct option *option = deck_table; option->name; option++) {
    const size_t section = strcspn(option->name, ".");
    if (option == deck_table || strncmp(option[-1].name, option->name, section + 1) != 0)
      append_text(text, sizeof text, " %.*s", (int)section, option->name);
  }
  prose_wrap(text, 0, 2, prose_columns(), stdout);
}

static bool print_key(const char *part)
{
  return options_print_help(deck_table, part, prose_columns(), stdout) > 0;
}

/* STATUS_USAGE: `part` names neither a key nor a section. NULL: all keys. */
static enum status print_keys(const char *part)
{
  if (!part) {
    prose_print(deck_text, 0, prose_columns(), stdout);
    putchar('\n');
    print_sections();
    putchar('\n');
  }
  if (print_key(part))
    return STATUS_OK;
  char suggestion[400], note[600];
  options_suggest(deck_table, deck_aliases, part, suggestion, sizeof suggestion);
  if (options_print_mentions(deck_table, part, stdout) > 0) {
    snprintf(note, sizeof note,
             "There is no deck key or section '%s'%s. The keys above mention it.", part,
             *suggestion == ':' ? suggestion : "");
    putchar('\n');
    prose_wrap(note, 0, 0, prose_columns(), stdout);
    return STATUS_OK;
  }
  return status_usage("there is no deck key or section '%s'%s; sluice help keys lists all of them",
                      part, suggestion);
}

static void print_all(void)
{
  printf("usage: sluice SUBCOMMAND ...\n"
         "       mpirun -n RANKS sluice SUBCOMMAND ...\n\n");
  for (int i = 0; commands[i]; i++)
    printf("  %-10s %s\n", commands[i]->name, commands[i]->summary);
  printf("\n  sluice %-29s options and two examples, or --help\n", "SUBCOMMAND -h");
  for (const struct builtin *builtin = builtins; builtin->summary; builtin++) {
    char words[64];
    snprintf(words, sizeof words, "%s %s", builtin->name, builtin->usage);
    printf("  sluice %-29s %s\n", words, builtin->summary);
  }
}

/* --- man pages ----------------------------------------------------------- */

static void put(const char *text)
{
  prose_escape_man(text, strlen(text), stdout);
}

static void put_line(const char *text)
{
  put(text);
  putchar('\n');
}

static void print_man_title(const char *name, int section)
{
  printf(".TH ");
  for (; *name; name++)
    putchar(toupper((unsigned char)*name));
  printf(" %d \"%s\" \"Sluice %s\" \"%s\"\n", section, sluice_date, PACKAGE_VERSION,
         section == 1 ? "User Commands" : "File Formats");
}

/* tests/cli/help.sh compares the names with those that the source reads. */
static const char environment_text[] =
    "  COLUMNS  width of help; otherwise that of the terminal\n"
    "  FI_PROVIDER  sluice doctor warns on Slingshot if it names neither cxi nor lnx\n"
    "  HWLOC_XMLFILE, HWLOC_SYNTHETIC, HWLOC_FSROOT, HWLOC_CPUID_PATH  describe a machine to "
    "hwloc. Threads are then bound only with HWLOC_THISSYSTEM=1.\n"
    "  MPIRUN  launcher that sluice compare starts ranks with, and its options; otherwise mpirun "
    "--bind-to none\n"
    "  NCCL_NET_PLUGIN, NCCL_DEBUG  sluice doctor looks for the plug-in of the first. It asks "
    "NCCL for its network, except if the second is set.\n"
    "  OPENBLAS_CORETYPE  kernels that OpenBLAS uses. If it is unset and OpenBLAS has chosen slow "
    "ones, Sluice sets it and restarts.\n"
    "  SLUICE_DATADIR  folder that holds inputs/ and tools/, otherwise " SLUICE_PKGDATADIR "\n"
    "  SLUICE_SITE_CONF  defaults of the site, otherwise " SLUICE_SYSCONFDIR "/sluice/site.conf. "
    "Empty: none.\n"
    "  SLURM_JOB_END_TIME  end of the job, in seconds since 1970. A run saves and exits with code "
    "75 before it.\n"
    "  SLURM_JOB_ID  inside a job, the command to continue is not repeated\n"
    "  SLURM_JOB_ID, PBS_JOBID, LSB_JOBID  job that the lock of a folder names\n"
    "  OMPI_COMM_WORLD_RANK, MV2_COMM_WORLD_RANK, PMI_RANK, PMIX_RANK, PALS_RANKID, "
    "FLUX_TASK_RANK, SLURM_PROCID  rank of the process before MPI starts, from the first that is "
    "set. Rank 0 alone reports mistakes in the command line.\n"
    "  OMPI_COMM_WORLD_SIZE, MV2_COMM_WORLD_SIZE, PMI_SIZE, FLUX_JOB_SIZE, SLURM_STEP_NUM_TASKS  "
    "ranks that sluice doctor and train expect, from the first that is set\n"
    "  OMPI_MCA_btl, OMPI_MCA_pml  transports of Open MPI. If no launcher started the "
    "process, Sluice starts Open MPI without a transport.\n"
    "  OMPI_MCA_osc_sm_backing_directory  folder of shared memory, otherwise /dev/shm\n"
    "  MPICH_GPU_SUPPORT_ENABLED  1: Cray MPICH takes pointers to GPU memory, which can hang next "
    "to NCCL. sluice doctor warns of it.\n"
    "  UCX_TLS  transports of UCX, which sluice doctor shows\n"
    "  XDG_CACHE_HOME, HOME  the fastest products of matrices on a GPU and the rates of a machine "
    "are kept in files sluice-matmul-* and sluice-rates-* of XDG_CACHE_HOME, otherwise of "
    "HOME/.cache\n"
    "  HOME, USER  sluice doctor writes ~ and USER in their place";

static const char files_text[] =
    "In the run folder (run.dir):\n"
    "  deck.yaml  all values of the deck\n"
    "  log.txt  the log of rank 0\n"
    "  results.jsonl  losses, speed and events, one JSON object per line\n"
    "  events.out.tfevents.*  the same for TensorBoard\n"
    "  ckpt/step-*.h5  checkpoints\n"
    "  trace/  traced steps (train.trace)\n"
    "  STOP  if a user creates it, the run saves and ends\n"
    "\n"
    "Of the installation:\n"
    "  " SLUICE_PKGDATADIR "/inputs/  decks that a name stands for; sluice deck lists them\n"
    "  " SLUICE_PKGDATADIR "/tools/  scripts that show results, and sluice_results.py, a module "
    "for scripts of your own\n"
    "  " SLUICE_SYSCONFDIR "/sluice/site.conf  defaults of the site: a YAML file of deck keys. The "
    "deck and the command line take precedence over them.";

static void print_common(void)
{
  printf(".SH FILES\n");
  prose_print_man(files_text, stdout);
  printf(".SH ENVIRONMENT\n");
  prose_print_man(environment_text, stdout);
  printf(".SH EXIT STATUS\n");
  for (int i = 0; i < exit_codes_count; i++) {
    const int code = exit_codes[i].code;
    printf(code == EXIT_SIGNAL ? ".TP\n%d+N\n" : ".TP\n%d\n", code);
    put_line(exit_codes[i].meaning);
  }
}

static void print_synopsis(const struct command *command)
{
  printf(".B sluice %s\n", command->name);
  put_line(command->usage);
}

static void print_man_examples(const char *examples)
{
  printf(".SH EXAMPLES\n.nf\n");
  for (size_t length; *examples; examples += length + (examples[length] == '\n')) {
    length = strcspn(examples, "\n");
    prose_escape_man(examples, length, stdout);
    putchar('\n');
  }
  printf(".fi\n");
}

static void print_part(const struct command *part)
{
  printf(".SS sluice %s\n", part->name);
  print_synopsis(part);
  printf(".PP\n");
  prose_print_man(part->text, stdout);
  options_print_man(part->options, stdout);
}

static void print_man(const struct command *command)
{
  char name[64];
  snprintf(name, sizeof name, "sluice-%s", command->name);
  print_man_title(name, 1);
  printf(".SH NAME\nsluice\\-%s \\- ", command->name);
  put(command->summary);
  printf("\n.SH SYNOPSIS\n");
  print_synopsis(command);
  printf(".SH DESCRIPTION\n");
  prose_print_man(command->text, stdout);
  if (command->options) {
    printf(".SH OPTIONS\nWrite key=value or \\-\\-key value.\n");
    options_print_man(command->options, stdout);
  }
  if (command->parts) {
    printf(".SH OTHER MEASUREMENTS\n");
    for (int i = 0; command->parts[i]; i++)
      print_part(command->parts[i]);
  }
  print_man_examples(command->examples);
  print_common();
  printf(".SH SEE ALSO\n.BR sluice (1)%s\n", command->takes_deck ? ",\n.BR sluice\\-deck (5)" : "");
}

static void print_man_deck(void)
{
  print_man_title("sluice-deck", 5);
  printf(".SH NAME\nsluice\\-deck \\- the YAML file that describes a run\n.SH DESCRIPTION\n");
  prose_print_man(deck_text, stdout);
  printf(".SH KEYS\n");
  options_print_man(deck_table, stdout);
  print_man_examples("  run:   {dir: runs/first, steps: 2000}\n"
                     "  model: {arch: gpt2, layers: 12, width: 768, heads: 12}\n"
                     "  data:  {train: data/first, batch: 64, micro_batch: 8}\n"
                     "  optim:\n"
                     "    lr: 3.0e-4\n"
                     "    warmup: 200\n");
  print_common();
  printf(".SH SEE ALSO\n.BR sluice (1),\n.BR sluice\\-train (1)\n");
}

static void print_man_all(void)
{
  print_man_title("sluice", 1);
  printf(".SH NAME\nsluice \\- train transformer language models, sharded over MPI ranks\n"
         ".SH SYNOPSIS\n.B sluice\nSUBCOMMAND ...\n.PP\n.B mpirun \\-n\nRANKS\n.B "
         "sluice\nSUBCOMMAND ...\n"
         ".SH DESCRIPTION\nEach subcommand has a page of its own. A deck, the YAML file that "
         "describes a run, is described in\n.BR sluice\\-deck (5).\n.SH SUBCOMMANDS\n");
  for (int i = 0; commands[i]; i++) {
    printf(".TP\n.BR sluice\\-%s (1)\n", commands[i]->name);
    put_line(commands[i]->summary);
  }
  for (const struct builtin *builtin = builtins; builtin->summary; builtin++) {
    printf(".TP\n.B ");
    put(builtin->name);
    printf(*builtin->usage ? " " : "");
    put_line(builtin->usage);
    put_line(builtin->summary);
  }
  print_man_examples("  sluice prepare corpus/ out=data/first\n"
                     "  mpirun -n 4 --bind-to none sluice train inputs/first.yaml\n"
                     "  sluice report runs/first\n");
  print_common();
  printf(".SH SEE ALSO\n.BR sluice\\-deck (5)\n");
}

/* --- commands ------------------------------------------------------------ */

/* sluice help [keys [PART] | SUBCOMMAND [PART] | KEY] */
static enum status help(int argc, char **argv)
{
  if (argc < 3) {
    print_all();
    return STATUS_OK;
  }
  if (!strcmp(argv[2], "keys"))
    return print_keys(argc > 3 ? argv[3] : NULL);
  const struct command *command = command_find(argv[2]);
  if (command)
    help_print(command_part(command, argc > 3 ? argv[3] : NULL));
  return command || print_key(argv[2]) ? STATUS_OK : STATUS_USAGE;
}

static enum status help_flag(int argc, char **argv)
{
  (void)argc;
  return help(1, argv);
}

/* sluice --man [keys | SUBCOMMAND] */
static enum status man(int argc, char **argv)
{
  const char *page = argc > 2 ? argv[2] : NULL;
  const bool keys = page && !strcmp(page, "keys");
  const struct command *command = page && !keys ? command_find(page) : NULL;
  if (keys)
    print_man_deck();
  else if (command)
    print_man(command);
  else if (!page)
    print_man_all();
  return page && !keys && !command ? STATUS_USAGE : STATUS_OK;
}

/* sluice --exit-codes [CODE] */
static enum status print_exit_codes(int argc, char **argv)
{
  for (int i = 0; i < exit_codes_count && argc < 3; i++)
    printf(exit_codes[i].code == EXIT_SIGNAL ? "%d+N  %s\n" : "%-5d  %s\n", exit_codes[i].code,
           exit_codes[i].meaning);
  if (argc < 3)
    return STATUS_OK;
  int64_t code;
  const char *meaning =
      options_parse_whole(argv[2], 0, 255, &code) ? exit_code_meaning((int)code) : NULL;
  if (!meaning)
    return status_usage("'%s' is not an exit code of Sluice: sluice --exit-codes lists them",
                        argv[2]);
  printf("%s\n", meaning);
  return STATUS_OK;
}

static enum status version(int argc, char **argv)
{
  static const struct {
    const char *what, *version;
  } parts[] = {
      {"MPI", SLUICE_VERSION_MPI},      {"HDF5", SLUICE_VERSION_HDF5},
      {"hwloc", SLUICE_VERSION_HWLOC},  {"OpenBLAS", SLUICE_VERSION_BLAS},
      {"libyaml", SLUICE_VERSION_YAML}, {"jansson", SLUICE_VERSION_JANSSON},
      {"PCRE2", SLUICE_VERSION_PCRE2},  {"utf8proc", SLUICE_VERSION_UTF8PROC},
      {"zlib", SLUICE_VERSION_ZLIB},    {"Zstandard", SLUICE_VERSION_ZSTD},
      {"CUDA", SLUICE_VERSION_CUDA},    {"NCCL", SLUICE_VERSION_NCCL},
      {"PAPI", SLUICE_VERSION_PAPI},
  };
  printf("sluice %s\n", PACKAGE_VERSION);
  printf("  %-10s %s\n", "commit", sluice_commit);
  printf("  %-10s %s\n", "date", *sluice_date ? sluice_date : "unknown");
  printf("  %-10s %s\n", "configure",
         *SLUICE_CONFIGURE_ARGS ? SLUICE_CONFIGURE_ARGS : "(no arguments)");
  printf("  %-10s %s %s\n", "compiler", SLUICE_CC, SLUICE_CFLAGS);
  printf("  %-10s %s\n", "sanitizer", SLUICE_SANITIZER);
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    printf("  %-10s %s\n", parts[i].what, *parts[i].version ? parts[i].version : "no");
  if (*SLUICE_VERSION_CUDA)
    printf("  %-10s %s\n", "kernels", SLUICE_CUDA_ARCH);
  printf("  %-10s MIT\n", "licence");
  (void)argc, (void)argv;
  return STATUS_OK;
}

/* clang-format off */
const struct builtin builtins[] = {
    {"help", help, "keys [SECTION|KEY|WORD]", "the keys of a deck"},
    {"schema", schema_print, "", "JSON Schema of decks, for editors"},
    {"completion", completion_print, "bash|zsh|fish", "completion for a shell"},
    {"--version", version, "| --exit-codes", "libraries of the build; exit codes"},
    {.name = "version", .run = version},
    {.name = "-V", .run = version},
    {.name = "-v", .run = version},
    {.name = "--exit-codes", .run = print_exit_codes},
    {.name = "--help", .run = help_flag},
    {.name = "-h", .run = help_flag},
    {.name = "--man", .run = man},
    {.name = NULL},
};
/* clang-format on */
