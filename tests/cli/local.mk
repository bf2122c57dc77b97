check_scripts += \
	tests/cli/cli.sh \
	tests/cli/exactness.sh \
	tests/cli/memory.sh \
	tests/cli/reshard.sh \
	tests/cli/stopping.sh
EXTRA_DIST += \
	tests/cli/common.sh \
	tests/peers/cpu.sh \
	tests/peers/gpt2_cpu.py \
	tests/peers/scaling.sh
