/* sluice bench rates: the rates for predictions (sluice plan rates=FILE), measured by
 * job_rates_measure(). */
#include <stdio.h>
#include <string.h>

#include "base/append.h"
#include "base/printable.h"
#include "cmd/bench_frame.h"
#include "device/device.h"
#include "io/store/store.h"
#include "io/text/file.h"
#include "job/rates.h"

struct values {
  struct bench_values shared;
  char *out, *dir;
  int64_t bytes;
  int device, backend;
};

static const char *const wheres[] = {"auto", "host", "cuda", NULL};
static const char *const backends[] = {"auto", "mpi", "nccl", NULL};

/* clang-format off */
static const struct option table[] = {
    {"out", OPTION_STRING, AT(out), "", .path = true,
     .text = "File to write the rates to, for sluice plan rates=."},
    {"dir", OPTION_STRING, AT(dir), "", .path = true,
     .text = "Folder on the disk to measure (tiers.nvme of a deck). Empty: the disk is not "
             "measured."},
    {"bytes", OPTION_INT, AT(bytes), "256Mi", .least = RATES_LEAST, .most = 1 << 30,
     .unit = OPTIONS_BYTES, .text = "Bytes of a copy, of a collective, and of an array."},
    {"device", OPTION_CHOICE, AT(device), "auto", .choices = wheres,
     .text = "Device that computes. auto: GPUs if there are any."},
    {"backend", OPTION_CHOICE, AT(backend), "auto", .choices = backends,
     .text = "Library that moves data between GPUs, as comm.backend of the deck. auto: NCCL if it "
             "is in this build."},
    BENCH_THREADS,
    BENCH_SECONDS("1", 3600, "Approximate time per rate."),
    BENCH_RESULTS(shared.results),
    {.name = NULL},
};

/* clang-format on */

struct rates {
  struct bench bench;
  const struct values *values;
  int64_t bytes;
  struct plan_rates rates; /* in the units of the file; below 0: not measured */
};

static enum status check(void *part)
{
  struct rates *rates = part;
  const struct values *values = rates->values;
  const struct comm *comm = rates->bench.comm;
  const int64_t grain = (int64_t)STORE_BLOCK * comm_ranks(comm);
  rates->bytes = values->bytes / grain * grain;
  if (rates->bytes == 0)
    return status_usage("bytes=%lld: %d ranks need %lld at least", (long long)values->bytes,
                        comm_ranks(comm), (long long)grain);
  return comm_rank(comm) == 0 && *values->out ? file_check_write(values->out, JOB_RATES_BYTES)
                                              : STATUS_OK;
}

/* Rates without a measurement are left out. */
static enum status write_rates(struct rates *rates, const char *about)
{
  char text[JOB_RATES_BYTES];
  printable_print(stdout, "%-28s %s; those of the slowest rank, while all ranks do the same\n",
                  "rates of", about);
  snprintf(text, sizeof text, "# Measured by sluice bench rates: %s.\n", about);
  for (const struct option *row = job_rates_table; row->name; row++) {
    const double rate = *job_rates_value(&rates->rates, row);
    if (rate >= 0)
      printf("%-28s %.4g %s, %s\n", row->name, rate, row->unit, row->text);
  }
  job_rates_append(&rates->rates, text, sizeof text);
  const char *out = rates->values->out;
  return *out ? file_write_all(out, text, strlen(text)) : STATUS_OK;
}

static void record(struct json_writer *line, void *part)
{
  struct rates *rates = part;
  bench_begin(line, &rates->bench);
  json_write_text(line, "device", rates->bench.job.device->ops->name);
  json_write_text(line, "transport", comm_transport(rates->bench.comm));
  json_write_int(line, "bytes", rates->bytes);
  for (const struct option *row = job_rates_table; row->name; row++)
    if (*job_rates_value(&rates->rates, row) >= 0)
      json_write_real(line, row->name, *job_rates_value(&rates->rates, row));
}

static enum status report(struct rates *rates)
{
  const struct comm *comm = rates->bench.comm;
  const char *product = rates->bench.job.device->product;
  char about[256];
  const int ranks = comm_ranks(comm), threads = rates->bench.threads;
  snprintf(about, sizeof about, "%d rank%s, %d on a node, x %d thread%s, device %s%s%s%s%s%s",
           ranks, plural(ranks), comm_local_ranks(comm), threads, plural(threads),
           rates->bench.job.device->ops->name, *product ? " (" : "", product, *product ? ")" : "",
           ranks > 1 ? ", transport between ranks: " : "",
           ranks > 1 ? comm_transport_text(comm) : "");
  return write_rates(rates, about)
             ?: bench_record(rates->values->shared.results, "bench_rates", record, rates);
}

static enum status measure(void *part)
{
  struct rates *rates = part;
  const struct values *values = rates->values;
  struct job_rates_wanted wanted = {.seconds = values->shared.seconds,
                                    .bytes = rates->bytes,
                                    .links = true,
                                    .copies = true,
                                    .disk = *values->dir ? values->dir : NULL};
  memset(wanted.codec, true, sizeof wanted.codec);
  const enum status status =
      bench_take_place(&rates->bench, wheres[values->device], backends[values->backend])
          ?: job_rates_measure(&rates->bench.job, &wanted, &rates->rates);
  if (status)
    return status;
  struct comm *comm = rates->bench.comm;
  return comm_agree(comm, comm_rank(comm) == 0 ? report(rates) : STATUS_OK);
}

static enum status run(const struct arguments *arguments)
{
  return bench_run(arguments, &(struct rates){.values = arguments->values}, check, measure, NULL);
}

const struct command bench_rates = {
    .name = "bench rates",
    .usage = "[key=value ...]",
    .summary = "measure the rates that sluice plan predicts a step from",
    .text = "Measures on all ranks at the same time: matrix products, memory, links, copies "
            "between host and device in both directions, updates and sums in host memory, codecs, "
            "and the disk. sluice plan DECK rates=FILE reads the result. sluice bench DECK "
            "rates=FILE adds the rates of a model's passes, which small matrices make slower than "
            "gemm.\n"
            "\n"
            "A job that chooses settings measures some of these rates at its start, within a "
            "second. It keeps them in a file sluice-rates-* of the user's cache, and adds the "
            "rates of the model's passes after its first steps.\n"
            "\n"
            "A file of rates is YAML with lines such as gemm: 700000. A file may have some of the "
            "keys only. Without gemm nothing is predicted. Work at another missing rate takes no "
            "time, except if the key has a default. With rates=FIRST,SECOND the values of SECOND "
            "take precedence. So a file of two lines "
            "is enough to try other numbers. The keys are:\n" RATES_LIST,
    .examples = "  mpirun -n 4 --bind-to none sluice bench rates out=rates.yaml\n"
                "  mpirun -n 4 --bind-to none sluice bench rates out=rates.yaml dir=/local/disk\n"
                "  mpirun -n 4 --bind-to none sluice bench rates out=rates.yaml backend=mpi\n"
                "  sluice plan inputs/qwen2.5-7b.yaml --ranks 4 rates=rates.yaml\n",
    .options = table,
    .values_size = sizeof(struct values),
    .uses_mpi = true,
    .run = run,
};
