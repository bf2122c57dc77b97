check_PROGRAMS += \
	tests/cmd/test_doctor
tests_cmd_test_doctor_SOURCES = \
	src/cmd/doctor.h \
	src/cmd/doctor_disk.c \
	src/cmd/doctor_judge.c \
	src/cmd/doctor_settings.c \
	tests/cmd/test_doctor.c
