# A target is a program fuzz_NAME.c. `make check` replays tests/fuzz/seeds/NAME and
# tests/fuzz/crashers/NAME through it, `make fuzz` looks for more.
fuzz_targets = chat config corpus deck gpt2 json safetensors split tokenizer
check_PROGRAMS += \
	tests/fuzz/fuzz_chat \
	tests/fuzz/fuzz_config \
	tests/fuzz/fuzz_corpus \
	tests/fuzz/fuzz_deck \
	tests/fuzz/fuzz_gpt2 \
	tests/fuzz/fuzz_json \
	tests/fuzz/fuzz_safetensors \
	tests/fuzz/fuzz_split \
	tests/fuzz/fuzz_tokenizer
fixtures += tests/fuzz/libfuzz.a
tests_fuzz_libfuzz_a_SOURCES = tests/fuzz/fuzz.c tests/fuzz/fuzz.h tests/fuzz/replay.c
EXTRA_DIST += \
	tests/fuzz/crashers \
	tests/fuzz/dict \
	tests/fuzz/fuzz.mk \
	tests/fuzz/run.sh \
	tests/fuzz/seeds

# make fuzz FUZZ_SECONDS=3600 FUZZ_JOBS=4 FUZZ_WORKERS=2 fuzz_targets="json deck"
FUZZ_CC = clang
FUZZ_SECONDS = 60
FUZZ_JOBS = 1
FUZZ_WORKERS = 1
fuzz_sources = \
	io/tokens/chat.c \
	$(io_huggingface_libhuggingface_a_SOURCES) \
	$(io_text_libtext_a_SOURCES) \
	$(io_tokenizer_libtokenizer_a_SOURCES) \
	$(src_base_libbase_a_SOURCES) \
	$(src_deck_libdeck_a_SOURCES) \
	$(src_layout_liblayout_a_SOURCES) \
	src/model/hf_keys.c \
	src/model/hf_names.c \
	src/model/hf_print.c \
	src/model/hf_read.c \
	src/model/hf_rope.c \
	src/model/hf_window.c

.PHONY: fuzz fuzz-build
fuzz: fuzz-build
	FUZZ_JOBS='$(FUZZ_JOBS)' FUZZ_WORKERS='$(FUZZ_WORKERS)' \
	$(SHELL) $(top_srcdir)/tests/fuzz/run.sh tests/fuzz/bin '$(FUZZ_SECONDS)' \
	  $(fuzz_targets)
fuzz-build: config.h
	@echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n)' \
	  '{ (void)d; (void)n; return 0; }' \
	  >conftest-fuzz.c; \
	$(FUZZ_CC) -fsanitize=fuzzer,address,undefined -o conftest-fuzz conftest-fuzz.c \
	  >conftest-fuzz.log 2>&1; found=$$?; \
	rm -f conftest-fuzz conftest-fuzz.c conftest-fuzz.log; \
	if test $$found -ne 0; then \
	  echo "make fuzz needs clang with libFuzzer and AddressSanitizer" \
	    "(Debian and Ubuntu: clang libclang-rt-dev), and '$(FUZZ_CC)' is none:" \
	    "install it, or name another one with FUZZ_CC=" >&2; exit 1; fi
	+@$(MAKE) -f $(top_srcdir)/tests/fuzz/fuzz.mk top_srcdir='$(top_srcdir)' CC='$(FUZZ_CC)' \
	  flags='$(DEFS) $(DEFAULT_INCLUDES) $(AM_CPPFLAGS) $(CPPFLAGS)' \
	  libs='$(SLUICE_DEPS_LIBS) $(LIBS)' \
	  sources='$(fuzz_sources)' targets='$(fuzz_targets)'
clean-local: fuzz-clean
.PHONY: fuzz-clean
fuzz-clean:
	rm -rf tests/fuzz/bin
