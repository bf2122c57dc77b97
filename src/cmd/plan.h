/* The parts of `sluice plan`: whether the needs of a plan fit on a GPU and a host, the predicted
 * time of a step, and the same with other settings. */
#pragma once

#include "job/choose.h"

#define FIT_GPUS "a100-40, a100-80, h100, h200, l40s"

struct fit_gpu {
  const char *name, *title;
  int64_t bytes;
  int major, minor; /* compute capability */
  int multiprocessors;
};

/* Available memory; 0 bytes: unknown. */
struct fit_room {
  const struct fit_gpu *gpu; /* NULL: only its size is known */
  int64_t gpu_bytes;         /* of one, which is one rank's */
  int64_t host_bytes;        /* of a node */
  int64_t nvme_bytes;        /* of a node */
};

/* A plan, what it is for, and what other settings would do. */
struct plan_facts {
  struct search job;
  const struct fit_room *room;
  const struct plan_rates *rates; /* NULL: no step is predicted */
  struct traffic_model links;
  const char *device, *precision;
  bool estimated;        /* this machine has no such device */
  struct choice now;     /* the deck, measured as the settings are */
  struct settings other; /* best settings, if every key that the program may choose is free; n 0:
                            they were not looked for */
};

/* From what a user wrote: a name of FIT_GPUS or a size with its unit ("141GB", "64GiB", "512Gi",
 * "1000B"); "" leaves the room alone. STATUS_USAGE names the key. Local. */
enum status fit_gpu(const char *text, struct fit_room *room);
enum status fit_size(const char *key, const char *text, int64_t *bytes);

/* Writes what is known about the GPU. Local. */
void fit_describe(const struct fit_room *room, struct device_gpu *gpu);

/* Whether the size of a memory is known, so that there is a verdict. */
bool fit_is_sized(const struct fit_room *room);

/* Bytes of a GPU for device_model_reserve_name(). Arenas have the rest. Local. */
double fit_reserve(const struct plan *plan);

/* Needs of each memory, of plans of a GPU's rank and its node: search.judge. `arg` is a struct
 * fit_room. Local. */
void fit_judge(const void *arg, int local_ranks, int n, const struct plan *const plans[],
               struct rooms *out);

/* Prints the verdict, and per memory need, size and rest. If all fits, it names the next faster
 * setting that fits. If something does not fit, it prints the settings that would fit. *fits: all
 * known memories suffice. Local. */
enum status fit_print(const struct plan_facts *facts, bool *fits);

/* A size in GiB with three digits, so that all numbers of a verdict have one unit. Sizes below
 * 0.001 GiB, which are those of tests, keep their own. */
struct mem_amount fit_gib(double bytes);

/* The settings of `facts`: step, memory, and whether they fit. Local. */
void fit_print_settings(const struct plan_facts *facts);

/* With rates: the step, its exposed parts, and how busy lanes are. Local. */
enum status forecast_print_step(const struct plan_facts *facts);
/* With rates: the step without the codec of gradients, and the links on which the codec makes it
 * shorter. With several nodes the step with 1, 2, 4, ... nodes. Local. */
enum status forecast_print(const struct plan_facts *facts);

/* All of it as JSON. Local. */
enum status plan_json_print(const struct plan_facts *facts, bool *fits);
