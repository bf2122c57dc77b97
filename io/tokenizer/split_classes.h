/* Letters, numbers and white space of Unicode 16. They are compiled in, because the tokens of a
 * text must not depend on the libraries of the machine. Private to io/. */
#pragma once

#include <stdint.h>

enum split_class {
  SPLIT_OTHER,
  SPLIT_LETTER,
  SPLIT_NUMBER,
  SPLIT_SPACE
}; /* the rest; \p{L}; \p{N}; White_Space */

enum { SPLIT_PAGES = 0x110000 >> 8, SPLIT_PAGES_MOST = 256 };

/* The class of code point c: page[index[c >> 8]][c & 255]. About 40 KiB are in use. */
struct split_classes {
  uint8_t index[SPLIT_PAGES];
  uint8_t page[SPLIT_PAGES_MOST][256];
};

void split_classes_fill(struct split_classes *out);

static inline enum split_class split_class_of(const struct split_classes *classes, uint32_t code)
{
  return (enum split_class)classes->page[classes->index[code >> 8]][code & 255];
}
