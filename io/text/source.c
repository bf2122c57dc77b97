/* Plain, gzip and zstd files behind one read call. */
#include "io/text/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "base/mem.h"
#include "base/open.h"
#include "io/text/file_kind.h"

enum { PACKED = 128 << 10, SKIPPED = 64 << 10, WINDOW_LOG_MOST = 31 };

struct text_source {
  const char *path;
  int fd;
  enum { PLAIN, GZIP, ZSTD } kind;
  int64_t offset;             /* of the next unpacked byte */
  unsigned char *packed;      /* [PACKED] compressed bytes */
  size_t packed_at, packed_n; /* packed[packed_at .. packed_n) is unread */
  bool inside;                /* a member of gzip or a frame of zstd */
  bool begun;                 /* the first member */
  const char *damage;         /* after it nothing can be read any more; NULL: there is none */
  bool gzip_ready;
  z_stream gzip;
  ZSTD_DStream *zstd;
};

/* ---- files that hold no text */

/* Every second byte of Latin letters is 0 in UTF-16. */
static enum status refuse_zeros(const struct text_source *source, const unsigned char *head,
                                size_t n)
{
  size_t zeros[2] = {0};
  for (size_t i = 0; i < n; i++)
    zeros[i % 2] += head[i] == 0;
  if (zeros[0] + zeros[1] <= n / 4)
    return STATUS_OK;
  if (n < 4 || (zeros[0] && zeros[1]))
    return status_set(STATUS_INPUT, "%s is no text: it holds many NUL bytes", source->path);
  return status_set(STATUS_INPUT,
                    "%s looks like UTF-16 text; convert it first: iconv -f UTF-16%s -t UTF-8 FILE "
                    "> OUT",
                    source->path, zeros[0] ? "BE" : "LE");
}

static enum status refuse_kind(const struct text_source *source, const unsigned char *head,
                               size_t n)
{
  const char *unpacked = source->kind == PLAIN ? "" : ", unpacked,";
  const struct file_kind *kind = file_kind_find((const char *)head, n);
  if (kind)
    return status_set(STATUS_INPUT, "%s%s is %s; %s", source->path, unpacked, kind->is,
                      kind->text_cure);
  return refuse_zeros(source, head, n);
}

/* ---- reading */

static enum status read_file(const struct text_source *source, void *to, size_t bytes, size_t *got)
{
  ssize_t n;
  do
    n = read(source->fd, to, bytes);
  while (n < 0 && errno == EINTR);
  if (n < 0)
    return open_failed(errno, "read", source->path);
  *got = (size_t)n;
  return STATUS_OK;
}

static const char *packer(const struct text_source *source)
{
  return source->kind == GZIP ? "gzip" : "zstd";
}

static enum status refuse_damaged(struct text_source *source, const char *reason)
{
  source->damage = reason;
  return status_set(STATUS_INPUT,
                    "%s: its %s data are damaged after %lld bytes of text (%s); get the file again",
                    source->path, packer(source), (long long)source->offset, reason);
}

/* One member of gzip after another; zeros may fill up the end. */
static enum status unpack_gzip(struct text_source *source, unsigned char *to, size_t bytes,
                               size_t *made)
{
  z_stream *z = &source->gzip;
  while (!source->inside) {
    if (source->packed_at == source->packed_n)
      return STATUS_OK;
    const unsigned char byte = source->packed[source->packed_at];
    if (byte == 0x1F) {
      source->inside = source->begun = true;
      if (inflateReset(z) != Z_OK)
        return status_set(STATUS_INTERNAL, "zlib cannot begin");
    } else if (byte != 0 || !source->begun) {
      return refuse_damaged(source, "bytes that are no gzip data");
    } else {
      source->packed_at++;
    }
  }
  z->next_in = source->packed + source->packed_at;
  z->avail_in = (uInt)(source->packed_n - source->packed_at);
  z->next_out = to;
  z->avail_out = (uInt)bytes;
  const int result = inflate(z, Z_NO_FLUSH);
  source->packed_at = source->packed_n - z->avail_in;
  *made = bytes - z->avail_out;
  if (result == Z_MEM_ERROR)
    return STATUS_MEMORY;
  if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
    return refuse_damaged(source, z->msg ? z->msg : "its format is unknown");
  source->inside = result != Z_STREAM_END;
  return STATUS_OK;
}

/* One frame after another; frames that a reader skips are among them. */
static enum status unpack_zstd(struct text_source *source, unsigned char *to, size_t bytes,
                               size_t *made)
{
  if (!source->inside && source->packed_at == source->packed_n)
    return STATUS_OK;
  ZSTD_inBuffer in = {source->packed, source->packed_n, source->packed_at};
  ZSTD_outBuffer out = {to, bytes, 0};
  const size_t left = ZSTD_decompressStream(source->zstd, &out, &in);
  source->packed_at = in.pos;
  *made = out.pos;
  if (ZSTD_isError(left))
    return refuse_damaged(source, ZSTD_getErrorName(left));
  source->inside = left != 0;
  return STATUS_OK;
}

static enum status unpack(struct text_source *source, void *to, size_t bytes, size_t *got)
{
  enum status status = source->damage ? refuse_damaged(source, source->damage) : STATUS_OK;
  const size_t most = bytes < PACKED ? bytes : PACKED;
  for (size_t n = 0, made = 0;;) {
    if (!status && source->packed_at == source->packed_n) {
      status = read_file(source, source->packed, PACKED, &n);
      source->packed_at = 0;
      source->packed_n = n;
    }
    const bool ends = source->packed_n == 0;
    if (!status)
      status = source->kind == GZIP ? unpack_gzip(source, to, most, &made)
                                    : unpack_zstd(source, to, most, &made);
    if (!status && ends && made == 0 && source->inside)
      return status_set(STATUS_INPUT,
                        "%s: its %s data end after %lld bytes of text, in the middle: the file is "
                        "truncated; get it again",
                        source->path, packer(source), (long long)source->offset);
    if (status || made > 0 || ends) {
      *got = made;
      return status;
    }
  }
}

enum status text_source_read(struct text_source *source, void *to, size_t bytes, size_t *got)
{
  const enum status status =
      source->kind == PLAIN ? read_file(source, to, bytes, got) : unpack(source, to, bytes, got);
  if (!status)
    source->offset += (int64_t)*got;
  return status;
}

/* ---- positions */

static enum status rewind_to(struct text_source *source, int64_t offset)
{
  if (lseek(source->fd, (off_t)offset, SEEK_SET) != (off_t)offset)
    return open_failed(errno, "seek in", source->path);
  source->offset = offset;
  source->packed_at = source->packed_n = 0;
  source->inside = source->begun = false;
  if (source->kind == ZSTD)
    ZSTD_DCtx_reset(source->zstd, ZSTD_reset_session_only);
  return STATUS_OK;
}

static enum status skip_to(struct text_source *source, int64_t offset)
{
  unsigned char *dropped = NULL;
  enum status status = mem_new(MEM_DATA, SKIPPED, &dropped);
  while (!status && source->offset < offset) {
    const int64_t left = offset - source->offset;
    size_t got = 0;
    status = text_source_read(source, dropped, left < SKIPPED ? (size_t)left : SKIPPED, &got);
    if (!status && got == 0)
      status = status_set(STATUS_INPUT, "%s became shorter while it was read", source->path);
  }
  mem_free(dropped);
  return status;
}

enum status text_source_seek(struct text_source *source, int64_t offset)
{
  if (source->kind == PLAIN)
    return rewind_to(source, offset);
  return (offset < source->offset ? rewind_to(source, 0) : STATUS_OK) ?: skip_to(source, offset);
}

/* ---- opening */

static enum status begin_unpacking(struct text_source *source)
{
  enum status status = mem_new(MEM_DATA, PACKED, &source->packed);
  if (status)
    return status;
  if (source->kind == GZIP)
    source->gzip_ready = inflateInit2(&source->gzip, 16 + MAX_WBITS) == Z_OK;
  else
    source->zstd = ZSTD_createDStream();
  const bool ready = source->kind == GZIP
                         ? source->gzip_ready
                         : source->zstd && !ZSTD_isError(ZSTD_DCtx_setParameter(
                                               source->zstd, ZSTD_d_windowLogMax, WINDOW_LOG_MOST));
  return ready ? STATUS_OK
               : status_set(STATUS_MEMORY, "no memory to unpack %s (%s)", source->path,
                            packer(source));
}

/* Frames of zstd, and frames that a reader skips, with which pzstd begins. */
static bool is_zstd(const unsigned char *head, size_t n)
{
  return n >= 4 && (memcmp(head, "\x28\xB5\x2F\xFD", 4) == 0 ||
                    ((head[0] & 0xF0) == 0x50 && memcmp(head + 1, "\x2A\x4D\x18", 3) == 0));
}

static enum status read_head(struct text_source *source, unsigned char *head, size_t *n)
{
  enum status status = STATUS_OK;
  size_t got = 1;
  for (*n = 0; !status && got > 0 && *n < FILE_KIND_BYTES; *n += got)
    status = text_source_read(source, head + *n, FILE_KIND_BYTES - *n, &got);
  return status;
}

static enum status find_kind(struct text_source *source)
{
  unsigned char head[FILE_KIND_BYTES];
  size_t n = 0;
  enum status status = read_head(source, head, &n);
  if (status)
    return status;
  source->kind = n >= 2 && memcmp(head, "\x1F\x8B", 2) == 0 ? GZIP
                 : is_zstd(head, n)                         ? ZSTD
                                                            : PLAIN;
  if (source->kind != PLAIN)
    status = begin_unpacking(source) ?: rewind_to(source, 0) ?: read_head(source, head, &n);
  return status ?: refuse_kind(source, head, n) ?: text_source_seek(source, 0);
}

enum status text_source_open(const char *path, struct text_source **out)
{
  struct text_source *source = NULL;
  enum status status = mem_new(MEM_DATA, 1, &source);
  if (status)
    return status;
  source->path = path;
  source->fd = open(path, O_RDONLY | O_CLOEXEC);
  status = source->fd < 0 ? open_unreadable(errno, path) : find_kind(source);
  if (status)
    text_source_close(source);
  else
    *out = source;
  return status;
}

void text_source_close(struct text_source *source)
{
  if (!source)
    return;
  if (source->fd >= 0)
    close(source->fd); /* was only read: nothing can be lost */
  if (source->gzip_ready)
    (void)inflateEnd(&source->gzip);
  ZSTD_freeDStream(source->zstd);
  mem_free(source->packed);
  mem_free(source);
}
