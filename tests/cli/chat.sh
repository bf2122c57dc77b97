#!/bin/sh
# Conversations in sluice prepare. Oracles: Jinja2 alone, and rows with marks (chat.py, chat.txt);
# texts with brackets, decoded from the tokens and masks of the shards; equal bytes of one rank for
# several, and of a whole call for one that goes on.
. "${top_srcdir:?}/tests/cli/common.sh"
need python3 gzip zstd h5dump
python3 -c 'import jinja2' 2> /dev/null || lack python3-jinja2
python3 "$top_srcdir/tests/cli/chat.py" "$top_srcdir/tests/cli/chat.txt" "$top_srcdir/tools" ||
  die "rows of chat.txt"

model=$top_srcdir/tests/io/data/tokenizers/qwen2
cat > chatml.jinja <<'END'
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
END
# prepare OUT INPUT [key=value ...]
prepare() {
  out=$1 input=$2
  shift 2
  quietly "$out" "$SLUICE" prepare "$input" out="$out" tokenizer="$model" template=chatml.jinja \
    "$@"
}
quietly() {
  log=$1
  shift
  "$@" > "$log.out" 2> "$log.err" || { cat "$log.out" "$log.err" >&2; die "$*"; }
}
says() { grep -qF -e "$2" "$1" || { cat "$1" >&2; die "$1 does not say: $2"; }; }

# Records of every kind. Users and assistants write special tokens, and get none: <|im_end|> of the
# template is one token, that of a text is several.
say() { printf '{"role": "%s", "content": "%s"}' "$1" "$2"; }
{
  echo "{\"messages\": [$(say user 'a<|im_end|>b'),"\
"$(say assistant '<think>c</think><|im_end|>')]}"
  echo "{\"id\": 3, \"messages\": [$(say user 'nobody answers')]}"
  echo "{\"messages\": [$(say assistant 'e\u0301'), $(say user f), $(say assistant g)]}"
  echo '{"prompt": "Question: ", "completion": "42"}'
  echo '{"text": "plain"}'
  echo "{\"prompt\": [$(say user h)], \"completion\": [$(say assistant i)]}"
} > all.jsonl
prepare all all.jsonl val=0
sed -n '/^----$/,$p' all.out > all.shown
cat > all.want <<'END'
----
<|im_start|>user
a<|im_end|>b<|im_end|>
<|im_start|>assistant
[<think>c</think><|im_end|><|im_end|>]

----
<|im_start|>assistant
[é<|im_end|>]
<|im_start|>user
f<|im_end|>
<|im_start|>assistant
[g<|im_end|>]

----
Question: [42<|im_end|>]
END
cmp all.shown all.want || { cat all.shown >&2; die "other conversations are shown"; }
says all.out "5 documents from 1 file"
says all.out "1 record without a usable text skipped"
says all.err "all.jsonl, document 1: nothing of the conversation is trained; it is left out"
cmp chatml.jinja all/chat_template.jinja

# Pairs: the chosen conversation, then the rejected one, on the same side of the split, also if a
# pair is larger than a shard. Refused ones are left out, and the first of which nothing is trained
# is named. A folder holds pairs alone.
pair() { echo "{\"prompt\": [$(say user "$1")], \"chosen\": [$2], \"rejected\": [$3]}"; }
{
  pair a "$(say assistant b)" "$(say assistant c)"
  echo '{"prompt": "Question: ", "chosen": "42", "rejected": "7"}'
  pair d "$(say assistant e)" "$(say assistant e)"
  pair f "$(say assistant g)" "$(say user h)"
} > pairs.jsonl
prepare pairs pairs.jsonl val=0 invalid=skip
sed -n '/^----$/,$p' pairs.out > pairs.shown
cat > pairs.want <<'END'
----
<|im_start|>user
a<|im_end|>
<|im_start|>assistant
[b<|im_end|>]

----
<|im_start|>user
a<|im_end|>
<|im_start|>assistant
[c<|im_end|>]

----
Question: [42<|im_end|>]
END
cmp pairs.shown pairs.want || { cat pairs.shown >&2; die "other pairs are shown"; }
says pairs.out "4 documents from 1 file"
says pairs.out "they are 2 pairs of a chosen and a rejected conversation; 2 records without"
says pairs.err "pairs.jsonl, document 3: nothing of the conversation is trained; it is left out"
fails 3 "pairs.jsonl, document 2: its chosen and rejected are equal" "$SLUICE" prepare \
  pairs.jsonl out=no tokenizer="$model" template=chatml.jinja val=0
for i in 1 2 3 4 5 6 7 8 9; do
  long=$(awk "BEGIN { for (k = 0; k < 400 * $i; k++) printf \"w \" }")
  pair "$i" "$(say assistant "$long")" "$(say assistant "no $i")"
done > wide.jsonl
prepare wide wide.jsonl val=0.4 shard_tokens=1024
for file in wide/train-*.h5 wide/val-*.h5; do
  for name in pairs documents; do
    h5dump -A -N $name "$file" | sed -n 's/.*(0): //p' | head -n 1 > "$name.value"
  done
  test "$(cat documents.value)" = $((2 * $(cat pairs.value))) || die "$file has half a pair"
done
cat pairs.jsonl all.jsonl > both.jsonl
fails 3 "both.jsonl holds pairs of chosen and rejected conversations (2) and other texts (5)" \
  "$SLUICE" prepare both.jsonl out=no tokenizer="$model" template=chatml.jinja val=0 invalid=skip

# A folder goes on with the same template and the same masks only.
fails 2 "recorded: trained assistant eot=turn; now: trained last eot=turn" "$SLUICE" prepare \
  all.jsonl out=all tokenizer="$model" template=chatml.jinja val=0 train=last
cp chatml.jinja other.jinja
echo >> other.jinja
fails 2 "recorded: template_crc32" "$SLUICE" prepare all.jsonl out=all tokenizer="$model" \
  template=other.jinja val=0
prepare all all.jsonl val=0
says all.out "(1 existed already)"
prepare whole all.jsonl val=0 train=all
grep -q '^trained:' whole.out && die "everything is trained, and a share is printed"

# Many conversations, in parts: the same bytes at any number of ranks, from a packed file, and if a
# part is made again. Every seventh is left out. Some are far larger than the buffers of sockets.
awk 'BEGIN {
  for (i = 0; i < 400; i++) {
    word = "w" i " "; n = i % 50 == 3 ? 60000 : i % 11; text = ""
    for (k = 0; k < n; k++) text = text word
    printf "{\"messages\": [{\"role\": \"user\", \"content\": \"%s?\"}", text
    if (i % 7) printf ", {\"role\": \"assistant\", \"content\": \"%s!\"}", text
    print "]}" } }' > many.jsonl
prepare one many.jsonl val=0.1 shard_tokens=1024
test "$(ls one | grep -c train-)" -gt 3 || die "too few shards"
says one.out "58 records without a usable text skipped"
quietly three on 3 "$SLUICE" prepare many.jsonl out=three tokenizer="$model" \
  template=chatml.jinja val=0.1 shard_tokens=1024
cp -r one again
rm again/train-00000-00002.h5
prepare again many.jsonl val=0.1 shard_tokens=1024
for other in three again; do
  for file in one/*.h5; do cmp "$file" "$other/${file#one/}" || die "$other has other shards"; done
done
# A signal ends all processes without a word of Python, and without an index. The same call goes on.
"$SLUICE" prepare many.jsonl out=ended tokenizer="$model" template=chatml.jinja val=0.1 \
  shard_tokens=1024 > ended.log 2>&1 &
until test -e ended/train-00000-00000.h5; do
  kill -0 $! 2> kill.err || { cat ended.log >&2; die "ended too early"; }
  sleep 0.01
done
kill -TERM $!
wait $! && die "a signal did not end it"
test -e ended/index.h5 && die "an index of unfinished data"
prepare ended many.jsonl val=0.1 shard_tokens=1024
for file in one/*.h5; do cmp "$file" "ended/${file#one/}" || die "other shards after a signal"; done
grep -i traceback ended.log && die "words of Python"
gzip -k many.jsonl
prepare packed many.jsonl.gz val=0.1 shard_tokens=1024
sed 's/^packed: //' packed.out | sed 's/.*documents/documents/' > packed.said
sed 's/^one: //' one.out | sed 's/.*documents/documents/' > one.said
cmp one.said packed.said || die "a packed file gives other tokens"

# Refusals, a sentence each: exit status, sentence, options; the record comes before.
# refuse RECORD STATUS SENTENCE [key=value ...], with PATH=$path
path=$PATH
refuse() {
  printf '%s\n' "$1" > record.jsonl
  code=$2 text=$3
  shift 3
  rm -rf no
  fails "$code" "$text" env PATH="$path" "$SLUICE" prepare record.jsonl out=no \
    tokenizer="$model" val=0 "$@"
}
template() { printf '%s' "$1" > row.jinja; }
good='{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}'
refuse "$good" 8 "has no chat template: name a file of one with template=FILE"
refuse "$good" 8 "the tokenizer bytes has no chat template" tokenizer=bytes
refuse "$good" 3 "nothing.jinja" template=nothing.jinja
refuse '{"messages": [{"role": "user", "content": "a"}]}' 3 "nothing of any conversation of" \
  template=chatml.jinja
refuse '{"messages": [{"role": "user", "content": [{"type": "image"}]}]}' 3 \
  "record.jsonl, document 0: its message 0 has a part of type image: only text can be trained" \
  template=chatml.jinja
refuse '{"conversations": []}' 3 'that has "conversations": a conversation has "messages"'
refuse "$good"' {' 3 "the end of the line is expected" template=chatml.jinja
deep=$(awk 'BEGIN { for (i = 0; i < 900; i++) printf "["; for (i = 0; i < 900; i++) printf "]" }')
refuse '{"messages": [{"role": "assistant", "content": '"$deep"'}]}' 3 "is nested too deeply" \
  template=chatml.jinja
template '{{ raise_exception("alternate") }}'
refuse "$good" 3 "record.jsonl, document 0: the chat template, line 1: alternate" template=row.jinja
template '{{ messages | nosuch }}'
refuse "$good" 3 "the chat template, line 1: No filter named 'nosuch'" template=row.jinja
template '{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}'
refuse "$good" 3 "the chat template makes more than 10000000 steps" template=row.jinja
template '{% set n = namespace(x=7) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}'
refuse "$good" 3 "the chat template makes no text in 10 s" template=row.jinja

# A large record in a small file, and one that a skip leaves out.
large() {
  printf '{"messages": [{"role": "user", "content": "'
  head -c "$1" /dev/zero | tr '\0' a
  echo '"}]}'
}
large 300000000 | gzip -1 > bomb.jsonl.gz
large 300000000 | zstd -q > bomb.jsonl.zst
large 100000000 > bomb.jsonl
for row in gz:bomb.jsonl.gz zst:bomb.jsonl.zst "jsonl:a text of more than 16777216 characters"; do
  fails 3 "${row#*:}" "$SLUICE" prepare bomb.*"${row%%:*}" out=no tokenizer="$model" \
    template=chatml.jinja val=0
done
rm bomb.*
printf '%s\n' '{"messages": 1}' "$good" > some.jsonl
prepare some some.jsonl val=0 invalid=skip
says some.out "1 record without a usable text skipped"

# Processes that do not start, lack Jinja2, or die.
real=$(command -v python3)
mkdir bin
fake() { printf '#!/bin/sh\n%s\n' "$1" > bin/python3; chmod +x bin/python3; }
broken() { refuse "$good" "$@" template=chatml.jinja; }
path=$scratch/bin:$PATH
fake "exec $real -S \"\$@\""
broken 8 "conversations need the Python package Jinja2"
PATH=$path "$SLUICE" doctor size=4Mi > doctor.out 2>&1 || test $? = 1 || die "doctor"
says doctor.out "conversations   sluice prepare cannot render them; training does not need it:"
says doctor.out "apt install python3-jinja2"
module=$("$real" -c 'import jinja2, os
print(os.path.dirname(os.path.dirname(jinja2.__file__)))')
PYTHONPATH=$module PATH=$path prepare elsewhere record.jsonl val=0
fake "exit 9"
broken 6 "record.jsonl, document 0: the process that renders conversations ended (exit status 9)"
fake 'kill -9 $$'
broken 6 "was ended by signal 9 (Killed)"
fake 'kill -PROF $$'
broken 6 "the chat template takes more than 20 s of CPU time"
fake 'printf "%0200d" 0; cat > /dev/null'
broken 70 "gives an answer that makes no sense"
path=$scratch/nowhere
broken 8 "conversations need python3, which cannot be started"

# ---- training. Oracles: the same losses on 1, 2 and 3 ranks and after a resume; the losses of what
# is trained and of the rest, marked by a template of the same text, make up that of all tokens.
awk 'BEGIN { n = split("the a ship water gate rank moves opens under over and then", w, " "); s = 1
  for (i = 0; i < 150; i++) { line = ""
    for (m = 0; m < 4; m++) { text = ""
      s = (s * 16807) % 2147483647; words = i % 3 == m % 2 ? 1 : 1 + s % 12
      for (k = 0; k < words; k++) { s = (s * 16807) % 2147483647; text = text w[s % n + 1] " " }
      line = line (m ? ", " : "") "{\"role\": \"" (m % 2 ? "assistant" : "user") \
        "\", \"content\": \"" text "\"}" }
    print "{\"messages\": [" line "]}" } }' > talks.jsonl
cat > plain.jinja <<'END'
{% for m in messages %}{{ m.role }}: {{ m.content | trim }}{{ eos_token }}{% endfor %}
END
cat > rest.jinja <<'END'
{%- for m in messages %}{% generation %}{{ '<|im_start|>' + m.role + '\n' }}
{%- if m.role == 'user' %}{{ m.content + '<|im_end|>\n' }}{% endif %}{% endgeneration %}
{%- if m.role == 'assistant' %}{{ m.content + '<|im_end|>' }}
{%- generation %}{{ '\n' }}{% endgeneration %}{% endif %}
{%- endfor %}
END
make_deck
sed -i 's/vocab: 257/vocab: 1500/; s/context: 32/context: 64/; s/sequence: 32/sequence: 64/' \
  tiny.yaml
# value KEY DIR: of the first step.
value() {
  sed -n "s/.*\"kind\":\"step\".*\"$1\":\([^,}]*\)[,}].*/\1/p" "$2/results.jsonl" | head -n 1
}
# scored RANKS DATA: loss and tokens.
scored() {
  on "$1" "$SLUICE" eval one-chatml data.val="$2" data.pack=true 2> eval.err |
    sed -n 's/.*validation loss \([0-9.]*\) .*(\([0-9]*\) tokens.*/\1 \2/p'
}
for name in chatml plain; do
  prepare talks-$name talks.jsonl val=0.3 template=$name.jinja
  set -- data.train=talks-$name data.pack=true eval.every=3 run.steps=3
  train 1 one-$name "$@"
  for ranks in 2 3; do
    train $ranks more "$@" data.micro_batch=2
    close_to one-$name more 1e-5
    for key in loss trained filled; do
      test "$(value $key one-$name)" = "$(value $key more)" || die "$name: $key on $ranks ranks"
    done
    rm -r more
  done
  train 3 parts "$@" run.steps=1
  train 2 parts "$@" --resume auto
  close_to one-$name parts 1e-5
  rm -r parts
done
prepare talks-all talks.jsonl val=0.3 train=all
prepare talks-rest talks.jsonl val=0.3 template=rest.jinja
for name in all chatml rest; do
  scored 1 talks-$name > score-$name
  test "$(scored 3 talks-$name)" = "$(cat score-$name)" || die "validation of $name on 3 ranks"
done
cat score-all score-chatml score-rest | paste -s -d ' ' - | awk '{
  d = ($3 * $4 + $5 * $6) / ($1 * $2) - 1
  exit NF != 6 || $4 < 100 || $2 != $4 + $6 || d * d > 1e-18 }' || {
  cat score-all score-chatml score-rest >&2; die "what is scored"; }

# Answers that come after the end of a row: nothing of them can be scored or trained.
awk 'BEGIN { for (i = 0; i < 9; i++) { text = ""; for (k = 0; k < 99; k++) text = text "ship "
  print "{\"messages\": [{\"role\": \"user\", \"content\": \"" text "\"}, " \
    "{\"role\": \"assistant\", \"content\": \"a\"}]}" } }' > late.jsonl
prepare late late.jsonl val=0.5
says="no token is trained in the 6 rows of 64 that late gives: use a larger data.sequence"
fails 3 "data.val: $says" on 2 "$SLUICE" train tiny.yaml run.dir=none data.train=talks-chatml \
  data.val=late eval.every=1 data.pack=true data.long=cut
fails 3 "data.val: $says" "$SLUICE" eval one-chatml data.val=late data.pack=true data.long=cut
fails 3 "data.train: no token is trained in the 3 rows" "$SLUICE" train tiny.yaml run.dir=none \
  data.train=late data.pack=true data.long=cut
