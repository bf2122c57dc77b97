#!/bin/sh
# The tables and plots of doc/measurements. Oracles: the results in doc/measured; made-up results,
# whose ratios are worked out here by hand.
. "$top_srcdir/tests/cli/common.sh"
need python3
tables=$top_srcdir/bench/gpu_table.py
python3 "$tables" --check || die "a page or plot of doc is not what was measured"

# A plot that was changed by hand is noticed. A plot is well-formed XML, and the lengths of its bars
# are its numbers.
cp -r "$top_srcdir/doc" doc
chmod -R u+w doc
mkdir -p bench
cp "$top_srcdir/bench/"*.py bench
python3 bench/gpu_table.py --check || die "a copy differs"
sed -i 's/fill=/fill =/' doc/images/speed.svg
if python3 bench/gpu_table.py --check 2> check.err; then die "a changed plot passes"; fi
grep -q 'speed.svg differs' check.err || die "$(cat check.err)"
python3 bench/gpu_table.py
cmp doc/images/speed.svg "$top_srcdir/doc/images/speed.svg" ||
  die "another plot from the same numbers"
python3 -c 'import glob, xml.dom.minidom as x
for name in glob.glob("doc/images/*.svg"): x.parse(name)' ||
  die "a plot is no XML"
python3 - <<'END' || die "a bar has another length than its number"
import re, sys
sys.path.insert(0, "bench")
import plots
groups = [("x", [50.0, "gone"]), ("y", [100.0, 25.0])]
svg = plots.bars("t", ["a", "b"], groups, lambda v: f"{v:.0f} %")
widths = [float(w) for w in re.findall(r"width='([\d.]+)' height='15'", svg)]
assert [w / widths[1] for w in widths] == [0.5, 1.0, 0.25], widths
assert ">gone<" in svg and ">50 %<" in svg
svg = plots.scatter("t", "x", "y", [(1, 1, "s"), (1, 4, "s")], lambda x, y: x == y, [1, 2, 4])
point = r"cx='([\d.]+)' cy='([\d.]+)' r='4' stroke='\S+' fill='(\S+)'"
assert re.findall(point, svg) == [
    ("70.0", "464.0", plots.COLORS[0]), ("70.0", "44.0", "#fff")], svg
svg = plots.lines("t", "x", [("a", [(0, 0), (10, 4)]), ("b", [(5, 1)])])
assert re.findall(r"points='([^']*)' .* stroke='(\S+)'", svg) == [
    ("60.0,338.0 690.0,58.0", plots.COLORS[0]), ("375.0,268.0", plots.COLORS[1])], svg
END

# The loss of step N is N + 4 in bf16 and N + 3 in fp8. The mean of N over steps 31 to 60 is 45.5.
# So the mean losses are 49.5 and 48.5.
mkdir -p doc/measured
for compute in bf16 fp8; do
  for step in $(seq 60); do
    echo "{\"kind\":\"step\",\"compute\":\"$compute\",\"step\":$step,\
\"loss\":$((step + ${#compute})),\"tokens\":2500000}"
  done
  echo "{\"kind\":\"eval\",\"compute\":\"$compute\",\"step\":60,\"val_loss\":${#compute}}"
done > doc/measured/curve-tiny.txt
# Losses of fp8 are 1 % and 3 % higher. The standard deviation of 1 and 3 is sqrt(2) = 1.41.
loss() { echo "{\"method\":\"$1\",\"seed\":$2,\"val_loss\":$3}"; }
{ loss bf16 1 2; loss bf16 2 3; loss fp8 1 2.02; loss fp8 2 3.09; loss one 2 3.03
} > doc/measured/fp8-quality-tiny.txt
# Here they are 1 % and 3 % higher too, with a standard error of 1 %. At step 2 there is one pair.
whole() {
  echo "{\"method\":\"$1\",\"seed\":$2,\"step\":$3,\"tokens\":1000000,\"train_loss\":$4,\
\"val_loss\":$5}"
}
{ whole bf16 1 1 4 2; whole bf16 2 1 2 3; whole bf16 3 1 3 4; whole fp8 1 1 4 2.02
  whole fp8 2 1 2 3.09; whole bf16 1 2 1 1; whole fp8 1 2 2 1.5
} > doc/measured/fp8-quality-whole-tiny.txt
{
  printf '<!-- measured: %s tiny -->\nold\n<!-- end -->\n' curve quality
  printf '<!-- measured: whole whole-tiny -->\nold\n<!-- end -->\n'
} > curve.md
python3 bench/gpu_table.py --doc curve.md
grep -qF '| 60 | 2.5 M | 49.500 | 48.500 | 4.000 | 3.000 |' curve.md || {
  cat curve.md >&2; die "curve"; }
grep -qF '| `fp8` | 2 | 2.5550 | +2.00 ± 1.41 |' curve.md || { cat curve.md >&2; die "quality"; }
grep -qF '| `one` | 1 | 3.0300 | +1.00 |' curve.md || { cat curve.md >&2; die "one seed"; }
grep -qF '| 1 | 1.0 M | 3, 2 | 3.000 | 3.000 | +0.00 ± 0.00 | 3.000 | 2.555 | +2.00 ± 1.00 |' \
  curve.md || { cat curve.md >&2; die "whole"; }
grep -qF '| 2 | 1.0 M | 1, 1 | 1.000 | 2.000 | +100.00 | 1.000 | 1.500 | +50.00 |' curve.md || {
  cat curve.md >&2; die "one pair"; }
rm doc/measured/*-tiny.txt

# Two turns of each, whose medians are 20 and 30 ms, 1.50 times as long; of three losses one differs
# in its last digit.
transport() {
  echo "{\"kind\":\"transport\",\"transport\":\"$1\",\"row\":\"$2\",\"gpus\":2}"; echo \
    "{\"kind\":\"bench\",\"step_s\":$3,\"loss\":$4}"
}
{ transport nccl a 0.019 1.5; transport mpi-staged a 0.029 1.5; transport nccl a 0.021 1.5
  transport mpi-staged a 0.031 1.5; transport nccl b 0.02 1.25
  transport mpi-direct b 0.02 1.2500001
} > transports.jsonl
printf '<!-- measured: transports -->\nold\n<!-- end -->\n' > transports.md
python3 "$tables" --doc transports.md transports.jsonl
grep -qF '| a | 2 | mpi-staged | 30.0 | 1.50 | bitwise identical |' transports.md || {
  cat transports.md >&2; die "staged"; }
grep -qF '| b | 2 | mpi-direct | 20.0 | 1.00 | **different** |' transports.md || {
  cat transports.md >&2; die "direct"; }

cat > page.md <<'END'
Before <!-- measured: nothing --> and after.
<!-- measured: attention tiny -->
old
<!-- end -->
<!-- measured: graphs tiny -->
<!-- end -->
<!-- measured: speed -->
old
<!-- end -->
<!-- measured: memory -->
<!-- end -->
<!-- measured: weak -->
<!-- end -->
<!-- measured: where qwen7b -->
<!-- end -->
<!-- measured: classes qwen7b -->
<!-- end -->
The end.
END
cp page.md empty.md
# run ROW GPUS SPEED GFLOPS PLANNED: ours; peer GPUS SPEED BYTES
run() {
  echo "{\"kind\":\"row\",\"row\":\"$1\",\"gpus\":$2}"; echo \
    "{\"kind\":\"bench\",\"ranks\":$2,\"tokens_per_s_rank\":$3,\"model_gflops_rank\":$4,\
\"planned_bytes\":$5,\"device_bytes\":$5}"
}
peer() {
  echo "{\"kind\":\"peer\",\"peer\":\"fsdp2\",\"gpus\":$1,\"tokens_per_s_rank\":$2,\
\"peak_bytes\":$3}"
}
{
  run gpt2 4 610000 395000 10737418240 # 395 of 790 TFLOP/s
  peer 4 500000 21474836480
  run gpt2 4 620000 395000 10737418240 # the median of the two: 615k, 1.23 times the peer's
  run qwen7b 4 13000 592500 21474836480
  peer 4 12500 21474836480
  run llama8b 2 11000 395000 21474836480
  echo '{"kind":"peer","peer":"fsdp2","row":"llama8b","gpus":2,"failure":"out of memory"}'
  run qwen7b-weak 1 10000 1 1
  run qwen7b-weak 2 9600 1 1
  run qwen7b-weak 4 9000 1 1
  run qwen7b-weak-full 2 9600 1 1 # there is no speed of one GPU
  echo '{"kind":"row","row":"gpt2-train","gpus":4}'
  # The first three warm up.
  for step in 1 2 3 4 5 6; do
    echo "{\"kind\":\"step\",\"step\":$step,\"tokens_per_s\":${step}40000}"
  done
} > made.jsonl
cat > trace.txt <<END
rank 0 of 4: steps 3 to 4 in 20.000 ms, 10.000 ms per step

instruction           count    ms per step   of the step       GB/s   of the link
GATHER                   18        2.000        20.0 %     150.00        50.0 %
FORWARD                   8        3.000        30.0 % 
EXCHANGE                  8        1.000        10.0 %     100.00         n/a

operations         per step    ms per step   of the step       rate
products              113.5        5.000        50.0 %      632.0 TFLOP/s
update                  4.0        1.000        10.0 %     2130.0 GB/s

lane                           ms per step   of the step
compute                            9.900        99.0 %

communication 3.000 ms per step, of which 0.100 ms are exposed (the compute lane \
runs nothing); overlap 0.967
link: 300.00 GB/s measured
END
cat > ops-tiny.txt <<END
NVIDIA H200, bf16; a copy reads and writes 4209 GB/s
tiny_1b      attention backward, Hopper's             20.0 us    500.0 TFLOP/s
tiny_1b      attention forward                        10.0 us    400.0 TFLOP/s
tiny_1b      attention backward                       30.0 us    333.3 TFLOP/s
tiny_1b      attention backward, tight                40.0 us    250.0 TFLOP/s
tiny_1b      a block forward                         100.0 us as calls,      110.0 us \
as a graph: -10.00 % less
plain        attention backward                       30.0 us    333.3 TFLOP/s
END
fill() {
  python3 "$tables" --doc page.md --peak 790 --bandwidth 4.26 --trace qwen7b=trace.txt \
    --operations ops-tiny.txt "$@" made.jsonl
}
fill || die "tables"
has() { grep -qxF -e "$1" page.md || { cat page.md >&2; die "no line: $1"; }; }
has '| gpt2 | 4 | 615k | 50.0% | 500k | 40.7% | 1.23 |'
has '| qwen7b | 4 | 13.0k | 75.0% | 12.5k | 72.1% | 1.04 |'
has '| llama8b | 2 | 11.0k | 50.0% | out of memory | – | – |'
has '| gpt2 | 4 | 10.0 | 20.0 | 0.50 | 10.0 | – |'
has '| qwen7b | 4 | 20.0 | 20.0 | 1.00 | 20.0 | – |'
has '| llama8b | 2 | 20.0 | out of memory | – | 20.0 | – |'
has '| qwen7b-weak | 2 | 9.6k | 96.0% | – | – |'
has '| qwen7b-weak | 4 | 9.0k | 90.0% | – | – |'
has '| qwen7b-weak-full | 2 | 9.6k | – | – | – |'
has '| GATHER | 2.000 | 20.0 % | 150.00 | 50.0 % |'
has '| FORWARD | 3.000 | 30.0 % |  |  |'
has '| EXCHANGE | 1.000 | 10.0 % | 100.00 |  |'
has '| products | 113.5 | 5.000 | 50.0 % | 632.0 TFLOP/s | 80.0% |'
has '| update | 4.0 | 1.000 | 10.0 % | 2130.0 GB/s | 50.0% |'
has '- 4 GPUs, 10.000 ms per step'
has '- lanes busy: compute 99.0 %'
has '- communication 3.000 ms per step, of which 0.100 ms are exposed'
has '- overlap 0.967'
has '- link: 300.00 GB/s measured'
has '| tiny 1b | forward | 100.0 | 110.0 | -10.00 % |'
has '| gpt2-train | 4 | 135k | – | 500k | – | 0.27 |'
has '| tiny 1b | 20 | 500 | 30 | 333 | 40 | 1.50 |'
has '| plain | – | – | 30 | 333 | – | – |'

# Nothing else is touched, again makes the same, and a changed digit is noticed.
outside() { sed '/^<!-- measured: /,/^<!-- end -->/{/^<!--/!d;}' "$1"; }
outside page.md > a
outside empty.md > b
cmp a b || die "something outside the markers was changed"
fill --check || die "what was just written is not what was measured"
sed -i 's/615k/616k/' page.md
if fill --check 2> check.err; then die "a changed digit passes"; fi
grep -q "differs from what was measured" check.err || die "$(cat check.err)"

# A short table has a row once: from the machine that also ran the peer, even if it is slower.
printf '<!-- measured: speed main -->\n<!-- end -->\n' > page.md
{ run gpt2 4 700000 395000 1 && run qwen7b 2 14000 592500 1; } > fast.jsonl
fill fast.jsonl || die "a short table"
has '| gpt2 | 4, made | 615k | 50.0% | 500k | 40.7% | 1.23 |'
has '| qwen7b | 2 | 14.0k | 75.0% | – | – | – |'
test "$(grep -c '^| [gql]' page.md)" = 4 || { cat page.md >&2; die "a row is there twice"; }

# Results that belong to no row, ranks that are not the row's.
peer 4 1 1 > bad.jsonl
fails 1 "a result before any row" python3 "$tables" --doc page.md bad.jsonl
run gpt2 4 1 1 1 | sed 's/"ranks":4/"ranks":2/' > bad.jsonl
fails 1 "2 ranks in a row of 4 GPUs" python3 "$tables" --doc page.md bad.jsonl
