/* Residuals of other ranks than those that go on from them. Oracle: the sum of the rows that were
 * saved, parameter by parameter, by hand. */

#include "base/mem.h"
#include "fixture.h"
#include "tests/test.h"

static enum dtype type_of(const char *feedback)
{
  return strcmp(feedback, "fp32") ? DTYPE_BF16 : DTYPE_F32;
}

/* Ranks that encode all, or nodes of `local` that encode what they have added up (full_shard), or
 * what replicas of them exchange. */
struct place {
  int ranks, local;
  bool replicas;
};

static struct encoded encoded_by(const struct place *place)
{
  const int nodes = place->local > 0 ? place->ranks / place->local : 0;
  if (nodes < 2)
    return (struct encoded){1, 1};
  return (struct encoded){place->local, place->replicas ? 1 : nodes};
}

static int64_t part_length(const struct encoded *encoded, int64_t trained)
{
  return trained / (encoded->parts * encoded->blocks);
}

static bool encodes(const struct encoded *encoded, int64_t trained, int rank, int64_t flat)
{
  return flat / part_length(encoded, trained) % encoded->parts == rank % encoded->parts;
}

/* Rows of `before` go to a rank. */
struct change {
  struct place saved, here;
  int rank;
  const char *before, *now, *tier;
  bool apart;
};

static void open_job(struct job *job, struct deck *deck, const struct change *change)
{
  const struct place *place = &change->here;
  char keys[256];
  fixture_set_nodes(place->local);
  fixture_deck(deck, "llama", place->replicas ? "hybrid_shard" : "full_shard",
               place->replicas ? "node" : "world", "[model.layers.0.*]");
  snprintf(keys, sizeof keys,
           "compress.grads.codec=bf16 compress.feedback=%s tiers.residual=%s tiers.nvme=/tmp",
           change->now, change->tier);
  fixture_assign(deck, keys);
  fixture_open(job, deck, NULL, change->rank, place->ranks, change->apart);
}

/* Few bits, so that bf16 holds the value and all sums are exact. */
static float value_of(int row, int u, int p, int64_t e)
{
  return (float)((row + 1) * 8 + (u + 3 * p + e) % 8);
}

/* A row of a unit as ranks lay it out and encode it, with rubbish in its gaps. Bytes. */
static int64_t make_row(const struct job *job, int u, const struct place *place, int row,
                        enum dtype type, char *out)
{
  const struct encoded encoded = encoded_by(place);
  const int64_t size = (int64_t)dtype_size(type);
  int64_t bytes = 0;
  char *all = NULL;
  const struct layout_unit *unit = &job->model->unit[u].layout;
  struct layout_unit layout;
  must(layout_unit_pack(unit->params, unit->elements, unit->room, unit->frozen, place->ranks,
                        &layout));
  must(mem_new(MEM_IO, (size_t)(layout.trained * size), &all));
  memset(all, 0x3f, (size_t)(layout.trained * size));
  for (int p = 0; p < layout.params; p++)
    for (int64_t e = 0; e < layout.elements[p] && !layout.frozen[p]; e++) {
      const float value = value_of(row, u, p, e);
      dtype_convert(all + (layout.offset[p] + e) * size, type, &value, DTYPE_F32, 1);
    }
  for (int64_t flat = 0; flat < layout.trained; flat++)
    if (encodes(&encoded, layout.trained, row, flat)) {
      memcpy(out + bytes, all + flat * size, (size_t)size);
      bytes += size;
    }
  mem_free(all);
  layout_unit_free(&layout);
  return bytes;
}

static int unit_named(const struct job *job, const char *name)
{
  for (int u = 0; u < job->model->units; u++)
    if (strcmp(job->model->unit[u].name, name) == 0)
      return u;
  fail_msg("no unit %s", name);
  return -1;
}

/* Rows come in pieces that end anywhere. Returns the number of tensors that take them. */
static int put_rows(const struct job *job, const struct job_state *state, const struct place *saved,
                    enum dtype type)
{
  const int ranks = saved->ranks;
  int seen = 0;
  for (int t = 0; t < state->n; t++) {
    const struct io_tensor *tensor = &state->tensor[t];
    if (strcmp(tensor->group, "residual") != 0)
      continue;
    const int u = unit_named(job, tensor->name);
    const int64_t bytes = tensor->shape[1];
    char *all = NULL;
    must(mem_new(MEM_IO, (size_t)(ranks * bytes), &all));
    assert_int_equal(tensor->shape[0], ranks);
    for (int row = 0; row < ranks; row++)
      assert_int_equal(make_row(job, u, saved, row, type, all + row * bytes), bytes);
    for (int64_t at = tensor->range.begin, n; at < tensor->range.end; at += n) {
      n = tensor->range.end - at < 1001 ? tensor->range.end - at : 1001;
      if (tensor->move)
        must(tensor->move(tensor, (struct layout_range){at, at + n}, all + at));
      else
        memcpy((char *)tensor->data + at - tensor->range.begin, all + at, (size_t)n);
    }
    mem_free(all);
    seen++;
  }
  return seen;
}

/* Opens a job, and loads rows that were saved by this policy, NULL: by that of the change. Returns
 * the number of tensors that took them. */
static int open_loaded(struct job *job, struct deck *deck, const struct change *change,
                       const struct deck_policy *policy)
{
  const struct deck_policy usual = {.grads.codec = "bf16", .feedback = change->before};
  const struct job_state_saved saved = {.ranks = change->saved.ranks,
                                        .policy = policy ? *policy : usual,
                                        .encoded = encoded_by(&change->saved)};
  struct job_state *loading = NULL;
  open_job(job, deck, change);
  must(job_state_open_saved(job, &saved, &loading));
  const int seen = put_rows(job, loading, &change->saved, type_of(change->before));
  must(job_state_commit(loading));
  job_state_close(loading);
  return seen;
}

static float expected(const struct job *job, int u, int p, int64_t e, const struct place *now,
                      const struct place *saved)
{
  const struct encoded here = encoded_by(now), before = encoded_by(saved);
  const struct layout_unit *unit = &job->model->unit[u].layout;
  struct layout_unit layout;
  float sum = 0;
  if (memcmp(now, saved, sizeof *now) == 0)
    return value_of(job_state_plan(job)->input.rank, u, p, e);
  must(layout_unit_pack(unit->params, unit->elements, unit->room, unit->frozen, saved->ranks,
                        &layout));
  for (int row = 0; row < saved->ranks; row++)
    if (encodes(&before, layout.trained, row, layout.offset[p] + e))
      sum += value_of(row, u, p, e);
  layout_unit_free(&layout);
  return sum * (1 / (float)(now->ranks / here.parts));
}

/* Gaps are zero unless the row is as it was. */
static void check_residual(const struct job *job, int u, const struct change *change)
{
  const enum dtype type = type_of(change->now);
  const struct encoded here = encoded_by(&change->here);
  const struct plan *plan = job_state_plan(job);
  const struct plan_buffer *buffer = &plan->buffer[plan->unit[u].residual];
  const struct layout_unit *layout = &plan->unit[u].layout;
  char *bytes = NULL;
  must(mem_new(MEM_IO, (size_t)buffer->bytes, &bytes));
  if (change->apart && buffer->tier == TIER_DEVICE)
    apart_read((const char *)job->memory.persistent[TIER_DEVICE] + buffer->offset,
               (size_t)buffer->bytes, bytes);
  else
    must(exec_memory_read(&job->memory, plan, plan->unit[u].residual, 0, buffer->bytes, bytes));
  for (int p = 0; p < layout->params; p++)
    for (int64_t e = 0; e < layout->elements[p] && !layout->frozen[p]; e++) {
      const int64_t flat = layout->offset[p] + e, length = part_length(&here, layout->trained),
                    nth = flat / length / here.parts * length + flat % length,
                    at = nth * (int64_t)dtype_size(type);
      float want = expected(job, u, p, e, &change->here, &change->saved);
      char rounded[4];
      if (!encodes(&here, layout->trained, plan->input.rank, flat))
        continue;
      dtype_convert(rounded, type, &want, DTYPE_F32, 1);
      if (memcmp(rounded, bytes + at, dtype_size(type)) != 0)
        fail_msg("element %lld of parameter %d of unit %d", (long long)e, p, u);
    }
  mem_free(bytes);
}

TEST(ranks_go_on_from_others)
{
  static const struct change cases[] = {
      {{2, 0, false}, {2, 0, false}, 1, "bf16", "bf16", "device", false},
      {{2, 0, false}, {3, 0, false}, 1, "bf16", "bf16", "device", false},
      {{3, 0, false}, {2, 0, false}, 0, "bf16", "fp32", "device", false},
      {{3, 0, false}, {3, 0, false}, 2, "fp32", "bf16", "device", false},
      {{2, 0, false}, {4, 0, false}, 3, "fp32", "fp32", "device", true},
      {{2, 0, false}, {2, 0, false}, 0, "fp32", "fp32", "device", true},
      {{4, 2, false}, {4, 2, false}, 3, "fp32", "fp32", "device", false},
      {{4, 2, false}, {4, 2, false}, 1, "fp32", "bf16", "device", true},
      {{4, 2, false}, {4, 0, false}, 2, "fp32", "fp32", "device", false},
      {{4, 0, false}, {4, 2, false}, 3, "bf16", "fp32", "device", false},
      {{6, 3, false}, {6, 2, false}, 5, "fp32", "fp32", "device", false},
      {{6, 2, false}, {3, 1, false}, 1, "fp32", "bf16", "device", false},
      {{4, 2, true}, {4, 2, true}, 2, "bf16", "bf16", "device", false},
      {{4, 2, true}, {6, 3, false}, 4, "fp32", "fp32", "device", true},
      {{6, 3, false}, {4, 2, true}, 1, "fp32", "fp32", "device", false}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    struct job job;
    struct deck deck;
    assert_true(open_loaded(&job, &deck, &cases[c], NULL) > 1);
    for (int u = 0; u < job.model->units; u++)
      if (job_state_plan(&job)->unit[u].residual >= 0)
        check_residual(&job, u, &cases[c]);
    fixture_end(&job);
  }
}

/* Rows of a tensor that this rank would save, one after another. */
static void get_row(const struct io_tensor *tensor, char *out)
{
  const int64_t begin = tensor->range.begin, n = tensor->range.end - begin;
  for (int64_t at = 0; at < n && tensor->move; at += 1001) {
    const int64_t end = at + 1001 < n ? at + 1001 : n;
    must(tensor->move(tensor, (struct layout_range){begin + at, begin + end}, out + at));
  }
  if (!tensor->move)
    memcpy(out, tensor->data, (size_t)n);
}

/* The loaded state is the same for every memory tier, and also if the checkpoint is written during
 * training. */
TEST(loaded_residual_is_saved)
{
  static const char *const tiers[] = {"device", "host", "nvme"};
  for (int choice = 0; choice < 12; choice++) {
    const bool copies = choice & 2;
    const struct change same = {{2}, {2}, 1, "fp32", "fp32", tiers[choice / 4], choice & 1};
    struct job job;
    struct deck deck;
    struct job_state *saving = NULL;
    assert_true(open_loaded(&job, &deck, &same, NULL) > 1);
    must(copies ? job_state_create_snapshot(&job, &saving)
                : job_state_open(&job, true, true, false, &saving));
    if (copies)
      must(job_state_take_snapshot(saving));
    for (int t = 0; t < saving->n; t++) {
      const struct io_tensor *tensor = &saving->tensor[t];
      char *row = NULL, *want = NULL;
      if (strcmp(tensor->group, "residual") != 0)
        continue;
      must(mem_new(MEM_IO, (size_t)tensor->shape[1], &row));
      must(mem_new(MEM_IO, (size_t)tensor->shape[1], &want));
      make_row(&job, unit_named(&job, tensor->name), &same.here, 1, DTYPE_F32, want);
      get_row(tensor, row);
      assert_memory_equal(row, want, (size_t)tensor->shape[1]);
      mem_free(want);
      mem_free(row);
    }
    job_state_close(saving);
    fixture_end(&job);
  }
}

/* A unit that had no codec when the checkpoint was saved begins with zeros. Nothing is asked of a
 * checkpoint that has no residuals, and what there is stays zero. */
TEST(units_without_a_codec_have_saved_nothing)
{
  static const struct change same = {{2}, {2}, 0, "fp32", "fp32", "device", false};
  const struct deck_policy none = {.grads.codec = "bf16"}, some = {.grads.codec = "bf16",
                                                                   .feedback = "fp32",
                                                                   .units = {1, {{"*.1", "none"}}}};
  struct job job;
  struct deck deck;
  int all = 0;
  const int seen = open_loaded(&job, &deck, &same, &some);
  for (int u = 0; u < job.model->units; u++)
    all += job_state_plan(&job)->unit[u].residual >= 0;
  assert_int_equal(seen, all - 1);
  fixture_end(&job);
  assert_int_equal(open_loaded(&job, &deck, &same, &none), 0);
  fixture_end(&job);
}

TEST_MAIN(NULL, NULL)
