noinst_LIBRARIES += io/store/libstore.a
layers += io/store/libstore.a
io_store_libstore_a_SOURCES = \
	io/store/folder.c \
	io/store/store.c \
	io/store/store.h
