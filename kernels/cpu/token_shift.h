// What the blocks of RWKV-7 read: each row mixed with the one before it in its text.
#pragma once
#include "engine.h"
#include "recurrent.h"

namespace edgedec {

// The normed rows of a call, and where in the call or in a state the row before each lies.
class TokenShift {
 public:
  void need(size_t values) { x_.need(values); }

  // Norms the rows, and keeps them in the states of their sequences; before states' `applied`.
  void read(Engine& engine, const ed_block& block, const BlockCall& call) {
    width_ = engine.hidden(), before_.resize(call.rows);
    engine.pool().parallel_for(call.rows, engine.grain(call.rows), [&](int begin, int end, int) {
      for (int r = begin; r < end; r++) engine.norm_row(block.norm, call.input + (size_t)r * width_, x(r));
    });
    for (const SequenceRows& s : call.sequences)
      for (int r = 0; r < s.rows; r++) {
        const RecurrentState& state = *static_cast<const RecurrentState*>(s.state);
        const float* taps[2];
        std::copy_n(x(s.row + r), width_, state.row(s.pending.first + r).raw);
        state.taps(s.pending.first + r, x(s.row), width_, taps);
        before_[s.row + r] = taps[0];
      }
  }

  // out [rows, width] = x + (before - x) * mix.
  void mixed(Engine& engine, const float* mix, float* out) const {
    const int rows = (int)before_.size();
    engine.pool().parallel_for(rows, engine.grain(rows), [&](int begin, int end, int) {
      for (int r = begin; r < end; r++) {
        const float *own = x(r), *before = before_[r];
        float* to = out + (size_t)r * width_;
        for (int i = 0; i < width_; i++) to[i] = own[i] + (before[i] - own[i]) * mix[i];
      }
    });
  }

 private:
  float* x(int row) const { return x_.p + (size_t)row * width_; }

  int width_ = 0;
  Buffer<float> x_;
  std::vector<const float*> before_;
};

}  // namespace edgedec
