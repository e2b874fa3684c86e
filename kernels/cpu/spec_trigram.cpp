// ADED: edgedec/drafters/trigram.py.
#include <cmath>

#include "spec_draft.h"

namespace edgedec {

namespace {

constexpr int PAIRS = 1 << 16, SINGLES = 1 << 15, TEXT = 2048, TRIED = 4;
constexpr float SAID = 0.5f;
constexpr double TRUST = 0.8, BACKED_OFF = 0.5;

struct TrigramTables {
  explicit TrigramTables(int k) : pairs(k, PAIRS), singles(k, SINGLES) {}
  RankedTable pairs, singles;
};

class Trigram final : public TableDrafter {
 public:
  explicit Trigram(const ed_drafter_options& options)
      : o_(options), tables_(std::make_shared<TrigramTables>(options.k)), tail_(2) {}

  void propose(const DraftText& text, int nodes, double least, DraftTree& draft) override {
    if (!read_) read_text(text);
    if (text.ids.empty()) return;
    grower_.grow(tail_.follow(text), 2, std::min(nodes, o_.nodes), least, draft,
                 [this](const History& at, RankedList& list) { followers(at, list); });
  }

  void observe(const ed_verified& seen) override {
    const std::vector<History>& histories = tail_.histories(seen);
    if (!best_of(seen, o_.k, ids_, p_)) return;
    clear(histories.size());
    for (size_t i = 0; i < histories.size(); i++) add(histories[i].last(), i);
    tables_->singles.learn(keys_, lines_, ids_.data(), p_.data(), 1);
    clear(histories.size());
    for (size_t i = histories[0].n < 2 ? 1 : 0; i < histories.size(); i++)
      add(pair(histories[i].tokens[0], histories[i].tokens[1]), i);
    tables_->pairs.learn(keys_, lines_, ids_.data(), p_.data(), (float)o_.rate);
  }

  void reset() override { tail_.reset(), read_ = false; }

  std::unique_ptr<TableDrafter> fork() const override {
    auto twin = std::make_unique<Trigram>(o_);
    twin->tables_ = std::make_shared<TrigramTables>(*tables_);
    return twin;
  }

  int64_t figure(int what) const override { return what ? tables_->singles.size() : tables_->pairs.size(); }

  int save(int part, int64_t* keys, int32_t* ids, float* p, int32_t* visits) const override {
    (part ? tables_->singles : tables_->pairs).save(keys, ids, p, visits);
    return 0;
  }

  // The second part makes the tables those of this drafter alone.
  int load(int part, int n, const int64_t* keys, const int32_t* ids, const float* p, const int32_t* visits) override {
    if (!part) loaded_ = std::make_shared<TrigramTables>(o_.k);
    (part ? loaded_->singles : loaded_->pairs).load(n, keys, ids, p, visits);
    if (part) tables_ = std::move(loaded_);
    return 0;
  }

  bool share(TableDrafter& other) override {
    auto* same = dynamic_cast<Trigram*>(&other);
    if (!same || same->o_.k != o_.k) return false;
    tables_ = same->tables_;
    return true;
  }

 private:
  int64_t pair(int64_t before, int64_t last) const { return before * o_.vocab + last; }

  void clear(size_t room) { keys_.clear(), lines_.clear(), keys_.reserve(room), lines_.reserve(room); }
  void add(int64_t key, size_t line) { keys_.push_back(key), lines_.push_back((int)line); }

  // The successors of tokens in a prompt.
  void read_text(const DraftText& text) {
    read_ = true;
    const size_t end = std::min(text.ids.size(), (size_t)std::max(text.prompt, 0));
    const size_t begin = end > (size_t)TEXT ? end - TEXT : 0, n = end - begin, k = (size_t)o_.k;
    const int32_t* ids = text.ids.data() + begin;
    ids_.assign(n * k, -1), p_.assign(n * k, 0.0f);
    for (size_t i = 0; i + 1 < n; i++) ids_[i * k] = ids[i + 1], p_[i * k] = SAID;
    clear(n);
    for (size_t i = 0; i + 1 < n; i++) add(ids[i], i);
    tables_->singles.learn(keys_, lines_, ids_.data(), p_.data(), 1);
    clear(n);
    for (size_t i = 1; i + 1 < n; i++) add(pair(ids[i - 1], ids[i]), i);
    tables_->pairs.learn(keys_, lines_, ids_.data(), p_.data(), (float)o_.rate);
  }

  void followers(const History& at, RankedList& list) {
    const int64_t last = at.last();
    int place = tables_->pairs.find(pair(at.n > 1 ? at.tokens[0] : -1, last));
    if (place >= 0) return explored(last, place, list);
    if ((place = tables_->singles.find(last)) < 0) return;
    const int32_t* ids = tables_->singles.ids(place);
    const float* p = tables_->singles.p(place);
    for (int i = 0; i < o_.k; i++) list.add(ids[i], BACKED_OFF * (double)p[i], BACKED_OFF * (double)p[i]);
  }

  // The first few with what is still to learn after them.
  void explored(int64_t last, int place, RankedList& list) {
    const RankedTable& pairs = tables_->pairs;
    const int32_t* ids = pairs.ids(place);
    const float* p = pairs.p(place);
    const double urge = o_.explore * std::sqrt((double)pairs.visits(place));
    order_.clear(), haste_.clear();
    for (int i = 0; i < o_.k; i++) {
      const double chance = TRUST * (double)p[i];
      haste_.push_back(chance), order_.push_back(i);
      if (!o_.explore || i >= TRIED) continue;
      const int after = pairs.find(pair(last, ids[i]));
      const double known = after >= 0 ? pairs.visits(after) : 0;
      haste_[i] += std::min(o_.explore, urge * chance / (1 + known));
    }
    std::stable_sort(order_.begin(), order_.end(), [this](int a, int b) { return haste_[a] > haste_[b]; });
    for (const int i : order_) list.add(ids[i], TRUST * (double)p[i], haste_[i]);
  }

  const ed_drafter_options o_;
  std::shared_ptr<TrigramTables> tables_, loaded_;
  DraftTail tail_;
  bool read_ = false;
  RankedGrower grower_;
  std::vector<int64_t> keys_;
  std::vector<int> lines_, order_;
  std::vector<int32_t> ids_;
  std::vector<float> p_;
  std::vector<double> haste_;
};

}  // namespace

std::unique_ptr<TableDrafter> make_trigram(const ed_drafter_options& o) { return std::make_unique<Trigram>(o); }

}  // namespace edgedec
