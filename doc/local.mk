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
	doc/measurements/attention.md \
	doc/measurements/compression.md \
	doc/measurements/fp8.md \
	doc/measurements/gpu-limits.md \
	doc/measurements/host.md \
	doc/measurements/index.md \
	doc/measurements/memory.md \
	doc/measurements/method.md \
	doc/measurements/offload.md \
	doc/measurements/prediction.md \
	doc/measurements/scale.md \
	doc/measurements/scaling.md \
	doc/measurements/speed.md \
	doc/measurements/step.md \
	doc/measurements/tables/compression.md \
	doc/measurements/tables/index.md \
	doc/measurements/tables/memory.md \
	doc/measurements/tables/offload.md \
	doc/measurements/tables/prediction.md \
	doc/measurements/tables/scale.md \
	doc/measurements/tables/speed.md \
	doc/measurements/tables/step.md \
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
	doc/images/attention.svg \
	doc/images/compression.svg \
	doc/images/fp8.svg \
	doc/images/gpu-limits.svg \
	doc/images/host.svg \
	doc/images/memory.svg \
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
# The tables and plots of doc/measurements are made of these. Pages link to them as raw data.
measured = \
	doc/measured/adam-h200.txt \
	doc/measured/adam-h200x2-second.txt \
	doc/measured/adam-h200x2.txt \
	doc/measured/adam-h200x4.txt \
	doc/measured/codecs-h200.txt \
	doc/measured/compression-matrix-h200x2.txt \
	doc/measured/compression-pays-h100x2.txt \
	doc/measured/compression-pays-h200x2-second.txt \
	doc/measured/compression-pays-h200x2.txt \
	doc/measured/compression-pays-h200x4.txt \
	doc/measured/compression-pays-mpi-h200x4.txt \
	doc/measured/compression-quality-h100x2.txt \
	doc/measured/compression-quality-h200x2.txt \
	doc/measured/compression-quality-h200x4.txt \
	doc/measured/fuzz.txt \
	doc/measured/h200x2-gpt2.txt \
	doc/measured/h200x2-llama8b.txt \
	doc/measured/h200x2-qwen0.5b.txt \
	doc/measured/h200x2-qwen7b.txt \
	doc/measured/h200x2-second.jsonl \
	doc/measured/h200x2-third.jsonl \
	doc/measured/h200x2.jsonl \
	doc/measured/h200x4-fifth-passes.yaml \
	doc/measured/h200x4-fifth.jsonl \
	doc/measured/h200x4-fourth.jsonl \
	doc/measured/h200x4-second.jsonl \
	doc/measured/h200x4-third.jsonl \
	doc/measured/h200x4-weak.jsonl \
	doc/measured/h200x4.jsonl \
	doc/measured/hosts.txt \
	doc/measured/io-h200.txt \
	doc/measured/kills.txt \
	doc/measured/mutations.txt \
	doc/measured/offload-h200-rates.yaml \
	doc/measured/offload-h200x2-fifth.jsonl \
	doc/measured/offload-h200x2-fourth.jsonl \
	doc/measured/offload-h200x2-predicted.jsonl \
	doc/measured/offload-h200x2-rates-before.yaml \
	doc/measured/offload-h200x2-rates-fifth.yaml \
	doc/measured/offload-h200x2-rates-fourth.yaml \
	doc/measured/offload-h200x2-rates-second.yaml \
	doc/measured/offload-h200x2-rates.yaml \
	doc/measured/offload-h200x2-second.jsonl \
	doc/measured/offload-h200x2-sixth.jsonl \
	doc/measured/offload-h200x2-third.jsonl \
	doc/measured/offload-h200x2.jsonl \
	doc/measured/offload-h200x4-fourth.jsonl \
	doc/measured/offload-h200x4-rates-fourth.yaml \
	doc/measured/offload-h200x4-rates-resident.yaml \
	doc/measured/offload-h200x4-rates-sweep.yaml \
	doc/measured/offload-h200x4-rates-third.yaml \
	doc/measured/offload-h200x4-rates.yaml \
	doc/measured/offload-h200x4-resident.jsonl \
	doc/measured/offload-h200x4-third.jsonl \
	doc/measured/offload-h200x4.jsonl \
	doc/measured/ops-h100.txt \
	doc/measured/ops-h200.txt \
	doc/measured/optimizers-h100.txt \
	doc/measured/compression-cpu-2cores-second.txt \
	doc/measured/compression-cpu-2cores.txt \
	doc/measured/compression-eighth-h100x2.txt \
	doc/measured/compression-levels-h100x2.txt \
	doc/measured/compression-matrix-h100x2.txt \
	doc/measured/codecs-h100.txt \
	doc/measured/curve-300m.txt \
	doc/measured/curve-gpt2-124m-early.txt \
	doc/measured/curve-gpt2-124m.txt \
	doc/measured/fp8-cosine-host.txt \
	doc/measured/fp8-h100.txt \
	doc/measured/fp8-h200.txt \
	doc/measured/fp8-quality-gpt2-124m-once.txt \
	doc/measured/fp8-quality-gpt2-124m-whole.txt \
	doc/measured/fp8-quality-qwen2.5-0.5b-once.txt \
	doc/measured/fp8-quality-qwen2.5-0.5b.txt \
	doc/measured/sanitize-second-h200.txt \
	doc/measured/fp8-quality-h100x1.txt \
	doc/measured/h100.jsonl \
	doc/measured/sanitize-fp8-h100.txt \
	doc/measured/fp8-quality-gpt2-124m.txt \
	doc/measured/fp8-quality-h100x2.txt \
	doc/measured/fp8-quality-h200x4.txt \
	doc/measured/gathered-h100x2.txt \
	doc/measured/optimizers-h200.txt \
	doc/measured/sanitize-fp8-h200.txt \
	doc/measured/sanitize-h200.txt \
	doc/measured/sanitizers.txt \
	doc/measured/scale-predicted.txt \
	doc/measured/scale-published.csv \
	doc/measured/soak.txt \
	doc/measured/storage-faults.txt \
	doc/measured/tests-h200.txt \
	doc/measured/transports-h200x2.jsonl
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
