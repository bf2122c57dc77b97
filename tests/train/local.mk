check_PROGRAMS += \
	tests/train/test_sample \
	tests/train/test_stats
