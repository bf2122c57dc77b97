#include "reduce.h"

#include "compress/compress.h"

enum status reduce_scatter(struct comm_group *group, struct lane *lane, float *full, int64_t count,
                           enum dtype wire, void *staging, bool accumulate, float *shard)
{
  const int size = comm_group_size(group);
  const struct codec codec = {.ops = size > 1 && wire == DTYPE_BF16 ? &codec_bf16 : &codec_none};
  const struct codec_pass pass = {.lane = lane, .n = count, .parts = size};
  const int64_t bytes = codec.ops->bytes(&codec, count);
  const enum quant_mode mode = accumulate ? QUANT_ADD : QUANT_SET;
  if (size == 1)
    return codec.ops->decode(&codec, &pass, full, bytes, mode, DTYPE_F32, shard);
  const bool elided = codec.ops->traits & CODEC_IDENTITY;
  const void *sent = elided ? (const void *)full : staging;
  char *received = (char *)staging + (elided ? 0 : size * bytes);
  enum status status = elided ? STATUS_OK : codec.ops->encode(&codec, &pass, full, staging);
  if (!status)
    status = comm_exchange(group, lane, sent, bytes, false, received);
  return status ? status
                : codec.ops->decode(&codec, &pass, received, bytes, mode, DTYPE_F32, shard);
}
