/* The optimizer's policy: learning-rate schedule, clipping, and one AdamW pass over a rank's contiguous range with per-parameter decay.
 * The arithmetic of an element is device.h's adamw. */
#ifndef SLUICE_OPTIM_OPTIM_H
#define SLUICE_OPTIM_OPTIM_H

#include <stdbool.h>
#include <stdint.h>

#include "deck/deck.h"
#include "device/device.h"
#include "layout/layout.h"
#include "model/model.h"

/* Learning rate of step `step` (0-based): linear warm-up over `warmup` steps, (step + 1) / (warmup + 1) of lr, then constant, linear or cosine
 * (Loshchilov & Hutter 2017, arXiv:1608.03983) to min_lr * lr at decay_steps, and that value afterwards. */
double optim_learning_rate(const struct deck *deck, int64_t step);

/* Bits (1 << param_kind) of the kinds without weight decay, from deck->optim.no_decay. */
unsigned optim_exempt_kinds(const struct deck *deck);

/* Runs of trained elements of one unit with one decay: [0, used) cut at parameter boundaries, neighbours with equal decay joined. Padding between parameters goes
 * with its left neighbour (its gradients and values are zero). None where the unit is frozen. */
struct optim_segments { int n; int64_t *begin; bool *decays; int64_t end; };
enum status optim_segments_create(const struct model *model, int unit, unsigned exempt_kinds, struct optim_segments *out);
void optim_segments_destroy(struct optim_segments *segments); /* takes a zeroed one */

/* One pass over flat range r of the unit. master, grad, m, v and copy (NULL: none) point at r.begin's element, in op's types. op->decay is the decay where it applies; op->first is
 * set here: the element's place in the flat unit. Local, on `lane`. */
enum status optim_update(struct lane *lane, const struct optim_segments *segments, struct layout_range r, const struct adamw *op, void *master, const void *grad,
                         void *m, void *v, void *copy);

#endif
