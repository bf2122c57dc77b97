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
	tests/device/test_rmsnorm \
	tests/device/test_rope \
	tests/device/test_select \
	tests/device/test_swiglu
tests_device_test_adamw_SOURCES = tests/device/test_adamw.c tests/device/fixture.c \
  tests/device/fixture.h
tests_device_test_attention_SOURCES = tests/device/test_attention.c tests/device/fixture.c \
  tests/device/fixture.h
tests_device_test_classifier_SOURCES = tests/device/test_classifier.c tests/device/fixture.c \
  tests/device/fixture.h
tests_device_test_device_SOURCES = tests/device/test_device.c tests/device/fixture.c \
  tests/device/fixture.h tests/device/workspaces.h
tests_device_test_elementwise_SOURCES = tests/device/test_elementwise.c tests/device/fixture.c \
  tests/device/fixture.h
tests_device_test_embedding_SOURCES = tests/device/test_embedding.c tests/device/fixture.c \
  tests/device/fixture.h
tests_device_test_kernels_SOURCES = tests/device/test_kernels.c tests/device/fixture.c \
  tests/device/fixture.h
tests_device_test_fp8_SOURCES = tests/device/test_fp8.c tests/device/fixture.c \
  tests/device/fixture.h
tests_device_test_half_SOURCES = tests/device/test_half.c tests/device/layernorm.h \
  tests/device/fixture.c tests/device/fixture.h
tests_device_test_matmul_SOURCES = tests/device/test_matmul.c tests/device/fixture.c \
  tests/device/fixture.h
tests_device_test_norm_SOURCES = tests/device/test_norm.c tests/device/layernorm.h \
  tests/device/fixture.c tests/device/fixture.h
tests_device_test_rmsnorm_SOURCES = tests/device/test_rmsnorm.c tests/device/fixture.c \
  tests/device/fixture.h
tests_device_test_rope_SOURCES = tests/device/test_rope.c tests/device/fixture.c \
  tests/device/fixture.h
tests_device_test_select_SOURCES = tests/device/test_select.c tests/device/fixture.c \
  tests/device/fixture.h
tests_device_test_swiglu_SOURCES = tests/device/test_swiglu.c tests/device/fixture.c \
  tests/device/fixture.h
check_scripts += tests/device/neon.sh
