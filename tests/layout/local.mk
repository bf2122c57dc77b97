check_PROGRAMS += \
	tests/layout/test_box \
	tests/layout/test_layout \
	tests/layout/test_mesh
EXTRA_DIST += tests/layout/whole.h
