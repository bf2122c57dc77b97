/* Bytes between nodes, counted for each pair of ranks that a collective connects. */
#include "plan/traffic.h"

#include "base/exactsum.h"
#include "plan/ops.h"

/* Crossings of node boundaries over all groups of a set: if each member sends to each other one,
 * and if each member sends to the next one. */
struct crossings {
  bool known;
  int64_t pairs, links;
};

int traffic_nodes(int ranks, int local_ranks)
{
  return (ranks + local_ranks - 1) / local_ranks;
}

static struct crossings count(const struct mesh *mesh, mesh_set set, int local_ranks)
{
  const int size = mesh_ranks(mesh, set), groups = mesh_ranks(mesh, MESH_WORLD & ~set),
            apart = mesh_apart(mesh, set);
  const bool even = mesh_member(mesh, set, 0, size - 1) == (size - 1) * apart;
  struct crossings count = {.known = true, .pairs = (int64_t)groups * size * size};
  for (int group = 0; group < groups; group++) {
    const int first = mesh_member(mesh, MESH_WORLD & ~set, 0, group), start = first / local_ranks;
    int64_t here = 0;
    for (int i = 1, node = start, next; i <= size; i++, node = next) {
      const int member = even ? first + i * apart : mesh_member(mesh, set, first, i % size);
      next = i < size ? member / local_ranks : start;
      count.links += next != node;
      here++;
      if (next == node && i < size)
        continue;
      count.pairs -= here * here;
      here = 0;
    }
  }
  return count;
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
  struct crossings group[MESH_SETS];
  int64_t tree;
};

static const struct crossings *crossings_of(struct job *job, mesh_set set)
{
  if (!job->group[set].known)
    job->group[set] = count(&job->plan->mesh, set, job->model->local_ranks);
  return &job->group[set];
}

/* Without sharding the members of a group are replicas. */
static int64_t *kind_of(const struct job *job, const struct instr *instr, struct traffic_bytes *out)
{
  const bool whole = job->plan->input.strategy == STRATEGY_NO_SHARD;
  if (instr->lane == LANE_GATHER)
    return &out->gather;
  return instr->attr.group == MESH_REPLICA || whole ? &out->replicas : &out->reduce;
}

/* Parts that cross between nodes if a group gathers one part of each member. */
static int64_t count_gather(struct job *job, mesh_set group)
{
  const struct crossings *crossings = crossings_of(job, group);
  return job->model->ring ? crossings->links * (mesh_ranks(&job->plan->mesh, group) - 1)
                          : crossings->pairs;
}

/* In the second hop a member has the parts of its index on all nodes. */
static int64_t count_parts(struct job *job, const struct instr *instr)
{
  if (!plan_gathers_by_nodes(job->plan, instr))
    return count_gather(job, instr->attr.group);
  return count_gather(job, MESH_ACROSS) +
         mesh_ranks(&job->plan->mesh, MESH_ACROSS) * count_gather(job, MESH_INSIDE);
}

static void add(struct job *job, const struct instr *instr, struct traffic_bytes *out)
{
  /* A group of one sends nothing. */
  const int64_t ranks = plan_instr_ranks(job->plan, instr),
                all = plan_instr_bytes(job->plan, instr) / ranks,
                part =
                    plan_is_varying(instr) ? (int64_t)(plan_sent_share(instr) * (double)all) : all;
  switch (op_rows[instr->op].collective) {
  case COLLECTIVE_GATHER: *kind_of(job, instr, out) += part * count_parts(job, instr); break;
  case COLLECTIVE_EXCHANGE:
    *kind_of(job, instr, out) += part * crossings_of(job, instr->attr.group)->pairs;
    break;
  case COLLECTIVE_REDUCE: /* round the ring to add up, and round again to spread the result */
    *kind_of(job, instr, out) += 2 * plan_instr_bytes(job->plan, instr) * (ranks - 1) / ranks *
                                 crossings_of(job, instr->attr.group)->links;
    break;
  case COLLECTIVE_TREE:
    out->sums += plan_sums(&job->plan->input) * (int64_t)sizeof(struct exactsum) * job->tree;
    break;
  default: break;
  }
}

struct traffic_bytes plan_traffic(const struct plan *plan, const struct traffic_model *model)
{
  struct job job = {
      .plan = plan, .model = model, .tree = count_tree(plan->input.ranks, model->local_ranks)};
  struct traffic_bytes out = {0};
  for (int i = 0; i < plan->n; i++)
    add(&job, &plan->instr[i], &out);
  out.all = out.gather + out.reduce + out.replicas + out.sums;
  return out;
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
    const int others = mesh_ranks(&plan->mesh, instr->attr.group) - 1;
    int64_t indices;
    out.raw += others * n * (int64_t)sizeof(float);
    if (!plan_is_varying(instr))
      out.messages += others * codec->ops->bytes(codec, n);
    out.elements += others * n;
    out.chosen += others * codec_chosen(codec, n, &indices);
    out.indices += others * indices;
  }
  return out;
}

/* Levels of a binomial tree. Its root sends that many messages, others at most as many. */
static int levels_of(int ranks)
{
  int levels = 0;
  while (1 << levels < ranks)
    levels++;
  return levels;
}

static int64_t messages_of(const struct plan *plan, const struct instr *instr)
{
  const int ranks = plan_instr_ranks(plan, instr);
  switch (op_rows[instr->op].collective) {
  case COLLECTIVE_NONE: return 0;
  case COLLECTIVE_GATHER:
    return plan_gathers_by_nodes(plan, instr)
               ? mesh_ranks(&plan->mesh, MESH_ACROSS) + mesh_ranks(&plan->mesh, MESH_INSIDE) - 2
               : ranks - 1;
  case COLLECTIVE_EXCHANGE: return (instr->attr.blocks > 1 ? instr->attr.blocks : 1) * (ranks - 1);
  case COLLECTIVE_BARRIER: return 2 * levels_of(ranks);
  default: return levels_of(ranks);
  }
}

struct message_count plan_messages(const struct plan *plan)
{
  struct message_count out = {0};
  int meet[LANE_COUNT][MESH_SETS] = {0};
  for (int i = 0; i < plan->n; i++) {
    const struct instr *instr = &plan->instr[i];
    int *const groups = &meet[instr->lane][instr->attr.group];
    const int64_t messages = messages_of(plan, instr);
    out.all += messages;
    out.scales += instr->op == OP_MERGE ? messages : 0;
    out.groups -= *groups;
    if (messages > 0 && *groups < 3)
      *groups = plan_gathers_by_nodes(plan, instr) ? 3 : 1;
    out.groups += *groups;
  }
  return out;
}

int64_t plan_sent_bytes(const struct plan *plan)
{
  int64_t bytes = 0;
  for (int i = 0; i < plan->n; i++) {
    const struct instr *instr = &plan->instr[i];
    const int64_t ranks = plan_instr_ranks(plan, instr),
                  part = plan_instr_bytes(plan, instr) / ranks;
    const enum op_collective collective = op_rows[instr->op].collective;
    if (plan_is_varying(instr)) /* the hop inside a node sends whole buffers */
      bytes += plan_gathers_by_nodes(plan, instr)
                   ? part * (ranks - mesh_ranks(&plan->mesh, MESH_ACROSS))
                   : 0;
    else if (collective == COLLECTIVE_GATHER || collective == COLLECTIVE_EXCHANGE)
      bytes += part * (ranks - 1);
  }
  return bytes;
}
