/* What would make the plans of a job fit: keys, by the plans that they make, and what no key can do. Who asks says what there is, and judges. */
#ifndef SLUICE_PLAN_CURES_H
#define SLUICE_PLAN_CURES_H

#include "plan/vary.h"

enum room { ROOM_DEVICE, ROOM_HOST, ROOM_SHARED, ROOM_DISK, ROOMS };
/* In bytes, of a node, but for the device's, which are of a rank; in doubles: what nobody has may be more than 2^63. */
struct rooms { double need[ROOMS], have[ROOMS]; }; /* have < 0: not known, and so enough */
bool rooms_is_short(const struct rooms *rooms, enum room room);
bool rooms_fit(const struct rooms *rooms);

/* Plans of one job, of which the first has its shape; `judge` says of them, and of others that were made from them, what they need and what there is. */
struct cure_case {
  int n;
  const struct plan *const *plans;
  void (*judge)(const void *arg, int n, const struct plan *const plans[], struct rooms *out);
  const void *arg;
  bool apart;   /* the device has memory of its own */
  int most;     /* cures to be told of */
  bool lengths; /* shorter sequences are tried too, where nothing else is enough */
};

struct cure {
  struct variant variant; /* whose plans are there */
  struct rooms rooms;
  bool fits; /* all of it; else it needs less of what is short */
};

/* Besides keys: whether there would be room with many more ranks, with a much shorter sequence, or with both; and whether the node's memory is short as well. */
struct cure_hopes { bool wanted, ranks, sequence, both, nodes; }; /* wanted: keys that leave the numbers and where things lie alone are not enough */

/* Tells of cures of the first room that is short, in the order of what they cost: those that fit, and, before there is one, where that is of use, what the cheapest ones together leave too large. What
 * does alone is told alone. *fits: of one that fits. One of the rooms is short. Local, pure. */
typedef void cure_tell(void *to, const struct cure *cure);
enum status cures_find(const struct cure_case *job, cure_tell *tell, void *to, bool *fits, struct cure_hopes *hopes);

#endif
