// The gated delta rule: projection, a short convolution of v, k and q, a recurrence along each row's own path in its tree,
// a norm a head, a gate, projection.
//
// Rows that follow one another are applied to a part of a state while it lies in the fastest cache. Heads are
// independent, so each runs on one thread.
#include <cfloat>
#include <cmath>

#include "state_scan.h"

namespace edgedec {

namespace {

constexpr int CONV_CHANNELS = 512;  // of one task, at least
constexpr float NEAR_ZERO = 1e-6f;  // under the root of a length

SsmShape shape_of(const ed_delta& m) { return {m.heads, m.head_dim, m.key_dim, m.groups, m.conv_size, m.decays}; }

struct DeltaScratch {
  Buffer<float> projected, y, low, z, g;
};

class DeltaBlock : public Block {
 public:
  DeltaBlock(Engine& engine, const ed_block& block)
      : engine_(engine),
        block_(block),
        m_(*block.delta),
        shape_(shape_of(m_)),
        s_(engine.shared<DeltaScratch>()),
        in_(matrix(m_.in_proj)),
        out_(matrix(m_.out_proj)),
        z_rows_(m_.rank ? m_.rank : shape_.inner()),
        taps_(by_taps(m_.conv, m_.conv_size, shape_.conv_dim())),
        zeros_(shape_.conv_dim()),
        a_(shape_.all_decays()),
        key_scale_(m_.key_dim, 1.0f / std::sqrt((float)m_.key_dim)),
        query_scale_(m_.key_dim, 1.0f / m_.key_dim) {
    for (int i = 0; i < shape_.all_decays(); i++) a_[i] = m_.a[i / m_.decays];
  }

  std::vector<Matrix> matrices() const override {
    if (!m_.rank) return {in_, out_};
    return {in_, out_, matrix(m_.gate_up), matrix(m_.decay_up)};
  }

  void reserve(int rows) override {
    s_.projected.need((size_t)rows * in_.n);
    s_.y.need((size_t)rows * shape_.inner());
    if (!m_.rank) return;
    s_.low.need((size_t)rows * m_.rank);
    s_.z.need((size_t)rows * shape_.inner());
    s_.g.need((size_t)rows * shape_.all_decays());
  }

  void run(const BlockCall& call) override {
    project(call);
    for (const SequenceRows& s : call.sequences) convolve(s);
    scan(call);
    gate(call.rows);
    const QuantizedActivations a = engine_.quantize(s_.y.p, call.rows, out_);
    engine_.residual(call, block_, out_, a, s_.y.p, nullptr);
  }

 private:
  static RecurrentState& state(const SequenceRows& s) { return *static_cast<RecurrentState*>(s.state); }
  float* projected(int row) const { return s_.projected.p + (size_t)row * in_.n; }
  float* z(int row) const {
    return m_.rank ? s_.z.p + (size_t)row * shape_.inner() : projected(row) + shape_.conv_dim();
  }
  const float* b(int row) const { return projected(row) + shape_.conv_dim() + z_rows_; }
  const float* g(int row) const {
    return m_.rank ? s_.g.p + (size_t)row * shape_.all_decays() : b(row) + m_.heads;
  }

  void project(const BlockCall& call) {
    engine_.project(call, block_, in_, nullptr, s_.projected.p);
    if (!m_.rank) return;
    raise(call, 2, matrix(m_.gate_up), shape_.conv_dim(), s_.z.p);
    raise(call, 3, matrix(m_.decay_up), shape_.conv_dim() + z_rows_ + m_.heads, s_.g.p);
  }

  // `rank` values of each row, from `at` on, times a second matrix; which: its place in an adapter.
  void raise(const BlockCall& call, int which, const Matrix& w, int at, float* out) {
    const int rows = call.rows;
    for (int r = 0; r < rows; r++) std::copy_n(projected(r) + at, m_.rank, s_.low.p + (size_t)r * m_.rank);
    engine_.multiply(w, engine_.quantize(s_.low.p, rows, w), rows, nullptr, out, w.n);
    engine_.adapt(call, which, s_.low.p, m_.rank, out, w.n);
  }

  // The inputs of a sequence's computed rows, kept in its state; few rows are cut by channels, keys and queries by heads.
  void convolve(const SequenceRows& s) {
    const int channels = shape_.conv_dim(), values = shape_.inner(), threads = engine_.pool().size();
    const bool whole = s.rows >= 2 * threads;
    const int each = whole ? values : CONV_CHANNELS;
    const int heads = whole ? 2 * m_.groups : (CONV_CHANNELS + m_.key_dim - 1) / m_.key_dim;
    const int first = (values + each - 1) / each, cuts = first + (2 * m_.groups + heads - 1) / heads;
    engine_.pool().parallel_for(s.rows * cuts, engine_.grain(s.rows * cuts), [&](int begin, int end, int) {
      std::vector<const float*> taps(m_.conv_size);
      for (int i = begin; i < end; i++) {
        const int r = i / cuts, cut = i % cuts;
        state(s).taps(s.pending.first + r, projected(s.row), in_.n, taps.data());
        const int from = cut < first ? cut * each : values + (cut - first) * heads * m_.key_dim;
        const int to = cut < first ? std::min(values, from + each) : std::min(channels, from + heads * m_.key_dim);
        convolve_part(s, r, taps.data(), from, to);
        if (cut == 0) steps(s, r);
      }
    });
  }

  void convolve_part(const SequenceRows& s, int r, const float** taps, int begin, int end) {
    const Kernels& k = engine_.kernels();
    const int channels = shape_.conv_dim(), queries = shape_.inner() + m_.groups * m_.key_dim;
    const SsmRow row = state(s).row(s.pending.first + r);
    const float* raw = projected(s.row + r);
    std::copy(raw + begin, raw + end, row.raw + begin);
    for (int t = 0; t < m_.conv_size; t++) taps[t] += begin;
    k.conv(taps, m_.conv_size, taps_.data() + begin, channels, zeros_.data(), end - begin, row.mixed + begin);
    for (int at = begin; at < end && begin >= shape_.inner(); at += m_.key_dim) {
      const std::vector<float>& scale = at < queries ? key_scale_ : query_scale_;
      k.norm(row.mixed + at, scale.data(), m_.key_dim, NEAR_ZERO / m_.key_dim, row.mixed + at);
    }
  }

  // beta and the decays of a row.
  void steps(const SequenceRows& s, int r) {
    const Kernels& k = engine_.kernels();
    const SsmRow row = state(s).row(s.pending.first + r);
    std::vector<float> softplus(shape_.all_decays());
    k.ssm_dt(g(s.row + r), m_.dt_bias, a_.data(), shape_.all_decays(), 0.0f, FLT_MAX, softplus.data(), row.decay);
    k.sigmoid(b(s.row + r), m_.heads, row.dt);
    for (int h = 0; h < m_.heads; h++) row.dt[h] *= m_.beta_scale;
  }

  // y of every row, and the states: each head, or a part of one, through all rows of its sequence.
  void scan(const BlockCall& call) {
    steps_.resize(engine_.pool().size());
    scan_.run(engine_, call, m_.heads, m_.head_dim,
              [&](const SequenceRows& s, const std::vector<SsmUpdate>& updates, int h, int lane0, int lane1, int thread) {
                scan_head(s, updates, h, lane0, lane1, steps_[thread]);
              });
  }

  // Updates that each start from the state of the one before go to the kernel together.
  void scan_head(const SequenceRows& s, const std::vector<SsmUpdate>& updates, int h, int lane0, int lane1,
                 std::vector<SsmStep>& steps) {
    steps.clear();
    for (size_t i = 0; i < updates.size(); i++) {
      const SsmUpdate& u = updates[i];
      SsmStep step = shape_.step(u, h);
      if (u.row >= 0) {
        step.c = step.b + m_.groups * m_.key_dim;
        step.y = s_.y.p + (size_t)(s.row + u.row) * shape_.inner() + h * m_.head_dim;
      }
      ssm_from_zeros(step, lane0, lane1);
      steps.push_back(step);
      if (i + 1 < updates.size() && updates[i + 1].from == u.to) continue;
      engine_.kernels().delta_steps(steps.data(), (int)steps.size(), lane0, lane1);
      steps.clear();
    }
  }

  // y = norm(y) by heads, times silu(z) or sigmoid(z).
  void gate(int rows) {
    const Kernels& k = engine_.kernels();
    const int inner = shape_.inner();
    const float eps = m_.eps > 0 ? m_.eps : engine_.model().norm_eps;
    engine_.pool().parallel_for(rows, engine_.grain(rows), [&](int begin, int end, int) {
      for (int r = begin; r < end; r++) {
        float *y = s_.y.p + (size_t)r * inner, *gates = z(r);
        for (int i = 0; i < inner; i += m_.head_dim) k.norm(y + i, m_.gate_norm, m_.head_dim, eps, y + i);
        if (!m_.sigmoid) {
          k.glu(gates, y, inner, SILU, y);
          continue;
        }
        k.sigmoid(gates, inner, gates);
        for (int i = 0; i < inner; i++) y[i] *= gates[i];
      }
    });
  }

  Engine& engine_;
  const ed_block block_;
  const ed_delta m_;
  const SsmShape shape_;
  DeltaScratch& s_;
  const Matrix in_, out_;
  const int z_rows_;
  std::vector<float> taps_, zeros_, a_;  // the convolution's weights [conv_size, conv_dim]; no bias; [heads, decays]
  const std::vector<float> key_scale_, query_scale_;
  StateScan scan_;
  std::vector<std::vector<SsmStep>> steps_;  // of each thread
};

std::unique_ptr<Block> make(Engine& engine, const ed_block& block) {
  const ed_delta& m = *block.delta;
  if (m.heads < 1 || m.head_dim < 1 || m.key_dim < 1 || m.groups < 1 || m.heads % m.groups || m.conv_size < 1)
    return nullptr;
  if (m.decays != 1 && m.decays != m.key_dim) return nullptr;
  const SsmShape shape = shape_of(m);
  const int z = m.rank ? m.rank : shape.inner(), g = m.rank ? m.rank : shape.all_decays();
  if (m.in_proj.n != shape.conv_dim() + z + m.heads + g || m.out_proj.k != shape.inner()) return nullptr;
  if (m.rank && (m.gate_up.n != shape.inner() || m.decay_up.n != shape.all_decays())) return nullptr;
  return std::make_unique<DeltaBlock>(engine, block);
}

std::unique_ptr<BlockState> make_state(const ed_model&, const ed_block& block, int, const std::shared_ptr<PagePool>&) {
  return std::make_unique<RecurrentState>(shape_of(*block.delta));
}

}  // namespace

const BlockKind DELTA_BLOCK = {DELTA, make, make_state};

}  // namespace edgedec
