// Draft trees of several drafters as one, by common prefix: edgedec/trees/merge.py and calibration.py.
#pragma once
#include "spec_draft.h"

namespace edgedec {

constexpr int ROOT = -1;

class TreeMerger {
 public:
  struct Guess {
    int32_t number, kind, next;  // of the same node; -1: none
  };

  int size() const { return (int)nodes_.size(); }
  void clear();
  // `places`, if not null, takes the node of each token. claims null: unknown.
  void add(int number, size_t n, const int32_t* tokens, const int32_t* parents, const double* claims,
           const double* estimates, int32_t* places);
  // Nodes by chance, parents before children; with `chain` the likeliest child of each only.
  const std::vector<int32_t>& order(bool chain);
  // The number of the first nodes of `order` that are worth a call of one sequence: edgedec/decoding/allocation.py.
  int paying(const ed_watch& watch) const;
  void fill(ed_draft_tree& tree) const;
  // Of a node, once `order` is known; the drafters that proposed it, by bit.
  double chance(int node) const { return nodes_[(size_t)node].chance; }
  int32_t by(int node) const { return nodes_[(size_t)node].by; }
  int32_t token(int node) const { return nodes_[(size_t)node].token; }
  int parent(int node) const { return nodes_[(size_t)node].parent; }
  // Some nodes, ascending, parents numbered among them; false: a parent is missing.
  bool cut(std::vector<int32_t> nodes, ed_draft_tree& tree) const;
  int test(const int64_t* picked, int n, const ed_calibration* calibrations, int32_t* path) const;

 private:
  struct Node {
    int32_t token, parent, child, last_child, sibling, guess, last_guess, by;
    double p, chance;
  };
  int child_of(int parent, int32_t token) const;
  int first_child(int parent) const { return parent < 0 ? top_ : nodes_[(size_t)parent].child; }
  void count(int node, bool came_true, const ed_calibration* calibrations) const;

  std::vector<Node> nodes_;
  std::vector<Guess> guesses_;
  std::vector<int32_t> places_, order_;
  int top_ = -1, last_top_ = -1;
};

}  // namespace edgedec
