check_PROGRAMS += \
	tests/io/store/test_store
check_scripts += \
	tests/io/store/bench_io.sh
tests_io_store_test_store_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=unlink -Wl,--wrap=statvfs \
  -Wl,--wrap=mkdtemp -Wl,--wrap=fallocate \
	-Wl,--wrap=pread -Wl,--wrap=pwrite
