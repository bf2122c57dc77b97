/* Datasets: making, opening, moving their elements; texts. */
#include <string.h>
#include <zlib.h>

#include "base/mem.h"
#include "io/hdf5/private.h"

static enum status create_with(hid_t parent, const char *name, hid_t type, hid_t space, hid_t *out)
{
  hid_t creation __attribute__((cleanup(hdf5_drop))) = H5Pcreate(H5P_DATASET_CREATE);
  const bool made = creation >= 0 && H5Pset_layout(creation, H5D_CONTIGUOUS) >= 0 &&
                    H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY) >= 0 &&
                    H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER) >= 0 &&
                    H5Pset_obj_track_times(creation, false) >= 0;
  const enum status status = hdf5_check(made ? 0 : -1, STATUS_LIBRARY, "set up an HDF5 dataset");
  if (status)
    return status;
  const hid_t dataset = H5Dcreate2(parent, name, type, space, H5P_DEFAULT, creation, H5P_DEFAULT);
  return hdf5_keep(dataset, hdf5_check(dataset, STATUS_IO, "create the dataset %s", name), out);
}

enum status hdf5_count(const char *name, enum dtype type, int ndim, const int64_t *shape,
                       int64_t *out)
{
  int64_t elements = 1, bytes;
  enum status status = STATUS_OK;
  if (ndim < 1 || ndim > LAYOUT_MAX_DIMS)
    return status_set(STATUS_INPUT, "%s has %d dimensions; 1 to %d are possible", name, ndim,
                      LAYOUT_MAX_DIMS);
  for (int d = 0; d < ndim && !status; d++) {
    if (shape[d] < 1)
      return status_set(STATUS_INPUT, "dimension %d of %s is %lld; it must be at least 1", d, name,
                        (long long)shape[d]);
    status = layout_mul(elements, shape[d], &elements);
  }
  status = status ?: layout_mul(elements, (int64_t)dtype_size(type), &bytes);
  if (!status)
    *out = elements;
  return status_prefix(status, "%s", name);
}

enum status hdf5_create_dataset(hid_t parent, const char *name, enum dtype type, int ndim,
                                const int64_t *shape, struct hdf5_dataset *out)
{
  int held __attribute__((cleanup(hdf5_release))) = hdf5_lock();
  struct hdf5_dataset dataset = {.id = H5I_INVALID_HID, .type = type, .ndim = ndim};
  hid_t file_type __attribute__((cleanup(hdf5_drop))) = H5I_INVALID_HID,
                  space __attribute__((cleanup(hdf5_drop))) = H5I_INVALID_HID;
  hsize_t dims[LAYOUT_MAX_DIMS];
  enum status status =
      hdf5_count(name, type, ndim, shape, &dataset.elements) ?: hdf5_type(type, &file_type);
  if (status)
    return status;
  for (int d = 0; d < ndim; d++)
    dims[d] = (hsize_t)(dataset.shape[d] = shape[d]);
  space = H5Screate_simple(ndim, dims, NULL);
  status = hdf5_check(space, STATUS_LIBRARY, "make an HDF5 dataspace")
               ?: create_with(parent, name, file_type, space, &dataset.id);
  if (!status)
    *out = dataset;
  return status;
}

/* Contiguous, in this file, and all its bytes are there. */
static enum status check_storage(hid_t id, const char *name, uint64_t bytes)
{
  hid_t creation __attribute__((cleanup(hdf5_drop))) = H5Dget_create_plist(id);
  const enum status status = hdf5_check(creation, STATUS_INPUT, "read how %s is stored", name);
  if (status)
    return status;
  if (H5Pget_layout(creation) != H5D_CONTIGUOUS || H5Pget_external_count(creation) != 0 ||
      H5Pget_nfilters(creation) != 0)
    return status_set(STATUS_INPUT, "%s is not stored contiguously and uncompressed", name);
  if (H5Dget_storage_size(id) != bytes)
    return status_set(STATUS_INPUT, "%s stores %llu bytes; its shape and type need %llu", name,
                      (unsigned long long)H5Dget_storage_size(id), (unsigned long long)bytes);
  return STATUS_OK;
}

static enum status describe(const char *name, struct hdf5_dataset *dataset)
{
  hsize_t dims[H5S_MAX_RANK] = {0};
  hid_t type __attribute__((cleanup(hdf5_drop))) = H5Dget_type(dataset->id),
             space __attribute__((cleanup(hdf5_drop))) = H5Dget_space(dataset->id);
  if (hdf5_check(type < space ? type : space, STATUS_INPUT, "read type and shape of %s", name))
    return STATUS_INPUT;
  const int found = hdf5_type_find(type);
  if (found < 0)
    return status_set(STATUS_INPUT, "%s has a number type that Sluice does not write", name);
  dataset->type = (enum dtype)found;
  dataset->ndim = H5Sis_simple(space) > 0 ? H5Sget_simple_extent_dims(space, dims, NULL) : 0;
  for (int d = 0; d < dataset->ndim && d < LAYOUT_MAX_DIMS; d++)
    dataset->shape[d] = dims[d] > INT64_MAX ? 0 : (int64_t)dims[d];
  return hdf5_count(name, dataset->type, dataset->ndim, dataset->shape, &dataset->elements)
             ? STATUS_INPUT /* an overflow means that the file is damaged */
             : STATUS_OK;
}

enum status hdf5_open_dataset(hid_t parent, const char *name, struct hdf5_dataset *out)
{
  int held __attribute__((cleanup(hdf5_release))) = hdf5_lock();
  struct hdf5_dataset dataset = {.id = H5I_INVALID_HID};
  enum status status = hdf5_open_object(parent, name, H5I_DATASET, "dataset", &dataset.id)
                           ?: describe(name, &dataset);
  status =
      status
          ?: check_storage(dataset.id, name, (uint64_t)dataset.elements * dtype_size(dataset.type));
  if (status)
    return hdf5_close(dataset.id, status);
  *out = dataset;
  return STATUS_OK;
}

enum status hdf5_locate(const struct hdf5_dataset *dataset, int64_t *out)
{
  int held __attribute__((cleanup(hdf5_release))) = hdf5_lock();
  const haddr_t offset = H5Dget_offset(dataset->id);
  const int64_t bytes = dataset->elements * (int64_t)dtype_size(dataset->type);
  if (offset == HADDR_UNDEF || offset > (haddr_t)(INT64_MAX - bytes))
    return status_set(STATUS_INPUT, "a dataset's bytes are not in it");
  *out = (int64_t)offset;
  return STATUS_OK;
}

/* Elements. */

enum status hdf5_write(const struct hdf5_dataset *dataset, const void *data)
{
  int held __attribute__((cleanup(hdf5_release))) = hdf5_lock();
  hid_t type __attribute__((cleanup(hdf5_drop))) = H5Dget_type(dataset->id);
  return hdf5_check(type, STATUS_IO, "read the type of a dataset")
             ?: hdf5_check(H5Dwrite(dataset->id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data),
                           STATUS_IO, "write %lld elements", (long long)dataset->elements);
}

enum status hdf5_read(const struct hdf5_dataset *dataset, void *data)
{
  int held __attribute__((cleanup(hdf5_release))) = hdf5_lock();
  hid_t type __attribute__((cleanup(hdf5_drop))) = H5Dget_type(dataset->id);
  return hdf5_check(type, STATUS_IO, "read the type of a dataset")
             ?: hdf5_check(H5Dread(dataset->id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data),
                           STATUS_IO, "read %lld elements", (long long)dataset->elements);
}

/* Rows of numbers. */

enum status hdf5_write_row(hid_t parent, const char *name, enum dtype type, int64_t n,
                           const void *data)
{
  struct hdf5_dataset dataset = {.id = H5I_INVALID_HID};
  if (n == 0)
    return STATUS_OK;
  const uint32_t crc = (uint32_t)crc32_z(0, data, (size_t)n * dtype_size(type));
  const enum status status = hdf5_create_dataset(parent, name, type, 1, &n, &dataset)
                             ?: hdf5_write(&dataset, data)
                             ?: hdf5_set_number(dataset.id, "crc32", DTYPE_U32, &crc);
  return hdf5_close(dataset.id, status);
}

enum status hdf5_open_row(hid_t parent, const char *name, enum dtype type, int64_t n,
                          struct hdf5_dataset *out, uint32_t *crc)
{
  struct hdf5_dataset dataset = {.id = H5I_INVALID_HID};
  enum status status = hdf5_open_dataset(parent, name, &dataset);
  if (!status && (dataset.type != type || dataset.ndim != 1 || dataset.shape[0] != n))
    status = status_set(STATUS_INPUT, "'%s' is not a row of %lld numbers of type %s", name,
                        (long long)n, dtype_name(type));
  status = status ?: hdf5_get_number(dataset.id, "crc32", DTYPE_U32, crc);
  if (status)
    return hdf5_close(dataset.id, status);
  *out = dataset;
  return STATUS_OK;
}

enum status hdf5_read_row(hid_t parent, const char *name, enum dtype type, int64_t n, void *data)
{
  struct hdf5_dataset dataset = {.id = H5I_INVALID_HID};
  uint32_t crc = 0;
  enum status status =
      hdf5_open_row(parent, name, type, n, &dataset, &crc) ?: hdf5_read(&dataset, data);
  if (!status && crc != (uint32_t)crc32_z(0, data, (size_t)n * dtype_size(type)))
    status =
        status_set(STATUS_INPUT, "'%s' does not match its checksum: the file is damaged", name);
  return hdf5_close(dataset.id, status);
}

/* Text datasets. */

enum status hdf5_write_text(hid_t parent, const char *name, const char *text)
{
  int held __attribute__((cleanup(hdf5_release))) = hdf5_lock();
  size_t bytes = strlen(text);
  uint32_t crc = (uint32_t)crc32_z(0, (const unsigned char *)text, bytes);
  hid_t type __attribute__((cleanup(hdf5_drop))) = H5I_INVALID_HID,
             space __attribute__((cleanup(hdf5_drop))) = H5Screate(H5S_SCALAR),
             dataset = H5I_INVALID_HID;
  const enum status status =
      hdf5_check(space, STATUS_LIBRARY, "make an HDF5 dataspace")
      ?: hdf5_text_type(bytes + 1, &type)
      ?: create_with(parent, name, type, space, &dataset)
      ?: hdf5_set_number(dataset, "crc32", DTYPE_U32, &crc)
      ?: hdf5_check(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, text), STATUS_IO,
                    "write the text %s", name);
  return hdf5_close(dataset, status);
}

static enum status read_text(hid_t dataset, const char *name, size_t most, char **text)
{
  hid_t type __attribute__((cleanup(hdf5_drop))) = H5Dget_type(dataset),
             space __attribute__((cleanup(hdf5_drop))) = H5Dget_space(dataset);
  size_t bytes = 0;
  enum status status =
      hdf5_check(type < space ? type : space, STATUS_INPUT, "read the type of %s", name)
          ?: hdf5_text_size(type, name, most, &bytes);
  if (!status && H5Sget_simple_extent_type(space) != H5S_SCALAR)
    status = status_set(STATUS_INPUT, "%s is not one text", name);
  return status ?: check_storage(dataset, name, bytes)
                ?: mem_alloc(MEM_META, bytes + 1, (void **)text)
                ?: hdf5_check(H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, *text),
                           STATUS_INPUT, "read the text %s", name);
}

enum status hdf5_read_text(hid_t parent, const char *name, size_t most, char **out)
{
  int held __attribute__((cleanup(hdf5_release))) = hdf5_lock();
  hid_t dataset = H5I_INVALID_HID;
  uint32_t crc = 0;
  char *text = NULL;
  enum status status = hdf5_open_object(parent, name, H5I_DATASET, "dataset", &dataset)
                       ?: read_text(dataset, name, most, &text)
                       ?: hdf5_get_number(dataset, "crc32", DTYPE_U32, &crc);
  if (!status && crc != (uint32_t)crc32_z(0, (const unsigned char *)text, strlen(text)))
    status = status_set(STATUS_INPUT,
                        "the text %s does not match its checksum: the file is damaged", name);
  status = hdf5_close(dataset, status);
  if (status)
    mem_free(text);
  else
    *out = text;
  return status;
}
