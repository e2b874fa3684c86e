// RWKV-7's time mixing: projections of each row mixed with the one before it, a recurrence along each row's own path in its
// tree, a norm a head, the row's own value once more, a gate, projection.
//
// Heads are independent, so each runs on one thread; a sum over a key is made one channel after another.
#include <cmath>

#include "state_scan.h"
#include "token_shift.h"

namespace edgedec {

namespace {

constexpr float NEAR_ZERO = 1e-24f;  // under the root of a length
enum class Squash { NONE, SIGMOID, TANH };
constexpr int R = 0, DECAY = 1, K = 2, V = 3, RATE = 4, GATE = 5;  // rows of mix

SsmShape shape_of(const ed_rwkv7& m, int hidden) {
  SsmShape shape{m.heads, m.head_dim, m.key_dim, m.heads, 2, m.key_dim};
  shape.shifted = hidden;
  return shape;
}

struct Rwkv7Scratch {
  TokenShift shift;
  Buffer<float> mixed, low, r, k, v, decay, rate, gate, share, y;
};

class Rwkv7Block : public Block {
 public:
  Rwkv7Block(Engine& engine, const ed_block& block)
      : engine_(engine),
        block_(block),
        m_(*block.rwkv7),
        shape_(shape_of(m_, engine.hidden())),
        s_(engine.shared<Rwkv7Scratch>()),
        o_(matrix(m_.o)),
        unit_(m_.key_dim, 1.0f / std::sqrt((float)m_.key_dim)) {}

  std::vector<Matrix> matrices() const override {
    std::vector<Matrix> all;
    for (const ed_tensor* t : {&m_.r, &m_.k, &m_.v, &m_.o, &m_.decay_down, &m_.decay_up, &m_.rate_down, &m_.rate_up,
                               &m_.gate_down, &m_.gate_up})
      all.push_back(matrix(*t));
    if (mixes()) all.push_back(matrix(m_.value_down)), all.push_back(matrix(m_.value_up));
    return all;
  }

  void reserve(int rows) override {
    const size_t n = rows, width = engine_.hidden();
    const int ranks[] = {m_.decay_down.n, m_.rate_down.n, m_.gate_down.n, mixes() ? m_.value_down.n : 0};
    s_.shift.need(n * width);
    s_.mixed.need(n * width);
    s_.low.need(n * *std::max_element(std::begin(ranks), std::end(ranks)));
    for (Buffer<float>* each : {&s_.r, &s_.k, &s_.decay, &s_.rate}) each->need(n * keys());
    for (Buffer<float>* each : {&s_.v, &s_.gate, &s_.share, &s_.y}) each->need(n * shape_.inner());
  }

  void run(const BlockCall& call) override {
    s_.shift.read(engine_, block_, call);
    project(call);
    each_row(call, [&](const SequenceRows& s, int r) { keep(s, r); });
    scan(call);
    each_row(call, [&](const SequenceRows& s, int r) { finish(s, r); });
    engine_.residual(call, block_, o_, engine_.quantize(s_.y.p, call.rows, o_), s_.y.p, nullptr);
  }

 private:
  static RecurrentState& state(const SequenceRows& s) { return *static_cast<RecurrentState*>(s.state); }
  bool mixes() const { return block_.values_of >= 0; }
  int keys() const { return m_.heads * m_.key_dim; }

  template <class Do>
  void each_row(const BlockCall& call, Do work) {
    for (const SequenceRows& s : call.sequences)
      engine_.pool().parallel_for(s.rows, engine_.grain(s.rows), [&](int begin, int end, int) {
        for (int r = begin; r < end; r++) work(s, r);
      });
  }

  void project(const BlockCall& call) {
    mix(R), times(call, m_.r, 0, s_.r.p);
    mix(K), times(call, m_.k, 2, s_.k.p);
    mix(V), times(call, m_.v, 3, s_.v.p);
    if (mixes()) low(call, m_.value_down, m_.value_up, 10, Squash::NONE, s_.share.p);
    mix(DECAY), low(call, m_.decay_down, m_.decay_up, 4, Squash::TANH, s_.decay.p);
    mix(RATE), low(call, m_.rate_down, m_.rate_up, 6, Squash::NONE, s_.rate.p);
    mix(GATE), low(call, m_.gate_down, m_.gate_up, 8, Squash::SIGMOID, s_.gate.p);
  }

  void mix(int which) { s_.shift.mixed(engine_, m_.mix + (size_t)which * engine_.hidden(), s_.mixed.p); }

  // out = w . the mixed rows; which: its place in an adapter.
  void times(const BlockCall& call, const ed_tensor& w, int which, float* out) {
    engine_.multiply(matrix(w), engine_.quantize(s_.mixed.p, call.rows, matrix(w)), call.rows, nullptr, out, w.n);
    engine_.adapt(call, which, s_.mixed.p, w.k, out, w.n);
  }

  // out = up . squash(down . the mixed rows); which: the place of `down` in an adapter, that of `up` is after it.
  void low(const BlockCall& call, const ed_tensor& down, const ed_tensor& up, int which, Squash squash, float* out) {
    float* x = s_.low.p;
    times(call, down, which, x);
    const int rows = call.rows, n = rows * down.n;
    const bool tanh = squash == Squash::TANH;  // 2 sigmoid(2 x) - 1
    for (int i = 0; tanh && i < n; i++) x[i] *= 2.0f;
    if (squash != Squash::NONE) engine_.kernels().sigmoid(x, n, x);
    for (int i = 0; tanh && i < n; i++) x[i] = 2.0f * x[i] - 1.0f;
    engine_.multiply(matrix(up), engine_.quantize(x, rows, matrix(up)), rows, nullptr, out, up.n);
    engine_.adapt(call, which + 1, x, up.k, out, up.n);
  }

  // What the recurrence applies of a row, kept in the state of its sequence.
  void keep(const SequenceRows& s, int r) const {
    const Kernels& k = engine_.kernels();
    const int row = s.row + r, n = keys(), inner = shape_.inner();
    const SsmRow to = state(s).row(s.pending.first + r);
    float *key = to.mixed + inner, *sought = key + n, *replaced = sought + n;
    float *decay = s_.decay.p + (size_t)row * n, *rate = s_.rate.p + (size_t)row * n, *own = s_.k.p + (size_t)row * n;
    std::copy_n(s_.v.p + (size_t)row * inner, inner, to.mixed);
    if (mixes()) mix_first(s, r, to.mixed);
    k.add(m_.decay_bias, n, decay), k.sigmoid(decay, n, decay);
    const float fastest = -std::exp(-0.5f);
    for (int i = 0; i < n; i++) decay[i] *= fastest;
    k.exp_shifted(decay, n, 0.0f, to.decay);
    k.add(m_.rate_bias, n, rate), k.sigmoid(rate, n, rate);
    for (int i = 0; i < n; i++) {
      sought[i] = own[i] * m_.key_scale[i];
      key[i] = own[i] * (1.0f + (rate[i] - 1.0f) * m_.key_rate[i]);
    }
    for (int at = 0; at < n; at += m_.key_dim)
      k.norm(sought + at, unit_.data(), m_.key_dim, NEAR_ZERO / m_.key_dim, sought + at);
    for (int i = 0; i < n; i++) replaced[i] = sought[i] * rate[i];
  }

  // v + (the first value - v) * sigmoid(share) of a row.
  void mix_first(const SequenceRows& s, int r, float* v) const {
    const int inner = shape_.inner();
    const float* first = static_cast<const RecurrentState*>(s.owner)->row(s.pending.first + r).mixed;
    float* share = s_.share.p + (size_t)(s.row + r) * inner;
    engine_.kernels().add(m_.value_bias, inner, share);
    engine_.kernels().sigmoid(share, inner, share);
    for (int i = 0; i < inner; i++) v[i] += (first[i] - v[i]) * share[i];
  }

  // S'^T r of every row, and the states: each head, or a part of one, through all rows of its sequence.
  void scan(const BlockCall& call) {
    scan_.run(engine_, call, m_.heads, m_.head_dim, [&](const SequenceRows& s, const std::vector<SsmUpdate>& updates, int h,
                                                        int lane0, int lane1, int) { scan_head(s, updates, h, lane0, lane1); });
  }

  void scan_head(const SequenceRows& s, const std::vector<SsmUpdate>& updates, int h, int lane0, int lane1) const {
    for (const SsmUpdate& u : updates) {
      SsmStep step = shape_.step(u, h);
      if (u.row >= 0) {
        step.c = s_.r.p + (size_t)(s.row + u.row) * keys() + h * m_.key_dim;
        step.y = s_.y.p + (size_t)(s.row + u.row) * shape_.inner() + h * m_.head_dim;
      }
      ssm_from_zeros(step, lane0, lane1);
      engine_.kernels().rwkv7_step(step, lane0, lane1);
    }
  }

  // y = (norm(y) by heads + (r . k bonus) v) * gate.
  void finish(const SequenceRows& s, int r) const {
    const int inner = shape_.inner(), row = s.row + r;
    const float *v = state(s).row(s.pending.first + r).mixed, *key = v + inner, *query = s_.r.p + (size_t)row * keys();
    float *y = s_.y.p + (size_t)row * inner, *gate = s_.gate.p + (size_t)row * inner;
    for (int h = 0; h < m_.heads; h++) {
      float* own = y + h * m_.head_dim;
      engine_.kernels().layer_norm(own, m_.out_norm + h * m_.head_dim, m_.out_norm_bias + h * m_.head_dim, m_.head_dim,
                                   m_.eps, own);
      float bonus = 0.0f;
      for (int i = h * m_.key_dim; i < (h + 1) * m_.key_dim; i++) bonus += query[i] * key[i] * m_.bonus[i];
      for (int i = 0; i < m_.head_dim; i++) own[i] += bonus * v[h * m_.head_dim + i];
    }
    for (int i = 0; i < inner; i++) y[i] *= gate[i];
  }

  Engine& engine_;
  const ed_block block_;
  const ed_rwkv7 m_;
  const SsmShape shape_;
  Rwkv7Scratch& s_;
  const Matrix o_;
  const std::vector<float> unit_;
  StateScan scan_;
};

std::unique_ptr<Block> make(Engine& engine, const ed_block& block) {
  const ed_rwkv7& m = *block.rwkv7;
  if (m.heads < 1 || m.head_dim < 1 || m.key_dim < 1) return nullptr;
  const int keys = m.heads * m.key_dim, values = m.heads * m.head_dim;
  if (m.r.n != keys || m.k.n != keys || m.v.n != values || m.o.k != values) return nullptr;
  if (m.decay_up.n != keys || m.rate_up.n != keys || m.gate_up.n != values) return nullptr;
  if (block.values_of >= 0 && (m.value_up.n != values || !m.value_bias)) return nullptr;
  return std::make_unique<Rwkv7Block>(engine, block);
}

std::unique_ptr<BlockState> make_state(const ed_model& model, const ed_block& block, int, const std::shared_ptr<PagePool>&) {
  return std::make_unique<RecurrentState>(shape_of(*block.rwkv7, model.hidden));
}

}  // namespace

const BlockKind RWKV7_BLOCK = {RWKV7, make, make_state};

}  // namespace edgedec
