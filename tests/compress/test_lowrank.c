/* Low-rank codecs on the host device. Oracles: the algorithm of rule/lowrank.h, written again with
 * scalars, bit for bit. Singular values by Jacobi's method in fp64 bound the error of a rank from
 * below. The expected error of a random projection is bounded by Halko, Martinsson, Tropp 2011,
 * SIAM Review 53, theorem 10.5. Sums are trees of fp32 additions. Identities are tested too. Bytes
 * around each output and scratch memory guard its ends. */
#include <math.h>

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

static struct codec codec_of_shape(const char *name, const struct shape *shape)
{
  return codec_of("%s block=%" PRId64 " rank=%d", name, shape->block, shape->rank);
}

static float *normals(int64_t n)
{
  float *x = guarded(n * 4);
  rng_fill_normal(rng_key_make(1, "low rank"), draws++, 0, n, 0, 1, x);
  return x;
}

/* The decoded message of x. */
static float *through(const struct codec *codec, int64_t n, uint64_t seed, const float *x)
{
  const struct codec_pass pass = pass_of(codec, lanes[1], n, 1, seed);
  return decoded(codec, &pass, encoded(codec, &pass, x));
}

static double norm(int64_t n, const float *x)
{
  return sqrt(squares(n, x));
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

/* The reference message of x, padded as the codec has it. */
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
    const struct codec_pass pass = pass_of(codec, lanes[t], n, parts, 7);
    const char *messages = encoded(codec, &pass, x);
    for (int part = 0; part < parts; part++)
      assert_memory_equal(messages + part * bytes, message_of(codec, n, part, 7, x + part * n),
                          (size_t)bytes);
  }
}

CODEC_TEST(messages_are_those_of_scalars)
{
  enum { PARTS = 3 };
  for (int which = 0; which < NAMES; which++)
    for (int s = 0; s < SHAPES; s++) {
      const struct codec codec = codec_of_shape(names[which], &shapes[s]);
      check_messages(&codec, shapes[s].n, PARTS, normals(PARTS * shapes[s].n));
    }
}

/* More than 128 bands of 64 rows: bands become higher. */
CODEC_TEST(a_tall_matrix_has_higher_bands)
{
  enum { N = 32 * 8300 + 5 };
  const struct codec codec = codec_of("powersgd block=32 rank=2");
  check_messages(&codec, N, 1, normals(N));
}

/* Oracle: the plainest of them. The last row is short. */
CODEC_TEST(all_instruction_sets_give_the_same_bits)
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
  return distance(n, through(codec, n, seed, x), x);
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
  must(device->ops->factorise(lanes[1], &op, n, 1, x, &factors, work));
  must(device->ops->expand(lanes[1], &op, n, 1, &factors, QUANT_SUBTRACT, left));
  const double error = norm(n, left);
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
}

CODEC_TEST(errors_are_near_the_best)
{
  check_errors(harmonic, 1.1);
  check_errors(root, 1.1);
}

CODEC_TEST(a_matrix_of_low_rank_arrives)
{
  enum { ROWS = 90, BLOCK = 128, N = ROWS * BLOCK - 50 };
  float *x = spectrum(ROWS, BLOCK, five);
  for (int64_t i = N; i < ROWS * BLOCK; i++)
    x[i] = 0;
  for (int which = 0; which < NAMES; which++)
    for (int rank = 6; rank <= 8; rank++) { /* the cut row is one more dimension */
      const struct codec codec = codec_of("%s block=128 rank=%d", names[which], rank);
      assert_true(error_of(&codec, N, 3, x) <= 1e-5 * norm(N, x));
    }
}

/* Error feedback relies on it (Karimireddy et al. 2019, arXiv:1901.09847). */
CODEC_TEST(residual_is_never_longer)
{
  for (int which = 0; which < NAMES; which++)
    for (int s = 0; s < SHAPES; s++) {
      const struct codec codec = codec_of_shape(names[which], &shapes[s]);
      float *x = normals(shapes[s].n);
      for (uint64_t seed = 0; seed < 5; seed++)
        assert_true(error_of(&codec, shapes[s].n, seed, x) <
                    (1 - 0.2 * shapes[s].rank / (double)shapes[s].block) * norm(shapes[s].n, x));
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
CODEC_TEST(dependent_vectors_become_zeros)
{
  enum { N = 70 * 96, RANK = 8 };
  static const float sizes[] = {1, 0x1p100f, 0x1p-100f, 0x1p-135f};
  for (int which = 0; which < NAMES; which++)
    for (int columns = 0; columns < 5; columns++)
      for (int s = 0; s < 4; s++) {
        const struct codec codec = codec_of("%s block=96 rank=8", names[which]);
        const struct codec_pass pass = pass_of(&codec, lanes[1], N, 1, 5);
        float *x = narrow(N, 96, columns, sizes[s]);
        const void *message = encoded(&codec, &pass, x);
        check_basis(&codec, message, RANK - columns);
        must(subtract(&codec, &pass, message, x));
        for (int64_t i = 0; i < N; i++)
          assert_true(fabsf(x[i]) <= (s == 3 ? 0x1p-145f : 2e-5f * sizes[s]));
      }
}

/* Rows that differ by little are independent still. The second round squares the difference. */
CODEC_TEST(nearly_dependent_vectors_are_orthonormal)
{
  enum { BLOCK = 128, N = 64 * BLOCK };
  for (int which = 0; which < NAMES; which++) {
    const struct codec codec = codec_of("%s block=128 rank=8", names[which]);
    const struct codec_pass pass = pass_of(&codec, lanes[1], N, 1, 5);
    float *x = normals(N);
    for (int64_t i = BLOCK; i < N; i++)
      x[i] = x[i % BLOCK] + 1e-3f * x[i];
    check_basis(&codec, (const void *)encoded(&codec, &pass, x), 0);
  }
}

CODEC_TEST(zeros_stay_zeros)
{
  enum { N = 1234 };
  const char *const coded[] = {"powersgd", "gradiveq", "powersgd+bf16", "gradiveq+int8"};
  for (int which = 0; which < 4; which++) {
    const struct codec codec = codec_of("%s block=32 rank=3", coded[which]);
    float x[N] = {0}, *out = through(&codec, N, 1, x);
    for (int i = 0; i < N; i++)
      assert_true(out[i] == 0);
  }
}

/* One bad element is enough, wherever it is: no element of the sum is finite. */
CODEC_TEST(non_finite_elements_arrive)
{
  enum { N = 3000 };
  static const char *const coded[] = {"powersgd",      "gradiveq",      "powersgd+bf16",
                                      "gradiveq+int8", "powersgd+int4", "gradiveq+onebit"};
  static const float bad[] = {INFINITY, -INFINITY, NAN};
  static const int64_t places[] = {0, 31, 1777, N - 1};
  for (int which = 0; which < 6; which++)
    for (int b = 0; b < 3; b++)
      for (int p = 0; p < 4; p++) {
        const struct codec codec = codec_of("%s block=64 rank=4", coded[which]);
        float *x = normals(N);
        x[places[p]] = bad[b];
        float *out = through(&codec, N, 1, x);
        for (int i = 0; i < N; i++)
          assert_false(isfinite(out[i]));
      }
}

/* ---- sums ---- */

/* A decoded element is the product of the factors, added in ascending order of the rank. */
CODEC_TEST(an_element_is_a_product)
{
  for (int s = 0; s < SHAPES; s++) {
    const struct shape *shape = &shapes[s];
    const struct codec codec = codec_of_shape("powersgd", shape);
    const struct codec_pass pass = pass_of(&codec, lanes[1], shape->n, 1, 5);
    float *x = normals(shape->n), *before = guarded(shape->n * 4);
    memcpy(before, x, (size_t)shape->n * 4);
    const float *message = (const void *)encoded(&codec, &pass, x),
                *out = decoded(&codec, &pass, message),
                *c = message + up(shape->rank * shape->block, 64);
    must(subtract(&codec, &pass, message, x));
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
  }
}

/* ---- values and settings ---- */

/* The numbers of the plain message, through the other codec, expanded by the plain one. */
static void check_values(const char *name, int64_t n)
{
  const struct codec coded = codec_of("%s block=64 rank=5", name),
                     plain = {coded.ops, &codec_none, coded.set, false},
                     values = codec_of_values(&coded);
  const int64_t block = values.set.block > 64 ? values.set.block : 64, at = up(64 * 5, block),
                c = up((n + 63) / 64 * 5, 64);
  const struct codec_pass coded_pass = pass_of(&coded, lanes[1], n, 1, 21),
                          pass = pass_of(&plain, lanes[1], n, 1, 21),
                          values_pass = pass_of(&values, lanes[1], at + c, 1, 21);
  float *x = normals(n), *vector = guarded((at + c) * 4);
  float *message = (float *)(void *)encoded(&plain, &pass, x);
  assert_true(coded.ops->bytes(&coded, n) == values.ops->bytes(&values, at + c));
  memset(vector, 0, (size_t)(at + c) * 4);
  memcpy(vector, message, 64 * 5 * 4);
  memcpy(vector + at, message + 64 * 5, (size_t)c * 4);
  const float *result = decoded(&values, &values_pass, encoded(&values, &values_pass, vector));
  memcpy(message, result, 64 * 5 * 4);
  memcpy(message + 64 * 5, result + at, (size_t)c * 4);
  const float *got = decoded(&coded, &coded_pass, encoded(&coded, &coded_pass, x));
  assert_memory_equal(got, decoded(&plain, &pass, message), (size_t)n * 4);
}

CODEC_TEST(any_codec_may_code_the_values)
{
#define CODEC_POINTER(name, ...) &codec_##name,
  static const struct codec_ops *const all[] = {CODEC_ROWS(CODEC_POINTER)};
#undef CODEC_POINTER
  for (int which = 0; which < NAMES; which++)
    for (size_t v = 0; v < sizeof all / sizeof all[0]; v++) {
      char name[64];
      snprintf(name, sizeof name, "%s+%s", names[which], all[v]->name);
      if (!(all[v]->traits & (CODEC_HAS_VALUES | CODEC_ALONE | CODEC_VARIABLE | CODEC_NEEDS_MAX)))
        check_values(name, 12345);
    }
}

/* Rank 2 in rows of 64 takes 128 numbers of the basis, and 64 of the coefficients with padding. The
 * basis takes 256 if values have blocks of 256. */
CODEC_TEST(a_vector_is_refused)
{
  const struct codec codec = codec_of("powersgd block=64 rank=2"),
                     coded = codec_of("powersgd+int8 block=64 rank=2"), plain = codec_of("int8");
  must(codec_check(&codec, 0, "nothing"));
  must(codec_check(&codec, 193, "h.0"));
  assert_int_equal(codec_check(&codec, 192, "h.0"), STATUS_USAGE);
  assert_string_equal(status_text(),
                      "codec powersgd of rank 2 with rows of 64 elements makes 192 numbers of the "
                      "192 elements of h.0 in a message: use a lower rank, another block or "
                      "another codec");
  assert_int_equal(codec_check(&coded, 320, "h.0"), STATUS_USAGE);
  must(codec_check(&coded, 321, "h.0"));
  must(codec_check(&plain, 1, "h.0"));
}

/* Shapes that the codecs never use. */
CODEC_TEST(a_device_refuses_bad_shapes)
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
