// Copy-on-write tables: rows of equal size in shared pages, and an index of keys over them. Copying a table
// of megabytes takes microseconds.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

namespace edgedec {

// Not for two threads at once; copies may be used by different threads.
class SharedRows {
 public:
  SharedRows(size_t row_bytes, int shift) : row_(row_bytes), shift_(shift), mask_(((size_t)1 << shift) - 1) {}
  SharedRows(const SharedRows& other)
      : row_(other.row_), shift_(other.shift_), mask_(other.mask_), rows_(other.rows_), pages_(other.pages_) {
    for (Page* page : pages_) page->holders.fetch_add(1, std::memory_order_relaxed);
  }
  SharedRows& operator=(const SharedRows&) = delete;
  ~SharedRows() { clear(); }

  size_t size() const { return rows_; }
  const uint8_t* at(size_t i) const { return pages_[i >> shift_]->bytes() + (i & mask_) * row_; }

  uint8_t* write(size_t i) {
    Page*& page = pages_[i >> shift_];
    if (page->holders.load(std::memory_order_acquire) > 1) page = own(page);
    return page->bytes() + (i & mask_) * row_;
  }

  // New rows are zero.
  void resize(size_t rows) {
    const size_t pages = (rows + mask_) >> shift_;
    pages_.reserve(pages);
    while (pages_.size() < pages) pages_.push_back(make());
    rows_ = rows;
  }

  void clear() {
    for (Page* page : pages_) drop(page);
    pages_.clear(), rows_ = 0;
  }

 private:
  struct alignas(16) Page {
    std::atomic<int> holders{1};
    uint8_t* bytes() { return (uint8_t*)(this + 1); }
  };

  size_t page_bytes() const { return row_ << shift_; }
  Page* make() const {
    Page* page = new (::operator new(sizeof(Page) + page_bytes())) Page;
    std::memset(page->bytes(), 0, page_bytes());
    return page;
  }
  Page* own(Page* shared) const {
    Page* page = make();
    std::memcpy(page->bytes(), shared->bytes(), page_bytes());
    drop(shared);
    return page;
  }
  static void drop(Page* page) {
    if (page->holders.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    page->~Page();
    ::operator delete(page);
  }

  const size_t row_;
  const int shift_;
  const size_t mask_;
  size_t rows_ = 0;
  std::vector<Page*> pages_;
};

inline uint64_t mixed(uint64_t key) {
  key *= 0x9E3779B97F4A7C15ull;
  return key ^ (key >> 29);
}

// Key -> place. The key of a place is the first int64 of its row.
class RowIndex {
 public:
  explicit RowIndex(const SharedRows& rows) : rows_(&rows), places_(sizeof(int32_t), 8) { places_.resize(256); }
  RowIndex(const RowIndex& other, const SharedRows& rows) : rows_(&rows), places_(other.places_), n_(other.n_) {}

  int size() const { return n_; }

  int find(int64_t key) const {
    for (size_t at = home(key);; at = next(at)) {
      const int32_t place = entry(at);
      if (!place) return -1;
      if (this->key(place - 1) == key) return place - 1;
    }
  }

  // Room for so many keys more.
  void reserve(size_t keys) {
    size_t size = places_.size();
    while (size < 2 * ((size_t)n_ + keys)) size *= 2;
    if (size > places_.size()) grow(size);
  }

  // The row of `place` has its key already.
  void add(int32_t place) {
    if (2 * (size_t)(n_ + 1) > places_.size()) grow(2 * places_.size());
    put(place);
    n_++;
  }

  // The row of the key's place still has it.
  void remove(int64_t key) {
    size_t at = home(key);
    while (entry(at) && this->key(entry(at) - 1) != key) at = next(at);
    if (!entry(at)) return;
    n_--;
    // Later entries move up, unless their own chain begins after the gap.
    for (size_t gap = at, on = next(gap);; on = next(on)) {
      const int32_t place = entry(on);
      if (!place) return set(gap, 0);
      const size_t first = home(this->key(place - 1));
      if (((on - first) & mask()) >= ((on - gap) & mask())) set(gap, place), gap = on;
    }
  }

  void clear() { places_.clear(), places_.resize(256), n_ = 0; }

 private:
  size_t mask() const { return places_.size() - 1; }
  size_t home(int64_t key) const { return mixed((uint64_t)key) & mask(); }
  size_t next(size_t at) const { return (at + 1) & mask(); }
  int32_t entry(size_t at) const { return *(const int32_t*)places_.at(at); }
  void set(size_t at, int32_t value) { *(int32_t*)places_.write(at) = value; }
  int64_t key(int32_t place) const { return *(const int64_t*)rows_->at(place); }
  void put(int32_t place) {
    size_t at = home(key(place));
    while (entry(at)) at = next(at);
    set(at, place + 1);
  }
  void grow(size_t size) {
    std::vector<int32_t> kept;
    for (size_t at = 0; at < places_.size(); at++)
      if (entry(at)) kept.push_back(entry(at) - 1);
    places_.clear(), places_.resize(size);
    for (int32_t place : kept) put(place);
  }

  const SharedRows* rows_;
  SharedRows places_;  // place + 1; 0: none
  int n_ = 0;
};

}  // namespace edgedec
