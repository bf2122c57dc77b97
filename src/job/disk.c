/* The folder for data on NVMe (TIER_DISK): the deck's, or one in run.dir if that is on the node's
 * own disk. */
#include "base/log.h"
#include "base/mem.h"
#include "io/store/store.h"
#include "io/text/file.h"
#include "io/text/file_system.h"
#include "job/private.h"

char *job_nvme_folder(const struct deck *deck)
{
  return *deck->tiers.nvme ? mem_strdup(deck->tiers.nvme) : mem_printf("%s/nvme", deck->run.dir);
}

bool job_uses_disk(const struct deck *deck)
{
  struct deck_pattern pattern;
  return (deck->optim.state == DECK_STATE_NVME && deck->optim.state_share > 0) ||
         (deck_feedback(deck) && deck->tiers.residual == DECK_RESIDUAL_NVME) ||
         (deck_parse_activations(deck->tiers.activations, deck->model.layers, &pattern) &&
          deck_keeps(&pattern, KEEP_INPUT_NVME));
}

static bool is_one_node(const struct job *job)
{
  return comm_local_ranks(job->comm) == comm_ranks(job->comm);
}

/* The default is refused if run.dir is on a file system that all nodes share, and no key names a
 * disk of each node. */
static enum status check_default(const struct job *job, const struct file_system *system)
{
  static const char cure[] =
      "set tiers.nvme to a folder on the node's own disk, such as $SLURM_TMPDIR or /local/scratch";
  if (!is_one_node(job))
    return status_usage("activations, optimizer state or residuals go to NVMe, but tiers.nvme "
                        "names no folder, and all nodes would use the default %s: %s",
                        job->nvme, cure);
  if (system->reach == REACH_SHARED)
    return status_usage("activations, optimizer state or residuals go to NVMe, but tiers.nvme "
                        "names no folder, and the default %s is on %s, which nodes share: %s",
                        job->nvme, system->type, cure);
  if (system->reach == REACH_UNKNOWN && comm_rank(job->comm) == 0) {
    status_usage("NVMe data go to %s, whose file system (%s) may not be local to the node: %s",
                 job->nvme, system->type, cure);
    log_warn("%s", status_text());
  }
  return STATUS_OK;
}

/* A folder that the user named is used, with a warning. */
static void warn_shared(const struct job *job, const struct file_system *system)
{
  if (system->reach != REACH_SHARED || comm_rank(job->comm) != 0)
    return;
  status_usage("tiers.nvme (%s) is %s, on %s, which nodes share: every step waits for it; a folder "
               "on a disk of the node is faster",
               options_where(job->deck->set, "tiers.nvme"), job->nvme, system->type);
  log_warn("%s", status_text());
}

/* A larger disk would not help if the folder cannot be made. One rank per node tests the
 * permissions of all ranks of the node. */
enum status job_check_disk(const struct job *job, struct job_limits *out)
{
  struct file_system system;
  enum status status = file_system_read(job->nvme, &system);
  if (!status && !*job->deck->tiers.nvme)
    status = check_default(job, &system);
  else if (!status)
    warn_shared(job, &system);
  if (!status && comm_local_rank(job->comm) == 0)
    status = store_check_folder(job->nvme);
  if (status)
    return status;
  out->disk = system.free;
  out->disk_shared = system.reach == REACH_SHARED;
  out->no_folder = !file_exists(job->nvme);
  return STATUS_OK;
}

void job_look_at_disk(const struct job *job, struct job_limits *out)
{
  struct file_system system;
  const bool found = job->nvme && !file_system_read(job->nvme, &system),
             named = *job->deck->tiers.nvme;
  const bool may = found && (named || (is_one_node(job) && system.reach != REACH_SHARED));
  out->disk = may ? system.free : 0;
  out->disk_shared = may && system.reach == REACH_SHARED;
}
