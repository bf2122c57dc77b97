# All pages, images and records are shipped and installed, so links between pages work there too.
shelves += doc/explanation doc/howto doc/images doc/measured doc/measurements doc/reference \
  doc/tutorials
nobase_dist_doc_DATA = CHANGELOG.md CITATION.cff CONTRIBUTING.md LICENSE README.md SECURITY.md \
	doc/index.md slurm/README.md
EXTRA_DIST += doc/conf.py doc/layers.txt

# The site, made of the pages by Sphinx. A release contains it if it was built before make dist.
.PHONY: dist-site install-site uninstall-site uninstall-folders clean-site
SPHINXFLAGS =
if HAVE_SPHINX
doc/html/index.html: always
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
