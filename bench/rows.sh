# shellcheck shell=bash disable=SC2154 # the caller sets sluice, gpus, results and arguments
# Functions for scripts that measure rows: gpu.sh, offload.sh and bench/pays.sh. The script sets
# - sluice: the program,
# - results: a file that gets JSON lines,
# - for forecast gpus: the number of ranks,
# - for forecast arguments: the deck and key=value of a row.

limited() { timeout -k 10 "${LIMIT:-300}" "$@"; }

# run_peer NAME COMMAND: COMMAND is one string of words. Its JSON lines go to the results.
run_peer() {
  # shellcheck disable=SC2086
  limited env OMP_NUM_THREADS="${OMP_NUM_THREADS:-8}" \
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True $2 | grep '^{' | tee -a "$results" ||
    echo "$1: the peer failed with exit code ${PIPESTATUS[0]}"
}

# with_passes RATES NAME DECK KEY=VALUE...: prints the name of a file with the rates of RATES and of
# the model's passes. These are measured with two of its blocks on one rank. The file is kept. Its
# name has NAME and a checksum of the other words.
with_passes() {
  local key file new
  key=$(printf '%s\n' "${@:3}" | cksum) && file=$1.$2-${key%% *} new=$1.$$
  if ! test "$file" -nt "$1"; then
    cp "$1" "$new" || return
    # One rank needs no remote shell, which a machine may lack.
    OMPI_MCA_plm=isolated limited "$sluice" bench "${@:3}" tiers.activations=keep model.layers=2 \
      shard.strategy=full_shard steps=3 rates="$new" > "$new.log" 2>&1 ||
      { cat "$new.log" >&2; rm -f "$new" "$new.log"; return 1; }
    rm "$new.log"
    mv "$new" "$file" || return
  fi
  echo "$file"
}

# forecast NAME RATES: a line of the results with the prediction of `sluice plan`. That of a clipped
# step is in the table of optim.update.
forecast() {
  local words=() word
  for word in "${arguments[@]}"; do
    case $word in steps=* | warmup=*) ;; *) words+=("$word") ;; esac
  done
  words=("$sluice" plan "${words[@]}" ranks="$gpus" local_ranks="$gpus" rates="$2")
  case $1 in
  *-clipped)
    "${words[@]}" |
      sed -n "s|^  speculative .* s *\([0-9.]*\) s .*\$|{\"kind\":\"forecast\",\"row\":\"$1\",\
\"gpus\":$gpus,\"step_s\":\1}|p" | grep '^{' >> "$results" || echo "$1: no forecast"
    return
    ;;
  esac
  "${words[@]}" |
    sed -n "s|^predicted step \([0-9.]*\) s, \([0-9]*\) tokens/s over all ranks, exposed \
communication \([-0-9.]*\) s\(.*\)\$|\
{\"kind\":\"forecast\",\"row\":\"$1\",\"gpus\":$gpus,\"step_s\":\1,\"exposed_comm_s\":\3\4}|p" |
    sed 's|, copies \([-0-9.]*\) s, updates \([-0-9.]*\) s, disk \([-0-9.]*\) '\
's}|,"exposed_copy_s":\1,"exposed_update_s":\2,"exposed_disk_s":\3}|' | grep '^{' >> "$results" ||
    echo "$1: no forecast"
}
