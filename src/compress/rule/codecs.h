/* The codecs, one row each. This page uses nothing but src/base, so that the deck and the kernels
 * of devices may include it.
 *
 * ROW(name, kind, title, source): the name in a deck, the kind, the line in its help, where the
 * format comes from. The name of the row is a C name too. Kinds:
 *   PLAIN   a vector in another number format (plain.c)
 *   SPARSE  chosen elements of a vector (sparsifier.c), by a rule in NAME.h (select.h) */
#ifndef SLUICE_COMPRESS_RULE_CODECS_H
#define SLUICE_COMPRESS_RULE_CODECS_H

#define CODEC_KEYED(ROW)                                                                           \
  ROW(topk, SPARSE, "largest elements of each block", "Aji and Heafield 2017, arXiv:1704.05021")   \
  ROW(threshold, SPARSE, "elements of a threshold or more", "Dutta et al. 2020, arXiv:1911.08727")

#define CODEC_SPARSIFIERS(ROW)                                                                     \
  CODEC_KEYED(ROW)                                                                                 \
  ROW(randomk, SPARSE, "random elements of each block", "Stich et al. 2018, arXiv:1809.07599")

#define CODEC_ROWS(ROW)                                                                            \
  ROW(none, PLAIN, "fp32, as they are", "IEEE 754-2019, binary32")                                 \
  ROW(bf16, PLAIN, "bf16, rounded to nearest", "Kalamkar et al. 2019, arXiv:1905.12322")                           \
  ROW(fp16, PLAIN, "fp16, rounded to nearest", "IEEE 754-2019, binary16")             \
  CODEC_SPARSIFIERS(ROW)

#endif
