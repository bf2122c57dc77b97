/* Part of kernels_body.h: blocks of messages with short exponents (compress/rule/exponent.h). Loops
 * over the lanes of a block are innermost, and the compiler makes vectors of them. */

INLINE uint32_t exponent_of(uint32_t word)
{
  return word >> 23 & 0xff;
}

/* m elements. Elements that pad the block get the largest exponent, which is no escape. */
INLINE void fill_exponents(int64_t m, uint32_t largest, uint32_t *word)
{
  for (int64_t i = m; i < EXPONENT_BLOCK; i++)
    word[i] = largest << 23;
}

/* Number of elements of a whole block with exponents that are `least` or more below the largest
 * one. */
INLINE uint32_t count_far(const uint32_t *word, uint32_t largest, uint32_t least)
{
  uint32_t lane[EXPONENT_LANES] = {0}, sum = 0;
  for (int i = 0; i < EXPONENT_BLOCK; i += EXPONENT_LANES)
    for (int l = 0; l < EXPONENT_LANES; l++)
      lane[l] += (int32_t)(largest - exponent_of(word[i + l])) >= (int32_t)least;
  for (int l = 0; l < EXPONENT_LANES; l++)
    sum += lane[l];
  return sum;
}

static uint32_t exponent_measure(int64_t m, int size, const uint32_t *x)
{
  uint32_t word[EXPONENT_BLOCK], largest[EXPONENT_LANES] = {0}, any[EXPONENT_LANES] = {0};
  struct exponent_stats s = {0};
  memcpy(word, x, (size_t)m * sizeof *x);
  memset(word + m, 0, (size_t)(EXPONENT_BLOCK - m) * sizeof *word);
  for (int i = 0; i < EXPONENT_BLOCK; i += EXPONENT_LANES)
    for (int l = 0; l < EXPONENT_LANES; l++) {
      const uint32_t e = exponent_of(word[i + l]);
      largest[l] = e > largest[l] ? e : largest[l];
      any[l] |= word[i + l];
    }
  for (int l = 0; l < EXPONENT_LANES; l++) {
    s.largest = largest[l] > s.largest ? largest[l] : s.largest;
    s.any |= any[l];
  }
  fill_exponents(m, s.largest, word);
  for (int width = 1; width < EXPONENT_WHOLE; width++)
    s.far[width] = count_far(word, s.largest, (1u << width) - 1);
  return exponent_form(&s, m, size);
}

/* Planes of codes, and for each lane which elements have an escape. */
INLINE void pack_planes(uint32_t form, const uint32_t *word, uint32_t *planes, uint32_t *escaped)
{
  const int width = exponent_width(form);
  const uint32_t largest = exponent_largest(form), most = (1u << width) - 1;
  const uint32_t escapes = width >= 1 && width < EXPONENT_WHOLE;
  memset(planes, 0, (size_t)exponent_low_at(width));
  for (int k = 0; k < EXPONENT_BLOCK / EXPONENT_LANES; k++) {
    uint32_t code[EXPONENT_LANES];
    for (int l = 0; l < EXPONENT_LANES; l++) {
      const uint32_t far = largest - exponent_of(word[k * EXPONENT_LANES + l]);
      code[l] = far < most ? far : most;
      escaped[l] |= (escapes & (far >= most)) << k;
    }
    for (int b = 0; b < width; b++)
      for (int l = 0; l < EXPONENT_LANES; l++)
        planes[b * EXPONENT_LANES + l] |= (code[l] >> b & 1) << k;
  }
}

static void exponent_pack(uint32_t form, int64_t m, int size, const uint32_t *x, void *to)
{
  const int width = exponent_width(form);
  uint32_t word[EXPONENT_BLOCK], escaped[EXPONENT_LANES] = {0};
  const int64_t used = exponent_used(form, m, size);
  char *data = to;
  memset(data + used, 0, (size_t)(exponent_round(used) - used));
  if (width > EXPONENT_WHOLE && size == 4)
    memcpy(to, x, (size_t)used);
  for (int64_t i = 0; width == EXPONENT_RAW && size == 2 && i < m; i++)
    ((uint16_t *)to)[i] = (uint16_t)(x[i] >> 16);
  if (width > EXPONENT_WHOLE)
    return;
  memcpy(word, x, (size_t)m * sizeof *x);
  fill_exponents(m, exponent_largest(form), word);
  pack_planes(form, word, to, escaped);
  uint16_t *low = (uint16_t *)(void *)(data + exponent_low_at(width));
  uint8_t *high = (uint8_t *)(data + exponent_high_at(width, m, size)), *rest = high + m;
  for (int64_t i = 0; size == 4 && i < m; i++)
    low[i] = (uint16_t)word[i];
  for (int64_t i = 0; i < m; i++)
    high[i] = (uint8_t)((word[i] >> 24 & 0x80) | (word[i] >> 16 & 0x7f));
  for (int l = 0; l < EXPONENT_LANES; l++)
    for (uint32_t left = escaped[l]; left; left &= left - 1)
      *rest++ = (uint8_t)exponent_of(word[__builtin_ctz(left) * EXPONENT_LANES + l]);
}

/* The elements of a lane that have an escape, as bits. */
INLINE uint32_t escapes_of_lane(int width, const uint32_t *planes, int l)
{
  uint32_t escaped = width >= 1 && width < EXPONENT_WHOLE ? ~0u : 0;
  for (int b = 0; b < width; b++)
    escaped &= planes[b * EXPONENT_LANES + l];
  return escaped;
}

INLINE void unpack_codes(int width, const uint32_t *planes, uint32_t largest, uint32_t *exponent)
{
  for (int k = 0; k < EXPONENT_BLOCK / EXPONENT_LANES; k++) {
    uint32_t code[EXPONENT_LANES] = {0};
    for (int b = 0; b < width; b++)
      for (int l = 0; l < EXPONENT_LANES; l++)
        code[l] |= (planes[b * EXPONENT_LANES + l] >> k & 1) << b;
    for (int l = 0; l < EXPONENT_LANES; l++)
      exponent[k * EXPONENT_LANES + l] = largest - code[l];
  }
}

/* False: the data have another number of escapes than the form says, and out is not written. */
static bool exponent_unpack(uint32_t form, int64_t m, int size, const void *from, uint32_t *out)
{
  const int width = exponent_width(form);
  const char *data = from;
  uint32_t word[EXPONENT_BLOCK], escapes = 0;
  if (width > EXPONENT_WHOLE) {
    memset(out, 0, (size_t)m * sizeof *out);
    if (size == 4)
      memcpy(out, from, (size_t)exponent_used(form, m, size));
    for (int64_t i = 0; width == EXPONENT_RAW && size == 2 && i < m; i++)
      out[i] = (uint32_t)((const uint16_t *)from)[i] << 16;
    return true;
  }
  for (int l = 0; l < EXPONENT_LANES; l++)
    escapes += (uint32_t)__builtin_popcount(escapes_of_lane(width, from, l));
  if (escapes != exponent_escapes(form))
    return false;
  const uint16_t *low = (const uint16_t *)(const void *)(data + exponent_low_at(width));
  const uint8_t *high = (const uint8_t *)(data + exponent_high_at(width, m, size)),
                *rest = high + m;
  unpack_codes(width, from, exponent_largest(form), word);
  for (int l = 0; l < EXPONENT_LANES; l++)
    for (uint32_t left = escapes_of_lane(width, from, l); left; left &= left - 1)
      word[__builtin_ctz(left) * EXPONENT_LANES + l] = *rest++;
  for (int64_t i = 0; i < m; i++)
    word[i] = exponent_join(word[i], high[i], size == 4 ? low[i] : 0);
  memcpy(out, word, (size_t)m * sizeof *out);
  return true;
}
