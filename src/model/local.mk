noinst_LIBRARIES += src/model/libmodel.a
layers += src/model/libmodel.a
EXTRA_DIST += src/model/rule
src_model_libmodel_a_SOURCES = \
	src/model/architecture.c \
	src/model/cache.c \
	src/model/config.c \
	src/model/decoder.c \
	src/model/decoder.h \
	src/model/embedding.c \
	src/model/fp8.c \
	src/model/freeze.c \
	src/model/head.c \
	src/model/hf_adapter.c \
	src/model/hf.h \
	src/model/hf_keys.c \
	src/model/hf_names.c \
	src/model/hf_print.c \
	src/model/hf_private.h \
	src/model/hf_read.c \
	src/model/hf_rope.c \
	src/model/hf_window.c \
	src/model/model.c \
	src/model/model.h \
	src/model/parts.c \
	src/model/parts.h \
	src/model/stage.c \
	src/model/unit.c \
	src/model/unit.h
