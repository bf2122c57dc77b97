noinst_LIBRARIES += io/results/libresults.a
layers += io/results/libresults.a
io_results_libresults_a_SOURCES = \
	io/results/events.c \
	io/results/events.h \
	io/results/results.c \
	io/results/results.h \
	io/results/trace.c \
	io/results/trace.h
