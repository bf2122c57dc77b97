inputsdir = $(pkgdatadir)/inputs
dist_inputs_DATA = \
	inputs/gpt2-124m.yaml \
	inputs/gpt2-62m.yaml \
	inputs/quickstart.yaml \
	inputs/train-300m.yaml \
	inputs/train-90m.yaml
