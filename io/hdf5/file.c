/* Files: making, opening, ending. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/hdf5/private.h"
#include "io/text/file.h"
#include "io/text/file_kind.h"

enum {
  ALIGN_BYTES = 65536, /* objects of this size or more begin at a multiple of it: whole pages and
                          file-system blocks */
  META_BLOCK_BYTES = 32768, /* metadata is stored together, so that a reader fetches few blocks */
  MOST_COMPACT = 64
};

/* Ending a file that was written. After a failed flush, every later flush of HDF5 1.10 fails too,
 * also the one in H5Fclose. A failed H5Fclose leaves half-destroyed tables, and HDF5 reads freed
 * memory when the process ends. So no flush may fail: space is reserved first, and after an earlier
 * failure the file is flushed into memory. */

static bool broken;

bool hdf5_is_broken(void)
{
  int held __attribute__((cleanup(hdf5_release))) = hdf5_lock();
  return broken;
}

void hdf5_abandon(void)
{
  int held __attribute__((cleanup(hdf5_release))) = hdf5_lock();
  broken = true;
}

static enum status make_room(hid_t file, int fd)
{
  hsize_t bytes = 0;
  return hdf5_check(H5Fget_filesize(file, &bytes), STATUS_IO, "find its size")
             ?: file_reserve_open(fd, "it", (int64_t)bytes);
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
  const enum status status = hdf5_check(H5Fflush(file, H5F_SCOPE_LOCAL), STATUS_IO, "write it")
                                 ?: hdf5_check(H5Fclose(file), STATUS_IO, "close it");
  broken = broken || status != STATUS_OK;
  return status;
}

enum status hdf5_finish(hid_t file, enum status so_far)
{
  if (file < 0)
    return so_far;
  int held __attribute__((cleanup(hdf5_release))) = hdf5_lock();
  int *fd = NULL;
  const enum status found = hdf5_check(H5Fget_vfd_handle(file, H5P_DEFAULT, (void **)&fd),
                                       STATUS_IO, "find its descriptor"),
                    status = so_far ?: found ?: make_room(file, *fd);
  if (!status)
    return flush_and_close(file);
  if (!found)
    redirect_to_memory(*fd);
  broken = broken || H5Fclose(file) < 0;
  return status;
}

enum status hdf5_finish_as(hid_t file, struct scratch *scratch, const char *final,
                           enum status so_far)
{
  enum status status = hdf5_finish(file, so_far);
  status = status ? status_prefix(status, "%s", final) : scratch_publish(scratch, final);
  status = scratch_explain(scratch, status);
  scratch_drop(scratch);
  return status;
}

/* Making and opening. */

/* Strong closing: it also closes objects that a failure left open inside the file. */
static enum status access_list(int64_t alignment, void *mpi_comm, hid_t *out)
{
  if (H5Eset_auto2(H5E_DEFAULT, NULL, NULL) < 0)
    return status_set(STATUS_LIBRARY,
                      "cannot silence HDF5's error stack: the HDF5 library is not working");
  hid_t list = H5Pcreate(H5P_FILE_ACCESS);
  bool made = list >= 0 && H5Pset_libver_bounds(list, H5F_LIBVER_V18, H5F_LIBVER_LATEST) >= 0 &&
              H5Pset_fclose_degree(list, H5F_CLOSE_STRONG) >= 0 &&
              H5Pset_alignment(list, (hsize_t)alignment, (hsize_t)alignment) >= 0 &&
              H5Pset_meta_block_size(list, META_BLOCK_BYTES) >= 0;
  /* A failed write of data must fail in H5Dwrite and not in H5Dclose, which HDF5 does not
   * survive. */
  made = made && H5Pset_sieve_buf_size(list, 0) >= 0;
#if H5_VERSION_GE(1, 10, 7)
  /* Finished files never change, and many cluster file systems have no locks. */
  made = made && H5Pset_file_locking(list, false, true) >= 0;
#endif
  enum status status = hdf5_check(made ? 0 : -1, STATUS_LIBRARY, "set up HDF5's file access");
  if (!status && mpi_comm)
    status = hdf5_check(H5Pset_fapl_mpio(list, *(MPI_Comm *)mpi_comm, MPI_INFO_NULL),
                        STATUS_LIBRARY, "set up parallel HDF5");
  return hdf5_keep(list, status, out);
}

enum status hdf5_create_aligned(const char *path, void *mpi_comm, int64_t alignment, hid_t *out)
{
  int held __attribute__((cleanup(hdf5_release))) = hdf5_lock();
  hid_t access __attribute__((cleanup(hdf5_drop))) = H5I_INVALID_HID,
               creation __attribute__((cleanup(hdf5_drop))) = H5Pcreate(H5P_FILE_CREATE);
  /* The root's attributes stay in its header. */
  const bool made = creation >= 0 && H5Pset_obj_track_times(creation, false) >= 0 &&
                    H5Pset_attr_phase_change(creation, MOST_COMPACT, MOST_COMPACT / 2) >= 0;
  const enum status status = hdf5_check(made ? 0 : -1, STATUS_LIBRARY, "set up an HDF5 file")
                                 ?: access_list(alignment, mpi_comm, &access);
  if (status)
    return status;
  const hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, creation, access);
  return hdf5_keep(file, hdf5_check(file, STATUS_IO, "create it"), out);
}

enum status hdf5_create(const char *path, hid_t *out)
{
  return hdf5_create_aligned(path, NULL, ALIGN_BYTES, out);
}

static const char *looks_like(const unsigned char *head, size_t bytes)
{
  const struct file_kind *kind = file_kind_find((const char *)head, bytes);
  if (kind)
    return kind->is;
  size_t text = 0, zero = 0;
  for (size_t i = 0; i < bytes; i++) {
    bool stray = (head[i] & 0xc0) == 0x80 &&
                 (i == 0 || head[i - 1] < 0x80); /* a byte that continues no UTF-8 character */
    text += (head[i] >= 32 && !stray) || isspace(head[i]);
    zero += head[i] == 0;
  }
  return zero == bytes ? "zeros" : text == bytes ? "text" : "binary data of another kind";
}

/* Checks on a path that need no HDF5, with messages that HDF5 does not have. */
static enum status check_is_hdf5(const char *path, bool write)
{
  static const unsigned char signature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
  struct stat info;
  unsigned char head[FILE_KIND_BYTES];
  if (stat(path, &info) != 0)
    return status_set(errno == ENOENT ? STATUS_INPUT : STATUS_IO, "cannot open it: %s",
                      strerror(errno));
  if (S_ISDIR(info.st_mode))
    return status_set(STATUS_INPUT, "it is a folder; an HDF5 file is expected");
  if (!S_ISREG(info.st_mode))
    return status_set(STATUS_INPUT, "it is not a regular file; an HDF5 file is expected");
  int fd = open(path, (write ? O_RDWR : O_RDONLY) | O_CLOEXEC);
  if (fd < 0)
    return status_set(STATUS_IO, "cannot open it: %s%s", strerror(errno),
                      errno == EACCES ? "; check its permissions" : "");
  ssize_t got = pread(fd, head, sizeof head, 0);
  int reason = errno;
  close(fd);
  if (got < 0)
    return status_set(STATUS_IO, "cannot read it: %s", strerror(reason));
  if (got == 0)
    return status_set(STATUS_INPUT, "it is empty (0 bytes); an HDF5 file is expected");
  if (got < (ssize_t)sizeof signature || memcmp(head, signature, sizeof signature) != 0)
    return status_set(STATUS_INPUT, "it is not an HDF5 file; it looks like %s",
                      looks_like(head, (size_t)got));
  return STATUS_OK;
}

static enum status open_with(const char *path, bool write, hid_t access, hid_t *out)
{
  const hid_t file = H5Fopen(path, write ? H5F_ACC_RDWR : H5F_ACC_RDONLY, access);
  enum status status = hdf5_check(file, write ? STATUS_IO : STATUS_INPUT, "open it as HDF5");
  if (status == STATUS_INPUT)
    status_set(status, "%s; it is truncated or damaged", status_text());
  return hdf5_keep(file, status, out);
}

enum status hdf5_open(const char *path, bool write, hid_t *out)
{
  hid_t access __attribute__((cleanup(hdf5_drop))) = H5I_INVALID_HID;
  enum status status = check_is_hdf5(path, write);
  int held __attribute__((cleanup(hdf5_release))) = hdf5_lock();
  return status ?: access_list(ALIGN_BYTES, NULL, &access) ?: open_with(path, write, access, out);
}
