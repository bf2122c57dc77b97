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

struct shape {
  int64_t batch, tokens, heads, kv_heads, head_width, window, strides[7];
  bool backward;
  bool operator==(const shape &other) const
  {
    return std::equal(words(), words() + WORDS, other.words()) && backward == other.backward;
  }
  static constexpr int WORDS = 13;
  const int64_t *words() const
  {
    return &batch;
  }
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
  shape s = {f.batch,
             f.tokens,
             f.heads,
             f.kv_heads,
             f.head_width,
             f.window,
             {f.q_stride, f.k_stride, f.v_stride, f.out_stride},
             backward};
  if (backward) {
    s.strides[4] = op->dq_stride;
    s.strides[5] = op->dk_stride;
    s.strides[6] = op->dv_stride;
  }
  return s;
}

fe::graph::Tensor_attributes heads(const char *name, int64_t id, const shape &s, int64_t count,
                                   int64_t stride)
{
  return fe::graph::Tensor_attributes()
      .set_name(name)
      .set_uid(id)
      .set_dim({s.batch, count, s.tokens, s.head_width})
      .set_stride({s.tokens * stride, s.head_width, stride, 1});
}

void put_out(std::shared_ptr<fe::graph::Tensor_attributes> tensor, int64_t id, const shape &s,
             int64_t count, int64_t stride)
{
  tensor->set_output(true)
      .set_uid(id)
      .set_dim({s.batch, count, s.tokens, s.head_width})
      .set_stride({s.tokens * stride, s.head_width, stride, 1});
}

fe::graph::Tensor_attributes statistics(const shape &s)
{
  return fe::graph::Tensor_attributes()
      .set_name("stats")
      .set_uid(STATS)
      .set_data_type(fe::DataType_t::FLOAT)
      .set_dim({s.batch, s.heads, s.tokens, 1})
      .set_stride({s.heads * s.tokens, s.tokens, 1, 1});
}

void add_forward(fe::graph::Graph &graph, const shape &s)
{
  auto q = graph.tensor(heads("q", Q, s, s.heads, s.strides[0])),
       k = graph.tensor(heads("k", K, s, s.kv_heads, s.strides[1])),
       v = graph.tensor(heads("v", V, s, s.kv_heads, s.strides[2]));
  auto options = fe::graph::SDPA_attributes()
                     .set_name("attention")
                     .set_generate_stats(true)
                     .set_attn_scale(1.0f / std::sqrt((float)s.head_width));
  options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
      .set_diagonal_band_right_bound(0);
  if (s.window > 0 && s.window < s.tokens)
    options.set_diagonal_band_left_bound(s.window);
  auto [out, stats] = graph.sdpa(q, k, v, options);
  put_out(out, O, s, s.heads, s.strides[3]);
  stats->set_output(true)
      .set_uid(STATS)
      .set_data_type(fe::DataType_t::FLOAT)
      .set_dim({s.batch, s.heads, s.tokens, 1})
      .set_stride({s.heads * s.tokens, s.tokens, 1, 1});
}

void add_backward(fe::graph::Graph &graph, const shape &s)
{
  auto q = graph.tensor(heads("q", Q, s, s.heads, s.strides[0])),
       k = graph.tensor(heads("k", K, s, s.kv_heads, s.strides[1])),
       v = graph.tensor(heads("v", V, s, s.kv_heads, s.strides[2])),
       o = graph.tensor(heads("o", O, s, s.heads, s.strides[3])),
       dout = graph.tensor(heads("do", DO, s, s.heads, s.strides[3])),
       stats = graph.tensor(statistics(s));
  auto options = fe::graph::SDPA_backward_attributes()
                     .set_name("attention")
                     .set_attn_scale(1.0f / std::sqrt((float)s.head_width))
                     .set_deterministic_algorithm(true);
  options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
      .set_diagonal_band_right_bound(0);
  if (s.window > 0 && s.window < s.tokens)
    options.set_diagonal_band_left_bound(s.window);
  auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, o, dout, stats, options);
  put_out(dq, DQ, s, s.heads, s.strides[4]);
  put_out(dk, DK, s, s.kv_heads, s.strides[5]);
  put_out(dv, DV, s, s.kv_heads, s.strides[6]);
}

built build(cudnnHandle_t handle, const shape &s)
{
  auto graph = std::make_shared<fe::graph::Graph>();
  graph->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  if (s.backward)
    add_backward(*graph, s);
  else
    add_forward(*graph, s);
  int64_t bytes = 0;
  fe::error_t error = graph->validate();
  if (error.is_good())
    error = graph->build_operation_graph(handle);
  if (error.is_good())
    error = graph->create_execution_plans({fe::HeurMode_t::A});
  if (error.is_good())
    error = graph->check_support(handle);
  if (error.is_good())
    error = graph->build_plans(handle);
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

status nothing_for(const built &b)
{
  return status_set(STATUS_UNSUPPORTED, "cuDNN has no attention for heads of %lld elements: %s",
                    (long long)b.key.head_width, b.reason.c_str());
}

status run(cudnn_attention *cudnn, cudaStream_t stream, const shape &s,
           std::unordered_map<int64_t, void *> &&pointers, void *work)
{
  const built &b = find(cudnn, s);
  if (!b.graph)
    return nothing_for(b);
  const cudnnStatus_t taken = cudnnSetStream(cudnn->handle, stream);
  if (taken != CUDNN_STATUS_SUCCESS)
    return status_set(STATUS_LIBRARY, "cuDNN refuses the stream: %s", cudnnGetErrorString(taken));
  auto error = b.graph->execute(cudnn->handle, pointers, work);
  return error.is_good()
             ? STATUS_OK
             : status_set(STATUS_LIBRARY, "cuDNN's attention: %s", error.get_message().c_str());
}

/* No exception may pass through C callers. The frontend and its allocations can throw. */
template <typename F> status guarded(F &&body) noexcept
{
  try {
    return body();
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
  return guarded([&] {
    const built &b = find(cudnn, shape_of(op, backward));
    if (!b.graph)
      return nothing_for(b);
    *out = b.workspace;
    return STATUS_OK;
  });
}

status cudnn_attention_forward(cudnn_attention *cudnn, cudaStream_t stream, const attention *op)
{
  return guarded([&] {
    const attention_backward whole = {*op};
    return run(cudnn, stream, shape_of(&whole, false),
               {{Q, (void *)op->q},
                {K, (void *)op->k},
                {V, (void *)op->v},
                {O, op->out},
                {STATS, op->lse}},
               op->work);
  });
}

status cudnn_attention_backward(cudnn_attention *cudnn, cudaStream_t stream,
                                const attention_backward *op)
{
  return guarded([&] {
    const attention &f = op->forward;
    return run(cudnn, stream, shape_of(op, true),
               {{Q, (void *)f.q},
                {K, (void *)f.k},
                {V, (void *)f.v},
                {O, f.out},
                {STATS, f.lse},
                {DO, (void *)op->dout},
                {DQ, op->dq},
                {DK, op->dk},
                {DV, op->dv}},
               f.work);
  });
}
