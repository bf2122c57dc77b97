#!/bin/sh
# Whether a plan fits: `sluice plan` with gpu= and host=. Oracles: the bytes that it prints of the arenas, against sizes around them; the data sheets' memory sizes.
. "${top_srcdir:?}/tests/cli/common.sh"
make_deck

# fit CODE TEXT [key=value ...]: the verdict has TEXT.
fit() {
  code=$1 text=$2
  shift 2
  status=0
  "$SLUICE" plan tiny.yaml list=false "$@" > fit.out 2> fit.err || status=$?
  test "$status" = "$code" || { cat fit.out fit.err >&2; die "exit $status, not $code, with $*"; }
  cat fit.out fit.err > fit.all
  grep -qF -e "$text" fit.all || { cat fit.all >&2; die "'$text' is not there with $*"; }
}
arena() { sed -n 's/^arenas of rank 0 .*: \([0-9]*\) bytes$/\1/p' fit.out; }

fit 0 "verified"
bytes=$(arena)
grep -q "memory of this plan" fit.out && die "a verdict that nobody asked for"
fit 0 "the GPU has 0.00 GiB: fits" gpu="$bytes"
fit 1 "does not fit" gpu=$((bytes - 1))
fit 0 "host: the 1 rank of a node needs" host="${bytes}B"
fit 1 "does not fit" host=$((bytes - 1))

# A node holds its ranks' arenas; with GPUs no more than what moves parameters and moments, 12 bytes each, between them and files: half of 70,512 parameters for 3 of 6 ranks, and
# less than 256 of padding for each of 4 units and 6 ranks; and 63 rows of 48 that make the vocabulary's 257 a multiple of 64.
fit 0 "verified" --ranks 6 --local_ranks 3
node=$((3 * $(arena)))
fit 0 "host: the 3 ranks of a node need" --ranks 6 --local_ranks 3 host=$node
fit 1 "does not fit" --ranks 6 --local_ranks 3 host=$((node - 1))
fit 1 "does not fit" --ranks 6 --local_ranks 3 host=$((6 * 70512 - 1)) gpu=h100
fit 0 "host: the 3 ranks of a node need, to load and save what is on their GPUs," --ranks 6 --local_ranks 3 host=$((6 * (70512 + 4 * 6 * 256 + 63 * 48))) gpu=h100
test "$(grep -c ': fits' fit.out)" = 2 || { cat fit.out >&2; die "a verdict is missing"; }
grep -q "computes in fp32 with gradients in fp32" fit.out || die "what the verdict is for is not said"
fit 1 "does not fit" --ranks 6 --local_ranks 3 mode=eval host=$((2 * 70512 - 1)) gpu=h100
fit 0 "their GPUs" --ranks 6 --local_ranks 3 mode=eval host=$((2 * (70512 + 4 * 6 * 256 + 63 * 48))) gpu=h100

# For GPUs where there are none: bf16, and it is said what is a guess.
fit 0 "device host, computing in fp32" --ranks 2
test "$(sed -n 2p fit.out)" = "device host, computing in fp32" || die "a guess where none was made"
host=$(arena)
fit 0 "device cuda, computing in bf16; there is none here to ask, so workspaces are estimated" --ranks 2 run.device=cuda gpu=h100
grep -q "computes in bf16 with gradients in fp32 and masters in fp32" fit.out || die "what the verdict is for is not said"
test "$(arena)" -lt "$host" || die "bf16 needs $(arena) bytes, fp32 $host"
fit 0 "device host, computing in bf16" --ranks 2 run.compute=bf16
fit 2 "comm.backend (command line) is nccl" comm.backend=nccl
fit 0 "verified" comm.backend=nccl run.device=cuda
fit 8 "comm.backend (command line) is mpi, which does not carry data between GPUs yet" comm.backend=mpi run.device=cuda --ranks 2

# What would make it fit is a plan of its own, with its own bytes.
fit 1 "with shard.strategy=full_shard, shard.reduce=micro, tiers.activations=recompute and data.micro_batch=1 a rank needs" --ranks 2 gpu=1 \
  shard.strategy=no_shard data.micro_batch=3
grep -q "does not fit either" fit.out || die "one byte is enough"
fit 0 "verified" --ranks 2 tiers.activations=recompute data.micro_batch=1
least=$(arena)
fit 1 "GiB: fits" --ranks 2 gpu="$least" shard.strategy=no_shard data.micro_batch=3
fit 1 "does not fit either" --ranks 2 gpu=$((least - 1)) shard.strategy=no_shard data.micro_batch=3
fit 1 "shorter data.sequence (context= of sluice generate)" mode=generate gpu=1
grep -E 'micro_batch|recompute' fit.out && die "cures that change nothing for generation"
fit 1 "with shard.strategy=full_shard and data.micro_batch=1 a rank needs" mode=eval gpu=1 --ranks 2 shard.strategy=no_shard data.micro_batch=3
fit 0 "verified" mode=eval --ranks 2 data.micro_batch=1
least=$(arena)
fit 1 "GiB: fits" mode=eval --ranks 2 gpu="$least" shard.strategy=no_shard data.micro_batch=3
fit 1 "does not fit either" mode=eval --ranks 2 gpu=$((least - 1)) shard.strategy=no_shard data.micro_batch=3

# The strategy that is printed is the plan's.
fit 0 "2 ranks, no_shard" --ranks 2 shard.strategy=no_shard
fit 0 "2 ranks, full_shard" --ranks 2 shard.strategy=no_shard mode=generate

# Names and sizes.
for pair in a100-40:37.25 a100-80:74.51 h100:74.51 h200:131.32 l40s:44.70 64GiB:64.00 64Gi:64.00 64GB:59.60 0.5TiB:512.00 65536Mi:64.00; do
  fit 0 "has ${pair#*:} GiB: fits" gpu="${pair%%:*}"
done
fails 2 "gpu=b9000: it is one of a100-40, a100-80, h100, h200, l40s, or a size such as 64GiB" "$SLUICE" plan tiny.yaml gpu=b9000
for size in 64Q 64Gix -1 0 1e99 inf; do
  fails 2 "host=$size: it is a size such as 512GiB" "$SLUICE" plan tiny.yaml host=$size
done

# What is trained and what is not.
fit 0 "(70,512 trained, 0 frozen)"
fit 0 "(69,408 trained, 1,104 frozen)" 'train.freeze=[*.bias]'
fit 2 "train.freeze" 'train.freeze=[nothing.like.this]'
fit 0 "(69,408 trained, 1,104 frozen)" 'train.freeze=["*.bias"]'

# What no machine has is refused before a page is touched, with cures that are some.
awk '/MemAvailable/ { exit $2 * 1024 > 2 ^ 42 }' /proc/meminfo || exit 0
make_data
cures() { # YES NO COMMAND...
  yes=$1 no=$2
  shift 2
  fails 5 "use more nodes, $yes" "$@"
  if grep -E "$no" fails.out; then die "a cure that changes nothing"; fi
}
big="model.vocab=2147483647 model.width=4800"
# shellcheck disable=SC2086 # words
{
  cures "shard.strategy=full_shard, tiers.activations=recompute, or a smaller data.micro_batch" "context=" "$SLUICE" train tiny.yaml $big
  cures "a shorter data.sequence, or a smaller data.micro_batch" "shard|tiers" "$SLUICE" eval tiny.yaml --untrained $big
}
cp -r "$top_srcdir/tests/model/data/llama" big
chmod -R u+w big
sed 's/"vocab_size": 61/"vocab_size": 2147483647/; s/"head_dim": 8/"head_dim": 800/; s/"hidden_size": 48/"hidden_size": 4800/' \
  "$top_srcdir/tests/model/data/llama/config.json" > big/config.json
cures "or a shorter context=" "shard|tiers|micro" "$SLUICE" generate big ids=1
