/* Verify: what it says. Oracle: mutation. Plans that are sound pass; with one thing broken they
 * fail, and the sentence names it: each guard is made to fire. Most changes are rows of broken.txt.
 * test_verify_bytes breaks waits and lifetimes, test_verify_whole instructions and accesses. */

#include "broken.h"
#include "tests/rows.h"

/* given: a point, or a name in broken.h and more words. The change follows a semicolon. */
static void check_row(const char *given, const char *expected)
{
  static const char *const named[][2] = {
      {"FULL_SHARD", FULL_SHARD},      {"SHARD_OPTIM", SHARD_OPTIM}, {"HYBRID_SHARD", HYBRID_SHARD},
      {"NO_SHARD", NO_SHARD},          {"HOST_DEVICE", HOST_DEVICE}, {"HOST_SHARED", HOST_SHARED},
      {"HOST_ONE_NODE", HOST_ONE_NODE}};
  const char *change = strchr(given, ';'), *point = "";
  const size_t length = strcspn(given, " ;");
  assert_non_null(change);
  for (size_t p = 0; p < sizeof named / sizeof *named; p++)
    if (strlen(named[p][0]) == length && strncmp(given, named[p][0], length) == 0) {
      point = named[p][1];
      given += length;
    }
  struct plan *plan = broken_start(fixture_point("%s%.*s", point, (int)(change - given), given));
  broken_change(plan, change + 1);
  broken_refused(plan, expected);
}

TEST(rows)
{
  rows_each("tests/plan/broken.txt", NULL, check_row);
}

/* ---- form, places, windows ---- */

TEST(form_is_held_against_the_table)
{
  struct plan *plan = broken_start(fixture_point(FULL_SHARD));
  plan->instr[3].op = OP_COUNT;
  broken_refused(plan, "unknown operation");

  plan = broken_start(fixture_point(FULL_SHARD));
  plan->instr[3].micro = 2;
  broken_refused(plan, "unknown operation, unit, stage or micro-batch");
}

TEST(waits_must_be_possible)
{
  struct plan *plan = broken_start(fixture_point(FULL_SHARD));
  plan->instr[fixture_find(plan, OP_FORWARD, -1, -1)].n_wait = PLAN_MAX_WAIT + 1;
  broken_refused(plan, "more waits than fit");
}

TEST(buffers_must_lie_where_they_belong)
{
  struct plan *plan = broken_start(fixture_point(NO_SHARD));
  plan->buffer[broken_buffer(plan, "GATHER_GRADS.piece")].offset -= 256;
  broken_refused(plan, "which it is a part of");
}

/* ---- counts, roles, sizes ---- */

/* Each rank must have whole matrices, of this step, in an order that the ranks share. */
TEST(matrices_are_whole)
{
  struct plan *plan = broken_start(fixture_point(FULL_SHARD " optim=muon"));
  struct plan_buffer *piece = &plan->buffer[broken_buffer(plan, "GATHER_DIRECTION:1.piece")];
  const int64_t move = piece->parent_offset > 0 ? -piece->bytes : piece->bytes;
  piece->parent_offset += move;
  piece->offset += move;
  broken_refused(plan, "which is not at its place in the unit");
}

TEST(states_are_those_of_the_optimizer)
{
  struct plan *plan = broken_start(fixture_point(NO_SHARD));
  plan->input.optim.name = OPTIM_lion;
  broken_refused(plan, "the plan's 2 states are not the 1 of lion");

  plan = broken_start(fixture_point(NO_SHARD));
  plan->state[1] = plan->state[0];
  broken_refused(plan, "the plan's 2 states are not the 2 of adamw");

  plan = broken_start(fixture_point(NO_SHARD)); /* of one unit that is not the first */
  plan->unit[1].policy.state = DTYPE_BF16;
  broken_refused(plan, "changes exp_avg.h.0 in fp32 where there must be bf16");
}

/* ---- frozen parameters and generation ---- */

TEST(frozen_parameters_stay)
{
  struct plan *plan = broken_start(fixture_point("full_shard micros=2"));
  plan->unit[1].owned.begin += 256;
  broken_refused(plan, "updates another part of the unit than this rank's");
}

static void keep_no_copies(struct plan *plan, enum op op, int operand)
{
  for (int u = 0; u < plan->input.model->units; u++)
    plan->unit[u].policy.working = WORKING_NONE;
  for (int i = 0; i < plan->n; i++)
    if (plan->instr[i].op == op)
      plan->instr[i].use[operand].buffer =
          op == OP_GATHER ? plan->unit[plan->instr[i].unit].master : -1;
  broken_settle(plan);
}

/* The copy that the update leaves, and nothing else, is what is gathered of it, and it is left in
 * each step. */
#define KEPT "full_shard ranks=2 prefetch=1 micros=2 bf16 keep_working"
TEST(the_copy_that_is_kept_is_written_and_gathered)
{
  struct plan *plan = broken_start(fixture_point(KEPT));
  keep_no_copies(plan, OP_GATHER, GATHER_SHARD);
  broken_refused(plan, "has a superfluous operand working");

  plan = broken_start(fixture_point(KEPT));
  keep_no_copies(plan, OP_UPDATE, UPDATE_WORKING);
  broken_refused(plan, "reads working.root in the place of master.root");
}

TEST(attributes_are_the_inputs)
{
  struct plan *plan = broken_start(fixture_point(SHARD_OPTIM " optim=muon lr_scale=0.5"));
  plan->unit[0].policy.lr_scale = 3;
  broken_refused(plan, "updates at 1 of the learning rate, where 3 is asked for");
}

/* Messages that travel are of their unit's codec, and they are encoded and decoded by it. The other
 * codec has messages of the same size. */
TEST(gradients_travel_by_one_codec)
{
  static const enum op changed[] = {OP_ENCODE, OP_DECODE_SUM},
                       reads[] = {OP_EXCHANGE, OP_DECODE_SUM};
  struct codec_ops other = codec_bf16;
  for (int r = 0; r < 2; r++) {
    struct plan *plan = broken_start(fixture_point(FULL_SHARD " codec=bf16"));
    plan->instr[fixture_find(plan, changed[r], 1, 0)].attr.codec.ops = &other;
    char words[128];
    snprintf(words, sizeof words, "%s h.0 m0", plan_op_name(reads[r]));
    must_fail(plan_verify(plan), STATUS_PLAN, words);
    broken_refused(plan, "messages of another codec than its own");
  }
  struct plan *plan = broken_start(fixture_point(FULL_SHARD " codec=bf16 feedback=fp32"));
  plan->instr[fixture_find(plan, OP_ENCODE, 1, 0)].attr.residual.ops = &codec_bf16;
  broken_refused(plan, "has residuals in codec bf16, and its unit's are in codec none");
}

/* Codes by the scales of other parameters would be other numbers. With copies, a GATHER reads the
 * codes, and no master. From host memory, a shard is fetched before it is measured. */
TEST(codes_are_of_their_scales)
{
  struct plan *plan =
      broken_start(fixture_point("full_shard ranks=2 micros=2 freeze=odd bf16 fp8"));
  plan->unit[1].policy.window = plan->unit[1].policy.compute;
  broken_refused(plan, "superfluous operand scales");
}

/* Ranks whose copies get different differences would compute with different parameters. */
#define WEIGHTS "full_shard ranks=2 freeze=odd weights=int8"
TEST(copies_get_every_difference)
{
  struct plan *plan = broken_start(fixture_point("shard_optim ranks=2 weights=int8 difference"));
  plan->buffer[plan->unit[1].copy_mine].parent_offset = 0;
  plan->buffer[plan->unit[1].copy_mine].offset = plan->buffer[plan->unit[1].copy].offset;
  broken_refused(plan, "reads copy_mine.h.0, which is not at its place in the unit");
}

TEST(parameters_travel_by_one_codec)
{
  struct plan *plan = broken_start(fixture_point(WEIGHTS));
  plan->unit[1].policy.weights.ops = NULL;
  broken_refused(plan, "has parameters in codec int8, and its unit's travel in codec none");

  plan = broken_start(fixture_point(FULL_SHARD));
  plan->unit[1].policy.weights =
      (struct codec){.ops = &codec_int8, .values = &codec_none, .set = {.block = 256}};
  broken_refused(plan, "gathers parameters as they are, and its unit's travel in codec int8");
}

/* Messages are of this rank's part, at its place among the others, and go to the part's place. */
TEST(messages_have_their_places)
{
  struct plan *plan = broken_start(fixture_point(WEIGHTS));
  struct plan_buffer *mine = &plan->buffer[broken_buffer(plan, "GATHER_MESSAGES:1.mine")];
  mine->parent_offset = 0;
  mine->offset = plan->buffer[mine->parent].offset;
  broken_settle(plan);
  broken_refused(plan, "which is not at its place among the messages");
}

/* A codec whose messages have one size, whatever they hold: so sizes give nothing away. */
static int64_t fixed_bytes(const struct codec *codec, int64_t n)
{
  (void)codec, (void)n;
  return 64;
}

static const struct codec_ops fixed = {.name = "fixed", .bytes = fixed_bytes};

typedef enum status make(const char *name, const struct codec_settings *settings, bool feedback,
                         struct codec *out);
make __real_codec_make, __wrap_codec_make;
enum status __wrap_codec_make(const char *name, const struct codec_settings *settings,
                              bool feedback, struct codec *out)
{
  if (!name || strcmp(name, fixed.name) != 0)
    return __real_codec_make(name, settings, feedback, out);
  *out = (struct codec){.ops = &fixed};
  return STATUS_OK;
}

/* Gives an operand half of what the rank sends: what it alone has. */
static void give_own(struct plan *plan, const char *sent, const char *use, const char *words)
{
  char change[128];
  snprintf(change, sizeof change, "view %s %lld;use %s new;spread", sent,
           (long long)plan->unit[1].layout.trained / 2, use);
  broken_change(plan, change);
  broken_refused(plan, words);
}

/* Two nodes of two ranks, and two replicas of groups of two. Gradients are not added up in the
 * node, or in the wrong blocks of the unit, or are encoded there. A scale for all ranks is of the
 * largest magnitude of what they encode. */
#define NODES "full_shard ranks=4 prefetch=1 local_ranks=2 codec"
TEST(messages_stay_in_their_group)
{
  give_own(broken_start(fixture_point(HYBRID_SHARD)), "EXCHANGE:1@SHARD.sent",
           "EXCHANGE:1@REPLICA.sent",
           "reads piece.h.0, which is a partial sum on the axis shard, where it must be cut");
  give_own(broken_start(fixture_point(NODES "=bf16")), "EXCHANGE:1@NODE.sent",
           "ENCODE:1@ACROSS.grads",
           "reads grads.h.0, which is a partial sum on the axis inside, where it must be cut");
  give_own(broken_start(fixture_point(NODES "=int8_global feedback=fp32")), "EXCHANGE:1@NODE.sent",
           "MAGNITUDE:1@ACROSS.grads",
           "reads largest.h.0, which is a partial sum on the axis inside, where it must be cut");
}

/* Other meshes than that of the shape, most of them of as many ranks. */
TEST(the_mesh_is_that_of_the_shape)
{
  static const struct {
    const char *point;
    struct mesh mesh;
  } rows[] = {{"full_shard ranks=4", {{1, 2, 1, 2, 1, 1, 1}}},
              {"full_shard ranks=4", {{1, 1, 2, 2, 1, 1, 1}}},
              {"full_shard ranks=4", {{1, 1, 1, 2, 2, 1, 1}}},
              {"full_shard ranks=4", {{1, 1, 1, 4, 1, 2, 1}}},
              {"full_shard ranks=4", {{1, 1, 1, 4, 1, 1, 2}}},
              {"full_shard ranks=4", {{2, 1, 1, 4, 1, 1, 1}}},
              {"full_shard ranks=4", {{1, 2, 1, 4, 1, 1, 1}}},
              {"full_shard ranks=4 local_ranks=2", {{1, 1, 1, 4, 1, 1, 1}}},
              {"full_shard ranks=4 local_ranks=2", {{1, 1, 4, 1, 1, 1, 1}}},
              {"full_shard ranks=4 local_ranks=2", {{1, 2, 1, 2, 1, 1, 1}}},
              {"hybrid_shard ranks=4 group=2", {{1, 1, 1, 4, 1, 1, 1}}},
              {"hybrid_shard ranks=4 group=2", {{1, 4, 1, 1, 1, 1, 1}}},
              {"no_shard ranks=4", {{1, 4, 1, 1, 1, 1, 1}}},
              {"no_shard ranks=4", {{1, 1, 1, 2, 1, 1, 1}}}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct plan *plan = broken_start(fixture_point(rows[i].point));
    plan->mesh = rows[i].mesh;
    broken_refused(plan, "ranks, is not that of 4 ranks in groups of");
  }
}

/* ---- masters in host memory ---- */

TEST(lanes_and_tiers_are_those_of_the_shape)
{
  struct plan *plan = broken_start(fixture_point(HOST_DEVICE));
  plan->on_host[LANE_HOST] = false;
  broken_refused(plan,
                 "the host lane works on the device's memory where it must work on the host's");

  plan = broken_start(fixture_point(FULL_SHARD));
  plan->on_host[LANE_REDUCE] = true;
  broken_refused(plan,
                 "the reduce lane works on the host's memory where it must work on the device's");
}

static void shift(struct plan *plan, int buffer)
{
  const int64_t bytes = plan->buffer[buffer].bytes;
  plan->buffer[buffer].parent_offset -= bytes;
  plan->buffer[buffer].offset -= bytes;
  broken_settle(plan);
}

TEST(parameters_are_fetched_to_their_place)
{
  struct plan *plan = broken_start(fixture_point(HOST_DEVICE));
  shift(plan, broken_buffer(plan, "FETCH:1.to"));
  broken_refused(plan, "fetches mine.h.0 to the wrong place in the unit");
}

/* If no collective separates a FETCH from the update, the FETCH may come after the update on
 * another rank. */
TEST(the_copy_that_is_computed_with_is_written_at_its_place)
{
  struct plan *plan = broken_start(fixture_point(HOST_SHARED));
  shift(plan, plan->unit[1].working);
  broken_refused(plan, "writes working_mine.h.0, which is not at its place in the unit");
}

static void sum_in(const struct point *point, enum sums sums, const char *words)
{
  struct plan *plan = broken_start(point);
  for (int u = 0; u < plan->input.model->units; u++)
    plan->unit[u].policy.sums = sums;
  broken_refused(plan, words);
}

/* The gradients of members, each in its own region, that members add up. */
TEST(landed_gradients_are_each_member_s_own)
{
  sum_in(fixture_point(HOST_ONE_NODE), SUMS_HOST,
         "writes landed.h.1, which lies in shared memory, where it must not lie");
  sum_in(fixture_point(HOST_ONE_NODE " one_node=0"), SUMS_SHARED,
         "writes landed.h.1, which lies in host memory, where it must not lie");

  /* a gradient that comes before the others have read the one in its place */
  struct plan *plan = broken_start(fixture_point(HOST_ONE_NODE));
  broken_change(plan, "use FETCH_GRAD:1:1.to SUM_SHARED:1:0.sent;"
                      "use SUM_SHARED:1:1.sent SUM_SHARED:1:0.sent;settle");
  must(plan_verify(plan));
  struct instr *next = &plan->instr[fixture_find(plan, OP_FETCH_GRAD, 1, 1)];
  int kept = 0;
  for (int w = 0; w < next->n_wait; w++)
    if (plan->instr[next->wait[w].instr].op != OP_SUM_SHARED)
      next->wait[kept++] = next->wait[w];
  next->n_wait = kept;
  broken_refused(plan, "writes landed.h.0 while SUM_SHARED h.0 m0");
}

TEST(values_are_what_they_are_taken_for)
{
  struct plan *plan = broken_start(fixture_point(HOST_SHARED));
  broken_change(plan, "swap WRITE_STATE:1 PUBLISH:1;spread");
  must(plan_verify(plan)); /* in any order */
  plan_destroy(plan);
}

TEST_MAIN(NULL, broken_end)
