/* A small state to save: tensors of 1 to 4 dimensions, of odd sizes and several types. Their bytes
 * are a function of (tensor, position). They are spread over the ranks as a sharding strategy would
 * do, and in other ways. */
#pragma once

#include "comm/comm.h"
#include "io/checkpoint/checkpoint.h"

enum { SAMPLE_MOST = 16 };

enum sample_split {
  SPLIT_EVEN,     /* rank r has the r-th part */
  SPLIT_REVERSED, /* the ranks' parts in falling order */
  SPLIT_UNEVEN,   /* odd cuts, another order for each tensor, some parts empty */
  SPLIT_ONE,      /* each tensor on one rank */
  SPLIT_ROWS,     /* cut along the first dimensions that can be divided */
  SPLIT_COLUMNS,  /* cut along the last ones */
  SPLIT_GRID,     /* cut into halves along several dimensions */
  SPLIT_GRIDS,    /* the same along others for each tensor; ranks of one piece are replicas */
  SPLIT_REPLICAS, /* all ranks hold everything, one of them writes */
  SPLIT_WHOLE,    /* the same */
  SPLIT_MIDDLE,   /* all ranks hold the same inner part: for reading */
  SPLIT_TWICE,    /* rank 0 holds everything, and so do the others together: for reading */
  SPLIT_COUNT
};

struct sample {
  int n;
  struct io_tensor tensor[SAMPLE_MOST];
  struct checkpoint_meta meta;
};

/* `seed` chooses the values; `big` has one tensor of several MiB. With `fill`, ranges hold the
 * values, else 0xA5. */
void sample_make(struct sample *sample, struct comm *comm, enum sample_split split, int64_t step,
                 int seed, bool big, bool fill);
void sample_free(struct sample *sample);
unsigned char sample_byte(int seed, int tensor, int64_t at);
int64_t sample_elements(const struct io_tensor *tensor);
/* Number of bytes in this rank's ranges that are not what sample_make(fill) puts there. */
int64_t sample_wrong(const struct sample *sample, int seed);

/* Whether meta data are those of sample_make(). */
bool sample_is_meta(const struct checkpoint_meta *meta, struct comm *comm, int64_t step, int seed);

/* A folder of this job's own, the same on all ranks; remove takes its files too. */
char *sample_folder(struct comm *comm);
void sample_folder_remove(struct comm *comm, char *dir);
