// The state-space block of Mamba-2: projection, a short convolution, a recurrence along each row's own path in its
// tree, a gated norm, projection.
//
// Branches of a tree share their beginnings: a row whose parent is the row before it continues from that
// row's state; for any other row its path is applied again (STree, arXiv:2505.14969). Heads are independent,
// so each runs on one thread.
#include "state_scan.h"

namespace edgedec {

namespace {

constexpr int CONV_CHANNELS = 512;  // of one task

SsmShape shape_of(const ed_ssm& m) { return {m.heads, m.head_dim, m.state_size, m.groups, m.conv_size}; }

struct SsmScratch {
  Buffer<float> projected, y;
};

class SsmBlock : public Block {
 public:
  SsmBlock(Engine& engine, const ed_block& block)
      : engine_(engine),
        block_(block),
        m_(*block.ssm),
        shape_(shape_of(m_)),
        s_(engine.shared<SsmScratch>()),
        in_(matrix(m_.in_proj)),
        out_(matrix(m_.out_proj)),
        taps_(by_taps(m_.conv, m_.conv_size, shape_.conv_dim())) {}

  std::vector<Matrix> matrices() const override { return {in_, out_}; }

  void reserve(int rows) override {
    s_.projected.need((size_t)rows * in_.n);
    s_.y.need((size_t)rows * shape_.inner());
  }

  void run(const BlockCall& call) override {
    // z, xBC and dt of every row.
    engine_.project(call, block_, in_, m_.in_proj_bias, s_.projected.p);
    for (const SequenceRows& s : call.sequences) convolve(s);
    scan(call);
    gate(call.rows);
    const QuantizedActivations a = engine_.quantize(s_.y.p, call.rows, out_);
    engine_.residual(call, block_, out_, a, s_.y.p, m_.out_proj_bias);
  }

 private:
  static RecurrentState& state(const SequenceRows& s) { return *static_cast<RecurrentState*>(s.state); }
  float* projected(int row) const { return s_.projected.p + (size_t)row * in_.n; }

  // The inputs of a sequence's computed rows, kept in its state; few rows are cut by channels.
  void convolve(const SequenceRows& s) {
    const int channels = shape_.conv_dim(), threads = engine_.pool().size();
    const int cuts = s.rows < 2 * threads ? (channels + CONV_CHANNELS - 1) / CONV_CHANNELS : 1;
    engine_.pool().parallel_for(s.rows * cuts, engine_.grain(s.rows * cuts), [&](int begin, int end, int) {
      std::vector<const float*> taps(m_.conv_size);
      for (int i = begin; i < end; i++) {
        const int r = i / cuts, cut = i % cuts;
        state(s).taps(s.pending.first + r, projected(s.row) + shape_.inner(), in_.n, taps.data());
        convolve_part(s, r, taps.data(), cuts == 1 ? 0 : cut * CONV_CHANNELS,
                      cuts == 1 ? channels : std::min(channels, (cut + 1) * CONV_CHANNELS));
      }
    });
  }

  void convolve_part(const SequenceRows& s, int r, const float** taps, int begin, int end) {
    const Kernels& k = engine_.kernels();
    const int channels = shape_.conv_dim();
    const SsmRow row = state(s).row(s.pending.first + r);
    const float* xbc = projected(s.row + r) + shape_.inner();
    std::copy(xbc + begin, xbc + end, row.raw + begin);
    for (int t = 0; t < m_.conv_size; t++) taps[t] += begin;
    k.conv(taps, m_.conv_size, taps_.data() + begin, channels, m_.conv_bias + begin, end - begin, row.mixed + begin);
    if (begin == 0) k.ssm_dt(xbc + channels, m_.dt_bias, m_.a, m_.heads, m_.dt_min, m_.dt_max, row.dt, row.decay);
  }

  // y of every row, and the states: each head, or a part of one, through all rows of its sequence.
  void scan(const BlockCall& call) {
    scan_.run(engine_, call, m_.heads, m_.head_dim, [&](const SequenceRows& s, const std::vector<SsmUpdate>& updates, int h,
                                                        int lane0, int lane1, int) { scan_head(s, updates, h, lane0, lane1); });
  }

  void scan_head(const SequenceRows& s, const std::vector<SsmUpdate>& updates, int h, int lane0, int lane1) {
    for (const SsmUpdate& u : updates) {
      SsmStep step = shape_.step(u, h);
      if (u.row >= 0) {
        step.c = step.b + m_.groups * m_.state_size, step.d = m_.d[h];
        step.y = s_.y.p + (size_t)(s.row + u.row) * shape_.inner() + h * m_.head_dim;
      }
      engine_.kernels().ssm_step(step, lane0, lane1);
    }
  }

  // y = norm(y * silu(z)), by parts of a row; without parts there is no norm.
  void gate(int rows) {
    const Kernels& k = engine_.kernels();
    const int inner = shape_.inner(), width = inner / std::max(m_.norm_groups, 1);
    engine_.pool().parallel_for(rows, engine_.grain(rows), [&](int begin, int end, int) {
      for (int r = begin; r < end; r++) {
        float* y = s_.y.p + (size_t)r * inner;
        k.glu(projected(r), y, inner, SILU, y);
        if (!m_.norm_groups) continue;
        for (int i = 0; i < inner; i += width) k.norm(y + i, m_.gate_norm + i, width, engine_.model().norm_eps, y + i);
      }
    });
  }

  Engine& engine_;
  const ed_block block_;
  const ed_ssm m_;
  const SsmShape shape_;
  SsmScratch& s_;
  const Matrix in_, out_;
  const std::vector<float> taps_;  // the convolution's weights [conv_size, conv_dim]
  StateScan scan_;
};

std::unique_ptr<Block> make(Engine& engine, const ed_block& block) {
  const ed_ssm& m = *block.ssm;
  const SsmShape shape = shape_of(m);
  if (m.conv_size < 1 || m.heads % m.groups) return nullptr;
  if (m.norm_groups < 0 || shape.inner() % std::max(m.norm_groups, 1)) return nullptr;
  if (m.in_proj.n != shape.inner() + shape.conv_dim() + m.heads) return nullptr;
  return std::make_unique<SsmBlock>(engine, block);
}

std::unique_ptr<BlockState> make_state(const ed_model&, const ed_block& block, int, const std::shared_ptr<PagePool>&) {
  return std::make_unique<RecurrentState>(shape_of(*block.ssm));
}

}  // namespace

const BlockKind SSM_BLOCK = {SSM, make, make_state};

}  // namespace edgedec
