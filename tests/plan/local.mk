check_PROGRAMS += \
	tests/plan/test_build \
	tests/plan/test_free_space \
	tests/plan/test_meaning \
	tests/plan/test_memory \
	tests/plan/test_plan \
	tests/plan/test_print \
	tests/plan/test_schedule \
	tests/plan/test_simulate \
	tests/plan/test_traffic \
	tests/plan/test_verify \
	tests/plan/test_verify_bytes \
	tests/plan/test_verify_whole
fixtures += tests/plan/libplan.a
tests_plan_libplan_a_SOURCES = \
	tests/plan/broken.c \
	tests/plan/broken.h \
	tests/plan/fixture.c \
	tests/plan/fixture.h
tests_plan_test_build_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=mem_grow
tests_plan_test_meaning_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=codec_make
tests_plan_test_verify_whole_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=codec_make
tests_plan_test_verify_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=codec_make
EXTRA_DIST += tests/plan/broken.txt tests/plan/golden tests/plan/sound.txt
