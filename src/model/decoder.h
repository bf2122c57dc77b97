/* The decoder of Llama and its relatives. Each of them has a file that lists its features. Private
 * to src/model. Functions as in struct model_ops. */
#ifndef SLUICE_MODEL_DECODER_H
#define SLUICE_MODEL_DECODER_H

#include "model/parts.h"
#include "model/unit.h"

enum {
  DECODER_FEATURES = FEATURE_GROUPS | FEATURE_HEAD_WIDTH | FEATURE_ROPE | FEATURE_UNTIED
}; /* of all of them */

enum status decoder_create(const struct model_config *config, struct model *model);
size_t decoder_saved_bytes(const struct model *model, struct model_shape s);
size_t decoder_work_bytes(const struct model *model, const struct device_model *device,
                          struct model_shape s, enum model_work what, int threads);
double decoder_block_flops(
    const struct model *model,
    struct model_shape s); /* the mean over the blocks, of which some may have a window */
enum status decoder_block_forward(const struct model *model, struct lane *lane, int unit,
                                  struct model_shape s, const struct model_cache *cache,
                                  struct model_params params, const void *x_in, void *x_out,
                                  void *saved, void *work);
enum status decoder_block_backward(const struct model *model, struct lane *lane, int unit,
                                   struct model_shape s, struct model_params params,
                                   const void *x_in, const void *saved, void *d, bool accumulate,
                                   void *grads, void *work, int64_t work_bytes);
extern const struct model_ends decoder_ends;

#define DECODER(name, more_features)                                                               \
  {                                                                                                \
    .ops = {.arch = (name),                                                                        \
            .create = decoder_create,                                                              \
            .saved_bytes = decoder_saved_bytes,                                                    \
            .work_bytes = decoder_work_bytes,                                                      \
            .block_flops = decoder_block_flops,                                                    \
            .head_flops = head_flops,                                                              \
            .embed = embedding_forward,                                                            \
            .block_forward = decoder_block_forward,                                                \
            .block_backward = decoder_block_backward,                                              \
            .head_loss = head_loss,                                                                \
            .head_logits = head_logits,                                                            \
            .embed_backward = embedding_backward,                                                  \
            .cache_bytes = cache_bytes},                                                           \
    .ends = &decoder_ends, .features = DECODER_FEATURES | (more_features)                          \
  }

#endif
