check_PROGRAMS += \
	tests/job/test_axes \
	tests/job/test_choose \
	tests/job/test_copies \
	tests/job/test_cuts \
	tests/job/test_place \
	tests/job/test_prefetch \
	tests/job/test_rates \
	tests/job/test_residual \
	tests/job/test_state \
	tests/job/test_tensors \
	tests/job/test_tiers
EXTRA_DIST += tests/job/place.txt
fixtures += tests/job/libjob.a
tests_job_libjob_a_SOURCES = \
	tests/job/fixture.c \
	tests/job/fixture.h \
	tests/job/ranks.c \
	tests/job/ranks.h
tests_job_test_axes_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=device_create
tests_job_test_choose_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=job_rates
tests_job_test_place_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=statfs -Wl,--wrap=mkdtemp
tests_job_test_rates_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=comm_all_gather -Wl,--wrap=comm_exchange \
  -Wl,--wrap=comm_fabric_read -Wl,--wrap=comm_local_ranks -Wl,--wrap=mkdir -Wl,--wrap=thread_start
