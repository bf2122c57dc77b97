/* Names of the presets of tiers.preset, for its row of the option table. Private to src/deck. */
#pragma once

#include "deck/deck.h"

extern const char *const deck_presets[DECK_PRESETS + 1]; /* ends with NULL */
