/* Hands a fuzz target the files that are named, or else every file of seeds/NAME and crashers/NAME,
 * NAME being the program's own without "fuzz_". */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

static void die(const char *doing, const char *path)
{
  fprintf(stderr, "cannot %s %s: %s\n", doing, path, strerror(errno));
  exit(1);
}

/* The block is as long as the file: AddressSanitizer sees a read after its end. */
static void replay(const char *path)
{
  FILE *file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END) != 0)
    die("open", path);
  long bytes = ftell(file);
  uint8_t *data = bytes < 0 ? NULL : malloc((size_t)bytes + !bytes);
  rewind(file);
  if (!data || fread(data, 1, (size_t)bytes, file) != (size_t)bytes)
    die("read", path);
  fclose(file);
  printf("%s\n", path);
  fflush(stdout); /* the last line names the culprit */
  LLVMFuzzerTestOneInput(data, (size_t)bytes);
  free(data);
}

static int not_hidden(const struct dirent *entry)
{
  return entry->d_name[0] != '.';
}

static int replay_folder(const char *folder)
{
  struct dirent **entry;
  int n = scandir(folder, &entry, not_hidden, alphasort);
  if (n < 0 && errno == ENOENT)
    return 0;
  if (n < 0)
    die("list", folder);
  for (int i = 0; i < n; i++) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, entry[i]->d_name);
    replay(path);
    free(entry[i]);
  }
  free(entry);
  return n;
}

int main(int argc, char *argv[])
{
  const char *top = getenv("top_srcdir"), *name = strstr(program_invocation_short_name, "fuzz_");
  char seeds[2048], crashers[2048];
  for (int i = 1; i < argc; i++)
    replay(argv[i]);
  if (argc > 1)
    return 0;
  if (!name) {
    fprintf(stderr, "the program's name does not tell which seeds are its own\n");
    return 1;
  }
  snprintf(seeds, sizeof seeds, "%s/tests/fuzz/seeds/%s", top ? top : ".", name + strlen("fuzz_"));
  snprintf(crashers, sizeof crashers, "%s/tests/fuzz/crashers/%s", top ? top : ".",
           name + strlen("fuzz_"));
  if (replay_folder(seeds) == 0) {
    fprintf(stderr, "there are no seeds in %s\n", seeds);
    return 1;
  }
  replay_folder(crashers);
  return 0;
}
