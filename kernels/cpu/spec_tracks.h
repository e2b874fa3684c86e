// The places of `copy` that a text may follow, and the tree of their next tokens:
// edgedec/drafters/_tables/tracks.py.
#pragma once
#include "spec_draft.h"

namespace edgedec {

constexpr int RUN = 64, NGRAM_MOST = 8;

// A place that the text may follow. at: the index of its next token; run: the number of tokens that agreed;
// doubt: a factor on the claim for its first token; old, fresh: the replacement that it assumes (-1: none).
struct Track {
  int at = 0, run = 0;
  double doubt = 1.0;
  int32_t old = -1, fresh = -1;
};

// The probability of a place's next token after so many that agreed.
double claim_after(int run);
inline double strength(const Track& track) { return claim_after(std::min(track.run, RUN)) * track.doubt; }

// The last positions of n-grams of a text. Positions before the text count as token 0.
class EndIndex {
 public:
  EndIndex(const std::vector<int32_t>& ids, int ngram) : ids_(ids), ngram_(ngram) { clear(); }
  // The n-gram before the place `after` ended last: the place after it, then; -1: nowhere.
  int set(int n, int after);
  // Room for the n-grams of so many tokens more.
  void reserve(size_t tokens);
  void clear();

 private:
  struct Entry {
    int32_t after, n;  // 0: none
  };
  int32_t token(int at) const { return at < 0 ? 0 : ids_[(size_t)at]; }
  size_t home(int n, int after) const;
  bool same(int n, int a, int b) const;
  void grow(size_t size);

  const std::vector<int32_t>& ids_;
  const int ngram_;
  std::vector<Entry> entries_;
  size_t n_ = 0;
};

// A draft in the making. The first chain is laid at once, the others branch off it.
class TrackTree {
 public:
  void clear(double least);
  int size() const { return (int)tokens_.size(); }
  void begin(const std::vector<int32_t>& ahead, const Track& track);
  void extend(const std::vector<int32_t>& ahead, const Track& track);
  // The node for `token` below `parent`, new or known; -1 if its path is less likely than `least`.
  int add(int parent, int32_t token, double claim);
  // The likeliest `nodes`: a path is less likely than its parent's, so they are a tree.
  void cut(int nodes, DraftTree& draft) const;

 private:
  void append(int parent, int32_t token, double claim, double path);

  double least_ = 0;
  std::vector<int32_t> tokens_, parents_;
  std::vector<double> claims_, paths_;
  // By node + 1: its latest child, what its children leave of 1; by node: its elder sibling.
  std::vector<int32_t> child_, elder_;
  std::vector<double> left_;
};

}  // namespace edgedec
