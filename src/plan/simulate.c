/* A plan replayed with a cost per instruction. Every lane takes its instructions in order, each
 * when its waits are over.
 *
 * Lanes share the memory of the host and the links between ranks. Operations that use one of them
 * at the same time share its rate evenly, and none gets more than it would alone. An operation uses
 * it evenly from its beginning to its end.
 *
 * The rates of copies and of the host's memory are those of a rank while all ranks of its node do
 * the same. Copies are measured while the other direction copies too. If copies of one rank alone
 * are faster, then the host's memory slows down those of all ranks. Then a single copy has the rate
 * of one rank alone, and copies of all ranks in both directions just fill the memory bandwidth. */
#include <math.h>

#include "base/mem.h"
#include "plan/ops.h"

/* LINK joins the ranks of a group: across nodes, or inside the one node. NODE_LINK joins those in
 * each of several nodes. DEVICE: the compute lane and codecs use all of it. */
enum resource { HOST_MEMORY, LINK, NODE_LINK, DEVICE, RESOURCES };

/* Seconds of the operation alone, the seconds that remain if communication takes no time, and the
 * seconds for which it would use each resource fully. */
struct cost {
  double seconds, local, use[RESOURCES];
};

struct pricing {
  const struct plan *plan;
  const struct instr *instr;
  const struct plan_rates *rates;
  double slowest; /* time of the compute lane by what the rates say */
};

static double ratio(double work, double rate)
{
  return rate > 0 ? work / rate : 0;
}

static double bytes_of(const struct pricing *p, int k)
{
  return (double)p->plan->buffer[p->instr->use[k].buffer].bytes;
}

static bool has(const struct pricing *p, int k)
{
  return p->instr->use[k].buffer >= 0;
}

/* Bytes through the memory that the operation works on. */
static struct cost traffic_cost(const struct pricing *p, double bytes)
{
  if (!p->plan->on_host[p->instr->lane])
    return (struct cost){.seconds = ratio(bytes, p->rates->memory_bytes)};
  const double seconds = ratio(bytes, p->rates->host_bytes);
  return (struct cost){.seconds = seconds, .use[HOST_MEMORY] = seconds};
}

static struct model_shape shape_of(const struct pricing *p)
{
  const struct plan_input *input = &p->plan->input;
  return (struct model_shape){input->shape.micro_batch, input->shape.sequence, input->squares};
}

/* An operation that mostly reads and writes its operands. A change counts as both. */
static double operand_bytes(const struct pricing *p)
{
  double bytes = 0;
  for (int k = 0; k < PLAN_MAX_USE; k++)
    if (has(p, k))
      bytes += bytes_of(p, k) * (p->instr->use[k].access == ACCESS_ADD ? 2 : 1);
  return bytes;
}

struct cost cost_operands(const struct pricing *p)
{
  return traffic_cost(p, operand_bytes(p));
}

enum direction { ENCODES, DECODES };

/* fp32 bytes per second; 0: the rate is not known. */
static double coding_rate(const struct pricing *p, enum direction way, const struct codec_ops *ops)
{
  const enum codec_number number = codec_number(ops);
  return number == CODECS ? 0
         : way == ENCODES ? p->rates->encode_bytes[number]
                          : p->rates->decode_bytes[number];
}

/* `bytes` of fp32 elements in several calls. 0: the rate is not known. */
static double coded_s(const struct pricing *p, enum direction way, const struct codec_ops *ops,
                      double bytes, double calls)
{
  const double rate = coding_rate(p, way, ops),
               *latency = way == ENCODES ? p->rates->encode_latency_s : p->rates->decode_latency_s;
  return rate > 0 ? bytes / rate + calls * latency[codec_number(ops)] : 0;
}

/* `calls` of the codec, and value_calls of the codec of its values. A codec of unknown rate takes
 * as long as reading and writing `bytes` of fp32 elements. */
static struct cost coded_cost(const struct pricing *p, enum direction way,
                              const struct codec *codec, double bytes, double calls,
                              double value_calls)
{
  struct cost cost = traffic_cost(p, 2 * bytes);
  const double seconds = coded_s(p, way, codec->ops, bytes, calls);
  if (seconds > 0)
    cost.seconds = seconds;
  if (codec->values && !(codec->values->traits & CODEC_IDENTITY))
    cost.seconds += coded_s(p, way, codec->values, codec->set.density * bytes, value_calls);
  if (!p->plan->on_host[p->instr->lane])
    cost.use[DEVICE] = cost.seconds;
  return cost;
}

static struct cost plus(struct cost a, struct cost b)
{
  for (int k = 0; k < RESOURCES; k++)
    a.use[k] += b.use[k];
  a.seconds += b.seconds;
  return a;
}

/* Calls for the blocks of an exchange. */
static double blocks_of(const struct pricing *p)
{
  return p->instr->attr.blocks > 1 ? p->instr->attr.blocks : 1;
}

/* With feedback the residual is decoded, the sent messages are subtracted, and the rest is encoded.
 * One call decodes the messages, except for their values. Without rates the gradient is changed
 * twice, by an addition and a subtraction, and read twice. */
struct cost cost_encode(const struct pricing *p)
{
  const double bytes = bytes_of(p, ENCODE_GRADS);
  const struct codec *codec = &p->instr->attr.codec;
  const bool known = coding_rate(p, ENCODES, codec->ops) > 0;
  struct cost cost = known ? coded_cost(p, ENCODES, codec, bytes, 1, 1) : cost_operands(p);
  if (!has(p, ENCODE_RESIDUAL))
    return cost;
  if (!known)
    return plus(cost, traffic_cost(p, 4 * bytes + bytes_of(p, ENCODE_MESSAGES)));
  const struct codec *residual = &p->plan->unit[p->instr->unit].policy.residual;
  const struct cost before = coded_cost(p, DECODES, residual, bytes, 1, 1),
                    lost = coded_cost(p, DECODES, codec, bytes, 1,
                                      blocks_of(p) * plan_instr_ranks(p->plan, p->instr)),
                    after = coded_cost(p, ENCODES, residual, bytes, 1, 1);
  return plus(plus(cost, before), plus(lost, after));
}

/* Elements of all messages. The executor decodes block by block, and values message by message. */
struct cost cost_decode_sum(const struct pricing *p)
{
  const struct codec *codec = &p->instr->attr.codec;
  const int64_t n = p->plan->buffer[p->instr->use[DECODE_SUM_SHARD].buffer].elements;
  if (coding_rate(p, DECODES, codec->ops) <= 0)
    return cost_operands(p);
  const double blocks = blocks_of(p),
               parts = bytes_of(p, DECODE_SUM_MESSAGES) / (double)codec->ops->bytes(codec, n);
  return coded_cost(p, DECODES, codec, parts * bytes_of(p, DECODE_SUM_SHARD), blocks,
                    blocks * parts);
}

/* A difference is made from the shard and a part of the copy: the copy is widened, and both are
 * subtracted. Without rates a difference is read once more. */
struct cost cost_encode_params(const struct pricing *p)
{
  const struct codec *codec = &p->instr->attr.codec;
  const double bytes = bytes_of(p, ENCODE_PARAMS_SHARD);
  const bool known = coding_rate(p, ENCODES, codec->ops) > 0;
  const struct cost cost = known ? coded_cost(p, ENCODES, codec, bytes, 1, 1) : cost_operands(p);
  if (!has(p, ENCODE_PARAMS_DIFFERENCE))
    return cost;
  const double more = known ? bytes_of(p, ENCODE_PARAMS_COPY) + 3 * bytes
                            : 3 * bytes_of(p, ENCODE_PARAMS_DIFFERENCE);
  return plus(cost, traffic_cost(p, more));
}

/* Elements of all messages, as fp32. */
struct cost cost_decode_params(const struct pricing *p)
{
  const struct codec *codec = &p->instr->attr.codec;
  const int64_t n = p->plan->buffer[p->instr->use[DECODE_PARAMS_WHOLE].buffer].elements;
  return coding_rate(p, DECODES, codec->ops) > 0
             ? coded_cost(p, DECODES, codec, 4 * (double)n, 1, plan_instr_ranks(p->plan, p->instr))
             : cost_operands(p);
}

/* A pending gradient is only read. After a clipped step the update uses nothing else. Whole
 * matrices are transformed. */
struct cost cost_update(const struct pricing *p)
{
  double bytes = operand_bytes(p);
  if (has(p, UPDATE_PENDING))
    bytes -= bytes_of(p, UPDATE_PENDING);
  if (has(p, UPDATE_PENDING) && p->rates->clipped)
    bytes -= bytes_of(p, UPDATE_GRADS) + bytes_of(p, UPDATE_WORKING);
  struct cost cost = traffic_cost(p, bytes);
  if (has(p, UPDATE_DIRECTION)) {
    const struct plan_unit *unit = &p->plan->unit[p->instr->unit];
    cost.seconds +=
        ratio(optim_transform_flops(&unit->segments, unit->owned), p->rates->gemm_flops);
  }
  return cost;
}

/* Most steps are not clipped. The working copy is only written. */
struct cost cost_repair(const struct pricing *p)
{
  return p->rates->clipped ? traffic_cost(p, operand_bytes(p) - bytes_of(p, REPAIR_WORKING))
                           : (struct cost){0};
}

struct cost cost_embed(const struct pricing *p)
{
  return traffic_cost(p, 2 * bytes_of(p, EMBED_OUT));
}

struct cost cost_embed_backward(const struct pricing *p)
{
  return traffic_cost(p, 3 * bytes_of(p, EMBED_BACKWARD_D));
}

double flops_block(const struct pricing *p)
{
  return p->plan->input.model->ops->block_flops(p->plan->input.model, p->instr->stage, shape_of(p));
}

/* With respect to the input, and to the parameters if there are gradients of them. */
double flops_backward(const struct pricing *p)
{
  const struct model *model = p->plan->input.model;
  const int stage = p->instr->stage;
  const double block = flops_block(p),
               attention = model->ops->attention_flops(model, stage, shape_of(p)),
               share = has(p, BACKWARD_GRADS) ? model_trained_share(model, stage) : 0;
  return 2 * block - (1 - share) * (block - attention);
}

static double head_flops(const struct pricing *p)
{
  return p->plan->input.model->ops->head_flops(p->plan->input.model, shape_of(p));
}

double flops_loss(const struct pricing *p)
{
  return (1 + has(p, LOSS_REFERENCE) + has(p, LOSS_D) + has(p, LOSS_GRADS)) * head_flops(p);
}

/* Cost for one token of each sequence. */
double flops_logits(const struct pricing *p)
{
  return head_flops(p) / (double)shape_of(p).T;
}

/* The rate of the pass, or of matrix products. */
struct cost cost_flops(const struct pricing *p)
{
  const enum op op = p->instr->op;
  const double pass = op == OP_BACKWARD ? p->rates->backward_flops
                      : op == OP_LOSS   ? p->rates->loss_flops
                      : op == OP_LOGITS ? 0
                                        : p->rates->forward_flops;
  return (struct cost){.seconds =
                           ratio(op_rows[op].flops(p), pass > 0 ? pass : p->rates->gemm_flops)};
}

double plan_op_flops(const struct plan *plan, enum op op)
{
  double flops = 0;
  for (int i = 0; i < plan->n && op_rows[op].flops; i++)
    if (plan->instr[i].op == op)
      flops += op_rows[op].flops(&(struct pricing){.plan = plan, .instr = &plan->instr[i]});
  return flops;
}

/* The cost of the operation alone, and its use of host memory. */
struct cost cost_copy(const struct pricing *p)
{
  const bool up = p->instr->lane == LANE_H2D;
  const double bytes = bytes_of(p, MOVE_TO), together = p->rates->h2d_bytes + p->rates->d2h_bytes;
  const double alone = up ? p->rates->h2d_alone_bytes : p->rates->d2h_alone_bytes,
               rate = up ? p->rates->h2d_bytes : p->rates->d2h_bytes;
  const double through = ratio(bytes, p->rates->host_bytes),
               more = alone > rate ? fmax(1, ratio(p->rates->host_bytes, together)) : 1;
  return (struct cost){.seconds = ratio(bytes, fmax(alone, rate)),
                       .use[HOST_MEMORY] = through * more};
}

struct cost cost_disk(const struct pricing *p)
{
  double seconds = 0;
  for (int k = 0; k < PLAN_MAX_USE; k++)
    if (has(p, k) && p->plan->buffer[p->instr->use[k].buffer].tier == TIER_DISK)
      seconds += ratio(bytes_of(p, k), p->instr->use[k].access == ACCESS_READ
                                           ? p->rates->disk_read_bytes
                                           : p->rates->disk_write_bytes);
  return (struct cost){.seconds = seconds};
}

/* Ranks of a node, if there are several nodes; 0: there is one. */
static int ranks_of_node(const struct pricing *p)
{
  const struct deck_shape *shape = &p->plan->input.shape;
  return shape->local_ranks < shape->ranks ? shape->local_ranks : 0;
}

/* Members of the instruction's group on each of its nodes: those that are `apart` ranks from each
 * other. If the group is neither whole nodes nor a part of one, the fewest. */
static int members_of_node(const struct pricing *p)
{
  const int ranks = plan_instr_ranks(p->plan, p->instr), local = ranks_of_node(p);
  const int apart = mesh_apart(&p->plan->mesh, p->instr->attr.group);
  int members = local / apart > 1 ? local / apart : 1;
  if (local == 0)
    return ranks;
  for (int rest = ranks; rest > 0;) { /* their greatest common divisor */
    const int next = members % rest;
    members = rest;
    rest = next;
  }
  return members;
}

/* Whether all members are on one of several nodes. */
static bool is_in_a_node(const struct pricing *p)
{
  return ranks_of_node(p) > 0 && members_of_node(p) == plan_instr_ranks(p->plan, p->instr);
}

/* Whether each member is on a node of its own, and others of its node are in groups like this. */
static bool is_across(const struct pricing *p)
{
  return ranks_of_node(p) > 1 && members_of_node(p) == 1;
}

/* A message from one level of a tree of members to the next one. */
static double level_s(const struct pricing *p)
{
  const struct plan_rates *rates = p->rates;
  return is_in_a_node(p) && rates->node_latency_s > 0 ? rates->node_latency_s
                                                      : rates->link_latency_s;
}

static double barrier_s(const struct pricing *p)
{
  return 2 * ceil(log2(plan_instr_ranks(p->plan, p->instr))) * level_s(p);
}

struct cost cost_barrier(const struct pricing *p)
{
  return (struct cost){.seconds = barrier_s(p)};
}

/* Bytes that a rank receives from other nodes and from its own at the same time. */
static struct cost flow_cost(const struct pricing *p, double far, double far_rate, double near,
                             double near_rate)
{
  struct cost cost = {.use[LINK] = ratio(far, far_rate)};
  cost.use[ranks_of_node(p) > 0 ? NODE_LINK : LINK] += ratio(near, near_rate);
  cost.seconds = fmax(cost.use[LINK], cost.use[NODE_LINK]);
  return cost;
}

/* Bytes between ranks, as a ring sends them: each of them enters a node once, and all groups with
 * members on a node share its link. On the host the ranks do not share a link. */
static struct cost ring_cost(const struct pricing *p, double bytes)
{
  const struct plan_rates *rates = p->rates;
  const int local = ranks_of_node(p);
  if (p->plan->on_host[p->instr->lane])
    return (struct cost){.seconds = ratio(bytes, rates->host_link_bytes)};
  if (local == 0 || is_in_a_node(p))
    return flow_cost(p, 0, 0, bytes,
                     local > 0 && rates->node_link_bytes > 0 ? rates->node_link_bytes
                                                             : rates->link_bytes);
  return flow_cost(p, bytes,
                   is_across(p) && rates->across_link_bytes > 0
                       ? rates->across_link_bytes
                       : rates->link_bytes * members_of_node(p) / local,
                   0, 0);
}

/* Bytes of messages between all pairs of members, as exchanges send them. A node gets those of each
 * of its ranks, which share its link evenly, whatever the groups are. */
static struct cost pairs_cost(const struct pricing *p, double bytes)
{
  const struct plan_rates *rates = p->rates;
  const double ranks = plan_instr_ranks(p->plan, p->instr), members = members_of_node(p);
  const int local = ranks_of_node(p);
  if (p->plan->on_host[p->instr->lane])
    return ring_cost(p, bytes * (ranks - 1) / ranks);
  const double ring = rates->across_link_bytes ?: rates->link_bytes / (local > 0 ? local : 1),
               far = (is_across(p) ? rates->across_exchange_bytes : 0)
                         ?: rates->exchange_bytes
                         ?: ring,
               near = local == 0 ? rates->exchange_bytes
                                       ?: rates->link_bytes
                                 : rates->node_exchange_bytes
                                       ?: rates->node_link_bytes
                                       ?: rates->link_bytes;
  return flow_cost(p, bytes * (ranks - members) / ranks, far, bytes * (members - 1) / ranks, near);
}

/* Latency of `hops` around a group, one after another. A ring through several nodes crosses between
 * nodes once per node. */
static double latency_s(const struct pricing *p, double hops)
{
  const double node_s = p->rates->node_latency_s, link_s = p->rates->link_latency_s;
  const int local = ranks_of_node(p);
  if (node_s <= 0 || local == 0 || is_across(p))
    return hops * link_s;
  return is_in_a_node(p) ? hops * node_s : hops * (link_s + (local - 1) * node_s) / local;
}

/* A collective on the device takes a part of it from the compute lane. */
static struct cost collective_cost(const struct pricing *p, struct cost cost, double latency)
{
  cost.seconds += latency;
  if (!p->plan->on_host[p->instr->lane])
    cost.use[DEVICE] = p->rates->contention * cost.seconds;
  return cost;
}

/* Up a tree and down. */
struct cost cost_tree(const struct pricing *p)
{
  const double levels = ceil(log2(plan_instr_ranks(p->plan, p->instr)));
  return collective_cost(p, ring_cost(p, 2 * levels * (double)plan_instr_bytes(p->plan, p->instr)),
                         2 * levels * level_s(p));
}

/* A part at a time, so that all links are busy. */
struct cost cost_all_reduce(const struct pricing *p)
{
  const double ranks = plan_instr_ranks(p->plan, p->instr),
               bytes = 2 * (double)plan_instr_bytes(p->plan, p->instr) * (ranks - 1) / ranks;
  return collective_cost(p, ring_cost(p, bytes), 2 * ceil(log2(ranks)) * level_s(p));
}

static double sent_bytes(const struct pricing *p)
{
  return plan_sent_share(p->instr) * (double)plan_instr_bytes(p->plan, p->instr);
}

/* A message from each other member, block by block. */
struct cost cost_exchange(const struct pricing *p)
{
  const double peers = plan_instr_ranks(p->plan, p->instr) - 1,
               message_s = is_in_a_node(p) ? 0 : p->rates->exchange_latency_s,
               late_s = message_s > 0 ? peers * message_s : latency_s(p, peers);
  return collective_cost(p, pairs_cost(p, sent_bytes(p)), blocks_of(p) * late_s);
}

/* A shard of another type than the window's is cast on the device. A rank that has all of the
 * working copy copies it. */
static double place_s(const struct pricing *p)
{
  const struct plan_buffer *shard = &p->plan->buffer[p->instr->use[GATHER_SHARD].buffer],
                           *whole = &p->plan->buffer[p->instr->use[GATHER_WHOLE].buffer];
  const bool casts = shard->dtype != whole->dtype,
             copies = shard->purpose == PURPOSE_WORKING && plan_instr_ranks(p->plan, p->instr) == 1;
  const double elements = (double)shard->elements;
  return casts || copies
             ? ratio(elements * (double)(dtype_size(shard->dtype) + dtype_size(whole->dtype)),
                     p->rates->memory_bytes)
             : 0;
}

/* All-gathers among the members of a group: of so many pieces, of `bytes` together. */
static struct cost hop_cost(const struct pricing *p, mesh_set group, int pieces, double bytes)
{
  const double ranks = mesh_ranks(&p->plan->mesh, group), peers = ranks - 1;
  struct instr instr = *p->instr;
  struct pricing hop = *p;
  instr.attr.group = group;
  hop.instr = &instr;
  return collective_cost(&hop, ring_cost(&hop, bytes * peers / ranks),
                         pieces * latency_s(&hop, peers));
}

struct cost cost_gather(const struct pricing *p)
{
  const double bytes = sent_bytes(p), all = (double)plan_instr_bytes(p->plan, p->instr);
  struct cost cost =
      plan_gathers_by_nodes(p->plan, p->instr)
          ? plus(hop_cost(p, MESH_ACROSS, 1, bytes / mesh_ranks(&p->plan->mesh, MESH_INSIDE)),
                 hop_cost(p, MESH_INSIDE, mesh_ranks(&p->plan->mesh, MESH_ACROSS), all))
          : hop_cost(p, p->instr->attr.group, 1, bytes);
  cost.local = place_s(p);
  cost.seconds += cost.local;
  return cost;
}

/* The gradient is read. A residual is added to it, which changes it before. */
struct cost cost_magnitude(const struct pricing *p)
{
  struct cost cost = cost_operands(p);
  cost.local = cost.seconds;
  return plus(cost, cost_exchange(p));
}

/* All received messages are read, and the shard is written, or read and written. */
struct cost cost_sum_shared(const struct pricing *p)
{
  struct cost cost = cost_operands(p);
  cost.seconds += 2 * barrier_s(p);
  return cost;
}

/* The mean of the largest of n numbers of a standard normal distribution F: the integral of
 * 1 - F(x)^n - F(-x)^n over x > 0. */
static double largest_of(double n)
{
  const double width = 0.02, end = 8;
  double mean = 0;
  for (double x = width / 2; x < end && n > 1; x += width) {
    const double below = erfc(-x * M_SQRT1_2) / 2;
    mean += width * (1 - pow(below, n) - pow(1 - below, n));
  }
  return mean;
}

/* Every collective waits for the slowest rank, and the slowest of more ranks is slower. */
static double slowest_of(const struct plan *plan, const struct plan_rates *rates)
{
  if (rates->spread <= 0)
    return 1;
  const double of_all = rates->spread * largest_of(plan->input.ranks),
               measured = rates->spread * largest_of(rates->spread_ranks);
  return (1 + of_all) / (1 + measured);
}

static struct cost cost_of(const struct pricing *p)
{
  op_cost *const of = op_rows[p->instr->op].cost;
  struct cost cost = of ? of(p) : (struct cost){0};
  if (p->instr->lane == LANE_COMPUTE)
    cost.use[DEVICE] = cost.seconds *= p->slowest;
  return cost;
}

/* The cost if `free` takes no time. Casts around a collective remain. */
static struct cost cost_without(const struct pricing *p, enum plan_part free)
{
  const struct cost cost = cost_of(p);
  return op_rows[p->instr->op].part != free || free == PART_NOTHING
             ? cost
             : (struct cost){.seconds = cost.local};
}

/* Enough steps to reach the steady state, because work deferred to the next step delays the end of
 * that step. The last step only shares resources with the step before it. */
enum { STEPS = 5 };

struct runner {
  int time; /* the instruction that the lane runs or runs next, counted over all steps */
  bool runs;
  double since, speed;    /* 1: as fast as alone */
  double left;            /* remaining seconds at `since`, at speed 1 */
  double draw[RESOURCES]; /* the part of each resource that it uses at speed 1 */
};

/* One instruction of the plan: its cost, its waits, the distance to the next one on its lane. */
struct turn {
  struct cost cost;
  const struct plan_wait *wait;
  int n_wait, next;
};

struct replay {
  const struct plan *plan;
  struct turn *turn; /* [plan->n] */
  struct runner lane[LANE_COUNT];
  double now, *end; /* of each instruction of each step; INFINITY while it has not ended */
};

/* From the end back: the first instructions of the next step follow the last ones of this step. */
static void begin(struct replay *r, const struct plan_rates *rates, enum plan_part free)
{
  const int n = r->plan->n;
  const double slowest = slowest_of(r->plan, rates);
  int next[LANE_COUNT];
  for (int lane = 0; lane < LANE_COUNT; lane++)
    next[lane] = STEPS * n;
  for (int time = 2 * n - 1; time >= 0; time--) {
    const struct instr *instr = &r->plan->instr[time % n];
    r->turn[time % n] =
        (struct turn){cost_without(&(struct pricing){r->plan, instr, rates, slowest}, free),
                      instr->wait, instr->n_wait, next[instr->lane] - time};
    next[instr->lane] = time;
  }
  for (int time = 0; time < STEPS * n; time++)
    r->end[time] = INFINITY;
  for (int lane = 0; lane < LANE_COUNT; lane++)
    r->lane[lane].time = next[lane];
}

static bool may_start(const struct replay *r, const struct runner *lane)
{
  const int n = r->plan->n, step = lane->time / n;
  if (lane->runs || step >= STEPS)
    return false;
  const struct turn *turn = &r->turn[lane->time % n];
  for (int w = 0; w < turn->n_wait; w++)
    if (step >= turn->wait[w].back &&
        r->end[(step - turn->wait[w].back) * n + turn->wait[w].instr] > r->now)
      return false;
  return true;
}

static void start(const struct replay *r, struct runner *lane)
{
  const struct cost *cost = &r->turn[lane->time % r->plan->n].cost;
  *lane =
      (struct runner){lane->time, .runs = true, .since = r->now, .speed = 1, .left = cost->seconds};
  for (int k = 0; k < RESOURCES; k++)
    lane->draw[k] = ratio(cost->use[k], cost->seconds);
}

/* The part of a resource that one operation may use. Operations that need less leave the rest to
 * the others. */
static double fair_share(const struct replay *r, enum resource k)
{
  double share = 0;
  for (int round = 0; round < LANE_COUNT && isfinite(share); round++) {
    double rest = 1;
    int takers = 0;
    for (int lane = 0; lane < LANE_COUNT; lane++)
      if (r->lane[lane].runs && r->lane[lane].draw[k] > share)
        takers++;
      else if (r->lane[lane].runs)
        rest -= r->lane[lane].draw[k];
    share = takers > 0 ? rest / takers : INFINITY;
  }
  return share;
}

static void find_speeds(const struct replay *r, double speed[LANE_COUNT])
{
  for (int lane = 0; lane < LANE_COUNT; lane++)
    speed[lane] = 1;
  for (int k = 0; k < RESOURCES; k++) {
    const double share = fair_share(r, k);
    for (int lane = 0; lane < LANE_COUNT; lane++)
      if (r->lane[lane].runs && r->lane[lane].draw[k] > share)
        speed[lane] = fmin(speed[lane], share / r->lane[lane].draw[k]);
  }
}

/* If the speed does not change, the predicted end stays bitwise the same. */
static void set_speed(struct runner *lane, double now, double speed)
{
  if (lane->speed == speed)
    return;
  lane->left = fmax(0, lane->left - (now - lane->since) * lane->speed);
  lane->since = now;
  lane->speed = speed;
}

static double end_of(const struct runner *lane)
{
  return lane->runs ? lane->since + lane->left / lane->speed : INFINITY;
}

/* Advances to the next end of an instruction. False if nothing runs any more. */
static bool advance(struct replay *r)
{
  for (int lane = 0; lane < LANE_COUNT; lane++)
    if (may_start(r, &r->lane[lane]))
      start(r, &r->lane[lane]);
  double next = INFINITY, speed[LANE_COUNT];
  find_speeds(r, speed);
  for (int lane = 0; lane < LANE_COUNT; lane++) {
    if (r->lane[lane].runs)
      set_speed(&r->lane[lane], r->now, speed[lane]);
    next = fmin(next, end_of(&r->lane[lane]));
  }
  if (isinf(next))
    return false;
  r->now = next;
  for (int lane = 0; lane < LANE_COUNT; lane++)
    if (end_of(&r->lane[lane]) <= next) {
      const int time = r->lane[lane].time;
      r->end[time] = next;
      r->lane[lane] = (struct runner){time + r->turn[time % r->plan->n].next, .speed = 1};
    }
  return true;
}

static double latest(const double *end, int n)
{
  double last = 0;
  for (int i = 0; i < n; i++)
    last = fmax(last, end[i]);
  return last;
}

/* Time by which a step ends later than the one before it, at least the time for which it uses a
 * resource. Lanes that wait for no other lane run ahead, and have the resource to themselves. `r`
 * has room: end for all steps. */
static double replay(struct replay *r, const struct plan_rates *rates, enum plan_part free)
{
  const int n = r->plan->n;
  const double *end = r->end;
  *r = (struct replay){r->plan, r->turn, .end = r->end};
  begin(r, rates, free);
  while (advance(r))
    ;
  double step_s = latest(&end[(STEPS - 2) * n], n) - latest(&end[(STEPS - 3) * n], n);
  for (int k = 0; k < RESOURCES; k++) {
    double use = 0;
    for (int i = 0; i < n; i++)
      use += r->turn[i].cost.use[k];
    step_s = fmax(step_s, use);
  }
  return step_s;
}

/* Time by which the step would be shorter. It is 0 if the remaining work then shares resources with
 * more other work and takes longer. */
static double exposed(struct replay *r, const struct plan_rates *rates, double step_s,
                      enum plan_part free)
{
  for (int i = 0; i < r->plan->n && !rates->step_only; i++)
    if (op_rows[r->plan->instr[i].op].part == free)
      return fmax(0, step_s - replay(r, rates, free));
  return 0;
}

enum status plan_simulate(const struct plan *plan, const struct plan_rates *rates,
                          struct plan_forecast *out)
{
  struct replay r = {.plan = plan};
  struct plan_forecast f = {0};
  double *const parts[] = {[PART_COMM] = &f.exposed_comm_s,
                           [PART_COPY] = &f.exposed_copy_s,
                           [PART_UPDATE] = &f.exposed_update_s,
                           [PART_DISK] = &f.exposed_disk_s};
  enum status status = mem_new(MEM_META, plan->n, &r.turn);
  status = status ?: mem_new(MEM_META, STEPS * plan->n, &r.end);
  if (!status) {
    f.step_s = replay(&r, rates, PART_NOTHING);
    for (int i = 0; i < plan->n; i++)
      f.busy_s[plan->instr[i].lane] += r.turn[i].cost.seconds;
    for (int part = 0; part < PART_NOTHING; part++)
      *parts[part] = exposed(&r, rates, f.step_s, (enum plan_part)part);
    *out = f;
  }
  mem_free(r.end);
  mem_free(r.turn);
  return status;
}
