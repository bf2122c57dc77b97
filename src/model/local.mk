noinst_LIBRARIES += src/model/libmodel.a
layers += src/model/libmodel.a
src_model_libmodel_a_SOURCES = \
	src/model/gpt2.c \
	src/model/head.c \
	src/model/model.c \
	src/model/model.h \
	src/model/parts.c \
	src/model/parts.h \
	src/model/unit.c \
	src/model/unit.h
