check_PROGRAMS += \
	tests/io/huggingface/test_safetensors
tests_io_huggingface_test_safetensors_SOURCES = tests/io/huggingface/test_safetensors.c $(io_sample)
