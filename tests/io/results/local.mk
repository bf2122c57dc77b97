check_PROGRAMS += \
	tests/io/results/test_events \
	tests/io/results/test_results \
	tests/io/results/test_trace
