noinst_LIBRARIES += src/layout/liblayout.a
layers += src/layout/liblayout.a
src_layout_liblayout_a_SOURCES = \
	src/layout/box.c \
	src/layout/layout.c \
	src/layout/layout.h \
	src/layout/mesh.c \
	src/layout/mesh.h
