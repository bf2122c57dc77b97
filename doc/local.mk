nobase_dist_doc_DATA = \
	LICENSE \
	README.md \
	doc/explanation/architecture.md \
	doc/reference/checkpoint.md \
	doc/explanation/compression.md \
	doc/howto/extending.md \
	doc/howto/install.md \
	doc/reference/limits.md \
	doc/reference/models.md \
	doc/howto/mpi.md \
	doc/explanation/numerics.md \
	doc/measurements/offload.md \
	doc/measurements/performance.md \
	doc/howto/running.md \
	slurm/README.md
EXTRA_DIST += doc/layers.txt

# Sources of the tables of doc/measurements/performance.md (tests/peers/gpu_table.py).
EXTRA_DIST += \
	doc/measured/h200x2.jsonl \
	doc/measured/h200x2-second.jsonl \
	doc/measured/h200x4.jsonl \
	doc/measured/h200x4-second.jsonl \
	doc/measured/h200x4-weak.jsonl \
	doc/measured/h200x2-llama8b.txt \
	doc/measured/h200x2-gpt2.txt \
	doc/measured/h200x2-qwen0.5b.txt \
	doc/measured/h200x2-qwen7b.txt
# Sources of the tables of doc/measurements/offload.md (tests/peers/offload_table.py), and other
# printed results.
EXTRA_DIST += \
	doc/measured/adam-h200.txt \
	doc/measured/adam-h200x2.txt \
	doc/measured/adam-h200x2-second.txt \
	doc/measured/carriers-h200x2.jsonl \
	doc/measured/codecs-h200.txt \
	doc/measured/compression-pays-h200x2.txt \
	doc/measured/compression-quality-h200x2.txt \
	doc/measured/io-h200.txt \
	doc/measured/ops-h100.txt \
	doc/measured/optimizers-h200.txt \
	doc/measured/ops-h200.txt \
	doc/measured/offload-h200x2.jsonl \
	doc/measured/offload-h200x4.jsonl \
	doc/measured/offload-h200x4-resident.jsonl \
	doc/measured/offload-h200x4-third.jsonl \
	doc/measured/offload-h200x4-rates-third.yaml \
	doc/measured/offload-h200x4-rates-resident.yaml \
	doc/measured/sanitize-h200.txt \
	doc/measured/offload-h200-rates.yaml \
	doc/measured/offload-h200x2-rates-second.yaml \
	doc/measured/offload-h200x2-rates.yaml \
	doc/measured/offload-h200x2-second.jsonl \
	doc/measured/offload-h200x2-third.jsonl \
	doc/measured/offload-h200x2-fourth.jsonl \
	doc/measured/offload-h200x2-rates-fourth.yaml \
	doc/measured/offload-h200x2-rates-before.yaml \
	doc/measured/offload-h200x4-rates.yaml \
	doc/measured/offload-h200x4-rates-sweep.yaml

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
