/* Names of the presets of tiers.preset, for its row of the option table. Private to src/deck. */
#ifndef SLUICE_DECK_PRESETS_H
#define SLUICE_DECK_PRESETS_H

#include "deck/deck.h"

extern const char *const deck_presets[DECK_PRESETS + 1]; /* ends with NULL */

#endif
