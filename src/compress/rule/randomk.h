/* Random positions of each block, the same in all messages of a seed (Stich et al. 2018,
 * arXiv:1809.07599). An odd factor makes all positions of a block differ, because a block is a
 * power of two. A uniform offset selects each element with probability keep / block. */
#ifndef SLUICE_COMPRESS_RULE_RANDOMK_H
#define SLUICE_COMPRESS_RULE_RANDOMK_H

/* The element of slot `slot`. bits: rounding_bits(seed, number of the block in its message). */
SELECT_FN int64_t randomk_index(const struct selection *op, uint32_t bits, int64_t slot)
{
  const uint32_t factor = bits | 1, offset = bits >> 16;
  return (factor * (uint32_t)slot + offset) & (uint32_t)(op->block - 1);
}

#endif
