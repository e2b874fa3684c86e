// The gated short convolution: projection to B, C and x; B * x convolved along each row's own path in its tree, times C;
// projection.
//
// Each value is a sum of products, the oldest row first; channels are independent, so each runs on one thread.
#include "engine.h"
#include "recurrent.h"

namespace edgedec {

namespace {

constexpr int CHANNELS = 128;  // of one task

SsmShape shape_of(const ed_conv& m) {
  SsmShape shape{};
  shape.groups = 1, shape.conv_size = m.conv_size, shape.channels = m.channels;
  return shape;
}

struct ConvScratch {
  Buffer<float> projected, y;
};

class ConvBlock : public Block {
 public:
  ConvBlock(Engine& engine, const ed_block& block)
      : engine_(engine),
        block_(block),
        m_(*block.conv),
        s_(engine.shared<ConvScratch>()),
        in_(matrix(m_.in_proj)),
        out_(matrix(m_.out_proj)),
        kernel_(by_taps(m_.conv, m_.conv_size, m_.channels)),
        bias_(m_.channels) {
    if (m_.conv_bias) std::copy_n(m_.conv_bias, m_.channels, bias_.data());
  }

  std::vector<Matrix> matrices() const override { return {in_, out_}; }

  void reserve(int rows) override {
    s_.projected.need((size_t)rows * in_.n);
    s_.y.need((size_t)rows * m_.channels);
  }

  void run(const BlockCall& call) override {
    engine_.project(call, block_, in_, m_.in_proj_bias, s_.projected.p);
    for (const SequenceRows& s : call.sequences) convolve(s);
    const QuantizedActivations a = engine_.quantize(s_.y.p, call.rows, out_);
    engine_.residual(call, block_, out_, a, s_.y.p, m_.out_proj_bias);
  }

 private:
  static RecurrentState& state(const SequenceRows& s) { return *static_cast<RecurrentState*>(s.state); }

  void convolve(const SequenceRows& s) {
    const int cuts = (m_.channels + CHANNELS - 1) / CHANNELS;
    state(s).updates(updates_);
    engine_.pool().parallel_for(cuts, 1, [&](int begin, int end, int) {
      std::vector<const float*> taps(m_.conv_size);
      for (int cut = begin; cut < end; cut++)
        for (int r = 0; r < s.rows; r++)
          convolve_part(s, r, taps.data(), cut * CHANNELS, std::min(m_.channels, (cut + 1) * CHANNELS));
    });
    state(s).applied();
  }

  // Channels begin to end of one row; those of earlier rows are done.
  void convolve_part(const SequenceRows& s, int r, const float** taps, int begin, int end) {
    float *b = s_.projected.p + (size_t)(s.row + r) * in_.n, *raw = state(s).row(s.pending.first + r).raw;
    const float *c = b + m_.channels, *x = c + m_.channels;
    for (int i = begin; i < end; i++) raw[i] = b[i] *= x[i];
    state(s).taps(s.pending.first + r, s_.projected.p + (size_t)s.row * in_.n, in_.n, taps);
    float sum[CHANNELS];
    const int n = end - begin;
    for (int i = 0; i < n; i++) sum[i] = kernel_[begin + i] * taps[0][begin + i];
    for (int t = 1; t < m_.conv_size; t++) {
      const float *kernel = kernel_.data() + (size_t)t * m_.channels + begin, *tap = taps[t] + begin;
      for (int i = 0; i < n; i++) sum[i] += kernel[i] * tap[i];
    }
    float* y = s_.y.p + (size_t)(s.row + r) * m_.channels + begin;
    for (int i = 0; i < n; i++) y[i] = c[begin + i] * (sum[i] + bias_[begin + i]);
  }

  Engine& engine_;
  const ed_block block_;
  const ed_conv m_;
  ConvScratch& s_;
  const Matrix in_, out_;
  std::vector<float> kernel_, bias_;  // [conv_size, channels], [channels]
  std::vector<SsmUpdate> updates_;    // nothing is done with them
};

std::unique_ptr<Block> make(Engine& engine, const ed_block& block) {
  const ed_conv& m = *block.conv;
  if (m.conv_size < 1 || m.channels < 1 || m.in_proj.n != 3 * m.channels || m.out_proj.k != m.channels) return nullptr;
  return std::make_unique<ConvBlock>(engine, block);
}

std::unique_ptr<BlockState> make_state(const ed_model&, const ed_block& block, int, const std::shared_ptr<PagePool>&) {
  return std::make_unique<RecurrentState>(shape_of(*block.conv));
}

}  // namespace

const BlockKind CONV_BLOCK = {CONV, make, make_state};

}  // namespace edgedec
