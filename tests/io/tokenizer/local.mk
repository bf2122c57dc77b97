check_PROGRAMS += \
	tests/io/tokenizer/test_bpe_train \
	tests/io/tokenizer/test_json \
	tests/io/tokenizer/test_split \
	tests/io/tokenizer/test_tokenizer
EXTRA_DIST += \
	tests/io/tokenizer/bpe_train.txt \
	tests/io/tokenizer/json.txt \
	tests/io/tokenizer/split.txt \
	tests/io/tokenizer/tokenizer.txt \
	tests/io/tokenizer/unicode_tables.py
