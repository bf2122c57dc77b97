/* A deck: YAML, a zero byte, and lines key=value. An accepted deck must be read back from its own
 * echo with the same values. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "deck/deck.h"
#include "fuzz.h"

enum { ASSIGNMENTS = 16 };

static int cut_lines(char *text, char *line[])
{
  int n = 0;
  for (char *end; n < ASSIGNMENTS && *text; text = end) {
    line[n++] = text;
    end = strchrnul(text, '\n');
    if (*end)
      *end++ = '\0';
  }
  return n;
}

/* Many inputs have the same values, and so the same echo, which has all keys. It is read once. */
static bool is_known(const char *yaml)
{
  static uint64_t known[1 << 16];
  const uint64_t hash = hash_text(yaml);
  uint64_t *last = &known[hash >> 48];
  const bool same = *last == hash;
  *last = hash;
  return same;
}

static void check_echo(const struct deck *deck)
{
  struct deck again;
  char *yaml = NULL, hash[2][17];
  fuzz_expect(options_print_yaml(deck->set, &yaml) == STATUS_OK, "a deck cannot be printed");
  if (is_known(yaml)) {
    mem_free(yaml);
    return;
  }
  if (!fuzz_accepted(deck_load_text(&again, "echo", yaml, strlen(yaml), 0, NULL))) {
    fuzz_expect(false, status_text());
    return;
  }
  deck_hash(deck, hash[0]);
  deck_hash(&again, hash[1]);
  fuzz_expect(strcmp(hash[0], hash[1]) == 0, "a deck read from its echo is another one");
  deck_destroy(&again);
  mem_free(yaml);
}

static void resolve(const struct deck *deck)
{
  static const int ranks[] = {1, 3, 8};
  for (int i = 0; i < 3; i++) {
    struct deck_shape shape;
    struct deck_policy policy;
    if (fuzz_accepted(deck_resolve(deck, ranks[i], ranks[i] % 4, &shape, &policy)))
      fuzz_expect(shape.micros > 0 && shape.micro_batch > 0 && shape.sequence > 0 &&
                      deck_data_ranks(&shape) % shape.group == 0,
                  "a shape that cannot be");
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  struct fuzz_piece rest = {(const char *)data, size}, yaml = fuzz_cut(&rest);
  char *assignments = strndup(rest.bytes ? rest.text : "", rest.bytes), *line[ASSIGNMENTS];
  struct deck deck;
  fuzz_expect(assignments, "no memory");
  if (fuzz_accepted(deck_load_text(&deck, "deck.yaml", yaml.text, yaml.bytes,
                                   cut_lines(assignments, line), line))) {
    check_echo(&deck);
    resolve(&deck);
    deck_destroy(&deck);
  }
  free(assignments);
  return 0;
}
