/* Memory that lies apart, as a GPU's does. An allocation is two mappings: what its pointers name,
 * where nothing can be read or written, and what there is in its place. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* `reached`: both are one, for whoever reaches such memory by its pointers. */
void *far_alloc(size_t bytes, bool reached);
void far_free(void *ptr);
int far_allocations(void);
bool far_holds(const void *ptr);
/* The host pointer for a pointer into an allocation. Other pointers are returned unchanged. */
void *far_real(const void *ptr);
/* `bytes` from a pointer on do not leave its allocation; those of others may be anything. */
void far_check(const void *ptr, size_t bytes);
