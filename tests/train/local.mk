check_PROGRAMS += \
	tests/train/test_exchange \
	tests/train/test_sample \
	tests/train/test_stats \
	tests/train/test_tensors
