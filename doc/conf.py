"""Settings of Sphinx for `make html`. A page is plain Markdown; the links of an index page are its
menu."""

import importlib.util
import os
import pathlib
import re

project = "Sluice"
author = "the Sluice developers"
release = os.environ.get("SLUICE_VERSION", "")
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["html", "man"]
myst_heading_anchors = 4
nitpicky = True
highlight_language = "none"
html_theme = "furo" if importlib.util.find_spec("furo") else "alabaster"
if html_theme == "alabaster":  # lines of 100 columns fit
    html_theme_options = {"page_width": "1240px", "sidebar_width": "260px"}
html_title = "Sluice " + release
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False


def add_menu(app, docname, source):
    """Appends a hidden menu to an index page: the pages that it links to, in this order."""
    here = pathlib.PurePosixPath(docname)
    if here.name != "index":
        return
    pages = [m for m in re.findall(r"\]\(([^):#]+)\.md\)", source[0]) if not m.startswith("..")]
    if docname == "index":
        pages = [m for m in pages if m.endswith("/index")]
    menu = "\n".join(dict.fromkeys(pages))
    source[0] += "\n\n```{toctree}\n:hidden:\n\n" + menu + "\n```\n"


def setup(app):
    app.connect("source-read", add_menu)
    return {"parallel_read_safe": True}
