/* What a plan is predicted to take, and which way between host memory and devices is predicted fastest. */
#ifndef SLUICE_CMD_FORECAST_H
#define SLUICE_CMD_FORECAST_H

#include <stdio.h>

#include "plan/plan.h"
#include "plan/traffic.h"

/* The step, what of it is exposed, and how busy lanes are; with masters in host memory and more than one rank in a group also a line for each combination of transfer.params and
 * transfer.grads, and why the fastest one is; and what a few units win that stay on the device (tiers.resident). `local_ranks`: of a node, of which those who share parameters are. Local. */
enum status forecast_print(const struct plan *plan, const struct plan_rates *rates, int local_ranks, FILE *to);

/* Where ranks are on more nodes than one: the bytes that a node sends to others in a step, for each strategy. Local. */
enum status forecast_print_traffic(const struct plan *plan, const struct traffic_model *model,
                                   FILE *to);

#endif
