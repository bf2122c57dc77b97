/* Tagged allocation. All memory that Sluice keeps for longer than one call comes from here. So the
 * prediction of `sluice plan` can be compared with the memory of the process, and a test can prove
 * that a running step allocates nothing. Thread-safe. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum mem_tag {
  MEM_ARENA_PERSISTENT, /* parameters, optimizer state: the plan's persistent arena */
  MEM_ARENA_TRANSIENT,  /* windows, gradients, activations, workspace: the plan's transient arena */
  MEM_DATA,             /* batches, token shards, tokenizer tables */
  MEM_IO,               /* checkpoint staging */
  MEM_META,             /* plans, decks, tables, strings */
  MEM_TAG_COUNT
};

const char *mem_tag_name(enum mem_tag tag);
/* In the largest unit (B, KiB, ... EiB) that gives at least 1: "1.50 GiB", "320 B". */
struct mem_amount {
  char text[32];
};
struct mem_amount mem_amount(double bytes);

/* `bytes` of zeroed memory, aligned to 64 bytes. Requests of 2 MiB or more (arenas) are
 * page-aligned mmap memory with transparent huge pages advised, untouched before use. *out is set
 * on success only; bytes == 0 gives a valid pointer. */
enum status mem_alloc(enum mem_tag tag, size_t bytes, void **out);

/* The same for `count` elements of the type that the pointer *to points to. */
#define mem_new(tag, count, to) mem_alloc((tag), (size_t)(count) * sizeof **(to), (void **)(to))

/* Grow or shrink; content is kept up to the smaller size. *ptr may be NULL. */
enum status mem_resize(enum mem_tag tag, size_t bytes, void **ptr);

/* Makes room for `need` elements in an array of *room elements of `size` bytes. If it must grow, it
 * gets room for half more than `need`, so that appending has constant amortised cost. *room is set
 * on success only. */
enum status mem_grow(enum mem_tag tag, void **array, int64_t *room, int64_t need, int64_t size);

/* Takes NULL. */
void mem_free(void *ptr);

char *mem_strdup(const char *text); /* MEM_META; NULL when memory is out (status set) */
char *mem_printf(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Counts memory from other allocators, such as a GPU's, in mem_usage(). A positive count is an
 * allocation, a negative one a release. */
void mem_note(enum mem_tag tag, int64_t bytes);

struct mem_usage {
  int64_t bytes, peak_bytes, calls;
};
struct mem_usage mem_usage(enum mem_tag tag); /* now held, most ever held, allocations so far */
int64_t mem_calls(void);                      /* allocations so far, all tags */
int64_t mem_resident_bytes(void);             /* VmRSS of this process, -1 if unknown */
int64_t mem_available_bytes(void); /* memory that this machine can still give without swapping
                                      (MemAvailable), -1 if unknown */
int64_t mem_total_bytes(void);     /* total memory (MemTotal), -1 if unknown */
int64_t mem_limit_bytes(
    void); /* lowest memory limit of the control groups of this process, -1 if there is none */
int64_t mem_lock_limit_bytes(
    void); /* limit of locked memory (RLIMIT_MEMLOCK), -1 if there is none */

/* Whether available and total memory are only a little more than the memory in use, and grow with
 * it. That is so in a sandbox (gVisor) whose kernel manages no pages of its own. Unlike Linux, it
 * reports no zones in `proc` ("/proc"). If memory is plugged in at run time, the total is the
 * current one. */
bool mem_total_grows(const char *proc);
