// The selective state space of Mamba-1: projection, a short convolution, from its result the time step of every channel
// and B and C, a recurrence along each row's own path in its tree, a gate, projection.
//
// States of a tree are made as those of Mamba-2 are (ssm_block.cpp). Channels are independent, so lane groups of them
// run on threads.
#include "state_scan.h"

namespace edgedec {

namespace {


// a [inner, state_size] as the state lies; lanes without a channel hold zeros, and keep them.
std::shared_ptr<const std::vector<float>> decays_of(const ed_s6& m) {
  auto made = std::make_shared<std::vector<float>>(ssm_head_floats(m.inner, m.state_size));
  for (int i = 0; i < m.inner; i++)
    for (int n = 0; n < m.state_size; n++)
      (*made)[((size_t)(i / 16) * m.state_size + n) * 16 + i % 16] = m.a[(size_t)i * m.state_size + n];
  return made;
}

struct S6Scratch {
  Buffer<float> projected, x, parts, steps;
};

class S6Block : public Block {
 public:
  S6Block(Engine& engine, const ed_block& block)
      : engine_(engine),
        block_(block),
        m_(*block.s6),
        s_(engine.shared<S6Scratch>()),
        in_(matrix(m_.in_proj)),
        parts_(matrix(m_.x_proj)),
        steps_(matrix(m_.dt_proj)),
        out_(matrix(m_.out_proj)),
        taps_(by_taps(m_.conv, m_.conv_size, m_.inner)),
        ones_(std::max(m_.dt_rank, m_.state_size), 1.0f) {}

  std::vector<Matrix> matrices() const override { return {in_, parts_, steps_, out_}; }

  void reserve(int rows) override {
    s_.projected.need((size_t)rows * in_.n);
    s_.x.need((size_t)rows * m_.inner);
    s_.parts.need((size_t)rows * (parts_.n + m_.dt_rank));
    s_.steps.need((size_t)rows * m_.inner);
  }

  void run(const BlockCall& call) override {
    engine_.project(call, block_, in_, m_.in_proj_bias, s_.projected.p);
    for (const SequenceRows& s : call.sequences) convolve(s);
    engine_.multiply(parts_, engine_.quantize(s_.x.p, call.rows, parts_), call.rows, nullptr, s_.parts.p, parts_.n);
    engine_.adapt(call, 2, s_.x.p, m_.inner, s_.parts.p, parts_.n);
    float* low = s_.parts.p + (size_t)call.rows * parts_.n;
    engine_.pool().parallel_for(call.rows, engine_.grain(call.rows), [&](int begin, int end, int) {
      for (int r = begin; r < end; r++) norm_parts(s_.parts.p + (size_t)r * parts_.n, low + (size_t)r * m_.dt_rank);
    });
    engine_.multiply(steps_, engine_.quantize(low, call.rows, steps_), call.rows, nullptr, s_.steps.p, m_.inner);
    engine_.adapt(call, 3, low, m_.dt_rank, s_.steps.p, m_.inner);
    for (const SequenceRows& s : call.sequences) keep(s);
    scan(call);
    if (m_.keeps) remember(call);
    gate(call.rows);
    const QuantizedActivations a = engine_.quantize(s_.x.p, call.rows, out_);
    engine_.residual(call, block_, out_, a, s_.x.p, m_.out_proj_bias);
  }

 private:
  static RecurrentState& state(const SequenceRows& s) { return *static_cast<RecurrentState*>(s.state); }
  // x and z of a row.
  float* projected(int row) const { return s_.projected.p + (size_t)row * in_.n; }

  // x of the computed rows of a sequence, convolved, into s_.x and its state.
  void convolve(const SequenceRows& s) {
    engine_.pool().parallel_for(s.rows, engine_.grain(s.rows), [&](int begin, int end, int) {
      std::vector<const float*> taps(m_.conv_size);
      for (int r = begin; r < end; r++) {
        const SsmRow row = state(s).row(s.pending.first + r);
        const float* raw = projected(s.row + r);
        state(s).taps(s.pending.first + r, projected(s.row), in_.n, taps.data());
        std::copy(raw, raw + m_.inner, row.raw);
        engine_.kernels().conv(taps.data(), m_.conv_size, taps_.data(), m_.inner, m_.conv_bias, m_.inner, row.mixed);
        std::copy(row.mixed, row.mixed + m_.inner, s_.x.p + (size_t)(s.row + r) * m_.inner);
      }
    });
  }

  // What time steps are made of, B and C, normed in place if the model does so; the first of them to `low`.
  void norm_parts(float* parts, float* low) const {
    const int at[] = {0, m_.dt_rank, m_.dt_rank + m_.state_size, parts_.n};
    const float* weights[] = {m_.dt_norm, m_.b_norm, m_.c_norm};
    for (int i = 0; m_.part_norm && i < 3; i++) {
      float* x = parts + at[i];
      engine_.kernels().norm(x, m_.part_norm == 2 ? weights[i] : ones_.data(), at[i + 1] - at[i], m_.part_eps, x);
    }
    std::copy(parts, parts + m_.dt_rank, low);
  }

  // Time steps, B and C of the computed rows into the state.
  void keep(const SequenceRows& s) {
    for (int r = 0; r < s.rows; r++) {
      const SsmRow row = state(s).row(s.pending.first + r);
      const float* bc = s_.parts.p + (size_t)(s.row + r) * parts_.n + m_.dt_rank;
      std::copy(bc, bc + 2 * m_.state_size, row.mixed + m_.inner);
      engine_.kernels().softplus(s_.steps.p + (size_t)(s.row + r) * m_.inner, m_.dt_bias, m_.inner, row.dt);
    }
  }

  // y of every row into s_.x, and the states: a few lane groups through all rows of their sequence.
  void scan(const BlockCall& call) {
    scan_.run(engine_, call, 1, m_.inner, [&](const SequenceRows& s, const std::vector<SsmUpdate>& updates, int, int lane0,
                                              int lane1, int) { scan_lanes(s, updates, lane0, lane1); });
  }

  void scan_lanes(const SequenceRows& s, const std::vector<SsmUpdate>& updates, int lane0, int lane1) {
    for (const SsmUpdate& u : updates) {
      S6Step step = state(s).shape().channel_step(u);
      if (u.row >= 0) {
        step.c = step.b + m_.state_size, step.d = m_.d;
        step.y = s_.x.p + (size_t)(s.row + u.row) * m_.inner;
      }
      engine_.kernels().s6_step(step, lane0, lane1);
    }
  }

  // y of every row into its state, for later blocks.
  void remember(const BlockCall& call) const {
    for (const SequenceRows& s : call.sequences)
      for (int r = 0; r < s.rows; r++)
        std::copy_n(s_.x.p + (size_t)(s.row + r) * m_.inner, m_.inner, state(s).row(s.pending.first + r).kept);
  }

  // y = y * silu(z).
  void gate(int rows) {
    engine_.pool().parallel_for(rows, engine_.grain(rows), [&](int begin, int end, int) {
      for (int r = begin; r < end; r++) {
        float* y = s_.x.p + (size_t)r * m_.inner;
        engine_.kernels().glu(projected(r) + m_.inner, y, m_.inner, SILU, y);
      }
    });
  }

  Engine& engine_;
  const ed_block block_;
  const ed_s6 m_;
  S6Scratch& s_;
  const Matrix in_, parts_, steps_, out_;
  const std::vector<float> taps_, ones_;  // the convolution's weights [conv_size, inner]
  StateScan scan_;
};

std::unique_ptr<Block> make(Engine& engine, const ed_block& block) {
  const ed_s6& m = *block.s6;
  if (m.conv_size < 1 || m.in_proj.n != 2 * m.inner || m.x_proj.n != m.dt_rank + 2 * m.state_size) return nullptr;
  return std::make_unique<S6Block>(engine, block);
}

std::unique_ptr<BlockState> make_state(const ed_model&, const ed_block& block, int, const std::shared_ptr<PagePool>&) {
  const ed_s6& m = *block.s6;
  SsmShape shape{1, m.inner, m.state_size, 1, m.conv_size, 0, 0, decays_of(m)};
  shape.kept = m.keeps ? m.inner : 0;
  return std::make_unique<RecurrentState>(shape);
}

}  // namespace

const BlockKind S6_BLOCK = {S6, make, make_state};

}  // namespace edgedec
