/* Shared by the parts of the matrix products. matmul_product.c has a product in cuBLASLt's form,
 * and matmul_choose.c chooses its algorithm. Known shapes are in a table (matmul_table.c), which a
 * file keeps (matmul_file.c). matmul.c has the calls of the device. Private to gpu/matmul*.c. */
#pragma once

#include "gpu/cuda.h"

/* How much of the epilogue is part of the product; the rest follows it. */
enum matmul_way { MATMUL_WAY_ALL, MATMUL_WAY_BIAS, MATMUL_WAY_NONE };

enum { MATMUL_MOST_ALIGN = 16 };

/* fp8: a in tiles and b in blocks, or the other way round, or both with one scale. Cache
 * files of choices hold these numbers. */
enum matmul_operands {
  OPERANDS_FP32,
  OPERANDS_BF16,
  OPERANDS_FP8,
  OPERANDS_FP8_GRADIENT,
  OPERANDS_FP8_GRADIENT_A_BLOCKS,
  OPERANDS_FP8_TENSOR,
  OPERANDS_FP8_TENSOR_GRADIENT
};

/* No padding: keys are compared and written as bytes. */
struct matmul_key {
  int64_t m, n, k, lda, ldb, ldc;
  int32_t trans_a, trans_b, epilogue, add, operands; /* enum matmul_operands */
  uint8_t align[4]; /* bytes that a, b, c and the rest are aligned to, up to MATMUL_MOST_ALIGN */
};
_Static_assert(sizeof(struct matmul_key) == 6 * sizeof(int64_t) + 5 * sizeof(int32_t) + 4,
               "keys are compared as bytes");

struct matmul_record {
  struct matmul_key key;
  cublasLtMatmulAlgo_t algo;
  int32_t way, measured; /* measured 0: cuBLAS' guess, which no file keeps */
};

/* The GPU and library for which a table is valid. */
struct matmul_kind {
  char magic[8], name[256];
  int64_t version, multiprocessors, workspace, record_bytes;
};

/* Before the records of a table that is written as bytes. */
struct matmul_header {
  struct matmul_kind kind;
  int64_t records;
  uint64_t sum; /* hash_bytes() of the records */
};

/* Common data of the products of a shape. Pointers of bias and aux are set at each call. */
struct matmul_product {
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t a, b, c;
};

struct matmul_entry {
  struct matmul_record record;
  bool known,
      used; /* used: there is a product of it, and the algorithm was found or checked here */
  struct matmul_product product;
};

struct matmul_cache {
  pthread_mutex_t
      mutex; /* protects all members below, and a product's pointers until it is enqueued */
  struct matmul_kind kind;
  bool asked; /* whether the file was read; until then path and kept are not set */
  char *path; /* NULL: nowhere */
  bool news;  /* something was measured that the file does not have */
  int64_t entries, slots;
  struct matmul_entry *entry; /* [slots], a power of two, at most half of it known */
  int64_t n_kept;
  struct matmul_record
      *kept; /* records of the file, oldest first, until one of their shapes is needed */
};

/* The descriptors of op's product, for one way of doing it. matmul_product_destroy() accepts a
 * zeroed product, and zeroes it. */
enum status matmul_product_create(const struct device *device, const struct matmul *op,
                                  enum matmul_way way, struct matmul_product *out);
void matmul_product_destroy(struct matmul_product *p);
/* For another op of the same shape. */
cublasStatus_t matmul_set_pointers(cublasLtMatmulDesc_t desc, const struct matmul *op,
                                   enum matmul_way way);
/* Destination of the product. A separate GELU reads it from aux. */
void *matmul_target(const struct matmul *op, enum matmul_way way);
/* Enqueues the product on the lane, whose workspace must exist. The result goes to `d`. */
cublasStatus_t matmul_run(struct lane *lane, const struct matmul *op,
                          const struct matmul_product *p, const cublasLtMatmulAlgo_t *algo,
                          void *d);
/* The rest of the epilogue after the product, with `c` in place of op->c. */
enum status matmul_finish(struct lane *lane, const struct matmul *op, enum matmul_way way, void *c);

/* A used entry for op's shape, whose key it is: the fastest way and algorithm, measured on the
 * lane. If there is no room to measure, it is cuBLAS' first guess, with a warning.
 * STATUS_UNSUPPORTED: cuBLAS has none. */
enum status matmul_choose(struct lane *lane, const struct matmul *op, const struct matmul_key *key,
                          struct matmul_entry *out);

/* The slot of the key, or a free slot for it. */
struct matmul_entry *matmul_find_entry(const struct matmul_cache *cache,
                                       const struct matmul_key *key);
/* Makes room for one more entry. Entries move. */
enum status matmul_make_room(struct matmul_cache *cache);
/* A table as bytes: its size, its header once the records follow it, and record i, wherever the
 * table lies. */
int64_t matmul_table_bytes(int64_t records);
void matmul_put_header(const struct matmul_cache *cache, int64_t records, void *table);
struct matmul_record matmul_record_at(const void *table, int64_t i);
/* STATUS_INPUT if `data` is no table of this kind of GPU and library, or is damaged. */
enum status matmul_check_table(const struct matmul_cache *cache, const void *data, int64_t bytes);

/* The records of the file in the user's cache (mem_free), *n 0 if there are none. */
struct matmul_record *matmul_read_file(const struct matmul_cache *cache, int64_t *n);
/* New entries go to it, if there are any. Entries that other runs have written meanwhile stay,
 * oldest first. The oldest are dropped if there are too many. */
void matmul_write_file(struct matmul_cache *cache);
