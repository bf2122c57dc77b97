# A program in check_PROGRAMS is built from the C file of the same name and run by tests/run. What
# several of them share is in the library of their folder, and every program may use all of these.
# It needs a _SOURCES line only for other files.
AM_DEFAULT_SOURCE_EXT = .c
fixtures =
check_LIBRARIES = $(fixtures)
LDADD = $(fixtures) $(sluice_libs) $(CMOCKA_LIBS)

# Every program is linked with every layer. To build a test while an upper layer does not compile:
# make layers="src/layout/liblayout.a src/base/libbase.a" tests/layout/test_layout
# links with those alone.

# tests/run reads these; so may the tests. No defaults of the site count.
AM_TESTS_ENVIRONMENT = \
	top_srcdir='$(abs_top_srcdir)'; \
	top_builddir='$(abs_top_builddir)'; \
	SLUICE='$(abs_top_builddir)/sluice$(EXEEXT)'; \
	MPIRUN='$(MPIRUN) $(MPIRUN_FLAGS)'; \
	SANITIZER='$(SANITIZER)'; \
	SLUICE_SITE_CONF=; \
	XDG_CACHE_HOME='$(abs_top_builddir)/tests/cache'; \
	export top_srcdir top_builddir SLUICE MPIRUN SANITIZER SLUICE_SITE_CONF XDG_CACHE_HOME;
LOG_COMPILER = $(SHELL) $(top_srcdir)/tests/run
TEST_EXTENSIONS = .sh
SH_LOG_COMPILER = $(LOG_COMPILER)

TESTS = $(check_PROGRAMS) $(check_scripts)
check_DATA =
check_scripts = \
	tests/configure.sh \
	tests/guards.sh \
	tests/layers.sh \
	tests/lint.sh
EXTRA_DIST += \
	tests/installcheck.sh \
	tests/mpich.sh \
	tests/need.sh \
	tests/run \
	tests/suppressions/asan.supp \
	tests/suppressions/lsan.supp \
	tests/suppressions/tsan.supp \
	tests/suppressions/ubsan.supp \
	tests/rows.h \
	tests/test.h \
	$(check_scripts)

if HAVE_CMOCKA
include tests/base/local.mk
include tests/deck/local.mk
include tests/topo/local.mk
include tests/layout/local.mk
include tests/gpu/local.mk
include tests/io/local.mk
include tests/model/local.mk
include tests/optim/local.mk
include tests/compress/local.mk
include tests/exec/local.mk
include tests/job/local.mk
include tests/train/local.mk
include tests/cmd/local.mk
include tests/campaign/local.mk
# Their libraries come after those that use them.
include tests/plan/local.mk
include tests/device/local.mk
include tests/comm/local.mk
else
check-local:
	@echo "make check needs cmocka: install it (Debian and Ubuntu: libcmocka-dev)" \
	  "and configure again" >&2; exit 1
endif
include tests/cli/local.mk
include tests/docs/local.mk
include tests/net/local.mk
include tests/packaging/local.mk
include tests/slurm/local.mk
include tests/fixtures/local.mk

# The short list of tests with MPICH, in mpich/.
check-mpich: sluice$(EXEEXT)
	@$(AM_TESTS_ENVIRONMENT) $(LOG_COMPILER) $(top_srcdir)/tests/mpich.sh || test $$? = 77
.PHONY: check-mpich

clean-local: cache-clean
.PHONY: cache-clean
cache-clean:
	rm -rf tests/cache

installcheck-local:
	@sh $(top_srcdir)/tests/installcheck.sh \
	  "$(DESTDIR)$(bindir)/`echo sluice | sed '$(transform)'`$(EXEEXT)" \
	  "$(DESTDIR)$(pkgdatadir)"
