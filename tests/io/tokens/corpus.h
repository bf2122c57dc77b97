/* Texts for the tests of `sluice prepare`, and what those tests share. */
#pragma once

#include "io/tokens/prepare.h"
#include "tests/test.h"

/* Write a file, its folders too. */
void corpus_put(const char *folder, const char *name, const void *content, size_t bytes);
/* About `bytes` of lines of words, blank lines between paragraphs; the same for the same seed.
 * mem_free. */
char *corpus_text(uint64_t seed, size_t bytes);
/* Texts in `folder`: plain, JSON Lines, arrays, small, large, empty, hidden, in folders. About 14
 * MB. */
void corpus_make(const char *folder);
/* A JSON array of about `bytes` bytes on one line. */
void corpus_array(const char *folder, const char *name, uint64_t seed, size_t bytes);

/* Names of the files in a folder, sorted, a line each; mem_free. */
char *folder_list(const char *folder);
/* The same names and the same bytes. */
void assert_same_folders(const char *a, const char *b);
void folder_remove(const char *folder); /* with all it holds; one that is not there is fine */
