#!/bin/sh
# Whether a plan fits: `sluice plan` with gpu= and host=. Oracles: the bytes that it prints of the
# arenas, against sizes around them; the data sheets' memory sizes.
. "${top_srcdir:?}/tests/cli/common.sh"
make_deck

# fit CODE TEXT [key=value ...]: the verdict has TEXT.
fit() {
  code=$1 text=$2
  shift 2
  asked="$pinned $*" status=0
  # shellcheck disable=SC2086 # words
  set -- $pinned "$@"
  "$SLUICE" plan tiny.yaml "$@" > fit.out 2> fit.err || status=$?
  test "$status" = "$code" || { cat fit.out fit.err >&2; die "exit $status, not $code, with $*"; }
  cat fit.out fit.err > fit.all
  grep -qF -e "$text" fit.all || { cat fit.all >&2; die "'$text' is not there with $*"; }
  follow tiny.yaml "$@"
}
# follow DECK [key=value ...]: typed as it is printed, each advice does what it says.
follow() {
  sed -n 's/ ([^)]*which changes the numbers)//;
      s/^with \(.*\) a \(rank\|node\) needs .*: \([a-z ]*\)$/\3: \1/p' fit.out > advice
  while IFS=: read -r says typed; do
    status=0
    # shellcheck disable=SC2086 # keys
    "$SLUICE" plan "$@" $typed > advised.out 2>&1 || status=$?
    test "$says $status" = "fits 0" || test "$says $status" = "does not fit either 1" ||
      { cat fit.out advised.out >&2; die "with $typed: not '$says', but exit $status"; }
  done < advice
}
# need TIER: bytes of the last plan.
need() {
  # shellcheck disable=SC2086 # words
  "$SLUICE" plan tiny.yaml $asked --json |
    sed -n "/\"$1\": {/,/}/s/.*\"need\": \([0-9]*\).*/\1/p"
}
# total TIER: bytes of a rank in the last plan.
deck=tiny.yaml
total() {
  # shellcheck disable=SC2086 # words
  "$SLUICE" plan "$deck" $asked --json | awk -v tier="\"$1\"," '
    $1 == "\"tier\":" { mine = $2 == tier }
    $1 == "\"purpose\":" { mine = mine && $2 == "\"total\"," }
    mine && $1 ~ /ent\":$/ { sum += $2 }
    END { printf "%.0f\n", sum }'
}

# The first line is the verdict. The table says what is left.
first() { test "$(head -n 1 fit.out)" = "$1" || { cat fit.out >&2; die "not first: $1"; }; }
fit 0 "of a node of 1 rank"
first "no verdict: gpu=NAME, gpu=SIZE, host=SIZE or nvme=SIZE says whether it fits"
bytes=$(need host)
test "$bytes" = "$(total device)" || die "of the host: $bytes bytes"
fit 0 " 0 GiB  of a node of 1 rank" host="${bytes}B"
first "fits"
fit 1 " -1 B  of a node of 1 rank" host=$((bytes - 1))B
first "does not fit: host 1 B short"
fit 0 "verified" run.device=cuda
bytes=$(need device)
# A GPU keeps memory for the context, libraries and NCCL, more if there are other ranks.
alone=$((1280 << 20)) several=$((2304 << 20))
fit 1 "a GPU has 1.25 GiB, 1.25 GiB of it for the CUDA context and libraries" gpu=${alone}B
fit 0 " 0 GiB  of a rank" gpu=$((bytes + alone))B
first "fits"
fit 1 " -1 B  of a rank" gpu=$((bytes + alone - 1))B
if grep 'with ranks=' fit.out; then die "several ranks have less of a GPU"; fi
fit 1 "verified" gpu=$((bytes + alone - 1))B host=1KiB
grep -Eq '^does not fit: GPU 1 B short, host [0-9.]+ [KM]iB short$' fit.out || {
  cat fit.out >&2; die "not all that is short is named first"; }

# As the check at the start of a run, a plan counts the shared memory in which the ranks of a node
# exchange data. Each rank has two halves of 1 MiB and a line of 128 bytes for gathers, and again
# for reductions. tests/job/test_place compares the sum with this check.
# Evaluation during training has its own for gathers.
box=$(((2 << 20) + 128))
for row in "1 0 full_shard" "2 4 full_shard" "4 8 hybrid_shard shard.group=2" \
  "2 6 full_shard eval.every=5"; do
  # shellcheck disable=SC2086 # words
  set -- $row
  ranks=$1 boxes=$2
  shift 2
  fit 0 "of a node of $ranks rank" --ranks "$ranks" run.device=host shard.strategy="$@"
  bytes=$((ranks * $(total device) + boxes * box))
  test "$(need host)" = $bytes || die "$row: the plan needs $(need host) bytes, not $bytes"
done

# A deck that names a GPU is planned for a GPU.
fit 0 "device cuda, computing in bf16" gpu=h100
fit 2 "gpu=h100, but run.device (command line) is host: leave out one of them" gpu=h100 \
  run.device=host
sed 's/threads: 1/threads: 1, device: host/' tiny.yaml > hosts.yaml
fails 2 "gpu=64GiB, but run.device (hosts.yaml:1) is host" "$SLUICE" plan hosts.yaml gpu=64GiB

# A node holds the arenas of its ranks, and what the hops inside it exchange. With GPUs it also
# holds the blocks that move parameters and moments between GPUs and files, 12 bytes each: half of
# 70,512 parameters for 3 of 6 ranks. Padding
# adds less than 256 for each of 4 units and 6 ranks. Another 63 rows of 48 make the vocabulary of
# 257 a multiple of 64. Each rank has 16 KiB for tokens and targets, also of the next
# step.
fit 0 "verified" --ranks 6 --local_ranks 3
node=$(need host)
test "$node" = $((3 * $(total device) + 6 * box)) || die "3 ranks need $node bytes"
fit 0 "of a node of 3 ranks" --ranks 6 --local_ranks 3 host=${node}B
fit 1 "does not fit" --ranks 6 --local_ranks 3 host=$((node - 1))B
fit 1 "does not fit" --ranks 6 --local_ranks 3 host=$((6 * 70512 - 1))B gpu=h100
fit 0 "of a node of 3 ranks, with loading and saving" \
  --ranks 6 --local_ranks 3 host=$((6 * (70512 + 4 * 6 * 256 + 63 * 48) + 3 * 16384))B gpu=h100
test "$(grep -Ec '^  (GPU|host) .* [0-9.]+ [KMG]iB  of a' fit.out)" = 2 || {
  cat fit.out >&2; die "what is left is missing"; }
grep -q "computing in bf16 with gradients in fp32" fit.out ||
  die "what the verdict is for is not said"
fit 1 "does not fit" --ranks 6 --local_ranks 3 mode=eval host=$((2 * 70512 - 1))B gpu=h100
fit 0 "with loading and saving" --ranks 6 --local_ranks 3 mode=eval \
  host=$((2 * (70512 + 4 * 6 * 256 + 63 * 48) + 3 * 16384))B gpu=h100

# For GPUs where there are none: bf16.
fit 0 "device host, computing in fp32 with gradients in fp32 and masters in fp32" --ranks 2
host=$(need host)
fit 0 "computing in bf16 with gradients in fp32 and masters in fp32" --ranks 2 run.device=cuda \
  gpu=h100
test "$(need device)" -lt "$host" || die "bf16 needs as much as fp32, $host"
# A plan without a GPU has the workspaces of the GPU's kernels. Oracle: the GPU memory that a run of
# this deck on 4 H200 used. Libraries take at most 2048 MiB of it. The kernels of an A100 have
# the same workspace.
deck="$top_srcdir/inputs/llama-3.1-8b.yaml"
asked="ranks=4 data.sequence=131072 data.batch=4 tiers.activations=host gpu=h200"
used=65190887424 hopper=$(total device)
test "$hopper" -lt $used || die "131072 tokens on Hopper: $hopper bytes, the run used $used"
test $((hopper + 2048 * 1048576)) -ge $used || die "131072 tokens on Hopper: only $hopper bytes"
asked="${asked%h200}a100-80"
test "$(total device)" = "$hopper" || die "131072 tokens on an A100: $(total device) bytes"
asked="${asked%a100-80}80GB" # of an H100
test "$(total device)" = "$hopper" || die "131072 tokens in 80GB: $(total device) bytes"
deck=tiny.yaml
# What the kernels for GPUs refuse, the plan refuses. The host takes both shapes.
fit 8 "model.width is 33024, and the kernels for GPUs take at most 32768" gpu=h100 \
  model.width=33024 model.heads=516
fit 8 "model.head_width is 257, and the kernels for GPUs take at most 256" gpu=h100 \
  model.width=257 model.heads=1
fit 0 "verified" model.width=257 model.heads=1
fp8="run.compute=fp8 model.width=128 model.heads=2 model.context=128 data.sequence=128"
# shellcheck disable=SC2086 # words
{
  fit 8 "run.compute=fp8 needs a GPU of compute capability 8.9, 9.0, or 10.0 and later, which \
a100-80 is not: use run.compute=bf16" gpu=a100-80 $fp8
  fit 8 "run.fp8_scales=groups needs a GPU of compute capability 9.0 (H100, H200), which l40s is \
not: use run.fp8_scales=tensor" gpu=l40s $fp8 run.fp8_scales=groups
  fit 0 "computing in fp8" gpu=l40s $fp8
  fit 0 "computing in fp8 with gradients in fp32" gpu=h200 $fp8 run.fp8_scales=groups
  fit 0 "computing in fp8" gpu=80GB $fp8
  fit 0 "computing in fp8" $fp8
  fit 8 "data.micro_batch x data.sequence is 8388608, and the kernels for GPUs take at most \
8388480 in fp8: lower it, or set run.device=host" run.device=cuda $fp8 data.batch=65536 \
    data.micro_batch=65536
  fit 0 "verified" run.device=cuda $fp8 data.batch=65535 data.micro_batch=65535
  fit 0 "verified" $fp8 data.batch=65536 data.micro_batch=65536
}
fit 8 "model.ffn is 8388608, and the kernels for GPUs take at most 8388480 in fp8" gpu=h100 $fp8 \
  model.ffn=8388608
fit 8 "data.micro_batch x data.sequence x model.heads is 2147484672, and the kernels for GPUs take \
at most 2147483647: lower it" run.device=cuda data.sequence=32 data.batch=22369632 \
  data.micro_batch=22369632
fit 2 "model.head_width is 15: rotary positions turn pairs of elements, so it must be even" \
  model.arch=llama model.ffn=96 model.head_width=15
fit 0 "device host, computing in bf16" --ranks 2 run.compute=bf16
fit 2 "comm.backend (command line) is nccl" comm.backend=nccl
fit 0 "verified" comm.backend=nccl run.device=cuda
fit 0 "verified" comm.backend=mpi run.device=cuda --ranks 2

# Each suggested cure is a plan of its own, with its own bytes.
fit 1 "does not fit either" --ranks 2 gpu=1B shard.strategy=no_shard data.micro_batch=3
for key in shard.strategy=full_shard data.micro_batch=1 tiers.params=host; do
  grep -q "^with .*$key.* a rank needs" fit.out || { cat fit.out >&2; die "$key is not tried"; }
done
fit 0 "verified" --ranks 2 run.device=cuda tiers.activations=recompute data.micro_batch=1
least=$(need device)
fit 1 "with ranks=3 a rank needs" --ranks 2 gpu=$((least + several - 1))B \
  tiers.activations=recompute data.micro_batch=1
grep "full_shard, " fit.out && die "a cure that is the deck as it is"
fit 1 "iB of its GPU: fits" --ranks 2 gpu=$((least + several))B shard.strategy=no_shard \
  data.micro_batch=3
# If a cure has several changes, each of them is necessary.
fit 1 "with shard.strategy=full_shard tiers.params=host tiers.optimizer=host a rank needs" \
  --ranks 2 gpu=$((least + several - 1))B shard.strategy=no_shard data.micro_batch=3
fit 1 "does not fit either" mode=generate gpu=1B
grep -E '^with .*(micro_batch|recompute)' fit.out && die "cures that change nothing for generation"
fit 1 " data.micro_batch=1 " mode=eval gpu=1B --ranks 2 shard.strategy=no_shard \
  data.micro_batch=3
fit 0 "verified" mode=eval --ranks 2 run.device=cuda data.micro_batch=1
least=$(need device)
fit 1 "iB of its GPU: fits" mode=eval --ranks 2 gpu=$((least + several))B shard.strategy=no_shard \
  data.micro_batch=3
fit 1 "tiers.optimizer=host a rank needs" mode=eval --ranks 2 gpu=$((least + several - 1))B \
  shard.strategy=no_shard data.micro_batch=3

# The strategy that is printed is the plan's.
fit 0 "2 ranks, no_shard" --ranks 2 shard.strategy=no_shard
fit 0 "2 ranks, full_shard" --ranks 2 shard.strategy=no_shard mode=generate

# Names and sizes.
for pair in a100-40:39.4 A100-80:79.0 H100:79.0 h200:140 l40s:44.3 64GiB:64.0 64Gi:64.0 \
  64GB:59.6 0.5TiB:512 65536Mi:64.0; do
  fit 0 " has ${pair#*:} GiB, 1.25 GiB of it for " gpu="${pair%%:*}"
done
for word in b9000 24; do
  fails 2 "gpu=$word is neither a size such as 24GiB nor one of a100-40, a100-80, h100, h200, \
l40s" "$SLUICE" plan tiny.yaml gpu=$word
done
for size in 64 64Q 64Gix -1 0B 1e99B inf; do
  for memory in host nvme; do
    fails 2 "$memory=$size: it is a size with its unit, such as 512GiB" "$SLUICE" plan tiny.yaml \
      $memory=$size
  done
done

# Trained and frozen parameters.
fit 0 "(70,512 trained, 0 frozen)"
fit 0 "(69,408 trained, 1,104 frozen)" 'train.freeze=[*.bias]'
fit 2 "train.freeze" 'train.freeze=[nothing.like.this]'
fit 0 "(69,408 trained, 1,104 frozen)" 'train.freeze=["*.bias"]'

# Masters in host memory: nothing stays on the GPU, the node holds what its ranks hold, and once
# what they share.
offload="tiers.params=host tiers.optimizer=host"
tier() { sed -n "/^$1/,/^ *total/s/^ *total .* \\([0-9.]* [KMG]*i*B\\)\$/\\1/p" fit.out; }
# shellcheck disable=SC2086 # words
{
  fit 0 "verified" --ranks 2 run.device=cuda $offload
  sed -n '/^device memory/,/^ *total/s/^ *total *//p' fit.out | grep -q '^0 B ' ||
    die "something stays on the device"
  test -n "$(tier 'host memory of rank')" || die "nothing is in host memory"
  fit 0 "verified" --ranks 2 run.device=cuda $offload
  # And nothing to load and save.
  fit 0 "of a node of 2 ranks" --ranks 2 run.device=cuda gpu=h100 host=1GiB $offload
  test "$(need host)" = $((2 * $(total host))) && ! grep -q "loading and saving" fit.out ||
    die "a node needs $(need host) bytes"
  fit 0 "shared host memory of rank 0" --ranks 2 run.device=cuda transfer.params=full $offload
  fit 0 "total of the group" --ranks 2 run.device=cuda transfer.grads=cpu_reduce $offload
  fit 0 "NVMe of rank 0" --ranks 2 run.device=cuda optim.state=nvme $offload
  nvme=$(need nvme)
  test "$nvme" = $((2 * $(total nvme))) || die "a node needs $nvme bytes of NVMe"
  fit 0 " 0 GiB  of a node of 2 ranks" --ranks 2 run.device=cuda optim.state=nvme $offload \
    nvme="${nvme}B"
  fit 1 "with optim.state_share=0.5 a node needs" --ranks 2 run.device=cuda optim.state=nvme \
    $offload nvme=$((nvme - 1))B
  first "does not fit: NVMe 1 B short"
  grep -qx "or use a larger disk" fit.out || { cat fit.out >&2; die "a larger disk would do"; }
  fit 0 "activations" --ranks 2 run.device=cuda tiers.activations=nvme $offload
  fit 2 "is full, where the ranks of a shard group share the parameters in the memory of a node, \
but a group has 6 ranks and a node 3" \
    --ranks 6 --local_ranks 3 transfer.params=full $offload
  fit 2 "transfer.rate (command line) is 3, which simulates slow copies on the host" \
    run.device=cuda transfer.rate=3
}
fit 1 "does not fit either" --ranks 2 gpu=1B data.micro_batch=2
grep -q ': fits$' fit.out && die "one byte is enough"
grep -q '^neither more ranks nor a much shorter data.sequence is enough' fit.out ||
  die "one byte is enough for many ranks"
# With no_shard each rank holds the whole state, and with hybrid_shard each group. So more nodes do
# not lower the need of a node. full_shard does, but it gathers whole units, and a unit must fit.
big="model.vocab=2147483647 model.width=4800"
# shellcheck disable=SC2086 # words
fit 1 "neither more ranks nor a much shorter data.sequence is enough" host=492GiB \
  shard.strategy=no_shard data.micro_batch=2 $big
fit 1 "shard.strategy=full_shard a node needs" host=8MiB shard.strategy=no_shard model.layers=60
fit 1 "shard.strategy=full_shard (which changes the numbers) a node needs" host=4MiB \
  shard.strategy=no_shard model.layers=60
# Twelve nodes fit with full_shard and the keys that the advice named.
fit 0 "fits" --ranks 12 --local_ranks 1 host=4MiB shard.strategy=full_shard model.layers=60 \
  data.batch=24 tiers.activations=recompute
fit 1 "full_shard" --ranks 4 gpu=$((several / 1024 + 2500))Ki \
  shard.strategy=hybrid_shard shard.group=2 model.vocab=4000
grep -q '^with ranks=[0-9]* a rank' fit.out && die "more replicas need less"
least_of_all="tiers.params=host tiers.optimizer=host tiers.activations=host optim.moments=bf16 \
data.micro_batch=1 shard.prefetch=0"
# shellcheck disable=SC2086 # words
fit 0 "verified" --ranks 2 run.device=cuda $least_of_all
sed -n '/^device memory/,/^ *total/s/^ *total *0 B *\([0-9.]*\) KiB.*/\1/p' fit.out > window
test -s window || { cat fit.out >&2; die "no window on the device"; }
kib=$(sed 's/\..*//' window)
fit 1 "of its GPU, and a node" --ranks 2 run.device=cuda gpu=$((several / 1024 + kib + 1))Ki
grep -q 'of its GPU, and a node [0-9.]* [MG]iB: fits$' fit.out || {
  cat fit.out >&2; die "the window does not fit"; }
fit 1 "of its GPU, and a node" --ranks 2 run.device=cuda gpu=$((several / 1024 + kib - 1))Ki
grep '^with ' fit.out | grep -v 'data.sequence=[^ ]* (which changes the numbers)' && {
  cat fit.out >&2; die "less than the window fits"; }
# shellcheck disable=SC2086 # words
{
  window="--ranks 2 gpu=$((several / 1024 + kib + 1))Ki $least_of_all"
  fit 0 "verified" $window
  fit 1 "with optim.state=nvme a node needs" $window host=$(($(need host) - 1))B
  fit 1 "does not fit" --ranks 2 gpu=1B host=1B $least_of_all optim.state=nvme
  grep -E "^with .*(optim|micro_batch|prefetch)" fit.out && die "a cure that is the deck as it is"
}

# One key alone comes before several, the one that costs least first, and the one that changes the
# numbers last. If the GPU is too small, the cure takes GPU memory. Oracles: the plans with these
# keys, which fit; the bytes that the table prints.
llama() { # CODE TEXT [key=value ...]
  code=$1 text=$2
  shift 2
  status=0
  # shellcheck disable=SC2086 # words
  set -- "$top_srcdir/inputs/llama-3.1-8b.yaml" ranks=2 run.device=cuda $pinned \
    data.micro_batch=1 tiers.activations=recompute "$@"
  "$SLUICE" plan "$@" > fit.out 2> fit.err || status=$?
  test "$status" = "$code" || { cat fit.out fit.err >&2; die "exit $status, not $code, with $*"; }
  cat fit.out fit.err > fit.all
  grep -qF -e "$text" fit.all || { cat fit.all >&2; die "'$text' is not there with $*"; }
  follow "$@"
}
order() { # KEY...: what is advised, in this order
  for key; do echo "$key"; done > expected
  sed -n '/^with ranks=/d; s/^with \([^ ]*\).*/\1/p' fit.out | cmp -s - expected || {
    cat fit.out >&2; die "not advised: $*"; }
}
without() { if grep -E -e "$1" fit.out >&2; then die "'$1' is no cure"; fi; }
llama 1 "with tiers.working=gather a rank needs 67.4 GiB of its GPU: fits" gpu=70GiB \
  tiers.activations=recompute tiers.working=keep
order tiers.working=gather tiers.params=host optim.moments=bf16
llama 0 "GPU     67.4 GiB   67.8 GiB  0.300 GiB" gpu=70GiB \
  tiers.activations=recompute tiers.working=gather
first "fits"
llama 1 "a GPU has 69.0 GiB, 2.25 GiB of it for the CUDA context, libraries and NCCL" gpu=69GiB \
  tiers.activations=recompute tiers.working=gather
first "does not fit: GPU 0.700 GiB short"
llama 1 "with optim.moments=bf16 (which changes the numbers) a rank needs 52.5 GiB of its GPU: \
fits" gpu=60GiB tiers.activations=recompute
order tiers.params=host optim.moments=bf16
llama 0 "GPU     52.5 GiB   57.8 GiB   5.26 GiB" gpu=60GiB \
  tiers.activations=recompute optim.moments=bf16
llama 1 "with tiers.activations=recompute:2 a rank needs 72.5 GiB of its GPU: fits" gpu=76GiB \
  tiers.activations=keep
order tiers.activations=recompute:2 tiers.params=host optim.moments=bf16
# A disk comes after what takes only time, and both memories are too small without it.
llama 1 "with tiers.params=host tiers.optimizer=host optim.state=nvme a rank needs" gpu=24GiB \
  host=100GiB ranks=4
llama 1 "with optim.clip=0 optim.update=immediate shard.gathered=0 (gradients do not wait for the \
norm, which changes the numbers) a rank needs 65.3 GiB of its GPU: fits" gpu=80GiB ranks=1 \
  data.batch=1 tiers.activations=recompute optim.moments=bf16
llama 1 "with tiers.params=host tiers.optimizer=host a rank needs" gpu=40GiB \
  tiers.activations=keep_host:2
# The number of ranks is the smallest that fits.
grep -q "^with ranks=8 a rank needs 28.0 GiB of its GPU, and a node .*: fits$" fit.out || {
  cat fit.out >&2; die "more ranks would do"; }
without 'data.sequence|nodes'
llama 1 "does not fit" gpu=40GiB tiers.activations=keep_host:2 ranks=4
llama 0 "GPU     37.3 GiB   37.8 GiB  0.424 GiB" gpu=40GiB tiers.activations=recompute ranks=4
llama 1 "with ranks=16 a rank needs 15.1 GiB of its GPU: fits" gpu=20GiB
llama 1 "does not fit" gpu=20GiB ranks=8
llama 1 "with ranks=4 a rank needs 63.5 GiB of its GPU: fits" gpu=70GiB data.sequence=65536
llama 0 " 72.0 GiB, 2.25 GiB of it for " gpu=72GiB data.sequence=8192
llama 1 "with ranks=16 a rank needs 15.1 GiB of its GPU, and a node 44.9 GiB: fits" gpu=20GiB \
  host=50GiB
# The memory that is short.
llama 1 "does not fit: host 92.3 GiB short" gpu=h200 tiers.activations=keep_host:2 host=8GiB
without 'of its GPU|data.sequence'
grep -qx "with ranks=64 local_ranks=1 a node needs 6.66 GiB: fits" fit.out || {
  cat fit.out >&2; die "more nodes would do"; }
llama 1 "with tiers.activations=keep a node needs 89.7 GiB: fits" gpu=h200 \
  tiers.activations=keep_host:2 host=98GiB
llama 0 "host    89.7 GiB   98.0 GiB   8.25 GiB  of a node of 2 ranks, with loading" gpu=h200 \
  tiers.activations=keep host=98GiB
llama 1 "or neither load nor save" gpu=h200 tiers.activations=keep_host:2 host=11GiB
# The first cures free memory of the GPU.
held="tiers.params=host tiers.optimizer=host tiers.activations=recompute tiers.resident=20"
# shellcheck disable=SC2086 # assignments
{
  llama 1 "with tiers.resident=6 a rank needs" gpu=25GiB $held
  order tiers.resident=6
  llama 2 "tiers.resident is 34, but the model has 34 units, of which at least one must be in \
host memory" $held tiers.resident=34
}

# For keys without effect, `bench` and `plan` print the warnings of `train`.
"$SLUICE" bench tiny.yaml steps=1 warmup=0 tiers.working=keep 2>&1 |
  grep -q '^warning: tiers.working is ignored: the compute type is fp32' || die "bench is silent"
fit 0 "warning: tiers.working is ignored: the compute type is fp32, so the masters need no \
working copy (run.compute)" tiers.working=keep
fit 0 "verified" tiers.working=keep run.compute=bf16
grep "is ignored" fit.err && die "a copy in bf16 is one"

# The value of a flag may follow it.
"$SLUICE" plan tiny.yaml --list false > false.out
"$SLUICE" plan --list tiny.yaml > true.out
fit 0 "verified"
cmp -s fit.out false.out || die "--list false"
grep -q '^#0 ' true.out || die "--list, alone"
if grep '^#0 ' fit.out; then die "the schedule is printed without --list"; fi
fails 2 "'perhaps' is one word too many" "$SLUICE" plan tiny.yaml --list perhaps

# A gradient is written, squared and read by the update, and nothing else uses it.
"$SLUICE" plan tiny.yaml --follow grads.h.0 > follow.out
grep -q '^grads.h.0: gradients, device memory, [0-9]* fp32, bytes ' follow.out || die "no buffer"
used=$(sed -n 's/^#[0-9]* *[a-z]* *\([A-Z]*\) .*/\1/p' follow.out | uniq | tr '\n' ' ')
test "$used" = "BACKWARD SQUARES UPDATE " || die "--follow prints $used"
fails 2 "the plan has no buffer 'grads.h.99'" "$SLUICE" plan tiny.yaml --follow grads.h.99
"$SLUICE" plan --help | grep -q '^  gathered parameters  *whole units in' ||
  die "rows that nobody explains"

# Predictions of each transfer between host memory and devices, and which one is fastest. Oracles:
# rates at which one thing takes all the time.
predict() { # RATES [key=value ...]
  # shellcheck disable=SC2086 # a list of words
  file=$(with_rates gemm=1e9 $1)
  shift
  fit 0 "predicted step" --ranks 2 run.device=cuda tiers.params=host tiers.optimizer=host "$file" \
    "$@"
}
# fastest: the transfers with the shortest step, with the words of the last `predict`.
fastest() {
  for params in shard full; do for grads in gpu_reduce cpu_reduce; do
    # shellcheck disable=SC2086 # words
    "$SLUICE" plan tiny.yaml $asked transfer.params=$params transfer.grads=$grads |
      sed -n "s/^predicted step \([0-9.]*\) s.*/\1 $params $grads/p"
  done; done | sort -s -g -k 1,1 | sed 's/^[^ ]* //; q'
}
predict "h2d=1e-6"
test "$(fastest)" = "shard gpu_reduce" || { cat fit.out >&2; die "slow copies: $(fastest)"; }
lacks() { # WORDS: the rates that the last `predict` needs
  grep -qx "without a rate, so that their work takes no time: $1" fit.out || {
    cat fit.out >&2; die "not said: $1"; }
}
lacks "link, d2h, host_memory"
predict "link=10" transfer.grads=cpu_reduce
lacks "h2d, d2h, host_memory, host_link"
predict "link=10 h2d=10 d2h=10 host_memory=10" tiers.activations=nvme model.layers=4
lacks "disk_read, disk_write"
predict "link=10 h2d=10 d2h=10 host_memory=10"
if grep "without a rate" fit.out; then die "a rate that nothing needs"; fi
predict "link=1e-6 h2d=1000 d2h=1000"
test "$(fastest)" = "full cpu_reduce" || { cat fit.out >&2; die "a slow link: $(fastest)"; }
predict "link=1e-6 h2d=1000 d2h=1000 host_link=1e-7 host_memory=100"
test "$(fastest)" = "full cpu_reduce" || {
  cat fit.out >&2; die "on one node nothing goes between hosts: $(fastest)"; }
predict "link=1e-6 h2d=1000 d2h=1000 host_link=1000 host_memory=1e-7"
test "$(fastest)" = "shard gpu_reduce" || {
  cat fit.out >&2; die "slow memory of the host: $(fastest)"; }
predict "link=1e-6 h2d=1000 d2h=1000 host_link=1e-7 host_memory=100" --local_ranks 1
test "$(fastest)" = "shard gpu_reduce" || { cat fit.out >&2; die "slow hosts: $(fastest)"; }
# Units that stay on the device, of three. Oracle: where the host's memory takes all the time each
# saves the time of its update.
for resident in 0 1 2; do
  predict "link=1000 h2d=1000 d2h=1000 host_memory=1e-5" tiers.resident=$resident
  echo "$(sed -n 's/^predicted step \([0-9.]*\) s.*/\1/p' fit.out) $(need device)"
done | awk 'NR > 1 && ($1 >= step || $2 < room) { bad = 1 } { step = $1; room = $2 }
  END { exit bad || NR != 3 }' || die "what resident units win"
# A device does not update units whose gradients hosts reduce.
predict "link=1000 h2d=1000 d2h=1000 host_memory=1e-5" transfer.grads=cpu_reduce
grep -q "^this deck, and the best settings" fit.out || { cat fit.out >&2; die "no settings"; }
grep -q ' tiers.resident=[1-9]' fit.out && die "resident units where hosts reduce"
# shellcheck disable=SC2086 # words
fails 2 "a group has 6 ranks and a node 4" "$SLUICE" plan tiny.yaml $pinned --ranks 6 \
  --local_ranks 4 run.device=cuda tiers.params=host tiers.optimizer=host transfer.params=full
predict "disk_write=1e-6 disk_read=1e-6" optim.state=nvme
awk '/^predicted step/ { step = $3;
    for (i = 1; i < NF; i++) if ($i == "disk") disk = $(i + 1) } END { exit !(step > 0 && disk > '\
'0.9 * step) }' fit.out ||
  { cat fit.out >&2; die "a slow disk is not what the step waits for"; }

# The best settings, and this deck. The verdict names the best one if it is faster.
rates=$(with_rates gemm=690000 memory=4000 link=370 latency=10 h2d=38 d2h=51 host_memory=85 \
  host_link=5 disk_write=1.7 disk_read=1.1)
llama 0 "faster, and fits: data.micro_batch=1 tiers.activations=recompute:4, 75.1 GiB, step 0." \
  gpu=h100 "$rates"
# Each row is planned, so the model has four blocks, and a step few micro-batches.
deck="$top_srcdir/inputs/llama-3.1-8b.yaml"
for gpu in 24GiB 18GiB h100; do
  small="ranks=2 run.device=cuda gpu=$gpu model.layers=4 data.batch=8 $rates"
  # shellcheck disable=SC2086 # assignments
  {
    "$SLUICE" plan "$deck" $small > fit.out || test $gpu = 18GiB
    settings "$deck" $small
  }
done
deck=tiny.yaml
# Without rates times are relative. Oracle: what is not computed again is a quarter of the work.
llama 0 "faster, and fits: data.micro_batch=4, 113 GiB, step 0.7" gpu=h200
grep -q "relative to this deck, by nominal rates$" fit.out || die "nobody says which rates"
grep -q "^predicted step" fit.out && die "a step of unknown rates is predicted"
llama 0 "fits" gpu=h200 tiers.activations=keep "$rates"
grep -q "^faster.*activations" fit.out && die "no activations are faster than those kept"
fit 0 "verified" tiers.preset=offload run.device=cuda
grep -q "(this deck)" fit.out && die "settings that nobody asked for"

# A file may have some of the keys, and later files take precedence. Oracle: one file of all.
printf '# measured\ngemm: 1e9\nh2d: 1000\nlink: 5\n' > all.yaml
echo 'h2d: 1e-6' > one.yaml
for files in all.yaml,one.yaml one.yaml,all.yaml; do
  fit 0 "predicted step" --ranks 2 run.device=cuda tiers.params=host tiers.optimizer=host \
    rates=$files
  cp fit.out $files.out
done
predict "h2d=1e-6 link=5"
cmp -s all.yaml,one.yaml.out fit.out || {
  diff all.yaml,one.yaml.out fit.out >&2; die "the last file does not take precedence"; }
predict "h2d=1000 link=5"
cmp -s one.yaml,all.yaml.out fit.out || {
  diff one.yaml,all.yaml.out fit.out >&2; die "the first file takes precedence"; }
fit 2 "unknown key 'gemm'" gemm=1
echo "gem: 1" > rates.yaml
echo "memory: 4000" > few.yaml
fit 0 "no forecast: the rates lack gemm, the rate of matrix products" rates=few.yaml
fit 2 "rates.yaml:1: unknown key 'gem'; the nearest known key is 'gemm'" rates=rates.yaml
fit 3 "nowhere.yaml" rates=nowhere.yaml
test ! -s fit.out || die "a plan before what it is predicted from was read"

# Where there can be no folder for what goes to NVMe, and where its disk has no room: two faults,
# two cures.
make_data
touch file
mkdir there
# shellcheck disable=SC2086 # words
{
  for folder in /proc /proc/nowhere file/nvme; do
    fails 4 "NVMe folder" on 2 "$SLUICE" train tiny.yaml $offload optim.state=nvme \
      tiers.nvme=$folder
    grep -qF "name one on the node's own disk that this run may write to (tiers.nvme=FOLDER)" \
      fails.out || die "no cure for $folder"
    grep -qF "the NVMe folder $folder " fails.out || die "$folder is not named"
    if grep -E '[0-9] ([KMGTPE]i)?B' fails.out; then die "of $folder it is said how large it is"; fi
  done
  test ! -e run || die "a run that could not begin has left something"
}

# A plan that fits on no machine is refused before any page is touched. The message names no key
# that would not help.
awk '/MemAvailable/ { exit $2 * 1024 > 2 ^ 42 }' /proc/meminfo || exit 0
hopeless() { # COMMAND...
  fails 5 "none of the keys that were tried makes it fit; use nodes with more memory" "$@"
  if grep -v '^sluice [0-9]' fails.out | grep -E '(shard|tiers|optim|data)\.[a-z_]*='; then
    die "a cure that is none"
  fi
}
# shellcheck disable=SC2086 # words
{
  hopeless on 2 "$SLUICE" train tiny.yaml shard.strategy=no_shard $big
  hopeless "$SLUICE" train tiny.yaml shard.strategy=no_shard data.micro_batch=2 $big
  hopeless "$SLUICE" train tiny.yaml $offload optim.state=nvme tiers.nvme=there $big
  grep -Eq 'the 1 rank of this node needs [0-9.]+ [GTP]iB on the disk of there, which has [0-9.]+ '\
'[GTP]iB: ' fails.out || die "the disk's need or room is not told"
  test -z "$(ls there)" || die "left behind: $(ls there)"
  hopeless "$SLUICE" eval tiny.yaml --untrained $big
}
cp -r "$top_srcdir/tests/model/data/llama" big
chmod -R u+w big
sed 's/"vocab_size": 61/"vocab_size": 2147483647/; s/"head_dim": 8/"head_dim": 800/;
    s/"hidden_size": 48/"hidden_size": 4800/' \
  "$top_srcdir/tests/model/data/llama/config.json" > big/config.json
fails 5 "use nodes with more memory" "$SLUICE" generate big ids=1
