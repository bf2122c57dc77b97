/* Unicode's normal form C, for tokenizers whose normalizer is NFC. Private to io/. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct nfc;
enum status nfc_create(struct nfc **out);
void nfc_destroy(struct nfc *nfc); /* takes NULL */

/* Valid UTF-8 text in NFC: the text itself if it is in NFC already, as most text is. Otherwise a
 * copy that is valid until the next call. `marks`: NULL, or *marks is NULL or has flags, one byte
 * for each of the text. Then they become those of *out: a byte that several characters became has
 * the flags that all their bytes have. */
enum status nfc_text(struct nfc *nfc, const char *text, size_t bytes, const char **out,
                     size_t *out_bytes, const unsigned char **marks);
