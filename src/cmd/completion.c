/* sluice completion: words of the command line, for shells. The tables become functions that bash
 * and zsh both understand; fish has its own form. */
#include <stdio.h>
#include <string.h>

#include "base/prose.h"
#include "cmd/cmd.h"

/* Words of `list` may be names of files, which must not be expanded: compgen -W would execute a
 * command in them. */
static const char bash_end[] =
    "_sluice() {\n"
    "  local IFS=$' \\t\\n' line=${COMP_LINE:0:COMP_POINT} word= list= item\n"
    "  local -a words items\n"
    "  read -ra words <<< \"$line\"\n"
    "  local n=${#words[@]}\n"
    "  [[ $line == *[[:space:]] ]] || word=${words[--n]}\n"
    "  _sluice_candidates \"$n\" \"$word\" \"${words[1]}\" \"${words[2]}\" "
    "\"${words[n-1]}\"\n"
    "  local start=\n"
    "  if [[ $word == *=* ]]; then\n"
    "    [[ $COMP_WORDBREAKS == *=* ]] || start=${word%%=*}=\n"
    "    word=${word#*=}\n"
    "  fi\n"
    "  read -rd '' -a items <<< \"$list\"\n"
    "  COMPREPLY=()\n"
    "  for item in \"${items[@]}\"; do\n"
    "    [[ $item != \"$word\"* ]] || COMPREPLY+=(\"$start$item\")\n"
    "  done\n"
    "  [[ ${COMPREPLY[0]} != *= ]] || compopt -o nospace 2> /dev/null\n"
    "}\n"
    "complete -o bashdefault -o default -F _sluice sluice\n";

static const char zsh_end[] =
    "_sluice() {\n"
    "  emulate -L zsh\n"
    "  local word=$words[CURRENT] list=\n"
    "  _sluice_candidates $((CURRENT - 1)) \"$word\" \"$words[2]\" \"$words[3]\" "
    "\"$words[CURRENT-1]\"\n"
    "  if [[ $word == *=* ]]; then\n"
    "    compset -P '*='\n"
    "    compadd -- ${=list} || _files\n"
    "  else\n"
    "    local -a keys others\n"
    "    keys=(${(M)${=list}:#*=}) others=(${${=list}:#*=})\n"
    "    compadd -S '' -a keys\n"
    "    local found=$?\n"
    "    compadd -a others || test $found = 0 || _files\n"
    "  fi\n"
    "}\n"
    "if [ \"$funcstack[1]\" = _sluice ]; then _sluice; else compdef _sluice sluice; fi\n";

/* sluice deck quotes a name for the shell if that is needed. Such names are not offered. */
#define DECKS "sluice deck 2> /dev/null | sed \"/^'/d; s/ .*//\""

/* Sets `list` for word `1` of the line, of which `2` is typed. 3 and 4: the first two words after
 * sluice; 5: the word before it. An empty list: files. */
static const char candidates[] =
    "_sluice_candidates() {\n"
    "  local command=$3\n"
    "  test -z \"$(_sluice_options \"$3 $4\")\" || command=\"$3 $4\"\n"
    "  case $2 in\n"
    "  --*=* | *=*) set -- \"$1\" \"$2\" \"$3\" \"$4\" \"--${2%%=*}\" ;;\n"
    "  -*)\n"
    "    list=\"$(_sluice_options \"$command\" | sed 's/^/--/; s/ / --/g; s/=//g') --help\"\n"
    "    return\n"
    "    ;;\n"
    "  esac\n"
    "  case $5 in\n"
    "  --*)\n"
    "    list=$(_sluice_values \"$command\" \"${5##*--}\")\n"
    "    case $2:$list in *=*) return ;; *':true false') ;; *) return ;; esac\n"
    "    ;;\n"
    "  esac\n"
    "  case \"$1 $5\" in\n"
    "  '1 '*) list=\"$_sluice_commands help completion schema --version\" ;;\n"
    "  '2 '*)\n"
    "    list=$(_sluice_first \"$command\")\n"
    "    case \" $_sluice_takes_deck \" in *\" $command \"*)\n"
    "      list=\"$list $(" DECKS ")\" ;;\n"
    "    esac\n"
    "    ;;\n"
    "  '3 keys') list=$(echo \"$_sluice_keys\" | sed 's/=//g') ;;\n"
    "  *)\n"
    "    list=$(_sluice_options \"$command\")\n"
    "    case \" $_sluice_takes_deck \" in *\" $command \"*) list=\"$list $_sluice_keys\" ;; esac\n"
    "    ;;\n"
    "  esac\n"
    "}\n";

static void print_names(const struct option *table)
{
  for (const struct option *option = table; option && option->name; option++)
    printf("%s%s=", option > table ? " " : "", option->name);
}

static void print_values(const struct option *option)
{
  for (int i = 0; option->choices && option->choices[i]; i++)
    printf("%s%s", i ? " " : "", option->choices[i]);
  if (option->type == OPTION_BOOL)
    printf("true false");
}

static bool has_values(const struct option *option)
{
  return option->choices || option->type == OPTION_BOOL;
}

/* Each command, and after it its parts, with `of`. */
static void for_all(const struct command *const list[], void (*of)(const struct command *))
{
  for (int i = 0; list[i]; i++) {
    of(list[i]);
    for (int p = 0; list[i]->parts && list[i]->parts[p]; p++)
      of(list[i]->parts[p]);
  }
}

/* ---- bash and zsh */

static void print_options_case(const struct command *command)
{
  if (!command->options)
    return;
  printf("  '%s') echo '", command->name);
  print_names(command->options);
  printf("' ;;\n");
}

/* `start`: of the pattern of a case, before a blank and the key. */
static void print_values_cases(const char *start, const struct option *table)
{
  for (const struct option *option = table; option && option->name; option++) {
    if (!has_values(option))
      continue;
    printf("  %s %s') echo '", start, option->name);
    print_values(option);
    printf("' ;;\n");
  }
}

static void print_own_values(const struct command *command)
{
  char start[64];
  snprintf(start, sizeof start, "'%s", command->name);
  print_values_cases(start, command->options);
}

static void print_first_case(const struct command *command)
{
  if (!command->actions && !command->parts)
    return;
  printf("  '%s') echo '", command->name);
  for (const struct action *action = command->actions; action && action->name; action++)
    printf("%s ", action->name);
  for (int p = 0; command->parts && command->parts[p]; p++)
    printf("%s ", strchr(command->parts[p]->name, ' ') + 1);
  printf("' ;;\n");
}

static void print_name(const struct command *command)
{
  if (!strchr(command->name, ' '))
    printf("%s ", command->name);
}

static void print_deck_name(const struct command *command)
{
  if (command->takes_deck)
    printf("%s ", command->name);
}

static void print_function(const char *name, const struct command *const list[],
                           void (*of)(const struct command *))
{
  printf("%s() {\n  case $1 in\n", name);
  for_all(list, of);
}

static void print_functions(const struct command *const list[])
{
  printf("_sluice_commands='");
  for_all(list, print_name);
  printf("'\n_sluice_takes_deck='");
  for_all(list, print_deck_name);
  printf("'\n_sluice_keys='");
  print_names(deck_table);
  printf("'\n");
  print_function("_sluice_options", list, print_options_case);
  printf("  esac\n}\n");
  print_function("_sluice_first", list, print_first_case);
  printf("  help) echo \"$_sluice_commands keys\" ;;\n  completion) echo 'bash zsh fish' ;;\n"
         "  esac\n}\n_sluice_values() {\n  case \"$1 $2\" in\n");
  for_all(list, print_own_values);
  print_values_cases("*'", deck_table);
  printf("  esac\n}\n");
}

/* ---- fish */

static void print_description(const char *text, int length)
{
  printf(" -d '");
  for (int i = 0; i < length; i++)
    printf(text[i] == '\'' || text[i] == '\\' ? "\\%c" : "%c", text[i]);
  printf("'\n");
}

static void print_fish_option(const char *condition, const struct option *option, bool dashed)
{
  printf("complete -c sluice -n '%s' ", condition);
  if (dashed)
    printf("-l %s%s", option->name,
           option->type == OPTION_BOOL ? ""
           : has_values(option)        ? " -x"
                                       : " -r");
  printf("%s", has_values(option) || !dashed ? " -a '" : "");
  if (dashed && has_values(option))
    print_values(option);
  else if (option->choices)
    for (int i = 0; option->choices[i]; i++)
      printf("%s%s=%s", i ? " " : "", option->name, option->choices[i]);
  else if (option->type == OPTION_BOOL)
    printf("%s=true %s=false", option->name, option->name);
  else if (!dashed)
    printf("%s=", option->name);
  printf("%s", has_values(option) || !dashed ? "'" : "");
  print_description(option->text, prose_sentence(option->text));
}

static void print_fish_words(const struct command *command)
{
  for (const struct action *action = command->actions; action && action->name; action++)
    printf("complete -c sluice -n '__fish_seen_subcommand_from %s' -a %s\n", command->name,
           action->name);
}

static void print_fish_command(const struct command *command)
{
  const char *part = strchr(command->name, ' ');
  char condition[128];
  printf("complete -c sluice ");
  if (part)
    printf("-n '__fish_seen_subcommand_from %.*s' -a %s", (int)(part - command->name),
           command->name, part + 1);
  else
    printf("-f -n __fish_use_subcommand -a %s", command->name);
  print_description(command->summary, (int)strlen(command->summary));
  snprintf(condition, sizeof condition, "__fish_seen_subcommand_from %s",
           part ? part + 1 : command->name);
  for (const struct option *option = command->options; option && option->name; option++)
    print_fish_option(condition, option, true);
  print_fish_words(command);
}

static void print_fish_keys(void)
{
  for (const struct option *option = deck_table; option->name; option++)
    print_fish_option("__fish_seen_subcommand_from $__sluice_takes_deck", option, false);
}

static void print_fish(const struct command *const list[])
{
  printf("set -g __sluice_takes_deck ");
  for_all(list, print_deck_name);
  printf("\n");
  for_all(list, print_fish_command);
  printf("complete -c sluice -n '__fish_seen_subcommand_from $__sluice_takes_deck; and test (count "
         "(commandline -opc)) -eq 2' -a '(sluice deck 2>/dev/null | string match -v \"\\'*\" | "
         "string replace -r \" .*\" \"\")' -d deck\n");
  print_fish_keys();
}

enum status completion_print(const struct command *const list[], const char *shell)
{
  const bool bash = !strcmp(shell, "bash"), zsh = !strcmp(shell, "zsh");
  if (!bash && !zsh && strcmp(shell, "fish") != 0)
    return status_set(STATUS_USAGE, "usage: sluice completion bash|zsh|fish");
  printf("%s Made by: sluice completion %s\n", zsh ? "#compdef sluice\n#" : "#", shell);
  if (!bash && !zsh) {
    print_fish(list);
    return STATUS_OK;
  }
  print_functions(list);
  printf("%s%s", candidates, bash ? bash_end : zsh_end);
  return STATUS_OK;
}
