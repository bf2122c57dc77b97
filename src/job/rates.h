/* The rates of a machine: the keys of a file of rates, and their measurement. `sluice bench rates`
 * writes such a file, `sluice bench DECK` adds the rates of a model's passes, and `sluice plan`
 * reads it. The help prints the same rows. */
#pragma once

#include "job/job.h"
#include "plan/plan.h"

/* ROW(key, field of struct plan_rates, unit, largest value, text, default). The last is "" if work
 * at a missing rate takes no time. */
#define RATE_ROWS(ROW)                                                                             \
  ROW("gemm", gemm_flops, "GFLOP/s", 1e12, "products of large matrices", "")                       \
  ROW("forward", forward_flops, "GFLOP/s", 1e12, "forward passes of a model's blocks",             \
      "; default gemm")                                                                            \
  ROW("backward", backward_flops, "GFLOP/s", 1e12, "backward passes of a model's blocks",          \
      "; default gemm")                                                                            \
  ROW("loss", loss_flops, "GFLOP/s", 1e12, "the head and the loss of a model", "; default gemm")   \
  ROW("memory", memory_bytes, "GB/s", 1e9, "reads and writes of the device's memory", "")          \
  ROW("link", link_bytes, "GB/s", 1e9, "bytes that a rank receives in an all-gather", "")          \
  ROW("node_link", node_link_bytes, "GB/s", 1e9,                                                   \
      "the same in an all-gather inside each of several nodes", "; default link")                  \
  ROW("across_link", across_link_bytes, "GB/s", 1e9,                                               \
      "the same in the hop between nodes of an all-gather of two hops",                            \
      "; default an equal part of link")                                                           \
  ROW("exchange", exchange_bytes, "GB/s", 1e9,                                                     \
      "bytes that a rank receives in an exchange, from other nodes if there are several",          \
      "; default across_link of several nodes, otherwise link")                                    \
  ROW("node_exchange", node_exchange_bytes, "GB/s", 1e9,                                           \
      "the same in an exchange inside each of several nodes", "; default node_link")               \
  ROW("across_exchange", across_exchange_bytes, "GB/s", 1e9,                                       \
      "the same in an exchange of the ranks with its place in each node", "; default exchange")    \
  ROW("exchange_latency", exchange_latency_s, "us", 1e9, "each message of a small exchange",       \
      "; default that of an all-gather")                                                           \
  ROW("latency", link_latency_s, "us", 1e9,                                                        \
      "a hop of a small all-gather, between nodes if there are several", "")                       \
  ROW("node_latency", node_latency_s, "us", 1e9, "a hop inside each of several nodes",             \
      "; default latency")                                                                         \
  ROW("contention", contention, "of 1", 1,                                                         \
      "part of the device that an all-gather takes from computing", "")                            \
  ROW("spread", spread, "of 1", 1,                                                                 \
      "standard deviation of the ranks' speeds divided by their mean", "")                         \
  ROW("spread_ranks", spread_ranks, "ranks", 1e6,                                                  \
      "of which the slowest gave gemm, forward, backward and loss", "; default 1")                 \
  ROW("h2d", h2d_bytes, "GB/s", 1e9,                                                               \
      "copies to the device while all ranks of the node copy both ways", "")                       \
  ROW("d2h", d2h_bytes, "GB/s", 1e9,                                                               \
      "copies from the device while all ranks of the node copy both ways", "")                     \
  ROW("h2d_alone", h2d_alone_bytes, "GB/s", 1e9,                                                   \
      "copies to the device while one rank of the node copies both ways", "; default h2d")         \
  ROW("d2h_alone", d2h_alone_bytes, "GB/s", 1e9,                                                   \
      "copies from the device while one rank of the node copies both ways", "; default d2h")       \
  ROW("host_memory", host_bytes, "GB/s", 1e9,                                                      \
      "reads and writes of host memory by updates of all ranks of the node", "")                   \
  ROW("host_link", host_link_bytes, "GB/s", 1e9,                                                   \
      "bytes that a rank receives in an exchange of gradients between hosts", "")                  \
  ROW("disk_write", disk_write_bytes, "GB/s", 1e9,                                                 \
      "writes to NVMe while all ranks of the node write", "")                                      \
  ROW("disk_read", disk_read_bytes, "GB/s", 1e9,                                                   \
      "reads from NVMe while all ranks of the node read", "")

/* The rows of the codec NAME, which is a string. */
#define RATE_ENCODE(ROW, NAME, index)                                                              \
  ROW("encode_" NAME, encode_bytes[index], "GB/s", 1e9, "fp32 elements to encode",                 \
      "; default memory")
#define RATE_DECODE(ROW, NAME, index)                                                              \
  ROW("decode_" NAME, decode_bytes[index], "GB/s", 1e9, "fp32 elements to decode and add",         \
      "; default memory")
#define RATE_ENCODE_LATENCY(ROW, NAME, index)                                                      \
  ROW("encode_" NAME "_latency", encode_latency_s[index], "us", 1e9,                               \
      "a call that encodes, beyond its bytes", "")
#define RATE_DECODE_LATENCY(ROW, NAME, index)                                                      \
  ROW("decode_" NAME "_latency", decode_latency_s[index], "us", 1e9,                               \
      "a call that decodes, beyond its bytes", "")

/* All rows as a list for help (base/prose.h), with CODEC in place of a codec's name. */
#define RATE_ITEM(key, field, unit, most, text, otherwise)                                         \
  "  " key "  " unit ", " text otherwise "\n"
#define RATES_LIST                                                                                 \
  RATE_ROWS(RATE_ITEM)                                                                             \
  RATE_ENCODE(RATE_ITEM, "CODEC", 0)                                                               \
  RATE_DECODE(RATE_ITEM, "CODEC", 0)                                                               \
  RATE_ENCODE_LATENCY(RATE_ITEM, "CODEC", 0)                                                       \
  RATE_DECODE_LATENCY(RATE_ITEM, "CODEC", 0)

/* All keys in the order of the file, at their fields of struct plan_rates, in the units of the
 * file. */
extern const struct option job_rates_table[];

/* NULL: no such key. Local. */
const struct option *job_rates_find(const char *key);
/* Where `rates` has the value of a row of job_rates_table. Local. */
double *job_rates_value(struct plan_rates *rates, const struct option *row);

/* Append lines of the file to the string in `text`, an array of `size` bytes, for all rates that
 * are not below 0. They fit into JOB_RATES_BYTES. They are in the units of the file. Local. */
void job_rates_append(struct plan_rates *rates, char *text, size_t size);

enum { JOB_RATES_BYTES = 1 << 14 };
/* Read files, of which later ones take precedence. A file may have only some of the keys. *out is
 * in seconds, bytes and operations, and 0 for a missing key. Local. */
enum status job_rates_read(const struct option_strings *files, struct plan_rates *out);
/* The same of one text, called `name` in messages. Local. */
enum status job_rates_parse(const char *name, const char *text, struct plan_rates *out);

enum { RATES_LEAST = 1 << 20 };
struct job_rates_wanted {
  double seconds; /* approximate time per rate */
  int64_t bytes;  /* of a copy, a collective and an array: a multiple of STORE_BLOCK per rank, and
                     RATES_LEAST at least */
  int64_t matrix; /* most rows of the factors of products; 0: enough for the highest rate */
  bool links, copies; /* copies: and updates and exchanges in host memory */
  bool codec[CODECS];
  const char *disk; /* folder on it; NULL: the disk is not measured */
};
/* Measures products, the device's memory, and what is wanted, on all ranks at the same time. The
 * job has its place, and its memory need not exist. Device memory is taken and released. *out is in
 * the units of the file, and below 0 for a rate that was not measured. Collective. */
enum status job_rates_measure(const struct job *job, const struct job_rates_wanted *wanted,
                              struct plan_rates *out);

/* GB/s that a node receives from others in a short exchange; 0: the job has one node. It takes
 * about 30 ms at 1 Gbit/s if job_link_is_as() the rate `before`, and otherwise 0.3 s. The same on
 * all ranks. Collective. */
enum status job_link_rate(const struct job *job, double before, double *out);
/* Whether the two differ by less than a factor of 1.5, which chance explains. Local. */
bool job_link_is_as(double rate, double before);

/* The update that is measured, of fp32 masters and moments with a copy in bf16. */
extern const struct update job_rates_update;

/* The rates of this machine for the start of a job with its place and its model, equal on all
 * ranks. They come from the user's cache, or are measured within a second and written there. Copies
 * and host memory are measured only if the device's memory is apart, and only the codecs of the
 * deck and search_codec(). The disk is not measured. The file is for this version of the program,
 * the kind of machine of rank 0, numbers of ranks, model and micro-batch. If nodes now exchange
 * data faster or slower than it says, all is measured again. The 64 newest files are kept. A file
 * that cannot be read or written is no error. Collective. */
enum status job_rates(struct job *job, struct plan_rates *out);

/* The passes of a model and their keys. */
enum { JOB_PASSES = 3 };
extern const char *const job_passes[JOB_PASSES];
/* GFLOP/s of this rank's passes in the steps of a profile; 0: not run. Local. */
void job_pass_rates(const struct plan *plan, const struct exec_profile *profile,
                    double rate[JOB_PASSES]);
/* The lines of a file without those of passes, and then those of `rate`. mem_free. Local. */
enum status job_rates_with_passes(const char *text, const double rate[JOB_PASSES], char **out);
/* Adds the rates of passes of the slowest rank to the file of the last job_rates(), if it has none,
 * for later starts of a job that trains. A file that cannot be written is no error. Collective. */
enum status job_rates_learn(const struct job *job, const struct exec_profile *profile);
