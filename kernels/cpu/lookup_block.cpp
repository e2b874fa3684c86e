// Embeddings of a layer: out(activation(gate norm(x)) * e), e = rms(context x0) * context_norm + the token's own values.
#include "engine.h"

namespace edgedec {

namespace {

struct LookupScratch {
  Buffer<float> context, gate;
};

class LookupBlock : public Block {
 public:
  LookupBlock(Engine& engine, const ed_block& block)
      : engine_(engine),
        block_(block),
        m_(*block.lookup),
        s_(engine.shared<LookupScratch>()),
        gate_(matrix(m_.gate)),
        context_(matrix(m_.context)),
        out_(matrix(m_.out)) {}

  std::vector<Matrix> matrices() const override { return {gate_, context_, out_}; }

  void reserve(int rows) override {
    s_.context.need((size_t)rows * m_.size), s_.gate.need((size_t)rows * m_.size);
  }

  void run(const BlockCall& call) override {
    engine_.multiply(context_, engine_.quantize(call.embeddings, call.rows, context_), call.rows, nullptr, s_.context.p,
                     m_.size);
    engine_.adapt(call, 2, call.embeddings, context_.k, s_.context.p, m_.size);
    engine_.project(call, block_, gate_, nullptr, s_.gate.p);
    engine_.pool().parallel_for(call.rows, engine_.grain(call.rows), [&](int begin, int end, int) {
      for (int r = begin; r < end; r++) let_in(call, r);
    });
    engine_.residual(call, block_, out_, engine_.quantize(s_.gate.p, call.rows, out_), s_.gate.p, nullptr);
  }

 private:
  // The gate of row r times its values.
  void let_in(const BlockCall& call, int r) {
    const Kernels& k = engine_.kernels();
    float *e = s_.context.p + (size_t)r * m_.size, *gate = s_.gate.p + (size_t)r * m_.size;
    k.norm(e, m_.context_norm, m_.size, engine_.model().norm_eps, e);
    k.add(call.lookups + (size_t)r * engine_.model().lookup.k + m_.first, m_.size, e);
    k.activate(gate, m_.size, m_.activation, gate);
    for (int i = 0; i < m_.size; i++) gate[i] *= e[i];
  }

  Engine& engine_;
  const ed_block block_;
  const ed_lookup m_;
  LookupScratch& s_;
  const Matrix gate_, context_, out_;
};

std::unique_ptr<Block> make(Engine& engine, const ed_block& block) {
  const ed_lookup& m = *block.lookup;
  if (m.size < 1 || m.first < 0 || m.first + m.size > engine.model().lookup.k) return nullptr;
  return std::make_unique<LookupBlock>(engine, block);
}

}  // namespace

const BlockKind LOOKUP_BLOCK = {LOOKUP, make, nullptr};

}  // namespace edgedec
