/* The short name of an MPI library. Header only, because configure's probes include it. */
#pragma once

#include <string.h>
#include <strings.h>

/* Shortens what MPI_Get_library_version returns, in place:
 *   "Open MPI v4.1.4, package: ..."                         Open MPI 4.1.4
 *   "MPICH Version:\t4.0.2\nMPICH Release date: ..."        MPICH 4.0.2
 *   "MPI VERSION    : CRAY MPICH version 8.1.29 (ANL ..."   CRAY MPICH 8.1.29 */
static inline void mpi_version_shorten(char *text)
{
  static const char first[] = "MPI VERSION";
  char *end = text, *next = NULL;
  text[strcspn(text, ",\n")] = '\0';
  char *word = strncmp(text, first, sizeof first - 1) ? text : text + sizeof first - 1;
  for (word = strtok_r(word, " \t:", &next); word && *word != '(';
       word = strtok_r(NULL, " \t:", &next)) {
    if (!strcasecmp(word, "version"))
      continue;
    word += word[0] == 'v' && word[1] >= '0' && word[1] <= '9';
    const size_t length = strlen(word);
    if (end > text)
      *end++ = ' ';
    memmove(end, word, length);
    end += length;
  }
  *end = '\0';
}
