#!/bin/sh
# The tables and plots of offload in doc/measurements. Oracles: the results in doc/measured; made-up
# results, whose ratios are worked out here by hand; the program itself, whose line for a trace
# fills a row.
. "${top_srcdir:?}/tests/cli/common.sh"
need python3
tables=$top_srcdir/bench/offload_table.py
python3 "$tables" --check || die "a page or plot of doc/measurements is not what was measured"

for name in summary accuracy speed memory busy exposed forecast passes sweep rates adam io \
  saves; do
  printf 'Before %s.\n<!-- measured: %s -->\nold\n<!-- end -->\n' "$name" "$name"
done > page.md
cp page.md empty.md

# The exposed parts that a trace records of a step, and the part of this that older files got right.
trace() {
  echo "{\"kind\":\"trace\",\"first\":2,\"steps\":$(($1 + \
2)),\"seconds\":0.3,\"steady_steps\":$1,\"step_s\":$2,\"exposed_idle_s\":$3,$exposed}"
}
exposed='"busy_comm_s":5e-6,"exposed_comm_s":5e-6,"busy_copy_s":30e-6,"exposed_copy_s":10e-6,'\
'"busy_update_s":20e-6,"exposed_update_s":0,"busy_disk_s":0,"exposed_disk_s":0'

# run ROW GPUS SPEED STEP DEVICE_BYTES
run() {
  echo "{\"kind\":\"row\",\"row\":\"$1\",\"gpus\":$2}"
  echo "{\"kind\":\"bench\",\"ranks\":$2,\"tokens_per_s_rank\":$3,\"step_s\":$4,\
\"device_bytes\":$5,\"planned_device_bytes\":10737418240,\"node_host_bytes\":107374182400,\
\"busy_compute_s\":1.5,\"busy_h2d_s\":0.5}"
}
forecast() {
  echo "{\"kind\":\"forecast\",\"row\":\"$1\",\"gpus\":4,\"gemm\":\"500000\",\"step_s\":$2,\
\"exposed_comm_s\":0.1,\"exposed_copy_s\":0.2,\"exposed_update_s\":0.0,\"exposed_disk_s\":0.0}"
}
{
  echo '{"kind":"bench_rates","ranks":4,"gemm":650000.4,"h2d":51.234}'
  run qwen7b-memory 4 10000 2 21474836480
  forecast qwen7b-memory 2.1
  run qwen7b-offload 4 9600 2.5 13958643712 # 13.0 GiB, below 14 GB
  trace 1 100e-6 20e-6
  forecast qwen7b-offload 2.0
  echo '{"kind":"peer","peer":"fsdp2","gpus":4,"tokens_per_s_rank":4900,"device_bytes":21474836480}'
  run qwen7b-offload 4 9900 2.5 13958643712 # the median of the two is 9.75k, within 3 % of 10k
  run qwen7b-offload-clip 2 9000 2 1
  echo "{\"kind\":\"exposed\",\"step_s\":200e-6,\"exposed_idle_s\":20e-6,$exposed}"
  run sweep/full/cpu_reduce/host/bf16 4 9000 2 1
  forecast sweep/full/cpu_reduce/host/bf16 2.2
  echo '{"kind":"row","row":"qwen0.5b-save","gpus":2}'
  step=0 # a checkpoint behind step 2, complete behind step 4, and one behind step 5
  for ms in 100 101 200 220 100; do
    step=$((step + 1))
    echo "{\"kind\":\"step\",\"step\":$step,\"seconds\":0.$ms}"
    test $step != 4 ||
      echo '{"kind":"save","step":2,"seconds":2,"blocked_seconds":0.5,"bytes":4294967296}'
  done
  echo '{"kind":"save","step":5,"seconds":2,"blocked_seconds":0.7,"bytes":4294967296}'
  echo '{"kind":"bench_adam","kernel":"avx512","ranks":4,"threads":16,"parameters":1,'\
'"master":"fp32","grad":"fp32","moments":"bf16","copy":"bf16","rounding":"stochastic",'\
'"parameters_per_s":9.5e9,"gb_s":200,"traffic_gb_s":250,"share":0.8}'
  echo '{"kind":"bench_io","ranks":4,"piece":268435456,"cache":"none","store_write_gb_s":4.5,'\
'"direct_write_gb_s":5,"write_share":0.9,"store_read_gb_s":4,"direct_read_gb_s":5,"read_share":0.8}'
} > made.jsonl
{ run qwen7b 4 14000 4 1; forecast qwen7b 3.8; run qwen7b-hybrid 4 13000 5 1; } > gpu.jsonl
fill() { python3 "$tables" --doc page.md "$@" --passes gpu.jsonl -- made.jsonl; }
fill || die "tables"
has() { grep -qxF -e "$1" page.md || { cat page.md >&2; die "no line: $1"; }; }
has '| qwen7b-offload-clip | made | 9.0k | – | 10.0 | 0.0 | 100.0 |'
has '| rows | 4 | 2 | 12.5% | 20.0% | 1 |'
has '| rows with rates of passes | 4 | 1 | 5.0% | 5.0% | 1 |'
has '| tiers and transfers | 4 | 1 | 10.0% | 10.0% | 1 |'
has '| qwen7b | 4 | 3.800 | 4.000 | 0.95 |  | 2.6% |'
! grep -q 'qwen7b-hybrid' page.md || die "a row without a prediction is in the table of predictions"
has '| qwen7b-memory | 4 | 10.0k | 100.0% | – |'
has '| qwen7b-offload | 4 | 9.8k | 97.5% | 4.9k |'
has '| qwen7b-offload-clip | 2 | 9.0k | – | – |'
has '| qwen14b | 4 | – |  | – |'
has '| qwen7b-offload | 4 | 10.0 | 13.0 | 100.0 | 20.0 |'
has '| qwen7b-offload | 4 | 2.500 | 60.0% | 20.0% | – | – | – | – | – |'
has '| qwen7b-offload | 4 | 0 | 5.0% | 10.0% | 0.0% | 0.0% | 20.0% |'
has '| qwen7b-offload-clip | 2 | 0 | – | – | – | – | 10.0% |'
has '| qwen7b-memory | 4 | 2.100 | 2.000 | 1.05 |  | 4.8% | 9.5% | 0.0% |'
has '| qwen7b-offload | 4 | 2.000 | 2.500 | 0.80 | more than 15% off | 5.0% | 10.0% | 0.0% |'
has '| full | cpu_reduce | host | bf16 | 4 | 2.200 | 2.000 | 1.10 |  | 4.5% | 9.1% | 0.0% |'
has '| shard | gpu_reduce | recompute | fp32 | 4 | – | – | – |  | – | – | – |'
has '| gemm | GFLOP/s | 650000 |'
has '| h2d | GB/s | 51.23 |'
has '| link | GB/s | – |'
has '| avx512 | fp32 / fp32 / bf16 / bf16, stochastic | 4 x 16 | 9.50 | 200.0 | 250.0 | 80.0% |'
has '| 4 | 256 | none | 4.50 | 5.00 | 90.0% | 4.00 | 5.00 | 80.0% |'
has '| qwen0.5b-save | 2 | 2 | 4.0 | 2.00 | 2.15 | 0.60 | 210 | 100 |'
! grep -q '^| qwen0.5b-save | 2 | – ' page.md ||
  die "a training run is in the tables of sluice bench"

# Nothing else is touched, again makes the same, and a changed digit is noticed.
outside() { sed '/^<!-- measured: /,/^<!-- end -->/{/^<!--/!d;}' "$1"; }
outside page.md > a
outside empty.md > b
cmp a b || die "something outside the markers was changed"
fill --check || die "what was just written is not what was measured"
sed -i 's/9.50/9.51/' page.md
if fill --check 2> check.err; then die "a changed digit passes"; fi
grep -q "differs from what was measured" check.err || die "$(cat check.err)"

# Each file is a machine of its own. Its rows are compared with its own yardstick, and its rates
# stand in a column of their own.
{
  echo '{"kind":"bench_rates","ranks":4,"gemm":700000,"h2d":40}'
  run qwen7b-memory 4 20000 1 21474836480
  run qwen7b-offload-acts 4 18000 1 1
} > other.jsonl
python3 "$tables" --doc page.md made.jsonl other.jsonl || die "tables of two machines"
has '| qwen7b-offload-acts | 4 | 18.0k | 90.0% | – |'
has '| qwen7b-offload | 4 | 9.8k | 97.5% | 4.9k |'
has '| h2d | GB/s | 51.23 | 40 |'
has '| rate |  | 4 ranks, made | 4 ranks, other |'
has '| qwen7b-memory | 4, made | 10.0k | 100.0% | – |'
has '| qwen7b-memory | 4, other | 20.0k | 100.0% | – |'

# Results that belong to no row, another number of ranks than the row's, and unknown tables.
forecast qwen14b 1 > bad.jsonl
fails 1 "a result before any row" python3 "$tables" --doc page.md bad.jsonl
run qwen14b 4 1 1 1 | sed 's/"ranks":4/"ranks":2/' > bad.jsonl
fails 1 "2 ranks in a row of 4 GPUs" python3 "$tables" --doc page.md bad.jsonl
{ run qwen14b 4 1 1 1; trace 0 1 1; } > bad.jsonl
fails 1 "2 steps were traced: 3 at least" python3 "$tables" --doc page.md bad.jsonl
printf '<!-- measured: weather -->\n<!-- end -->\n' > bad.md
fails 1 "there is no table weather" python3 "$tables" --doc bad.md made.jsonl

# The line that a traced run of ours adds.
make_deck
{
  run qwen7b-memory 1 10000 2 1
  echo '{"kind":"row","row":"qwen7b-offload","gpus":1}'
} > ours.jsonl
"$SLUICE" bench tiny.yaml data.train=none steps=1 warmup=4 "train.trace=[0,3]" run.dir=run \
  results=ours.jsonl > bench.out 2>&1 || { cat bench.out >&2; die "bench"; }
test "$(sed -n 's/^{"kind":"\([a-z]*\)".*/\1/p' ours.jsonl | tail -n 2 |
  tr '\n' ' ')" = "trace bench " || { cat ours.jsonl >&2; die "the lines of a traced bench"; }
python3 "$tables" --doc page.md ours.jsonl || die "tables of a traced bench"
grep -qE '^\| qwen7b-offload \| 1 \| [0-9]+ \| 0\.0% \| 0\.0% \| [0-9.]+% \| 0\.0% \| [0-9.]+% '\
'\|$' page.md || { cat page.md >&2; die "what a trace found is in no table"; }
