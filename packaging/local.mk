# Recipes for installing Sluice, see doc/howto/install.md.
EXTRA_DIST += packaging

# The paths are those of this `make install`, which may name another prefix than configure.
modulefilesdir = $(pkgdatadir)/modulefiles
.PHONY: install-modulefile uninstall-modulefile
install-data-local: install-modulefile
install-modulefile:
	@$(MKDIR_P) "$(DESTDIR)$(modulefilesdir)/sluice"
	$(AM_V_GEN)sed -e 's|@VERSION[@]|$(VERSION)|' -e 's|@bindir[@]|$(bindir)|' \
	  -e 's|@mandir[@]|$(mandir)|' $(top_srcdir)/packaging/modulefile.in \
	  >"$(DESTDIR)$(modulefilesdir)/sluice/$(VERSION)"
uninstall-local: uninstall-modulefile
uninstall-modulefile:
	rm -f "$(DESTDIR)$(modulefilesdir)/sluice/$(VERSION)"
