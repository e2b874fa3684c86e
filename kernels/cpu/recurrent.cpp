#include "recurrent.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "dispatch.h"
#include "kernels.h"

namespace edgedec {

namespace {

// A commit of at least this many rows makes a checkpoint; so many checkpoints are kept, and the empty state.
constexpr int WORTH = 16, KEPT = 4;
constexpr size_t LARGE = 64;  // rows: memory for more is given back when few are needed

int round16(int n) { return (n + 15) / 16 * 16; }

struct SavedRecurrent {
  int64_t slots, length;
};

}  // namespace

std::vector<float> by_taps(const float* weights, int conv_size, int channels) {
  std::vector<float> turned((size_t)conv_size * channels);
  for (int i = 0; i < channels; i++)
    for (int t = 0; t < conv_size; t++) turned[(size_t)t * channels + i] = weights[i * conv_size + t];
  return turned;
}

RecurrentState::RecurrentState(const SsmShape& shape)
    : shape_(shape),
      conv_pad_(round16(shape.conv_dim())),
      mixed_pad_(round16(shape.mixed_dim())),
      step_pad_(round16(shape.steps())),
      input_floats_(mixed_pad_ + step_pad_ + round16(shape.all_decays())),
      row_floats_(conv_pad_ + input_floats_ + round16(shape.kept)),
      no_history_(std::make_shared<std::vector<float>>(shape.history_floats())),
      history_(no_history_),
      tree_history_(no_history_) {}

// ---- pending rows ----------------------------------------------------------------------------------

SsmRow RecurrentState::row(int row) const {
  float* p = values_.get() + row * row_floats_;
  float *mixed = p + conv_pad_, *dt = mixed + mixed_pad_;
  return {p, mixed, dt, shape_.channel_decays ? nullptr : dt + step_pad_, mixed + input_floats_};
}

void RecurrentState::resize_rows(int rows, int keep) {
  std::unique_ptr<float[]> resized(new float[rows * row_floats_]);
  if (keep) std::copy_n(values_.get(), keep * row_floats_, resized.get());
  values_ = std::move(resized), capacity_ = rows;
}

void RecurrentState::reserve(int rows) {
  if ((size_t)rows > capacity_) resize_rows(rows, count_);
}

void RecurrentState::reserve_rows(const PendingRows& rows) {
  const size_t n = rows.count;
  if (n > capacity_ || (capacity_ > LARGE && n < capacity_ / 4)) resize_rows(rows.count, rows.first);
  parents_.resize(n);
  for (int i = rows.first; i < rows.count; i++) parents_[i] = rows.parents ? (int)rows.parents[i] : i - 1;
  if (next_row_ >= rows.first) next_row_ = -1;
  if (rows.first == 0) {
    if (taken(next_)) next_ = taken(tree_state_) ? new_state() : tree_state_;
    tree_state_ = state_, tree_history_ = history_, committed_row_ = -1;
    settling_ = tail_.empty() ? nullptr : !state_ || state_->frozen ? new_state() : state_;
  }
  first_ = rows.first, count_ = rows.count;
}

// The rows after `stop` that lead to `row`; all from the root on if `stop` is no ancestor.
void RecurrentState::path_to(int row, int stop, std::vector<int>& path) const {
  path.clear();
  for (; row >= 0 && row != stop; row = parents_[row]) path.push_back(row);
  std::reverse(path.begin(), path.end());
}

void RecurrentState::taps(int row, const float* computed, int64_t stride, const float** taps) const {
  int left = shape_.conv_size;
  for (; left && row >= 0; row = parents_[row])
    taps[--left] = row >= first_ ? computed + (row - first_) * stride : this->row(row).raw;
  for (const float* past = tree_history_->data() + shape_.history_floats(); left;)
    taps[--left] = past -= shape_.conv_dim();
}

// The committed rows that have yet to be applied.
void RecurrentState::push_tail(const float* from, float* to, std::vector<SsmUpdate>& out) const {
  for (size_t at = 0; at < tail_.size(); at += input_floats_, from = to) {
    const float *mixed = tail_.data() + at, *dt = mixed + mixed_pad_;
    out.push_back({from, to, mixed, dt, shape_.channel_decays ? nullptr : dt + step_pad_, -1});
  }
}

void RecurrentState::updates(std::vector<SsmUpdate>& out) {
  out.clear();
  if (settling_) push_tail(values(state_), values(settling_), out);
  const float* start = settling_ ? values(settling_) : values(tree_state_);
  float* next = values(next_);
  for (int r = first_, before = next_row_; r < count_; before = r++) {
    path_to(r, before, path_);
    const float* from = before >= 0 && parents_[path_[0]] == before ? next : start;
    for (int i : path_) {
      const SsmRow in = row(i);
      out.push_back({from, next, in.mixed, in.dt, in.decay, i == r ? r - first_ : -1});
      from = next;
    }
  }
}

void RecurrentState::applied() {
  if (settling_) tree_state_ = state_ = std::move(settling_), tail_.clear();
  settling_ = nullptr;
  next_row_ = count_ - 1;
}

void RecurrentState::forget_rows() {
  next_row_ = committed_row_ = -1, first_ = count_ = 0;
  settling_ = nullptr;
}

// ---- committing ------------------------------------------------------------------------------------

void RecurrentState::keep_rows(const KeptRow* rows, int n) {
  const KeptRow& last = rows[n - 1];
  const History history = history_after(last.row);
  advance(last.row);
  history_ = history, length_ = last.token + 1;
  if (n >= WORTH) remember(length_, slots_ + n);
}

RecurrentState::History RecurrentState::history_after(int row) const {
  auto made = std::make_shared<std::vector<float>>(shape_.history_floats());
  std::vector<const float*> rows(shape_.conv_size);
  taps(row, this->row(first_).raw, row_floats_, rows.data());
  for (int t = 1; t < shape_.conv_size; t++)
    std::copy_n(rows[t], shape_.conv_dim(), made->data() + (size_t)(t - 1) * shape_.conv_dim());
  return made;
}

// The committed state becomes that after `row`.
void RecurrentState::advance(int row) {
  path_to(row, committed_row_, path_);
  if (row == next_row_) {
    state_ = next_, tail_.clear();
  } else {
    if (parents_[path_[0]] != committed_row_) state_ = tree_state_, tail_.clear();
    const size_t had = tail_.size();
    tail_.resize(had + path_.size() * input_floats_);
    float* to = tail_.data() + had;
    for (int i : path_) to = std::copy_n(this->row(i).mixed, input_floats_, to);
  }
  committed_row_ = row;
}

// The committed state with nothing left to apply.
RecurrentState::StatePtr RecurrentState::settled() const {
  if (tail_.empty()) return state_;
  const StatePtr made = new_state();
  std::vector<SsmUpdate> updates;
  push_tail(values(state_), values(made), updates);
  const Kernels& kernels = *choose();
  const int lanes = ssm_lane_groups(shape_.head_dim);
  for (const SsmUpdate& u : updates) {
    if (shape_.channel_decays) {
      kernels.s6_step(shape_.channel_step(u), 0, lanes);
      continue;
    }
    for (int h = 0; h < shape_.heads; h++) {
      SsmStep step = shape_.step(u, h);
      if (shape_.decays) ssm_from_zeros(step, 0, lanes);
      if (shape_.shifted) kernels.rwkv7_step(step, 0, lanes);
      else if (shape_.decays) kernels.delta_steps(&step, 1, 0, lanes);
      else kernels.ssm_step(step, 0, lanes);
    }
  }
  return made;
}

// ---- going back ------------------------------------------------------------------------------------

void RecurrentState::remember(int length, int slots) {
  state_ = settled(), tail_.clear();
  freeze(state_);
  if (checkpoints_.size() == KEPT) checkpoints_.erase(checkpoints_.begin());
  checkpoints_.push_back({length, slots, state_, history_});
}

int RecurrentState::checkpoint(int length) const {
  if (length >= length_) return length;
  for (size_t i = checkpoints_.size(); i--;)
    if (checkpoints_[i].length <= length) return checkpoints_[i].length;
  return 0;
}

void RecurrentState::truncate(int length) {
  if (length < length_) {
    while (!checkpoints_.empty() && checkpoints_.back().length > length) checkpoints_.pop_back();
    const Checkpoint to = checkpoints_.empty() ? Checkpoint{0, 0, nullptr, no_history_} : checkpoints_.back();
    state_ = to.state, history_ = to.history, length_ = to.length, slots_ = to.slots;
    tail_.clear();
  }
  forget();
}

std::unique_ptr<BlockState> RecurrentState::fork(int length) const {
  auto made = std::make_unique<RecurrentState>(shape_);
  freeze(state_);
  made->state_ = state_, made->tail_ = tail_, made->history_ = history_;
  made->length_ = length_, made->slots_ = slots_, made->checkpoints_ = checkpoints_;
  made->truncate(length);
  return made;
}

// The tokens of a state are not stored.
void RecurrentState::positions(int64_t* out) const { std::iota(out, out + slots_, int64_t(0)); }
void RecurrentState::tokens(int64_t* out) const { std::iota(out, out + slots_, int64_t(0)); }

size_t RecurrentState::bytes() const {
  std::vector<const State*> states = {state_.get(), next_.get(), tree_state_.get()};
  for (const Checkpoint& c : checkpoints_) states.push_back(c.state.get());
  std::sort(states.begin(), states.end());
  const auto end = std::unique(states.begin(), states.end());
  const size_t n = end - states.begin() - (states[0] == nullptr);
  return (n * shape_.state_floats() + capacity_ * row_floats_ + tail_.size()) * sizeof(float);
}

// ---- saving ----------------------------------------------------------------------------------------

size_t RecurrentState::save_bytes() const {
  return sizeof(SavedRecurrent) + (shape_.history_floats() + shape_.state_floats()) * sizeof(float);
}

uint8_t* RecurrentState::save(uint8_t* out) const {
  const SavedRecurrent header = {slots_, length_};
  const StatePtr state = settled();
  const size_t history = shape_.history_floats() * sizeof(float), size = shape_.state_floats() * sizeof(float);
  std::memcpy(out, &header, sizeof header), out += sizeof header;
  if (history) std::memcpy(out, history_->data(), history), out += history;
  if (state) std::memcpy(out, state->values.get(), size);
  else std::memset(out, 0, size);
  return out + size;
}

const uint8_t* RecurrentState::load(const uint8_t* from, const uint8_t* end) {
  SavedRecurrent header;
  if ((size_t)(end - from) < save_bytes()) return nullptr;
  std::memcpy(&header, from, sizeof header), from += sizeof header;
  if (header.slots < 0 || header.slots > header.length || header.length > INT32_MAX) return nullptr;
  const size_t history = shape_.history_floats() * sizeof(float), size = shape_.state_floats() * sizeof(float);
  auto raw = std::make_shared<std::vector<float>>(shape_.history_floats());
  if (history) std::memcpy(raw->data(), from, history), from += history;
  state_ = new_state(), history_ = raw;
  std::memcpy(state_->values.get(), from, size), from += size;
  tail_.clear(), checkpoints_.clear();
  slots_ = (int)header.slots, length_ = (int)header.length;
  if (length_) remember(length_, slots_);
  forget();
  return from;
}

// Earlier checkpoints stay.
const uint8_t* RecurrentState::append(const uint8_t* from, const uint8_t* end, int /*tokens*/) {
  std::vector<Checkpoint> before = checkpoints_;
  from = load(from, end);
  if (!from) return nullptr;
  while (!before.empty() && before.back().length >= length_) before.pop_back();
  checkpoints_.insert(checkpoints_.begin(), before.begin(), before.end());
  if (checkpoints_.size() > KEPT) checkpoints_.erase(checkpoints_.begin(), checkpoints_.end() - KEPT);
  return from;
}

}  // namespace edgedec
