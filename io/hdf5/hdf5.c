/* The lock, the check of return codes, types and groups. */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "io/hdf5/private.h"

enum { REASON_BYTES = 512 };

/* The lock. It is fair, so that a thread with many transfers does not starve the others. It is
 * recursive, because these functions call each other. */

static struct {
  pthread_mutex_t mutex;
  pthread_cond_t turn;
  uint64_t next, serving; /* tickets */
  pthread_t owner;
  int depth;
} lock = {.mutex = PTHREAD_MUTEX_INITIALIZER, .turn = PTHREAD_COND_INITIALIZER};

int hdf5_lock(void)
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
  return 1;
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

void hdf5_release(int *held)
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

/* HDF5's own text about a failed system call is a list of pointers and flags around one useful
 * part. */
static void tidy_reason(char *reason)
{
  static const char *const marks[] = {"error message = '", "MPI error string is '"};
  for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
    char *found = strstr(reason, marks[i]);
    if (!found)
      continue;
    found += strlen(marks[i]);
    size_t length = strcspn(found, "'");
    memmove(reason, found, length);
    reason[length] = '\0';
  }
}

/* Whether the system failed, and not the content of the file. */
static bool is_of_system(const char *reason)
{
  static const int errors[] = {EIO, ENOSPC, EDQUOT, EMFILE, ENFILE, ENOMEM, ESTALE, EACCES};
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (strcasestr(reason, strerror(errors[i])))
      return true;
  return false;
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
  const bool full = strcasestr(reason, strerror(ENOSPC)) || strcasestr(reason, strerror(EDQUOT)) ||
                    strstr(reason, "MPI_ERR_QUOTA");
  return status_set(code == STATUS_INPUT && is_of_system(reason) ? STATUS_IO : code,
                    "cannot %s: %s%s", what, reason,
                    full ? "; free some space or choose another folder" : "");
}

enum status hdf5_close(hid_t id, enum status so_far)
{
  if (id < 0)
    return so_far;
  int held __attribute__((cleanup(hdf5_release))) = hdf5_lock();
  bool file = H5Iget_type(id) == H5I_FILE;
  int left = file ? H5Fclose(id) : H5Idec_ref(id);
  if (file && left < 0)
    hdf5_abandon();
  return so_far ?: hdf5_check(left, STATUS_IO, "close %s", file ? "it" : "a part of it");
}

void hdf5_drop(hid_t *id)
{
  (void)hdf5_close(*id, STATUS_OK);
}

enum status hdf5_keep(hid_t id, enum status status, hid_t *out)
{
  if (status)
    return hdf5_close(id, status);
  *out = id;
  return STATUS_OK;
}

/* Types. */

/* sign bit at the top, then the exponent, then the mantissa */
static enum status small_float(int exponent_bits, int mantissa_bits, size_t bias, hid_t *out)
{
  size_t e = (size_t)exponent_bits, m = (size_t)mantissa_bits;
  hid_t type = H5Tcopy(H5T_IEEE_F32LE);
  const bool made = type >= 0 && H5Tset_fields(type, e + m, m, e, 0, m) >= 0 &&
                    H5Tset_size(type, (e + m + 1) / 8) >= 0 && H5Tset_ebias(type, bias) >= 0;
  enum status status = hdf5_check(made ? 0 : -1, STATUS_LIBRARY, "make an HDF5 number type");
  return hdf5_keep(type, status, out);
}

static enum status copy_type(hid_t standard, hid_t *out)
{
  const hid_t type = H5Tcopy(standard);
  return hdf5_keep(type, hdf5_check(type, STATUS_LIBRARY, "make an HDF5 number type"), out);
}

enum status hdf5_type(enum dtype type, hid_t *out)
{
  int held __attribute__((cleanup(hdf5_release))) = hdf5_lock();
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
  case DTYPE_BLOCK8:
  case DTYPE_COUNT: break;
  }
  return status_set(STATUS_INTERNAL, "there is no HDF5 type for number format %d", (int)type);
}

int hdf5_type_find(hid_t type)
{
  int held __attribute__((cleanup(hdf5_release))) = hdf5_lock();
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

enum status hdf5_text_type(size_t bytes, hid_t *out)
{
  hid_t type = H5Tcopy(H5T_C_S1);
  const bool made = type >= 0 && H5Tset_size(type, bytes) >= 0;
  enum status status = hdf5_check(made ? 0 : -1, STATUS_LIBRARY, "make an HDF5 string type");
  return hdf5_keep(type, status, out);
}

/* Bytes that a fixed-length string type holds, at most `most` and a NUL. */
enum status hdf5_text_size(hid_t type, const char *name, size_t most, size_t *out)
{
  htri_t variable = H5Tget_class(type) == H5T_STRING ? H5Tis_variable_str(type) : -1;
  if (variable != 0)
    return status_set(STATUS_INPUT, "%s is not text of fixed length", name);
  size_t bytes = H5Tget_size(type);
  if (bytes == 0 || bytes - 1 > most)
    return status_set(STATUS_INPUT, "%s is text of %zu bytes; at most %zu are expected", name,
                      bytes, most);
  *out = bytes;
  return STATUS_OK;
}

/* Groups. */

/* A name in this file, of the wanted kind. Links into other files are not followed. */
enum status hdf5_open_object(hid_t parent, const char *name, H5I_type_t kind, const char *kind_name,
                             hid_t *out)
{
  H5L_info_t link;
  const htri_t there = H5Lexists(parent, name, H5P_DEFAULT);
  if (there == 0)
    return status_set(STATUS_INPUT, "there is no %s %s in it", kind_name, name);
  enum status status = hdf5_check(there, STATUS_INPUT, "look for %s", name)
                           ?: hdf5_check(H5Lget_info(parent, name, &link, H5P_DEFAULT),
                                         STATUS_INPUT, "look at %s", name);
  if (status)
    return status;
  if (link.type != H5L_TYPE_HARD)
    return status_set(STATUS_INPUT, "%s is a link to elsewhere; a %s is expected", name, kind_name);
  hid_t object = H5Oopen(parent, name, H5P_DEFAULT);
  status = hdf5_check(object, STATUS_INPUT, "open %s", name);
  if (!status && H5Iget_type(object) != kind)
    status = status_set(STATUS_INPUT, "%s is not a %s", name, kind_name);
  return hdf5_keep(object, status, out);
}

enum status hdf5_enter_group(hid_t parent, const char *name, hid_t *out)
{
  int held __attribute__((cleanup(hdf5_release))) = hdf5_lock();
  const htri_t there = H5Lexists(parent, name, H5P_DEFAULT);
  if (there > 0)
    return hdf5_open_group(parent, name, out);
  enum status status = hdf5_check(there, STATUS_IO, "look for the group %s", name);
  hid_t creation __attribute__((cleanup(hdf5_drop))) = H5Pcreate(H5P_GROUP_CREATE);
  const bool made = creation >= 0 && H5Pset_obj_track_times(creation, false) >= 0;
  status = status ?: hdf5_check(made ? 0 : -1, STATUS_LIBRARY, "set up an HDF5 group");
  if (status)
    return status;
  const hid_t group = H5Gcreate2(parent, name, H5P_DEFAULT, creation, H5P_DEFAULT);
  return hdf5_keep(group, hdf5_check(group, STATUS_IO, "create the group %s", name), out);
}

enum status hdf5_open_group(hid_t parent, const char *name, hid_t *out)
{
  int held __attribute__((cleanup(hdf5_release))) = hdf5_lock();
  return hdf5_open_object(parent, name, H5I_GROUP, "group", out);
}
