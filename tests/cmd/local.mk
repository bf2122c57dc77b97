check_PROGRAMS += \
	tests/cmd/test_bench_rates \
	tests/cmd/test_doctor
tests_cmd_test_bench_rates_SOURCES = \
	src/cmd/bench_frame.c \
	src/cmd/bench_frame.h \
	src/cmd/bench_rates.c \
	tests/cmd/test_bench_rates.c
tests_cmd_test_bench_rates_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=comm_max_f64
tests_cmd_test_doctor_SOURCES = \
	src/cmd/doctor.h \
	src/cmd/doctor_facts.c \
	src/cmd/doctor_judge.c \
	tests/cmd/test_doctor.c

EXTRA_DIST += tests/cmd/doctor.txt
