check_PROGRAMS += \
	tests/exec/test_alloc \
	tests/exec/test_bits \
	tests/exec/test_codecs \
	tests/exec/test_failure \
	tests/exec/test_frozen \
	tests/exec/test_generate \
	tests/exec/test_guards \
	tests/exec/test_host \
	tests/exec/test_late \
	tests/exec/test_lr_scale \
	tests/exec/test_op_counters \
	tests/exec/test_op_counters_process \
	tests/exec/test_ranks \
	tests/exec/test_trace \
	tests/exec/test_turns \
	tests/exec/test_watchdog \
	tests/exec/test_weights
exec_job = tests/exec/job.c tests/exec/job.h tests/exec/late.c tests/exec/late.h
tests_exec_test_alloc_SOURCES = tests/exec/test_alloc.c $(exec_job)
tests_exec_test_bits_SOURCES = tests/exec/test_bits.c $(exec_job)
tests_exec_test_codecs_SOURCES = tests/exec/test_codecs.c $(exec_job)
tests_exec_test_codecs_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=codec_make
tests_exec_test_failure_SOURCES = tests/exec/test_failure.c $(comm_again) $(exec_job)
tests_exec_test_failure_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=codec_make
tests_exec_test_frozen_SOURCES = tests/exec/test_frozen.c $(exec_job)
tests_exec_test_generate_SOURCES = tests/exec/test_generate.c $(exec_job)
tests_exec_test_guards_SOURCES = tests/exec/test_guards.c $(exec_job)
tests_exec_test_host_SOURCES = tests/exec/test_host.c $(exec_job)
tests_exec_test_late_SOURCES = tests/exec/test_late.c $(exec_job)
tests_exec_test_lr_scale_SOURCES = tests/exec/test_lr_scale.c $(exec_job)
tests_exec_test_ranks_SOURCES = tests/exec/test_ranks.c $(exec_job)
tests_exec_test_turns_SOURCES = tests/exec/test_turns.c $(exec_job)
tests_exec_test_turns_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=comm_all_gather -Wl,--wrap=comm_exchange \
	-Wl,--wrap=comm_group_sum_exact -Wl,--wrap=comm_group_is_enqueued
exec_reopen = tests/exec/reopen.c tests/exec/reopen.h $(exec_job)
tests_exec_test_trace_SOURCES = tests/exec/test_trace.c tests/base/full.h $(exec_reopen)
tests_exec_test_weights_SOURCES = tests/exec/test_weights.c $(exec_job)
tests_exec_test_watchdog_SOURCES = tests/exec/test_watchdog.c $(comm_again) $(exec_reopen)
