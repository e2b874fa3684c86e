#include <algorithm>

#include "latent.h"

namespace edgedec {

LatentProducts::LatentProducts(Engine& engine, const ed_block& block)
    : engine_(engine),
      block_(block),
      m_(*block.latent),
      heads_(block.attention->heads),
      dim_(block.attention->head_dim),
      s_(engine.shared<Scratch>()),
      q_a_(matrix(m_.q_a)),
      q_(matrix(m_.q)),
      kv_a_(matrix(m_.kv_a)),
      k_up_(matrix(m_.k_up)),
      v_up_(matrix(m_.v_up)) {}

std::vector<Matrix> LatentProducts::matrices() const {
  std::vector<Matrix> all{q_, kv_a_, k_up_.slice(0, m_.rank), v_up_.slice(0, m_.v_dim)};
  if (m_.q_rank) all.push_back(q_a_);
  return all;
}

void LatentProducts::reserve(int rows) {
  const size_t all = (size_t)rows * heads_;
  s_.low.need((size_t)rows * m_.q_rank), s_.q.need((size_t)rows * q_.n);
  s_.heads.need(all * std::max(m_.nope_dim, m_.rank)), s_.out.need(all * m_.v_dim);
  s_.ready.need(all, k_up_), s_.ready.need(all, v_up_);
}

// The first n values of each row normed.
void LatentProducts::norm_rows(const float* weight, int n, int rows, float* x, int64_t stride) {
  engine_.pool().parallel_for(rows, engine_.grain(rows), [&](int begin, int end, int) {
    for (int r = begin; r < end; r++)
      engine_.kernels().norm(x + r * stride, weight, n, m_.inner_eps, x + r * stride);
  });
}

// The queries before they are turned [rows, heads, rope_dim + nope_dim]; `a`: the normed rows, ready for the first matrix.
const float* LatentProducts::queries(const BlockCall& call, const QuantizedActivations& a) {
  if (!m_.q_rank) return engine_.multiply(q_, a, call.rows, nullptr, s_.q.p, q_.n), s_.q.p;
  engine_.multiply(q_a_, a, call.rows, m_.q_a_bias, s_.low.p, m_.q_rank);
  norm_rows(m_.q_a_norm, m_.q_rank, call.rows, s_.low.p, m_.q_rank);
  engine_.multiply(q_, engine_.quantize(s_.low.p, call.rows, q_), call.rows, nullptr, s_.q.p, q_.n);
  return s_.q.p;
}

void LatentProducts::project(const BlockCall& call, float* qk, int64_t width) {
  const int rows = call.rows, rope = m_.rope_dim, q_dim = rope + m_.nope_dim;
  float* key = qk + (int64_t)heads_ * dim_;
  const float* q = queries(call, engine_.norm(block_.norm, call.input, rows, m_.q_rank ? q_a_ : q_));
  engine_.multiply(kv_a_, engine_.quantize(engine_.normed(), rows, kv_a_), rows, m_.kv_a_bias, key, width);
  norm_rows(m_.kv_norm, m_.rank, rows, key + rope, width);
  for (int r = 0; r < rows; r++)
    for (int h = 0; h < heads_; h++)
      std::copy_n(q + ((int64_t)r * heads_ + h) * q_dim, rope, qk + r * width + (int64_t)h * dim_);
  by_head(k_up_, q + rope, (int64_t)heads_ * q_dim, q_dim, rows, qk + rope, width, dim_);
}

const float* LatentProducts::values(const float* attended, int rows) {
  const int64_t width = (int64_t)heads_ * m_.v_dim;
  by_head(v_up_, attended + m_.rope_dim, (int64_t)heads_ * dim_, dim_, rows, s_.out.p, width, m_.v_dim);
  return s_.out.p;
}

// out[r][h] = (matrix h of `all`) x[r][h] for all rows and heads, each by its stride.
void LatentProducts::by_head(const Matrix& all, const float* x, int64_t x_stride, int64_t x_head, int rows, float* out,
                             int64_t stride, int64_t head) {
  const Kernels& k = engine_.kernels();
  const int n = all.n / heads_, tasks = heads_ * rows;
  QuantizedActivations ready = s_.ready.rows(all);
  if (!all.quantized()) ready.x = s_.heads.p;
  engine_.pool().parallel_for(tasks, engine_.grain(tasks), [&](int begin, int end, int) {
    for (int i = begin; i < end; i++) {
      const int h = i / rows, r = i % rows;
      float* to = s_.heads.p + (size_t)i * all.k;
      std::copy_n(x + r * x_stride + h * x_head, all.k, to);
      if (all.quantized()) k.quantize(to, all, ready, i, 0, ready.steps);
    }
  });
  engine_.pool().parallel_for(heads_, 1, [&](int begin, int end, int thread) {
    for (int h = begin; h < end; h++) {
      Product p{};
      p.w = all.slice((int64_t)h * n, n), p.a = from_row(ready, (size_t)h * rows, all);
      p.rows = rows, p.out = out + h * head, p.stride = stride;
      k.product(p, 0, p.w.groups(), engine_.scratch(thread));
    }
  });
}

namespace {

// Heads' matrices must be whole groups of outputs.
std::unique_ptr<Block> make(Engine& engine, const ed_block& block) {
  const ed_latent& m = *block.latent;
  if (m.rank % LANES || m.v_dim % LANES || block.attention->head_dim != m.rank + m.rope_dim) return nullptr;
  return ATTENTION_BLOCK.make(engine, block);
}

std::unique_ptr<BlockState> make_state(const ed_model& model, const ed_block& block, int kv,
                                       const std::shared_ptr<PagePool>& pages) {
  return ATTENTION_BLOCK.make_state(model, block, kv, pages);
}

}  // namespace

const BlockKind LATENT_BLOCK = {LATENT, make, make_state};

}  // namespace edgedec
