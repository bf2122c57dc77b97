check_PROGRAMS += \
	tests/model/test_bits \
	tests/model/test_decode \
	tests/model/test_fp8 \
	tests/model/test_hf \
	tests/model/test_model \
	tests/model/test_pairs \
	tests/model/test_parity \
	tests/model/test_stages \
	tests/model/test_twin
fixtures += tests/model/libmodel.a
tests_model_libmodel_a_SOURCES = \
	tests/model/engine.c \
	tests/model/engine.h \
	tests/model/twin.c \
	tests/model/twin.h
tests_model_test_stages_SOURCES = \
	tests/model/stages.c \
	tests/model/stages.h \
	tests/model/test_stages.c
tests_model_test_stages_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=architecture_find
EXTRA_DIST += tests/model/config.txt tests/model/models.txt
