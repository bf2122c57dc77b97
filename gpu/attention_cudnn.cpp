/* Builds graphs of cuDNN once per shape. The rest of the program sees a C header. */
#include "gpu/attention_cudnn.h"

#include <cudnn_frontend.h>

#include <cmath>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

namespace fe = cudnn_frontend;

namespace {

enum uid : int64_t { Q = 1, K, V, O, STATS, DO, DQ, DK, DV };

/* The tensors by uid: name, heads of k and v, and which of a shape's strides. */
constexpr struct {
  const char *name;
  bool kv;
  int stride;
} tensors[] = {{},        {"q", false, 0},  {"k", true, 1},   {"v", true, 2},  {"o", false, 3},
               {"stats"}, {"do", false, 3}, {"dq", false, 4}, {"dk", true, 5}, {"dv", true, 6}};

struct shape {
  int64_t batch, tokens, heads, kv_heads, head_width, window, strides[7];
  bool backward;
  bool operator==(const shape &other) const = default;
};

struct built {
  shape key;
  std::shared_ptr<fe::graph::Graph> graph; /* NULL: cuDNN has no graph */
  size_t workspace;
  std::string reason; /* why cuDNN has no graph */
};

} // namespace

struct cudnn_attention {
  cudnnHandle_t handle;
  std::vector<built> graphs;
};

namespace {

shape shape_of(const attention_backward *op, bool backward)
{
  const attention &f = op->forward;
  return {f.batch,
          f.tokens,
          f.heads,
          f.kv_heads,
          f.head_width,
          f.window,
          {f.q_stride, f.k_stride, f.v_stride, f.out_stride, backward ? op->dq_stride : 0,
           backward ? op->dk_stride : 0, backward ? op->dv_stride : 0},
          backward};
}

fe::graph::Tensor_attributes &lay_out(fe::graph::Tensor_attributes &tensor, uid id, const shape &s)
{
  const int64_t count = tensors[id].kv ? s.kv_heads : s.heads,
                stride = s.strides[tensors[id].stride];
  if (id == STATS)
    return tensor.set_uid(id)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({s.batch, s.heads, s.tokens, 1})
        .set_stride({s.heads * s.tokens, s.tokens, 1, 1});
  return tensor.set_uid(id)
      .set_dim({s.batch, count, s.tokens, s.head_width})
      .set_stride({s.tokens * stride, s.head_width, stride, 1});
}

std::shared_ptr<fe::graph::Tensor_attributes> input(fe::graph::Graph &graph, uid id, const shape &s)
{
  fe::graph::Tensor_attributes tensor;
  return graph.tensor(lay_out(tensor.set_name(tensors[id].name), id, s));
}

template <typename O> O options_of(const shape &s)
{
  O options;
  options.set_name("attention")
      .set_attn_scale(1.0f / std::sqrt((float)s.head_width))
      .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
      .set_diagonal_band_right_bound(0);
  if (s.window > 0 && s.window < s.tokens)
    options.set_diagonal_band_left_bound(s.window);
  return options;
}

void add_attention(fe::graph::Graph &graph, const shape &s)
{
  auto q = input(graph, Q, s), k = input(graph, K, s), v = input(graph, V, s);
  if (!s.backward) {
    auto options = options_of<fe::graph::SDPA_attributes>(s).set_generate_stats(true);
    auto [out, stats] = graph.sdpa(q, k, v, options);
    lay_out(out->set_output(true), O, s);
    lay_out(stats->set_output(true), STATS, s);
    return;
  }
  auto o = input(graph, O, s), dout = input(graph, DO, s), stats = input(graph, STATS, s);
  auto options =
      options_of<fe::graph::SDPA_backward_attributes>(s).set_deterministic_algorithm(true);
  auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, o, dout, stats, options);
  lay_out(dq->set_output(true), DQ, s);
  lay_out(dk->set_output(true), DK, s);
  lay_out(dv->set_output(true), DV, s);
}

built build(cudnnHandle_t handle, const shape &s)
{
  auto graph = std::make_shared<fe::graph::Graph>();
  graph->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  add_attention(*graph, s);
  int64_t bytes = 0;
  fe::error_t error = graph->build(handle, {fe::HeurMode_t::A});
  if (error.is_good())
    error = graph->get_workspace_size(bytes);
  if (error.is_bad())
    return {s, nullptr, 0, error.get_message()};
  return {s, graph, (size_t)bytes, ""};
}

const built &find(cudnn_attention *cudnn, const shape &s)
{
  for (const built &b : cudnn->graphs)
    if (b.key == s)
      return b;
  cudnn->graphs.push_back(build(cudnn->handle, s));
  return cudnn->graphs.back();
}

/* body() of the shape's graph. No exception may pass through C callers. The frontend and its
 * allocations can throw. */
template <typename F>
status with_graph(cudnn_attention *cudnn, const attention_backward *op, bool backward,
                  F &&body) noexcept
{
  try {
    const built &b = find(cudnn, shape_of(op, backward));
    return b.graph ? body(b)
                   : status_set(STATUS_UNSUPPORTED,
                                "cuDNN has no attention for heads of %lld elements: %s",
                                (long long)b.key.head_width, b.reason.c_str());
  } catch (const std::bad_alloc &) {
    return status_set(STATUS_MEMORY, "no memory for cuDNN's graphs");
  } catch (const std::exception &error) {
    return status_set(STATUS_LIBRARY, "cuDNN's attention: %s", error.what());
  } catch (...) {
    return status_set(STATUS_LIBRARY, "cuDNN's attention threw an unknown exception");
  }
}

} // namespace

status cudnn_attention_create(cudnn_attention **out)
{
  auto *cudnn = new (std::nothrow) cudnn_attention{};
  if (!cudnn)
    return status_set(STATUS_MEMORY, "no memory for cuDNN's graphs");
  const cudnnStatus_t error = cudnnCreate(&cudnn->handle);
  if (error != CUDNN_STATUS_SUCCESS) {
    delete cudnn;
    return status_set(STATUS_LIBRARY, "cuDNN does not start: %s", cudnnGetErrorString(error));
  }
  *out = cudnn;
  return STATUS_OK;
}

void cudnn_attention_destroy(cudnn_attention *cudnn)
{
  if (!cudnn)
    return;
  cudnn->graphs.clear();
  (void)cudnnDestroy(cudnn->handle);
  delete cudnn;
}

status cudnn_attention_workspace(cudnn_attention *cudnn, const attention_backward *op,
                                 bool backward, size_t *out)
{
  return with_graph(cudnn, op, backward, [&](const built &b) {
    *out = b.workspace;
    return STATUS_OK;
  });
}

status cudnn_attention_run(cudnn_attention *cudnn, cudaStream_t stream,
                           const attention_backward *op, bool backward)
{
  return with_graph(cudnn, op, backward, [&](const built &b) {
    const attention &f = op->forward;
    std::unordered_map<int64_t, void *> pointers = {
        {Q, (void *)f.q}, {K, (void *)f.k}, {V, (void *)f.v}, {O, f.out}, {STATS, f.lse}};
    if (backward)
      pointers.insert({{DO, (void *)op->dout}, {DQ, op->dq}, {DK, op->dk}, {DV, op->dv}});
    const cudnnStatus_t taken = cudnnSetStream(cudnn->handle, stream);
    if (taken != CUDNN_STATUS_SUCCESS)
      return status_set(STATUS_LIBRARY, "cuDNN refuses the stream: %s", cudnnGetErrorString(taken));
    auto error = b.graph->execute(cudnn->handle, pointers, f.work);
    return error.is_good()
               ? STATUS_OK
               : status_set(STATUS_LIBRARY, "cuDNN's attention: %s", error.get_message().c_str());
  });
}
