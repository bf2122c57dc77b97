noinst_LIBRARIES += src/base/libbase.a
layers += src/base/libbase.a
src_base_libbase_a_SOURCES = \
	src/base/append.c \
	src/base/append.h \
	src/base/clock.c \
	src/base/clock.h \
	src/base/dtype.c \
	src/base/dtype.h \
	src/base/exactsum.c \
	src/base/exactsum.h \
	src/base/hash.c \
	src/base/hash.h \
	src/base/log.c \
	src/base/log.h \
	src/base/mem.c \
	src/base/mem.h \
	src/base/printable.c \
	src/base/printable.h \
	src/base/open.c \
	src/base/open.h \
	src/base/progress.c \
	src/base/progress.h \
	src/base/prose.c \
	src/base/prose.h \
	src/base/rng.c \
	src/base/rng.h \
	src/base/status.c \
	src/base/status.h \
	src/base/team.c \
	src/base/team.h
