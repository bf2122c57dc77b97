/* Signals that ask a run to stop. */
#include "train/signals.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static const struct {
  int number;
  const char *name;
} caught[] = {{SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"},   {SIGHUP, "SIGHUP"},
              {SIGUSR1, "SIGUSR1"}, {SIGUSR2, "SIGUSR2"}, {SIGXCPU, "SIGXCPU"}};
enum { CAUGHT = sizeof caught / sizeof *caught };

static volatile sig_atomic_t pending;
static bool speaking; /* set before the handler is */

/* A handler may call write() but not stdio. A failed write must not prevent saving. */
static void say(const char *text)
{
  const ssize_t written = write(STDERR_FILENO, text, strlen(text));
  (void)written;
}

static void on_signal(int signal_number)
{
  const int error = errno;
  if (speaking && !pending) {
    say(signals_name(signal_number));
    say(": stopping after this step or the next one\n");
  }
  if (!pending)
    pending = signal_number;
  errno = error;
}

/* Libraries of UCX catch SIGHUP when they are loaded, so this looks before any library starts. */
static bool ignores_hangup;

static void look_at_hangup(void)
{
  struct sigaction before;
  ignores_hangup = !sigaction(SIGHUP, NULL, &before) && before.sa_handler == SIG_IGN;
}

__attribute__((section(".preinit_array"),
               used)) static void (*const first_look)(void) = look_at_hangup;

bool signals_ignore_hangup(void)
{
  if (ignores_hangup)
    signal(SIGHUP, SIG_IGN);
  return ignores_hangup;
}

enum status signals_install(bool speaks)
{
  const struct sigaction ignore = {.sa_handler = SIG_IGN};
  pending = 0;
  speaking = speaks;
  if (sigaction(SIGPIPE, &ignore, NULL))
    return status_set(STATUS_INTERNAL, "cannot ignore SIGPIPE: %s", strerror(errno));
  for (int i = 0; i < CAUGHT; i++) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    if (caught[i].number == SIGHUP && signals_ignore_hangup())
      continue;
    if (caught[i].number == SIGINT)
      action.sa_flags |= (int)SA_RESETHAND;
    if (sigaction(caught[i].number, &action, NULL))
      return status_set(STATUS_INTERNAL, "cannot catch %s: %s", caught[i].name, strerror(errno));
  }
  return STATUS_OK;
}

int signals_pending(void)
{
  return pending;
}

const char *signals_name(int signal_number)
{
  for (int i = 0; i < CAUGHT; i++)
    if (caught[i].number == signal_number)
      return caught[i].name;
  return "a signal";
}
