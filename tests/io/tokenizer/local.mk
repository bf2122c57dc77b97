check_PROGRAMS += \
	tests/io/tokenizer/test_bpe_train \
	tests/io/tokenizer/test_json \
	tests/io/tokenizer/test_split \
	tests/io/tokenizer/test_tokenizer
EXTRA_DIST += \
	tests/io/data/bpe_train/corpus.jsonl \
	tests/io/data/bpe_train/make_bpe_train.py \
	tests/io/data/bpe_train/merges.gpt2.txt \
	tests/io/data/bpe_train/merges.llama3.txt \
	tests/io/data/bpe_train/merges.qwen2.txt \
	tests/io/data/bpe/merges.txt \
	tests/io/data/bpe/vocab.json \
	tests/io/data/corpus.txt \
	tests/io/data/expected.txt \
	tests/io/data/make_bpe.py \
	tests/io/tokenizer/unicode_tables.py
tests_io_tokenizer_test_bpe_train_SOURCES = tests/io/tokenizer/test_bpe_train.c $(io_corpus)
