// A low-rank residual: n + rms(right left n) * low_norm, n = norm(x).
#include "engine.h"

namespace edgedec {

namespace {

struct LaurelScratch {
  Buffer<float> low, wide;
};

class LaurelBlock : public Block {
 public:
  LaurelBlock(Engine& engine, const ed_block& block)
      : engine_(engine),
        block_(block),
        m_(*block.laurel),
        s_(engine.shared<LaurelScratch>()),
        left_(matrix(m_.left)),
        right_(matrix(m_.right)) {}

  std::vector<Matrix> matrices() const override { return {left_, right_}; }

  void reserve(int rows) override {
    s_.low.need((size_t)rows * m_.rank), s_.wide.need((size_t)rows * engine_.hidden());
  }

  void run(const BlockCall& call) override {
    const int width = engine_.hidden();
    engine_.project(call, block_, left_, nullptr, s_.low.p);
    engine_.multiply(right_, engine_.quantize(s_.low.p, call.rows, right_), call.rows, nullptr, s_.wide.p, width);
    engine_.adapt(call, 1, s_.low.p, m_.rank, s_.wide.p, width);
    const Kernels& k = engine_.kernels();
    engine_.pool().parallel_for(call.rows, engine_.grain(call.rows), [&](int begin, int end, int) {
      for (int r = begin; r < end; r++) {
        float* y = s_.wide.p + (size_t)r * width;
        k.norm(y, m_.low_norm, width, engine_.model().norm_eps, y);
        k.add(engine_.normed() + (size_t)r * width, width, y);
      }
    });
    engine_.add_residual(call, block_, s_.wide.p);
  }

 private:
  Engine& engine_;
  const ed_block block_;
  const ed_laurel m_;
  LaurelScratch& s_;
  const Matrix left_, right_;
};

std::unique_ptr<Block> make(Engine& engine, const ed_block& block) {
  const ed_laurel& m = *block.laurel;
  if (m.rank < 1 || m.left.n != m.rank || m.right.k != m.rank || !m.low_norm) return nullptr;
  return std::make_unique<LaurelBlock>(engine, block);
}

}  // namespace

const BlockKind LAUREL_BLOCK = {LAUREL, make, nullptr};

}  // namespace edgedec
