/* `sluice plan --json`: the needs of the plan, for programs. */
#ifndef SLUICE_CMD_PLAN_JSON_H
#define SLUICE_CMD_PLAN_JSON_H

#include "job/advise.h"
#include "plan/traffic.h"

struct plan_facts {
  const struct advise_case *job;  /* its `arg` is a struct fit_room */
  const struct plan_rates *rates; /* gemm_flops 0: no forecast */
  const struct traffic_model *links;
  const char *device;
  const char *precision;
  bool estimated; /* this machine does not have such a GPU, so cuDNN's workspaces are bounds */
};

/* Prints one object on standard output. Its members are in the text of `sluice plan --help`. *fits
 * is false if gpu=, host= or nvme= is too small. Local. */
enum status plan_json_print(const struct plan_facts *facts, bool *fits);

#endif
