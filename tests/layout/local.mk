check_PROGRAMS += tests/layout/test_layout
