#!/bin/sh
# sluice bench rates. Oracles: sluice plan predicts the same from the file as from its lines in two
# files. It knows the names and their ranges. On one rank there is no link. The results hold a
# copy of every measured rate.
. "${top_srcdir:?}/tests/cli/common.sh"
make_deck
rates() { on "$@" device=host bytes=1MiB seconds=0; }

# names FILE: of the rates there.
names() { sed -n 's/^\([a-z0-9_]*\): [0-9.e+-]*  # .*/\1/p' "$1" | tr '\n' ' '; }

mkdir disk
codecs=$(sed -n 's/^ *ROW(\([a-z0-9_]*\),.*/\1/p' "$top_srcdir/src/compress/rule/codecs.h")
coded=$(for measure in '' _latency; do for way in encode decode; do for codec in $codecs; do
  printf '%s_%s%s ' $way "$codec" $measure; done; done; done)
for ranks in 1 2 3; do
  rates $ranks "$SLUICE" bench rates out=$ranks.yaml dir=disk results=$ranks.jsonl > bench.out \
    2>&1 || { cat bench.out >&2; die "bench rates on $ranks ranks"; }
  test -z "$(ls disk)" || die "left behind: $(ls disk)"
  test "$(grep -c 'transport between ranks: mpi;' bench.out)" = $((ranks > 1)) ||
    { cat bench.out >&2; die "the transport of $ranks ranks"; }
  grep -q '"transport":"mpi"' $ranks.jsonl || { cat $ranks.jsonl >&2; die "no transport"; }
  case $ranks in
  1) expected="gemm memory h2d d2h host_memory disk_write disk_read $coded" ;;
  *) expected="gemm memory link exchange exchange_latency latency contention spread spread_ranks \
h2d d2h h2d_alone d2h_alone host_memory host_link disk_write disk_read $coded" ;;
  esac
  test "$(names $ranks.yaml)" = "$expected" || { cat $ranks.yaml >&2; die "rates of $ranks ranks"; }
  for name in $expected; do
    grep -q "^$name  *[0-9.e+-]* \(GFLOP/s\|GB/s\|us\|of 1\|ranks\), " bench.out || {
      cat bench.out >&2; die "bench rates does not say $name"; }
    grep -q "\"kind\":\"bench_rates\",.*\"ranks\":$ranks,.*\"$name\":[0-9.e+-]*[,}]" $ranks.jsonl ||
      { cat $ranks.jsonl >&2; die "no $name in results"; }
  done
done

host="tiers.params=host tiers.optimizer=host"
awk '{ print > (NR % 2 ? "odd.yaml" : "even.yaml") }' 2.yaml
for files in 2.yaml odd.yaml,even.yaml even.yaml,odd.yaml; do
  # shellcheck disable=SC2086 # a list of words
  "$SLUICE" plan tiny.yaml ranks=2 $host rates=$files > $files.out 2>&1 || {
    cat $files.out >&2; die "plan rates=$files"; }
  grep -q '^predicted step [0-9.]* s' $files.out || { cat $files.out >&2; die "no prediction"; }
  cmp 2.yaml.out $files.out || die "rates=$files predicts another step"
done

# A codec is priced by its rates and latencies, and so is the link on which it pays. Between 2 ranks
# a gradient is encoded once and each message decoded once. So a codec that takes a hundred times as
# long needs a link that is about a hundred times slower.
pays() {
  "$SLUICE" plan tiny.yaml ranks=2 $pinned compress.grads.codec=int8 \
    "$(with_rates gemm=1e3 memory=100 link=0.1 "$@")" > codec.out
  sed -n 's/^without a codec .* on links of less than \([0-9.e+-]*\) GB.s$/\1/p' codec.out
}
hundredfold() {
  awk "BEGIN { exit !($1 > 30 * $2 && $1 < 300 * $2 && $2 > 0) }" ||
    die "a codec pays on links of $1 and $2 GB/s"
}
hundredfold "$(pays encode_int8=10 decode_int8=10)" "$(pays encode_int8=0.1 decode_int8=0.1)"
quick="encode_int8=1e9 decode_int8=1e9"
# shellcheck disable=SC2086 # a list of words
hundredfold "$(pays $quick encode_int8_latency=100 decode_int8_latency=100)" \
  "$(pays $quick encode_int8_latency=1e4 decode_int8_latency=1e4)"

# A codec pays on every link, on no link, or only on fast links. The last case is a density of 1,
# because messages are longer. Oracle: the times of the steps, if the link is an end of the search.
# ends LINKS KEYS RATE=VALUE...: KEYS are words for the deck.
ends() {
  links=$1 keys=$2
  shift 2
  : > ends.times
  for end in 0.0001 10000; do
    # shellcheck disable=SC2086 # a list of words
    "$SLUICE" plan tiny.yaml ranks=2 $keys \
      "$(with_rates gemm=1e3 memory=1 link=$end "$@")" > ends.out
    grep -q "^without a codec .*; the codec makes it shorter on $links GB/s$" ends.out ||
      { cat ends.out >&2; die "no '$links' with $keys $*"; }
    sed -n 's/^without a codec .* s, \([0-9.]*\) times as long.*/\1/p' ends.out >> ends.times
  done
  slow=$(head -n 1 ends.times) fast=$(tail -n 1 ends.times)
}
range="from 0.0001 to 10000"
ends "every link $range" compress.grads.codec=int8 encode_int8=1e9 decode_int8=1e9
awk "BEGIN { exit !($slow > 1 && $fast > 1) }" || die "on every link, but $slow and $fast"
ends "no link $range" compress.grads.codec=int8 encode_int8=1e-5 decode_int8=1e-5
awk "BEGIN { exit !($slow < 1 && $fast < 1) }" || die "on no link, but $slow and $fast"
ends "links of more than [0-9.e+-]*" "compress.grads.codec=topk compress.grads.density=1" \
  encode_topk=1e9 decode_topk=1e9
awk "BEGIN { exit !($slow < 1 && $fast > 1) }" || die "only on fast links, but $slow and $fast"

# The search varies all links between nodes. Oracle: without across_link it is a part of link.
hybrid() {
  "$SLUICE" plan tiny.yaml ranks=4 local_ranks=2 shard.strategy=hybrid_shard \
    compress.grads.codec=int8 \
    "$(with_rates gemm=1e3 memory=100 link=1 encode_int8=1 decode_int8=1 "$@")" |
    grep '^without a codec'
}
test "$(hybrid across_link=0.5)" = "$(hybrid)" || die "a part of link: $(hybrid across_link=0.5)"
hybrid across_link=0.01 | grep -q ' on links of less than ' ||
  die "a slow link between nodes: $(hybrid across_link=0.01)"

# The latency counts for each call. Values are decoded message by message, and a rank receives one
# message from each rank.
late() {
  "$SLUICE" plan tiny.yaml ranks="$1" shard.reduce=step shard.strategy=shard_grad_op \
    compress.grads.codec=topk compress.grads.values=int8 \
    "$(with_rates gemm=1e9 memory=1e9 link=1e9 encode_topk=1e9 decode_topk=1e9 encode_int8=1e9 \
      decode_int8=1e9 decode_int8_latency=1e6)" |
    sed -n 's/^predicted step \([0-9.]*\) s,.*/\1/p'
}
few=$(late 2) many=$(late 4)
awk "BEGIN { exit !($few > 1 && $many > 1.9 * $few && $many < 2.1 * $few) }" ||
  die "values of 2 messages take $few s, of 4 messages $many s"

# Units that stay gathered save traffic, so they are chosen. Oracle: shard_grad_op, which gathers
# each unit once.
slow="ranks=2 $(with_rates gemm=1e6 memory=1e3 link=0.01 latency=0.001)"
# shellcheck disable=SC2086 # lists of words
{
  "$SLUICE" plan tiny.yaml $slow data.batch=8 > fit.out
  settings tiny.yaml $slow data.batch=8
  "$SLUICE" plan tiny.yaml $slow data.batch=8 $pinned shard.strategy=shard_grad_op > once.out
}
once=$(sed -n 's/^predicted step \([0-9.]*\) s,.*/\1/p' once.out)
grep -q "^predicted step $once s" fit.out && grep -q ':shard.gathered=3$' rows ||
  { cat fit.out once.out >&2; die "shard.gathered is not chosen"; }
# Where no unit is gathered twice, the key is ignored, and plan says so.
ignored() {
  reason=$1
  shift
  "$SLUICE" plan tiny.yaml shard.gathered=1 "$@" 2>&1 |
    grep -q "shard.gathered is ignored: $reason" || die "shard.gathered with $*"
}
ignored "this strategy gathers no unit twice" ranks=2 shard.strategy=shard_optim
ignored "one rank computes with its fp32 masters" ranks=1
ignored "this strategy gathers no unit twice" ranks=2 shard.strategy=no_shard
ignored "masters in host memory come to the device" ranks=2 tiers.params=host tiers.optimizer=host

# The rates of a model's passes replace those in the file. A plan predicts from them what the passes
# took, which is most of what the compute lane did.
printf '# kept\nforward: 1e-9\ngemm: 1' > passes.yaml
"$SLUICE" bench tiny.yaml steps=3 rates=passes.yaml results=passes.jsonl > bench.out 2>&1 || {
  cat bench.out >&2; die "bench with rates="; }
printf '# kept\ngemm: 1\n' > head.yaml
head -n 2 passes.yaml | cmp - head.yaml || { cat passes.yaml >&2; die "other lines are not kept"; }
test "$(sed -n 's/^\([a-z]*\): [0-9.e+-]*  # .*/\1/p' passes.yaml |
  tr '\n' ' ')" = "forward backward loss " || { cat passes.yaml >&2; die "rates of passes"; }
measured=$(sed -n 's/.*"busy_compute_s":\([0-9.e+-]*\).*/\1/p' passes.jsonl)
predicted=$("$SLUICE" plan tiny.yaml rates=passes.yaml |
  sed -n 's/^  compute  busy \([0-9.e+-]*\) s$/\1/p')
awk "BEGIN { exit !($predicted <= 1.02 * $measured + 1e-4 && $predicted >= 0.3 * $measured) }" ||
  die "predicted $predicted s of $measured s"
fails 3 "nowhere.yaml" "$SLUICE" bench tiny.yaml steps=1 rates=nowhere.yaml

# Without a folder there is no rate of the disk. Without out= and results= no file is written.
rates 1 "$SLUICE" bench rates backend=mpi > bench.out 2>&1 ||
  { cat bench.out >&2; die "bench rates"; }
if grep -q '^disk' bench.out; then die "a disk that nobody named"; fi

fails 2 "unknown key 'steps'" "$SLUICE" bench rates steps=3
fails 2 "bytes must be a size from 1048576 to 1073741824, such as 8000000, 8M, 8Mi or 8MiB, not \
'4096'" "$SLUICE" bench rates bytes=4096
fails 2 "not '8mib'" "$SLUICE" bench rates bytes=8mib
fails 2 "'devise'" "$SLUICE" bench rates devise=host
fails 2 "is nccl, which moves data between GPUs" on 2 "$SLUICE" bench rates backend=nccl \
  device=host
fails 8 "run.device (command line) is cuda, but this " \
  on 2 "$SLUICE" bench rates device=cuda

# All ranks detect an output that cannot be written before anything is measured. If the command
# fails for another reason, existing files stay as they were.
early() {
  fails 4 "$@"
  if grep -qE '^[a-z][a-z0-9_/ ]{21} ' fails.out; then
    cat fails.out >&2; die "found only after measuring: $*"
  fi
}
mkdir folder
for ranks in 1 3; do
  early "nowhere/rates.yaml" rates $ranks "$SLUICE" bench rates out=nowhere/rates.yaml
  early "folder: it is a folder" rates $ranks "$SLUICE" bench rates out=folder
  early "nowhere/results.jsonl" rates $ranks "$SLUICE" bench rates out=fresh.yaml \
    results=nowhere/results.jsonl
done
for what in "tiny.yaml steps=1 warmup=0" "adam n=64 seconds=0" \
  "io dir=disk size=1Mi piece=1Mi seconds=0"; do
  # shellcheck disable=SC2086 # a list of words
  early "nowhere/results.jsonl" "$SLUICE" bench $what results=nowhere/results.jsonl
done
for kept in kept.yaml kept.jsonl; do echo old > $kept; done
fails 8 "is cuda, but " "$SLUICE" bench rates device=cuda out=kept.yaml results=kept.jsonl
fails 8 "is cuda, but " "$SLUICE" bench rates device=cuda out=fresh.yaml results=fresh.jsonl
for kept in kept.yaml kept.jsonl; do
  test "$(cat $kept)" = old || die "$kept is not what it was"
done
test -z "$(ls -d fresh* ./*.tmp folder/* 2> /dev/null)" ||
  die "left behind: $(ls -d fresh* ./*.tmp folder/*)"
