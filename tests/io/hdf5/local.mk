check_PROGRAMS += \
	tests/io/hdf5/test_hdf5
