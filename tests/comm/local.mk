check_PROGRAMS += \
	tests/comm/test_abort \
	tests/comm/test_collect \
	tests/comm/test_control \
	tests/comm/test_data \
	tests/comm/test_device \
	tests/comm/test_fake \
	tests/comm/test_init \
	tests/comm/test_nodes \
	tests/comm/test_placement \
	tests/comm/test_shared \
	tests/comm/test_threads \
	tests/comm/test_warnings \
	tests/comm/test_watchdog_channel
comm_again = \
	tests/comm/again.c \
	tests/comm/again.h
comm_fixture = \
	tests/comm/fixture.c \
	tests/comm/fixture.h
comm_reduce = \
	tests/comm/reduce.c \
	tests/comm/reduce.h
comm_apart = \
	tests/comm/apart.c \
	tests/comm/apart.h \
	tests/comm/far.c \
	tests/comm/far.h
tests_comm_test_abort_SOURCES = tests/comm/test_abort.c $(comm_again)
tests_comm_test_control_SOURCES = tests/comm/test_control.c $(comm_fixture)
tests_comm_test_data_SOURCES = tests/comm/test_data.c $(comm_fixture) $(comm_reduce)
tests_comm_test_device_SOURCES = tests/comm/test_device.c $(comm_apart) $(comm_fixture) \
	$(comm_reduce)
tests_comm_test_fake_SOURCES = tests/comm/test_fake.c $(comm_reduce)
tests_comm_test_nodes_SOURCES = tests/comm/test_nodes.c $(comm_fixture)
tests_comm_test_placement_SOURCES = tests/comm/test_placement.c $(comm_fixture)
tests_comm_test_watchdog_channel_SOURCES = tests/comm/test_watchdog_channel.c $(comm_fixture)
tests_comm_test_shared_SOURCES = tests/comm/test_shared.c $(comm_fixture)
tests_comm_test_threads_SOURCES = tests/comm/test_threads.c $(comm_fixture) $(comm_reduce)
tests_comm_test_collect_SOURCES = tests/comm/test_collect.c $(comm_fixture)
tests_comm_test_warnings_SOURCES = tests/comm/test_warnings.c $(comm_again)
