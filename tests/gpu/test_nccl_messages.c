/* The tests of test_nccl.c, and their oracles, with gpu/nccl.c as NCCL before 2.28 compiles it: no
 * copy engines, and an exchange by messages. */
/* ranks: 2 4 */
#include "test_nccl.c"
