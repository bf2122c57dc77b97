/* The rates of this machine at the start of a job. Rank 0 reads them from the user's cache, or all
 * ranks measure them within a second and rank 0 writes them there. The text of a file goes to all
 * ranks, so they have the same numbers, and a start that measures has those of the next start. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/append.h"
#include "base/cache.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/open.h"
#include "comm/mpi_info.h"
#include "compress/compress.h"
#include "config.h"
#include "io/store/store.h"
#include "io/text/file.h"
#include "job/rates.h"
#include "job/search.h"

enum { MOST_BYTES = 16 << 20, MOST_MATRIX = 4096, LINE_BYTES = 1024, MOST_FILES = 64 };
static const double rate_s = 0.02; /* for a rate of MOST_BYTES; fewer bytes take less */

static const char head[] =
    "# Measured by Sluice for the predictions of a job's start. sluice plan rates=FILE reads it.\n";

/* ---- what is measured, and where ---- */

static void want_row(const struct codec_ops *ops, struct job_rates_wanted *wanted)
{
  const enum codec_number number = codec_number(ops);
  if (number < CODECS && !(ops->traits & CODEC_IDENTITY))
    wanted->codec[number] = true;
}

static void want_codec(const char *name, struct job_rates_wanted *wanted)
{
  struct codec codec;
  if (!name || codec_make(name, NULL, false, &codec))
    return; /* plain fp32 */
  want_row(codec.ops, wanted);
  want_row(codec.values, wanted);
}

static void want_codecs(const struct deck_policy *policy, struct job_rates_wanted *wanted)
{
  const char *const names[] = {policy->grads.codec, policy->grads.values, policy->weights.codec,
                               policy->weights.values, policy->feedback};
  struct codec frozen;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    want_codec(names[i], wanted);
  for (int i = 0; i < policy->units.n; i++)
    want_codec(policy->units.of[i].value, wanted);
  if (!codec_make_frozen(policy->frozen, &frozen))
    want_row(frozen.ops, wanted);
}

static int64_t round_up(int64_t n, int64_t grain)
{
  return (n + grain - 1) / grain * grain;
}

/* Small models have small sizes, so that their start takes milliseconds. */
static void want_sizes(const struct job *job, struct job_rates_wanted *wanted)
{
  const struct model *model = job->model;
  int64_t most = RATES_LEAST;
  for (int u = 0; u < model->units; u++) {
    const int64_t bytes = model->unit[u].layout.flat * (int64_t)sizeof(float);
    most = bytes > most ? bytes : most;
  }
  wanted->bytes =
      round_up(most < MOST_BYTES ? most : MOST_BYTES, (int64_t)STORE_BLOCK * comm_ranks(job->comm));
  wanted->seconds = rate_s * fmin(1, (double)most / MOST_BYTES);
  const int64_t rows = round_up(4 * model->config.width, 64);
  wanted->matrix = rows < MOST_MATRIX ? rows : MOST_MATRIX;
}

static enum status want(const struct job *job, struct deck_shape *shape,
                        struct job_rates_wanted *wanted)
{
  struct deck_policy policy;
  const enum status status =
      deck_resolve(job->deck, comm_ranks(job->comm), comm_local_ranks(job->comm), shape, &policy);
  if (status)
    return status;
  *wanted = (struct job_rates_wanted){
      .links = true, .copies = !job->device->model.host_memory || policy.host_state};
  want_codecs(&policy, wanted);
  want_codec(search_codec(job->deck, comm_local_ranks(job->comm) < comm_ranks(job->comm)), wanted);
  want_sizes(job, wanted);
  return STATUS_OK;
}

/* The kind of the first processor: a name, or on some architectures a number. */
static void append_processor(char line[LINE_BYTES])
{
  static const char *const keys[] = {"model name", "CPU part", "cpu"};
  char text[4096];
  const char *at = NULL;
  if (!open_read_text("/proc/cpuinfo", text, sizeof text))
    return;
  for (size_t i = 0; i < sizeof keys / sizeof *keys && !at; i++)
    at = strstr(text, keys[i]);
  at = at ? strpbrk(at, ":\n") : NULL;
  if (at && *at == ':')
    append_text(line, LINE_BYTES, "%.*s", (int)strcspn(at, "\n"), at);
}

/* The line of a file that says what its rates are of. It describes the machine and does not name
 * it, because a job of a cluster seldom gets the nodes of an earlier one. */
static void describe(const struct job *job, const struct deck_shape *shape,
                     const struct job_rates_wanted *wanted, char line[LINE_BYTES])
{
  const struct model_config *m = &job->model->config;
  struct comm_fabric fabric;
  int64_t trained = 0;
  int gpus = 0;
  (void)job_count_gpus(job->deck, &gpus);
  for (int u = 0; u < job->model->units; u++)
    trained += job->model->unit[u].layout.trained;
  comm_fabric_read("/sys/class", &fabric);
  snprintf(line, LINE_BYTES, "# sluice %s, %s %s, %d GPUs, %ld CPUs", PACKAGE_VERSION,
           job->device->ops->name, job->device->product, gpus, sysconf(_SC_NPROCESSORS_CONF));
  append_processor(line);
  append_text(line, LINE_BYTES,
              ", fabric %s, %s, %d threads, %d ranks, %d on a node, %s, copies %d, ", fabric.text,
              job->place.precision, job->threads, comm_ranks(job->comm),
              comm_local_ranks(job->comm), comm_transport_text(job->comm), wanted->copies);
  for (int c = 0; c < CODECS; c++)
    append_text(line, LINE_BYTES, "%d", wanted->codec[c]);
  const int64_t sizes[] = {
      m->layers,   m->width,        m->heads,           m->context,     m->vocab,
      m->ffn,      m->head_width,   m->window,          m->window_from, m->tied,
      m->kv_heads, shape->sequence, shape->micro_batch, trained,        job->deck->rows[0].packed};
  append_text(line, LINE_BYTES, ", %s", m->arch);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    append_text(line, LINE_BYTES, " %lld", (long long)sizes[i]);
  append_text(line, LINE_BYTES, "\n");
}

/* ---- the file ---- */

static char *path_of(const char *line)
{
  char name[32];
  snprintf(name, sizeof name, "rates-%016llx", (unsigned long long)hash_text(line));
  return cache_path(name);
}

/* The last line of a file: a hash of the lines before it. */
struct seal {
  char text[20];
};
static struct seal seal_of(const char *text)
{
  struct seal seal;
  snprintf(seal.text, sizeof seal.text, "# %016llx\n", (unsigned long long)hash_text(text));
  return seal;
}

/* Cuts the seal off. False: the file is damaged, or its rates are of something else. */
static bool unseal(char *text, const char *line)
{
  const size_t bytes = strlen(text), length = sizeof(struct seal) - 1;
  char seal[sizeof(struct seal)];
  if (bytes < strlen(head) + strlen(line) + length || strncmp(text, head, strlen(head)) != 0 ||
      strncmp(text + strlen(head), line, strlen(line)) != 0)
    return false;
  memcpy(seal, text + bytes - length, sizeof seal);
  text[bytes - length] = '\0';
  return !strcmp(seal, seal_of(text).text);
}

/* The file without its seal; NULL: there is none for this line. */
static char *read_file(const char *path, const char *line)
{
  struct plan_rates rates;
  char *text = NULL;
  size_t bytes = 0;
  if (!path || !file_exists(path))
    return NULL;
  enum status status = file_read_own(path, JOB_RATES_BYTES, &text, &bytes);
  if (!status && !unseal(text, line))
    status = status_set(STATUS_INPUT, "it is damaged, or of something else");
  status = status ?: job_rates_parse(path, text, &rates);
  if (!status)
    return text;
  log_debug("%s is not used: %s", path, status_text());
  mem_free(text);
  return NULL;
}

static void write_file(const char *path, const char *text)
{
  char *whole = path ? mem_printf("%s%s", text, seal_of(text).text) : NULL;
  if (whole && cache_write(path, whole, strlen(whole)))
    cache_trim("rates", MOST_FILES);
  mem_free(whole);
}

/* ---- the start ---- */

/* The rate of job_link_rate() when a file was measured. */
static const char link_format[] = "# A node receives %.4g GB/s from others.\n";
static double link_of(const char *text, const char *line)
{
  double rate = 0;
  (void)sscanf(text + strlen(head) + strlen(line), "# A node receives %lf", &rate);
  return rate;
}

/* Whether the file of rank 0 holds for the links between nodes. Its rate and theirs: before and
 * now. Collective. */
static enum status check_link(const struct job *job, const char *found, const char *line,
                              bool *holds, double *now)
{
  struct comm *comm = job->comm;
  double before[] = {found ? 1 : -1, found ? link_of(found, line) : 0};
  const enum status status = comm_max_f64(comm, before, 2) ?: job_link_rate(job, before[1], now);
  *holds = before[0] > 0 && (*now == 0 || job_link_is_as(*now, before[1]));
  if (!status && before[0] > 0 && !*holds && comm_rank(comm) == 0)
    log_info("rates are measured again, because a node receives %.3g GB/s from others now, and "
             "%.3g GB/s before",
             *now, before[1]);
  return status;
}

/* Gives all ranks the file of rank 0. If there is none that holds, all ranks measure. Other ranks
 * do not touch the folder. Collective. */
static enum status get_text(const struct job *job, const struct job_rates_wanted *wanted,
                            const char *line, char **text)
{
  struct comm *comm = job->comm;
  struct plan_rates measured;
  const bool leads = comm_rank(comm) == 0;
  char *path = leads ? path_of(line) : NULL, *found = leads ? read_file(path, line) : NULL;
  double link = 0;
  bool holds = false;
  enum status status = check_link(job, found, line, &holds, &link);
  const double start = clock_s();
  if (!status && !holds)
    status = job_rates_measure(job, wanted, &measured);
  if (!status && !holds && leads) {
    mem_free(found);
    found = NULL;
    status = mem_alloc(MEM_META, JOB_RATES_BYTES, (void **)&found);
    if (!status) {
      snprintf(found, JOB_RATES_BYTES, "%s%s", head, line);
      if (link > 0)
        append_text(found, JOB_RATES_BYTES, link_format, link);
      job_rates_append(&measured, found, JOB_RATES_BYTES);
      log_debug("the rates of this machine were measured in %.3f s", clock_s() - start);
      write_file(path, found);
    }
  }
  mem_free(path);
  *text = found;
  status = comm_agree(comm, status);
  return status ? status : comm_broadcast_text(comm, text, 0);
}

enum status job_rates(struct job *job, struct plan_rates *out)
{
  struct job_rates_wanted wanted;
  struct deck_shape shape;
  char line[LINE_BYTES] = "", *text = NULL;
  enum status status = comm_agree(job->comm, want(job, &shape, &wanted));
  if (status)
    return status;
  if (comm_rank(job->comm) == 0) {
    describe(job, &shape, &wanted, line);
    mem_free(job->rates_of);
    job->rates_of = mem_strdup(line);
  }
  status = get_text(job, &wanted, line, &text)
               ?: comm_agree(job->comm, job_rates_parse("rates", text, out));
  mem_free(text);
  return status;
}

static void learn(const char *rates_of, const double rate[JOB_PASSES])
{
  char key[32], *more = NULL, *path = path_of(rates_of), *text = read_file(path, rates_of);
  snprintf(key, sizeof key, "\n%s: ", job_passes[0]);
  if (text && !strstr(text, key) && !job_rates_with_passes(text, rate, &more))
    write_file(path, more);
  mem_free(more);
  mem_free(text);
  mem_free(path);
}

enum status job_rates_learn(const struct job *job, const struct exec_profile *profile)
{
  double rate[JOB_PASSES];
  job_pass_rates(job->plan[PLAN_TRAIN], profile, rate);
  for (int i = 0; i < JOB_PASSES; i++)
    rate[i] = -rate[i];
  const enum status status = comm_max_f64(job->comm, rate, JOB_PASSES);
  for (int i = 0; i < JOB_PASSES; i++)
    rate[i] = -rate[i];
  if (!status && comm_rank(job->comm) == 0 && job->rates_of && rate[0] > 0)
    learn(job->rates_of, rate);
  return status;
}
