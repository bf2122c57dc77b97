#!/bin/bash
# bench/matrix.sh SLUICE OUT RATE... [-- key=value...]: the matrix of codecs.
# Two ranks, one GPU each, run codecs x feedback x strategies at each RATE. RATE is a rate of
# tests/net/rig.sh, which makes a host of each rank, or `node`: both ranks in this host. All rows of
# a rate are steps of one start of `sluice bench`. `sluice plan` predicts each row from rates that
# are measured on the same link. A second start skips rows that OUT/RATE.rows.jsonl has.
# OUT/matrix.jsonl gets one line per row:
#   link, strategy, codec, feedback
#   link_gbit                        measured rate of the link, in Gbit/s
#   step_p50, predicted_s            seconds per step
#   pays_below_gbit                  predicted break-even bandwidth of the codec: "never" if the
#                                    step is shorter on no link, "always" if on every link. Absent
#                                    if the codec pays only above a bandwidth
#   gradient_bytes, message_bytes    per rank and step, without and with the codec, and their ratio
#   sent_bytes                       all bytes that a rank sends in a step
#   refused                          the reason, if the combination is none; no numbers then
# bench/tables.py makes a table of such a file. key=value are more keys of the deck, for
# example model.layers=2.
# Environment:
#   DECK        deck (inputs/gpt2-62m.yaml with the keys below, which make steps short)
#   STRATEGIES  values of shard.strategy (full_shard shard_grad_op no_shard)
#   CODECS      codecs, CODEC+VALUES too (all of `sluice help keys`, and topk+int8)
#   STEPS       steps with the clock of each row (2). On fast links short steps vary more
#   WARMUP      steps before them, at least 1 (1)
#   LIMIT       seconds that a rate may take (300)
#   MPIRUN      another mpirun of Open MPI
#   DEVICE      run.device (cuda)
#   PRECISE     seconds per measured rate (0.05)
# Not part of make check: it measures.
set -u -o pipefail
usage="usage: bench/matrix.sh SLUICE OUT RATE... [-- key=value...]"
test $# -ge 3 || { echo "$usage" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
sluice=$1 out=$2
shift 2
rates=()
while test $# -gt 0 && test "$1" != --; do
  rates+=("$1")
  shift
done
test $# = 0 || shift
test ${#rates[@]} -gt 0 || { echo "$usage" >&2; exit 2; }
device=${DEVICE:-cuda}
gpus=gpus
test "$device" = cuda || gpus=
deck=${DECK:-$here/../inputs/gpt2-62m.yaml}
keys=()
test -n "${DECK:-}" || keys=(model.layers=4 model.vocab=8192 data.batch=16)
keys+=(run.device="$device" "$@")
mkdir -p "$out"

fail() {
  echo "matrix.sh: $*" >&2
  exit 1
}

codecs() {
  "$sluice" help keys compress.grads.codec | sed -n 's/^        \([a-z0-9_]*\)  .*/\1/p' |
    grep -v -x fp32
  echo topk+int8
}

# rows: a line per row, its name and its keys. Nothing is lost without a codec or with exponent.
rows() {
  local strategy codec feedback
  for strategy in ${STRATEGIES:-full_shard shard_grad_op no_shard}; do
    for codec in ${CODECS:-$(codecs)}; do
      for feedback in off bf16; do
        case $codec-$feedback in none-bf16 | exponent-bf16) continue ;; esac
        echo "$strategy/$codec/$feedback shard.strategy=$strategy" \
          "compress.grads.codec=${codec%+*} compress.feedback=$feedback" \
          "$(test "$codec" = "${codec%+*}" || echo "compress.grads.values=${codec#*+}")"
      done
    done
  done
}

# launch RATE COMMAND...: under mpirun on two ranks.
launch() {
  local rate=$1
  shift
  if test "$rate" = node; then
    # Ranks of this host need no remote shell, which a machine may lack.
    # shellcheck disable=SC2086 # a list of words
    OMPI_MCA_plm=isolated timeout -k 10 "${LIMIT:-300}" ${MPIRUN:-mpirun} --bind-to none -n 2 "$@"
  else
    timeout -k 10 "${LIMIT:-300}" sh "$here/../tests/net/rig.sh" 2 "$rate" $gpus -- "$@"
  fi
}

# passes COMMAND...: one rank with its GPU, or with a thread per core of a host of the bench.
passes() {
  test "$device" = cuda || set -- "$@" run.threads=$((($(nproc) + 1) / 2))
  OMPI_MCA_plm=isolated "$@" # one rank needs no remote shell, which a machine may lack
}

# measure RATE: rates of the machine with this link, then the rows.
measure() {
  local rate=$1 base=$out/$1 known
  test -s "$base.link" ||
    launch "$rate" "$sluice" bench rates device="$device" out="$base.link" \
      seconds="${PRECISE:-0.05}" > "$base.log" 2>&1 ||
    fail "bench rates at $rate failed, see $base.log"
  if ! test -s "$out/passes"; then
    cp "$base.link" "$out/passes.new"
    passes "$sluice" bench "$deck" "${keys[@]}" steps=3 rates="$out/passes.new" \
      > "$out/passes.log" 2>&1 || fail "see $out/passes.log"
    grep -E '^(forward|backward|loss):' "$out/passes.new" > "$out/passes"
  fi
  grep -v -E '^(forward|backward|loss):' "$base.link" | cat - "$out/passes" > "$base.rates"
  rows > "$base.rows"
  touch "$base.rows.jsonl"
  known=$(sed -n 's/.*"row":"\([^"]*\)".*/^\1 /p' "$base.rows.jsonl")
  grep -v -f <(echo "${known:-^$}") "$base.rows" > "$base.todo"
  test -s "$base.todo" || return 0
  launch "$rate" "$sluice" bench "$deck" "${keys[@]}" rows="$base.todo" steps="${STEPS:-2}" \
    warmup="${WARMUP:-1}" results="$base.rows.jsonl" > "$base.log" 2>&1 ||
    echo "matrix.sh: $rate ended early, see $base.log; a second start goes on" >&2
}

# predict RATE: a file per row in OUT/RATE.plans.
predict() {
  local rate=$1 base=$out/$1 local_ranks=1 n=0 name words
  test "$rate" != node || local_ranks=2
  mkdir -p "$base.plans"
  while read -r name words; do
    # shellcheck disable=SC2086 # a list of words
    "$sluice" plan "$deck" "${keys[@]}" $words ranks=2 local_ranks=$local_ranks \
      rates="$base.rates" > "$base.plans/${name//\//-}" 2>&1 &
    n=$((n + 1))
    test $((n % $(nproc))) != 0 || wait
  done < "$base.rows"
  wait
}

# collect RATE: a line per measured row.
collect() {
  local gbit
  gbit=$(awk '$1 == "link:" { printf "%.4g", 8 * $2 }' "$out/$1.link")
  test -n "$gbit" || fail "no rate of a link in $out/$1.link"
  awk -v rate="$1" -v plans="$out/$1.plans" -v link_gbit="$gbit" '
    function get(key) {
      if (!match($0, "\"" key "\":(\"[^\"]*\"|[^,}]*)")) return ""
      return substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3)
    }
    function number(file, before, line, found) { # the word after `before` in a line of a file
      found = ""
      while ((getline line < file) > 0)
        if (match(line, before " *[0-9.e+-]+"))
          found = substr(line, RSTART + length(before), RLENGTH - length(before))
      close(file)
      return found + 0
    }
    function pays(file, line, found) { # of the codec, empty without one
      found = number(file, "shorter on links of less than")
      found = found > 0 ? sprintf("%.4g", 8 * found) : ""
      while ((getline line < file) > 0) {
        if (line ~ "shorter on no link ") found = "\"never\""
        if (line ~ "shorter on every link ") found = "\"always\""
      }
      close(file)
      return found
    }
    get("row") != "" {
      row = get("row"); gsub("\"", "", row); split(row, part, "/")
      printf "{\"link\":\"%s\",\"strategy\":\"%s\",\"codec\":\"%s\",\"feedback\":\"%s\"", rate,
        part[1], part[2], part[3]
      if (get("refused") != "") { printf ",\"refused\":%s}\n", get("refused"); next }
      file = row; gsub("/", "-", file); file = plans "/" file
      below = pays(file)
      printf ",\"link_gbit\":%s,\"step_p50\":%s,\"predicted_s\":%s", link_gbit, get("step_p50"),
        number(file, "predicted step")
      if (below != "") printf ",\"pays_below_gbit\":%s", below
      raw = get("gradient_bytes"); sent = get("message_bytes")
      printf ",\"gradient_bytes\":%s,\"message_bytes\":%s,\"ratio\":%.4f,\"sent_bytes\":%s}\n", raw,
        sent, (sent > 0 ? raw / sent : 1), get("sent_bytes")
    }' "$out/$1.rows.jsonl"
}

for rate in "${rates[@]}"; do
  echo "matrix: $rate" >&2
  measure "$rate"
  predict "$rate"
done
for rate in "${rates[@]}"; do collect "$rate"; done > "$out/matrix.jsonl"
wc -l "$out/matrix.jsonl" >&2
