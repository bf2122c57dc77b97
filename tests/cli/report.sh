#!/bin/sh
# sluice report: the page and the table. Oracles: awk over results.jsonl; an XML parser; the numbers
# at the axes of a chart, by which its points are the recorded values; formulas on made-up records.
# tools/sluice_results.py: tables of the same records.
. "${top_srcdir:?}/tests/cli/common.sh"
need python3
make_data
make_deck

page() { python3 "$top_srcdir/tests/cli/report.py" "$@"; }
# report DIR... [key=value ...]: must succeed. The page is report.html, and must be well-formed.
report() {
  "$SLUICE" report "$@" > report.out 2> report.err || { cat report.err >&2; die "report $*"; }
  page count report.html body | grep -qx 1 || die "report $*: the page is broken"
}
# cell TABLE ROW COLUMN VALUE
cell() {
  got=$(page cell report.html "$1" "$2" "$3")
  test "$got" = "$4" || die "table $1, row $2, column $3 has '$got', not '$4'"
}
# near TABLE ROW COLUMN VALUE: relatively within the digits of the page.
near() {
  got=$(page exact report.html "$1" "$2" "$3")
  awk -v a="$got" -v b="$4" 'BEGIN { d = a - b; exit !(d * d <= 1e-14 * b * b) }' ||
    die "table $1, row $2, column $3 is $got, not $4"
}
# has ELEMENT TEXT: an element of the page with this text.
has() {
  page text report.html "$1" > text.out
  grep -qxF -e "$2" text.out || { cat text.out >&2; die "no element $1 has the text: $2"; }
}
says() { grep -qF -e "$1" report.err || { cat report.err >&2; die "report does not say: $1"; }; }
# values FILE KIND KEY: what the records of a kind have, one per line.
values() { sed -n "s/.*\"kind\":\"$2\".*\"$3\":\([^,}]*\)[,}].*/\1/p" "$1"; }

# Runs of a matrix: means and deviations of methods over seeds.
cat > m.yaml <<END
out: lab
deck: tiny.yaml
ranks: [1, 2]
seeds: [4, 5]
common: run.steps=6 eval.every=4 eval.batches=1 checkpoint.every=3
methods: [none, int8 compress.grads.codec=int8]
END
"$SLUICE" compare m.yaml > compare.out 2>&1 || { cat compare.out >&2; die "compare"; }
report lab
for method in tiny-2-none tiny-2-int8; do
  for seed in 4 5; do
    values lab/$method-$seed/results.jsonl step loss | tail -n 1
  done | awk '{ x[NR] = $1 } END { d = x[1] - x[2]
    printf "%.4f \302\261 %.4f\n", (x[1] + x[2]) / 2, (d < 0 ? -d : d) / sqrt(2) }' > expected
  cell summary $method "train loss" "$(cat expected)"
  cell summary $method finished "2 of 2"
  cell summary $method steps 6
  cell summary $method "at step" 6
  cell summary $method tokens 2,304
  near summary $method tokens/s "$(for seed in 4 5; do
    values lab/$method-$seed/results.jsonl step seconds |
      awk 'NR > 2 { s += $1 } END { printf "%.17g\n", 4 * 12 * 32 / s }'
  done | awk '{ s += $1 } END { printf "%.17g", s / NR }')"
  near summary $method "step p50, ms" "$(for seed in 4 5; do
    values lab/$method-$seed/results.jsonl step seconds | sed 1,2d | sort -g | sed -n 2p
  done | awk '{ s += $1 } END { printf "%.17g", 1000 * s / NR }')"
done
ppl() {
  for seed in 4 5; do values lab/tiny-2-"$1"-$seed/results.jsonl eval perplexity | tail -n 1; done |
    awk '{ s += $1 } END { printf "%.17g", s / NR }'
}
near summary tiny-2-int8 "val perplexity" "$(ppl int8)"
near summary tiny-2-int8 "perplexity change" \
  "$(awk -v a="$(ppl int8)" -v b="$(ppl none)" 'BEGIN { printf "%.17g", a / b - 1 }')"
cell summary tiny-2-none "perplexity change" -
near summary tiny-2-int8 ratio "$(values lab/tiny-2-int8-4/results.jsonl run compression_ratio)"
best=$(values lab/tiny-1-none-4/results.jsonl eval loss | sort -g | head -n 1)
cell events tiny-2-none-4 saves \
  "2, at steps 3, 6 ($(values lab/tiny-2-none-4/results.jsonl save blocked_seconds |
    awk '{ s += $1 } END { printf "%.3g", s }') s of training held)"
cell keys compress.grads.codec tiny-2-int8 int8
page text report.html figcaption | grep -x "Validation perplexity" > lines ||
  die "there is no chart of quality against ratio"
awk 'length > 80 { bad = 1 } END { exit bad }' report.out ||
  die "the table is wider than 80 columns"
grep -q "^tiny-2-int8  *2  *6 .* $(printf %.3f "$(ppl int8)") .* %\$" report.out ||
  { cat report.out >&2; die "the table does not have the perplexity"; }
mean=$(for seed in 4 5; do
  values lab/tiny-2-int8-$seed/results.jsonl step seconds
done | awk 'NR % 6 > 2 || NR % 6 == 0 { s += $1 } END { printf "%.2f", 1000 * s / 8 }')
grep -q "^tiny-2-int8  *2  *6  *[0-9]*  *$mean " report.out ||
  { cat report.out >&2; die "ms/step is not the mean $mean"; }
sed 's/http:..www.w3.org[^"]*//g' report.html > stripped
if grep 'src=\|href=\|@import\|url(\|://' stripped; then die "the page needs another file"; fi
page rows report.html summary > names
test "$(head -n 2 names | tr '\n' ' ')" = "tiny-1-none tiny-2-none " ||
  die "the methods that others are compared with are not first"
page head report.html summary > names
grep -qx sent names || die "no bytes of a codec"
test "$(page loose report.html)" = 0 || die "a table widens the window"

# One run: the page has the recorded values, and curves go through them.
run=lab/tiny-1-none-4
report $run
near summary tiny-1-none-4 best "$best"
page curve report.html "Training loss" tiny-1-none-4 $run/results.jsonl step loss
page curve report.html "Validation loss" tiny-1-none-4 $run/results.jsonl eval loss
page curve report.html "Learning rate" tiny-1-none-4 $run/results.jsonl step lr
page curve report.html "Gradient norm" tiny-1-none-4 $run/results.jsonl step grad_norm
if page curve report.html "Training loss" tiny-1-none-4 $run/results.jsonl step lr 2> curve.err
then die "any curve passes"; fi
page curve report.html "Host memory of rank 0, GB" tiny-1-none-4 \
  $run/results.jsonl step host_bytes 1e-9
has td "$(date -u -d "@$(values $run/results.jsonl start time)" '+%Y-%m-%d %H:%M:%S UTC')"
has td "$("$SLUICE" --version | sed -n 's/^  commit  *//p')"
for title in "GPU memory of rank 0, GB" "Model FLOP/s utilization, percent"; do
  page text report.html figcaption > titles
  ! grep -qx "$title" titles || die "a chart without numbers: $title"
done
page head report.html summary > names
for column in ratio sent "gradient error" "perplexity change"; do
  ! grep -qx "$column" names || die "without a codec there is a column $column"
done
cp report.html first.html
report $run $run/ ./$run lab/../$run
cmp report.html first.html || die "a folder that is named twice is read twice"

# A run that goes on does not count next to finished ones, but it counts alone.
sed '/"step":[456],/d; /"kind":"run"/d' lab/tiny-2-none-5/results.jsonl > results.new
mv results.new lab/tiny-2-none-5/results.jsonl
report lab
cell summary tiny-2-none finished "1 of 2"
cell summary tiny-2-none steps 6
near summary tiny-2-none "train loss" \
  "$(values lab/tiny-2-none-4/results.jsonl step loss | tail -n 1)"
report lab/tiny-2-none-5
cell summary tiny-2-none-5 steps 3
cell events tiny-2-none-5 end running
has div "lab/tiny-2-none-5: running, step 3 of 6."
says "warning: lab/tiny-2-none-5: running, step 3 of 6."
sed 's/"time":[0-9]*/"time":1780000000/' lab/tiny-2-none-5/results.jsonl > results.new
mv results.new lab/tiny-2-none-5/results.jsonl
report lab/tiny-2-none-5
cell events tiny-2-none-5 end "no record"
says "tiny-2-none-5: stopped after step 3 of 6 without a record of the end, and no record"

# The method that others are compared with is first. One seed has no spread.
report lab/tiny-2-int8-4 lab/tiny-1-int8-4 lab/tiny-2-none-4
page rows report.html summary > names
test "$(head -n 1 names)" = tiny-2-none-4 || die "the base is not first"
page text report.html figcaption > titles
! grep -qx "Validation perplexity" titles || die "one seed of a method has a spread"

# A resumed run has two starts.
train 2 resumed run.steps=3
train 2 resumed run.steps=6 --resume auto
report resumed
cell events resumed resumes "1, at step 3"
cell events resumed end finished
sed 's/"end":"finished","reason":"[^"]*"/"end":"unfinished","reason":"SIGTERM"/' \
  resumed/results.jsonl > results.new
cp results.new resumed/results.jsonl
report resumed
cell events resumed end unfinished
has div "resumed: unfinished after step 6 of 6: SIGTERM."

# The module for scripts: starts, a torn line, values that are not known.
printf '{"kind":"step","step":7,' >> resumed/results.jsonl
echo '{"kind":"step","step":1,"loss":null,"busy":{"a":0.5},"unit":"h.0"}' > some.jsonl
echo '{"kind":"step","step":2,"loss":NaN,"unit":null}' >> some.jsonl
PYTHONPATH=$top_srcdir/tools python3 -B - <<'END' || die "sluice_results.py"
import ast, glob, json, math, os
from sluice_results import read, table
rows = read("resumed")
lines = open("resumed/results.jsonl").read().split("\n")[:-1]
starts = [row.pop("start") for row in rows]
assert rows == [json.loads(line) for line in lines]
assert starts == sorted(starts) and starts[0] == 1 and starts[-1] == 2, starts
steps = table(read("resumed"), "step")
assert steps["step"] == [1, 2, 3, 4, 5, 6] and steps["start"] == [1, 1, 1, 2, 2, 2], steps
assert steps["loss"] == [row["loss"] for row in rows if row["kind"] == "step"]
assert all(math.isnan(value) for value in steps["mfu"])
some = table(read("some.jsonl"), "step")
assert list(some) == ["kind", "step", "loss", "busy.a", "unit", "start"], list(some)
assert math.isnan(some["loss"][0]) and math.isnan(some["loss"][1]) and some["busy.a"][0] == 0.5
assert some["unit"] == ["h.0", None]
assert table(rows, "nothing") == {}
for path in glob.glob(os.environ["top_srcdir"] + "/tools/*.py"):  # Python 3.8 reads them
    ast.parse(open(path).read(), path, feature_version=(3, 8))
END

# MFU, lanes, and the errors of codecs: one point per step, the mean over units.
train 2 more compress.grads.codec=int8 compress.sample=2 eval.every=2 eval.batches=1 run.peak=0.001
report more
page curve report.html "Model FLOP/s utilization, percent" more more/results.jsonl step mfu 100
sed -n 's/.*"kind":"compression".*"step":\([0-9]*\).*"grad_rel_error":\([^,]*\).*/\1 \2/p' \
  more/results.jsonl | awk '{ sum[$1] += $2; n[$1]++ } END { for (s = 2; s <= 6; s += 2)
    printf "{\"kind\":\"mean\",\"step\":%d,\"error\":%.9g}\n", s, sum[s] / n[s] }' > means.jsonl
page curve report.html "Relative error of encoded gradients" more means.jsonl mean error
sed -n 's/.*"kind":"lanes".*"step":\([0-9]*\).*"compute":\([^,}]*\).*/\1 \2/p' more/results.jsonl |
  awk '{ printf "{\"kind\":\"busy\",\"step\":%d,\"busy\":%s}\n", $1, $2 }' > busy.jsonl
page curve report.html "Compute lane of rank 0, percent busy" more busy.jsonl busy busy 100

# Made-up runs: fake DIR CODEC, with steps of one second. RANKS is in the environment. The user sets
# the codec.
fake() {
  mkdir -p "$1"
  : > "$1/deck.yaml"
  sed -n 's/"compress.grads.codec":"none"/"compress.grads.codec":"'"$2"'"/
    s/"compress.grads.codec",//; s/,"compress.grads.codec"\]/]/
    s/"ranks":2/"ranks":'"${RANKS:-2}"'/; /"kind":"start"/p' lab/tiny-2-none-4/results.jsonl \
    > "$1/results.jsonl"
  for step in 1 2 3 4 5 6 7 8 9 10; do
    echo '{"kind":"step","step":'$step',"loss":'$((20 - step))',"grad_norm":1,"lr":1e-'$step','
  done | sed 's/$/"seconds":1,"tokens_per_s":100}/' >> "$1/results.jsonl"
  printf '{"kind":"run","end":"finished","ranks":%d,"first_step":0,"step":10,"skipped":0,%s}\n' \
    "${RANKS:-2}" "$3" >> "$1/results.jsonl"
}
grep -q '"compress.grads.codec":"none"' lab/tiny-2-none-4/results.jsonl ||
  die "the deck names no codec"
bytes='"bytes_raw_total":80000000,"bytes_compressed_total":20000000'
by_op='"comm_time_ms_by_op":{"EXCHANGE":30,"GATHER":10}'
fake a-none none \
  '"grad_rel_error":0,"bytes_raw_total":8,"bytes_compressed_total":8,"comm_ratio":0.5,'\
'"overlap_ratio":0.2,'"$by_op"
fake a-int8 int8 "$bytes,"'"comm_ratio":0.25,"overlap_ratio":0,"grad_rel_error":0.01,'\
'"compress_time_ms":40,"decompress_time_ms":20'
RANKS=1 fake one none '"comm_ratio":0,"overlap_ratio":null'
report a-none a-int8 one
page curve report.html "Learning rate" one one/results.jsonl step lr
cell summary a-none "gradient error" -
cell summary a-int8 "gradient error" "1.00 %"
# Saved: 60 MB over 10 steps and 2 ranks. In 60 ms.
near breakeven a-int8 break-even 5e7
cell breakeven a-int8 break-even "0.4 Gbit/s"
near summary a-int8 ratio 4
near communication a-none "share of the step" 0.5
near communication a-none "exposed, ms" 400
cell communication a-none "by operation" "EXCHANGE 37.5 %, GATHER 12.5 %"
cell communication one "share of the step" "0.0 %"
cell communication one "exposed, ms" 0.00
test "$(page rows report.html communication | tr '\n' ' ')" = "a-none one a-int8 " ||
  die "rank counts of one deck do not follow each other"
test "$(page parts report.html a-none)" = "p0:600 p2:400" ||
  die "the parts of a step are $(page parts report.html a-none)"
test "$(page parts report.html a-int8)" = "p0:690 p1:60 p2:250" ||
  die "the parts of a step are $(page parts report.html a-int8)"
# Traced steps: a step of 2 s, of which the compute lane runs 1.2 s; in proportion to the mean step.
{
  grep -v '"kind":"run"' a-none/results.jsonl
  echo '{"kind":"trace","step_s":2,"exposed_idle_s":0.8,"busy_comm_s":1,"exposed_comm_s":0.5}'
} > traced.jsonl
cp traced.jsonl a-none/results.jsonl
report a-none
test "$(page parts report.html a-none)" = "p0:600 p2:250 p3:150" ||
  die "the parts of a traced step are $(page parts report.html a-none)"
near communication a-none "share of the step" 0.5

# Steps that are not finite are gaps, and are listed.
mkdir gaps
sed '1,$s/"kind":"run".*//; /"step":[46],/s/"loss":[^,]*/"loss":null/' one/results.jsonl |
  grep kind > gaps/results.jsonl
report gaps
cell events gaps "steps not finite" "2, at steps 4, 6"
test "$(page pieces report.html "Training loss" gaps)" = 3 || die "the curve has no gaps"

# A long run makes a small page that keeps the one high value. Streams of any length are read.
mkdir long
awk 'BEGIN { for (i = 1; i <= 100000; i++)
  printf "{\"kind\":\"step\",\"step\":%d,\"loss\":%d,\"grad_norm\":1,\"seconds\":0.5}\n", \
    i, i == 77777 ? 90 : 80 + i % 3 }' > long/results.jsonl
report long
test "$(wc -c < report.html)" -lt 200000 || die "the page has $(wc -c < report.html) bytes"
page top report.html "Training loss" long | awk '{ exit !($1 > 89.9 && $1 < 90.1) }' ||
  die "the largest loss on the page is $(page top report.html "Training loss" long)"
near summary long steps 100000

# Names and texts of any kind. A character that XML does not have is replaced.
odd='<b a="1">&amp; '"'"'é<td>'
mkdir "$odd" "$(printf 'bad\377\001')"
text='"version":"<script>alert(1)<\/script>\\u0007","hosts":["n\&1","<n2>"]'
sed 's/"kind":"run"/&,'"$text/" \
  one/results.jsonl > "$odd/results.jsonl"
cp one/results.jsonl "$(printf 'bad\377\001')"
report "$odd"
test "$(page count report.html script)" = 1 || die "a text of a record became a script"
has td "<script>alert(1)</script>$(printf '\357\277\275')"
has td "n&1, <n2>"
has title "$odd"
report "$(printf 'bad\377\001')"
has summary "$(printf 'bad\357\277\275\357\277\275')"
grep -qF 'bad' report.out || die "the table has no name"

# A run that goes on: any part of the file makes a page. The last line is not damaged but torn.
mkdir cut
tail -n 11 a-int8/results.jsonl > short.jsonl # without the deck of the start
size=$(wc -c < short.jsonl)
for at in $(seq 0 37 "$size"); do
  head -c "$at" short.jsonl > cut/results.jsonl
  report cut
  ! grep -q damaged report.err || die "cut at byte $at: $(cat report.err)"
done
head -c 200 short.jsonl > cut/results.jsonl
report cut
says "cut/results.jsonl: the last line is incomplete."
: > cut/results.jsonl
report cut
says "cut: no step was completed."
cell summary cut steps 0
has div "cut: no step was completed."

# Damaged lines are counted and left out: no JSON, no UTF-8, a NUL byte, no object, one without end.
{
  sed -n 1,2p one/results.jsonl
  echo '{"kind":"step","step":3,"loss":'
  printf '{"kind":"st\377ep"}\n'
  printf 'a\000b\n'
  echo '[1, 2]'
  printf '{"kind":"'
  head -c 2000000 /dev/zero | tr '\0' x
  echo '"}'
  sed -n '3,$p' one/results.jsonl
} > cut/results.jsonl
report cut
says "cut/results.jsonl: 5 of 17 lines are damaged and left out, the first in line 3."
near summary cut steps 10
for byte in $(seq 1 97 "$size"); do # a byte that is another one
  head -c "$byte" short.jsonl > cut/results.jsonl
  { printf '\042'; tail -c +$((byte + 2)) short.jsonl; } >> cut/results.jsonl
  report cut
done

# Numbers that no run has fit into their columns.
for number in 1e300 -1e300 1e15 1e999 5e-324 1234567890123456789012; do
  mkdir -p cut
  sed "s/\"\(seconds\|loss\|tokens_per_s\|grad_norm\)\": *[0-9.e+-]*/\"\1\":$number/g
    s/\"tokens\": *[0-9]*/\"tokens\":9007199254740993/" a-int8/results.jsonl > cut/results.jsonl
  report cut
  "$SLUICE" report cut out=cut.html > cut.out 2>&1 || { cat cut.out >&2; die "report of $number"; }
  ! grep -q '[0-9]\{16\}' cut.out || { cat cut.out >&2; die "a number of more than 15 digits"; }
done

# Impossible requests give a message of one sentence.
mkdir empty pipe
mkfifo pipe/results.jsonl
fails 3 "empty holds no results.jsonl: name a run folder" "$SLUICE" report empty
fails 3 "there is no folder nowhere" "$SLUICE" report lab nowhere
fails 3 "pipe/results.jsonl" timeout 20 "$SLUICE" report pipe
fails 4 "nowhere" "$SLUICE" report one out=nowhere/page.html
fails 2 "usage" "$SLUICE" report
fails 4 "cannot write to standard output" sh -c '"$1" report one > /dev/full' - "$SLUICE"

# The script needs Python, no variables and no modules of the user, and a whole installation.
fails 8 "report needs python3, which cannot be started (No such file or directory): install" \
  env PATH="$PWD/empty" "$SLUICE" report one
mkdir evil
echo 'raise SystemExit(9)' | tee json.py evil/json.py > evil/re.py
PYTHONPATH=$PWD/evil PYTHONHOME=$PWD/evil "$SLUICE" report one > report.out 2>&1 ||
  die "a module of the user was run"
cp "$SLUICE" evil/sluice
fails 3 "there is no script empty/tools/report.py: install all of Sluice" \
  env SLUICE_DATADIR=empty evil/sluice report one
SLUICE_DATADIR=$top_srcdir evil/sluice report one > report.out 2>&1 ||
  die "the script of the installation"
rm -rf pipe
