/* Models whose blocks have other stages than their architecture says. For programs that are linked
 * with --wrap=architecture_find. */
#pragma once

#include "model/decoder.h"

/* Attention, then the feed-forward part: both read one unit, or each has its own. */
extern const struct stage_row stages_shared[], stages_own[];
/* The stages of the next models; NULL: those of the architecture. */
extern const struct stage_row *stages_next;
