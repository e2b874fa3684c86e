#include <algorithm>

#include "pre_router.h"

namespace edgedec {

PreRouter::PreRouter(Engine& engine, const ed_block& block)
    : engine_(engine),
      block_(block),
      m_(*block.pre_router),
      s_(engine.shared<Scratch>()),
      o_(matrix(block.attention->o)),
      up_(matrix(m_.up)),
      down_(matrix(m_.down)),
      router_(matrix(m_.router)),
      size_(o_.n) {}

void PreRouter::reserve(int rows) {
  const size_t values = (size_t)rows * size_;
  s_.stream.need(values), s_.normed.need(values), s_.inner.need(values), s_.logits.need((size_t)rows * m_.experts);
}

const float* PreRouter::token(const BlockCall& call, size_t row) const {
  return call.lookups + row * engine_.model().lookup.k + m_.first;
}

template <class Do>
void PreRouter::each(int rows, Do work) {
  engine_.pool().parallel_for(rows, engine_.grain(rows), [&](int begin, int end, int) {
    for (size_t r = begin; r < (size_t)end; r++) work(r);
  });
}

// The stream normed.
void PreRouter::norm(const float* weight, int rows) {
  each(rows, [&](size_t r) {
    engine_.kernels().norm(s_.stream.p + r * size_, weight, size_, engine_.model().norm_eps, s_.normed.p + r * size_);
  });
}

QuantizedActivations PreRouter::enter(const BlockCall& call, const Matrix& qkv) {
  each(call.rows, [&](size_t r) { std::copy_n(token(call, r), size_, s_.stream.p + r * size_); });
  norm(block_.norm.weight, call.rows);
  return engine_.quantize(s_.normed.p, call.rows, qkv);
}

void PreRouter::choose(const BlockCall& call, const float* attended) {
  const int rows = call.rows;
  const Kernels& k = engine_.kernels();
  engine_.multiply(o_, engine_.quantize(attended, rows, o_), rows, block_.attention->o_bias, s_.stream.p, size_);
  each(rows, [&](size_t r) { k.add(token(call, r), size_, s_.stream.p + r * size_); });
  norm(m_.up_norm, rows);
  engine_.multiply(up_, engine_.quantize(s_.normed.p, rows, up_), rows, m_.up_bias, s_.inner.p, size_);
  each(rows, [&](size_t r) { k.activate(s_.inner.p + r * size_, size_, SILU, s_.inner.p + r * size_); });
  engine_.multiply(down_, engine_.quantize(s_.inner.p, rows, down_), rows, m_.down_bias, s_.normed.p, size_);
  each(rows, [&](size_t r) { k.add(s_.normed.p + r * size_, size_, s_.stream.p + r * size_); });
  norm(m_.out_norm, rows);
  engine_.multiply(router_, engine_.quantize(s_.normed.p, rows, router_), rows, m_.router_bias, s_.logits.p, m_.experts);
  for (const SequenceRows& s : call.sequences) {
    int32_t* experts = static_cast<AttentionState*>(s.state)->experts(s.pending.first, s.rows);
    for (int r = 0; r < s.rows; r++) {
      const float* logits = s_.logits.p + (size_t)(s.row + r) * m_.experts;
      experts[r] = (int32_t)(std::max_element(logits, logits + m_.experts) - logits);
    }
  }
}

namespace {

// As many values in and out of every matrix, all of them biased.
std::unique_ptr<Block> make(Engine& engine, const ed_block& block) {
  const ed_pre_router& m = *block.pre_router;
  const ed_attention& a = *block.attention;
  const int size = a.heads * a.head_dim, wide = engine.model().lookup.k;
  for (const ed_tensor* w : {&a.o, &m.up, &m.down})
    if (w->n != size || w->k != size) return nullptr;
  if (a.heads != a.kv_heads || a.qkv.n != 3 * size || a.qkv.k != size || m.router.n != m.experts || m.router.k != size)
    return nullptr;
  if (m.experts < 1 || m.first < 0 || m.first + size > wide || !engine.model().lookup.format) return nullptr;
  return ATTENTION_BLOCK.make(engine, block);
}

std::unique_ptr<BlockState> make_state(const ed_model& model, const ed_block& block, int kv,
                                       const std::shared_ptr<PagePool>& pages) {
  return ATTENTION_BLOCK.make_state(model, block, kv, pages);
}

}  // namespace

const BlockKind PRE_ROUTER_BLOCK = {PRE_ROUTER, make, make_state};

}  // namespace edgedec
