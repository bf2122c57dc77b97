check_scripts += \
	tests/cli/cli.sh \
	tests/cli/counters.sh \
	tests/cli/cuda.sh \
	tests/cli/cuda_mpi.sh \
	tests/cli/cuda_offload.sh \
	tests/cli/cuda_spy.sh \
	tests/cli/decks.sh \
	tests/cli/doctor.sh \
	tests/cli/evaluate.sh \
	tests/cli/exactness.sh \
	tests/cli/huggingface.sh \
	tests/cli/losses.sh \
	tests/cli/fit.sh \
	tests/cli/frozen.sh \
	tests/cli/generate.sh \
	tests/cli/hybrid.sh \
	tests/cli/memory.sh \
	tests/cli/offload.sh \
	tests/cli/offload_tables.sh \
	tests/cli/performance.sh \
	tests/cli/rates.sh \
	tests/cli/reshard.sh \
	tests/cli/sanitize_judge.sh \
	tests/cli/spy_judge.sh \
	tests/cli/stopping.sh \
	tests/cli/tokenizer.sh
EXTRA_DIST += \
	tests/cli/common.sh \
	tests/cli/spy.awk \
	tests/cli/trace.awk \
	tests/peers/adam.py \
	tests/peers/adam.sh \
	tests/peers/bpe_train.py \
	tests/peers/bpe_train.sh \
	tests/peers/carriers.sh \
	tests/peers/cpu.sh \
	tests/peers/fsdp2.py \
	tests/peers/gpt2_cpu.py \
	tests/peers/gpu.sh \
	tests/peers/gpu_table.py \
	tests/peers/huggingface.py \
	tests/peers/offload.sh \
	tests/peers/offload_table.py \
	tests/peers/scaling.sh \
	tests/peers/tokenizer.py \
	tests/peers/tokenizer.sh \
	tests/peers/unicode_tables.py
