noinst_LIBRARIES += src/train/libtrain.a
layers += src/train/libtrain.a
src_train_libtrain_a_SOURCES = \
	src/train/data.c \
	src/train/data.h \
	src/train/evaluate.c \
	src/train/evaluate.h \
	src/train/exchange.c \
	src/train/exchange.h \
	src/train/generate.c \
	src/train/generate.h \
	src/train/job.c \
	src/train/job.h \
	src/train/job_deck.c \
	src/train/job_disk.c \
	src/train/job_fits.c \
	src/train/job_log.c \
	src/train/job_pages.c \
	src/train/job_place.c \
	src/train/job_private.h \
	src/train/job_start.c \
	src/train/job_state.c \
	src/train/job_state.h \
	src/train/job_state_move.c \
	src/train/job_state_piece.c \
	src/train/job_state_private.h \
	src/train/origin.c \
	src/train/origin.h \
	src/train/sample.c \
	src/train/sample.h \
	src/train/saver.c \
	src/train/saver.h \
	src/train/signals.c \
	src/train/signals.h \
	src/train/stop.c \
	src/train/stop.h \
	src/train/stats.c \
	src/train/stats.h \
	src/train/train.c \
	src/train/train.h \
	src/train/train_checkpoint.c \
	src/train/train_folder.c \
	src/train/train_leave.c \
	src/train/train_private.h \
	src/train/train_record.c \
	src/train/weights.c \
	src/train/weights.h
