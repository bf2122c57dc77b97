#!/bin/sh
# Conversations in sluice generate. Oracles: pages that are put together by hand, which generate
# continues as a text on one rank; tokens of pieces, for special tokens that a user writes. And the
# loss of conversations in sluice eval.
. "${top_srcdir:?}/tests/cli/common.sh"
need python3
python3 -c 'import jinja2' 2> /dev/null || lack python3-jinja2

model=$top_srcdir/tests/io/data/tokenizers/qwen2
# chatml NAME END: a template whose turns end with END.
chatml() {
  cat > "$1.jinja" <<END
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '$2\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
END
}
chatml own '<|im_end|>'
chatml other '<|endoftext|>'
chatml open ''
turn() { printf '{"role": "%s", "content": "%s"}' "$1" "$2"; }
awk -v q="$(turn user 'the ship'), $(turn assistant 'opens the gate'), $(turn user 'and then'), \
$(turn assistant 'water moves under it')" \
  'BEGIN { for (i = 0; i < 60; i++) print "{\"messages\": [" q "]}" }' > many.jsonl
cat > tiny.yaml <<END
run:   {steps: 60, seed: 3, threads: 1}
model: {arch: qwen3, layers: 2, width: 48, heads: 3, kv_heads: 3, ffn: 96, context: 160,
        vocab: 1500}
data:  {batch: 4, sequence: 64, micro_batch: 1}
optim: {lr: 1.0e-2, warmup: 2, decay_steps: 60}
END
for name in own other; do
  "$SLUICE" prepare many.jsonl out=data-$name tokenizer="$model" template=$name.jinja \
    > $name.out 2>&1 || { cat $name.out >&2; die "prepare"; }
  train 1 $name data.train=data-$name
done
train 1 random data.train=data-own run.steps=1 model.init_std=0.3

# say RANKS ARGUMENTS...: what is written, of greedy tokens.
say() {
  ranks=$1
  shift
  on "$ranks" "$SLUICE" generate "$@" temperature=0 2> say.err || {
    cat say.err >&2; die "generate $*"; }
}

# ---- pages. by_hand SYSTEM < TURNS: the answers to the turns, each the continuation of a text.
by_hand() {
  system=${1:+<|im_start|>system
$1<|im_end|>
}
  printf %s "$system" > page
  while IFS= read -r turn; do
    if test "$turn" = /new; then printf %s "$system" > page; continue; fi
    printf '<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n' "$turn" >> page
    say 1 random prompt_file=page tokens=9 context="$context" > text < /dev/null
    tail -c "+$(($(wc -c < page) + 1))" text > answer
    cat answer
    head -c -1 answer >> page
    echo '<|im_end|>' >> page
  done
}
# RANKS|CONTEXT|SYSTEM|PROMPT|LINES|TURNS that they are. The last one has more than its context. An
# answer with a control, which is printed as '?', would differ.
while IFS='|' read -r ranks context system prompt lines turns; do
  printf %b "$lines" | say "$ranks" random --chat system="$system" prompt="$prompt" tokens=9 \
    context="$context" > got
  printf '%b\n' "$turns" | by_hand "$system" > want
  test "$(wc -c < want)" -gt 20 || die "these answers tell too little: $(cat want)"
  cmp got want || { cat got want >&2; die "another conversation: $lines"; }
done <<'END'
3|160|||the ship\nwater\nand then\n|the ship\nwater\nand then
2|160|Be "brief".||w\\n"\n\n\n/new\ngate\r\n|w\\n"\n/new\ngate
1|160||gate opens|a\0377b\nwater|gate opens\nwater
3|48|||the gate\nthe gate and water and ship\nrank|the gate\nthe gate and water and ship\nrank
END

# ---- special tokens that a user writes are text
ids() { "$SLUICE" tokenizer encode "$model" text="$1" plain="$2"; }
pieces="$(ids '<|im_start|>user
' false) $(ids 'a<|im_end|>b' true) $(ids '<|im_end|>
<|im_start|>assistant
' false)"
say 1 random ids="$(echo "$pieces" | tr ' ' ,)" tokens=9 | tail -n 1 > ids.txt
{ "$SLUICE" tokenizer decode "$model" ids.txt; echo; } > want
echo 'a<|im_end|>b' | say 1 random --chat tokens=9 | cmp - want ||
  die "a user writes a special token"

# ---- the end of a turn: the tokenizer's, or another one that the template has. The tokens of
# earlier turns stay in the cache.
printf 'opens the gate\nwater moves under it\n' > want
printf '<|im_start|>user\nthe ship<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n'\
'<|im_start|>user\nand then<|im_end|>\n<|im_start|>assistant\n' > read.txt
read=$("$SLUICE" tokenizer encode "$model" read.txt | wc -w)
for name in own other; do
  for ranks in 1 3; do
    printf 'the ship\nand then\n' | say $ranks $name --chat | cmp - want ||
      die "$name on $ranks ranks goes on after a turn"
    grep -q "^$((read - 1)) tokens read .*; the last one is the end of text$" say.err || {
      cat say.err >&2; die "not $((read - 1)) tokens are read"; }
  done
done
echo 'the ship' | say 1 other --chat template=open.jinja tokens=20 > got
head -n 1 got | grep -q '^opens the gate.' || die "an answer ends where its template has no end"

# ---- templates: that of the data comes before that of the folder that a run began with
"$SLUICE" ckpt export own folder tokenizer="$model" > export.out 2>&1 || {
  cat export.out >&2; die "export"; }
echo '{{ raise_exception("not this one") }}' > folder/chat_template.jinja
train 1 tuned data.train=data-own train.init=folder run.steps=1 model.context=160
echo 'the ship' | say 1 tuned --chat > got
echo 'opens the gate' | cmp - got || die "another template than that of the data"
# A template that refuses the second turn: the user is asked again.
echo '{{ raise_exception("one turn") if messages | length > 2 else messages[0].content }}' \
  > one.jinja
printf 'the ship\nwater\n/new\nthe ship\n' | say 1 own --chat template=one.jinja tokens=3 > got
test "$(grep -c 'warning: the chat template, line 1: one turn$' say.err)" = 1 || {
  cat say.err >&2; die "no warning of a turn that is refused"; }
test "$(wc -l < got)" -ge 2 && test "$(head -n 1 got)" = "$(tail -n 1 got)" || {
  cat got >&2; die "a refused turn stays"; }

# ---- the loss of conversations. Oracle: log-likelihoods of what is trained, each after its page.
cat > bare.jinja <<'END'
{% for m in messages %}{{ '<|im_start|>' + m.role + '<|fim_prefix|>' + m.content + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant<|fim_prefix|>' }}{% endif %}
END
user='<|im_start|>user<|fim_prefix|>' asks='<|im_end|><|im_start|>assistant<|fim_prefix|>'
first="${user}the ship$asks"
second="${first}opens the gate<|im_end|>${user}and then$asks"
question() { printf '{"query": "%s", "choices": ["%s"], "gold": 0}\n' "$1" "$2"; }
# TRAIN;EOT;the first answer;the second one
while IFS=';' read -r trained eot a b; do
  rm -rf scored scores.jsonl
  "$SLUICE" prepare many.jsonl out=scored tokenizer="$model" template=bare.jinja val=0.2 \
    train=$trained eot=$eot > prepare.out 2>&1 || { cat prepare.out >&2; die "train=$trained"; }
  {
    test -z "$a" || question "$first" "$a"
    test -z "$b" || question "$second" "$b"
  } > pieces.jsonl
  "$SLUICE" eval random choices=pieces.jsonl delimiter= results=scores.jsonl > scores.out 2>&1 || {
    cat scores.out >&2; die "eval of pieces"; }
  want=$(sed -n 's/.*"log_likelihood":\[-\([^]]*\)\].*/\1/p' scores.jsonl |
    awk '{ s += $1 } END { print s }' CONVFMT=%.17g OFMT=%.17g)
  n=$("$SLUICE" tokenizer encode "$model" \
    text="$a<|endoftext|>$b" | wc -w)
  for ranks in 1 3; do
    on $ranks "$SLUICE" eval random data.val=scored > loss.out 2> loss.err < /dev/null || {
      cat loss.err >&2; die "eval of conversations"; }
    sed -n 's/.* loss \([^ ]*\)  perplexity \([^ ]*\)  (\([0-9]*\) tokens.*/\1 \2 \3/p' loss.out |
      awk -v want="$want" -v n=$((n - 1)) '{ e = $1 * n / want - 1; p = $2 / exp($1) - 1
        ok = e * e < 1e-12 && p * p < 1e-10 && $3 > n && $3 % n == 0 } END { exit !ok }' || {
      cat loss.out >&2; die "train=$trained eot=$eot: not the mean of $want over $n tokens"; }
  done
done <<'END'
assistant;turn;opens the gate<|im_end|>;water moves under it<|im_end|>
assistant;no;opens the gate;water moves under it
assistant;last;opens the gate;water moves under it<|im_end|>
last;turn;;water moves under it<|im_end|>
END

# ---- refusals: CODE|SENTENCE|arguments
path=$PATH
mkdir bin
fake() { printf '#!/bin/sh\n%s\n' "$1" > bin/python3; chmod +x bin/python3; }
refused() {
  while IFS='|' read -r code text words; do
    # shellcheck disable=SC2086 # words
    fails "$code" "$text" env PATH="$path" "$SLUICE" generate $words < /dev/null
  done
}
: > empty.jinja
refused <<END
2|system and template are for a conversation: add --chat|own system=x
2|system and template are for a conversation: add --chat|own template=own.jinja
2|ids cannot be combined with|own --chat ids=1
8|has no chat template: name a file of one with template=FILE|own --chat tokenizer=$model
8|the chat template cannot be read: |own --chat template=nothing.jinja
3|the chat template, line 1: not this one|folder --chat
3|the chat template gives no text|own --chat template=empty.jinja
END
real=$(command -v python3)
path=$scratch/bin:$PATH
fake "exec $real -S \"\$@\""
echo "8|conversations need the Python package Jinja2|own --chat" | refused
fake "exit 9"
echo "6|the process that renders conversations ended (exit status 9)|own --chat" | refused
path=$scratch/nowhere
echo "8|conversations need python3, which cannot be started|own --chat" | refused
