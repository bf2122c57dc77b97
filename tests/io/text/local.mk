check_PROGRAMS += \
	tests/io/text/test_file \
	tests/io/text/test_json \
	tests/io/text/test_json_write \
	tests/io/text/test_text
tests_io_text_test_file_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=fsync
EXTRA_DIST += tests/io/text/json.txt tests/io/text/text.txt
