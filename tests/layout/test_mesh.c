/* The mesh, by brute force: every mesh of up to 24 ranks and every set of its axes. Oracles:
 * coordinates listed by nested counting, in which two ranks share a group if they agree outside of
 * the set; and the formulas of blocks and strides, for the meshes of strategies. */

#include "layout/mesh.h"
#include "tests/test.h"

enum { MOST = 24 };

typedef int coordinates[MESH_AXES];

static int color_of(const struct mesh *mesh, mesh_set set, int rank)
{
  return mesh_index(mesh, MESH_WORLD & ~set, rank);
}

/* The last axis counts fastest. */
static void list_ranks(const struct mesh *mesh, coordinates *out)
{
  coordinates at = {0};
  for (int rank = 0; rank < mesh_ranks(mesh, MESH_WORLD); rank++) {
    memcpy(out[rank], at, sizeof at);
    for (int axis = MESH_AXES - 1; axis >= 0 && ++at[axis] == mesh->size[axis]; axis--)
      at[axis] = 0;
  }
}

static bool share(const coordinates a, const coordinates b, mesh_set set)
{
  for (int axis = 0; axis < MESH_AXES; axis++)
    if (!(set >> axis & 1) && a[axis] != b[axis])
      return false;
  return true;
}

static bool crosses(const coordinates *at, int ranks, mesh_set set, int local)
{
  for (int a = 0; a < ranks; a++)
    for (int b = 0; b < a; b++)
      if (share(at[a], at[b], set) && a / local != b / local)
        return true;
  return false;
}

/* The group of a rank has the ranks that share it, in their order, and all members say so. Groups
 * are numbered by their first ranks. */
static void check_rank(const struct mesh *mesh, const coordinates *at, mesh_set set, int rank)
{
  const int ranks = mesh_ranks(mesh, MESH_WORLD);
  int n = 0, index = -1, first = -1, color = 0;
  for (int other = 0; other < ranks; other++) {
    if (!share(at[rank], at[other], set))
      continue;
    assert_int_equal(mesh_member(mesh, set, rank, n), other);
    assert_int_equal(color_of(mesh, set, other), color_of(mesh, set, rank));
    first = n == 0 ? other : first;
    index = other == rank ? n : index;
    n++;
  }
  assert_int_equal(n, mesh_ranks(mesh, set));
  assert_int_equal(mesh_index(mesh, set, rank), index);
  for (int other = 0; other < first; other++)
    color += mesh_index(mesh, set, other) == 0;
  assert_int_equal(color_of(mesh, set, rank), color);
  assert_int_equal(mesh_apart(mesh, set), n > 1 ? mesh_member(mesh, set, 0, 1) : 1);
}

/* A group and one of the complementary set have one rank in common. */
static void check_complement(const struct mesh *mesh, const coordinates *at, mesh_set set)
{
  const int ranks = mesh_ranks(mesh, MESH_WORLD);
  for (int a = 0; a < ranks; a++)
    for (int b = 0; b < ranks; b++) {
      int common = 0;
      for (int c = 0; c < ranks; c++)
        common += share(at[a], at[c], set) && share(at[b], at[c], MESH_WORLD & ~set);
      assert_int_equal(common, 1);
    }
}

static int check_mesh(const struct mesh *mesh)
{
  coordinates at[MOST];
  const int ranks = mesh_ranks(mesh, MESH_WORLD);
  list_ranks(mesh, at);
  for (mesh_set set = 0; set < MESH_SETS; set++) {
    for (int rank = 0; rank < ranks; rank++)
      check_rank(mesh, at, set, rank);
    for (int local = 1; local <= ranks; local++)
      assert_int_equal(mesh_crosses(mesh, set, local), crosses(at, ranks, set, local));
  }
  for (int axis = 0; axis < MESH_AXES; axis++) /* and one set of several axes */
    check_complement(mesh, at, axis == 0 ? MESH_SHARD : 1u << axis);
  return 1;
}

/* All ways to write a number of ranks as a product of sizes. */
static int check_meshes(struct mesh mesh, int axis, int ranks)
{
  int n = 0;
  if (axis == MESH_AXES - 1) {
    mesh.size[axis] = ranks;
    return check_mesh(&mesh);
  }
  for (int size = 1; size <= ranks; size++)
    if (ranks % size == 0) {
      mesh.size[axis] = size;
      n += check_meshes(mesh, axis + 1, ranks / size);
    }
  return n;
}

/* A prime can stand in 7 places, the two of 4 in 28, the three of 8 in 84. */
TEST(groups_of_every_set_partition_every_mesh)
{
  int meshes[MOST + 1];
  for (int ranks = 1; ranks <= MOST; ranks++)
    meshes[ranks] = check_meshes((struct mesh){0}, 0, ranks);
  assert_int_equal(meshes[1], 1);
  assert_int_equal(meshes[23], 7);
  assert_int_equal(meshes[4], 28);
  assert_int_equal(meshes[24], 84 * 7);
}

static void expect_block(const struct mesh *mesh, mesh_set set, int rank, int size, int apart)
{
  const int all = size * apart, first = rank / all * all + rank % apart;
  assert_int_equal(mesh_ranks(mesh, set), size);
  assert_int_equal(mesh_index(mesh, set, rank), (rank - first) / apart);
  for (int i = 0; i < size; i++)
    assert_int_equal(mesh_member(mesh, set, rank, i), first + i * apart);
}

/* Shard groups are blocks, replicas are a group apart, nodes are blocks, and the ranks of one index
 * on all nodes of a group are a node apart. */
TEST(strategies_have_blocks_and_strides)
{
  int n = 0;
  for (int ranks = 1; ranks <= 64; ranks++)
    for (int group = 1; group <= ranks; group++)
      for (int local = 1; local <= group; local++) {
        if (ranks % group != 0 || group % local != 0)
          continue;
        const struct mesh mesh = {{1, ranks / group, group / local, local, 1, 1, 1}};
        for (int rank = 0; rank < ranks; rank++) {
          expect_block(&mesh, MESH_SHARD, rank, group, 1);
          expect_block(&mesh, MESH_REPLICA, rank, ranks / group, group);
          expect_block(&mesh, MESH_INSIDE, rank, local, 1);
          expect_block(&mesh, MESH_ACROSS, rank, group / local, local);
          expect_block(&mesh, MESH_DATA, rank, ranks, 1);
          expect_block(&mesh, MESH_WORLD, rank, ranks, 1);
          expect_block(&mesh, MESH_NONE, rank, 1, 1);
        }
        n++;
      }
  assert_int_equal(n, 796);
}

TEST(sets_have_names)
{
  static const struct {
    mesh_set set;
    const char *name;
  } rows[] = {{MESH_NONE, ""},
              {MESH_WORLD, "world"},
              {MESH_SHARD, "shard"},
              {MESH_INSIDE, "node"},
              {MESH_ACROSS, "across"},
              {MESH_REPLICA, "replica"},
              {MESH_DATA, "shard+replica"},
              {1 << AXIS_PIPELINE | 1 << AXIS_TENSOR, "pipeline+tensor"},
              {MESH_WORLD & ~(1u << AXIS_PIPELINE), "shard+replica+tensor"},
              {MESH_ACROSS | 1 << AXIS_EXPERT | 1 << AXIS_CONTEXT, "across+expert+context"},
              {1 << AXIS_NODE, "inside"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    assert_string_equal(mesh_name(rows[i].set).text, rows[i].name);
}

TEST_MAIN(NULL, NULL)
