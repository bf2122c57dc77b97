noinst_LIBRARIES += src/compress/libcompress.a
layers += src/compress/libcompress.a
EXTRA_DIST += src/compress/rule
src_compress_libcompress_a_SOURCES = \
	src/compress/compress.c \
	src/compress/compress.h \
	src/compress/lossless.c \
	src/compress/lowrank.c \
	src/compress/nf4.c \
	src/compress/nf4.h \
	src/compress/plain.c \
	src/compress/quantiser.c \
	src/compress/sketch.c \
	src/compress/sparsifier.c
