/* A report of runs: the data of results.jsonl of each run, and one HTML page about all of them.
 * Private to src/cmd/report*.c. */
#ifndef SLUICE_CMD_REPORT_H
#define SLUICE_CMD_REPORT_H

#include <stdio.h>

#include "cmd/cmd.h"
#include "train/stats.h"

/* Numbers of a run. A number that the records do not have is NAN. Times are means per step. */
enum report_value {
  VALUE_STEPS,
  VALUE_TOKENS,
  VALUE_TOKENS_PER_S,
  VALUE_STEP_MS,
  VALUE_P50_MS,
  VALUE_P95_MS,
  VALUE_TRAIN_LOSS,
  VALUE_VAL_STEP,
  VALUE_VAL_LOSS,
  VALUE_BEST_LOSS,
  VALUE_VAL_PPL,
  VALUE_BEST_PPL,
  VALUE_RATIO, /* bytes in fp32 / bytes of messages */
  VALUE_SENT,  /* bytes of messages per rank and step */
  VALUE_SAVED, /* bytes that the codec saved, per rank and step */
  VALUE_ERROR, /* relative error of encoded gradients */
  VALUE_ENCODE_MS,
  VALUE_DECODE_MS,
  VALUE_CODEC_MS,   /* both */
  VALUE_COMM_MS,    /* communication, next to computing or not */
  VALUE_COMM_SHARE, /* of the step */
  VALUE_OVERLAP,    /* share of communication that runs next to computing */
  VALUE_EXPOSED_MS, /* communication while nothing computes */
  VALUE_BUSY_SHARE, /* of the step in which the compute lane runs: from traced steps only */
  VALUE_BREAK_EVEN, /* bytes/s, VALUE_SAVED / VALUE_CODEC_MS */
  VALUE_MEMORY,     /* bytes: the peak of a rank */
  VALUE_PPL_CHANGE, /* relative to the uncompressed runs */
  VALUE_STEP_CHANGE,
  VALUES
};

/* A series of at most SERIES_POINTS points. If it gets longer, neighbours are joined in pairs,
 * which keeps the least value, the largest value and the mean. */
struct report_point {
  double step, seconds; /* of the first value that was joined; seconds: sum of step times so far */
  double low, high;     /* NAN: no finite value */
  double sum;           /* of the finite ones */
  int64_t finite;
};
enum { SERIES_POINTS = 512 };
struct report_series {
  int64_t n, room, joined; /* joined: values per point, but fewer in the last one */
  int64_t last;            /* values in the last point */
  struct report_point *point;
};
/* Add a value. `value` may be NAN. STATUS_MEMORY. Local. */
enum status series_add(struct report_series *series, double step, double seconds, double value);

enum report_curve {
  CURVE_LOSS,
  CURVE_VAL,
  CURVE_LR,
  CURVE_NORM,
  CURVE_RATE,
  CURVE_MFU,     /* percent */
  CURVE_HOST,    /* 1e9 bytes, of rank 0 */
  CURVE_DEVICE,  /* likewise */
  CURVE_COMPUTE, /* percent of the step in which the compute lane of rank 0 works */
  CURVE_ERROR,   /* mean over the units that are encoded */
  CURVES
};

/* The count of each event, and its first steps. */
enum report_event { EVENT_START, EVENT_SAVE, EVENT_EVAL, EVENT_NONFINITE, EVENTS };
enum { EVENT_STEPS = 8 };
struct report_events {
  int64_t n, step[EVENT_STEPS];
  double seconds;
};

/* Texts of the start and run records, such as the version. */
enum { REPORT_FACTS = 14 };
struct report_fact {
  const char *key, *name;
};
extern const struct report_fact report_facts[REPORT_FACTS];

/* Time of communication by operation, as recorded. Only the shares count. */
enum { REPORT_OPS = 12 };
struct report_op {
  char name[32];
  double time;
};

struct report_run {
  char *path, *name, *deck_text; /* deck_text: NULL without deck.yaml */
  char **key;  /* values of all deck keys as deck_table has them; NULL: not known */
  bool nested; /* in a folder of sluice compare */
  double value[VALUES];
  struct report_series curve[CURVES];
  struct report_events event[EVENTS];
  char *fact[REPORT_FACTS]; /* NULL: not recorded */
  char end[16];             /* of the last run record; "": steps follow it, or there is none */
  int ops;
  struct report_op op[REPORT_OPS];
  int64_t ranks, seed, skipped;          /* ranks 0: not known */
  int64_t lines, damaged, first_damaged; /* lines of the file, from 1 */
  bool torn;                             /* the last line has no end */
  char *deck_failure;                    /* why deck.yaml cannot be used; NULL: it can */
  int group;
};

/* Runs that differ only in seed and folder. */
struct report_group {
  char *label;
  int first, runs, finished;
  int base; /* group of the same runs without codec, -1: none */
  struct stats_sample sample[VALUES];
};

struct report {
  int64_t warmup;
  int runs, groups;
  int64_t run_room, group_room;
  struct report_run *run;
  struct report_group *group;
};

/* Add the runs of a folder: itself, or its subfolders. STATUS_INPUT: no results.jsonl there. Lines
 * that are damaged are counted and left out. Local. */
enum status report_read(struct report *report, const char *path);
void report_free(struct report *report); /* takes a zeroed one */

/* After all runs are read: groups, their means, and the differences to uncompressed runs. Local. */
enum status report_group_runs(struct report *report);
/* Whether two runs have the same deck apart from seed, folder and, if `but_codec`, compress.*. */
bool report_same_deck(const struct report_run *a, const struct report_run *b, bool but_codec);
/* Whether the deck names a codec. Local. */
bool report_has_codec(const struct report_run *run);

/* A column of a table: a number of the group, and how it is printed. */
enum report_unit { UNIT_COUNT, UNIT_REAL, UNIT_BYTES, UNIT_RATE, UNIT_SHARE, UNIT_CHANGE };
struct report_column {
  enum report_value value;
  enum report_unit unit;
  int digits;
  const char *name, *text; /* text: explanation */
};
/* A number as text, without a unit except bytes and percent. "-" for NAN. */
struct report_number {
  char text[48];
} report_number(const struct report_column *column, double value);

/* Charts as inline SVG. The name space counts if the page is read as XML. */
#define SVG "<svg xmlns=\"http://www.w3.org/2000/svg\" "
enum chart_kind { CHART_LINES, CHART_DOTS, CHART_BARS };
enum { CHART_STYLES = 21, CHART_PARTS = 4 };
struct chart_row {
  const char *label;
  int style; /* colour and dashes, the place in the legend */
  bool thin; /* one of several runs */
  int64_t n;
  const struct report_point *point; /* bars: `high` is the length of a part. dots: one point, the
                                       bar from low to high is around it, `step` is x */
};
struct chart {
  enum chart_kind kind;
  const char *title, *x_name;
  bool by_time; /* x is in seconds; otherwise it is `step` */
  int rows;
  const struct chart_row *row;
};
/* Nothing is printed if there is no finite number. Local. */
void chart_print(const struct chart *chart, FILE *to);

/* Notes that a reader must know about the records of a run: a damaged line, no steps. At most
 * REPORT_NOTES sentences. Returns their number. Local. */
enum { REPORT_NOTES = 4 };
struct report_note {
  char text[1024];
};
int report_notes(const struct report_run *run, struct report_note note[REPORT_NOTES]);

/* Text as XML. Characters that XML cannot contain become U+FFFD. Local. */
void page_text(const char *text, FILE *to);
/* The whole page, well-formed as XML as well. The caller asks the stream for errors. STATUS_MEMORY.
 * Local. */
enum status page_print(const struct report *report, FILE *to);

#endif
