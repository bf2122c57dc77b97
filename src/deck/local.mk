noinst_LIBRARIES += src/deck/libdeck.a
layers += src/deck/libdeck.a
src_deck_libdeck_a_SOURCES = \
	src/deck/aliases.c \
	src/deck/deck.c \
	src/deck/deck.h \
	src/deck/options.c \
	src/deck/options.h \
	src/deck/options_help.c \
	src/deck/options_path.c \
	src/deck/options_print.c \
	src/deck/options_set.h \
	src/deck/options_yaml.c \
	src/deck/presets.c \
	src/deck/presets.h
