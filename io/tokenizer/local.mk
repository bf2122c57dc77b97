noinst_LIBRARIES += io/tokenizer/libtokenizer.a
layers += io/tokenizer/libtokenizer.a
io_tokenizer_libtokenizer_a_SOURCES = \
	io/tokenizer/added_tokens.c \
	io/tokenizer/added_tokens.h \
	io/tokenizer/bpe.c \
	io/tokenizer/bpe.h \
	io/tokenizer/bpe_train.c \
	io/tokenizer/bpe_train.h \
	io/tokenizer/bpe_train_merge.c \
	io/tokenizer/bpe_train_merge.h \
	io/tokenizer/bpe_train_words.c \
	io/tokenizer/bpe_train_words.h \
	io/tokenizer/bpe_train_write.c \
	io/tokenizer/bytes.c \
	io/tokenizer/gpt2.c \
	io/tokenizer/json.c \
	io/tokenizer/json_added.c \
	io/tokenizer/json_loader.h \
	io/tokenizer/json_model.c \
	io/tokenizer/json_parts.c \
	io/tokenizer/nfc.c \
	io/tokenizer/nfc.h \
	io/tokenizer/ops.h \
	io/tokenizer/split.c \
	io/tokenizer/split.h \
	io/tokenizer/split_classes.c \
	io/tokenizer/split_classes.h \
	io/tokenizer/tokenizer.c \
	io/tokenizer/tokenizer.h \
	io/tokenizer/tokenizer_bpe.c \
	io/tokenizer/tokenizer_bpe.h
