noinst_LIBRARIES += src/train/libtrain.a
layers += src/train/libtrain.a
src_train_libtrain_a_SOURCES = \
	src/train/check.c \
	src/train/checkpoint.c \
	src/train/checkpoint_writer.c \
	src/train/checkpoint_writer.h \
	src/train/data.c \
	src/train/data.h \
	src/train/evaluate.c \
	src/train/evaluate.h \
	src/train/folder.c \
	src/train/generate.c \
	src/train/generate.h \
	src/train/head.c \
	src/train/hf_convert.c \
	src/train/hf_convert.h \
	src/train/leave.c \
	src/train/metrics.c \
	src/train/private.h \
	src/train/record.c \
	src/train/record_start.c \
	src/train/sample.c \
	src/train/sample.h \
	src/train/reference.c \
	src/train/reference.h \
	src/train/signals.c \
	src/train/signals.h \
	src/train/stats.c \
	src/train/stats.h \
	src/train/stop.c \
	src/train/stop.h \
	src/train/train.c \
	src/train/train.h
