/* sluice completion: a script for a shell, and the words that the script offers. The script asks
 * for them at each key, so the rules are here alone, and words that a user typed are never
 * expanded. */
#include <stdio.h>
#include <string.h>

#include "base/append.h"
#include "base/prose.h"
#include "cmd/cmd.h"
#include "cmd/site.h"

/* clang-format off */
static const struct shell {
  const char *name, *script;
  bool describes; /* a word is followed by a tab and its description */
} shells[] = {
    {"bash",
     "# Made by: sluice completion bash\n"
     "_sluice() {\n"
     "  local IFS=$' \\t\\n' line=${COMP_LINE:0:COMP_POINT} word start=\n"
     "  local -a words items\n"
     "  read -ra words <<< \"$line\"\n"
     "  [[ $line != *[[:space:]] ]] || words+=('')\n"
     "  word=${words[${#words[@]} - 1]}\n"
     "  mapfile -t items < <(sluice completion bash -- \"${words[@]:1}\" 2> /dev/null)\n"
     "  [[ $word != *=* || $COMP_WORDBREAKS != *=* ]] || start=${word%%=*}=\n"
     "  COMPREPLY=(\"${items[@]#\"$start\"}\")\n"
     "  [[ ${COMPREPLY[0]} != *= ]] || compopt -o nospace 2> /dev/null\n"
     "}\n"
     "complete -o bashdefault -o default -F _sluice sluice\n", false},
    {"zsh",
     "#compdef sluice\n"
     "# Made by: sluice completion zsh\n"
     "_sluice() {\n"
     "  emulate -L zsh\n"
     "  local -a all keys others\n"
     "  all=(\"${(@f)$(sluice completion zsh -- \"${(@)words[2,CURRENT]}\" 2> /dev/null)}\")\n"
     "  keys=(${(M)all:#*=}) others=(${all:#*=})\n"
     "  compadd -S '' -a keys\n"
     "  local found=$?\n"
     "  compadd -a others || test $found = 0 || { compset -P '*='; _files; }\n"
     "}\n"
     "if [ \"$funcstack[1]\" = _sluice ]; then _sluice; else compdef _sluice sluice; fi\n", false},
    {"fish",
     "# Made by: sluice completion fish\n"
     "function __sluice\n"
     "  set -l words (commandline -opc)\n"
     "  set -l typed (commandline -ct)\n"
     "  set -l all (sluice completion fish -- $words[2..] \"$typed\" 2> /dev/null)\n"
     "  if set -q all[1]\n"
     "    printf '%s\\n' $all\n"
     "  else\n"
     "    __fish_complete_path \"$typed\"\n"
     "  end\n"
     "end\n"
     "complete -c sluice -f -a '(__sluice)'\n", true},
};
/* clang-format on */

struct offer {
  const struct shell *shell;
  const char *typed;
};

/* Prints a word that begins with the typed text. `prefix` and `suffix` are parts of it. */
static void offer(const struct offer *to, const char *prefix, const char *name, const char *suffix,
                  const char *text)
{
  char word[600] = "";
  append_text(word, sizeof word, "%s%s%s", prefix, name, suffix);
  if (strncmp(word, to->typed, strlen(to->typed)) != 0)
    return;
  printf("%s", word);
  if (to->shell->describes && *text)
    printf("\t%.*s", prose_sentence(text), text);
  putchar('\n');
}

static void offer_options(const struct offer *to, const char *prefix, const struct option *table,
                          const char *suffix)
{
  for (const struct option *option = table; option && option->name; option++)
    offer(to, prefix, option->name, suffix, option->text);
}

/* `prefix`: of a value, such as "key=". */
static void offer_values(const struct offer *to, const char *prefix, const struct option *option)
{
  static const char *const truths[] = {"true", "false", NULL};
  const bool is_bool = option && option->type == OPTION_BOOL;
  const char *const *choice = is_bool ? truths : option ? option->choices : NULL;
  for (; choice && *choice; choice++)
    offer(to, prefix, *choice, "", "");
}

static void offer_commands(const struct offer *to)
{
  for (int i = 0; commands[i]; i++)
    offer(to, "", commands[i]->name, "", commands[i]->summary);
}

/* A name that a shell would read as more than a word is not offered. */
static void offer_deck(const char *name, void *arg)
{
  char word[600] = "";
  append_word(word, sizeof word, name);
  if (*word != '\'')
    offer(arg, "", word, "", "");
}

/* The first word after a command. */
static void offer_first(const struct offer *to, const struct command *command)
{
  for (const struct action *action = command->actions; action && action->name; action++)
    offer(to, "", action->name, "", "");
  for (int p = 0; command->parts && command->parts[p]; p++)
    offer(to, "", strchr(command->parts[p]->name, ' ') + 1, "", command->parts[p]->summary);
  if (command->takes_deck)
    site_for_decks(offer_deck, (void *)to);
}

/* The typed word follows command and part, and then any words, the last of which is `before`. */
static void offer_word(const struct offer *to, const struct command *command, const char *before,
                       bool first)
{
  const struct option *keys = command->takes_deck ? deck_table : NULL;
  const bool is_value = strchr(to->typed, '=');
  const char *word = is_value ? to->typed : before, *key = word + strspn(word, "-");
  const size_t length = strcspn(key, "=");
  const struct option *option = option_find(command->options, key, length);
  option = option ? option : option_find(keys, key, length);
  if (is_value) {
    char prefix[128];
    snprintf(prefix, sizeof prefix, "%.*s=", (int)strcspn(word, "="), word);
    offer_values(to, prefix, option);
  } else if (*to->typed == '-') {
    offer_options(to, "--", command->options, "");
    offer(to, "--", "help", "", "");
  } else if (!strncmp(before, "--", 2) && !strchr(before, '=') &&
             !(option && option->type == OPTION_BOOL)) {
    offer_values(to, "", option);
  } else if (first) {
    offer_first(to, command);
  } else {
    offer_options(to, "", command->options, "=");
    offer_options(to, "", keys, "=");
  }
}

/* Candidates for the last of `n` words that follow the program's name. */
static void offer_all(const struct offer *to, int n, char **words)
{
  if (n <= 1) {
    offer_commands(to);
    for (const struct builtin *builtin = builtins; builtin->name; builtin++)
      if (builtin->summary)
        offer(to, "", builtin->name, "", builtin->summary);
  } else if (!strcmp(words[0], "help")) {
    if (n == 2) {
      offer_commands(to);
      offer(to, "", "keys", "", "");
    }
    if (n == 3 && !strcmp(words[1], "keys"))
      offer_options(to, "", deck_table, "");
  } else if (!strcmp(words[0], "completion")) {
    for (size_t i = 0; n == 2 && i < sizeof shells / sizeof *shells; i++)
      offer(to, "", shells[i].name, "", "");
  } else {
    const struct command *command = command_find(words[0]);
    if (command)
      offer_word(to, command_part(command, n > 2 ? words[1] : NULL), words[n - 2], n == 2);
  }
}

enum status completion_print(int argc, char **argv)
{
  for (size_t i = 0; argc > 2 && i < sizeof shells / sizeof *shells; i++) {
    const struct offer to = {&shells[i], argc > 4 ? argv[argc - 1] : ""};
    if (strcmp(argv[2], shells[i].name) != 0)
      continue;
    if (argc > 3)
      offer_all(&to, argc - 4, argv + 4);
    else
      fputs(shells[i].script, stdout);
    return STATUS_OK;
  }
  return status_usage("usage: sluice completion bash|zsh|fish");
}
