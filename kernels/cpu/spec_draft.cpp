#include "spec_draft.h"

#include <cmath>

namespace edgedec {

const History& DraftTail::follow(const DraftText& text) {
  tail_ = History();
  const size_t n = std::min(text.ids.size(), (size_t)n_);
  for (size_t i = text.ids.size() - n; i < text.ids.size(); i++) tail_.tokens[tail_.n++] = text.ids[i];
  return tail_;
}

const std::vector<History>& DraftTail::histories(const ed_verified& seen) {
  History before;
  for (int i = std::max(seen.root + 1 - n_, 0); i <= seen.root; i++) before.tokens[before.n++] = (int32_t)seen.tokens[i];
  if (tail_.n > before.n && std::equal(before.tokens, before.tokens + before.n, tail_.tokens + tail_.n - before.n))
    before = tail_;
  before.depth = 0;
  found_.assign(1, before);
  for (int i = seen.root + 1; i < seen.rows; i++) {
    const int above = (int)seen.parents[i] - seen.root;
    found_.push_back(found_[(size_t)std::max(above, 0)].then((int32_t)seen.tokens[i], n_));
  }
  tail_ = before;
  for (int i = 0; i < seen.accepted; i++) tail_ = tail_.then((int32_t)seen.picked[i], n_);
  return found_;
}

bool best_of(const ed_verified& seen, int k, std::vector<int32_t>& ids, std::vector<float>& p) {
  if (!seen.top_ids || !seen.top_scores || seen.top < k) return false;
  const int rows = seen.rows - seen.root;
  ids.resize((size_t)rows * k), p.resize((size_t)rows * k);
  std::vector<double> weights((size_t)k);
  for (int r = 0; r < rows; r++) {
    const int32_t* shown = seen.top_ids + (size_t)r * seen.top;
    const float* scores = seen.top_scores + (size_t)r * seen.top;
    const bool known = *std::min_element(shown, shown + k) >= 0;
    double total = 0;
    for (int i = 0; i < k; i++) {
      weights[(size_t)i] = known ? std::exp((double)scores[i] - (double)scores[0]) : 0;
      total += weights[(size_t)i];
    }
    for (int i = 0; i < k; i++) {
      ids[(size_t)r * k + i] = known ? shown[i] : -1;
      p[(size_t)r * k + i] = known ? (float)(weights[(size_t)i] / total) : 0.0f;
    }
  }
  return true;
}

namespace {
// The heap's top is what is to be taken first; of equals what came first.
template <class W>
bool later(const W& a, const W& b) {
  return a.negative > b.negative || (a.negative == b.negative && a.count > b.count);
}
}  // namespace

void RankedGrower::push(const Waiting& waiting) {
  heap_.push_back(waiting);
  std::push_heap(heap_.begin(), heap_.end(), later<Waiting>);
}

bool RankedGrower::take(double least, Waiting& found) {
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), later<Waiting>);
    found = heap_.back();
    heap_.pop_back();
    if (found.at + 1 < found.end) {
      Waiting next = found;
      next.at++, next.negative = -found.haste * list_.haste[next.at], next.count = count_++;
      push(next);
    }
    const double p = list_.p[found.at];
    if (p > 0 && found.worth * p >= least) return true;
  }
  return false;
}

}  // namespace edgedec
