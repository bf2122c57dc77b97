check_PROGRAMS += \
	tests/comm/test_abort \
	tests/comm/test_control \
	tests/comm/test_data \
	tests/comm/test_device \
	tests/comm/test_fake \
	tests/comm/test_report \
	tests/comm/test_shared \
	tests/comm/test_survey \
	tests/comm/test_threads
tests_comm_test_device_SOURCES = tests/comm/test_device.c tests/comm/apart.c tests/comm/apart.h
