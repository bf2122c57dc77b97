# shellcheck shell=bash disable=SC2154 # the caller sets sluice, gpus, results and arguments
# Functions for scripts that measure rows. gpu.sh, offload.sh and tests/net/pays.sh source it. A
# script sets sluice (the program), gpus (ranks of a row), results (a file that gets JSON lines) and
# arguments (the deck and key=value of a row).

limited() { timeout -k 10 "${LIMIT:-300}" "$@"; }

# run_peer NAME COMMAND: a list of words. The JSON lines that it prints go to the results.
run_peer() {
  # shellcheck disable=SC2086
  limited env OMP_NUM_THREADS="${OMP_NUM_THREADS:-8}" \
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True $2 | grep '^{' | tee -a "$results" ||
    echo "$1: the peer failed with exit code ${PIPESTATUS[0]}"
}

# with_passes RATES NAME DECK KEY=VALUE...: prints the name of a file with RATES and the rates of
# the model's passes. They are those of two of its blocks on one rank. NAME stands for the model.
with_passes() {
  local file=$1.$2
  if ! test -s "$file"; then
    cp "$1" "$file.new"
    # One rank needs no remote shell, which a machine may lack.
    OMPI_MCA_plm=isolated limited "$sluice" bench "${@:3}" tiers.activations=keep model.layers=2 \
      shard.strategy=full_shard steps=3 rates="$file.new" > "$results.log" 2>&1 ||
      { cat "$results.log" >&2; return 1; }
    mv "$file.new" "$file"
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
  case $1 in
  *-clipped)
    "$sluice" plan "${words[@]}" ranks="$gpus" local_ranks="$gpus" list=false rates="$2" |
      sed -n "s|^  speculative .* s *\([0-9.]*\) s .*\$|{\"kind\":\"forecast\",\"row\":\"$1\",\
\"gpus\":$gpus,\"step_s\":\1}|p" | grep '^{' >> "$results" || echo "$1: no forecast"
    return
    ;;
  esac
  "$sluice" plan "${words[@]}" ranks="$gpus" local_ranks="$gpus" list=false rates="$2" |
    sed -n "s|^predicted step \([0-9.]*\) s, \([0-9]*\) tokens/s over all ranks, exposed \
communication \([-0-9.]*\) s\(.*\)\$|\
{\"kind\":\"forecast\",\"row\":\"$1\",\"gpus\":$gpus,\"step_s\":\1,\"exposed_comm_s\":\3\4}|p" |
    sed 's|, copies \([-0-9.]*\) s, updates \([-0-9.]*\) s, disk \([-0-9.]*\) '\
's}|,"exposed_copy_s":\1,"exposed_update_s":\2,"exposed_disk_s":\3}|' | grep '^{' >> "$results" ||
    echo "$1: no forecast"
}
