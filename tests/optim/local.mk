check_PROGRAMS += \
	tests/optim/test_schedule \
	tests/optim/test_update
