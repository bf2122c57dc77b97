# GNU make; started by `make fuzz-build` in the build folder, with: top_srcdir, CC, flags (of the
# preprocessor), libs, layers' sources, targets.
# Objects and programs lie in tests/fuzz/bin, apart from those of the normal build.
out = tests/fuzz/bin
CFLAGS = -std=gnu17 -O1 -g -fno-omit-frame-pointer -ffp-contract=off
sanitizers = address,undefined,float-cast-overflow
# Comparisons of integers are not traced, because that doubles the rate. Dictionaries have the words
# of the formats.
traces = -fsanitize=fuzzer-no-link -fno-sanitize-coverage=trace-cmp
# Tokenizers are trained with MPI, which no target needs.
trained = io/tokenizer/bpe_train%
objects = $(patsubst %.c,$(out)/obj/%.o,$(filter-out $(trained),$(filter %.c,$(sources))))
targets_objects = $(patsubst %,$(out)/obj/tests/fuzz/fuzz_%.o,$(targets)) \
  $(out)/obj/tests/fuzz/fuzz.o
programs = $(addprefix $(out)/fuzz_,$(targets))

all: $(programs)

$(objects) $(targets_objects): $(out)/obj/%.o: $(top_srcdir)/%.c $(top_srcdir)/tests/fuzz/fuzz.mk
	@mkdir -p $(@D)
	@echo "  FUZZ     $<"
	@$(CC) $(flags) -MMD -MP $(CFLAGS) $(traces) -fsanitize=$(sanitizers) \
	  -fno-sanitize-recover=all -c -o $@ $<

$(out)/libsluice.a: $(objects)
	@rm -f $@
	@ar cr $@ $(objects)

# Only the libraries that a target needs, and small ones as archives, so that the program also runs
# on another machine.
archive = $(or $(shell f=lib$(1).a; p=`$(CC) -print-file-name=$$f`; \
  test "$$p" = "$$f" || echo "$$p"),-l$(1))
small := -lyaml -ljansson -lpcre2-8 -lz -lzstd -lutf8proc
libraries := $(foreach lib,$(libs),$(if $(filter $(small),$(lib)),\
  $(call archive,$(patsubst -l%,%,$(lib))),$(lib)))

$(programs): $(out)/fuzz_%: $(out)/obj/tests/fuzz/fuzz_%.o $(out)/obj/tests/fuzz/fuzz.o \
  $(out)/libsluice.a
	@echo "  FUZZLD   $@"
	@$(CC) $(CFLAGS) -fsanitize=fuzzer,$(sanitizers) -fno-sanitize-recover=all -Wl,--as-needed \
	  -o $@ $^ $(libraries)

-include $(objects:.o=.d) $(targets_objects:.o=.d)
