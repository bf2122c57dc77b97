check_PROGRAMS += \
	tests/base/test_append \
	tests/base/test_cache \
	tests/base/test_cgroup \
	tests/base/test_dtype \
	tests/base/test_exactsum \
	tests/base/test_hash \
	tests/base/test_log \
	tests/base/test_mem \
	tests/base/test_printable \
	tests/base/test_prose \
	tests/base/test_open \
	tests/base/test_rng \
	tests/base/test_status \
	tests/base/test_team
EXTRA_DIST += tests/base/full.h
