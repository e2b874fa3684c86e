// The state of a recurrent block for one text (state-space, delta rule, RWKV-7, short convolution): the committed state, the
// inputs of pending rows, and a few checkpoints for truncation.
//
// A row's state is that of its parent with the row's inputs applied. Only one pending state is kept, that
// after the last computed row; any other is recomputed from the state before the tree by the same operations.
// A commit of other rows keeps their inputs, and the next call applies them, because it has threads and reads
// the state anyway.
#pragma once
#include <memory>
#include <vector>

#include "cache.h"
#include "ssm.h"

namespace edgedec {

// What is kept of a pending row: its values before the convolution [conv_dim]; x, B and C [mixed_dim]; dt [heads] and
// decay [heads, decays], or dt of each channel. Of RWKV-7: the normed state [shifted], which the next row reads; v [inner],
// then k, the key that is sought and what is replaced [heads, state_size] each; decay.
// `kept` [kept]: what later blocks read of the row.
struct SsmRow {
  float *raw, *mixed, *dt, *decay, *kept;
};

// A row's inputs, applied to a whole state.
struct SsmUpdate {
  const float* from;  // null: zeros; may be `to`
  float* to;
  const float *mixed, *dt, *decay;
  int row;  // of the computed rows the one whose output this gives; -1: none
};

struct SsmShape {
  int heads, head_dim, state_size, groups, conv_size;
  int decays = 0;    // of a head of the delta rule; 0: of a state-space block
  int channels = 0;  // of a short convolution alone, which has no heads
  // Of channels with decays of their own, which are one head and alone are convolved (S6Step); null: heads have theirs.
  std::shared_ptr<const std::vector<float>> channel_decays = nullptr;
  int kept = 0;     // values of a row that it is given for later blocks, besides its inputs
  int shifted = 0;  // of RWKV-7: values of a row that the next one reads; it has a decay for each channel of a key

  int inner() const { return heads * head_dim; }
  int mixed_dim() const { return channels ? 0 : inner() + (shifted ? 3 : 2) * groups * state_size; }
  int conv_dim() const { return channels ? channels : channel_decays ? inner() : shifted ? shifted : mixed_dim(); }
  int steps() const { return channel_decays ? inner() : shifted ? 0 : heads; }
  int all_decays() const { return channel_decays ? 0 : heads * (decays ? decays : 1); }
  size_t head_floats() const { return ssm_head_floats(head_dim, state_size); }
  size_t state_floats() const { return heads * head_floats(); }
  size_t history_floats() const { return (size_t)(conv_size - 1) * conv_dim(); }
  // An update of all channels, without an output.
  S6Step channel_step(const SsmUpdate& u) const {
    const float* b = u.mixed + inner();
    return {u.from, u.to, u.mixed, u.dt, nullptr, channel_decays->data(), b, nullptr, nullptr, inner(), state_size};
  }
  // The part of an update that head `h` has, without an output.
  SsmStep step(const SsmUpdate& u, int h) const {
    const size_t at = h * head_floats();
    const float* b = u.mixed + inner() + h / (heads / groups) * state_size;
    const float* decay = u.decay + h * (decays ? decays : 1);
    SsmStep step{u.from ? u.from + at : nullptr, u.to + at, u.mixed + h * head_dim, b, nullptr, nullptr,
                 shifted ? 0.0f : u.dt[h], decay[0], 0.0f, head_dim, state_size, decays > 1 || shifted ? decay : nullptr};
    if (shifted) step.sought = b + groups * state_size, step.replaced = step.sought + groups * state_size;
    return step;
  }
};

// The weights of a convolution [channels, conv_size] as [conv_size, channels].
std::vector<float> by_taps(const float* weights, int conv_size, int channels);

class RecurrentState final : public BlockState {
 public:
  explicit RecurrentState(const SsmShape& shape);
  const SsmShape& shape() const { return shape_; }

  // ---- one run of the block, after begin() ----
  // To be written for every computed row before updates().
  SsmRow row(int row) const;
  // The rows [conv_size] that the convolution of a row reads, oldest first; `computed` [rows, stride]: the values of
  // the computed rows before the convolution.
  void taps(int row, const float* computed, int64_t stride, const float** taps) const;
  // All that has to be applied for the computed rows, in order.
  void updates(std::vector<SsmUpdate>& out);
  // All of it has been applied.
  void applied();

  int checkpoint(int length) const override;
  void truncate(int length) override;
  std::unique_ptr<BlockState> fork(int length) const override;
  void positions(int64_t* out) const override;
  void tokens(int64_t* out) const override;
  size_t bytes() const override;
  void reserve(int rows) override;
  size_t save_bytes() const override;
  uint8_t* save(uint8_t* out) const override;
  const uint8_t* load(const uint8_t* from, const uint8_t* end) override;
  size_t rest_bytes(int /*from*/) const override { return save_bytes(); }
  uint8_t* save_rest(int /*from*/, uint8_t* out) const override { return save(out); }
  const uint8_t* append(const uint8_t* from, const uint8_t* end, int tokens) override;

 protected:
  void reserve_rows(const PendingRows& rows) override;
  void keep_rows(const KeptRow* rows, int n) override;
  void forget_rows() override;

 private:
  // [heads, ...] as in ssm.h. Frozen: others may hold it too, so it is not written again.
  struct State {
    explicit State(size_t n) : values(new float[n]) {}
    std::unique_ptr<float[]> values;
    bool frozen = false;
  };
  using StatePtr = std::shared_ptr<State>;                       // null: zeros
  using History = std::shared_ptr<const std::vector<float>>;    // [conv_size - 1, conv_dim]: the last raw rows
  struct Checkpoint {
    int length, slots;
    StatePtr state;
    History history;
  };

  StatePtr new_state() const { return std::make_shared<State>(shape_.state_floats()); }
  static float* values(const StatePtr& state) { return state ? state->values.get() : nullptr; }
  static void freeze(const StatePtr& state) {
    if (state && !state->frozen) state->frozen = true;
  }
  // Whether a pending state may not be written there: it is the committed one, or others hold it.
  bool taken(const StatePtr& state) const { return !state || state == state_ || state->frozen; }
  void resize_rows(int rows, int keep);
  void path_to(int row, int stop, std::vector<int>& path) const;
  void advance(int row);
  History history_after(int row) const;
  StatePtr settled() const;
  void push_tail(const float* from, float* to, std::vector<SsmUpdate>& out) const;
  void remember(int length, int slots);

  const SsmShape shape_;
  const int conv_pad_, mixed_pad_, step_pad_;
  const size_t input_floats_, row_floats_;  // of a row: mixed, dt, decay; and raw before, kept after them
  const History no_history_;                // zeros

  // Committed: `state_` with the inputs in `tail_` applied.
  StatePtr state_;
  std::vector<float> tail_;
  History history_;
  int length_ = 0;  // the last committed token and 1
  std::vector<Checkpoint> checkpoints_;

  // The pending tree: the state before it, and that after row next_row_ (-1: of none).
  StatePtr tree_state_, next_;
  History tree_history_;
  int next_row_ = -1, committed_row_ = -1;
  std::unique_ptr<float[]> values_;  // [rows, row_floats_]
  size_t capacity_ = 0;
  std::vector<int> parents_;

  // The run between begin() and applied().
  int first_ = 0, count_ = 0;
  StatePtr settling_;  // the committed state with the tail applied, if there is a tail
  std::vector<int> path_;
};

}  // namespace edgedec
