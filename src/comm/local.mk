noinst_LIBRARIES += src/comm/libcomm.a
layers += src/comm/libcomm.a
src_comm_libcomm_a_SOURCES = \
	src/comm/comm.c \
	src/comm/comm.h \
	src/comm/fake.c \
	src/comm/library.c \
	src/comm/library.h \
	src/comm/mailbox.c \
	src/comm/mailbox.h \
	src/comm/messages.h \
	src/comm/mpi.c \
	src/comm/mpi_device.c \
	src/comm/nodes.c \
	src/comm/ops.h \
	src/comm/report.c \
	src/comm/report.h \
	src/comm/shared.c \
	src/comm/survey.c \
	src/comm/survey.h
if HAVE_NCCL
src_comm_libcomm_a_SOURCES += src/comm/nccl.c
endif
