/* The codecs, one row each. This page includes nothing, so that the deck and the kernels of
 * devices may include it.
 *
 * ROW(name, kind, title, source): the name in a deck, which is a C name too, the kind, the line in
 * the help, the source of the format. A row is in the list of its kind. */
#pragma once

/* Before a function of a rule, which C and CUDA C++ compile. */
#if defined __CUDACC__
#define CODEC_FN static __host__ __device__ __forceinline__
#else
#define CODEC_FN __attribute__((always_inline)) static inline
#endif

/* Plain vectors in another number format (src/compress/plain.c). */
#define CODEC_PLAIN(ROW)                                                                           \
  ROW(none, PLAIN, "fp32, as they are", "IEEE 754-2019, binary32")                                 \
  ROW(bf16, PLAIN, "bf16, rounded to nearest", "Kalamkar et al. 2019, arXiv:1905.12322")           \
  ROW(fp16, PLAIN, "fp16, rounded to nearest", "IEEE 754-2019, binary16")

/* Blocks of elements that share a scale: the arithmetic is in steps.h, signs.h or NAME.h. */
#define CODEC_QUANTISERS(ROW)                                                                      \
  ROW(e4m3, QUANTISER, "8-bit floats with 3 bits of mantissa, a scale per block",                  \
      "Micikevicius et al. 2022, arXiv:2209.05433")                                                \
  ROW(e5m2, QUANTISER, "8-bit floats with 2 bits of mantissa, a scale per block",                  \
      "Micikevicius et al. 2022, arXiv:2209.05433")                                                \
  ROW(int8, QUANTISER, "8-bit integers, a scale per block", "Dettmers 2016, arXiv:1511.04561")     \
  ROW(int8_global, QUANTISER, "8-bit integers with room for sums, one scale for all ranks",        \
      "Wen et al. 2017, arXiv:1705.07878")                                                         \
  ROW(int4, QUANTISER, "4-bit integers, a scale per block", "Wang et al. 2023, arXiv:2306.10209")  \
  ROW(levels9, QUANTISER, "integers of 9 levels, 3.2 bits each, a scale per block",                \
      "Wang et al. 2023, arXiv:2306.10209")                                                        \
  ROW(levels7, QUANTISER, "integers of 7 levels, 2.9 bits each, a scale per block",                \
      "Wang et al. 2023, arXiv:2306.10209")                                                        \
  ROW(hadamard_int4, QUANTISER, "int4 after a Walsh-Hadamard transform",                           \
      "Jia et al. 2024, arXiv:2410.15526")                                                         \
  ROW(qsgd, QUANTISER, "stochastic levels up to the norm of a block, unbiased",                    \
      "Alistarh et al. 2017, arXiv:1610.02132")                                                    \
  ROW(natural, QUANTISER, "stochastic powers of two in 8 bits, unbiased",                          \
      "Horvath et al. 2019, arXiv:1905.10988")                                                     \
  ROW(signsgd, QUANTISER, "signs, summed by majority vote",                                        \
      "Bernstein et al. 2018, arXiv:1810.05291")                                                   \
  ROW(onebit, QUANTISER, "signs, with the means of both signs in a block",                         \
      "Seide et al. 2014, 1-bit SGD, Interspeech")

/* Chosen elements of each block: select.h has the rules. */
#define CODEC_KEYED(ROW)                                                                           \
  ROW(topk, SPARSE, "largest elements of each block", "Aji and Heafield 2017, arXiv:1704.05021")   \
  ROW(threshold, SPARSE, "elements at or above a threshold", "Dutta et al. 2020, arXiv:1911.08727")
#define CODEC_SPARSIFIERS(ROW)                                                                     \
  CODEC_KEYED(ROW)                                                                                 \
  ROW(randomk, SPARSE, "random elements of each block", "Stich et al. 2018, arXiv:1809.07599")

/* Products of two small matrices (src/compress/lowrank.c). */
#define CODEC_LOWRANK(ROW)                                                                         \
  ROW(powersgd, LOWRANK, "product of two narrow matrices, from a random start",                    \
      "Vogels et al. 2019, arXiv:1905.13727")                                                      \
  ROW(gradiveq, LOWRANK, "principal components of slices", "Yu et al. 2018, arXiv:1811.03617")

/* Messages of varying length that decode to the vector (exponent.h). */
#define CODEC_LOSSLESS_ROWS(ROW)                                                                   \
  ROW(exponent, LOSSLESS, "lossless, with shortened exponents",                                    \
      "Hershcovitch et al. 2024, arXiv:2411.05239")

/* Counters from which the largest elements are estimated (sketch.h). */
#define CODEC_SKETCHES(ROW)                                                                        \
  ROW(countsketch, SKETCH, "largest elements, estimated from a sketch of each block",              \
      "Ivkin et al. 2019, arXiv:1903.04488")

#define CODEC_ROWS(ROW)                                                                            \
  CODEC_PLAIN(ROW)                                                                                 \
  CODEC_QUANTISERS(ROW)                                                                            \
  CODEC_SPARSIFIERS(ROW) CODEC_LOWRANK(ROW) CODEC_LOSSLESS_ROWS(ROW) CODEC_SKETCHES(ROW)

#define CODEC_ENUM(name, kind, title, source) CODEC_##name,
enum codec_number { CODEC_ROWS(CODEC_ENUM) CODECS };
#undef CODEC_ENUM
