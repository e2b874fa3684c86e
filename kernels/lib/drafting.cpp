#include "drafting.h"

#include <algorithm>

#include "failure.h"

namespace edgedec::lib {

namespace {

// The terms of edgedec/speculation/bank.py: of `auto`, and of drafters that are named.
constexpr ed_bank AUTO{0.008, 1.0, 0, 0, 0, 0, 0, 0, 0}, NAMED{0.1, 6.4, 0, 0, 0, 0, 0, 0, 0};
constexpr int FIRST_WAIT = 16;

// The seconds of calls by rows: what a call of this many texts takes without drafts, and for each drafted row more.
class Costs {
 public:
  // rows: of all texts.
  void add(int sequences, int rows, double seconds) {
    if (sequences != sequences_) plain_ = Mean(), sequences_ = sequences;
    if (rows == sequences) plain_.add(seconds);
    else if (rows > sequences && plain_.n) row_.add(std::max(0.0, (seconds - plain_.value) / (rows - sequences)));
  }
  bool known(int sequences) const { return sequences == sequences_ && plain_.n >= CALLS; }
  // The drafted rows that may be tried: few until it is known what rows cost.
  int limit() const { return row_.n >= CALLS ? ED_DRAFTED : FEW; }
  // By rows, up to those of a largest draft.
  const std::vector<double>& curve() {
    curve_.resize((size_t)(sequences_ + ED_DRAFTED) + 1);
    for (int k = 0; k < (int)curve_.size(); k++)
      curve_[(size_t)k] = k < sequences_ ? plain_.value * k / sequences_ : plain_.value + row_.value * (k - sequences_);
    return curve_;
  }

 private:
  static constexpr int CALLS = 3, FEW = 4;
  struct Mean {
    int n = 0;
    double value = 0;
    void add(double x) {
      // Delayed calls are outliers and are not counted.
      if (n >= CALLS && x > 4 * value) x = 4 * value;
      value += (x - value) / std::min(++n, 32);
    }
  };
  Mean plain_, row_;
  int sequences_ = 0;
  std::vector<double> curve_;
};

struct Calibration {
  double hits[ED_DRAFT_KINDS] = {}, tests[ED_DRAFT_KINDS] = {}, estimates[ED_DRAFT_KINDS];
  Calibration() {
    for (int i = 0; i < ED_DRAFT_KINDS; i++) estimates[i] = (i + 0.5) / ED_DRAFT_KINDS;
  }
};

class Tables : public Drafting {
 public:
  Tables(const std::vector<ed_drafter_options>& options, int fixed, const ed_bank& terms)
      : options_(options), fixed_(fixed), bank_(terms) {
    for (const ed_drafter_options& each : options) drafters_.emplace_back(ed_drafter_new(&each));
    shared_.wait = FIRST_WAIT;
    join();
  }

  Tables(const Tables& other)
      : options_(other.options_), fixed_(other.fixed_), costs_(other.costs_), bank_(other.bank_), account_(other.account_),
        shared_(other.shared_), calibrations_(other.calibrations_) {
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
    governing_.stop();
    record_ = ed_record{}, record_.next = FIRST_WAIT, account_ = ed_account{};
  }

  Governing* decide(const std::vector<int32_t>& ids, int prompt, bool reading, int room, int sequences) override {
    drafted_ = false, sequences_ = sequences;
    const int n = (int)ids.size();
    governor_.prompt = prompt;
    if (fixed_) return room < 1 ? nullptr : (propose(ids, room), nullptr);
    if (governing_.active() && governing_.begun()) governing_.stop();  // of a call that failed
    if (reading || !costs_.known(sequences)) return nullptr;
    const std::vector<double>& curve = costs_.curve();
    governor_.seconds = curve.data(), governor_.most = governor_.largest = (int32_t)curve.size() - 1;
    governor_.sequences = sequences, governor_.limit = costs_.limit();
    governor_.left = (int64_t)room + 1, governor_.capacity = n + room;
    const int fresh = std::max<int>(n - (int)std::max<int64_t>(governor_.length, prompt), 0);
    const int32_t* more = unread(ids);  // before their number, because it may begin anew
    governing_.start(&governor_, more, (int)(ids.data() + n - more), fresh);
    governing_.begin(n - 1);
    return &governing_;
  }

  void take(Draft& draft) override {
    draft.clear();
    if (drafted_) return cut(fixed_nodes_, draft);
    if (!fixed_ && governing_.active() && governing_.begun()) cut(governing_.nodes(), draft);
  }

  void observe(const int64_t* tokens, const int64_t* parents, int rows, int root, const std::vector<int>& path,
               const std::vector<int32_t>& picked, const int32_t* top_ids, const float* top_scores, int top, int all,
               double seconds) override {
    if (!root) costs_.add(sequences_, all, seconds);
    wide_.assign(picked.begin(), picked.end());
    wide_.insert(wide_.end(), path.begin(), path.end());
    ed_verified seen{};
    seen.tokens = tokens, seen.parents = parents, seen.rows = rows, seen.root = root;
    seen.top_ids = top_ids, seen.top_scores = top_scores, seen.top = top;
    seen.picked = wide_.data(), seen.path = wide_.data() + picked.size(), seen.accepted = (int32_t)picked.size();
    if (drafted_) {
      found_.resize(picked.size());
      ed_drafting_test(group_.get(), wide_.data(), seen.accepted, pointers_.data(), found_.data());
      ed_drafting_observe(group_.get(), &seen, governor_.enabled, seconds_.data());
    } else if (governing_.active() && governing_.begun()) {
      governing_.end(seen, all);
    }
  }

 private:
  struct DrafterFree {
    void operator()(ed_drafter* drafter) const { ed_drafter_free(drafter); }
  };
  struct GroupFree {
    void operator()(ed_drafting* drafting) const { ed_drafting_free(drafting); }
  };

  void join() {
    std::vector<ed_drafter*> all;
    for (const auto& each : drafters_) {
      if (!each) throw std::bad_alloc();
      all.push_back(each.get());
    }
    group_.reset(ed_drafting_new(all.data(), (int)all.size()));
    if (!group_) throw std::bad_alloc();
    calibrations_.resize(all.size()), seconds_.assign(all.size(), 0.0), pointers_.clear(), counts_.assign(2 * all.size(), 0);
    for (Calibration& each : calibrations_) pointers_.push_back({each.hits, each.tests, each.estimates});
    record_.next = FIRST_WAIT;
    governor_.drafting = group_.get(), governor_.calibrations = pointers_.data();
    governor_.drafter_seconds = seconds_.data();
    governor_.proposed = counts_.data(), governor_.accepted = counts_.data() + all.size();
    governor_.bank = &bank_, governor_.account = &account_, governor_.record = &record_, governor_.shared = &shared_;
    governor_.enabled = (1u << all.size()) - 1, governor_.top = top(), governor_.named = bank_.rate > AUTO.rate;
    governor_.sizes = sizes_, governor_.silent = silent_;
  }

  // The tokens that the tables have not read; a text that is shorter is read again.
  const int32_t* unread(const std::vector<int32_t>& ids) {
    if ((int)ids.size() < ed_drafting_read(group_.get())) reset();
    return ids.data() + ed_drafting_read(group_.get());
  }

  // The likeliest nodes, as many as are fixed.
  void propose(const std::vector<int32_t>& ids, int room) {
    const int32_t* more = unread(ids);
    ed_drafting& group = *group_;
    group.text.ids.insert(group.text.ids.end(), more, ids.data() + ids.size());
    group.text.prompt = governor_.prompt;
    ed_proposal asked{};
    asked.estimates = pointers_.data(), asked.seconds = seconds_.data();
    asked.nodes = fixed_, asked.enabled = governor_.enabled;
    merge_drafts(group, asked);
    fixed_nodes_ = group.merger.order(false);
    fixed_nodes_.resize(std::min({fixed_nodes_.size(), (size_t)fixed_, (size_t)room}));
    std::sort(fixed_nodes_.begin(), fixed_nodes_.end());
    drafted_ = true;
  }

  // These nodes, ascending, as a draft.
  void cut(const std::vector<int32_t>& nodes, Draft& draft) const {
    const TreeMerger& tree = group_->merger;
    for (const int32_t node : nodes) {
      const auto above = std::lower_bound(nodes.begin(), nodes.end(), tree.parent(node)) - nodes.begin();
      draft.tokens.push_back(tree.token(node));
      draft.parents.push_back(tree.parent(node) < 0 ? -1 : (int32_t)above);
    }
  }

  const std::vector<ed_drafter_options> options_;
  const int fixed_;
  std::vector<std::unique_ptr<ed_drafter, DrafterFree>> drafters_;
  std::unique_ptr<ed_drafting, GroupFree> group_;
  Costs costs_;
  ed_bank bank_;
  ed_account account_{};
  ed_record record_{};
  ed_experience shared_{};
  ed_governor governor_{};
  Governing governing_;
  int sequences_ = 1;
  bool drafted_ = false;  // a fixed number of tokens
  std::vector<Calibration> calibrations_;
  std::vector<ed_calibration> pointers_;
  std::vector<double> seconds_;
  std::vector<int64_t> counts_, wide_;
  int64_t sizes_[ED_DRAFTED + 1] = {}, silent_[ED_REASONS] = {};
  std::vector<int32_t> fixed_nodes_, found_;
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
  return std::make_unique<Tables>(options, fixed, names == "auto" ? AUTO : NAMED);
}

}  // namespace edgedec::lib
