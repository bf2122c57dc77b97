check_PROGRAMS += \
	tests/optim/test_muon \
	tests/optim/test_rules \
	tests/optim/test_schedule \
	tests/optim/test_update
