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

/* Bytes of a tensor that one rank holds, by their place in the file. Sent as it is. */
struct part {
  int64_t at, end, tensor, rank;
};

struct writer {
  const struct checkpoint_data *data;
  enum status status; /* of this rank so far, while it goes on with the exchange */
  int file;
  int64_t unflushed; /* bytes */
  int64_t n;
  struct part
      *parts; /* in the order of the file: of all ranks on several nodes, else of this one */
  char *block, *sent; /* content of a block, and of a message */
  MPI_Request *receives, send;
  int receiving;
};

/* The parts. */

static int compare_parts(const void *a, const void *b)
{
  const struct part *left = a, *right = b;
  return (left->at > right->at) - (left->at < right->at);
}

static int64_t element_bytes(const struct writer *writer, const struct part *part)
{
  return (int64_t)dtype_size(writer->data->tensors[part->tensor].type);
}

static enum status find_own_parts(struct writer *writer)
{
  const struct checkpoint_data *data = writer->data;
  const enum status status = mem_new(MEM_IO, data->n, &writer->parts);
  for (int64_t i = 0; i < data->n && !status; i++) {
    const struct checkpoint_piece *piece = &data->pieces[i];
    struct part part = {.tensor = piece->tensor, .rank = comm_rank(data->comm)};
    const int64_t offset = data->table->entry[piece->tensor].offset,
                  size = element_bytes(writer, &part);
    part.at = offset + piece->begin * size;
    part.end = offset + piece->end * size;
    writer->parts[writer->n++] = part;
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

/* Collective. */
static enum status prepare(struct writer *writer)
{
  struct comm *comm = writer->data->comm;
  const size_t bytes = (size_t)checkpoint_piece_bytes + MOST_ELEMENT;
  const bool several = comm_local_ranks(comm) < comm_ranks(comm);
  enum status status = comm_agree(comm, find_own_parts(writer));
  if (several)
    status = status ?: gather_parts(writer);
  status = status ?: mem_alloc(MEM_IO, bytes, (void **)&writer->block)
                  ?: mem_alloc(MEM_IO, bytes, (void **)&writer->sent)
                  ?: mem_new(MEM_IO, writer->n, &writer->receives);
  if (!status && writer->n > 0)
    qsort(writer->parts, (size_t)writer->n, sizeof *writer->parts, compare_parts);
  return comm_agree(comm, status);
}

/* Blocks and fragments: the bytes of a part that are in a block. */

struct cursor {
  int64_t part, at;
};
struct fragment {
  const struct part *part;
  int64_t at, end;
};

static int64_t place(const struct writer *writer, const struct cursor *cursor)
{
  const int64_t begin = writer->parts[cursor->part].at;
  return cursor->at > begin ? cursor->at : begin;
}

/* The next fragment, if it begins in the block. An element is not cut: it belongs to the block
 * where it begins. */
static bool take_fragment(const struct writer *writer, int64_t block, struct cursor *cursor,
                          struct fragment *out)
{
  if (cursor->part == writer->n || place(writer, cursor) / checkpoint_piece_bytes != block)
    return false;
  const struct part *part = &writer->parts[cursor->part];
  const int64_t at = place(writer, cursor), size = element_bytes(writer, part),
                whole = ((block + 1) * checkpoint_piece_bytes - at) / size * size,
                end = at + (whole > 0 ? whole : size);
  *out = (struct fragment){part, at, end < part->end ? end : part->end};
  *cursor = (struct cursor){cursor->part + (out->end == part->end), out->end};
  return true;
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

/* Bytes that follow each other go in one call. */
static void put_block(struct writer *writer, int64_t block, struct cursor cursor)
{
  const int64_t first = block * checkpoint_piece_bytes;
  struct fragment fragment;
  int64_t tensor = 0, begin = first, end = first;
  while (take_fragment(writer, block, &cursor, &fragment)) {
    if (fragment.at != end) {
      put(writer, tensor, writer->block + (begin - first), begin, end);
      begin = fragment.at;
    }
    if (fragment.at == begin)
      tensor = fragment.part->tensor;
    end = fragment.end;
  }
  put(writer, tensor, writer->block + (begin - first), begin, end);
}

/* The exchange. */

/* This rank's bytes: where they are in memory, or in `buffer`, which it fills. */
static const char *find_bytes(struct writer *writer, const struct fragment *fragment, char *buffer)
{
  const int64_t t = fragment->part->tensor, offset = writer->data->table->entry[t].offset,
                size = element_bytes(writer, fragment->part);
  const struct io_tensor *tensor = &writer->data->tensors[t];
  const struct layout_range range = {(fragment->at - offset) / size,
                                     (fragment->end - offset) / size};
  checkpoint_moved();
  if (tensor->data && !tensor->move)
    return (const char *)tensor->data + (range.begin - tensor->range.begin) * size;
  if (!writer->status)
    writer->status = status_prefix(tensor->move(tensor, range, buffer), "dataset %s",
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
  comm_must(comm, COMM_MPI(MPI_Isend(from, (int)(fragment->end - fragment->at), MPI_BYTE, to, TAG,
                                     *(MPI_Comm *)comm_mpi(comm), &writer->send)));
}

static void receive(struct writer *writer, const struct fragment *fragment, char *to)
{
  struct comm *comm = writer->data->comm;
  comm_must(comm, COMM_MPI(MPI_Irecv(to, (int)(fragment->end - fragment->at), MPI_BYTE,
                                     (int)fragment->part->rank, TAG, *(MPI_Comm *)comm_mpi(comm),
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
         fragment->end == fragment->part->end;
}

/* A block that is one fragment goes to the file from where it is. */
static bool write_alone(struct writer *writer, int64_t block, struct cursor *cursor)
{
  struct cursor next = *cursor, after;
  struct fragment fragment, other;
  (void)take_fragment(writer, block, &next, &fragment);
  after = next;
  if (fragment.part->rank != comm_rank(writer->data->comm) ||
      take_fragment(writer, block, &after, &other))
    return false;
  const char *from = find_bytes(writer, &fragment, writer->block);
  put(writer, fragment.part->tensor, from, fragment.at, fragment.end);
  *cursor = next;
  if (ends_own_part(writer, &fragment))
    checkpoint_reached(CHECKPOINT_WROTE);
  return true;
}

/* Writes the block at the cursor, or sends this rank's bytes of it. */
static void write_block(struct writer *writer, struct cursor *cursor)
{
  const int64_t block = place(writer, cursor) / checkpoint_piece_bytes,
                begin = block * checkpoint_piece_bytes;
  const int me = comm_rank(writer->data->comm), owner = (int)writer->parts[cursor->part].rank;
  const struct cursor first = *cursor;
  struct fragment fragment;
  if (write_alone(writer, block, cursor))
    return;
  while (take_fragment(writer, block, cursor, &fragment)) {
    char *const to = writer->block + (fragment.at - begin);
    if (fragment.part->rank == me && owner == me) {
      const char *from = find_bytes(writer, &fragment, to);
      if (from != to)
        memcpy(to, from, (size_t)(fragment.end - fragment.at));
    } else if (owner == me) {
      receive(writer, &fragment, to);
    } else if (fragment.part->rank == me) {
      send(writer, &fragment, owner);
    }
    if (ends_own_part(writer, &fragment))
      checkpoint_reached(CHECKPOINT_WROTE);
  }
  if (owner != me)
    return;
  complete_receives(writer);
  put_block(writer, block, first);
}

static enum status write_blocks(struct writer *writer)
{
  checkpoint_now_at(checkpoint_writing, false);
  for (struct cursor cursor = {0}; cursor.part < writer->n;)
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
  mem_free(writer.block);
  mem_free(writer.sent);
  mem_free(writer.receives);
  checkpoint_now_at("waiting for the data of the other ranks", true);
  return comm_agree(data->comm, status);
}
