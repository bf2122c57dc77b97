/* Decides when a run must save and leave, from its limits and its costs. */
#include "train/stop.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/open.h"
#include "base/printable.h"
#include "deck/options.h"

/* --- the end of the job -------------------------------------------------- */

double stop_lead(const struct stop_costs *costs)
{
  return 1.25 * (costs->due_s + costs->step_s + costs->save_s) + STOP_MARGIN_S;
}

double stop_guess_save(int64_t bytes, int nodes)
{
  return 1 + (double)bytes / fmin(0.5e9 * nodes, 4e9);
}

enum status stop_find_end(const char *text, double now, double *out)
{
  double end = INFINITY;
  if (text && *text) {
    int64_t told;
    if (!options_parse_whole(text, 0, INT64_MAX, &told))
      return status_usage("SLURM_JOB_END_TIME is '%s', which is no time in seconds since 1970: "
                          "correct it, or unset it",
                          text);
    if ((double)told > now)
      end = (double)told;
    else
      log_warn("SLURM_JOB_END_TIME is %s, which is past: the run does not know when its job ends",
               text);
  }
  *out = end;
  return STATUS_OK;
}

/* --- the file ------------------------------------------------------------ */

/* The first line of a regular file. A STOP of another kind gives no reason. */
static void read_reason(const char *path, char *out, size_t room)
{
  int fd = -1;
  const ssize_t n = open_regular(path, OPEN_OWN, &fd) ? 0 : read(fd, out, room - 1);
  if (fd >= 0)
    close(fd);
  out[n > 0 ? n : 0] = '\0';
  out[strcspn(out, "\r\n")] = '\0';
  printable_make(out, room);
}

void stop_file_drop(const struct stop_file *file)
{
  struct stat info;
  if (lstat(file->path.text, &info) == 0 && remove(file->path.text) == 0)
    log_warn("%s was there before this start: it is removed, and the run goes on", file->path.text);
}

bool stop_file_take(struct stop_file *file, double now_s)
{
  if (now_s < file->next_s)
    return false;
  file->next_s = now_s + 1;
  struct stat info;
  if (lstat(file->path.text, &info) != 0)
    return false;
  read_reason(file->path.text, file->reason, sizeof file->reason);
  if (remove(file->path.text) != 0)
    log_warn("%s cannot be removed, so the next start will stop at once: %s", file->path.text,
             strerror(errno));
  return true;
}
