check_PROGRAMS += \
	tests/io/tokens/test_pack \
	tests/io/tokens/test_prepare \
	tests/io/tokens/test_prepare_process \
	tests/io/tokens/test_tokens
fixtures += tests/io/tokens/libtokens.a
tests_io_tokens_libtokens_a_SOURCES = \
	tests/io/tokens/corpus.c \
	tests/io/tokens/corpus.h \
	tests/io/tokens/job.h
EXTRA_DIST += tests/io/tokens/pack.txt tests/io/tokens/prepare.txt
EXTRA_PROGRAMS += tests/io/tokens/documents
check_DATA += tests/io/tokens/documents$(EXEEXT)
CLEANFILES += tests/io/tokens/documents$(EXEEXT)
