noinst_LIBRARIES += io/libio.a
layers += io/libio.a
io_libio_a_SOURCES = \
	io/checkpoint.h \
	io/checkpoint_crc.c \
	io/checkpoint_folder.c \
	io/checkpoint_load.c \
	io/checkpoint_private.h \
	io/checkpoint_save.c \
	io/checkpoint_show.c \
	io/checkpoint_table.c \
	io/file.c \
	io/file.h \
	io/hdf5.c \
	io/hdf5.h \
	io/json.c \
	io/json.h \
	io/prepare.c \
	io/prepare.h \
	io/prepare_group.c \
	io/prepare_group.h \
	io/prepare_inputs.c \
	io/prepare_inputs.h \
	io/results.c \
	io/results.h \
	io/state.h \
	io/text.c \
	io/text.h \
	io/text_input.c \
	io/text_input.h \
	io/tokenizer.c \
	io/tokenizer.h \
	io/tokenizer_bytes.c \
	io/tokenizer_gpt2.c \
	io/tokenizer_ops.h \
	io/tokens.c \
	io/tokens.h \
	io/tokens_shard.c \
	io/tokens_shard.h
