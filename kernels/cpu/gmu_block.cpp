// The gated memory unit: out(m * silu(gate norm(x))), m being what an s6 block made of the same row before its own gate.
#include "engine.h"
#include "recurrent.h"

namespace edgedec {

namespace {

struct GmuScratch {
  Buffer<float> gate;
};

class GmuBlock : public Block {
 public:
  GmuBlock(Engine& engine, const ed_block& block)
      : engine_(engine),
        block_(block),
        m_(*block.gmu),
        s_(engine.shared<GmuScratch>()),
        gate_(matrix(m_.gate)),
        out_(matrix(m_.out)) {}

  std::vector<Matrix> matrices() const override { return {gate_, out_}; }

  void reserve(int rows) override { s_.gate.need((size_t)rows * m_.inner); }

  void run(const BlockCall& call) override {
    engine_.project(call, block_, gate_, m_.gate_bias, s_.gate.p);
    for (const SequenceRows& s : call.sequences)
      engine_.pool().parallel_for(s.rows, engine_.grain(s.rows), [&](int begin, int end, int) {
        for (int r = begin; r < end; r++) {
          const float* memory = static_cast<const RecurrentState*>(s.owner)->row(s.pending.first + r).kept;
          float* gate = s_.gate.p + (size_t)(s.row + r) * m_.inner;
          engine_.kernels().glu(gate, memory, m_.inner, SILU, gate);
        }
      });
    engine_.residual(call, block_, out_, engine_.quantize(s_.gate.p, call.rows, out_), s_.gate.p, m_.out_bias);
  }

 private:
  Engine& engine_;
  const ed_block block_;
  const ed_gmu m_;
  GmuScratch& s_;
  const Matrix gate_, out_;
};

std::unique_ptr<Block> make(Engine& engine, const ed_block& block) {
  const ed_gmu& m = *block.gmu;
  if (m.inner < 1 || m.gate.n != m.inner || m.out.k != m.inner || block.values_of < 0) return nullptr;
  return std::make_unique<GmuBlock>(engine, block);
}

}  // namespace

const BlockKind GMU_BLOCK = {GMU, make, nullptr};

}  // namespace edgedec
