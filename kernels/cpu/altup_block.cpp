// Alternating updates: the streams beside the state are entered, predicted, corrected and left (edgedec/spec/altup.py).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine.h"

namespace edgedec {

namespace {

constexpr float LEAST = 1e-5f;  // mean square of a projection

struct AltUpScratch {
  Buffer<float> modes, rows, made, changed;
};

class AltUpBlock : public Block {
 public:
  AltUpBlock(Engine& engine, const ed_block& block)
      : engine_(engine), m_(*block.altup), s_(engine.shared<AltUpScratch>()), router_(matrix(m_.router)), width_(engine.hidden()) {
    if (!routed())
      for (int i = 1; i < m_.streams; i++) projections_.push_back(matrix(m_.projections[i - 1]));
  }

  std::vector<Matrix> matrices() const override { return routed() ? std::vector<Matrix>{router_} : projections_; }

  void reserve(int rows) override {
    s_.rows.need((size_t)rows * width_);
    s_.modes.need((size_t)rows * m_.streams);
    if (m_.step == ED_LEAVE) s_.made.need((size_t)rows * width_);
    s_.changed.need((size_t)engine_.pool().size() * m_.streams * width_);
  }

  void run(const BlockCall& call) override {
    if (m_.step == ED_ENTER) return enter(call);
    if (m_.step == ED_LEAVE) return leave(call);
    route(call);
    each(call.rows, [&](int r, int thread) {
      float* changed = s_.changed.p + (size_t)thread * m_.streams * width_;
      if (m_.step == ED_PREDICT) predict(call, r, changed);
      else correct(call, r, changed);
      std::memcpy(call.hidden + (size_t)r * width_, stream(call, r, m_.active), 4 * (size_t)width_);
    });
  }

 private:
  bool routed() const { return m_.step == ED_PREDICT || m_.step == ED_CORRECT; }

  float* stream(const BlockCall& call, int r, int i) const {
    return call.streams + ((size_t)r * m_.streams + i) * width_;
  }

  template <class Row>
  void each(int rows, Row row) {
    engine_.pool().parallel_for(rows, engine_.grain(rows), [&](int begin, int end, int thread) {
      for (int r = begin; r < end; r++) row(r, thread);
    });
  }

  // The mean square of a row, summed in 16 lanes.
  float mean_square(const float* x) const {
    float lanes[16] = {};
    for (int i = 0; i < width_; i++) lanes[i % 16] += x[i] * x[i];
    for (int half = 8; half; half /= 2)
      for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0] / width_;
  }

  // y made as large as `like`.
  void resize(float* y, const float* like) const {
    const float by = std::sqrt(mean_square(like)) / std::sqrt(std::max(mean_square(y), LEAST));
    for (int i = 0; i < width_; i++) y[i] *= by;
  }

  void enter(const BlockCall& call) {
    const int64_t stride = (int64_t)m_.streams * width_;
    for (int i = 1; i < m_.streams; i++) {
      const Matrix& w = projections_[i - 1];
      engine_.multiply(w, engine_.quantize(call.hidden, call.rows, w), call.rows, nullptr, stream(call, 0, i), stride);
    }
    each(call.rows, [&](int r, int) {
      const float* x = call.hidden + (size_t)r * width_;
      std::memcpy(stream(call, r, 0), x, 4 * (size_t)width_);
      for (int i = 1; i < m_.streams; i++) resize(stream(call, r, i), x);
    });
  }

  void leave(const BlockCall& call) {
    copy_stream(call, 0, call.hidden);
    for (int i = 1; i < m_.streams; i++) {
      const Matrix& w = projections_[i - 1];
      copy_stream(call, i, s_.rows.p);
      engine_.multiply(w, engine_.quantize(s_.rows.p, call.rows, w), call.rows, nullptr, s_.made.p, width_);
      each(call.rows, [&](int r, int) {
        float* y = s_.made.p + (size_t)r * width_;
        resize(y, stream(call, r, 0));
        engine_.kernels().add(y, width_, call.hidden + (size_t)r * width_);
      });
    }
    for (size_t i = 0; i < (size_t)call.rows * width_; i++) call.hidden[i] /= m_.streams;
  }

  void copy_stream(const BlockCall& call, int i, float* to) {
    for (int r = 0; r < call.rows; r++) std::memcpy(to + (size_t)r * width_, stream(call, r, i), 4 * (size_t)width_);
  }

  // The router's outputs of each row, of its active stream or of its state.
  void route(const BlockCall& call) {
    each(call.rows, [&](int r, int) {
      const float* x = m_.step == ED_PREDICT ? stream(call, r, m_.active) : call.hidden + (size_t)r * width_;
      engine_.kernels().norm(x, m_.router_norm, width_, engine_.model().norm_eps, s_.rows.p + (size_t)r * width_);
    });
    Product p{};
    p.w = router_, p.a.x = s_.rows.p, p.rows = call.rows, p.out = s_.modes.p, p.stride = m_.streams;
    p.softcap = 1.0f;  // a hyperbolic tangent
    engine_.multiply(p);
  }

  // Row `row` of coefs times what the router made of row r.
  float coefficient(int r, int row) const {
    const float *modes = s_.modes.p + (size_t)r * m_.streams, *coefs = m_.coefs + (size_t)row * m_.streams;
    float sum = 0;
    for (int i = 0; i < m_.streams; i++) sum += coefs[i] * modes[i];
    return sum;
  }

  // changed: room for the streams of a row.
  void predict(const BlockCall& call, int r, float* changed) {
    const size_t all = (size_t)m_.streams * width_;
    std::memcpy(changed, stream(call, r, 0), 4 * all);
    for (int i = 0; i < m_.streams; i++)
      for (int j = 0; j < m_.streams; j++)
        engine_.kernels().scale_add(stream(call, r, j), width_, coefficient(r, i * m_.streams + j), changed + (size_t)i * width_);
    std::memcpy(stream(call, r, 0), changed, 4 * all);
  }

  void correct(const BlockCall& call, int r, float* changed) {
    const float *x = call.hidden + (size_t)r * width_, *active = stream(call, r, m_.active);
    for (int i = 0; i < width_; i++) changed[i] = x[i] - active[i];
    for (int i = 0; i < m_.streams; i++)
      engine_.kernels().scale_add(changed, width_, 1.0f + coefficient(r, i), stream(call, r, i));
  }

  Engine& engine_;
  const ed_altup m_;
  AltUpScratch& s_;
  const Matrix router_;
  std::vector<Matrix> projections_;
  const int width_;
};

std::unique_ptr<Block> make(Engine& engine, const ed_block& block) {
  const ed_altup& m = *block.altup;
  const bool routed = m.step == ED_PREDICT || m.step == ED_CORRECT;
  if (m.streams < 2 || m.streams != engine.model().streams || m.active < 0 || m.active >= m.streams) return nullptr;
  if (routed ? !m.router_norm || !m.coefs || m.router.n != m.streams : !m.projections) return nullptr;
  return std::make_unique<AltUpBlock>(engine, block);
}

}  // namespace

const BlockKind ALTUP_BLOCK = {ALTUP, make, nullptr};

}  // namespace edgedec
