check_PROGRAMS += \
	tests/io/checkpoint/test_beside \
	tests/io/checkpoint/test_checkpoint \
	tests/io/checkpoint/test_damage \
	tests/io/checkpoint/test_folder \
	tests/io/checkpoint/test_full \
	tests/io/checkpoint/test_kill
check_scripts += \
	tests/io/checkpoint/h5py.sh
io_sample = \
	tests/io/checkpoint/sample.c \
	tests/io/checkpoint/sample.h
tests_io_checkpoint_test_beside_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=H5Dwrite -Wl,--wrap=H5Fflush \
  -Wl,--wrap=fsync
tests_io_checkpoint_test_beside_SOURCES = tests/io/checkpoint/test_beside.c $(io_sample)
tests_io_checkpoint_test_checkpoint_SOURCES = tests/io/checkpoint/test_checkpoint.c $(io_sample)
tests_io_checkpoint_test_damage_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=H5Dget_storage_size
tests_io_checkpoint_test_damage_SOURCES = tests/io/checkpoint/test_damage.c $(io_sample)
tests_io_checkpoint_test_folder_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=readdir -Wl,--wrap=H5Dread \
  -Wl,--wrap=rename -Wl,--wrap=unlink
tests_io_checkpoint_test_folder_SOURCES = tests/io/checkpoint/test_folder.c $(io_sample)
tests_io_checkpoint_test_full_SOURCES = tests/io/checkpoint/test_full.c $(io_sample)
tests_io_checkpoint_test_kill_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=H5Dcreate2
tests_io_checkpoint_test_kill_SOURCES = tests/io/checkpoint/test_kill.c $(io_sample)
