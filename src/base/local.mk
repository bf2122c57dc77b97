noinst_LIBRARIES += src/base/libbase.a
layers += src/base/libbase.a
src_base_libbase_a_SOURCES = \
	src/base/append.c \
	src/base/append.h \
	src/base/bits.h \
	src/base/cache.c \
	src/base/cache.h \
	src/base/cgroup.c \
	src/base/cgroup.h \
	src/base/clock.c \
	src/base/clock.h \
	src/base/commit.c \
	src/base/commit.h \
	src/base/dtype.c \
	src/base/dtype.h \
	src/base/exactsum.c \
	src/base/exactsum.h \
	src/base/exactsum_value.h \
	src/base/hash.c \
	src/base/hash.h \
	src/base/log.c \
	src/base/log.h \
	src/base/mem.c \
	src/base/mem.h \
	src/base/preference.h \
	src/base/printable.c \
	src/base/printable.h \
	src/base/open.c \
	src/base/open.h \
	src/base/progress.c \
	src/base/progress.h \
	src/base/prose.c \
	src/base/prose.h \
	src/base/rng.c \
	src/base/rng.h \
	src/base/status.c \
	src/base/status.h \
	src/base/team.c \
	src/base/team.h
nodist_src_base_libbase_a_SOURCES = build_commit.h
EXTRA_DIST += src/base/commit.sh
CLEANFILES += build_commit.h

# The script keeps a header that is right, so commit.o is built again only after a new commit.
build_commit.h: always
	$(AM_V_at)$(SHELL) $(top_srcdir)/src/base/commit.sh $(top_srcdir) $@
src/base/commit.$(OBJEXT): build_commit.h
.PHONY: always
always:

dist-hook: build_commit.h
	sed 's/.*"\(.*\)"/\1/' build_commit.h | paste -s -d ' ' >$(distdir)/commit.txt
