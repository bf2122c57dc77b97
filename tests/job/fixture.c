#include "fixture.h"
#include "base/mem.h"
#include "job/state.h"
#include "tests/test.h"

#include "tests/comm/far.h"

/* --- memory apart -------------------------------------------------------- */

enum { MOST_COPIES = 256 };

struct pending {
  char *to;
  const char *from;
  size_t bytes;
  int64_t cast; /* elements from fp32 to `type`; 0: a copy */
  enum dtype type;
};

static struct {
  const struct device_ops *host;
  struct device_ops ops;
  struct pending pending[MOST_COPIES];
  int copies;
  struct apart_counts counts;
  int64_t used, all;
} apart = {.used = -1};

static enum status apart_alloc(struct device *device, enum mem_tag tag, size_t bytes, void **out)
{
  (void)device, (void)tag;
  *out = far_alloc(bytes, false);
  return STATUS_OK;
}

static void apart_release(struct device *device, void *ptr)
{
  (void)device;
  far_free(ptr);
}

static enum status apart_copy(struct lane *lane, void *to, const void *from, size_t bytes)
{
  (void)lane;
  const bool target = far_holds(to);
  assert_true(target != far_holds(from)); /* between host and device, and inside one allocation */
  far_check(to, bytes);
  far_check(from, bytes);
  assert_true(apart.copies < MOST_COPIES);
  apart.pending[apart.copies++] = (struct pending){.to = to, .from = from, .bytes = bytes};
  apart.counts.copies++;
  *(target ? &apart.counts.to_device : &apart.counts.from_device) += (int64_t)bytes;
  return STATUS_OK;
}

/* After the earlier copies, inside the device. */
static enum status apart_cast(struct lane *lane, int64_t n, enum dtype from_type, const void *from,
                              enum dtype to_type, void *to)
{
  (void)lane;
  assert_true(n > 0 && from_type == DTYPE_F32 && far_holds(to) && far_holds(from));
  far_check(to, (size_t)n * dtype_size(to_type));
  far_check(from, (size_t)n * sizeof(float));
  assert_true(apart.copies < MOST_COPIES);
  apart.pending[apart.copies++] =
      (struct pending){.to = to, .from = from, .cast = n, .type = to_type};
  return STATUS_OK;
}

static enum status apart_wait(struct mark *mark)
{
  for (int i = 0; i < apart.copies; i++) {
    const struct pending *p = &apart.pending[i];
    if (p->cast > 0)
      dtype_convert(far_real(p->to), p->type, far_real(p->from), DTYPE_F32, (size_t)p->cast);
    else
      memcpy(far_real(p->to), far_real(p->from), p->bytes);
  }
  apart.copies = 0;
  return apart.host->mark_wait(mark);
}

static void apart_lane_destroy(struct lane *lane)
{
  assert_int_equal(apart.copies, 0);
  apart.host->lane_destroy(lane);
}

static enum status apart_memory(struct device *device, int64_t *used, int64_t *all)
{
  if (apart.used < 0)
    return apart.host->memory(device, used, all);
  *used = apart.used;
  *all = apart.all;
  return STATUS_OK;
}

/* The host device: from now on its allocations are pages that nothing but its copies may touch.
 * Between lane and memory nothing moves before a mark is waited for, and a lane that is destroyed
 * earlier fails the test. One such device at a time allocates. */
static void apart_make(struct device *device)
{
  struct device_model cuda;
  if (!apart.host)
    apart.host = device->ops;
  apart.ops = *apart.host;
  apart.ops.name = "apart";
  apart.ops.alloc = apart_alloc;
  apart.ops.release = apart_release;
  apart.ops.copy = apart_copy;
  apart.ops.cast = apart_cast;
  apart.ops.mark_wait = apart_wait;
  apart.ops.lane_destroy = apart_lane_destroy;
  apart.ops.memory = apart_memory;
  device->ops = &apart.ops;
  must(device_model_find("cuda", device->model.compute, &cuda));
  device->model.host_memory = false;
  device->model.reserve = cuda.reserve;
  device->model.gpu.multiprocessors = 132;
}

struct apart_counts apart_counts(void)
{
  const struct apart_counts counts = apart.counts;
  apart.counts = (struct apart_counts){0};
  return counts;
}

void apart_read(const void *from, size_t bytes, void *to)
{
  memcpy(to, far_real(from), bytes);
}

void apart_set_memory(int64_t used, int64_t all)
{
  apart.used = used;
  apart.all = all;
}

/* --- a rank -------------------------------------------------------------- */

static int local_ranks;

void fixture_set_nodes(int ranks)
{
  local_ranks = ranks;
}

void fixture_open(struct job *job, struct deck *deck, struct comm *comm, int rank, int ranks,
                  bool apart_device)
{
  const int local = local_ranks > 0 ? local_ranks : ranks;
  const enum dtype compute = deck->run.compute == DECK_COMPUTE_BF16 ? DTYPE_BF16 : DTYPE_F32;
  *job = (struct job){.deck = deck, .comm = comm, .place = {.compute = compute}, .threads = 1};
  if (!comm)
    must(comm_create_fake(rank, ranks, local, &job->comm));
  must(device_create("host", 0, compute, &job->device));
  if (apart_device)
    apart_make(job->device);
  must(job_model(deck, compute, ranks, &job->model));
  struct plan_input input = {.mode = PLAN_TRAIN,
                             .rank = rank,
                             .ranks = ranks,
                             .model = job->model,
                             .device = &job->device->model,
                             .threads = 1};
  must(job_shape(deck, JOB_TRAIN, local, &input));
  must(plan_create(&input, &job->plan[PLAN_TRAIN]));
  const struct plan *plans[] = {job->plan[PLAN_TRAIN]};
  must(exec_memory_create(job->device, job->comm, deck->tiers.nvme, plans, 1, &job->memory));
  must(job_state_make_scales(job));
}

void fixture_close(struct job *job)
{
  exec_memory_destroy(&job->memory);
  mem_free(job->scales);
  plan_destroy(job->plan[PLAN_TRAIN]);
  model_destroy(job->model);
  device_destroy(job->device);
  if (!comm_mpi(job->comm))
    comm_destroy(job->comm);
}

void fixture_end(struct job *job)
{
  fixture_close(job);
  deck_destroy((struct deck *)job->deck);
}

/* Pieces that are no multiple of anything. */
static void move_tensor(const struct io_tensor *tensor, float *values)
{
  enum { PIECE = 53 };
  for (int64_t at = tensor->range.begin; at < tensor->range.end; at += PIECE) {
    const struct layout_range piece = {at, tensor->range.end - at < PIECE ? tensor->range.end
                                                                          : at + PIECE};
    must(tensor->move(tensor, piece, values + (at - tensor->range.begin)));
  }
}

static size_t range_bytes(const struct io_tensor *tensor)
{
  return tensor->range.end > tensor->range.begin
             ? (size_t)(tensor->range.end - tensor->range.begin) * sizeof(float)
             : 0;
}

void fixture_get(const struct io_tensor *tensor, float *out)
{
  if (tensor->move)
    move_tensor(tensor, out);
  else
    memcpy(out, tensor->data, range_bytes(tensor));
}

void fixture_put(const struct io_tensor *tensor, const float *values)
{
  if (tensor->move)
    move_tensor(tensor, (float *)values);
  else
    memcpy(tensor->data, values, range_bytes(tensor));
}

enum status fixture_load(struct deck *deck, const char *text)
{
  enum { MOST = 32 };
  char copy[4096], *assignment[MOST], *rest;
  int n = 0;
  snprintf(copy, sizeof copy, "%s", text);
  for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
    assert_true(n < MOST);
    assignment[n++] = word;
  }
  return deck_load(deck, n, assignment);
}

void fixture_assign(struct deck *deck, const char *text)
{
  char copy[4096], *rest;
  snprintf(copy, sizeof copy, "%s", text);
  for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
    must(options_assign(deck->set, word));
}

void fixture_deck(struct deck *deck, const char *arch, const char *strategy, const char *group,
                  const char *freeze)
{
  char text[512];
  snprintf(text, sizeof text,
           "model.layers=2 model.width=12 model.heads=2 model.context=10 model.vocab=31 "
           "data.batch=12 run.threads=1 model.arch=%s shard.strategy=%s shard.group=%s "
           "train.freeze=%s %s",
           arch, strategy, group, freeze,
           strcmp(arch, "llama") ? "model.ffn=0 model.tied=true" : "model.ffn=20 model.tied=false");
  must(fixture_load(deck, text));
}
