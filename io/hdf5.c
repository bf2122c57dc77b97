#include "io/hdf5.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/mem.h"
#include "io/file.h"

enum {
  ALIGN_BYTES = 65536,      /* objects of this size or more begin at a multiple of it: whole pages and file-system blocks */
  META_BLOCK_BYTES = 32768, /* metadata lies together, so that a reader fetches few blocks */
  MOST_ATTRIBUTE = 60000,   /* an object header message holds less than 64 KiB */
  MOST_COMPACT = 64,
  REASON_BYTES = 512
};

int64_t hdf5_transfer_bytes = (int64_t)256 << 20;

/* The lock: fair, so that a thread with many transfers does not keep the others out between them, and recursive, since these functions use each other. */

static struct {
  pthread_mutex_t mutex;
  pthread_cond_t turn;
  uint64_t next, serving; /* tickets */
  pthread_t owner;
  int depth;
} lock = {.mutex = PTHREAD_MUTEX_INITIALIZER, .turn = PTHREAD_COND_INITIALIZER};

void hdf5_lock(void)
{
  pthread_mutex_lock(&lock.mutex);
  if (lock.depth == 0 || !pthread_equal(lock.owner, pthread_self())) {
    const uint64_t ticket = lock.next++;
    while (lock.serving != ticket)
      pthread_cond_wait(&lock.turn, &lock.mutex);
    lock.owner = pthread_self();
  }
  lock.depth++;
  pthread_mutex_unlock(&lock.mutex);
}

void hdf5_unlock(void)
{
  pthread_mutex_lock(&lock.mutex);
  if (--lock.depth == 0) {
    lock.serving++;
    pthread_cond_broadcast(&lock.turn);
  }
  pthread_mutex_unlock(&lock.mutex);
}

/* `held` of a function holds the lock until it returns. */
static int take_lock(void)
{
  hdf5_lock();
  return 1;
}

static void release_lock(int *held)
{
  *held = 0;
  hdf5_unlock();
}

/* The check of return codes. */

static herr_t keep_innermost(unsigned n, const H5E_error2_t *error, void *arg)
{
  char *reason = arg;
  if (n == 0 && error->desc)
    snprintf(reason, REASON_BYTES, "%s", error->desc);
  return 0;
}

/* HDF5's own text about a failed system call is a list of pointers and flags around one useful part. */
static void tidy_reason(char *reason)
{
  static const char mark[] = "error message = '";
  char *found = strstr(reason, mark);
  if (found) {
    found += strlen(mark);
    size_t length = strcspn(found, "'");
    memmove(reason, found, length);
    reason[length] = '\0';
  }
  for (char *c = reason; *c; c++)
    if (iscntrl((unsigned char)*c))
      *c = ' ';
}

enum status hdf5_check(int64_t result, enum status code, const char *doing, ...)
{
  if (result >= 0)
    return STATUS_OK;
  char reason[REASON_BYTES] = "no reason given by HDF5", what[1024];
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_innermost, reason);
  tidy_reason(reason);
  va_list args;
  va_start(args, doing);
  vsnprintf(what, sizeof what, doing, args);
  va_end(args);
  return status_set(code, "cannot %s: %s", what, reason);
}

enum status hdf5_close(hid_t id, enum status so_far)
{
  if (id < 0)
    return so_far;
  int held __attribute__((cleanup(release_lock))) = take_lock();
  bool file = H5Iget_type(id) == H5I_FILE;
  int left = file ? H5Fclose(id) : H5Idec_ref(id);
  if (so_far != STATUS_OK)
    return so_far;
  return hdf5_check(left, STATUS_IO, "close %s", file ? "it" : "a part of it");
}

/* Ending a file that was written. A flush that fails leaves HDF5 1.10's cache in a state that no later flush accepts, not the one in H5Fclose either, whose failure leaves
 * tables half taken down that are walked again, into freed memory, when the process ends. So no flush may fail: room is made first, and where something has failed already
 * the file is flushed into memory. */

static bool broken;

bool hdf5_is_broken(void)
{
  int held __attribute__((cleanup(release_lock))) = take_lock();
  return broken;
}

static enum status descriptor_of(hid_t file, int **out)
{
  return hdf5_check(H5Fget_vfd_handle(file, H5P_DEFAULT, (void **)out), STATUS_IO, "find its descriptor");
}

static enum status make_room(hid_t file, int fd)
{
  hsize_t bytes = 0;
  enum status status = hdf5_check(H5Fget_filesize(file, &bytes), STATUS_IO, "find its size");
  return status == STATUS_OK ? file_reserve_open(fd, "it", (int64_t)bytes) : status;
}

static void redirect_to_memory(int fd)
{
  int scratch = memfd_create("discarded", MFD_CLOEXEC);
  if (scratch < 0)
    return;
  dup2(scratch, fd);
  close(scratch);
}

static enum status flush_and_close(hid_t file)
{
  enum status status = hdf5_check(H5Fflush(file, H5F_SCOPE_LOCAL), STATUS_IO, "write it");
  if (status == STATUS_OK)
    status = hdf5_check(H5Fclose(file), STATUS_IO, "close it");
  broken = broken || status != STATUS_OK;
  return status;
}

enum status hdf5_finish(hid_t file, enum status so_far)
{
  if (file < 0)
    return so_far;
  int held __attribute__((cleanup(release_lock))) = take_lock();
  int *fd = NULL;
  enum status found = descriptor_of(file, &fd), status = so_far;
  if (status == STATUS_OK)
    status = found;
  if (status == STATUS_OK)
    status = make_room(file, *fd);
  if (status == STATUS_OK)
    return flush_and_close(file);
  if (found == STATUS_OK)
    redirect_to_memory(*fd);
  broken = broken || H5Fclose(file) < 0;
  return status;
}

/* Files. */

/* Strong closing: whatever a failure left open inside the file goes with it. */
static enum status access_list(int64_t alignment, hid_t *out)
{
  if (H5Eset_auto2(H5E_DEFAULT, NULL, NULL) < 0)
    return status_set(STATUS_LIBRARY, "cannot silence HDF5's error stack: the HDF5 library is not working");
  hid_t list = H5Pcreate(H5P_FILE_ACCESS);
  enum status status = hdf5_check(list, STATUS_LIBRARY, "make an HDF5 property list");
  if (status != STATUS_OK)
    return status;
  int64_t done = H5Pset_libver_bounds(list, H5F_LIBVER_V18, H5F_LIBVER_LATEST);
  if (done >= 0)
    done = H5Pset_fclose_degree(list, H5F_CLOSE_STRONG);
  if (done >= 0)
    done = H5Pset_alignment(list, (hsize_t)alignment, (hsize_t)alignment);
  if (done >= 0)
    done = H5Pset_meta_block_size(list, META_BLOCK_BYTES);
  if (done >= 0)
    done = H5Pset_sieve_buf_size(list, 0); /* so that a failed write of data fails in H5Dwrite and not in H5Dclose, which HDF5 does not survive */
#if H5_VERSION_GE(1, 10, 7)
  /* Finished files never change, and many cluster file systems have no locks. */
  if (done >= 0)
    done = H5Pset_file_locking(list, false, true);
#endif
  status = hdf5_check(done, STATUS_LIBRARY, "set up HDF5's file access");
  if (status != STATUS_OK)
    return hdf5_close(list, status);
  *out = list;
  return STATUS_OK;
}

static enum status create_file(const char *path, hid_t access, hid_t *out)
{
  hid_t creation = H5Pcreate(H5P_FILE_CREATE), file = H5I_INVALID_HID;
  enum status status = hdf5_check(creation, STATUS_LIBRARY, "make an HDF5 property list");
  if (status == STATUS_OK)
    status = hdf5_check(H5Pset_obj_track_times(creation, false), STATUS_LIBRARY, "set up an HDF5 file");
  if (status == STATUS_OK) /* the root's attributes stay in its header */
    status = hdf5_check(H5Pset_attr_phase_change(creation, MOST_COMPACT, MOST_COMPACT / 2), STATUS_LIBRARY, "set up an HDF5 file");
  if (status == STATUS_OK) {
    file = H5Fcreate(path, H5F_ACC_TRUNC, creation, access);
    status = hdf5_check(file, STATUS_IO, "create it");
  }
  status = hdf5_close(creation, status);
  if (status != STATUS_OK)
    return hdf5_close(file, status);
  *out = file;
  return STATUS_OK;
}

enum status hdf5_create_aligned(const char *path, void *mpi_comm, int64_t alignment, hid_t *out)
{
  int held __attribute__((cleanup(release_lock))) = take_lock();
  hid_t access = H5I_INVALID_HID, file = H5I_INVALID_HID;
  enum status status = access_list(alignment, &access);
  if (status == STATUS_OK && mpi_comm)
    status = hdf5_check(H5Pset_fapl_mpio(access, *(MPI_Comm *)mpi_comm, MPI_INFO_NULL), STATUS_LIBRARY, "set up parallel HDF5");
  if (status == STATUS_OK)
    status = create_file(path, access, &file);
  status = hdf5_close(access, status);
  if (status != STATUS_OK)
    return hdf5_close(file, status);
  *out = file;
  return STATUS_OK;
}

enum status hdf5_create(const char *path, hid_t *out)
{
  return hdf5_create_aligned(path, NULL, ALIGN_BYTES, out);
}

static const char *looks_like(const unsigned char *head, size_t bytes)
{
  static const struct {
    size_t at, length;
    const char *magic, *what;
  } known[] = {
      {0, 4, "PK\3\4", "a zip archive (PyTorch and NumPy write such)"},
      {0, 2, "\x1f\x8b", "gzip data"},
      {0, 4, "\x28\xb5\x2f\xfd", "Zstandard data"},
      {0, 6, "\x93NUMPY", "a NumPy array"},
      {0, 4,
       "\x7f"
       "ELF",
       "a program"},
      {0, 4, "GGUF", "a GGUF model"},
      {0, 3, "CDF", "a classic netCDF file"},
      {257, 5, "ustar", "a tar archive"},
      {8, 2, "{\"", "a safetensors file"},
      {0, 2, "\x80\2", "a Python pickle"},
      {0, 2, "\x80\4", "a Python pickle"},
  };
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
    if (bytes >= known[i].at + known[i].length && memcmp(head + known[i].at, known[i].magic, known[i].length) == 0)
      return known[i].what;
  size_t text = 0, zero = 0;
  for (size_t i = 0; i < bytes; i++) {
    bool stray = (head[i] & 0xc0) == 0x80 && (i == 0 || head[i - 1] < 0x80); /* a byte that continues no UTF-8 character */
    text += (head[i] >= 32 && !stray) || isspace(head[i]);
    zero += head[i] == 0;
  }
  return zero == bytes ? "zeros" : text == bytes ? "text" : "binary data of another kind";
}

/* What can be said of a path without HDF5, in words that HDF5 does not have. */
static enum status check_is_hdf5(const char *path, bool write)
{
  static const unsigned char signature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
  struct stat info;
  unsigned char head[512];
  if (stat(path, &info) != 0)
    return status_set(errno == ENOENT ? STATUS_INPUT : STATUS_IO, "cannot open it: %s", strerror(errno));
  if (S_ISDIR(info.st_mode))
    return status_set(STATUS_INPUT, "it is a folder; an HDF5 file is expected");
  if (!S_ISREG(info.st_mode))
    return status_set(STATUS_INPUT, "it is not a regular file; an HDF5 file is expected");
  int fd = open(path, (write ? O_RDWR : O_RDONLY) | O_CLOEXEC);
  if (fd < 0)
    return status_set(STATUS_IO, "cannot open it: %s%s", strerror(errno), errno == EACCES ? "; check its permissions" : "");
  ssize_t got = pread(fd, head, sizeof head, 0);
  int reason = errno;
  close(fd);
  if (got < 0)
    return status_set(STATUS_IO, "cannot read it: %s", strerror(reason));
  if (got == 0)
    return status_set(STATUS_INPUT, "it is empty (0 bytes); an HDF5 file is expected");
  if (got < (ssize_t)sizeof signature || memcmp(head, signature, sizeof signature) != 0)
    return status_set(STATUS_INPUT, "it is not an HDF5 file; it looks like %s", looks_like(head, (size_t)got));
  return STATUS_OK;
}

static enum status open_with(const char *path, bool write, hid_t access, hid_t *out)
{
  hid_t file = H5Fopen(path, write ? H5F_ACC_RDWR : H5F_ACC_RDONLY, access);
  enum status status = hdf5_check(file, STATUS_INPUT, "open it as HDF5 (it is truncated or damaged)");
  status = hdf5_close(access, status);
  if (status != STATUS_OK)
    return hdf5_close(file, status);
  *out = file;
  return STATUS_OK;
}

enum status hdf5_open(const char *path, bool write, hid_t *out)
{
  hid_t access = H5I_INVALID_HID;
  enum status status = check_is_hdf5(path, write);
  int held __attribute__((cleanup(release_lock))) = take_lock();
  if (status == STATUS_OK)
    status = access_list(ALIGN_BYTES, &access);
  return status == STATUS_OK ? open_with(path, write, access, out) : status;
}

enum status hdf5_open_parallel(const char *path, void *mpi_comm, hid_t *out)
{
  int held __attribute__((cleanup(release_lock))) = take_lock();
  hid_t access = H5I_INVALID_HID;
  enum status status = access_list(ALIGN_BYTES, &access);
  if (status != STATUS_OK)
    return status;
  int64_t done = H5Pset_fapl_mpio(access, *(MPI_Comm *)mpi_comm, MPI_INFO_NULL);
  if (done >= 0)
    done = H5Pset_all_coll_metadata_ops(access, true); /* one rank reads and tells the others */
  status = hdf5_check(done, STATUS_LIBRARY, "set up parallel HDF5");
  if (status != STATUS_OK)
    return hdf5_close(access, status);
  return open_with(path, true, access, out);
}

/* Types. */

/* sign bit at the top, then the exponent, then the mantissa */
static enum status small_float(int exponent_bits, int mantissa_bits, size_t bias, hid_t *out)
{
  size_t e = (size_t)exponent_bits, m = (size_t)mantissa_bits;
  hid_t type = H5Tcopy(H5T_IEEE_F32LE);
  int64_t done = type;
  if (done >= 0)
    done = H5Tset_fields(type, e + m, m, e, 0, m);
  if (done >= 0)
    done = H5Tset_size(type, (e + m + 1) / 8);
  if (done >= 0)
    done = H5Tset_ebias(type, bias);
  enum status status = hdf5_check(done, STATUS_LIBRARY, "make an HDF5 number type");
  if (status != STATUS_OK)
    return hdf5_close(type, status);
  *out = type;
  return STATUS_OK;
}

static enum status copy_type(hid_t standard, hid_t *out)
{
  hid_t type = H5Tcopy(standard);
  enum status status = hdf5_check(type, STATUS_LIBRARY, "make an HDF5 number type");
  if (status == STATUS_OK)
    *out = type;
  return status;
}

enum status hdf5_type(enum dtype type, hid_t *out)
{
  int held __attribute__((cleanup(release_lock))) = take_lock();
  switch (type) {
  case DTYPE_F64: return copy_type(H5T_IEEE_F64LE, out);
  case DTYPE_F32: return copy_type(H5T_IEEE_F32LE, out);
  case DTYPE_BF16: return small_float(8, 7, 127, out);
  case DTYPE_F16: return small_float(5, 10, 15, out);
  case DTYPE_F8_E4M3: return small_float(4, 3, 7, out);
  case DTYPE_F8_E5M2: return small_float(5, 2, 15, out);
  case DTYPE_U8: return copy_type(H5T_STD_U8LE, out);
  case DTYPE_U16: return copy_type(H5T_STD_U16LE, out);
  case DTYPE_U32: return copy_type(H5T_STD_U32LE, out);
  case DTYPE_U64: return copy_type(H5T_STD_U64LE, out);
  case DTYPE_I32: return copy_type(H5T_STD_I32LE, out);
  case DTYPE_I64: return copy_type(H5T_STD_I64LE, out);
  case DTYPE_COUNT: break;
  }
  return status_set(STATUS_INTERNAL, "there is no HDF5 type for number format %d", (int)type);
}

int hdf5_type_find(hid_t type)
{
  int held __attribute__((cleanup(release_lock))) = take_lock();
  for (int i = 0; i < DTYPE_COUNT; i++) {
    hid_t candidate = H5I_INVALID_HID;
    if (hdf5_type((enum dtype)i, &candidate) != STATUS_OK)
      continue;
    bool same = H5Tequal(type, candidate) > 0;
    if (hdf5_close(candidate, STATUS_OK) == STATUS_OK && same)
      return i;
  }
  return -1;
}

static enum status text_type(size_t bytes, hid_t *out)
{
  hid_t type = H5Tcopy(H5T_C_S1);
  int64_t done = type;
  if (done >= 0)
    done = H5Tset_size(type, bytes);
  enum status status = hdf5_check(done, STATUS_LIBRARY, "make an HDF5 string type");
  if (status != STATUS_OK)
    return hdf5_close(type, status);
  *out = type;
  return STATUS_OK;
}

/* Groups. */

enum status hdf5_create_group(hid_t parent, const char *name, hid_t *out)
{
  int held __attribute__((cleanup(release_lock))) = take_lock();
  hid_t creation = H5Pcreate(H5P_GROUP_CREATE), group = H5I_INVALID_HID;
  enum status status = hdf5_check(creation, STATUS_LIBRARY, "make an HDF5 property list");
  if (status == STATUS_OK)
    status = hdf5_check(H5Pset_obj_track_times(creation, false), STATUS_LIBRARY, "set up an HDF5 group");
  if (status == STATUS_OK) {
    group = H5Gcreate2(parent, name, H5P_DEFAULT, creation, H5P_DEFAULT);
    status = hdf5_check(group, STATUS_IO, "create the group %s", name);
  }
  status = hdf5_close(creation, status);
  if (status != STATUS_OK)
    return hdf5_close(group, status);
  *out = group;
  return STATUS_OK;
}

/* A name that lies in this file, and is of the wanted kind: links into other files are not followed. */
static enum status open_object(hid_t parent, const char *name, H5I_type_t kind, const char *kind_name, hid_t *out)
{
  H5L_info_t link;
  htri_t there = H5Lexists(parent, name, H5P_DEFAULT);
  enum status status = hdf5_check(there, STATUS_INPUT, "look for %s", name);
  if (status != STATUS_OK)
    return status;
  if (!there)
    return status_set(STATUS_INPUT, "there is no %s %s in it", kind_name, name);
  status = hdf5_check(H5Lget_info(parent, name, &link, H5P_DEFAULT), STATUS_INPUT, "look at %s", name);
  if (status != STATUS_OK)
    return status;
  if (link.type != H5L_TYPE_HARD)
    return status_set(STATUS_INPUT, "%s is a link to elsewhere; a %s is expected", name, kind_name);
  hid_t object = H5Oopen(parent, name, H5P_DEFAULT);
  status = hdf5_check(object, STATUS_INPUT, "open %s", name);
  if (status == STATUS_OK && H5Iget_type(object) != kind)
    status = status_set(STATUS_INPUT, "%s is not a %s", name, kind_name);
  if (status != STATUS_OK)
    return hdf5_close(object, status);
  *out = object;
  return STATUS_OK;
}

enum status hdf5_open_group(hid_t parent, const char *name, hid_t *out)
{
  int held __attribute__((cleanup(release_lock))) = take_lock();
  return open_object(parent, name, H5I_GROUP, "group", out);
}

/* Attributes. */

static enum status set_attribute(hid_t object, const char *name, hid_t type, const void *value)
{
  htri_t there = H5Aexists(object, name);
  enum status status = hdf5_check(there, STATUS_IO, "look for the attribute %s", name);
  if (status != STATUS_OK)
    return status;
  hid_t space = H5Screate(H5S_SCALAR), attribute = H5I_INVALID_HID;
  status = hdf5_check(space, STATUS_LIBRARY, "make an HDF5 dataspace");
  if (status == STATUS_OK) {
    attribute = there ? H5Aopen(object, name, H5P_DEFAULT) : H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    status = hdf5_check(attribute, STATUS_IO, "create the attribute %s", name);
  }
  if (status == STATUS_OK)
    status = hdf5_check(H5Awrite(attribute, type, value), STATUS_IO, "write the attribute %s", name);
  status = hdf5_close(attribute, status);
  return hdf5_close(space, status);
}

enum status hdf5_set_number(hid_t object, const char *name, enum dtype type, const void *value)
{
  int held __attribute__((cleanup(release_lock))) = take_lock();
  hid_t id = H5I_INVALID_HID;
  enum status status = hdf5_type(type, &id);
  if (status != STATUS_OK)
    return status;
  return hdf5_close(id, set_attribute(object, name, id, value));
}

enum status hdf5_set_text(hid_t object, const char *name, const char *text)
{
  int held __attribute__((cleanup(release_lock))) = take_lock();
  size_t bytes = strlen(text);
  if (bytes > MOST_ATTRIBUTE)
    return status_set(STATUS_INTERNAL, "the attribute %s has %zu bytes of text; %d are possible", name, bytes, MOST_ATTRIBUTE);
  hid_t id = H5I_INVALID_HID;
  enum status status = text_type(bytes + 1, &id);
  if (status != STATUS_OK)
    return status;
  return hdf5_close(id, set_attribute(object, name, id, text));
}

/* A scalar attribute and its type; both to be closed. */
static enum status open_attribute(hid_t object, const char *name, hid_t *out, hid_t *type_out)
{
  htri_t there = H5Aexists(object, name);
  enum status status = hdf5_check(there, STATUS_INPUT, "look for the attribute %s", name);
  if (status != STATUS_OK)
    return status;
  if (!there)
    return status_set(STATUS_INPUT, "the attribute %s is missing", name);
  hid_t type = H5I_INVALID_HID, space = H5I_INVALID_HID, attribute = H5Aopen(object, name, H5P_DEFAULT);
  int64_t done = attribute;
  if (done >= 0)
    done = type = H5Aget_type(attribute);
  if (done >= 0)
    done = space = H5Aget_space(attribute);
  status = hdf5_check(done, STATUS_INPUT, "open the attribute %s", name);
  if (status == STATUS_OK && H5Sget_simple_extent_type(space) != H5S_SCALAR)
    status = status_set(STATUS_INPUT, "the attribute %s is not one value", name);
  status = hdf5_close(space, status);
  if (status != STATUS_OK)
    return hdf5_close(attribute, hdf5_close(type, status));
  *out = attribute;
  *type_out = type;
  return STATUS_OK;
}

enum status hdf5_get_number(hid_t object, const char *name, enum dtype type, void *out)
{
  int held __attribute__((cleanup(release_lock))) = take_lock();
  hid_t attribute = H5I_INVALID_HID, stored = H5I_INVALID_HID;
  enum status status = open_attribute(object, name, &attribute, &stored);
  if (status != STATUS_OK)
    return status;
  if (hdf5_type_find(stored) != (int)type)
    status = status_set(STATUS_INPUT, "the attribute %s is not of type %s", name, dtype_name(type));
  else
    status = hdf5_check(H5Aread(attribute, stored, out), STATUS_INPUT, "read the attribute %s", name);
  return hdf5_close(attribute, hdf5_close(stored, status));
}

/* Bytes that a fixed-length string type holds, at most `most` and a NUL. */
static enum status text_size(hid_t type, const char *name, size_t most, size_t *out)
{
  htri_t variable = H5Tget_class(type) == H5T_STRING ? H5Tis_variable_str(type) : -1;
  if (variable != 0)
    return status_set(STATUS_INPUT, "%s is not text of fixed length", name);
  size_t bytes = H5Tget_size(type);
  if (bytes == 0 || bytes - 1 > most)
    return status_set(STATUS_INPUT, "%s is text of %zu bytes; at most %zu are expected", name, bytes, most);
  *out = bytes;
  return STATUS_OK;
}

enum status hdf5_get_text(hid_t object, const char *name, size_t most, char **out)
{
  int held __attribute__((cleanup(release_lock))) = take_lock();
  hid_t attribute = H5I_INVALID_HID, stored = H5I_INVALID_HID;
  enum status status = open_attribute(object, name, &attribute, &stored);
  if (status != STATUS_OK)
    return status;
  char *text = NULL;
  size_t bytes = 0;
  status = text_size(stored, name, most, &bytes);
  if (status == STATUS_OK)
    status = mem_alloc(MEM_META, bytes + 1, (void **)&text);
  if (status == STATUS_OK)
    status = hdf5_check(H5Aread(attribute, stored, text), STATUS_INPUT, "read the attribute %s", name);
  status = hdf5_close(attribute, hdf5_close(stored, status));
  if (status != STATUS_OK) {
    mem_free(text);
    return status;
  }
  *out = text;
  return STATUS_OK;
}

/* Datasets. */

static enum status create_with(hid_t parent, const char *name, hid_t type, hid_t space, hid_t *out)
{
  hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
  int64_t done = creation;
  if (done >= 0)
    done = H5Pset_layout(creation, H5D_CONTIGUOUS);
  if (done >= 0)
    done = H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY);
  if (done >= 0)
    done = H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER);
  if (done >= 0)
    done = H5Pset_obj_track_times(creation, false);
  enum status status = hdf5_check(done, STATUS_LIBRARY, "set up an HDF5 dataset");
  hid_t dataset = H5I_INVALID_HID;
  if (status == STATUS_OK) {
    dataset = H5Dcreate2(parent, name, type, space, H5P_DEFAULT, creation, H5P_DEFAULT);
    status = hdf5_check(dataset, STATUS_IO, "create the dataset %s", name);
  }
  status = hdf5_close(creation, status);
  if (status != STATUS_OK)
    return hdf5_close(dataset, status);
  *out = dataset;
  return STATUS_OK;
}

static enum status count_elements(const char *name, enum dtype type, int ndim, const int64_t *shape, int64_t *out)
{
  int64_t elements = 1, bytes;
  if (ndim < 1 || ndim > LAYOUT_MAX_DIMS)
    return status_set(STATUS_INPUT, "%s has %d dimensions; 1 to %d are possible", name, ndim, LAYOUT_MAX_DIMS);
  for (int d = 0; d < ndim; d++) {
    if (shape[d] < 1)
      return status_set(STATUS_INPUT, "dimension %d of %s is %lld; it must be at least 1", d, name, (long long)shape[d]);
    enum status status = layout_mul(elements, shape[d], &elements);
    if (status != STATUS_OK)
      return status_prefix(status, "%s", name);
  }
  enum status status = layout_mul(elements, (int64_t)dtype_size(type), &bytes);
  if (status != STATUS_OK)
    return status_prefix(status, "%s", name);
  *out = elements;
  return STATUS_OK;
}

enum status hdf5_create_dataset(hid_t parent, const char *name, enum dtype type, int ndim, const int64_t *shape, struct hdf5_dataset *out)
{
  int held __attribute__((cleanup(release_lock))) = take_lock();
  struct hdf5_dataset dataset = {.id = H5I_INVALID_HID, .type = type, .ndim = ndim};
  enum status status = count_elements(name, type, ndim, shape, &dataset.elements);
  if (status != STATUS_OK)
    return status;
  hsize_t dims[LAYOUT_MAX_DIMS];
  for (int d = 0; d < ndim; d++)
    dims[d] = (hsize_t)(dataset.shape[d] = shape[d]);
  hid_t file_type = H5I_INVALID_HID;
  status = hdf5_type(type, &file_type);
  if (status != STATUS_OK)
    return status;
  hid_t space = H5Screate_simple(ndim, dims, NULL);
  status = hdf5_check(space, STATUS_LIBRARY, "make an HDF5 dataspace");
  if (status == STATUS_OK)
    status = create_with(parent, name, file_type, space, &dataset.id);
  status = hdf5_close(file_type, hdf5_close(space, status));
  if (status != STATUS_OK)
    return hdf5_close(dataset.id, status);
  *out = dataset;
  return STATUS_OK;
}

/* Contiguous, in this file, and all its bytes are there. */
static enum status check_storage(hid_t id, const char *name, uint64_t bytes)
{
  hid_t creation = H5Dget_create_plist(id);
  enum status status = hdf5_check(creation, STATUS_INPUT, "read how %s is stored", name);
  if (status == STATUS_OK && (H5Pget_layout(creation) != H5D_CONTIGUOUS || H5Pget_external_count(creation) != 0 || H5Pget_nfilters(creation) != 0))
    status = status_set(STATUS_INPUT, "%s is not stored contiguously and uncompressed", name);
  if (status == STATUS_OK && H5Dget_storage_size(id) != bytes)
    status = status_set(STATUS_INPUT, "%s stores %llu bytes; its shape and type need %llu", name, (unsigned long long)H5Dget_storage_size(id),
                        (unsigned long long)bytes);
  return hdf5_close(creation, status);
}

static enum status describe(const char *name, struct hdf5_dataset *dataset)
{
  hsize_t dims[H5S_MAX_RANK] = {0};
  hid_t type = H5Dget_type(dataset->id), space = H5Dget_space(dataset->id);
  enum status status = hdf5_check(type < space ? type : space, STATUS_INPUT, "read type and shape of %s", name);
  int found = status == STATUS_OK ? hdf5_type_find(type) : 0;
  if (found < 0)
    status = status_set(STATUS_INPUT, "%s has a number type that Sluice does not write", name);
  if (status == STATUS_OK) {
    dataset->type = (enum dtype)found;
    dataset->ndim = H5Sis_simple(space) > 0 ? H5Sget_simple_extent_dims(space, dims, NULL) : 0;
    for (int d = 0; d < dataset->ndim && d < LAYOUT_MAX_DIMS; d++)
      dataset->shape[d] = dims[d] > INT64_MAX ? 0 : (int64_t)dims[d];
    status = count_elements(name, dataset->type, dataset->ndim, dataset->shape, &dataset->elements);
  }
  if (status != STATUS_OK)
    status = STATUS_INPUT; /* an overflow is the file's fault here */
  return hdf5_close(type, hdf5_close(space, status));
}

enum status hdf5_open_dataset(hid_t parent, const char *name, struct hdf5_dataset *out)
{
  int held __attribute__((cleanup(release_lock))) = take_lock();
  struct hdf5_dataset dataset = {.id = H5I_INVALID_HID};
  enum status status = open_object(parent, name, H5I_DATASET, "dataset", &dataset.id);
  if (status == STATUS_OK)
    status = describe(name, &dataset);
  if (status == STATUS_OK)
    status = check_storage(dataset.id, name, (uint64_t)dataset.elements * dtype_size(dataset.type));
  if (status != STATUS_OK)
    return hdf5_close(dataset.id, status);
  *out = dataset;
  return STATUS_OK;
}

enum status hdf5_locate(const struct hdf5_dataset *dataset, int64_t *out)
{
  hdf5_lock();
  const haddr_t offset = H5Dget_offset(dataset->id);
  hdf5_unlock();
  if (offset == HADDR_UNDEF || offset > INT64_MAX)
    return status_set(STATUS_INPUT, "a dataset's bytes are not in it");
  *out = (int64_t)offset;
  return STATUS_OK;
}

/* Transfers. */

static enum status transfer_box(const struct hdf5_dataset *dataset, hid_t type, hid_t space, const struct layout_box *box, void *read_to,
                                const void *write_from, int64_t *moved)
{
  int held __attribute__((cleanup(release_lock))) = take_lock();
  hsize_t start[LAYOUT_MAX_DIMS], count[LAYOUT_MAX_DIMS], elements = 1;
  for (int d = 0; d < dataset->ndim; d++) {
    start[d] = (hsize_t)box->start[d];
    count[d] = (hsize_t)box->count[d];
    elements *= count[d];
  }
  hid_t memory = H5Screate_simple(1, &elements, NULL);
  int64_t done = memory;
  if (done >= 0)
    done = H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL);
  if (done >= 0)
    done = read_to ? H5Dread(dataset->id, type, memory, space, H5P_DEFAULT, read_to)
                   : H5Dwrite(dataset->id, type, memory, space, H5P_DEFAULT, write_from);
  enum status status = hdf5_check(done, STATUS_IO, "%s %llu elements", read_to ? "read" : "write", (unsigned long long)elements);
  *moved = (int64_t)elements;
  return hdf5_close(memory, status);
}

static enum status open_type_and_space(const struct hdf5_dataset *dataset, hid_t *type, hid_t *space)
{
  int held __attribute__((cleanup(release_lock))) = take_lock();
  *type = H5Dget_type(dataset->id);
  *space = H5Dget_space(dataset->id);
  return hdf5_check(*type < *space ? *type : *space, STATUS_IO, "read type and shape");
}

/* The lock is free between calls of HDF5: others need not wait for all of a big range. */
static enum status transfer(const struct hdf5_dataset *dataset, struct layout_range range, void *read_to, const void *write_from)
{
  if (range.begin >= range.end)
    return STATUS_OK;
  if (range.begin < 0 || range.end > dataset->elements)
    return status_set(STATUS_INTERNAL, "elements %lld to %lld of a dataset of %lld are asked for", (long long)range.begin, (long long)range.end,
                      (long long)dataset->elements);
  size_t size = dtype_size(dataset->type);
  int64_t most = hdf5_transfer_bytes > (int64_t)size ? hdf5_transfer_bytes / (int64_t)size : 1;
  hid_t type = H5I_INVALID_HID, space = H5I_INVALID_HID;
  enum status status = open_type_and_space(dataset, &type, &space);
  for (int64_t at = range.begin; at < range.end && status == STATUS_OK;) {
    struct layout_box boxes[2 * LAYOUT_MAX_DIMS];
    struct layout_range piece = {at, range.end - at > most ? at + most : range.end};
    int n = layout_boxes(dataset->ndim, dataset->shape, piece, boxes);
    for (int i = 0; i < n && status == STATUS_OK; i++) {
      size_t offset = (size_t)(at - range.begin) * size;
      int64_t moved;
      status = transfer_box(dataset, type, space, &boxes[i], read_to ? (char *)read_to + offset : NULL,
                            write_from ? (const char *)write_from + offset : NULL, &moved);
      at += moved;
    }
    if (status == STATUS_OK && at != piece.end)
      status = status_set(STATUS_INTERNAL, "the hyperslabs of a range end at element %lld, not %lld", (long long)at, (long long)piece.end);
  }
  return hdf5_close(type, hdf5_close(space, status));
}

enum status hdf5_write(const struct hdf5_dataset *dataset, struct layout_range range, const void *data)
{
  return transfer(dataset, range, NULL, data);
}

enum status hdf5_read(const struct hdf5_dataset *dataset, struct layout_range range, void *data)
{
  return transfer(dataset, range, data, NULL);
}

/* Text datasets. */

enum status hdf5_write_text(hid_t parent, const char *name, const char *text)
{
  int held __attribute__((cleanup(release_lock))) = take_lock();
  size_t bytes = strlen(text);
  uint32_t crc = (uint32_t)crc32_z(0, (const unsigned char *)text, bytes);
  hid_t type = H5I_INVALID_HID, dataset = H5I_INVALID_HID;
  enum status status = text_type(bytes + 1, &type);
  if (status != STATUS_OK)
    return status;
  hid_t space = H5Screate(H5S_SCALAR);
  status = hdf5_check(space, STATUS_LIBRARY, "make an HDF5 dataspace");
  if (status == STATUS_OK)
    status = create_with(parent, name, type, space, &dataset);
  if (status == STATUS_OK)
    status = hdf5_set_number(dataset, "crc32", DTYPE_U32, &crc);
  if (status == STATUS_OK)
    status = hdf5_check(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, text), STATUS_IO, "write the text %s", name);
  status = hdf5_close(dataset, status);
  return hdf5_close(type, hdf5_close(space, status));
}

static enum status read_text(hid_t dataset, const char *name, size_t most, char **text)
{
  hid_t type = H5Dget_type(dataset), space = H5Dget_space(dataset);
  size_t bytes = 0;
  enum status status = hdf5_check(type < space ? type : space, STATUS_INPUT, "read the type of %s", name);
  if (status == STATUS_OK)
    status = text_size(type, name, most, &bytes);
  if (status == STATUS_OK && H5Sget_simple_extent_type(space) != H5S_SCALAR)
    status = status_set(STATUS_INPUT, "%s is not one text", name);
  if (status == STATUS_OK)
    status = check_storage(dataset, name, bytes);
  if (status == STATUS_OK)
    status = mem_alloc(MEM_META, bytes + 1, (void **)text);
  if (status == STATUS_OK)
    status = hdf5_check(H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, *text), STATUS_INPUT, "read the text %s", name);
  return hdf5_close(type, hdf5_close(space, status));
}

enum status hdf5_read_text(hid_t parent, const char *name, size_t most, char **out)
{
  int held __attribute__((cleanup(release_lock))) = take_lock();
  hid_t dataset = H5I_INVALID_HID;
  uint32_t crc = 0;
  char *text = NULL;
  enum status status = open_object(parent, name, H5I_DATASET, "dataset", &dataset);
  if (status != STATUS_OK)
    return status;
  status = read_text(dataset, name, most, &text);
  if (status == STATUS_OK)
    status = hdf5_get_number(dataset, "crc32", DTYPE_U32, &crc);
  if (status == STATUS_OK && crc != (uint32_t)crc32_z(0, (const unsigned char *)text, strlen(text)))
    status = status_set(STATUS_INPUT, "the text %s does not match its checksum: the file is damaged", name);
  status = hdf5_close(dataset, status);
  if (status != STATUS_OK) {
    mem_free(text);
    return status;
  }
  *out = text;
  return STATUS_OK;
}
