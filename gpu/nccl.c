/* A communicator per group, split from one that all ranks start. Its settings yield to the
 * environment variables of NCCL. */
#include "gpu/nccl.h"

#include <errno.h>
#include <nccl.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "gpu/cuda.h"

_Static_assert(sizeof(ncclUniqueId) == NCCL_ID_BYTES,
               "the name of a group is handed over as bytes");

/* From NCCL 2.28 on, copy engines move data inside a node, between windows of registered memory.
 * Earlier ones move them by kernels. A test on a recent NCCL sets this to 0. */
#ifndef NCCL_COPY_ENGINES
#define NCCL_COPY_ENGINES (NCCL_VERSION_CODE >= 22800)
#endif
/* Earlier ones start a group by one root. The same test sets this to 0. */
#ifndef NCCL_SEVERAL_ROOTS
#define NCCL_SEVERAL_ROOTS (NCCL_VERSION_CODE >= 22300)
#endif

/* Channels of a group inside a node. Each has buffers on the GPU, and NCCL would open as many as it
 * could ever use. A few are enough: copy engines move large messages if GPUs reach each other's
 * memory. If they do not, the link is slower than a few channels. Kernels need more of them. */
enum { FEW_CTAS = 4 };
enum {
  MOST_REGISTERED = 4
}; /* two arenas, and as many to spare; a list that grows could fail on one member alone */

struct nccl_group {
  ncclComm_t comm; /* NULL: not started */
#if NCCL_COPY_ENGINES
  ncclWindow_t registered[MOST_REGISTERED];
#endif
  int n_registered;
};

static enum status nccl_check(ncclResult_t error, const char *what)
{
  if (error == ncclSuccess || error == ncclInProgress)
    return STATUS_OK;
  const char *more = ncclGetLastError(NULL);
  return status_set(STATUS_LIBRARY, "NCCL: %s failed: %s%s%s (NCCL_DEBUG=INFO shows more)", what,
                    ncclGetErrorString(error), more && *more ? ": " : "", more ? more : "");
}

/* When a process ends, a failure is logged and does not stop the rest of the cleanup. */
static void nccl_warn(ncclResult_t error, const char *what)
{
  if (nccl_check(error, what))
    log_warn("%s", status_text());
}

enum status nccl_id(void *id)
{
  ncclUniqueId unique;
  const enum status status = nccl_check(ncclGetUniqueId(&unique), "naming a group");
  if (!status)
    memcpy(id, &unique, sizeof unique);
  return status;
}

enum status nccl_group_create(struct nccl_group **out)
{
  return mem_new(MEM_META, 1, out);
}

/* A root introduces its share of the ranks to each other, one after another. */
int nccl_ids(int ranks)
{
  enum { RANKS_PER_ROOT = 128 };
  return NCCL_SEVERAL_ROOTS ? (ranks + RANKS_PER_ROOT - 1) / RANKS_PER_ROOT : 1;
}

/* Groups do not share channels (splitShare). NCCL would then run their collectives one after
 * another, so that lanes share an order, and giving up one group would end all of them. */
static ncclConfig_t config_of(const char *name, int most_ctas)
{
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
#if NCCL_COPY_ENGINES
  config.commName = name;
  config.CTAPolicy = NCCL_CTA_POLICY_ZERO; /* NCCL's kernels take multiprocessors from products and
                                              wait for them, copy engines do not */
  if (most_ctas > 0)
    config.maxCTAs = most_ctas;
#else
  (void)name, (void)most_ctas;
#endif
  return config;
}

static enum status take(struct nccl_group *group, struct nccl_member member, ncclComm_t comm,
                        enum status status)
{
  if (status)
    return status_prefix(status, "%s, member %d of %d", member.name, member.index, member.size);
  group->comm = comm;
  return STATUS_OK;
}

/* NCCL's pieces of 128 KiB between nodes keep an exchange over TCP below 70 % of a link of 25
 * Gbit/s. Its pieces inside a node are of this size. */
static const char piece_variable[] = "NCCL_P2P_NET_CHUNKSIZE", piece_bytes[] = "524288";

enum status nccl_group_start(struct nccl_group *group, struct nccl_member member, int n, void *ids)
{
  ncclConfig_t config = config_of(member.name, 1);
  ncclUniqueId *const roots = ids;
  ncclComm_t comm = NULL;
  if (setenv(piece_variable, piece_bytes, 0) != 0)
    return status_set(STATUS_MEMORY, "cannot set %s: %s", piece_variable, strerror(errno));
#if NCCL_SEVERAL_ROOTS
  const ncclResult_t error =
      ncclCommInitRankScalable(&comm, member.size, member.index, n, roots, &config);
#else
  (void)n;
  const ncclResult_t error =
      ncclCommInitRankConfig(&comm, member.size, *roots, member.index, &config);
#endif
  return take(group, member, comm, nccl_check(error, "starting a group"));
}

enum status nccl_group_split(struct nccl_group *group, struct nccl_group *parent,
                             struct nccl_member member, int color, bool one_node)
{
  ncclConfig_t config = config_of(member.name, one_node ? FEW_CTAS : 0);
  ncclComm_t comm = NULL;
  const ncclResult_t error = ncclCommSplit(parent->comm, color, member.index, &comm, &config);
  return take(group, member, comm, nccl_check(error, "splitting a group"));
}

void nccl_group_destroy(struct nccl_group *group)
{
  if (!group)
    return;
#if NCCL_COPY_ENGINES
  for (int i = 0; i < group->n_registered; i++)
    nccl_warn(ncclCommWindowDeregister(group->comm, group->registered[i]), "forgetting memory");
#endif
  if (group->comm)
    nccl_warn(ncclCommDestroy(group->comm), "ending a group");
  mem_free(group);
}

void nccl_group_abort(struct nccl_group *group)
{
  if (!group)
    return;
  if (group->comm)
    nccl_warn(ncclCommAbort(group->comm), "giving up a group");
  mem_free(group);
}

enum status nccl_group_register(struct nccl_group *group, void *ptr, int64_t bytes)
{
  if (group->n_registered == MOST_REGISTERED)
    return status_set(STATUS_INTERNAL, "a group cannot register more than %d pieces of memory",
                      MOST_REGISTERED);
#if NCCL_COPY_ENGINES
  enum status status = nccl_check(ncclCommWindowRegister(group->comm, ptr, (size_t)bytes,
                                                         &group->registered[group->n_registered],
                                                         NCCL_WIN_COLL_SYMMETRIC),
                                  "registering memory");
  if (status)
    return status;
#else
  (void)ptr;
  (void)bytes;
#endif
  group->n_registered++;
  return STATUS_OK;
}

/* NCCL reports missing memory as an ordinary CUDA error. */
static bool is_short_of(size_t bytes)
{
  size_t unused = 0, all = 0;
  (void)cudaGetLastError(); /* reported here, and not again by lane_check() */
  return !cudaMemGetInfo(&unused, &all) && unused < bytes;
}

enum status nccl_memory_create(size_t bytes, void **out)
{
  const ncclResult_t error = ncclMemAlloc(out, bytes);
  if (error == ncclUnhandledCudaError && is_short_of(bytes))
    return status_set(STATUS_MEMORY, "NCCL: allocating %zu bytes of the GPU failed: %s", bytes,
                      ncclGetLastError(NULL));
  return nccl_check(error, "allocating memory of the GPU");
}

void nccl_memory_destroy(void *ptr)
{
  if (ptr)
    nccl_warn(ncclMemFree(ptr), "freeing memory of the GPU");
}

static enum status find_member(const struct nccl_group *group, int *size, int *index)
{
  return nccl_check(ncclCommCount(group->comm, size), "counting members")
             ?: nccl_check(ncclCommUserRank(group->comm, index), "finding a member");
}

/* In any case, because otherwise later calls would only queue. */
static enum status end_calls(enum status status, const char *what)
{
  const ncclResult_t error = ncclGroupEnd();
  return status ?: nccl_check(error, what);
}

enum status nccl_all_gather(struct nccl_group *group, struct lane *lane, int64_t bytes, int pieces,
                            int64_t apart, void *full)
{
  int size, index;
  enum status status =
      find_member(group, &size, &index) ?: nccl_check(ncclGroupStart(), "beginning an all-gather");
  if (status)
    return status;
  for (int p = 0; p < pieces && !status; p++) {
    char *piece = (char *)full + p * apart;
    status = nccl_check(ncclAllGather(piece + index * bytes, piece, (size_t)bytes, ncclUint8,
                                      group->comm, cuda_lane(lane)->stream),
                        "an all-gather");
  }
  return end_calls(status, "an all-gather");
}

static enum status send_and_receive(struct nccl_group *group, struct lane *lane, int peer,
                                    const char *sent, int64_t sent_bytes, char *received,
                                    int64_t received_bytes)
{
  const cudaStream_t stream = cuda_lane(lane)->stream;
  return nccl_check(ncclSend(sent, (size_t)sent_bytes, ncclUint8, peer, group->comm, stream),
                    "sending a message")
             ?: nccl_check(ncclRecv(received, (size_t)received_bytes, ncclUint8, peer, group->comm,
                                    stream),
                           "receiving a message");
}

enum status nccl_exchange(struct nccl_group *group, struct lane *lane, const void *sent,
                          int64_t bytes, void *received)
{
#if NCCL_COPY_ENGINES /* which move no messages of ncclSend() */
  return nccl_check(
      ncclAlltoAll(sent, received, (size_t)bytes, ncclUint8, group->comm, cuda_lane(lane)->stream),
      "an exchange");
#else
  return nccl_exchange_messages(
      group, lane,
      &(struct nccl_messages){
          .bytes = bytes, .sent = sent, .apart = bytes, .received = received, .stride = bytes});
#endif
}

enum status nccl_exchange_messages(struct nccl_group *group, struct lane *lane,
                                   const struct nccl_messages *m)
{
  int size, index;
  enum status status =
      find_member(group, &size, &index) ?: nccl_check(ncclGroupStart(), "beginning an exchange");
  if (status)
    return status;
  for (int peer = 0; peer < size && !status; peer++)
    if (m->apart || peer != index)
      status = send_and_receive(group, lane, peer, m->sent + peer * m->apart,
                                m->sent_bytes ? m->sent_bytes[peer] : m->bytes,
                                m->received + peer * m->stride,
                                m->received_bytes ? m->received_bytes[peer] : m->bytes);
  return end_calls(status, "an exchange of messages");
}

enum status nccl_sum_i64(struct nccl_group *group, struct lane *lane, int64_t *values, int64_t n)
{
  return nccl_check(ncclAllReduce(values, values, (size_t)n, ncclInt64, ncclSum, group->comm,
                                  cuda_lane(lane)->stream),
                    "an all-reduce");
}

enum status nccl_max_u32(struct nccl_group *group, struct lane *lane, uint32_t *values, int64_t n)
{
  return nccl_check(ncclAllReduce(values, values, (size_t)n, ncclUint32, ncclMax, group->comm,
                                  cuda_lane(lane)->stream),
                    "an all-reduce");
}

enum status nccl_group_check(struct nccl_group *group)
{
  ncclResult_t error = ncclSuccess;
  return nccl_check(ncclCommGetAsyncError(group->comm, &error), "asking for errors")
             ?: nccl_check(error, "a collective");
}
