// Drafts of one text by the engine's table drafters, under the engine's governor (kernels/cpu/govern.h).
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "../cpu/govern.h"
#include "model.h"

namespace edgedec::lib {

// A tree of guesses below the last known token; parents -1: that one.
struct Draft {
  std::vector<int32_t> tokens, parents;
  void clear() { tokens.clear(), parents.clear(); }
};

class Drafting {
 public:
  static constexpr int MOST = ED_DRAFTED;  // drafted tokens of a call
  virtual ~Drafting() = default;
  // Decides on drafts of at most `room` tokens after `ids`, in a call of `sequences` texts: null if there is nothing to
  // allocate, else what `allocate` grants rows to, with all texts of the call. reading: the call reads a prompt too.
  virtual Governing* decide(const std::vector<int32_t>& ids, int prompt, bool reading, int room, int sequences) = 0;
  // What runs.
  virtual void take(Draft& draft) = 0;
  // Learns from a call: its rows, of which `root` is the last known token and the later ones were drafted,
  // the accepted ones (`path`, from the root on, which is 0) and the token after each; of each row from the
  // root on the `top` best tokens. all: the rows of all texts.
  virtual void observe(const int64_t* tokens, const int64_t* parents, int rows, int root, const std::vector<int>& path,
                       const std::vector<int32_t>& picked, const int32_t* top_ids, const float* top_scores, int top,
                       int all, double seconds) = 0;
  virtual void reset() = 0;     // another text
  virtual int top() const = 0;  // number of best tokens that it needs from calls
  virtual std::unique_ptr<Drafting> fork() const = 0;
};

// By name, as edgedec_session_options.speculate says; null: "off". fixed: so many tokens a call, 0: as many as pay.
std::unique_ptr<Drafting> make_drafting(const Model& model, const std::string& names, int fixed);

}  // namespace edgedec::lib
