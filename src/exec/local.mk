noinst_LIBRARIES += src/exec/libexec.a
layers += src/exec/libexec.a
src_exec_libexec_a_SOURCES = \
	src/exec/autotune.c \
	src/exec/drive.c \
	src/exec/engine.h \
	src/exec/exec.c \
	src/exec/exec.h \
	src/exec/exec_memory.c \
	src/exec/handlers.c \
	src/exec/handlers.h \
	src/exec/handlers_codec.c \
	src/exec/handlers_model.c \
	src/exec/handlers_move.c \
	src/exec/handlers_update.c \
	src/exec/handlers_window.c \
	src/exec/op_counters.c \
	src/exec/op_counters.h \
	src/exec/times.c \
	src/exec/trace.c \
	src/exec/trace.h \
	src/exec/watchdog.c \
	src/exec/watchdog.h
