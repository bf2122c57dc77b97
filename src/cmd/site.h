/* Settings of an installation for all users: decks by name, and the defaults of a site. Private to
 * src/cmd. */
#pragma once

#include <stdio.h>

#include "comm/comm.h"

enum { SITE_MOST_BYTES = 1 << 20 }; /* of a deck */

/* The folder of the installation that holds inputs/ and tools/. Local. */
const char *site_data_folder(void);

/* The file of a deck that a user names. It is a path if there is such a file, otherwise NAME.yaml
 * in the decks of the installation. *path is mem_free()d. STATUS_INPUT: a name without a file. The
 * message lists the nearest names. The reader of the deck reports a missing path. Local. */
enum status site_find_deck(const char *word, char **path);

/* Calls `of` with the name of each of these decks. Local. */
typedef void site_visit(const char *name, void *arg);
void site_for_decks(site_visit *of, void *arg);

/* Print the names of these decks, with the first line of each. STATUS_INPUT: there are none.
 * Local. */
enum status site_list_decks(FILE *to);

/* Deck keys of all users of a site, such as comm.timeout: the file that SLUICE_SITE_CONF names, or
 * sluice/site.conf in the configuration folder of the build. Rank 0 reads it for all ranks. *label
 * and *text are NULL before the call. They stay NULL if there is no such file or SLUICE_SITE_CONF
 * is empty. The caller mem_free()s them, also after an error. Collective. */
enum status site_read_defaults(struct comm *comm, char **label, char **text);
