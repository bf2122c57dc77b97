/* Part of kernels_body.h: frames of quantised messages (compress/rule/quantise.h). Loops over the
 * lanes of a frame are innermost, and the compiler makes vectors of them. */

/* Most elements of a lane's chunk, times lanes. Levels of a sum over parts: an int counts fewer. */
enum { QUANT_GROUP = 32 * QUANT_LANES, QUANT_DEPTH = 33 };

/* Butterflies of n pairs, which are `apart` from each other. */
INLINE void butterflies(int n, int apart, float *x)
{
  for (int i = 0; i < n; i++) {
    const float sum = x[i] + x[i + apart], difference = x[i] - x[i + apart];
    x[i] = sum;
    x[i + apart] = difference;
  }
}

/* A transform needs QUANT_ROTATED rows of an element per lane. n is a multiple of them. */
static void rotate_groups(int64_t n, float *x)
{
  enum { ROWS = QUANT_ROTATED, N = ROWS * QUANT_LANES };
  for (; n > 0; n -= N, x += N) {
    for (int half = ROWS / 2 * QUANT_LANES; half >= QUANT_LANES; half /= 2)
      for (int at = 0; at < N; at += 2 * half)
        butterflies(half, half, x + at);
    for (int at = 0; at < N; at += QUANT_LANES)
      butterflies(16, 16, x + at);
    for (int at = 0; at < N; at += 16)
      butterflies(8, 8, x + at);
    for (int i = 0; i < N; i++)
      x[i] *= QUANT_ROTATION;
  }
}

INLINE float fold_lanes(float *lane)
{
  for (int half = QUANT_LANES / 2; half > 0; half /= 2)
    for (int l = 0; l < half; l++)
      lane[l] += lane[l + half];
  return lane[0];
}

INLINE float largest(int64_t n, const float *x)
{
  int32_t lane[QUANT_LANES] = {0}, top = 0;
  for (int64_t j = 0; j < n; j += QUANT_LANES)
    for (int l = 0; l < QUANT_LANES; l++) {
      const int32_t magnitude = (int32_t)(f32_bits(x[j + l]) & 0x7fffffff);
      lane[l] = magnitude > lane[l] ? magnitude : lane[l];
    }
  for (int l = 0; l < QUANT_LANES; l++)
    top = lane[l] > top ? lane[l] : top;
  return f32_from_bits((uint32_t)top);
}

static float max_magnitude(int64_t n, const float *x)
{
  const int64_t whole = n / QUANT_LANES * QUANT_LANES;
  float rest[QUANT_LANES] = {0};
  memcpy(rest, x + whole, (size_t)(n - whole) * sizeof *x);
  const uint32_t a = f32_bits(largest(whole, x)), b = f32_bits(largest(QUANT_LANES, rest));
  return f32_from_bits(a > b ? a : b);
}

INLINE struct quant_stats stats_of(int needs, int64_t n, const float *x)
{
  float positive[QUANT_LANES] = {0}, negative[QUANT_LANES] = {0}, negatives[QUANT_LANES] = {0},
        magnitudes[QUANT_LANES] = {0}, squares[QUANT_LANES] = {0};
  struct quant_stats s = {.max = needs & QUANT_SUMS ? 0 : largest(n, x)};
  for (int64_t j = 0; needs & QUANT_SIGNS && j < n; j += QUANT_LANES)
    for (int l = 0; l < QUANT_LANES; l++) {
      const int32_t bits = (int32_t)f32_bits(x[j + l]), sign = bits >> 31;
      positive[l] += f32_from_bits((uint32_t)(bits & ~sign));
      negative[l] += f32_from_bits((uint32_t)(bits & sign & INT32_MAX));
      negatives[l] += (float)((bits < 0) & (bits > INT32_MIN)); /* not -0 */
    }
  for (int64_t j = 0; needs & QUANT_MAGNITUDES && j < n; j += QUANT_LANES)
    for (int l = 0; l < QUANT_LANES; l++)
      magnitudes[l] += quant_magnitude(x[j + l]);
  for (int64_t j = 0; needs & QUANT_SQUARES && j < n; j += QUANT_LANES)
    for (int l = 0; l < QUANT_LANES; l++)
      squares[l] += x[j + l] * x[j + l];
  s.positive = fold_lanes(positive);
  s.negative = fold_lanes(negative);
  s.negatives = fold_lanes(negatives);
  s.magnitudes = fold_lanes(magnitudes);
  s.squares = fold_lanes(squares);
  return s;
}

/* The scale of a block. m: its elements without those that fill the frame. False: they are not
 * finite, and count as zeros. */
INLINE bool settle_block(enum quantiser rule, const struct quantise *op, int64_t m, const float *x,
                         struct quant_scale *scale)
{
  const int needs = quant_needs_of(rule);
  struct quant_stats s = {.max = 0};
  if (needs & QUANT_GLOBAL)
    s.max = *op->largest;
  else
    s = stats_of(needs, op->block, x);
  s.n = (float)m;
  return quant_settle(rule, s, op, scale);
}

/* Words of a frame at x. scale: of each of its blocks. */
INLINE void encode_words(enum quantiser rule, const struct quantise *op, int64_t first,
                         int64_t frame, const float *x, const struct quant_scale *scale,
                         uint32_t *words)
{
  const int needs = quant_needs_of(rule), each = quant_chunk_of(rule),
            shift = quant_has_frames(rule) ? quant_log2(op->block) : 63; /* 63: one block */
  const struct rounding_key key = rounding_key_make(op->seed, first);
  uint32_t state[QUANT_LANES], random[QUANT_LANES] = {0};
  for (int l = 0; needs & QUANT_RANDOM && l < QUANT_LANES; l++)
    state[l] = rounding_mix(key, (uint32_t)first + (uint32_t)l);
  for (int64_t at = 0; at < frame; words += QUANT_LANES) {
    uint32_t word[QUANT_LANES] = {0}, unit = 1;
    for (int k = 0; k < each; k++, at += QUANT_LANES, unit *= quant_codes_of(rule)) {
      const struct quant_scale mine = scale[at >> shift];
      for (int l = 0; needs & QUANT_RANDOM && l < QUANT_LANES; l++) {
        random[l] = k & 1 ? random[l] >> 16 : quant_random(state[l]);
        state[l] = k & 1 ? state[l] : quant_next(state[l]);
      }
      for (int l = 0; l < QUANT_LANES; l++)
        word[l] += unit * quant_code(rule, x[at + l], mine, op, random[l] & 0xffff);
    }
    memcpy(words, word, sizeof word);
  }
}

INLINE void encode_frame(enum quantiser rule, const struct quantise *op, int64_t number, int64_t m,
                         const float *x, struct quant_frame to)
{
  const int needs = quant_needs_of(rule);
  const int64_t frame = quant_frame_of(rule, op->block), block = op->block;
  struct quant_scale scale[QUANT_LANES];
  float whole[QUANT_MOST_BLOCK];
  if (m < frame || needs & QUANT_ROTATE) {
    memcpy(whole, x, (size_t)m * sizeof *x);
    memset(whole + m, 0, (size_t)(frame - m) * sizeof *x);
    x = whole;
  }
  if (needs & QUANT_ROTATE)
    rotate_groups(frame, whole);
  for (int64_t at = 0, i = 0; at < frame; at += block, i++) {
    const int64_t left = m - at < block ? m - at : block;
    if (!settle_block(rule, op, left, x + at, &scale[i])) {
      if (x != whole)
        memcpy(whole, x, (size_t)frame * sizeof *x);
      memset(whole + at, 0, (size_t)block * sizeof *x);
      x = whole;
    }
    for (int k = 0; left > 0 && k < quant_scales_of(rule); k++)
      to.scale[k * to.apart + i] = quant_half(scale[i].at[k]);
  }
  encode_words(rule, op, number * frame, frame, x, scale, to.words);
}

#define QUANT_CASE(name, kind, title, source)                                                      \
  case QUANT_##name: encode_frame(QUANT_##name, op, number, m, x, to); break;
static void quantise(const struct quantise *op, int64_t number, int64_t m, const float *x,
                     struct quant_frame to)
{
  switch (op->rule) {
    CODEC_QUANTISERS(QUANT_CASE)
  default: break;
  }
}
#undef QUANT_CASE

/* Scales of the blocks of a frame in a message. The second scale of a block lies `second` scales
 * after its first one. A block has 2^shift rows. The vector has no block of the frame after
 * `last`. */
struct frame_scales {
  const uint16_t *at;
  int64_t second, last;
  int shift;
};

/* One chunk of each lane, from row `row` of a frame on. */
INLINE void decode_words(enum quantiser rule, const uint32_t *word, struct frame_scales scales,
                         int64_t row, float *out)
{
  const uint32_t codes = quant_codes_of(rule);
  uint32_t rest[QUANT_LANES];
  memcpy(rest, word, sizeof rest);
  for (int k = 0; k < quant_chunk_of(rule); k++) {
    const int64_t block = quant_has_frames(rule) ? (row + k) >> scales.shift : 0;
    const uint16_t *at = scales.at + (block < scales.last ? block : scales.last);
    const struct quant_scale mine = {{quant_from_half(at[0]), quant_from_half(at[scales.second])},
                                     0};
    for (int l = 0; l < QUANT_LANES; l++) {
      out[k * QUANT_LANES + l] = quant_value(rule, rest[l] % codes, mine);
      rest[l] /= codes;
    }
  }
}

typedef void decode_function(const uint32_t *word, struct frame_scales scales, int64_t row,
                             float *out);
#define QUANT_DECODE(name, kind, title, source)                                                    \
  static void decode_##name(const uint32_t *word, struct frame_scales scales, int64_t row,         \
                            float *out)                                                            \
  {                                                                                                \
    decode_words(QUANT_##name, word, scales, row, out);                                            \
  }
CODEC_QUANTISERS(QUANT_DECODE)
#undef QUANT_DECODE

/* One frame of each message. scales: of the first message. */
struct frames {
  decode_function *decode;
  int64_t stride, group; /* group: elements of a chunk of each lane */
  bool votes;
  struct frame_scales scales;
};

INLINE const uint16_t *scale_of(const struct frames *b, int part)
{
  return (const uint16_t *)(const void *)((const char *)b->scales.at + part * b->stride);
}

/* The sum of parts [first, first + count) of a group, in work[0]. row: where the group begins. */
static void sum_group(const struct frames *b, const uint32_t *word, int64_t row, int first,
                      int count, float (*work)[QUANT_GROUP])
{
  if (count == 1) {
    static const uint16_t vote[1] = {0x3f80}; /* 1 */
    struct frame_scales scales = b->scales;
    scales.at = b->votes ? vote : scale_of(b, first);
    b->decode((const void *)((const char *)word + first * b->stride), scales, row, work[0]);
    return;
  }
  const int left = kernels_left(count);
  sum_group(b, word, row, first, left, work);
  sum_group(b, word, row, first + left, count - left, work + 1);
  for (int64_t i = 0; i < b->group; i++)
    work[0][i] += work[1][i];
}

static float sum_scales(const struct frames *b, int first, int count)
{
  if (count == 1)
    return quant_from_half(*scale_of(b, first));
  const int left = kernels_left(count);
  return sum_scales(b, first, left) + sum_scales(b, first + left, count - left);
}

static void put_group(enum quant_mode mode, int64_t m, const float *sum, float *out)
{
  if (mode == QUANT_SET || mode == QUANT_SET_EACH)
    memcpy(out, sum, (size_t)m * sizeof *out);
  else if (mode != QUANT_SUBTRACT)
    for (int64_t i = 0; i < m; i++)
      out[i] += sum[i];
  else
    for (int64_t i = 0; i < m; i++)
      out[i] -= sum[i];
}

#define QUANT_DECODE(name, kind, title, source) [QUANT_##name] = decode_##name,
static void dequantise(const struct quantise *op, int parts, int64_t stride,
                       struct quant_frame from, enum quant_mode mode, int64_t m, float *out)
{
  static decode_function *const decode[QUANT_COUNT] = {CODEC_QUANTISERS(QUANT_DECODE)};
  const int needs = quant_needs_of(op->rule);
  const struct frames b = {.decode = decode[op->rule],
                           .stride = stride,
                           .group = quant_chunk_of(op->rule) * QUANT_LANES,
                           .votes = needs & QUANT_VOTES,
                           .scales = {.at = from.scale,
                                      .second = quant_scales_of(op->rule) > 1 ? from.apart : 0,
                                      .shift = quant_log2(op->block / QUANT_LANES),
                                      .last = (m - 1) / op->block}};
  const float votes = b.votes ? sum_scales(&b, 0, parts) : 0;
  float work[QUANT_DEPTH][QUANT_GROUP];
  for (int64_t at = 0; at < m; at += b.group, from.words += QUANT_LANES) {
    sum_group(&b, from.words, at / QUANT_LANES, 0, parts, work);
    if (needs & QUANT_ROTATE)
      rotate_groups(b.group, work[0]);
    for (int64_t i = 0; b.votes && i < b.group; i++)
      work[0][i] = (work[0][i] > 0 ? 1.0f : work[0][i] < 0 ? -1.0f : 0.0f) * votes;
    put_group(mode, m - at < b.group ? m - at : b.group, work[0], out + at);
  }
}
#undef QUANT_DECODE
