noinst_LIBRARIES += io/results/libresults.a
layers += io/results/libresults.a
io_results_libresults_a_SOURCES = \
	io/results/results.c \
	io/results/results.h \
	io/results/trace.c \
	io/results/trace.h
