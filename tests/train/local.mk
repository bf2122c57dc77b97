check_PROGRAMS += \
	tests/train/test_hf_convert \
	tests/train/test_folder \
	tests/train/test_learned \
	tests/train/test_packed \
	tests/train/test_sample \
	tests/train/test_checkpoint_writer \
	tests/train/test_stop
tests_train_test_learned_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=device_create -Wl,--wrap=device_count
tests_train_test_checkpoint_writer_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=mem_available_bytes \
  -Wl,--wrap=mem_total_grows -Wl,--wrap=mem_limit_bytes -Wl,--wrap=unlink
tests_train_test_folder_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=flock -Wl,--wrap=fcntl
