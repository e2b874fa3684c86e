// RWKV-7's feed-forward: down(relu(up x')^2), x' each row mixed with the one before it.
#include "token_shift.h"

namespace edgedec {

namespace {

SsmShape shape_of(int hidden) {
  SsmShape shape{};
  shape.groups = 1, shape.conv_size = 2, shape.channels = hidden;
  return shape;
}

struct ChannelMixScratch {
  TokenShift shift;
  Buffer<float> mixed, inner;
};

class ChannelMixBlock : public Block {
 public:
  ChannelMixBlock(Engine& engine, const ed_block& block)
      : engine_(engine),
        block_(block),
        m_(*block.channel_mix),
        s_(engine.shared<ChannelMixScratch>()),
        up_(matrix(m_.up)),
        down_(matrix(m_.down)) {}

  std::vector<Matrix> matrices() const override { return {up_, down_}; }

  void reserve(int rows) override {
    s_.shift.need((size_t)rows * up_.k);
    s_.mixed.need((size_t)rows * up_.k);
    s_.inner.need((size_t)rows * up_.n);
  }

  void run(const BlockCall& call) override {
    s_.shift.read(engine_, block_, call);
    s_.shift.mixed(engine_, m_.mix, s_.mixed.p);
    for (const SequenceRows& s : call.sequences) {
      RecurrentState& state = *static_cast<RecurrentState*>(s.state);
      state.updates(updates_), state.applied();
    }
    engine_.multiply(up_, engine_.quantize(s_.mixed.p, call.rows, up_), call.rows, nullptr, s_.inner.p, up_.n);
    engine_.adapt(call, 0, s_.mixed.p, up_.k, s_.inner.p, up_.n);
    engine_.pool().parallel_for(call.rows, engine_.grain(call.rows), [&](int begin, int end, int) {
      for (int r = begin; r < end; r++) {
        float* row = s_.inner.p + (size_t)r * up_.n;
        engine_.kernels().activate(row, up_.n, RELU2, row);
      }
    });
    engine_.residual(call, block_, down_, engine_.quantize(s_.inner.p, call.rows, down_), s_.inner.p, nullptr);
  }

 private:
  Engine& engine_;
  const ed_block block_;
  const ed_channel_mix m_;
  ChannelMixScratch& s_;
  const Matrix up_, down_;
  std::vector<SsmUpdate> updates_;  // nothing is done with them
};

std::unique_ptr<Block> make(Engine& engine, const ed_block& block) {
  const ed_channel_mix& m = *block.channel_mix;
  if (m.up.k != engine.hidden() || m.down.k != m.up.n || !m.mix) return nullptr;
  return std::make_unique<ChannelMixBlock>(engine, block);
}

std::unique_ptr<BlockState> make_state(const ed_model& model, const ed_block&, int, const std::shared_ptr<PagePool>&) {
  return std::make_unique<RecurrentState>(shape_of(model.hidden));
}

}  // namespace

const BlockKind CHANNEL_MIX_BLOCK = {CHANNEL_MIX, make, make_state};

}  // namespace edgedec
