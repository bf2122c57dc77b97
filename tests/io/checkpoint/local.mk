check_PROGRAMS += \
	tests/io/checkpoint/test_beside \
	tests/io/checkpoint/test_checkpoint \
	tests/io/checkpoint/test_damage \
	tests/io/checkpoint/test_folder \
	tests/io/checkpoint/test_full \
	tests/io/checkpoint/test_kill
fixtures += tests/io/checkpoint/libcheckpoint.a
tests_io_checkpoint_libcheckpoint_a_SOURCES = \
	tests/io/checkpoint/job.h \
	tests/io/checkpoint/sample.c \
	tests/io/checkpoint/sample.h
check_scripts += \
	tests/io/checkpoint/h5py.sh
EXTRA_DIST += tests/io/checkpoint/untrue.txt
tests_io_checkpoint_test_beside_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=pwrite -Wl,--wrap=fsync
tests_io_checkpoint_test_checkpoint_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=open -Wl,--wrap=H5Fopen \
  -Wl,--wrap=H5Fcreate
tests_io_checkpoint_test_damage_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=H5Dget_storage_size \
  -Wl,--wrap=H5Dget_offset
tests_io_checkpoint_test_folder_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=readdir -Wl,--wrap=pread \
  -Wl,--wrap=rename -Wl,--wrap=unlink
tests_io_checkpoint_test_kill_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=H5Dcreate2
