#include "drafting.h"

#include <algorithm>
#include <chrono>

#include "failure.h"

namespace edgedec::lib {

namespace {

constexpr int ROOM = 1024;  // the most nodes of a merged tree

// Cost of forward calls by rows: a + b * (rows - 1), with more weight on recent calls.
class Costs {
 public:
  void add(int rows, double seconds) {
    if (rows == 1) plain_.add(seconds);
    else if (plain_.known()) row_.add(std::max(0.0, (seconds - plain_.mean()) / (rows - 1)));
  }
  bool known() const { return plain_.n >= 3 && row_.n >= 3; }
  bool plain_known() const { return plain_.n >= 3; }
  double plain() const { return plain_.mean(); }
  double of(int rows) const { return plain_.mean() + row_.mean() * (rows - 1); }

 private:
  struct Mean {
    int n = 0;
    double value = 0;
    void add(double x) {
      // Delayed calls are outliers and are not counted.
      if (n >= 3 && x > 4 * value) x = 4 * value;
      value += (x - value) / std::min(++n, 32);
    }
    bool known() const { return n > 0; }
    double mean() const { return value; }
  };
  Mean plain_, row_;
};

struct Calibration {
  double hits[ED_DRAFT_KINDS] = {}, tests[ED_DRAFT_KINDS] = {}, estimates[ED_DRAFT_KINDS];
  Calibration() {
    for (int i = 0; i < ED_DRAFT_KINDS; i++) estimates[i] = (i + 0.5) / ED_DRAFT_KINDS;
  }
};

class Tables : public Drafting {
 public:
  Tables(const std::vector<ed_drafter_options>& options, int fixed) : options_(options), fixed_(fixed) {
    for (const ed_drafter_options& each : options) drafters_.emplace_back(ed_drafter_new(&each));
    join();
  }

  Tables(const Tables& other)
      : options_(other.options_), fixed_(other.fixed_), costs_(other.costs_), own_(other.own_), silent_(other.silent_),
        calls_(other.calls_), calibrations_(other.calibrations_) {
    for (const auto& each : other.drafters_) drafters_.emplace_back(ed_drafter_fork(each.get()));
    join();
  }

  int top() const override {
    int most = 0;
    for (const ed_drafter_options& each : options_) most = std::max(most, each.kind >= 2 ? each.k : 0);
    return most;
  }

  std::unique_ptr<Drafting> fork() const override { return std::make_unique<Tables>(*this); }

  void reset() override {
    ed_drafting_reset(group_.get());
    read_ = 0;
  }

  void propose(const std::vector<int32_t>& ids, int prompt, int room, Draft& draft) override {
    draft.clear();
    proposed_ = false;
    calls_++;
    // The cost of a call without a draft is measured first; after a long time without a paying draft,
    // drafting is tried only now and then.
    if (!fixed_ && (!costs_.plain_known() || (silent_ > QUIET && calls_ % SELDOM))) return;
    if (room < 1) return;
    const double began = now();
    if ((int)ids.size() < read_) reset();
    ed_proposal asked{};
    asked.more = ids.data() + read_, asked.n_more = (int32_t)ids.size() - read_;
    asked.estimates = pointers_.data(), asked.seconds = seconds_.data();
    asked.prompt = prompt, asked.nodes = fixed_ ? fixed_ : std::min(room, 32), asked.least = 0;
    asked.enabled = (1u << drafters_.size()) - 1;
    if (ed_drafting_propose(group_.get(), &asked, &tree_)) throw std::bad_alloc();
    read_ = (int)ids.size(), proposed_ = true;
    const int n = std::min({tree_.n, room, fixed_ ? fixed_ : MOST});
    cut(fixed_ ? n : best_size(n), draft);
    own_ += (now() - began - own_) / 16;
    silent_ = draft.tokens.empty() ? silent_ + 1 : 0;
  }

  void observe(const int64_t* tokens, const int64_t* parents, int rows, int root, const std::vector<int>& path,
               const std::vector<int32_t>& picked, const int32_t* top_ids, const float* top_scores, int top,
               double seconds) override {
    if (!root) costs_.add(rows, seconds);
    if (!proposed_) return;
    wide_.assign(picked.begin(), picked.end());
    wide_.insert(wide_.end(), path.begin(), path.end());
    found_.resize(picked.size());
    ed_drafting_test(group_.get(), wide_.data(), (int)picked.size(), pointers_.data(), found_.data());
    ed_verified seen{};
    seen.tokens = tokens, seen.parents = parents, seen.rows = rows, seen.root = root;
    seen.top_ids = top_ids, seen.top_scores = top_scores, seen.top = top;
    seen.picked = wide_.data(), seen.path = wide_.data() + picked.size(), seen.accepted = (int32_t)picked.size();
    ed_drafting_observe(group_.get(), &seen, (1u << drafters_.size()) - 1, seconds_.data());
  }

 private:
  static constexpr int QUIET = 16, SELDOM = 8, FIRST = 4;
  struct DrafterFree {
    void operator()(ed_drafter* drafter) const { ed_drafter_free(drafter); }
  };
  struct GroupFree {
    void operator()(ed_drafting* drafting) const { ed_drafting_free(drafting); }
  };

  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  void join() {
    std::vector<ed_drafter*> all;
    for (const auto& each : drafters_) {
      if (!each) throw std::bad_alloc();
      all.push_back(each.get());
    }
    group_.reset(ed_drafting_new(all.data(), (int)all.size()));
    if (!group_) throw std::bad_alloc();
    calibrations_.resize(all.size()), seconds_.assign(all.size(), 0.0), pointers_.clear();
    for (Calibration& each : calibrations_) pointers_.push_back({each.hits, each.tests, each.estimates});
    for (auto& column : columns_) column.resize(ROOM);
    for (auto& column : chances_) column.resize(ROOM);
    tree_ = {columns_[0].data(), columns_[1].data(), columns_[2].data(), columns_[3].data(),
             chances_[0].data(), chances_[1].data(), ROOM, 0};
  }

  // The number of nodes, the likeliest first, with the most expected tokens a second; 0 if drafting does not pay.
  int best_size(int n) const {
    if (!costs_.known()) return std::min(n, FIRST);  // to learn what rows cost
    double expected = 1, best = 1 / costs_.plain();
    int size = 0;
    for (int i = 0; i < n; i++) {
      expected += tree_.chances[tree_.order[i]];
      const double rate = expected / (costs_.of(i + 2) + own_);
      if (rate > best) best = rate, size = i + 1;
    }
    return size;
  }

  // The first `size` nodes by chance, in the order of the tree.
  void cut(int size, Draft& draft) {
    std::vector<int32_t> nodes(tree_.order, tree_.order + size), place((size_t)std::max(tree_.n, 1), -1);
    std::sort(nodes.begin(), nodes.end());
    for (const int32_t node : nodes) {
      place[(size_t)node] = (int32_t)draft.tokens.size();
      draft.tokens.push_back(tree_.tokens[node]);
      draft.parents.push_back(tree_.parents[node] < 0 ? -1 : place[(size_t)tree_.parents[node]]);
    }
  }

  const std::vector<ed_drafter_options> options_;
  const int fixed_;
  std::vector<std::unique_ptr<ed_drafter, DrafterFree>> drafters_;
  std::unique_ptr<ed_drafting, GroupFree> group_;
  Costs costs_;
  double own_ = 0;  // seconds of a proposal
  int silent_ = 0, calls_ = 0, read_ = 0;
  bool proposed_ = false;
  std::vector<Calibration> calibrations_;
  std::vector<ed_calibration> pointers_;
  std::vector<double> seconds_;
  std::vector<int32_t> columns_[4], found_;
  std::vector<double> chances_[2];
  std::vector<int64_t> wide_;
  ed_draft_tree tree_{};
};

// Defaults of the drafters of these names in Python.
ed_drafter_options options_of(const std::string& name, int32_t vocab) {
  const int32_t k = std::min(8, vocab);
  if (name == "copy") return {0, 1, 1, 1, 4, 32, 0, 0};
  if (name == "suffix") return {1, 1, 1, 1, 1, 1, 0, 0};
  if (name == "recycling") return {2, vocab, 16, k, 1, 1, 0, 0};
  if (name == "trigram") return {3, vocab, 16, k, 1, 1, 0.3, 0.05};
  throw Failure(EDGEDEC_USAGE, "speculate: '" + name.substr(0, 40) + "' is not one of off, auto, copy, suffix, recycling, trigram");
}

}  // namespace

std::unique_ptr<Drafting> make_drafting(const Model& model, const std::string& names, int fixed) {
  if (fixed < 0 || fixed > Drafting::MOST)
    throw Failure(EDGEDEC_USAGE, "draft " + std::to_string(fixed) + ": must be from 0 to " + std::to_string(Drafting::MOST));
  if (names == "off") return nullptr;
  std::vector<ed_drafter_options> options;
  const std::string all = names == "auto" ? "copy+suffix+recycling+trigram" : names;
  for (size_t at = 0; at <= all.size();) {
    const size_t end = std::min(all.find('+', at), all.size());
    options.push_back(options_of(all.substr(at, end - at), model.vocab()));
    at = end + 1;
  }
  if (options.size() > 8) throw Failure(EDGEDEC_USAGE, "speculate: more than 8 drafters");
  return std::make_unique<Tables>(options, fixed);
}

}  // namespace edgedec::lib
