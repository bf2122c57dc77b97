/* Data of a member as a function of its number and the element, so that each rank computes the
 * result of every collective by itself. `salt` makes several sets of them. */
#pragma once

#include "base/dtype.h"
#include "base/exactsum.h"

enum { DATA_MEMBERS = 6 }; /* at most */

float data_value(int salt, int member, int64_t element);
/* Byte i of the message of a member for another one. */
unsigned char data_byte(int salt, int from, int to, int64_t i);
/* A message of varying length, of at most `most` bytes: the least, all, and any between them.
 * data_message() writes its length, and then its bytes. */
int64_t data_length(int from, int to, int64_t most);
void data_message(int salt, int from, int to, int64_t most, unsigned char *message);

/* Adjacent pairs, then pairs of pairs, an odd one passes: by recursion, a range splits at the
 * largest power of two below its length. */
float data_tree_sum(const float *x, int n);
/* What arrives of x in a group of `size`: alone nothing is sent. */
float data_arrives(int size, enum dtype wire, float x);
/* Sum `s` of 2 of 50 values of a member, normalized with those of all members. */
void data_sum(int salt, int members, const int member[], struct exactsum sums[2]);
