// Reference-counted pages of cached rows. Shared pages are read-only.
//
// Pages are cut from slabs that may lie in huge pages of memory: a step of 16 sequences reads more pages of 4
// KiB than the TLB has entries for.
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
  static bool on_disk(const uint8_t* page) { return head(page).slab->on_disk; }
  static void rest(uint8_t* page);  // one on disk: it need not stay in memory
  static void hold(uint8_t* page) { head(page).holders.fetch_add(1, std::memory_order_relaxed); }
  void release(uint8_t* page);
  void trim();  // frees the slabs without a page in use
  static int holders(const uint8_t* page) { return head(page).holders.load(std::memory_order_acquire); }
  int64_t live() const { return live_.load(std::memory_order_relaxed); }

 private:
  struct Slab {
    uint8_t* memory;
    size_t page_bytes, pages, used;
    bool on_disk;
    ~Slab();
    size_t bytes() const;
    size_t stride() const;
  };
  struct Head {
    std::atomic<int32_t> holders;
    Slab* slab;
  };
  // Pages of one size: the free ones, and the number of all.
  struct Size {
    std::vector<uint8_t*> free;
    size_t made = 0;
  };
  static constexpr size_t HEAD = 64;
  static constexpr size_t MOST_FREE = 64u << 20;  // bytes kept for reuse
  static_assert(sizeof(Head) <= HEAD, "a page's head");
  static Head& head(const uint8_t* page) { return *reinterpret_cast<Head*>(const_cast<uint8_t*>(page) - HEAD); }

  uint8_t* take(size_t bytes, const char* folder);
  Size& size_of(size_t bytes, bool on_disk) { return sizes_[2 * bytes + on_disk]; }
  bool add_slab(Size& size, size_t bytes, const char* folder);
  void drop_slab(Size& size, Slab* slab);

  std::mutex mutex_;
  std::unordered_map<size_t, Size> sizes_;  // by bytes of a page, and where it is
  std::vector<std::unique_ptr<Slab>> slabs_;
  size_t free_bytes_ = 0;
  std::atomic<int64_t> live_{0};
};

}  // namespace edgedec
