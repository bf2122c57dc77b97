noinst_LIBRARIES += src/compress/libcompress.a
layers += src/compress/libcompress.a
src_compress_libcompress_a_SOURCES = \
	src/compress/bf16.c \
	src/compress/compress.c \
	src/compress/compress.h \
	src/compress/none.c
