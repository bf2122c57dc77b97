/* Low-rank codecs on the host device. Oracles: the algorithm of rule/lowrank.h, written again with
 * scalars, bit for bit. Singular values by Jacobi's method in fp64 bound the error of a rank from
 * below. The expected error of a random projection is bounded by Halko, Martinsson, Tropp 2011,
 * SIAM Review 53, theorem 10.5. Sums are trees of fp32 additions. Identities are tested too. Bytes
 * around each output and scratch memory guard its ends. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "compress/compress.h"
#include "compress/rule/lowrank.h"
#include "device/device.h"
#include "device/host/kernels.h"
#include "device/lane.h"
#include "device/rounding.h"
#include "fixture.h"

enum { TEAMS = 2, MOST_RANK = 32, ROUNDS = 2 };

static uint64_t draws;

static const char *const names[] = {"powersgd", "gradiveq"};
enum { NAMES = 2 };

/* n elements in rows of `block`. */
static const struct shape {
  int64_t n, block;
  int rank;
} shapes[] = {{5000, 64, 4},     {64 * 64, 64, 1}, {64 * 64 - 1, 64, 5},
              {130 * 96, 96, 7}, {20011, 512, 6},  {300 * 32 + 1, 32, 17}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static struct codec codec_of(const char *name, int64_t block, int rank)
{
  const struct codec_settings settings = {.block = block, .rank = rank};
  struct codec codec;
  if (codec_make(name, &settings, false, &codec))
    fail_msg("%s", status_text());
  return codec;
}

static float *normals(int64_t n)
{
  float *x = guarded(n * 4);
  rng_fill_normal(rng_key_make(1, "low rank"), draws++, 0, n, 0, 1, x);
  return x;
}

/* Exactly the scratch memory that the codec asks for, with NaN in it. */
static struct codec_pass pass_of(const struct codec *codec, int64_t n, int parts, uint64_t seed,
                                 struct lane *lane)
{
  const int64_t bytes = codec_work(codec, n, parts);
  struct codec_pass pass = {lane, n, parts, seed, guarded(bytes)};
  memset(pass.work, 0xff, (size_t)bytes);
  return pass;
}

static void end_pass(const struct codec *codec, const struct codec_pass *pass)
{
  release(pass->work, codec_work(codec, pass->n, pass->parts));
}

static void encode(const struct codec *codec, int64_t n, int parts, uint64_t seed, const float *x,
                   void *messages)
{
  const struct codec_pass pass = pass_of(codec, n, parts, seed, lanes[1]);
  assert_int_equal(codec->ops->encode(codec, &pass, x, messages), STATUS_OK);
  end_pass(codec, &pass);
}

static void decode_sum(const struct codec *codec, int64_t n, int parts, const void *messages,
                       int64_t stride, bool accumulate, float *out)
{
  const struct codec_pass pass = pass_of(codec, n, parts, 0, lanes[1]);
  assert_int_equal(codec->ops->decode_sum(codec, &pass, messages, stride, accumulate, out),
                   STATUS_OK);
  end_pass(codec, &pass);
}

static void subtract(const struct codec *codec, int64_t n, int parts, const void *messages,
                     float *x)
{
  const struct codec_pass pass = pass_of(codec, n, parts, 0, lanes[1]);
  assert_int_equal(codec->ops->subtract(codec, &pass, messages, x), STATUS_OK);
  end_pass(codec, &pass);
}

/* The decoded message of x. Free with release(). */
static float *through(const struct codec *codec, int64_t n, uint64_t seed, const float *x)
{
  const int64_t bytes = codec->ops->bytes(codec, n);
  char *message = guarded(bytes);
  float *out = guarded(n * 4);
  encode(codec, n, 1, seed, x, message);
  decode_sum(codec, n, 1, message, bytes, false, out);
  release(message, bytes);
  return out;
}

static double norm(int64_t n, const float *x)
{
  double sum = 0;
  for (int64_t i = 0; i < n; i++)
    sum += (double)x[i] * x[i];
  return sqrt(sum);
}

static double distance(int64_t n, const float *x, const float *y)
{
  double sum = 0;
  for (int64_t i = 0; i < n; i++)
    sum += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
  return sqrt(sum);
}

/* ---- the algorithm with scalars ---- */

static float dot(int64_t n, const float *a, const float *b)
{
  float lane[32] = {0};
  for (int64_t i = 0; i < n; i++) {
    const float product = a[i] * b[i];
    lane[i % 32] += product;
  }
  for (int half = 16; half > 0; half /= 2)
    for (int l = 0; l < half; l++)
      lane[l] += lane[l + half];
  return lane[0];
}

static void remove_earlier(int64_t block, int k, const float *basis, float *v)
{
  float along[MOST_RANK];
  for (int i = 0; i < k; i++)
    along[i] = dot(block, v, basis + i * block);
  for (int64_t c = 0; c < block; c++)
    for (int i = 0; i < k; i++) {
      const float product = along[i] * basis[i * block + c];
      v[c] -= product;
    }
}

static void orthonormalise(int64_t block, int rank, bool last, float *basis)
{
  int powers[MOST_RANK];
  for (int k = 0; k < rank; k++) {
    float *v = basis + k * block, top = 0;
    int exponent = 0;
    for (int64_t c = 0; c < block; c++)
      top = fmaxf(top, fabsf(v[c]));
    if (top > 0)
      frexpf(top, &exponent);
    powers[k] = top == 0 || exponent < -125 ? 127 : 1 - exponent;
    for (int64_t c = 0; c < block; c++)
      v[c] = ldexpf(v[c], powers[k]);
    remove_earlier(block, k, basis, v);
    const float before = dot(block, v, v);
    remove_earlier(block, k, basis, v);
    const float after = dot(block, v, v);
    for (int64_t c = 0; c < block; c++)
      v[c] = after < before / 4 || after == 0 ? 0 : v[c] * (1 / sqrtf(after));
  }
  for (int64_t i = 0; i < rank * block && !last; i++)
    basis[i] = ldexpf(basis[i], powers[i / block]);
}

/* C^T M of bands of 64 rows, or of as many as make 128 bands; then their sum. */
static void collect(int64_t rows, int64_t block, int rank, const float *m, const float *c,
                    float *basis)
{
  const int64_t band = rows > 64 * 128 ? (rows + 127) / 128 : 64, bands = (rows + band - 1) / band;
  float *sums = malloc((size_t)bands * sizeof *sums);
  for (int k = 0; k < rank; k++)
    for (int64_t column = 0; column < block; column++) {
      for (int64_t b = 0; b < bands; b++) {
        sums[b] = 0;
        for (int64_t r = b * band; r < rows && r < (b + 1) * band; r++) {
          const float product = c[r * rank + k] * m[r * block + column];
          sums[b] += product;
        }
      }
      basis[k * block + column] = tree_sum(sums, bands);
    }
  free(sums);
}

/* part: the number of the vector x among those of a pass. */
static void factorise(const struct codec *codec, int64_t n, int part, uint64_t seed, const float *x,
                      float *basis, float *c)
{
  const int64_t block = codec->set.block, rows = (n + block - 1) / block;
  const int rank = codec->set.rank;
  float *m = calloc((size_t)(rows * block), sizeof *m);
  memcpy(m, x, (size_t)n * sizeof *m);
  for (int64_t i = 0; i < rows * rank; i++)
    c[i] = (float)((int32_t)rounding_bits(seed, part * rows * rank + i) >> 8) / 8388608;
  for (int round = 1; round <= ROUNDS; round++) {
    collect(rows, block, rank, m, c, basis);
    orthonormalise(block, rank, round == ROUNDS, basis);
    for (int64_t r = 0; r < rows; r++)
      for (int k = 0; k < rank; k++)
        c[r * rank + k] = dot(block, m + r * block, basis + k * block);
  }
  free(m);
}

static int64_t up(int64_t n, int64_t to)
{
  return (n + to - 1) / to * to;
}

/* The reference message of x, padded as the codec has it. Free with release(). */
static float *message_of(const struct codec *codec, int64_t n, int part, uint64_t seed,
                         const float *x)
{
  const int64_t rows = (n + codec->set.block - 1) / codec->set.block, rank = codec->set.rank,
                at = up(rank * codec->set.block, 64), all = at + up(rows * rank, 64);
  float *message = guarded(all * 4);
  assert_true(codec->ops->bytes(codec, n) == all * 4);
  memset(message, 0, (size_t)all * 4);
  factorise(codec, n, part, seed, x, message, message + at);
  return message;
}

static void check_messages(const struct codec *codec, int64_t n, int parts, const float *x)
{
  const int64_t bytes = codec->ops->bytes(codec, n);
  for (int t = 0; t < TEAMS; t++) {
    char *messages = guarded(parts * bytes);
    const struct codec_pass pass = pass_of(codec, n, parts, 7, lanes[t]);
    assert_int_equal(codec->ops->encode(codec, &pass, x, messages), STATUS_OK);
    for (int part = 0; part < parts; part++) {
      float *want = message_of(codec, n, part, 7, x + part * n);
      assert_memory_equal(messages + part * bytes, want, (size_t)bytes);
      release(want, bytes);
    }
    end_pass(codec, &pass);
    release(messages, parts * bytes);
  }
}

TEST(messages_are_those_of_scalars)
{
  enum { PARTS = 3 };
  for (int which = 0; which < NAMES; which++)
    for (int s = 0; s < SHAPES; s++) {
      const struct codec codec = codec_of(names[which], shapes[s].block, shapes[s].rank);
      float *x = normals(PARTS * shapes[s].n);
      check_messages(&codec, shapes[s].n, PARTS, x);
      release(x, PARTS * shapes[s].n * 4);
    }
}

/* More than 128 bands of 64 rows: bands become higher. */
TEST(a_tall_matrix_has_higher_bands)
{
  enum { N = 32 * 8300 + 5 };
  const struct codec codec = codec_of("powersgd", 32, 2);
  float *x = normals(N);
  check_messages(&codec, N, 1, x);
  release(x, N * 4);
}

/* Oracle: the plainest of them. The last row is short. */
TEST(all_instruction_sets_give_the_same_bits)
{
  enum { BLOCK = 96, RANK = 7, M = 3, N = 11 * BLOCK - 29 };
  const struct lowrank op = {BLOCK, RANK, 1, 0};
  float *x = normals(N), *c = normals(11 * RANK);
  float basis[2][RANK * BLOCK], along[2][RANK], out[2][BLOCK] = {{0}};
  for (int v = 0; kernels_variant(v); v++) {
    const struct kernels *k = kernels_variant(v);
    const int i = v > 0;
    k->lowrank_collect(&op, 11, N, x, c, basis[i]);
    k->lowrank_orthonormalise(&op, false, basis[i]);
    k->lowrank_orthonormalise(&op, true, basis[i]);
    k->lowrank_project(&op, BLOCK - 29, x + 10 * BLOCK, basis[i], RANK, along[i]);
    k->lowrank_expand(&op, M, &(struct lowrank_row){basis[i], c, 0}, QUANT_SET, BLOCK - 29, out[i]);
    if (v == 0)
      continue;
    assert_memory_equal(basis[1], basis[0], sizeof basis[0]);
    assert_memory_equal(along[1], along[0], sizeof along[0]);
    assert_memory_equal(out[1], out[0], sizeof out[0]);
  }
  release(c, 11 * RANK * 4);
  release(x, N * 4);
}

/* ---- errors ---- */

/* M of which the k-th of `block` singular values is about value(k), from random factors. */
static float *spectrum(int64_t rows, int64_t block, double (*value)(int64_t k))
{
  float *x = guarded(rows * block * 4), *left = normals(rows * block),
        *right = normals(block * block);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < block; c++) {
      double sum = 0;
      for (int64_t k = 0; k < block && value(k) > 0; k++)
        sum += value(k) * left[r * block + k] * right[k * block + c];
      x[r * block + c] = (float)sum;
    }
  release(right, block * block * 4);
  release(left, rows * block * 4);
  return x;
}

static double harmonic(int64_t k)
{
  return 1.0 / (double)(k + 1);
}

static double root(int64_t k)
{
  return 1 / sqrt((double)(k + 1));
}

static double five(int64_t k)
{
  return k < 5 ? pow(10, -0.5 * (double)k) : 0;
}

static int descending(const void *a, const void *b)
{
  const double x = *(const double *)a, y = *(const double *)b;
  return (x < y) - (x > y);
}

/* One rotation of rows and columns p and q of a symmetric matrix makes its element [p][q] zero. */
static void rotate(int64_t n, double *a, int64_t p, int64_t q)
{
  const double angle = 0.5 * atan2(2 * a[p * n + q], a[q * n + q] - a[p * n + p]), c = cos(angle),
               s = sin(angle);
  for (int64_t i = 0; i < n; i++) {
    const double x = a[i * n + p], y = a[i * n + q];
    a[i * n + p] = c * x - s * y;
    a[i * n + q] = s * x + c * y;
  }
  for (int64_t i = 0; i < n; i++) {
    const double x = a[p * n + i], y = a[q * n + i];
    a[p * n + i] = c * x - s * y;
    a[q * n + i] = s * x + c * y;
  }
}

/* tail[k]: the norm of all singular values of M but the largest k, for k <= block. */
static void tails(int64_t rows, int64_t block, const float *x, double *tail)
{
  double *gram = calloc((size_t)(block * block), sizeof *gram), sum = 0;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < block; i++)
      for (int64_t j = 0; j < block; j++)
        gram[i * block + j] += (double)x[r * block + i] * x[r * block + j];
  for (int sweep = 0; sweep < 12; sweep++)
    for (int64_t p = 0; p < block; p++)
      for (int64_t q = p + 1; q < block; q++)
        rotate(block, gram, p, q);
  for (int64_t i = 0; i < block; i++)
    tail[i] = gram[i * block + i];
  qsort(tail, (size_t)block, sizeof *tail, descending);
  tail[block] = 0;
  for (int64_t i = block - 1; i >= 0; i--) {
    sum += tail[i] > 0 ? tail[i] : 0;
    tail[i] = sqrt(sum);
  }
  free(gram);
}

static double error_of(const struct codec *codec, int64_t n, uint64_t seed, const float *x)
{
  float *out = through(codec, n, seed, x);
  const double error = distance(n, out, x);
  release(out, n * 4);
  return error;
}

/* The error of factors after so many rounds. */
static double error_after(int rounds, int64_t n, int64_t block, int rank, uint64_t seed,
                          const float *x)
{
  const struct lowrank op = {block, rank, rounds, seed};
  const int64_t rows = lowrank_rows(&op, n), bytes = lowrank_work(&op, n, 1) * 4;
  float *basis = guarded(rank * block * 4), *c = guarded(rows * rank * 4), *work = guarded(bytes),
        *left = guarded(n * 4);
  const struct factors factors = {basis, c, 0};
  memcpy(left, x, (size_t)n * 4);
  assert_int_equal(device->ops->factorise(lanes[1], &op, n, 1, x, &factors, work), STATUS_OK);
  assert_int_equal(device->ops->expand(lanes[1], &op, n, 1, &factors, QUANT_SUBTRACT, left),
                   STATUS_OK);
  const double error = norm(n, left);
  release(left, n * 4);
  release(work, bytes);
  release(c, rows * rank * 4);
  release(basis, rank * block * 4);
  return error;
}

/* No error is below the best one of its rank. After one round the mean over seeds is within the
 * bound for each target rank k < rank - 1. The second round brings it to `near` times the best. */
static void check_errors(double (*value)(int64_t k), double near)
{
  enum { ROWS = 150, BLOCK = 64, RANK = 16, SEEDS = 20, N = ROWS * BLOCK };
  float *x = spectrum(ROWS, BLOCK, value);
  double tail[BLOCK + 1], mean[2] = {0};
  tails(ROWS, BLOCK, x, tail);
  for (int rounds = 1; rounds <= 2; rounds++)
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
      const double error = error_after(rounds, N, BLOCK, RANK, seed, x);
      assert_true(error >= tail[RANK] * (1 - 1e-4));
      mean[rounds - 1] += error / SEEDS;
    }
  for (int k = 1; k < RANK - 1; k++)
    assert_true(mean[0] <= sqrt(1 + (double)k / (RANK - k - 1)) * tail[k]);
  print_message("errors over the best one: %.3f, then %.3f\n", mean[0] / tail[RANK],
                mean[1] / tail[RANK]);
  assert_true(mean[1] < mean[0]);
  assert_true(mean[1] <= near * tail[RANK]);
  release(x, N * 4);
}

TEST(errors_are_near_the_best)
{
  check_errors(harmonic, 1.1);
  check_errors(root, 1.1);
}

TEST(a_matrix_of_low_rank_arrives)
{
  enum { ROWS = 90, BLOCK = 128, N = ROWS * BLOCK - 50 };
  float *x = spectrum(ROWS, BLOCK, five);
  for (int64_t i = N; i < ROWS * BLOCK; i++)
    x[i] = 0;
  for (int which = 0; which < NAMES; which++)
    for (int rank = 6; rank <= 8; rank++) { /* the cut row is one more dimension */
      const struct codec codec = codec_of(names[which], BLOCK, rank);
      const double error = error_of(&codec, N, 3, x);
      assert_true(error <= 1e-5 * norm(N, x));
    }
  release(x, ROWS * BLOCK * 4);
}

/* Error feedback relies on it (Karimireddy et al. 2019, arXiv:1901.09847). */
TEST(residual_is_never_longer)
{
  for (int which = 0; which < NAMES; which++)
    for (int s = 0; s < SHAPES; s++) {
      const struct codec codec = codec_of(names[which], shapes[s].block, shapes[s].rank);
      float *x = normals(shapes[s].n);
      for (uint64_t seed = 0; seed < 5; seed++)
        assert_true(error_of(&codec, shapes[s].n, seed, x) <
                    (1 - 0.2 * shapes[s].rank / (double)shapes[s].block) * norm(shapes[s].n, x));
      release(x, shapes[s].n * 4);
    }
}

/* ---- hard matrices ---- */

/* Rows of the basis are orthonormal, or zero. */
static void check_basis(const struct codec *codec, const float *basis, int zeros)
{
  const int64_t block = codec->set.block;
  for (int i = 0; i < codec->set.rank; i++) {
    const double size = norm(block, basis + i * block);
    zeros -= size == 0;
    if (size != 0 && !(fabs(size - 1) < 1e-6))
      fail_msg("%s: row %d of the basis has the norm %g", codec->ops->name, i, size);
    for (int j = 0; j < i; j++) {
      double product = 0;
      for (int64_t c = 0; c < block; c++)
        product += (double)basis[i * block + c] * basis[j * block + c];
      assert_true(fabs(product) < 1e-6);
    }
  }
  assert_int_equal(zeros, 0);
}

/* Elements of `columns` columns only, of this size. */
static float *narrow(int64_t n, int64_t block, int columns, float size)
{
  float *x = normals(n);
  for (int64_t i = 0; i < n; i++)
    x[i] = i % block % 20 == 3 && i % block / 20 < columns ? x[i] * size : 0;
  return x;
}

/* Rank 8 of fewer dimensions: the rest of the basis is zeros, and all of x arrives. */
TEST(dependent_vectors_become_zeros)
{
  enum { N = 70 * 96, RANK = 8 };
  static const float sizes[] = {1, 0x1p100f, 0x1p-100f, 0x1p-135f};
  for (int which = 0; which < NAMES; which++)
    for (int columns = 0; columns < 5; columns++)
      for (int s = 0; s < 4; s++) {
        const struct codec codec = codec_of(names[which], 96, RANK);
        const int64_t bytes = codec.ops->bytes(&codec, N);
        float *x = narrow(N, 96, columns, sizes[s]), *message = guarded(bytes);
        encode(&codec, N, 1, 5, x, message);
        check_basis(&codec, message, RANK - columns);
        subtract(&codec, N, 1, message, x);
        for (int64_t i = 0; i < N; i++)
          assert_true(fabsf(x[i]) <= (s == 3 ? 0x1p-145f : 2e-5f * sizes[s]));
        release(message, bytes);
        release(x, N * 4);
      }
}

/* Rows that differ by little are independent still. The second round squares the difference. */
TEST(nearly_dependent_vectors_are_orthonormal)
{
  enum { ROWS = 64, BLOCK = 128 };
  for (int which = 0; which < NAMES; which++) {
    const struct codec codec = codec_of(names[which], BLOCK, 8);
    const int64_t n = ROWS * BLOCK, bytes = codec.ops->bytes(&codec, n);
    float *x = normals(n), *message = guarded(bytes);
    for (int64_t i = BLOCK; i < n; i++)
      x[i] = x[i % BLOCK] + 1e-3f * x[i];
    encode(&codec, n, 1, 5, x, message);
    check_basis(&codec, message, 0);
    release(message, bytes);
    release(x, n * 4);
  }
}

TEST(zeros_stay_zeros)
{
  enum { N = 1234 };
  const char *const coded[] = {"powersgd", "gradiveq", "powersgd+bf16", "gradiveq+int8"};
  for (int which = 0; which < 4; which++) {
    const struct codec codec = codec_of(coded[which], 32, 3);
    float x[N] = {0}, *out = through(&codec, N, 1, x);
    for (int i = 0; i < N; i++)
      assert_true(out[i] == 0);
    release(out, N * 4);
  }
}

/* One bad element is enough, wherever it is: no element of the sum is finite. */
TEST(non_finite_elements_arrive)
{
  enum { N = 3000 };
  static const char *const coded[] = {"powersgd",      "gradiveq",      "powersgd+bf16",
                                      "gradiveq+int8", "powersgd+int4", "gradiveq+onebit"};
  static const float bad[] = {INFINITY, -INFINITY, NAN};
  static const int64_t places[] = {0, 31, 1777, N - 1};
  for (int which = 0; which < 6; which++)
    for (int b = 0; b < 3; b++)
      for (int p = 0; p < 4; p++) {
        const struct codec codec = codec_of(coded[which], 64, 4);
        float *x = normals(N);
        x[places[p]] = bad[b];
        float *out = through(&codec, N, 1, x);
        for (int i = 0; i < N; i++)
          assert_false(isfinite(out[i]));
        release(out, N * 4);
        release(x, N * 4);
      }
}

/* ---- sums ---- */

/* A decoded element is the product of the factors, added in ascending order of the rank. */
TEST(an_element_is_a_product)
{
  for (int s = 0; s < SHAPES; s++) {
    const struct shape *shape = &shapes[s];
    const struct codec codec = codec_of("powersgd", shape->block, shape->rank);
    const int64_t bytes = codec.ops->bytes(&codec, shape->n);
    float *x = normals(shape->n), *message = guarded(bytes), *out = guarded(shape->n * 4);
    const float *c = message + up(shape->rank * shape->block, 64);
    encode(&codec, shape->n, 1, 5, x, message);
    decode_sum(&codec, shape->n, 1, message, bytes, false, out);
    subtract(&codec, shape->n, 1, message, x);
    float *before = normals(shape->n);
    rng_fill_normal(rng_key_make(1, "low rank"), draws - 2, 0, shape->n, 0, 1, before);
    for (int64_t i = 0; i < shape->n; i++) {
      float want = 0;
      for (int k = 0; k < shape->rank; k++) {
        const float product =
            c[i / shape->block * shape->rank + k] * message[k * shape->block + i % shape->block];
        want += product;
      }
      const float left = before[i] - want;
      assert_memory_equal(&out[i], &want, sizeof want);
      assert_memory_equal(&x[i], &left, sizeof left);
    }
    release(before, shape->n * 4);
    release(out, shape->n * 4);
    release(message, bytes);
    release(x, shape->n * 4);
  }
}

/* ---- values and settings ---- */

/* The numbers of the plain message, through the other codec, expanded by the plain one. */
static void check_values(const char *name, int64_t n)
{
  const struct codec coded = codec_of(name, 64, 5),
                     plain = {coded.ops, &codec_none, coded.set, false},
                     values = codec_of_values(&coded);
  const int64_t block = values.set.block > 64 ? values.set.block : 64, at = up(64 * 5, block),
                c = up((n + 63) / 64 * 5, 64), bytes = coded.ops->bytes(&coded, n),
                plain_bytes = plain.ops->bytes(&plain, n), numbers = (at + c) * 4;
  float *x = normals(n), *want = guarded(n * 4), *got = guarded(n * 4),
        *message = guarded(plain_bytes), *vector = guarded(numbers), *result = guarded(numbers);
  char *codes = guarded(bytes);
  assert_true(bytes == values.ops->bytes(&values, at + c));
  encode(&plain, n, 1, 21, x, message);
  memset(vector, 0, (size_t)numbers);
  memcpy(vector, message, 64 * 5 * 4);
  memcpy(vector + at, message + 64 * 5, (size_t)c * 4);
  encode(&values, at + c, 1, 21, vector, codes);
  decode_sum(&values, at + c, 1, codes, bytes, false, result);
  memcpy(message, result, 64 * 5 * 4);
  memcpy(message + 64 * 5, result + at, (size_t)c * 4);
  decode_sum(&plain, n, 1, message, plain_bytes, false, want);
  encode(&coded, n, 1, 21, x, codes);
  decode_sum(&coded, n, 1, codes, bytes, false, got);
  assert_memory_equal(got, want, (size_t)n * 4);
  release(codes, bytes);
  release(result, numbers);
  release(vector, numbers);
  release(message, plain_bytes);
  release(got, n * 4);
  release(want, n * 4);
  release(x, n * 4);
}

TEST(any_codec_may_code_the_values)
{
#define CODEC_POINTER(name, ...) &codec_##name,
  static const struct codec_ops *const all[] = {CODEC_ROWS(CODEC_POINTER)};
#undef CODEC_POINTER
  for (int which = 0; which < NAMES; which++)
    for (size_t v = 0; v < sizeof all / sizeof all[0]; v++) {
      char name[64];
      snprintf(name, sizeof name, "%s+%s", names[which], all[v]->name);
      if (!(all[v]->traits & (CODEC_HAS_VALUES | CODEC_ALONE | CODEC_NEEDS_MAX)))
        check_values(name, 12345);
    }
}

TEST(nothing_is_nothing)
{
  for (int which = 0; which < NAMES; which++) {
    const struct codec codec = codec_of(names[which], 0, 0);
    float x = 1;
    assert_true(codec.ops->bytes(&codec, 0) == 0);
    assert_int_equal(codec_check(&codec, 0, "nothing"), STATUS_OK);
    encode(&codec, 0, 2, 1, &x, &x);
    decode_sum(&codec, 0, 2, &x, 0, false, &x);
    subtract(&codec, 0, 2, &x, &x);
    assert_true(x == 1);
  }
}

/* Rank 2 in rows of 64 takes 128 numbers of the basis, and 64 of the coefficients with padding. The
 * basis takes 256 if values have blocks of 256. */
TEST(a_vector_is_refused)
{
  const struct codec codec = codec_of("powersgd", 64, 2), coded = codec_of("powersgd+int8", 64, 2),
                     plain = codec_of("int8", 0, 0);
  assert_int_equal(codec_check(&codec, 193, "h.0"), STATUS_OK);
  assert_int_equal(codec_check(&codec, 192, "h.0"), STATUS_USAGE);
  assert_string_equal(status_text(),
                      "codec powersgd of rank 2 with rows of 64 elements makes 192 numbers of the "
                      "192 elements of h.0 in a message: use a lower rank, another block or "
                      "another codec");
  assert_int_equal(codec_check(&coded, 320, "h.0"), STATUS_USAGE);
  assert_int_equal(codec_check(&coded, 321, "h.0"), STATUS_OK);
  assert_int_equal(codec_check(&plain, 1, "h.0"), STATUS_OK);
}

/* Shapes that the codecs never use. */
TEST(a_device_refuses_bad_shapes)
{
  static const struct lowrank bad[] = {{.block = 48, .rank = 1, .rounds = 1},
                                       {.block = 32768, .rank = 1, .rounds = 1},
                                       {.block = 64, .rank = 33, .rounds = 1},
                                       {.block = 64, .rank = 0, .rounds = 1},
                                       {.block = 64, .rank = 1, .rounds = 0}};
  const struct factors none = {NULL, NULL, 0};
  for (size_t b = 0; b < sizeof bad / sizeof bad[0]; b++) {
    assert_int_equal(device->ops->factorise(lanes[0], &bad[b], 0, 1, NULL, &none, NULL),
                     STATUS_INTERNAL);
    assert_int_equal(device->ops->expand(lanes[0], &bad[b], 0, 1, &none, QUANT_SET, NULL),
                     STATUS_INTERNAL);
  }
}

TEST_MAIN(start, stop)
