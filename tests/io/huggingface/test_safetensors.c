/* safetensors. Oracles: files written by transformers, byte for byte; every bit pattern of bf16 and
 * fp16 against the scalar conversions; the format's rules, one by one. */
/* ranks: 1 2 3 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/huggingface/private.h"
#include "io/text/file.h"
#include "tests/io/checkpoint/sample.h"
#include "tests/rows.h"
#include "tests/test.h"

enum { MOST_TENSORS = 64 };

static struct comm *job;
static char *dir;

FIXTURE(start)
{
  dir = sample_folder(job);
  return 0;
}

FIXTURE(stop)
{
  sample_folder_remove(job, dir);
  return 0;
}

static const char *fixture(const char *name)
{
  static char path[4096];
  const char *top = getenv("top_srcdir");
  snprintf(path, sizeof path, "%s/tests/model/data/%s", top ? top : ".", name);
  return path;
}

static bool leads(void)
{
  return comm_rank(job) == 0;
}

/* --- writing what was read ----------------------------------------------- */

/* Each rank a part of every tensor, in pieces of an odd size. */
static enum status copy(const struct safetensors_folder *from, const char *to, enum dtype type,
                        int64_t most_bytes, int64_t piece)
{
  struct st_shape shapes[MOST_TENSORS];
  struct safetensors_writer *writer = NULL;
  const int n = (int)safetensors_folder_count(from), rank = comm_rank(job), ranks = comm_ranks(job);
  assert_true(n <= MOST_TENSORS);
  for (int t = 0; t < n; t++) {
    const struct st_tensor *tensor = safetensors_folder_at(from, t);
    shapes[t] = (struct st_shape){.name = tensor->name, .ndim = tensor->ndim};
    memcpy(shapes[t].shape, tensor->shape, sizeof shapes[t].shape);
  }
  enum status status = safetensors_writer_open(job, to, type, n, shapes, most_bytes, &writer);
  if (status)
    return status;
  float *data = test_malloc((size_t)piece * sizeof *data);
  for (int t = 0; t < n && !status; t++) {
    const struct st_tensor *tensor = safetensors_folder_at(from, t);
    const int64_t begin = tensor->elements * rank / ranks,
                  end = tensor->elements * (rank + 1) / ranks;
    for (int64_t at = begin; at < end && !status; at += piece) {
      const struct layout_range range = {at, at + piece < end ? at + piece : end};
      status = safetensors_read(tensor, range, data);
      if (!status)
        status = safetensors_writer_put(writer, t, range, data);
    }
  }
  test_free(data);
  return safetensors_writer_close(writer, comm_agree(job, status));
}

static void same_file(const char *left, const char *right)
{
  char *a = NULL, *b = NULL;
  size_t an = 0, bn = 0;
  must(file_read_all(left, 1 << 24, &a, &an));
  must(file_read_all(right, 1 << 24, &b, &bn));
  assert_int_equal(an, bn);
  assert_memory_equal(a, b, an);
  mem_free(a);
  mem_free(b);
}

static struct safetensors_folder *open_folder(const char *path)
{
  struct safetensors_folder *folder = NULL;
  const enum status status = safetensors_folder_open(path, &folder);
  assert_string_equal(status ? status_text() : "", "");
  return folder;
}

TEST(a_rewritten_file_is_the_same_file)
{
  static const struct {
    const char *name;
    enum dtype type;
  } models[] = {{"gpt2", DTYPE_F32},
                {"llama", DTYPE_F32},
                {"gpt2-hub", DTYPE_F32},
                {"qwen2-bf16", DTYPE_BF16},
                {"mistral-fp16", DTYPE_F16}};
  for (size_t m = 0; m < sizeof models / sizeof *models; m++)
    for (int64_t piece = 7; piece < 5000; piece = piece * 29 + 1) {
      struct safetensors_folder *from = open_folder(fixture(models[m].name));
      char *to = mem_printf("%s/%s-%lld", dir, models[m].name, (long long)piece),
           *written = mem_printf("%s/model.safetensors", to);
      const enum status status = copy(from, to, models[m].type, 1 << 30, piece);
      assert_string_equal(status ? status_text() : "", "");
      char *original = mem_printf("%s/model.safetensors", fixture(models[m].name)),
           *index = mem_printf("%s.index.json", written);
      same_file(written, original);
      assert_false(file_exists(index));
      safetensors_folder_close(from);
      mem_free(index);
      mem_free(original);
      mem_free(written);
      mem_free(to);
      must(comm_barrier(job));
    }
}

static char *bytes_of(const struct st_tensor *tensor)
{
  char *bytes = test_malloc((size_t)tensor->bytes + 1);
  assert_int_equal(pread(tensor->fd, bytes, (size_t)tensor->bytes, tensor->at), tensor->bytes);
  return bytes;
}

static void same_tensors(const struct safetensors_folder *a, const struct safetensors_folder *b)
{
  assert_int_equal(safetensors_folder_count(a), safetensors_folder_count(b));
  for (int64_t t = 0; t < safetensors_folder_count(a); t++) {
    const struct st_tensor *left = safetensors_folder_at(a, t),
                           *right = safetensors_folder_find(b, left->name);
    assert_non_null(right);
    assert_int_equal(left->type, right->type);
    assert_int_equal(left->ndim, right->ndim);
    assert_memory_equal(left->shape, right->shape, sizeof left->shape);
    assert_int_equal(left->bytes, right->bytes);
    char *mine = bytes_of(left), *theirs = bytes_of(right);
    assert_memory_equal(mine, theirs, (size_t)left->bytes);
    test_free(mine);
    test_free(theirs);
  }
}

TEST(many_files_hold_what_one_holds)
{
  static const char *const models[] = {"gpt2", "llama"};
  for (size_t m = 0; m < 2; m++) {
    struct safetensors_folder *whole = open_folder(fixture(models[m]));
    char *name = mem_printf("%s-sharded", models[m]);
    struct safetensors_folder *theirs = open_folder(fixture(name));
    same_tensors(whole, theirs);
    for (int64_t most = 1; most < 200000; most = most * 13 + 5) {
      char *to = mem_printf("%s/%s-%lld", dir, name, (long long)most);
      const enum status status = copy(most % 2 ? theirs : whole, to, DTYPE_F32, most, 1000);
      assert_string_equal(status ? status_text() : "", "");
      struct safetensors_folder *ours = open_folder(to);
      same_tensors(whole, ours);
      safetensors_folder_close(ours);
      mem_free(to);
      must(comm_barrier(job));
    }
    safetensors_folder_close(theirs);
    safetensors_folder_close(whole);
    mem_free(name);
  }
}

TEST(the_index_is_as_transformers_writes_it)
{
  struct safetensors_folder *from = open_folder(fixture("llama"));
  char *to = mem_printf("%s/index", dir), *path = mem_printf("%s/model.safetensors.index.json", to),
       *text = NULL;
  size_t bytes = 0;
  must(copy(from, to, DTYPE_F32, 1, 1000)); /* a file for each tensor */
  must(file_read_all(path, 1 << 20, &text, &bytes));
  const char *head = "{\n  \"metadata\": {\n    \"total_parameters\": 29904,\n    \"total_size\": "
                     "119616\n  },\n  \"weight_map\": {\n"
                     "    \"lm_head.weight\": \"model-00001-of-00021.safetensors\",\n    "
                     "\"model.embed_tokens.weight\": \"model-00002-of-00021.safetensors\",\n";
  const char *tail = "    \"model.norm.weight\": \"model-00021-of-00021.safetensors\"\n  }\n}\n";
  assert_int_equal(strncmp(text, head, strlen(head)), 0);
  assert_string_equal(text + bytes - strlen(tail), tail);
  mem_free(text);
  mem_free(path);
  mem_free(to);
  safetensors_folder_close(from);
}

/* --- numbers ------------------------------------------------------------- */

static void write_file(const char *path, const char *header, uint64_t length, const void *data,
                       size_t bytes)
{
  const size_t text = strlen(header);
  char *all = test_malloc(8 + text + bytes);
  memcpy(all, &length, 8);
  memcpy(all + 8, header, text);
  if (bytes)
    memcpy(all + 8 + text, data, bytes);
  must(file_write_all(path, all, 8 + text + bytes));
  test_free(all);
}

TEST(every_half_is_read_exactly)
{
  if (!leads())
    return;
  static uint16_t halves[2 * 65536 + 1];
  static float out[65536];
  char *path = mem_printf("%s/halves.safetensors", dir);
  const char *header = "{\"b\":{\"dtype\":\"BF16\",\"shape\":[65536],\"data_offsets\":[1,131073]},"
                       "\"o\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                       "\"h\":{\"dtype\":\"F16\",\"shape\":[2,32768],\"data_offsets\":[131073,"
                       "262145]}}"; /* at odd addresses */
  char data[1 + 2 * 131072];
  struct safetensors *file = NULL;
  for (int i = 0; i < 65536; i++)
    halves[i] = halves[65536 + i] = (uint16_t)i;
  memcpy(data + 1, halves, 2 * 131072);
  data[0] = 1;
  write_file(path, header, strlen(header), data, sizeof data);
  must(safetensors_open(path, &file));
  assert_int_equal(file->n, 3);
  assert_string_equal(file->tensor[1].name, "o");
  for (int half = 0; half < 2; half++) {
    const struct st_tensor *tensor = st_find(file->by_name, file->n, half ? "h" : "b");
    for (int64_t at = 0; at < 65536; at += 9999) {
      const struct layout_range range = {at, at + 9999 < 65536 ? at + 9999 : 65536};
      must(safetensors_read(tensor, range, out + at));
    }
    for (int i = 0; i < 65536; i++) {
      const float expected = half ? f32_from_f16((uint16_t)i) : f32_from_bf16((uint16_t)i);
      assert_memory_equal(&out[i], &expected, sizeof expected);
    }
  }
  must(safetensors_read(st_find(file->by_name, file->n, "b"), (struct layout_range){5, 5}, NULL));
  assert_int_equal(
      safetensors_read(st_find(file->by_name, file->n, "b"), (struct layout_range){0, 65537}, out),
      STATUS_INTERNAL);
  must_fail(
      safetensors_read(st_find(file->by_name, file->n, "o"), (struct layout_range){0, 1}, out),
      STATUS_INPUT, "tensor o has type U8");
  assert_null(st_find(file->by_name, file->n, "x"));
  safetensors_close(file);
  mem_free(path);
}

static enum status write_one(const char *name, enum dtype type, const float *data, int64_t n)
{
  const struct st_shape shape = {.name = name, .ndim = 1, .shape = {n}};
  struct safetensors_writer *writer = NULL;
  enum status status = safetensors_writer_open(job, dir, type, 1, &shape, 1 << 20, &writer);
  if (status)
    return status;
  status =
      comm_agree(job, leads() ? safetensors_writer_put(writer, 0, (struct layout_range){0, n}, data)
                              : STATUS_OK);
  return safetensors_writer_close(writer, status);
}

TEST(value_out_of_range_of_a_type_is_refused_and_leaves_nothing)
{
  const float infinite = (float)HUGE_VAL;
  float data[4] = {1, 65504, 65520, 2};
  char *path = mem_printf("%s/model.safetensors", dir), *temporary = mem_printf("%s.tmp", path);
  must_fail(write_one("model.norm.weight", DTYPE_F16, data, 4), STATUS_INPUT,
            "model.norm.weight: element 2 is 65520, which is too large for float16");
  assert_false(file_exists(path));
  assert_false(file_exists(temporary));
  data[2] = 65519.99f; /* rounds to 65504 */
  data[3] = infinite;
  must(write_one("w", DTYPE_F16, data, 4));
  data[2] = 3.3999999e38f;
  must_fail(write_one("w", DTYPE_BF16, data, 4), STATUS_INPUT, "too large for bfloat16");
  assert_true(file_exists(path)); /* the earlier one */
  must(write_one("w", DTYPE_F32, data, 4));
  must(comm_barrier(job));
  if (leads())
    unlink(path);
  mem_free(temporary);
  mem_free(path);
}

TEST(misuse_of_the_writer_is_told)
{
  const float data[4] = {0};
  const struct st_shape shape = {.name = "w", .ndim = 2, .shape = {2, 3}};
  struct safetensors_writer *writer = NULL;
  assert_int_equal(write_one("a \"name\"", DTYPE_F32, data, 4), STATUS_INTERNAL);
  assert_int_equal(write_one("", DTYPE_F32, data, 4), STATUS_INTERNAL);
  must(safetensors_writer_open(job, dir, DTYPE_F32, 1, &shape, 1 << 20, &writer));
  assert_int_equal(safetensors_writer_put(writer, 0, (struct layout_range){4, 7}, data),
                   STATUS_INTERNAL);
  if (leads())
    must(safetensors_writer_put(writer, 0, (struct layout_range){1, 4}, data));
  must_fail(safetensors_writer_close(writer, STATUS_OK), STATUS_INTERNAL,
            "3 of 6 elements"); /* half of it was never written */
  assert_int_equal(
      safetensors_writer_open(job, "/proc/nowhere", DTYPE_F32, 1, &shape, 1 << 20, &writer),
      STATUS_IO);
  if (comm_ranks(job) > 1) {
    struct st_shape other = shape;
    other.shape[0] += comm_rank(job);
    assert_int_equal(safetensors_writer_open(job, dir, DTYPE_F32, 1, &other, 1 << 20, &writer),
                     STATUS_INPUT);
  }
}

/* --- files of strangers -------------------------------------------------- */

static void check_damaged(const char *given, const char *sentence)
{
  static const char data[4096];
  char *path = mem_printf("%s/bad.safetensors", dir);
  struct safetensors *file = NULL;
  uint64_t length;
  size_t bytes;
  int at = 0;
  assert_int_equal(sscanf(given, "%" SCNu64 " %zu %n", &length, &bytes, &at), 2);
  write_file(path, given + at, length ? length : strlen(given + at), data, bytes);
  const enum status status = safetensors_open(path, &file);
  if (status == STATUS_OK)
    fail_msg("accepted: %s", given);
  assert_int_equal(status, STATUS_INPUT);
  if (!strstr(status_text(), sentence) || !strstr(status_text(), "bad.safetensors"))
    fail_msg("%s\nsays: %s\nnot:  %s", given, status_text(), sentence);
  mem_free(path);
}

TEST(damaged_files_are_refused)
{
  if (leads())
    rows_each("tests/io/huggingface/refused.txt", "files", check_damaged);
}

/* What stands in place of weights after a broken download, or under a wrong name. */
TEST(other_kinds_of_files_are_named)
{
  if (!leads())
    return;
  static char tar[512] = "model/config.json";
  memcpy(tar + 257, "ustar", 6);
#define BYTES(text) text, sizeof(text) - 1
  const struct {
    const char *start;
    size_t bytes;
    const char *sentence;
  } kinds[] = {
      {BYTES(""), "is empty: its download did not finish"},
      {BYTES("\x20\0\0"), "is truncated: it has 3 bytes; download it again"},
      {BYTES("\r\n <!DOCTYPE HTML><html>"), "is a page of HTML, not safetensors: download"},
      {BYTES("<Html lang=en>"), "is a page of HTML"},
      {BYTES("<?xml version=\"1.0\"?><Error>"), "is a text in XML or HTML"},
      {BYTES("version https://git-lfs.github.com/spec/v1\noid sha256:0"),
       "is a pointer of Git LFS, not safetensors: fetch the file with git lfs pull"},
      {BYTES("/annex/objects/SHA256E-s1--0"), "fetch the file with git annex get"},
      {BYTES("Entry not found\n"), "is the text \"Entry not found\", not safetensors"},
      {BYTES("404"), "is the text \"404\""},
      {BYTES("{\"error\":\"Repository not found\"}"),
       "is the answer of a server, {\"error\":\"Repository not found\"}: download"},
      {BYTES("{\"architectures\":[]}"), "is the text \"{\"architectures\":[]}\""},
      {BYTES("PK\3\4\0\0\x8\x8\0\0"),
       "is a zip archive, as .docx, .npz and PyTorch's .bin and .pt files are, not "
       "safetensors: load it in PyTorch"},
      {BYTES("\x80\2\x8A\nl\xFC\x9C"
             "F\xF9"),
       "is a Python pickle, not safetensors: load it in PyTorch"},
      {BYTES("\x80\4\x95\n\0\0\0\0\0\0\0}"), "is a Python pickle"},
      {BYTES("PAR1\x15\4"), "is a Parquet file, not safetensors: download"},
      {BYTES("GGUF\3\0\0\0\0"), "is a GGUF model, not safetensors: use"},
      {BYTES("\x89HDF\r\n\x1A\n\0"), "is an HDF5 file"},
      {BYTES("\x1F\x8B\b\0\0\0\0\0\0\3"), "is a file compressed by gzip"},
      {BYTES("\x28\xB5\x2F\xFD\4\0\0\0\0"), "is a file compressed by zstd"},
      {tar, sizeof tar, "is a tar archive, not safetensors: unpack it first"},
      {BYTES("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"), "is a file of zeros"},
      {BYTES("\1\2\3\4\5\6\7\10\11"), "is no safetensors file"},
  };
  char *path = mem_printf("%s/kind.safetensors", dir);
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    struct safetensors *file = NULL;
    must(file_write_all(path, kinds[i].start, kinds[i].bytes));
    assert_int_equal(safetensors_open(path, &file), STATUS_INPUT);
    if (!strstr(status_text(), kinds[i].sentence) || !strstr(status_text(), "kind.safetensors"))
      fail_msg("says: %s\nnot:  %s", status_text(), kinds[i].sentence);
  }
  mem_free(path);
}

/* Another program may overwrite a file while it is read. */
TEST(a_cut_file_is_told)
{
  if (!leads())
    return;
  enum { N = 100000 };
  static const char *const headers[] = {
      "{\"w\":{\"dtype\":\"F32\",\"shape\":[100000],\"data_offsets\":[0,400000]}}",
      "{\"w\":{\"dtype\":\"F16\",\"shape\":[100000],\"data_offsets\":[0,200000]}}"};
  float *values = test_calloc(N, sizeof *values);
  char *path = mem_printf("%s/cut.safetensors", dir);
  for (int i = 0; i < 2; i++) {
    struct safetensors *file = NULL;
    write_file(path, headers[i], strlen(headers[i]), values, (size_t)(i ? 2 : 4) * N);
    must(safetensors_open(path, &file));
    const struct st_tensor *tensor = &file->tensor[0];
    assert_int_equal(truncate(path, 8192), 0);
    must(safetensors_read(tensor, (struct layout_range){0, 1000}, values));
    must_fail(safetensors_read(tensor, (struct layout_range){0, N}, values), STATUS_INPUT,
              "cut.safetensors ends at byte 8192: it was truncated after it was opened");
    safetensors_close(file);
  }
  mem_free(path);
  test_free(values);
}

TEST(odd_files_are_read)
{
  if (!leads())
    return;
  static const char data[64];
  const struct {
    const char *header;
    size_t data;
    int64_t n;
  } good[] = {
      {"{}", 0, 0},
      {"{}      ", 0, 0},
      {"{\"__metadata__\":{}}", 0, 0},
      {"{\"__metadata__\":null}", 0, 0},
      {" \n{}\n", 0, 0},
      {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"scale\":2}}", 4, 1},
      {"{\"e\":{\"dtype\":\"F32\",\"shape\":[0,9],\"data_offsets\":[0,0]},\"w\":{\"dtype\":\"F32\","
       "\"shape\":[],\"data_offsets\":[0,4]}}",
       4, 2},
      {"{\"b\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[8,10]},\"a\":{\"dtype\":\"I64\","
       "\"shape\":[1,1,1,1,1],\"data_offsets\":[0,8]}}",
       10, 2},
  };
  char *path = mem_printf("%s/odd.safetensors", dir);
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    struct safetensors *file = NULL;
    write_file(path, good[i].header, strlen(good[i].header), data, good[i].data);
    const enum status status = safetensors_open(path, &file);
    assert_string_equal(status ? status_text() : "", "");
    assert_int_equal(file->n, good[i].n);
    safetensors_close(file);
  }
  mem_free(path);
}

/* A good file cut at every length, and with every byte of its header changed: refused, or read
 * within its bounds. */
TEST(every_truncation_is_refused)
{
  if (!leads())
    return;
  char *text = NULL, *path = mem_printf("%s/cut.safetensors", dir),
       *from = mem_printf("%s/model.safetensors", fixture("qwen2-bf16"));
  size_t bytes = 0;
  uint64_t header = 0;
  struct safetensors *file = NULL;
  must(file_read_all(from, 1 << 24, &text, &bytes));
  memcpy(&header, text, 8);
  must(file_write_all(path, text, bytes));
  for (size_t cut = bytes; cut-- > 0;) {
    if (cut > header + 64 && cut % 997)
      continue; /* of the data, some */
    assert_int_equal(truncate(path, (off_t)cut), 0);
    assert_int_equal(safetensors_open(path, &file), STATUS_INPUT);
  }
  for (size_t at = 0; at < header; at += 5) {
    text[at] = (char)(text[at] ^ (1 << at % 7));
    FILE *stream = fopen(path, "w");
    assert_int_equal(fwrite(text, 1, bytes, stream), bytes);
    assert_int_equal(fclose(stream), 0);
    text[at] = (char)(text[at] ^ (1 << at % 7));
    file = NULL;
    if (safetensors_open(path, &file) == STATUS_OK)
      for (int64_t t = 0; t < file->n; t++) {
        const struct st_tensor *tensor = &file->tensor[t];
        assert_in_range(tensor->bytes, 0, bytes);
      }
    safetensors_close(file);
  }
  mem_free(from);
  mem_free(path);
  mem_free(text);
}

/* --- folders ------------------------------------------------------------- */

static void put_file(const char *folder, const char *name, const char *text)
{
  char *path = mem_printf("%s/%s", folder, name);
  must(file_write_all(path, text, strlen(text)));
  mem_free(path);
}

static void put_tensors(const char *folder, const char *name, const char *header, size_t bytes)
{
  static const char data[64];
  char *path = mem_printf("%s/%s", folder, name);
  write_file(path, header, strlen(header), data, bytes);
  mem_free(path);
}

static void refuses_folder(const char *folder, const char *sentence)
{
  struct safetensors_folder *opened = NULL;
  assert_int_equal(safetensors_folder_open(folder, &opened), STATUS_INPUT);
  if (!strstr(status_text(), sentence))
    fail_msg("says: %s\nnot:  %s", status_text(), sentence);
}

TEST(indices_are_held_against_their_files)
{
  if (!leads())
    return;
  static const char *const index = "model.safetensors.index.json";
  char *folder = mem_printf("%s/folder", dir);
  struct safetensors_folder *opened = NULL;
  assert_int_equal(mkdir(folder, 0777), 0);
  refuses_folder(folder, "lacks model.safetensors");
  put_tensors(folder, "x.safetensors",
              "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":"
              "\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
              8);
  put_tensors(folder, "y.safetensors",
              "{\"c\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
  put_file(
      folder, index,
      "{\"weight_map\":{\"a\":\"x.safetensors\",\"c\":\"y.safetensors\",\"b\":\"x.safetensors\"}}");
  must(safetensors_folder_open(folder, &opened));
  assert_int_equal(safetensors_folder_count(opened), 3);
  assert_non_null(strstr(safetensors_folder_find(opened, "c")->file, "y.safetensors"));
  safetensors_folder_close(opened);
  put_file(
      folder, index,
      "{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"x.safetensors\",\"d\":\"y.safetensors\"}}");
  refuses_folder(folder, "weight_map.d is y.safetensors, which holds no such tensor");
  put_file(folder, index, "{\"weight_map\":{\"a\":\"x.safetensors\",\"c\":\"y.safetensors\"}}");
  refuses_folder(folder, "x.safetensors: tensor b is not in the folder's index");
  put_file(
      folder, index,
      "{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"x.safetensors\",\"c\":\"z.safetensors\"}}");
  refuses_folder(folder, "folder lacks z.safetensors, a part of the model: download it");
  put_file(folder, "z.safetensors.part", "");
  refuses_folder(folder,
                 "folder lacks z.safetensors, and its z.safetensors.part is from a download that "
                 "did not finish");
  mem_free(folder);
}

static void check_folder(const char *given, const char *sentence)
{
  static int folders;
  char names[ROWS_LONGEST], *rest, *folder = mem_printf("%s/lacks-%d", dir, folders++);
  assert_int_equal(mkdir(folder, 0777), 0);
  strcpy(names, given);
  for (char *name = strtok_r(names, " ", &rest); name; name = strtok_r(NULL, " ", &rest))
    put_file(folder, name, "");
  const enum status status = safetensors_folder_refuse(folder);
  assert_int_equal(status, strcmp(sentence, "-") ? STATUS_INPUT : STATUS_OK);
  if (status && !strstr(status_text(), sentence))
    fail_msg("says: %s\nnot:  %s", status_text(), sentence);
  mem_free(folder);
}

TEST(a_folder_tells_what_it_lacks)
{
  if (!leads())
    return;
  rows_each("tests/io/huggingface/refused.txt", "folders", check_folder);
  char *folder = mem_printf("%s/linked", dir), *link = mem_printf("%s/model.safetensors", folder);
  assert_int_equal(mkdir(folder, 0777), 0);
  assert_int_equal(symlink("../../blobs/0", link), 0);
  put_file(folder, "config.json", "{}");
  refuses_folder(folder, "model.safetensors is a link to a file that is not there");
  mem_free(link);
  mem_free(folder);
}

TEST(files_outside_the_folder_are_refused)
{
  if (!leads())
    return;
  static const char *const names[] = {"../x.safetensors", "/etc/passwd", "", ".", "..", "a/b"};
  char *folder = mem_printf("%s/outside", dir);
  assert_int_equal(mkdir(folder, 0777), 0);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char text[256];
    snprintf(text, sizeof text, "{\"weight_map\":{\"a\":\"%s\"}}", names[i]);
    put_file(folder, "model.safetensors.index.json", text);
    refuses_folder(folder, "weight_map.a is no name of a file of this folder");
  }
  put_file(folder, "model.safetensors.index.json", "{\"weight_map\":{}}");
  refuses_folder(folder, "has no object weight_map");
  put_file(folder, "model.safetensors.index.json", "{\"weight_map\":{\"a\":1}}");
  refuses_folder(folder, "weight_map.a is a number");
  put_tensors(folder, "x.safetensors",
              "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
  put_tensors(folder, "y.safetensors",
              "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":"
              "\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
              8);
  put_file(folder, "model.safetensors.index.json",
           "{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"y.safetensors\"}}");
  refuses_folder(
      folder, "y.safetensors: tensor a is in this file, but the folder's index says x.safetensors");
  mem_free(folder);
}

int main(int argc, char **argv)
{
  if (comm_create_mpi(&argc, &argv, &job))
    return 1;
  const int failed = test_run(start, stop);
  comm_destroy(job);
  return failed;
}
