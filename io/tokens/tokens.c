/* Reads tokens at the offsets that the index has, or makes them up. */
#include "io/tokens/tokens.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/mem.h"
#include "base/rng.h"
#include "io/text/file.h"
#include "io/tokens/index.h"

enum { OPEN_FILES = 64, PIECE_BYTES = 16 << 10 };

/* A shard that holds tokens. The same on all ranks except `fd` and `known`. */
struct shard {
  int64_t begin;          /* its first token's place in the stream */
  int64_t first_document; /* of those that begin in it: documents that begin in earlier ones */
  struct shard_info info;
  int fd;     /* -1: not open */
  bool known; /* its size and head were checked */
};

struct token_set {
  char *dir;
  struct shard *shards;
  int64_t count, room;
  int64_t text_bytes, untrained, pairs;
  struct token_stream stream;
  int64_t *made; /* without a folder: places of the documents that begin in the stream */
  int64_t documents;
  struct rng_key key;
  struct shard *open[OPEN_FILES]; /* a ring: the oldest is closed */
  int oldest;
  union { /* tokens, or their mask, as they are stored */
    unsigned char bits[PIECE_BYTES];
    uint16_t narrow[PIECE_BYTES / sizeof(uint16_t)];
    uint32_t wide[PIECE_BYTES / sizeof(uint32_t)];
  } piece;
};

/* ---- opening: rank 0 reads the index */

/* Of bytes that follow those of `crc`. */
static void add_sum(uint32_t *crc, uint32_t next, int64_t bytes)
{
  *crc = (uint32_t)crc32_combine(*crc, next, (z_off_t)bytes);
}

/* Adds a shard of the wanted split that holds tokens. `marks`: the sum of the set's marks. */
static enum status add_shard(struct token_set *set, enum token_split split,
                             const struct shard_info *info, uint32_t *marks)
{
  if (info->split != split || shard_tokens(info) == 0)
    return STATUS_OK;
  const int64_t documents = set->count ? token_set_documents(set) : 0;
  enum status status =
      mem_grow(MEM_DATA, (void **)&set->shards, &set->room, set->count + 1, sizeof *set->shards);
  if (status)
    return status;
  set->shards[set->count++] = (struct shard){
      .begin = set->stream.tokens, .first_document = documents, .info = *info, .fd = -1};
  add_sum(&set->stream.crc32, info->tokens_crc32, shard_tokens(info) * info->token_bytes);
  add_sum(marks, info->marks_crc32, shard_tokens(info));
  set->stream.tokens += shard_tokens(info);
  set->text_bytes += info->text_bytes;
  set->untrained += info->untrained;
  set->pairs += info->pairs;
  return STATUS_OK;
}

static enum status read_index(struct token_set *set, enum token_split split)
{
  struct shard_info *shards = NULL;
  int64_t n = 0;
  uint32_t marks = 0;
  enum status status = shard_index_read(set->dir, &shards, &n);
  for (int64_t i = 0; i < n && !status; i++)
    status = add_shard(set, split, &shards[i], &marks);
  if (!status)
    set->stream.tokenizer = shards->tokenizer;
  add_sum(&set->stream.crc32, marks, set->stream.tokens);
  mem_free(shards);
  return status;
}

static enum status read_folder(struct token_set *set, enum token_split split)
{
  if (!file_exists(set->dir))
    return status_set(STATUS_INPUT,
                      "there is no folder %s%s: make token shards with `sluice prepare`", set->dir,
                      file_base(set->dir).text);
  if (!file_exists(file_path(set->dir, SHARD_INDEX).text))
    return file_exists(shard_path(set->dir, SPLIT_TRAIN, 0, 0).text)
               ? status_set(STATUS_INPUT,
                            "the folder %s has no " SHARD_INDEX
                            ": its preparation was not finished; run the same `sluice prepare` "
                            "again",
                            set->dir)
               : status_set(STATUS_INPUT,
                            "the folder %s holds no token shards: make them with `sluice prepare`",
                            set->dir);
  enum status status = read_index(set, split);
  if (!status && set->stream.tokens == 0)
    status =
        status_set(STATUS_INPUT,
                   "the folder %s holds no tokens of the %s split; prepare the text again with %s",
                   set->dir, split == SPLIT_VAL ? "validation" : "training",
                   split == SPLIT_VAL ? "a larger val, such as val=0.05" : "a smaller val");
  return status;
}

/* ---- opening: all ranks */

/* Broadcasts rank 0's table. Without MPI (a dry run as rank r of P) every rank has read it
 * itself. */
static bool reads_index(struct comm *comm)
{
  return comm_rank(comm) == 0 || !comm_mpi(comm);
}

static enum status share(struct comm *comm, struct token_set *set)
{
  int64_t totals[] = {set->count, set->text_bytes, set->untrained, set->pairs};
  enum status status = comm_broadcast(comm, totals, sizeof totals, 0);
  if (status)
    return status;
  set->count = totals[0];
  set->text_bytes = totals[1];
  set->untrained = totals[2];
  set->pairs = totals[3];
  if (!reads_index(comm))
    status = mem_new(MEM_DATA, set->count, &set->shards);
  return comm_agree(comm, status)
         ?: comm_broadcast(comm, set->shards, set->count * (int64_t)sizeof *set->shards, 0)
         ?: comm_broadcast(comm, &set->stream, sizeof set->stream, 0);
}

enum status token_set_open(struct comm *comm, const char *dir, enum token_split split,
                           struct token_set **out)
{
  struct token_set *set = NULL;
  enum status status = mem_new(MEM_DATA, 1, &set);
  if (!status && !(set->dir = mem_strdup(dir)))
    status = STATUS_MEMORY;
  if (!status && reads_index(comm))
    status = read_folder(set, split);
  status = comm_agree(comm, status) ?: share(comm, set);
  if (status)
    token_set_close(set);
  else
    *out = set;
  return status;
}

enum status token_set_make(const struct token_made *made, struct token_set **out)
{
  const int64_t whole = INT64_C(1) << 32, documents = made->mean > 0 ? TOKENS_MADE : 1;
  const struct rng_key lengths = rng_key_make(made->seed, "lengths");
  struct token_set *set = NULL;
  enum status status = mem_new(MEM_DATA, 1, &set) ?: mem_new(MEM_DATA, documents, &set->made);
  for (int64_t d = 0; d < documents && !status; d++) {
    const double pairs =
        -((double)made->mean - 1) / 2 * log1p(-rng_uniform(lengths, 0, (uint64_t)d));
    set->made[d] = set->stream.tokens;
    set->stream.tokens += made->mean > 0 ? 2 + 2 * (int64_t)pairs : whole;
  }
  if (status) {
    token_set_close(set);
    return status;
  }
  set->documents = documents;
  set->untrained = made->mean > 0 ? set->stream.tokens / 2 : 0;
  set->pairs = made->pairs ? documents / 2 : 0;
  set->stream.tokenizer.vocab = made->vocab;
  set->key = rng_key_make(made->seed, "random tokens");
  *out = set;
  return STATUS_OK;
}

void token_set_close(struct token_set *set)
{
  if (!set)
    return;
  for (int i = 0; i < OPEN_FILES; i++)
    if (set->open[i])
      close(set->open[i]->fd); /* was only read: nothing can be lost */
  mem_free(set->shards);
  mem_free(set->made);
  mem_free(set->dir);
  mem_free(set);
}

enum status token_set_verify(struct comm *comm, const struct token_set *set)
{
  enum status status = STATUS_OK;
  for (int64_t i = comm_rank(comm); i < set->count && !status; i += comm_ranks(comm)) {
    const struct shard_info *info = &set->shards[i].info;
    status = shard_verify(shard_path(set->dir, info->split, info->group, info->part).text, info);
  }
  return comm_agree(comm, status);
}

int64_t token_set_bytes(const struct token_set *set)
{
  return set->text_bytes;
}

struct token_stream token_set_stream(const struct token_set *set)
{
  return set->stream;
}

/* ---- reading */

static const char remake[] =
    "run the same `sluice prepare` again, and leave the folder alone while it is in use";

/* Paths are built on the stack, because a step allocates nothing. */
static enum status __attribute__((format(printf, 4, 5)))
shard_fail(const struct token_set *set, const struct shard *shard, enum status status,
           const char *format, ...)
{
  const struct file_path path =
      shard_path(set->dir, shard->info.split, shard->info.group, shard->info.part);
  char problem[256];
  va_list args;
  va_start(args, format);
  vsnprintf(problem, sizeof problem, format, args);
  va_end(args);
  return status_set(status, "%s %s", path.text, problem);
}

static enum status fail_system(const struct token_set *set, const struct shard *shard, int reason)
{
  return reason == ENOENT
             ? shard_fail(set, shard, STATUS_INPUT, "is missing: %s", remake)
             : shard_fail(set, shard, STATUS_IO, "cannot be opened: %s", strerror(reason));
}

/* Cheap checks: the size, and the bytes of the header, which hold the checksums of the tokens. They
 * detect another shard and a truncated one, without reading tokens. */
static enum status check_shard(const struct token_set *set, const struct shard *shard, int fd)
{
  struct stat info;
  uint32_t head;
  if (fstat(fd, &info) != 0)
    return fail_system(set, shard, errno);
  if ((int64_t)info.st_size != shard->info.bytes)
    return shard_fail(set, shard, STATUS_INPUT,
                      "has %" PRId64 " bytes and should have %" PRId64 ": %s",
                      (int64_t)info.st_size, shard->info.bytes, remake);
  const enum status status = shard_read_head(fd, &head);
  if (status)
    return shard_fail(set, shard, status, "cannot be read");
  if (head != shard->info.head_crc32)
    return shard_fail(set, shard, STATUS_INPUT,
                      "is not the shard that the folder was opened with: %s", remake);
  return STATUS_OK;
}

static enum status open_shard(struct token_set *set, struct shard *shard)
{
  if (shard->fd >= 0)
    return STATUS_OK;
  const struct file_path path =
      shard_path(set->dir, shard->info.split, shard->info.group, shard->info.part);
  int fd = open(path.text, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return fail_system(set, shard, errno);
  enum status status = shard->known ? STATUS_OK : check_shard(set, shard, fd);
  if (status) {
    close(fd);
    return status;
  }
  struct shard **place = &set->open[set->oldest];
  set->oldest = (set->oldest + 1) % OPEN_FILES;
  if (*place) {
    close((*place)->fd);
    (*place)->fd = -1;
  }
  *place = shard;
  shard->fd = fd;
  shard->known = true;
  return STATUS_OK;
}

/* Reads bytes of the shard. */
static enum status read_bytes(struct token_set *set, struct shard *shard, int64_t at, int64_t bytes,
                              void *to)
{
  const enum status status = open_shard(set, shard);
  if (status)
    return status;
  const int64_t got = file_read_at(shard->fd, to, (size_t)bytes, at);
  if (got < 0)
    return shard_fail(set, shard, STATUS_IO, "cannot be read");
  return got == bytes ? STATUS_OK : shard_fail(set, shard, STATUS_INPUT, "is truncated");
}

/* The last shard that begins at token `at` of the stream or before, or at document `at`. */
static struct shard *find_shard(const struct token_set *set, int64_t at, bool document)
{
  int64_t low = 0, high = set->count - 1;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    const struct shard *shard = &set->shards[middle];
    if ((document ? shard->first_document : shard->begin) <= at)
      low = middle;
    else
      high = middle - 1;
  }
  return &set->shards[low];
}

int64_t token_set_windows(const struct token_set *set, int64_t T)
{
  return T > 0 ? (set->stream.tokens - 1) / T : 0;
}

int64_t token_set_documents(const struct token_set *set)
{
  if (set->made)
    return set->documents;
  const struct shard *last = &set->shards[set->count - 1];
  return last->first_document + last->info.documents;
}

bool token_set_has_pairs(const struct token_set *set)
{
  return set->pairs > 0;
}

int64_t token_set_untrained(const struct token_set *set)
{
  return set->untrained;
}

/* A table of the documents of a shard rises, from its first token on. */
static enum status read_table(struct token_set *set, struct shard *shard, int64_t d, int64_t n,
                              int64_t *first)
{
  const enum status status =
      read_bytes(set, shard, shard->info.documents_at + d * (int64_t)sizeof *first,
                 n * (int64_t)sizeof *first, first);
  for (int64_t i = 0; i < n && !status; i++) {
    if ((uint64_t)first[i] >= (uint64_t)shard_tokens(&shard->info))
      return shard_fail(set, shard, STATUS_INPUT,
                        "is damaged: one of its documents begins after its end; prepare the data "
                        "again");
    first[i] += shard->begin;
  }
  return status;
}

enum status token_set_read_documents(struct token_set *set, int64_t d, int64_t n, int64_t *first)
{
  if (d < 0 || n < 0 || d > token_set_documents(set) - n)
    return status_set(STATUS_INTERNAL,
                      "documents %" PRId64 " to %" PRId64 " of %" PRId64 " are asked for", d,
                      d + n - 1, token_set_documents(set));
  if (set->made)
    memcpy(first, set->made + d, (size_t)n * sizeof *first);
  enum status status = STATUS_OK;
  for (int64_t i = 0, piece; i < n && !set->made && !status; i += piece) {
    struct shard *shard = find_shard(set, d + i, true);
    const int64_t at = d + i - shard->first_document, left = shard->info.documents - at;
    piece = n - i < left ? n - i : left;
    status = read_table(set, shard, at, piece, first + i);
  }
  return status;
}

/* Tokens [from, from + n) of the shard, at most a piece of them. */
static enum status read_tokens(struct token_set *set, struct shard *shard, int64_t from, int64_t n,
                               int32_t *out)
{
  const int size = shard->info.token_bytes;
  const enum status status =
      read_bytes(set, shard, shard->info.tokens_at + from * size, n * size, &set->piece);
  for (int64_t i = 0; i < n && !status; i++) {
    const uint32_t token = size == 2 ? set->piece.narrow[i] : set->piece.wide[i];
    if (token >= set->stream.tokenizer.vocab)
      return shard_fail(set, shard, STATUS_INPUT,
                        "is damaged: it holds a token that its vocabulary does not have; prepare "
                        "the data again");
    out[i] = (int32_t)token;
  }
  return status;
}

/* Their mask. */
static enum status read_trained(struct token_set *set, struct shard *shard, int64_t from, int64_t n,
                                uint8_t *out)
{
  enum status status = STATUS_OK;
  if (shard->info.untrained)
    status = read_bytes(set, shard, shard->info.trained_at + from / 8,
                        (from + n - 1) / 8 - from / 8 + 1, &set->piece);
  for (int64_t i = 0; i < n && !status; i++)
    out[i] = !shard->info.untrained || (set->piece.bits[(from % 8 + i) / 8] >> (from + i) % 8 & 1);
  return status;
}

static enum status make_up(const struct token_set *set, int64_t at, int64_t n,
                           const struct token_range *out)
{
  uint32_t block[4] = {0};
  for (int64_t t = at; t < at + n; t++) {
    if (t == at || t % 4 == 0)
      rng_block(set->key, 0, (uint64_t)t / 4, block);
    if (out->token)
      out->token[t - at] = (int32_t)(block[t % 4] % (uint32_t)set->stream.tokenizer.vocab);
    if (out->trained)
      out->trained[t - at] = !set->untrained || t % 2;
  }
  return STATUS_OK;
}

enum status token_set_read(struct token_set *set, int64_t at, int64_t n,
                           const struct token_range *out)
{
  if (at < 0 || n < 1 || at > set->stream.tokens - n)
    return status_set(STATUS_INTERNAL,
                      "%" PRId64 " tokens from %" PRId64 " on are asked for, of %" PRId64, n, at,
                      set->stream.tokens);
  if (set->made)
    return make_up(set, at, n, out);
  struct shard *shard = find_shard(set, at, false);
  enum status status = STATUS_OK;
  for (int64_t i = 0, piece; i < n && !status; i += piece) {
    const int64_t from = at + i - shard->begin, left = shard_tokens(&shard->info) - from,
                  most = PIECE_BYTES / shard->info.token_bytes;
    piece = n - i < left ? n - i : left;
    piece = piece < most ? piece : most;
    if (out->token)
      status = read_tokens(set, shard, from, piece, out->token + i);
    if (out->trained && !status)
      status = read_trained(set, shard, from, piece, out->trained + i);
    shard += piece == left;
  }
  return status;
}

int64_t token_order(uint64_t seed, int source, int64_t windows, int64_t index)
{
  const uint64_t n = (uint64_t)windows, at = (uint64_t)index, epoch = at / n;
  return (int64_t)rng_permute(rng_key_make(seed, "order"), (uint64_t)source << 48 | epoch, n,
                              at % n);
}
