#include "attention_copies.h"

#include <algorithm>
#include <cmath>

#include "kernels.h"
#include "kv.h"

namespace edgedec {

// How many of the first ones are the same.
size_t SlotCopies::shared(const std::vector<int32_t>& slots, const std::vector<int32_t>& runs) const {
  if (runs_.empty() != runs.empty()) return 0;
  const size_t n = std::min(slots.size(), slots_.size());
  size_t same = std::mismatch(slots.begin(), slots.begin() + n, slots_.begin()).first - slots.begin();
  if (!runs.empty()) same = std::mismatch(runs.begin(), runs.begin() + same, runs_.begin()).first - runs.begin();
  return same;
}

bool SlotCopies::begins(const std::vector<int32_t>& slots, const std::vector<int32_t>& runs) const {
  return slots.size() <= slots_.size() && shared(slots, runs) == slots.size();
}

int SlotCopies::set(const std::vector<int32_t>& slots, const std::vector<int32_t>& runs) {
  static_assert(PER_PAGE == PAGE_SLOTS, "copies lie in pages as slots do");
  const size_t known = shared(slots, runs), pages = (slots.size() + PER_PAGE - 1) / PER_PAGE;
  keep(known);
  try {
    pages_.reserve(pages);
    while (pages_.size() < pages) pages_.push_back(pool_->take(page_bytes()));
    slots_ = slots, runs_ = runs;
    bias_.resize((runs.size() + CHUNK - 1) / CHUNK * CHUNK, 0.0f);
  } catch (...) {
    keep(0);
    throw;
  }
  for (size_t i = known; i < runs.size(); i++) bias_[i] = std::log((float)runs[i]);
  return (int)known;
}

void SlotCopies::truncate(int slots) {
  size_t n = std::lower_bound(slots_.begin(), slots_.end(), slots) - slots_.begin();
  if (n && !runs_.empty() && slots_[n - 1] + runs_[n - 1] > slots) n--;
  keep(n);
}

// The first n, and no pages for others.
void SlotCopies::keep(size_t n) {
  slots_.resize(std::min(n, slots_.size())), runs_.resize(std::min(n, runs_.size()));
  bias_.resize((runs_.size() + CHUNK - 1) / CHUNK * CHUNK);
  std::fill(bias_.begin() + runs_.size(), bias_.end(), 0.0f);
  const size_t pages = (slots_.size() + PER_PAGE - 1) / PER_PAGE;
  for (; pages_.size() > pages; pages_.pop_back()) pool_->release(pages_.back());
}

}  // namespace edgedec
