// The governor of a text whose drafts are the runtime's tables: edgedec/speculation/governor.py for these alone, with the
// same arithmetic, so that both decide alike.
#pragma once
#include <vector>

#include "spec_drafting.h"

namespace edgedec {

// What a token is worth and what drafted rows cost in the next call (edgedec/speculation/prices.py).
struct Prices {
  const double* seconds = nullptr;  // of calls, by rows
  int rows = 0, most = 0;           // of the call without drafts; the most drafted rows of known cost
  double each = 0, call = 0, token = 0, draft = 0, weight = 1;
  void set(const ed_governor& governor, int64_t context);
  double added(int n) const { return seconds[rows + n] - seconds[rows] + n * each; }
  // `added` between whole numbers of rows.
  double of_rows(double n) const;
  // The most rows that add no more than so many seconds.
  int affordable(double limit) const;
};

// Rows of a forward that are no governed step's: how many, the cached tokens that they read, how many of them decode, and
// the tokens that come of them.
struct OtherRows {
  int64_t rows = 0, cells = 0, decoding = 0, tokens = 0;
};

class Governing {
 public:
  // more: the tokens of the text that the drafters have not read; fresh: those that came since the last decision.
  void start(ed_governor* governor, const int32_t* more, int n, int fresh = 0);
  void stop() { g_ = nullptr, begun_ = false; }
  bool active() const { return g_ != nullptr; }
  ed_governor& state() const { return *g_; }
  // Decides whether the drafters propose for the next call, after `context` cached tokens.
  void begin(int64_t context);
  bool begun() const { return begun_; }
  // Whether the drafters get the result of the call.
  bool learns() const { return watched_; }
  // The nodes that it would run, the likeliest first, and the chance of each.
  int offered() const { return offered_; }
  double chance(int n) const;
  int64_t context() const { return context_; }
  // How many of them run, of `all` in the forward.
  void grant(int nodes, int all);
  // These nodes, parents first.
  const std::vector<int32_t>& nodes() const { return nodes_; }
  // The seconds of deciding about the last call and of learning from it.
  double spent() const { return watched_ ? spent_ : 0; }
  const TreeMerger& tree() const { return g_->drafting->merger; }
  // Learns from the call, which had so many rows, and settles it with the bank.
  void end(const ed_verified& seen, int64_t rows);

 private:
  void watch(int most, double left);
  void offer(int most, double left);
  void note_expected(double trust);
  bool ready() const;
  double gain() const;
  double takes() const;
  void judge(double tokens, double rows);
  void settle(double saved, double cost);
  double learn(const ed_verified& seen);
  double count_guesses(const ed_verified& seen);
  ed_governor* g_ = nullptr;
  Prices prices_;
  std::vector<int32_t> came_, best_, nodes_, path_;
  std::vector<double> costs_;
  int64_t context_ = 0, fresh_ = 0;
  int offered_ = 0, all_ = 0, why_ = 0;
  bool begun_ = false, watched_ = false;
  double spent_ = 0;
};

// Grants the nodes of all texts that share a forward: as many as bring the most expected tokens a second
// (edgedec/decoding/allocation.py).
void allocate(const std::vector<Governing*>& texts, const OtherRows& others);

}  // namespace edgedec
