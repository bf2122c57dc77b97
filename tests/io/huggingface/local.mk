check_PROGRAMS += \
	tests/io/huggingface/test_safetensors
EXTRA_DIST += tests/io/huggingface/refused.txt
