noinst_LIBRARIES += io/text/libtext.a
layers += io/text/libtext.a
io_text_libtext_a_SOURCES = \
	io/text/file.c \
	io/text/file.h \
	io/text/file_kind.c \
	io/text/file_kind.h \
	io/text/file_system.c \
	io/text/file_system.h \
	io/text/input.c \
	io/text/input.h \
	io/text/input_files.c \
	io/text/input_files.h \
	io/text/json.c \
	io/text/json.h \
	io/text/jsonl.c \
	io/text/jsonl.h \
	io/text/json_write.c \
	io/text/json_write.h \
	io/text/lock.c \
	io/text/lock.h \
	io/text/scratch.c \
	io/text/scratch.h \
	io/text/source.c \
	io/text/source.h \
	io/text/stripes.c \
	io/text/stripes.h \
	io/text/text.c \
	io/text/text.h \
	io/text/utf8.c \
	io/text/utf8.h
