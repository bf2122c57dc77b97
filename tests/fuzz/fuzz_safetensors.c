/* safetensors. The first byte chooses one file, or a folder with an index. An index is followed by
 * a zero byte and the content of first.safetensors. The file second.safetensors is given. All that
 * is accepted is read to its last element. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "io/huggingface/private.h"

static const char second[] = "\x48\0\0\0\0\0\0\0{\"b\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_"
                             "offsets\":[0,8]}}             \0\1\2\3\4\5\6\7";

/* The block has exactly the requested size, so that a write after its end is seen. */
static void read_range(const struct st_tensor *tensor, struct layout_range range)
{
  float *out = malloc((size_t)(range.end - range.begin) * sizeof *out + 1);
  fuzz_expect(out, "no memory");
  fuzz_expect(fuzz_accepted(safetensors_read(tensor, range, out)) == tensor->known,
              "a tensor that is known cannot be read, or one that is not can");
  free(out);
}

static void look(const struct st_tensor *tensor)
{
  int64_t elements = 1;
  fuzz_expect(tensor->bytes >= 0 && tensor->elements >= 0 && tensor->ndim >= 0,
              "a size is negative");
  for (int i = 0; tensor->known && i < tensor->ndim; i++)
    elements *= tensor->shape[i];
  fuzz_expect(!tensor->known || elements == tensor->elements,
              "a shape does not give the number of elements");
  fuzz_expect(!tensor->known ||
                  tensor->bytes == tensor->elements * (tensor->type == DTYPE_F32 ? 4 : 2),
              "elements do not give the bytes");
  read_range(tensor, (struct layout_range){0, tensor->known ? tensor->elements : 0});
  if (tensor->elements > 1)
    read_range(tensor,
               (struct layout_range){tensor->elements - 1,
                                     tensor->known ? tensor->elements : tensor->elements - 1});
}

static void read_file(const char *data, size_t size)
{
  struct safetensors *file = NULL;
  int64_t bytes = 0;
  if (!fuzz_accepted(safetensors_open(fuzz_file("single.safetensors", data, size), &file)))
    return;
  for (int64_t i = 0; i < file->n; i++) {
    const struct st_tensor *tensor = &file->tensor[i];
    look(tensor);
    bytes += tensor->bytes;
    fuzz_expect(st_find(file->by_name, file->n, tensor->name) == tensor,
                "a tensor is not found by its name");
  }
  fuzz_expect(bytes < (int64_t)size, "the tensors have more bytes than the file");
  safetensors_close(file);
}

static void read_folder(const char *data, size_t size)
{
  struct fuzz_piece first = {data, size}, index = fuzz_cut(&first);
  struct safetensors_folder *folder = NULL;
  fuzz_file("model.safetensors.index.json", index.text, index.bytes);
  fuzz_file("first.safetensors", first.text, first.bytes);
  fuzz_file("second.safetensors", second, sizeof second - 1);
  enum status status = safetensors_folder_open(fuzz_folder(), &folder);
  if (status == STATUS_IO) /* the index names a file that is not there */
    return;
  if (!fuzz_accepted(status))
    return;
  for (int64_t i = 0; i < safetensors_folder_count(folder); i++) {
    const struct st_tensor *tensor = safetensors_folder_at(folder, i);
    look(tensor);
    fuzz_expect(safetensors_folder_find(folder, tensor->name) == tensor,
                "a tensor is not found by its name");
  }
  safetensors_folder_close(folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  if (size == 0)
    return 0;
  (data[0] % 2 ? read_folder : read_file)((const char *)data + 1, size - 1);
  return 0;
}
