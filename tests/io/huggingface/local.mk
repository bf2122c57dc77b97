check_PROGRAMS += \
	tests/io/huggingface/test_safetensors
