check_scripts += \
	tests/packaging/module.sh \
	tests/packaging/recipes.sh
EXTRA_DIST += tests/packaging/recipes.py
