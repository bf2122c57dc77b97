noinst_LIBRARIES += src/plan/libplan.a
layers += src/plan/libplan.a
src_plan_libplan_a_SOURCES = \
	src/plan/arenas.c \
	src/plan/arenas.h \
	src/plan/build.c \
	src/plan/build_acts.c \
	src/plan/build_grads.c \
	src/plan/build_host.c \
	src/plan/build_input.c \
	src/plan/build_params.c \
	src/plan/build_residual.c \
	src/plan/builder.c \
	src/plan/builder.h \
	src/plan/free_space.c \
	src/plan/free_space.h \
	src/plan/internal.h \
	src/plan/message.c \
	src/plan/ops.c \
	src/plan/ops.h \
	src/plan/order.c \
	src/plan/place.c \
	src/plan/plan.c \
	src/plan/plan.h \
	src/plan/policy.c \
	src/plan/policy.h \
	src/plan/print.c \
	src/plan/simulate.c \
	src/plan/traffic.c \
	src/plan/traffic.h \
	src/plan/verify.c \
	src/plan/verify.h \
	src/plan/verify_bytes.c \
	src/plan/verify_counts.c \
	src/plan/verify_form.c \
	src/plan/verify_roles.c \
	src/plan/verify_shape.c \
	src/plan/verify_values.c \
	src/plan/verify_windows.c
