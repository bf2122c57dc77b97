noinst_LIBRARIES += src/topo/libtopo.a
layers += src/topo/libtopo.a
src_topo_libtopo_a_SOURCES = \
	src/topo/quota.c \
	src/topo/topo.c \
	src/topo/topo.h
