/* Shared by help and man pages. Private to src/cmd/help*.c. */
#ifndef SLUICE_CMD_HELP_H
#define SLUICE_CMD_HELP_H

#include "cmd/cmd.h"

extern const char help_deck_text[]; /* about decks, as base/prose.h has it */

struct exit_label {
  char text[16];
} help_exit_label(int code); /* "75", or "128+N" */

#endif
