/* Opens a kind of device by its name, and checks what all kinds share. */
#include "config.h"

#include "device/device.h"

#include <string.h>

#include "base/append.h"
#include "device/host/host.h"
#ifdef HAVE_CUDA
#include "gpu/gpu.h"
#endif

static const struct back_end {
  const struct device_ops *ops;
  enum status (*create)(int ordinal, enum dtype compute, struct device **out);
  int (*count)(void);
  enum status (*bus)(int ordinal, char *out, int size);
} back_ends[] = {
    {&host_ops, host_device_create, host_device_count, host_device_bus},
#ifdef HAVE_CUDA
    {&cuda_ops, cuda_device_create, cuda_device_count, cuda_device_bus},
#endif
};
enum { BACK_ENDS = sizeof back_ends / sizeof back_ends[0] };

static const struct back_end *find(const char *name)
{
  for (int i = 0; i < BACK_ENDS; i++)
    if (strcmp(back_ends[i].ops->name, name) == 0)
      return &back_ends[i];
  return NULL;
}

static enum status unknown(const char *name)
{
  char known[256] = "";
  for (int i = 0; i < BACK_ENDS; i++)
    append_text(known, sizeof known, "%s%s", i ? ", " : "", back_ends[i].ops->name);
  return status_set(STATUS_UNSUPPORTED, "this build has no device '%s'; it has: %s", name, known);
}

int lane_priority(enum lane_role role, int least, int greatest)
{
  return role == LANE_ROLE_COMMUNICATE ? greatest
         : role == LANE_ROLE_COMPUTE   ? (least + greatest) / 2
                                       : least;
}

enum status device_create(const char *name, int ordinal, enum dtype compute, struct device **out)
{
  const struct back_end *back_end = find(name);
  return back_end ? back_end->create(ordinal, compute, out) : unknown(name);
}

int device_count(const char *name)
{
  const struct back_end *back_end = find(name);
  return back_end ? back_end->count() : 0;
}

enum status device_bus(const char *name, int ordinal, char *out, int size)
{
  const struct back_end *back_end = find(name);
  return back_end ? back_end->bus(ordinal, out, size) : unknown(name);
}

enum status device_check_blocks(const struct quantise *op)
{
  return quant_is_valid(op) ? STATUS_OK
                            : status_set(STATUS_INTERNAL, "a message with blocks of %lld elements",
                                         (long long)op->block);
}

enum status device_check_matmul(const struct matmul *op)
{
  const bool epilogue = op->epilogue != EPILOGUE_NONE;
  if (op->accumulate && (epilogue || op->add))
    return status_set(
        STATUS_INTERNAL,
        "a matrix product that accumulates cannot have an epilogue, nor add another matrix");
  if ((op->scale != 0 || op->add_scale != 0) && (op->accumulate || epilogue))
    return status_set(STATUS_INTERNAL,
                      "a matrix product that accumulates or has an epilogue cannot be scaled");
  if (op->m < 0 || op->n < 0 || op->k < 1 || op->tile < 0)
    return status_set(STATUS_INTERNAL, "a matrix product of shape %lld x %lld x %lld",
                      (long long)op->m, (long long)op->n, (long long)op->k);
  return STATUS_OK;
}

enum status device_refuse_id(const char *what, int64_t row, int32_t id, int64_t V)
{
  return status_set(STATUS_INPUT,
                    "%s %lld of the batch is %d, outside the vocabulary of %lld: the data was made "
                    "with another tokenizer than model.vocab says",
                    what, (long long)row, (int)id, (long long)V);
}

void device_destroy(struct device *device)
{
  if (device)
    device->ops->destroy(device);
}

enum status device_check_quantise(const struct fp8_quantise *op)
{
  if (op->rows % FP8_TILE || op->columns % FP8_TILE)
    return status_set(STATUS_INTERNAL,
                      "an operand in fp8 of %lld x %lld elements: both must be multiples of %d",
                      (long long)op->rows, (long long)op->columns, FP8_TILE);
  if (op->turned && (op->blocks || op->transposed))
    return status_set(STATUS_INTERNAL, "a transpose next to an operand that is not x in tiles");
  if (op->given && !op->blocks)
    return status_set(STATUS_INTERNAL, "a given scale for an operand that is not in blocks");
  return STATUS_OK;
}

enum status device_check_unify(const struct fp8_unify *op)
{
  if (op->n % FP8_TILE == 0 && op->k % FP8_TILE == 0)
    return STATUS_OK;
  return status_set(STATUS_INTERNAL,
                    "one scale for an operand in fp8 of %lld x %lld elements: both must be "
                    "multiples of %d",
                    (long long)op->n, (long long)op->k, FP8_TILE);
}

enum status device_check_turn(const struct fp8_turn *op)
{
  if (op->rows % FP8_TILE == 0 && op->columns % FP8_TILE == 0 && op->ld % FP8_TILE == 0 &&
      op->columns <= op->ld)
    return STATUS_OK;
  return status_set(
      STATUS_INTERNAL,
      "codes of a weight, %lld x %lld of rows of %lld: not multiples of %d, or not in the rows",
      (long long)op->rows, (long long)op->columns, (long long)op->ld, FP8_TILE);
}

enum status device_check_swiglu(const struct fp8_swiglu *op)
{
  if (op->rows % FP8_TILE == 0 && op->F % FP8_TILE == 0 && op->first % FP8_TILE == 0 &&
      op->count % FP8_TILE == 0 && op->first >= 0 && op->count > 0 &&
      op->first + op->count <= op->F)
    return STATUS_OK;
  return status_set(
      STATUS_INTERNAL,
      "SwiGLU's gradient in fp8, %lld rows of outputs %lld to %lld of %lld: all must be "
      "multiples of %d, and outputs within the row",
      (long long)op->rows, (long long)op->first, (long long)(op->first + op->count),
      (long long)op->F, FP8_TILE);
}
