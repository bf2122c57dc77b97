check_PROGRAMS += \
	tests/model/test_bits \
	tests/model/test_decode \
	tests/model/test_fp8 \
	tests/model/test_hf \
	tests/model/test_model \
	tests/model/test_pairs \
	tests/model/test_parity \
	tests/model/test_twin
fixtures += tests/model/libmodel.a
tests_model_libmodel_a_SOURCES = \
	tests/model/engine.c \
	tests/model/engine.h \
	tests/model/twin.c \
	tests/model/twin.h
EXTRA_DIST += tests/model/config.txt tests/model/models.txt
