/* SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2 and SIGXCPU ask the run to save and leave at the end of
 * the current step or of the next one (train_look_around()). SIGHUP stays ignored after nohup. A
 * run that is still starting leaves after its first step. A second SIGINT ends the process at once.
 * SIGPIPE is ignored, so that a peer that died or a closed output is an error of a write. */
#pragma once

#include <stdbool.h>

#include "base/status.h"

/* `speaks`: the handler writes one line to standard error. The step may take longer than a launcher
 * waits before it kills the ranks, and then this line is the last one. Local. */
enum status signals_install(bool speaks);
/* If the program was started with SIGHUP ignored, as nohup does, ignores it again, because
 * libraries may have caught it. Returns whether it was. Local. */
bool signals_ignore_hangup(void);
int signals_pending(void);            /* the signal that was caught first, 0: none */
const char *signals_name(int signal); /* "SIGTERM" */
