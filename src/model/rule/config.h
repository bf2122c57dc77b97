/* The configuration of a model. A deck has it as its keys model.*, and the limits of these keys
 * keep each number in its range. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"

enum rope_scaling { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3 };
struct rope_config {
  double theta;                       /* 0: 10000 */
  int scaling;                        /* enum rope_scaling */
  double factor, low_freq, high_freq; /* LINEAR: factor; LLAMA3: all, and `original` */
  int64_t original;                   /* context that the frequencies were made for */
};

enum { MODEL_MOST_HEAD_WIDTH = 1 << 16 }; /* elements of a head */

/* Fields that an architecture does not have must be 0, else model_create() names the key. */
struct model_config {
  const char *arch; /* "gpt2" */
  int64_t layers, width, heads, context, vocab;
  int64_t kv_heads;            /* 0: heads */
  int64_t head_width;          /* 0: width / heads */
  int64_t ffn;                 /* 0: the architecture's own (gpt2: 4 width); others need it */
  int64_t window, window_from; /* sliding window in tokens (0: none) of blocks window_from and up */
  bool tied;                   /* the head is the embedding's matrix */
  double norm_eps, init_std;
  struct rope_config rope;
  enum dtype compute; /* elements of parameters, activations and their gradients; zero: fp32. No
                         key of a deck, see job_model() */
};
