/* Damaged, foreign and missing files. Oracle: a file that was changed is refused with a sentence,
 * or gives the data that was saved; it never crashes and never gives other data. */
/* ranks: 1 2 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/checkpoint/private.h"
#include "io/text/file.h"
#include "sample.h"
#include "tests/test.h"

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

/* All ranks see the file that rank 0 writes. */
static void write_bad(const void *data, size_t n)
{
  assert_int_equal(comm_barrier(job), STATUS_OK);
  if (comm_rank(job) == 0) {
    int fd = open(bad, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, n), n);
    assert_int_equal(close(fd), 0);
  }
  assert_int_equal(comm_barrier(job), STATUS_OK);
}

/* Change one byte of it, which holds all of `bytes`. */
static void poke(size_t at, char value)
{
  assert_int_equal(comm_barrier(job), STATUS_OK);
  if (comm_rank(job) == 0) {
    int fd = open(bad, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, &value, 1, (off_t)at), 1);
    assert_int_equal(close(fd), 0);
  }
  assert_int_equal(comm_barrier(job), STATUS_OK);
}

static enum status load_bad(bool check, int64_t *wrong)
{
  struct sample sample;
  sample_make(&sample, job, SPLIT_EVEN, 0, SEED, false, false);
  enum status status = checkpoint_load(job, bad, check, sample.n, sample.tensor);
  *wrong = sample_wrong(&sample, SEED);
  sample_free(&sample);
  return status;
}

static bool meta_is_right(void)
{
  struct checkpoint_meta meta;
  if (checkpoint_read_meta(job, bad, &meta) != STATUS_OK)
    return status_text()[0] != '\0';
  bool right = meta.step == STEP && meta.samples == STEP * 8 + SEED && meta.skipped == 1 &&
               meta.ranks == comm_ranks(job) && meta.seed == 0xfedcba9876543210u &&
               strcmp(meta.deck, "run: {steps: 10}\nmodel: {arch: gpt2}\n") == 0 &&
               strcmp(meta.version, "sluice test") == 0;
  checkpoint_meta_free(&meta);
  return right;
}

/* Returns whether it was refused. */
static bool try_bad(const char *what, size_t at)
{
  int64_t wrong;
  enum status status = load_bad(true, &wrong);
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
                                   .writer = comm_rank(job) == 0};
  }
  return path ? checkpoint_load(job, path, true, WIDE, tensor) : STATUS_OK;
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
  assert_int_equal(use_wide(tensor, NULL), STATUS_OK);
  assert_int_equal(checkpoint_save(job, dir, &meta, WIDE, tensor, &path), STATUS_OK);
  assert_int_equal(use_wide(tensor, path), STATUS_OK);
  assert_true(((float *)tensor[WIDE - 1].data)[2] == 3 * WIDE - 1);
  assert_int_equal(file_read_all(path, 1 << 24, &wide, &wide_size), STATUS_OK);
  write_bad(wide, wide_size);
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    const char *at = memmem(wide, wide_size, kinds[k], 4);
    assert_non_null(at);
    for (; at; at = memmem(at + 1, wide_size - (size_t)(at + 1 - wide), kinds[k], 4)) {
      const size_t place = (size_t)(at - wide) + 20; /* between signature and checksum */
      poke(place, (char)(wide[place] ^ 1));
      assert_int_equal(checkpoint_verify(job, bad), STATUS_INPUT);
      assert_non_null(strstr(status_text(), "incorrect metadata checksum"));
      assert_int_equal(use_wide(tensor, bad), STATUS_INPUT);
      poke(place, wide[place]);
    }
  }
  assert_int_equal(use_wide(tensor, bad), STATUS_OK); /* whole again */
  mem_free(path);
  mem_free(wide);
}

TEST(flipped_data_names_the_dataset)
{
  struct sample sample;
  write_bad(bytes, size);
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
    assert_int_equal(checkpoint_verify(job, bad), STATUS_INPUT);
    assert_non_null(strstr(status_text(), name));
    int64_t wrong;
    assert_int_equal(load_bad(true, &wrong), STATUS_INPUT);
    assert_non_null(strstr(status_text(), name));
    assert_int_equal(load_bad(false, &wrong), STATUS_OK); /* unchecked: as it is */
    assert_true(comm_ranks(job) > 1 || wrong == 1);
    poke((size_t)(place - bytes) + n - 1, place[n - 1]);
    mem_free(name);
  }
  sample_free(&sample);
}

/* Each rank checks more than it reads at a time, and an odd rest. */
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
  assert_int_equal(checkpoint_verify(job, bad), STATUS_INPUT);
  assert_non_null(strstr(status_text(), "model/w does not match its checksum"));
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
  assert_non_null(strstr(status_text(), "truncated"));
  char *longer = test_calloc(size + 100, 1);
  memcpy(longer, bytes, size);
  write_bad(longer, size + 100); /* more than there should be is harmless */
  test_free(longer);
  assert_int_equal(checkpoint_verify(job, bad), STATUS_OK);
}

static void expect(const char *words)
{
  int64_t wrong;
  struct checkpoint_meta meta;
  assert_int_equal(load_bad(true, &wrong), STATUS_INPUT);
  if (!strstr(status_text(), words))
    fail_msg("\"%s\" is not in: %s", words, status_text());
  assert_non_null(strstr(status_text(), bad));
  assert_int_equal(checkpoint_read_meta(job, bad, &meta), STATUS_INPUT);
  assert_non_null(strstr(status_text(), words));
  assert_int_equal(checkpoint_verify(job, bad), STATUS_INPUT);
  assert_non_null(strstr(status_text(), words));
}

TEST(foreign_files)
{
  static const struct {
    const char *head;
    size_t n;
    const char *words;
  } files[] = {
      {"", 0, "it is empty (0 bytes)"},
      {"PK\3\4abcdefgh", 12, "looks like a zip archive"},
      {"\x1f\x8b\x08\0\0\0\0\0\0\0", 10, "looks like a file compressed by gzip"},
      {"\x10\0\0\0\0\0\0\0{\"a\":{}}", 16, "looks like a safetensors file"},
      {"\x93NUMPY\1\0", 8, "looks like a NumPy array"},
      {"PAR1\x15\4", 6, "looks like a Parquet file"},
      {"once upon a time\n", 17, "looks like text"},
      {"\0\0\0\0\0\0\0\0\0\0", 10, "looks like zeros"},
      {"\x89HDF", 4, "looks like binary data"},
      {"\x89HDF\r\n\x1a\n", 8, "truncated or damaged"},
  };
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
    write_bad(files[i].head, files[i].n);
    expect(files[i].words);
  }
}

TEST(not_even_a_file)
{
  bool first = comm_rank(job) == 0;
  if (first)
    assert_int_equal(unlink(bad), 0);
  assert_int_equal(comm_barrier(job), STATUS_OK);
  expect("No such file");
  assert_int_equal(comm_barrier(job), STATUS_OK);
  if (first)
    assert_int_equal(mkdir(bad, 0700), 0);
  assert_int_equal(comm_barrier(job), STATUS_OK);
  expect("it is a folder");
  assert_int_equal(comm_barrier(job), STATUS_OK);
  if (first) {
    assert_int_equal(rmdir(bad), 0);
    assert_int_equal(mkfifo(bad, 0600), 0);
  }
  assert_int_equal(comm_barrier(job), STATUS_OK);
  expect("not a regular file"); /* and it does not wait for a writer */
  assert_int_equal(comm_barrier(job), STATUS_OK);
  if (first)
    assert_int_equal(unlink(bad), 0);
}

TEST(no_permission)
{
  int64_t wrong;
  write_bad(bytes, size);
  if (comm_rank(job) == 0)
    assert_int_equal(chmod(bad, 0), 0);
  assert_int_equal(comm_barrier(job), STATUS_OK);
  bool root = geteuid() == 0; /* a user that permissions do not restrict */
  if (root && seteuid(65534) != 0) {
    skip();
  }
  enum status status = load_bad(true, &wrong);
  if (root)
    assert_int_equal(seteuid(0), 0);
  assert_int_equal(status, STATUS_IO);
  assert_non_null(strstr(status_text(), "ermission"));
  assert_int_equal(comm_barrier(job), STATUS_OK);
  if (comm_rank(job) == 0)
    assert_int_equal(unlink(bad), 0);
}

/* Valid HDF5 that is no checkpoint, or says something untrue: each change of a good file, through
 * HDF5, and the words that tell of it. */

static void put_number(hid_t object, const char *name, enum dtype type, int64_t value)
{
  int32_t narrow = (int32_t)value;
  assert_int_equal(
      hdf5_set_number(object, name, type, type == DTYPE_I32 ? (const void *)&narrow : &value),
      STATUS_OK);
}

static void change_format(hid_t file)
{
  assert_true(H5Adelete(file, "format") >= 0);
  assert_int_equal(hdf5_set_text(file, "format", "sluice-tokens"), STATUS_OK);
}
static void drop_format(hid_t file)
{
  assert_true(H5Adelete(file, "format") >= 0);
}
static void change_version(hid_t file)
{
  put_number(file, "format_version", DTYPE_I32, 2);
}
static void drop_version(hid_t file)
{
  assert_true(H5Adelete(file, "format_version") >= 0);
}
static void wide_version(hid_t file)
{
  drop_version(file);
  put_number(file, "format_version", DTYPE_I64, 1);
}
static void unmark(hid_t file)
{
  put_number(file, "complete", DTYPE_I32, 0);
}
static void negative_step(hid_t file)
{
  put_number(file, "step", DTYPE_I64, -1);
}
static void skipped_more(hid_t file)
{
  put_number(file, "skipped", DTYPE_I64, STEP + 1);
}
static void far_samples(hid_t file)
{
  put_number(file, "samples", DTYPE_I64, INT64_C(1) << 62);
}
static void no_ranks(hid_t file)
{
  put_number(file, "ranks", DTYPE_I64, 0);
}
static void far_ranks(hid_t file)
{
  put_number(file, "ranks", DTYPE_I64, INT64_C(1) << 31);
}
static void odd_nodes(hid_t file)
{
  put_number(file, "local_ranks", DTYPE_I64, 7);
}
static void empty_nodes(hid_t file)
{
  put_number(file, "local_ranks", DTYPE_I64, 0);
}
static void odd_compute(hid_t file)
{
  assert_int_equal(hdf5_set_text(file, "compute", "fp7\033[2J"), STATUS_OK);
}
static void odd_tokenizer(hid_t file)
{
  assert_int_equal(hdf5_set_text(file, "tokenizer", "byte"), STATUS_OK);
}
static void negative_vocabulary(hid_t file)
{
  put_number(file, "tokenizer_vocab", DTYPE_I64, -5);
}
static void far_vocabulary(hid_t file)
{
  put_number(file, "tokenizer_vocab", DTYPE_I64, INT64_MAX);
}
static void negative_tokens(hid_t file)
{
  put_number(file, "data_tokens", DTYPE_I64, -1);
}
static void other_residuals(hid_t file)
{
  struct hdf5_dataset dataset;
  hid_t group;
  assert_int_equal(hdf5_create_group(file, "residual", &group), STATUS_OK);
  assert_int_equal(
      hdf5_create_dataset(group, "h.0", DTYPE_U8, 2, (const int64_t[]){9, 3}, &dataset), STATUS_OK);
  put_number(dataset.id, "crc32", DTYPE_U32, 0);
  put_number(dataset.id, "elements", DTYPE_I64, 27);
  assert_int_equal(hdf5_close(group, hdf5_close(dataset.id, STATUS_OK)), STATUS_OK);
  put_number(file, "tensors", DTYPE_I64, 13);
}
static void drop_seed(hid_t file)
{
  assert_true(H5Adelete(file, "seed") >= 0);
}
static void one_tensor_more(hid_t file)
{
  put_number(file, "tensors", DTYPE_I64, 13);
}
static void drop_tensor(hid_t file)
{
  assert_true(H5Ldelete(file, "model/one", H5P_DEFAULT) >= 0);
}
static void drop_deck(hid_t file)
{
  assert_true(H5Ldelete(file, "deck", H5P_DEFAULT) >= 0);
}

static void open_one(hid_t file, const char *name, struct hdf5_dataset *dataset)
{
  assert_int_equal(hdf5_open_dataset(file, name, dataset), STATUS_OK);
}

static void wrong_elements(hid_t file)
{
  struct hdf5_dataset dataset;
  open_one(file, "model/cube", &dataset);
  put_number(dataset.id, "elements", DTYPE_I64, 106);
  assert_int_equal(hdf5_close(dataset.id, STATUS_OK), STATUS_OK);
}

static void no_crc(hid_t file)
{
  struct hdf5_dataset dataset;
  open_one(file, "model/cube", &dataset);
  assert_true(H5Adelete(dataset.id, "crc32") >= 0);
  assert_int_equal(hdf5_close(dataset.id, STATUS_OK), STATUS_OK);
}

static void vector_crc(hid_t file)
{
  struct hdf5_dataset dataset;
  no_crc(file);
  open_one(file, "model/cube", &dataset);
  hid_t space = H5Screate_simple(1, &(hsize_t){3}, NULL),
        attribute = H5Acreate2(dataset.id, "crc32", H5T_STD_U32LE, space, H5P_DEFAULT, H5P_DEFAULT);
  assert_true(attribute >= 0);
  H5Aclose(attribute);
  H5Sclose(space);
  assert_int_equal(hdf5_close(dataset.id, STATUS_OK), STATUS_OK);
}

static void dangling_link(hid_t file)
{
  assert_true(H5Lcreate_soft("/nowhere", file, "model/link", H5P_DEFAULT, H5P_DEFAULT) >= 0);
}

static void outside_link(hid_t file)
{
  assert_true(
      H5Lcreate_external("/etc/passwd", "/x", file, "model/link", H5P_DEFAULT, H5P_DEFAULT) >= 0);
}

static void linked_group(hid_t file)
{
  assert_true(H5Lcreate_soft("/model", file, "alias", H5P_DEFAULT, H5P_DEFAULT) >= 0);
}

static void control_in_name(hid_t file)
{
  assert_true(H5Lmove(file, "model/one", file, "model/o\033[2Jne", H5P_DEFAULT, H5P_DEFAULT) >= 0);
}

static void control_in_group(hid_t file)
{
  assert_true(H5Lmove(file, "exp_avg", file, "exp\302\233avg", H5P_DEFAULT, H5P_DEFAULT) >= 0);
}

static void group_for_tensor(hid_t file)
{
  hid_t group;
  assert_int_equal(hdf5_create_group(file, "model/inner", &group), STATUS_OK);
  assert_int_equal(hdf5_close(group, STATUS_OK), STATUS_OK);
}

/* A dataset of another kind in the place of model/one. */
static void replace_one(hid_t file, hid_t type, int ndim, const hsize_t *dims, hid_t creation)
{
  hid_t space = ndim < 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(ndim, dims, NULL);
  drop_tensor(file);
  hid_t dataset = H5Dcreate2(file, "model/one", type, space, H5P_DEFAULT, creation, H5P_DEFAULT);
  assert_true(dataset >= 0);
  H5Sclose(space);
  H5Dclose(dataset);
}

static void chunked(hid_t file)
{
  hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_chunk(creation, 1, &(hsize_t){1});
  replace_one(file, H5T_IEEE_F64LE, 1, &(hsize_t){1}, creation);
  H5Pclose(creation);
}

static void external_storage(hid_t file)
{
  hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_external(creation, "/etc/passwd", 0, 8);
  replace_one(file, H5T_IEEE_F64LE, 1, &(hsize_t){1}, creation);
  H5Pclose(creation);
}

static void unallocated(hid_t file)
{
  replace_one(file, H5T_IEEE_F64LE, 1, &(hsize_t){1}, H5P_DEFAULT);
}
static void scalar_tensor(hid_t file)
{
  replace_one(file, H5T_IEEE_F64LE, -1, NULL, H5P_DEFAULT);
}
static void five_dimensions(hid_t file)
{
  replace_one(file, H5T_IEEE_F64LE, 5, (hsize_t[]){1, 1, 1, 1, 1}, H5P_DEFAULT);
}
static void no_elements(hid_t file)
{
  replace_one(file, H5T_IEEE_F64LE, 1, &(hsize_t){0}, H5P_DEFAULT);
}
static void huge(hid_t file)
{
  replace_one(file, H5T_IEEE_F64LE, 2, (hsize_t[]){(hsize_t)1 << 40, (hsize_t)1 << 40},
              H5P_DEFAULT);
}
/* Two tensors of 2^62 bytes each, of which a forged file says that they are stored. */
static void huge_together(hid_t file)
{
  const hsize_t dims[] = {(hsize_t)1 << 30, (hsize_t)1 << 29};
  replace_one(file, H5T_IEEE_F64LE, 2, dims, H5P_DEFAULT);
  assert_true(H5Lmove(file, "model/one", file, "model/two", H5P_DEFAULT, H5P_DEFAULT) >= 0);
  hid_t space = H5Screate_simple(2, dims, NULL),
        one = H5Dcreate2(file, "model/one", H5T_IEEE_F64LE, space, H5P_DEFAULT, H5P_DEFAULT,
                         H5P_DEFAULT),
        two = H5Dopen2(file, "model/two", H5P_DEFAULT);
  for (int i = 0; i < 2; i++) {
    put_number(i ? two : one, "elements", DTYPE_I64, INT64_C(1) << 59);
    assert_int_equal(hdf5_set_number(i ? two : one, "crc32", DTYPE_U32, &(uint32_t){0}), STATUS_OK);
  }
  H5Sclose(space);
  H5Dclose(one);
  H5Dclose(two);
  put_number(file, "tensors", DTYPE_I64, 13);
  stored_if_none = (hsize_t)1 << 62;
}
static void big_endian(hid_t file)
{
  replace_one(file, H5T_IEEE_F64BE, 1, &(hsize_t){1}, H5P_DEFAULT);
}
static void text_tensor(hid_t file)
{
  replace_one(file, H5T_C_S1, 1, &(hsize_t){1}, H5P_DEFAULT);
}

static void variable_deck(hid_t file)
{
  hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
  H5Tset_size(type, H5T_VARIABLE);
  drop_deck(file);
  hid_t dataset = H5Dcreate2(file, "deck", type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  assert_true(dataset >= 0);
  H5Dclose(dataset);
  H5Sclose(space);
  H5Tclose(type);
}

static void long_deck(hid_t file)
{
  hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
  H5Tset_size(type, (size_t)1 << 27);
  drop_deck(file);
  hid_t dataset = H5Dcreate2(file, "deck", type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  assert_true(dataset >= 0);
  H5Dclose(dataset);
  H5Sclose(space);
  H5Tclose(type);
}

static const struct {
  void (*change)(hid_t file);
  const char *words;
  bool meta;
} changes[] = {
    {change_format, "HDF5 file of format \"sluice-tokens\"", true},
    {drop_format, "an HDF5 file but not a Sluice checkpoint", true},
    {change_version, "format version 2; this Sluice reads version 3", true},
    {drop_version, "the attribute format_version is missing", true},
    {wide_version, "the attribute format_version is not of type int32", true},
    {unmark, "it is incomplete", true},
    {negative_step, "step -1", true},
    {skipped_more,
     "it says that 41 steps were skipped, which is more than the 40 steps that it has", true},
    {far_samples,
     "it says that 4611686018427387904 samples were seen; fewer than 2^62 are possible", true},
    {no_ranks, "it says that 0 ranks wrote it", true},
    {far_ranks, "it says that 2147483648 ranks wrote it", true},
    {odd_nodes, "it says that nodes had 7 ranks each", true},
    {empty_nodes, "it says that nodes had 0 ranks each", true},
    {odd_compute, "it says that it was computed in 'fp7?[2J', and not fp32", true},
    {odd_tokenizer, "it says that its tokenizer is 'byte', and not bytes, gpt2 or json", true},
    {negative_vocabulary, "it says that its tokenizer has -5 tokens", true},
    {far_vocabulary, "it says that its tokenizer has 9223372036854775807 tokens", true},
    {negative_tokens, "it says that its tokenizer has 300 tokens, and its data -1", true},
    {other_residuals, "dataset residual/h.0 has rows of 9 ranks, and it says that", false},
    {drop_seed, "the attribute seed is missing", true},
    {drop_deck, "there is no dataset deck", true},
    {variable_deck, "deck is not text of fixed length", true},
    {long_deck, "deck is text of 134217728 bytes", true},
    {one_tensor_more, "it holds 12 tensors and says that it has 13", false},
    {drop_tensor, "it holds 11 tensors and says that it has 12", false},
    {wrong_elements, "dataset cube has 105 elements and says that it has 106", false},
    {no_crc, "the attribute crc32 is missing", false},
    {vector_crc, "the attribute crc32 is not one value", false},
    {dangling_link, "link is a link to elsewhere", false},
    {outside_link, "link is a link to elsewhere", false},
    {linked_group, "alias is a link to elsewhere", false},
    {control_in_name, "the name of dataset o?[2Jne holds control characters", false},
    {control_in_group, "the name of group exp?avg holds control characters", false},
    {group_for_tensor, "inner is not a dataset", false},
    {chunked, "one is not stored contiguously", false},
    {external_storage, "one is not stored contiguously", false},
    {unallocated, "one stores 0 bytes; its shape and type need 8", false},
    {scalar_tensor, "one has 0 dimensions", false},
    {five_dimensions, "one has 5 dimensions", false},
    {no_elements, "dimension 0 of one is 0", false},
    {huge, "one: ", false},
    {huge_together, "its tensors have more than 2^63 bytes", false},
    {big_endian, "one has a number type that Sluice does not write", false},
    {text_tensor, "one has a number type that Sluice does not write", false},
};

TEST(untrue_files)
{
  for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
    int64_t wrong;
    struct checkpoint_meta meta;
    write_bad(bytes, size);
    if (comm_rank(job) == 0) {
      hid_t file;
      assert_int_equal(hdf5_open(bad, true, &file), STATUS_OK);
      changes[i].change(file);
      assert_int_equal(hdf5_finish(file, STATUS_OK), STATUS_OK);
    }
    assert_int_equal(comm_barrier(job), STATUS_OK);
    enum status verified = checkpoint_verify(job, bad);
    if (verified != STATUS_INPUT || !strstr(status_text(), changes[i].words))
      fail_msg("change %zu: \"%s\" is not in: %s", i, changes[i].words, status_text());
    assert_int_equal(load_bad(true, &wrong), STATUS_INPUT);
    assert_non_null(strstr(status_text(), changes[i].words));
    enum status status = checkpoint_read_meta(job, bad, &meta);
    assert_int_equal(status, changes[i].meta ? STATUS_INPUT : STATUS_OK);
    if (status == STATUS_OK)
      checkpoint_meta_free(&meta);
    stored_if_none = 0;
  }
}

FIXTURE(start)
{
  struct sample sample;
  if (comm_create_mpi(NULL, NULL, &job) != STATUS_OK)
    return -1;
  dir = sample_folder(job);
  sample_make(&sample, job, SPLIT_EVEN, STEP, SEED, false, true);
  enum status status = checkpoint_save(job, dir, &sample.meta, sample.n, sample.tensor, &good);
  sample_free(&sample);
  if (status != STATUS_OK || file_read_all(good, 1 << 24, &bytes, &size) != STATUS_OK)
    return -1;
  bad = mem_printf("%s/bad.h5", dir);
  return 0;
}

FIXTURE(stop)
{
  mem_free(good);
  mem_free(bad);
  mem_free(bytes);
  sample_folder_remove(job, dir);
  comm_destroy(job);
  return 0;
}

TEST_MAIN(start, stop)
