bin_PROGRAMS += sluice
sluice_SOURCES = \
	src/cmd/alike.c \
	src/cmd/alike.h \
	src/cmd/arguments.c \
	src/cmd/bench.c \
	src/cmd/bench_adam.c \
	src/cmd/bench_frame.c \
	src/cmd/bench_frame.h \
	src/cmd/bench_io.c \
	src/cmd/bench_rates.c \
	src/cmd/ckpt.c \
	src/cmd/cmd.h \
	src/cmd/compare.c \
	src/cmd/compare.h \
	src/cmd/compare_launch.c \
	src/cmd/compare_matrix.c \
	src/cmd/completion.c \
	src/cmd/deck.c \
	src/cmd/doctor.c \
	src/cmd/doctor.h \
	src/cmd/doctor_facts.c \
	src/cmd/doctor_judge.c \
	src/cmd/eval.c \
	src/cmd/fit.c \
	src/cmd/forecast.c \
	src/cmd/generate.c \
	src/cmd/help.c \
	src/cmd/language.c \
	src/cmd/language.h \
	src/cmd/main.c \
	src/cmd/plan.c \
	src/cmd/plan.h \
	src/cmd/plan_json.c \
	src/cmd/prepare.c \
	src/cmd/schema.c \
	src/cmd/script.c \
	src/cmd/script.h \
	src/cmd/site.c \
	src/cmd/site.h \
	src/cmd/tokenizer.c \
	src/cmd/topo.c \
	src/cmd/train.c
sluice_LDADD = $(sluice_libs)
sluice_CPPFLAGS = $(AM_CPPFLAGS) -DSLUICE_PKGDATADIR='"$(pkgdatadir)"' \
  -DSLUICE_SYSCONFDIR='"$(sysconfdir)"'

# The program writes what shells and editors complete decks and commands with, as it does its man
# pages.
bashcompletiondir = $(datadir)/bash-completion/completions
zshcompletiondir = $(datadir)/zsh/site-functions
fishcompletiondir = $(datadir)/fish/vendor_completions.d
completions = completion/sluice completion/_sluice completion/sluice.fish
if MAN_PAGES
nodist_bashcompletion_DATA = completion/sluice
nodist_zshcompletion_DATA = completion/_sluice
nodist_fishcompletion_DATA = completion/sluice.fish
nodist_pkgdata_DATA = deck.schema.json
endif
CLEANFILES += $(completions) deck.schema.json

$(completions): sluice$(EXEEXT)
	$(AM_V_GEN)$(MKDIR_P) completion && \
	case $@ in *.fish) shell=fish ;; */_*) shell=zsh ;; *) shell=bash ;; esac && \
	./sluice$(EXEEXT) completion $$shell >$@.part && mv $@.part $@

deck.schema.json: sluice$(EXEEXT)
	$(AM_V_GEN)./sluice$(EXEEXT) schema >$@.part && mv $@.part $@
