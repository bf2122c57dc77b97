#!/bin/sh
# Completion for bash, zsh and fish. Oracles: the shells; the lists in --help; the keys that sluice
# deck prints.
. "${top_srcdir:?}/tests/cli/common.sh"
need bash zsh fish
make_deck
mkdir -p bin share/inputs/finetune
ln -s "$SLUICE" bin/sluice
PATH=$PWD/bin:$PATH
export PATH SLUICE_DATADIR="$PWD/share"
for shell in bash zsh fish; do
  "$SLUICE" completion $shell > script.$shell
  "$shell" -n script.$shell || die "$shell refuses its script"
done
fails 2 "usage: sluice completion bash|zsh|fish" "$SLUICE" completion csh
fails 2 "usage: sluice completion bash|zsh|fish" "$SLUICE" completion

# The completions at the end of a line.
in_bash() {
  bash -c '. ./script.bash; COMP_LINE=$1 COMP_POINT=${#1}; _sluice
    printf "%s\n" "${COMPREPLY[@]}"' - "$1"
}
# The commands of zsh that only a widget may call print what they get.
in_zsh() {
  zsh -fc 'compdef() { }; . ./script.zsh
    compset() { }
    compadd() { local -a all; [[ $* == *keys ]] && all=($keys); [[ $* == *others ]] && all=($others)
      [[ $1 == -- ]] && all=(${@:2}); all=(${(M)all:#${line[-1]}*}); print -rl -- $all
      (( $#all )); }
    _files() { print FILES; }
    line=("${(@s: :)1}"); words=("${line[@]}"); CURRENT=$#words; _sluice' - "$1"
}
in_fish() { fish -c 'source script.fish; complete -C $argv[1]' "$1" | cut -f 1; }

# offers LINE WORD...: bash and zsh offer exactly these words, in any order, and fish offers them
# too.
offers() {
  line=$1
  shift
  printf '%s\n' "$@" | sort > expected
  key=$(printf '%s' "$line" | sed -n 's/.* \(-*[a-z._]*=\).*/\1/p')
  for shell in bash zsh; do # zsh replaces the whole word
    in_$shell "$line" | sed "s/^$key//" | grep -v '^$' | sort > got || true
    cmp -s expected got || {
      diff expected got >&2 || true; die "$shell: what comes after '$line'"; }
  done
  in_fish "$line" > got # with files, and with words that have the letters elsewhere
  for word; do
    grep -qxF -e "$key$word" got || { cat got >&2; die "fish does not offer $word after '$line'"; }
  done
}
offers "sluice doc" doctor
offers "sluice tr" train
offers "sluice ckpt d" diff
offers "sluice bench ra" rates
offers "sluice train tiny.yaml optim.bet" optim.betas=
offers "sluice train tiny.yaml shard.strategy=no" no_shard
offers "sluice plan tiny.yaml optim.nesterov=" true false
offers "sluice plan tiny.yaml --mode=e" eval
offers "sluice bench adam --kern" --kernel
test "$(in_bash 'sluice bench io th')" = threads= || die "bash: bench io does not have threads"
test "$(in_fish 'sluice plan tiny.yaml --mode e')" = eval || die "fish: values of --mode"
test "$(in_bash 'sluice plan tiny.yaml --mode e')" = eval || die "bash: values of --mode"
test "$(in_bash 'sluice help keys optim.be')" = optim.betas || die "bash: help keys"
test -z "$(in_bash 'sluice train --help tin')" || die "bash: the word --help is a request"
test -z "$(in_bash 'sluice train tin')" || die "bash: a deck is a file"
test "$(in_zsh 'sluice train tin' | tr -d '\n')" = FILES || die "zsh: a deck is a file"

# Every command, every key of a deck and every own option.
"$SLUICE" --help | sed -n 's/^  \([a-z][a-z]*\)  .*/\1/p' > commands
for command in $(cat commands); do
  in_bash "sluice $command" | grep -qx "$command" || die "bash does not know $command"
  in_fish "sluice $command" | grep -qx "$command" || die "fish does not know $command"
done
"$SLUICE" help keys | sed -n 's/^  \([a-z.]*\.[a-z0-9_]*\)  (.*/\1=/p' | sort > expected
in_bash 'sluice train tiny.yaml ' | grep '\.' | sort > got
cmp expected got || die "bash has other keys than sluice help keys"
for command in plan doctor report; do
  "$SLUICE" $command --help | sed -n '/^Options/,$s/^  \([a-z_0-9]*\)  (.*/--\1/p' | sort > expected
  in_bash "sluice $command tiny.yaml --" | grep -v -e --help | sort > got
  cmp expected got || die "bash has other options of $command than --help"
done

# A name of a deck that a shell would read as more than a word is not offered, and nothing in it is
# executed. All other names are offered.
# shellcheck disable=SC2016,SC2088 # nothing is expanded
for name in '$(touch${IFS}executed)' '`touch${IFS}executed`' '${x:=$(touch${IFS}executed)}' \
  ';touch executed;' '|touch executed' '&touch executed' '>executed' '<(touch executed)' \
  'e*' '?' '[a-z]*' '~' '!!' 'a b' "it's" 'a"b' 'a\b' '-x' '--help' '$HOME' '{a,b}' '#a' '^a' \
  "$(printf 'new\nline')" "$(printf 'a\tb')" "$(printf 'a\033[2J')" "$(printf 'a\342\200\256b')"
do
  : > "share/inputs/$name.yaml"
  : > "share/inputs/finetune/$name.yaml"
done
for name in plain qwen2.5-7b with_low a+b finetune/plain; do
  echo '# A deck' > "share/inputs/$name.yaml"
done
: > plainer # a file that e* does not match
sluice deck > decks
test "$(wc -l < decks)" = "$(find share -name '[!-]*.yaml' -printf '.\n' | wc -l)" ||
  { cat decks >&2; die "a deck is not listed in one line"; }
grep -q "^'finetune/it'\\\\''s' " decks || { cat decks >&2; die "names are not quoted"; }
for shell in bash zsh fish; do
  # shellcheck disable=SC2016
  for part in '' pl fin e '$' '`' '-' "'"; do
    in_$shell "sluice train $part" > got 2>&1 || true
    test ! -e executed || die "$shell executed a command in the name of a deck"
    ! grep -q '[^A-Za-z0-9._+=/-]' got || test "$shell $part" = 'fish $' || # its variables
      { cat got >&2; die "$shell offers a name that is no word after 'sluice train $part'"; }
  done
  in_$shell "sluice train " > got
  for name in plain qwen2.5-7b with_low a+b finetune/plain; do
    grep -qx -e "$name" got || { cat got >&2; die "$shell does not offer the deck $name"; }
  done
done
