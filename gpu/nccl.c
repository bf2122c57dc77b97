#include "gpu/nccl.h"

#include <nccl.h>
#include <stdio.h>
#include <string.h>

#include "gpu/cuda.h"

_Static_assert(sizeof(ncclUniqueId) == NCCL_ID_BYTES, "the name of a group is handed over as bytes");

struct nccl_group {
  ncclComm_t comm;
  int size, index;
  bool broken;
};

static enum status nccl_check(ncclResult_t error, const char *what)
{
  if (error == ncclSuccess || error == ncclInProgress)
    return STATUS_OK;
  const char *more = ncclGetLastError(NULL);
  return status_set(STATUS_LIBRARY, "NCCL: %s failed: %s%s%s", what, ncclGetErrorString(error), more && *more ? ": " : "", more ? more : "");
}

enum status nccl_id(void *id)
{
  ncclUniqueId unique;
  const enum status status = nccl_check(ncclGetUniqueId(&unique), "naming a group");
  if (!status)
    memcpy(id, &unique, sizeof unique);
  return status;
}

enum status nccl_group_create(const void *id, int size, int index, struct nccl_group **out)
{
  ncclUniqueId unique;
  void *block;
  enum status status = mem_alloc(MEM_META, sizeof(struct nccl_group), &block);
  if (status)
    return status;
  struct nccl_group *group = block;
  group->size = size;
  group->index = index;
  memcpy(&unique, id, sizeof unique);
  status = nccl_check(ncclCommInitRank(&group->comm, size, unique, index), "starting a group");
  if (status) {
    mem_free(group);
    return status;
  }
  *out = group;
  return STATUS_OK;
}

void nccl_group_destroy(struct nccl_group *group)
{
  if (!group)
    return;
  if (group->broken)
    (void)ncclCommAbort(group->comm);
  else
    (void)ncclCommDestroy(group->comm);
  mem_free(group);
}

static enum status type_of(enum dtype type, ncclDataType_t *out)
{
  switch (type) {
  case DTYPE_F32: *out = ncclFloat32; return STATUS_OK;
  case DTYPE_BF16: *out = ncclBfloat16; return STATUS_OK;
  case DTYPE_F16: *out = ncclFloat16; return STATUS_OK;
  default: return status_set(STATUS_UNSUPPORTED, "NCCL is not asked to carry %s", dtype_name(type));
  }
}

enum status nccl_all_gather(struct nccl_group *group, struct lane *lane, const void *shard, int64_t count, enum dtype type, void *full)
{
  ncclDataType_t nccl;
  enum status status = type_of(type, &nccl);
  if (status)
    return status;
  return nccl_check(ncclAllGather(shard, full, (size_t)count, nccl, group->comm, cuda_lane(lane)->stream), "an all-gather");
}

enum status nccl_reduce_scatter(struct nccl_group *group, struct lane *lane, const void *full, int64_t count, enum dtype type, void *shard)
{
  ncclDataType_t nccl;
  enum status status = type_of(type, &nccl);
  if (status)
    return status;
  return nccl_check(ncclReduceScatter(full, shard, (size_t)count, nccl, ncclSum, group->comm, cuda_lane(lane)->stream), "a reduce-scatter");
}

enum status nccl_sum_i64(struct nccl_group *group, struct lane *lane, int64_t *values, int64_t n)
{
  return nccl_check(ncclAllReduce(values, values, (size_t)n, ncclInt64, ncclSum, group->comm, cuda_lane(lane)->stream), "an all-reduce");
}

enum status nccl_group_check(struct nccl_group *group)
{
  ncclResult_t error = ncclSuccess;
  enum status status = nccl_check(ncclCommGetAsyncError(group->comm, &error), "asking for errors");
  return status ? status : nccl_check(error, "a collective");
}

void nccl_group_abort(struct nccl_group *group)
{
  group->broken = true;
  (void)ncclCommAbort(group->comm);
}

const char *nccl_version(void)
{
  static char text[32];
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess)
    return "unknown";
  snprintf(text, sizeof text, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
  return text;
}
