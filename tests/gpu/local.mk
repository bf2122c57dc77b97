# Built with what they test; without a GPU each of them is skipped.
if HAVE_CUDA
check_PROGRAMS += tests/gpu/test_ops
tests_gpu_test_ops_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS)
# No test, but a measurement: make tests/gpu/bench_ops
EXTRA_PROGRAMS += tests/gpu/bench_ops
tests_gpu_bench_ops_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS)
endif
if HAVE_NCCL
check_PROGRAMS += tests/gpu/test_nccl
endif
EXTRA_DIST += tests/gpu/sanitize.sh
