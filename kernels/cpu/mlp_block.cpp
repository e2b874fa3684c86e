// The feed-forward block: gated, down(activation(gate(x)) * up(x)), or plain, down(activation(up(x))). A norm may stand before down.
#include <algorithm>
#include <cmath>

#include "engine.h"

namespace edgedec {

namespace {

struct MlpScratch {
  Buffer<float> gate_up, mlp_act;
};

class MlpBlock : public Block {
 public:
  MlpBlock(Engine& engine, const ed_block& block)
      : engine_(engine),
        block_(block),
        m_(*block.mlp),
        s_(engine.shared<MlpScratch>()),
        up_(matrix(m_.up)),
        down_(matrix(m_.down)) {
    if (!m_.xielu) return;
    above_ = (float)std::log1p(std::exp((double)m_.xielu[0]));
    below_ = m_.xielu[2] + (float)std::log1p(std::exp((double)m_.xielu[1]));
  }

  std::vector<Matrix> matrices() const override { return {up_, down_}; }

  void reserve(int rows) override {
    s_.mlp_act.need((size_t)rows * m_.inner);
    if (!fuses()) s_.gate_up.need((size_t)rows * up_.n);
  }

  void run(const BlockCall& call) override {
    const bool adapted = engine_.adapted(call, 0);
    Product p{};
    p.w = up_, p.a = engine_.norm(block_.norm, call.input, call.rows, up_);
    p.bias = m_.up_bias, p.rows = call.rows, p.activation = m_.activation;
    if (fuses() && !adapted) {
      p.out = s_.mlp_act.p, p.stride = m_.inner, p.epilogue = m_.gated ? GLU : ACTIVATE;
      engine_.multiply(p);
    } else {
      s_.gate_up.need((size_t)call.rows * up_.n);
      p.out = s_.gate_up.p, p.stride = up_.n;
      engine_.multiply(p);
      engine_.adapt(call, 0, engine_.normed(), engine_.hidden(), s_.gate_up.p, up_.n);
      activate(call.rows);
    }
    engine_.norm_wide(m_.inner_norm, s_.mlp_act.p, call.rows, m_.inner);
    const QuantizedActivations a = engine_.quantize(s_.mlp_act.p, call.rows, down_);
    engine_.residual(call, block_, down_, a, s_.mlp_act.p, m_.down_bias);
  }

 private:
  // Gate and up are groups of the same width only if they are whole groups.
  bool fuses() const { return !m_.xielu && !m_.cutoff && (!m_.gated || m_.inner % LANES == 0); }

  // b x + p x^2 above 0, b x + n (exp(min(x, eps)) - 1 - x) below.
  void bend(float* x, float* y) const {
    const float b = m_.xielu[2], eps = m_.xielu[3];
    for (int i = 0; i < m_.inner; i++) y[i] = std::min(x[i], eps);
    engine_.kernels().exp_shifted(y, m_.inner, 0.0f, y);
    for (int i = 0; i < m_.inner; i++) {
      const float bent = x[i] > 0.0f ? above_ * (x[i] * x[i]) : below_ * (y[i] - 1.0f - x[i]);
      y[i] = b * x[i] + bent;
    }
  }

  // A sum in 16 lanes, as those of rows in kernels.h, of what `of` makes of each value.
  template <class Of>
  static float sum(const float* x, int n, Of of) {
    float lanes[16] = {};
    for (int i = 0; i < n; i++) lanes[i % 16] += of(x[i]);
    for (int half = 8; half; half /= 2)
      for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
  }

  // What each gate of a row is above the mean and `cutoff` spreads, or 0.
  void cut_off(float* gate) const {
    const float mean = sum(gate, m_.inner, [](float x) { return x; }) / m_.inner;
    const float square = sum(gate, m_.inner, [mean](float x) { return (x - mean) * (x - mean); }) / m_.inner;
    const float least = mean + std::sqrt(square) * *m_.cutoff;
    for (int i = 0; i < m_.inner; i++) gate[i] = std::max(gate[i] - least, 0.0f);
  }

  void activate(int rows) {
    const Kernels& k = engine_.kernels();
    engine_.pool().parallel_for(rows, 1, [&](int begin, int end, int) {
      for (int r = begin; r < end; r++) {
        float* x = s_.gate_up.p + (size_t)r * up_.n;
        float* y = s_.mlp_act.p + (size_t)r * m_.inner;
        if (m_.cutoff) cut_off(x);
        if (m_.xielu) bend(x, y);
        else if (m_.gated) k.glu(x, x + m_.inner, m_.inner, m_.activation, y);
        else k.activate(x, m_.inner, m_.activation, y);
      }
    });
  }

  Engine& engine_;
  const ed_block block_;
  const ed_mlp m_;
  MlpScratch& s_;
  const Matrix up_, down_;
  float above_ = 0, below_ = 0;  // of xielu
};

std::unique_ptr<Block> make(Engine& engine, const ed_block& block) {
  if ((block.mlp->activation == XIELU) != (block.mlp->xielu != nullptr) || (block.mlp->xielu && block.mlp->gated) ||
      (block.mlp->cutoff && !block.mlp->gated))
    return nullptr;
  return std::make_unique<MlpBlock>(engine, block);
}

}  // namespace

const BlockKind MLP_BLOCK = {MLP, make, nullptr};

}  // namespace edgedec
