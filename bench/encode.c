/* encode FOLDER FILE [SECONDS]: the other half of tokenizer.sh. FILE holds documents, each followed
 * by a byte 0; FOLDER a tokenizer.json. Prints the token ids, one document per line. With SECONDS
 * it encodes all of them repeatedly for that long, and prints the best rate in MB/s of processor
 * time. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "io/text/file.h"
#include "io/tokenizer/tokenizer.h"

static enum status encode_all(struct tokenizer *tokenizer, const char *text, size_t bytes,
                              bool print, struct tokenizer_tokens *tokens)
{
  for (size_t at = 0; at < bytes;) {
    size_t length = strnlen(text + at, bytes - at);
    tokens->n = 0;
    enum status status = tokenizer_encode(tokenizer, text + at, length, false, tokens);
    if (status)
      return status;
    for (int64_t i = 0; i < tokens->n && print; i++)
      printf(i ? " %d" : "%d", tokens->id[i]);
    if (print)
      putchar('\n');
    at += length + 1;
  }
  return STATUS_OK;
}

/* CPU time of this process, so that other processes do not count. */
static double processor_s(void)
{
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static enum status measure(struct tokenizer *tokenizer, const char *text, size_t bytes,
                           double seconds, struct tokenizer_tokens *tokens)
{
  double best = 0, end = processor_s() + seconds;
  do {
    double begin = processor_s();
    enum status status = encode_all(tokenizer, text, bytes, false, tokens);
    double rate = (double)bytes / (processor_s() - begin);
    if (status)
      return status;
    best = rate > best ? rate : best;
  } while (processor_s() < end);
  printf("%.2f\n", best * 1e-6);
  return STATUS_OK;
}

int main(int argc, char **argv)
{
  struct tokenizer *tokenizer = NULL;
  struct tokenizer_tokens tokens = {0};
  char *text = NULL;
  size_t bytes = 0;
  if (argc < 3) {
    fprintf(stderr, "usage: %s FOLDER FILE [SECONDS]\n", argv[0]);
    return 2;
  }
  enum status status = tokenizer_create("json", argv[1], &tokenizer);
  if (!status)
    status = file_read_all(argv[2], (size_t)1 << 31, &text, &bytes);
  if (!status && argc > 3)
    status = measure(tokenizer, text, bytes, strtod(argv[3], NULL), &tokens);
  else if (!status)
    status = encode_all(tokenizer, text, bytes, true, &tokens);
  if (status)
    fprintf(stderr, "%s\n", status_text());
  tokenizer_destroy(tokenizer);
  mem_free(tokens.id);
  mem_free(text);
  return status_exit_code(status);
}
