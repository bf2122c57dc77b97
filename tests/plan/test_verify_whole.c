/* Verify: nothing can be spared or exchanged. Oracle: the rows of ops.c. No instruction of a step
 * is superfluous, no access may differ, and no two buffers may be exchanged. */

#include "broken.h"
#include "plan/internal.h"
#include "plan/ops.h"
#include "plan/verify.h"
#include "tests/rows.h"

enum { MOST_WHOLE = 128 };
static char whole[MOST_WHOLE][256];
static int n_whole;

static void add_whole(const char *given, const char *expected)
{
  assert_true(n_whole < MOST_WHOLE);
  assert_string_equal(expected, "sound");
  snprintf(whole[n_whole++], sizeof *whole, "%s", given);
}

FIXTURE(start)
{
  rows_each("tests/plan/sound.txt", "points", add_whole);
  return 0;
}

/* ---- a codec that needs memory to work in ---- */

static int64_t work_of(const struct codec *codec, int64_t n, int parts)
{
  (void)codec;
  return n * parts;
}

static struct codec_ops worked, sums;

typedef enum status make(const char *name, const struct codec_settings *settings, bool feedback,
                         struct codec *out);
make __real_codec_make, __wrap_codec_make;
enum status __wrap_codec_make(const char *name, const struct codec_settings *settings,
                              bool feedback, struct codec *out)
{
  if (name && strcmp(name, "sums") == 0) {
    sums = codec_bf16;
    sums.name = "sums";
    sums.traits |= CODEC_ALONE;
    *out = (struct codec){.ops = &sums, .feedback = feedback};
    return STATUS_OK;
  }
  if (!name || strcmp(name, "worked") != 0)
    return __real_codec_make(name, settings, feedback, out);
  worked = codec_bf16;
  worked.name = "worked";
  worked.work = work_of;
  *out = (struct codec){.ops = &worked, .feedback = feedback};
  return STATUS_OK;
}

TEST(codecs_have_room_to_work)
{
  static const struct {
    const char *codec, *feedback;
    enum op op;
    int k;
  } cases[] = {{"worked", NULL, OP_ENCODE, ENCODE_WORK},
               {"worked", NULL, OP_DECODE_SUM, DECODE_SUM_WORK},
               {"bf16", "worked", OP_ENCODE, ENCODE_WORK},
               {"int8_global", "worked", OP_MAGNITUDE, MAGNITUDE_WORK},
               {NULL, NULL, OP_ENCODE_PARAMS, ENCODE_PARAMS_WORK},
               {NULL, NULL, OP_DECODE_PARAMS, DECODE_PARAMS_WORK}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    struct point point = *fixture_point(FULL_SHARD);
    point.codec = cases[c].codec;
    point.feedback = cases[c].feedback;
    point.weights = cases[c].codec ? NULL : "worked";
    struct plan *plan = broken_start(&point);
    const struct instr *instr = &plan->instr[fixture_find(plan, cases[c].op, 1, -1)];
    const int work = instr->use[cases[c].k].buffer;
    const int64_t needed = cases[c].op == OP_ENCODE_PARAMS
                               ? plan->unit[1].layout.trained / point.group
                               : plan->unit[1].layout.trained;
    broken_resize(plan, work, needed - 1);
    broken_refused(plan, "has too little room for its codec worked");
  }
}

TEST_WITH(parameters_are_decoded_one_by_one, fixture_make_small, fixture_free_small)
{
  struct point point = *fixture_point(FULL_SHARD);
  struct plan *plan = NULL;
  point.weights = "sums";
  const struct plan_input input = fixture_input(&fixture_small, &point, 0);
  assert_int_equal(plan_create(&input, &plan), STATUS_UNSUPPORTED);
  assert_string_equal(status_text(), "compress.weights.codec=sums is for sums of gradients: use "
                                     "another codec");
}

/* A copy of the sample and its four sums, after what the codec works in. All units share it. */
static int64_t measuring_bytes(const struct plan *plan, bool works, int ranks)
{
  int64_t most = 0;
  for (int u = 0; u < plan->input.model->units; u++) {
    const int64_t trained = plan->unit[u].layout.trained, work = works ? (trained + 255) / 256 : 0;
    const int64_t sample = trained / ranks * 4 + (int64_t)sizeof(struct plan_sample);
    const int64_t bytes = (work + (sample + 255) / 256) * 256;
    most = bytes > most ? bytes : most;
  }
  return most;
}

TEST_WITH(measuring_has_room, fixture_make_small, fixture_free_small)
{
  for (int works = 0; works < 2; works++)
    for (int less = 0; less < 2; less++) {
      struct point point = *fixture_point(FULL_SHARD);
      point.codec = works ? "worked" : "bf16";
      point.sample = 3;
      struct plan *plan = broken_start(&point);
      const int encode = fixture_find(plan, OP_ENCODE, 1, -1);
      broken_resize(plan, plan->instr[encode].use[ENCODE_WORK].buffer,
                    measuring_bytes(plan, works, point.ranks) - less);
      if (less) {
        broken_refused(plan, "has too little room to measure what its messages lose");
        continue;
      }
      must(plan_verify(plan));
      plan_destroy(plan);
    }
}

TEST_WITH(hosts_have_no_room_for_codecs, fixture_make_small, fixture_free_small)
{
  struct point point = *fixture_point(HOST_SHARED);
  struct plan *plan = NULL;
  point.codec = "worked";
  const struct plan_input input = fixture_input(&fixture_small, &point, 0);
  assert_int_equal(plan_create(&input, &plan), STATUS_UNSUPPORTED);
  assert_string_equal(status_text(),
                      "compress.grads.codec=worked needs scratch memory, which hosts that reduce "
                      "gradients do not have: use transfer.grads=gpu_reduce, or another codec");
}

static bool names_one(const struct plan *plan, const struct instr *instr)
{
  if (instr->unit < 0 && strstr(status_text(), plan_op_name(instr->op)))
    return true;
  if (instr->unit >= 0 && strstr(status_text(), plan->input.model->unit[instr->unit].name))
    return true;
  for (int k = 0; k < PLAN_MAX_USE; k++)
    if (instr->use[k].buffer >= 0 && strstr(status_text(), plan->buffer[instr->use[k].buffer].name))
      return true;
  return false;
}

/* `changed` is what the plan had in its place. */
static void expect_change_seen(struct plan *plan, const struct point *point,
                               const struct instr *changed, const char *how)
{
  broken_settle(plan);
  const char *op = plan_op_name(changed->op);
  if (plan_verify(plan) != STATUS_PLAN)
    fail_msg("%s: %s of unit %d, micro %d: %s goes unseen", fixture_name(point), op, changed->unit,
             changed->micro, how);
  if (!names_one(plan, changed))
    fail_msg("%s: %s of unit %d, micro %d: %s: %s", fixture_name(point), op, changed->unit,
             changed->micro, how, status_text());
}

TEST(no_instruction_can_be_spared)
{
  int seen[OP_COUNT] = {0};
  for (int p = 0; p < n_whole; p++)
    for (int i = 0, n = 1; i < n; i++) {
      struct plan *plan = broken_start(fixture_point("%s", whole[p]));
      struct instr gone = plan->instr[i];
      n = plan->n;
      broken_delete(plan, i);
      expect_change_seen(plan, fixture_point("%s", whole[p]), &gone, "its absence");
      seen[gone.op]++;
      plan_destroy(plan);
    }
  for (int op = 0; op < OP_COUNT; op++)
    assert_true(seen[op] > 0);
}

/* Before anything looks the unit up. */
TEST(no_instruction_can_lose_its_unit)
{
  int seen[OP_COUNT] = {0};
  for (int p = 0; p < n_whole; p++) {
    struct plan *plan = broken_start(fixture_point("%s", whole[p]));
    for (int i = 0; i < plan->n; i++) {
      const int unit = plan->instr[i].unit;
      if (unit < 0)
        continue;
      plan->instr[i].unit = -1;
      must_fail(plan_verify(plan), STATUS_PLAN, "unknown operation, unit, stage or micro-batch");
      plan->instr[i].unit = unit;
      seen[plan->instr[i].op]++;
    }
    must(plan_verify(plan));
    plan_destroy(plan);
  }
  for (int op = 0; op < OP_COUNT; op++)
    assert_int_equal(seen[op] > 0,
                     op != OP_LOAD && op != OP_MERGE && op != OP_METRICS && op != OP_FETCH_LOSS);
}

/* Neither that before or after its own, nor none. */
TEST(no_instruction_can_have_another_stage)
{
  for (int p = 0; p < n_whole; p++) {
    struct plan *plan = broken_start(fixture_point("%s", whole[p]));
    for (int i = 0; i < plan->n; i++) {
      const int stage = plan->instr[i].stage, others[] = {stage - 1, stage + 1, stage < 0 ? 1 : -1};
      for (int o = 0; o < 3; o++) {
        plan->instr[i].stage = others[o];
        must_fail(plan_verify(plan), STATUS_PLAN, "");
      }
      plan->instr[i].stage = stage;
    }
    must(plan_verify(plan));
    plan_destroy(plan);
  }
}

TEST(no_operation_can_be_spared_in_all_units)
{
  for (int p = 0; p < n_whole; p++)
    for (int op = 0; op < OP_COUNT; op++) {
      struct plan *plan = broken_start(fixture_point("%s", whole[p]));
      int kept = 0, n = plan->n;
      for (int i = 0; i < n; i++)
        if (plan->instr[i].op != (enum op)op)
          plan->instr[kept++] = plan->instr[i];
      plan->n = kept;
      broken_settle(plan);
      if (kept < n && plan_verify(plan) != STATUS_PLAN)
        fail_msg("%s: nobody misses %s", fixture_name(fixture_point("%s", whole[p])),
                 plan_op_name((enum op)op));
      plan_destroy(plan);
    }
}

/* A value that is begun and one that is added to are not the same: neither may stand for the other.
 */
TEST(no_access_can_be_exchanged)
{
  int begun = 0, added = 0;
  for (int p = 0; p < n_whole; p++) {
    struct plan *plan = broken_start(fixture_point("%s", whole[p]));
    for (int i = 0; i < plan->n; i++)
      for (int k = 0; k < PLAN_MAX_USE; k++) {
        struct instr kept = plan->instr[i];
        if (kept.use[k].buffer < 0 || kept.use[k].access == ACCESS_READ)
          continue;
        bool write = kept.use[k].access == ACCESS_WRITE;
        plan->instr[i].use[k].access = write ? ACCESS_ADD : ACCESS_WRITE;
        expect_change_seen(plan, fixture_point("%s", whole[p]), &kept,
                           write ? "+ for =" : "= for +");
        plan->instr[i].use[k].access = kept.use[k].access;
        *(write ? &begun : &added) += 1;
      }
    broken_settle(plan);
    must(plan_verify(plan));
    plan_destroy(plan);
  }
  assert_true(begun > 100 && added > 100);
}

/* For all operands of all rows: a required operand cannot be absent, and an absent one cannot be
 * present. A buffer cannot hold elements of another type of the same size. */
TEST(no_operand_can_be_absent_or_superfluous_or_of_another_type)
{
  static const enum dtype other[DTYPE_COUNT] = {
      [DTYPE_F32] = DTYPE_I32,  [DTYPE_I32] = DTYPE_F32,    [DTYPE_BF16] = DTYPE_F16,
      [DTYPE_F16] = DTYPE_BF16, [DTYPE_U8] = DTYPE_F8_E4M3, [DTYPE_F8_E4M3] = DTYPE_U8};
  bool seen[OP_COUNT][PLAN_MAX_USE] = {{false}};
  for (int p = 0; p < n_whole; p++) {
    struct plan *plan = broken_start(fixture_point("%s", whole[p]));
    for (int i = 0; i < plan->n; i++)
      for (int k = 0; k < PLAN_MAX_USE; k++) {
        struct plan_use *use = &plan->instr[i].use[k];
        const struct plan_use kept = *use;
        const struct instr was = plan->instr[i];
        seen[was.op][k] |= kept.buffer >= 0;
        *use = kept.buffer < 0 ? (struct plan_use){plan->batch[0].tokens, ACCESS_READ}
                               : (struct plan_use){-1, ACCESS_READ};
        expect_change_seen(plan, fixture_point("%s", whole[p]), &was,
                           kept.buffer < 0 ? "a superfluous operand" : "an absent operand");
        *use = kept;
        if (kept.buffer < 0)
          continue;
        enum dtype *type = &plan->buffer[kept.buffer].dtype;
        const enum dtype right = *type;
        *type = other[right];
        expect_change_seen(plan, fixture_point("%s", whole[p]), &was, "another type");
        *type = right;
      }
    broken_settle(plan);
    must(plan_verify(plan));
    plan_destroy(plan);
  }
  for (int op = 0; op < OP_COUNT; op++)
    for (int k = 0; k < PLAN_MAX_USE; k++)
      if (seen[op][k] != (op_rows[op].operand[k].name != NULL))
        fail_msg("no plan has %s of %s", op_rows[op].operand[k].name, op_rows[op].name);
}

enum attribute {
  GROUP,
  CODEC,
  VALUES,
  SETTING,
  BLOCKS,
  CLIP,
  LR_SCALE,
  OPTIMIZER,
  FP8,
  ROUNDING,
  SEED
};
enum { ATTRIBUTES = SEED + 1 };

/* false: the instruction has no such attribute, and nothing is changed. */
static bool change_attribute(struct attributes *attr, enum attribute which, struct codec_ops *other)
{
  struct codec *codec = &attr->codec;
  *other = codec->ops ? *codec->ops : codec_none;
  if (!codec->ops && (which == VALUES || which == SETTING))
    return false;
  switch (which) {
  case GROUP: attr->group ^= MESH_REPLICA; break;
  case CODEC: codec->ops = other; break;
  case VALUES: codec->values = other; break;
  case SETTING: codec->set.block++; break;
  case BLOCKS: attr->blocks++; break;
  case CLIP: attr->clip++; break;
  case LR_SCALE: attr->lr_scale++; break;
  case OPTIMIZER: attr->optimizer = (attr->optimizer + 1) % OPTIM_COUNT; break;
  case FP8: attr->fp8 = (attr->fp8 + 1) % (FP8_ALL + 1); break;
  case ROUNDING: attr->stochastic = !attr->stochastic; break;
  case SEED: attr->seed++; break;
  }
  return true;
}

/* An instruction has one value of each attribute, also if its operation has no such attribute. */
TEST(no_attribute_can_be_another)
{
  static const char *const names[ATTRIBUTES] = {[GROUP] = "another group",
                                                [CODEC] = "another codec",
                                                [VALUES] = "another codec of values",
                                                [SETTING] = "another setting of the codec",
                                                [BLOCKS] = "another number of blocks",
                                                [CLIP] = "another norm",
                                                [LR_SCALE] = "another learning rate",
                                                [OPTIMIZER] = "another optimizer",
                                                [FP8] = "other products in fp8",
                                                [ROUNDING] = "another rounding",
                                                [SEED] = "another seed"};
  for (int p = 0; p < n_whole; p++) {
    struct plan *plan = broken_start(fixture_point("%s", whole[p]));
    for (int i = 0; i < plan->n; i++)
      for (int a = 0; a < ATTRIBUTES; a++) {
        const struct instr was = plan->instr[i];
        struct codec_ops other;
        if (change_attribute(&plan->instr[i].attr, (enum attribute)a, &other))
          expect_change_seen(plan, fixture_point("%s", whole[p]), &was, names[a]);
        plan->instr[i].attr = was.attr;
      }
    broken_settle(plan);
    must(plan_verify(plan));
    plan_destroy(plan);
  }
}

/* ---- sums over axes ---- */

static bool says_axis(mesh_set set)
{
  char words[80];
  snprintf(words, sizeof words, " on the axis %s", mesh_name(set).text);
  return strstr(status_text(), words) != NULL;
}

/* Whether the refusal names an instruction, a buffer, and an axis of the set. The shard axis may be
 * named as a whole. */
static bool names_axis(const struct plan *plan, mesh_set set)
{
  bool axis = set & MESH_SHARD && says_axis(MESH_SHARD), buffer = false;
  for (int a = 0; a < MESH_AXES; a++)
    axis |= set >> a & 1 && says_axis(1u << a);
  for (int b = 0; b < plan->buffers; b++)
    buffer |= strstr(status_text(), plan->buffer[b].name) != NULL;
  return axis && buffer && strstr(status_text(), " (#");
}

/* The same for the messages of a sum. */
static void set_group(struct plan *plan, const struct instr *sum, mesh_set from, mesh_set to)
{
  for (int i = 0; i < plan->n; i++) {
    struct instr *const instr = &plan->instr[i];
    const bool same = instr->unit == sum->unit && instr->micro == sum->micro &&
                      instr->attr.group == from &&
                      (op_rows[instr->op].coded || instr->op == OP_MAGNITUDE);
    if (instr == sum || (op_rows[sum->op].coded && same))
      instr->attr.group = to;
  }
}

/* A sum or a gather that leaves `changed` out, or has it twice, or one axis in place of another. */
static void expect_axes_seen(struct plan *plan, const char *point, const struct instr *sum,
                             mesh_set changed)
{
  const mesh_set was = sum->attr.group, is = was ^ changed;
  set_group(plan, sum, was, is);
  if (verify_values(plan) != STATUS_PLAN || !names_axis(plan, changed))
    fail_msg("%s: %s of unit %d, micro %d over %s, not %s: %s", point, plan_op_name(sum->op),
             sum->unit, sum->micro, mesh_name(is).text, mesh_name(was).text, status_text());
  assert_int_equal(plan_verify(plan), STATUS_PLAN);
  set_group(plan, sum, is, was);
}

/* From the rows: each operation that changes types on the axes of its group. */
TEST(no_axis_can_be_missed_doubled_or_exchanged)
{
  int seen[OP_COUNT][MESH_AXES] = {0};
  for (int p = 0; p < n_whole; p++) {
    struct plan *plan = broken_start(fixture_point("%s", whole[p]));
    must(verify_values(plan));
    for (int i = 0; i < plan->n; i++) {
      const struct instr *const sum = &plan->instr[i];
      const enum op_axes axes = op_rows[sum->op].axes;
      if (axes != AXES_SCATTER && axes != AXES_SUM && axes != AXES_GATHER)
        continue;
      for (int a = 0; a < MESH_AXES; a++)
        for (int b = 0; b <= a && plan->mesh.size[a] > 1; b++) {
          const mesh_set group = sum->attr.group, both = 1u << a | 1u << b;
          if (plan->mesh.size[b] == 1 || (a != b && (group >> a & 1) == (group >> b & 1)))
            continue;
          expect_axes_seen(plan, whole[p], sum, both);
          seen[sum->op][a]++;
        }
    }
    must(verify_values(plan));
    plan_destroy(plan);
  }
  for (int op = 0; op < OP_COUNT; op++)
    if (op_rows[op].axes == AXES_SCATTER && op != OP_SUM_SHARED)
      assert_true(seen[op][AXIS_REPLICA] && seen[op][AXIS_ACROSS] && seen[op][AXIS_NODE]);
    else if (op_rows[op].axes == AXES_SUM || op_rows[op].axes == AXES_GATHER)
      assert_true(seen[op][AXIS_NODE]);
}

/* A buffer that no instruction reads: any memory will do. */
static bool is_scratch(const struct plan *plan, int i, int k)
{
  int buffer = plan->instr[i].use[k].buffer, reads = 0;
  for (int j = 0; j < plan->n; j++)
    for (int l = 0; l < PLAN_MAX_USE; l++)
      reads +=
          plan->instr[j].use[l].buffer == buffer && plan->instr[j].use[l].access != ACCESS_WRITE;
  return reads == 0 && plan->buffer[buffer].parent < 0 && !plan->buffer[buffer].persistent;
}

static void exchange(struct plan *plan, const struct point *point, int i, int k, int buffer)
{
  int kept = plan->instr[i].use[k].buffer;
  struct instr was = plan->instr[i];
  plan->instr[i].use[k].buffer = buffer;
  must(plan_order(plan));
  if (plan_verify(plan) != STATUS_PLAN)
    fail_msg("%s: %s of unit %d, micro %d (#%d): %s does as well as %s", fixture_name(point),
             plan_op_name(was.op), was.unit, was.micro, i, plan->buffer[buffer].name,
             plan->buffer[kept].name);
  plan->instr[i].use[k].buffer = kept;
}

/* No other buffer of the same size may take a use's place. */
TEST(no_buffer_can_be_exchanged)
{
  int exchanged = 0;
  for (int p = 0; p < n_whole; p++) {
    struct plan *plan = broken_start(fixture_point("%s", whole[p]));
    broken_spread(plan);
    for (int i = 0; i < plan->n; i++)
      for (int k = 0; k < PLAN_MAX_USE; k++)
        for (int b = 0;
             b < plan->buffers && plan->instr[i].use[k].buffer >= 0 && !is_scratch(plan, i, k);
             b++) {
          const struct plan_buffer *old = &plan->buffer[plan->instr[i].use[k].buffer],
                                   *new = &plan->buffer[b];
          if (new == old || new->bytes != old->bytes)
            continue;
          exchange(plan, fixture_point("%s", whole[p]), i, k, b);
          exchanged++;
        }
    plan_destroy(plan);
  }
  assert_true(exchanged > 1000);
}

TEST_MAIN(start, broken_end)
