#include "spec_merge.h"

#include <cmath>

namespace edgedec {

namespace {

constexpr double UNKNOWN = 0.5, PRIOR = 3, MEMORY = 48;

int kind_of(double claim) {
  const double kind = claim * ED_DRAFT_KINDS;
  return kind >= ED_DRAFT_KINDS ? ED_DRAFT_KINDS - 1 : kind > 0 ? (int)kind : 0;
}

// Counts a verified guess of this kind.
void add_test(const ed_calibration& c, int kind, bool came_true) {
  double hits = c.hits[kind] + came_true, tests = c.tests[kind] + 1;
  if (tests > MEMORY) hits /= 2, tests /= 2;
  c.hits[kind] = hits, c.tests[kind] = tests;
  c.estimates[kind] = (hits + PRIOR * ((kind + 0.5) / ED_DRAFT_KINDS)) / (tests + PRIOR);
}

}  // namespace

void TreeMerger::clear() { nodes_.clear(), guesses_.clear(), top_ = last_top_ = -1; }

int TreeMerger::child_of(int parent, int32_t token) const {
  int node = first_child(parent);
  while (node >= 0 && nodes_[(size_t)node].token != token) node = nodes_[(size_t)node].sibling;
  return node;
}

void TreeMerger::add(int number, size_t n, const int32_t* tokens, const int32_t* parents, const double* claims,
                     const double* estimates, int32_t* places) {
  places_.resize(n);
  for (size_t i = 0; i < n; i++) {
    const int above = parents[i] < 0 ? ROOT : places_[(size_t)parents[i]];
    const int kind = kind_of(claims ? claims[i] : UNKNOWN);
    const double p = estimates[kind];
    int node = child_of(above, tokens[i]);
    if (node < 0) {
      node = size();
      nodes_.push_back({tokens[i], above, -1, -1, -1, -1, -1, 0, p, 0});
      int32_t& last = above < 0 ? last_top_ : nodes_[(size_t)above].last_child;
      (last >= 0 ? nodes_[(size_t)last].sibling : above < 0 ? top_ : nodes_[(size_t)above].child) = node;
      last = node;
    }
    Node& found = nodes_[(size_t)node];
    found.p = std::max(found.p, p), found.by |= 1 << number;
    const int guess = (int)guesses_.size();
    guesses_.push_back({number, kind, -1});
    (found.last_guess >= 0 ? guesses_[(size_t)found.last_guess].next : found.guess) = guess;
    found.last_guess = guess;
    places_[i] = node;
    if (places) places[i] = node;
  }
}

const std::vector<int32_t>& TreeMerger::order(bool chain) {
  order_.resize(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); i++) {
    Node& node = nodes_[i];
    node.chance = node.parent < 0 ? node.p : nodes_[(size_t)node.parent].chance * node.p;
    order_[i] = (int32_t)i;
  }
  std::stable_sort(order_.begin(), order_.end(),
                   [this](int a, int b) { return nodes_[(size_t)a].chance > nodes_[(size_t)b].chance; });
  if (chain) {
    int last = ROOT;
    size_t n = 0;
    for (const int32_t node : order_)
      if (nodes_[(size_t)node].parent == last) order_[n++] = last = node;
    order_.resize(n);
  }
  return order_;
}

// Small gains are mostly noise: drafted rows must gain 20% more than their time is worth
// (`edgedec.decoding.allocation`).
static constexpr double MARGIN = 1.2;

int TreeMerger::paying(const ed_watch& watch) const {
  if (order_.empty() || nodes_[(size_t)order_[0]].chance < watch.first || watch.most < 2) return 0;
  const double plain = 1 / (watch.seconds[1] + watch.text);
  double best = plain, tokens = 1, found = 1;
  int nodes = 0;
  for (int n = 1; n <= (int)order_.size() && 1 + n <= watch.most; n++) {
    tokens += watch.trust * nodes_[(size_t)order_[(size_t)n - 1]].chance;
    const double rate = tokens / (watch.seconds[1 + n] + watch.text + n * watch.each);
    if (rate > best) best = rate, nodes = n, found = tokens;
  }
  return found - 1 >= MARGIN * (found * plain / best - 1) ? nodes : 0;
}

void TreeMerger::fill(ed_draft_tree& tree) const {
  tree.n = std::min(size(), tree.room);
  for (int i = 0; i < tree.n; i++) {
    const Node& node = nodes_[(size_t)i];
    tree.tokens[i] = node.token, tree.parents[i] = node.parent;
    tree.p[i] = node.p, tree.chances[i] = node.chance;
    tree.by[i] = node.by;
  }
}

bool TreeMerger::cut(std::vector<int32_t> nodes, ed_draft_tree& tree) const {
  std::sort(nodes.begin(), nodes.end());
  if (!nodes.empty() && (nodes.front() < 0 || nodes.back() >= size() || (int)nodes.size() > tree.room)) return false;
  tree.n = (int32_t)nodes.size();
  for (size_t i = 0; i < nodes.size(); i++) {
    const Node& node = nodes_[(size_t)nodes[i]];
    const auto above = std::lower_bound(nodes.begin(), nodes.begin() + (std::ptrdiff_t)i, node.parent);
    if (node.parent >= 0 && (above == nodes.begin() + (std::ptrdiff_t)i || *above != node.parent)) return false;
    tree.tokens[i] = node.token, tree.parents[i] = node.parent < 0 ? ROOT : (int32_t)(above - nodes.begin());
    tree.p[i] = node.p, tree.by[i] = node.by;
  }
  return true;
}

void TreeMerger::count(int node, bool came_true, const ed_calibration* calibrations) const {
  for (int g = nodes_[(size_t)node].guess; g >= 0; g = guesses_[(size_t)g].next)
    add_test(calibrations[guesses_[(size_t)g].number], guesses_[(size_t)g].kind, came_true);
}

int TreeMerger::test(const int64_t* picked, int n, const ed_calibration* calibrations, int32_t* path) const {
  // Nothing is verified after the last picked token.
  int found = 0;
  for (int above = ROOT; found < n; found++) {
    const int right = child_of(above, (int32_t)picked[found]);
    for (int node = first_child(above); calibrations && node >= 0; node = nodes_[(size_t)node].sibling)
      count(node, node == right, calibrations);
    if (right < 0) break;
    path[found] = above = right;
  }
  return found;
}

}  // namespace edgedec
