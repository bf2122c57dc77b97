/* SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 ask the run to save and leave at the next step boundary, or the one behind it (train_look_around()), and after its first step if it is still starting. A second SIGINT ends the process at once.
 * SIGPIPE is ignored: a peer that died, or a reader of the output that left, is an error of a write and no end. */
#ifndef SLUICE_TRAIN_SIGNALS_H
#define SLUICE_TRAIN_SIGNALS_H

#include "base/status.h"

enum status signals_install(void);
int signals_pending(void);            /* the signal that was caught first, 0: none */
const char *signals_name(int signal); /* "SIGTERM" */

#endif
