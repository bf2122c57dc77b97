/* Saving and loading. Oracles: the bytes of a function of (tensor, position). Plain serial HDF5
 * calls read the file. zlib computes the CRC-32 of whole tensors. All distributions of the tensors
 * over ranks give the same file, bit by bit. */
/* ranks: 1 2 3 4 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <zlib.h>

#include <hdf5.h>

#include "base/mem.h"
#include "io/checkpoint/private.h"
#include "io/text/file.h"
#include "io/text/scratch.h"
#include "job.h"

static int64_t syncs; /* of this process */

int fsync(int fd)
{
  syncs++;
  return (int)syscall(SYS_fsync, fd);
}

static bool refused;       /* opening an unfinished file to write to it, on this rank */
static int opened, parsed; /* by this rank: files and folders of checkpoints; files, with HDF5 */

int __wrap_open(const char *path, int flags, ...);
int __real_open(const char *path, int flags, mode_t mode);
hid_t __wrap_H5Fopen(const char *path, unsigned flags, hid_t access);
hid_t __real_H5Fopen(const char *path, unsigned flags, hid_t access);
hid_t __wrap_H5Fcreate(const char *path, unsigned flags, hid_t creation, hid_t access);
hid_t __real_H5Fcreate(const char *path, unsigned flags, hid_t creation, hid_t access);

int __wrap_open(const char *path, int flags, ...)
{
  opened += !strncmp(path, dir, strlen(dir)) || !strncmp(path, "/proc/self/fd/", 14);
  errno = EACCES;
  return refused && strstr(path, ".tmp-") && (flags & O_ACCMODE) == O_RDWR
             ? -1
             : __real_open(path, flags, 0666);
}

hid_t __wrap_H5Fopen(const char *path, unsigned flags, hid_t access)
{
  parsed++;
  return __real_H5Fopen(path, flags, access);
}

hid_t __wrap_H5Fcreate(const char *path, unsigned flags, hid_t creation, hid_t access)
{
  parsed++;
  return __real_H5Fcreate(path, flags, creation, access);
}

/* Number of scratch folders; *one (mem_free): one of them. */
static int unfinished(char **one)
{
  int n = 0, length;
  DIR *folder = opendir(dir);
  assert_non_null(folder);
  for (struct dirent *entry; (entry = readdir(folder));)
    if (scratch_parse(entry->d_name, &length) && n++ == 0 && one)
      *one = mem_printf("%s/%s", dir, entry->d_name);
  closedir(folder);
  return n;
}

static char *save(enum sample_split split, int64_t step, int seed, bool big)
{
  char *path = NULL;
  must(save_to(dir, split, step, seed, big, &path));
  return path;
}

static void expect_loaded(const char *path, enum sample_split split, int seed, bool big)
{
  struct sample sample;
  sample_make(&sample, job, split, 0, seed, big, false);
  must(checkpoint_load(job, path, sample.n, sample.tensor, NULL));
  assert_int_equal(sample_wrong(&sample, seed), 0);
  sample_free(&sample);
}

/* On the last rank only. No rank waits for it, and the next save succeeds. */
TEST(an_open_that_fails_on_one_rank)
{
  struct sample sample;
  char *path = mem_printf("%s/refused.h5", dir);
  char rank[32] = "";
  snprintf(rank, sizeof rank, comm_ranks(job) > 1 ? "rank %d: " : "", comm_ranks(job) - 1);
  sample_make(&sample, job, SPLIT_EVEN, 10, 7, false, true);
  for (int turn = 0; turn < 2; turn++) {
    refused = turn == 0 && comm_rank(job) == comm_ranks(job) - 1;
    alarm(60); /* a save that waits is ended */
    enum status status = checkpoint_write(job, path, &sample.meta, sample.n, sample.tensor);
    alarm(0);
    refused = false;
    assert_int_equal(status == STATUS_OK, turn == 1);
    assert_true(turn == 1 || strstr(status_text(), "refused.h5 was not written: "));
    assert_true(turn == 1 || strstr(status_text(), rank));
    assert_true(turn == 1 || strstr(status_text(), strerror(EACCES)));
    must(comm_agree(job, STATUS_OK)); /* rank 0 has removed its folder */
    assert_int_equal(unfinished(NULL), 0);
    must(comm_agree(job, STATUS_OK)); /* all have looked */
  }
  sample_free(&sample);
  if (is_root())
    assert_int_equal(unlink(path), 0);
  mem_free(path);
}

/* So of 1,024 ranks 1,023 open three paths to save and load, and read no metadata. */
TEST(only_rank_0_reads_metadata)
{
  opened = parsed = 0;
  char *path = save(SPLIT_EVEN, 20, 7, true);
  const int to_save = opened;
  assert_int_equal(parsed, is_root() ? 2 : 0);
  assert_true(is_root() || to_save == 2); /* the scratch folder and the file */
  expect_loaded(path, SPLIT_UNEVEN, 7, true);
  assert_int_equal(parsed, is_root() ? 3 : 0);
  assert_true(is_root() || opened == to_save + 1);
  mem_free(path);
}

static enum checkpoint_phase swapped_in;
static bool by_folder;
static char *victim_dir;

/* Another user of the group, who may rename in the folder: the scratch folder gives its name to a
 * link, or to a folder with a link. */
static void swap(enum checkpoint_phase phase)
{
  if (phase != swapped_in || comm_rank(job) != 0)
    return;
  char *folder = NULL, *away = mem_printf("%s/away", victim_dir);
  assert_int_equal(unfinished(&folder), 1);
  char *planted = mem_printf("%s%s", victim_dir, strrchr(folder, '/')),
       *victim = mem_printf("%s/victim", victim_dir);
  assert_int_equal(rename(folder, away), 0);
  if (by_folder) {
    assert_int_equal(mkdir(folder, 0755), 0);
    mem_free(planted);
    planted = mem_printf("%s%s", folder, strrchr(folder, '/'));
  } else {
    assert_int_equal(symlink(victim_dir, folder), 0);
  }
  assert_int_equal(symlink(victim, planted), 0);
  mem_free(planted);
  mem_free(victim);
  mem_free(folder);
  mem_free(away);
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *place)
{
  (void)info, (void)type;
  return place->level > 0 ? remove(path) : 0;
}

/* The save ends well or with a sentence; the file behind the link stays as it is, and the next save
 * succeeds. */
TEST(a_link_that_is_swapped_in_is_not_followed)
{
  char *whole = dir, *text = NULL, *victim;
  size_t bytes;
  struct sample sample;
  dir = mem_printf("%s/group", whole);
  victim_dir = mem_printf("%s/victims", whole);
  victim = mem_printf("%s/victim", victim_dir);
  sample_make(&sample, job, SPLIT_EVEN, 10, 7, false, true);
  for (int i = 0; i < 8; i++) {
    static const enum checkpoint_phase phases[] = {CHECKPOINT_BEGUN, CHECKPOINT_LAID_OUT,
                                                   CHECKPOINT_OPENED, CHECKPOINT_COMPLETED};
    swapped_in = phases[i / 2];
    by_folder = i % 2 == 1;
    if (is_root()) {
      assert_int_equal(file_make_folders(dir) || file_make_folders(victim_dir), 0);
      must(file_write_all(victim, "key", 3));
    }
    everybody_waits();
    checkpoint_test_hook = swap;
    const enum status status =
        checkpoint_save(job, dir, &sample.meta, sample.n, sample.tensor, NULL);
    checkpoint_test_hook = NULL;
    if (status && !strstr(status_text(), "another user has replaced "))
      fail_msg("case %d: %s", i, status_text());
    assert_true(!status || comm_ranks(job) > 1); /* one rank has it open */
    must(file_read_all(victim, 10, &text, &bytes));
    assert_string_equal(text, "key");
    mem_free(text);
    everybody_waits();
    mem_free(save(SPLIT_EVEN, 20, 7, false));
    if (is_root())
      assert_int_equal(nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS) +
                           nftw(victim_dir, remove_one, 16, FTW_DEPTH | FTW_PHYS),
                       0);
  }
  if (is_root())
    assert_int_equal(rmdir(dir) + rmdir(victim_dir), 0);
  everybody_waits();
  sample_free(&sample);
  mem_free(victim);
  mem_free(victim_dir);
  mem_free(dir);
  dir = whole;
}

TEST(every_split_is_read_by_every_split)
{
  for (int from = 0; from <= SPLIT_WHOLE; from++) {
    char *path = save((enum sample_split)from, 100 + from, 7, false);
    for (int to = 0; to < SPLIT_COUNT; to++)
      expect_loaded(path, (enum sample_split)to, 7, false);
    mem_free(path);
  }
}

/* A name that the next save does not replace. */
static char *save_aside(enum sample_split split, int64_t step, int seed)
{
  char *path = save(split, step, seed, true), *aside = mem_printf("%s/aside.h5", dir);
  if (is_root())
    assert_int_equal(rename(path, aside), 0);
  everybody_waits();
  mem_free(path);
  return aside;
}

/* Nor on the nodes and blocks, also if a block begins inside an element. */
TEST(the_file_does_not_depend_on_the_split)
{
  static const int64_t blocks[] = {4 << 20, 4 << 20, 10007}; /* on one node and on several */
  const int64_t usual = checkpoint_piece_bytes;
  char *first = save_aside(SPLIT_EVEN, 200, 3);
  for (int split = 0; split <= SPLIT_WHOLE; split++)
    for (int i = 0; i < 3; i++) {
      checkpoint_piece_bytes = blocks[i];
      part_nodes(i > 0);
      char *path = save((enum sample_split)split, 200, 3, true);
      part_nodes(false);
      checkpoint_piece_bytes = usual;
      expect_same_files(path, first);
      mem_free(path);
      everybody_waits();
    }
  mem_free(first);
}

/* Blocks of a few elements, which have bytes of nearly all ranks. */
TEST(small_blocks_change_nothing)
{
  const int64_t usual = checkpoint_piece_bytes;
  for (int bytes = 8; bytes < 100; bytes += 31) {
    checkpoint_piece_bytes = bytes;
    part_nodes(true);
    char *path = save(SPLIT_UNEVEN, 210, 3, false);
    part_nodes(false);
    checkpoint_piece_bytes = usual;
    expect_loaded(path, SPLIT_WHOLE, 3, false);
    mem_free(path);
  }
}

/* No code of Sluice reads here. */
static void check_tensor_with_plain_hdf5(hid_t file, const struct io_tensor *tensor, int t,
                                         int seed)
{
  char name[256];
  hsize_t dims[LAYOUT_MAX_DIMS];
  uint32_t crc;
  int64_t elements;
  snprintf(name, sizeof name, "/%s/%s", tensor->group, tensor->name);
  hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT), space = H5Dget_space(dataset),
        type = H5Dget_type(dataset);
  assert_true(dataset >= 0);
  assert_int_equal(H5Sget_simple_extent_ndims(space), tensor->ndim);
  H5Sget_simple_extent_dims(space, dims, NULL);
  for (int d = 0; d < tensor->ndim; d++)
    assert_int_equal(dims[d], tensor->shape[d]);
  size_t bytes = (size_t)sample_elements(tensor) * dtype_size(tensor->type);
  assert_int_equal(H5Tget_size(type), dtype_size(tensor->type));
  unsigned char *data = test_malloc(bytes), *expected = test_malloc(bytes);
  assert_true(H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0);
  for (size_t i = 0; i < bytes; i++)
    expected[i] = sample_byte(seed, t, (int64_t)i);
  assert_memory_equal(data, expected, bytes);
  hid_t attribute = H5Aopen(dataset, "crc32", H5P_DEFAULT),
        count = H5Aopen(dataset, "elements", H5P_DEFAULT);
  assert_true(H5Aread(attribute, H5T_NATIVE_UINT32, &crc) >= 0);
  assert_true(H5Aread(count, H5T_NATIVE_INT64, &elements) >= 0);
  assert_int_equal(crc, crc32(0, expected, (uInt)bytes));
  assert_int_equal(elements, sample_elements(tensor));
  test_free(data);
  test_free(expected);
  H5Aclose(attribute);
  H5Aclose(count);
  H5Tclose(type);
  H5Sclose(space);
  H5Dclose(dataset);
}

TEST(plain_hdf5_sees_true_tensors)
{
  char *path = save(SPLIT_UNEVEN, 300, 5, true);
  if (is_root()) {
    struct sample sample;
    struct {
      const char *name;
      int64_t value;
    } numbers[] = {{"format_version", 3},     {"complete", 1}, {"step", 300},
                   {"samples", 2405},         {"skipped", 1},  {"tensors", 13},
                   {"ranks", comm_ranks(job)}};
    sample_make(&sample, job, SPLIT_EVEN, 300, 5, true, false);
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    for (int t = 0; t < sample.n; t++)
      check_tensor_with_plain_hdf5(file, &sample.tensor[t], t, 5);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
      int64_t value;
      hid_t attribute = H5Aopen(file, numbers[i].name, H5P_DEFAULT);
      assert_true(H5Aread(attribute, H5T_NATIVE_INT64, &value) >= 0);
      assert_int_equal(value, numbers[i].value);
      H5Aclose(attribute);
    }
    H5Fclose(file);
    sample_free(&sample);
  }
  everybody_waits();
  mem_free(path);
}

TEST(h5dump_shows_names_and_shapes)
{
  char *path = save(SPLIT_EVEN, 400, 1, false), *command = NULL, line[512], all[8192] = "";
  if (comm_ranks(job) > 1 ||
      system("command -v h5dump >/dev/null") != 0) { /* forking is for a job of one */
    mem_free(path);
    if (comm_ranks(job) == 1 && getenv("SLUICE_TEST_STRICT")) /* see tests/need.sh */
      fail_msg("there is no h5dump");
    skip();
  }
  command = mem_printf("h5dump -H -d /model/transformer.wte.weight %s", path);
  FILE *dump = popen(command, "r");
  assert_non_null(dump);
  while (fgets(line, sizeof line, dump))
    strncat(all, line, sizeof all - strlen(all) - 1);
  assert_int_equal(pclose(dump), 0);
  assert_non_null(strstr(all, "H5T_IEEE_F32LE"));
  assert_non_null(strstr(all, "( 97, 31 )"));
  assert_non_null(strstr(all, "crc32"));
  mem_free(command);
  mem_free(path);
}

TEST(meta_data_comes_back_on_all_ranks)
{
  struct checkpoint_meta meta;
  char *path = save(SPLIT_EVEN, 500, 2, false);
  must(checkpoint_read_meta(job, path, &meta));
  assert_true(sample_is_meta(&meta, job, 500, 2));
  checkpoint_meta_free(&meta);
  mem_free(path);
}

/* Saves with *limit as it is and as `bytes`, which it stays. Both files must be equal. */
static char *save_with(int64_t *limit, int64_t bytes, int64_t step)
{
  char *usual = save_aside(SPLIT_UNEVEN, step, 9);
  *limit = bytes;
  char *path = save(SPLIT_UNEVEN, step, 9, true);
  expect_same_files(path, usual);
  mem_free(usual);
  return path;
}

/* Data in memory that take several calls give the same file, and come back. */
TEST(several_calls_change_nothing)
{
  const int64_t usual = checkpoint_piece_bytes;
  char *path = save_with(&checkpoint_piece_bytes, 1003, 610); /* a multiple of no type's size */
  for (int to = 0; to < SPLIT_COUNT; to++)
    expect_loaded(path, (enum sample_split)to, 9, true);
  checkpoint_piece_bytes = usual;
  mem_free(path);
}

TEST(a_group_alone_can_be_loaded)
{
  struct sample sample;
  struct io_tensor chosen[SAMPLE_MOST];
  int n = 0;
  char *path = save(SPLIT_EVEN, 700, 4, false);
  sample_make(&sample, job, SPLIT_UNEVEN, 0, 4, false, false);
  for (int t = 0; t < sample.n; t++)
    if (strcmp(sample.tensor[t].group, "model") == 0)
      chosen[n++] = sample.tensor[t];
  must(checkpoint_load(job, path, n, chosen, NULL));
  for (int t = 0; t < sample.n; t++)
    if (strcmp(sample.tensor[t].group, "model") != 0)
      sample.tensor[t].range = (struct layout_range){0, 0};
  assert_int_equal(sample_wrong(&sample, 4), 0);
  sample_free(&sample);
  mem_free(path);
}

TEST(overwriting_replaces)
{
  char *big = save(SPLIT_EVEN, 800, 1, true), *path = save(SPLIT_EVEN, 800, 2, false);
  assert_string_equal(path, big);
  expect_loaded(path, SPLIT_EVEN, 2, false);
  mem_free(big);
  mem_free(path);
}

/* Errors of a caller are reported before a file exists. */
static void expect_refusal(struct sample *sample, enum status code, const char *words)
{
  const struct file_path path = checkpoint_folder_path(dir, 900);
  sample->meta.step = 900;
  must_fail(checkpoint_save(job, dir, &sample->meta, sample->n, sample->tensor, NULL), code, words);
  assert_false(file_exists(path.text));
  assert_int_equal(unfinished(NULL), 0);
}

TEST(parts_that_do_not_make_a_whole_are_refused)
{
  struct sample sample;
  int last = comm_ranks(job) - 1;
  sample_make(&sample, job, SPLIT_EVEN, 900, 1, false, true);
  sample.tensor[9].writer = comm_rank(job) != last; /* a gap at the end */
  char *words =
      mem_printf("element %d of tensor exp_avg_sq/counts is not written by exactly one rank",
                 13 * last / (last + 1));
  expect_refusal(&sample, STATUS_INTERNAL, words);
  mem_free(words);
  sample.tensor[9].writer = true;
  if (comm_rank(job) == last)
    sample.tensor[0].range.end--;
  expect_refusal(&sample, STATUS_INTERNAL,
                 "element 3006 of tensor model/transformer.wte.weight is not");
  sample_free(&sample);
  if (last > 0) {
    sample_make(&sample, job, SPLIT_WHOLE, 900, 1, false, true);
    sample.tensor[2].writer = true; /* all ranks write it */
    expect_refusal(&sample, STATUS_INTERNAL,
                   "element 0 of tensor model/transformer.h.0.attn.c_attn.weight is not");
    sample_free(&sample);
    sample_make(&sample, job, SPLIT_EVEN, 900, 1, false, true);
    if (comm_rank(job) == 1)
      sample.tensor[0].range.begin--; /* an element twice */
    char *twice = mem_printf("element %d of tensor model/transformer.wte.weight is not",
                             97 * 31 / (last + 1) - 1);
    expect_refusal(&sample, STATUS_INTERNAL, twice);
    mem_free(twice);
    sample_free(&sample);
  }
}

TEST(wrong_tables_are_refused)
{
  /* clang-format off */
  static const struct {
    const char *group, *name;
    int ndim;
    int64_t length;
    const char *words;
  } rows[] = {
      {"model", "a/b", 1, 1, "named a/b"},
      {"model", "", 1, 1, "a name is not empty"},
      {"deck", "one", 1, 1, "no group is called deck"},
      {"model", "one", 1, 0, "group model: dimension 0 of one is 0"},
      {"model", "one", 5, 1, "has 5 dimensions"},
  };
  /* clang-format on */
  struct sample sample;
  sample_make(&sample, job, SPLIT_EVEN, 900, 1, false, true);
  const struct io_tensor one = sample.tensor[3];
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    sample.tensor[3].group = rows[i].group;
    sample.tensor[3].name = rows[i].name;
    sample.tensor[3].ndim = rows[i].ndim;
    sample.tensor[3].shape[0] = rows[i].length;
    expect_refusal(&sample, STATUS_INTERNAL, rows[i].words);
  }
  sample.tensor[3] = one;
  if (comm_rank(job) == comm_ranks(job) - 1)
    sample.tensor[9].range.end = 14;
  expect_refusal(&sample, STATUS_INTERNAL, "outside its 13 elements");
  sample.tensor[9].range.end = 13 * (comm_rank(job) + 1) / comm_ranks(job);
  sample.meta.samples += comm_rank(job); /* the ranks do not agree */
  if (comm_ranks(job) > 1)
    expect_refusal(&sample, STATUS_INPUT, "the tensors and the meta data of a checkpoint");
  sample_free(&sample);
}

TEST(a_name_used_twice_is_refused_and_leaves_nothing)
{
  struct sample sample;
  sample_make(&sample, job, SPLIT_EVEN, 900, 1, false, true);
  sample.tensor[6].name = "ones"; /* as tensor 7 */
  assert_int_not_equal(checkpoint_save(job, dir, &sample.meta, sample.n, sample.tensor, NULL),
                       STATUS_OK);
  must_say("cannot create the dataset ones");
  assert_int_equal(unfinished(NULL), 0);
  sample_free(&sample);
}

TEST(another_model_is_refused)
{
  /* clang-format off */
  static const struct {
    int at; /* takes the place of this tensor */
    const char *name;
    enum dtype type;
    int64_t shape[3];
    int n;
    enum status status;
    const char *words;
  } rows[] = {
      {4, "cubes", DTYPE_F16, {3, 5, 7}, 12, STATUS_INPUT, "the tensor model/cubes is missing"},
      {4, "cube", DTYPE_BF16, {3, 5, 7}, 12, STATUS_INPUT,
       "model/cube is of type fp16 in the file and bf16 in this run"},
      {4, "cube", DTYPE_F16, {5, 3, 7}, 12, STATUS_INPUT,
       "model/cube has shape 3 x 5 x 7 in the file and 5 x 3 x 7 in this run"},
      {4, "cube", DTYPE_F16, {3, 5, 7}, 11, STATUS_INPUT, "model/late, which this run does"},
      {11, "cube", DTYPE_F16, {3, 5, 7}, 12, STATUS_INTERNAL, "model/cube is requested twice"},
  };
  /* clang-format on */
  struct sample sample;
  char *path = save(SPLIT_EVEN, 1000, 1, false);
  sample_make(&sample, job, SPLIT_EVEN, 0, 1, false, false);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct io_tensor *tensor = &sample.tensor[rows[i].at], usual = *tensor;
    *tensor = sample.tensor[4];
    tensor->name = rows[i].name;
    tensor->type = rows[i].type;
    memcpy(tensor->shape, rows[i].shape, sizeof rows[i].shape);
    must_fail(checkpoint_load(job, path, rows[i].n, sample.tensor, NULL), rows[i].status,
              rows[i].words);
    must_say(path);
    *tensor = usual;
  }
  must(checkpoint_load(job, path, sample.n, sample.tensor, NULL));
  assert_int_equal(sample_wrong(&sample, 1), 0);
  sample_free(&sample);
  mem_free(path);
}

TEST(an_empty_list_is_a_checkpoint)
{
  char *path = NULL;
  struct checkpoint_meta meta = {.step = 1100};
  must(checkpoint_save(job, dir, &meta, 0, NULL, &path));
  must(checkpoint_verify(job, path));
  must(checkpoint_load(job, path, 0, NULL, NULL));
  must(checkpoint_read_meta(job, path, &meta));
  assert_string_equal(meta.deck, "");
  checkpoint_meta_free(&meta);
  mem_free(path);
}

/* A file made with nothing but doc/reference/checkpoint.md in hand and HDF5's defaults (old-style
 * groups, times, padded strings, late allocation). */

static void put_attribute(hid_t object, const char *name, hid_t type, const void *value)
{
  hid_t space = H5Screate(H5S_SCALAR),
        attribute = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
  assert_true(H5Awrite(attribute, type, value) >= 0);
  H5Aclose(attribute);
  H5Sclose(space);
}

static hid_t padded_string(size_t bytes)
{
  hid_t type = H5Tcopy(H5T_C_S1);
  H5Tset_size(type, bytes);
  H5Tset_strpad(type, H5T_STR_NULLPAD);
  return type;
}

static void write_as_another_program(const char *path)
{
  static const float matrix[2][3] = {{1, 2, 3}, {4, 5, 6}};
  const int32_t one = 1, version = CHECKPOINT_VERSION;
  const int64_t step = 5, zero = 0, six = 6, tensors = 1;
  const uint64_t seed = 3;
  const uint32_t crc = (uint32_t)crc32(0, (const Bytef *)matrix, sizeof matrix),
                 deck_crc = (uint32_t)crc32(0, (const Bytef *)"a: b", 4);
  hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), format = padded_string(17),
        deck_type = padded_string(4), scalar = H5Screate(H5S_SCALAR);
  put_attribute(file, "format", format, "sluice-checkpoint");
  put_attribute(file, "program", deck_type, "mine");
  put_attribute(file, "format_version", H5T_STD_I32LE, &version);
  put_attribute(file, "complete", H5T_STD_I32LE, &one);
  put_attribute(file, "step", H5T_STD_I64LE, &step);
  put_attribute(file, "samples", H5T_STD_I64LE, &zero);
  put_attribute(file, "skipped", H5T_STD_I64LE, &zero);
  put_attribute(file, "ranks", H5T_STD_I64LE, &tensors);
  put_attribute(file, "tensors", H5T_STD_I64LE, &tensors);
  put_attribute(file, "seed", H5T_STD_U64LE, &seed);
  hid_t deck = H5Dcreate2(file, "deck", deck_type, scalar, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  assert_true(H5Dwrite(deck, deck_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, "a: b") >= 0);
  put_attribute(deck, "crc32", H5T_STD_U32LE, &deck_crc);
  hid_t group = H5Gcreate2(file, "model", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
        space = H5Screate_simple(2, (hsize_t[]){2, 3}, NULL);
  hid_t dataset =
      H5Dcreate2(group, "w", H5T_IEEE_F32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  assert_true(H5Dwrite(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, matrix) >= 0);
  put_attribute(dataset, "crc32", H5T_STD_U32LE, &crc);
  put_attribute(dataset, "elements", H5T_STD_I64LE, &six);
  H5Dclose(dataset);
  H5Sclose(space);
  H5Gclose(group);
  H5Dclose(deck);
  H5Sclose(scalar);
  H5Tclose(deck_type);
  H5Tclose(format);
  H5Fclose(file);
}

TEST(a_file_of_another_program)
{
  float held[6] = {0};
  struct checkpoint_meta meta;
  struct io_tensor w = {.group = "model",
                        .name = "w",
                        .type = DTYPE_F32,
                        .ndim = 2,
                        .shape = {2, 3},
                        .range = {0, 6},
                        .data = held};
  char *path = mem_strdup(checkpoint_folder_path(dir, 1200).text);
  if (is_root())
    write_as_another_program(path);
  everybody_waits();
  must(checkpoint_verify(job, path));
  must(checkpoint_load(job, path, 1, &w, NULL));
  for (int i = 0; i < 6; i++)
    assert_true(held[i] == (float)(i + 1));
  must(checkpoint_read_meta(job, path, &meta));
  assert_int_equal(meta.step, 5);
  assert_string_equal(meta.deck, "a: b");
  assert_string_equal(meta.version, "mine");
  checkpoint_meta_free(&meta);
  mem_free(path);
}

TEST(a_job_without_mpi_is_told_so)
{
  struct comm *fake = NULL;
  struct checkpoint_meta meta = {.step = 1};
  must(comm_create_fake(0, 4, 4, &fake));
  assert_int_equal(checkpoint_save(fake, dir, &meta, 0, NULL, NULL), STATUS_UNSUPPORTED);
  assert_int_equal(checkpoint_load(fake, "x", 0, NULL, NULL), STATUS_UNSUPPORTED);
  assert_int_equal(checkpoint_verify(fake, "x"), STATUS_UNSUPPORTED);
  comm_destroy(fake);
}

static bool breaks = true; /* tensors whose source is gone */

static void break_now(enum checkpoint_phase phase)
{
  breaks = breaks || phase == CHECKPOINT_OPENED;
}

/* Between a sample's memory and the pieces of a transfer; fails at tensor `broken`. */
struct mover {
  const struct io_tensor *memory;
  int index, broken;
  bool takes;
};

static enum status move_piece(const struct io_tensor *tensor, struct layout_range piece, void *data)
{
  const struct mover *mover = tensor->arg;
  const int64_t size = (int64_t)dtype_size(tensor->type);
  char *memory = (char *)mover->memory->data + (piece.begin - tensor->range.begin) * size;
  const size_t bytes = (size_t)((piece.end - piece.begin) * size);
  assert_true(piece.begin >= tensor->range.begin && piece.end <= tensor->range.end &&
              piece.begin < piece.end);
  assert_true(bytes <= (size_t)checkpoint_piece_bytes);
  if (mover->index == mover->broken && breaks)
    return status_set(STATUS_INPUT, "the source of %s is gone", tensor->name);
  memcpy(mover->takes ? memory : (char *)data, mover->takes ? (char *)data : memory, bytes);
  return STATUS_OK;
}

/* The same tensors without memory. */
static void make_moved(const struct sample *sample, int broken, bool takes, struct mover *movers,
                       struct io_tensor *out)
{
  for (int t = 0; t < sample->n; t++) {
    movers[t] =
        (struct mover){.memory = &sample->tensor[t], .index = t, .broken = broken, .takes = takes};
    out[t] = sample->tensor[t];
    out[t].data = NULL;
    out[t].move = move_piece;
    out[t].arg = &movers[t];
  }
}

TEST(moved_by_pieces_is_the_same_file)
{
  const int64_t whole = checkpoint_piece_bytes;
  char *path = save(SPLIT_UNEVEN, 300, 5, true), *moved = mem_printf("%s/deep/er/moved.h5", dir);
  struct sample sample;
  struct mover movers[SAMPLE_MOST];
  struct io_tensor tensors[SAMPLE_MOST];
  sample_make(&sample, job, SPLIT_UNEVEN, 300, 5, true, true);
  make_moved(&sample, -1, false, movers, tensors);
  checkpoint_piece_bytes = 1000;
  for (int apart = 0; apart < 2; apart++) {
    everybody_waits();
    if (is_root())
      (void)unlink(moved);
    part_nodes(apart);
    must(checkpoint_write(job, moved, &sample.meta, sample.n, tensors));
    part_nodes(false);
    expect_same_files(path, moved);
  }
  must_fail(checkpoint_write(job, moved, &sample.meta, sample.n, tensors), STATUS_USAGE,
            "moved.h5 was not written: "); /* it is there now */
  sample_free(&sample);

  sample_make(&sample, job, SPLIT_REVERSED, 300, 5, true, false);
  make_moved(&sample, -1, true, movers, tensors);
  must(checkpoint_load(job, moved, sample.n, tensors, NULL));
  assert_int_equal(sample_wrong(&sample, 5), 0);
  sample_free(&sample);
  checkpoint_piece_bytes = whole;
  mem_free(moved);
  mem_free(path);
}

TEST(a_move_that_fails_leaves_nothing)
{
  char *moved = mem_printf("%s/broken.h5", dir), *path = save(SPLIT_EVEN, 310, 5, false);
  struct sample sample;
  struct mover movers[SAMPLE_MOST];
  struct io_tensor tensors[SAMPLE_MOST];
  sample_make(&sample, job, SPLIT_EVEN, 310, 5, false, true);
  make_moved(&sample, comm_rank(job) == comm_ranks(job) - 1 ? 2 : -1, false, movers,
             tensors); /* on one rank */
  must_fail(checkpoint_write(job, moved, &sample.meta, sample.n, tensors), STATUS_INPUT,
            "the source of transformer.h.0.attn.c_attn.weight is gone");
  assert_false(file_exists(moved));
  assert_int_equal(unfinished(NULL), 0);
  for (int apart = 0; apart < 2; apart++) { /* while ranks write, and wait for its bytes */
    breaks = false;
    part_nodes(apart);
    checkpoint_test_hook = break_now;
    must_fail(checkpoint_write(job, moved, &sample.meta, sample.n, tensors), STATUS_INPUT,
              "dataset model/transformer.h.0.attn.c_attn.weight: the source of ");
    checkpoint_test_hook = NULL;
    part_nodes(false);
    assert_true(breaks);
    everybody_waits();
    assert_int_equal(unfinished(NULL), 0);
    everybody_waits();
  }
  make_moved(&sample, is_root() ? 2 : -1, true, movers, tensors);
  must_fail(checkpoint_load(job, path, sample.n, tensors, NULL), STATUS_INPUT, "is gone");
  sample_free(&sample);
  mem_free(moved);
  mem_free(path);
}

/* The result of an import: no optimizer state. */
TEST(a_checkpoint_without_moments_says_so)
{
  char *path = mem_printf("%s/parameters.h5", dir);
  struct sample sample;
  struct io_tensor parameters[SAMPLE_MOST];
  int n = 0;
  sample_make(&sample, job, SPLIT_EVEN, 0, 5, false, true);
  for (int t = 0; t < sample.n; t++)
    if (!strcmp(sample.tensor[t].group, "model"))
      parameters[n++] = sample.tensor[t];
  must(checkpoint_write(job, path, &sample.meta, n, parameters));
  must(checkpoint_load(job, path, n, parameters, NULL));
  must_fail(checkpoint_load(job, path, sample.n, sample.tensor, NULL), STATUS_INPUT,
            "it has no optimizer state to go on from; start from it with train.init");
  sample_free(&sample);
  mem_free(path);
}

/* Also one whose group has others. What is there is read. */
TEST(an_optional_tensor_may_be_missing)
{
  char *path = mem_printf("%s/optional.h5", dir);
  struct sample sample;
  struct io_tensor tensors[2];
  float seen[2] = {-1, -1}, scales[2] = {3, 4};
  sample_make(&sample, job, SPLIT_EVEN, 0, 5, false, true);
  const bool writes = comm_rank(job) == 0;
  for (int t = 0; t < 2; t++)
    tensors[t] = (struct io_tensor){.group = "scales",
                                    .name = t ? "b" : "a",
                                    .type = DTYPE_F32,
                                    .ndim = 1,
                                    .shape = {1},
                                    .writer = writes,
                                    .optional = true,
                                    .range = {0, writes},
                                    .data = &scales[t]};
  must(checkpoint_write(job, path, &sample.meta, 2, tensors));
  for (int t = 0; t < 2; t++) {
    tensors[t].range = (struct layout_range){0, 1};
    tensors[t].data = &seen[t];
  }
  tensors[1].name = "c";
  must(checkpoint_load(job, path, 2, tensors, NULL));
  assert_true(seen[0] == 3 && seen[1] == -1);
  tensors[1].optional = false;
  must_fail(checkpoint_load(job, path, 2, tensors, NULL), STATUS_INPUT, "scales/c is missing");
  sample_free(&sample);
  mem_free(path);
}

/* A run that freezes others has other moments. */
TEST(other_moments_are_refused)
{
  char *path = mem_printf("%s/moments.h5", dir);
  struct sample sample;
  sample_make(&sample, job, SPLIT_EVEN, 0, 5, false, true);
  for (int t = 0; t < 3; t++)
    sample.tensor[t].group = "exp_avg";
  must(checkpoint_write(job, path, &sample.meta, 2, sample.tensor));
  must_fail(checkpoint_load(job, path, 3, sample.tensor, NULL), STATUS_INPUT,
            " is missing: the deck describes another model, or freezes other parameters");
  must_fail(checkpoint_load(job, path, 1, sample.tensor, NULL), STATUS_INPUT,
            "which this run does not have: the deck describes another "
            "model, or freezes other parameters");
  sample_free(&sample);
  mem_free(path);
}

/* Moves and calls of fsync() of a save on this rank. */
static int64_t count_moves(int64_t step, int64_t flush_bytes, int64_t *calls)
{
  const int64_t usual = checkpoint_flush_bytes, piece = checkpoint_piece_bytes;
  int64_t before, after;
  const char *doing;
  bool waits;
  checkpoint_flush_bytes = flush_bytes;
  checkpoint_piece_bytes = 100000;
  *calls = syncs;
  checkpoint_progress(&before, &doing, &waits);
  mem_free(save(SPLIT_EVEN, step, 4, true));
  checkpoint_progress(&after, &doing, &waits);
  *calls = syncs - *calls;
  checkpoint_flush_bytes = usual;
  checkpoint_piece_bytes = piece;
  return after - before;
}

/* Data reaches the disk while it is written, in parts, each of which is seen to be begun and to be
 * done. */
TEST(flushing_moves)
{
  int64_t few, many;
  const int64_t moves = count_moves(900, INT64_C(1) << 40, &few), more = count_moves(901, 1, &many);
  assert_true(many > few + 2); /* pieces of each of several tensors */
  assert_int_equal(more - moves, 2 * (many - few));
}

static enum status take_nothing(const struct io_tensor *tensor, struct layout_range piece,
                                void *data)
{
  (void)tensor, (void)piece, (void)data;
  return status_set(STATUS_IO, "a disk that is full");
}

/* If a rank has no memory for the data, the file is not blamed: no rank calls it damaged. */
TEST(skipped_tensors_are_not_damaged)
{
  char *path = save(SPLIT_EVEN, 904, 4, false);
  struct sample sample;
  bool damaged = true;
  sample_make(&sample, job, SPLIT_EVEN, 0, 5, false, true);
  for (int t = 0; t < sample.n && comm_rank(job) == comm_ranks(job) - 1; t++)
    sample.tensor[t].move = take_nothing;
  assert_int_equal(checkpoint_load(job, path, sample.n, sample.tensor, &damaged), STATUS_IO);
  assert_false(damaged);
  must_say("a disk that is full");
  sample_free(&sample);
  mem_free(path);
}

TEST_MAIN(start, stop)
