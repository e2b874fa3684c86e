// A layer with power law graph attention (PLDR-LLM, arXiv:2502.13502): attention and a feed-forward, normed after each
// residual. The tensor by which queries are multiplied, the G-cache, is a weight here (`attention_block.cpp`).
//
//     u = norm(attention(x) + x)    y = norm(mlp(u) + u)    x = norm(x) before, in the layer that says so
#include "engine.h"

namespace edgedec {

namespace {

class PowerLawBlock : public Block {
 public:
  PowerLawBlock(Engine& engine, const ed_block& block)
      : engine_(engine),
        norms_(*block.power_law),
        attention_(ATTENTION_BLOCK.make(engine, block)),
        mlp_(MLP_BLOCK.make(engine, block)) {}

  std::vector<Matrix> matrices() const override {
    std::vector<Matrix> all = attention_->matrices();
    for (const Matrix& matrix : mlp_->matrices()) all.push_back(matrix);
    return all;
  }

  void reserve(int rows) override {
    attention_->reserve(rows);
    mlp_->reserve(rows);
  }

  void run(const BlockCall& call) override {
    if (norms_.entry.kind != NO_NORM) norm(norms_.entry, call);
    attention_->run(call);
    norm(norms_.attention, call);
    fed_ = call;
    for (SequenceRows& s : fed_.sequences)
      if (s.lora) s.lora += 2;  // the first are of attention
    mlp_->run(fed_);
    norm(norms_.output, call);
  }

 private:
  void norm(const ed_norm& norm, const BlockCall& call) {
    engine_.pool().parallel_for(call.rows, 1, [&](int begin, int end, int) {
      for (int r = begin; r < end; r++) {
        float* row = call.hidden + (size_t)r * engine_.hidden();
        engine_.norm_row(norm, row, row);
      }
    });
  }

  Engine& engine_;
  const ed_power_law norms_;
  const std::unique_ptr<Block> attention_, mlp_;
  BlockCall fed_{};
};

std::unique_ptr<Block> make(Engine& engine, const ed_block& block) {
  return std::make_unique<PowerLawBlock>(engine, block);
}

std::unique_ptr<BlockState> make_state(const ed_model& model, const ed_block& block, int kv,
                                       const std::shared_ptr<PagePool>& pages) {
  return ATTENTION_BLOCK.make_state(model, block, kv, pages);
}

}  // namespace

const BlockKind POWER_LAW_BLOCK = {POWER_LAW, make, make_state};

}  // namespace edgedec
