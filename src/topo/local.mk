noinst_LIBRARIES += src/topo/libtopo.a
layers += src/topo/libtopo.a
src_topo_libtopo_a_SOURCES = \
	src/topo/machine.c \
	src/topo/place.c \
	src/topo/place.h \
	src/topo/print.c \
	src/topo/split.c \
	src/topo/topo.c \
	src/topo/topo.h
