# Programs and scripts that measure. None of them is built or installed by default.
EXTRA_PROGRAMS += bench/encode
EXTRA_DIST += \
	bench/adam.py \
	bench/adam.sh \
	bench/bpe_train.py \
	bench/bpe_train.sh \
	bench/codecs.yaml \
	bench/codecs_seeds.yaml \
	bench/corpus.sh \
	bench/cpu.sh \
	bench/fp8.sh \
	bench/fp8_cosine.sh \
	bench/fp8_quality.yaml \
	bench/fp8_seeds.yaml \
	bench/moments_seeds.yaml \
	bench/fp8_whole.yaml \
	bench/fsdp2.py \
	bench/gpt2_cpu.py \
	bench/gpu.sh \
	bench/matrix.sh \
	bench/offload.sh \
	bench/optimizers.sh \
	bench/chat.py \
	bench/choices.sh \
	bench/pays.sh \
	bench/plots.py \
	bench/rows.sh \
	bench/scale.py \
	bench/scaling.sh \
	bench/tables.py \
	bench/tokenizer.py \
	bench/tokenizer.sh \
	bench/transports.sh
