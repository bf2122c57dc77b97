check_PROGRAMS += \
	tests/model/test_gpt2 \
	tests/model/test_gpt2_bits \
	tests/model/test_model
tests_model_test_gpt2_SOURCES = \
	tests/model/engine.c \
	tests/model/engine.h \
	tests/model/test_gpt2.c \
	tests/model/twin.c \
	tests/model/twin.h
tests_model_test_gpt2_bits_SOURCES = \
	tests/model/engine.c \
	tests/model/engine.h \
	tests/model/test_gpt2_bits.c
tests_model_test_model_SOURCES = \
	tests/model/engine.c \
	tests/model/engine.h \
	tests/model/test_model.c
