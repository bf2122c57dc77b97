check_PROGRAMS += \
	tests/model/test_bits \
	tests/model/test_decode \
	tests/model/test_fp8 \
	tests/model/test_hf \
	tests/model/test_model \
	tests/model/test_parity \
	tests/model/test_twin
tests_model_test_bits_SOURCES = \
	tests/model/engine.c \
	tests/model/engine.h \
	tests/model/shapes.c \
	tests/model/shapes.h \
	tests/model/test_bits.c
tests_model_test_decode_SOURCES = \
	tests/model/engine.c \
	tests/model/engine.h \
	tests/model/shapes.c \
	tests/model/shapes.h \
	tests/model/test_decode.c
tests_model_test_model_SOURCES = \
	tests/model/engine.c \
	tests/model/engine.h \
	tests/model/test_model.c
tests_model_test_parity_SOURCES = \
	tests/model/engine.c \
	tests/model/engine.h \
	tests/model/test_parity.c
tests_model_test_twin_SOURCES = \
	tests/model/engine.c \
	tests/model/engine.h \
	tests/model/shapes.c \
	tests/model/shapes.h \
	tests/model/test_twin.c \
	tests/model/twin.c \
	tests/model/twin.h \
	tests/model/twin_decoder.c
