/* The record of a preparation, OUT/prepare.json. Private to io. */
#pragma once

#include "io/text/input_files.h"
#include "io/tokenizer/tokenizer.h"
#include "io/tokens/prepare.h"

/* The text of prepare.json for this call: one setting or input per line. NULL if memory is out,
 * with the status set. mem_free. */
char *prepare_record(const struct prepare_config *config, const struct input_files *inputs,
                     const struct tokenizer *tokenizer);
