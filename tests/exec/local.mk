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
	tests/exec/test_stages \
	tests/exec/test_trace \
	tests/exec/test_turns \
	tests/exec/test_watchdog \
	tests/exec/test_weights
fixtures += tests/exec/libexec.a
tests_exec_libexec_a_SOURCES = \
	tests/exec/job.c \
	tests/exec/job.h \
	tests/exec/late.c \
	tests/exec/late.h
tests_exec_test_codecs_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=codec_make
tests_exec_test_failure_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=codec_make
tests_exec_test_turns_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=comm_all_gather -Wl,--wrap=comm_exchange \
	-Wl,--wrap=comm_group_sum_exact -Wl,--wrap=comm_group_is_enqueued
tests_exec_test_stages_SOURCES = \
	tests/exec/test_stages.c \
	tests/model/stages.c \
	tests/model/stages.h
tests_exec_test_stages_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=architecture_find
