check_PROGRAMS += \
	tests/io/tokens/test_prepare \
	tests/io/tokens/test_prepare_process \
	tests/io/tokens/test_tokens
io_corpus = \
	tests/io/tokens/corpus.c \
	tests/io/tokens/corpus.h
tests_io_tokens_test_prepare_SOURCES = tests/io/tokens/test_prepare.c $(io_corpus)
tests_io_tokens_test_prepare_process_SOURCES = tests/io/tokens/test_prepare_process.c $(io_corpus)
tests_io_tokens_test_tokens_SOURCES = tests/io/tokens/test_tokens.c $(io_corpus)
