# sluice NAME starts NAME.py. A build finds them by the links that configure makes.
toolsdir = $(pkgdatadir)/tools
dist_tools_DATA = \
	tools/chat.py \
	tools/compare.py \
	tools/origin.py \
	tools/report.py \
	tools/sluice_results.py \
	tools/top.py
