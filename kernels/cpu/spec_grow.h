// Shared code of the drafters that count the continuations of a match: suffix and datastore.
#pragma once
#include <algorithm>
#include <cmath>

#include "spec_draft.h"

namespace edgedec {

// Pseudo-count of unseen continuations, by the length of the match.
class Unforeseen {
 public:
  Unforeseen() {
    weights_.push_back(8.0);
    for (int length = 1; length <= LONG; length++) weights_.push_back(2.6 * std::pow((double)length, -1.1));
  }
  double operator()(int length) const { return weights_[(size_t)std::min(length, LONG)]; }

 private:
  static constexpr int LONG = 64;
  std::vector<double> weights_;
};

// Grows a tree by expanding the likeliest nodes first: `edgedec.trees.grow.grow`.
template <class State>
class TreeGrower {
 public:
  struct Follower {
    int32_t token;
    double p;
    State state;
  };
  using Followers = std::vector<Follower>;

  // follow(state, found): appends what may follow, no token twice.
  template <class Follow>
  void grow(State state, int nodes, double least, DraftTree& draft, Follow follow) {
    heap_.clear();
    int count = 0, parent = -1;
    for (double worth = 1;;) {
      found_.clear();
      follow(state, found_);
      for (const Follower& found : found_) {
        const double path = worth * found.p;
        if (path < least || path <= 0) continue;
        heap_.push_back({path, count++, parent, found});
        std::push_heap(heap_.begin(), heap_.end(), later);
      }
      if (heap_.empty() || (int)draft.size() >= nodes) return;
      std::pop_heap(heap_.begin(), heap_.end(), later);
      const Waiting next = heap_.back();
      heap_.pop_back();
      parent = (int)draft.size(), worth = next.path, state = next.follower.state;
      draft.add(next.follower.token, next.parent, next.follower.p);
      if ((int)draft.size() >= nodes) return;
    }
  }

 private:
  struct Waiting {
    double path;
    int count, parent;
    Follower follower;
  };
  static bool later(const Waiting& a, const Waiting& b) {
    return a.path < b.path || (a.path == b.path && a.count > b.count);
  }

  Followers found_;
  std::vector<Waiting> heap_;
};

}  // namespace edgedec
