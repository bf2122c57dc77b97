check_PROGRAMS += \
	tests/plan/test_build \
	tests/plan/test_free_space \
	tests/plan/test_meaning \
	tests/plan/test_memory \
	tests/plan/test_plan \
	tests/plan/test_print \
	tests/plan/test_schedule \
	tests/plan/test_simulate \
	tests/plan/test_traffic \
	tests/plan/test_verify \
	tests/plan/test_verify_bytes \
	tests/plan/test_verify_host \
	tests/plan/test_verify_whole
plan_fixture = \
	tests/plan/fixture.c \
	tests/plan/fixture.h
plan_broken = \
	$(plan_fixture) \
	tests/plan/broken.c \
	tests/plan/broken.h
tests_plan_test_build_SOURCES = tests/plan/test_build.c $(plan_fixture)
tests_plan_test_build_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=mem_grow
tests_plan_test_meaning_SOURCES = tests/plan/test_meaning.c $(plan_fixture)
tests_plan_test_meaning_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=codec_make
tests_plan_test_memory_SOURCES = tests/plan/test_memory.c $(plan_fixture)
tests_plan_test_plan_SOURCES = tests/plan/test_plan.c $(plan_fixture)
tests_plan_test_print_SOURCES = tests/plan/test_print.c $(plan_fixture)
tests_plan_test_schedule_SOURCES = tests/plan/test_schedule.c $(plan_fixture)
tests_plan_test_simulate_SOURCES = tests/plan/test_simulate.c $(plan_fixture)
tests_plan_test_free_space_SOURCES = tests/plan/test_free_space.c
tests_plan_test_verify_SOURCES = tests/plan/test_verify.c $(plan_broken)
tests_plan_test_verify_whole_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=codec_make
tests_plan_test_verify_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=codec_make
tests_plan_test_verify_bytes_SOURCES = tests/plan/test_verify_bytes.c $(plan_broken)
tests_plan_test_verify_host_SOURCES = tests/plan/test_verify_host.c $(plan_broken)
tests_plan_test_verify_whole_SOURCES = tests/plan/test_verify_whole.c $(plan_broken)
tests_plan_test_traffic_SOURCES = tests/plan/test_traffic.c $(plan_fixture)
EXTRA_DIST += \
	tests/plan/golden/across_nodes.txt \
	tests/plan/golden/bf16.txt \
	tests/plan/golden/bf16_kept.txt \
	tests/plan/golden/bf16_no_shard.txt \
	tests/plan/golden/differences.txt \
	tests/plan/golden/eval.txt \
	tests/plan/golden/feedback.txt \
	tests/plan/golden/feedback_nvme.txt \
	tests/plan/golden/frozen.txt \
	tests/plan/golden/frozen_no_shard.txt \
	tests/plan/golden/frozen_shard_optim.txt \
	tests/plan/golden/full_shard.txt \
	tests/plan/golden/full_shard_recompute_micros.txt \
	tests/plan/golden/generate.txt \
	tests/plan/golden/host.txt \
	tests/plan/golden/host_immediate.txt \
	tests/plan/golden/host_speculative.txt \
	tests/plan/golden/host_one_node.txt \
	tests/plan/golden/host_resident.txt \
	tests/plan/golden/host_shared.txt \
	tests/plan/golden/hybrid_shard.txt \
	tests/plan/golden/keep_host.txt \
	tests/plan/golden/int8_global.txt \
	tests/plan/golden/lr_scale.txt \
	tests/plan/golden/no_shard.txt \
	tests/plan/golden/one_rank.txt \
	tests/plan/golden/shard_grad_op.txt \
	tests/plan/golden/shard_optim.txt \
	tests/plan/golden/untied.txt \
	tests/plan/golden/weights.txt \
	tests/plan/golden/weights_host.txt
