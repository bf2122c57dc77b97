check_PROGRAMS += tests/compress/test_compress
