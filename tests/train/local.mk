check_PROGRAMS += \
	tests/train/test_exchange \
	tests/train/test_folder \
	tests/train/test_learned \
	tests/train/test_place \
	tests/train/test_reader \
	tests/train/test_sample \
	tests/train/test_saver \
	tests/train/test_state \
	tests/train/test_stats \
	tests/train/test_stop \
	tests/train/test_tensors \
	tests/train/test_tiers
train_fixture = \
	tests/comm/far.c \
	tests/comm/far.h \
	tests/train/fixture.c \
	tests/train/fixture.h
tests_train_test_learned_SOURCES = tests/train/test_learned.c $(train_fixture)
tests_train_test_learned_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=device_create -Wl,--wrap=device_count
tests_train_test_place_SOURCES = tests/train/test_place.c $(train_fixture)
tests_train_test_place_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=statfs -Wl,--wrap=mkdtemp
tests_train_test_reader_SOURCES = tests/train/test_reader.c $(exec_reopen)
tests_train_test_saver_SOURCES = tests/train/test_saver.c $(train_fixture)
tests_train_test_saver_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=mem_available_bytes -Wl,--wrap=mem_total_grows -Wl,--wrap=mem_limit_bytes
tests_train_test_state_SOURCES = tests/train/test_state.c $(train_fixture)
tests_train_test_tensors_SOURCES = tests/train/test_tensors.c $(train_fixture)
tests_train_test_tiers_SOURCES = tests/train/test_tiers.c $(train_fixture)
tests_train_test_folder_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=flock
