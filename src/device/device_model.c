/* One row per kind of device. Reserves are above the largest measured ones. */
#include "device/device_model.h"

#include <string.h>

#include "device/cuda_work.h"
#include "device/host/host.h"

enum { MIB = 1 << 20 };

/* The reserve covers what `sluice bench` shows in use beyond the arenas on H100 and H200: up to
 * 1.07 GiB on one rank, and up to 2.02 GiB on 2 and 4 ranks. The numbers are device_bytes less
 * planned_device_bytes in doc/measured. */
static const struct {
  const char *kind;
  struct device_model model;
} kinds[] = {
    {"host",
     {.by_sequence = true,
      .host_memory = true,
      .chunk_logits = 16 * MIB,
      .row_multiple = 1,
      .attention_workspace = host_attention_workspace,
      .norm_workspace = host_norm_workspace}},
    {"cuda",
     {.chunk_logits = 512 * MIB,
      .row_multiple = DEVICE_CUDA_ROW_MULTIPLE,
      .most_norm = DEVICE_CUDA_MOST_NORM,
      .most_head = DEVICE_CUDA_MOST_HEAD,
      .most_queries = DEVICE_CUDA_MOST_QUERIES,
      .most_fp8 = DEVICE_CUDA_MOST_FP8,
      .reserve = {.context = 512 * MIB,
                  .lane = DEVICE_CUDA_WORKSPACE,
                  .kernels = 704 * MIB,
                  .transport = 1024 * MIB},
      .gpu = {.multiprocessors = 132, .shared = 227 << 10, .hopper = true},
      .attention_workspace = cuda_work_attention,
      .norm_workspace = cuda_work_norm}},
};

enum status device_model_find(const char *kind, enum dtype compute, struct device_model *out)
{
  const struct device_model *found = NULL;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (strcmp(kinds[i].kind, kind) == 0)
      found = &kinds[i].model;
  if (!found)
    return status_set(STATUS_UNSUPPORTED,
                      "there is no kind of device \"%s\": host and cuda are known", kind);
  if (compute != DTYPE_F32 && compute != DTYPE_BF16)
    return status_set(STATUS_UNSUPPORTED, "the %s device computes in fp32 or bf16, not in %s", kind,
                      dtype_name(compute));
  *out = *found;
  out->compute = compute;
  out->gradient = DTYPE_F32;
  out->fp8 = compute == DTYPE_BF16 ? FP8_SCALES_GROUPS : FP8_SCALES_NONE;
  return STATUS_OK;
}

/* cuBLASLt 12.9 and 13: scales per 1 x 128 and 128 x 128 elements are for 9.0 alone. */
enum fp8_scales device_cuda_fp8(int major, int minor)
{
  if (major == 9 && minor == 0)
    return FP8_SCALES_GROUPS;
  return major >= 10 || (major == 8 && minor == 9) ? FP8_SCALES_TENSOR : FP8_SCALES_NONE;
}

int64_t device_model_reserve(const struct device_model *model, int ranks)
{
  const int64_t alone = model->reserve.context + model->reserve.lane + model->reserve.kernels;
  return alone + (ranks > 1 ? model->reserve.transport : 0);
}

const char *device_model_reserve_name(int ranks)
{
  return ranks > 1 ? "the CUDA context, libraries and NCCL" : "the CUDA context and libraries";
}

int64_t device_model_room(const struct device_model *model, int ranks, int64_t used, int64_t all)
{
  const int64_t context = model->reserve.context, others = used > context ? used - context : 0,
                room = all - others - device_model_reserve(model, ranks);
  return room > 0 ? room : 0;
}
