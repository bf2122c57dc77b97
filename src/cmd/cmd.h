/* Subcommands: one file each. A command line is words, then key=value in any order; `--key value`
 * is the same as key=value. Keys of the command's own table come first, all others belong to the
 * deck. */
#pragma once

#include <stdbool.h>

#include "comm/comm.h"
#include "deck/deck.h"

struct arguments {
  int words; /* positional */
  char **word;
  int assignments; /* key=value for the deck */
  char **assignment;
  void *values;           /* the command's own options, by its table */
  struct option_set *set; /* values of `own`; NULL: the command has none */
  char *site, *site_text; /* defaults of the site for decks, and their name; NULL: none */
  struct comm *comm;      /* of one rank for commands without MPI */
  int *exit_code;         /* if the command succeeds; *exit_code is 0 on entry */
  int argc;               /* the command line as the program was started */
  char **argv;
};

/* Bounds for the number of words on a command line. most -1: none. */
struct word_count {
  int least, most;
};

/* The first word after some commands, such as show after ckpt. */
struct action {
  const char *name, *usage;
  struct word_count words;
  bool parallel; /* otherwise only rank 0 runs it */
  enum status (*run)(const struct arguments *arguments);
};

struct command {
  const char *name, *usage, *summary; /* usage: what follows the name */
  const char *text;                   /* for --help and the man page, in the form of base/prose.h */
  const char *examples;               /* lines of at most 80 columns, each with its line break */
  const struct option *options;       /* own keys, NULL: none */
  const struct command *const *parts; /* commands of two words, "bench io", or NULL */
  const struct action *actions;       /* its first words, which end with a NULL name, or NULL */
  size_t values_size;                 /* of the struct they describe */
  bool takes_deck;                    /* other keys are deck keys */
  bool lists_keys;                    /* most deck keys matter, so --help names them */
  bool uses_mpi;
  const char *exits; /* usual exit codes, for --help; NULL: 0 and 2 */
  struct word_count words;
  enum status (*run)(const struct arguments *arguments);
};

/* Offset of an option in the `struct values` of a command's file. */
#define AT(field) offsetof(struct values, field)
#define MADE_DOCUMENTS(field)                                                                      \
  {                                                                                                \
    "documents", OPTION_INT, AT(field), "0",                                                       \
        .least = 0, .most = 1e9, .unit = "tokens", .rare = true,                                   \
        .text =                                                                                    \
            "Mean length of made-up documents. They replace the data, and sequences hold them "    \
            "as data.pack says. Half of their tokens are trained. 0: none."                        \
  }

extern const struct command command_train, command_eval, command_generate, command_prepare,
    command_plan, command_ckpt, command_bench, command_tokenizer, command_topo, command_doctor,
    command_deck, command_compare, command_report, command_top;

/* All of them; the last one is NULL. */
extern const struct command *const commands[];

/* Commands that need no options, no MPI and no comm, and flags. */
struct builtin {
  const char *name;
  enum status (*run)(int argc, char **argv);
  const char *usage, *summary; /* NULL: not in the help */
};
extern const struct builtin builtins[]; /* ends with a NULL name */

/* NULL, with an error text: there is none of this name. Local. */
const struct command *command_find(const char *name);

/* The part of a command that `word` names, such as io of bench; otherwise the command itself.
 * `word` may be NULL. Local. */
const struct command *command_part(const struct command *command, const char *word);

/* The option whose name is the first `length` bytes of `key`. NULL: there is none. `table` may be
 * NULL. Local. */
const struct option *option_find(const struct option *table, const char *key, size_t length);

/* Runs the action that the first word of a command with actions names. */
enum status action_run(const struct command *command, const struct arguments *arguments);

/* Read argv[first..) by the command's table. STATUS_USAGE if the ranks of `comm` were given
 * different words, or different values of the command's own options. Free with arguments_free.
 * Collective. */
enum status arguments_read(const struct command *command, struct comm *comm, int argc, char **argv,
                           int first, struct arguments *out);
void arguments_free(struct arguments *arguments); /* takes a zeroed one */

/* A source of parameters on the command line: a deck (its run folder's newest checkpoint), a run
 * folder, a checkpoint, or a model folder. A Hugging Face model folder becomes the deck's
 * train.init. */
struct source {
  struct deck deck;
  char *checkpoint; /* or model folder */
};
/* Also looks for a checkpoint of a deck or a run folder. `cure` ends the message if there is none.
 * NULL: does not look, and `checkpoint` stays NULL. Collective. */
enum status source_open(const struct arguments *arguments, const char *word, const char *cure,
                        struct source *out);
void source_close(struct source *source); /* takes a zeroed one */

/* Rank 0 reads the deck file, and all ranks get it. `path` is a path or the name of a deck of the
 * installation (cmd/site.h). NULL: a deck of defaults. Defaults of the site come first. Missing
 * model.* keys come from its train.init. Each rank applies its own key=value. STATUS_USAGE names
 * the first key in which the resolved decks differ, here and in all functions that open a deck.
 * Collective. */
enum status deck_open(const struct arguments *arguments, const char *path, struct deck *out);
/* The same without model.* of train.init, which is then neither read nor checked. Collective. */
enum status deck_open_as_written(const struct arguments *arguments, const char *path,
                                 struct deck *out);
/* For a run that is resumed by `resume`. The model.* keys come from the checkpoint, and train.init
 * is not needed any more. Collective. */
enum status deck_open_resumed(const struct arguments *arguments, const char *path,
                              const char *resume, struct deck *out);

/* -h and --help, from the tables. Local. */
void help_print_short(const struct command *command);
void help_print(const struct command *command);

/* `sluice completion SHELL`, the words that its script offers (`sluice completion SHELL -- WORD
 * ...`, the last of which is typed), and `sluice schema`. STATUS_USAGE: no such shell. Local. */
enum status completion_print(int argc, char **argv);
enum status schema_print(int argc, char **argv);
