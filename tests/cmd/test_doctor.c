/* The judgements of sluice doctor. Oracle: for every judgement, facts that must make each of its
 * warnings and faults fire. Facts that differ in one point must not fire it. Sizes and times are
 * computed by hand. */
#include <sys/stat.h>
#include <unistd.h>

#include "cmd/doctor.h"
#include "deck/options.h"
#include "tests/rows.h"

#define GIB (INT64_C(1) << 30)

static void each(const char *section, rows_check *check)
{
  rows_each("tests/cmd/doctor.txt", section, check);
}

/* expected: a verdict, a blank and a part of the text, which of warnings and faults is the cure; a
 * $ is the end of the text. -: no finding. */
static void is(const struct finding *finding, const char *expected)
{
  char line[DOCTOR_TEXT + 16];
  const char *part = strchr(expected, ' ');
  const int verdict = part ? (int)(part - expected) : (int)strlen(expected);
  snprintf(line, sizeof line, "%s %s$", *finding->what ? verdict_name(finding->verdict) : "-",
           finding->text);
  if ((int)strcspn(line, " ") != verdict || strncmp(line, expected, (size_t)verdict) != 0 ||
      !strstr(line + verdict, part ? part + 1 : ""))
    fail_msg("%s: %s; expected %s", finding->what, line, expected);
}

/* --- facts --------------------------------------------------------------- */

/* Two nodes of which nothing is wrong. */
struct scene {
  struct doctor_facts facts;
  struct launch launch;
  struct doctor_run run;
  struct doctor_disk disk;
};
static const struct scene healthy = {
    .facts = {.ranks = 8,
              .local_ranks = 2,
              .nodes = 2,
              .version = "1.0",
              .compiler = "gcc",
              .flags = "-O2 -g",
              .sanitizer = "no",
              .configured = "",
              .built_mpi = "Open MPI 4.1.4",
              .built_nccl = "2.27.3",
              .built_papi = "7.0.0",
              .mpi = {"Open MPI 4.1.4", 3, 0, "ob1", "self tcp"},
              .cuda = true,
              .card = true,
              .gpus = {13000, 12060, 22703, 2, "2 x GPU"},
              .hdf5 = {"1.14.0", "1.14.0", true},
              .machine = {"2.8", 2, 2, 64, 128, 16, 0, ""},
              .events = 3,
              .note = "",
              .memlock = -1,
              .shared_size = 8 * GIB,
              .shared_free = 8 * GIB,
              .memory_total = 512 * GIB,
              .memory_available = 500 * GIB,
              .memory_limit = -1},
    .launch = {.told_by = "PMI_SIZE"},
    .run = {.dir = "run", .need = 1, .free = 2},
    .disk = {
        .dir = "runs",
        .shared = true,
        .seen = true,
        .system = {.type = "lustre", .reach = REACH_SHARED, .size = 1000 * GIB, .free = 900 * GIB},
        .written = 256000000,
        .seconds = 0.5}};

/* clang-format off */
#define AT(field) offsetof(struct scene, field), sizeof healthy.field
static const struct key {
  const char *name;
  enum { INTEGER, REAL, TEXT, ARRAY } type;
  size_t offset, size;
} keys[] = {
    {"ranks", INTEGER, AT(facts.ranks)},
    {"local_ranks", INTEGER, AT(facts.local_ranks)},
    {"nodes", INTEGER, AT(facts.nodes)},
    {"flags", TEXT, AT(facts.flags)},
    {"sanitizer", TEXT, AT(facts.sanitizer)},
    {"configured", TEXT, AT(facts.configured)},
    {"built_nccl", TEXT, AT(facts.built_nccl)},
    {"built_papi", TEXT, AT(facts.built_papi)},
    {"chats", TEXT, AT(facts.chats)},
    {"cray", TEXT, AT(facts.cray)},
    {"tls", TEXT, AT(facts.tls)},
    {"provider", TEXT, AT(facts.provider)},
    {"mpi", ARRAY, AT(facts.mpi.version)},
    {"thread_level", INTEGER, AT(facts.mpi.thread_level)},
    {"aware", INTEGER, AT(facts.mpi.cuda)},
    {"pml", ARRAY, AT(facts.mpi.messages)},
    {"by", ARRAY, AT(facts.mpi.transports)},
    {"ports", INTEGER, AT(facts.fabric.ports)},
    {"active", INTEGER, AT(facts.fabric.active)},
    {"slingshot", INTEGER, AT(facts.fabric.slingshot)},
    {"slingshot_up", INTEGER, AT(facts.fabric.slingshot_up)},
    {"net", ARRAY, AT(facts.fabric.text)},
    {"cuda", INTEGER, AT(facts.cuda)},
    {"card", INTEGER, AT(facts.card)},
    {"asked", INTEGER, AT(facts.asked_net)},
    {"plugin", ARRAY, AT(facts.net.plugin)},
    {"lacks", ARRAY, AT(facts.net.lacks)},
    {"chosen", ARRAY, AT(facts.net.chosen)},
    {"driver", INTEGER, AT(facts.gpus.driver)},
    {"runtime", INTEGER, AT(facts.gpus.runtime)},
    {"nccl", INTEGER, AT(facts.gpus.nccl)},
    {"gpus", INTEGER, AT(facts.gpus.gpus)},
    {"hdf5_built", ARRAY, AT(facts.hdf5.built)},
    {"hdf5", ARRAY, AT(facts.hdf5.loaded)},
    {"parallel", INTEGER, AT(facts.hdf5.parallel)},
    {"cores", INTEGER, AT(facts.machine.cores)},
    {"own_cores", INTEGER, AT(facts.machine.own_cores)},
    {"quota", REAL, AT(facts.machine.quota)},
    {"described", ARRAY, AT(facts.machine.described)},
    {"events", INTEGER, AT(facts.events)},
    {"note", TEXT, AT(facts.note)},
    {"memlock", INTEGER, AT(facts.memlock)},
    {"shared", INTEGER, AT(facts.shared_size)},
    {"shared_free", INTEGER, AT(facts.shared_free)},
    {"total", INTEGER, AT(facts.memory_total)},
    {"available", INTEGER, AT(facts.memory_available)},
    {"limit", INTEGER, AT(facts.memory_limit)},
    {"tasks", INTEGER, AT(launch.tasks)},
    {"refusal", TEXT, AT(run.refusal)},
    {"need", INTEGER, AT(run.need)},
    {"stopped", INTEGER, AT(run.stopped)},
    {"everywhere", INTEGER, AT(disk.shared)},
    {"seen", INTEGER, AT(disk.seen)},
    {"type", ARRAY, AT(disk.system.type)},
    {"reach", INTEGER, AT(disk.system.reach)},
    {"in_memory", INTEGER, AT(disk.system.in_memory)},
    {"one_writer", INTEGER, AT(disk.system.one_writer)},
    {"disk_free", INTEGER, AT(disk.system.free)},
    {"lustre", INTEGER, AT(disk.stripes.lustre)},
    {"own", INTEGER, AT(disk.stripes.own)},
    {"stripes", INTEGER, AT(disk.stripes.count)},
    {"osts", INTEGER, AT(disk.stripes.osts)},
    {"seconds", REAL, AT(disk.seconds)},
    {"failure", ARRAY, AT(disk.failure)},
};
/* clang-format on */

/* The text of the key outlives the scene. Numbers have the suffixes of decks. */
static void set(struct scene *scene, const char *word)
{
  const size_t length = strcspn(word, "=");
  const char *value = word + length + 1;
  for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
    const struct key *key = &keys[k];
    void *to = (char *)scene + key->offset;
    if (strlen(key->name) != length || strncmp(key->name, word, length) != 0)
      continue;
    char *suffix = NULL;
    const double number = strtod(value, &suffix);
    int64_t scale = 1;
    if (key->type == INTEGER) {
      assert_true(options_parse_scale(suffix, true, &scale));
      scale *= (int64_t)number;
      memcpy(to, &scale, key->size); /* the low bytes of a little-endian machine */
    } else if (key->type == REAL) {
      memcpy(to, &number, sizeof number);
    } else if (key->type == TEXT) {
      memcpy(to, &value, sizeof(char *));
    } else {
      snprintf(to, key->size, "%s", value);
    }
    return;
  }
  fail_msg("there is no fact %s", word);
}

/* The line that `given` names, of a healthy job except for its facts: "GPUs; gpus=1; ranks=8". */
static void check_facts(const char *given, const char *expected)
{
  struct scene scene = healthy;
  struct finding finding[DOCTOR_LINES] = {0};
  char words[ROWS_LONGEST], *next = words;
  int line = 0;
  snprintf(words, sizeof words, "%s", given);
  const char *title = strsep(&next, ";");
  while (next)
    set(&scene, strsep(&next, ";") + 1);
  doctor_judge(&scene.facts, finding);
  doctor_judge_start(scene.facts.ranks, scene.launch, finding);
  doctor_judge_run(&scene.run, finding);
  doctor_judge_disk(0, scene.facts.nodes, &scene.disk, finding);
  while (line < DOCTOR_LINES - 1 && strcmp(finding[line].what, title) != 0)
    line++;
  is(&finding[line], expected);
}

/* A finding that a library's refusal has left is kept. Texts that depend on the node are not
 * compared. */
TEST(findings)
{
  struct finding finding[DOCTOR_LINES] = {[DOCTOR_MPI] = {.what = "MPI", .text = "refused"}};
  doctor_judge(&healthy.facts, finding);
  is(&finding[DOCTOR_MPI], "ok refused");
  for (int line = 0; line < DOCTOR_LINES; line++)
    assert_int_equal(finding[line].common, line == DOCTOR_BUILD || line == DOCTOR_CUDA_AWARE ||
                                               line == DOCTOR_NCCL || line == DOCTOR_HDF5 ||
                                               line == DOCTOR_PAPI);
  assert_true(finding[DOCTOR_GPUS].amount == 2 && finding[DOCTOR_CORES].amount == 16);
}

/* The reason of a refusal is quoted in its own words, as far as a line has room. It is the same on
 * all nodes. */
TEST(refusals)
{
  char sentence[2 * DOCTOR_TEXT];
  struct finding finding[DOCTOR_LINES] = {0};
  memset(sentence, 'w', sizeof sentence - 1);
  sentence[sizeof sentence - 1] = '\0';
  doctor_judge_refusal(DOCTOR_DECK, "deck", NULL, "fits into memory", finding);
  is(&finding[DOCTOR_DECK], "ok fits into memory");
  assert_true(finding[DOCTOR_DECK].common);
  doctor_judge_refusal(DOCTOR_DECK, "deck", "this build has no CUDA", "fits", finding);
  is(&finding[DOCTOR_DECK], "fault this build has no CUDA");
  assert_true(finding[DOCTOR_DECK].common);
  doctor_judge_refusal(DOCTOR_DECK, "deck", sentence, "fits", finding);
  is(&finding[DOCTOR_DECK], "fault wwww");
}

/* --- several ranks ------------------------------------------------------- */

enum { RANKS = 5 };
static struct doctor_report report[RANKS];
static struct comm_offset offset[RANKS];

/* given: the host and the lowest rank of the node of each rank. */
static void check_nodes(const char *given, const char *expected)
{
  struct finding finding[DOCTOR_LINES] = {0};
  int ranks = 0, used = 0;
  memset(report, 0, sizeof report);
  while (sscanf(given, "%63s %d%n", report[ranks].host, &report[ranks].node, &used) == 2) {
    given += used;
    ranks++;
  }
  doctor_judge_job(ranks, report, offset, finding);
  is(&finding[DOCTOR_NODES], expected);
}

/* Many names do not fit: the line is cut and stays a line. */
TEST(many_nodes)
{
  enum { NODES = 300 };
  static struct doctor_report many[NODES];
  static const struct comm_offset none[NODES];
  struct finding finding[DOCTOR_LINES] = {0};
  for (int r = 0; r < NODES; r++) {
    snprintf(many[r].host, sizeof many[r].host, "node%03d", r);
    many[r].node = r;
  }
  doctor_judge_job(NODES, many, none, finding);
  is(&finding[DOCTOR_NODES], "ok 300: node000 x 1, node001 x 1");
  is(&finding[DOCTOR_NODES], "ok ...");
}

/* Samples as an asker sees them whose peer is `ahead` ns ahead: there and back take `there` and
 * `back`. */
static struct comm_echo echo(int64_t at, int64_t ahead, int64_t there, int64_t back)
{
  return (struct comm_echo){
      .sent = at, .answered = at + there + ahead, .received = at + there + back};
}

static void check_clocks(const struct comm_offset *clock, const char *expected)
{
  struct finding finding[DOCTOR_LINES] = {0};
  for (int r = 0; r < 3; r++)
    snprintf(report[r].host, sizeof report[r].host, "%c", 'a' + r);
  doctor_judge_job(3, report, clock, finding);
  is(&finding[DOCTOR_CLOCKS], expected);
}

/* given: ns. The fastest echo takes 50 us, so its error is 25 us and its estimate off by
 * (20 - 30) / 2 = -5 us. */
static void check_ahead(const char *given, const char *expected)
{
  const int64_t now = INT64_C(1800000000) * 1000000000, ahead = strtoll(given, NULL, 10);
  const struct comm_echo samples[] = {echo(now, ahead, 9000000, 100000),
                                      echo(now + 20000000, ahead, 20000, 30000),
                                      echo(now + 40000000, ahead, 50000, 900000)};
  check_clocks((struct comm_offset[]){{0}, comm_clock_offset(samples, 3), {.error = -1}}, expected);
}

/* An offset that lies within its error says nothing. */
TEST(clocks)
{
  each("clocks", check_ahead);
  check_clocks((struct comm_offset[]){{0}, {.error = -1}, {.error = -1}}, "ok one node");
  check_clocks(
      (struct comm_offset[]){{0}, {.seconds = 9, .error = 10}, {.seconds = 0.01, .error = 0.001}},
      "ok c is 0.010000 s");
}

static bool common;

/* given: host, verdict, amount and text of each rank, |. The text may be empty: no finding. */
static void check_merge(const char *given, const char *expected)
{
  int ranks = 0, verdict, used;
  memset(report, 0, sizeof report);
  for (; *given; ranks++) {
    struct finding *mine = &report[ranks].finding[DOCTOR_HDF5];
    used = 0;
    assert_int_equal(
        sscanf(given, "%63s %d %lf %n", report[ranks].host, &verdict, &mine->amount, &used), 3);
    given += used;
    const size_t length = strcspn(given, "|");
    snprintf(mine->text, sizeof mine->text, "%.*s", (int)length, given);
    snprintf(mine->what, sizeof mine->what, "%s", length ? "HDF5" : "");
    mine->verdict = (enum verdict)verdict;
    mine->common = common;
    given += length + (given[length] == '|');
  }
  const struct finding merged = doctor_merge(DOCTOR_HDF5, ranks, report);
  is(&merged, expected);
}

TEST(merges)
{
  each("merges", check_merge);
  common = true;
  each("merges what should agree", check_merge);
}

/* given: text|HOME|USER; -: not known */
static void check_hidden(const char *given, const char *expected)
{
  char field[3][64];
  for (int i = 0; i < 3; i++) {
    const size_t length = strcspn(given, "|");
    snprintf(field[i], sizeof field[i], "%.*s", (int)length, given);
    given += length + (given[length] == '|');
  }
  doctor_hide(field[0], 32, strcmp(field[1], "-") != 0 ? field[1] : NULL,
              strcmp(field[2], "-") != 0 ? field[2] : NULL);
  assert_string_equal(field[0], expected);
}

TEST(rows)
{
  each("facts", check_facts);
  each("nodes", check_nodes);
  each("hides users", check_hidden);
}

/* --- this machine -------------------------------------------------------- */

/* A file in a folder below `root`, with all folders above it. */
static void put(const char *root, const char *folder, const char *file, const char *text)
{
  char path[256];
  snprintf(path, sizeof path, "%s/%s/", root, folder);
  for (char *slash = strchr(path + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    mkdir(path, 0700);
    *slash = '/';
  }
  snprintf(path, sizeof path, "%s/%s/%s", root, folder, file);
  FILE *stream = fopen(path, "we");
  assert_non_null(stream);
  assert_true(fputs(text, stream) >= 0 && fclose(stream) == 0);
}

/* Oracle: a tree like the kernel's, made here: NVIDIA's sound, another vendor's display, then
 * NVIDIA's display. */
TEST(finds_a_card)
{
  static const struct {
    const char *device, *vendor, *class;
    bool has;
  } steps[] = {{"0000:01:00.1", "0x10de\n", "0x040300\n", false},
               {"0000:02:00.0", "0x1a03\n", "0x030000\n", false},
               {"0000:01:00.0", "0x10de\n", "0x030200\n", true}};
  char root[] = "/tmp/sluice-doctor-XXXXXX", path[256];
  assert_non_null(mkdtemp(root));
  assert_false(doctor_has_card(root));
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
    snprintf(path, sizeof path, "bus/pci/devices/%s", steps[i].device);
    put(root, path, "vendor", steps[i].vendor);
    put(root, path, "class", steps[i].class);
    assert_int_equal(doctor_has_card(root), steps[i].has);
  }
  snprintf(path, sizeof path, "rm -r %s", root);
  assert_int_equal(system(path), 0);
}

/* Oracle: statvfs' own numbers cannot be held still, so what was asked for, and what the folder
 * holds before and after. */
TEST(reads_a_disk)
{
  char dir[] = "/tmp/sluice-doctor-XXXXXX", below[64];
  struct doctor_disk disk = {.dir = below}, short_one = {.dir = dir}, proc = {.dir = "/proc"};
  assert_non_null(mkdtemp(dir));
  snprintf(below, sizeof below, "%s/a/b", dir);
  doctor_disk_read(9 << 20, 60, &disk);
  assert_string_equal(disk.failure, "");
  assert_int_equal(disk.written, 8 << 20); /* whole pieces of 4 MiB */
  assert_true(disk.seconds > 0 && disk.system.free > 0 && disk.system.size >= disk.system.free &&
              *disk.system.type);
  doctor_disk_read(1 << 30, 1e-9, &short_one);
  assert_int_equal(short_one.written, 4 << 20); /* the first piece shows that time is up */
  assert_int_equal(rmdir(dir), 0);              /* nothing was left in it */
  doctor_disk_read(9 << 20, 60, &proc);
  assert_non_null(strstr(proc.failure, "use a folder that you may write"));
}

/* --- launchers ----------------------------------------------------------- */

static void check_launcher(const char *given, const char *expected)
{
  char environment[256], text[64], *next = NULL;
  snprintf(environment, sizeof environment, "%s", given);
  assert_int_equal(clearenv(), 0);
  for (char *word = strtok_r(environment, " ", &next); word; word = strtok_r(NULL, " ", &next))
    assert_int_equal(putenv(word), 0);
  const struct launch launch = launch_read();
  snprintf(text, sizeof text, "%s %ld %lld %s", launch.launched ? "launched" : "alone",
           (long)launch.rank, (long long)launch.tasks, launch.told_by ? launch.told_by : "-");
  assert_int_equal(clearenv(), 0);
  assert_string_equal(text, expected);
}

/* The last test, because it clears the environment. */
TEST(launchers)
{
  each("launchers", check_launcher);
}

TEST_MAIN(NULL, NULL)
