# Built only where configure was asked for CUDA; shipped always. Not built yet: attention by cuDNN, and NCCL.
gpu_sources = \
	gpu/attention.cu \
	gpu/classifier.cu \
	gpu/common.cuh \
	gpu/cuda.h \
	gpu/device.c \
	gpu/elementwise.cu \
	gpu/embedding.cu \
	gpu/kernels.h \
	gpu/matmul.c \
	gpu/norm.cu \
	gpu/optim.cu
EXTRA_DIST += \
	gpu/attention_cudnn.cpp \
	gpu/attention_cudnn.h \
	gpu/configure.m4 \
	gpu/nccl.c \
	gpu/nccl.h \
	$(gpu_sources) \
	tests/gpu/test_ops.c

SUFFIXES = .cu
.cu.o:
	$(AM_V_GEN)$(MKDIR_P) $(@D) && $(NVCC) -std=c++17 -O3 $(NVCC_ARCH) -I$(top_srcdir)/src -I$(top_srcdir) -c -o $@ $<

if HAVE_CUDA
noinst_LIBRARIES += gpu/libgpu.a
gpu_libgpu_a_SOURCES = $(gpu_sources)
gpu_libgpu_a_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS)
if HAVE_CMOCKA
check_PROGRAMS += tests/gpu/test_ops
tests_gpu_test_ops_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS)
tests_gpu_test_ops_LDADD = gpu/libgpu.a $(sluice_libs) $(CMOCKA_LIBS) $(CUDA_LIBS)
endif
endif
