noinst_LIBRARIES += io/tokens/libtokens.a
layers += io/tokens/libtokens.a
io_tokens_libtokens_a_SOURCES = \
	io/tokens/chat.c \
	io/tokens/chat.h \
	io/tokens/choices.c \
	io/tokens/choices.h \
	io/tokens/conversation.c \
	io/tokens/conversation.h \
	io/tokens/index.c \
	io/tokens/pack.c \
	io/tokens/index.h \
	io/tokens/pack.h \
	io/tokens/prepare.c \
	io/tokens/prepare.h \
	io/tokens/prepare_group.c \
	io/tokens/prepare_group.h \
	io/tokens/prepare_record.c \
	io/tokens/prepare_record.h \
	io/tokens/reference.c \
	io/tokens/reference.h \
	io/tokens/shard.c \
	io/tokens/shard.h \
	io/tokens/tokens.c \
	io/tokens/tokens.h
