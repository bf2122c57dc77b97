/* Damaged, foreign and missing files. Oracle: a file that was changed is refused with a sentence,
 * or gives the data that was saved; it never crashes and never gives other data. */
/* ranks: 1 2 */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/checkpoint/private.h"
#include "io/text/file.h"
#include "job.h"
#include "tests/rows.h"

enum { SEED = 11, STEP = 40, WIDE = 60 };

/* For LeakSanitizer: HDF5 forgets what it has read of an object header when it finds it damaged. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
  return "leak:libhdf5\n";
}

/* Sanitizers make it slow. */
static size_t stride(size_t plain, size_t sanitized)
{
  const char *sanitizer = getenv("SANITIZER");
  return sanitizer && sanitizer[0] && strcmp(sanitizer, "no") != 0 ? sanitized : plain;
}

/* In place of the offset of every dataset, if it is not 0. */
static haddr_t forged_offset;
haddr_t __real_H5Dget_offset(hid_t dataset);
haddr_t __wrap_H5Dget_offset(hid_t dataset);
haddr_t __wrap_H5Dget_offset(hid_t dataset)
{
  return forged_offset ? forged_offset : __real_H5Dget_offset(dataset);
}

/* In place of 0, for forged files. */
static hsize_t stored_if_none;
hsize_t __real_H5Dget_storage_size(hid_t dataset);
hsize_t __wrap_H5Dget_storage_size(hid_t dataset);
hsize_t __wrap_H5Dget_storage_size(hid_t dataset)
{
  const hsize_t stored = __real_H5Dget_storage_size(dataset);
  return stored ? stored : stored_if_none;
}

static struct comm *job;
static char *dir, *good, *bad, *bytes;
static size_t size;

/* All ranks see what rank 0 writes at `at`; at -1, it is the whole file. */
static void write_at(int64_t at, const void *data, size_t n)
{
  everybody_waits();
  if (is_root()) {
    int fd = open(bad, O_WRONLY | O_CREAT | (at < 0 ? O_TRUNC : 0), 0600);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, data, n, at < 0 ? 0 : at), n);
    assert_int_equal(close(fd), 0);
  }
  everybody_waits();
}

static void write_bad(const void *data, size_t n)
{
  write_at(-1, data, n);
}

/* Change one byte of it, which holds all of `bytes`. */
static void poke(size_t at, char value)
{
  write_at((int64_t)at, &value, 1);
}

static enum status load_bad(enum sample_split split, int64_t *wrong)
{
  struct sample sample;
  sample_make(&sample, job, split, 0, SEED, false, false);
  enum status status = checkpoint_load(job, bad, sample.n, sample.tensor, NULL);
  *wrong = sample_wrong(&sample, SEED);
  sample_free(&sample);
  return status;
}

static bool meta_is_right(void)
{
  struct checkpoint_meta meta;
  if (checkpoint_read_meta(job, bad, &meta) != STATUS_OK)
    return status_text()[0] != '\0';
  const bool right = sample_is_meta(&meta, job, STEP, SEED);
  checkpoint_meta_free(&meta);
  return right;
}

/* Returns whether it was refused. */
static bool try_bad(const char *what, size_t at)
{
  int64_t wrong;
  enum status status = load_bad(SPLIT_EVEN, &wrong);
  if (status == STATUS_OK && wrong > 0)
    fail_msg("%s at %zu: %lld wrong bytes were loaded", what, at, (long long)wrong);
  if (status != STATUS_OK && (status != STATUS_INPUT && status != STATUS_IO))
    fail_msg("%s at %zu: status %d: %s", what, at, (int)status, status_text());
  if (status != STATUS_OK && !strstr(status_text(), bad))
    fail_msg("%s at %zu: the sentence does not name the file: %s", what, at, status_text());
  if (!meta_is_right())
    fail_msg("%s at %zu: wrong meta data", what, at);
  return status != STATUS_OK;
}

TEST(flipped_bytes)
{
  size_t refused = 0, tried = 0;
  /* An odd stride, so that all offsets within a word are met. */
  write_bad(bytes, size);
  for (size_t at = 0; at < size; at += comm_ranks(job) == 1 ? stride(61, 487) : stride(607, 4099)) {
    poke(at, (char)(bytes[at] ^ 1 << at % 8));
    refused += try_bad("flip", at);
    poke(at, bytes[at]);
    tried++;
  }
  assert_true(refused > tried / 2); /* the rest: space between objects */
}

TEST(flipped_metadata)
{
  write_bad(bytes, size);
  for (size_t at = 0; at < 600; at += comm_ranks(job) == 1
                                          ? stride(1, 13)
                                          : stride(7, 31)) { /* superblock and the root's header */
    poke(at, (char)~bytes[at]);
    (void)try_bad("inversion", at);
    poke(at, bytes[at]);
  }
}

/* A model of 60 tensors: HDF5 keeps the links of such a group in a fractal heap and a B-tree of
 * several levels, and those of a group of at most 8 in its header. */
static enum status use_wide(struct io_tensor tensor[WIDE], const char *path)
{
  static char name[WIDE][40];
  static float data[WIDE][3];
  for (int t = 0; t < WIDE; t++) {
    snprintf(name[t], sizeof name[t], "transformer.h.%d.mlp.weight", t);
    for (int i = 0; i < 3; i++)
      data[t][i] = path ? 0 : (float)(3 * t + i);
    tensor[t] = (struct io_tensor){.group = "model",
                                   .name = name[t],
                                   .type = DTYPE_F32,
                                   .ndim = 1,
                                   .shape = {3},
                                   .range = {0, 3},
                                   .data = data[t],
                                   .writer = is_root()};
  }
  return path ? checkpoint_load(job, path, WIDE, tensor, NULL) : STATUS_OK;
}

/* One flipped bit in each block of the group's index. */
TEST(flipped_index_blocks)
{
  static const char *const kinds[] = {"BTHD", "BTIN", "BTLF", "FRHP", "FHIB", "FHDB"};
  struct io_tensor tensor[WIDE];
  struct checkpoint_meta meta = {
      .step = STEP + 1, .deck = "run: {steps: 10}\n", .version = "sluice test"};
  char *path = NULL, *wide = NULL;
  size_t wide_size = 0;
  must(use_wide(tensor, NULL));
  must(checkpoint_save(job, dir, &meta, WIDE, tensor, &path));
  must(use_wide(tensor, path));
  assert_true(((float *)tensor[WIDE - 1].data)[2] == 3 * WIDE - 1);
  must(file_read_all(path, 1 << 24, &wide, &wide_size));
  write_bad(wide, wide_size);
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    const char *at = memmem(wide, wide_size, kinds[k], 4);
    assert_non_null(at);
    for (; at; at = memmem(at + 1, wide_size - (size_t)(at + 1 - wide), kinds[k], 4)) {
      const size_t place = (size_t)(at - wide) + 20; /* between signature and checksum */
      poke(place, (char)(wide[place] ^ 1));
      must_fail(checkpoint_verify(job, bad), STATUS_INPUT, "incorrect metadata checksum");
      assert_int_equal(use_wide(tensor, bad), STATUS_INPUT);
      poke(place, wide[place]);
    }
  }
  must(use_wide(tensor, bad)); /* whole again */
  mem_free(path);
  mem_free(wide);
}

TEST(flipped_data_names_the_dataset)
{
  const int64_t usual = checkpoint_piece_bytes;
  struct sample sample;
  write_bad(bytes, size);
  checkpoint_piece_bytes = 1000; /* most tensors are several parts and a rest */
  sample_make(&sample, job, SPLIT_WHOLE, 0, SEED, false, true);
  for (int t = 0; t < sample.n; t++) {
    size_t n = (size_t)sample_elements(&sample.tensor[t]) * dtype_size(sample.tensor[t].type);
    if (n < 6)
      continue;
    char *place = memmem(bytes, size, sample.tensor[t].data, n),
         *name = mem_printf("%s/%s does not match its checksum", sample.tensor[t].group,
                            sample.tensor[t].name);
    assert_non_null(place);
    poke((size_t)(place - bytes) + n - 1, (char)(place[n - 1] ^ 16));
    must_fail(checkpoint_verify(job, bad), STATUS_INPUT, name);
    int64_t wrong;
    must_fail(load_bad(SPLIT_EVEN, &wrong), STATUS_INPUT, name);
    must_fail(load_bad(SPLIT_MIDDLE, &wrong), STATUS_INPUT,
              name); /* in a part that no rank reads */
    poke((size_t)(place - bytes) + n - 1, place[n - 1]);
    must(checkpoint_verify(job, bad));
    mem_free(name);
  }
  checkpoint_piece_bytes = usual;
  sample_free(&sample);
}

/* Each rank checks more than it reads at a time: 16 MiB and an odd rest. */
TEST(tensors_longer_than_a_part_are_checked)
{
  enum { PART = 4 << 20, REST = 5 };
  const int64_t ranks = comm_ranks(job), rank = comm_rank(job), n = ranks * PART + REST;
  const struct layout_range range = {n * rank / ranks, n * (rank + 1) / ranks};
  const struct checkpoint_meta meta = {
      .step = STEP + 2, .deck = "run: {steps: 10}\n", .version = "sluice test"};
  float *data = test_calloc((size_t)(range.end - range.begin), sizeof *data), last[REST];
  for (int64_t i = range.begin; i < range.end; i++)
    data[i - range.begin] = (float)(i % 1000003);
  for (int i = 0; i < REST; i++)
    last[i] = (float)((n - REST + i) % 1000003);
  const struct io_tensor tensor = {.group = "model",
                                   .name = "w",
                                   .type = DTYPE_F32,
                                   .ndim = 1,
                                   .shape = {n},
                                   .range = range,
                                   .data = data,
                                   .writer = true};
  char *path = NULL, *whole = NULL;
  size_t whole_size = 0;
  must(checkpoint_save(job, dir, &meta, 1, &tensor, &path));
  must(checkpoint_verify(job, path));
  must(file_read_all(path, 1 << 27, &whole, &whole_size));
  write_bad(whole, whole_size);
  const char *end = memmem(whole, whole_size, last, sizeof last);
  assert_non_null(end);
  const size_t at = (size_t)(end - whole) + sizeof last - 1;
  poke(at, (char)(whole[at] ^ 1));
  must_fail(checkpoint_verify(job, bad), STATUS_INPUT, "model/w does not match its checksum");
  poke(at, whole[at]);
  must(checkpoint_verify(job, bad));
  mem_free(whole);
  mem_free(path);
  test_free(data);
}

TEST(truncated)
{
  for (size_t length = 0; length < size; length += length < 2048 ? 97 : 1009) {
    write_bad(bytes, length);
    assert_true(try_bad("truncation", length));
  }
  write_bad(bytes, size - 1);
  assert_true(try_bad("truncation", size - 1));
  must_say("truncated");
  char *longer = test_calloc(size + 100, 1);
  memcpy(longer, bytes, size);
  write_bad(longer, size + 100); /* more than there should be is harmless */
  test_free(longer);
  must(checkpoint_verify(job, bad));
}

static void expect(const char *words)
{
  int64_t wrong;
  struct checkpoint_meta meta;
  must_fail(load_bad(SPLIT_EVEN, &wrong), STATUS_INPUT, words);
  must_say(bad);
  must_fail(checkpoint_read_meta(job, bad, &meta), STATUS_INPUT, words);
  must_fail(checkpoint_verify(job, bad), STATUS_INPUT, words);
}

static void check_foreign(const char *given, const char *words)
{
  const struct rows_file file = rows_file(given);
  write_bad(file.content, file.bytes);
  expect(words);
}

TEST(foreign_files)
{
  rows_each("tests/io/checkpoint/untrue.txt", "foreign files", check_foreign);
}

TEST(not_even_a_file)
{
  static const char *const words[] = {"No such file", "it is a folder",
                                      "not a regular file"}; /* does not wait for a writer */
  for (int i = 0; i < 3; i++) {
    if (is_root() && i != 1)
      assert_int_equal(remove(bad), 0);
    if (is_root() && i > 0)
      assert_int_equal(i == 1 ? mkdir(bad, 0700) : mkfifo(bad, 0600), 0);
    everybody_waits();
    expect(words[i]);
    everybody_waits();
  }
  if (is_root())
    assert_int_equal(unlink(bad), 0);
}

TEST(no_permission)
{
  int64_t wrong;
  write_bad(bytes, size);
  if (is_root())
    assert_int_equal(chmod(bad, 0), 0);
  everybody_waits();
  bool root = geteuid() == 0; /* a user that permissions do not restrict */
  if (root && seteuid(65534) != 0)
    skip();
  enum status status = load_bad(SPLIT_EVEN, &wrong);
  if (root)
    assert_int_equal(seteuid(0), 0);
  must_fail(status, STATUS_IO, "ermission");
  everybody_waits();
  if (is_root())
    assert_int_equal(unlink(bad), 0);
}

/* Valid HDF5 that is no checkpoint, or says something untrue: changes of a good file, through HDF5,
 * and the words that tell of it. */

/* Number types by their names in rows. */
static const struct {
  const char *name;
  enum dtype type;
} numbers[] = {{"i32", DTYPE_I32}, {"i64", DTYPE_I64}, {"u32", DTYPE_U32}};

/* "2x3" or "-" for a scalar. */
static hid_t make_space(const char *shape)
{
  hsize_t dims[8];
  int n = 0;
  for (char *at = (char *)shape; *shape != '-' && *at; at += *at == 'x')
    dims[n++] = strtoull(at, &at, 10);
  return n ? H5Screate_simple(n, dims, NULL) : H5Screate(H5S_SCALAR);
}

/* A dataset that hdf5_create_dataset() does not make: TYPE SHAPE, and how it is stored. */
static void make_dataset(hid_t file, const char *name, const char *type_name, const char *shape,
                         const char *storage)
{
  hid_t type = H5Tcopy(!strncmp(type_name, "text", 4) ? H5T_C_S1
                       : !strcmp(type_name, "u8")     ? H5T_STD_U8LE
                       : !strcmp(type_name, "f64big") ? H5T_IEEE_F64BE
                                                      : H5T_IEEE_F64LE),
        space = make_space(shape), creation = H5Pcreate(H5P_DATASET_CREATE);
  if (!strncmp(type_name, "text:", 5))
    H5Tset_size(type, type_name[5] == '*' ? H5T_VARIABLE : strtoull(type_name + 5, NULL, 10));
  if (!strcmp(storage, "chunked"))
    H5Pset_chunk(creation, 1, &(hsize_t){1});
  if (!strcmp(storage, "external"))
    H5Pset_external(creation, "/etc/passwd", 0, 8);
  hid_t dataset = H5Dcreate2(file, name, type, space, H5P_DEFAULT, creation, H5P_DEFAULT);
  assert_true(dataset >= 0);
  H5Dclose(dataset);
  H5Pclose(creation);
  H5Sclose(space);
  H5Tclose(type);
}

/* One change of a good file: VERB NAME ARGUMENTS. An attribute is that of the root or of an object
 * after its value. */
static void change(hid_t file, const char *command)
{
  char verb[16] = "", name[64] = "", value[64] = "", object[64] = "/", more[64] = "";
  sscanf(command, " %15s %63s %63s %63s %63s", verb, name, value, object, more);
  hid_t at = strcmp(verb, "dataset") != 0 ? H5Oopen(file, object, H5P_DEFAULT) : H5I_INVALID_HID,
        made = H5I_INVALID_HID, space = H5I_INVALID_HID;
  herr_t done = 0;
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    if (!strcmp(verb, numbers[i].name))
      must(hdf5_set_number(at, name, numbers[i].type, &(int64_t){strtoll(value, NULL, 10)}));
  if (!strcmp(verb, "text"))
    must(hdf5_set_text(at, name, value));
  else if (!strcmp(verb, "drop"))
    done = H5Adelete(at, name);
  else if (!strcmp(verb, "vector"))
    done = made =
        H5Acreate2(at, name, H5T_STD_U32LE, space = make_space(value), H5P_DEFAULT, H5P_DEFAULT);
  else if (!strcmp(verb, "delete"))
    done = H5Ldelete(file, name, H5P_DEFAULT);
  else if (!strcmp(verb, "move"))
    done = H5Lmove(file, name, file, value, H5P_DEFAULT, H5P_DEFAULT);
  else if (!strcmp(verb, "link"))
    done = H5Lcreate_soft(value, file, name, H5P_DEFAULT, H5P_DEFAULT);
  else if (!strcmp(verb, "outside"))
    done = H5Lcreate_external(value, "/x", file, name, H5P_DEFAULT, H5P_DEFAULT);
  else if (!strcmp(verb, "group"))
    must(hdf5_enter_group(file, name, &made));
  else if (!strcmp(verb, "dataset"))
    make_dataset(file, name, value, object, more);
  else if (!strcmp(verb, "stored"))
    stored_if_none = strtoull(name, NULL, 10);
  else if (!strcmp(verb, "offset"))
    forged_offset = strtoull(name, NULL, 10);
  else
    assert_int_equal(strlen(verb), 3); /* a number */
  assert_true(done >= 0);
  must(hdf5_close(at, hdf5_close(made, hdf5_close(space, STATUS_OK))));
}

/* Applies `given`, changes that semicolons separate, and expects `words`. */
static void expect_untrue(const char *given, const char *words, enum status of_meta)
{
  char commands[ROWS_LONGEST];
  int64_t wrong;
  struct checkpoint_meta meta;
  write_bad(bytes, size);
  if (is_root()) {
    hid_t file;
    must(hdf5_open(bad, true, &file));
    snprintf(commands, sizeof commands, "%s", given);
    for (char *at = strtok(commands, ";"); at; at = strtok(NULL, ";"))
      change(file, at);
    must(hdf5_finish(file, STATUS_OK));
  }
  everybody_waits();
  if (checkpoint_verify(job, bad) != STATUS_INPUT || !strstr(status_text(), words))
    fail_msg("%s: \"%s\" is not in: %s", given, words, status_text());
  must_fail(load_bad(SPLIT_EVEN, &wrong), STATUS_INPUT, words);
  const enum status status = checkpoint_read_meta(job, bad, &meta);
  assert_int_equal(status, of_meta);
  if (!status)
    checkpoint_meta_free(&meta);
  stored_if_none = forged_offset = 0;
}

static void expect_untrue_meta(const char *given, const char *words)
{
  expect_untrue(given, words, STATUS_INPUT);
}

static void expect_untrue_tensors(const char *given, const char *words)
{
  expect_untrue(given, words, STATUS_OK);
}

TEST(untrue_files)
{
  rows_each("tests/io/checkpoint/untrue.txt", "meta data", expect_untrue_meta);
  rows_each("tests/io/checkpoint/untrue.txt", "tensors", expect_untrue_tensors);
}

FIXTURE(start_with_file)
{
  if (start(test_state))
    return -1;
  must(save_to(dir, SPLIT_EVEN, STEP, SEED, false, &good));
  must(file_read_all(good, 1 << 24, &bytes, &size));
  bad = mem_printf("%s/bad.h5", dir);
  return 0;
}

FIXTURE(stop_with_file)
{
  mem_free(good);
  mem_free(bad);
  mem_free(bytes);
  return stop(test_state);
}

TEST_MAIN(start_with_file, stop_with_file)
