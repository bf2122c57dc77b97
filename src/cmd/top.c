/* sluice top: a running job in a terminal, from the files of its run folder alone. */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "base/append.h"
#include "base/mem.h"
#include "base/printable.h"
#include "cmd/cmd.h"
#include "cmd/records.h"
#include "io/text/file.h"
#include "plan/plan.h"

struct values {
  double interval;
  bool once;
};

// clang-format off: one row an option
static const struct option table[] = {
    {"interval", OPTION_REAL, AT(interval), "1", .least = 0.1, .most = 3600, .unit = "s",
     .text = "Time between two frames."},
    {"once", OPTION_BOOL, AT(once), "false",
     .text =
         "Print one frame without escape codes, and leave. So does output that is no terminal."},
    {.name = NULL},
};
// clang-format on

/* --- the records ---------------------------------------------------------------------------- */

enum { RECENT = 20, TEXT_BYTES = 256 };

/* Times are in seconds since 1970, 0: none. Numbers that no record has are NAN. */
struct state {
  double start_time, last_time, event_time;
  int64_t steps, step, tokens, ranks;
  double loss, norm, lr, rate, mfu;
  double recent[RECENT]; /* seconds of the last steps, a ring */
  int64_t counted;
  double host, host_peak, gpu, gpu_peak, planned[TIER_COUNT];
  double val_loss, best_loss;
  int64_t val_step, best_step;
  double slowest_s, fastest_s;
  int64_t slowest, fastest;
  char lanes[TEXT_BYTES], hosts[TEXT_BYTES], place[TEXT_BYTES], event[TEXT_BYTES];
  char end[16], reason[TEXT_BYTES]; /* end "": the run has not ended */
};

static void clear(struct state *state)
{
  *state = (struct state){.loss = NAN,
                          .norm = NAN,
                          .lr = NAN,
                          .rate = NAN,
                          .mfu = NAN,
                          .host = NAN,
                          .host_peak = NAN,
                          .gpu = NAN,
                          .gpu_peak = NAN,
                          .val_loss = NAN,
                          .best_loss = NAN,
                          .slowest_s = NAN,
                          .fastest_s = NAN};
  for (int tier = 0; tier < TIER_COUNT; tier++)
    state->planned[tier] = NAN;
}

static void __attribute__((format(printf, 3, 4)))
set_event(struct state *state, const struct json_node *record, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  vsnprintf(state->event, sizeof state->event, format, args);
  va_end(args);
  state->event_time = record_real(record, "time");
}

static void take_hosts(struct state *state, const struct json_node *record)
{
  const struct json_node *list = json_find_said(record, "hosts");
  const char *name = "";
  *state->hosts = '\0';
  if (!list || json_kind(list) != JSON_ARRAY)
    return;
  if (json_length(list) > 4) {
    snprintf(state->hosts, sizeof state->hosts, "%lld hosts", (long long)json_length(list));
    return;
  }
  for (const struct json_node *n = json_first(list); n; n = json_next(n))
    if (json_kind(n) == JSON_STRING && !json_get_text(n, &name, NULL))
      append_text(state->hosts, sizeof state->hosts, "%s%s", *state->hosts ? ", " : "", name);
}

static void take_start(struct state *state, const struct json_node *record)
{
  state->start_time = record_real(record, "time");
  state->steps = record_whole(record, "steps");
  state->step = record_whole(record, "step");
  state->ranks = record_whole(record, "ranks");
  state->counted = 0;
  *state->end = *state->lanes = '\0';
  state->slowest_s = state->fastest_s = NAN;
  take_hosts(state, record);
  snprintf(state->place, sizeof state->place, "%s, %s", record_text(record, "device"),
           record_text(record, "compute"));
  for (int tier = 0; tier < TIER_COUNT; tier++) {
    char key[48];
    snprintf(key, sizeof key, "planned_%s_bytes", plan_tier_name((enum plan_tier)tier));
    state->planned[tier] = record_real(record, key);
  }
  if (state->step > 0)
    set_event(state, record, "continued from step %lld", (long long)state->step);
  else
    set_event(state, record, "started");
}

static void take_step(struct state *state, const struct json_node *record)
{
  const double seconds = record_real(record, "seconds");
  state->step = record_whole(record, "step");
  state->tokens = record_whole(record, "tokens");
  state->loss = record_real(record, "loss");
  state->norm = record_real(record, "grad_norm");
  state->lr = record_real(record, "lr");
  state->rate = record_real(record, "tokens_per_s");
  state->mfu = record_real(record, "mfu");
  state->host = record_real(record, "host_bytes");
  state->host_peak = record_real(record, "host_peak_bytes");
  state->gpu = record_real(record, "device_bytes");
  state->gpu_peak = record_real(record, "device_peak_bytes");
  *state->end = '\0';
  if (isfinite(seconds))
    state->recent[state->counted++ % RECENT] = seconds;
  if (!isfinite(state->loss) || !isfinite(state->norm))
    set_event(state, record, "step %lld is not finite", (long long)state->step);
}

static void take_evaluation(struct state *state, const struct json_node *record)
{
  state->val_loss = record_real(record, "loss");
  state->val_step = record_whole(record, "step");
  if (isfinite(state->val_loss) && !(state->best_loss <= state->val_loss)) {
    state->best_loss = state->val_loss;
    state->best_step = state->val_step;
  }
  set_event(state, record, "validated after step %lld", (long long)state->val_step);
}

static void take_lanes(struct state *state, const struct json_node *record)
{
  const struct json_node *node = json_first(json_find_said(record, "busy"));
  double share = 0;
  *state->lanes = '\0';
  for (; node; node = json_next(node))
    if (json_key(node, NULL) && json_kind(node) == JSON_NUMBER && !json_get_real(node, &share))
      append_text(state->lanes, sizeof state->lanes, "%s%s %.0f %%", *state->lanes ? ", " : "",
                  json_key(node, NULL), 100 * share);
  state->slowest = record_whole(record, "slowest_rank");
  state->fastest = record_whole(record, "fastest_rank");
  state->slowest_s = record_real(record, "slowest_seconds");
  state->fastest_s = record_real(record, "fastest_seconds");
}

static void take_end(struct state *state, const struct json_node *record)
{
  snprintf(state->end, sizeof state->end, "%s", record_text(record, "end"));
  snprintf(state->reason, sizeof state->reason, "%s", record_text(record, "reason"));
}

static enum status take_record(void *arg, const struct json_node *record)
{
  struct state *state = arg;
  const char *kind = record_text(record, "kind");
  const double time = record_real(record, "time");
  if (!record)
    clear(state);
  if (isfinite(time))
    state->last_time = time;
  if (!strcmp(kind, "start"))
    take_start(state, record);
  else if (!strcmp(kind, "step"))
    take_step(state, record);
  else if (!strcmp(kind, "eval"))
    take_evaluation(state, record);
  else if (!strcmp(kind, "lanes"))
    take_lanes(state, record);
  else if (!strcmp(kind, "save"))
    set_event(state, record, "saved step %lld, steps waited %.2f s",
              (long long)record_whole(record, "step"), record_real(record, "blocked_seconds"));
  else if (!strcmp(kind, "run"))
    take_end(state, record);
  return STATUS_OK;
}

/* --- a frame -------------------------------------------------------------------------------- */

enum { BAR = 32, COLUMNS = 80 };

/* A line ends with `end`, which erases the rest of an older one. A line of a terminal is cut. */
struct frame {
  FILE *to;
  const char *end;
};

static void __attribute__((format(printf, 2, 3)))
put_line(const struct frame *frame, const char *format, ...)
{
  char text[1024] = "";
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  printable_make(text, sizeof text);
  size_t most = *frame->end ? COLUMNS - 1 : sizeof text - 1;
  while (most > 0 && (text[most] & 0xc0) == 0x80) /* in the middle of a letter */
    most--;
  text[most] = '\0';
  fprintf(frame->to, "%s%s\n", text, frame->end);
}

/* Records may hold any number. "-": longer than any run. */
static struct clock_text {
  char text[48];
} clock_text(double seconds)
{
  struct clock_text out = {"-"};
  if (!(seconds < 1e9))
    return out;
  const long long s = llround(fmax(seconds, 0));
  snprintf(out.text, sizeof out.text, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
  return out;
}

/* A number in `format`, or with its exponent if it is too large for a column; "-" for NAN. */
static struct number_text {
  char text[48];
} number_text(const char *format, double value)
{
  struct number_text out;
  if (isfinite(value))
    snprintf(out.text, sizeof out.text, fabs(value) < 1e12 ? format : "%.3g", value);
  else
    snprintf(out.text, sizeof out.text, "-");
  return out;
}

static double mean_step(const struct state *state)
{
  const int64_t n = state->counted < RECENT ? state->counted : RECENT;
  double sum = 0;
  for (int64_t i = 0; i < n; i++)
    sum += state->recent[i];
  return n > 0 ? sum / (double)n : NAN;
}

static void put_head(const struct frame *frame, const char *dir, const struct state *state,
                     double now)
{
  const double age = now - state->last_time;
  const double patience = fmax(60, 10 * (state->counted > 0 ? mean_step(state) : 0));
  if (*state->end)
    put_line(frame, "%s: %s (%s)", dir, state->end, state->reason);
  else if (!(state->last_time > 0))
    put_line(frame, "%s: no record with a time yet", dir);
  else if (age > patience)
    put_line(frame, "%s: no record for %s s", dir, number_text("%.0f", age).text);
  else
    put_line(frame, "%s: running, last record %.0f s ago", dir, fmax(age, 0));
}

static void put_progress(const struct frame *frame, const struct state *state)
{
  const double done = state->steps > 0 ? (double)state->step / (double)state->steps : 0;
  const int full = (int)(BAR * fmin(done, 1));
  char bar[BAR + 1] = "";
  if (state->steps == 0) {
    put_line(frame, "step %lld", (long long)state->step);
    return;
  }
  memset(bar, '-', BAR);
  memset(bar, '#', (size_t)full);
  char left[64] = "";
  if (!*state->end && isfinite(mean_step(state)))
    snprintf(left, sizeof left, "  ETA %s",
             clock_text((double)(state->steps - state->step) * mean_step(state)).text);
  put_line(frame, "[%s] %5.1f %%  step %lld/%lld%s", bar, 100 * done, (long long)state->step,
           (long long)state->steps, left);
}

static void put_numbers(const struct frame *frame, const struct state *state, double now)
{
  const double until = *state->end ? state->last_time : now;
  const double seconds = state->start_time > 0 ? until - state->start_time : NAN;
  put_line(frame, "  %-13s%-16s%-13s %s", "loss", number_text("%.4f", state->loss).text,
           "learning rate", number_text("%.2e", state->lr).text);
  put_line(frame, "  %-13s%-16s%-13s %s", "norm", number_text("%.3f", state->norm).text, "MFU",
           number_text("%.1f %%", 100 * state->mfu).text);
  put_line(frame, "  %-13s%-16s%-13s %s", "tokens/s", number_text("%.0f", state->rate).text,
           "step time", number_text("%.3f s", mean_step(state)).text);
  put_line(frame, "  %-13s%-16lld%-13s %s", "tokens", (long long)state->tokens,
           *state->end ? "ran for" : "running for", clock_text(seconds).text);
  if (state->val_step > 0)
    put_line(frame, "  %-13s%s at step %lld, best %s at step %lld", "validation",
             number_text("%.4f", state->val_loss).text, (long long)state->val_step,
             number_text("%.4f", state->best_loss).text, (long long)state->best_step);
}

static void put_memory(const struct frame *frame, const struct state *state)
{
  static const char *const names[TIER_COUNT] = {[TIER_DEVICE] = "device",
                                                [TIER_HOST] = "host",
                                                [TIER_SHARED] = "shared",
                                                [TIER_DISK] = "NVMe"};
  char plan[TEXT_BYTES] = "";
  if (isfinite(state->gpu))
    put_line(frame, "  %-13s%s on rank 0, peak %s", "GPU memory", mem_amount(state->gpu).text,
             mem_amount(state->gpu_peak).text);
  if (isfinite(state->host))
    put_line(frame, "  %-13s%s on rank 0, peak %s", "host memory", mem_amount(state->host).text,
             mem_amount(state->host_peak).text);
  for (int tier = 0; tier < TIER_COUNT; tier++)
    if (state->planned[tier] > 0)
      append_text(plan, sizeof plan, "%s%s %s", *plan ? ", " : "", names[tier],
                  mem_amount(state->planned[tier]).text);
  if (*plan)
    put_line(frame, "  %-13s%s", "planned", plan);
}

static void put_ranks(const struct frame *frame, const struct state *state)
{
  if (*state->lanes)
    put_line(frame, "  %-13s%s", "lanes busy", state->lanes);
  if (state->ranks > 1 && state->fastest_s > 0)
    put_line(frame, "  %-13srank %lld computes %s longer than rank %lld", "slowest",
             (long long)state->slowest,
             number_text("%.1f %%", 100 * (state->slowest_s / state->fastest_s - 1)).text,
             (long long)state->fastest);
  if (state->ranks > 0)
    put_line(frame, "  %-13s%lld on %s (%s)", "ranks", (long long)state->ranks, state->hosts,
             state->place);
}

static void put_frame(const struct frame *frame, const char *dir, const struct state *state)
{
  struct timespec clock;
  clock_gettime(CLOCK_REALTIME, &clock); /* cannot fail with this clock */
  const double now = (double)clock.tv_sec + 1e-9 * (double)clock.tv_nsec;
  put_head(frame, dir, state, now);
  put_progress(frame, state);
  put_numbers(frame, state, now);
  put_memory(frame, state);
  put_ranks(frame, state);
  if (*state->event && state->event_time > 0)
    put_line(frame, "  %-13s%s, %s ago", "last event", state->event,
             clock_text(now - state->event_time).text);
}

/* --- the terminal --------------------------------------------------------------------------- */

static volatile sig_atomic_t stopped;

static void stop(int signal)
{
  (void)signal;
  stopped = 1;
}

/* Keys are read at once, and are not shown. */
static bool take_keys(struct termios *before)
{
  struct termios now;
  if (!isatty(STDIN_FILENO) || tcgetattr(STDIN_FILENO, before) != 0)
    return false;
  now = *before;
  now.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
  return tcsetattr(STDIN_FILENO, TCSANOW, &now) == 0;
}

/* Waits for the interval. False if q was pressed. */
static bool wait_for_key(bool keys, double seconds)
{
  struct pollfd key = {.fd = STDIN_FILENO, .events = POLLIN};
  char c = '\0';
  if (poll(&key, keys, (int)(1e3 * seconds)) > 0 && read(STDIN_FILENO, &c, 1) == 1)
    return c != 'q' && !stopped;
  return !stopped;
}

static enum status watch(const char *dir, const char *results, const struct values *values)
{
  static const char home[] = "\033[H", rest[] = "\033[J", hide[] = "\033[?25l\033[2J",
                    show[] = "\033[?25h";
  const struct frame frame = {stdout, "\033[K"};
  struct sigaction action = {.sa_handler = stop};
  struct records records = {0};
  struct state state;
  struct termios before;
  enum status status = STATUS_OK;
  clear(&state);
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  const bool keys = take_keys(&before);
  fputs(hide, stdout);
  for (bool go = true; go && !status;) {
    status = records_read(results, &records, take_record, &state);
    if (status)
      break;
    fputs(home, stdout);
    put_frame(&frame, dir, &state);
    fputs(rest, stdout);
    fflush(stdout);
    go = !*state.end && wait_for_key(keys, values->interval);
  }
  fputs(show, stdout);
  fflush(stdout);
  if (keys)
    tcsetattr(STDIN_FILENO, TCSANOW, &before);
  return status;
}

static enum status print_once(const char *dir, const char *results)
{
  const struct frame frame = {stdout, ""};
  struct records records = {0};
  struct state state;
  clear(&state);
  const enum status status = records_read(results, &records, take_record, &state);
  if (!status)
    put_frame(&frame, dir, &state);
  return status;
}

static enum status run(const struct arguments *arguments)
{
  const struct values *values = arguments->values;
  const char *dir = arguments->word[0];
  char *results = mem_printf("%s/results.jsonl", dir);
  enum status status = results ? STATUS_OK : STATUS_MEMORY;
  if (!status && !file_is_folder(dir))
    status = status_set(STATUS_INPUT, "there is no folder %s", dir);
  if (!status && !file_exists(results))
    status = status_set(STATUS_INPUT, "%s holds no results.jsonl: name the folder of a run", dir);
  if (!status)
    status = values->once || !isatty(STDOUT_FILENO) ? print_once(dir, results)
                                                    : watch(dir, results, values);
  mem_free(results);
  return status;
}

const struct command command_top = {
    .name = "top",
    .usage = "RUN [--once] [interval=SECONDS]",
    .summary = "watch a run in a terminal",
    .text =
        "Shows a run while it trains: progress, time left, loss, speed, memory, how busy lanes "
        "are, the slowest rank and the last event. It only reads results.jsonl in the run "
        "folder, so it needs no contact with the job and does not slow it down. It works on any "
        "host that sees the folder.\n"
        "\n"
        "q or Ctrl-C leaves. When the run ends, the last frame stays and the command leaves. A run "
        "that was killed has no end in its records: the first line then says for how long there "
        "was no record.",
    .examples = "  sluice top runs/quickstart\n"
                "  sluice top runs/quickstart --once\n"
                "  sluice top runs/quickstart interval=10\n",
    .options = table,
    .values_size = sizeof(struct values),
    .least_words = 1,
    .most_words = 1,
    .run = run,
};
