/* Token and position embedding. Oracle: the loop over rows in fp32, whose few additions have but
 * one order: the bits must agree. */
#include "fixture.h"

enum { B = 3, T = 77, R = B * T, C = 101, V = 19 };
static int32_t token[R], place[R]; /* place: positions */

static int make_tokens(void **state)
{
  for (int r = 0; r < R; r++)
    token[r] = r * 7 % 5 == 0 ? 3 : r * 31 % V, /* many rows share token 3 */
        place[r] = r * 11 % (T + 9);
  return fixture_create(state);
}

DEVICE_TEST(forward_is_the_loop)
{
  float *wte = normals(V * C, 1), *wpe = normals((T + 9) * C, 1);
  for (int with_positions = 0; with_positions < 3; with_positions++) /* 2: from `place` */
    for (int l = 0; l < LANE_SIZES; l++) {
      float *x = nans(R * C), *want = nans(R * C);
      for (int i = 0; i < R * C; i++)
        want[i] =
            wte[token[i / C] * C + i % C] + (with_positions > 1   ? wpe[place[i / C] * C + i % C]
                                             : with_positions > 0 ? wpe[i / C % T * C + i % C]
                                                                  : -0.0f);
      const struct embedding op = {R, T, C, V, T + 9, token, with_positions > 1 ? place : NULL};
      assert_ok(ops->embedding(lanes[l], &op, wte, with_positions ? wpe : NULL, x));
      assert_same_bits(x, want, R * C * sizeof *x);
    }
}

DEVICE_TEST(backward_is_the_loop_however_it_is_split)
{
  float *dx = normals(R * C, 1), *dwte = normals(V * C, 1);
  for (int accumulate = 0; accumulate < 3; accumulate++) { /* 2: by `place` */
    const bool placed = accumulate == 2;
    float *dwpe = accumulate ? normals((T + 9) * C, 1) : nans((T + 9) * C),
          *want_wte = copy_of(dwte, V * C), *want_wpe = copy_of(dwpe, (T + 9) * C);
    for (int r = 0; r < R; r++)
      for (int i = 0; i < C; i++) {
        float *position = &want_wpe[(placed ? place[r] : r % T) * C + i];
        want_wte[token[r] * C + i] += dx[r * C + i];
        *position = r < T && !accumulate ? dx[r * C + i] : *position + dx[r * C + i];
      }
    for (int l = 0; l < LANE_SIZES; l++)
      for (int each = 1; each <= B; each++) {
        float *got_wte = copy_of(dwte, V * C), *got_wpe = copy_of(dwpe, (T + 9) * C);
        for (int b = 0; b < B; b += each) {
          int rows = (B - b < each ? B - b : each) * T;
          const struct embedding op = {
              rows, T, C, V, T + 9, token + b * T, placed ? place + b * T : NULL};
          assert_ok(ops->embedding_backward(lanes[l], &op, dx + b * T * C, got_wte,
                                            accumulate || b > 0, got_wpe));
        }
        assert_same_bits(got_wte, want_wte, V * C * sizeof *dwte);
        assert_same_bits(got_wpe, want_wpe, (T + 9) * C * sizeof *dwpe);
      }
  }
  const struct embedding op = {R, T, C, V, .token = token};
  float *alone = copy_of(dwte, V * C), *both = copy_of(dwte, V * C), *dwpe = nans(T * C);
  assert_ok(ops->embedding_backward(lanes[1], &op, dx, alone, false, NULL));
  assert_ok(ops->embedding_backward(lanes[1], &op, dx, both, false, dwpe));
  assert_same_bits(alone, both, V * C * sizeof *alone);
  float *positions = nans(T * C); /* with the words frozen */
  assert_ok(ops->embedding_backward(lanes[1], &op, dx, NULL, false, positions));
  assert_same_bits(positions, dwpe, T * C * sizeof *positions);
  assert_ok(ops->embedding_backward(lanes[1], &op, dx, NULL, false, NULL));
}

DEVICE_TEST(a_bad_token_is_named)
{
  static const int32_t bad[] = {V, -1, INT32_MAX, INT32_MIN};
  float *wte = normals(V * C, 1), *x = normals(R * C, 1), *dwte = copy_of(wte, V * C);
  for (int i = 0; i < 4; i++) {
    int32_t tokens[5] = {0, 1, 2, bad[i], 4};
    const struct embedding op = {5, T, C, V, .token = tokens};
    must_fail(ops->embedding(lanes[1], &op, wte, NULL, x), STATUS_INPUT, "token 3 of the batch");
    assert_int_equal(ops->embedding_backward(lanes[1], &op, x, dwte, false, NULL), STATUS_INPUT);
    assert_same_bits(dwte, wte, V * C * sizeof *wte);
  }
}

TEST_MAIN(make_tokens, fixture_destroy)
