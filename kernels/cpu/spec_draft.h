// The table drafters in C++: what `copy`, `suffix`, `recycling`, `trigram`, `stand` and `datastore` of `edgedec/drafters`
// propose, number for number. Those files describe each drafter; a property test compares both implementations.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "api.h"
#include "spec_tables.h"

namespace edgedec {

// A tree below the last known token: parent -1 is that token.
struct DraftTree {
  std::vector<int32_t> tokens, parents;
  std::vector<double> claims;
  size_t size() const { return tokens.size(); }
  void clear() { tokens.clear(), parents.clear(), claims.clear(); }
  void add(int32_t token, int32_t parent, double claim) {
    tokens.push_back(token), parents.push_back(parent), claims.push_back(claim);
  }
};

// The text at hand, of which the first `prompt` tokens were given.
struct DraftText {
  std::vector<int32_t> ids;
  int prompt = 0;
};

class TableDrafter {
 public:
  virtual ~TableDrafter() = default;
  virtual void propose(const DraftText& text, int nodes, double least, DraftTree& draft) = 0;
  virtual void observe(const ed_verified&) {}
  virtual void reset() = 0;
  virtual std::unique_ptr<TableDrafter> fork() const = 0;
  // Statistics and sizes of tables; their meaning depends on the drafter.
  virtual int64_t figure(int) const { return 0; }
  virtual int save(int, int64_t*, int32_t*, float*, int32_t*) const { return ED_DRAFT_REFUSED; }
  virtual int load(int, int, const int64_t*, const int32_t*, const float*, const int32_t*) { return ED_DRAFT_REFUSED; }
  // Documents to draft from: their tokens and suffix array, which outlive it and its forks.
  virtual bool index(const int32_t*, const int32_t*, int64_t) { return false; }
  // Shares the tables of `other`, a drafter of the same kind and k, from now on.
  virtual bool share(TableDrafter&) { return false; }
};

// Null if the options are not those of a drafter.
std::unique_ptr<TableDrafter> make_copy(const ed_drafter_options&);
std::unique_ptr<TableDrafter> make_suffix(const ed_drafter_options&);
std::unique_ptr<TableDrafter> make_recycling(const ed_drafter_options&);
std::unique_ptr<TableDrafter> make_trigram(const ed_drafter_options&);
std::unique_ptr<TableDrafter> make_stand(const ed_drafter_options&);
std::unique_ptr<TableDrafter> make_datastore(const ed_drafter_options&);

// Up to three last tokens, the latest at the end, and how deep in a draft they end.
struct History {
  static constexpr int MOST = 3;
  int32_t tokens[MOST];
  int n = 0, depth = 0;
  int32_t last() const { return tokens[n - 1]; }
  // With one more token, of which `most` are kept.
  History then(int32_t token, int most) const {
    History next;
    const int kept = n < most ? n : most - 1;
    for (int i = 0; i < kept; i++) next.tokens[i] = tokens[n - kept + i];
    next.tokens[kept] = token, next.n = kept + 1, next.depth = depth + 1;
    return next;
  }
};

// The last `n` tokens before a draft, available even if nothing was proposed.
class DraftTail {
 public:
  explicit DraftTail(int n) : n_(n) {}
  const History& follow(const DraftText& text);
  // The last tokens up to each row of a call from its root on; fewer at a text's beginning.
  const std::vector<History>& histories(const ed_verified& seen);
  void reset() { tail_ = History(); }

 private:
  const int n_;
  History tail_;
  std::vector<History> found_;
};

// The k best of each row from the root on and a softmax over their logits: ids, p [rows, k]. A row with a
// logit that is not finite has ids -1. False: the call returned fewer than k.
bool best_of(const ed_verified& seen, int k, std::vector<int32_t>& ids, std::vector<float>& p);

// Candidates for the next token in the order of expansion: their probabilities and priorities.
struct RankedList {
  std::vector<int32_t> ids;
  std::vector<double> p, haste;
  void clear() { ids.clear(), p.clear(), haste.clear(); }
  void add(int32_t id, double chance, double soon) { ids.push_back(id), p.push_back(chance), haste.push_back(soon); }
};

// Grows trees from ranked lists: of siblings only the next one waits in the heap.
class RankedGrower {
 public:
  // followers(history, list): appends what may follow.
  template <class Followers>
  void grow(const History& root, int window, int nodes, double least, DraftTree& draft, Followers followers) {
    list_.clear(), heap_.clear();
    History state = root;
    int parent = -1;
    double haste = 1, worth = 1;
    for (count_ = 0; (int)draft.size() < nodes;) {
      const int begin = (int)list_.ids.size();
      followers(state, list_);
      const int end = (int)list_.ids.size();
      if (end > begin) push({-haste * list_.haste[begin], count_++, parent, begin, end, haste, worth, state});
      Waiting found;
      if (!take(least, found)) return;
      const double p = list_.p[found.at];
      draft.add(list_.ids[found.at], found.parent, p);
      parent = (int)draft.size() - 1, haste = -found.negative, worth = found.worth * p;
      state = found.state.then(list_.ids[found.at], window);
    }
  }

 private:
  struct Waiting {
    double negative;
    int count, parent, at, end;
    double haste, worth;
    History state;
  };
  void push(const Waiting& waiting);
  // The next token whose path is likely enough; what comes after it among its siblings waits then.
  bool take(double least, Waiting& found);

  RankedList list_;
  std::vector<Waiting> heap_;
  int count_ = 0;
};

}  // namespace edgedec
