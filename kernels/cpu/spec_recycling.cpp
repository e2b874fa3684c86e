// Token Recycling: edgedec/drafters/recycling.py.
#include <cmath>

#include "spec_draft.h"

namespace edgedec {

namespace {

constexpr double TRUST = 0.7;

class Recycling final : public TableDrafter {
 public:
  Recycling(int nodes, int k) : nodes_(nodes), k_(k), table_(std::make_shared<RecycledTable>(k, RecycledTable::CAP)) {}

  void propose(const DraftText& text, int nodes, double least, DraftTree& draft) override {
    if (text.ids.empty()) return;
    History root;
    root.tokens[0] = text.ids.back(), root.n = 1;
    grower_.grow(root, 1, std::min(nodes, nodes_), least, draft, [this](const History& at, RankedList& list) {
      const int place = table_->find(at.last());
      if (place < 0) return;
      const int32_t* ids = table_->ids(place);
      const double* p = table_->p(place);
      for (int i = 0; i < table_->count(place); i++) list.add(ids[i], p[i], p[i]);
    });
  }

  void observe(const ed_verified& seen) override {
    if (!seen.top_ids || !seen.top_scores || seen.top < k_) return;
    for (int i = seen.root; i < seen.rows; i++) {
      const size_t line = (size_t)(i - seen.root) * seen.top;
      show(seen.tokens[i], seen.top_ids + line, seen.top_scores + line);
    }
    table_->trim();
  }

  void reset() override {}

  std::unique_ptr<TableDrafter> fork() const override {
    auto twin = std::make_unique<Recycling>(nodes_, k_);
    twin->table_ = std::make_shared<RecycledTable>(*table_);
    return twin;
  }

  int64_t figure(int) const override { return table_->size(); }

  int save(int, int64_t* tokens, int32_t* ids, float* p, int32_t*) const override {
    table_->save(tokens, ids, p);
    return 0;
  }

  int load(int, int n, const int64_t* tokens, const int32_t* ids, const float* p, const int32_t*) override {
    auto table = std::make_shared<RecycledTable>(k_, RecycledTable::CAP);
    table->load(n, tokens, ids, p);
    table_ = std::move(table);
    return 0;
  }

  bool share(TableDrafter& other) override {
    auto* same = dynamic_cast<Recycling*>(&other);
    if (!same || same->k_ != k_) return false;
    table_ = same->table_;
    return true;
  }

 private:
  // The probability of each; the list ends at a logit that is not finite.
  void show(int64_t token, const int32_t* ids, const float* logits) {
    p_.clear();
    double total = 0;
    for (int i = 0; i < k_ && ids[i] >= 0 && std::isfinite(logits[i]); i++) {
      p_.push_back(std::exp((double)logits[i] - (double)logits[0]));
      total += p_.back();
    }
    total /= TRUST;
    for (double& p : p_) p /= total;
    table_->show(token, (int)p_.size(), ids, p_.data());
  }

  const int nodes_, k_;
  std::shared_ptr<RecycledTable> table_;
  std::vector<double> p_;
  RankedGrower grower_;
};

}  // namespace

std::unique_ptr<TableDrafter> make_recycling(const ed_drafter_options& o) {
  return std::make_unique<Recycling>(o.nodes, o.k);
}

}  // namespace edgedec
