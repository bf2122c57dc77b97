/* Weights and model.* from elsewhere. Oracles: folders that transformers wrote, byte for byte after
 * import and export; their tensors, element by element in a job of any strategy; folders with one
 * thing changed. */
/* ranks: 1 2 3 */
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "io/checkpoint/private.h"
#include "io/text/file.h"
#include "io/text/lock.h"
#include "job/model_source.h"
#include "job/weights.h"
#include "tests/job/ranks.h"
#include "train/hf_convert.h"

/* Texts that stay until the program ends. */
static struct {
  int n;
  char *text[1024];
} kept;

static char *keep(char *text)
{
  assert_non_null(text);
  assert_true(kept.n < 1024);
  return kept.text[kept.n++] = text;
}

/* sentence NULL: it is not refused. */
static void refused(enum status status, enum status wanted, const char *sentence)
{
  if (sentence)
    must_fail(status, wanted, sentence);
  else
    must(status);
}

static char *fixture(const char *name)
{
  const char *top = getenv("top_srcdir");
  return keep(mem_printf("%s/tests/model/data/%s", top ? top : ".", name));
}

/* A path in the folder that no other test has. */
static char *fresh(const char *end)
{
  static int n;
  return keep(mem_printf("%s/%d%s", dir, n++, end));
}

static char *imported(const char *model)
{
  char *file = fresh(".h5");
  must(hf_convert_import(comm, fixture(model), file));
  return file;
}

/* Rank 0 writes the file, and its folder. */
static void put_text(const char *folder, const char *name, const char *text)
{
  must(comm_barrier(comm));
  if (comm_rank(comm) == 0) {
    must(file_make_folders(folder));
    must(file_write_all(file_path(folder, name).text, text, strlen(text)));
  }
  must(comm_barrier(comm));
}

static char *read_text(const char *path, size_t *bytes)
{
  char *text = NULL;
  must(file_read_all(path, 1 << 24, &text, bytes));
  return keep(text);
}

static void same_file(const char *left_dir, const char *right_dir, const char *name)
{
  size_t an = 0, bn = 0;
  const char *a = read_text(file_path(left_dir, name).text, &an),
             *b = read_text(file_path(right_dir, name).text, &bn);
  assert_int_equal(an, bn);
  assert_memory_equal(a, b, an);
}

/* On rank 0. */
static void same_checkpoint(const char *a, const char *b)
{
  bool same = false;
  FILE *nowhere = fopen("/dev/null", "w");
  must(checkpoint_diff(a, b, false, nowhere, &same));
  assert_true(same);
  fclose(nowhere);
}

static enum status export_as(const char *file, const char *to, enum dtype type, int64_t most_bytes)
{
  struct checkpoint_meta meta = {0};
  struct deck deck = {0};
  const struct hf_convert_options options = {
      .type = type, .tokenizer = "", .most_bytes = most_bytes};
  must(checkpoint_read_meta(comm, file, &meta));
  must(deck_load_text(&deck, file, meta.deck, strlen(meta.deck), 0, NULL));
  const enum status status = hf_convert_export(comm, &deck, file, to, &options);
  deck_destroy(&deck);
  checkpoint_meta_free(&meta);
  return status;
}

/* --- there and back ------------------------------------------------------ */

TEST(import_and_export_give_the_same_bytes)
{
  static const struct {
    const char *from, *whole;
    enum dtype type;
  } models[] = {{"gpt2", "gpt2", DTYPE_F32},
                {"gpt2-hub", "gpt2", DTYPE_F32},
                {"gpt2-sharded", "gpt2", DTYPE_F32},
                {"llama", "llama", DTYPE_F32},
                {"llama-sharded", "llama", DTYPE_F32},
                {"llama3", "llama3", DTYPE_F32},
                {"qwen2-bf16", "qwen2-bf16", DTYPE_BF16},
                {"qwen3", "qwen3", DTYPE_F32},
                {"mistral-fp16", "mistral-fp16", DTYPE_F16},
                {"odd", "odd", DTYPE_F32}};
  const int64_t usual = checkpoint_piece_bytes;
  checkpoint_piece_bytes = 1000; /* less than most tensors have */
  for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
    char *whole = fixture(models[m].whole), *file = imported(models[m].from);
    for (int64_t most = 1 << 30; most > 10000; most /= 40) {
      char *to = fresh(""), *again = fresh(".h5");
      must(export_as(file, to, models[m].type, most));
      if (most == 1 << 30)
        same_file(to, whole, "model.safetensors");
      must(hf_convert_import(comm, to, again));
      if (comm_rank(comm) == 0)
        same_checkpoint(file, again);
    }
  }
  checkpoint_piece_bytes = usual;
}

/* --- into a job ---------------------------------------------------------- */

static const struct st_tensor *find_tensor(const struct safetensors_folder *folder,
                                           const struct model *model, const char *name)
{
  const struct st_tensor *tensor = safetensors_folder_find(folder, name);
  return tensor ? tensor
                : safetensors_folder_find(folder, name + (strcmp(model->config.arch, "gpt2")
                                                              ? strlen("model.")
                                                              : strlen("transformer.")));
}

static void check_job(struct job *job, const char *from)
{
  struct safetensors_folder *folder = NULL;
  struct job_state *state = NULL;
  float *expected = NULL;
  must(safetensors_folder_open(from, &folder));
  must(job_state_open(job, true, false, false, &state));
  int64_t moments = 0;
  for (int t = 0; t < state->n; t++) {
    const struct io_tensor *tensor = &state->tensor[t];
    const int64_t elements = tensor->range.end - tensor->range.begin;
    if (elements <= 0)
      continue;
    expected = test_calloc((size_t)elements, sizeof *expected);
    if (!strcmp(tensor->group, "model"))
      must(
          safetensors_read(find_tensor(folder, job->model, tensor->name), tensor->range, expected));
    else
      moments += elements;
    assert_memory_equal(tensor->data, expected, (size_t)elements * sizeof *expected);
    test_free(expected);
  }
  assert_true(moments > 0 || comm_ranks(comm) > 1); /* which are zero */
  job_state_close(state);
  safetensors_folder_close(folder);
}

/* A deck that begins with `from`, and has these words separated by blanks. */
static enum status resolve(struct deck *deck, const char *from, const char *words)
{
  char text[512], *rest = NULL, *init = keep(mem_printf("train.init=%s", from));
  char *assignments[16] = {(char *)"data.batch=6", (char *)"run.threads=1",
                           (char *)"run.dir=nowhere", (char *)"run.device=host", init};
  int n = 5;
  snprintf(text, sizeof text, "%s", words);
  for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
    assignments[n++] = word;
  must(deck_load(deck, n, assignments));
  return model_source_resolve(comm, from, deck);
}

static void refuse_deck(const char *from, const char *words, enum status wanted,
                        const char *sentence)
{
  struct deck deck = {0};
  refused(resolve(&deck, from, words), wanted, sentence);
  deck_destroy(&deck);
}

TEST(a_job_has_the_folders_weights)
{
  static const char *const models[] = {"gpt2-hub", "llama-sharded", "qwen2-bf16", "mistral-fp16",
                                       "qwen3"};
  static const char *const ways[] = {
      "data.sequence=8 shard.strategy=full_shard train.freeze=[]",
      "data.sequence=8 shard.strategy=no_shard train.freeze=[*.0.*]",
      "data.sequence=8 shard.strategy=shard_optim train.freeze=[*.1.*weight,*.0.*weight]"};
  for (size_t m = 0; m < sizeof models / sizeof *models; m++)
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
      struct deck deck = {0};
      struct job *job = NULL;
      char *from = fixture(models[m]);
      must(resolve(&deck, from, ways[w]));
      must(job_begin(comm, &deck, &job));
      must(job_create(job, JOB_TRAIN));
      must(weights_start(job));
      check_job(job, from);
      job_destroy(job);
      deck_destroy(&deck);
    }
}

TEST(a_job_has_the_checkpoints_weights)
{
  struct deck deck = {0};
  struct job *job = NULL;
  char *file = imported("qwen3");
  must(resolve(&deck, file, ""));
  assert_string_equal(deck.model.arch, "qwen3");
  must(job_begin(comm, &deck, &job));
  must(job_create(job, JOB_TRAIN));
  must(weights_start(job));
  check_job(job, fixture("qwen3"));
  refused(weights_resume(job, file, &(bool){false}), STATUS_INPUT,
          "it has no optimizer state to go on from");
  refused(weights_load(job, imported("llama")), STATUS_USAGE,
          "holds a model of model.arch=llama, the deck says qwen3: they must agree");
  refused(weights_load(job, fixture("llama")), STATUS_INPUT,
          "tensor model.embed_tokens.weight has shape 61 x 48, and 64 x 32 in this model");
  job_destroy(job);
  deck_destroy(&deck);
}

/* --- model.* ------------------------------------------------------------- */

TEST(keys_come_from_the_folder)
{
  struct deck deck = {0};
  must(resolve(&deck, fixture("llama3"), ""));
  assert_string_equal(deck.model.arch, "llama");
  assert_int_equal(deck.model.layers, 2);
  assert_int_equal(deck.model.head_width, 16);
  assert_int_equal(deck.model.kv_heads, 2);
  assert_int_equal(deck.model.ffn, 48);
  assert_int_equal(deck.model.context, 512);
  assert_true(deck.model.tied);
  assert_int_equal(deck.model.rope.scaling, ROPE_LLAMA3);
  assert_true(deck.model.rope.theta == 1000 && deck.model.rope.factor == 8 &&
              deck.model.rope.low_freq == 1 && deck.model.rope.high_freq == 4);
  assert_int_equal(deck.model.rope.original, 64);
  deck_destroy(&deck);
}

TEST(keys_must_agree)
{
  static const struct {
    const char *assignment, *sentence; /* NULL: agrees */
  } cases[] = {
      {"model.layers=2", NULL},
      {"model.kv_heads=2", NULL},
      {"model.context=9", NULL}, /* a part of it */
      {"model.context=513", "model.context is 513 (command line), but "},
      {"model.init_std=0.5", NULL}, /* no matter: there are weights */
      {"model.dtype=float16", NULL},
      {"model.arch=qwen2", "model.arch is qwen2 (command line), but "},
      {"model.heads=2", "model.heads is 2 (command line), but "},
      {"model.kv_heads=0", "model.kv_heads is 4 (command line), but "},
      {"model.head_width=0", "model.head_width is 8 (command line), but "},
      {"model.tied=false", "model.tied is false (command line), but "},
      {"model.window=8", "model.window is 8 (command line), but "},
      {"model.norm_eps=1e-6", "model.norm_eps is 1e-6 (command line), but "},
      {"model.rope_scaling=none", "model.rope_scaling is none (command line), but "},
      {"model.rope_theta=1001", "model.rope_theta is 1001 (command line), but "},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    refuse_deck(fixture("llama3"), cases[i].assignment, STATUS_USAGE, cases[i].sentence);
}

TEST(the_resolved_deck_is_checked)
{
  refuse_deck(fixture("llama"), "data.sequence=65", STATUS_USAGE, "data.sequence");
  refuse_deck(dir, "", STATUS_INPUT, "is neither a model folder");
}

/* The text with each %s replaced; the caller's. */
static char *fill(const char *text, const char *by)
{
  const char *second = strstr(strstr(text, "%s") + 2, "%s");
  const int first = (int)(strstr(text, "%s") - text),
            middle = second ? (int)(second - text) - first - 2 : -1;
  if (!second)
    return keep(mem_printf("%.*s%s%s", first, text, by, text + first + 2));
  return keep(
      mem_printf("%.*s%s%.*s%s%s", first, text, by, middle, text + first + 2, by, second + 2));
}

/* The cause is a file, not what the deck says. */
TEST(message_names_the_file_of_a_key)
{
  static const struct {
    const char *assignment, *sentence;
  } cases[] = {{"\"num_key_value_heads\": 4", "model.kv_heads (%s/config.json) is 4, which does "
                                              "not divide model.heads (%s/config.json) = 6"},
               {"\"head_dim\": 7",
                "%s/config.json: model.head_width is 7: rotary positions turn pairs of elements"},
               {"\"num_key_value_heads\": 2", NULL}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct deck deck = {0};
    char *to = fresh("");
    put_text(to, "config.json",
             keep(mem_printf("{\"model_type\": \"llama\", \"vocab_size\": 61, \"hidden_size\": 48, "
                             "\"intermediate_size\": 40, \"num_hidden_layers\": 2, "
                             "\"max_position_embeddings\": 64, \"num_attention_heads\": 6, %s}",
                             cases[i].assignment)));
    const char *sentence = cases[i].sentence ? fill(cases[i].sentence, to) : NULL;
    refused(resolve(&deck, to, "data.sequence=8"), STATUS_USAGE, sentence);
    if (!sentence) {
      assert_non_null(strstr(options_where(deck.set, "model.kv_heads"), "config.json"));
      assert_string_equal(options_where(deck.set, "data.sequence"), "command line");
    }
    deck_destroy(&deck);
  }
}

/* GPT-2's positions are weights. */
TEST(a_shorter_context_is_refused_where_positions_are_weights)
{
  const char *const from[] = {fixture("gpt2"), imported("gpt2")};
  for (int i = 0; i < 2; i++)
    refuse_deck(from[i], "model.context=20 data.sequence=8", STATUS_USAGE,
                "model.context is 20 (command line), but ");
}

/* One rank's deck differs: all ranks come back, and say whose it is. */
TEST(a_rank_that_fails_alone_takes_the_others_along)
{
  const char *const from[] = {fixture("llama3"), imported("llama3")};
  const bool last = comm_rank(comm) == comm_ranks(comm) - 1;
  for (int i = 0; i < 2; i++)
    refuse_deck(from[i], last ? "model.layers=5" : "model.layers=2", STATUS_USAGE,
                "model.layers is 5 (command line), but ");
}

/* --- folders with something wrong ---------------------------------------- */

/* What differs from a fixture. */
struct change {
  const char *extra, *of;      /* one more tensor: a copy of `of`; NULL: none */
  int64_t element;             /* that is changed in it, -1: none */
  const char *prefix, *inside; /* of all names, and of those in block 1, which go before the rest */
};

static void name_tensor(const struct change *change, const char *name, char *out, size_t size)
{
  const char *block = strstr(name, "layers.1.");
  const int head = block ? (int)(block - name) + 9 : (int)strlen(name);
  snprintf(out, size, "%s%.*s%s%s", change->prefix ? change->prefix : "", head, name,
           block && change->inside ? change->inside : "", name + head);
}

/* Returns the folder. */
static char *write_changed(const char *model, const struct change *change, int64_t most)
{
  enum { MOST = 64 };
  static char names[MOST][256];
  const struct st_tensor *tensor[MOST];
  struct safetensors_folder *folder = NULL;
  struct safetensors_writer *writer = NULL;
  struct st_shape shapes[MOST];
  char *from = fixture(model), *to = fresh("");
  size_t bytes = 0;
  must(safetensors_folder_open(from, &folder));
  const int plain = (int)safetensors_folder_count(folder), n = plain + (change->extra != NULL);
  for (int t = 0; t < n; t++) {
    tensor[t] =
        t < plain ? safetensors_folder_at(folder, t) : safetensors_folder_find(folder, change->of);
    name_tensor(change, t < plain ? tensor[t]->name : change->extra, names[t], sizeof names[t]);
    shapes[t] = (struct st_shape){.name = names[t], .ndim = tensor[t]->ndim};
    memcpy(shapes[t].shape, tensor[t]->shape, sizeof shapes[t].shape);
  }
  must(safetensors_writer_open(comm, to, "model", DTYPE_F32, n, shapes, most, &writer));
  for (int t = 0; t < n && comm_rank(comm) == 0; t++) {
    const struct layout_range all = {0, tensor[t]->elements};
    float *data = test_malloc((size_t)all.end * sizeof *data);
    must(safetensors_read(tensor[t], all, data));
    if (t == plain && change->element >= 0)
      data[change->element] = -data[change->element];
    must(safetensors_writer_put(writer, t, all, data));
    test_free(data);
  }
  must(safetensors_writer_close(writer, STATUS_OK));
  put_text(to, "config.json", read_text(file_path(from, "config.json").text, &bytes));
  safetensors_folder_close(folder);
  return to;
}

TEST(a_tied_head_may_be_there_twice)
{
  static const struct {
    const char *model, *embedding;
    int64_t elements;
  } cases[] = {{"llama3", "model.embed_tokens.weight", 61 * 32},
               {"gpt2", "transformer.wte.weight", 67 * 30}};
  for (int c = 0; c < 2; c++)
    for (int64_t part = -1; part < 4; part++) { /* each rank's share of the bits is compared */
      char *file = fresh(".h5");
      const int64_t changed = part < 0    ? -1
                              : part == 3 ? cases[c].elements - 1
                                          : cases[c].elements * part / 3;
      const struct change change = {"lm_head.weight", cases[c].embedding, changed, NULL, NULL};
      char *to = write_changed(cases[c].model, &change, 1 << 30);
      if (part < 0)
        must(hf_convert_import(comm, to, file));
      else
        refused(hf_convert_import(comm, to, file), STATUS_INPUT,
                "config.json says that they are tied");
      assert_int_equal(file_exists(file), part < 0);
    }
}

TEST(other_tensors_must_be_known)
{
  static const struct {
    const char *model, *extra, *of, *sentence;
  } cases[] = {
      {"llama3", "model.layers.0.self_attn.rotary_emb.inv_freq", "model.norm.weight", NULL},
      {"gpt2", "h.1.attn.bias", "transformer.ln_f.weight", NULL},
      {"llama3", "model.layers.2.input_layernorm.weight", "model.norm.weight",
       "the tensor model.layers.2.input_layernorm.weight is no parameter of this llama"},
      {"llama3", "norm.weight", "model.norm.weight",
       "the tensor norm.weight is no parameter"}, /* a second one, without the prefix */
      {"gpt2", "score.weight", "transformer.ln_f.weight",
       "the tensor score.weight is no parameter of this gpt2"},
      {"llama3", "lm_head.weight", "model.norm.weight",
       "lm_head.weight has shape 32, but is tied to model.embed_tokens.weight of 61 x 32"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const struct change change = {cases[i].extra, cases[i].of, -1, NULL, NULL};
    char *to = write_changed(cases[i].model, &change, 1 << 30);
    refused(hf_convert_import(comm, to, fresh(".h5")), STATUS_INPUT, cases[i].sentence);
  }
}

/* Names with words of wrappers, as scripts around a model save them. */
TEST(names_are_read_without_words_of_wrappers)
{
  static const struct {
    const char *prefix, *inside; /* of all names, and of those of block 1 */
    const char *sentence;        /* NULL: it is imported */
  } cases[] = {
      {"", "", NULL},
      {"_orig_mod.", "", NULL},
      {"module.", "", NULL},
      {"module._orig_mod.", "", NULL},
      {"_forward_module.", "", NULL},
      {"model.", "", NULL}, /* a second one */
      {"base_model.model.", "", NULL},
      {"", "_orig_mod.", NULL}, /* blocks compiled one by one */
      {"_fsdp_wrapped_module.", "_fsdp_wrapped_module._checkpoint_wrapped_module.", NULL},
      {"", "module.", "the tensor model.layers.1.input_layernorm.weight is missing"},
      {"base_model.model.", "base_layer.", "holds a LoRA adapter that is not merged"},
  };
  char *plain = imported("llama");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const struct change change = {NULL, NULL, -1, cases[i].prefix, cases[i].inside};
    char *file = fresh(".h5"), *to = write_changed("llama-sharded", &change, 30000);
    refused(hf_convert_import(comm, to, file), STATUS_INPUT, cases[i].sentence);
    if (comm_rank(comm) == 0 && !cases[i].sentence)
      same_checkpoint(plain, file);
  }
}

/* Two tensors whose names become one. */
TEST(names_that_become_the_same_are_refused)
{
  const struct change change = {"_orig_mod.model.norm.weight", "model.norm.weight", -1, NULL, NULL};
  char *to = write_changed("llama3", &change, 1 << 30);
  refused(hf_convert_import(comm, to, fresh(".h5")), STATUS_INPUT,
          "two tensors are named model.norm.weight");
}

/* A parameter in a type that is not read. */
TEST(other_types_are_refused_when_they_are_needed)
{
  const struct change change = {"model.layers.0.self_attn.rotary_emb.inv_freq", "model.norm.weight",
                                -1, NULL, NULL};
  char *to = write_changed("llama3", &change, 1 << 30), *file = fresh(".h5");
  const struct file_path path = file_path(to, "model.safetensors");
  size_t bytes = 0;
  char *text = read_text(path.text, &bytes);
  static const char *const names[] = {
      "\"model.layers.0.self_attn.rotary_emb.inv_freq\":{\"dtype\":\"",
      "\"model.norm.weight\":{\"dtype\":\""};
  for (int i = 0; i < 2; i++) {
    char *at = memmem(text, bytes, names[i], strlen(names[i]));
    assert_non_null(at);
    memcpy(at + strlen(names[i]), "I32", 3);
    must(comm_barrier(comm));
    if (comm_rank(comm) == 0)
      must(file_write_all(path.text, text, bytes));
    must(comm_barrier(comm));
    if (i == 0)
      must(hf_convert_import(comm, to, file)); /* a buffer that is not read */
    else
      refused(hf_convert_import(comm, to, dir), STATUS_INPUT,
              "tensor model.norm.weight has type I32");
  }
}

/* --- export -------------------------------------------------------------- */

TEST(files_of_the_tokenizer_go_along)
{
  char *file = imported("llama"), *tokens = fresh(""), *to = fresh(""), *text = NULL;
  struct folder_lock other = {.fd = -1};
  struct deck deck = {0};
  size_t bytes = 0;
  const struct hf_convert_options options = {DTYPE_F32, tokens, 1 << 30};
  must(resolve(&deck, file, ""));
  refused(hf_convert_export(comm, &deck, file, to, &options), STATUS_USAGE,
          "the folder holds no tokenizer.json");
  put_text(tokens, "tokenizer.json", "{\"model\": {}}");
  put_text(tokens, "special_tokens_map.json", "{}");
  put_text(tokens, "chat_template.jinja", "{{ messages }}");
  put_text(tokens, "README.md", "not of the tokenizer");
  put_text(tokens, "config.json", "{\"bos_token_id\": 5, \"eos_token_id\": [6, 7]}");
  must(hf_convert_export(comm, &deck, file, to, &options));
  same_file(tokens, to, "tokenizer.json");
  same_file(tokens, to, "special_tokens_map.json");
  same_file(tokens, to, "chat_template.jinja");
  assert_false(file_exists(file_path(to, "README.md").text));
  text = read_text(file_path(to, "config.json").text, &bytes);
  assert_non_null(strstr(text, "\"bos_token_id\": 5,\n  \"eos_token_id\": [\n    6,\n    7\n  ],"));
  assert_non_null(strstr(text, "\"model_type\": \"llama\""));
  refused(hf_convert_export(comm, &deck, file, to, &options), STATUS_USAGE,
          "holds a model already (config.json)");
  if (comm_rank(comm) == 0)
    must(folder_lock(to, "folder", &other));
  refused(hf_convert_export(comm, &deck, file, to, &options), STATUS_USAGE,
          "is being written by another run (process");
  folder_unlock(to, &other);
  deck_destroy(&deck);
}

/* The usual line of transformers, model.generate(**tokenizer(text)), needs this key. */
TEST(the_tokenizer_names_the_inputs_of_the_model)
{
#define NAMES "\"model_input_names\": [\"input_ids\", \"attention_mask\"]"
  static const struct {
    const char *config, *exported; /* NULL: as it was */
  } cases[] = {
      {"{\"eos_token\": \"{\"}\n", "{\n  " NAMES ",\"eos_token\": \"{\"}\n"},
      {" {}", "{\n  " NAMES "}"},
      {"{\"model_input_names\": [\"input_ids\"]}", NULL},
      {"[\"{\"]", NULL},
      {"{\"eos_token\": ", NULL},
  };
  char *file = imported("llama");
  struct deck deck = {0};
  must(resolve(&deck, file, ""));
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char *tokens = fresh(""), *to = fresh(""), *text = NULL;
    const struct hf_convert_options options = {DTYPE_F32, tokens, 1 << 30};
    size_t bytes = 0;
    put_text(tokens, "tokenizer.json", "{\"model\": {}}");
    put_text(tokens, "tokenizer_config.json", cases[i].config);
    must(hf_convert_export(comm, &deck, file, to, &options));
    text = read_text(file_path(to, "tokenizer_config.json").text, &bytes);
    assert_string_equal(text, cases[i].exported ? cases[i].exported : cases[i].config);
  }
  deck_destroy(&deck);
}

TEST(missing_files_are_named)
{
  char *from = fixture("llama"), *file = imported("llama"), *again = fresh(""), *log = fresh(""),
       *text = NULL;
  size_t bytes = 0;
  struct deck deck = {0};
  const struct hf_convert_options options = {DTYPE_F32, from, 1 << 30};
  if (comm_rank(comm) == 0)
    must(log_open_file(log));
  must(export_as(file, fresh(""), DTYPE_F32, 1 << 30));
  if (comm_rank(comm) == 0) {
    must(log_open_file(NULL));
    text = read_text(log, &bytes);
    assert_non_null(
        strstr(text, "has no tokenizer, bos_token_id, eos_token_id, generation_config.json"));
  }
  must(resolve(&deck, file, ""));
  must(hf_convert_export(comm, &deck, file, again, &options));
  same_file(from, again, "generation_config.json");
  deck_destroy(&deck);
}

/* Folders are neither left nor made by what fails. */
TEST(nothing_is_left_of_what_fails)
{
  struct deck deck = {0};
  char *from = fixture("llama"), *file = imported("llama"), *to = fresh(""), *none = fresh(""),
       *deep = keep(mem_printf("%s/b.h5", none));
  const struct hf_convert_options options = {DTYPE_F32, from, 1 << 30};
  must(resolve(&deck, fixture("qwen3"), "data.sequence=8"));
  /* another model than the file's */
  assert_int_not_equal(hf_convert_export(comm, &deck, file, to, &options), STATUS_OK);
  must(comm_barrier(comm));
  assert_int_not_equal(access(to, F_OK), 0);
  refused(hf_convert_import(comm, from, deep), STATUS_USAGE, "there is no folder ");
  must(comm_barrier(comm));
  assert_int_not_equal(access(none, F_OK), 0);
  deck_destroy(&deck);
}

int main(int argc, char **argv)
{
  ranks_untidy = true;
  return ranks_main(argc, argv);
}
