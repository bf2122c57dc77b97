/* The largest magnitudes of each block (Aji and Heafield 2017, arXiv:1704.05021; Lin et al. 2018,
 * arXiv:1712.01887). */
#ifndef SLUICE_COMPRESS_RULE_TOPK_H
#define SLUICE_COMPRESS_RULE_TOPK_H

enum { topk_ranked = 1 };

SELECT_FN uint32_t topk_key(const struct selection *op, float x)
{
  (void)op;
  return select_magnitude(x);
}

#endif
