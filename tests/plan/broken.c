#include "broken.h"
#include "base/mem.h"
#include "plan/internal.h"
#include "plan/ops.h"
#include "tests/test.h"

enum { BLOCKS = 2 };

static struct model model;

struct plan *broken_start(const struct point *point)
{
  fixture_free(&model);
  fixture_model_of(&model, BLOCKS, point);
  return fixture_plan(&model, point, point->ranks - 1);
}

int broken_end(void **state)
{
  (void)state;
  fixture_free(&model);
  return 0;
}

static void live_all_step(struct plan *plan)
{
  for (int b = 0; b < plan->buffers; b++) {
    plan->buffer[b].first = 0;
    plan->buffer[b].last = plan->n - 1;
  }
}

void broken_settle(struct plan *plan)
{
  live_all_step(plan);
  must(plan_order(plan));
}

void broken_spread(struct plan *plan)
{
  live_all_step(plan);
  must(plan_pack(plan));
  must(plan_order(plan));
}

void broken_resize(struct plan *plan, int buffer, int64_t elements)
{
  struct plan_buffer *b = &plan->buffer[buffer];
  b->elements = elements;
  b->bytes = dtype_bytes(b->dtype, elements);
}

/* A new buffer: the first elements of another one. */
static void add_view(struct plan *plan, int parent, int64_t elements)
{
  void *buffer = plan->buffer;
  const int view = plan->buffers;
  must(mem_resize(MEM_META, ((size_t)view + 1) * sizeof *plan->buffer, &buffer));
  plan->buffer = buffer;
  plan->buffers++;
  plan->buffer[view] = plan->buffer[parent];
  plan->buffer[view].parent = parent;
  plan->buffer[view].parent_offset = 0;
  broken_resize(plan, view, elements);
}

void broken_delete(struct plan *plan, int i)
{
  plan->n--;
  memmove(&plan->instr[i], &plan->instr[i + 1], (size_t)(plan->n - i) * sizeof *plan->instr);
  broken_settle(plan);
}

void broken_refused(struct plan *plan, const char *words)
{
  must_fail(plan_verify(plan), STATUS_PLAN, words);
  plan_destroy(plan);
}

/* ---- changes as text ---- */

static int index_of(const char *const *names, int n, const char *name)
{
  for (int i = 0; i < n; i++)
    if (names[i] && strcmp(names[i], name) == 0)
      return i;
  fail_msg("nothing is named '%s'", name);
  return -1;
}

static const struct {
  const char *name;
  mesh_set set;
} groups[] = {{"NONE", MESH_NONE},   {"SHARD", MESH_SHARD},   {"REPLICA", MESH_REPLICA},
              {"NODE", MESH_INSIDE}, {"ACROSS", MESH_ACROSS}, {"WORLD", MESH_WORLD}};

static mesh_set group_named(const char *name)
{
  for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
    if (strcmp(groups[i].name, name) == 0)
      return groups[i].set;
  fail_msg("no group is named '%s'", name);
  return MESH_NONE;
}

static int instr_of(const struct plan *plan, const char *text)
{
  char name[32], group[16] = "";
  int at = 0, unit = -1, nth = -1, micro = -1, more = 0, n = 0;
  if (sscanf(text, "#%d", &at) == 1)
    return at < 0 ? plan->n + at : at;
  assert_int_equal(sscanf(text, "%31[A-Z_]%n", name, &n), 1);
  text += n;
  if (sscanf(text, ":%d%n", &unit, &n) == 1)
    text += n;
  if (sscanf(text, "/%d%n", &nth, &n) == 1)
    text += n;
  if (sscanf(text, ":%d%n", &micro, &n) == 1)
    text += n;
  if (sscanf(text, "@%15[A-Z]%n", group, &n) == 1)
    text += n;
  (void)sscanf(text, "+%d", &more);
  for (at = 0; at < plan->n; at++) {
    const struct instr *instr = &plan->instr[at];
    if (strcmp(plan_op_name(instr->op), name) == 0 && (unit < 0 || instr->unit == unit) &&
        (nth < 0 || plan->input.model->stage[instr->stage].nth == nth) &&
        (micro < 0 || instr->micro == micro) &&
        (!*group || instr->attr.group == group_named(group)))
      return at + more;
  }
  fail_msg("the plan has no %s", name);
  return -1;
}

/* "UPDATE:1.master": a name of its row in ops.c, or a number. */
static struct plan_use *use_of(const struct plan *plan, const char *text)
{
  const char *const dot = strrchr(text, '.');
  struct instr *const instr = &plan->instr[instr_of(plan, text)];
  const struct operand *operand = op_rows[instr->op].operand;
  for (int k = 0; k < PLAN_MAX_USE; k++)
    if (operand[k].name && strcmp(operand[k].name, dot + 1) == 0)
      return &instr->use[k];
  assert_in_range(dot[1], '0', '9');
  return &instr->use[atoi(dot + 1)];
}

int broken_buffer(const struct plan *plan, const char *text)
{
  if (strcmp(text, "none") == 0 || strcmp(text, "beyond") == 0)
    return *text == 'n' ? -1 : plan->buffers;
  if (strcmp(text, "new") == 0)
    return plan->buffers - 1;
  if (*text == '#' || (*text >= 'A' && *text <= 'Z'))
    return use_of(plan, text)->buffer;
  for (int b = 0; b < plan->buffers; b++)
    if (strcmp(plan->buffer[b].name, text) == 0)
      return b;
  fail_msg("the plan has no buffer %s", text);
  return -1;
}

static void set_attribute(struct attributes *attr, const char *name, const char *value)
{
  static const char *const names[] = {"none", "bf16", "e4m3", "absent"};
  static const struct codec_ops *const codecs[] = {&codec_none, &codec_bf16, &codec_e4m3, NULL};
  const struct {
    const char *name;
    int *number;
  } numbers[] = {{"blocks", &attr->blocks},
                 {"fp8", (int *)&attr->fp8},
                 {"optimizer", (int *)&attr->optimizer}};
  for (int n = 0; n < 3; n++)
    if (strcmp(name, numbers[n].name) == 0)
      *numbers[n].number = atoi(value);
  if (strcmp(name, "group") == 0)
    attr->group = group_named(value);
  if (strcmp(name, "codec") == 0)
    attr->codec.ops = codecs[index_of(names, 4, value)];
  if (strcmp(name, "clip") == 0)
    attr->clip = atof(value);
  if (strcmp(name, "beta") == 0)
    attr->beta = atof(value);
  if (strcmp(name, "lr_scale") == 0)
    attr->lr_scale = atof(value);
  if (strcmp(name, "stochastic") == 0)
    attr->stochastic = atoi(value);
  if (strcmp(name, "seed") == 0)
    attr->seed = (uint64_t)atoi(value);
}

static void change_instr(struct plan *plan, const char *verb, int i, const char *b, const char *c)
{
  struct instr *const instr = &plan->instr[i];
  const struct instr kept = *instr;
  if (strcmp(verb, "lane") == 0) {
    for (instr->lane = 0; strcmp(plan_lane_name(instr->lane), b) != 0; instr->lane++)
      ;
  } else if (strcmp(verb, "attr") == 0) {
    set_attribute(&instr->attr, b, c);
  } else if (strcmp(verb, "wait") == 0) {
    instr->wait[0] = (struct plan_wait){*b == '#' ? plan->n : instr_of(plan, b), 0};
  } else if (strcmp(verb, "delete") == 0) {
    broken_delete(plan, i);
  } else {
    struct instr *const other = &plan->instr[instr_of(plan, b)];
    *instr = *other;
    if (strcmp(verb, "swap") == 0)
      *other = kept;
  }
}

static void change_buffer(struct plan *plan, const char *verb, int buffer, const char *b)
{
  static const char *const tiers[] = {"device", "host", "shared", "disk", "none"};
  static const char *const purposes[] = {[PURPOSE_WINDOW] = "window", [PURPOSE_STATE] = "state"};
  struct plan_buffer *const at = &plan->buffer[buffer];
  const int64_t n = atoll(b) + (*b == '-' || *b == '+' ? at->elements : 0);
  if (strcmp(verb, "move") == 0) {
    at->offset += atoll(b);
    at->parent_offset += atoll(b);
  } else if (strcmp(verb, "over") == 0) {
    const struct plan_buffer *const other = &plan->buffer[broken_buffer(plan, b)];
    at->offset = other->offset;
    at->parent = other->parent;
    at->parent_offset = other->parent_offset;
  } else if (strcmp(verb, "resize") == 0)
    broken_resize(plan, buffer, n);
  else if (strcmp(verb, "view") == 0)
    add_view(plan, buffer, n);
  else if (strcmp(verb, "tier") == 0)
    at->tier = (enum plan_tier)index_of(tiers, TIER_COUNT + 1, b);
  else if (strcmp(verb, "purpose") == 0)
    at->purpose = (enum plan_purpose)index_of(purposes, PURPOSE_STATE + 1, b);
  else
    at->persistent = n;
}

static void make_step(struct plan *plan, char *step)
{
  static const char *const of_instr[] = {"lane", "attr", "put", "swap", "delete", "wait"};
  static const char *const accesses[] = {"read", "write", "add"};
  char *word[4] = {"", "", "", ""}, *rest = step;
  for (int w = 0; w < 4 && (step = strtok_r(w ? NULL : step, " ", &rest)); w++)
    word[w] = step;
  if (strcmp(word[0], "settle") == 0)
    broken_settle(plan);
  else if (strcmp(word[0], "spread") == 0)
    broken_spread(plan);
  else if (strcmp(word[0], "order") == 0)
    must(plan_order(plan));
  else if (strcmp(word[0], "use") == 0) {
    struct plan_use *const use = use_of(plan, word[1]);
    use->buffer = broken_buffer(plan, word[2]);
    if (*word[3])
      use->access = (enum plan_access)index_of(accesses, 3, word[3]);
  } else if (strcmp(word[0], "trade") == 0) {
    struct plan_use *const a = use_of(plan, word[1]), *const b = use_of(plan, word[2]);
    const int buffer = a->buffer;
    a->buffer = b->buffer;
    b->buffer = buffer;
  } else if (strcmp(word[0], "access") == 0) {
    use_of(plan, word[1])->access = (enum plan_access)index_of(accesses, 3, word[2]);
  } else {
    for (int k = 0; k < 6; k++)
      if (strcmp(word[0], of_instr[k]) == 0) {
        change_instr(plan, word[0], instr_of(plan, word[1]), word[2], word[3]);
        return;
      }
    change_buffer(plan, word[0], broken_buffer(plan, word[1]), word[2]);
  }
}

void broken_change(struct plan *plan, const char *change)
{
  char text[400], *rest = text;
  assert_true(strlen(change) < sizeof text);
  strcpy(text, change);
  for (char *step = strtok_r(text, ";", &rest); step; step = strtok_r(NULL, ";", &rest))
    make_step(plan, step);
}
