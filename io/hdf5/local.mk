noinst_LIBRARIES += io/hdf5/libhdf5.a
layers += io/hdf5/libhdf5.a
io_hdf5_libhdf5_a_SOURCES = \
	io/hdf5/attribute.c \
	io/hdf5/dataset.c \
	io/hdf5/file.c \
	io/hdf5/hdf5.c \
	io/hdf5/hdf5.h \
	io/hdf5/private.h \
	io/hdf5/version.c \
	io/hdf5/version.h
