check_PROGRAMS += \
	tests/deck/test_deck \
	tests/deck/test_options
