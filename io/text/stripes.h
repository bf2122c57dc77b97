/* How Lustre spreads the files of a folder over its object storage targets (OSTs). A file with one
 * stripe is at one OST, which then decides the speed of a checkpoint. */
#pragma once

#include <stdbool.h>

#include "base/status.h"

struct stripes {
  bool lustre; /* false: the folder is elsewhere, and nothing else is known */
  bool own;    /* somebody gave the folder, or a folder above it, this layout, or it has a pool */
  int count;   /* OSTs of a new file; STRIPES_ALL; 0: the layout depends on the size of the file */
  int osts;    /* of the file system; 0: unknown */
};
enum { STRIPES_ALL = 0xffff };

/* The layout of the folder, or of its nearest parent that exists. STATUS_IO. Local. */
enum status stripes_read(const char *dir, struct stripes *out);
/* Gives many stripes to a folder that has one stripe because no layout was set. *set: it did. *out
 * is the layout afterwards. STATUS_IO. Local. */
enum status stripes_spread(const char *dir, struct stripes *out, bool *set);
/* "32 of 128 OSTs", for a file of the folder. */
struct stripes_text {
  char text[48];
} stripes_text(const struct stripes *stripes);
