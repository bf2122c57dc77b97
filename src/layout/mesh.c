/* Arithmetic on coordinates. An axis of one rank has no coordinate but 0, and is skipped. */
#include "layout/mesh.h"

#include <stdio.h>

int mesh_ranks(const struct mesh *mesh, mesh_set set)
{
  int ranks = 1;
  for (int axis = 0; axis < MESH_AXES; axis++)
    ranks *= set >> axis & 1 ? mesh->size[axis] : 1;
  return ranks;
}

int mesh_index(const struct mesh *mesh, mesh_set set, int rank)
{
  int index = 0, width = 1;
  for (int axis = MESH_AXES - 1; axis >= 0; axis--) {
    const int size = mesh->size[axis];
    if (size == 1)
      continue;
    if (set >> axis & 1) {
      index += rank % size * width;
      width *= size;
    }
    rank /= size;
  }
  return index;
}

int mesh_member(const struct mesh *mesh, mesh_set set, int rank, int index)
{
  int member = rank, apart = 1;
  for (int axis = MESH_AXES - 1; axis >= 0; axis--) {
    const int size = mesh->size[axis];
    if (size == 1)
      continue;
    if (set >> axis & 1) {
      member += (index % size - rank % size) * apart;
      index /= size;
    }
    rank /= size;
    apart *= size;
  }
  return member;
}

int mesh_apart(const struct mesh *mesh, mesh_set set)
{
  return mesh_ranks(mesh, set) > 1 ? mesh_member(mesh, set, 0, 1) : 1;
}

bool mesh_crosses(const struct mesh *mesh, mesh_set set, int local)
{
  for (int rank = 0; rank < mesh_ranks(mesh, MESH_WORLD); rank++)
    if (mesh_member(mesh, set, rank, 0) / local != rank / local)
      return true;
  return false;
}

struct mesh_name mesh_name(mesh_set set)
{
  static const struct {
    mesh_set set;
    const char *name;
  } rows[] = {{MESH_WORLD, "world"},          {MESH_SHARD, "shard"},
              {MESH_INSIDE, "node"},          {1 << AXIS_PIPELINE, "pipeline"},
              {MESH_REPLICA, "replica"},      {MESH_ACROSS, "across"},
              {1 << AXIS_NODE, "inside"},     {1 << AXIS_EXPERT, "expert"},
              {1 << AXIS_CONTEXT, "context"}, {1 << AXIS_TENSOR, "tensor"}};
  struct mesh_name name = {""};
  size_t n = 0;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if ((set & rows[i].set) == rows[i].set) {
      n +=
          (size_t)snprintf(name.text + n, sizeof name.text - n, "%s%s", n ? "+" : "", rows[i].name);
      set &= ~rows[i].set;
    }
  return name;
}
