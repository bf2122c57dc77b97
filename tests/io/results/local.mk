check_PROGRAMS += \
	tests/io/results/test_events \
	tests/io/results/test_results \
	tests/io/results/test_trace
tests_io_results_test_trace_SOURCES = tests/io/results/test_trace.c tests/base/full.h
