include io/checkpoint/local.mk
include io/store/local.mk
include io/tokens/local.mk
include io/tokenizer/local.mk
include io/huggingface/local.mk
include io/results/local.mk
include io/hdf5/local.mk
include io/text/local.mk
