/* Attention by cuDNN's graph interface, through NVIDIA's header-only cudnn-frontend, the only C++
 * library here. This C header hides it. A graph is built once per shape and kept. bf16, causal,
 * grouped heads, sliding window, a deterministic backward pass. Private to gpu/. */
#pragma once

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "device/device.h"

struct cudnn_attention; /* the handle and the graphs of one device; for one thread at a time */

enum status cudnn_attention_create(struct cudnn_attention **out);
void cudnn_attention_destroy(struct cudnn_attention *cudnn); /* takes NULL */

/* Bytes of workspace that a shape needs, forward or backward. STATUS_UNSUPPORTED with cuDNN's
 * reason: cuDNN does not support the shape. Pointers in op are not read. */
enum status cudnn_attention_workspace(struct cudnn_attention *cudnn,
                                      const struct attention_backward *op, bool backward,
                                      size_t *out);
/* Only op->forward is read, unless `backward`. */
enum status cudnn_attention_run(struct cudnn_attention *cudnn, cudaStream_t stream,
                                const struct attention_backward *op, bool backward);

#ifdef __cplusplus
}
#endif
