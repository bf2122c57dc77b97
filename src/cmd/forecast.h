/* The predicted time of a plan, and of the same job with other keys. */
#ifndef SLUICE_CMD_FORECAST_H
#define SLUICE_CMD_FORECAST_H

#include <stdio.h>

#include "job/advise.h"
#include "plan/traffic.h"

/* Prints the step in *step_s, its exposed parts, and how busy lanes are. Local. */
enum status forecast_print_step(const struct plan *plan, const struct plan_rates *rates,
                                double *step_s);

/* Prints what other keys would change in the step `step_s`. With masters in host memory and several
 * ranks in a group, a line for each combination of transfer.params and transfer.grads. A line
 * explains why the fastest one is fastest. Other tables show the gain of early updates
 * (optim.update) and of units that stay on the device (tiers.resident). With a codec of gradients,
 * also the step without it, and the links on which it makes the step shorter. Local. */
enum status forecast_print(const struct advise_case *job, const struct plan_rates *rates,
                           double step_s);

/* The presets of tiers.preset: step, memory and whether they fit. Presets that fit come first, then
 * the fastest. Without rates (NULL) they are in their own order. Only for training. Local. */
enum status forecast_print_presets(const struct advise_case *job, const struct plan_rates *rates);

/* If there are several nodes: the bytes that a node sends to others in a step, for each strategy.
 * Local. */
enum status forecast_print_traffic(const struct advise_case *job,
                                   const struct traffic_model *model);

/* If there are several nodes: the strategies by predicted step, and the step with 1, 2, 4, ...
 * nodes. Local. */
enum status forecast_print_nodes(const struct advise_case *job, const struct plan_rates *rates);

#endif
