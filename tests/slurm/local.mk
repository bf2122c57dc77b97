check_scripts += tests/slurm/script.sh tests/slurm/two_nodes.sh
# The library that two_nodes.sh makes ranks load.
check_DATA += tests/slurm/late.so
CLEANFILES += tests/slurm/late.so
tests/slurm/late.so: tests/slurm/late.c
	$(AM_V_CCLD)$(MKDIR_P) $(@D) && $(CC) $(AM_CFLAGS) $(CFLAGS) -fPIC -shared -o $@ \
	  $(top_srcdir)/tests/slurm/late.c -ldl -lpthread
EXTRA_DIST += tests/slurm/cluster.sh tests/slurm/late.c
