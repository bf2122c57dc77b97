check_PROGRAMS += \
	tests/compress/test_compress \
	tests/compress/test_exponent \
	tests/compress/test_global \
	tests/compress/test_lowrank \
	tests/compress/test_nf4 \
	tests/compress/test_quantise \
	tests/compress/test_sketch \
	tests/compress/test_sparse
EXTRA_DIST += \
	tests/compress/codecs.txt \
	tests/compress/fixture.h \
	tests/compress/nf4.txt
