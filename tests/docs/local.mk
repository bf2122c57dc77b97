check_scripts += \
	tests/docs/links.sh \
	tests/docs/site.sh \
	tests/docs/tutorials.sh
EXTRA_DIST += \
	tests/docs/links.py \
	tests/docs/tutorial.py
