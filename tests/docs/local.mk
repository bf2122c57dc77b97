check_scripts += \
	tests/docs/extending.sh \
	tests/docs/links.sh \
	tests/docs/messages.sh \
	tests/docs/reference.sh \
	tests/docs/site.sh \
	tests/docs/tutorials.sh
EXTRA_DIST += \
	tests/docs/commands.py \
	tests/docs/extending.py \
	tests/docs/extending.txt \
	tests/docs/generate.py \
	tests/docs/links.py \
	tests/docs/messages.py \
	tests/docs/tutorial.py
