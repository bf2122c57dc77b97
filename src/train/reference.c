/* A resumed run reads the file, because its parameters are no longer those of the reference. */
#include "train/reference.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "io/text/file.h"
#include "io/tokens/reference.h"

static const char *const names[] = {[SPLIT_TRAIN] = "train", [SPLIT_VAL] = "val"};

struct file_path reference_path(const struct deck *deck)
{
  return file_path(deck->run.dir, "reference.h5");
}

static int64_t count_rows(const struct data_sources *data)
{
  int64_t rows = 0;
  for (int s = 0; s < data->n; s++)
    rows += data->of[s].rows;
  return rows;
}

static enum status make_room(struct data_sources *data)
{
  enum status status = STATUS_OK;
  for (int s = 0; s < data->n && !status; s++)
    if (!data->of[s].reference)
      status = mem_new(MEM_DATA, data->of[s].rows, &data->of[s].reference);
  return status;
}

/* The references of all sources, one after another, to or from `row`. */
static void move(const struct data_sources *data, bool out, double *row)
{
  for (int s = 0; s < data->n; row += data->of[s++].rows)
    for (int64_t r = 0; r < data->of[s].rows; r++)
      *(out ? &row[r] : &data->of[s].reference[r]) = *(out ? &data->of[s].reference[r] : &row[r]);
}

enum status reference_make(struct evaluator *evaluator, struct data_sources *data)
{
  struct data_scan *scan = &evaluator->scan;
  double *score = NULL;
  enum status status = comm_agree(evaluator->job->comm,
                                  make_room(data) ?: mem_new(MEM_DATA, count_rows(data), &score));
  if (status)
    return status;
  const struct data_sources own = scan->data; /* may be `data` itself */
  scan->data = *data;
  scan->most = 0;
  evaluator_score(evaluator, score);
  scan->data = own;
  const double *row = score;
  for (int s = 0; s < data->n; row += data->of[s++].rows)
    for (int64_t r = 0; r < data->of[s].rows; r++)
      data->of[s].reference[pack_place(data->of[s].pack, r)] = row[r];
  mem_free(score);
  return STATUS_OK;
}

static struct reference_part part_of(enum token_split split, const struct data_sources *data)
{
  const struct token_stream stream = data_stream(data);
  const int64_t words[] = {stream.tokens, stream.crc32};
  struct reference_part part = {names[split], hash_bytes(HASH_START, words, sizeof words), 0, NULL};
  for (int s = 0; s < data->n; s++)
    part.of = hash_bytes(part.of, &data->of[s].rows, sizeof data->of[s].rows);
  part.rows = count_rows(data);
  return part;
}

/* Rank 0. */
static enum status write(const struct deck *deck, const struct data_sources *const data[2])
{
  struct reference_part part[2];
  int n = 0;
  enum status status = STATUS_OK;
  for (int i = 0; i < 2 && !status; i++)
    if (data[i]) {
      part[n] = part_of((enum token_split)i, data[i]);
      status = mem_new(MEM_DATA, part[n].rows, &part[n].row);
      if (!status)
        move(data[i], true, part[n++].row);
    }
  status = status ?: reference_write(reference_path(deck).text, n, part);
  while (n > 0)
    mem_free(part[--n].row);
  return status;
}

enum status reference_keep(struct comm *comm, const struct deck *deck,
                           const struct data_sources *train, const struct data_sources *val)
{
  const struct data_sources *const data[] = {[SPLIT_TRAIN] = train, [SPLIT_VAL] = val};
  return comm_agree(comm, comm_rank(comm) == 0 ? write(deck, data) : STATUS_OK);
}

enum status reference_take(struct comm *comm, const struct deck *deck, enum token_split split,
                           struct data_sources *data)
{
  struct reference_part part = part_of(split, data);
  enum status status = make_room(data) ?: mem_new(MEM_DATA, part.rows, &part.row);
  if (!status && comm_rank(comm) == 0)
    status = reference_read(reference_path(deck).text, &part);
  if (status == STATUS_INPUT)
    status = status_set(status,
                        "%s; make the reference of %s again with `sluice eval %s "
                        "--reference` and the keys of this command",
                        status_text(), options_first(&deck->data.train), deck->run.dir);
  status = comm_agree(comm, status)
               ?: comm_broadcast(comm, part.row, part.rows * (int64_t)sizeof *part.row, 0);
  if (!status)
    move(data, false, part.row);
  mem_free(part.row);
  return status;
}
