check_PROGRAMS += \
	tests/job/test_copies \
	tests/job/test_place \
	tests/job/test_prefetch \
	tests/job/test_residual \
	tests/job/test_state \
	tests/job/test_tensors \
	tests/job/test_tiers
job_fixture = \
	tests/comm/far.c \
	tests/comm/far.h \
	tests/job/fixture.c \
	tests/job/fixture.h
tests_job_test_copies_SOURCES = tests/job/test_copies.c $(job_fixture)
tests_job_test_place_SOURCES = tests/job/test_place.c $(job_fixture)
tests_job_test_place_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=statfs -Wl,--wrap=mkdtemp
tests_job_test_prefetch_SOURCES = tests/job/test_prefetch.c $(exec_reopen)
tests_job_test_residual_SOURCES = tests/job/test_residual.c $(job_fixture)
tests_job_test_state_SOURCES = tests/job/test_state.c $(job_fixture)
tests_job_test_tensors_SOURCES = tests/job/test_tensors.c $(job_fixture)
tests_job_test_tiers_SOURCES = tests/job/test_tiers.c $(job_fixture)
