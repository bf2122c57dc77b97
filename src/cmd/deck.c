/* sluice deck: the deck as a run would use it. Job scripts ask it for single values, so it needs
 * neither MPI nor a device. */
#include "deck/deck.h"

#include <string.h>

#include "base/mem.h"
#include "cmd/cmd.h"
#include "cmd/site.h"

struct values {
  char *print;
};

// clang-format off: one row an option
static const struct option table[] = {
    {"print", OPTION_STRING, AT(print), "",
     .text = "Print only the value of this key. A text is printed without quotes."},
    {.name = NULL},
};
// clang-format on

/* Only model.* is taken from train.init. The folder may no longer exist when a run continues from
 * its own checkpoints. */
static enum status open_deck(const struct arguments *arguments, const char *key, struct deck *out)
{
  static const char section[] = "model.";
  const bool resolves = !*key || !strncmp(key, section, sizeof section - 1);
  return resolves ? deck_open(arguments, arguments->word[0], out)
                  : deck_open_as_written(arguments, arguments->word[0], out);
}

static void print_site(const struct arguments *arguments, const struct deck *deck)
{
  char keys[1000];
  deck_site_keys(deck, keys, sizeof keys);
  if (*keys)
    printf("# %s: %s\n", arguments->site, keys);
}

static enum status run(const struct arguments *arguments)
{
  const char *key = ((const struct values *)arguments->values)->print;
  struct deck deck = {0};
  char *text = NULL;
  if (arguments->words == 0)
    return site_list_decks(stdout);
  const enum status status = open_deck(arguments, key, &deck)
                                 ?: (*key ? options_print_named(deck.set, key, &text)
                                          : options_print_yaml(deck.set, &text));
  if (!status && !*key)
    print_site(arguments, &deck);
  if (!status)
    printf("%s%s", text, *key ? "\n" : "");
  mem_free(text);
  deck_destroy(&deck);
  return status;
}

const struct command command_deck = {
    .name = "deck",
    .usage = "[DECK [key=value ...] [print=KEY]]",
    .summary = "print all values of a deck, as a run would use them, or one value",
    .text = "Without a deck it lists the decks that were installed, which have a name, such as "
            "qwen2.5-7b.\n"
            "\n"
            "With a deck it prints every key with its value, as YAML. A value comes from the "
            "command line, the deck, the model that train.init names, the defaults of the site, "
            "or the default of Sluice. print=KEY prints the value of one key, for scripts.",
    .examples = "  sluice deck\n"
                "  sluice deck inputs/first.yaml\n"
                "  sluice deck inputs/first.yaml run.steps=500 optim.lr=1e-4\n"
                "  run=$(sluice deck inputs/first.yaml print=run.dir)\n",
    .options = table,
    .values_size = sizeof(struct values),
    .takes_deck = true,
    .words = {0, 1},
    .run = run,
};
