/* Bytes between nodes, counted for each pair of ranks that a collective connects. */
#include "plan/traffic.h"

#include "base/exactsum.h"
#include "plan/ops.h"

/* The groups of a kind: `groups` of them, each of `size` ranks from `first` + group *
 * between_groups on, `between` apart. */
struct groups {
  int groups, size;
  int64_t between, between_groups;
};

/* Crossings of node boundaries over all groups of a kind: if each member sends to each other one,
 * and if each member sends to the next one. */
struct crossings {
  int64_t pairs, links;
};

int traffic_nodes(int ranks, int local_ranks)
{
  return (ranks + local_ranks - 1) / local_ranks;
}

static struct crossings count_group(const struct groups *kind, int group, int local_ranks)
{
  struct crossings count = {.pairs = (int64_t)kind->size * kind->size};
  const int64_t first = group * kind->between_groups;
  const int64_t last_node = (first + (kind->size - 1) * kind->between) / local_ranks;
  int64_t here = 0;
  for (int i = 0; i < kind->size; i++) {
    const int64_t node = (first + i * kind->between) / local_ranks;
    const int64_t next = i + 1 < kind->size ? (first + (i + 1) * kind->between) / local_ranks : -1;
    here++;
    if (next == node)
      continue;
    count.pairs -= here * here;
    here = 0;
    count.links +=
        next >= 0 || last_node != first / local_ranks; /* the last one is followed by the first */
  }
  return count;
}

static struct crossings count(const struct groups *kind, int local_ranks)
{
  struct crossings all = {0};
  for (int group = 0; group < kind->groups; group++) {
    const struct crossings one = count_group(kind, group, local_ranks);
    all.pairs += one.pairs;
    all.links += one.links;
  }
  return all;
}

/* A sum goes up a binomial tree in which a parent is the rank without its lowest bit. It comes down
 * a tree in which a parent is the rank without its highest bit. */
static int64_t count_tree(int ranks, int local_ranks)
{
  int64_t crossing = 0;
  for (int rank = 1; rank < ranks; rank++) {
    const int up = rank & (rank - 1), down = rank ^ (1 << (31 - __builtin_clz((unsigned)rank)));
    crossing +=
        (up / local_ranks != rank / local_ranks) + (down / local_ranks != rank / local_ranks);
  }
  return crossing;
}

struct job {
  const struct plan *plan;
  const struct traffic_model *model;
  struct crossings shard, replica, across;
  int64_t tree;
};

/* Without sharding the members of a group are replicas. */
static int64_t *kind_of(const struct job *job, const struct instr *instr, struct traffic_bytes *out)
{
  const bool whole = job->plan->input.strategy == STRATEGY_NO_SHARD;
  if (instr->attr.group == GROUP_GATHER)
    return &out->gather;
  return instr->attr.group == GROUP_REPLICAS || whole ? &out->replicas : &out->reduce;
}

static const struct crossings *crossings_of(const struct job *job, enum plan_group group)
{
  switch (group) {
  case GROUP_REPLICAS: return &job->replica;
  case GROUP_ACROSS: return &job->across;
  default: return &job->shard;
  }
}

/* Ranks of one index on all nodes, none if the plan does not know its nodes. */
static struct groups groups_across(const struct plan_input *input)
{
  const int local = input->shape.local_ranks;
  return (struct groups){.groups = local,
                         .size = local > 0 ? input->ranks / local : 0,
                         .between = local,
                         .between_groups = 1};
}

static void add(const struct job *job, const struct instr *instr, struct traffic_bytes *out)
{
  const struct crossings *crossings = crossings_of(job, instr->attr.group);
  if (instr->attr.group == GROUP_NONE || instr->attr.group == GROUP_NODE)
    return;
  /* A group of one sends nothing. */
  const int64_t ranks = plan_instr_ranks(job->plan, instr),
                part = plan_instr_bytes(job->plan, instr) / ranks;
  const int64_t links = job->model->ring ? crossings->links * (ranks - 1) : crossings->pairs;
  switch (op_rows[instr->op].collective) {
  case COLLECTIVE_GATHER: *kind_of(job, instr, out) += part * links; break;
  case COLLECTIVE_EXCHANGE: *kind_of(job, instr, out) += part * crossings->pairs; break;
  case COLLECTIVE_TREE: out->sums += 2 * (int64_t)sizeof(struct exactsum) * job->tree; break;
  default: break;
  }
}

struct traffic_bytes plan_traffic(const struct plan *plan, const struct traffic_model *model)
{
  const int ranks = plan->input.ranks, group = plan->input.shape.group;
  const struct groups shards = {
      .groups = ranks / group, .size = group, .between = 1, .between_groups = group};
  const struct groups replicas = {
      .groups = group, .size = ranks / group, .between = group, .between_groups = 1};
  const struct groups across = groups_across(&plan->input);
  const struct job job = {.plan = plan,
                          .model = model,
                          .shard = count(&shards, model->local_ranks),
                          .replica = count(&replicas, model->local_ranks),
                          .across = count(&across, model->local_ranks),
                          .tree = count_tree(ranks, model->local_ranks)};
  struct traffic_bytes out = {0};
  for (int i = 0; i < plan->n; i++)
    add(&job, &plan->instr[i], &out);
  out.all = out.gather + out.reduce + out.replicas + out.sums;
  return out;
}

static bool is_varying(const struct instr *instr)
{
  const struct codec_ops *ops = instr->attr.codec.ops;
  return ops && ops->traits & CODEC_VARIABLE;
}

struct gradient_bytes plan_gradient_bytes(const struct plan *plan)
{
  struct gradient_bytes out = {0};
  for (int i = 0; i < plan->n; i++) {
    const struct instr *instr = &plan->instr[i];
    const struct codec *codec = &instr->attr.codec;
    if (instr->op == OP_MAGNITUDE)
      out.messages += (plan_instr_ranks(plan, instr) - 1) * (int64_t)sizeof(float);
    if (instr->op != OP_DECODE_SUM)
      continue;
    const int64_t n = plan->buffer[instr->use[DECODE_SUM_SHARD].buffer].elements;
    const int others = plan_group_ranks(plan, instr->attr.group) - 1;
    int64_t indices;
    out.raw += others * n * (int64_t)sizeof(float);
    if (!is_varying(instr))
      out.messages += others * codec->ops->bytes(codec, n);
    out.elements += others * n;
    out.chosen += others * codec_chosen(codec, n, &indices);
    out.indices += others * indices;
  }
  return out;
}

int64_t plan_sent_bytes(const struct plan *plan)
{
  int64_t bytes = 0;
  for (int i = 0; i < plan->n; i++) {
    const struct instr *instr = &plan->instr[i];
    const int64_t ranks = plan_instr_ranks(plan, instr);
    const enum op_collective collective = op_rows[instr->op].collective;
    if (collective == COLLECTIVE_GATHER || collective == COLLECTIVE_EXCHANGE)
      bytes += is_varying(instr) ? 0 : plan_instr_bytes(plan, instr) / ranks * (ranks - 1);
  }
  return bytes;
}
