#!/bin/sh
# Event files for TensorBoard. Oracles: a reader of its own, which checks each CRC, and the lines of
# results.jsonl.
. "${top_srcdir:?}/tests/cli/common.sh"
need python3
make_data
make_deck

events() { python3 "$top_srcdir/tests/cli/tensorboard.py" "$@" || die "damaged events: $*"; }
# of_events DIR NAME: step and value of a number, one per line.
of_events() { events "$1" | awk -v name="$2" '$2 == name { print $1, $3 }'; }
# of_results DIR KIND KEY
of_results() {
  sed -n "s/.*\"kind\":\"$2\".*\"step\":\([0-9]*\).*\"$3\":\([^,}]*\).*/\1 \2/p" "$1/results.jsonl"
}
# agree DIR NAME KIND KEY: the same steps, and the same values in fp32.
agree() {
  of_events "$1" "$2" > events.txt
  of_results "$1" "$3" "$4" > results.txt
  test -s results.txt || die "$1: no $4 in results.jsonl"
  paste -d ' ' events.txt results.txt | awk '{ d = $2 - $4; if (d < 0) d = -d
      bad += NF != 4 || $1 != $3 || d > 1e-6 * ($4 < 0 ? -$4 : $4) } END { exit bad > 0 }' ||
    { paste events.txt results.txt >&2; die "$1: $2 is not $4 of results.jsonl"; }
}
# all_agree DIR
all_agree() {
  agree "$1" loss/train step loss
  agree "$1" optimizer/learning_rate step lr
  agree "$1" optimizer/gradient_norm step grad_norm
  agree "$1" speed/tokens_per_s step tokens_per_s
  agree "$1" speed/step_s step seconds
  agree "$1" loss/validation eval loss
  agree "$1" validation/perplexity eval perplexity
}

train 2 plain eval.every=2 eval.batches=1
all_agree plain
events plain | sed -n 1p | grep -qx '1 start ' || die "the run has no start"
of_events plain memory/host_gb | awk '$2 > 0.001 { n++ } END { exit n != 6 }' || die "memory"
for lane in compute gather reduce; do
  of_events plain lanes_busy/$lane > lane.txt
  # Steps 1 and 2 are warm-up steps.
  awk '$2 <= 0 || $2 > 1.01 || $1 < 4 { bad = 1 } END { exit bad || NR < 2 }' lane.txt ||
    { cat lane.txt >&2; die "share of time of the lane $lane"; }
done
test -z "$(of_events plain speed/mfu)" || die "an MFU without a peak"
test -z "$(events plain | grep compression || :)" || die "errors of messages that have none"

# MFU is inversely proportional to the time of a step and to the peak.
train 1 peak run.peak=0.001 run.steps=3
of_events peak speed/mfu > mfu.txt
of_events peak speed/step_s | paste -d ' ' mfu.txt - |
  awk '{ x = $2 * $4; if (NR == 1) first = x; d = x / first - 1; bad += x <= 0 || d * d > 1e-10 }
    END { exit bad > 0 || NR != 3 }' || { cat mfu.txt >&2; die "MFU"; }
"$SLUICE" bench tiny.yaml steps=1 warmup=0 peak=0.001 results=bench.txt > bench.out
said() { sed -n "s/.*\"$1\": *\([0-9.e+-]*\).*/\1/p" bench.txt; }
model=$(said model_gflops_rank) seconds=$(said step_s)
of_events peak speed/step_s | paste -d ' ' mfu.txt - | awk -v flops="$model" -v s="$seconds" '
  { d = $2 * $4 / (flops * s) - 1; bad += d * d > 0.01 } END { exit bad > 0 }' ||
  { cat bench.txt mfu.txt >&2; die "MFU is not what sluice bench says"; }

# Magnitudes of operands in fp8.
test -z "$(events plain | grep fp8 || :)" || die "magnitudes of fp8 in fp32"
train 2 coded run.compute=fp8 run.steps=2 model.width=128 model.heads=2 model.context=128 \
  data.sequence=128
agree coded fp8/amax step fp8_amax
agree coded fp8/saturated step fp8_saturated

# Errors of messages: means over units.
train 2 int8 compress.grads.codec=int8 compress.sample=2
of_events int8 compression/grad_rel_error > errors.txt
of_results int8 compression grad_rel_error |
  awk '{ sum[$1] += $2; n[$1]++ } END { for (s in sum) printf "%d %.9g\n", s, sum[s] / n[s] }' |
  sort -n | paste -d ' ' errors.txt - | awk '{ d = $2 / $4 - 1; bad += $1 != $3 || d * d > 1e-10 }
    END { exit bad > 0 || NR != 3 }' || { cat errors.txt >&2; die "errors of messages"; }

# A resumed run has each step once, although the run had gone on after its checkpoint.
train 2 again eval.every=2 eval.batches=1 run.steps=5 checkpoint.every=3 checkpoint.at_end=false
of_events again loss/train | awk 'END { exit NR != 5 }' || die "5 steps"
printf 'torn' >> "$(ls again/*tfevents*)"
cp -r again before
train 2 again eval.every=2 eval.batches=1 --resume auto
all_agree again
test "$(ls again/*tfevents* | wc -l)" = 2 || die "a file per start"
of_events again loss/train | awk '$1 != NR { bad = 1 } END { exit bad || NR != 6 }' ||
  die "steps of a resumed run"
# A TensorBoard that has read the old file drops its later events at the start of the new one.
newest=$(ls again/*tfevents* | tail -n 1)
! python3 "$top_srcdir/tests/cli/tensorboard.py" before > torn.out 2>&1 ||
  die "an incomplete record is read"
old=$(ls before/*tfevents*)
size=$(wc -c < "$old")
head -c $((size - 4)) "$old" > whole
rm "$old"
mv whole "$old"
cp "$newest" before
events --shown before | awk '$2 == "loss/train" { bad += $1 != ++n } END { exit bad || n != 6 }' ||
  die "a running TensorBoard would show steps twice"

# Other files stay as they are, also if their names are similar.
echo other > again/events.out.tfevents.1.other
train 1 again run.tensorboard=false run.steps=7 --resume auto
grep -qx other again/events.out.tfevents.1.other || die "the file of another program has changed"
train 1 off run.tensorboard=false run.steps=1
! ls off/*tfevents* > ls.out 2>&1 || die "run.tensorboard=false writes events"

# A file that cannot be read is warned of, and the run goes on. tests/io/results/test_events.c fills
# a disk.
mkdir -p full/events.out.tfevents.1700000000.sluice
train 1 full run.steps=2
grep -q 'warning: TensorBoard may show steps twice: ' full.log || die "nobody was warned"
losses full | awk 'END { exit NR != 2 }' || die "the run did not go on"
