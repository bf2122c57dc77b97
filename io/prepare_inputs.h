/* What `sluice prepare` reads: the list of input files, in an order that depends on nothing but their names, and the record of a preparation, OUT/prepare.json.
 * Private to io/. */
#ifndef SLUICE_IO_PREPARE_INPUTS_H
#define SLUICE_IO_PREPARE_INPUTS_H

#include <stdint.h>

#include "io/prepare.h"
#include "io/tokenizer.h"

struct prepare_file {
  char *path;
  char *name;      /* as recorded: below the input folder, or the last part of a file's path; so it does not depend on where the data lies */
  int64_t bytes;
  uint32_t crc32;  /* of the first and the last MiB */
};

struct prepare_inputs { struct prepare_file *file; int64_t count, room, bytes; };

/* Rank 0 walks the inputs; the list goes to all ranks. Hidden files and folders (".name") are passed over. Collective. */
enum status prepare_inputs_list(struct comm *comm, const struct prepare_config *config, struct prepare_inputs *out);
void prepare_inputs_free(struct prepare_inputs *inputs); /* takes a zeroed one */

/* The text of prepare.json for this call: a setting or an input a line. NULL when memory is out (status set). mem_free. */
char *prepare_record(const struct prepare_config *config, const struct prepare_inputs *inputs, const struct tokenizer *tokenizer);

#endif
