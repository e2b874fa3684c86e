// Single slots of a kv head that views list (attention_views.h), copied side by side: pages of PAGE_SLOTS keys and after
// them as many values. One that stands for a run of slots has the mean of their values, and the logarithm of their
// number as its bias. A block's state keeps them between calls: where a step sees the same slots as the one before, or
// these and more, only the new ones are copied.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "pages.h"

namespace edgedec {

class SlotCopies {
 public:
  SlotCopies(std::shared_ptr<PagePool> pool, size_t row_bytes) : pool_(std::move(pool)), row_bytes_(row_bytes) {}
  SlotCopies(SlotCopies&&) = default;
  ~SlotCopies() { keep(0); }
  // From now on of these slots (ascending) and runs (empty: each is itself). Returns how many of the first ones are
  // there already: the caller writes the others. Throws std::bad_alloc, and then holds none.
  int set(const std::vector<int32_t>& slots, const std::vector<int32_t>& runs);
  // Whether these are its first ones.
  bool begins(const std::vector<int32_t>& slots, const std::vector<int32_t>& runs) const;
  // Forgets those that reach slot `slots` or beyond.
  void truncate(int slots);
  uint8_t* const* pages() const { return pages_.data(); }
  uint8_t* key(int i) const { return pages_[i / PER_PAGE] + i % PER_PAGE * row_bytes_; }
  const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); }  // whole chunks
  size_t bytes() const { return pages_.size() * page_bytes(); }

 private:
  static constexpr int PER_PAGE = 64;
  size_t page_bytes() const { return 2 * PER_PAGE * row_bytes_; }
  size_t shared(const std::vector<int32_t>& slots, const std::vector<int32_t>& runs) const;
  void keep(size_t n);

  std::shared_ptr<PagePool> pool_;
  size_t row_bytes_;
  std::vector<int32_t> slots_, runs_;
  std::vector<float> bias_;
  std::vector<uint8_t*> pages_;
};

}  // namespace edgedec
