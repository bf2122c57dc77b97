check_PROGRAMS += \
	tests/optim/test_muon \
	tests/optim/test_rules \
	tests/optim/test_schedule \
	tests/optim/test_update
tests_optim_test_muon_SOURCES = tests/optim/test_muon.c tests/device/fixture.c \
  tests/device/fixture.h
tests_optim_test_rules_SOURCES = tests/optim/test_rules.c tests/device/fixture.c \
  tests/device/fixture.h
