inputsdir = $(pkgdatadir)/inputs
dist_inputs_DATA = \
	inputs/first.yaml \
	inputs/gpt2-124m.yaml \
	inputs/gpt2-62m.yaml \
	inputs/llama-3.1-8b.yaml \
	inputs/llama-3.2-1b.yaml \
	inputs/mistral-7b.yaml \
	inputs/quickstart.yaml \
	inputs/qwen2.5-0.5b.yaml \
	inputs/qwen2.5-14b-offload.yaml \
	inputs/qwen2.5-32b-offload.yaml \
	inputs/qwen2.5-7b-offload.yaml \
	inputs/qwen2.5-7b.yaml \
	inputs/qwen3-14b.yaml \
	inputs/qwen3-8b.yaml \
	inputs/train-300m.yaml \
	inputs/train-90m.yaml

finetunedir = $(inputsdir)/finetune
dist_finetune_DATA = \
	inputs/finetune/llama-3.1-8b.yaml \
	inputs/finetune/llama-3.2-1b.yaml \
	inputs/finetune/mistral-7b.yaml \
	inputs/finetune/qwen2.5-0.5b.yaml \
	inputs/finetune/qwen2.5-14b-offload.yaml \
	inputs/finetune/qwen2.5-32b-offload.yaml \
	inputs/finetune/qwen2.5-7b-offload.yaml \
	inputs/finetune/qwen2.5-7b.yaml \
	inputs/finetune/qwen3-14b.yaml \
	inputs/finetune/qwen3-8b.yaml
