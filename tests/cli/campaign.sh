#!/bin/sh
# A case of each campaign in tests/campaign. Oracles: a good case passes. A program that loses a
# checkpoint is noticed, and so is a program that continues in other bits.
. "${top_srcdir:?}/tests/cli/common.sh"
need bash mpirun pgrep ps unshare
campaign=$top_srcdir/tests/campaign

# damaged COMMAND: a program that does COMMAND before it continues a run, whose folder is $dir.
damaged() {
  mkdir -p bad
  cat > bad/sluice <<END
#!/bin/sh
case "\$*:\$LD_PRELOAD" in *'--resume auto:')
  for dir; do case \$dir in run.dir=*) dir=\${dir#run.dir=}; break ;; esac; done
  $1 ;;
esac
exec '$SLUICE' "\$@"
END
  chmod +x bad/sluice
}

status=0
bash "$campaign/kills.sh" "$SLUICE" good 1 27 > good.out 2>&1 || status=$?
test $status != 77 || { cat good.out; exit 77; }
test $status = 0 || { cat good.out >&2; die "a good kill: exit $status"; }
grep -q '"outcome":"good"' good/kills.jsonl || die "no record of the kill"

damaged 'rm "$dir"/ckpt/step-00000002.h5'
fails 1 "it did not continue from" bash "$campaign/kills.sh" bad/sluice lost 1 27
grep -q "to repeat: tests/campaign/kills.sh SLUICE OUT 1 27" fails.out ||
  { cat fails.out >&2; die "it does not say how to repeat a fault"; }
grep -q '"outcome":"it did not continue from' lost/kills.jsonl || die "no record of the fault"

bash "$campaign/faults.sh" "$SLUICE" faults 1 rename:1:EIO > faults.out 2>&1 ||
  { cat faults.out >&2; die "a rename that fails"; }
grep -q '"call":"rename","number":1,"fault":"EIO","exit":4' faults/faults.jsonl ||
  { cat faults/faults.jsonl >&2; die "no record of the fault of storage"; }
# Flushes, closings and openings that fail in the commands that write files.
for one in prepare:pwrite:20:ENOSPC prepare:pwrite:30:EIO,stays \
  import:pwrite:17:EIO,stays import:pwrite:19:EIO,stays \
  import:open:6:ENOSPC export:write:3:ENOSPC; do
  COMMAND=${one%%:*} bash "$campaign/faults.sh" "$SLUICE" faults 1 "${one#*:}" > faults.out 2>&1 ||
    { cat faults.out >&2; die "a fault of $one"; }
done
damaged 'set -- "$@" optim.lr=1'
fails 1 "other bits" bash "$campaign/faults.sh" bad/sluice other 1 rename:1:EIO

# A job's life. Each start of a bad program has one descriptor more than the last one. Sanitizers
# keep freed memory, so resident memory grows there.
test "${SANITIZER:-no}" = no || exit 0
bash "$campaign/soak.sh" "$SLUICE" soak 2 3 > soak.out 2>&1 || { cat soak.out >&2; die "a soak"; }
grep -q '"kind":"life","life":2,' soak/soak.jsonl || die "no record of a life"
cat > bad/sluice <<END
#!/bin/bash
echo >> lives
for ((i = \$(wc -l < lives); i > 0; i--)); do exec {more}< /dev/null; done
exec '$SLUICE' "\$@"
END
fails 1 "more than in the second life" bash "$campaign/soak.sh" bad/sluice soak_bad 3 2
