#!/bin/sh
# Help: -h fits a screen of 24 lines with the prompt, --help fits 80 columns or COLUMNS up to 100,
# keys of decks stand in one place, and man pages are sound. Oracles: these limits; the keys that
# deck.yaml of a plan echoes; groff.
. "${top_srcdir:?}/tests/cli/common.sh"
need groff
unset COLUMNS

# narrow FILE COLUMNS: no line is longer.
narrow() {
  awk -v most="$2" 'length > most { print "too long: " $0; bad = 1 } END { exit bad }' "$1" >&2 ||
    die "$3 has lines of more than $2 columns"
}

"$SLUICE" --help | sed -n 's/^  \([a-z][a-z]*\)  .*/\1/p' > commands
test "$(wc -l < commands)" -ge 10 || die "the subcommands are not listed"
{ cat commands && printf 'bench adam\nbench io\nbench rates\n'; } | while read -r command; do
  # shellcheck disable=SC2086 # words
  {
    "$SLUICE" $command -h > short
    "$SLUICE" $command --help > long
    "$SLUICE" help $command > other
    COLUMNS=500 "$SLUICE" $command --help > wide
  }
  narrow short 80 "$command -h"
  narrow long 80 "$command --help"
  narrow wide 100 "$command --help at COLUMNS=500"
  test "$(wc -l < short)" -le 23 || die "$command -h has $(wc -l < short) lines"
  cmp -s long other || die "sluice help $command is another text than $command --help"
  for page in short long; do
    head -n 1 $page | grep -q "^usage: sluice $command" ||
      die "$command: usage is not first in $page"
    examples=$(sed -n '/^Examples:/,/^$/p' $page | grep -c 'sluice')
    case $page in
    short) test "$examples" = 2 || die "$command -h has $examples examples" ;;
    long) test "$examples" -ge 3 || die "$command --help has $examples examples" ;;
    esac
  done
  # The line of exit codes has only codes that there are.
  sed -n 's/^Exit codes: \(.*\); all: sluice --exit-codes$/\1/p' long | tr , '\n' > codes
  test "$(wc -l < codes)" -ge 2 || die "$command --help has no line of exit codes"
  while read -r code meaning; do
    "$SLUICE" --exit-codes "$code" > /dev/null && test -n "$meaning" ||
      die "$command --help has the exit code '$code'"
  done < codes
  case $command in
  train | plan | bench) grep -q '^  shard.strategy ' long ||
    die "$command --help does not name the keys of a deck" ;;
  *) ! grep -q '^  shard.strategy' long || die "$command --help has the keys of a deck" ;;
  esac
done

"$SLUICE" -h > short
narrow short 80 "sluice -h"
test "$(wc -l < short)" -le 23 || die "sluice -h has $(wc -l < short) lines"
for word in help schema completion; do
  "$SLUICE" $word -h | cmp - short || die "$word -h is another text than sluice -h"
done

# Every key, a section of them, one of them, and none.
"$SLUICE" help keys > keys
narrow keys 80 "help keys"
test "$(grep -c '^  [a-z]*\.[a-z0-9_]*  (' keys)" -ge 82 ||
  die "help keys has fewer keys than the table"
"$SLUICE" help keys shard | sed -n 's/^  \([a-z_.]*\)  (.*/\1/p' > names
grep -qx shard.strategy names || die "help keys shard does not have shard.strategy"
! grep -qv '^shard\.' names || die "help keys shard has keys of other sections"
"$SLUICE" help keys shard.strategy | grep -q '^ *full_shard  .*(ZeRO-3, FSDP)' ||
  die "help keys shard.strategy does not explain full_shard"
"$SLUICE" help keys lr | grep -q '^  optim\.lr  (' || die "help keys lr does not find optim.lr"
"$SLUICE" help keys optim.lr | grep -qx ' *Example: optim\.lr=3e-4' ||
  die "help keys optim.lr has no example"
test "$(grep -c '^      Example: ' keys)" = "$(grep -c '^  [a-z.]*\.[a-z0-9_]*  (' keys)" ||
  die "a key has no example"
! "$SLUICE" help keys train | grep -q '^  data\.' ||
  die "help keys train has keys of other sections"
# Each example is accepted, with the keys that it needs. Oracle: the checks before a run.
echo 'data: {batch: 256, micro_batch: 1}' > example.yaml
model="model.layers=12 model.width=48 model.heads=12 model.context=64 model.vocab=257"
mkdir models
cp -r "$top_srcdir/tests/model/data/qwen2" models/qwen2.5-7b # has the name in the example
mkdir adapters
cp -r "$top_srcdir/tests/model/data/qwen2-lora" adapters/first
llama="model.arch=llama model.ffn=96"
sed -n "s/^ *Example: //p" keys | sed "s/^'//; s/'$//" > examples
while read -r example; do
  case $example in
  train.freeze=* | model.rope_theta=* | model.kv_heads=* | model.tied=*) needs=$llama ;;
  train.frozen=*) needs="train.freeze=[*.bias]" ;;
  lora.init=*) needs="train.init=models/qwen2.5-7b" ;;
  lora.targets=*) needs="lora.rank=4 $llama" ;;
  lora.alpha=* | lora.rslora=* | lora.base=*) needs=lora.rank=4 ;;
  model.head_width=*) needs="model.arch=qwen3 model.ffn=96" ;;
  model.rope_scaling=* | model.rope_factor=*)
    needs="$llama model.rope_scaling=linear model.rope_factor=8" ;;
  model.rope_*) needs="$llama model.rope_scaling=llama3 model.rope_factor=8 model.rope_low_freq=1
    model.rope_high_freq=4 model.rope_original=8192" ;;
  model.arch=*) needs=model.ffn=96 ;;
  model.window=*) needs="model.arch=mistral model.ffn=96" ;;
  model.window_from=*) needs="model.arch=qwen2 model.ffn=96 model.layers=24 model.window=32" ;;
  data.sequence=*) needs=model.context=2048 ;;
  train.objective=*) needs=data.micro_batch=2 ;;
  shard.group=*) needs=shard.strategy=hybrid_shard ;;
  compress.grads.levels=*) needs=compress.grads.codec=qsgd ;;
  compress.grads.rank=*) needs=compress.grads.codec=powersgd ;;
  compress.grads.threshold=*) needs=compress.grads.codec=threshold ;;
  compress.grads.*=* | compress.feedback=* | compress.warmup=*) needs=compress.grads.codec=topk ;;
  compress.weights.codec=*) needs= ;;
  compress.weights.*=*)
    needs="compress.weights.codec=topk compress.weights.delta=true shard.strategy=shard_optim" ;;
  data.weights=*) needs="data.train=[a,b]" ;;
  optim.rounding=*) needs=optim.moments=bf16 ;;
  checkpoint.keep_every=*) needs=checkpoint.every=100 ;;
  tiers.*=* | transfer.*=* | optim.state=*) needs="tiers.params=host tiers.optimizer=host" ;;
  *) needs= ;;
  esac
  case $example in
  train.init=*) needs= ;;
  lora.init=*) ;;
  *) needs="$model $needs" ;;
  esac
  # shellcheck disable=SC2086 # words
  "$SLUICE" plan example.yaml ranks=8 $needs "$example" > plan.out 2>&1 ||
    { cat plan.out >&2; die "the example $example is refused"; }
done < examples
# A word that is no key finds the keys that mention it, or the key that replaces another program's.
"$SLUICE" help keys Recompute | grep -q '^  tiers\.activations  ' ||
  die "help keys Recompute does not find tiers.activations"
"$SLUICE" help keys precision | tr '\n' ' ' | grep -q ": use run.compute. The keys above" ||
  die "help keys precision does not name run.compute"
fails 2 "there is no deck key or section 'grad_accum': use data.micro_batch" \
  "$SLUICE" help keys grad_accum
fails 2 "there is no deck key or section 'shardz'; the nearest" "$SLUICE" help keys shardz
fails 2 "there is no subcommand 'trian': did you mean" "$SLUICE" help trian
"$SLUICE" help optim.lr > key
"$SLUICE" help keys optim.lr | cmp - key || die "help optim.lr is not help keys optim.lr"
! grep -qE '[0-9]{6}' keys || {
  grep -nE '[0-9]{6}' keys >&2; die "help keys prints a bound that nobody reaches"; }

# Man pages: the keys are in one of them.
for page in "" keys $(cat commands); do
  # shellcheck disable=SC2086 # no word at all for sluice(1)
  "$SLUICE" --man $page > page.man
  case $page in
  keys)
    grep -q '^\\fBshard.strategy\\fR' page.man || die "sluice-deck(5) does not have shard.strategy"
    grep -q '^\.TH .* 5 ' page.man || die "the page of the keys is not in section 5"
    ;;
  *)
    ! grep -q '^\\fBshard.strategy\\fR' page.man || die "the page of $page has the keys of a deck"
    grep -q '^\.TH .* 1 ' page.man || die "the page of $page is not in section 1"
    ;;
  esac
  date=$("$SLUICE" --version | sed -n 's/^  date  *//p')
  grep -q "^\.TH [A-Z-]* [15] \"${date#unknown}\" " page.man ||
    die "the page of '$page' has no date"
  for section in EXAMPLES FILES ENVIRONMENT 'EXIT STATUS'; do
    grep -qx "\.SH $section" page.man || die "the page of '$page' has no $section"
  done
  if ! groff -man -ww -z page.man > groff.out 2>&1 || test -s groff.out
  then cat groff.out >&2; die "groff on the page of $page"; fi
done

# Each environment variable that the source asks for is explained.
"$SLUICE" --man | sed -n '/^\.SH ENVIRONMENT/,/^\.SH EXIT/p' |
  sed 's/\\f[BR]//g; s/\\//g' > environment
(cd "$top_srcdir" && grep -rhoE --include='*.c' \
  'getenv\("[A-Z_a-z]+"\)|"(HWLOC|LSB|PBS|SLURM)_[A-Z_]+"' src io gpu &&
  grep -oE '"[A-Z0-9_]+"' src/comm/launch.c) | sed 's/.*"\(.*\)".*/\1/' | sort -u > names
test "$(wc -l < names)" -ge 10 || die "no names of environment variables"
while read -r name; do
  grep -qw -e "$name" environment || die "sluice(1) does not explain $name"
done < names
