/* Metrics of a run from the records of its starts (doc/reference/results.md).
 * Each start has one record. */
#include <math.h>
#include <string.h>

#include "cmd/compare.h"

double record_real(const json_t *record, const char *key)
{
  const json_t *value = json_object_get(record, key);
  return json_is_number(value) ? json_number_value(value) : NAN;
}

const char *record_text(const json_t *record, const char *key)
{
  const char *text = json_string_value(json_object_get(record, key));
  return text ? text : "";
}

/* How values of several starts are combined. */
enum how { LAST, MOST, SUM, MEAN };

/* How much the mean of a start counts: its steps that were timed, their time, the time of
 * communication, or bytes of messages. */
enum weight { BY_STEPS, BY_TIME, BY_COMM, BY_BYTES };

static const struct metric {
  const char *key;
  enum how how;
  enum weight weight;
} metrics[MATRIX_METRICS] = {
    {.key = "world_size"},
    {.key = "max_length"},
    {.key = "batch_size"},
    {.key = "comm_time_ms_total", .how = SUM},
    {.key = "comm_ratio", .how = MEAN, .weight = BY_TIME},
    {.key = "overlap_ratio", .how = MEAN, .weight = BY_COMM},
    {.key = "effective_bw", .how = MEAN, .weight = BY_COMM},
    {.key = "bytes_raw_total", .how = SUM},
    {.key = "bytes_compressed_total", .how = SUM},
    {.key = "compression_ratio", .how = MEAN, .weight = BY_BYTES},
    {.key = "index_bytes", .how = SUM},
    {.key = "density"},
    {.key = "sparsity"},
    {.key = "compress_time_ms", .how = MEAN, .weight = BY_STEPS},
    {.key = "decompress_time_ms", .how = MEAN, .weight = BY_STEPS},
    {.key = "extra_collectives"},
    {.key = "extra_collective_time_ms", .how = MEAN, .weight = BY_STEPS},
    {.key = "residual_norm"},
    {.key = "grad_rel_error", .how = MEAN, .weight = BY_STEPS},
    {.key = "grad_cos_sim", .how = MEAN, .weight = BY_STEPS},
    {.key = "nonfinite_steps", .how = SUM},
    {.key = "clipped_steps", .how = SUM},
    {.key = "mem_peak_alloc_gb", .how = MOST},
    {.key = "mem_peak_reserved_gb", .how = MOST},
};

const char *matrix_metric_key(int metric)
{
  return metrics[metric].key;
}

double matrix_metric_value(const struct matrix_metrics *m, int metric)
{
  const struct matrix_sum *sum = &m->of[metric];
  if (!sum->known)
    return NAN;
  return metrics[metric].how == MEAN ? sum->value / sum->weight : sum->value;
}

static double weight_of(const json_t *record, enum weight weight)
{
  const double steps = record_real(record, "timed_steps");
  switch (weight) {
  case BY_TIME: return steps * record_real(record, "step_time_ms_mean");
  case BY_COMM: return record_real(record, "comm_time_ms_total");
  case BY_BYTES: return record_real(record, "bytes_compressed_total");
  default: return steps;
  }
}

static void add(struct matrix_sum *sum, const struct metric *metric, double value, double weight)
{
  switch (metric->how) {
  case LAST: sum->value = value; break;
  case MOST: sum->value = sum->known ? fmax(sum->value, value) : value; break;
  case SUM: sum->value += value; break;
  case MEAN:
    sum->value += weight * value;
    sum->weight += weight;
    break;
  }
  sum->known = true;
}

static void take_ops(struct matrix_metrics *m, const json_t *record)
{
  const json_t *ops = json_object_get(record, "comm_time_ms_by_op");
  for (int op = 0; op < OP_COUNT && ops; op++) {
    const double ms = record_real(ops, plan_op_name((enum op)op));
    m->op_ms[op] += isfinite(ms) ? ms : 0;
  }
}

void matrix_metrics_take(struct matrix_metrics *m, const json_t *record)
{
  for (int i = 0; i < MATRIX_METRICS; i++) {
    const struct metric *metric = &metrics[i];
    const double value = record_real(record, metric->key),
                 weight = metric->how == MEAN ? weight_of(record, metric->weight) : 1;
    if (isfinite(value) && weight > 0)
      add(&m->of[i], metric, value, weight);
  }
  take_ops(m, record);
  snprintf(m->model, sizeof m->model, "%s", record_text(record, "model"));
  snprintf(m->dataset, sizeof m->dataset, "%s", record_text(record, "dataset"));
  snprintf(m->codec, sizeof m->codec, "%s", record_text(record, "compress_method"));
  snprintf(m->config, sizeof m->config, "%s", record_text(record, "compress_config"));
  snprintf(m->commit, sizeof m->commit, "%s", record_text(record, "commit"));
}
