// One generation's decoding steps (step.cpp).
#pragma once
#include <memory>
#include <vector>

#include "api.h"

namespace edgedec {

class Step {
 public:
  explicit Step(const ed_step_settings& settings)
      : s_(settings), ends_(settings.ends, settings.ends + settings.n_ends) {}

  void start(int64_t token) { pending_ = token, drafted_ = false; }
  void draft(const ed_sequence& rows) { draft_ = rows, drafted_ = true; }
  // Its part of the next forward.
  ed_sequence call();
  // After the forward: the first token, or why there is none (ed_steps_run).
  int32_t finish();
  int decide(int64_t token);
  const ed_step_result& result() const { return result_; }

 private:
  bool follow();
  bool take(int64_t token);
  int64_t choose(int row);
  double number();
  bool ends(int64_t token) const;
  int child(int row, int64_t token) const;
  int complete();

  const ed_step_settings s_;
  const std::vector<int64_t> ends_;
  int64_t pending_ = 0, position_ = 0;
  int32_t largest_ = -1, drawn_ = -1;
  bool drafted_ = false, numbered_ = false;  // the next run has a draft; its number is drawn already
  ed_sequence draft_{};
  std::unique_ptr<float[]> logits_;  // of a draft's rows
  std::vector<int64_t> path_, picked_;
  ed_step_result result_{};
};

}  // namespace edgedec
