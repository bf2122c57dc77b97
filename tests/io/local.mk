include tests/io/checkpoint/local.mk
include tests/io/hdf5/local.mk
include tests/io/huggingface/local.mk
include tests/io/results/local.mk
include tests/io/store/local.mk
include tests/io/text/local.mk
include tests/io/tokenizer/local.mk
include tests/io/tokens/local.mk
