noinst_LIBRARIES += io/huggingface/libhuggingface.a
layers += io/huggingface/libhuggingface.a
io_huggingface_libhuggingface_a_SOURCES = \
	io/huggingface/folder.c \
	io/huggingface/private.h \
	io/huggingface/safetensors.c \
	io/huggingface/safetensors.h \
	io/huggingface/safetensors_write.c
