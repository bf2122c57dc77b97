/* A fuzz target is a C file that defines LLVMFuzzerTestOneInput. It gives the input to one parser
 * and checks the result. The command `make fuzz` links it with libFuzzer. The command `make check`
 * links it with replay.c, which gives it every file of seeds/NAME and crashers/NAME. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Ends the process with the sentence if `good` is false: a finding. */
void fuzz_expect(bool good, const char *sentence);
/* The allowed answers of a parser to untrusted input: OK, or that the input is wrong, with a
 * sentence. Whether it was OK. */
bool fuzz_accepted(enum status status);

/* The path of a file called `name` that holds the bytes, until the next call with that name; data
 * NULL: there is no such file. All of them lie in one folder. */
const char *fuzz_file(const char *name, const void *data, size_t bytes);
const char *fuzz_folder(void);

/* The input up to the next zero byte, which is skipped. Without a zero byte it is the rest of the
 * input. */
struct fuzz_piece {
  const char *text;
  size_t bytes;
};
struct fuzz_piece fuzz_cut(struct fuzz_piece *rest);
