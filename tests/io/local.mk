check_PROGRAMS += \
	tests/io/test_bpe_train \
	tests/io/test_checkpoint \
	tests/io/test_checkpoint_beside \
	tests/io/test_checkpoint_damage \
	tests/io/test_checkpoint_folder \
	tests/io/test_checkpoint_full \
	tests/io/test_checkpoint_kill \
	tests/io/test_file \
	tests/io/test_hdf5 \
	tests/io/test_json_tree \
	tests/io/test_prepare \
	tests/io/test_prepare_process \
	tests/io/test_results \
	tests/io/test_safetensors \
	tests/io/test_split \
	tests/io/test_store \
	tests/io/test_text \
	tests/io/test_tokenizer \
	tests/io/test_tokenizer_json \
	tests/io/test_tokens \
	tests/io/test_trace
check_scripts += \
	tests/io/bench_io.sh \
	tests/io/h5py.sh
# For tests/peers/tokenizer.sh, which measures.
EXTRA_PROGRAMS += tests/peers/encode
io_sample = \
	tests/io/sample.c \
	tests/io/sample.h
tests_io_test_checkpoint_SOURCES = tests/io/test_checkpoint.c $(io_sample)
tests_io_test_checkpoint_beside_SOURCES = tests/io/test_checkpoint_beside.c $(io_sample)
tests_io_test_checkpoint_beside_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=H5Dwrite -Wl,--wrap=H5Fflush -Wl,--wrap=fsync
tests_io_test_checkpoint_damage_SOURCES = tests/io/test_checkpoint_damage.c $(io_sample)
tests_io_test_checkpoint_damage_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=H5Dget_storage_size
tests_io_test_checkpoint_folder_SOURCES = tests/io/test_checkpoint_folder.c $(io_sample)
tests_io_test_checkpoint_folder_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=readdir -Wl,--wrap=H5Dread
tests_io_test_checkpoint_full_SOURCES = tests/io/test_checkpoint_full.c $(io_sample)
tests_io_test_checkpoint_kill_SOURCES = tests/io/test_checkpoint_kill.c $(io_sample)
tests_io_test_checkpoint_kill_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=H5Dcreate2
io_corpus = \
	tests/io/corpus.c \
	tests/io/corpus.h
tests_io_test_bpe_train_SOURCES = tests/io/test_bpe_train.c $(io_corpus)
tests_io_test_file_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=fsync
tests_io_test_prepare_SOURCES = tests/io/test_prepare.c $(io_corpus)
tests_io_test_prepare_process_SOURCES = tests/io/test_prepare_process.c $(io_corpus)
tests_io_test_safetensors_SOURCES = tests/io/test_safetensors.c $(io_sample)
tests_io_test_store_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=unlink -Wl,--wrap=statvfs -Wl,--wrap=mkdtemp -Wl,--wrap=fallocate \
	-Wl,--wrap=pread -Wl,--wrap=pwrite
tests_io_test_trace_SOURCES = tests/io/test_trace.c tests/base/full.h
tests_io_test_tokens_SOURCES = tests/io/test_tokens.c $(io_corpus)
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
	tests/io/data/make_bpe.py
