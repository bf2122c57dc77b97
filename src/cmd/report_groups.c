#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "cmd/report.h"

static bool begins(const char *text, const char *with)
{
  return !strncmp(text, with, strlen(with));
}

bool report_same_deck(const struct report_run *a, const struct report_run *b, bool but_codec)
{
  if (!a->key || !b->key)
    return false;
  for (int i = 0; deck_table[i].name; i++) {
    const char *name = deck_table[i].name;
    if (!strcmp(name, "run.dir") || !strcmp(name, "run.seed") ||
        (but_codec && begins(name, "compress.")))
      continue;
    if (strcmp(a->key[i], b->key[i]) != 0)
      return false;
  }
  return true;
}

bool report_has_codec(const struct report_run *run)
{
  for (int i = 0; run->key && deck_table[i].name; i++) {
    const char *name = deck_table[i].name, *dot = strrchr(name, '.');
    if (begins(name, "compress.") && !strcmp(dot, ".codec") && strcmp(run->key[i], "none") != 0)
      return true;
  }
  return false;
}

static bool is_finished(const struct report_run *run)
{
  return !strcmp(run->end, "finished");
}

/* Bytes of a run's name without "-SEED" at its end. */
static int length_without_seed(const struct report_run *run)
{
  char seed[32];
  const int length = (int)strlen(run->name);
  const int end = snprintf(seed, sizeof seed, "-%lld", (long long)run->seed);
  return length > end && !strcmp(run->name + length - end, seed) ? length - end : length;
}

/* A run without a run record does not know its rank count, but in a folder of sluice compare its
 * name has it. */
static bool has_same_ranks(const struct report_run *a, const struct report_run *b)
{
  const int length = length_without_seed(a);
  if (a->ranks > 0 && b->ranks > 0)
    return a->ranks == b->ranks;
  return a->nested && b->nested && length == length_without_seed(b) &&
         !strncmp(a->name, b->name, (size_t)length);
}

static int find_group(const struct report *report, const struct report_run *run)
{
  for (int g = 0; g < report->groups; g++) {
    const struct report_run *first = &report->run[report->group[g].first];
    if (has_same_ranks(first, run) && report_same_deck(first, run, false))
      return g;
  }
  return -1;
}

static enum status join_group(struct report *report, int index)
{
  struct report_run *run = &report->run[index];
  run->group = find_group(report, run);
  if (run->group < 0) {
    const enum status status = mem_grow(MEM_META, (void **)&report->group, &report->group_room,
                                        (int64_t)report->groups + 1, sizeof *report->group);
    if (status)
      return status;
    run->group = report->groups++;
    report->group[run->group] = (struct report_group){.first = index, .base = -1};
  }
  struct report_group *group = &report->group[run->group];
  struct report_run *first = &report->run[group->first];
  first->ranks = first->ranks > 0 ? first->ranks : run->ranks;
  group->runs++;
  group->finished += is_finished(run);
  return STATUS_OK;
}

/* The numbers of an unfinished run belong to an earlier step, so they count only if no run of the
 * group is finished. */
static void add_values(struct report *report)
{
  for (int i = 0; i < report->runs; i++) {
    const struct report_run *run = &report->run[i];
    struct report_group *group = &report->group[run->group];
    for (int v = 0; v < VALUES && (is_finished(run) || group->finished == 0); v++)
      stats_sample_add(&group->sample[v], run->value[v]);
  }
}

static bool is_name_taken(const struct report *report, int before, const char *label)
{
  for (int g = 0; g < before; g++)
    if (!strcmp(report->group[g].label, label))
      return true;
  return false;
}

/* The name of a method, or of a run that is alone. If two have the same name, the path tells them
 * apart. */
static enum status name_group(struct report *report, int g)
{
  struct report_group *group = &report->group[g];
  const struct report_run *run = &report->run[group->first];
  const bool method = group->runs > 1 || run->nested;
  group->label =
      mem_printf("%.*s", method ? length_without_seed(run) : (int)strlen(run->name), run->name);
  if (!group->label || !is_name_taken(report, g, group->label))
    return group->label ? STATUS_OK : STATUS_MEMORY;
  mem_free(group->label);
  group->label = mem_strdup(run->path);
  return group->label ? STATUS_OK : STATUS_MEMORY;
}

static void find_base(struct report *report, int g)
{
  struct report_group *group = &report->group[g];
  const struct report_run *run = &report->run[group->first];
  for (int b = 0; report_has_codec(run) && b < report->groups && group->base < 0; b++) {
    const struct report_run *other = &report->run[report->group[b].first];
    if (!report_has_codec(other) && other->ranks == run->ranks &&
        report_same_deck(run, other, true))
      group->base = b;
  }
}

static void add_change(struct report *report, int g, enum report_value of, enum report_value change)
{
  struct report_group *group = &report->group[g];
  const struct stats_sample *own = &group->sample[of];
  const struct stats_sample *base = group->base < 0 ? NULL : &report->group[group->base].sample[of];
  if (base && own->n > 0 && base->n > 0 && base->mean > 0)
    stats_sample_add(&group->sample[change], own->mean / base->mean - 1);
}

enum status report_group_runs(struct report *report)
{
  enum status status = STATUS_OK;
  for (int i = 0; i < report->runs && !status; i++)
    status = join_group(report, i);
  if (!status)
    add_values(report);
  for (int g = 0; g < report->groups && !status; g++)
    status = name_group(report, g);
  for (int g = 0; g < report->groups && !status; g++) {
    find_base(report, g);
    add_change(report, g, VALUE_VAL_PPL, VALUE_PPL_CHANGE);
    add_change(report, g, VALUE_STEP_MS, VALUE_STEP_CHANGE);
  }
  return status;
}
