/* Starts the ranks of one run, forwards signals, and waits for the end. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/open.h"
#include "cmd/compare.h"
#include "train/signals.h"

static const char launcher[] = "mpirun --bind-to none"; /* ranks bind themselves */

enum { LAUNCHER_WORDS = 256, OTHER_WORDS = 8 };

/* The words of a command, which end with a NULL, and the texts that some of them are in. */
struct words {
  char **word, *launcher;
  char number[24], program[4096];
};

static enum status list_words(const struct matrix_run *run, struct words *out)
{
  const char *given = getenv("MPIRUN");
  char *rest = NULL, **to;
  const ssize_t length = readlink("/proc/self/exe", out->program, sizeof out->program - 1);
  if (length < 0)
    return open_failed(errno, "read", "/proc/self/exe");
  out->program[length] = '\0';
  out->launcher = mem_strdup(given && *given ? given : launcher);
  if (!out->launcher || mem_new(MEM_META, LAUNCHER_WORDS + OTHER_WORDS + run->words, &out->word))
    return STATUS_MEMORY;
  to = out->word;
  for (char *word = strtok_r(out->launcher, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
    if (to - out->word == LAUNCHER_WORDS)
      return status_usage("MPIRUN has more than %d words", LAUNCHER_WORDS);
    *to++ = word;
  }
  snprintf(out->number, sizeof out->number, "%lld", (long long)run->ranks);
  char *const program[] = {"-n", out->number, out->program, "train", (char *)run->deck};
  memcpy(to, program, sizeof program);
  to += sizeof program / sizeof *program;
  for (int i = 0; i < run->words; i++)
    *to++ = run->word[i];
  *to++ = "--resume";
  *to = "auto";
  return STATUS_OK;
}

/* Signals of a user or of Slurm, with SIGHUP except after nohup. */
static const int signals[] = {SIGTERM, SIGINT, SIGUSR1, SIGUSR2};
enum { SIGNALS = sizeof signals / sizeof *signals };

/* These, and SIGCHLD. */
static sigset_t awaited(void)
{
  sigset_t set;
  sigemptyset(&set);
  for (int i = 0; i < SIGNALS; i++)
    sigaddset(&set, signals[i]);
  if (!signals_ignore_hangup())
    sigaddset(&set, SIGHUP);
  sigaddset(&set, SIGCHLD);
  return set;
}

/* The child has a process group of its own. A terminal sends Ctrl-C to the whole group, and mpirun
 * would kill its ranks. A shell may have had the signals ignored. */
static void become(char *const argv[], int null, int log)
{
  const sigset_t set = awaited();
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGUSR1); /* if the parent is killed, ranks save and leave */
  for (int i = 0; i < SIGNALS; i++)
    signal(signals[i], SIG_DFL);
  sigprocmask(SIG_UNBLOCK, &set, NULL);
  if (dup2(null, STDIN_FILENO) >= 0 && dup2(log, STDOUT_FILENO) >= 0 &&
      dup2(log, STDERR_FILENO) >= 0)
    execvp(argv[0], argv);
  dprintf(log, "sluice: cannot start %s: %s; set MPIRUN to the command that starts ranks\n",
          argv[0], strerror(errno));
  _exit(127);
}

/* mpirun and srun pass SIGUSR1 on to the ranks. They would take SIGTERM as an order to kill. */
static int wait_for(pid_t child, bool *stopped)
{
  const sigset_t set = awaited();
  int state = 0;
  while (waitpid(child, &state, WNOHANG) != child) {
    const int signal = sigwaitinfo(&set, NULL);
    if (signal < 0 || signal == SIGCHLD)
      continue;
    *stopped = true;
    kill(child, SIGUSR1);
  }
  return WIFEXITED(state) ? WEXITSTATUS(state) : EXIT_SIGNAL + WTERMSIG(state);
}

static enum status start(char *const argv[], int null, int log, int *code, bool *stopped)
{
  const pid_t child = fork();
  if (child == 0)
    become(argv, null, log);
  if (child < 0)
    return status_set(STATUS_IO, "cannot start %s: %s", argv[0], strerror(errno));
  *code = wait_for(child, stopped);
  return STATUS_OK;
}

enum status matrix_launch(const struct matrix_run *run, int *code, bool *stopped)
{
  const sigset_t set = awaited();
  struct words words = {0};
  int null = -1, log = -1;
  enum status status = list_words(run, &words) ?: open_regular(run->log, OPEN_APPEND, &log);
  if (!status && (null = open("/dev/null", O_RDONLY | O_CLOEXEC)) < 0)
    status = open_failed(errno, "open", "/dev/null");
  sigprocmask(SIG_BLOCK, &set, NULL); /* from the first run on, so that none is lost between runs */
  status = status ?: start(words.word, null, log, code, stopped);
  if (log >= 0)
    close(log);
  if (null >= 0)
    close(null);
  mem_free(words.word);
  mem_free(words.launcher);
  return status;
}
