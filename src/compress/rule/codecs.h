/* The codecs, one row each. This page uses nothing but src/base, so that the deck and the kernels
 * of devices may include it.
 *
 * ROW(name, kind, title, source): the name in a deck, the kind, the line in its help, where the
 * format comes from. The name of the row is a C name too. Kinds:
 *   PLAIN  a vector in another number format (plain.c) */
#ifndef SLUICE_COMPRESS_RULE_CODECS_H
#define SLUICE_COMPRESS_RULE_CODECS_H

#define CODEC_ROWS(ROW)                                                                            \
  ROW(none, PLAIN, "fp32, as they are", "IEEE 754-2019, binary32")                                 \
  ROW(bf16, PLAIN, "bf16, rounded to nearest", "Kalamkar et al. 2019, arXiv:1905.12322")                           \
  ROW(fp16, PLAIN, "fp16, rounded to nearest", "IEEE 754-2019, binary16")

#endif
