/* Verify: what it says. Oracle: mutation. Plans that are sound pass; with one thing broken they
 * fail, and the sentence names it: each guard is made to fire. Plans with masters in host memory
 * are in test_verify_host, all that can be broken by rote in test_verify_bytes and
 * test_verify_whole. */
#include <string.h>

#include "broken.h"
#include "tests/test.h"

/* clang-format off */

/* ---- form, places, windows ---- */

TEST(form_is_held_against_the_table)
{
  static const struct broken_row rows[] = {
      {FULL_SHARD, "lane UPDATE compute", "wrong lane"},
      {FULL_SHARD, "use BACKWARD.work none", "has no operand work"},
      {FULL_SHARD, "use RELEASE.1 loss read", "has a superfluous operand loss"},
      {FULL_SHARD, "access BACKWARD.d read", "reads d, which its operation does not do"},
      {FULL_SHARD, "use BACKWARD.0 beyond", "does not exist"},
      {FULL_SHARD, "use UPDATE.7 exp_avg.h.0", "another unit"},
  };
  BROKEN_ROWS(rows);
  struct plan *plan = broken_start(fixture_point(FULL_SHARD));
  plan->instr[3].op = OP_COUNT;
  broken_refused(plan, "unknown operation");

  plan = broken_start(fixture_point(FULL_SHARD));
  plan->instr[3].micro = 2;
  broken_refused(plan, "unknown operation, unit or micro-batch");
}

TEST(waits_must_be_possible)
{
  static const struct broken_row rows[] = {
      {FULL_SHARD, "wait FORWARD METRICS", "does not come before it"},
      {FULL_SHARD, "wait FORWARD #", "does not exist"},
  };
  BROKEN_ROWS(rows);
  struct plan *plan = broken_start(fixture_point(FULL_SHARD));
  plan->instr[fixture_find(plan, OP_FORWARD, -1, -1)].n_wait = PLAN_MAX_WAIT + 1;
  broken_refused(plan, "more waits than fit");
}

TEST(buffers_must_lie_where_they_belong)
{
  static const struct broken_row rows[] = {
      {FULL_SHARD, "move loss 100000000", "loss does not lie inside its arena"},
      {FULL_SHARD, "over exp_avg.h.0 exp_avg.h.1",
       "exp_avg.h.0 and exp_avg.h.1 are persistent and share bytes"},
      {FULL_SHARD, "over FORWARD.out FORWARD.in; order",
       "reads x.root and writes x.h.0 over the same bytes"},
  };
  BROKEN_ROWS(rows);
  struct plan *plan = broken_start(fixture_point(NO_SHARD));
  plan->buffer[broken_buffer(plan, "GATHER_GRADS.piece")].offset -= 256;
  broken_refused(plan, "which it is a part of");
}

TEST(windows_are_gathered_used_and_released)
{
  static const struct broken_row rows[] = {
      {FULL_SHARD, "delete RELEASE", "params.root is gathered and never released"},
      {FULL_SHARD, "delete GATHER", "params.root, which is not gathered"},
      /* where the bytes are there all the time, only older */
      {SHARD_OPTIM, "delete GATHER", "params.root, which is not gathered"},
      {FULL_SHARD, "put RELEASE GATHER; settle",
       "gathers params.root, which has not been released"},
      {FULL_SHARD, "swap FORWARD FORWARD+1; settle", "params.h.0, which is not gathered"},
      {NO_SHARD, "delete LOAD", "reads tokens before anything has written it in this step"},
      {NO_SHARD, "delete EMBED", "x.root before anything has written it in this step"},
  };
  BROKEN_ROWS(rows);
}

/* ---- counts, roles, sizes ---- */

/* Each rank must have whole matrices, of this step, in an order that the ranks share. */
#define MUON FULL_SHARD " optim=muon"
TEST(matrices_are_whole)
{
  static const struct broken_row rows[] = {
      {MUON, "delete GATHER_DIRECTION:1", "changes direction.h.0, but"},
      {MUON, "delete DIRECTION:1", "reads direction_mine, but"},
      {MUON, "resize UPDATE:1.work 64", "has too little room for a matrix of the unit"},
  };
  BROKEN_ROWS(rows);
  struct plan *plan = broken_start(fixture_point(MUON));
  struct plan_buffer *piece = &plan->buffer[broken_buffer(plan, "GATHER_DIRECTION:1.piece")];
  const int64_t move = piece->parent_offset > 0 ? -piece->bytes : piece->bytes;
  piece->parent_offset += move;
  piece->offset += move;
  broken_refused(plan, "which is not at its place in the unit");
}

TEST(missing_instructions_are_reported)
{
  static const struct broken_row rows[] = {
      {FULL_SHARD, "delete UPDATE:1", "h.0 has no UPDATE: its parameters would never change"},
      {FULL_SHARD, "delete SQUARES:1",
       "h.0 has no SQUARES: the gradient norm would lack a part"},
      {FULL_SHARD, "delete EMBED_BACKWARD:0",
       "root has no EMBED_BACKWARD in micro-batch 0: its gradient would lack a part"},
      {FULL_SHARD, "delete DECODE_SUM:2", "DECODE_SUM h.1 m1"},
      {FULL_SHARD, "delete DECODE_SUM:2",
       "changes grads.h.1 before anything has written it in this step"},
      {NO_SHARD, "delete DECODE_SUM:2",
       "h.1 has no DECODE_SUM: its gradient would lack the other ranks' part"},
      {NO_SHARD, "delete EXCHANGE:2", "DECODE_SUM h.1 (#7, reduce) reads staging, but"},
      {NO_SHARD, "delete EXCHANGE:1",
       "h.0 has no EXCHANGE: its gradient would lack the other ranks' part"},
      {NO_SHARD, "delete GATHER_GRADS:1",
       "h.0 has no GATHER_GRADS: it would be updated by a partial gradient"},
      {NO_SHARD, "delete BACKWARD:1", "grads.h.0 before anything has written it in this step"},
      {FULL_SHARD, "delete METRICS",
       "the step has no METRICS: loss and gradient norm would lack the other ranks' part"},
      {HYBRID_SHARD, "delete EXCHANGE:1",
       "h.0 has 1 EXCHANGE for the whole step where there must be 2"},
      {HYBRID_SHARD, "delete BACKWARD:2:1",
       "h.1 has no BACKWARD in micro-batch 1: its gradient would lack a part"},
      {NO_SHARD, "put UPDATE:1 UPDATE:2; settle", "h.0 has no UPDATE"},
      {NO_SHARD, "put UPDATE:2 UPDATE:1; settle",
       "h.0 has 2 UPDATE for the whole step where there must be 1"},
      {NO_SHARD " codec=bf16", "put SQUARES:1 ENCODE:1; settle",
       "h.0 has 2 ENCODE for the whole step where there must be 1"},
  };
  BROKEN_ROWS(rows);
}

TEST(states_are_those_of_the_optimizer)
{
  struct plan *plan = broken_start(fixture_point(NO_SHARD));
  plan->input.optim.name = OPTIM_lion;
  broken_refused(plan, "the plan's 2 states are not the 1 of lion");

  plan = broken_start(fixture_point(NO_SHARD));
  plan->state[1].row = plan->state[0].row;
  broken_refused(plan, "the plan's 2 states are not the 2 of adamw");

  plan = broken_start(fixture_point(NO_SHARD));
  plan->state[1].dtype = DTYPE_BF16;
  broken_refused(plan, "the plan's 2 states are not the 2 of adamw");

  static const struct broken_row rows[] = {
      {NO_SHARD, "resize exp_avg_sq.h.0 -64; settle",
       "elements of exp_avg_sq.h.0 where there must be"},
  };
  BROKEN_ROWS(rows);
}

/* Each part of a collective has its size, and there is room for the received parts. */
TEST(buffers_have_their_roles)
{
  static const struct broken_row rows[] = {
      {NO_SHARD, "use UPDATE:1.7 exp_avg_sq.h.0; use UPDATE:1.8 exp_avg.h.0; settle",
       "changes exp_avg_sq.h.0 in the place of exp_avg.h.0"},
      {NO_SHARD, "use SQUARES:1.grads UPDATE:1.grads; settle", "of grads.h.0 where"},
      {NO_SHARD, "access DECODE_SUM:1.shard add; settle", /* a part of what was sent */
       "adds to shard.h.0, which is not the sum"},
      {FULL_SHARD, "resize EXCHANGE:0.received -1; settle",
       "elements of staging where there must be"},
      {NO_SHARD, "resize DECODE_SUM:1.shard -1; settle", "shard.h.0 where there must be"},
  };
  BROKEN_ROWS(rows);
}

/* ---- frozen parameters and generation ---- */

#define ALONE "full_shard micros=2"
#define ODD_16 "full_shard ranks=16 freeze=odd" /* padding makes both parts equal */
TEST(frozen_parameters_stay)
{
  static const struct broken_row rows[] = {
      {ALONE, "use BACKWARD:2:1.grads none; settle",
       "BACKWARD h.1 m1 (#12, compute) has no operand grads"},
      {ALONE, "use LOSS:0:1.grads none; settle", "compute) has no operand grads"},
      {ALONE " freeze=but_head untied", "use LOSS:3:1.d none; settle", "has no operand d"},
      {ALONE " freeze=middle untied", "use BACKWARD:2:1.grads metrics write; settle",
       "has a superfluous operand grads"},
      {"no_shard ranks=2 freeze=odd", "use UPDATE:1.master params.h.0; settle",
       "changes params.h.0, but frozen.h.0 never changes"},
      {"full_shard ranks=2 freeze=odd", "use UPDATE:1.master frozen.h.0; settle",
       "changes frozen.h.0, but frozen.h.0 never changes"},
      {ODD_16, "use GATHER:1.shard frozen.h.0; use GATHER:1+1.shard master.h.0; settle",
       "gathers trained_window.h.0 to the wrong place in the unit"},
      {ODD_16, "delete GATHER:1+1", "reads params.h.0, which is not gathered"},
      {ODD_16, "use FORWARD:1.params GATHER:1.whole; settle",
       "reads trained_window.h.0, which are not all of its parameters"},
  };
  BROKEN_ROWS(rows);
  struct plan *plan = broken_start(fixture_point(ALONE));
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
  static const struct broken_row rows[] = {
      {KEPT, "use UPDATE:1.working none; settle", "has no operand working"},
      {KEPT, "use GATHER:1.shard master.h.0; settle",
       "reads master.h.0 in the place of working.h.0"},
      {KEPT, "use GATHER:1.shard working.h.1; settle",
       "uses working.h.1, which belongs to another unit"},
      {KEPT, "resize working.h.0 -1; settle", "of working.h.0 where there must be"},
  };
  BROKEN_ROWS(rows);
  struct plan *plan = broken_start(fixture_point(KEPT));
  keep_no_copies(plan, OP_GATHER, GATHER_SHARD);
  broken_refused(plan, "has a superfluous operand working");

  plan = broken_start(fixture_point(KEPT));
  keep_no_copies(plan, OP_UPDATE, UPDATE_WORKING);
  broken_refused(plan, "reads working.root in the place of master.root");
}

#define GENERATE "generate full_shard ranks=2"
TEST(keys_and_values_have_their_place)
{
  static const struct broken_row rows[] = {
      {GENERATE, "use DECODE:1.cache master.h.0; settle",
       "changes master.h.0 in fp32 where there must be uint8"},
      {GENERATE, "purpose DECODE:1.cache state",
       "changes cache.h.0 in the place of its keys and values"},
      {GENERATE, "resize DECODE:1.cache -4",
       "adds to cache.h.0, which is too small for 40 tokens"},
      {GENERATE, "use DECODE:2.cache DECODE:1.cache",
       "uses cache.h.0, which belongs to another unit"},
  };
  BROKEN_ROWS(rows);
}

#define SCALED SHARD_OPTIM " optim=muon lr_scale=0.5"
TEST(attributes_are_the_inputs)
{
  static const struct broken_row rows[] = {
      {NO_SHARD, "attr METRICS clip 1", "clips to a norm of 1, where 0 is asked for"},
      {NO_SHARD, "attr FORWARD:1 fp8 1", "has other products in fp8 than its unit"},
      {NO_SHARD, "attr UPDATE:1 optimizer 1", "updates by another optimizer than the plan's"},
      {SCALED, "attr UPDATE:2 lr_scale 1",
       "updates at 1 of the learning rate, where 0.5 is asked for"},
      {SCALED, "attr UPDATE:1 lr_scale 0.5",
       "updates at 0.5 of the learning rate, where 1 is asked for"},
      {SCALED, "attr DIRECTION:2 lr_scale 0.5",
       "updates at 0.5 of the learning rate, where 0 is asked for"},
      {NO_SHARD, "attr UPDATE:1 stochastic 1", "rounds in another way, or with another seed"},
      {NO_SHARD, "attr UPDATE:1 seed 5", "rounds in another way, or with another seed"},
      {NO_SHARD, "attr DECODE_SUM:1 seed 5", "rounds in another way, or with another seed"},
  };
  BROKEN_ROWS(rows);
  struct plan *plan = broken_start(fixture_point(SCALED));
  plan->unit[0].policy.lr_scale = 3;
  broken_refused(plan, "updates at 1 of the learning rate, where 3 is asked for");
}

/* Messages that travel are of their unit's codec, and they are encoded and decoded by it. The other
 * codec has messages of the same size. */
TEST(gradients_travel_by_one_codec)
{
  static const struct broken_row rows[] = {
      {HYBRID_SHARD, "attr EXCHANGE:1 codec bf16",
       "sends gradients by codec bf16, and its unit's travel by codec none"},
      {HOST_ONE_NODE " codec=bf16", "attr SUM_SHARED:1 codec none",
       "sends gradients by codec none, and its unit's travel by codec bf16"},
      /* A unit without a codec next to units that have one. */
      {FULL_SHARD " codec=bf16 mixed", "attr EXCHANGE:2:0 codec bf16",
       "sends gradients by codec bf16, and its unit's travel by codec none"},
      {FULL_SHARD, "attr DECODE_SUM:1 codec absent", "sends gradients by codec (absent)"},
      {FULL_SHARD, "attr GATHER:1 codec none", "has a codec and no messages"},
  };
  BROKEN_ROWS(rows);
  static const enum op changed[] = {OP_ENCODE, OP_DECODE_SUM},
                       reads[] = {OP_EXCHANGE, OP_DECODE_SUM};
  struct codec_ops other = codec_bf16;
  for (int r = 0; r < 2; r++) {
    struct plan *plan = broken_start(fixture_point(FULL_SHARD " codec=bf16"));
    plan->instr[fixture_find(plan, changed[r], 1, 0)].attr.codec.ops = &other;
    char words[128];
    snprintf(words, sizeof words, "%s h.0 m0", plan_op_name(reads[r]));
    assert_int_equal(plan_verify(plan), STATUS_PLAN);
    assert_non_null(strstr(status_text(), words));
    broken_refused(plan, "messages of another codec than its own");
  }
  struct plan *plan = broken_start(fixture_point(FULL_SHARD " codec=bf16 feedback=fp32"));
  plan->instr[fixture_find(plan, OP_ENCODE, 1, 0)].attr.residual.ops = &codec_bf16;
  broken_refused(plan, "has residuals in codec bf16, and its unit's are in codec none");
}

/* Codes by the scales of other parameters would be other numbers. With copies, a GATHER reads the
 * codes, and no master. From host memory, a shard is fetched before it is measured. */
#define CODES "full_shard ranks=2 micros=2 freeze=odd bf16 fp8"
TEST(codes_are_of_their_scales)
{
  static const struct broken_row rows[] = {
      {CODES, "delete MEASURE:1", "GATHER_SCALES h.0 (#6, gather) reads magnitudes, but"},
      {CODES, "delete GATHER_SCALES:1", "h.0 has no GATHER_SCALES"},
      {CODES, "use MEASURE:1.trained MEASURE:1.frozen; settle",
       "reads frozen.h.0 in the place of master.h.0"},
      {CODES, "use BACKWARD:1.scales MEASURE:1.received; spread; settle",
       "reads magnitudes in the place of scales.h.0"},
      {CODES, "resize scales.h.0 -64", "elements of scales.h.0 where there must be"},
      {CODES " keep_working", "use GATHER:1.shard master.h.0; settle",
       "reads master.h.0 in the place of codes.h.0"},
      {CODES " host", "trade MEASURE:1.trained MEASURE:1.frozen; settle",
       "which nothing has fetched"},
  };
  BROKEN_ROWS(rows);
  struct plan *plan = broken_start(fixture_point(CODES));
  plan->unit[1].policy.window = plan->unit[1].policy.compute;
  broken_refused(plan, "superfluous operand scales");
}

/* Ranks whose copies get different differences would compute with different parameters. */
#define WEIGHTS "full_shard ranks=2 freeze=odd weights=int8"
#define DIFFERENCES "shard_optim ranks=2 weights=int8 difference"
TEST(copies_get_every_difference)
{
  static const struct broken_row rows[] = {
      {DIFFERENCES, "delete DECODE_PARAMS:1", "reads copy.h.0, which is not gathered"},
      {DIFFERENCES, "put #-1 ENCODE_PARAMS:1; settle",
       "message.h.0 has messages that are never decoded"},
      {DIFFERENCES,
       "put ENCODE_PARAMS:2+2 DECODE_PARAMS:1; put ENCODE_PARAMS:2+1 GATHER_MESSAGES:1; "
       "put ENCODE_PARAMS:2 ENCODE_PARAMS:1; settle",
       "decodes into copy.h.0, which has not been released"},
      {DIFFERENCES, "delete DECODE_PARAMS:1; delete GATHER_MESSAGES:1; delete ENCODE_PARAMS:1",
       "reads copy.h.0, which is not gathered"},
      {DIFFERENCES, "access DECODE_PARAMS:1.whole write; settle",
       "differences are added to a copy, other messages write a window"},
      {DIFFERENCES, "over master.h.0 copy_mine.h.0; settle",
       "decodes copy.h.0 over the parameters that it holds"},
  };
  BROKEN_ROWS(rows);
  struct plan *plan = broken_start(fixture_point(DIFFERENCES));
  plan->buffer[plan->unit[1].copy_mine].parent_offset = 0;
  plan->buffer[plan->unit[1].copy_mine].offset = plan->buffer[plan->unit[1].copy].offset;
  broken_refused(plan, "reads copy_mine.h.0, which is not at its place in the unit");
}

TEST(parameters_travel_by_one_codec)
{
  static const struct broken_row rows[] = {
      {WEIGHTS, "attr ENCODE_PARAMS:1 codec e4m3",
       "has parameters in codec e4m3, and its unit's travel in codec int8"},
      {WEIGHTS, "attr GATHER_MESSAGES:1 codec e4m3",
       "has parameters in codec e4m3, and its unit's travel in codec int8"},
      {WEIGHTS, "attr DECODE_PARAMS:1 codec e4m3",
       "has parameters in codec e4m3, and its unit's travel in codec int8"},
      {WEIGHTS, "attr ENCODE_PARAMS:1 seed 5", "rounds in another way, or with another seed"},
      {WEIGHTS, "attr GATHER_MESSAGES:1 seed 5", "rounds in another way, or with another seed"},
      {WEIGHTS, "attr DECODE_PARAMS:1 seed 5", "rounds in another way, or with another seed"},
  };
  BROKEN_ROWS(rows);
  struct plan *plan = broken_start(fixture_point(WEIGHTS));
  plan->unit[1].policy.weights.ops = NULL;
  broken_refused(plan, "has parameters in codec int8, and its unit's travel in codec none");

  plan = broken_start(fixture_point(FULL_SHARD));
  plan->unit[1].policy.weights = (struct codec){
      .ops = &codec_int8, .values = &codec_none, .set = {.block = 256}};
  broken_refused(plan, "gathers parameters as they are, and its unit's travel in codec int8");
}

/* Messages are of this rank's part, at its place among the others, and go to the part's place. */
TEST(messages_have_their_places)
{
  static const struct broken_row rows[] = {
      {WEIGHTS, "use GATHER_MESSAGES:1.mine GATHER_MESSAGES:1+3.mine; settle",
       "which is no message of the unit's parameters"},
      {WEIGHTS, "trade DECODE_PARAMS:1.whole DECODE_PARAMS:1+3.whole; settle",
       "to the wrong place in the unit"},
      {WEIGHTS, "put DECODE_PARAMS:1+-1 DECODE_PARAMS:1; settle",
       "which does not hold the messages of all members"},
      {WEIGHTS, "use ENCODE_PARAMS:1.shard exp_avg.h.0; settle",
       "in the place of the unit's parameters"},
      {WEIGHTS, "resize ENCODE_PARAMS:1.message 1", "where there must be"},
      {WEIGHTS " host", "delete FETCH:1", "which nothing has fetched"},
  };
  BROKEN_ROWS(rows);
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

/* With feedback, or to measure what is lost, ENCODE leaves no gradient. Before the sum is there,
 * nothing can be gathered. A residual that is kept elsewhere is the unit's own, goes back each
 * time, and is never older than the sum before. */
#define SPENT NO_SHARD " codec=bf16"
#define RESIDUAL FULL_SHARD " codec=bf16 feedback=fp32 residual"
TEST(encoded_gradients_are_spent)
{
  static const struct broken_row rows[] = {
      {SPENT, "swap DECODE_SUM:1 GATHER_GRADS:1; settle", "the sum over"},
      {SPENT " feedback=fp32", "swap DECODE_SUM:1 GATHER_GRADS:1; settle",
       "which is not the unit's gradient"},
      {SPENT " sample=7", "swap DECODE_SUM:1 GATHER_GRADS:1; settle",
       "which is not the unit's gradient"},
      {RESIDUAL "=host", "delete SAVE_RESIDUAL:1",
       "h.0 has no SAVE_RESIDUAL in micro-batch 0: what its messages lose would be gone"},
      {RESIDUAL "=host", "delete FETCH_RESIDUAL:1", "ENCODE h.0 m0"},
      /* Before the first micro-batch has left its own. */
      {RESIDUAL "=host", "swap SAVE_RESIDUAL:1:0 FETCH_RESIDUAL:1:1; spread; settle",
       "reads residual.h.0 as 0 sums of this step have left it, where 1 have"},
      {RESIDUAL "=nvme", "use READ_RESIDUAL:2:0.from residual.h.0; settle",
       "uses residual.h.0, which belongs to another unit"},
      {RESIDUAL "=nvme", "use WRITE_RESIDUAL:1:0.from READ_RESIDUAL:1:0.to; spread; settle",
       "reads residual_read.h.0, which is not what the messages of the unit have lost"},
  };
  BROKEN_ROWS(rows);
}

/* Gives an operand half of what the rank sends: what it alone has. */
static void give_own(struct plan *plan, const char *sent, const char *use)
{
  char change[128];
  snprintf(change, sizeof change, "view %s %lld;use %s new;spread", sent,
           (long long)plan->unit[1].layout.trained / 2, use);
  broken_change(plan, change);
  broken_refused(plan, "the sum over 1 ranks where its group adds up sums over 2");
}

/* Two nodes of two ranks, and two replicas of groups of two. Gradients are not added up in the
 * node, or in the wrong blocks of the unit, or are encoded there. A scale for all ranks is of the
 * largest magnitude of what they encode. */
#define NODES "full_shard ranks=4 prefetch=1 local_ranks=2 codec"
#define GLOBAL NODES "=int8_global feedback=fp32"
TEST(messages_stay_in_their_group)
{
  static const struct broken_row rows[] = {
      {NO_SHARD, "attr EXCHANGE:1 group REPLICAS", "meets another group than its own"},
      {HYBRID_SHARD " codec=fixed", "attr EXCHANGE:1 group REPLICAS",
       "reads sent.h.0, messages of another group than its own"},
      {NODES "=bf16", "delete EXCHANGE:1@NODE",
       "h.0 has 1 EXCHANGE for the whole step where there must be 2"},
      {NODES "=bf16", "attr DECODE_SUM:1@NODE blocks 1",
       "adds up 1 blocks where there must be 2"},
      {NODES "=bf16", "attr DECODE_SUM:1@ACROSS blocks 2",
       "adds up 2 blocks where there must be 1"},
      {NODES "=bf16", "attr EXCHANGE:1@NODE codec bf16",
       "sends gradients by codec bf16, and its unit's travel by codec none"},
      {NODES "=bf16", "attr ENCODE:1@ACROSS group REDUCE", "meets another group than its own"},
      {GLOBAL, "delete MAGNITUDE:1",
       "h.0 has no MAGNITUDE: ranks would encode by scales of their own"},
      {GLOBAL, "use ENCODE:1@ACROSS.largest none; settle", "has no operand largest"},
      {GLOBAL, "use ENCODE:1@ACROSS.largest MAGNITUDE:2.largest; spread",
       "which is not the largest magnitude of the unit's gradient"},
      {GLOBAL, "resize MAGNITUDE:1@ACROSS.all 3; spread",
       "the 3 elements of magnitudes.h.0 where there must be 2"},
      /* the groups' largest, where replicas exchange */
      {HYBRID_SHARD " codec=int8_global",
       "use ENCODE:1@REPLICAS.largest MAGNITUDE:1@REDUCE.largest; spread",
       "messages of another group than its own"},
  };
  BROKEN_ROWS(rows);
  give_own(broken_start(fixture_point(HYBRID_SHARD)), "EXCHANGE:1@REDUCE.sent",
           "EXCHANGE:1@REPLICAS.sent");
  give_own(broken_start(fixture_point(NODES "=bf16")), "EXCHANGE:1@NODE.sent",
           "ENCODE:1@ACROSS.grads");
  give_own(broken_start(fixture_point(GLOBAL)), "EXCHANGE:1@NODE.sent",
           "MAGNITUDE:1@ACROSS.grads");
}

/* Whole parameters that stay in place (ZeRO-1) keep their value at the master, and only there. If
 * they are read before a gather, the rest is old, even for an instruction that needs no open
 * window. */
TEST(parameters_around_a_master_are_old)
{
  static const struct broken_row rows[] = {
      {SHARD_OPTIM, "use GATHER:0.shard GATHER:0.whole; settle",
       "reads params.root before anything has written it in this step"},
  };
  BROKEN_ROWS(rows);
}

TEST_MAIN(NULL, broken_end)
