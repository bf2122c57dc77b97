# The pages keep their tree when installed, so links between them work there too.
pages = \
	doc/explanation/architecture.md \
	doc/explanation/compression.md \
	doc/explanation/decisions.md \
	doc/explanation/fp8.md \
	doc/explanation/index.md \
	doc/explanation/memory-tiers.md \
	doc/explanation/numerics.md \
	doc/explanation/plan-and-verify.md \
	doc/howto/choose-settings.md \
	doc/howto/compare-runs.md \
	doc/howto/containers.md \
	doc/howto/extending.md \
	doc/howto/fit-a-model.md \
	doc/howto/index.md \
	doc/howto/install.md \
	doc/howto/mpi.md \
	doc/howto/profile.md \
	doc/howto/questions.md \
	doc/howto/resume-and-recover.md \
	doc/howto/slurm-admins.md \
	doc/howto/slurm-users.md \
	doc/howto/troubleshoot.md \
	doc/howto/watch-a-run.md \
	doc/index.md \
	doc/measurements/compression.md \
	doc/measurements/fp8.md \
	doc/measurements/index.md \
	doc/measurements/offload.md \
	doc/measurements/prediction.md \
	doc/measurements/scale.md \
	doc/measurements/scaling.md \
	doc/measurements/speed.md \
	doc/measurements/step.md \
	doc/reference/checkpoint.md \
	doc/reference/commands.md \
	doc/reference/deck-keys.md \
	doc/reference/environment.md \
	doc/reference/exit-codes.md \
	doc/reference/glossary.md \
	doc/reference/index.md \
	doc/reference/limits.md \
	doc/reference/models.md \
	doc/reference/rates.md \
	doc/reference/reliability.md \
	doc/reference/results.md \
	doc/reference/security.md \
	doc/tutorials/finetune-7b-two-nodes.md \
	doc/tutorials/index.md \
	doc/tutorials/pretrain-300m.md \
	doc/tutorials/quickstart.md
images = \
	doc/images/compression.svg \
	doc/images/fp8.svg \
	doc/images/offload.svg \
	doc/images/prediction.svg \
	doc/images/pretrain-300m.svg \
	doc/images/report.png \
	doc/images/scale.svg \
	doc/images/scaling.svg \
	doc/images/speed.svg \
	doc/images/step.svg \
	doc/images/tensorboard.png \
	doc/images/top.png
# Records, and the tables that bench/tables.py makes of them. Pages link to both.
measured = \
	doc/measured/compression-h200x2.txt \
	doc/measured/curve-300m.txt \
	doc/measured/fp8-loss-h200x2.txt \
	doc/measured/fuzz.txt \
	doc/measured/h200x4.jsonl \
	doc/measured/hosts.txt \
	doc/measured/kills.txt \
	doc/measured/mutations.txt \
	doc/measured/offload-h200x4.jsonl \
	doc/measured/ops-h200.txt \
	doc/measured/perplexity-h200.txt \
	doc/measured/rates-h200x4-passes.yaml \
	doc/measured/rates-h200x4.yaml \
	doc/measured/sanitizers.txt \
	doc/measured/scale-predicted.txt \
	doc/measured/scale-published.csv \
	doc/measured/soak.txt \
	doc/measured/step-h200x2.txt \
	doc/measured/storage-faults.txt \
	doc/measured/transports-h200x2.jsonl \
	doc/measurements/tables/accuracy.csv \
	doc/measurements/tables/attention.csv \
	doc/measurements/tables/campaigns.csv \
	doc/measurements/tables/compression.csv \
	doc/measurements/tables/curve.csv \
	doc/measurements/tables/errors.csv \
	doc/measurements/tables/fp8.csv \
	doc/measurements/tables/graphs.csv \
	doc/measurements/tables/host.csv \
	doc/measurements/tables/kills.csv \
	doc/measurements/tables/losses.csv \
	doc/measurements/tables/offload.csv \
	doc/measurements/tables/prediction.csv \
	doc/measurements/tables/scale.csv \
	doc/measurements/tables/scaling.csv \
	doc/measurements/tables/speed.csv \
	doc/measurements/tables/step.csv \
	doc/measurements/tables/transports.csv
nobase_dist_doc_DATA = CHANGELOG.md CITATION.cff CONTRIBUTING.md LICENSE README.md SECURITY.md \
	slurm/README.md $(pages) $(images) $(measured)
EXTRA_DIST += doc/conf.py doc/layers.txt

# The site, made of the pages by Sphinx. A release contains it if it was built before make dist.
.PHONY: dist-site install-site uninstall-site uninstall-folders clean-site
SPHINXFLAGS =
if HAVE_SPHINX
doc/html/index.html: doc/conf.py $(pages) $(images)
	$(AM_V_GEN)rm -rf doc/html doc/html.part && $(MKDIR_P) doc && \
	SLUICE_VERSION=$(PACKAGE_VERSION) $(SPHINX_BUILD) -q $(SPHINXFLAGS) -b html \
	  -d doc/html.trees $(top_srcdir)/doc doc/html.part && mv doc/html.part doc/html
html-local: doc/html/index.html
else
html-local:
	@test -f $(top_srcdir)/doc/html/index.html || { echo "make html needs Sphinx with MyST:" \
	  "install them (Debian and Ubuntu: python3-sphinx python3-myst-parser furo), and configure" \
	  "again" >&2; exit 1; }
endif
clean-local: clean-site
clean-site:
if HAVE_SPHINX
	rm -rf doc/html doc/html.part doc/html.trees
endif
dist-hook: dist-site
dist-site:
if HAVE_SPHINX
	@if test -f doc/html/index.html; then $(MAKE) doc/html/index.html; fi
endif
	@for site in doc/html $(top_srcdir)/doc/html; do \
	  if test -f $$site/index.html; then \
	    $(MKDIR_P) $(distdir)/doc && cp -R $$site $(distdir)/doc && break; \
	  fi; \
	done
install-data-local: install-site
install-site:
	@for site in doc/html $(top_srcdir)/doc/html; do \
	  if test -f $$site/index.html; then \
	    (cd $$site && find . -type f) | while read -r file; do \
	      $(MKDIR_P) "$(DESTDIR)$(docdir)/html/$${file%/*}" && \
	      $(INSTALL_DATA) "$$site/$$file" "$(DESTDIR)$(docdir)/html/$$file" || exit 1; \
	    done || exit 1; \
	    break; \
	  fi; \
	done
uninstall-local: uninstall-site
uninstall-site:
	rm -rf "$(DESTDIR)$(docdir)/html"
# Folders of this package that are empty afterwards. A file that a user added keeps its folder.
uninstall-hook: uninstall-folders
uninstall-folders:
	@find "$(DESTDIR)$(docdir)" "$(DESTDIR)$(pkgdatadir)" -depth -type d -exec rmdir {} \; \
	  2>/dev/null || :

# The program writes its man pages, from the table of options.
man_pages = \
	doc/man/sluice.1 \
	doc/man/sluice-bench.1 \
	doc/man/sluice-ckpt.1 \
	doc/man/sluice-compare.1 \
	doc/man/sluice-deck.1 \
	doc/man/sluice-doctor.1 \
	doc/man/sluice-eval.1 \
	doc/man/sluice-generate.1 \
	doc/man/sluice-plan.1 \
	doc/man/sluice-prepare.1 \
	doc/man/sluice-report.1 \
	doc/man/sluice-tokenizer.1 \
	doc/man/sluice-top.1 \
	doc/man/sluice-topo.1 \
	doc/man/sluice-train.1
if MAN_PAGES
nodist_man1_MANS = $(man_pages)
nodist_man5_MANS = doc/man/sluice-deck.5
endif
CLEANFILES += $(man_pages) doc/man/sluice-deck.5

$(man_pages) doc/man/sluice-deck.5: sluice$(EXEEXT)
	$(AM_V_GEN)$(MKDIR_P) doc/man && \
	page=`basename $@ | sed 's/^.*\.5$$/keys/; s/\.1$$//; s/^sluice-*//'` && \
	./sluice$(EXEEXT) --man $$page >$@.part && mv $@.part $@
