/* The record of a preparation, OUT/prepare.json. Private to io. */
#pragma once

#include "io/text/input_files.h"
#include "io/tokenizer/tokenizer.h"
#include "io/tokens/prepare.h"

enum { PREPARE_TEMPLATE_MOST = 16 << 20 }; /* bytes of a template, or a file of settings */

/* The text of prepare.json for this call: one setting or input per line. mem_free. Fails if the
 * file of a template cannot be read. */
enum status prepare_record(const struct prepare_config *config, const struct input_files *inputs,
                           const struct tokenizer *tokenizer, char **out);
