noinst_LIBRARIES += src/device/libdevice.a
layers += src/device/libdevice.a
src_device_libdevice_a_SOURCES = \
	src/device/device.c \
	src/device/device.h \
	src/device/device_model.c \
	src/device/device_model.h \
	src/device/fp8.h \
	src/device/host/attention.c \
	src/device/host/attention.h \
	src/device/host/attention_cached.c \
	src/device/host/blas.c \
	src/device/host/classifier.c \
	src/device/host/elementwise.c \
	src/device/host/embedding.c \
	src/device/host/exponent.c \
	src/device/host/fp8.c \
	src/device/host/half.c \
	src/device/host/host.c \
	src/device/host/host.h \
	src/device/host/kernels.c \
	src/device/host/kernels.h \
	src/device/host/kernels_avx2.c \
	src/device/host/kernels_avx512.c \
	src/device/host/kernels_body.h \
	src/device/host/kernels_exponent.h \
	src/device/host/kernels_gemm.h \
	src/device/host/kernels_generic.c \
	src/device/host/kernels_lowrank.h \
	src/device/host/kernels_quantise.h \
	src/device/host/kernels_update.h \
	src/device/host/kernels_variants.h \
	src/device/host/lowrank.c \
	src/device/host/mark.c \
	src/device/host/matmul.c \
	src/device/host/norm.c \
	src/device/host/quantise.c \
	src/device/host/rmsnorm.c \
	src/device/host/rope.c \
	src/device/host/select.c \
	src/device/host/sketch.c \
	src/device/host/swiglu.c \
	src/device/host/update.c \
	src/device/lane.c \
	src/device/lane.h \
	src/device/moments.c \
	src/device/moments.h \
	src/device/rounding.h
