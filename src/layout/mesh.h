/* The mesh: the ranks of a job as the points of a product of axes, from the slowest to the fastest.
 * The shard axis is a product of three factors. Pure arithmetic, equal on all ranks. Knows nothing
 * of MPI or devices.
 *
 *   pipeline x replica x (across x node x expert) x context x tensor
 *                         '------- shard -------'
 *
 * A group is a set of axes and factors: the ranks that differ only there. So the groups of one set
 * partition the ranks, and a group meets one of the complementary set in exactly one rank. Members
 * are numbered in the order of their ranks. */
#pragma once

#include <stdbool.h>

/* clang-format off */
enum mesh_axis {
  AXIS_PIPELINE, AXIS_REPLICA,
  AXIS_ACROSS, /* between the nodes of a shard group */
  AXIS_NODE,   /* inside a node; all of a shard group whose collectives have one hop */
  AXIS_EXPERT, AXIS_CONTEXT, AXIS_TENSOR, MESH_AXES
};
/* clang-format on */

/* A set of axes. Members of MESH_SHARD have the parts of a unit's flat buffer: for parameters,
 * context is a data axis. Members of MESH_INSIDE are those on one node. Gradients are summed once
 * over MESH_DATA. Members of MESH_BATCH have sequences of their own. */
typedef unsigned mesh_set;
enum {
  MESH_NONE = 0,
  MESH_REPLICA = 1 << AXIS_REPLICA,
  MESH_ACROSS = 1 << AXIS_ACROSS,
  MESH_INSIDE = 1 << AXIS_NODE | 1 << AXIS_EXPERT | 1 << AXIS_CONTEXT,
  MESH_SHARD = MESH_ACROSS | MESH_INSIDE,
  MESH_DATA = MESH_REPLICA | MESH_SHARD,
  MESH_BATCH = MESH_DATA & ~(1 << AXIS_CONTEXT),
  MESH_SETS = 1 << MESH_AXES,
  MESH_WORLD = MESH_SETS - 1
};

struct mesh {
  int size[MESH_AXES];
};

/* All functions are pure. Ranks are in [0, mesh_ranks(mesh, MESH_WORLD)). */

/* Ranks of a group. */
int mesh_ranks(const struct mesh *mesh, mesh_set set);
/* The number of a rank in its group. In the complementary set it numbers the groups of `set`. */
int mesh_index(const struct mesh *mesh, mesh_set set, int rank);
/* The rank of member `index` in the group of `rank`; index in [0, mesh_ranks(mesh, set)). */
int mesh_member(const struct mesh *mesh, mesh_set set, int rank, int index);
/* The difference of the ranks of members 0 and 1; 1 in a group of one. */
int mesh_apart(const struct mesh *mesh, mesh_set set);
/* Whether a group has ranks of several nodes, each of `local` consecutive ranks. */
bool mesh_crosses(const struct mesh *mesh, mesh_set set, int local);
/* "world", "shard", "node", or the names of axes with + between them. */
struct mesh_name {
  char text[64];
};
struct mesh_name mesh_name(mesh_set set);
