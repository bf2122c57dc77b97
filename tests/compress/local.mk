check_PROGRAMS += \
	tests/compress/test_compress \
	tests/compress/test_exponent \
	tests/compress/test_global \
	tests/compress/test_lowrank \
	tests/compress/test_quantise \
	tests/compress/test_sketch \
	tests/compress/test_sparse
tests_compress_test_compress_SOURCES = tests/compress/test_compress.c tests/compress/guard.h
tests_compress_test_global_SOURCES = tests/compress/test_global.c tests/compress/guard.h
tests_compress_test_lowrank_SOURCES = tests/compress/test_lowrank.c tests/compress/guard.h
tests_compress_test_quantise_SOURCES = tests/compress/test_quantise.c tests/compress/guard.h
tests_compress_test_sparse_SOURCES = tests/compress/test_sparse.c tests/compress/guard.h
tests_compress_test_exponent_SOURCES = tests/compress/test_exponent.c tests/compress/guard.h
tests_compress_test_sketch_SOURCES = tests/compress/test_sketch.c tests/compress/guard.h
