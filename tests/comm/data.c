#include "data.h"

#include <string.h>

float data_value(int salt, int member, int64_t element)
{
  uint32_t h = (uint32_t)(salt * 7 + member + 1) * 2654435761u ^ (uint32_t)element * 2246822519u;
  h ^= h >> 15;
  return ((float)(h % 20011) - 10000.0f) / 7.0f;
}

unsigned char data_byte(int salt, int from, int to, int64_t i)
{
  const uint32_t h = (uint32_t)((salt * 7 + from) * DATA_MEMBERS + to + 1) * 2654435761u ^
                     (uint32_t)i * 2246822519u;
  return (unsigned char)(h >> 11);
}

int64_t data_length(int from, int to, int64_t most)
{
  const int64_t least = (int64_t)sizeof(int64_t);
  const uint32_t h = (uint32_t)(from * DATA_MEMBERS + to + 1) * 2246822519u;
  return (from + to) % 3 == 0 ? most : (from + to) % 3 == 1 ? least : least + h % (most - least);
}

void data_message(int salt, int from, int to, int64_t most, unsigned char *message)
{
  const int64_t length = data_length(from, to, most);
  memcpy(message, &length, sizeof length);
  for (int64_t i = (int64_t)sizeof length; i < length; i++)
    message[i] = data_byte(salt, from, to, i);
}

float data_tree_sum(const float *x, int n)
{
  if (n == 1)
    return x[0];
  int half = 1;
  while (2 * half < n)
    half *= 2;
  return data_tree_sum(x, half) + data_tree_sum(x + half, n - half);
}

float data_arrives(int size, enum dtype wire, float x)
{
  return wire == DTYPE_BF16 && size > 1 ? f32_from_bf16(bf16_from_f32(x)) : x;
}

void data_sum(int salt, int members, const int member[], struct exactsum sums[2])
{
  for (int s = 0; s < 2; s++) {
    exactsum_zero(&sums[s]);
    for (int m = 0; m < members; m++)
      for (int i = 0; i < 50; i++)
        exactsum_add(&sums[s], data_value(salt, member[m], i) * (s ? 1e-30 : 1e30));
    exactsum_normalize(&sums[s]);
  }
}
