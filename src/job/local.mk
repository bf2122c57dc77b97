noinst_LIBRARIES += src/job/libjob.a
layers += src/job/libjob.a
src_job_libjob_a_SOURCES = \
	src/job/base.c \
	src/job/base.h \
	src/job/choose.c \
	src/job/choose.h \
	src/job/deck.c \
	src/job/disk.c \
	src/job/fits.c \
	src/job/job.c \
	src/job/job.h \
	src/job/log.c \
	src/job/model_source.c \
	src/job/model_source.h \
	src/job/pages.c \
	src/job/place.c \
	src/job/prefetch.c \
	src/job/prefetch.h \
	src/job/private.h \
	src/job/rates.c \
	src/job/rates.h \
	src/job/rates_cache.c \
	src/job/rates_link.c \
	src/job/rates_measure.c \
	src/job/rows.c \
	src/job/search.c \
	src/job/search.h \
	src/job/start.c \
	src/job/state.c \
	src/job/state.h \
	src/job/state_code.c \
	src/job/state_copy.c \
	src/job/state_move.c \
	src/job/state_piece.c \
	src/job/state_residual.c \
	src/job/state_private.h \
	src/job/weights.c \
	src/job/weights.h
