// Embeddings of a layer: out(activation(gate norm(x)) * e), e = rms(context x0) * context_norm + the token's own values.
#include "engine.h"

namespace edgedec {

namespace {

struct LookupScratch {
  Buffer<float> context, gate, scaled, out;
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
    if (m_.input_scale) s_.scaled.need((size_t)rows * engine_.hidden());
    if (m_.streams) s_.out.need((size_t)rows * engine_.hidden());
  }

  void run(const BlockCall& call) override {
    engine_.multiply(context_, engine_.quantize(call.embeddings, call.rows, context_), call.rows, nullptr, s_.context.p,
                     m_.size);
    engine_.adapt(call, 2, call.embeddings, context_.k, s_.context.p, m_.size);
    if (m_.input_scale) read_scaled(call);
    else engine_.project(call, block_, gate_, nullptr, s_.gate.p);
    engine_.pool().parallel_for(call.rows, engine_.grain(call.rows), [&](int begin, int end, int) {
      for (int r = begin; r < end; r++) let_in(call, r);
    });
    const QuantizedActivations a = engine_.quantize(s_.gate.p, call.rows, out_);
    if (m_.streams) add_to_streams(call, a);
    else engine_.residual(call, block_, out_, a, s_.gate.p, nullptr);
  }

 private:
  // The gate, of the states times `input_scale`.
  void read_scaled(const BlockCall& call) {
    const size_t width = engine_.hidden();
    for (size_t i = 0; i < call.rows * width; i++) s_.scaled.p[i] = call.input[i] * m_.input_scale[i % width];
    engine_.multiply(gate_, engine_.quantize(s_.scaled.p, call.rows, gate_), call.rows, nullptr, s_.gate.p, m_.size);
    engine_.adapt(call, 0, s_.scaled.p, (int)width, s_.gate.p, m_.size);
  }

  // What is made of the gates, to all streams but the first.
  void add_to_streams(const BlockCall& call, const QuantizedActivations& a) {
    const int width = engine_.hidden(), streams = engine_.model().streams;
    engine_.multiply(out_, a, call.rows, nullptr, s_.out.p, width);
    engine_.adapt(call, 1, s_.gate.p, out_.k, s_.out.p, width);
    engine_.pool().parallel_for(call.rows, engine_.grain(call.rows), [&](int begin, int end, int) {
      for (int r = begin; r < end; r++) {
        float* y = s_.out.p + (size_t)r * width;
        engine_.norm_row(block_.post_norm, y, y);
        for (int i = 1; i < streams; i++)
          engine_.kernels().add(y, width, call.streams + ((size_t)r * streams + i) * width);
      }
    });
  }

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
  if (m.streams && !engine.model().streams) return nullptr;
  return std::make_unique<LookupBlock>(engine, block);
}

}  // namespace

const BlockKind LOOKUP_BLOCK = {LOOKUP, make, nullptr};

}  // namespace edgedec
