# Built if configure found CUDA, shipped always. nvcc compiles the sources that are not C, and
# records the headers that a source includes, as automake does for C.
AM_V_NVCC = $(am__v_NVCC_@AM_V@)
am__v_NVCC_ = $(am__v_NVCC_@AM_DEFAULT_V@)
am__v_NVCC_0 = @echo "  NVCC    " $@;
am__v_NVCC_1 =
gpu_nvcc = $(MKDIR_P) $(@D) && $(NVCC) $(NVCC_PIE) -I$(top_srcdir)/src -I$(top_srcdir) \
	-MMD -MP -MF $(@:.o=.d) -c -o $@

SUFFIXES = .cu
.cu.o:
	$(AM_V_NVCC)$(gpu_nvcc) -std=c++20 $(NVCCFLAGS) $(NVCC_ARCH) $<

# Passes of optimizers and messages are the host's bits: no product is fused with a sum.
gpu/fp8.o gpu/lowrank.o gpu/nf4.o gpu/quantise.o gpu/sketch.o gpu/update.o: gpu_nvcc += -fmad=false

gpu_sources = \
	gpu/attention.c \
	gpu/attention.cu \
	gpu/attention_ampere.cuh \
	gpu/attention_ampere_backward.cu \
	gpu/attention_ampere_forward.cu \
	gpu/attention_hopper.cu \
	gpu/attention_hopper_forward.cu \
	gpu/attention_prepare.cuh \
	gpu/attention_roles.cuh \
	gpu/attention_schedule.h \
	gpu/attention_tiles.cuh \
	gpu/classifier.cu \
	gpu/common.cuh \
	gpu/fp8.cuh \
	gpu/fp8_block.cuh \
	gpu/cuda.h \
	gpu/device.c \
	gpu/elementwise.cu \
	gpu/embedding.cu \
	gpu/exponent.cu \
	gpu/fp8.cu \
	gpu/gpu.h \
	gpu/hopper.cuh \
	gpu/kernels.h \
	gpu/lane.c \
	gpu/lowrank.cu \
	gpu/mark.c \
	gpu/matmul.c \
	gpu/matmul_choose.c \
	gpu/matmul_file.c \
	gpu/matmul_private.h \
	gpu/matmul_product.c \
	gpu/matmul_table.c \
	gpu/measure.c \
	gpu/memory.c \
	gpu/nf4.cu \
	gpu/norm.cu \
	gpu/operations.c \
	gpu/select.cu \
	gpu/optim.cu \
	gpu/quantise.cu \
	gpu/sketch.cu \
	gpu/update.cu \
	gpu/versions.c \
	gpu/versions.h
gpu_nccl_sources = \
	gpu/nccl.c \
	gpu/nccl.h \
	gpu/net.c \
	gpu/net.h
EXTRA_DIST += gpu/configure.m4 $(gpu_sources) $(gpu_nccl_sources)
CLEANFILES += gpu/*.d

if HAVE_CUDA
noinst_LIBRARIES += gpu/libgpu.a
# Its objects need some of libdevice.a, whose list of devices needs it.
layers += gpu/libgpu.a src/device/libdevice.a
gpu_libgpu_a_SOURCES = $(gpu_sources)
# CUDA's folder may hold another NCCL.
gpu_libgpu_a_CPPFLAGS = $(AM_CPPFLAGS) $(NCCL_CFLAGS) $(CUDA_CFLAGS)
if HAVE_NCCL
gpu_libgpu_a_SOURCES += $(gpu_nccl_sources)
endif
-include gpu/*.d
endif
