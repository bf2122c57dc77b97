noinst_LIBRARIES += src/optim/liboptim.a
layers += src/optim/liboptim.a
EXTRA_DIST += src/optim/rule
src_optim_liboptim_a_SOURCES = \
	src/optim/optim.h \
	src/optim/registry.c \
	src/optim/schedule.c \
	src/optim/segments.c \
	src/optim/update.c
