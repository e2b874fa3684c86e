// The products around latent attention (DeepSeek-V2, arXiv:2405.04434), whose slots hold one vector for all heads: a
// rotated key of rope_dim values, then the state of `rank` values from which keys and values of all heads are made. The
// matrices that make them are absorbed into the queries and into what is attended, so that attention is that of one kv
// head whose values are its keys.
#pragma once
#include "stacked.h"

namespace edgedec {

class LatentProducts {
 public:
  LatentProducts(Engine& engine, const ed_block& block);

  std::vector<Matrix> matrices() const;
  void reserve(int rows);
  // Of the call's rows, side by side at a stride of `width`: the queries of all heads [rope_dim + rank], then the key.
  void project(const BlockCall& call, float* qk, int64_t width);
  // What attention [rows, heads, rope_dim + rank] gives: [rows, heads * v_dim].
  const float* values(const float* attended, int rows);

 private:
  const float* queries(const BlockCall& call, const QuantizedActivations& a);
  void norm_rows(const float* weight, int n, int rows, float* x, int64_t stride);
  void by_head(const Matrix& all, const float* x, int64_t x_stride, int64_t x_head, int rows, float* out,
               int64_t stride, int64_t head);

  struct Scratch {
    Buffer<float> low, q, heads, out;
    Activations ready;
  };

  Engine& engine_;
  const ed_block block_;
  const ed_latent m_;
  const int heads_, dim_;
  Scratch& s_;
  const Matrix q_a_, q_, kv_a_, k_up_, v_up_;
};

}  // namespace edgedec
