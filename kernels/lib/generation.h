// The loop of one generation, as edgedec/decoding/loop.py has it: propose, forward, verify, commit, hand out.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "drafting.h"
#include "edgedec.h"
#include "session.h"

namespace edgedec::lib {

class Constraint;
class TextStream;

class Generation {
 public:
  // prompt null: the session's text.
  Generation(Session& session, const int32_t* prompt, int32_t n, const edgedec_generate_options* options,
             edgedec_result* result);
  ~Generation();
  Session& session() { return session_; }
  // Prepares its next call, one of `sequences`; false: it has ended. Its part in the allocation of drafted rows, which
  // comes before `make`; null: none.
  bool next(int sequences);
  Governing* governing() const { return governing_; }
  // The rows that it runs without a draft, and those of them that decode.
  int pending() const { return piece_ ? n_rows_ : root_ + 1; }
  int cached() const { return session_.cached(); }
  void make(ed_sequence& call);
  // The call ran, with so many rows of all texts.
  void done(int rows);
  // Ends the generation in any state; the session is left consistent with the tokens that were delivered.
  void end();

 private:
  enum Outcome { GOES_ON, ENDED };
  void check_options();
  bool is_end(int32_t token) const;
  void prepare_outputs(ed_sequence& call, int root, int rows);
  int32_t pick(int row, const std::vector<int64_t>& path);
  void verify();
  Outcome emit(size_t at);
  Outcome hand_out(int32_t token, int row, bool drafted);
  void fill_logprobs(edgedec_token& token, int row);
  void finish(int how);
  void flush_text();
  void shape(int row, const std::vector<int64_t>& path);

  Session& session_;
  const edgedec_generate_options options_;
  edgedec_result* const result_;
  edgedec_result counts_{};
  const Sampling sampling_;
  std::unique_ptr<Chooser> chooser_;  // null: the largest logit
  std::unique_ptr<Constraint> constraint_;
  std::unique_ptr<TextStream> text_;
  std::vector<int32_t> ends_;
  int64_t left_;
  int min_left_;
  bool ended_ = false, piece_ = false;  // piece_: the call in the making is a part of the prompt
  double began_, read_ = 0;             // seconds

  // Of the call.
  int root_ = 0, n_rows_ = 0;
  Draft draft_;
  Governing* governing_ = nullptr;
  std::vector<int64_t> parents_;
  std::vector<float> logits_, shaped_;
  std::vector<int32_t> top_ids_;
  std::vector<float> top_scores_;
  int top_ = 0;
  double forward_began_ = 0, forward_seconds_ = 0;
  std::vector<int> path_;        // accepted rows, from the root (0) on
  std::vector<int32_t> picked_;  // the token after each
  std::vector<int64_t> tokens_of_path_;
  std::vector<int32_t> logprob_ids_;
  std::vector<double> logprobs_;
};

// Grants drafted rows to the texts that share the next forward.
void grant_rows(const std::vector<Generation*>& texts);

// Makes the next calls of those that go on; returns their numbers, in the order of the calls. tried(i, work): does `work` for
// number i; false: it failed.
template <class Tried>
std::vector<size_t> make_calls(const std::vector<Generation*>& all, std::vector<ed_sequence>& calls, Tried tried) {
  std::vector<size_t> ready, of;
  std::vector<Generation*> texts;
  for (size_t i = 0; i < all.size(); i++) {
    bool goes_on = false;
    if (tried(i, [&] { goes_on = all[i]->next((int)all.size()); }) && goes_on) ready.push_back(i), texts.push_back(all[i]);
  }
  grant_rows(texts);
  for (const size_t i : ready) {
    ed_sequence call;
    if (tried(i, [&] { all[i]->make(call); })) calls.push_back(call), of.push_back(i);
  }
  return of;
}

// The rows of all calls.
inline int rows_of(const std::vector<ed_sequence>& calls) {
  int rows = 0;
  for (const ed_sequence& call : calls) rows += call.rows;
  return rows;
}

// Runs them to their ends; fills statuses [n] and messages.
void run_generations(const std::vector<Generation*>& all, std::vector<int>& statuses, std::vector<std::string>& messages);

double seconds_now();

}  // namespace edgedec::lib
