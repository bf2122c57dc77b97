noinst_LIBRARIES += src/comm/libcomm.a
layers += src/comm/libcomm.a
src_comm_libcomm_a_SOURCES = \
	src/comm/collect.c \
	src/comm/collect.h \
	src/comm/comm.c \
	src/comm/comm.h \
	src/comm/fake.c \
	src/comm/launch.c \
	src/comm/launch.h \
	src/comm/lengths.c \
	src/comm/lengths.h \
	src/comm/messages.h \
	src/comm/mpi.c \
	src/comm/mpi_device.c \
	src/comm/mpi_info.c \
	src/comm/mpi_info.h \
	src/comm/mpi_version.h \
	src/comm/ops.h \
	src/comm/shared.c \
	src/comm/shm.c \
	src/comm/shm.h \
	src/comm/watchdog_channel.c \
	src/comm/watchdog_channel.h
if HAVE_NCCL
src_comm_libcomm_a_SOURCES += src/comm/nccl.c
endif
