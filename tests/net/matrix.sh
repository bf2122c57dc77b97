#!/bin/sh
# The matrix of codecs: tests/net/matrix.sh SLUICE OUT MATRIX RATE... [-- key=value...]
# It runs `sluice compare MATRIX` once per RATE, with the results in OUT/RATE. A second start goes
# on where the first one ended.
# RATE is a rate of tests/net/rig.sh, which makes a host of each rank, or `node`: all ranks on this
# host, without the network bench.
# key=value are keys of sluice compare, such as deck=, ranks=, seeds= and common=.
# Environment:
#   RIG     more words for rig.sh, such as RIG="gpus delay=1"
#   MPIRUN  another mpirun of Open MPI
# Not part of make check: it measures. matrix.yaml is the list of all codecs.
set -eu
usage="usage: tests/net/matrix.sh SLUICE OUT MATRIX RATE... [-- key=value...]"
test $# -ge 4 || { echo "$usage" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
sluice=$1 out=$2 matrix=$3
shift 3
rates=
while test $# -gt 0 && test "$1" != --; do
  rates="$rates $1"
  shift
done
test $# = 0 || shift
test -n "$rates" || { echo "$usage" >&2; exit 2; }

# ranks of the matrix: those of the command line, or 2.
ranks=2
for word in "$@"; do
  case $word in ranks=*) ranks=${word#ranks=} ;; esac
done

launcher=${MPIRUN:-mpirun}
for rate in $rates; do
  if test "$rate" = node; then
    MPIRUN="$launcher --bind-to none"
  else
    MPIRUN="env MPIRUN=$launcher sh $here/rig.sh $ranks $rate ${RIG-} --"
  fi
  export MPIRUN
  echo "matrix: $rate" >&2
  "$sluice" compare "$matrix" out="$out/$rate" ranks="$ranks" "$@"
done
