/* The bytes of a text file. A file of gzip or zstd is unpacked on the way, with bounded memory; its
 * first bytes tell, not its name. Positions are those of the unpacked bytes. Private to io/text. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct text_source;

/* STATUS_INPUT with a cure if the first bytes are those of another kind of file, such as an
 * archive or Parquet. `path` must outlive the source. Local. */
enum status text_source_open(const char *path, struct text_source **out);
void text_source_close(struct text_source *source); /* takes NULL */
/* At most `bytes` bytes, which is at least 1; *got is 0 at the end of the file. */
enum status text_source_read(struct text_source *source, void *to, size_t bytes, size_t *got);
/* Compressed data are unpacked again up to `offset` if it lies behind. */
enum status text_source_seek(struct text_source *source, int64_t offset);
