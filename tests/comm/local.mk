check_PROGRAMS += \
	tests/comm/test_abort \
	tests/comm/test_collect \
	tests/comm/test_control \
	tests/comm/test_data \
	tests/comm/test_device \
	tests/comm/test_fake \
	tests/comm/test_init \
	tests/comm/test_lone \
	tests/comm/test_nodes \
	tests/comm/test_placement \
	tests/comm/test_shared \
	tests/comm/test_threads \
	tests/comm/test_warnings \
	tests/comm/test_watchdog_channel
fixtures += tests/comm/libcomm.a
tests_comm_libcomm_a_SOURCES = \
	tests/comm/again.c \
	tests/comm/again.h \
	tests/comm/apart.c \
	tests/comm/apart.h \
	tests/comm/data.c \
	tests/comm/data.h \
	tests/comm/far.c \
	tests/comm/far.h \
	tests/comm/fixture.c \
	tests/comm/fixture.h \
	tests/comm/reduce.c \
	tests/comm/reduce.h \
	tests/comm/rounds.c \
	tests/comm/rounds.h
