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

/* The words of a command, ended by NULL. */
struct words {
  int n;
  int64_t room;
  char **word;
};

/* Takes `word`. NULL ends the list. */
static enum status add(struct words *words, char *word)
{
  enum status status = mem_grow(MEM_META, (void **)&words->word, &words->room,
                                (int64_t)words->n + 1, sizeof *words->word);
  if (status) {
    mem_free(word);
    return status;
  }
  words->word[words->n] = word;
  words->n += word != NULL;
  return STATUS_OK;
}

static enum status add_copy(struct words *words, const char *text)
{
  char *copy = mem_strdup(text);
  return copy ? add(words, copy) : STATUS_MEMORY;
}

static enum status add_launcher(struct words *words, int64_t ranks)
{
  const char *given = getenv("MPIRUN");
  const char *text = given && *given ? given : launcher;
  enum status status = STATUS_OK;
  for (text += strspn(text, " "); *text && !status; text += strspn(text, " ")) {
    const size_t length = strcspn(text, " ");
    char *word = mem_printf("%.*s", (int)length, text);
    status = word ? add(words, word) : STATUS_MEMORY;
    text += length;
  }
  if (!status)
    status = add_copy(words, "-n");
  char *number = status ? NULL : mem_printf("%lld", (long long)ranks);
  return status ? status : number ? add(words, number) : STATUS_MEMORY;
}

static enum status add_program(struct words *words)
{
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length < 0)
    return open_failed(errno, "read", "/proc/self/exe");
  path[length] = '\0';
  return add_copy(words, path);
}

static enum status add_all(struct words *words, const struct matrix_run *run)
{
  const char *const before[] = {"train", run->deck}, *const after[] = {"--resume", "auto"};
  enum status status = add_launcher(words, run->ranks);
  if (!status)
    status = add_program(words);
  for (int i = 0; i < 2 && !status; i++)
    status = add_copy(words, before[i]);
  for (int i = 0; i < run->words && !status; i++)
    status = add_copy(words, run->word[i]);
  for (int i = 0; i < 2 && !status; i++)
    status = add_copy(words, after[i]);
  return status ? status : add(words, NULL);
}

/* Signals of a user or of Slurm, and SIGCHLD. */
static sigset_t awaited(void)
{
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  if (!signals_ignore_hangup())
    sigaddset(&set, SIGHUP);
  sigaddset(&set, SIGUSR1);
  sigaddset(&set, SIGUSR2);
  sigaddset(&set, SIGCHLD);
  return set;
}

/* The child has a process group of its own. A terminal sends Ctrl-C to the whole group, and mpirun
 * would kill its ranks. A shell may have had the signals ignored. */
static void become(char *const argv[], int null, int log)
{
  static const int signals[] = {SIGTERM, SIGINT, SIGUSR1, SIGUSR2};
  const sigset_t set = awaited();
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGUSR1); /* if the parent is killed, ranks save and leave */
  for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
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
  enum status status = add_all(&words, run);
  if (!status)
    status = open_regular(run->log, OPEN_APPEND, &log);
  if (!status && (null = open("/dev/null", O_RDONLY | O_CLOEXEC)) < 0)
    status = open_failed(errno, "open", "/dev/null");
  sigprocmask(SIG_BLOCK, &set, NULL); /* from the first run on, so that none is lost between runs */
  if (!status)
    status = start(words.word, null, log, code, stopped);
  if (log >= 0)
    close(log);
  if (null >= 0)
    close(null);
  for (int i = 0; i < words.n; i++)
    mem_free(words.word[i]);
  mem_free(words.word);
  return status;
}
