/* The loss of a pair (Rafailov et al. 2023, arXiv:2305.18290, equation 7). One definition for all
 * devices and for evaluation. C and CUDA include this. */
#pragma once

#include <math.h>

#include "base/bits.h"

/* beta times the difference of the chosen and the rejected conversation's log-likelihood ratios.
 * score[2] are negative log-likelihoods, reference[2] log-likelihoods, the chosen one first. */
BOTH_FN double preference_margin(double beta, const double *score, const double *reference)
{
  return beta * ((score[1] + reference[1]) - (score[0] + reference[0]));
}

/* -log sigmoid(margin) */
BOTH_FN double preference_loss(double margin)
{
  return (margin > 0 ? 0 : -margin) + log1p(exp(-fabs(margin)));
}
