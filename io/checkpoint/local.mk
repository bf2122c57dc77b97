noinst_LIBRARIES += io/checkpoint/libcheckpoint.a
layers += io/checkpoint/libcheckpoint.a
io_checkpoint_libcheckpoint_a_SOURCES = \
	io/checkpoint/checkpoint.h \
	io/checkpoint/crc.c \
	io/checkpoint/folder.c \
	io/checkpoint/load.c \
	io/checkpoint/meta.c \
	io/checkpoint/private.h \
	io/checkpoint/save.c \
	io/checkpoint/show.c \
	io/checkpoint/state.h \
	io/checkpoint/table.c \
	io/checkpoint/write.c
