// One generation's decoding steps (step.cpp).
#pragma once
#include <memory>
#include <vector>

#include "api.h"
#include "govern.h"

namespace edgedec {

class Step {
 public:
  explicit Step(const ed_step_settings& settings)
      : s_(settings), ends_(settings.ends, settings.ends + settings.n_ends) {}

  void start(int64_t token) { pending_ = token, drafted_ = false, governing_.stop(); }
  void draft(const ed_sequence& rows) { draft_ = rows, drafted_ = true, governing_.stop(); }
  void govern(ed_governor* governor, const int32_t* more, int n) { governing_.start(governor, more, n); }
  // Null: not governed. Before the next forward, its decision.
  Governing* decide();
  int64_t context() const { return ed_cache_length(s_.cache); }
  // Its part of the next forward.
  ed_sequence call();
  // After the forward of so many rows: the first token, or why there is none (ed_steps_run).
  int32_t finish(int64_t rows);
  int decide(int64_t token);
  const ed_step_result& result() const { return result_; }
  // Null: not governed.
  const Governing* governing() const { return governing_.active() ? &governing_ : nullptr; }
  // The drafters of a row of the last run, by bit.
  int32_t by(int row) const;

 private:
  bool follow();
  bool take(int64_t token);
  int64_t choose(int row);
  double number();
  bool ends(int64_t token) const;
  int child(int row, int64_t token) const;
  int complete();
  void take_draft();

  const ed_step_settings s_;
  const std::vector<int64_t> ends_;
  int64_t pending_ = 0, position_ = 0;
  int32_t largest_ = -1, drawn_ = -1;
  bool drafted_ = false, numbered_ = false;  // the next run has a draft; its number is drawn already
  ed_sequence draft_{};
  std::unique_ptr<float[]> logits_;  // of a draft's rows
  std::vector<int64_t> path_, picked_;
  // Of a governed step: its rows, and the best tokens after each.
  Governing governing_;
  std::vector<int64_t> tokens_, positions_, parents_;
  std::vector<int32_t> best_;
  std::vector<float> scores_;
  int64_t rows_ = 0;  // of the last forward
  ed_step_result result_{};
};

}  // namespace edgedec
