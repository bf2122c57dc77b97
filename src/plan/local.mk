noinst_LIBRARIES += src/plan/libplan.a
layers += src/plan/libplan.a
src_plan_libplan_a_SOURCES = \
	src/plan/build.c \
	src/plan/build_host.c \
	src/plan/builder.c \
	src/plan/builder.h \
	src/plan/internal.h \
	src/plan/order.c \
	src/plan/place.c \
	src/plan/plan.c \
	src/plan/plan.h \
	src/plan/print.c \
	src/plan/simulate.c \
	src/plan/verify.c \
	src/plan/wire.c \
	src/plan/wire.h
