check_PROGRAMS += \
	tests/compress/test_compress \
	tests/compress/test_quantise \
	tests/compress/test_sparse
