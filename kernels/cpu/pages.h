// Reference-counted pages of cached rows. Shared pages are read-only.
//
// Pages are cut from slabs that may lie in huge pages of memory: a step of 16 sequences reads more pages of 4
// KiB than the TLB has entries for. A page is taken from the lowest slab that has one: texts that come and go leave
// the later slabs empty, and these are given back.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace edgedec {

class PagePool {
 public:
  PagePool();
  PagePool(const PagePool&) = delete;
  ~PagePool();
  // A page of `bytes`, 64-byte aligned, not cleared, held once. Throws std::bad_alloc.
  uint8_t* take(size_t bytes) { return take(bytes, nullptr); }
  // One in a file of a folder (`mapped_file.h`). Null: no such file can be had.
  uint8_t* take_on_disk(size_t bytes, const char* folder) { return take(bytes, folder); }
  static bool on_disk(const uint8_t* page) { return head(page).slab->size.on_disk; }
  static void rest(uint8_t* page);  // one on disk: it need not stay in memory
  static void hold(uint8_t* page) { head(page).holders.fetch_add(1, std::memory_order_relaxed); }
  void release(uint8_t* page);
  void trim();  // frees the slabs without a page in use
  static int holders(const uint8_t* page) { return head(page).holders.load(std::memory_order_acquire); }
  int64_t live() const { return live_.load(std::memory_order_relaxed); }
  size_t reserved();  // bytes of all slabs

 private:
  struct Size;
  struct Slab {
    uint8_t* memory;
    Size& size;
    size_t index;  // in its size
    size_t used = 0, cut = 0;
    uint8_t* free = nullptr;  // of the pages that were cut: a list through their heads
    ~Slab();
  };
  struct Head {
    std::atomic<int32_t> holders;
    Slab* slab;
    uint8_t* next;  // of a free one
  };
  // Pages of one size, in slabs of so many pages and bytes. open: a bit for each slab with a page to take, none of
  // them below `first`.
  struct Size {
    size_t page_bytes = 0, stride = 0, pages = 0, bytes = 0;
    bool on_disk = false;
    std::vector<std::unique_ptr<Slab>> slabs;
    std::vector<uint64_t> open;
    size_t first = 0;  // a word of `open`
  };
  static constexpr size_t HEAD = 64;
  static constexpr size_t MOST_EMPTY = 16u << 20;  // bytes of slabs without a page in use that are kept for reuse
  static_assert(sizeof(Head) <= HEAD, "a page's head");
  static Head& head(const uint8_t* page) { return *reinterpret_cast<Head*>(const_cast<uint8_t*>(page) - HEAD); }

  uint8_t* take(size_t bytes, const char* folder);
  Size& size_of(size_t bytes, bool on_disk);
  static Slab* lowest(Size& size);
  static void mark(Slab& slab, bool open);
  Slab* add_slab(Size& size, const char* folder);
  void drop_slab(Slab& slab);

  std::mutex mutex_;
  std::unordered_map<size_t, Size> sizes_;  // by bytes of a page, and where it is
  size_t reserved_ = 0, empty_ = 0;  // bytes: of all slabs, of those in memory without a page in use
  std::atomic<int64_t> live_{0};
};

}  // namespace edgedec
