/* The identity of a part stands at its data set, so parts are checked one by one. */
#include "io/tokens/reference.h"

#include "io/hdf5/hdf5.h"

static enum status write_part(hid_t file, const struct reference_part *part)
{
  hid_t group = H5I_INVALID_HID;
  enum status status = hdf5_enter_group(file, part->name, &group);
  if (status)
    return status;
  status = hdf5_set_number(group, "conversations", DTYPE_U64, &part->of)
               ?: hdf5_write_row(group, "log_likelihood", DTYPE_F64, part->rows, part->row);
  return hdf5_close(group, status);
}

enum status reference_write(const char *path, int n, const struct reference_part *part)
{
  hid_t file = H5I_INVALID_HID;
  struct scratch scratch = {0};
  enum status status = scratch_make(path, &scratch) ?: hdf5_create(scratch.file, &file);
  for (int i = 0; i < n && !status; i++)
    status = write_part(file, &part[i]);
  return hdf5_finish_as(file, &scratch, path, status);
}

static enum status read_part(hid_t group, const struct reference_part *part)
{
  uint64_t of = 0;
  const enum status status = hdf5_get_number(group, "conversations", DTYPE_U64, &of);
  if (!status && of != part->of)
    return status_set(STATUS_INPUT, "it is of other conversations");
  return status ?: hdf5_read_row(group, "log_likelihood", DTYPE_F64, part->rows, part->row);
}

enum status reference_read(const char *path, const struct reference_part *part)
{
  hid_t file = H5I_INVALID_HID, group = H5I_INVALID_HID;
  enum status status = hdf5_open(path, false, &file);
  if (!status) {
    status = hdf5_open_group(file, part->name, &group);
    status = status ? status : hdf5_close(group, read_part(group, part));
    status = hdf5_close(file, status);
  }
  return status ? status_prefix(status, "%s", path) : STATUS_OK;
}
