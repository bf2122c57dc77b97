check_scripts += \
	tests/docs/links.sh \
	tests/docs/site.sh
EXTRA_DIST += tests/docs/links.py
