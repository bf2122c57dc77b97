/* Matrix products through cuBLASLt: what the device calls.
 *
 * The first product of a shape measures which algorithm is best, and whether a GELU is better part
 * of the product or a separate pass after it. It is the same with and without accumulation, and it
 * is learned(): a table of bytes. The user's cache holds the same bytes, by GPU and version of the
 * library. It is read for shapes that learn() did not bring. */
#include "gpu/matmul_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/cache.h"
#include "base/log.h"
#include "base/mem.h"

/* --- a product ----------------------------------------------------------- */

static uint8_t alignment_of(const void *p)
{
  const uintptr_t bits = (uintptr_t)p | MATMUL_MOST_ALIGN;
  return (uint8_t)(bits & -bits);
}

static enum matmul_operands operands_of(const struct device *device, const struct matmul *op)
{
  if (op->a_scale && device->fp8_tensor)
    return op->gradient ? OPERANDS_FP8_TENSOR_GRADIENT : OPERANDS_FP8_TENSOR;
  if (op->a_scale)
    return !op->gradient  ? OPERANDS_FP8
           : op->a_blocks ? OPERANDS_FP8_GRADIENT_A_BLOCKS
                          : OPERANDS_FP8_GRADIENT;
  return device->model.compute == DTYPE_BF16 ? OPERANDS_BF16 : OPERANDS_FP32;
}

static struct matmul_key key_of(const struct device *device, const struct matmul *op)
{
  const uintptr_t rest = (uintptr_t)op->bias | (uintptr_t)op->aux | (uintptr_t)op->add;
  struct matmul_key key = {op->m,   op->n,   op->k,       op->lda,
                           op->ldb, op->ldc, op->trans_a, op->trans_b};
  key.epilogue = (int32_t)op->epilogue, key.add = op->add != NULL;
  key.operands = operands_of(device, op);
  const void *const pointers[] = {op->a, op->b, op->c, (const void *)rest};
  for (int i = 0; i < 4; i++)
    key.align[i] = alignment_of(pointers[i]);
  return key;
}

/* The product of a record that another process made. It may not run here. */
static enum status adopt(const struct device *device, const struct matmul *op,
                         const struct matmul_record *record, struct matmul_entry *out)
{
  struct matmul_entry entry = {.record = *record, .known = true, .used = true};
  cublasLtMatmulHeuristicResult_t result = {.state = CUBLAS_STATUS_SUCCESS};
  enum status status =
      matmul_product_create(device, op, (enum matmul_way)record->way, &entry.product);
  if (status)
    return status;
  const struct matmul_product *p = &entry.product;
  cublasStatus_t error = cublasLtMatmulAlgoCheck(cuda_device(device)->blas, p->desc, p->a, p->b,
                                                 p->c, p->c, &record->algo, &result);
  error = error ?: result.state;
  if (!error && result.workspaceSize > CUDA_WORKSPACE)
    error = CUBLAS_STATUS_NOT_SUPPORTED;
  if (error) {
    matmul_product_destroy(&entry.product);
    return cublas_check(error, "checking an algorithm that was found before");
  }
  *out = entry;
  return STATUS_OK;
}

/* The file's record of a shape, NULL: it has none. The file is read only if a shape is met that
 * learn() did not bring. Thousands of ranks may have their homes on one file system, so only the
 * rank that measures for all reads it. */
static const struct matmul_record *find_kept(struct matmul_cache *cache,
                                             const struct matmul_key *key)
{
  if (!cache->asked) {
    cache->asked = true;
    char *name = mem_printf("matmul-%s-%" PRId64, cache->kind.name, cache->kind.version);
    cache->path = name ? cache_path(name) : NULL;
    mem_free(name);
    if (cache->path)
      cache->kept = matmul_read_file(cache, &cache->n_kept);
  }
  for (int64_t i = 0; i < cache->n_kept; i++)
    if (memcmp(&cache->kept[i].key, key, sizeof *key) == 0)
      return &cache->kept[i];
  return NULL;
}

/* An entry of a shape that learn() did not bring. */
static enum status meet(struct lane *lane, const struct matmul *op, const struct matmul_key *key)
{
  struct matmul_cache *cache = cuda_device(lane->device)->algorithms;
  const struct matmul_record *kept = find_kept(cache, key);
  struct matmul_entry entry;
  enum status status = matmul_make_room(cache);
  if (status)
    return status;
  bool there = kept && !adopt(lane->device, op, kept, &entry);
  if (kept && !there)
    log_debug("%s: measuring again", status_text());
  if (!there) {
    status = matmul_choose(lane, op, key, &entry);
    if (status)
      return status;
    cache->news = cache->news || entry.record.measured;
  }
  *matmul_find_entry(cache, key) = entry;
  cache->entries++;
  return STATUS_OK;
}

static enum status entry_of(struct lane *lane, const struct matmul *op, struct matmul_entry **out)
{
  struct matmul_cache *cache = cuda_device(lane->device)->algorithms;
  const struct matmul_key key = key_of(lane->device, op);
  struct matmul_entry *entry = matmul_find_entry(cache, &key);
  enum status status = STATUS_OK;
  if (!entry->known)
    status = meet(lane, op, &key);
  else if (!entry->used)
    status = adopt(lane->device, op, &entry->record, entry);
  else
    status = cublas_check(
        matmul_set_pointers(entry->product.desc, op, (enum matmul_way)entry->record.way),
        "describing a matrix product");
  *out = matmul_find_entry(cache, &key);
  return status;
}

static enum status multiply(struct lane *lane, const struct matmul *op)
{
  struct matmul_entry *entry = NULL;
  enum status status = entry_of(lane, op, &entry);
  if (status)
    return status;
  const enum matmul_way way = (enum matmul_way)entry->record.way;
  status = cublas_check(
      matmul_run(lane, op, &entry->product, &entry->record.algo, matmul_target(op, way)),
      "a matrix product");
  return status ?: matmul_finish(lane, op, way, op->c);
}

enum status cuda_matmul(struct lane *lane, const struct matmul *op)
{
  const struct device *device = lane->device;
  pthread_mutex_t *mutex = &cuda_device(device)->algorithms->mutex;
  enum status status = device_check_matmul(op);
  if (status)
    return status;
  if (op->trans_a && op->epilogue != EPILOGUE_NONE)
    return status_set(STATUS_INTERNAL, "a weight gradient has no epilogue");
  if (op->a_scale && (op->trans_a || !op->trans_b || op->lda != op->k || op->ldb != op->k))
    return status_set(STATUS_INTERNAL, "a matrix product in fp8 reads m x k and n x k codes");
  if (op->a_blocks && !op->gradient)
    return status_set(STATUS_INTERNAL, "a matrix product in fp8 whose first operand is in blocks");
  if (op->gradient && !op->a_scale)
    return status_set(STATUS_INTERNAL, "a weight gradient in fp8 whose operands are not in fp8");
  if (op->a_scale &&
      device->model.fp8 < (device->fp8_tensor ? FP8_SCALES_TENSOR : FP8_SCALES_GROUPS))
    return status_set(STATUS_UNSUPPORTED, "%s has no products in fp8 with %s", device->product,
                      device->fp8_tensor ? "one scale per operand" : "a scale per 128 elements");
  if (op->m == 0 || op->n == 0)
    return STATUS_OK;
  status = cuda_lane_reserve(lane);
  if (status)
    return status;
  pthread_mutex_lock(mutex);
  status = multiply(lane, op);
  pthread_mutex_unlock(mutex);
  return status;
}

/* --- what was learned, as bytes ------------------------------------------ */

/* The caller is the rank that measures for all ranks, so new entries go to the file. The table
 * also keeps learned entries that were not used, because a run may return to their shapes. */
enum status cuda_learned(struct device *device, void **out, int64_t *bytes)
{
  struct matmul_cache *cache = cuda_device(device)->algorithms;
  void *block = NULL;
  enum status status = STATUS_OK;
  pthread_mutex_lock(&cache->mutex);
  const int64_t records = cache->entries, need = records > 0 ? matmul_table_bytes(records) : 0;
  if (need > 0)
    status = mem_alloc(MEM_META, (size_t)need, &block);
  if (!status && need > 0) {
    struct matmul_record *to = (void *)((char *)block + sizeof(struct matmul_header));
    for (int64_t i = 0; i < cache->slots; i++)
      if (cache->entry[i].known)
        *to++ = cache->entry[i].record;
    matmul_put_header(cache, records, block);
  }
  if (!status && cuda_device(device)->keeps_cache)
    matmul_write_file(cache);
  pthread_mutex_unlock(&cache->mutex);
  if (status)
    return status;
  *out = block;
  *bytes = need;
  return STATUS_OK;
}

/* Replaces entries of the same shape, and the file is not read, because all ranks must use the
 * results of one. */
enum status cuda_learn(struct device *device, const void *data, int64_t bytes)
{
  struct matmul_cache *cache = cuda_device(device)->algorithms;
  if (bytes == 0)
    return STATUS_OK;
  enum status status = matmul_check_table(cache, data, bytes);
  if (status)
    return status;
  pthread_mutex_lock(&cache->mutex);
  for (int64_t i = 0; matmul_table_bytes(i) < bytes; i++) {
    const struct matmul_record record = matmul_record_at(data, i);
    status = matmul_make_room(cache);
    if (status)
      break;
    struct matmul_entry *entry = matmul_find_entry(cache, &record.key);
    cache->entries += !entry->known;
    matmul_product_destroy(&entry->product);
    *entry = (struct matmul_entry){.record = record, .known = true};
  }
  pthread_mutex_unlock(&cache->mutex);
  return status;
}

/* --- the cache ----------------------------------------------------------- */

enum status matmul_cache_create(const struct cuda_device *device, struct matmul_cache **out)
{
  struct matmul_cache *cache;
  enum status status = mem_new(MEM_META, 1, &cache);
  if (status)
    return status;
  pthread_mutex_init(&cache->mutex, NULL); /* with default attributes these do not fail on Linux */
  cache->kind = (struct matmul_kind){.magic = "sluice4",
                                     .version = (int64_t)cublasLtGetVersion(),
                                     .multiprocessors = device->device.model.gpu.multiprocessors,
                                     .workspace = CUDA_WORKSPACE,
                                     .record_bytes = sizeof(struct matmul_record)};
  snprintf(cache->kind.name, sizeof cache->kind.name, "%s", device->name);
  status = matmul_make_room(cache);
  if (status)
    matmul_cache_destroy(cache);
  else
    *out = cache;
  return status;
}

void matmul_cache_destroy(struct matmul_cache *cache)
{
  if (!cache)
    return;
  for (int64_t i = 0; i < cache->slots; i++)
    matmul_product_destroy(&cache->entry[i].product);
  pthread_mutex_destroy(&cache->mutex);
  mem_free(cache->entry);
  mem_free(cache->kept);
  mem_free(cache->path);
  mem_free(cache);
}
