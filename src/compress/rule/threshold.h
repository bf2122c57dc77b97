/* Magnitudes of a threshold or more (Dutta et al. 2020, arXiv:1911.08727). If a block has more of
 * them than slots, its first ones are chosen. */
#ifndef SLUICE_COMPRESS_RULE_THRESHOLD_H
#define SLUICE_COMPRESS_RULE_THRESHOLD_H

enum { threshold_ranked = 0 };

SELECT_FN uint32_t threshold_key(const struct selection *op, float x)
{
  return select_magnitude(x) >= select_magnitude(op->threshold);
}

#endif
