check_PROGRAMS += \
	tests/deck/test_deck \
	tests/deck/test_options

EXTRA_DIST += \
	tests/deck/refused.txt \
	tests/deck/resolved.txt
