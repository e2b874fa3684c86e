// The greedy part of STAND: edgedec/drafters/stand.py. Sampled trees are in Python only.
#include <cmath>

#include "spec_draft.h"

namespace edgedec {

namespace {

constexpr int CAP = 1 << 16, ORDER = 3, DEPTHS = 4;
constexpr double RATE = 0.3, STRENGTH = 8, FORGET = 1024, MOST = 0.97;
constexpr int64_t PRIME = ((int64_t)1 << 61) - 1;

// Claimed and actual acceptance, by cell [draft sampled or not, depth, order, rank]; `scale`: the correction
// factor of a claim.
struct RankRecord {
  explicit RankRecord(int k) : k(k) {
    const size_t n = (size_t)2 * DEPTHS * ORDER * k;
    claimed.assign(n, 0), came.assign(n, 0), scale.assign(n, 1);
  }
  // Where the ranks of these nodes begin.
  size_t cell(int depth, int order) const {
    return ((size_t)std::min(depth, DEPTHS - 1) * ORDER + (size_t)(order - 1)) * (size_t)k;
  }
  void note(size_t at, double claim, bool true_) {
    claimed[at] += claim, came[at] += true_;
    if (claimed[at] > FORGET) claimed[at] /= 2, came[at] /= 2;
    weigh(at);
  }
  void weigh(size_t at) { scale[at] = (came[at] + STRENGTH) / (claimed[at] + STRENGTH); }

  const int k;
  std::vector<double> claimed, came, scale;
};

class Stand final : public TableDrafter {
 public:
  explicit Stand(const ed_drafter_options& options)
      : o_(options), table_(std::make_shared<RankedTable>(options.k, CAP)), record_(options.k), tail_(ORDER) {}

  void propose(const DraftText& text, int nodes, double least, DraftTree& draft) override {
    if (text.ids.empty()) return;
    grower_.grow(tail_.follow(text), ORDER, std::min(nodes, o_.nodes), least, draft,
                 [this](const History& at, RankedList& list) { followers(at, list); });
  }

  void observe(const ed_verified& seen) override {
    const std::vector<History>& histories = tail_.histories(seen);
    score(seen, histories);
    if (!best_of(seen, o_.k, ids_, p_)) return;
    keys_.clear(), lines_.clear();
    for (size_t i = 0; i < histories.size(); i++)
      for (int n = 1; n <= histories[i].n; n++) keys_.push_back(key(histories[i], n)), lines_.push_back((int)i);
    table_->learn(keys_, lines_, ids_.data(), p_.data(), (float)RATE);
  }

  void reset() override { tail_.reset(); }

  std::unique_ptr<TableDrafter> fork() const override {
    auto twin = std::make_unique<Stand>(o_);
    twin->table_ = std::make_shared<RankedTable>(*table_);
    twin->record_.claimed = record_.claimed, twin->record_.came = record_.came, twin->record_.scale = record_.scale;
    return twin;
  }

  int64_t figure(int) const override { return table_->size(); }

  // Part 1: claimed and actual values, one after the other, in `p`.
  int save(int part, int64_t* keys, int32_t* ids, float* p, int32_t* visits) const override {
    if (!part) return table_->save(keys, ids, p, visits), 0;
    for (double x : record_.claimed) *p++ = (float)x;
    for (double x : record_.came) *p++ = (float)x;
    return 0;
  }

  int load(int part, int n, const int64_t* keys, const int32_t* ids, const float* p, const int32_t* visits) override {
    if (!part) {
      auto table = std::make_shared<RankedTable>(o_.k, CAP);
      table->load(n, keys, ids, p, visits);
      table_ = std::move(table);
      return 0;
    }
    for (double& x : record_.claimed) x = *p++;
    for (double& x : record_.came) x = *p++;
    for (size_t at = 0; at < record_.scale.size(); at++) record_.weigh(at);
    return 0;
  }

  bool share(TableDrafter& other) override {
    auto* same = dynamic_cast<Stand*>(&other);
    if (!same || same->o_.k != o_.k) return false;
    table_ = same->table_;
    return true;
  }

 private:
  // Of the last n tokens.
  int64_t key(const History& at, int n) const {
    int64_t key = 0, scale = 1;
    for (int i = 0; i < n; i++) {
      key += (at.tokens[at.n - 1 - i] + (int64_t)1) * scale;
      scale *= o_.vocab + (int64_t)1;
    }
    return key % PRIME;
  }

  // The place of the longest known end of `at`, and its tokens of context; -1: none.
  int known(const History& at, int& order) const {
    for (order = at.n; order > 0; order--) {
      const int place = table_->find(key(at, order));
      if (place >= 0) return place;
    }
    return -1;
  }

  // Siblings, each scaled by its own record: at most one of them is accepted, so their sum is at most 1.
  void followers(const History& at, RankedList& list) {
    int order;
    const int place = known(at, order);
    if (place < 0) return;
    const float* p = table_->p(place);
    const double* scale = record_.scale.data() + record_.cell(at.depth, order);
    double total = 0;
    order_.clear(), claims_.clear();
    for (int i = 0; i < o_.k; i++) {
      claims_.push_back(std::min((double)p[i] * scale[i], MOST)), order_.push_back(i);
      total += claims_[i];
    }
    if (total > 1)
      for (double& claim : claims_) claim /= total;
    std::stable_sort(order_.begin(), order_.end(), [this](int a, int b) { return claims_[a] > claims_[b]; });
    for (const int i : order_) list.add(table_->ids(place)[i], claims_[i], claims_[i]);
  }

  // Records the table's claims after each accepted row and the actual token, drafted or not.
  void score(const ed_verified& seen, const std::vector<History>& histories) {
    for (int depth = 0; depth < seen.accepted; depth++) {
      int order;
      const int place = known(histories[(size_t)seen.path[depth]], order);
      if (place < 0) continue;
      const size_t at = record_.cell(depth, order);
      for (int rank = 0; rank < o_.k; rank++)
        record_.note(at + rank, table_->p(place)[rank], table_->ids(place)[rank] == seen.picked[depth]);
    }
  }

  const ed_drafter_options o_;
  std::shared_ptr<RankedTable> table_;
  RankRecord record_;
  DraftTail tail_;
  RankedGrower grower_;
  std::vector<int64_t> keys_;
  std::vector<int> lines_, order_;
  std::vector<int32_t> ids_;
  std::vector<float> p_;
  std::vector<double> claims_;
};

}  // namespace

std::unique_ptr<TableDrafter> make_stand(const ed_drafter_options& o) {
  // Keys of three tokens stay below 2^63.
  return o.vocab < (1 << 20) ? std::make_unique<Stand>(o) : nullptr;
}

}  // namespace edgedec
