#!/bin/sh
# Tests the judgement of tests/gpu/sanitize.sh without a GPU: a program named compute-sanitizer
# prints a recorded output and ends with its exit code. Oracles: what each print means, read by
# hand.
. "${top_srcdir:?}/tests/cli/common.sh"
mkdir bin
PATH=$PWD/bin:$PATH
export PATH REPORT=$PWD/report ASKED=$PWD/asked

# compute-sanitizer ... COMMAND...; the program under test.
cat > bin/compute-sanitizer <<'END'
#!/bin/sh
echo "$@" > "$ASKED"
test "$1" != --version || { echo "Version 0"; exit; }
cat "$REPORT"
exit "$CODE"
END
cat > bin/trains <<'END'
#!/bin/sh
test -d "$XDG_CACHE_HOME" || exit 1
echo "it ends with ${TRAINS:-0}"
exit "${TRAINS:-0}"
END
chmod +x bin/compute-sanitizer bin/trains

# judged CODE TEXT [TEST...]: with the report of standard input and the exit code $ended; on one
# deck and type, by one tool.
judged() {
  cat > given
  mv given report
  code=$1 text=$2
  shift 2
  CODE=$ended TOOLS=${TOOLS:-racecheck} DECKS=${DECKS:-gpt2} COMPUTES=bf16 LIMIT=20 fails "$code" \
    "$text" sh "$top_srcdir/tests/gpu/sanitize.sh" trains "$@"
}

ended=0
judged 0 "racecheck-gpt2-bf16: ========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 \
warnings) (exit code 0)" <<'END'
========= COMPUTE-SANITIZER
========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)
END

grep -q -e "--tool racecheck .*--kernel-name-exclude kns=nvjet .*--kernel-name-exclude kns=cublas \
.* trains bench" asked || {
  cat asked >&2; die "racecheck does not leave out the kernels of libraries"; }
TOOLS=memcheck judged 0 "memcheck-gpt2-bf16" < report
if grep -q exclude asked; then die "memcheck leaves something out"; fi
DECKS=fp8 judged 0 "racecheck-fp8-fp8: " < report
grep -q ' run.compute=fp8 ' asked || { cat asked >&2; die "the deck of fp8 is not in fp8"; }
judged 0 "racecheck-test_b: ========= RACECHECK SUMMARY: 0 hazards" dir/test_a dir/test_b < report
grep -q ' dir/test_b$' asked || { cat asked >&2; die "the last test was not run"; }

ended=9
judged 1 "Read access at hopper::load_shared2(unsigned int)+0x10f0 in hopper.cuh:216 [384 \
hazards]" <<END
========= Error: Race reported between Write access at hopper::load_bulk(unsigned int, \
const void *, unsigned int, unsigned int)+0x7900 in hopper.cuh:70
=========     and Read access at hopper::load_shared2(unsigned int)+0x10f0 in \
hopper.cuh:216 [384 hazards]
========= 
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
END
# The output of another tool, and a run that was cut off.
judged 1 "Invalid __global__ read" <<'END'
========= Invalid __global__ read of size 4 bytes
=========     at nvjet_sm90_tss_64x160_64x6_4x2_h_bz_NTT+0xa10
========= ERROR SUMMARY: 1 error
END
ended=124
judged 1 "(exit code 124)" <<'END'
========= Error: Race reported between Read access at nvjet_sm90_tss_64x160_64x6_4x2_h_bz_NTT+0xa10
=========     and Write access at nvjet_sm90_tss_64x160_64x6_4x2_h_bz_NTT+0x4530 [32 hazards]
========= 
END
# A program that does not even run without the tool.
ended=0
TRAINS=3
export TRAINS
judged 1 "it ends with 3" < /dev/null
if grep -q racecheck fails.out; then die "the tool was asked about a program that does not run"; fi
