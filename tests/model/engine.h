/* Drives a model through whole steps on the host device, as an executor would, for the tests. All
 * memory that the model's calls write is filled with NaN before, and its end is watched. */
#pragma once

#include "device/lane.h"
#include "model/model.h"

struct engine {
  struct device *device;
  struct lane *lane;
  int threads;
  struct model *model;
  void **params,
      **grads; /* flat buffers by unit; grads NULL where nothing of the unit is trained */
};

/* A model from keys and values of a deck, packed for `ranks` ranks: "arch=llama layers=2
 * train.freeze=[*.bias]". A key without a section is one of model.*. The deck is not checked.
 * Elements are bf16 with run.compute=bf16 or fp8, else fp32. */
enum status engine_model(const char *keys, int ranks, struct model **out);

/* A model's engine. Parameters: normal numbers, so that none is zero: norms' weights around 1, the
 * rest around 0. */
void engine_create(const char *keys, int threads, struct engine *out);
/* The same with parameters that match `pattern` frozen. */
void engine_create_frozen(const char *keys, const char *pattern, int threads, struct engine *out);
void engine_create_model(struct model *model, int threads, struct engine *out); /* takes it over */
void engine_destroy(struct engine *engine);

struct batch {
  struct model_shape shape;
  int32_t *token, *target;
  float *weight; /* of batch_extend(), like the next two; NULL: none */
  int32_t *position, *first;
};
void batch_create(struct model_shape shape, int64_t vocab,
                  struct batch *out); /* some targets are -1 */
/* Adds weights, positions below `context` and documents. trivial: values that change nothing. */
void batch_extend(struct batch *batch, int64_t context, bool trivial);
void batch_destroy(struct batch *batch);
struct model_batch batch_at(const struct batch *batch, int64_t r); /* from row r on */

/* How a step is cut up. late_embedding: the embedding's gradient of all micro-batches after the
 * last one's head. */
struct cut {
  int64_t micro;
  bool recompute, late_embedding;
  enum { INPUT_PLAIN, INPUT_TRIVIAL, INPUT_EXTENDED } input; /* of the caller's batch */
};

/* A call of a stage's passes, without data. */
struct model_call engine_call(const struct engine *e, int stage, struct model_shape shape);
/* Gradients of the sum of losses into `grads`; returns the loss. */
struct exactsum engine_step(struct engine *engine, const struct batch *batch, struct cut cut);
struct exactsum engine_evaluate(struct engine *engine, const struct batch *batch);
void engine_logits(struct engine *engine, const struct batch *batch, int64_t position,
                   float *logits);

/* Generation: the caches of all stages, for `capacity` tokens a sequence. */
struct caches {
  int64_t B, capacity;
  void **stage; /* of blocks */
};
void caches_create(struct engine *engine, int64_t B, int64_t capacity, struct caches *out);
void caches_destroy(struct engine *engine, struct caches *caches);
/* logits [B, V] after the last of T new tokens of each sequence. The caches hold `past` of the
 * tokens. token [B, T]. */
void engine_decode(struct engine *engine, struct caches *caches, int64_t past, int64_t T,
                   const int32_t *token, float *logits);

/* Parameter p of unit u in a flat buffer of it. */
float *engine_param(const struct engine *engine, void *const *flat, int u, int p);

/* Watched memory of `bytes`, all of it NaN. engine_free() fails the test if something was written
 * after its end. */
void *engine_alloc(struct engine *engine, size_t bytes);
void engine_free(struct engine *engine, void *memory, size_t bytes);

/* The keys of one small model of every architecture and feature, sizes odd wherever they may be. */
extern const char *const shapes[];
extern const int shape_count;
