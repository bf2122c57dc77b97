/* safetensors. Oracles: files written by transformers, byte for byte; every bit pattern of bf16 and
 * fp16 against the scalar conversions; the format's rules, one by one. */
/* ranks: 1 2 3 */
#include <inttypes.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/huggingface/private.h"
#include "io/text/file.h"
#include "tests/io/checkpoint/job.h"
#include "tests/rows.h"

enum { MOST_TENSORS = 64 };

static const char *fixture(const char *name)
{
  static char path[4096];
  const char *top = getenv("top_srcdir");
  snprintf(path, sizeof path, "%s/tests/model/data/%s", top ? top : ".", name);
  return path;
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
  enum status status =
      safetensors_writer_open(job, to, "model", type, n, shapes, most_bytes, &writer);
  if (status)
    return status;
  float *data = test_malloc((size_t)piece * sizeof *data);
  for (int t = 0; t < n && !status; t++) {
    const struct st_tensor *tensor = safetensors_folder_at(from, t);
    const int64_t begin = tensor->elements * rank / ranks,
                  end = tensor->elements * (rank + 1) / ranks;
    for (int64_t at = begin; at < end && !status; at += piece) {
      const struct layout_range range = {at, at + piece < end ? at + piece : end};
      status =
          safetensors_read(tensor, range, data) ?: safetensors_writer_put(writer, t, range, data);
    }
  }
  test_free(data);
  return safetensors_writer_close(writer, comm_agree(job, status));
}

static struct safetensors_folder *open_folder(const char *path)
{
  struct safetensors_folder *folder = NULL;
  must(safetensors_folder_open(path, &folder));
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
      must(copy(from, to, models[m].type, 1 << 30, piece));
      char *original = mem_printf("%s/model.safetensors", fixture(models[m].name)),
           *index = mem_printf("%s.index.json", written);
      expect_same_files(written, original);
      assert_false(file_exists(index));
      safetensors_folder_close(from);
      mem_free(index);
      mem_free(original);
      mem_free(written);
      mem_free(to);
      everybody_waits();
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
      must(copy(most % 2 ? theirs : whole, to, DTYPE_F32, most, 1000));
      struct safetensors_folder *ours = open_folder(to);
      same_tensors(whole, ours);
      safetensors_folder_close(ours);
      mem_free(to);
      everybody_waits();
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
  if (!is_root())
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
  enum status status =
      safetensors_writer_open(job, dir, "model", type, 1, &shape, 1 << 20, &writer);
  if (status)
    return status;
  status = comm_agree(
      job,
      is_root() ? safetensors_writer_put(writer, 0, (struct layout_range){0, n}, data) : STATUS_OK);
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
  everybody_waits();
  if (is_root())
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
  must(safetensors_writer_open(job, dir, "model", DTYPE_F32, 1, &shape, 1 << 20, &writer));
  assert_int_equal(safetensors_writer_put(writer, 0, (struct layout_range){4, 7}, data),
                   STATUS_INTERNAL);
  if (is_root())
    must(safetensors_writer_put(writer, 0, (struct layout_range){1, 4}, data));
  must_fail(safetensors_writer_close(writer, STATUS_OK), STATUS_INTERNAL,
            "3 of 6 elements"); /* half of it was never written */
  assert_int_equal(safetensors_writer_open(job, "/proc/nowhere", "model", DTYPE_F32, 1, &shape,
                                           1 << 20, &writer),
                   STATUS_IO);
  if (comm_ranks(job) > 1) {
    struct st_shape other = shape;
    other.shape[0] += comm_rank(job);
    assert_int_equal(
        safetensors_writer_open(job, dir, "model", DTYPE_F32, 1, &other, 1 << 20, &writer),
        STATUS_INPUT);
  }
}

/* --- files of strangers -------------------------------------------------- */

/* `given`: the length of the header, or 0 for its own; bytes of data; the header. */
static enum status open_given(const char *given, struct safetensors **file)
{
  static const char data[4096];
  char *path = mem_printf("%s/given.safetensors", dir);
  uint64_t length;
  size_t bytes;
  int at = 0;
  *file = NULL;
  assert_int_equal(sscanf(given, "%" SCNu64 " %zu%n", &length, &bytes, &at), 2);
  at += given[at] == ' ';
  write_file(path, given + at, length ? length : strlen(given + at), data, bytes);
  const enum status status = safetensors_open(path, file);
  mem_free(path);
  return status;
}

static void check_damaged(const char *given, const char *sentence)
{
  struct safetensors *file;
  must_fail(open_given(given, &file), STATUS_INPUT, sentence);
  must_say("given.safetensors");
}

static void check_read(const char *given, const char *tensors)
{
  struct safetensors *file;
  must(open_given(given, &file));
  assert_int_equal(file->n, strtoll(tensors, NULL, 10));
  safetensors_close(file);
}

static void check_start(const char *start, size_t bytes, const char *sentence)
{
  char *path = mem_printf("%s/kind.safetensors", dir);
  struct safetensors *file = NULL;
  must(file_write_all(path, start, bytes));
  must_fail(safetensors_open(path, &file), STATUS_INPUT, sentence);
  must_say("kind.safetensors");
  mem_free(path);
}

/* Files that stand in place of weights after a broken download, or under a wrong name. */
static void check_kind(const char *given, const char *sentence)
{
  const struct rows_file file = rows_file(given);
  check_start(file.content, file.bytes, sentence);
}

TEST(files_are_read_or_refused)
{
  char tar[512] = "model/config.json";
  if (!is_root())
    return;
  rows_each("tests/io/huggingface/refused.txt", "files", check_damaged);
  rows_each("tests/io/huggingface/refused.txt", "read", check_read);
  rows_each("tests/io/huggingface/refused.txt", "kinds", check_kind);
  memcpy(tar + 257, "ustar", 6);
  check_start(tar, sizeof tar, "is a tar archive, not safetensors: unpack it first");
}

/* Another program may overwrite a file while it is read. */
TEST(a_cut_file_is_told)
{
  if (!is_root())
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

/* A good file cut at every length, and with every byte of its header changed: refused, or read
 * within its bounds. */
TEST(every_truncation_is_refused)
{
  if (!is_root())
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
  must_fail(safetensors_folder_open(folder, &opened), STATUS_INPUT, sentence);
}

static char *indexed; /* a folder */

static void check_index(const char *given, const char *sentence)
{
  put_file(indexed, "model.safetensors.index.json", given);
  refuses_folder(indexed, sentence);
}

TEST(indices_are_held_against_their_files)
{
  if (!is_root())
    return;
  struct safetensors_folder *opened = NULL;
  indexed = mem_printf("%s/folder", dir);
  assert_int_equal(mkdir(indexed, 0777), 0);
  refuses_folder(indexed, "lacks model.safetensors");
  put_tensors(indexed, "x.safetensors",
              "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":"
              "\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
              8);
  put_tensors(indexed, "w.safetensors",
              "{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
  put_tensors(indexed, "y.safetensors",
              "{\"c\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
  put_file(
      indexed, "model.safetensors.index.json",
      "{\"weight_map\":{\"a\":\"x.safetensors\",\"c\":\"y.safetensors\",\"b\":\"x.safetensors\"}}");
  must(safetensors_folder_open(indexed, &opened));
  assert_int_equal(safetensors_folder_count(opened), 3);
  assert_non_null(strstr(safetensors_folder_find(opened, "c")->file, "y.safetensors"));
  safetensors_folder_close(opened);
  rows_each("tests/io/huggingface/refused.txt", "indices", check_index);
  put_file(indexed, "z.safetensors.part", "");
  check_index("{\"weight_map\":{\"c\":\"z.safetensors\"}}",
              "folder lacks z.safetensors, and its z.safetensors.part is from a download that did "
              "not finish");
  mem_free(indexed);
}

static void check_folder(const char *given, const char *sentence)
{
  static int folders;
  char names[ROWS_LONGEST], *rest, *folder = mem_printf("%s/lacks-%d", dir, folders++);
  assert_int_equal(mkdir(folder, 0777), 0);
  strcpy(names, given);
  for (char *name = strtok_r(names, " ", &rest); name; name = strtok_r(NULL, " ", &rest))
    put_file(folder, name, "");
  if (strcmp(sentence, "-"))
    must_fail(safetensors_folder_refuse(folder), STATUS_INPUT, sentence);
  else
    must(safetensors_folder_refuse(folder));
  mem_free(folder);
}

TEST(a_folder_tells_what_it_lacks)
{
  if (!is_root())
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

TEST_MAIN(start, stop)
