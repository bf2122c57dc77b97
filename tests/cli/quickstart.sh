#!/bin/sh
# quickstart.sh on machines with 0, 1, 2 and 8 GPUs. Oracle: the number of ranks given to mpirun,
# and the cure of what the build lacks as the last line. `sluice topo` is the program's own, and the
# other commands are imitated.
. "${top_srcdir:?}/tests/cli/common.sh"

mkdir -p .ci build bin data/quickstart-text
cp "$top_srcdir/quickstart.sh" .
cat > .ci/setup.sh <<'END'
packages_build=
say() { :; }
install_missing() { :; }
build() { :; }
END
cat > build/sluice <<'END'
#!/bin/sh
case $1 in
topo) exec "$SLUICE" topo --gpus "$GPUS" ;;
doctor) cat findings ;;
esac
END
printf '#!/bin/sh\necho "$@" > asked\n' > bin/mpirun
chmod +x build/sluice bin/mpirun
PATH=$PWD/bin:$PATH

for row in 0:2 1:1 2:2 8:2; do
  export GPUS="${row%:*}"
  echo 'ok       NCCL            2.28.9' > findings
  sh ./quickstart.sh > "out$GPUS" 2>&1 || { cat "out$GPUS" >&2; die "quickstart.sh, $GPUS GPUs"; }
  case $(cat asked) in
  *" -n ${row#*:} build/sluice train inputs/quickstart.yaml --resume auto") ;;
  *) die "$GPUS GPUs: mpirun $(cat asked)" ;;
  esac
  tail -n 1 "out$GPUS" | grep -q '^tests ' || die "quickstart.sh reports a lack where there is none"
done

echo 'warning  NCCL            not in this build: data go through MPI. Cure: pip' >> findings
sh ./quickstart.sh > out 2>&1
tail -n 1 out | grep -qx 'NCCL: not in this build: data go through MPI. Cure: pip' ||
  { tail -n 3 out >&2; die "quickstart.sh does not name what the build lacks"; }
