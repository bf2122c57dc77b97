/* The pieces of blocks of every architecture, over device.h. Private to src/model. A piece is bound
 * to a unit's flat buffers, then run. All rows of a call are whole sequences of `tile` tokens, or a
 * part of one. Gradients of frozen parameters are NULL and are not computed. */
#pragma once

#include "device/lane.h"
#include "model/model.h"

/* Cuts a buffer into pieces that start at multiples of 64 bytes. With base NULL it only computes
 * `used`, so the same code measures and places. Sizes that overflow end at SIZE_MAX. A copy of it
 * cuts pieces that lie on top of those cut from the original. */
struct carve {
  char *base;
  size_t used;
};
void *carve(struct carve *from, int64_t rows, int64_t width, size_t element);
/* Moves the end past the pieces that were cut from a copy. */
void carve_beyond(struct carve *from, const struct carve *copy);

int64_t shape_rows(struct model_shape s); /* B * T, at most INT64_MAX */

/* `elements` of the type further; NULL stays NULL. */
const void *element_at(const void *base, int64_t elements, enum dtype type);
/* Bytes of an element of a parameter's gradient: every device has them in fp32. */
enum { GRADIENT_BYTES = sizeof(float) };

/* Where the two operands of a product lie in fp8. In backward passes with FP8_ALL, `turned` holds
 * the transpose of the gradient that lies in a. */
struct fp8_room {
  enum fp8_use use;
  bool coded; /* a holds the gradient by the outputs, and `turned` its transpose if it is read */
  struct fp8_operand {
    uint8_t *code;
    float *scale;
  } a, b, turned;
};
/* The elements of operands: rows are those of a pass. */
struct fp8_sizes {
  int64_t rows, width, weight; /* the widest operand of rows, the largest weight */
  int64_t x_width;             /* the widest input of a weight whose gradient is wanted, 0: none */
  int64_t dy_width;            /* the widest gradient that is turned with FP8_ALL, 0: none */
};
/* A matrix of rows x width elements in tiles, or a weight of as many. */
struct fp8_operand fp8_operand_carve(struct carve *from, int64_t rows, int64_t width);
/* Nothing if the model has no fp8. */
struct fp8_room fp8_carve(struct carve *from, const struct model *model,
                          const struct fp8_sizes *sizes);

/* The arguments of one call. accumulate: gradients of parameters are += instead of =. All pieces of
 * a call share its status. After a failure they do nothing. */
struct pass {
  struct lane *lane;
  enum status *status;
  int64_t rows, tile;
  enum dtype type; /* of activations */
  bool accumulate;
  struct fp8_room fp8;
  void *dt; /* of adapters: see struct layer */
};
/* An operation of the device, unless the pass has failed. */
#define PASS_RUN(pass, operation, ...)                                                             \
  (void)(*(pass)->status ||                                                                        \
         (*(pass)->status = (pass)->lane->device->ops->operation((pass)->lane, __VA_ARGS__)))

/* A unit and its flat buffers; grads may be NULL. */
struct flat {
  const struct model *model;
  const struct model_unit *unit;
  const void *params, *scales; /* scales: see model_params */
  void *grads;
  enum dtype type; /* of `params`, unless they are codes */
};
struct flat flat_of(const struct model *model, int unit, struct model_params params, void *grads);
/* p -1: NULL. A gradient is NULL as well if there are none, or if the parameter is frozen. */
const void *flat_param(const struct flat *flat, int p);
void *flat_grad(const struct flat *flat, int p);

/* x NULL, in passes with fp8: x is in codes in pass->fp8.a. y = x W + b. With weight_scale, weight
 * is codes in blocks. W is [in, out] as in Hugging Face's Conv1D, or [out, in] (`transposed`) as in
 * nn.Linear, in embeddings and in adapters. Rows of x and dx are `x_stride` elements apart, those
 * of y and dy `y_stride`: linear_bind() makes these `in` and `out`. */
struct linear {
  int64_t in, out, x_stride, y_stride, weight_stride; /* weight_stride: elements of a row of W */
  bool transposed;
  float y_scale, dx_scale; /* factors of y and dx without b, 0: 1 */
  const void *weight, *bias;
  const void *whole; /* start of the whole weight, also for a layer of linear_inputs() */
  const float *weight_scale;
  void *dweight, *dbias;
};
struct linear linear_bind(const struct flat *flat, int weight, int bias); /* bias -1: none */
/* For linear_backward_input() alone, of a transposed layer: the layer with the inputs [first, first
 * + count). In fp8 they are multiples of FP8_TILE. */
struct linear linear_inputs(const struct pass *pass, const struct linear *l, int64_t first,
                            int64_t count);
/* y = x W + b + add. add [rows, out], with the stride of y, may be NULL or y. With `pre`, pre = x W
 * + b + add and y = gelu(pre). */
void linear_forward(const struct pass *pass, const struct linear *l, const void *x, const void *add,
                    void *pre, void *y);
/* Gradients of W and b from x and dy. x NULL, with FP8_ALL: its transpose is in codes in
 * pass->fp8.b, in blocks. */
void linear_backward_params(const struct pass *pass, const struct linear *l, const void *x,
                            const void *dy);
/* dx = dy W^T. */
void linear_backward_input(const struct pass *pass, const struct linear *l, const void *dy,
                           void *dx);

/* Layers with the same input, [out, in] each if there are several, whose outputs are adjacent in
 * rows. There may be none. If their weights are adjacent in the flat buffer, which holds if their
 * sizes are multiples of LAYOUT_ALIGN, one product computes them all, and one their gradients. Both
 * ways give bitwise identical results. With the device's fp8_tensor each layer has products of its
 * own in fp8. Weight gradients in bf16 stay joined. */
enum { FUSED_MOST = 3 };
struct fused {
  int parts;
  int64_t out;
  struct linear part[FUSED_MOST];
  bool joined, gradients_joined; /* one product computes all of them */
};
struct fused fused_bind(const struct flat *flat, int parts, const int *weight,
                        const int *bias); /* bias NULL: none */
/* As linear_forward(). */
void fused_forward(const struct pass *pass, const struct fused *f, const void *x, const void *add,
                   void *pre, void *y);
/* In passes with fp8, codes dy for fused_backward_input(), and sets pass->fp8.coded. With FP8_ALL
 * the same pass over dy codes its transpose for fused_backward_params(). That function then reads
 * dy for biases only. pass->fp8 must have room for the transpose. */
void fused_code(struct pass *pass, const struct fused *f, const void *dy);
/* Whether the gradients by the outputs of each layer are an operand of its own: in the products
 * that compute dx. */
bool fused_apart(const struct pass *pass, const struct fused *f);
/* The same for transposes, in the products that compute weight gradients. */
bool fused_gradients_apart(const struct pass *pass, const struct fused *f);
bool fused_trains(const struct fused *f); /* whether a gradient of a weight is wanted */
void fused_backward_params(const struct pass *pass, const struct fused *f, const void *x,
                           const void *dy);
/* dx = dy W^T + add, where add may be NULL or dx. With `pre`, for one layer, times gelu'(pre): dx
 * is then the gradient with respect to the pre-activation of the layer below.
 *
 * On a device that works by sequence this is the sum over the parts, one after the other, joined or
 * not. Frozen parameters decide which parts are joined, and this must not change the gradients of
 * the rest. On other devices it is one product for joined parts. */
void fused_backward_input(const struct pass *pass, const struct fused *f, const void *dy,
                          const void *add, const void *pre, void *dx);

/* Layers with the same input, some of which have adapters: y += t B^T, where t = s x A^T. Products
 * of adapters are in the compute type. W + s B A is never made. A [rank, in] of all are adjacent in
 * the flat buffer if rank x in is a multiple of LAYOUT_ALIGN (struct fused). Then x is read once. t
 * is kept from forward to backward. Its gradient dt = s dy B is in pass->dt during the backward
 * pass. */
struct layer {
  struct fused whole, narrow;     /* W; A of layers with an adapter */
  struct linear wide[FUSED_MOST]; /* B of these */
  int64_t column[FUSED_MOST];     /* of their outputs in y */
  void *t;                        /* narrow_carve() */
};
/* Room for t or dt of `parts` layers. */
void *narrow_carve(struct carve *from, const struct model *model, int64_t rows, int parts);
struct layer layer_bind(const struct flat *flat, int parts, const int *weight, const int *bias,
                        void *t); /* bias NULL: none */
static inline bool layer_adapts(const struct layer *l)
{
  return l->narrow.parts > 0;
}
/* An input that a layer alone reads: `x`, or NULL in passes with fp8, where it is made as codes. No
 * bf16 is then written and read. Adapters read it as it is. */
static inline void *coded(const struct pass *pass, const struct layer *l, void *x)
{
  return pass->fp8.use && !layer_adapts(l) ? NULL : x;
}
/* As linear_forward(). */
void layer_forward(const struct pass *pass, const struct layer *l, const void *x, const void *add,
                   void *pre, void *y);
/* t alone. */
void layer_narrow(const struct pass *pass, const struct layer *l, const void *x);
/* dt. The functions below read it. */
void layer_backward_narrow(const struct pass *pass, const struct layer *l, const void *dy);
void layer_backward_params(const struct pass *pass, const struct layer *l, const void *x,
                           const void *dy);
/* As fused_backward_input(), without add. */
void layer_backward_input(const struct pass *pass, const struct layer *l, const void *dy,
                          const void *pre, void *dx);
/* All of it: dt, gradients of parameters, then dx, which may be x. dy is coded once. */
void layer_backward(const struct pass *pass, const struct layer *l, const void *x, const void *dy,
                    const void *pre, void *dx);

/* Layer normalisation, or RMSNorm. The forward pass writes its statistics to the room, and the
 * backward pass reads them. */
struct norm {
  bool rms;
  int64_t width;
  float eps;
  const void *weight, *bias;
  void *dweight, *dbias;
};
struct norm_room {
  float *mean, *rstd;
  void *work; /* of the backward pass: norm_workspace() bytes */
};
/* weight -1: no norm; bias -1: RMSNorm */
struct norm norm_bind(const struct flat *flat, int weight, int bias);
struct norm_room norm_room_carve(struct carve *from, int64_t rows);
size_t norm_workspace(const struct norm *n, const struct device_model *device, int64_t rows);
/* sum = x + add, y = norm(sum); add NULL: y = norm(x), sum is not written. y NULL: it goes to
 * pass->fp8.a. */
void norm_forward(const struct pass *pass, const struct norm *n, const void *x, const void *add,
                  void *sum, void *y, struct norm_room room);
/* dx = or (add_to_dx) += the gradient by the normalised input x. */
void norm_backward(const struct pass *pass, const struct norm *n, const void *dy, const void *x,
                   struct norm_room room, bool add_to_dx, void *dx);

/* model_ops.embed and embed_backward: tokens and, if the model has them, positions. STATUS_USAGE if
 * the sequence does not fit the model's context. */
enum status embedding_forward(const struct model_call *call);
enum status embedding_backward(const struct model_call *call);

/* Bytes of the cache of a stage with attention: see model_ops.cache_bytes. */
size_t cache_bytes(const struct model *model, int64_t B, int64_t capacity);
/* Workspace of attention for up to op.tokens new tokens after any past, also without a past.
 * Pointers in op are not read. */
size_t cache_scratch(const struct model *model, const struct device_model *device,
                     struct attention op, int threads);
/* Copies the keys and values of op's tokens after those of the past, and makes op attend to all of
 * them. */
void cache_append(const struct pass *pass, const struct model_cache *cache, struct attention *op);

/* Final norm, output projection and loss, in chunks of tokens: see model_ops.head_loss. */
struct head {
  struct norm norm;
  struct linear linear;
  enum dtype type; /* of inputs and logits */
};
struct head head_bind(const struct model *model, struct model_params params, void *grads);
size_t head_work_bytes(const struct head *head, const struct device_model *device,
                       struct model_shape s, enum model_work what);
/* Each is a member of model_ops. */
double head_flops(const struct model *model, struct model_shape s);
enum status head_loss(const struct model_call *call);
enum status head_logits(const struct model_call *call);
