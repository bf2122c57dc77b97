/* Attributes. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "io/hdf5/private.h"

enum { MOST_ATTRIBUTE = 60000 /* an object header message holds less than 64 KiB */ };

static enum status set_attribute(hid_t object, const char *name, hid_t type, const void *value)
{
  hid_t space __attribute__((cleanup(hdf5_drop))) = H5Screate(H5S_SCALAR),
              attribute __attribute__((cleanup(hdf5_drop))) = H5I_INVALID_HID;
  enum status status = hdf5_check(space, STATUS_LIBRARY, "make an HDF5 dataspace");
  const htri_t there = status ? 0 : H5Aexists(object, name);
  status = status ?: hdf5_check(there, STATUS_IO, "look for the attribute %s", name);
  if (status)
    return status;
  attribute = there ? H5Aopen(object, name, H5P_DEFAULT)
                    : H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
  return hdf5_check(attribute, STATUS_IO, "create the attribute %s", name)
             ?: hdf5_check(H5Awrite(attribute, type, value), STATUS_IO, "write the attribute %s",
                           name);
}

enum status hdf5_set_number(hid_t object, const char *name, enum dtype type, const void *value)
{
  int held __attribute__((cleanup(hdf5_release))) = hdf5_lock();
  hid_t id __attribute__((cleanup(hdf5_drop))) = H5I_INVALID_HID;
  return hdf5_type(type, &id) ?: set_attribute(object, name, id, value);
}

enum status hdf5_set_text(hid_t object, const char *name, const char *text)
{
  int held __attribute__((cleanup(hdf5_release))) = hdf5_lock();
  size_t bytes = strlen(text);
  if (bytes > MOST_ATTRIBUTE)
    return status_set(STATUS_INTERNAL, "the attribute %s has %zu bytes of text; %d are possible",
                      name, bytes, MOST_ATTRIBUTE);
  hid_t id __attribute__((cleanup(hdf5_drop))) = H5I_INVALID_HID;
  return hdf5_text_type(bytes + 1, &id) ?: set_attribute(object, name, id, text);
}

bool hdf5_has_attribute(hid_t object, const char *name)
{
  int held __attribute__((cleanup(hdf5_release))) = hdf5_lock();
  return H5Aexists(object, name) != 0; /* a failure is reported by the get that follows */
}

/* A scalar attribute and its type; both to be closed, also after a failure. */
static enum status open_attribute(hid_t object, const char *name, hid_t *attribute, hid_t *type)
{
  hid_t space __attribute__((cleanup(hdf5_drop))) = H5I_INVALID_HID;
  const htri_t there = H5Aexists(object, name);
  if (there == 0)
    return status_set(STATUS_INPUT, "the attribute %s is missing", name);
  if (there > 0)
    *attribute = H5Aopen(object, name, H5P_DEFAULT);
  if (*attribute >= 0)
    *type = H5Aget_type(*attribute);
  if (*type >= 0)
    space = H5Aget_space(*attribute);
  const enum status status = hdf5_check(space, STATUS_INPUT, "open the attribute %s", name);
  return status || H5Sget_simple_extent_type(space) == H5S_SCALAR
             ? status
             : status_set(STATUS_INPUT, "the attribute %s is not one value", name);
}

enum status hdf5_get_number(hid_t object, const char *name, enum dtype type, void *out)
{
  int held __attribute__((cleanup(hdf5_release))) = hdf5_lock();
  hid_t attribute __attribute__((cleanup(hdf5_drop))) = H5I_INVALID_HID,
                  stored __attribute__((cleanup(hdf5_drop))) = H5I_INVALID_HID;
  enum status status = open_attribute(object, name, &attribute, &stored);
  if (!status && hdf5_type_find(stored) != (int)type)
    status = status_set(STATUS_INPUT, "the attribute %s is not of type %s", name, dtype_name(type));
  return status
             ?: hdf5_check(H5Aread(attribute, stored, out), STATUS_INPUT, "read the attribute %s",
                           name);
}

enum status hdf5_get_text(hid_t object, const char *name, size_t most, char **out)
{
  int held __attribute__((cleanup(hdf5_release))) = hdf5_lock();
  hid_t attribute __attribute__((cleanup(hdf5_drop))) = H5I_INVALID_HID,
                  stored __attribute__((cleanup(hdf5_drop))) = H5I_INVALID_HID;
  char *text = NULL;
  size_t bytes = 0;
  const enum status status =
      open_attribute(object, name, &attribute, &stored)
      ?: hdf5_text_size(stored, name, most, &bytes)
      ?: mem_new(MEM_META, bytes + 1, &text)
      ?: hdf5_check(H5Aread(attribute, stored, text), STATUS_INPUT, "read the attribute %s", name);
  if (status)
    mem_free(text);
  else
    *out = text;
  return status;
}

enum status hdf5_copy_text(hid_t object, const char *name, char *out, size_t size)
{
  char *text = NULL;
  const enum status status = hdf5_get_text(object, name, size - 1, &text);
  if (!status)
    snprintf(out, size, "%s", text);
  mem_free(text);
  return status;
}
