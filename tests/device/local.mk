check_PROGRAMS += \
	tests/device/test_adamw \
	tests/device/test_attention \
	tests/device/test_blas \
	tests/device/test_classifier \
	tests/device/test_device \
	tests/device/test_elementwise \
	tests/device/test_embedding \
	tests/device/test_fp8 \
	tests/device/test_half \
	tests/device/test_kernels \
	tests/device/test_lane \
	tests/device/test_matmul \
	tests/device/test_norm \
	tests/device/test_rope \
	tests/device/test_select \
	tests/device/test_swiglu
fixtures += tests/device/libdevice.a
tests_device_libdevice_a_SOURCES = \
	tests/device/fixture.c \
	tests/device/fixture.h \
	tests/device/layernorm.h \
	tests/device/workspaces.h
check_scripts += tests/device/neon.sh
