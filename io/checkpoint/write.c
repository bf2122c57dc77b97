/* Writing the data of a checkpoint into a file that is laid out.
 *
 * The file is cut into blocks of checkpoint_piece_bytes. On several nodes one rank writes a block:
 * the rank that holds the block's first byte. The others send it their bytes of the block. So no
 * two nodes write to one stripe of a parallel file system, or to one page of NFS, which may lose
 * the bytes of one of them. On one node each rank writes its own bytes.
 *
 *   block             0               1               2
 *             |...............|...............|...............|
 *   held by    00000000 111111 11 2222222222222 22222 333 44444
 *   written by       0               1               2
 *
 * Pieces of a tensor that is cut lie between each other in a block. A rank's bytes of a block are
 * one range of its piece, so they are one message, which the writer then spreads over the block.
 *
 * Ranks are numbered node by node, so nearly all messages stay inside a node. All ranks take the
 * blocks in the order of the file, and a send is complete before the next one begins. So the ranks
 * of the first unfinished block are all there, and it can be finished. A rank whose file fails goes
 * on with the exchange, because others wait for it. */
#include <errno.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/open.h"
#include "comm/messages.h"
#include "io/checkpoint/private.h"
#include "io/text/file.h"

enum { TAG = 46, MOST_ELEMENT = 8 /* bytes */ };

/* Elements of a tensor that one rank holds. Sent as it is. */
struct part {
  int64_t at, end; /* in the file: of the first element, and after the last one */
  struct layout_range range;
  struct layout_cut cut[LAYOUT_MAX_DIMS];
  int tensor, rank;
};

/* The elements of a part that begin in a block. */
struct fragment {
  const struct part *part;
  struct layout_box box;
  struct layout_range range; /* of the box, not yet written */
  int64_t at, end;           /* in the file: the first run of the range */
  const char *from;
};

/* A block, and the parts [first, last) that may have elements in it. */
struct cursor {
  int64_t block, first, last;
};

struct writer {
  const struct checkpoint_data *data;
  enum status status; /* of this rank so far, while it goes on with the exchange */
  int file;
  int64_t unflushed; /* bytes */
  int64_t n;
  struct part *parts;         /* by their places: of all ranks on several nodes, else of this one */
  struct fragment *fragments; /* of a block */
  char *block, *gathered, *sent; /* content of a block, of its fragments, and of a message */
  MPI_Request *receives, send;
  int receiving;
};

/* The parts. */

static int compare_parts(const void *a, const void *b)
{
  const struct part *left = a, *right = b;
  return (left->at > right->at) - (left->at < right->at);
}

static const struct checkpoint_entry *entry_of(const struct writer *writer, const struct part *part)
{
  return &writer->data->table->entry[part->tensor];
}

static int64_t element_bytes(const struct writer *writer, const struct part *part)
{
  return (int64_t)dtype_size((enum dtype)entry_of(writer, part)->type);
}

/* The bytes in the file of a run of elements of a tensor. */
static void place(const struct writer *writer, const struct part *part, struct layout_range run,
                  int64_t *at, int64_t *end)
{
  const int64_t offset = entry_of(writer, part)->offset, size = element_bytes(writer, part);
  *at = offset + run.begin * size;
  *end = offset + run.end * size;
}

static enum status find_own_parts(struct writer *writer)
{
  const struct checkpoint_data *data = writer->data;
  const enum status status = mem_new(MEM_IO, data->n, &writer->parts);
  for (int64_t i = 0; i < data->n && !status; i++) {
    const int t = (int)data->pieces[i].tensor;
    const struct io_tensor *tensor = &data->tensors[t];
    struct part *part = &writer->parts[writer->n++];
    *part = (struct part){.tensor = t, .rank = comm_rank(data->comm), .range = tensor->range};
    memcpy(part->cut, tensor->cut, sizeof part->cut);
    const struct layout_box box = checkpoint_box(entry_of(writer, part), part->cut);
    place(writer, part,
          (struct layout_range){layout_box_run(&box, part->range.begin, part->range.end).begin,
                                data->pieces[i].reached},
          &part->at, &part->end);
  }
  return status;
}

/* Replaces this rank's parts by those of all ranks. */
static enum status gather_parts(struct writer *writer)
{
  void *all;
  const enum status status = comm_mpi_gather(writer->data->comm, MEM_IO, writer->parts,
                                             sizeof *writer->parts, &writer->n, &all);
  if (status)
    return status;
  mem_free(writer->parts);
  writer->parts = all;
  return STATUS_OK;
}

/* The next block in which a part may have elements. */
static bool next_block(const struct writer *writer, struct cursor *cursor)
{
  const struct part *parts = writer->parts;
  cursor->block++;
  while (cursor->first < writer->n &&
         parts[cursor->first].end <= cursor->block * checkpoint_piece_bytes)
    cursor->first++;
  if (cursor->first == writer->n)
    return false;
  const int64_t begins = parts[cursor->first].at / checkpoint_piece_bytes;
  cursor->block = begins > cursor->block ? begins : cursor->block;
  while (cursor->last < writer->n &&
         parts[cursor->last].at < (cursor->block + 1) * checkpoint_piece_bytes)
    cursor->last++;
  return true;
}

/* Collective. */
static enum status prepare(struct writer *writer)
{
  struct comm *comm = writer->data->comm;
  const size_t bytes = (size_t)checkpoint_piece_bytes + MOST_ELEMENT;
  const bool several = comm_local_ranks(comm) < comm_ranks(comm);
  int64_t most = 0;
  enum status status = comm_agree(comm, find_own_parts(writer));
  if (several)
    status = status ?: gather_parts(writer);
  if (!status && writer->n > 0)
    qsort(writer->parts, (size_t)writer->n, sizeof *writer->parts, compare_parts);
  for (struct cursor cursor = {-1}; !status && next_block(writer, &cursor);)
    most = cursor.last - cursor.first > most ? cursor.last - cursor.first : most;
  status = status ?: mem_alloc(MEM_IO, bytes, (void **)&writer->block)
                  ?: mem_alloc(MEM_IO, bytes, (void **)&writer->gathered)
                  ?: mem_alloc(MEM_IO, bytes, (void **)&writer->sent)
                  ?: mem_new(MEM_IO, most, &writer->fragments)
                  ?: mem_new(MEM_IO, most, &writer->receives);
  return comm_agree(comm, status);
}

/* The fragments of a block, by the places of their first elements. */

static int compare_fragments(const void *a, const void *b)
{
  const struct fragment *left = a, *right = b;
  return (left->at > right->at) - (left->at < right->at);
}

/* The first element of the part that begins at or after a byte of the file. */
static int64_t element_at(const struct writer *writer, const struct fragment *fragment, int64_t at)
{
  const int64_t before = at - entry_of(writer, fragment->part)->offset,
                size = element_bytes(writer, fragment->part);
  const int64_t element =
      before > 0 ? layout_box_before(&fragment->box, (before + size - 1) / size) : 0;
  const struct layout_range range = fragment->part->range;
  return element < range.begin ? range.begin : element < range.end ? element : range.end;
}

/* Finds the bytes of the first run that is not written. False: there is none. */
static bool find_run(const struct writer *writer, struct fragment *fragment)
{
  if (fragment->range.begin >= fragment->range.end)
    return false;
  place(writer, fragment->part,
        layout_box_run(&fragment->box, fragment->range.begin, fragment->range.end), &fragment->at,
        &fragment->end);
  return true;
}

static int64_t find_fragments(const struct writer *writer, const struct cursor *cursor)
{
  int64_t n = 0;
  for (int64_t i = cursor->first; i < cursor->last; i++) {
    const struct part *part = &writer->parts[i];
    struct fragment *fragment = &writer->fragments[n];
    *fragment =
        (struct fragment){.part = part, .box = checkpoint_box(entry_of(writer, part), part->cut)};
    fragment->range.begin = element_at(writer, fragment, cursor->block * checkpoint_piece_bytes);
    fragment->range.end =
        element_at(writer, fragment, (cursor->block + 1) * checkpoint_piece_bytes);
    n += find_run(writer, fragment);
  }
  if (n > 0)
    qsort(writer->fragments, (size_t)n, sizeof *writer->fragments, compare_fragments);
  return n;
}

static int64_t fragment_bytes(const struct writer *writer, const struct fragment *fragment)
{
  return (fragment->range.end - fragment->range.begin) * element_bytes(writer, fragment->part);
}

/* The file. */

static enum status flush(struct writer *writer)
{
  checkpoint_now_at("flushing its data to the disk", false);
  writer->unflushed = 0;
  return file_sync_open(writer->file, writer->data->path);
}

/* Flushes while data are written, not only at the end. A node may write hundreds of GB, and a
 * watchdog sees no progress within one call. */
static void put(struct writer *writer, int64_t tensor, const char *from, int64_t at, int64_t end)
{
  const struct checkpoint_data *data = writer->data;
  if (writer->status || at == end)
    return;
  writer->status =
      status_prefix(file_write_at(writer->file, data->path, from, (size_t)(end - at), at),
                    "dataset %s", checkpoint_table_name(data->table, tensor));
  writer->unflushed += end - at;
  if (writer->status || writer->unflushed < checkpoint_flush_bytes)
    return;
  writer->status = flush(writer);
  checkpoint_now_at(checkpoint_writing, false);
}

/* Goes on to the next run of the first fragment. The fragments stay in order; one without another
 * run is left out. */
static void take_run(const struct writer *writer, struct fragment **first, int64_t *n)
{
  struct fragment *fragment = *first;
  const int64_t bytes = fragment->end - fragment->at;
  fragment->from += bytes;
  fragment->range.begin += bytes / element_bytes(writer, fragment->part);
  if (!find_run(writer, fragment)) {
    (*first)++;
    (*n)--;
    return;
  }
  for (const struct fragment *end = fragment + *n - 1; fragment < end; fragment++) {
    if (fragment[0].at < fragment[1].at)
      return;
    const struct fragment later = fragment[0];
    fragment[0] = fragment[1];
    fragment[1] = later;
  }
}

/* Bytes that follow each other go in one call. A single fragment goes to the file from where it
 * is. */
static void put_fragments(struct writer *writer, int64_t block, int64_t n)
{
  const bool single = n == 1;
  int64_t tensor = 0, begin = 0, end = 0;
  const char *from = NULL;
  for (struct fragment *first = writer->fragments; n > 0; take_run(writer, &first, &n)) {
    char *const place = writer->block + (first->at - block * checkpoint_piece_bytes);
    if (first->at != end) {
      put(writer, tensor, from, begin, end);
      begin = first->at;
      from = single ? first->from : place;
      tensor = first->part->tensor;
    }
    end = first->end;
    if (!single)
      memcpy(place, first->from, (size_t)(first->end - first->at));
  }
  put(writer, tensor, from, begin, end);
}

/* The exchange. */

/* This rank's bytes: where they are in memory, or in `buffer`, which it fills. */
static const char *find_bytes(struct writer *writer, const struct fragment *fragment, char *buffer)
{
  const int t = fragment->part->tensor;
  const struct io_tensor *tensor = &writer->data->tensors[t];
  checkpoint_moved();
  if (tensor->data && !tensor->move)
    return (const char *)tensor->data +
           (fragment->range.begin - tensor->range.begin) * element_bytes(writer, fragment->part);
  if (!writer->status)
    writer->status = status_prefix(tensor->move(tensor, fragment->range, buffer), "dataset %s",
                                   checkpoint_table_name(writer->data->table, t));
  return buffer;
}

/* Other ranks wait for the messages of this one, so a failed call of MPI ends the job. */
static void await(struct writer *writer, MPI_Request *request, const char *call)
{
  if (*request == MPI_REQUEST_NULL)
    return;
  checkpoint_now_at("waiting for ranks that write to the same blocks", true);
  comm_must(writer->data->comm, comm_mpi_wait(MPI_SUCCESS, call, request));
  checkpoint_now_at(checkpoint_writing, false);
}

static void send(struct writer *writer, const struct fragment *fragment, int to)
{
  struct comm *comm = writer->data->comm;
  await(writer, &writer->send, "MPI_Isend");
  const char *from = find_bytes(writer, fragment, writer->sent);
  comm_must(comm, COMM_MPI(MPI_Isend(from, (int)fragment_bytes(writer, fragment), MPI_BYTE, to, TAG,
                                     *(MPI_Comm *)comm_mpi(comm), &writer->send)));
}

static void receive(struct writer *writer, const struct fragment *fragment, char *to)
{
  struct comm *comm = writer->data->comm;
  comm_must(comm, COMM_MPI(MPI_Irecv(to, (int)fragment_bytes(writer, fragment), MPI_BYTE,
                                     fragment->part->rank, TAG, *(MPI_Comm *)comm_mpi(comm),
                                     &writer->receives[writer->receiving++])));
}

static void complete_receives(struct writer *writer)
{
  for (int i = 0; i < writer->receiving; i++)
    await(writer, &writer->receives[i], "MPI_Irecv");
  writer->receiving = 0;
}

static bool ends_own_part(const struct writer *writer, const struct fragment *fragment)
{
  return fragment->part->rank == comm_rank(writer->data->comm) &&
         fragment->range.end == fragment->part->range.end;
}

/* Writes a block, or sends this rank's bytes of it. */
static void write_block(struct writer *writer, const struct cursor *cursor)
{
  const int64_t n = find_fragments(writer, cursor);
  const int me = comm_rank(writer->data->comm), owner = n > 0 ? writer->fragments->part->rank : -1;
  char *to = writer->gathered;
  int own = 0;
  for (int64_t i = 0; i < n; i++) {
    struct fragment *fragment = &writer->fragments[i];
    const bool mine = fragment->part->rank == me;
    own += ends_own_part(writer, fragment);
    if (mine && owner != me)
      send(writer, fragment, owner);
    if (owner != me)
      continue;
    fragment->from = mine ? find_bytes(writer, fragment, to) : to;
    if (!mine)
      receive(writer, fragment, to);
    to += fragment_bytes(writer, fragment);
  }
  if (owner == me) {
    complete_receives(writer);
    put_fragments(writer, cursor->block, n);
  }
  while (own-- > 0)
    checkpoint_reached(CHECKPOINT_WROTE);
}

static enum status write_blocks(struct writer *writer)
{
  checkpoint_now_at(checkpoint_writing, false);
  for (struct cursor cursor = {-1}; next_block(writer, &cursor);)
    write_block(writer, &cursor);
  await(writer, &writer->send, "MPI_Isend");
  return writer->status;
}

static enum status close_file(struct writer *writer, enum status status)
{
  if (writer->file < 0 || close(writer->file) == 0 || status)
    return status;
  return open_failed(errno, "close", writer->data->path);
}

/* The file is opened after rank 0 has closed it, and closed before rank 0 opens it again. So NFS
 * shows each what the others wrote. */
enum status checkpoint_write_data(const struct checkpoint_data *data)
{
  struct writer writer = {.data = data, .file = -1, .send = MPI_REQUEST_NULL};
  enum status status = prepare(&writer);
  if (!status) {
    status = open_regular(data->path, OPEN_UPDATE, &writer.file);
    checkpoint_now_at("waiting for other ranks to open the file", true);
    status = comm_agree(data->comm, status);
  }
  if (!status)
    checkpoint_reached(CHECKPOINT_OPENED);
  status = status ?: write_blocks(&writer) ?: flush(&writer);
  status = close_file(&writer, status);
  mem_free(writer.parts);
  mem_free(writer.fragments);
  mem_free(writer.block);
  mem_free(writer.gathered);
  mem_free(writer.sent);
  mem_free(writer.receives);
  checkpoint_now_at("waiting for the data of the other ranks", true);
  return comm_agree(data->comm, status);
}
