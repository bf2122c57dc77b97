check_PROGRAMS += tests/gpu/test_attention_schedule
# Built with what they test; without a GPU each of them is skipped.
if HAVE_CUDA
check_PROGRAMS += tests/gpu/test_fp8 tests/gpu/test_ops
tests_gpu_test_fp8_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS)
tests_gpu_test_ops_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS) -DSLUICE_NVCC_ARCH='"$(NVCC_ARCH)"'
# No test, but a measurement: make tests/gpu/bench_ops
EXTRA_PROGRAMS += tests/gpu/bench_ops
tests_gpu_bench_ops_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS)
# The library that tests/cli/cuda_spy.sh makes CUDA load. It looks for libcupti when it is loaded,
# also in the folders where the program finds CUDA's libraries.
check_DATA += tests/gpu/spy.so
CLEANFILES += tests/gpu/spy.so
tests/gpu/spy.so: tests/gpu/spy.c
	$(AM_V_CCLD)$(MKDIR_P) $(@D) && paths=; for flag in $(CUDA_LIBS); do \
	    case $$flag in -Wl,-rpath,*) paths="$$paths $$flag" ;; esac; done; \
	  $(CC) $(CUDA_CFLAGS) $(CFLAGS) -fPIC -shared -fvisibility=hidden $$paths -o $@ \
	    $(top_srcdir)/tests/gpu/spy.c -ldl -lpthread
endif
if HAVE_NCCL
check_PROGRAMS += tests/gpu/test_nccl tests/gpu/test_nccl_faults
tests_gpu_test_nccl_faults_CPPFLAGS = $(AM_CPPFLAGS) $(NCCL_CFLAGS) $(CUDA_CFLAGS)
tests_gpu_test_nccl_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=nccl_group_start \
  -Wl,--wrap=nccl_group_check
tests_gpu_test_nccl_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests/comm
# The same tests of the code for NCCL 2.19
check_PROGRAMS += tests/gpu/test_nccl_messages
tests_gpu_test_nccl_messages_LDFLAGS = $(tests_gpu_test_nccl_LDFLAGS)
tests_gpu_test_nccl_messages_SOURCES = tests/gpu/test_nccl_messages.c gpu/nccl.c
tests_gpu_test_nccl_messages_CPPFLAGS = $(AM_CPPFLAGS) $(NCCL_CFLAGS) $(CUDA_CFLAGS) \
	-I$(top_srcdir)/tests/comm -DNCCL_COPY_ENGINES=0 -DNCCL_SEVERAL_ROOTS=0
endif
EXTRA_DIST += \
	tests/gpu/sanitize.sh \
	tests/gpu/spy.c \
	tests/gpu/twins.h
