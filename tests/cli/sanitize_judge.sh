#!/bin/sh
# What tests/gpu/sanitize.sh judges by, where there is no GPU: a tool of that name prints what compute-sanitizer printed (2025.3), and ends as it ended. Oracles: what each print means, read by hand.
. "${top_srcdir:?}/tests/cli/common.sh"
mkdir bin
PATH=$PWD/bin:$PATH
export PATH REPORT=$PWD/report

# compute-sanitizer ... COMMAND...; the program under test.
cat > bin/compute-sanitizer <<'END'
#!/bin/sh
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

# judged CODE TEXT: with the report of standard input and the exit code $ended; on one deck and type, by one tool.
judged() {
  cat > report
  CODE=$ended TOOLS=racecheck DECKS=gpt2 COMPUTES=bf16 LIMIT=20 fails "$1" "$2" sh "$top_srcdir/tests/gpu/sanitize.sh" trains
}

ended=0
judged 0 "racecheck-gpt2-bf16: ========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings) (exit code 0)" <<'END'
========= COMPUTE-SANITIZER
========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)
END

ended=9
judged 0 "2 hazards displayed (2 errors, 0 warnings), all in kernels of libraries (exit code 9)" <<'END'
========= COMPUTE-SANITIZER
========= Error: Race reported between Read access at nvjet_sm90_tss_64x160_64x6_4x2_h_bz_NTT+0xa10
=========     and Write access at nvjet_sm90_tss_64x160_64x6_4x2_h_bz_NTT+0x4530 [32 hazards]
========= 
========= Error: Race reported between Read access at void cutlass::Kernel2<T1>(T1::Params)+0xa10
=========     and Write access at void cutlass::Kernel2<T1>(T1::Params)+0x4530 [32 hazards]
========= 
========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)
END
# One of our own beside it; then half of one.
judged 1 "Read access at hopper::load_shared2(unsigned int)+0x10f0 in hopper.cuh:216 [384 hazards]" <<'END'
========= Error: Race reported between Read access at nvjet_sm90_tss_64x160_64x6_4x2_h_bz_NTT+0xa10
=========     and Write access at nvjet_sm90_tss_64x160_64x6_4x2_h_bz_NTT+0x4530 [32 hazards]
========= 
========= Error: Race reported between Write access at hopper::load_bulk(unsigned int, const void *, unsigned int, unsigned int)+0x7900 in hopper.cuh:70
=========     and Read access at hopper::load_shared2(unsigned int)+0x10f0 in hopper.cuh:216 [384 hazards]
========= 
========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)
END
judged 1 "RACECHECK SUMMARY" <<'END'
========= Warning: Race reported between Write access at nvjet_sm90_tss_64x160_64x6_4x2_h_bz_NTT+0xa10
=========     and Read access at sum_parts(float *)+0x10 in optim.cu:70 [1 hazards]
========= 
========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warnings)
END
# Other kinds of findings beside those of libraries, and some that were not printed.
for other in "========= Error: Potential WAR hazard detected at __shared__ 0x38 in block (2,0,0) :" "========= Barrier error detected. Missing wait." "========= 200 errors were not printed."; do
  judged 1 "exit code 9" << END
========= COMPUTE-SANITIZER
========= Error: Race reported between Read access at nvjet_sm90_tss_64x160_64x6_4x2_h_bz_NTT+0xa10
=========     and Write access at nvjet_sm90_tss_64x160_64x6_4x2_h_bz_NTT+0x4530 [32 hazards]
========= 
$other
========= RACECHECK SUMMARY: 1 hazard displayed (1 errors, 0 warnings)
END
done
judged 1 "3 hazards displayed" <<'END'
========= Error: Race reported between Read access at nvjet_sm90_tss_64x160_64x6_4x2_h_bz_NTT+0xa10
=========     and Write access at nvjet_sm90_tss_64x160_64x6_4x2_h_bz_NTT+0x4530 [32 hazards]
========= 
========= RACECHECK SUMMARY: 3 hazards displayed (3 errors, 0 warnings)
END
# What another tool found, a report that breaks off, and none at all.
judged 1 "Invalid __global__ read" <<'END'
========= Invalid __global__ read of size 4 bytes
=========     at nvjet_sm90_tss_64x160_64x6_4x2_h_bz_NTT+0xa10
========= ERROR SUMMARY: 1 error
END
judged 1 "Race reported" <<'END'
========= Error: Race reported between Read access at nvjet_sm90_tss_64x160_64x6_4x2_h_bz_NTT+0xa10
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
